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
        "bad_input": "n_nodes or prefix_len out of range, or a used row, seen or not, outside the "
        "pool: status 1, out 0, lse -inf for the whole request",
        "used": "rows t < prefix_len and the table entries of their pages, rows and tree_slots of "
        "nodes j < n_nodes; a page's other rows need not lie in the pool",
        "poison": "rows that no node of the request sees, unused entries and page tails never "
        "influence a result, whatever they hold",
    },
    profiles={
        "f32": "f32 products and sums in any order, with or without FMA; P in f32",
        "tf32": "q, k, v and P rounded or truncated to tf32, f32 accumulators",
        "bf16_f32acc": "bf16 inputs, f32 accumulators of tensor cores; P in f32",
        "bf16_f32acc_pbf16": "as bf16_f32acc, P rounded to bf16 before P V",
        "bf16_f32acc_pbf16_f32out": "as bf16_f32acc_pbf16, out in f32, as for a merge",
        "bf16_splits_bf16": "as bf16_f32acc_pbf16, split outputs stored in bf16 before the merge",
        "f16_f32acc": "f16 inputs, f32 accumulators of tensor cores; P in f32",
        "f16_f32acc_pf16": "as f16_f32acc, P rounded to f16 before P V",
    },
    budget=(
        "u = 2^-24; a = u, on tensor cores 2u; e = 2^-22; n keys seen, S = min(n, 32), "
        "T = ceil(n/16) + S, m = max s, p = softmax, o = out, X_j = scale sum_i |q_i k_ji|, "
        "Y_j = scale |q o k_j|_2, A = sum_j p_j |v_j|, B = |p o v|_2, "
        "M = u (2|m| + ln n) + S (e + 2u), t = t0 + 2^-126 n max|v|, "
        "F = sum_j min(p_j, f / l)|v_j|, l = sum_j exp(s_j - m); "
        "z = 0 for a row whose products q_i k_ji are all 0, else 1. "
        "HARD: E_j = (D+2) a X_j + 2 u_in X_j + 2u|s_j|, "
        "eta_j = expm1(E_j + 3u(m - s_j)) + z (e + T(e + 2u)); "
        "out: sum_j p_j (eta_j + z u_p)(|v_j| + |o|) + ((n+2) a + M)(A + |o|) "
        "+ (u_in + u_part) A + F + (2u + u_out)|o| + t; "
        "lse: sum_j p_j (E_j + z (e + T(e + 2u))) + (n+2) a + 2e + 3u|lse| + M. "
        "GATE: G(k, x, y) = 3u (sqrt(k/3) x + sqrt(k/2) y), on tensor cores "
        "+ 2u (k/8 + 1) max(x, y); "
        "E_j = G(D, |s_j|, Y_j) + u_in (5 Y_j + 2|s_j|) + 2u|s_j|; "
        "eta_j = E_j + 2u(m - s_j) + z (e + sqrt(T)(e + 2u)); "
        "out: |p o eta o (v - o)|_2 + G(n, |o|, B) + 3u sqrt(n/3)|o| + M |p o (v - o)|_2 "
        "+ (z u_p + u_in + u_part)(3B + |o|) + F + (2u + u_out)|o| + t; "
        "lse: |p o eta|_2 + sum_j p_j (E_j, on tensor cores; else its terms after G) "
        "+ 3u sqrt(n/3) + 2e + 3u|lse| + u (2|m| + ln n); never above hard. "
        "Profiles: u_in tf32 2^-10; u_p tf32 2^-10, pbf16 2^-8, pf16 2^-11; f pf16 2^-25; "
        "u_part splits_bf16 2^-8; u_out f32 u, bf16 2^-8, f16 2^-11; t0 2^-125, f16 2^-24. "
        "Both are 0 for rows that see nothing. Factors are rounded up to 20 bits."
    ),
    why=(
        "hard is the worst case to first order: no order of summation, tiling or split that keeps "
        "the profile can pass it. gate replaces sums of absolute values by sums in quadrature with "
        "lambda 3, and for tensor cores, which truncate, adds a term linear in the number of "
        "eight-term steps; above it a kernel is legal but worse than it should be."
    ),
    limits=(
        "R, N, H, slots, max_pages >= 0; 0 <= Dv <= D; prefix_len <= max_pages * page_size and "
        "< 2^18; q and every row that a node sees are finite; offsets may pass 2^32 bytes"
    ),
)
