"""Contract of `tree_sample`: sampled acceptance of a verified draft tree."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="tree_sample",
    version=1,
    summary=(
        "Walks each request's draft tree by the target model's probabilities and given random "
        "numbers, so that with both thresholds at 1 the emitted tokens are distributed as the "
        "target's own samples, whatever the drafter proposed."
    ),
    formula=(
        "cur = 0, depth = 0, read = 0. At each node acc = 0 in f64 and coin = coins[r, depth]; "
        "for child = next_token[cur], then next_sibling[child], until child is -1 or accepted: "
        "a child outside 1..n_nodes-1 is bad_links; read += 1, and read > n_nodes - 1 is "
        "bad_links; t = tokens[child] outside [0, V), a coin outside [0, 1), or p = probs[cur, t] "
        "not finite or below 0 is bad_input; acc += p; the child is accepted iff p > 0 and "
        "(coin < acc / threshold_acc or p >= threshold_single). "
        "On acceptance: depth + 1 > L is capacity; else cur = child, depth += 1. "
        "With no child accepted, the walk draws: final_coin outside [0, 1), or any of "
        "probs[cur, :] not finite or below 0, is bad_input; residual = probs[cur, :] with 0 at "
        "the tokens of all children of cur; total = sum of residual in f64, 0 is bad_input; the "
        "draw is the first id whose running f64 sum of residual exceeds final_coin * total, else "
        "the last id with a positive residual. "
        "accept_index[0..accept_len] is the path, root first, accept_len = depth; "
        "accepted_tokens[k] = tokens[accept_index[k+1]] for k < accept_len and the draw for "
        "k = accept_len; predicts[accept_index[k]] = accepted_tokens[k]. Everything else is -1. "
        "n_nodes 0 is an inactive request: ok, all outputs -1. n_nodes outside 0..N is bad_input. "
        "The first error is the status; a request that fails has -1 everywhere; the others are "
        "unaffected."
    ),
    source=(
        "SGLang's tree_speculative_sampling_target_only (threshold_acc, threshold_single); "
        "multi-round speculative sampling of SpecInfer, arXiv 2305.09781, section 4.3"
    ),
    tensors=(
        Tensor("tokens", ("i32",), ("R", "N"), "Draft token of each node; the root's is not read."),
        Tensor("next_token", ("i32",), ("R", "N"), "First child, or -1."),
        Tensor("next_sibling", ("i32",), ("R", "N"), "Next sibling, or -1."),
        Tensor(
            "n_nodes", ("i32",), ("R",), "Nodes, the root included; slots past it are not read."
        ),
        Tensor(
            "probs",
            ("f32",),
            ("R", "N", "V"),
            "The target's distribution after each node, temperature and filters applied.",
            nan="any",
        ),
        Tensor(
            "coins",
            ("f32",),
            ("R", "L+1"),
            "Uniform in [0, 1), one for each depth: all siblings of a node share it.",
            nan="any",
        ),
        Tensor(
            "final_coin", ("f32",), ("R",), "Uniform in [0, 1), independent of coins.", nan="any"
        ),
        Tensor(
            "accept_index", ("i32",), ("R", "L+1"), "Nodes of the path, root first.", "out", "E"
        ),
        Tensor("accept_len", ("i32",), ("R",), "Accepted draft nodes.", "out", "E"),
        Tensor(
            "accepted_tokens",
            ("i32",),
            ("R", "L+1"),
            "Tokens to emit: accepted ones, then the draw.",
            "out",
            "E",
        ),
        Tensor(
            "predicts",
            ("i32",),
            ("R", "N"),
            "Token emitted after each node of the path.",
            "out",
            "E",
        ),
        Tensor(
            "status", ("i32",), ("R",), "0 ok, 1 bad_input, 2 bad_links, 3 capacity.", "out", "E"
        ),
    ),
    attrs=(
        Attr("L", "i64", "Depth limit: the most draft nodes that a step may accept."),
        Attr(
            "threshold_acc",
            "f64",
            "Divides the accumulated probability; 1 keeps the target's distribution. Above 0.",
        ),
        Attr(
            "threshold_single",
            "f64",
            "A child of at least this probability is accepted whatever the coin; above 1 never.",
        ),
    ),
    conventions={
        "accept": "coin < acc / threshold_acc, half open: a token without mass is never accepted",
        "coins": "one per depth, shared by siblings; the final draw has its own",
        "residual": "tried siblings have probability 0",
        "accept_len": "without root and draw",
    },
    why=(
        "Exact, because the random numbers are inputs and the probabilities of the cases, mostly "
        "multiples of 2^-24, have sums that f64 holds: each is the same in any order. With other "
        "probabilities a draw "
        "whose final_coin * total lies within rounding of a running sum may differ by one id; "
        "such inputs are not judged here. A comparison with <= accepts tokens without mass at "
        "coin 0; a draw that reuses the acceptance coin, or keeps the tried siblings, is a "
        "distribution that is slightly wrong and text that reads well."
    ),
    limits=(
        "L 0..64, N 0..1025, V 0..262144; more fails the call with a message, and so does "
        "threshold_acc <= 0 or a threshold that is NaN. Siblings have distinct tokens: a repeated "
        "one counts its probability again."
    ),
)
