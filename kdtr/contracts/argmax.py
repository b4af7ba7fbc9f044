"""`argmax@1`: the target's greedy token after each node."""

from kdtr.contract import Contract, Tensor

CONTRACT = Contract(
    op="argmax",
    version=1,
    summary="The id of the greatest logit of each row, the lowest id on ties.",
    formula="ids[r, n] = min { v : logits[r, n, v] = max_w logits[r, n, w] }",
    source="torch.argmax and numpy.argmax for the layout; ties as in numpy (first wins)",
    tensors=(
        Tensor(
            "logits",
            ("f32", "bf16", "f16"),
            ("R", "N", "V"),
            "target logits, node by node",
            nan="any",
        ),
        Tensor("ids", ("i32",), ("R", "N"), "greedy token id", role="out", judged="E"),
        Tensor("status", ("i32",), ("R",), "0 ok, 1 bad_input", role="out", judged="E"),
    ),
    conventions={
        "ties": "the lowest id; -0 equals +0; subnormals are not flushed",
        "infinite": "+inf is a value like any other; a row of -inf gives id 0",
        "bad_input": "a NaN anywhere in a request: all its ids -1",
        "empty": "V = 0: ids -1, status ok",
    },
    limits="R, N, V >= 0; V < 2^31 - 1; offsets may pass 2^32 bytes",
)
