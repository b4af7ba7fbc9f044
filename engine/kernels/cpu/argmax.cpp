// argmax@1 on cpu: one pass per row, f32, bf16 or f16 compared as f32.
// logits [R, N, V] -> ids [R, N], status [R]. No aliasing.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;

template <class T>
void argmax(Call& c) {
  const auto logits = c.in<T>("logits", "R N V");
  const auto ids = c.out<std::int32_t>("ids", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t rows = c.dim("N");
  const std::int64_t vocab = c.dim("V");
  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    std::int32_t* to = ids.data + r * rows;
    bool bad = false;
    for (std::int64_t n = 0; n < rows; ++n) {
      const T* x = logits.data + (r * rows + n) * vocab;
      std::int64_t best = vocab > 0 ? 0 : -1;
      for (std::int64_t v = 0; v < vocab; ++v) {
        const auto value = static_cast<float>(x[v]);
        bad = bad || std::isnan(value);
        if (value > static_cast<float>(x[best])) best = v;
      }
      to[n] = static_cast<std::int32_t>(best);
    }
    if (bad) std::fill(to, to + rows, -1);
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;
  }
}

void run(Call& c, void*) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R N V");
  if (kdtr::is<float>(logits.dtype)) {
    argmax<float>(c);
  } else if (kdtr::is<kdtr::bf16>(logits.dtype)) {
    argmax<kdtr::bf16>(c);
  } else if (kdtr::is<kdtr::f16>(logits.dtype)) {
    argmax<kdtr::f16>(c);
  } else {
    kdtr::fail(c.where("logits"), "dtype", "f32, bf16 or f16", kdtr::dtype_name(logits.dtype));
  }
}

KDTR_KERNEL({"argmax@1", run});

}  // namespace
