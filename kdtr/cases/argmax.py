"""Cases of `argmax@1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.argmax import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
INF, NAN = np.inf, np.nan


def _random(seed: int, dtype: str) -> Array:
    x = nx.normal(seed, (4, 5, 700), 18, 2.0)
    return {"f32": nx.round_f32, "bf16": nx.round_bf16, "f16": nx.round_f16}[dtype](x)


def _ties() -> Array:
    """Equal maxima inside one vector, across lanes, warps and tiles, and over the whole row."""
    x = np.full((2, 4, 2100), -1.5)
    for row, ids in enumerate(([1, 2], [31, 32], [255, 1024, 2099], [8, 2048])):
        x[0, row, ids] = 2.0
        x[1, row, [v + 1 for v in ids if v < 2099]] = 2.0
    x[1, 2, :] = 0.5
    return x


def _signed_zeros() -> Array:
    x = np.full((1, 4, 40), -2.0)
    x[0, 0, [3, 9]] = -0.0, 0.0
    x[0, 1, [3, 9]] = 0.0, -0.0
    x[0, 2, :] = -0.0
    x[0, 2, 17] = 0.0
    x[0, 3, 30:] = -0.0
    return x


def _subnormals() -> Array:
    tiny = 2.0**-149
    x = np.zeros((1, 3, 33))
    x[0, 0, 20] = tiny
    x[0, 1, :] = -3 * tiny
    x[0, 1, 31] = -2 * tiny
    x[0, 2, :] = -tiny
    x[0, 2, 32] = 0.0
    return x


def _refused() -> Array:
    x = nx.normal(20, (5, 3, 67), 18)
    x[1, 1, 30] = NAN
    x[2, 2, 66] = NAN
    x[3, 0, :] = NAN
    return x


def _infinite() -> Array:
    x = nx.normal(30, (2, 3, 50), 18)
    x[0, 0, 11] = INF
    x[0, 1, [12, 40]] = INF
    x[0, 2, :] = -INF
    x[1, 0, :] = -INF
    x[1, 0, 49] = -3e38
    x[1, 1] = nx.round_f32(x[1, 1] - 6e4)
    x[1, 2] = -float(np.finfo(np.float32).max)
    x[1, 2, :7] = -INF
    return nx.round_f32(x)


def _tail() -> Array:
    x = nx.round_bf16(nx.normal(40, (2, 3, 8193), 12, 1.0))
    x[0, 0, 8192] = x[1, 2, 8192] = 9.0
    x[0, 1, [8191, 8192]] = 9.0
    x[1, 0, [0, 8192]] = 9.0
    return x


def _long() -> Array:
    x = nx.round_bf16(nx.normal(50, (1, 2, 50001), 12, 1.0))
    x[0, 0, [32769, 40000]] = 9.0
    x[0, 1, 50000] = 9.0
    return x


def _negative() -> Array:
    return -1.0 - np.abs(nx.normal(60, (2, 3, 1001), 18, 2.0))


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
            lambda s=seed, t=dtype: _random(s, t),  # type: ignore[misc]
            dtype,
            family="random",
        )
    yield case(
        "ties",
        "the last or any of several equal maxima instead of the first",
        _ties,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=(
            "last_wins",
            "any_lane_wins",
        ),
    )
    yield case(
        "signed_zeros",
        "-0 ordered below +0 by an integer key",
        _signed_zeros,
        family="tie",
        wrong=("negative_zero_below_zero",),
        kills=(
            "negative_zero_below_zero",
            "last_wins",
        ),
    )
    yield case(
        "subnormals",
        "subnormal logits flushed to zero",
        _subnormals,
        family="extreme",
        kills=("subnormals_flushed",),
    )
    yield case(
        "nan_refused",
        "a NaN skipped or chosen; a bad request that spoils its neighbours or only its row",
        _refused,
        family="poison",
        wrong=("nan_ignored",),
        kills=(
            "nan_ignored",
            "nan_wins",
            "nan_fails_its_row_only",
            "nan_fails_the_batch",
            "status_never_set",
        ),
    )
    yield case(
        "infinite",
        "an initial value (-1, -1e4, -FLT_MAX) that beats the row; +inf refused",
        _infinite,
        family="extreme",
        wrong=("plus_inf_refused",),
        kills=(
            "start_at_minus_one",
            "start_at_sentinel",
            "start_at_minus_flt_max",
            "plus_inf_refused",
        ),
    )
    yield case(
        "negative_odd_vocab",
        "zero-filled lanes past an odd vocabulary win",
        _negative,
        kills=(
            "start_at_minus_one",
            "zero_lanes_past_vocab",
            "bf16_compare",
        ),
    )
    yield case(
        "vocab_8193",
        "the last id of a ragged row left out, or an id past it",
        _tail,
        "bf16",
        kills=(
            "tail_vector_dropped",
            "first_tile_only",
        ),
    )
    yield case(
        "vocab_50001",
        "ids cut to 15 bits; a split vocabulary merged in the wrong order",
        _long,
        "bf16",
        kills=(
            "ids_cut_to_15_bits",
            "first_tile_only",
        ),
    )
    yield case("one_token", "V = 1", lambda: np.full((2, 2, 1), -7.5), null_ok="id 0 is right")
    yield case("empty_vocabulary", "V = 0: ids -1", lambda: np.zeros((2, 2, 0)))
    yield case("no_nodes", "N = 0", lambda: np.zeros((2, 0, 9)), null_ok="only status is written")
    yield case("no_requests", "R = 0", lambda: np.zeros((0, 2, 9)), null_ok="nothing to write")
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


def _plus_inf_refused(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["logits"]
    return reference({"logits": np.where(x == INF, NAN, x)}, attrs, profile)


WRONG: Mapping[str, Reference] = {
    "ties_by_highest_id": _last,
    "negative_zero_below_zero": _signed,
    "nan_ignored": _nan_ignored,
    "plus_inf_refused": _plus_inf_refused,
}
