// mla_output@1 on cuda: values of all heads, then o_proj; a warp a column; f32 rows, f32 or bf16
// weights.
// latent [T, H, C], kv_b [H, n+v, C], o [D, H*v] (, residual [T, D]) -> out [T, D], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

std::size_t workspace(Call& call) {
  call.any("latent", KDTR_IN, "T H C");
  call.any("o", KDTR_IN, "D HV");
  return static_cast<std::size_t>(call.dim("T") * call.dim("HV")) * sizeof(float);
}

void run(Call& call, void* stream) {
  const auto latent = call.in<float>("latent", "T H C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& o = call.any("o", KDTR_IN, "D HV");
  const auto out = call.out<float>("out", "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "o", o, kv_b.dtype);
  const std::int64_t rows = call.dim("T"), h = call.dim("H"), c = call.dim("C");
  const std::int64_t d = call.dim("D"), hv = call.dim("HV"), nv = call.dim("NV");
  const std::int64_t v = h > 0 ? hv / h : 0;
  KDTR_CHECK(v * h == hv && v <= nv, call.where("o"), "columns", "a multiple of the heads", hv);
  const float* residual =
      call.has("residual", KDTR_IN) ? call.in<float>("residual", "T D").data : nullptr;
  auto* values = static_cast<float*>(call.workspace());
  const cudaStream_t s = cuda_stream(stream);
  check({latent.data, h * c, residual, d, nullptr}, rows, status.data, s);
  with_weight(call, "kv_b", kv_b.dtype, [&]<class W>(W) {
    multiply({latent.data, h * c, c, nv * c, values, hv, v, nullptr, status.data, rows, v, c},
             static_cast<const W*>(bytes(kv_b)) + (nv - v) * c, h, s);
    multiply({values, hv, 0, 0, out.data, d, 0, residual, status.data, rows, d, hv},
             static_cast<const W*>(bytes(o)), 1, s);
  });
}

const char* unsupported(Call& call) {
  return is<float>(call.any("latent", KDTR_IN, "* * *").dtype) ? nullptr : "bf16 rows";
}

}  // namespace
KDTR_KERNEL({"mla_output@1", run, workspace, unsupported});
}  // namespace kdtr::cuda
