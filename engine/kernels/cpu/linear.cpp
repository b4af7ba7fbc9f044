// linear@1 on cpu: one dot product an output, weight rows outermost so that each is read once;
// f32 rows with f32 or bf16 weights, or bf16 both; sixteen f32 sums in a fixed order, one rounding.
// x [T, K], weight [N, K] (, residual [T, N]) -> out [T, N], status [T].
#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const DLTensor& x = call.any("x", KDTR_IN, "T K");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N K");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), k = call.dim("K"), n = call.dim("N");
  const DLTensor* residual =
      call.has("residual", KDTR_IN) ? &call.any("residual", KDTR_IN, "T N") : nullptr;
  if (is<float>(x.dtype)) require_dtype(call, "out", out, dtype_of<float>);
  if (residual != nullptr) require_dtype(call, "residual", *residual, out.dtype);
  by_rows(call, "x", x, "weight", weight, [&]<class X, class W>(X*, W*) {
    by_weight(call, "out", out, [&]<class Y>(Y*) {
      const X* from = data<const X>(x);
      const Y* add = residual == nullptr ? nullptr : data<const Y>(*residual);
      Y* to = data<Y>(out);
      for (std::int64_t t = 0; t < rows; ++t)
        status[t] = finite(from + t * k, k) && (residual == nullptr || finite(add + t * n, n))
                        ? kOk
                        : kBadInput;
      for (std::int64_t i = 0; i < n; ++i) {
        const W* w = data<const W>(weight) + i * k;
        for (std::int64_t t = 0; t < rows; ++t) {
          float y = 0;
          if (status[t] == kOk) {
            y = dot(from + t * k, w, k);
            if (residual != nullptr) y += widen(add[t * n + i]);
          }
          to[t * n + i] = Y(y);
        }
      }
    });
  });
}

}  // namespace
KDTR_KERNEL({"linear@1", run});
}  // namespace kdtr::cpu
