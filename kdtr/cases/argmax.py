"""Cases of `argmax@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.argmax import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
INF, NAN = np.inf, np.nan


_ROUND: Mapping[str, Callable[[Array], Array]] = {
    "f32": nx.round_f32,
    "bf16": nx.round_bf16,
    "f16": nx.round_f16,
}
_LEAST = {"f32": 2.0**-149, "bf16": 2.0**-133, "f16": 2.0**-24}
_MOST = {"f32": float(np.finfo(np.float32).max), "bf16": 255.0 * 2.0**120, "f16": 65504.0}


def _normal(seed: int, shape: tuple[int, int, int], dtype: str, scale: float = 1.0) -> Array:
    return _ROUND[dtype](nx.normal(seed, shape, 18, scale))


def _ties(dtype: str) -> Array:
    """Equal maxima inside one vector, across lanes, warps and tiles, and over the whole row."""
    x = np.full((2, 4, 2100), -1.5)
    for row, ids in enumerate(([1, 2], [31, 32], [255, 1024, 2099], [8, 2048])):
        x[0, row, ids] = 2.0
        x[1, row, [v + 1 for v in ids if v < 2099]] = 2.0
    x[1, 2, :] = 0.5
    return x


def _signed_zeros(dtype: str) -> Array:
    x = np.full((1, 4, 40), -2.0)
    x[0, 0, [3, 9]] = -0.0, 0.0
    x[0, 1, [3, 9]] = 0.0, -0.0
    x[0, 2, :] = -0.0
    x[0, 2, 17] = 0.0
    x[0, 3, 30:] = -0.0
    return x


def _subnormals(dtype: str) -> Array:
    tiny = _LEAST[dtype]
    x = np.zeros((1, 3, 33))
    x[0, 0, 20] = tiny
    x[0, 1, :] = -3 * tiny
    x[0, 1, 31] = -2 * tiny
    x[0, 2, :] = -tiny
    x[0, 2, 32] = 0.0
    return x


def _refused(dtype: str) -> Array:
    """NaN in the middle, last, everywhere, with its sign set, first, of the least bits, after +inf.

    As bits.
    """
    x = _normal(20, (9, 3, 67), dtype)
    x[1, 1, 30] = NAN
    x[2, 2, 66] = NAN
    x[3, 0, :] = NAN
    x[5, 1, 5] = NAN
    x[6, 0, 0] = NAN
    x[7, 2, [3, 40]] = INF
    x[8, 0, [3, 40]] = INF, NAN
    stored = dtypes.encode(x, dtype)
    bits = stored.view(np.uint32 if dtype == "f32" else np.uint16)
    bits[5, 1, 5] |= 1 << (bits.itemsize * 8 - 1)
    bits[7, 2, 40] += 1
    return stored


def _infinite(dtype: str) -> Array:
    x = _normal(30, (2, 3, 50), dtype)
    x[0, 0, 11] = INF
    x[0, 1, [12, 40]] = INF
    x[0, 2, :] = -INF
    x[1, 0, :] = -INF
    x[1, 0, 49] = -_MOST[dtype]
    x[1, 1] = _ROUND[dtype](x[1, 1] - 6e4)
    x[1, 2] = -_MOST[dtype]
    x[1, 2, :7] = -INF
    return x


def _tail(dtype: str) -> Array:
    """The last id refuses a request; in another it stands against -inf, or against a tie."""
    x = np.full((2, 2, 8193), -1.5)
    x[0, 1, 8192] = NAN
    x[1, 0] = -INF
    x[1, 0, 8192] = -_MOST[dtype]
    x[1, 1] = -_LEAST[dtype]
    x[1, 1, [5, 8192]] = -0.0, 0.0
    return x


def _aligned(dtype: str) -> Array:
    """Rows of whole vectors: what is rare, in each of four nodes, and a NaN as the last element."""
    x = _normal(45, (4, 4, 64), dtype)
    x[1, 0] = -INF
    x[1, 0, 63] = -_MOST[dtype]
    x[1, 1] = -_LEAST[dtype]
    x[1, 1, [5, 62]] = -0.0, 0.0
    x[1, 2, [11, 40]] = INF
    x[1, 3] = -1.5
    x[1, 3, [33, 63]] = -1.0
    x[2, 3, 63] = NAN
    return x


def _long(dtype: str) -> Array:
    x = np.full((1, 1, 50001), -1.5)
    if dtype == "bf16":
        x = nx.round_bf16(nx.normal(50, (1, 1, 50001), 12, 1.0))
    x[0, 0, [40000, 50000]] = 9.0
    return x


def _past_16_bits() -> Array:
    """The best id is past 2^16, the second best is what is left of it in 16 bits."""
    x = np.full((1, 1, 70001), -1.5)
    x[0, 0, 70000], x[0, 0, 70000 - 2**16] = 9.0, 8.0
    return x


def _bad_among(shape: tuple[int, int, int], seed: int, dtype: str, *bad: int) -> Array:
    """Rows of which some, counted over all requests, end in a NaN."""
    x = _normal(seed, shape, dtype)
    x.reshape(-1, shape[2])[list(bad), -1] = NAN
    return x


def _negative(dtype: str) -> Array:
    return _ROUND[dtype](
        -1.0 - np.abs(nx.normal(60, (2, 3, 1001), 18 if dtype == "f32" else 8, 2.0))
    )


def cases() -> Iterator[Case]:
    """All cases, in order."""

    def case(
        name: str,
        catches: str,
        logits: Callable[[], Array],
        dtype: str = "f32",
        family: str = "hand",
        **more: Any,
    ) -> Case:
        return Case(
            name=name,
            catches=catches,
            inputs=lambda: {"logits": logits()},
            dtypes={"logits": dtype},
            family=family,
            **more,
        )

    for seed, dtype in enumerate(("f32", "bf16", "f16"), 1):
        yield case(
            f"random_{dtype}",
            "another row's or request's logits; the wrong reading of the stored type",
            partial(_normal, seed, (4, 5, 700), dtype, 2.0),
            dtype,
            family="random",
        )
        yield case(
            f"rows_of_257_requests_{dtype}",
            "more rows and requests than a block has threads, and a NaN in late ones",
            partial(_bad_among, (257, 1, 5), 80 + seed, dtype, 100, 255),
            dtype,
            family="random",
            kills=("rows_past_256", "requests_past_64", "nan_past_request_64"),
        )
    yield case(
        "nodes_1030",
        "more nodes than a block has threads; a NaN in the last of a request",
        partial(_bad_among, (2, 1030, 2), 84, "f16", 1029),
        "f16",
        family="random",
        kills=("nodes_past_64", "nodes_past_1024", "nan_past_node_64"),
    )
    yield case(
        "requests_1030",
        "more requests than a block has threads; a NaN in the last but one",
        partial(_bad_among, (1030, 1, 2), 85, "bf16", 1028),
        "bf16",
        family="random",
        kills=("requests_past_64", "requests_past_1024", "nan_past_request_64"),
    )
    for dtype in ("f32", "bf16", "f16"):

        def named(name: str, first: str, dtype: str = dtype) -> str:
            """The name of a condition; without its type in the type that had it first."""
            return name if dtype == first else f"{name}_{dtype}"

        yield case(
            named("ties", "bf16"),
            "the last or any of several equal maxima instead of the first",
            partial(_ties, dtype),
            dtype,
            family="tie",
            wrong=("ties_by_highest_id",),
            kills=(
                "last_wins",
                "any_lane_wins",
            ),
        )
        yield case(
            named("signed_zeros", "f32"),
            "-0 ordered below +0 by an integer key",
            partial(_signed_zeros, dtype),
            dtype,
            family="tie",
            wrong=("negative_zero_below_zero",),
            kills=(
                "negative_zero_below_zero",
                "last_wins",
            ),
        )
        yield case(
            named("subnormals", "f32"),
            "subnormal logits flushed to zero",
            partial(_subnormals, dtype),
            dtype,
            family="extreme",
            kills=("subnormals_of_f16_flushed",) if dtype == "f16" else ("subnormals_flushed",),
        )
        yield case(
            named("nan_refused", "f32"),
            "a NaN of any sign and bits skipped or chosen, as the first id or after +inf; a bad "
            "request that spoils its neighbours or only its row",
            partial(_refused, dtype),
            dtype,
            family="poison",
            wrong=("nan_ignored", "nan_fails_its_row_only"),
            kills=(
                "nan_ignored",
                "negative_nan_ignored",
                "quiet_nan_only",
                "nan_at_id_0_ignored",
                "nan_after_inf_ignored",
                "nan_wins",
                "nan_fails_its_row_only",
                "nan_fails_the_batch",
                "status_never_set",
            ),
        )
        yield case(
            named("infinite", "f32"),
            "an initial value (-1, -1e4, the most negative finite one) that beats the row; +inf "
            "refused",
            partial(_infinite, dtype),
            dtype,
            family="extreme",
            wrong=("plus_inf_refused",),
            kills=(
                "start_at_minus_one",
                "start_at_sentinel",
                "plus_inf_refused",
            )
            + (("start_at_minus_flt_max",) if dtype == "f32" else ()),
        )
        yield case(
            named("negative_odd_vocab", "f32"),
            "zero-filled lanes past an odd vocabulary win",
            partial(_negative, dtype),
            dtype,
            kills=(
                "start_at_minus_one",
                "zero_lanes_past_vocab",
            )
            + (("bf16_compare",) if dtype != "bf16" else ()),
        )
        yield case(
            named("vocab_8193", "bf16"),
            "the last id of a ragged row left out, an id past it, or a row of several tiles whose "
            "maximum starts too high, whose zeros are ordered by sign or whose NaN is in the last",
            partial(_tail, dtype),
            dtype,
            kills=(
                "tail_vector_dropped",
                "first_tile_only",
                "tiles_start_at_sentinel",
                "tiles_order_zeros",
                "tiles_flush_subnormals",
                "nan_in_first_tile_only",
            ),
        )
        yield case(
            f"aligned_rows_{dtype}",
            "rare values in rows of whole vectors, as when a fast path for those knows only "
            "ordinary ones",
            partial(_aligned, dtype),
            dtype,
            family="extreme",
            kills=(
                "aligned_start_at_sentinel",
                "aligned_flush_subnormals",
                "aligned_nan_ignored",
            ),
        )
        yield case(
            named("vocab_50001", "bf16"),
            "ids cut to 15 bits; a split vocabulary merged in the wrong order",
            partial(_long, dtype),
            dtype,
            kills=(
                "ids_cut_to_15_bits",
                "first_tile_only",
            ),
        )
    for dtype in ("bf16", "f16"):
        yield case(
            f"vocab_70001_{dtype}",
            "ids cut to 16 bits",
            _past_16_bits,
            dtype,
            kills=("ids_cut_to_16_bits",),
        )
    yield case("one_token", "V = 1", lambda: np.full((2, 2, 1), -7.5), null_ok="id 0 is right")
    yield case(
        "one_nan_token",
        "V = 1: the one logit not looked at",
        lambda: np.array([[[1.0], [2.0], [NAN]]]),
        kills=("one_token_unread",),
    )
    yield case("empty_vocabulary", "V = 0: ids -1", lambda: np.zeros((2, 2, 0)))
    yield case("no_nodes", "N = 0", lambda: np.zeros((2, 0, 9)), null_ok="only status is written")
    yield case("no_requests", "R = 0", lambda: np.zeros((0, 2, 9)), null_ok="nothing to write")
    yield case(
        "vocab_70001_f32",
        "ids cut to 16 bits",
        _past_16_bits,
        tier="full",
        kills=("ids_cut_to_16_bits",),
    )
    yield case(
        "nodes_65537",
        "more rows than a grid's second axis, or 16 bits, can count",
        lambda: nx.round_f16(nx.normal(71, (1, 65537, 3), 8, 2.0)),
        "f16",
        family="random",
        tier="full",
    )
    yield case(
        "vocab_163840_bf16",
        "a production vocabulary, split over many blocks",
        lambda: nx.round_bf16(nx.normal(70, (2, 9, 163840), 12, 2.5)),
        "bf16",
        family="random",
        tier="full",
    )


# --- known-wrong conventions ----------------------------------------------------------------------


def _last(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    ids = reference({"logits": x[..., ::-1]}, attrs, profile)["ids"]
    return {"ids": (x.shape[2] - 1 - ids).astype(np.int32)}


def _signed(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    key = np.where((x == 0) & np.signbit(x), -(2.0**-200), x)
    return {"ids": reference({"logits": key}, attrs, profile)["ids"]}


def _nan_ignored(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    return reference({"logits": np.where(np.isnan(x), -INF, x)}, attrs, profile)


def _nan_fails_its_row_only(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    nan = np.isnan(x)
    ids = reference({"logits": np.where(nan, -INF, x)}, attrs, profile)["ids"]
    return {"ids": np.where(nan.any(axis=-1), -1, ids).astype(np.int32)}


def _plus_inf_refused(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    return reference({"logits": np.where(x == INF, NAN, x)}, attrs, profile)


WRONG: Mapping[str, Reference] = {
    "ties_by_highest_id": _last,
    "negative_zero_below_zero": _signed,
    "nan_ignored": _nan_ignored,
    "nan_fails_its_row_only": _nan_fails_its_row_only,
    "plus_inf_refused": _plus_inf_refused,
}
