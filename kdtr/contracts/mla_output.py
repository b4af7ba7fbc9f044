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
        Tensor("latent", F, ("T", "H", "C"), "attention result per head, finite"),
        Tensor(
            "kv_b", F, ("H", "M", "C"), "kv_b_proj: per head n K rows, then v V rows; M = n + v"
        ),
        Tensor("o", F, ("D", "V"), "o_proj: inputs head by head, V = H v; kv_b's dtype"),
        Tensor("residual", F, ("T", "D"), "added to the product, latent's dtype", when="given"),
        Tensor("out", F, ("T", "D"), "result, latent's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "value rows": "the last v rows of each head of kv_b",
        "concat": "head by head: column h * v + i",
        "dtypes": "both weights share one dtype; bf16 where latent is bf16",
        "bad_input": "a NaN or infinity in the token's latents or residual: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "f32 throughout, any order inside a dot product",
        "bf16_f32acc": "latent and weights bf16; f32 sums in any order, on tensor cores or not; "
        "the values v may be rounded to bf16 once; residual added in f32; stored as bf16",
    },
    budget="carried through both products as `linear`; + 2u |out|. bf16_f32acc: a value v +- e is "
    "off by max |bf16(v +- e) - v|, thrice that in quadrature for the gate; out: u_bf16 |out|, "
    "u_bf16 = 2^-8",
    why="as `linear`; the rounding of a value is known, so it counts as it is, and roundings of "
    "different values are independent, so the gate adds them in quadrature",
    limits="T may be 0; v = o's columns / H",
)
