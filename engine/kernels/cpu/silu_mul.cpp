// silu_mul@1 on cpu: elementwise; f32, bf16, f16; f32 arithmetic.
// gate, up [T, N] -> out [T, N], status [T].
#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const DLTensor& gate = call.any("gate", KDTR_IN, "T N");
  const DLTensor& up = call.any("up", KDTR_IN, "T N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "up", up, gate.dtype);
  require_dtype(call, "out", out, gate.dtype);
  const std::int64_t rows = call.dim("T"), n = call.dim("N");
  by_float(call, "gate", gate, [&]<class X>(X*) {
    for (std::int64_t t = 0; t < rows; ++t) {
      const X* g = data<const X>(gate) + t * n;
      const X* u = data<const X>(up) + t * n;
      X* y = data<X>(out) + t * n;
      const bool ok = finite(g, n) && finite(u, n);
      status[t] = ok ? kOk : kBadInput;
      for (std::int64_t i = 0; i < n; ++i) y[i] = X(ok ? silu(widen(g[i])) * widen(u[i]) : 0.0f);
    }
  });
}

}  // namespace
KDTR_KERNEL({"silu_mul@1", run});
}  // namespace kdtr::cpu
