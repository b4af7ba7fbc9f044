// rmsnorm@1 on cpu: one pass for the sum of squares, one for the product; f32, bf16, f16; f32 sums.
// x [T, N], weight [N] -> out [T, N], status [T]. out may not alias x.
#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const DLTensor& x = call.any("x", KDTR_IN, "T N");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "out", out, x.dtype);
  const auto eps = static_cast<float>(call.attr_float("eps"));
  const std::string_view variant = call.attr_str("variant");
  const bool twice = variant == "round_then_multiply";
  KDTR_CHECK(twice || variant == "f32_then_round", call.where("variant"), "attribute",
             "f32_then_round or round_then_multiply", variant);
  const std::int64_t rows = call.dim("T"), n = call.dim("N");
  by_float(call, "x", x, [&]<class X>(X*) {
    by_float(call, "weight", weight, [&]<class W>(W*) {
      const W* w = data<const W>(weight);
      for (std::int64_t t = 0; t < rows; ++t) {
        const X* row = data<const X>(x) + t * n;
        X* y = data<X>(out) + t * n;
        const bool ok = finite(row, n);
        status[t] = ok ? kOk : kBadInput;
        const float factor = ok ? rms_factor(row, n, eps) : 0.0f;
        for (std::int64_t i = 0; i < n; ++i) {
          if (!ok) {
            y[i] = X(0.0f);
          } else if (twice) {
            y[i] = X(widen(w[i]) * widen(X(widen(row[i]) * factor)));
          } else {
            y[i] = X(widen(w[i]) * (widen(row[i]) * factor));
          }
        }
      }
    });
  });
}

}  // namespace
KDTR_KERNEL({"rmsnorm@1", run});
}  // namespace kdtr::cpu
