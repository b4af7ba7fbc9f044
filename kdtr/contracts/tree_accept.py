"""Contract of `tree_accept`: greedy acceptance of a verified draft tree."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="tree_accept",
    version=1,
    summary=(
        "Follows, in each request's draft tree, the path that the target model itself would have "
        "generated greedily, and reports the accepted nodes, the tokens to emit and their number."
    ),
    formula=(
        "cur = 0, depth = 0, read = 0. At each node, in this order: "
        "(1) target[cur] outside [0, V) is bad_input; "
        "(2) for child = next_token[cur], then child = next_sibling[child], until child is -1 or "
        "tokens[child] = target[cur]: a child outside 1..n_nodes-1 is bad_links; read += 1, and "
        "read > n_nodes - 1 is bad_links (a tree has n_nodes - 1 links: more means a cycle); "
        "(3) with no such child the walk ends; else depth + 1 > L is capacity; else cur = child, "
        "depth += 1. The first error ends the walk and is the status. "
        "accept_index[0..accept_len] is the path, root first; accept_len = depth, so neither root "
        "nor bonus counts. accepted_tokens[k] = target[accept_index[k]] for k <= accept_len: the "
        "tokens of the accepted nodes below the root, then the bonus, which every step has. "
        "predicts[i] = target[i] for nodes on the path. Everything else is -1. "
        "n_nodes 0 is an inactive request: ok, all outputs -1. n_nodes outside 0..N is bad_input. "
        "A request that fails has -1 everywhere; the others are unaffected."
    ),
    source=(
        "Greedy verification of SpecInfer, arXiv 2305.09781, and DDTree, arXiv 2604.12989; "
        "names of SGLang's verify_tree_greedy (retrive_next_token, retrive_next_sibling, "
        "accept_index, predicts)"
    ),
    tensors=(
        Tensor("tokens", ("i32",), ("R", "N"), "Draft token of each node; the root's is not read."),
        Tensor("next_token", ("i32",), ("R", "N"), "First child, or -1."),
        Tensor("next_sibling", ("i32",), ("R", "N"), "Next sibling, or -1."),
        Tensor(
            "n_nodes", ("i32",), ("R",), "Nodes, the root included; slots past it are not read."
        ),
        Tensor(
            "target",
            ("i32",),
            ("R", "N"),
            "The target model's greedy token after each node: its argmax, ties to the lowest id.",
        ),
        Tensor(
            "accept_index", ("i32",), ("R", "L+1"), "Nodes of the path, root first.", "out", "E"
        ),
        Tensor("accept_len", ("i32",), ("R",), "Accepted draft nodes.", "out", "E"),
        Tensor(
            "accepted_tokens",
            ("i32",),
            ("R", "L+1"),
            "Tokens to emit: accepted ones, then the bonus.",
            "out",
            "E",
        ),
        Tensor("predicts", ("i32",), ("R", "N"), "target on the path, else -1.", "out", "E"),
        Tensor(
            "status", ("i32",), ("R",), "0 ok, 1 bad_input, 2 bad_links, 3 capacity.", "out", "E"
        ),
    ),
    attrs=(
        Attr("L", "i64", "Depth limit: the most draft nodes that a step may accept."),
        Attr("V", "i64", "Vocabulary of the target model."),
    ),
    conventions={
        "accept_len": "without root and bonus",
        "bonus": "on every step, full accept included",
        "siblings": "the first in sibling order whose token matches",
        "unread": "links, tokens and targets off the walk are never checked",
    },
    why=(
        "Exact. Links arrive from another kernel, often through a captured graph, so the walk "
        "trusts none of them: each is checked when it is read, and a count bounds the walk "
        "whatever the links say. Only what the walk reads is checked, since checking more would "
        "refuse trees whose unread slots hold the garbage of an earlier, larger batch."
    ),
    limits=(
        "L 0..64, N 0..1025, V 0..2^31-1; more fails the call with a message. R is tested to 256."
    ),
)
