"""`step@1`: one whole DDTree decoding step without the host, on a stand-in target model."""

from kdtr.contract import Attr, Contract, Tensor

_I32 = ("i32",)

CONTRACT = Contract(
    op="step",
    version=1,
    summary=(
        "Drafter logits to candidates, tree, verified nodes, accepted path and committed cache, "
        "all on one device without a round trip. The target model is the smallest that reads "
        "everything a real one reads: embeddings of token and position, one MLA layer over the "
        "paged cache and the tree, and a head."
    ),
    formula=(
        "ids, logprobs = topk_logprobs(logits, K); tree = tree_build(logprobs, ids, root_token, "
        "prefix_len, budget, tie_order); x = token_rows[tree.tokens], p = "
        "position_rows[tree.positions]; q = x q_weight^T + p q_position^T, rows = x kv_weight^T "
        "+ p kv_position^T; kv_pool[tree_slots] = rows, where tree_slots[r, i] = slots - (R - r) "
        "N + i; attention = verify_attn(q, kv_pool, ..., part whole); target = argmax(attention "
        "head^T); accept = tree_accept(tree, target, L, V); kv_commit(kv_pool, accept); "
        "next_root = accepted_tokens[accept_len]"
    ),
    source="the ops that it is made of; the step of DDTree, arXiv 2604.12989",
    tensors=(
        Tensor("logits", ("f32", "bf16", "f16"), ("R", "L", "V"), "drafter logits, depth by depth"),
        Tensor("root_token", _I32, ("R",), "last committed token"),
        Tensor("prefix_len", _I32, ("R",), "rows in the cache"),
        Tensor("page_table", _I32, ("R", "max_pages"), "page ids of prefix and committed rows",
               role="inout", judged="E"),
        Tensor("tree_slots", _I32, ("R", "N"), "slots of the nodes' rows: the pool's last R N",
               role="inout", judged="E"),
        Tensor("kv_pool", ("f32",), ("slots", "D"), "cache; tree rows and committed rows change",
               role="inout", judged="E", nan="any"),
        Tensor("token_rows", ("f32",), ("V", "E"), "token embeddings"),
        Tensor("position_rows", ("f32",), ("M", "E"), "position embeddings"),
        Tensor("q_weight", ("f32",), ("H*D", "E"), "query projection of tokens"),
        Tensor("q_position", ("f32",), ("H*D", "E"), "query projection of positions"),
        Tensor("kv_weight", ("f32",), ("D", "E"), "cache row projection of tokens"),
        Tensor("kv_position", ("f32",), ("D", "E"), "cache row projection of positions"),
        Tensor("head", ("f32",), ("V", "H*Dv"), "target head"),
        Tensor("n_nodes", _I32, ("R",), "nodes of each tree", role="out", judged="E"),
        Tensor("tokens", _I32, ("R", "N"), "tree tokens", role="out", judged="E"),
        Tensor("parents", _I32, ("R", "N"), "tree parents", role="out", judged="E"),
        Tensor("positions", _I32, ("R", "N"), "tree positions", role="out", judged="E"),
        Tensor("target", _I32, ("R", "N"), "target token after each node", role="out", judged="E"),
        Tensor("accept_len", _I32, ("R",), "accepted drafts", role="out", judged="E"),
        Tensor("accepted_tokens", _I32, ("R", "L+1"), "new tokens, the bonus last",
               role="out", judged="E"),
        Tensor("new_len", _I32, ("R",), "rows in the cache after the step",
               role="out", judged="E"),
        Tensor("status", _I32, ("5", "R"), "of topk, build, verify, accept and commit",
               role="out", judged="E"),
    ),
    attrs=(
        Attr("K", "i64", "candidates per depth"),
        Attr("N", "i64", "node slots: budget + 1"),
        Attr("tie_order", "utf-8", "see tree_build", ("ranks", "uno")),
        Attr("scale", "f64", "softmax scale"),
        Attr("page_size", "i64", "rows per page", (1, 16, 64)),
        Attr("H", "i64", "query heads"),
        Attr("Dv", "i64", "value columns"),
    ),
    conventions={
        "host": "no host decision between the stages: one enqueue, capturable",
        "exact": "embeddings and weights lie on grids where every product and sum of q and rows "
        "is exact; target tokens are margin-qualified, so no legal rounding flips one",
        "padded": "slots i >= n_nodes: token -1 and position 0 give q and row 0 + position part; "
        "their target is whatever the empty attention row gives: argmax of zeros, 0",
        "refused": "drafter logits that topk refuses give no candidates: the tree is the root and "
        "the request decodes plainly; what build refuses goes through the later stages inactive",
    },
    why="integers throughout: a fault of any stage, or of the wiring between two, shows exactly",
    limits="page_size 1 exchanges table entries as kv_commit does; slots >= R N",
)  # fmt: skip
