"""`tree_sample@1`: sampled acceptance of a draft tree, target probabilities only."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="tree_sample",
    version=1,
    summary=(
        "Walk the draft tree by the target's probabilities and coins; the emitted tokens are "
        "distributed as if the target had been sampled token by token."
    ),
    formula=(
        "at a node: acc = 0 (f64); for each child in sibling order: acc += probs[node, "
        "tokens[child]]; accept iff coins[accepted so far] < acc / threshold_acc or "
        "probs[node, tokens[child]] >= threshold_single; on accept go to the child, acc = 0, next "
        "coin; when no child is accepted: q = probs[node] with the tried tokens 0, T = sum q, and "
        "the last token is the first id v with q[0] + ... + q[v] > final_coin * T, else the last "
        "id with q > 0; all sums in f64"
    ),
    source=(
        "SGLang, sgl-kernel csrc/speculative/speculative_sampling.cuh "
        "(tree_speculative_sampling_target_only), made half-open"
    ),
    tensors=(
        Tensor("tokens", ("i32",), ("R", "N"), "draft token of each node; the root's is not read"),
        Tensor("next_token", ("i32",), ("R", "N"), "first child of each node, -1 none"),
        Tensor("next_sibling", ("i32",), ("R", "N"), "next sibling of each node, -1 none"),
        Tensor("n_nodes", ("i32",), ("R",), "nodes, root included; 0 = inactive request"),
        Tensor(
            "probs",
            ("f32",),
            ("R", "N", "V"),
            "the target's probabilities after each node",
            nan="any",
        ),
        Tensor("coins", ("f32",), ("R", "L+1"), "uniform in [0, 1), one for each depth", nan="any"),
        Tensor(
            "final_coin",
            ("f32",),
            ("R",),
            "uniform in [0, 1), for the last token only",
            nan="any",
        ),
        Tensor(
            "accept_index",
            ("i32",),
            ("R", "L+1"),
            "accepted nodes, root first; unused -1",
            role="out",
            judged="E",
        ),
        Tensor(
            "accept_len",
            ("i32",),
            ("R",),
            "accepted drafts, without root and last token",
            role="out",
            judged="E",
        ),
        Tensor(
            "accepted_tokens",
            ("i32",),
            ("R", "L+1"),
            "tokens[accept_index[k + 1]] for k < accept_len, then the drawn token; unused -1",
            role="out",
            judged="E",
        ),
        Tensor(
            "predicts",
            ("i32",),
            ("R", "N"),
            "accepted_tokens[k] at node accept_index[k]; elsewhere -1",
            role="out",
            judged="E",
        ),
        Tensor(
            "status",
            ("i32",),
            ("R",),
            "0 ok, 1 bad_input, 2 bad_links, 3 capacity",
            role="out",
            judged="E",
        ),
    ),
    attrs=(
        Attr("threshold_acc", "f64", "in (0, 1]; 1 keeps the target's distribution"),
        Attr("threshold_single", "f64", "above 0; more than 1 never accepts by itself"),
    ),
    conventions={
        "edge": "half-open: coin < acc / threshold_acc, so a token of probability 0 is never "
        "accepted, and a coin on the edge goes on",
        "coin": "coins[d] is for the children of the node at depth d; final_coin is its own",
        "residual": "every tried sibling's token has residual 0, whatever its probability",
        "walk": "by links, never by index order; links, tokens and probabilities that the walk "
        "does not read are not checked",
        "first_error": "for each node in turn: the coin (only when it has a child); for each "
        "child: link (bad_links: outside 1..n_nodes-1, or more than n_nodes-1 links read in "
        "all), token outside 0..V-1, its probability; depth above L on accept (capacity); at the "
        "last node: final_coin, every probability of the row, the residual",
        "bad_input": "a used coin outside [0, 1) or NaN; a used probability negative, NaN or "
        "infinite; a residual that sums to 0; n_nodes outside 0..N",
        "refused": "accept_index, accept_len, accepted_tokens and predicts -1",
        "inactive": "n_nodes 0: status ok, accept_len and everything else -1",
    },
    limits=(
        "all axes >= 0, L+1 >= 1; used probabilities are multiples of 2^-24 whose sums are below "
        "2^29, or no draw lies within 2^-40 of an edge, so that every order of summation agrees"
    ),
)
