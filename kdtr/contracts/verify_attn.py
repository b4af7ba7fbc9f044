"""`verify_attn@1`: tree-verify MLA attention over a paged latent prefix and a tree tail."""

from kdtr.contract import Attr, Contract, Tensor

_FLOATS = ("f32", "bf16", "f16")

CONTRACT = Contract(
    op="verify_attn",
    version=1,
    summary=(
        "Attention of each draft-tree node over the whole prefix and its own ancestors, in the "
        "absorbed MLA form: one latent row per token is key and value of every head."
    ),
    formula=(
        "keys(r, i) = prefix rows t < prefix_len[r] in slots page_table[r, t / page_size] * "
        "page_size + t % page_size, and tree rows j < n_nodes[r] with visible[r, i, j] != 0 in "
        "slots tree_slots[r, j]; s_j = scale * dot(q[r, i, h], row_j); lse = log sum_j exp(s_j); "
        "out = sum_j exp(s_j - lse) * row_j[:Dv]"
    ),
    source=(
        "DeepSeek-V2, arXiv 2405.04434 (MLA, absorbed form); Miao et al., SpecInfer, "
        "arXiv 2305.09781 (tree attention); DDTree, arXiv 2604.12989"
    ),
    tensors=(
        Tensor("q", _FLOATS, ("R", "N", "H", "D"), "queries, latent then rope columns"),
        Tensor("kv_pool", _FLOATS, ("slots", "D"), "latent rows, latent then rope; dtype of q"),
        Tensor(
            "page_table",
            ("i32",),
            ("R", "max_pages"),
            "page ids of the prefix, in token order",
            when="part is not tail",
        ),
        Tensor(
            "prefix_len", ("i32",), ("R",), "prefix rows of each request", when="part is not tail"
        ),
        Tensor(
            "tree_slots",
            ("i32",),
            ("R", "N"),
            "slot of each node's row, anywhere in the pool",
            when="part is not prefix",
        ),
        Tensor(
            "visible",
            ("u8",),
            ("R", "N", "N"),
            "row i: the tree rows that node i sees, non-zero",
            when="part is not prefix",
        ),
        Tensor("n_nodes", ("i32",), ("R",), "nodes, root included; 0 = inactive request"),
        Tensor(
            "out",
            _FLOATS,
            ("R", "N", "H", "Dv"),
            "attention output, dtype of q, or f32",
            role="out",
            judged="B",
        ),
        Tensor(
            "lse",
            ("f32",),
            ("R", "N", "H"),
            "log-sum-exp of the scaled scores, natural log",
            role="out",
            judged="B",
        ),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input", role="out", judged="E"),
    ),
    attrs=(
        Attr("scale", "f64", "softmax scale, f32-representable; never D^-1/2 of the latent form"),
        Attr("page_size", "i64", "rows per page; passed, and checked, in every part", (1, 16, 64)),
        Attr("part", "utf-8", "which keys take part", ("whole", "prefix", "tail")),
        Attr("Dv", "i64", "value columns: V is the first Dv columns of a row, Dv <= D"),
    ),
    conventions={
        "lse": "natural log, layout [R, N, H]",
        "row": "latent columns first, rope columns last; K is the whole row, V its first Dv",
        "scale": "always passed: (qk_nope + qk_rope)^-1/2 * mscale^2, not D^-1/2",
        "mask": "node i sees the whole prefix and the rows j with visible[i, j]; i, j < n_nodes; "
        "nothing else of visible is read",
        "page": "table entries are page ids; a page holds page_size consecutive slots",
        "empty": "a row that sees nothing, and every row i >= n_nodes: out 0, lse -inf",
        "inactive": "n_nodes 0: status ok, nothing else of the request is read",
        "bad_input": "n_nodes or prefix_len out of range, a used page entry or tree slot out of "
        "range: status 1, out 0, lse -inf for the whole request",
        "used": "table entries of rows t < prefix_len, tree_slots of nodes j < n_nodes",
        "poison": "rows that no node of the request sees, unused entries and page tails never "
        "influence a result, whatever they hold",
    },
    profiles={
        "f32": "f32 products and sums in any order, with or without FMA; P in f32",
        "tf32": "q, k, v and P rounded or truncated to tf32, f32 accumulators",
        "bf16_f32acc": "bf16 inputs, f32 accumulators of tensor cores; P in f32",
        "bf16_f32acc_pbf16": "as bf16_f32acc, P rounded to bf16 before P V",
        "bf16_splits_bf16": "as bf16_f32acc_pbf16, split outputs stored in bf16 before the merge",
        "f16_f32acc": "f16 inputs, f32 accumulators of tensor cores; P in f32",
        "f16_f32acc_pf16": "as f16_f32acc, P rounded to f16 before P V",
    },
    budget="",
    why="",
    limits=(
        "R, N, H, slots, max_pages >= 0; 0 <= Dv <= D; prefix_len <= max_pages * page_size and "
        "< 2^18; q and every row that a node sees are finite; offsets may pass 2^32 bytes"
    ),
)
