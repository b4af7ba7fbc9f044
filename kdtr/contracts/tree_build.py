"""Contract of `tree_build`: drafter candidates to a best-first draft tree."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="tree_build",
    version=1,
    summary=(
        "Builds, for each request, the draft tree that the target model verifies in one pass: the "
        "B most likely token paths under the drafter's per-depth marginals, found best first, "
        "with the links, positions and ancestor mask that the later stages read."
    ),
    formula=(
        "A candidate path is a tuple of ranks (r1..rd), 1 <= d <= L, 0 <= ri < K. Its node is the "
        "token ids[d-1, rd] below the node of (r1..r(d-1)); the empty tuple is the root, node 0, "
        "weight +0.0. "
        "Weights are f64, in this order of operations, without contraction: first child of a node "
        "of weight w and depth d: w + lp[d, 0]; next sibling of a node of weight w, depth d and "
        "rank r: (w - lp[d-1, r]) + lp[d-1, r+1]. "
        "The frontier starts with the root's first child. While fewer than B nodes are popped and "
        "the frontier is not empty: pop the greatest weight, ties by tie_order; give it the next "
        "node index; push its first child (if d < L) and its next sibling (if r+1 < K). "
        "A log-prob of -inf is never pushed. "
        "tie_order ranks: the lexicographically smaller tuple first, a prefix before its "
        "extensions. tie_order uno: smaller depth, then lower rank, lower token id, lower parent "
        "index. "
        "n_nodes = 1 + popped nodes. parents < child; positions = prefix_len + depth; "
        "next_token[i] = lowest-index child of i; next_sibling[i] = next child of the same parent "
        "in ascending index; visible[i, j] = 1 iff j is i or an ancestor of i. "
        "Slots i >= n_nodes: tokens, depths, parents, next_token, next_sibling = -1; positions, "
        "visible, weights = 0. "
        "bad_input, per request, all L x K entries read whatever B: NaN, +inf or a log-prob "
        "above 0; a log-prob greater than its left neighbour; an id that is negative or repeated "
        "among the entries of one row that are not -inf; root_token < 0; prefix_len outside "
        "0..2^31-1-L. Such a request gets n_nodes 0 and all slots as for i >= n_nodes; the others "
        "are unaffected."
    ),
    source=(
        "DDTree, arXiv 2604.12989, algorithm 1 (best-first tree from per-depth marginals); links "
        "as retrive_next_token and retrive_next_sibling of SGLang and EAGLE; tie order uno as in "
        "sglang 0.5.23, uno_tree.py"
    ),
    tensors=(
        Tensor(
            "logprobs",
            ("f32",),
            ("R", "L", "K"),
            "Drafter log-probabilities, natural log; row d holds the K best candidates of depth "
            "d + 1, descending. -inf marks an absent candidate.",
            nan="any",
        ),
        Tensor("ids", ("i32",), ("R", "L", "K"), "Token id of each candidate."),
        Tensor(
            "root_token",
            ("i32",),
            ("R",),
            "The last committed token (the bonus token of the step before), node 0.",
        ),
        Tensor("prefix_len", ("i32",), ("R",), "Tokens before the root: its position."),
        Tensor("n_nodes", ("i32",), ("R",), "Nodes, the root included.", "out", "E"),
        Tensor("tokens", ("i32",), ("R", "budget+1"), "Token of each node, pop order.", "out", "E"),
        Tensor("depths", ("i32",), ("R", "budget+1"), "Edges from the root; root 0.", "out", "E"),
        Tensor("parents", ("i32",), ("R", "budget+1"), "Index of the parent; root -1.", "out", "E"),
        Tensor(
            "positions",
            ("i32",),
            ("R", "budget+1"),
            "Position id of each node for the position embedding: by depth, never by index.",
            "out",
            "E",
        ),
        Tensor("next_token", ("i32",), ("R", "budget+1"), "First child, or -1.", "out", "E"),
        Tensor("next_sibling", ("i32",), ("R", "budget+1"), "Next sibling, or -1.", "out", "E"),
        Tensor(
            "visible",
            ("u8",),
            ("R", "budget+1", "budget+1"),
            "Ancestor mask, row = query node, column = key node.",
            "out",
            "E",
        ),
        Tensor(
            "weights",
            ("f64",),
            ("R", "budget+1"),
            "Log-probability of each node's path; the root +0.0.",
            "out",
            "E",
        ),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input.", "out", "E"),
    ),
    attrs=(
        Attr("budget", "i64", "B: the most nodes besides the root. Below 0 fails the call."),
        Attr("tie_order", "utf-8", "Which of two equal weights is popped first.", ("ranks", "uno")),
    ),
    conventions={
        "budget": "excludes the root",
        "node_order": "pop order, root 0",
        "positions": "prefix_len + depth",
        "visible": "self included, non-ancestors excluded",
        "weights": "f64, (w - a) + b",
    },
    why=(
        "Everything is exact. The weights are sums and differences in a stated order, so a kernel "
        "has no rounding of its own to hide behind; and with drafter logits in bf16 most real "
        "trees pop exact ties (91 % at budget 64), so an order that is left open is a tree that "
        "changes from one kernel to the next. The rank tuple is an order that any kernel can "
        "compute without knowing in which sequence another one pushed its candidates. Weights in "
        "f32 would merge paths that differ below 2^-24 and make ties that are not there."
    ),
    limits=(
        "B 0..1024, L 0..64, K 0..1024; more fails the call with a message. R is tested to 256. "
        "With B, L or K 0 the tree is the root alone; the inputs are validated all the same."
    ),
)
