// mla_output@1 on cpu: values head by head, then o_proj; f32 rows with f32 or bf16 weights, or bf16
// both; f32 between, one rounding at the end.
// latent [T, H, C], kv_b [H, n+v, C], o [D, H*v] (, residual [T, D]) -> out [T, D], status [T].
#include <vector>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const DLTensor& latent = call.any("latent", KDTR_IN, "T H C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& o = call.any("o", KDTR_IN, "D HV");
  const DLTensor& out = call.any("out", KDTR_OUT, "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "o", o, kv_b.dtype);
  require_dtype(call, "out", out, latent.dtype);
  const std::int64_t rows = call.dim("T"), h = call.dim("H"), c = call.dim("C");
  const std::int64_t d = call.dim("D"), hv = call.dim("HV"), nv = call.dim("NV");
  const std::int64_t v = h > 0 ? hv / h : 0;
  KDTR_CHECK(v * h == hv && v <= nv, call.where("o"), "columns", "a multiple of the heads", hv);
  const DLTensor* residual =
      call.has("residual", KDTR_IN) ? &call.any("residual", KDTR_IN, "T D") : nullptr;
  if (residual != nullptr) require_dtype(call, "residual", *residual, latent.dtype);
  std::vector<float> values(static_cast<std::size_t>(hv));
  by_rows(call, "latent", latent, "kv_b", kv_b, [&]<class X, class W>(X*, W*) {
    const X* add = residual == nullptr ? nullptr : data<const X>(*residual);
    for (std::int64_t t = 0; t < rows; ++t) {
      const X* row = data<const X>(latent) + t * h * c;
      X* to = data<X>(out) + t * d;
      const bool ok = finite(row, h * c) && (add == nullptr || finite(add + t * d, d));
      status[t] = ok ? kOk : kBadInput;
      for (std::int64_t i = 0; ok && i < h; ++i)
        apply(row + i * c, data<const W>(kv_b) + (i * nv + nv - v) * c, v, c,
              values.data() + i * v);
      for (std::int64_t i = 0; i < d; ++i) {
        float y = ok ? dot(values.data(), data<const W>(o) + i * hv, hv) : 0.0f;
        if (ok && add != nullptr) y += widen(add[t * d + i]);
        to[i] = X(y);
      }
    }
  });
}

}  // namespace
KDTR_KERNEL({"mla_output@1", run});
}  // namespace kdtr::cpu
