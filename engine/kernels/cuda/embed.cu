// embed@1 on cuda: a block a token; f32 or bf16 table, widened.
// ids [T], table [V, N] -> out [T, N], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// grid: tokens; block: kRowThreads.
template <class W>
__global__ void gather(const std::int32_t* ids, const W* table, float* out, std::int32_t* status,
                       std::int64_t vocabulary, std::int64_t n) {
  const std::int64_t t = blockIdx.x, id = ids[t];
  const bool ok = id >= 0 && id < vocabulary;
  if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    out[t * n + i] = ok ? widen(table[id * n + i]) : 0.0f;
}

void run(Call& call, void* stream) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const auto out = call.out<float>("out", "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_weight(call, "table", table.dtype, [&]<class W>(W) {
    gather<<<rows, kRowThreads, 0, cuda_stream(stream)>>>(
        ids.data, static_cast<const W*>(bytes(table)), out.data, status.data, call.dim("V"),
        call.dim("N"));
  });
  KDTR_LAUNCHED("embed");
}

const char* unsupported(Call& call) {
  return is<float>(call.any("out", KDTR_OUT, "* *").dtype) ? nullptr : "bf16 rows";
}

}  // namespace
KDTR_KERNEL({"embed@1", run, nullptr, unsupported});
}  // namespace kdtr::cuda
