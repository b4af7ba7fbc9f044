// rope@1 on cuda: a block a token; f32, bf16, f16; f32 arithmetic, accurate sine and cosine.
// x [T, H, W], positions [T], inv_freq [F] -> out [T, H, W], status [T]. Host check: start+2F <= W.
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// grid: tokens; block: kRowThreads.
template <class X>
__global__ void turn(const X* x, const std::int32_t* positions, const float* inv_freq, X* out,
                     std::int32_t* status, std::int64_t heads, std::int64_t width, std::int64_t f,
                     std::int64_t start, float scale, bool in_halves) {
  const std::int64_t t = blockIdx.x, n = heads * width;
  const X* from = x + t * n;
  X* to = out + t * n;
  bool finite = positions[t] >= 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    finite = finite && isfinite(widen(from[i]));
  const bool ok = __syncthreads_and(finite ? 1 : 0) != 0;
  if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    const std::int64_t column = i % width;
    if (!ok) {
      to[i] = narrow<X>(0.0f);
    } else if (column < start || column >= start + 2 * f) {
      to[i] = from[i];
    }
  }
  if (!ok) return;
  for (std::int64_t i = threadIdx.x; i < heads * f; i += kRowThreads) {
    const std::int64_t at = i / f * width + start;
    turn_pair(from + at, i % f, f, positions[t], inv_freq[i % f], scale, in_halves, to + at);
  }
}

void run(Call& call, void* stream) {
  const DLTensor& x = call.any("x", KDTR_IN, "T H W");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const DLTensor& out = call.any("out", KDTR_OUT, "T H W");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "out", out, x.dtype);
  const std::int64_t f = call.dim("F"), width = call.dim("W"), start = call.attr_int("start");
  KDTR_CHECK(start >= 0 && start + 2 * f <= width, call.where("start"), "rotated columns",
             "start + 2F <= " + std::to_string(width), start + 2 * f);
  const auto scale = static_cast<float>(call.attr_float("scale"));
  const bool in_halves = halves(call);
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_float(call, "x", x.dtype, [&]<class X>(X) {
    turn<<<rows, kRowThreads, 0, cuda_stream(stream)>>>(
        static_cast<const X*>(bytes(x)), positions.data, inv_freq.data, static_cast<X*>(bytes(out)),
        status.data, call.dim("H"), width, f, start, scale, in_halves);
  });
  KDTR_LAUNCHED("rope");
}

}  // namespace
KDTR_KERNEL({"rope@1", run});
}  // namespace kdtr::cuda
