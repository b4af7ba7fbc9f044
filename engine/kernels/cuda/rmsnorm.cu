// rmsnorm@1 on cuda: a block a row, two reads; f32, bf16, f16; f32 sums in a fixed order.
// x [T, N], weight [N] -> out [T, N], status [T]. out may not alias x.
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// grid: tokens; block: kRowThreads.
template <class X, class W>
__global__ void normalise(const X* x, const W* weight, X* out, std::int32_t* status, std::int64_t n,
                          float eps, bool twice) {
  const std::int64_t t = blockIdx.x;
  const X* row = x + t * n;
  bool finite = true;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    finite = finite && isfinite(widen(row[i]));
  const bool ok = __syncthreads_and(finite ? 1 : 0) != 0;
  if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  const float factor = ok ? rms_factor(row, n, eps) : 0.0f;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    float y = ok ? widen(row[i]) * factor : 0.0f;
    if (twice) y = widen(narrow<X>(y));
    out[t * n + i] = narrow<X>(ok ? widen(weight[i]) * y : 0.0f);
  }
}

void run(Call& call, void* stream) {
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
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_float(call, "x", x.dtype, [&]<class X>(X) {
    with_float(call, "weight", weight.dtype, [&]<class W>(W) {
      normalise<<<rows, kRowThreads, 0, cuda_stream(stream)>>>(
          static_cast<const X*>(bytes(x)), static_cast<const W*>(bytes(weight)),
          static_cast<X*>(bytes(out)), status.data, call.dim("N"), eps, twice);
    });
  });
  KDTR_LAUNCHED("rmsnorm");
}

}  // namespace
KDTR_KERNEL({"rmsnorm@1", run});
}  // namespace kdtr::cuda
