// embed@1 on cuda: a block a token; f32 or bf16 table, widened where out is f32.
// ids [T], table [V, N] -> out [T, N], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// grid: tokens; block: kRowThreads.
template <class W, class Y>
__global__ void gather(const std::int32_t* ids, const W* table, Y* out, std::int32_t* status,
                       std::int64_t vocabulary, std::int64_t n) {
  const std::int64_t t = blockIdx.x, id = ids[t];
  const bool ok = id >= 0 && id < vocabulary;
  if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    out[t * n + i] = narrow<Y>(ok ? widen(table[id * n + i]) : 0.0f);
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
      gather<<<rows, kRowThreads, 0, cuda_stream(stream)>>>(
          ids.data, static_cast<const W*>(bytes(table)), static_cast<Y*>(bytes(out)), status.data,
          call.dim("V"), call.dim("N"));
    });
  });
  KDTR_LAUNCHED("embed");
}

}  // namespace
KDTR_KERNEL({"embed@1", run});
}  // namespace kdtr::cuda
