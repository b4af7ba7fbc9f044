// moe_route@1 on cpu: repeated scans for the best group and expert; f32 scores and choices.
// logits [T, E], bias [E] -> ids, weights [T, K], status [T]. Host checks: n_group divides E,
// 1 <= topk_group <= n_group, 0 <= top_k <= E.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

// The first index of the greatest value above -inf that is not taken yet, or -1.
std::int64_t best(const std::vector<float>& values, const std::vector<char>& taken) {
  std::int64_t found = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (taken[i] != 0 || values[i] == -kInfF) continue;
    if (found < 0 || values[i] > values[static_cast<std::size_t>(found)])
      found = static_cast<std::int64_t>(i);
  }
  return found;
}

void run(Call& call, void*) {
  const auto logits = call.in<float>("logits", "T E");
  const auto bias = call.in<float>("bias", "E");
  const auto ids = call.out<std::int32_t>("ids", "T K");
  const auto weights = call.out<float>("weights", "T K");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), experts = call.dim("E"), k = call.dim("K");
  const std::int64_t groups = call.attr_int("n_group"), kept = call.attr_int("topk_group");
  KDTR_CHECK(groups >= 1 && experts % groups == 0, call.where("n_group"), "attribute",
             "a divisor of " + std::to_string(experts), groups);
  KDTR_CHECK(kept >= 1 && kept <= groups, call.where("topk_group"), "attribute",
             "1 .. " + std::to_string(groups), kept);
  KDTR_CHECK(call.attr_int("top_k") == k && k <= experts, call.where("top_k"), "attribute", k,
             call.attr_int("top_k"));
  const bool renormalize = call.attr_int("renormalize") != 0;
  const auto scale = static_cast<float>(call.attr_float("scale"));
  const std::int64_t per = experts / groups;

  bool bias_ok = true;
  for (std::int64_t e = 0; e < experts; ++e)
    bias_ok = bias_ok && !std::isnan(bias[e]) && bias[e] != kInfF;
  std::vector<float> score(static_cast<std::size_t>(experts)), choice(score.size());
  std::vector<float> group(static_cast<std::size_t>(groups));
  std::vector<char> keep(group.size()), taken(score.size());
  for (std::int64_t t = 0; t < rows; ++t) {
    const float* x = logits.data + t * experts;
    const bool ok = bias_ok && std::none_of(x, x + experts, [](float v) { return std::isnan(v); });
    status[t] = ok ? kOk : kBadInput;
    std::fill_n(ids.data + t * k, k, -1);
    std::fill_n(weights.data + t * k, k, 0.0f);
    if (!ok) continue;
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto i = static_cast<std::size_t>(e);
      score[i] = 1.0f / (1.0f + std::exp(-x[e]));
      choice[i] = score[i] + bias[e];
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      float first = -kInfF, second = -kInfF;
      for (std::int64_t e = g * per; e < (g + 1) * per; ++e) {
        const float value = choice[static_cast<std::size_t>(e)];
        second = std::max(second, std::min(first, value));
        first = std::max(first, value);
      }
      group[static_cast<std::size_t>(g)] = per == 1 ? first : first + second;
    }
    std::fill(keep.begin(), keep.end(), 0);
    for (std::int64_t n = 0; n < kept; ++n) {
      std::int64_t g = best(group, keep);
      if (g < 0) g = std::find(keep.begin(), keep.end(), 0) - keep.begin();
      keep[static_cast<std::size_t>(g)] = 1;
    }
    for (std::size_t e = 0; e < taken.size(); ++e)
      taken[e] = keep[e / static_cast<std::size_t>(per)] == 0 ? 1 : 0;
    float sum = 0;
    for (std::int64_t n = 0; n < k; ++n) {
      const std::int64_t e = best(choice, taken);
      if (e < 0) break;
      taken[static_cast<std::size_t>(e)] = 1;
      ids[t * k + n] = static_cast<std::int32_t>(e);
      weights[t * k + n] = score[static_cast<std::size_t>(e)];
      sum += score[static_cast<std::size_t>(e)];
    }
    for (std::int64_t n = 0; n < k; ++n) {
      float& w = weights[t * k + n];
      if (renormalize) w /= sum + 1e-20f;
      w *= scale;
    }
  }
}

}  // namespace
KDTR_KERNEL({"moe_route@1", run});
}  // namespace kdtr::cpu
