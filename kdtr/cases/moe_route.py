"""Cases of `moe_route@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.moe_route import Convention, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = NDArray[Any]
INF, NAN = np.inf, np.nan


def spread(seed: int, t: int, e: int) -> dict[str, Array]:
    """Logits whose scores are well apart: a random permutation of a ladder for each token.

    The ladder steps by 2^-6 (more for few experts), so that no f32 rounding reorders anything.
    """
    step = max(2.0**-6, np.ldexp(np.rint(np.ldexp(4.0 / e, 8)), -8))
    order = np.argsort(nx.normal(seed, (t, e), 40), axis=1, kind="stable")
    jitter = nx.integers(seed + 1, (t, e), 0, 64) * 2.0**-14
    return {"logits": (order - e / 2) * step + jitter, "bias": np.zeros(e)}


def biased(seed: int, t: int, e: int, shift: float = 0.0) -> dict[str, Array]:
    """`spread` with a bias of up to 0.25 either way, and `shift` added to all of it."""
    x = spread(seed, t, e)
    x["bias"] = nx.round_f32(nx.integers(seed + 2, (e,), -64, 65) / 256.0 + shift)
    return x


def _ties() -> dict[str, Array]:
    """16 experts, 4 groups: whole groups alike, then all alike, then pairs alike."""
    x = {"logits": np.zeros((4, 16)), "bias": np.zeros(16)}
    x["logits"][0, [5, 9, 13]] = 1.0  # three groups tie
    x["logits"][2, 8:] = 0.5
    x["logits"][3, [3, 7]] = 2.0
    x["logits"][3, [2, 6, 10]] = 1.0
    return x


def _near_seven() -> dict[str, Array]:
    e = 384
    x = spread(31, 4, e)
    rank = np.argsort(np.argsort(nx.normal(33, (e,), 40), kind="stable"), kind="stable")
    x["logits"] = np.tile(np.where(rank % 2 == 0, 0.25, 0.2490234375), (4, 1))
    x["logits"] += np.array([0.0, 1.0, -1.0, 2.0])[:, None]
    x["bias"] = nx.round_f32(6.8 + rank * 1e-3)
    return x


def _best_outside() -> dict[str, Array]:
    """66 groups of two: in the first 26 the best experts, alone; the other 40 are kept."""
    x = spread(16, 3, 132)
    rise = np.arange(66) * 2.0**-6
    x["logits"] = np.rint(x["logits"] * 8.0) * 2.0**-12
    x["logits"][:, 0::2] += np.where(np.arange(66) < 26, 3.0, 0.5) + rise
    x["logits"][:, 1::2] += np.where(np.arange(66) < 26, -4.0, 0.25)
    return x


def _all_but_one(groups_first: bool) -> dict[str, Array]:
    x = spread(40, 3, 16)
    x["bias"] = np.full(16, -INF)
    x["bias"][1 if groups_first else 13] = 0.5
    return x


def _banned() -> dict[str, Array]:
    x = biased(41, 5, 32)
    x["bias"][::3] = -INF
    return x


def _far_biases(groups: bool) -> dict[str, Array]:
    """Choices of 0 and far below it, down to the least finite; and far below it in all groups."""
    x = spread(45, 2, 16)
    if groups:
        order = np.argsort(nx.normal(46, (16,), 40), kind="stable")
        x["bias"] = nx.round_f32(-1e30 * (2.0 + order + 10.0 * (np.arange(16) // 4 % 3)))
        return x
    x["logits"][:, 4] = 0.0
    x["bias"][[4, 9]] = -0.5, float(np.finfo(np.float32).min)
    x["bias"][[1, 3, 7, 8, 12]] = nx.round_f32(np.array([-2e30, -2e4, -7.0, -2e9, -3e38]))
    return x


def _top_1() -> dict[str, Array]:
    """Negative choices: two tied, the best outside the kept groups, and a NaN in token 3."""
    x = biased(47, 6, 16, -3.0)
    x["bias"][:8] = x["bias"][12:] = -3.0
    x["logits"][1, :8], x["logits"][1, 8:] = 0.5, -2.0
    x["logits"][2, [0, 1, 4, 5]], x["logits"][2, 12:] = 3.0, [6.0, -9.0, -9.5, -10.0]
    x["logits"][3, 15] = NAN
    return x


def _long_list() -> dict[str, Array]:
    """Ties in pairs, negative choices, and bans that leave pads."""
    x = spread(48, 1, 520)
    x["logits"][:, 1::4] = x["logits"][:, 0::4]
    x["bias"] = np.full(520, -3.0)
    x["bias"][[3, 130, 401]] = -INF
    return x


def _best_in_last_kept() -> dict[str, Array]:
    """512 groups of two: the lower the score, the better the better expert; 300 are kept."""
    rank = np.argsort(nx.normal(49, (512,), 40), kind="stable")
    best, both = rank * 2.0**-7, 2.0 - rank * 2.0**-9
    return {"logits": np.zeros((1, 1024)), "bias": np.stack([best, both - best], 1).ravel() - 0.5}


def _two_groups_of_512() -> dict[str, Array]:
    """The better group has its two best past 256, the other the best of all in its first 64."""
    x = spread(17, 2, 1024)
    x["logits"] = np.ldexp(np.rint(np.ldexp(x["logits"], 3)), -6)
    for t, other in enumerate((0, 512)):
        x["logits"][t, other + 10] = 6.0
        x["logits"][t, [512 - other + 300, 512 - other + 500]] = 5.0, 4.0
    return x


def _nan_row() -> dict[str, Array]:
    """NaN as the last and as the first logit, with its sign set, and of the least bits."""
    x = biased(42, 8, 16)
    for t, expert in ((1, 15), (4, 0), (5, 7), (6, 9)):
        x["logits"][t, expert] = NAN
    stored = dtypes.encode(x["logits"], "f32")
    stored.view(np.uint32)[[5, 6], [7, 9]] = 0xFFC00000, 0x7F800001
    return {**x, "logits": stored}


def _bad_bias(value: float, expert: int, experts: int = 16) -> dict[str, Array]:
    x = biased(43, 3 if experts == 16 else 1, experts)
    x["bias"][expert] = value
    return x


def _bad_among_1030() -> dict[str, Array]:
    x = spread(52, 1030, 1)
    x["logits"][[200, 260, 1029], 0] = NAN
    return x


def _bad_logit_299() -> dict[str, Array]:
    x = biased(19, 2, 300)
    x["logits"][1, 299] = NAN
    return x


def _logits_to_80() -> dict[str, Array]:
    """Rows of large and small scores, of the size of the epsilon, and all far below it."""
    order = np.argsort(nx.normal(21, (5, 16), 40), axis=1, kind="stable")
    steps = np.array([[5.0, -80.0], [1.0, -47.0], [1.0, -9.0], [2.0, -80.0], [0.25, -80.0]])
    logits = order * steps[:, :1] + steps[:, 1:]
    logits[2] = np.where(order[2] == 15, 80.0, logits[2])
    return {"logits": logits, "bias": np.zeros(16)}


def _infinite_logits() -> dict[str, Array]:
    x = spread(44, 2, 16)
    x["logits"][0, 2], x["logits"][1, 7] = INF, -INF
    x["bias"][2] = -0.5
    return x


def _experts_1024() -> dict[str, Array]:
    x = biased(14, 2, 1024)
    x["logits"][1, 1023] = NAN
    return x


def _wrong(how: Convention, inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = reference(inputs, attrs, profile, how=how)
    return {name: out[name] for name in ("ids", "weights", "status")}


def _nan_ignored(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    """The status alone: a refused token has no budget that another result could be within."""
    return {"status": np.zeros(len(inputs["logits"]), np.int32)}


WRONG: Mapping[str, Reference] = {
    "nan_ignored": _nan_ignored,
} | {
    name: partial(_wrong, how)
    for name, how in {
        "group_mask_zero": Convention(mask=0.0),
        "bias_in_weight": Convention(weights="choices"),
        "no_bias": Convention(biased=False),
        "group_score_max": Convention(group_score="max"),
        "group_score_unbiased": Convention(group_score="unbiased"),
        "no_groups": Convention(grouped=False),
        "scale_twice": Convention(applied=2),
        "no_scale": Convention(applied=0),
        "not_renormalised": Convention(renormalize=False),
        "bias_in_bf16": Convention(bias_dtype="bf16"),
        "last_wins": Convention(last_wins=True),
        "unsorted": Convention(by_id=True),
    }.items()
}


def _case(
    name: str,
    catches: str,
    inputs: Callable[[], Arrays],
    *,
    groups: int = 1,
    kept: int = 1,
    k: int = 4,
    renormalize: bool = True,
    scale: float = 2.5,
    **rest: Any,
) -> Case:
    attrs: Attrs = {
        "n_group": groups,
        "topk_group": kept,
        "top_k": k,
        "renormalize": renormalize,
        "scale": scale,
    }
    return Case(name, catches, inputs, attrs, profile="f32", **rest)


def cases() -> Iterator[Case]:
    """Ties, negative choices, biases near 7, bans, NaN rows, 384 experts, all groupings."""
    yield _case(
        "four_groups",
        "Groups ignored, scored by their best choice or without bias.",
        partial(biased, 1, 24, 16),
        groups=4,
        kept=2,
        family="random",
        seed=1,
        wrong=(
            "no_groups",
            "group_score_max",
            "group_score_unbiased",
            "no_bias",
            "bias_in_weight",
            "unsorted",
        ),
        kills=(
            "no_bias",
            "bias_in_weight",
            "group_max",
            "group_unbiased",
            "no_groups",
            "scale_twice",
            "no_scale",
            "renorm_never",
            "unsorted",
            "softmax",
            "sum_of_all",
            "one_group_less",
        ),
    )
    yield _case(
        "negative_choices",
        "Masked groups at 0.0, which beat negative choices; a maximum that starts at 0 or at -1.",
        partial(biased, 2, 24, 16, -3.0),
        groups=4,
        kept=2,
        family="random",
        seed=2,
        wrong=("group_mask_zero",),
        kills=("mask_zero", "init_minus_one", "init_zero"),
    )
    yield _case(
        "negative_above_minus_one",
        "Masked groups at 0.0 where choices lie between -1 and 0.",
        partial(biased, 3, 16, 32, -1.3),
        groups=8,
        kept=4,
        k=8,
        family="random",
        seed=3,
        wrong=("group_mask_zero",),
        kills=("mask_zero", "init_zero"),
    )
    yield _case(
        "ties_between_experts_and_groups",
        "Ties given to the higher id, among experts, among groups, and at both edges.",
        _ties,
        groups=4,
        kept=2,
        k=5,
        family="tie",
        kills=("last_wins", "group_last_wins"),
    )
    yield _case(
        "all_equal_one_group",
        "Ties of all 384 experts.",
        lambda: {"logits": np.full((2, 384), 0.5), "bias": np.full(384, -0.25)},
        k=8,
        family="tie",
        wrong=("last_wins",),
        kills=("last_wins",),
    )
    yield _case(
        "bias_near_seven",
        "A bias in bf16: steps of 0.001 near 7 vanish.",
        _near_seven,
        k=8,
        scale=2.827,
        family="scaled",
        seed=31,
        wrong=("bias_in_bf16", "no_bias"),
        kills=("bias_bf16", "no_bias"),
    )
    yield _case(
        "all_banned_but_one",
        "The one candidate repeated, or a banned expert taken, when top_k exceeds the candidates.",
        partial(_all_but_one, True),
        k=3,
        family="extreme",
        seed=40,
        kills=("duplicates",),
    )
    yield _case(
        "all_banned_but_one_grouped",
        "Groups with fewer than two finite choices score -inf and are kept by their low id alone.",
        partial(_all_but_one, True),
        groups=4,
        kept=2,
        k=3,
        family="extreme",
        seed=40,
        kills=("duplicates",),
    )
    yield _case(
        "a_third_banned",
        "Banned experts that come back through the group mask.",
        _banned,
        groups=4,
        kept=3,
        k=6,
        family="extreme",
        seed=41,
        kills=("no_groups",),
    )
    yield _case(
        "nan_row",
        "A NaN logit of any sign and bits that reaches other tokens, or is taken as a number.",
        _nan_row,
        groups=4,
        kept=2,
        family="extreme",
        seed=42,
        kills=("nan_ignored", "quiet_nan_only", "negative_nan_ignored"),
        wrong=("nan_ignored",),
    )
    for name, value, expert, experts, kill in (
        ("bias_nan", NAN, 0, 16, ["bias_0_unchecked"]),
        ("bias_nan_1023", NAN, 1023, 1024, ["checks_256_experts", "checks_512_experts"]),
        ("bias_plus_inf", INF, 3, 16, []),
        ("bias_plus_inf_299", INF, 299, 300, ["inf_bias_last_unchecked"]),
    ):
        yield _case(
            name,
            "A bias that no order can use, the first, a late or the last one: every token fails.",
            partial(_bad_bias, value, expert, experts),
            groups=4,
            kept=2,
            family="extreme",
            seed=43,
            kills=("nan_ignored", *kill),
        )
    yield _case(
        "infinite_logits",
        "Scores of exactly 1 and 0: an infinite logit taken for a ban, or for the first choice.",
        _infinite_logits,
        k=16,
        family="extreme",
        seed=44,
        kills=("scale_twice", "minus_inf_logit_banned", "plus_inf_logit_first"),
    )
    yield _case(
        "experts_384_tokens_40",
        "384 experts in the path for many tokens.",
        partial(biased, 5, 40, 384),
        k=8,
        scale=2.827,
        family="random",
        seed=5,
        kills=("expert_limit", "token_limit"),
    )
    yield _case(
        "experts_256_groups_8",
        "DeepSeek-V3's own shape: 256 experts, 8 groups, 4 kept, 8 chosen.",
        partial(biased, 6, 33, 256),
        groups=8,
        kept=4,
        k=8,
        family="random",
        seed=6,
        wrong=("no_groups", "group_score_max"),
        kills=("no_groups", "group_max", "token_limit"),
    )
    yield _case(
        "experts_384_tokens_513",
        "384 experts and more tokens than any dispatch threshold.",
        partial(biased, 74, 513, 384),
        k=8,
        scale=2.827,
        family="random",
        seed=74,
        tier="full",
        kills=("expert_limit", "token_limit"),
    )
    yield _case(
        "group_per_expert",
        "Groups of one expert, which have no second choice; more choices than are kept.",
        partial(biased, 8, 12, 16),
        groups=16,
        kept=6,
        k=8,
        family="random",
        seed=8,
        kills=("unsorted", "group_of_one_ignored", "mask_finite"),
    )
    yield _case(
        "odd_experts_per_group",
        "Three groups of seven.",
        partial(biased, 9, 12, 21),
        groups=3,
        kept=2,
        k=5,
        family="random",
        seed=9,
        kills=("no_groups", "one_group_less"),
    )
    yield _case(
        "not_renormalised",
        "A sum divided out although the model says not to.",
        partial(biased, 10, 12, 16),
        groups=4,
        kept=2,
        renormalize=False,
        family="random",
        seed=10,
        wrong=("scale_twice",),
        kills=("renorm_always", "scale_twice", "bias_in_weight"),
    )
    yield _case(
        "scale_applied_once",
        "The routed scaling factor applied twice, or never.",
        partial(spread, 11, 6, 8),
        k=1,
        scale=2.5,
        family="random",
        seed=11,
        wrong=("scale_twice", "no_scale", "not_renormalised"),
        kills=("scale_twice", "no_scale", "renorm_never"),
    )
    yield _case(
        "experts_1024",
        "Experts past 512, to the most that the contract allows, and a NaN in the last.",
        _experts_1024,
        k=8,
        family="random",
        seed=14,
        kills=("expert_limit", "past_512_experts", "checks_512_experts"),
    )
    yield _case(
        "top_35_of_48",
        "More choices than 8, 16 and 32.",
        partial(biased, 15, 4, 48),
        k=35,
        family="random",
        seed=15,
        kills=("past_8_slots", "past_32_slots", "unsorted"),
    )
    yield _case(
        "groups_66",
        "More groups, and more groups kept, than a warp has lanes.",
        _best_outside,
        groups=66,
        kept=40,
        k=6,
        family="needle",
        seed=16,
        wrong=("no_groups", "group_score_max"),
        kills=("past_32_groups", "past_64_groups", "no_groups", "group_max"),
    )
    yield _case(
        "groups_of_512",
        "Groups of more experts than 64 and 256.",
        _two_groups_of_512,
        groups=2,
        kept=1,
        k=5,
        family="needle",
        seed=17,
        kills=("past_64_in_group", "past_256_in_group", "no_groups", "group_max"),
    )
    yield _case(
        "groups_512",
        "More groups, and more groups kept, than a block has threads.",
        _best_in_last_kept,
        groups=512,
        kept=300,
        k=6,
        family="needle",
        seed=49,
        kills=("past_256_groups", "keeps_256_groups", "one_group_less"),
    )
    yield _case(
        "all_groups_kept",
        "As many groups kept as there are, treated as one fewer.",
        partial(biased, 50, 4, 16),
        groups=4,
        kept=4,
        k=16,
        family="random",
        seed=50,
        kills=("all_groups_less_one",),
    )
    for name, groups, kill in (
        ("far_biases", 1, ["choices_end_at_1e4", "least_choice_is_a_ban", "zero_choice_is_a_ban"]),
        ("far_biases_grouped", 4, ["choices_end_at_1e4", "groups_end_at_1e4"]),
    ):
        yield _case(
            name,
            "A finite bias far below 0, or a choice of 0, taken for a ban.",
            partial(_far_biases, groups > 1),
            groups=groups,
            kept=1 if groups == 1 else 2,
            k=16 if groups == 1 else 8,
            family="extreme",
            seed=45,
            kills=(*kill, "ungrouped_init_zero" if groups == 1 else "init_zero"),
        )
    yield _case(
        "last_group_one_finite",
        "A group with one finite choice scored by it, or the mask left out where no group has two.",
        partial(_all_but_one, False),
        groups=4,
        kept=2,
        k=3,
        family="extreme",
        seed=40,
        kills=("lone_choice_scores_group", "no_groups"),
    )
    yield _case(
        "all_banned",
        "No candidate at all taken for bad input, or expert 0 chosen.",
        lambda: {**spread(51, 2, 16), "bias": np.full(16, -INF)},
        k=2,
        family="extreme",
        seed=51,
        kills=("no_candidate_is_bad", "no_candidate_is_expert_0"),
    )
    yield _case(
        "top_1",
        "One choice, found by a plain maximum without ties, groups, bias or check.",
        _top_1,
        groups=4,
        kept=2,
        k=1,
        renormalize=False,
        family="tie",
        seed=47,
        kills=("top_1_last_wins", "top_1_ignores_groups", "top_1_no_bias", "top_1_nan_ignored"),
    )
    yield _case(
        "top_520",
        "Hundreds of choices, found by a sort that forgets ties, bans or pads.",
        _long_list,
        k=520,
        renormalize=False,
        family="tie",
        seed=48,
        kills=(
            "past_512_slots",
            "long_list_last_wins",
            "long_list_init_zero",
            "long_list_renormalised",
            "long_list_duplicates",
        ),
    )
    yield _case(
        "top_0",
        "No choices: the status is still due.",
        _nan_row,
        k=0,
        family="extreme",
        seed=42,
        kills=("nan_ignored", "no_choices_no_check"),
    )
    yield _case(
        "one_expert_tokens_1030",
        "One expert, whose weight is taken for granted; tokens past 64, 256 and 1,024, some with a "
        "NaN.",
        _bad_among_1030,
        k=1,
        renormalize=False,
        family="extreme",
        seed=52,
        kills=(
            "one_expert_weighs_one",
            "token_limit",
            "past_256_tokens",
            "past_1024_tokens",
            "checks_64_tokens",
        ),
    )
    yield _case(
        "bad_logit_299",
        "A NaN past 256 experts.",
        _bad_logit_299,
        k=5,
        family="extreme",
        seed=19,
        kills=("checks_256_experts", "nan_ignored"),
    )
    yield _case(
        "logits_to_80",
        "Logits from -80 to 80: clamped, or a sum of scores that underflows to its epsilon.",
        _logits_to_80,
        k=3,
        family="extreme",
        seed=21,
        kills=(
            "clamps_logits_at_30",
            "clamps_logits_at_12",
            "no_epsilon",
            "unsorted",
            "small_scores_flushed",
        ),
    )
    yield _case(
        "all_chosen",
        "top_k = E.",
        partial(biased, 12, 5, 8),
        k=8,
        family="random",
        seed=12,
        kills=("unsorted",),
    )
    yield _case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(biased, 13, 0, 16),
        null_ok="no tokens: nothing is written",
    )
