// argmax@1 of f32 logits: the lowest id of the greatest value.
#include <algorithm>
#include <cmath>

#include "kdtr/registry.h"

static const char* unsupported(kdtr::Call& c) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R N V");
  return kdtr::is<float>(logits.dtype) ? nullptr : "only f32";
}

static void run(kdtr::Call& c, void* /*stream*/) {
  const auto logits = c.in<float>("logits", "R N V");
  const auto ids = c.out<std::int32_t>("ids", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t rows = c.dim("N"), vocab = c.dim("V");
  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    const float* x = logits.data + r * rows * vocab;
    std::int32_t* id = ids.data + r * rows;
    const bool bad = std::any_of(x, x + rows * vocab, [](float v) { return std::isnan(v); });
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t n = 0; n < rows; ++n, x += vocab)
      id[n] =
          bad || vocab == 0 ? -1 : static_cast<std::int32_t>(std::max_element(x, x + vocab) - x);
  }
}

KDTR_KERNEL({"argmax@1", run, nullptr, unsupported});
