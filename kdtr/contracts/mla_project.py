"""Contract of `mla_project`."""

from kdtr.contract import Attr, Contract, Tensor

F = ("f32", "bf16")

CONTRACT = Contract(
    op="mla_project",
    version=1,
    summary="Multi-head latent attention's inputs: absorbed queries and the cached row.",
    formula=(
        "a = rmsnorm(x @ q_a^T, q_a_norm, eps); q = a @ q_b^T, per head n nope then r rope values; "
        "q_out[t, h] = [q_nope @ kv_b[h, :n] (C values) | rope(q_rope)]; z = x @ kv_a^T; "
        "kv[t] = [rmsnorm(z[:C], kv_a_norm, eps) | rope(z[C:])]; rope as op rope: pairs (2i, "
        "2i+1), angle = f32(position) * inv_freq, factor rope_scale, stored by `store`."
    ),
    source="DeepSeek-V2, arXiv:2405.04434, sec. 2.1 and appendix C; DeepSeek-V3 inference/model.py",
    tensors=(
        Tensor("x", F, ("T", "D"), "normalised hidden states, finite"),
        Tensor("positions", ("i32",), ("T",), "absolute position of each token"),
        Tensor("inv_freq", ("f32",), ("F",), "rope frequencies, r = 2F"),
        Tensor("q_a", F, ("Q", "D"), "q_a_proj"),
        Tensor("q_a_norm", F, ("Q",), "q_a_layernorm"),
        Tensor(
            "q_b",
            F,
            ("B", "Q"),
            "q_b_proj: per head n nope rows, then 2F rope rows; B = H (n + 2F)",
        ),
        Tensor("kv_a", F, ("C+2*F", "D"), "kv_a_proj_with_mqa: C latent rows, then 2F rope rows"),
        Tensor("kv_a_norm", F, ("C",), "kv_a_layernorm"),
        Tensor(
            "kv_b", F, ("H", "M", "C"), "kv_b_proj: per head n K rows, then v V rows; M = n + v"
        ),
        Tensor("q", F, ("T", "H", "C+2*F"), "absorbed query: latent | rope, x's dtype", "out", "B"),
        Tensor("kv", F, ("T", "C+2*F"), "row for the cache: latent | rope, x's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    attrs=(
        Attr("eps", "f64", "of q_a_norm and kv_a_norm; transformers: 1e-6 whatever the model's"),
        Attr("rope_scale", "f64", "factor on cos and sin"),
        Attr("store", "utf-8", "column order of the rope part", ("interleaved", "halves")),
    ),
    conventions={
        "order": "latent first, rope last, in q and kv",
        "kv row": "after normalisation and rotation",
        "softmax scale": "not applied here",
        "dtypes": "all six weights share one dtype; bf16 where x is bf16",
        "bad_input": "position below 0, or a NaN or infinity in the token's x: status 1, q, kv 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "f32 throughout, any order inside a dot product",
        "bf16_f32acc": "x and weights bf16; f32 sums in any order, on tensor cores or not; x @ "
        "q_a^T, a, q before absorption and rotation, and z may each be rounded to bf16 once; norms "
        "and rope in f32 with no rounding inside; stored as bf16",
    },
    budget="carried through the stages: dot products as `linear`, norms as `rmsnorm` (their "
    "factor's error stays common to the row), rope as `rope`. bf16_f32acc: an element v +- e "
    "that may be rounded is off by max |bf16(v +- e) - v|, for the gate thrice that in quadrature, "
    "for a and q of at most u_bf16 (|v| + e); outputs: u_bf16 |out|, u_bf16 = 2^-8",
    why="a norm's factor moves a whole row together and does not average out in the next product; "
    "the other errors do, and so do roundings of different elements",
    limits="T may be 0; 0 <= position < 2^20",
)
