// linear@1 on cuda: a warp a column, weights read once for eight tokens; f32 rows, f32 or bf16
// weights; f32 sums in a fixed order.
// x [T, K], weight [N, K] (, residual [T, N]) -> out [T, N], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

void run(Call& call, void* stream) {
  const auto x = call.in<float>("x", "T K");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N K");
  const auto out = call.out<float>("out", "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), k = call.dim("K"), n = call.dim("N");
  const float* residual =
      call.has("residual", KDTR_IN) ? call.in<float>("residual", "T N").data : nullptr;
  const cudaStream_t s = cuda_stream(stream);
  check({x.data, k, residual, n, nullptr}, rows, status.data, s);
  with_weight(call, "weight", weight.dtype, [&]<class W>(W) {
    multiply({x.data, k, 0, 0, out.data, n, 0, residual, status.data, rows, n, k},
             static_cast<const W*>(bytes(weight)), 1, s);
  });
}

const char* unsupported(Call& call) {
  return is<float>(call.any("x", KDTR_IN, "* *").dtype) ? nullptr : "bf16 rows";
}

}  // namespace
KDTR_KERNEL({"linear@1", run, nullptr, unsupported});
}  // namespace kdtr::cuda
