"""Contract of `moe_experts`."""

from kdtr.contract import Attr, Contract, Tensor

F = ("f32", "bf16")
DENSE, PACKED, SHARED = "format dense", "format w4_exact or w4_bf16", "shared experts"


def _packed(name: str, rows: str, cols: str) -> tuple[Tensor, Tensor]:
    return (
        Tensor(f"{name}_packed", ("i32",), ("E", rows, f"{cols}/8"), "int4 codes", when=PACKED),
        Tensor(
            f"{name}_scale", ("bf16",), ("E", rows, f"{cols}/group"), "group scales", when=PACKED
        ),
    )


CONTRACT = Contract(
    op="moe_experts",
    version=1,
    summary="Routed SwiGLU experts, then the shared expert, then the residual.",
    formula=(
        "f(x; g, u, d) = d @ (silu(g @ x) * (u @ x)); out[t] = sum over k ascending of weights[t, "
        "k] * f(x[t]; expert ids[t, k]) (+ f(x[t]; shared)) (+ residual[t]). Weights are [out, in]."
        " int4: code q of input i of a row is bits 4 (i mod 8) .. of word i / 8, value (q - 8) * "
        "scale[i / group]. w4_exact: that product exactly; w4_bf16: rounded to bf16 first."
    ),
    source="DeepSeek-V3, arXiv:2412.19437; int4: compressed-tensors pack-quantized, symmetric",
    tensors=(
        Tensor("x", F, ("T", "D"), "tokens, finite"),
        Tensor("ids", ("i32",), ("T", "K"), "experts, distinct; -1 = none"),
        Tensor("weights", ("f32",), ("T", "K"), "their factors, finite"),
        Tensor("gate", F, ("E", "I", "D"), "expert gate_proj", when=DENSE),
        Tensor("up", F, ("E", "I", "D"), "expert up_proj", when=DENSE),
        Tensor("down", F, ("E", "D", "I"), "expert down_proj", when=DENSE),
        *_packed("gate", "I", "D"),
        *_packed("up", "I", "D"),
        *_packed("down", "D", "I"),
        Tensor("shared_gate", F, ("J", "D"), "shared gate_proj", when=SHARED),
        Tensor("shared_up", F, ("J", "D"), "shared up_proj", when=SHARED),
        Tensor("shared_down", F, ("D", "J"), "shared down_proj", when=SHARED),
        Tensor("residual", F, ("T", "D"), "added last", when="given"),
        Tensor("out", F, ("T", "D"), "result, x's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    attrs=(
        Attr("format", "utf-8", "how expert weights are stored", ("dense", "w4_exact", "w4_bf16")),
        Attr("group", "i64", "inputs per int4 scale: 32, 64 or 128; 0 when dense"),
    ),
    conventions={
        "nibble": "lowest nibble = lowest input index; excess-8, never two's complement",
        "shared": "the shared expert has factor 1: the routed scaling does not touch it",
        "ids": "-1 and experts that no token names are never read",
        "dense dtypes": "gate, up, down and the shared three share one dtype, except that the "
        "shared experts of an int4 call are f32 or bf16 alike",
        "rows": "x, residual and out share one dtype; with bf16 rows all float weights are bf16",
        "bad_input": "an id outside -1 .. E-1, a NaN or infinity in the token's x, weights or "
        "residual: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "f32 throughout, any order inside a dot product",
        "bf16_f32acc": "bf16 rows, exact products, f32 sums; silu(gate) * up may be rounded to "
        "bf16 once; experts and residual combined in f32, stored as bf16",
    },
    budget=(
        "carried through the stages: dot products as `linear`; silu: error of gate times |slope * "
        "up|, of up times |silu|, own ((2|g| + 4)(1 - sigmoid) + 5) u; combination: (n + 1) u sum "
        "|terms| hard, n = terms, and in quadrature for the gate; bf16_f32acc: a hidden element h "
        "+- e is off by max |bf16(h +- e) - h|, thrice that in quadrature for the gate; out: "
        "u_bf16 |out|"
    ),
    why="each stage's bound holds for any order of summation; errors of different hidden "
    "elements are independent, so the gate adds them in quadrature; the rounding of a "
    "hidden element is known, so it counts as it is and not as the worst of its size",
    limits="T, K, E may be 0; I and D multiples of 8 and of group when int4",
)
