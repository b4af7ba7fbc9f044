"""`topk_merge@1`: the candidates of a vocabulary's shards become those of the whole."""

from kdtr.contract import Contract, Tensor

CONTRACT = Contract(
    op="topk_merge",
    version=1,
    summary="Merge the K best tokens and the log-sum-exps of vocabulary shards, as if never split.",
    formula=(
        "lse[r, l] = log sum_s exp(part_lse[s, r, l]); ids[r, l] = the first K of all candidates "
        "(first[s] + part_ids[s, r, l, j], part_values[s, r, l, j]) in order of (value "
        "descending, id ascending); logprobs[r, l, k] = the value of ids[r, l, k] - lse[r, l], "
        "one f32 subtraction"
    ),
    source=(
        "topk_logprobs@1 over a vocabulary that tensor parallelism splits (Shoeybi et al., "
        "Megatron-LM, arXiv 1909.08053, section 3: parallel output embedding)"
    ),
    tensors=(
        Tensor(
            "part_ids",
            ("i32",),
            ("S", "R", "L", "K"),
            "topk_logprobs of each shard: ids within the shard, best first; pad -1",
        ),
        Tensor(
            "part_values",
            ("f32",),
            ("S", "R", "L", "K"),
            "the logit of each id, widened to f32; at a pad anything",
            nan="any",
        ),
        Tensor(
            "part_lse",
            ("f64",),
            ("S", "R", "L"),
            "log-sum-exp of each shard, natural log, as fine as the shard knows it",
            nan="any",
        ),
        Tensor("part_status", ("i32",), ("S", "R"), "status of each shard"),
        Tensor("first", ("i32",), ("S",), "the id of each shard's first token"),
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
    conventions={
        "order": "value descending, then token id ascending, in whatever order the shards come; "
        "-0 equals +0; subnormals count",
        "lse": "natural log, over all shards, never below the row's maximum",
        "logprobs": "value - lse, exact given the lse that the engine itself returned",
        "pads": "an id below 0 is a pad and its value is never read; missing candidates are id "
        "-1, log-prob -inf",
        "empty": "a shard with lse -inf adds nothing; a row of such: lse -inf, all pads, status ok",
        "one_shard": "ids, logprobs and status are the shard's own, lse its nearest f32",
        "bad_input": "a shard's status other than 0, or a NaN or +inf lse, in any shard of a "
        "request: its ids -1, logprobs and lse -inf",
    },
    profiles={"f32": "lse within one f32 ulp, however it is summed; ids and logprobs exact"},
    budget=(
        "ulp = 2^(floor(log2 max(|lse|, 1)) - 23), gap = lse - max_s part_lse, near = "
        "|lse - nearest f32|; gate = hard = the greatest of near (1 + 2^-20), 2^-26 |lse| and, "
        "where gap > 0, min(ulp, gap + ulp / 2 * (1 - 2^-20))"
    ),
    why=(
        "The budget of topk_logprobs, with the greatest part in the place of the greatest logit: "
        "a part is at least its own maximum. Parts are f64, for a part that was rounded to f32 "
        "has spent half an ulp already. One non-empty shard leaves nothing to sum: the nearest "
        "f32 alone passes."
    ),
    limits=(
        "S, R, L >= 0; 0 <= K <= 1024; S, S K <= 2^20; first + id < 2^31 - 1; no token in two "
        "shards; lists in the order above, pads last; |part_lse| < 2^127 or -inf"
    ),
)
