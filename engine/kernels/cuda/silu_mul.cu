// silu_mul@1 on cuda: a few blocks a row; f32, bf16, f16; f32 arithmetic.
// gate, up [T, N] -> out [T, N], status [T].
#include <algorithm>

#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

template <class X>
struct Activation {
  const X *gate, *up;
  X* out;
  std::int32_t* status;
  std::int64_t n;
};

// A block takes a part of a row, when all of it is finite. kCount: elements at a time.
// grid: (tokens, parts); block: kRowThreads.
template <class X, int kCount>
__global__ void __launch_bounds__(kRowThreads) activate(Activation<X> c) {
  wait_for_last();
  let_next_start();
  const std::int64_t t = blockIdx.x, packs = c.n / kCount;
  const auto* gate = reinterpret_cast<const Pack<X, kCount>*>(c.gate + t * c.n);
  const auto* up = reinterpret_cast<const Pack<X, kCount>*>(c.up + t * c.n);
  auto* out = reinterpret_cast<Pack<X, kCount>*>(c.out + t * c.n);
  bool finite = true;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < packs; i += kRowThreads) {
    const Pack<X, kCount> a = gate[i], b = up[i];
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      finite = finite && isfinite(widen(a.at[e])) && isfinite(widen(b.at[e]));
  }
  const bool ok = __syncthreads_and(finite ? 1 : 0) != 0;
  if (blockIdx.y == 0 && threadIdx.x == 0) c.status[t] = ok ? kOk : kBadInput;
  for (std::int64_t i = std::int64_t{blockIdx.y} * kRowThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.y} * kRowThreads) {
    const Pack<X, kCount> a = gate[i], b = up[i];
    Pack<X, kCount> y;
#pragma unroll
    for (int e = 0; e < kCount; ++e)
      y.at[e] = narrow<X>(ok ? silu(widen(a.at[e])) * widen(b.at[e]) : 0.0f);
    out[i] = y;
  }
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
    const Activation<X> c{static_cast<const X*>(bytes(gate)), static_cast<const X*>(bytes(up)),
                          static_cast<X*>(bytes(out)), status.data, call.dim("N")};
    const bool packed =
        in_packs<X>(c.gate, c.n) && in_packs<X>(c.up, c.n) && in_packs<X>(c.out, c.n);
    const auto launch = [&](auto kernel, std::int64_t count) {
      // Few rows: more blocks for each, up to one a pack of each thread.
      const unsigned parts = std::min(blocks(128, rows), blocks(c.n / count, kRowThreads));
      launch_next(kernel, dim3(rows, std::max(parts, 1u)), kRowThreads, 0, cuda_stream(stream), c);
    };
    if (packed) return launch(activate<X, kPacked<X>>, kPacked<X>);
    launch(activate<X, 1>, 1);
  });
}

}  // namespace
KDTR_KERNEL({"silu_mul@1", run});
}  // namespace kdtr::cuda
