// linear@1 on cuda: f32 rows with f32 or bf16 weights, a warp a few columns; bf16 rows and weights
// on tensor cores, by cuBLAS beyond 64 tokens; f32 sums, one rounding. x [T, K], weight [N, K] (,
// residual [T, N]) -> out [T, N], status [T].
#include "detail/product.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

std::size_t workspace(Call& call) {
  const DLTensor& x = call.any("x", KDTR_IN, "T K");
  return call.has("residual", KDTR_IN) ? 0 : blas_workspace(call.dim("T"), x.dtype);
}

void run(Call& call, void* stream) {
  const DLTensor& x = call.any("x", KDTR_IN, "T K");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N K");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), k = call.dim("K"), n = call.dim("N");
  const DLTensor* residual =
      call.has("residual", KDTR_IN) ? &call.any("residual", KDTR_IN, "T N") : nullptr;
  if (is<float>(x.dtype)) require_dtype(call, "out", out, dtype_of<float>);
  if (residual != nullptr) require_dtype(call, "residual", *residual, out.dtype);
  const cudaStream_t s = cuda_stream(stream);
  Product p{.x = {bytes(x), is<bf16>(x.dtype)},
            .x_row = k,
            .x_batch = 0,
            .tokens = rows,
            .k = k,
            .batches = 1,
            .w_bf16 = is<bf16>(weight.dtype),
            .out_bf16 = is<bf16>(out.dtype),
            .sides = {{bytes(weight), k, 0, bytes(out), n, 0, n}, {}},
            .residual = residual == nullptr ? nullptr : bytes(*residual),
            .status = status.data,
            .after = Product::After::check};
  with_rows(call, "x", x.dtype, "weight", weight.dtype, [&]<class X>(X, auto) {
    with_weight(call, "out", out.dtype, [&]<class Y>(Y) {
      check(Rows<X, Y>{static_cast<const X*>(p.x.at), k, static_cast<const Y*>(p.residual), n},
            rows, status.data, s);
    });
  });
  multiply(p, call.workspace(), s);
}

}  // namespace
KDTR_KERNEL({"linear@1", run, workspace});
}  // namespace kdtr::cuda
