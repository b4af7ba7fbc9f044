"""Contract of `rmsnorm`."""

from kdtr.contract import Attr, Contract, Tensor

FLOATS = ("f32", "bf16", "f16")

CONTRACT = Contract(
    op="rmsnorm",
    version=1,
    summary="Root-mean-square normalisation of each token's row.",
    formula=(
        "out[t, i] = weight[i] * (x[t, i] / sqrt(mean_j(x[t, j]^2) + eps)). "
        "Variant f32_then_round: one rounding, to out's dtype, after the last product. "
        "Variant round_then_multiply: x / sqrt(...) is rounded to out's dtype, then multiplied by "
        "weight, then rounded again."
    ),
    source="Zhang and Sennrich, arXiv:1910.07467; variants: transformers DeepseekV3RMSNorm is "
    "round_then_multiply, fused kernels (vLLM, FlashInfer) are f32_then_round",
    tensors=(
        Tensor("x", FLOATS, ("T", "N"), "rows to normalise, finite"),
        Tensor("weight", FLOATS, ("N",), "gain, finite"),
        Tensor("out", FLOATS, ("T", "N"), "normalised rows, x's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    attrs=(
        Attr("eps", "f64", "added to the mean of squares, inside the root"),
        Attr(
            "variant",
            "utf-8",
            "where the product is rounded",
            ("f32_then_round", "round_then_multiply"),
        ),
    ),
    conventions={
        "eps": "inside the root",
        "mean": "of squares; the mean of x is not subtracted",
        "weight": "weight, not 1 + weight",
        "bad_input": "a NaN or infinity in a token's row: its status is 1 and its out row 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "squares, sum, root and products in f32, any order of summation",
        "bf16_f32acc": "the same, stored as bf16",
        "f16_f32acc": "the same, stored as f16",
    },
    budget=(
        "hard: |out| ((N/2 + 1) u part + 7u) + store, part = ms / (ms + eps), u = 2^-24; gate: "
        "|out| (3u part (sqrt(N/3) + sqrt(N/2) |x^2|2 / |x^2|1) / 2 + 7u) + store; "
        "store = u_out |out|; round_then_multiply adds u_out |out|, and where x / sqrt(...) is "
        "within its error of a rounding boundary, weight times the step there"
    ),
    why="All terms of the sum are positive, so its relative error is at most N u and halves in "
    "the root; the error of the factor is common to the row.",
    limits="N >= 1 when T > 0; T, N may be odd; |x| < 2^60 so that squares stay finite",
)
