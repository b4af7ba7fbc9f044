// rope@1 on cpu: pair by pair; f32, bf16, f16; f32 arithmetic, libm cosine and sine.
// x [T, H, W], positions [T], inv_freq [F] -> out [T, H, W], status [T]. Host check: start+2F <= W.
#include <algorithm>
#include <vector>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const DLTensor& x = call.any("x", KDTR_IN, "T H W");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const DLTensor& out = call.any("out", KDTR_OUT, "T H W");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "out", out, x.dtype);
  const std::int64_t rows = call.dim("T"), heads = call.dim("H"), width = call.dim("W");
  const std::int64_t f = call.dim("F"), start = call.attr_int("start");
  KDTR_CHECK(start >= 0 && start + 2 * f <= width, call.where("start"), "rotated columns",
             "start + 2F <= " + std::to_string(width), start + 2 * f);
  const auto scale = static_cast<float>(call.attr_float("scale"));
  const bool in_halves = halves(call);
  std::vector<float> cosine(static_cast<std::size_t>(f)), sine(cosine.size());
  by_float(call, "x", x, [&]<class X>(X*) {
    for (std::int64_t t = 0; t < rows; ++t) {
      const X* from = data<const X>(x) + t * heads * width;
      X* to = data<X>(out) + t * heads * width;
      const bool ok = positions[t] >= 0 && finite(from, heads * width);
      status[t] = ok ? kOk : kBadInput;
      if (!ok) {
        std::fill(to, to + heads * width, X(0.0f));
        continue;
      }
      std::copy(from, from + heads * width, to);
      angles(positions[t], inv_freq.data, f, scale, cosine.data(), sine.data());
      for (std::int64_t h = 0; h < heads; ++h)
        rotate(from + h * width + start, cosine.data(), sine.data(), f, in_halves,
               to + h * width + start);
    }
  });
}

}  // namespace
KDTR_KERNEL({"rope@1", run});
}  // namespace kdtr::cpu
