"""Contract of `linear`."""

from kdtr.contract import Contract, Tensor

F = ("f32", "bf16")

CONTRACT = Contract(
    op="linear",
    version=1,
    summary="Rows times a weight matrix, plus a residual where given.",
    formula="out[t, n] = sum_k x[t, k] * weight[n, k] (+ residual[t, n])",
    source="torch.nn.functional.linear without bias; weights are [out, in] as in checkpoints",
    tensors=(
        Tensor("x", F, ("T", "K"), "rows, finite"),
        Tensor("weight", F, ("N", "K"), "weights [out, in], finite"),
        Tensor("residual", F, ("T", "N"), "added to the product, out's dtype", when="given"),
        Tensor("out", F, ("T", "N"), "result, x's dtype, or f32", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "weight": "[out, in]",
        "dtypes": "x f32: weight f32 or bf16, out f32; x bf16: weight bf16, out bf16 or f32",
        "bad_input": "a NaN or infinity in a token's x or residual row: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "products and sums in f32, any order; bf16 weights widen exactly",
        "bf16_f32acc": "x and weight bf16, so products are exact; f32 sums in any order, on tensor "
        "cores or not, the residual among them; stored as bf16, the only rounding to bf16",
        "bf16_f32acc_f32out": "the same, stored as f32",
    },
    budget="y = the product, u = 2^-24. f32: hard K u sum_k |x w| + 2u |out|; gate 3u (sqrt(K/3) "
    "|y| + sqrt(K/2) ||x w||2) + 2u |out|. bf16 x: hard 2u (K + 2) sum_k |x w| + u |out| + "
    "u_out |out|; gate 3u (sqrt(K/3) |y| + sqrt(K/2) ||x w||2) + 2u (K/8 + 1) max(|y|, ||x w||2) "
    "+ u |out| + u_out |out|; u_out bf16 2^-8, f32 u; u |out| only with a residual",
    why="the usual bound of a dot product, and its random-walk form at three sigma; tensor cores "
    "may cut partial sums, which gives errors of one sign once per eight terms",
    limits="T, K, N may be 0 or odd; K = 0 gives the residual, or 0",
)
