"""Contract of `mla_output`."""

from kdtr.contract import Contract, Tensor

F = ("f32", "bf16")

CONTRACT = Contract(
    op="mla_output",
    version=1,
    summary="Multi-head latent attention's output: values from latents, then o_proj.",
    formula="v[t, h] = kv_b[h, n:] @ latent[t, h]; out[t] = o @ concat_h(v[t, h]) (+ residual[t])",
    source="DeepSeek-V2, arXiv:2405.04434, appendix C",
    tensors=(
        Tensor("latent", ("f32",), ("T", "H", "C"), "attention result per head, finite"),
        Tensor(
            "kv_b", F, ("H", "M", "C"), "kv_b_proj: per head n K rows, then v V rows; M = n + v"
        ),
        Tensor("o", F, ("D", "V"), "o_proj: inputs head by head, V = H v; kv_b's dtype"),
        Tensor("residual", ("f32",), ("T", "D"), "added to the product", when="given"),
        Tensor("out", ("f32",), ("T", "D"), "result", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "value rows": "the last v rows of each head of kv_b",
        "concat": "head by head: column h * v + i",
        "bad_input": "a NaN or infinity in the token's latents or residual: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={"f32": "f32 throughout, any order inside a dot product"},
    budget="carried through both products as `linear`; + 2u |out|",
    why="as `linear`",
    limits="T may be 0; v = o's columns / H",
)
