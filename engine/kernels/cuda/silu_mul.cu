// silu_mul@1 on cuda: a block a row; f32, bf16, f16; f32 arithmetic.
// gate, up [T, N] -> out [T, N], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// grid: tokens; block: kRowThreads.
template <class X>
__global__ void activate(const X* gate, const X* up, X* out, std::int32_t* status, std::int64_t n) {
  const std::int64_t t = blockIdx.x;
  bool finite = true;
  for (std::int64_t i = t * n + threadIdx.x; i < (t + 1) * n; i += kRowThreads)
    finite = finite && isfinite(widen(gate[i])) && isfinite(widen(up[i]));
  const bool ok = __syncthreads_and(finite ? 1 : 0) != 0;
  if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  for (std::int64_t i = t * n + threadIdx.x; i < (t + 1) * n; i += kRowThreads)
    out[i] = narrow<X>(ok ? silu(widen(gate[i])) * widen(up[i]) : 0.0f);
}

void run(Call& call, void* stream) {
  const DLTensor& gate = call.any("gate", KDTR_IN, "T N");
  const DLTensor& up = call.any("up", KDTR_IN, "T N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "up", up, gate.dtype);
  require_dtype(call, "out", out, gate.dtype);
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_float(call, "gate", gate.dtype, [&]<class X>(X) {
    activate<<<rows, kRowThreads, 0, cuda_stream(stream)>>>(
        static_cast<const X*>(bytes(gate)), static_cast<const X*>(bytes(up)),
        static_cast<X*>(bytes(out)), status.data, call.dim("N"));
  });
  KDTR_LAUNCHED("silu_mul");
}

}  // namespace
KDTR_KERNEL({"silu_mul@1", run});
}  // namespace kdtr::cuda
