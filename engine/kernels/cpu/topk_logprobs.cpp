// topk_logprobs@1 on cpu: selection on (value, id) keys; f32, bf16 or f16 in; lse summed in double.
// logits [R, L, V], K -> ids, logprobs [R, L, K], lse [R, L], status [R]. No aliasing.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;
using kdtr::kInfF;

// Greater key = greater value, then smaller id. -0 has the key of +0.
std::uint64_t key_of(float value, std::int64_t id) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<std::uint64_t>(ordered) << 32) | ~static_cast<std::uint32_t>(id);
}

std::int64_t id_of(std::uint64_t key) {
  const std::uint32_t id = ~static_cast<std::uint32_t>(key);
  return id;
}

// Log-sum-exp of n values whose maximum is top. At least top, because the sum is at least 1.
template <class T>
float log_sum_exp(const T* x, std::int64_t n, float top) {
  if (top == -kInfF) return -kInfF;
  double sum = 0;
  for (std::int64_t v = 0; v < n; ++v)
    sum += std::exp(static_cast<double>(static_cast<float>(x[v])) - static_cast<double>(top));
  return static_cast<float>(static_cast<double>(top) + std::log(sum));
}

template <class T>
void topk(Call& c) {
  const auto logits = c.in<T>("logits", "R L V");
  c.bind("K", c.attr_int("K"));
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const auto lse = c.out<float>("lse", "R L");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t depths = c.dim("L");
  const std::int64_t vocab = c.dim("V");
  const std::int64_t k = c.dim("K");
  std::vector<std::uint64_t> keys;
  keys.reserve(static_cast<std::size_t>(vocab));

  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    const T* first = logits.data + r * depths * vocab;
    const bool bad = std::any_of(first, first + depths * vocab, [](T stored) {
      const auto x = static_cast<float>(stored);
      return std::isnan(x) || x == kInfF;
    });
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t row = r * depths; row < (r + 1) * depths; ++row) {
      const T* x = logits.data + row * vocab;
      keys.clear();
      float top = -kInfF;
      for (std::int64_t v = 0; v < vocab && !bad; ++v) {
        const auto value = static_cast<float>(x[v]);
        top = std::max(top, value);
        if (value > -kInfF) keys.push_back(key_of(value, v));
      }
      const auto kept = std::min(k, static_cast<std::int64_t>(keys.size()));
      std::partial_sort(keys.begin(), keys.begin() + kept, keys.end(), std::greater<>());
      lse[row] = log_sum_exp(x, vocab, top);
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t id = id_of(keys[static_cast<std::size_t>(i)]);
        ids[row * k + i] = static_cast<std::int32_t>(id);
        logprobs[row * k + i] = static_cast<float>(x[id]) - lse[row];
      }
      std::fill(ids.data + row * k + kept, ids.data + (row + 1) * k, -1);
      std::fill(logprobs.data + row * k + kept, logprobs.data + (row + 1) * k, -kInfF);
    }
  }
}

void run(Call& c, void*) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R L V");
  const std::int64_t k = c.attr_int("K");
  KDTR_CHECK(k >= 0 && k <= 1024, c.where("K"), "candidates per depth", "0 to 1024", k);
  if (kdtr::is<float>(logits.dtype)) {
    topk<float>(c);
  } else if (kdtr::is<kdtr::bf16>(logits.dtype)) {
    topk<kdtr::bf16>(c);
  } else if (kdtr::is<kdtr::f16>(logits.dtype)) {
    topk<kdtr::f16>(c);
  } else {
    kdtr::fail(c.where("logits"), "dtype", "f32, bf16 or f16", kdtr::dtype_name(logits.dtype));
  }
}

KDTR_KERNEL({"topk_logprobs@1", run});

}  // namespace
