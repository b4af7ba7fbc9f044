"""`topk_logprobs@1`: drafter logits become candidates of a draft tree."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="topk_logprobs",
    version=1,
    summary="The K best tokens of each draft depth, their log-probabilities, and the row's lse.",
    formula=(
        "lse[r, l] = log sum_v exp(logits[r, l, v]); ids[r, l] = the first K ids of the finite "
        "logits of the row in order of (value descending, id ascending); "
        "logprobs[r, l, k] = f32(logits[r, l, ids[r, l, k]]) - lse[r, l], one f32 subtraction"
    ),
    source="DDTree, arXiv 2604.12989, algorithm 1 (per-depth marginals); torch.topk for the layout",
    tensors=(
        Tensor(
            "logits",
            ("f32", "bf16", "f16"),
            ("R", "L", "V"),
            "drafter logits, depth by depth",
            nan="any",
        ),
        Tensor(
            "ids",
            ("i32",),
            ("R", "L", "K"),
            "token ids, best first; pad -1",
            role="out",
            judged="E",
        ),
        Tensor(
            "logprobs",
            ("f32",),
            ("R", "L", "K"),
            "log-probability of each id; pad -inf",
            role="out",
            judged="E",
        ),
        Tensor(
            "lse",
            ("f32",),
            ("R", "L"),
            "log-sum-exp of the whole row, natural log",
            role="out",
            judged="B",
        ),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input", role="out", judged="E"),
    ),
    attrs=(Attr("K", "i64", "candidates per depth, 0 to 1024; may exceed V"),),
    conventions={
        "order": "value descending, then token id ascending; -0 equals +0; subnormals count",
        "lse": "natural log, over the whole vocabulary, never below the row's maximum",
        "logprobs": "f32(x) - lse, exact given the lse that the engine itself returned",
        "minus_inf": "never a candidate; missing candidates are id -1, log-prob -inf",
        "empty": "a row without a finite logit: lse -inf, all pads, status ok",
        "bad_input": "a NaN or +inf anywhere in a request: its ids -1, logprobs and lse -inf",
    },
    profiles={"f32": "lse within one f32 ulp, however it is summed; ids and logprobs exact"},
    budget=(
        "ulp = 2^(floor(log2 max(|lse|, 1)) - 23), gap = lse - max of the row; gate = hard = "
        "min(ulp, gap + ulp / 2 * (1 - 2^-20)), and 2^-26 |lse| where gap = 0"
    ),
    why=(
        "One ulp lets any careful f32 summation pass. The gap forbids a value below the row's "
        "maximum, which would make a log-prob positive; a row of one finite logit is exact. Below "
        "1 the ulp of 1 applies: such an lse is a difference of larger numbers, and it is "
        "subtracted from them again."
    ),
    limits="R, L, V >= 0; V < 2^31 - 1; 0 <= K <= 1024; offsets may pass 2^32 bytes",
)
