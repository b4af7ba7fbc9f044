"""Cases of `topk_logprobs@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes, recorded
from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.topk_logprobs import reference, row_lse

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


def _normal(
    seed: int, shape: tuple[int, int, int], dtype: str, scale: float = 3.0, shift: float = 0.0
) -> Array:
    return _ROUND[dtype](nx.normal(seed, shape, 18, scale) + shift)


def _permuted(seed: int, values: Array) -> Array:
    """`values` [V] in a fixed random order."""
    return values[np.argsort(nx.raw_bits(seed, values.size), kind="stable")]


def _vocab_tail() -> Array:
    """V = 8193: the best ids are the last one of the row and those around 8192."""
    x = _normal(30, (1, 3, 8193), "bf16", 1.0)
    x[0, 0, [8192, 8191, 0]] = 9.0, 8.5, 8.0
    x[0, 1, [8192, 8190]] = 8.0, 8.0
    x[0, 2, [8191, 4095, 4096]] = 8.0, 9.0, 9.0
    return x


def _threshold_ties() -> Array:
    """5,000 equal scores hold the last ranks; a few better ones are spread between them."""
    x = np.full((1, 2, 6000), -2.0)
    x[0, 0, 500:5500] = 1.5
    x[0, 0, [7, 4111, 5999]] = 1.75, 2.0, 1.75
    x[0, 1, ::6] = -3.0
    x[0, 1, 5998] = -1.9921875
    return x


def _rank_edge_ties() -> Array:
    """Equal values straddle rank K at a different place in every row."""
    rows = []
    for n in range(6):
        values = np.concatenate([np.full(13 + n, 4.0), np.full(6, 3.0), np.linspace(2, -2, 385)])
        rows.append(_permuted(40 + n, nx.round_bf16(values[:400])))
    return np.stack(rows)[None]


def _coarse_bin() -> Array:
    """9,000 distinct f32 within one bf16 bin: any coarse digit sees one score."""
    steps = np.arange(9000)
    row = 7.0 + np.ldexp(steps.astype(np.float64), -20)
    return np.stack([_permuted(50, row), _permuted(51, -row)])[None]


def _signed_zeros() -> Array:
    x = np.full((1, 2, 300), -1.0)
    x[0, 0, 3::4], x[0, 0, 1::4] = -0.0, 0.0
    x[0, 1, :] = np.where(np.arange(300) % 3 == 0, 0.0, -0.0)
    return x


def _subnormals(dtype: str = "f32") -> Array:
    """Neighbours below the smallest normal number, both signs, with zeros between them."""
    most, least = {"f32": (250.0, -149), "bf16": (100.0, -133), "f16": (250.0, -24)}[dtype]
    row = np.ldexp(_permuted(60, np.arange(-most, most)), least)
    return np.stack([row, row[::-1]])[None]


def _minus_inf(dtype: str = "bf16") -> Array:
    x = _normal(70, (3, 2, 129), dtype)
    x[0, 0, 5:] = -INF
    x[0, 1, :] = -INF
    x[1, 0, :128] = -INF
    x[1, 1, ::2] = -INF
    x[2, 0, 1:] = -INF
    return x


def _refused(value: float, dtype: str = "f32") -> Array:
    """A bad value in the middle, last, first, in the last row, and none.

    A NaN also with its sign set and of the least bits.
    """
    x = _normal(80, (8, 3, 67), dtype)
    x[1, 1, 30] = value
    x[2, 2, 66] = value
    x[3, 0, 0], x[3, 2, 65] = value, -INF
    x[5, 1, 5], x[6, 1, 0], x[7, 2, 9] = value, value, value
    stored = dtypes.encode(x, dtype)
    if np.isnan(value):
        bits = stored.view(np.uint32 if dtype == "f32" else np.uint16)
        bits[5, 1, 5] |= 1 << (bits.itemsize * 8 - 1)
        bits[6, 1, 0] = {"f32": 0x7F800001, "bf16": 0x7F81, "f16": 0x7C01}[dtype]
    return stored


def _negative(dtype: str = "bf16") -> Array:
    x = nx.normal(90, (2, 2, 1001), 18 if dtype == "bf16" else 8, 4.0)
    return _ROUND[dtype](-1.0 - np.abs(x))


def _extreme_f32() -> Array:
    top = float(np.finfo(np.float32).max)
    x = _normal(100, (1, 6, 65), "f32")
    x[0, 0, [3, 9, 20]] = top, -top, top
    x[0, 1, :] = -top
    x[0, 2] = nx.round_f32(x[0, 2] - 6e4)
    x[0, 3] = nx.round_f32(x[0, 3] + 2000.0)
    x[0, 4, 40] = 2.0**100
    x[0, 5, :64] = -INF
    x[0, 5, 64] = -top
    return x


def _extreme_f16() -> Array:
    x = _normal(101, (1, 2, 65), "f16")
    x[0, 0, [1, 50, 64]] = 65504.0, -65504.0, 65504.0
    x[0, 1] = np.ldexp(np.rint(x[0, 1] * 128), -24)
    return x


def _far_sentinels() -> Array:
    """Every score lies below the finite values that stand for minus infinity elsewhere."""
    x = _normal(110, (1, 4, 100), "f32")
    for row, shift in enumerate((-1e4, -6e4, -1e9, -1e30)):
        x[0, row] = nx.round_f32(shift * (1 + np.abs(x[0, row]) / 64))
    return x


def _dominant() -> Array:
    """One logit so far above the rest that lse is that logit, or barely above it."""
    x = _normal(120, (1, 6, 2000), "f32", 1.0)
    for row, lead in enumerate((120.0, 40.0, 24.0, 20.0, 16.0, 12.0)):
        x[0, row, 77 * row + 5] = 8.0 if row % 2 else lead + 3.0
        if row % 2:
            x[0, row] = nx.round_f32(np.where(x[0, row] == 8.0, 8.0, x[0, row] + 5.0 - lead))
    return x


def _normalised() -> Array:
    """Four rows that are log-probabilities already, so that lse is 0 but for rounding; one not."""
    x = _normal(130, (1, 5, 1500), "f32", 2.0)
    x[:, :4] -= row_lse(x[:, :4])[..., None]
    return nx.round_f32(x)


def _shifted() -> Array:
    """Small lse from large terms: the maximum and the log of the sum nearly cancel."""
    x = _normal(140, (1, 4, 4000), "f32", 0.5)
    shift = np.asarray([0.01, 0.3, -0.8, 1.001])
    return nx.round_f32(x - row_lse(x)[..., None] + shift[:, None])


def _flat_tail() -> Array:
    """20,000 equal terms of one sign of rounding, below a few leaders."""
    x = np.full((1, 2, 20000), nx.round_bf16(np.asarray(-0.7)).item())
    x[0, 0, [19999, 3]] = 1.0, 0.5
    x[0, 1, :] = nx.round_bf16(np.asarray(-7.3)).item()
    x[0, 1, 11111] = 0.0
    return x


def _sorted_rows() -> Array:
    """Ascending, descending, and all of the best within one stretch of ids."""
    up = nx.round_f32(np.arange(3000) / 64.0 - 20.0)
    x = np.stack([up, up[::-1], np.full(3000, -5.0), np.full(3000, -5.0)])
    x[2, 1000:1040] = nx.round_f32(np.arange(40) / 8.0)
    x[3, 2990:] = 3.0
    return x[None]


def _long_row() -> Array:
    """V = 20,501: best ids at every seam of a split vocabulary; a late NaN; an empty row."""
    x = nx.round_bf16(nx.normal(150, (3, 1, 20501), 12, 1.0))
    x[0, 0, [0, 2047, 2048, 4096, 8191, 8192, 10239, 10240, 16383, 16384, 20479, 20500]] = 6.0
    x[0, 0, [12289, 20480]] = 7.0, 6.5
    x[1, 0, 20500] = NAN
    x[2] = -INF
    return x


def _past_16_bits(dtype: str) -> Array:
    """The best ids are past 2^16, zeros of both signs; the next are below. All else may be -inf."""
    x = np.full((1, 1, 70001), -INF if dtype == "bf16" else -1.5)
    x[0, 0, [65536, 70000]] = -0.0, 0.0
    x[0, 0, [70000 - 2**16, 0]] = -_LEAST[dtype]
    return x


def _long_row_f32() -> Array:
    x = -1.0 - np.abs(nx.normal(151, (2, 1, 10501), 14, 1.0))
    x[0, 0, [4095, 4096, 8191, 8192, 5251, 5252]] = 6.0, 6.5, 6.5, 6.0, 7.0, 6.0
    x[0, 0, [10240, 10500]] = -0.0, 0.0
    x[0, 0, [8190, 10239]] = 2.0**-149, 2.0**-148
    x[1, 0, 10500] = NAN
    return x


def _aligned(dtype: str) -> Array:
    """Rows of whole vectors: zeros and subnormals, all magnitudes, NaN, +inf, and ordinary ones."""
    x = _normal(152, (4, 2, 64), dtype)
    x[0, 0] = np.arange(64) % 5 * _LEAST[dtype]
    x[0, 0, ::10] = -0.0
    x[0, 1] = -INF
    x[0, 1, [3, 20, 50]] = _MOST[dtype], -_MOST[dtype], -_MOST[dtype]
    x[1, 1, 63] = NAN
    x[2, 0, 8] = INF
    return x


def _top_1() -> Array:
    """Ties, zeros and subnormals; an empty row and far values; and two refused requests."""
    x = np.full((4, 3, 65), -1.5)
    x[0, 0, [37, 64]] = 2.0
    x[0, 1, [5, 50]] = -0.0, 0.0
    x[0, 2] = -3 * _LEAST["bf16"]
    x[0, 2, 41] = -2 * _LEAST["bf16"]
    x[1, :2] = -INF
    x[1, 1, 64] = -_MOST["bf16"]
    x[2, 1, 33], x[3, 2, 0] = NAN, INF
    return x


def _long_list() -> Array:
    """K = 520: zeros, subnormals and ties among them; and a row of 300 finite values."""
    x = np.stack([np.arange(640) % 11 * 2.0**-149, nx.round_bf16(nx.normal(153, (640,), 18, 1.0))])
    x[0, ::22] = -0.0
    x[1, 300:] = -INF
    return x[None]


def _bad_among(shape: tuple[int, int, int], seed: int, dtype: str, *bad: int) -> Array:
    """Rows of which some, counted over all requests, end in a NaN."""
    x = _normal(seed, shape, dtype)
    x.reshape(-1, shape[2])[list(bad), -1] = NAN
    return x


def _recorded(name: str) -> Array:
    """Rows with the ties of a real drafter: 64 recorded log-probs among 2,048 ids.

    Ids keep their order but not their value; what was not recorded is filled below the last.
    """
    source = recorded.load(name)
    rows = []
    for lp, ids in zip(source["logprobs"][7, :15], source["ids"][7, :15], strict=True):
        row = lp[-1] - 0.25 - np.abs(nx.normal(int(ids[0]), (2048,), 8, 2.0))
        order = np.argsort(ids, kind="stable")
        row[np.arange(64) * 31 + (ids[order] % 31)] = lp[order]
        rows.append(row)
    x = np.stack(rows).astype(np.float64)[None]
    return nx.round_bf16(x + 16.0)


def _full(seed: int, shape: tuple[int, int, int], dtype: str) -> Callable[[], Array]:
    return lambda: _normal(seed, shape, dtype, 2.5)


def cases() -> Iterator[Case]:
    """All cases, in order."""

    def case(
        name: str,
        catches: str,
        logits: Callable[[], Array],
        k: int,
        dtype: str = "f32",
        family: str = "hand",
        **more: Any,
    ) -> Case:
        return Case(
            name=name,
            catches=catches,
            inputs=lambda: {"logits": logits()},
            attrs={"K": k},
            dtypes={"logits": dtype},
            profile="f32",
            family=family,
            given={"logprobs": "logit_minus_lse"},
            **more,
        )

    yield case(
        "random_f32",
        "lse in base 2 or over the K kept only, probabilities instead of log-probabilities, "
        "another request's or depth's row",
        lambda: _normal(1, (3, 4, 1000), "f32"),
        16,
        family="random",
        wrong=("lse_base_2", "lse_over_top_k", "probabilities", "logprob_unnormalised"),
        kills=(
            "lse_base_2",
            "lse_over_top_k",
            "lse_without_shift",
            "probabilities",
            "logprob_unnormalised",
            "logprob_from_wide_lse",
            "request_stride",
            "lse_fast_exp",
        ),
    )
    yield case(
        "random_bf16",
        "ties of bf16 logits in no stated order; log-probs rounded to bf16",
        lambda: _normal(2, (2, 3, 2000), "bf16"),
        64,
        "bf16",
        family="random",
        wrong=("ties_by_highest_id", "lse_base_2"),
        kills=(
            "ties_by_highest_id",
            "ties_in_scan_order",
            "logprob_bf16",
            "lse_bf16_terms",
            "lse_base_2",
        ),
    )
    yield case(
        "random_f16",
        "half-precision logits read as bf16, subtracted in f16, or summed in f16",
        lambda: _normal(3, (2, 3, 1500), "f16"),
        32,
        "f16",
        family="random",
        wrong=("ties_by_highest_id",),
        kills=(
            "ties_by_highest_id",
            "logprob_bf16",
            "lse_bf16_terms",
        ),
    )
    yield case(
        "recorded_bf16",
        "ties as real bf16 lm_head outputs have them: half of all neighbours, rank 64 included",
        lambda: _recorded("marginals_bf16"),
        64,
        "bf16",
        family="real",
        provenance=recorded.provenance("marginals_bf16"),
        wrong=("ties_by_highest_id",),
        kills=(
            "ties_by_highest_id",
            "ties_in_scan_order",
            "logprob_bf16",
        ),
    )
    yield case(
        "all_equal",
        "more than 4,096 equal scores overflow a candidate buffer, or come in another order on "
        "each run",
        lambda: np.full((1, 2, 5000), 0.75),
        64,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=(
            "candidate_buffer_4096",
            "ties_by_highest_id",
            "ties_in_scan_order",
            "one_candidate_per_vector",
        ),
    )
    yield case(
        "threshold_ties",
        "a selection that drops better or earlier ids when thousands of scores equal the K-th",
        _threshold_ties,
        100,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=(
            "candidate_buffer_4096",
            "ties_by_highest_id",
        ),
    )
    yield case(
        "rank_edge_ties",
        "ties that straddle rank K resolved by anything but the lowest id",
        _rank_edge_ties,
        16,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=(
            "ties_by_highest_id",
            "ties_in_scan_order",
        ),
    )
    yield case(
        "coarse_bin",
        "a threshold found from the top digits only: all scores share one coarse radix bin",
        _coarse_bin,
        50,
        family="tie",
        kills=("coarse_radix_bin",),
    )
    yield case(
        "signed_zeros",
        "-0 ordered below +0 by an integer key, or a zero that pads the row",
        _signed_zeros,
        40,
        family="tie",
        wrong=("negative_zero_below_zero",),
        kills=("negative_zero_below_zero",),
    )
    yield case(
        "signed_zeros_bf16",
        "-0 ordered below +0 by a 16-bit key",
        _signed_zeros,
        299,
        "bf16",
        family="tie",
        wrong=("negative_zero_below_zero",),
        kills=("negative_zero_below_zero",),
    )
    yield case(
        "subnormals",
        "subnormal logits flushed to zero before they are compared",
        _subnormals,
        64,
        family="extreme",
        wrong=("subnormals_flushed",),
        kills=("subnormals_flushed",),
    )
    yield case(
        "negative_odd_vocab",
        "zero-filled lanes past an odd vocabulary that beat all-negative logits",
        _negative,
        24,
        "bf16",
        kills=(
            "zero_lanes_past_vocab",
            "zero_lanes_in_lse",
            "tail_vector_dropped",
        ),
    )
    yield case(
        "vocab_8193",
        "the ragged last vector or tile of the row dropped, or read past",
        _vocab_tail,
        8,
        "bf16",
        kills=("tail_vector_dropped",),
    )
    yield case(
        "vocab_20501",
        "a split vocabulary: ids at the seams lost, doubled or out of order, a NaN in a late part, "
        "the empty row of many parts",
        _long_row,
        16,
        "bf16",
        kills=(
            "first_split_only",
            "tail_vector_dropped",
            "bad_in_first_tile_only",
            "tiles_empty_row_lse_zero",
        ),
    )
    yield case(
        "vocab_10501_f32",
        "a split vocabulary in f32: parts merged in the wrong order, a NaN in a late part",
        _long_row_f32,
        40,
        kills=(
            "bad_in_first_tile_only",
            "tiles_order_zeros",
            "tiles_flush_subnormals",
        ),
    )
    yield case(
        "sorted_rows",
        "a prefilter that keeps one candidate per thread or per vector: all of the best are "
        "neighbours",
        _sorted_rows,
        33,
        kills=("one_candidate_per_vector",),
    )
    yield case(
        "minus_inf",
        "-inf taken as a candidate, pads not written, lse of an empty row not -inf",
        _minus_inf,
        9,
        "bf16",
        family="extreme",
        wrong=("minus_inf_is_candidate", "empty_row_lse_zero"),
        kills=(
            "minus_inf_is_candidate",
            "pads_not_written",
            "pad_logprob_zero",
            "empty_row_lse_zero",
        ),
    )
    yield case(
        "nan_refused",
        "a NaN ignored, found in its own row only, or spoiling the whole batch",
        lambda: _refused(NAN),
        5,
        family="poison",
        wrong=("bad_values_ignored", "nan_fails_its_row_only"),
        kills=(
            "nan_ignored",
            "negative_nan_ignored",
            "quiet_nan_only",
            "nan_fails_its_row_only",
            "nan_fails_the_batch",
            "status_never_set",
        ),
    )
    yield case(
        "plus_inf_refused",
        "+inf accepted as the best candidate, or noticed only where it makes a NaN",
        lambda: _refused(INF),
        5,
        family="poison",
        kills=(
            "plus_inf_accepted",
            "nan_fails_its_row_only",
            "nan_fails_the_batch",
        ),
    )
    yield case(
        "extreme",
        "overflow of exp or of the shift at the largest finite f32, at -60,000 and at +2,000",
        _extreme_f32,
        12,
        family="extreme",
        kills=(
            "finite_sentinel",
            "lse_without_shift",
            "minus_inf_is_candidate",
        ),
    )
    yield case(
        "extreme_f16",
        "overflow or flush at the ends of the half-precision range",
        _extreme_f16,
        12,
        "f16",
        family="extreme",
        kills=(
            "lse_without_shift",
            "coarse_radix_bin",
        ),
    )
    yield case(
        "far_negative",
        "a finite sentinel (-1e4, -1e9, -1e30) in the place of minus infinity",
        _far_sentinels,
        7,
        family="extreme",
        kills=("finite_sentinel",),
    )
    for dtype in ("f32", "f16"):
        yield case(
            f"minus_inf_{dtype}",
            "-inf taken as a candidate, pads not written, lse of an empty row not -inf",
            partial(_minus_inf, dtype),
            9,
            dtype,
            family="extreme",
            wrong=("minus_inf_is_candidate", "empty_row_lse_zero"),
            kills=(
                "minus_inf_is_candidate",
                "pads_not_written",
                "pad_logprob_zero",
                "empty_row_lse_zero",
            ),
        )
        yield case(
            f"threshold_ties_{dtype}",
            "a selection that drops better or earlier ids when thousands of scores equal the K-th",
            _threshold_ties,
            100,
            dtype,
            family="tie",
            wrong=("ties_by_highest_id",),
            kills=(
                "candidate_buffer_4096",
                "ties_by_highest_id",
            ),
        )
        yield case(
            f"negative_odd_vocab_{dtype}",
            "zero-filled lanes past an odd vocabulary that beat all-negative logits",
            partial(_negative, dtype),
            24,
            dtype,
            kills=(
                "zero_lanes_past_vocab",
                "zero_lanes_in_lse",
                "tail_vector_dropped",
            ),
        )
    for dtype in ("bf16", "f16"):
        for name, value, kills in (
            (
                "nan",
                NAN,
                ("nan_ignored", "negative_nan_ignored", "quiet_nan_only", "status_never_set"),
            ),
            ("plus_inf", INF, ("plus_inf_accepted", "status_never_set")),
        ):
            yield case(
                f"{name}_refused_{dtype}",
                "a bad value of this type ignored, found in its own row only, or spoiling the "
                "whole batch",
                partial(_refused, value, dtype),
                5,
                dtype,
                family="poison",
                kills=(*kills, "nan_fails_its_row_only", "nan_fails_the_batch"),
            )
        yield case(
            f"subnormals_{dtype}",
            "subnormal logits flushed to zero before they are compared",
            partial(_subnormals, dtype),
            64,
            dtype,
            family="extreme",
            kills=("subnormals_flushed",) if dtype == "bf16" else ("subnormals_of_f16_flushed",),
        )
        yield case(
            f"vocab_70001_{dtype}",
            "ids cut to 15 or to 16 bits; a split vocabulary whose parts forget zeros, subnormals, "
            "-inf or pads",
            partial(_past_16_bits, dtype),
            5,
            dtype,
            wrong=("ties_by_highest_id",),
            kills=(
                "ids_cut_to_16_bits",
                "ids_cut_to_15_bits",
                "first_split_only",
                "tiles_order_zeros",
                "tiles_flush_subnormals",
            )
            + (
                ("tiles_minus_inf_is_candidate", "tiles_pads_not_written")
                if dtype == "bf16"
                else ()
            ),
        )
    yield case(
        "signed_zeros_f16",
        "-0 ordered below +0 by a 16-bit key",
        _signed_zeros,
        299,
        "f16",
        family="tie",
        wrong=("negative_zero_below_zero",),
        kills=("negative_zero_below_zero",),
    )
    yield case(
        "k_1024_f16",
        "many candidates with ties: order within equal values, and at the edge",
        lambda: _normal(164, (1, 1, 2500), "f16"),
        1024,
        "f16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=("ties_by_highest_id", "coarse_radix_bin"),
    )
    for seed, dtype in enumerate(("f32", "bf16", "f16")):
        yield case(
            f"rows_of_257_requests_{dtype}",
            "more rows and requests than a block has threads, and a NaN in late ones",
            partial(_bad_among, (257, 1, 5), 190 + seed, dtype, 100, 255),
            2,
            dtype,
            family="random",
            kills=("rows_past_256", "requests_past_64", "bad_past_request_64"),
        )
        yield case(
            f"aligned_rows_{dtype}",
            "rare values in rows of whole vectors, or where K > V, as when a fast path for those "
            "knows only ordinary ones; a log-prob of -inf taken for a pad",
            partial(_aligned, dtype),
            70,
            dtype,
            family="extreme",
            wrong=("minus_inf_is_candidate",),
            kills=(
                "aligned_order_zeros",
                "aligned_minus_inf_is_candidate",
                "aligned_nan_ignored",
                "aligned_plus_inf_accepted",
                "k_past_vocab_ties_by_highest_id",
                "k_past_vocab_flushes_subnormals",
                "k_past_vocab_nan_ignored",
                *(
                    ()
                    if dtype == "f16"
                    else ("aligned_finite_sentinel", "infinite_logprob_is_a_pad")
                ),
            ),
        )
    yield case(
        "depths_260",
        "more depths than a block has threads; a NaN in the last one",
        partial(_bad_among, (2, 260, 3), 154, "bf16", 259),
        1,
        "bf16",
        family="random",
        kills=("rows_past_256", "depths_past_64", "bad_past_depth_64"),
    )
    yield case(
        "k_1",
        "one candidate, found by a plain maximum without ties, zeros, bad values or -inf",
        _top_1,
        1,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id", "minus_inf_is_candidate"),
        kills=(
            "top_1_ties_by_highest_id",
            "top_1_orders_zeros",
            "top_1_minus_inf_is_candidate",
            "top_1_nan_ignored",
            "top_1_plus_inf_accepted",
        ),
    )
    yield case(
        "k_520",
        "hundreds of candidates, found by a sort that forgets subnormals, -inf or pads",
        _long_list,
        520,
        family="tie",
        wrong=("ties_by_highest_id", "minus_inf_is_candidate"),
        kills=(
            "long_list_flushes_subnormals",
            "long_list_minus_inf_is_candidate",
            "long_list_pads_not_written",
        ),
    )
    yield case(
        "dominant_logit",
        "lse rounded below the row's maximum, which makes a log-prob positive",
        _dominant,
        3,
        kills=("lse_below_max",),
    )
    yield case(
        "normalised_rows",
        "low-precision exponentials: the logarithm of the sum cancels the maximum",
        _normalised,
        20,
        kills=(
            "lse_fast_exp",
            "lse_f32_chain",
        ),
    )
    yield case(
        "small_lse",
        "low-precision exponentials or sums where lse is small and its ulp fine",
        _shifted,
        20,
        kills=("lse_fast_exp",),
    )
    yield case(
        "flat_tail",
        "20,000 equal terms summed in one f32 chain, or in the logits' own type",
        _flat_tail,
        4,
        "bf16",
        kills=(
            "lse_f32_chain",
            "lse_bf16_terms",
            "first_split_only",
        ),
    )
    yield case(
        "k_exceeds_vocab",
        "K > V: reads past the row, or unwritten pads",
        lambda: _normal(160, (2, 3, 7), "f32"),
        10,
        kills=(
            "pads_not_written",
            "pad_logprob_zero",
        ),
    )
    yield case(
        "k_is_vocab",
        "K = V: a selection that needs one more element than there is",
        lambda: _normal(161, (1, 2, 257), "bf16"),
        257,
        "bf16",
        kills=("tail_vector_dropped",),
    )
    yield case(
        "k_1024",
        "more candidates than threads, or than the buffer of a smaller K",
        lambda: _normal(162, (1, 2, 3001), "f32"),
        1024,
        family="random",
        kills=(),
    )
    yield case(
        "k_1024_bf16",
        "many candidates with ties: order within equal values, and at the edge",
        lambda: _normal(163, (1, 2, 2500), "bf16"),
        1024,
        "bf16",
        family="tie",
        wrong=("ties_by_highest_id",),
        kills=(
            "ties_by_highest_id",
            "coarse_radix_bin",
        ),
    )
    yield case(
        "one_token",
        "V = 1: lse is the logit itself, exactly, and its log-prob is 0",
        lambda: np.asarray([[[0.1328125], [-37.5]], [[1e-3], [-0.0]]], np.float32).astype(float),
        1,
        kills=("request_stride",),
    )
    yield case(
        "ragged_batch",
        "row strides: batch 5 of unlike rows, the last request checked like the first",
        lambda: nx.round_bf16(_normal(170, (5, 2, 333), "f32") + 2.0 * np.arange(5)[:, None, None]),
        6,
        "bf16",
        kills=(
            "request_stride",
            "tail_vector_dropped",
        ),
    )
    yield case(
        "no_candidates",
        "K = 0: lse and status are still due",
        partial(_bad_among, (3, 2, 50), 171, "f32", 3),
        0,
        kills=(
            "lse_base_2",
            "lse_fast_exp",
            "no_candidates_no_status",
        ),
    )
    yield case(
        "empty_vocabulary",
        "V = 0: every candidate is a pad and lse is -inf",
        lambda: np.zeros((2, 2, 0)),
        3,
        kills=(
            "empty_row_lse_zero",
            "pads_not_written",
        ),
    )
    yield case(
        "no_depths",
        "L = 0: only the status is written",
        lambda: np.zeros((3, 0, 10)),
        4,
        null_ok="the one output with elements is status, and 0 is its right value",
    )
    yield case(
        "no_requests",
        "R = 0: nothing is launched and nothing is written",
        lambda: np.zeros((0, 3, 10)),
        4,
        null_ok="there is nothing to write",
    )
    for name, shape, k, dtype in (
        ("vocab_163840_bf16", (1, 15, 163840), 64, "bf16"),
        ("vocab_163840_f32", (2, 2, 163840), 64, "f32"),
        ("vocab_163840_f16_k_1024", (1, 2, 163840), 1024, "f16"),
        ("vocab_151937_bf16", (2, 4, 151937), 256, "bf16"),
    ):
        yield case(
            name,
            "a production vocabulary: the merge of many partial selections and sums",
            _full(180 + shape[2] % 97, shape, dtype),
            k,
            dtype,
            family="random",
            tier="full",
        )


# --- known-wrong conventions ----------------------------------------------------------------------


def _with(change: Callable[[dict[str, Array], Mapping[str, Array], int], None]) -> Reference:
    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = reference(inputs, attrs, profile)
        change(out, inputs, int(attrs["K"]))
        return {k: v for k, v in out.items() if "/" not in k}

    return wrong


def _lse_base_2(out: dict[str, Array], inputs: Mapping[str, Array], k: int) -> None:
    out["lse"] = out["lse"] / 0.6931471805599453


def _lse_over_top_k(out: dict[str, Array], inputs: Mapping[str, Array], k: int) -> None:
    best = -np.sort(-(inputs["logits"] + 0.0), axis=-1, kind="stable")[..., :k]
    out["lse"] = row_lse(best)


def _probabilities(out: dict[str, Array], inputs: Mapping[str, Array], k: int) -> None:
    out["logprobs"] = nx.exp(out["logprobs"]).astype(np.float32)


def _unnormalised(out: dict[str, Array], inputs: Mapping[str, Array], k: int) -> None:
    taken = np.take_along_axis(inputs["logits"], np.maximum(out["ids"], 0), -1)
    out["logprobs"] = np.where(out["ids"] >= 0, taken, -INF).astype(np.float32)


def _empty_is_zero(out: dict[str, Array], inputs: Mapping[str, Array], k: int) -> None:
    out["lse"] = np.where(np.isneginf(out["lse"]), 0.0, out["lse"])


def _ordered(key: Callable[[Array], Array], highest: bool = False) -> Reference:
    """The K best by (key descending, id), ids ascending or descending."""

    def wrong(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
        out = reference(inputs, attrs, profile)
        x = inputs["logits"]
        k = min(int(attrs["K"]), x.shape[-1])
        rank = key(x)
        if highest:
            flipped = np.argsort(-rank[..., ::-1], axis=-1, kind="stable")
            order = x.shape[-1] - 1 - flipped
        else:
            order = np.argsort(-rank, axis=-1, kind="stable")
        ids = out["ids"].copy()
        ids[..., :k] = order[..., :k]
        return {"ids": ids}

    return wrong


def _bad_values_ignored(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = np.where(np.isnan(inputs["logits"]), -INF, inputs["logits"])
    out = reference({"logits": x}, attrs, profile)
    return {k: v for k, v in out.items() if "/" not in k}


def _nan_fails_its_row_only(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    nan = np.isnan(inputs["logits"])
    x = np.where(nan, -INF, inputs["logits"])
    found = reference({"logits": x}, attrs, profile)
    bad = np.asarray(nan.any(axis=-1))
    ids = np.where(bad[..., None], -1, found["ids"]).astype(np.int32)
    return {"ids": ids, "lse": np.where(bad, -INF, found["lse"])}


def _signed_key(x: Array) -> Array:
    return np.where((x == 0) & np.signbit(x), -(2.0**-200), x)


WRONG: Mapping[str, Reference] = {
    "ties_by_highest_id": _ordered(lambda x: x + 0.0, highest=True),
    "negative_zero_below_zero": _ordered(_signed_key),
    "subnormals_flushed": _ordered(lambda x: np.where(np.abs(x) < 2.0**-126, 0.0, x)),
    "lse_base_2": _with(_lse_base_2),
    "lse_over_top_k": _with(_lse_over_top_k),
    "probabilities": _with(_probabilities),
    "logprob_unnormalised": _with(_unnormalised),
    "minus_inf_is_candidate": _ordered(lambda x: x + 0.0),
    "empty_row_lse_zero": _with(_empty_is_zero),
    "bad_values_ignored": _bad_values_ignored,
    "nan_fails_its_row_only": _nan_fails_its_row_only,
}
