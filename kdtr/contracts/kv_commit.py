"""`kv_commit@1`: the accepted path's cache rows become rows of the prefix."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="kv_commit",
    version=1,
    summary=(
        "Put the cache rows of the accepted path behind the prefix: moved, or at page size 1 by "
        "exchanging table entries; the hidden rows move by the same index list."
    ),
    formula=(
        "n = accept_len + 1, a_k = accept_index[k] for k < n, P = prefix_len; page_size > 1: "
        "rows[:, page_table[(P + k) / page_size] * page_size + (P + k) % page_size] = "
        "rows[:, tree_slots[a_k]] for every k < n, all read before any is written; page_size 1: "
        "for k ascending, s = tree_slots[a_k] as it was before the step and d = page_table[P + k] "
        "as it is by then are exchanged wherever either occurs in page_table and tree_slots of "
        "the request; hidden[k] = hidden[a_k] for "
        "every k < n, all read before any is written; new_len = P + n"
    ),
    source="SGLang, accepted KV moves after EAGLE verification, for trees in any node order",
    tensors=(
        Tensor(
            "rows",
            ("u8",),
            ("layers", "slots", "row_bytes"),
            "cache rows as opaque bytes; unchanged at page size 1",
            role="inout",
            judged="E",
        ),
        Tensor(
            "page_table",
            ("i32",),
            ("R", "max_pages"),
            "page ids in token order; changes at page size 1 only",
            role="inout",
            judged="E",
        ),
        Tensor(
            "tree_slots",
            ("i32",),
            ("R", "N"),
            "slot of each node's row; changes at page size 1 only",
            role="inout",
            judged="E",
        ),
        Tensor(
            "hidden",
            ("u8",),
            ("R", "N", "hidden_bytes"),
            "hidden rows of the nodes as opaque bytes; hidden_bytes 0 = none",
            role="inout",
            judged="E",
        ),
        Tensor(
            "accept_index",
            ("i32",),
            ("R", "steps"),
            "nodes of the accepted path, root first; steps = depth limit + 1",
        ),
        Tensor("accept_len", ("i32",), ("R",), "accepted drafts; -1 = inactive request"),
        Tensor("prefix_len", ("i32",), ("R",), "rows of the prefix before this step"),
        Tensor("new_len", ("i32",), ("R",), "rows of the prefix after it", role="out", judged="E"),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input, 3 capacity", role="out", judged="E"),
    ),
    attrs=(Attr("page_size", "i64", "rows per page; 1 exchanges table entries", (1, 16, 64)),),
    conventions={
        "moved": "accept_len + 1 rows, the root's among them; nothing for unused path entries",
        "order": "as if every source was read before any destination was written",
        "rows": "opaque bytes in every layer, no rotation; layer after layer by one index list",
        "inactive": "accept_len -1: nothing else is checked or moves, new_len = prefix_len, ok",
        "bad_input": "accept_len outside -1..min(steps, N) - 1, prefix_len < 0, a used path entry "
        "outside 0..N-1, a used page outside the pool or a used slot outside 0..slots-1",
        "capacity": "prefix_len + accept_len + 1 > max_pages * page_size",
        "first_error": "lengths, then capacity, then the used entries",
        "refused": "nothing of the request changes; new_len = prefix_len",
        "used": "table entries of the destinations and slots of the path; all others are opaque "
        "numbers that only an exchange may replace",
        "disjoint": "no slot of one request's path or destinations belongs to another request",
    },
    limits=(
        "all axes >= 0; slots is a multiple of page_size; accept_index[0..accept_len] "
        "of an accepted path are distinct; offsets may pass 2^32 bytes"
    ),
)
