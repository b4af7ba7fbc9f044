"""`merge_state@1`: two attention states over disjoint keys become one."""

from kdtr.contract import Contract, Tensor

_FLOATS = ("f32", "bf16", "f16")

CONTRACT = Contract(
    op="merge_state",
    version=1,
    summary="Merge two partial attention results (output and log-sum-exp) over disjoint keys.",
    formula=(
        "m = max(lse_a, lse_b); w_x = exp(lse_x - m); "
        "o = (w_a o_a + w_b o_b) / (w_a + w_b); lse = m + log(w_a + w_b)"
    ),
    source=(
        "Ye et al., Cascade inference, 2024 (flashinfer.ai); Milakov, Gimelshein, Online "
        "normalizer calculation for softmax, arXiv 1805.02867"
    ),
    tensors=(
        Tensor("o_a", _FLOATS, ("R", "N", "H", "Dv"), "output of side a"),
        Tensor("lse_a", ("f32",), ("R", "N", "H"), "log-sum-exp of side a, natural log"),
        Tensor("o_b", _FLOATS, ("R", "N", "H", "Dv"), "output of side b, dtype of o_a"),
        Tensor("lse_b", ("f32",), ("R", "N", "H"), "log-sum-exp of side b, natural log"),
        Tensor(
            "o",
            _FLOATS,
            ("R", "N", "H", "Dv"),
            "merged output, dtype of o_a or narrower",
            role="out",
            judged="B",
        ),
        Tensor(
            "lse",
            ("f32",),
            ("R", "N", "H"),
            "merged log-sum-exp, natural log",
            role="out",
            judged="B",
        ),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input", role="out", judged="E"),
    ),
    conventions={
        "lse": "natural log",
        "empty": "lse -inf: that side is empty and its o is never read, whatever it holds",
        "one_empty": "o and lse are the other side's, bit for bit (o rounded once if narrower)",
        "both_empty": "o 0, lse -inf",
        "bad_input": "a NaN or +inf in lse_a or lse_b of a request: its o 0, its lse -inf",
    },
    profiles={
        "f32": "o in f32; f32 arithmetic in any order, FMA or not; exp and log within 2^-22",
        "bf16": "as f32, o rounded once to bf16",
        "f16": "as f32, o rounded once to f16",
    },
    budget=(
        "u = 2^-24, e = 2^-22, p_x = w_x / (w_a + w_b), g = e + 2u |lse_a - lse_b|, "
        "M = max(|lse_a|, |lse_b|), G = expm1(2g + 4u M); "
        "hard o: min(p_a p_b G, 1) |o_a - o_b| + 6u (p_a|o_a| + p_b|o_b|) + (2u + u_out)|o| + t; "
        "gate o: min(p_a p_b g, 1) |o_a - o_b| + 3u (p_a|o_a| + p_b|o_b|) + (u + u_out)|o| + t; "
        "hard lse: min(min(p_a, p_b) G, 1) + e + 2u + 3u|lse| + 2u M; "
        "gate lse: min(min(p_a, p_b) g, 1) + e/2 + u + u|lse|; "
        "both 0 where a side is empty (u_out|o| + t where o is too narrow) and in refused "
        "requests; u_out 2^-24 f32, 2^-8 bf16, 2^-11 f16; t 2^-125, for f16 2^-24"
    ),
    why=(
        "An error of a weight moves o along o_a - o_b only, by p_a p_b. Converting each lse to "
        "base 2 before subtracting costs 2u M and is legal, so it is in hard and not in gate."
    ),
    limits="R, N, H, Dv >= 0; |o_a|, |o_b|, |lse_a|, |lse_b| < 2^126 where their side is not empty",
)
