"""Contract of `linear`."""

from kdtr.contract import Contract, Tensor

CONTRACT = Contract(
    op="linear",
    version=1,
    summary="Rows times a weight matrix, plus a residual where given.",
    formula="out[t, n] = sum_k x[t, k] * weight[n, k] (+ residual[t, n])",
    source="torch.nn.functional.linear without bias; weights are [out, in] as in checkpoints",
    tensors=(
        Tensor("x", ("f32",), ("T", "K"), "rows, finite"),
        Tensor("weight", ("f32", "bf16"), ("N", "K"), "weights [out, in], finite"),
        Tensor("residual", ("f32",), ("T", "N"), "added to the product", when="given"),
        Tensor("out", ("f32",), ("T", "N"), "result", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "weight": "[out, in]",
        "bad_input": "a NaN or infinity in a token's x or residual row: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={"f32": "products and sums in f32, any order; bf16 weights widen exactly"},
    budget="hard: K u sum_k |x w| + 2u |out|; gate: 3u (sqrt(K/3) |y| + sqrt(K/2) ||x w||2) + "
    "2u |out|",
    why="the usual bound of a dot product, and its random-walk form at three sigma",
    limits="T, K, N may be 0 or odd; K = 0 gives the residual, or 0",
)
