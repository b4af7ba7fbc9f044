// mla_output@1 on cpu: values head by head, then o_proj; f32 rows, f32 or bf16 weights.
// latent [T, H, C], kv_b [H, n+v, C], o [D, H*v] (, residual [T, D]) -> out [T, D], status [T].
#include <vector>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const auto latent = call.in<float>("latent", "T H C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& o = call.any("o", KDTR_IN, "D HV");
  const auto out = call.out<float>("out", "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "o", o, kv_b.dtype);
  const std::int64_t rows = call.dim("T"), h = call.dim("H"), c = call.dim("C");
  const std::int64_t d = call.dim("D"), hv = call.dim("HV"), nv = call.dim("NV");
  const std::int64_t v = h > 0 ? hv / h : 0;
  KDTR_CHECK(v * h == hv && v <= nv, call.where("o"), "columns", "a multiple of the heads", hv);
  const float* residual =
      call.has("residual", KDTR_IN) ? call.in<float>("residual", "T D").data : nullptr;
  std::vector<float> values(static_cast<std::size_t>(hv));
  by_weight(call, "kv_b", kv_b, [&]<class W>(W*) {
    for (std::int64_t t = 0; t < rows; ++t) {
      const float* row = latent.data + t * h * c;
      float* y = out.data + t * d;
      const bool ok = finite(row, h * c) && (residual == nullptr || finite(residual + t * d, d));
      status[t] = ok ? kOk : kBadInput;
      for (std::int64_t i = 0; ok && i < h; ++i)
        apply(row + i * c, data<const W>(kv_b) + (i * nv + nv - v) * c, v, c,
              values.data() + i * v);
      for (std::int64_t i = 0; i < d; ++i) {
        y[i] = ok ? dot(values.data(), data<const W>(o) + i * hv, hv) : 0.0f;
        if (ok && residual != nullptr) y[i] += residual[t * d + i];
      }
    }
  });
}

}  // namespace
KDTR_KERNEL({"mla_output@1", run});
}  // namespace kdtr::cpu
