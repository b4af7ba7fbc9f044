"""Contract of `embed`."""

from kdtr.contract import Contract, Tensor

CONTRACT = Contract(
    op="embed",
    version=1,
    summary="Rows of an embedding table.",
    formula="out[t] = table[ids[t]], widened where out is f32",
    source="torch.nn.functional.embedding",
    tensors=(
        Tensor("ids", ("i32",), ("T",), "token ids"),
        Tensor("table", ("f32", "bf16"), ("V", "N"), "embedding rows"),
        Tensor(
            "out",
            ("f32", "bf16"),
            ("T", "N"),
            "copied rows, the table's dtype, or f32",
            "out",
            "E",
            "bitwise",
        ),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    conventions={
        "bad_input": "an id outside [0, V): status 1, out row 0",
        "status_axis": "tokens: the op has no request axis",
    },
    limits="T, V, N may be 0; offsets of table may pass 2^31 elements",
)
