"""Cases of `rmsnorm@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.rmsnorm import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
BF16 = {"x": "bf16", "weight": "bf16", "out": "bf16"}
F16 = {"x": "f16", "weight": "f16", "out": "f16"}


def rows(
    seed: int, t: int, n: int, scale: float = 1.0, cut: Callable[[Any], Array] = nx.round_f32
) -> dict[str, Array]:
    """Random rows with a mean of 0.25 scale, and gains around 1."""
    x = nx.normal(seed, (t, n), 40, scale) + 0.25 * scale
    return {"x": cut(x), "weight": cut(nx.normal(seed + 1, (n,), 18, 0.3) + 1.0)}


def _outlier() -> dict[str, Array]:
    x = rows(5, 3, 192)
    x["x"][:, 77] *= 256.0
    return x


def _first_row_differs() -> dict[str, Array]:
    x = rows(6, 4, 96)
    x["x"] *= np.array([1.0, 8.0, 0.125, 64.0])[:, None]
    return x


def _heavy_tail() -> dict[str, Array]:
    """The last three elements of a row are 64 times the others; the second row has a NaN there."""
    x = rows(16, 2, 1031, 0.25, nx.round_bf16)
    x["x"][:, -3:] *= 64.0
    x["x"][1, 1030] = np.nan
    return x


def _bad_among_1031() -> dict[str, Array]:
    x = rows(18, 1031, 1)
    x["x"][99, 0], x["x"][1030, 0] = np.nan, np.inf
    return x


def _past_f16() -> dict[str, Array]:
    x = rows(17, 4, 40, cut=nx.round_bf16)
    x["x"] *= np.ldexp(1.0, np.array([40, -30, 20, 0]))[:, None]
    x["weight"] *= np.ldexp([1.0, 1.0, -1.0], [0, 20, -30])[np.arange(40) % 3]
    return x


def _bad_rows() -> dict[str, Array]:
    x = rows(7, 6, 40)
    x["x"][1, 39], x["x"][3, 0], x["x"][4, 20] = np.nan, np.inf, -np.inf
    return x


def _bad_end(seed: int, n: int, cut: Callable[[Any], Array]) -> dict[str, Array]:
    """A good row, and one that is bad in its last element."""
    x = rows(seed, 2, n, cut=cut)
    x["x"][1, n - 1] = np.inf
    return x


def _small_and_bad(t: int, n: int, cut: Callable[[Any], Array]) -> dict[str, Array]:
    """Rows with a variance of 2^-10; the second, the third and the last are bad."""
    x = rows(20, t, n, 2.0**-5, cut)
    x["x"][1, n - 1], x["x"][2, 0], x["x"][t - 1, n // 2] = np.nan, np.inf, -np.inf
    x["weight"][::2] *= -1.0
    return x


def _zero_row() -> dict[str, Array]:
    x = rows(8, 3, 64)
    x["x"][1] = 0.0
    return x


def _eps(outside: bool, inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x, w = inputs["x"], inputs["weight"]
    ms = nx.total(x * x)[:, None] / x.shape[1]
    root = np.sqrt(ms) + (float(attrs["eps"]) if outside else 0.0)
    return {"out": w * (x / root)}


def _layer_norm(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    x = inputs["x"]
    centred = x - nx.total(x)[:, None] / x.shape[1]
    return {"out": reference({**inputs, "x": centred}, attrs, profile)["out"]}


def _one_plus_weight(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": reference({**inputs, "weight": inputs["weight"] + 1.0}, attrs, profile)["out"]}


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    return {"out": nx.round_f16(reference(inputs, attrs, profile)["out"])}


def _other_variant(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    names = ("f32_then_round", "round_then_multiply")
    other = names[1 - names.index(str(attrs["variant"]))]
    out = reference(inputs, {**attrs, "variant": other}, profile)["out"]
    return {"out": nx.round_bf16(out) if profile.startswith("bf16") else nx.round_f16(out)}


WRONG: Mapping[str, Reference] = {
    "eps_outside_root": partial(_eps, True),
    "no_eps": partial(_eps, False),
    "layer_norm": _layer_norm,
    "one_plus_weight": _one_plus_weight,
    "other_variant": _other_variant,
    "through_f16": _through_f16,
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    eps: float = 1e-5,
    variant: str = "f32_then_round",
    profile: str = "f32",
    **rest: Any,
) -> Case:
    attrs: Attrs = {"eps": eps, "variant": variant}
    return Case(name, catches, inputs, attrs, profile=profile, **rest)


def cases() -> Iterator[Case]:
    """Sizes off every tile, small variances, both variants in half types, failing rows."""
    yield _case(
        "random",
        "A mean that is subtracted, a gain of 1 + weight, a missing root.",
        partial(rows, 1, 5, 128),
        family="random",
        seed=1,
        wrong=("layer_norm", "one_plus_weight"),
        kills=("subtracts_mean", "one_plus_weight", "no_root", "low_precision"),
    )
    yield _case(
        "rows_of_unlike_size",
        "A factor of one row used for another.",
        _first_row_differs,
        family="scaled",
        seed=6,
        kills=("first_row_factor",),
    )
    yield _case(
        "width_513",
        "A tail block of one element that is left out of the sum or of the product.",
        partial(rows, 2, 3, 513, 0.5),
        family="random",
        seed=2,
        kills=("last_unscaled",),
    )
    yield _case(
        "width_7",
        "A width below every vector width.",
        partial(rows, 9, 4, 7),
        family="random",
        seed=9,
        kills=("tail_dropped", "last_unscaled"),
    )
    yield _case(
        "width_1",
        "A width of one, where the result is the sign times the gain.",
        partial(rows, 10, 5, 1),
        family="random",
        seed=10,
        kills=("subtracts_mean",),
    )
    yield _case(
        "width_7168",
        "A hidden size other than the one validated (Kimi K2's and DeepSeek-V3's).",
        partial(rows, 3, 1, 7168),
        family="random",
        seed=3,
        kills=("subtracts_mean", "one_plus_weight"),
    )
    yield _case(
        "bad_among_1031",
        "Rows past 64, 256 and 1024, and those of them that fail.",
        _bad_among_1031,
        family="extreme",
        seed=18,
        kills=("past_64_rows", "past_1024_rows", "checks_64_rows", "first_row_factor"),
    )
    yield _case(
        "bf16_width_1031",
        "A long row whose last three elements weigh most, and one with a NaN there: a sum, a copy "
        "or a search that ends before.",
        _heavy_tail,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="needle",
        seed=16,
        kills=("past_1024_summed", "past_1024_written", "checks_1024_elements", "tail_dropped"),
    )
    yield _case(
        "variance_near_eps",
        "eps outside the root, left out, or taken from another norm: the variance is 2^-16.",
        partial(rows, 4, 4, 96, 2.0**-8),
        eps=1e-5,
        family="scaled",
        seed=4,
        wrong=("eps_outside_root", "no_eps"),
        kills=("eps_outside_root", "no_eps", "eps_tenth"),
    )
    yield _case(
        "zero_row",
        "A row of zeros, which must give zeros, not NaN.",
        _zero_row,
        family="extreme",
        seed=8,
        kills=("no_eps",),
    )
    yield _case(
        "outlier_channel",
        "One channel 256 times the others, as in real activations.",
        _outlier,
        family="scaled",
        seed=5,
        kills=("low_precision",),
    )
    yield _case(
        "large_values",
        "Squares near 2^80: sums in half precision overflow.",
        partial(rows, 11, 2, 130, 2.0**40),
        family="extreme",
        seed=11,
        kills=("subtracts_mean",),
    )
    yield _case(
        "bad_rows",
        "A NaN or an infinity that reaches other rows, or a row of NaN written out.",
        _bad_rows,
        family="extreme",
        seed=7,
        kills=("keeps_bad_rows",),
    )
    for variant, seed in (("f32_then_round", 12), ("round_then_multiply", 13)):
        yield _case(
            f"bf16_{variant}",
            "The product rounded at the other variant's place; vectors past a warp left out, also "
            "of the search for bad input.",
            partial(_bad_end, seed, 520, nx.round_bf16),
            variant=variant,
            profile="bf16_f32acc",
            dtypes=BF16,
            family="random",
            seed=seed,
            wrong=("other_variant",),
            kills=("other_variant", "past_256_of_vectors_summed", "checks_256_of_vectors"),
        )
    yield _case(
        "f16_round_then_multiply",
        "The product rounded at the other variant's place, in f16; vectors past a warp left out, "
        "also of the search for bad input.",
        partial(_bad_end, 14, 264, nx.round_f16),
        variant="round_then_multiply",
        profile="f16_f32acc",
        dtypes=F16,
        family="random",
        seed=14,
        wrong=("other_variant",),
        kills=("other_variant", "past_256_of_vectors_summed", "checks_256_of_vectors"),
    )
    for name, cut, kind in (("bf16", nx.round_bf16, BF16), ("f16", nx.round_f16, F16)):
        half: dict[str, Any] = {"profile": f"{name}_f32acc", "dtypes": kind}
        yield _case(
            f"{name}_variance_near_eps",
            f"In {name}, eps outside the root, left out or another norm's.",
            partial(rows, 4, 4, 96, 2.0**-8, cut),
            **half,
            family="scaled",
            seed=4,
            wrong=("eps_outside_root", "no_eps"),
            kills=("eps_outside_root", "no_eps", "eps_tenth"),
        )
    for dtype, cut, widths in (
        ("f32", nx.round_f32, ("odd", "vectors")),
        ("bf16", nx.round_bf16, ("vectors", "odd")),
        ("f16", nx.round_f16, ("vectors", "odd")),
    ):
        for variant, width in zip(("f32_then_round", "round_then_multiply"), widths, strict=True):
            rounded = variant == "round_then_multiply"
            yield _case(
                f"{dtype}_{variant}_eps_and_bad_rows",
                "An eps of 1e-5 or 1e-6 that is written into one branch, and bad rows that it "
                "does not look for.",
                partial(_small_and_bad, *((67, 2) if width == "odd" else (5, 16)), cut),
                eps=1e-3,
                variant=variant,
                profile=dtype if dtype == "f32" else f"{dtype}_f32acc",
                dtypes=dict.fromkeys(("x", "weight", "out"), dtype),
                family="extreme",
                seed=20,
                kills=(
                    f"{dtype}_{width}_unchecked",
                    "weight_positive",
                    *(("past_64_rows", "checks_64_rows") if width == "odd" else ()),
                    "bf16_inf_accepted" if dtype == "bf16" else f"{dtype}_eps_fixed",
                    *(("rounded_eps_fixed", "rounded_unchecked") if rounded else ()),
                ),
            )
    yield _case(
        "bf16_with_f32_weights",
        "Weights read as the rows' type, which is not theirs.",
        lambda: rows(21, 2, 16, cut=nx.round_bf16) | {"weight": rows(21, 1, 16)["weight"]},
        profile="bf16_f32acc",
        dtypes={"x": "bf16", "out": "bf16"},
        family="random",
        seed=21,
        kills=("weight_in_rows_type",),
    )
    yield _case(
        "f16_large_values",
        "Squares that f16 does not hold.",
        partial(rows, 19, 3, 65, 2.0**9, nx.round_f16),
        profile="f16_f32acc",
        dtypes=F16,
        family="extreme",
        seed=19,
        kills=("squares_in_f16",),
    )
    yield _case(
        "bf16_past_f16",
        "Rows, weights or results that pass through f16, or are clamped to its range.",
        _past_f16,
        eps=2.0**-70,
        profile="bf16_f32acc",
        dtypes=BF16,
        family="extreme",
        seed=17,
        wrong=("through_f16",),
        kills=("clamps_to_f16", "rows_in_f16", "squares_in_f16", "weight_positive"),
    )
    yield _case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(rows, 15, 0, 64),
        null_ok="no tokens: nothing is written",
    )
