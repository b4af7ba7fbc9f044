#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kMaskZero,
  kBiasInWeight,
  kNoBias,
  kGroupMax,
  kGroupUnbiased,
  kNoGroups,
  kScaleTwice,
  kNoScale,
  kRenormAlways,
  kRenormNever,
  kBiasBf16,
  kLastWins,
  kGroupLastWins,
  kInitMinusOne,
  kInitZero,
  kDuplicates,
  kUnsorted,
  kSoftmax,
  kExpertLimit,
  kTokenLimit,
  kNanIgnored,
  kSumOfAll,
  kKeepsOneGroupLess,
  kPast512Experts,
  kPast8Slots,
  kPast32Slots,
  kPast32Groups,
  kPast64Groups,
  kPast64InGroup,
  kPast256Tokens,
  kChecks64Tokens,
  kChecks256Experts,
  kClampsLogitsAt30,
  kClampsLogitsAt12,
  kNoEpsilon,
  kMaskFinite,
  kChoicesEndAt1e4,
  kLeastChoiceIsABan,
  kZeroChoiceIsABan,
  kGroupsEndAt1e4,
  kLoneChoiceScoresGroup,
  kNoCandidateIsBad,
  kNoCandidateIsExpert0,
  kMinusInfLogitBanned,
  kPlusInfLogitFirst,
  kSmallScoresFlushed,
  kChecks512Experts,
  kBias0Unchecked,
  kInfBiasLastUnchecked,
  kQuietNanOnly,
  kNegativeNanIgnored,
  kNoChoicesNoCheck,
  kOneExpertWeighsOne,
  kPast1024Tokens,
  kPast512Slots,
  kPast256Groups,
  kKeeps256Groups,
  kPast256InGroup,
  kGroupOfOneIgnored,
  kAllGroupsLessOne,
  kUngroupedInitZero,
  kTop1LastWins,
  kTop1IgnoresGroups,
  kTop1NoBias,
  kTop1NanIgnored,
  kLongListLastWins,
  kLongListInitZero,
  kLongListRenormalised,
  kLongListDuplicates,
};

// The fault that a kernel has in one branch: for one choice, for many, or for some groupings.
int in_branch(int fault, std::int64_t experts, std::int64_t groups, std::int64_t kept,
              std::int64_t k) {
  const bool one = k == 1, many = k > 128;
  switch (fault) {
    case kGroupOfOneIgnored:
      return experts == groups ? kNoGroups : kCorrect;
    case kAllGroupsLessOne:
      return groups == kept ? kKeepsOneGroupLess : kCorrect;
    case kUngroupedInitZero:
      return groups == 1 ? kInitZero : kCorrect;
    case kTop1LastWins:
      return one ? kLastWins : kCorrect;
    case kTop1IgnoresGroups:
      return one ? kNoGroups : kCorrect;
    case kTop1NoBias:
      return one ? kNoBias : kCorrect;
    case kTop1NanIgnored:
      return one && groups > 1 ? kNanIgnored : kCorrect;
    case kLongListLastWins:
      return many ? kLastWins : kCorrect;
    case kLongListInitZero:
      return many ? kInitZero : kCorrect;
    case kLongListRenormalised:
      return many ? kRenormAlways : kCorrect;
    case kLongListDuplicates:
      return many ? kDuplicates : kCorrect;
    default:
      return fault;
  }
}

// A choice that the fault takes for a ban.
bool banned(double choice, double logit, int fault) {
  switch (fault) {
    case kChoicesEndAt1e4:
      return choice < -1e4;
    case kLeastChoiceIsABan:
      return static_cast<float>(choice) <= std::numeric_limits<float>::lowest();
    case kZeroChoiceIsABan:
      return choice == 0;
    case kMinusInfLogitBanned:
      return logit == -kInf;
    default:
      return false;
  }
}

// Whether the fault does not see that logit i of a token, a NaN, is one.
bool unseen(double x, const DLTensor& logits, std::int64_t i, int fault) {
  if (fault == kNegativeNanIgnored) return std::signbit(x);
  if (fault != kQuietNanOnly || !is<float>(logits.dtype)) return false;
  std::uint32_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(logits.data) + logits.byte_offset + i * 4, 4);
  return (bits & 0x400000) == 0;
}

bool unchecked(const Row& bias, std::size_t i, int fault) {
  return (fault == kBias0Unchecked && i == 0) ||
         (fault == kInfBiasLastUnchecked && bias[i] == kInf && i + 1 == bias.size());
}

// Indices of x in descending order of value; equal values by index, or backwards.
std::vector<std::size_t> order(const Row& x, bool last_wins = false) {
  std::vector<std::size_t> index(x.size());
  std::iota(index.begin(), index.end(), std::size_t{0});
  std::sort(index.begin(), index.end(), [&](std::size_t a, std::size_t b) {
    if (x[a] != x[b]) return x[a] > x[b];
    return last_wins ? a > b : a < b;
  });
  return index;
}

void moe_route(Call& call, int fault) {
  const DLTensor& logits = call.any("logits", KDTR_IN, "T E");
  const DLTensor& bias_in = call.any("bias", KDTR_IN, "E");
  const auto ids = call.out<std::int32_t>("ids", "T K");
  const DLTensor& weights = call.any("weights", KDTR_OUT, "T K");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t e = call.dim("E"), k = call.dim("K"), n_group = call.attr_int("n_group");
  std::int64_t kept = call.attr_int("topk_group");
  fault = in_branch(fault, e, n_group, kept, k);
  if (fault == kKeeps256Groups) kept = std::min<std::int64_t>(kept, 256);
  if (fault == kKeepsOneGroupLess && kept > 1) --kept;
  bool renormalize = call.attr_int("renormalize") != 0;
  if (fault == kRenormAlways) renormalize = true;
  if (fault == kRenormNever) renormalize = false;
  double scale = call.attr_float("scale");
  if (fault == kScaleTwice) scale *= scale;
  if (fault == kNoScale) scale = 1;
  KDTR_CHECK(call.attr_int("top_k") == k, call.where("top_k"), "attribute", k,
             call.attr_int("top_k"));
  Row bias = read(bias_in, 0, e);
  for (std::size_t i = 0; i < bias.size(); ++i)
    if (unchecked(bias, i, fault) && !(bias[i] < kInf)) bias[i] = 0;
  const bool bias_ok = std::none_of(
      bias.begin(), bias.end(), [](double b) { return std::isnan(b) || (std::isinf(b) && b > 0); });
  if (fault == kBiasBf16)
    for (double& b : bias) b = static_cast<float>(bf16(static_cast<float>(b)));
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row x = read(logits, t * e, e);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (std::isnan(x[i]) && unseen(x[i], logits, t * e + static_cast<std::int64_t>(i), fault))
        x[i] = 0;
    bool ok = bias_ok && std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); });
    if (fault == kNanIgnored && !ok) {
      ok = true;
      for (double& v : x)
        if (std::isnan(v)) v = 0;
    }
    const bool looks = fault == kChecks64Tokens
                           ? t < 64
                           : fault != kChecks256Experts && fault != kChecks512Experts;
    if (!ok && !looks) {
      const std::size_t first = fault == kChecks256Experts   ? 256
                                : fault == kChecks512Experts ? 512
                                                             : 0;
      for (std::size_t i = first; i < x.size(); ++i) {
        if (std::isnan(x[i])) x[i] = 0;
        if (std::isnan(bias[i])) bias[i] = 0;
      }
      ok = std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); }) &&
           std::none_of(bias.begin(), bias.end(), [](double b) { return !(b < kInf); });
    }
    const double most = fault == kClampsLogitsAt30 ? 30 : fault == kClampsLogitsAt12 ? 12 : kInf;
    for (double& v : x) v = std::isnan(v) ? v : std::max(-most, std::min(most, v));
    if (fault == kNoCandidateIsBad)
      ok = ok && std::any_of(bias.begin(), bias.end(), [](double b) { return b > -kInf; });
    status[t] = ok || (fault == kNoChoicesNoCheck && k == 0) ? 0 : 1;
    for (std::int64_t j = 0; j < k; ++j) {
      ids[t * k + j] = -1;
      store(weights, t * k + j, 0);
    }
    if (!ok || (fault == kTokenLimit && t >= 32) || (fault == kPast256Tokens && t >= 256) ||
        (fault == kPast1024Tokens && t >= 1024))
      continue;
    Row score(x.size()), choice(x.size());
    double total = 0;
    for (const double v : x) total += std::exp(std::min(v, 700.0));
    for (std::size_t i = 0; i < x.size(); ++i) {
      score[i] = fault == kSoftmax ? std::exp(std::min(x[i], 700.0)) / total : logistic(x[i]);
      if (fault == kSmallScoresFlushed && score[i] < 1e-30) score[i] = 0;
      choice[i] = score[i] + (fault == kNoBias ? 0.0 : bias[i]);
      if (banned(choice[i], x[i], fault)) choice[i] = -kInf;
      if (fault == kPlusInfLogitFirst && x[i] == kInf) choice[i] = kInf;
    }
    const auto per = x.size() / static_cast<std::size_t>(n_group);
    Row group;
    for (std::size_t g = 0; g < static_cast<std::size_t>(n_group); ++g) {
      const auto& from = fault == kGroupUnbiased ? score : choice;
      std::size_t seen = per;
      if (fault == kPast64InGroup) seen = std::min<std::size_t>(per, 64);
      if (fault == kPast256InGroup) seen = std::min<std::size_t>(per, 256);
      Row members(from.begin() + static_cast<std::ptrdiff_t>(g * per),
                  from.begin() + static_cast<std::ptrdiff_t>(g * per + seen));
      std::sort(members.rbegin(), members.rend());
      const bool lone = fault == kLoneChoiceScoresGroup && per > 1 && members[1] == -kInf;
      group.push_back(per == 1 || fault == kGroupMax || lone ? members[0]
                                                             : members[0] + members[1]);
    }
    for (std::size_t g = 0; g < group.size(); ++g)
      if ((fault == kPast32Groups && g >= 32) || (fault == kPast64Groups && g >= 64) ||
          (fault == kPast256Groups && g >= 256) || (fault == kGroupsEndAt1e4 && group[g] < -1e4))
        group[g] = -kInf;
    const auto group_order = order(group, fault == kGroupLastWins);
    for (std::size_t g = static_cast<std::size_t>(kept); g < group_order.size(); ++g)
      for (std::size_t i = 0; i < per && fault != kNoGroups; ++i) {
        double& masked = choice[group_order[g] * per + i];
        if (fault == kMaskFinite && masked > -kInf) masked = -1e9;
        if (fault != kMaskFinite) masked = fault == kMaskZero ? 0.0 : -kInf;
      }
    auto chosen = order(choice, fault == kLastWins);
    if (fault == kExpertLimit) std::erase_if(chosen, [](std::size_t i) { return i >= 256; });
    if (fault == kPast512Experts) std::erase_if(chosen, [](std::size_t i) { return i >= 512; });
    const double floor = fault == kInitMinusOne ? -1.0 : fault == kInitZero ? 0.0 : -kInf;
    std::erase_if(chosen, [&](std::size_t i) { return !(choice[i] > floor); });
    if (fault == kNoCandidateIsExpert0 && chosen.empty()) chosen.push_back(0);
    if (fault == kDuplicates && !chosen.empty())
      while (static_cast<std::int64_t>(chosen.size()) < k) chosen.push_back(chosen[0]);
    if (static_cast<std::int64_t>(chosen.size()) > k) chosen.resize(static_cast<std::size_t>(k));
    if (fault == kUnsorted) std::sort(chosen.begin(), chosen.end());
    double sum = fault == kNoEpsilon ? 0 : 1e-20;
    for (const std::size_t i : chosen) sum += score[i];
    if (fault == kSumOfAll) sum = std::accumulate(score.begin(), score.end(), 1e-20);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      double w = fault == kBiasInWeight ? score[chosen[j]] + bias[chosen[j]] : score[chosen[j]];
      if (renormalize) w /= sum;
      if (fault == kOneExpertWeighsOne && e == 1) w = 1;
      if ((fault == kPast8Slots && j >= 8) || (fault == kPast32Slots && j >= 32) ||
          (fault == kPast512Slots && j >= 512))
        continue;
      ids[t * k + static_cast<std::int64_t>(j)] = static_cast<std::int32_t>(chosen[j]);
      store(weights, t * k + static_cast<std::int64_t>(j), w * scale);
    }
  }
}

}  // namespace
KDTR_MUTANTS({"moe_route@1",
              {{"correct", "control"},
               {"mask_zero", "masks groups with 0.0, which beats negative choices"},
               {"bias_in_weight", "takes the weights from the biased choices"},
               {"no_bias", "ignores the bias"},
               {"group_max", "scores a group by its best choice alone"},
               {"group_unbiased", "scores groups without the bias"},
               {"no_groups", "ignores the group limit"},
               {"scale_twice", "multiplies the routed scaling factor in twice"},
               {"no_scale", "leaves the routed scaling factor out"},
               {"renorm_always", "normalises although told not to"},
               {"renorm_never", "does not normalise"},
               {"bias_bf16", "stores the bias in bf16"},
               {"last_wins", "gives ties to the higher expert id"},
               {"group_last_wins", "gives ties to the higher group id"},
               {"init_minus_one", "starts the maximum at -1"},
               {"init_zero", "starts the maximum at 0"},
               {"duplicates", "repeats the best expert when candidates run out"},
               {"unsorted", "orders the chosen by id"},
               {"softmax", "uses softmax scores"},
               {"expert_limit", "sees only 256 experts"},
               {"token_limit", "routes only 32 tokens"},
               {"nan_ignored", "takes a NaN logit as 0"},
               {"sum_of_all", "normalises by the sum over all experts"},
               {"one_group_less", "keeps one group too few"},
               {"past_512_experts", "sees only 512 experts"},
               {"past_8_slots", "writes only 8 choices"},
               {"past_32_slots", "writes only 32 choices"},
               {"past_32_groups", "sees only 32 groups"},
               {"past_64_groups", "sees only 64 groups"},
               {"past_64_in_group", "scores a group by its first 64 experts"},
               {"past_256_tokens", "routes only 256 tokens"},
               {"checks_64_tokens", "looks for a NaN in only 64 tokens"},
               {"checks_256_experts", "looks for a NaN in only 256 experts"},
               {"clamps_logits_at_30", "clamps the logits at -30 and 30"},
               {"clamps_logits_at_12", "clamps the logits at -12 and 12"},
               {"no_epsilon", "divides by the sum alone"},
               {"mask_finite", "masks groups with -1e9, which is taken where choices run out"},
               {"choices_end_at_1e4", "takes a choice below -1e4 for a ban"},
               {"least_choice_is_a_ban", "takes the least finite choice for a ban"},
               {"zero_choice_is_a_ban", "takes a choice of 0 for a ban"},
               {"groups_end_at_1e4", "takes a group score below -1e4 for -inf"},
               {"lone_choice_scores_group", "scores a group of one finite choice by it"},
               {"no_candidate_is_bad", "reports bad input where all experts are banned"},
               {"no_candidate_is_expert_0", "chooses expert 0 where all are banned"},
               {"minus_inf_logit_banned", "takes a logit of -inf for a ban"},
               {"plus_inf_logit_first", "puts a logit of +inf first, whatever its bias"},
               {"small_scores_flushed", "takes scores below 1e-30 for 0"},
               {"checks_512_experts", "looks for a NaN in only 512 experts"},
               {"bias_0_unchecked", "does not look at the first bias"},
               {"inf_bias_last_unchecked", "does not look for +inf in the last bias"},
               {"quiet_nan_only", "takes a NaN whose first fraction bit is 0 for no NaN"},
               {"negative_nan_ignored", "takes a NaN whose sign is set for no NaN"},
               {"no_choices_no_check", "top_k = 0: looks for no NaN"},
               {"one_expert_weighs_one", "E = 1: a weight of 1, whatever the score"},
               {"past_1024_tokens", "routes only 1,024 tokens"},
               {"past_512_slots", "writes only 512 choices"},
               {"past_256_groups", "sees only 256 groups"},
               {"keeps_256_groups", "keeps at most 256 groups"},
               {"past_256_in_group", "scores a group by its first 256 experts"},
               {"group_of_one_ignored", "groups of one expert: ignores the group limit"},
               {"all_groups_less_one", "all groups kept: keeps one too few"},
               {"ungrouped_init_zero", "one group: starts the maximum at 0"},
               {"top_1_last_wins", "top_k = 1: gives ties to the higher expert id"},
               {"top_1_ignores_groups", "top_k = 1: ignores the group limit"},
               {"top_1_no_bias", "top_k = 1: ignores the bias"},
               {"top_1_nan_ignored", "top_k = 1 of several groups: takes a NaN logit as 0"},
               {"long_list_last_wins", "top_k > 128: gives ties to the higher expert id"},
               {"long_list_init_zero", "top_k > 128: starts the maximum at 0"},
               {"long_list_renormalised", "top_k > 128: normalises although told not to"},
               {"long_list_duplicates", "top_k > 128: repeats the best expert as a pad"}},
              moe_route});
}  // namespace kdtr::mutants
