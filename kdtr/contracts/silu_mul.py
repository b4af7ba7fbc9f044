"""Contract of `silu_mul`."""

from kdtr.contract import Contract, Tensor

FLOATS = ("f32", "bf16", "f16")

CONTRACT = Contract(
    op="silu_mul",
    version=1,
    summary="SwiGLU's elementwise part.",
    formula="out[t, i] = gate[t, i] / (1 + exp(-gate[t, i])) * up[t, i], one rounding to out's "
    "dtype",
    source="Shazeer, arXiv:2002.05202",
    tensors=(
        Tensor("gate", FLOATS, ("T", "N"), "finite"),
        Tensor("up", FLOATS, ("T", "N"), "finite, gate's dtype"),
        Tensor("out", FLOATS, ("T", "N"), "gate's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "silu": "on gate, not on up; exact sigmoid, not a tanh or hard form",
        "bad_input": "a NaN or infinity in a token's rows: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "e^-x through exp2 at worst, then f32",
        "bf16_f32acc": "the same, stored as bf16",
        "f16_f32acc": "the same, stored as f16",
    },
    budget="hard = gate: |out| ((2 |gate| + 4) (1 - sigmoid) + 5) u + 2^-126 (1 + |gate up|) + "
    "u_out |out|",
    why="exp(-x) as exp2(-x log2 e) has the relative error |x| u of its argument; for large "
    "positive gates it no longer matters, hence the factor 1 - sigmoid. Where e^-x overflows f32 a "
    "sigmoid of 0 is right to 2^-126.",
    limits="|gate| <= 10^4; T, N may be 0",
)
