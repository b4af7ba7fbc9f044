"""Contract of `rope`."""

from kdtr.contract import Attr, Contract, Tensor

FLOATS = ("f32", "bf16", "f16")

CONTRACT = Contract(
    op="rope",
    version=1,
    summary="Rotary position embedding of part of each head, with given frequencies.",
    formula=(
        "angle[t, i] = f32(positions[t]) * inv_freq[i], one f32 product; c, s = scale * cos(angle),"
        " scale * sin(angle); the pair (a, b) = x[t, h, start + 2i], x[t, h, start + 2i + 1] "
        "becomes (a c - b s, b c + a s). store interleaved: at start + 2i, start + 2i + 1; "
        "store halves: at start + i, start + F + i. All other columns are copied."
    ),
    source="Su et al., arXiv:2104.09864; YaRN, arXiv:2309.00071; DeepSeek-V3 inference/model.py; "
    "store halves is what transformers caches for DeepSeek-V3 (apply_rotary_pos_emb_interleave)",
    tensors=(
        Tensor("x", FLOATS, ("T", "H", "W"), "heads, finite"),
        Tensor("positions", ("i32",), ("T",), "absolute position of each token"),
        Tensor("inv_freq", ("f32",), ("F",), "frequencies, YaRN already applied"),
        Tensor("out", FLOATS, ("T", "H", "W"), "rotated heads, x's dtype", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    attrs=(
        Attr("start", "i64", "first rotated column; start + 2F <= W"),
        Attr("scale", "f64", "factor on cos and sin: mscale(mscale) / mscale(mscale_all_dim)"),
        Attr("store", "utf-8", "column order of the result", ("interleaved", "halves")),
    ),
    conventions={
        "pairs": "interleaved input: (2i, 2i+1), GPT-J order",
        "angle": "rounded to f32 once, then cos and sin of that f32 number",
        "copied": "columns outside start .. start + 2F keep their bits",
        "bad_input": "position below 0, or a NaN or infinity in the token's rows: status 1, out 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={
        "f32": "cos and sin within 2 ulp of the f32 angle's, products and sums in f32",
        "bf16_f32acc": "the same, stored as bf16",
        "f16_f32acc": "the same, stored as f16",
    },
    budget="hard = gate: 7u (|a c| + |b s|) + u_out |out|; 0 for copied columns",
    why="2 ulp is what accurate libraries promise; fast intrinsics without range reduction miss "
    "it by orders of magnitude from position 48039 on. Few operations, so the worst case is the "
    "bound; a kernel two ulp off throughout is legal.",
    limits="0 <= position < 2^20 and position * inv_freq < 2^20; F, H, T may be 0",
)
