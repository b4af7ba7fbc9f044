"""Contract of `moe_route`."""

from kdtr.contract import Attr, Contract, Tensor

CONTRACT = Contract(
    op="moe_route",
    version=1,
    summary="DeepSeek-V3 router without auxiliary loss: biased choice, unbiased weights.",
    formula=(
        "s = sigmoid(logits); choice = s + bias; groups are E / n_group consecutive experts; group "
        "score = sum of its two largest choices (its one choice where E / n_group = 1); keep the "
        "topk_group best groups, ties to the lower group id; choices of the others become -inf; "
        "ids = the top_k largest choices, descending, ties to the lower expert id; w = s[ids]; "
        "renormalize: w = w / (sum(w) + 1e-20); weights = w * scale, once."
    ),
    source="DeepSeek-V3, arXiv:2412.19437, eq. 12-16; noaux_tc in its published modelling code; "
    "transformers 5.x (4.57 masks groups with 0.0)",
    tensors=(
        Tensor("logits", ("f32",), ("T", "E"), "router outputs, no NaN"),
        Tensor("bias", ("f32",), ("E",), "e_score_correction_bias; -inf bans an expert"),
        Tensor("ids", ("i32",), ("T", "K"), "chosen experts, pad -1", "out", "E"),
        Tensor("weights", ("f32",), ("T", "K"), "their weights, pad 0", "out", "B"),
        Tensor("status", ("i32",), ("T",), "0 ok, 1 bad_input, per token", "out", "E"),
    ),
    attrs=(
        Attr("n_group", "i64", "groups of experts; divides E"),
        Attr("topk_group", "i64", "groups kept, 1 .. n_group"),
        Attr("top_k", "i64", "experts chosen; K"),
        Attr("renormalize", "bool", "divide by the sum of the chosen scores"),
        Attr("scale", "f64", "routed_scaling_factor"),
    ),
    conventions={
        "bias": "f32, used for the choice only; weights come from s",
        "mask": "-inf: an expert outside the kept groups is never chosen",
        "minus_inf": "a choice of -inf is never taken: fewer than top_k leave id -1, weight 0; a "
        "group with fewer than two finite choices scores -inf and is kept only by its low id",
        "order": "choice descending, then expert id ascending",
        "bad_input": "NaN in the token's logits, NaN or +inf in bias: status 1, ids -1, weights 0",
        "status_axis": "tokens: the op has no request axis",
    },
    profiles={"f32": "sigmoid in f32 (e^-x through exp2 at worst), choice = f32 sum"},
    budget=(
        "ids: every row is qualified: neighbouring choices and group scores that decide it differ "
        "by more than the f32 errors of both, or are equal bit for bit. weights, relative: "
        "e(s) + renormalize (sum_j s_j e(s_j) / sum + (K + 1) u) + u, e(s) = ((2|x| + 4)(1 - s) + "
        "3) u; gate and hard are the same"
    ),
    why="few operations, so the worst case is the bound",
    limits="|logit| <= 80 or infinite; E up to 1024; any E / n_group; top_k <= E",
)
