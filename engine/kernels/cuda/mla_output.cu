// mla_output@1 on cuda: values of all heads, then o_proj, as linear's products; f32 rows with f32
// or bf16 weights, or bf16 both, when the values are rounded to bf16. latent [T, H, C], kv_b [H,
// n+v, C], o [D, H*v] (, residual [T, D]) -> out [T, D], status [T].
#include "detail/product.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

std::size_t workspace(Call& call) {
  const DLTensor& latent = call.any("latent", KDTR_IN, "T H C");
  call.any("o", KDTR_IN, "D HV");
  const std::int64_t rows = call.dim("T");
  return padded(rows * call.dim("HV") * latent.dtype.bits / 8) + blas_workspace(rows, latent.dtype);
}

void run(Call& call, void* stream) {
  const DLTensor& latent = call.any("latent", KDTR_IN, "T H C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& o = call.any("o", KDTR_IN, "D HV");
  const DLTensor& out = call.any("out", KDTR_OUT, "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "o", o, kv_b.dtype);
  require_dtype(call, "out", out, latent.dtype);
  const std::int64_t rows = call.dim("T"), h = call.dim("H"), c = call.dim("C");
  const std::int64_t d = call.dim("D"), hv = call.dim("HV"), nv = call.dim("NV");
  const std::int64_t v = h > 0 ? hv / h : 0;
  KDTR_CHECK(v * h == hv && v <= nv, call.where("o"), "columns", "a multiple of the heads", hv);
  const DLTensor* residual =
      call.has("residual", KDTR_IN) ? &call.any("residual", KDTR_IN, "T D") : nullptr;
  if (residual != nullptr) require_dtype(call, "residual", *residual, latent.dtype);
  const cudaStream_t s = cuda_stream(stream);
  const bool x_bf16 = is<bf16>(latent.dtype), w_bf16 = is<bf16>(kv_b.dtype);
  const void* add = residual == nullptr ? nullptr : bytes(*residual);
  with_rows(call, "latent", latent.dtype, "kv_b", kv_b.dtype, [&]<class X>(X, auto) {
    check(Rows<X, X>{static_cast<const X*>(bytes(latent)), h * c, static_cast<const X*>(add), d},
          rows, status.data, s);
  });
  auto* values = static_cast<std::byte*>(call.workspace());
  void* blas = values + padded(rows * hv * latent.dtype.bits / 8);
  const std::byte* value_rows =
      static_cast<const std::byte*>(bytes(kv_b)) + (nv - v) * c * kv_b.dtype.bits / 8;
  multiply({.x = {bytes(latent), x_bf16},
            .x_row = h * c,
            .x_batch = c,
            .tokens = rows,
            .k = c,
            .batches = h,
            .w_bf16 = w_bf16,
            .out_bf16 = x_bf16,
            .sides = {{value_rows, c, nv * c, values, hv, v, v}, {}},
            .after = Product::After::check},
           blas, s);
  multiply({.x = {values, x_bf16},
            .x_row = hv,
            .x_batch = 0,
            .tokens = rows,
            .k = hv,
            .batches = 1,
            .w_bf16 = w_bf16,
            .out_bf16 = x_bf16,
            .sides = {{bytes(o), hv, 0, bytes(out), d, 0, d}, {}},
            .residual = add,
            .status = status.data},
           blas, s);
}

}  // namespace
KDTR_KERNEL({"mla_output@1", run, workspace});
}  // namespace kdtr::cuda
