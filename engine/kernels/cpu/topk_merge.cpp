// topk_merge@1 on cpu: the candidates of all shards, sorted; lse in double.
// part_ids, part_values [S, R, L, K], part_lse [S, R, L], part_status [S, R], first [S]
// -> ids, logprobs [R, L, K], lse [R, L], status [R]. No aliasing.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;
using kdtr::kInf;
using kdtr::kInfF;

struct Candidate {
  float value;
  std::int64_t id;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

void run(Call& c, void*) {
  const auto part_ids = c.in<std::int32_t>("part_ids", "S R L K");
  const auto part_values = c.in<float>("part_values", "S R L K");
  const auto part_lse = c.in<double>("part_lse", "S R L");
  const auto part_status = c.in<std::int32_t>("part_status", "S R");
  const auto first = c.in<std::int32_t>("first", "S");
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const auto lse = c.out<float>("lse", "R L");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t shards = c.dim("S");
  const std::int64_t requests = c.dim("R");
  const std::int64_t depths = c.dim("L");
  const std::int64_t k = c.dim("K");
  const std::int64_t rows = requests * depths;
  KDTR_CHECK(k <= 1024, c.where("part_ids"), "candidates per depth", "0 to 1024", k);
  std::vector<Candidate> found;
  found.reserve(static_cast<std::size_t>(shards * k));

  for (std::int64_t r = 0; r < requests; ++r) {
    bool bad = false;
    for (std::int64_t s = 0; s < shards; ++s) {
      bad = bad || part_status[s * requests + r] != kdtr::kOk;
      for (std::int64_t l = 0; l < depths; ++l)
        bad = bad || !(part_lse[s * rows + r * depths + l] < kInf);
    }
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t row = r * depths; row < (r + 1) * depths; ++row) {
      found.clear();
      double top = -kInf;
      for (std::int64_t s = 0; s < shards && !bad; ++s) {
        top = std::max(top, part_lse[s * rows + row]);
        for (std::int64_t i = (s * rows + row) * k; i < (s * rows + row + 1) * k; ++i) {
          const std::int64_t id = part_ids[i];
          if (id >= 0) found.push_back({part_values[i], id + first[s]});
        }
      }
      double sum = 0;  // at least 1, so lse is at least top
      for (std::int64_t s = 0; s < shards && top > -kInf; ++s)
        sum += std::exp(part_lse[s * rows + row] - top);
      lse[row] = top > -kInf ? static_cast<float>(top + std::log(sum)) : -kInfF;
      const auto kept = std::min(k, static_cast<std::int64_t>(found.size()));
      std::partial_sort(found.begin(), found.begin() + kept, found.end(), better);
      for (std::int64_t i = 0; i < kept; ++i) {
        const Candidate& one = found[static_cast<std::size_t>(i)];
        ids[row * k + i] = static_cast<std::int32_t>(one.id);
        logprobs[row * k + i] = one.value - lse[row];
      }
      std::fill(ids.data + row * k + kept, ids.data + (row + 1) * k, -1);
      std::fill(logprobs.data + row * k + kept, logprobs.data + (row + 1) * k, -kInfF);
    }
  }
}

KDTR_KERNEL({"topk_merge@1", run});

}  // namespace
