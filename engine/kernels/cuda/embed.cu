// embed@1 on cuda: a few blocks a token; f32 or bf16 table, widened where out is f32.
// ids [T], table [V, N] -> out [T, N], status [T].
#include <algorithm>
#include <type_traits>

#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// kCount: elements at a time. grid: (tokens, parts of a row); block: kRowThreads.
template <class W, class Y, int kCount>
__global__ void gather(const std::int32_t* ids, const W* table, Y* out, std::int32_t* status,
                       std::int64_t vocabulary, std::int64_t n) {
  wait_for_last();
  let_next_start();
  const std::int64_t t = blockIdx.x, id = ids[t];
  const bool ok = id >= 0 && id < vocabulary;
  if (blockIdx.y == 0 && threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  const auto* from = reinterpret_cast<const Pack<W, kCount>*>(table + (ok ? id * n : 0));
  auto* to = reinterpret_cast<Pack<Y, kCount>*>(out + t * n);
  for (std::int64_t i = std::int64_t{blockIdx.y} * kRowThreads + threadIdx.x; i < n / kCount;
       i += std::int64_t{gridDim.y} * kRowThreads) {
    Pack<W, kCount> x{};
    if (ok) x = from[i];
    Pack<Y, kCount> y;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if constexpr (std::is_same_v<W, Y>) {
        y.at[e] = x.at[e];  // with the bits of a NaN
      } else {
        y.at[e] = narrow<Y>(widen(x.at[e]));
      }
    }
    to[i] = y;
  }
}

void run(Call& call, void* stream) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  if (!is<float>(out.dtype)) require_dtype(call, "out", out, table.dtype);
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_weight(call, "table", table.dtype, [&]<class W>(W) {
    with_weight(call, "out", out.dtype, [&]<class Y>(Y) {
      const auto* from = static_cast<const W*>(bytes(table));
      auto* to = static_cast<Y*>(bytes(out));
      const std::int64_t n = call.dim("N");
      const auto launch = [&](auto kernel, std::int64_t count) {
        const unsigned parts = std::max(blocks(n / count, kRowThreads), 1u);
        launch_next(kernel, dim3(rows, std::min(parts, 65535u)), kRowThreads, 0,
                    cuda_stream(stream), ids.data, from, to, status.data, call.dim("V"), n);
      };
      constexpr int kCount = kPacked<W>;
      if (in_packs<W>(from, n) && in_packs<W>(to, n)) return launch(gather<W, Y, kCount>, kCount);
      launch(gather<W, Y, 1>, 1);
    });
  });
}

}  // namespace
KDTR_KERNEL({"embed@1", run});
}  // namespace kdtr::cuda
