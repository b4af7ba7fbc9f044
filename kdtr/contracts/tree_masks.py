"""Contract of `tree_masks`: a draft tree in the forms that attention backends read."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="tree_masks",
    version=1,
    summary=(
        "Derives, from the trees of `tree_build`, every mask layout and index list that attention "
        "backends take: the tree alone or behind its prefix, as bytes or as bits, and the order "
        "of nodes by level."
    ),
    formula=(
        "P = prefix_len[r]; row i and column j of request r's tree see each other iff "
        "i, j < n_nodes[r] and visible[r, i, j] != 0: see[i, j]. Nothing else of visible is read. "
        "qlen[r, i, j] = see[i, j]. "
        "full is flat: request after request, N rows each of P ones and then the N values see[i]; "
        "all N rows have their ones, those of slots i >= n_nodes too. "
        "packed32[r, i, w] bit b = see[i, 32 w + b], bit 0 the least significant; unused bits 0. "
        "packed8: the N * (P + N) values of each request's part of full as one string of bits, "
        "bit b of byte y the value 8 y + b, the last byte filled up with 0; indptr[r] is the "
        "byte at which request r starts, indptr[R] the end. "
        "bfs_order[r, k] = the node that is k-th by (depth, place of its parent in this order, "
        "node index). retrieve_index[r, i] = r N + i. Slots i >= n_nodes: -1 in both. "
        "bad_input: n_nodes outside 0..N, or prefix_len < 0 (its width counts as 0). "
        "bad_links: parents[0] != -1 or depths[0] != 0; for 1 <= i < n_nodes, parents[i] outside "
        "0..i-1 or depths[i] != depths[parents[i]] + 1. "
        "capacity: the request's part ends after full's T or packed8's T8 elements. The first of "
        "the three is the status. A failing request keeps its place in full and packed8, cut at "
        "their ends; all its masks are 0 and its indices -1. indptr never exceeds T8. Elements of "
        "full and packed8 after the last request are 0."
    ),
    source=(
        "Layouts of SGLang's build_tree_kernel_efficient (FULL_MASK, QLEN_ONLY, "
        "QLEN_ONLY_BITPACKING; retrive_index) and of FlashInfer's segment_packbits (custom_mask, "
        "mask_indptr); words of TensorRT-LLM's packed position mask"
    ),
    tensors=(
        Tensor("visible", ("u8",), ("R", "N", "N"), "Ancestor mask of tree_build; not 0 is 1."),
        Tensor("parents", ("i32",), ("R", "N"), "Node index of the parent; root -1."),
        Tensor("depths", ("i32",), ("R", "N"), "Edges from the root."),
        Tensor("n_nodes", ("i32",), ("R",), "Nodes, the root included; 0 is an inactive request."),
        Tensor("prefix_len", ("i32",), ("R",), "Tokens before the root, all visible."),
        Tensor("qlen", ("u8",), ("R", "N", "N"), "The tree alone, a byte a value.", "out", "E"),
        Tensor(
            "full",
            ("u8",),
            ("T",),
            "Prefix and tree, a byte a value; needs sum over r of N * (prefix_len[r] + N).",
            "out",
            "E",
        ),
        Tensor(
            "packed32", ("u32",), ("R", "N", "ceil(N/32)"), "The tree alone, in words.", "out", "E"
        ),
        Tensor(
            "packed8",
            ("u8",),
            ("T8",),
            "full in bits; needs sum over r of ceil(N * (prefix_len[r] + N) / 8).",
            "out",
            "E",
        ),
        Tensor(
            "indptr", ("i32",), ("R+1",), "Byte offsets of the requests in packed8.", "out", "E"
        ),
        Tensor("bfs_order", ("i32",), ("R", "N"), "Nodes level by level.", "out", "E"),
        Tensor(
            "retrieve_index", ("i32",), ("R", "N"), "Row of each node in the batch.", "out", "E"
        ),
        Tensor(
            "status", ("i32",), ("R",), "0 ok, 1 bad_input, 2 bad_links, 3 capacity.", "out", "E"
        ),
    ),
    attrs=(
        Attr("T", "i64", "Elements of full: a buffer for the longest batch may be larger."),
        Attr("T8", "i64", "Elements of packed8."),
    ),
    conventions={
        "bits": "least significant first, in words and in bytes",
        "rows": "row = query node, column = key",
        "packed8": "one string of bits a request, rows not aligned to bytes",
        "padded_rows": "prefix visible, tree not",
        "retrieve_index": "global: the request's base included",
    },
    why=(
        "Exact. A mask that is transposed, read most significant bit first or padded to one word "
        "a row still looks like a mask, and a model behind it still emits fluent text at a lower "
        "acceptance rate; only the bits tell. Padded rows see the prefix because softmax over an "
        "empty row is NaN in most backends."
    ),
    limits=(
        "N 0..1025, T and T8 below 2^31; more fails the call with a message. R is tested to 256."
    ),
)
