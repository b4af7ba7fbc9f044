#include <algorithm>
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
};

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
  const bool bias_ok = std::none_of(
      bias.begin(), bias.end(), [](double b) { return std::isnan(b) || (std::isinf(b) && b > 0); });
  if (fault == kBiasBf16)
    for (double& b : bias) b = static_cast<float>(bf16(static_cast<float>(b)));
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row x = read(logits, t * e, e);
    bool ok = bias_ok && std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); });
    if (fault == kNanIgnored && !ok) {
      ok = true;
      for (double& v : x)
        if (std::isnan(v)) v = 0;
    }
    const bool looks = fault == kChecks64Tokens ? t < 64 : fault != kChecks256Experts;
    if (!ok && !looks) {
      const std::size_t first = fault == kChecks256Experts ? 256 : 0;
      for (std::size_t i = first; i < x.size(); ++i) {
        if (std::isnan(x[i])) x[i] = 0;
        if (std::isnan(bias[i])) bias[i] = 0;
      }
      ok = std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); }) &&
           std::none_of(bias.begin(), bias.end(), [](double b) { return !(b < kInf); });
    }
    const double most = fault == kClampsLogitsAt30 ? 30 : fault == kClampsLogitsAt12 ? 12 : kInf;
    for (double& v : x) v = std::isnan(v) ? v : std::max(-most, std::min(most, v));
    status[t] = ok ? 0 : 1;
    for (std::int64_t j = 0; j < k; ++j) {
      ids[t * k + j] = -1;
      store(weights, t * k + j, 0);
    }
    if (!ok || (fault == kTokenLimit && t >= 32) || (fault == kPast256Tokens && t >= 256)) continue;
    Row score(x.size()), choice(x.size());
    double total = 0;
    for (const double v : x) total += std::exp(std::min(v, 700.0));
    for (std::size_t i = 0; i < x.size(); ++i) {
      score[i] = fault == kSoftmax ? std::exp(std::min(x[i], 700.0)) / total : logistic(x[i]);
      choice[i] = score[i] + (fault == kNoBias ? 0.0 : bias[i]);
    }
    const auto per = x.size() / static_cast<std::size_t>(n_group);
    Row group;
    for (std::size_t g = 0; g < static_cast<std::size_t>(n_group); ++g) {
      const auto& from = fault == kGroupUnbiased ? score : choice;
      const std::size_t seen = fault == kPast64InGroup ? std::min<std::size_t>(per, 64) : per;
      Row members(from.begin() + static_cast<std::ptrdiff_t>(g * per),
                  from.begin() + static_cast<std::ptrdiff_t>(g * per + seen));
      std::sort(members.rbegin(), members.rend());
      group.push_back(per == 1 || fault == kGroupMax ? members[0] : members[0] + members[1]);
    }
    for (std::size_t g = 0; g < group.size(); ++g)
      if ((fault == kPast32Groups && g >= 32) || (fault == kPast64Groups && g >= 64))
        group[g] = -kInf;
    const auto group_order = order(group, fault == kGroupLastWins);
    for (std::size_t g = static_cast<std::size_t>(kept); g < group_order.size(); ++g)
      for (std::size_t i = 0; i < per && fault != kNoGroups; ++i)
        choice[group_order[g] * per + i] = fault == kMaskZero ? 0.0 : -kInf;
    auto chosen = order(choice, fault == kLastWins);
    if (fault == kExpertLimit) std::erase_if(chosen, [](std::size_t i) { return i >= 256; });
    if (fault == kPast512Experts) std::erase_if(chosen, [](std::size_t i) { return i >= 512; });
    const double floor = fault == kInitMinusOne ? -1.0 : fault == kInitZero ? 0.0 : -kInf;
    std::erase_if(chosen, [&](std::size_t i) { return !(choice[i] > floor); });
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
      if ((fault == kPast8Slots && j >= 8) || (fault == kPast32Slots && j >= 32)) continue;
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
               {"no_epsilon", "divides by the sum alone"}},
              moe_route});
}  // namespace kdtr::mutants
