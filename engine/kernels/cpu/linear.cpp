// linear@1 on cpu: one dot product an output, weight rows outermost so that each is read once;
// f32 rows, f32 or bf16 weights; sixteen f32 sums in a fixed order.
// x [T, K], weight [N, K] (, residual [T, N]) -> out [T, N], status [T].
#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const auto x = call.in<float>("x", "T K");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N K");
  const auto out = call.out<float>("out", "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), k = call.dim("K"), n = call.dim("N");
  const float* residual =
      call.has("residual", KDTR_IN) ? call.in<float>("residual", "T N").data : nullptr;
  for (std::int64_t t = 0; t < rows; ++t) {
    const bool ok =
        finite(x.data + t * k, k) && (residual == nullptr || finite(residual + t * n, n));
    status[t] = ok ? kOk : kBadInput;
  }
  by_weight(call, "weight", weight, [&]<class W>(W*) {
    for (std::int64_t i = 0; i < n; ++i) {
      const W* w = data<const W>(weight) + i * k;
      for (std::int64_t t = 0; t < rows; ++t) {
        float& y = out[t * n + i];
        y = status[t] == kOk ? dot(x.data + t * k, w, k) : 0.0f;
        if (residual != nullptr && status[t] == kOk) y += residual[t * n + i];
      }
    }
  });
}

}  // namespace
KDTR_KERNEL({"linear@1", run});
}  // namespace kdtr::cpu
