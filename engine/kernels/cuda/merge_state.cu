// merge_state@1 on cuda: one pass, o f32 | bf16 | f16, f32 arithmetic.
// o_a, o_b [R, N, H, Dv], lse_a, lse_b [R, N, H] -> o, lse, status [R]; no aliasing.
#include <cmath>

#include "detail/floats.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 256;

struct Merge {
  const void *o_a, *o_b;
  const float *lse_a, *lse_b;
  void* o;
  float* lse;
  std::int32_t* status;
  int rows, width;  // rows of a request (N H), columns (Dv)
};

__device__ bool refused(float lse) { return !(lse < INFINITY); }

// One warp per row. Each block looks at every lse of its request, for one bad row refuses them all.
template <class T, class O>
__global__ void __launch_bounds__(kThreads) merge(const Merge p) {
  const std::int64_t request = blockIdx.y, first = request * p.rows;
  bool bad = false;
  for (int i = static_cast<int>(threadIdx.x); i < p.rows; i += kThreads) {
    bad |= refused(p.lse_a[first + i]) || refused(p.lse_b[first + i]);
  }
  bad = __syncthreads_or(bad) != 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.status[request] = bad ? kBadInput : kOk;

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  const int warps = static_cast<int>(gridDim.x) * (kThreads / 32);
  for (int row = warp; row < p.rows; row += warps) {
    const std::int64_t at = first + row;
    const float a = bad ? -INFINITY : p.lse_a[at], b = bad ? -INFINITY : p.lse_b[at];
    const bool has_a = a != -INFINITY, has_b = b != -INFINITY;
    const T* o_a = static_cast<const T*>(p.o_a) + at * p.width;
    const T* o_b = static_cast<const T*>(p.o_b) + at * p.width;
    O* o = static_cast<O*>(p.o) + at * p.width;
    if (has_a && has_b) {
      const float top = fmaxf(a, b), rest = expf(fminf(a, b) - top), sum = 1.0f + rest;
      const float w_a = (a == top ? 1.0f : rest) / sum, w_b = (a == top ? rest : 1.0f) / sum;
      for (int c = lane; c < p.width; c += 32) {
        o[c] = narrow<O>(fmaf(w_a, widen(o_a[c]), w_b * widen(o_b[c])));
      }
      if (lane == 0) p.lse[at] = top + log1pf(rest);
    } else {
      const T* only = has_a ? o_a : o_b;
      for (int c = lane; c < p.width; c += 32) {
        if constexpr (std::is_same_v<T, O>) {
          o[c] = has_a || has_b ? only[c] : narrow<O>(0.0f);
        } else {
          o[c] = narrow<O>(has_a || has_b ? widen(only[c]) : 0.0f);
        }
      }
      if (lane == 0) p.lse[at] = has_a ? a : b;
    }
  }
}

void run(Call& c, void* stream) {
  const DLTensor& o_a = c.any("o_a", KDTR_IN, "R N H Dv");
  const DLTensor& o_b = c.any("o_b", KDTR_IN, "R N H Dv");
  const DLTensor& o = c.any("o", KDTR_OUT, "R N H Dv");
  const auto lse_a = c.in<float>("lse_a", "R N H"), lse_b = c.in<float>("lse_b", "R N H");
  const auto lse = c.out<float>("lse", "R N H");
  const auto status = c.out<std::int32_t>("status", "R");
  KDTR_CHECK(same(o_a.dtype, o_b.dtype), c.where("o_b"), "dtype of o_a", dtype_name(o_a.dtype),
             dtype_name(o_b.dtype));
  KDTR_CHECK(same(o.dtype, o_a.dtype) || is<float>(o_a.dtype), c.where("o"),
             "dtype of o_a, or narrower", dtype_name(o_a.dtype), dtype_name(o.dtype));
  const std::int64_t rows = c.dim("N") * c.dim("H");
  KDTR_CHECK(rows <= 0x7FFFFFFF && c.dim("Dv") <= 0x7FFFFFFF && c.dim("R") <= 65535, c.where("o"),
             "size", "N H and Dv < 2^31, R < 2^16", rows);
  const Merge merge_call{bytes(o_a),
                         bytes(o_b),
                         lse_a.data,
                         lse_b.data,
                         bytes(o),
                         lse.data,
                         status.data,
                         static_cast<int>(rows),
                         static_cast<int>(c.dim("Dv"))};
  if (c.dim("R") == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows / 8 + 1, 1024));
  with_float(c, "o_a", o_a.dtype, [&](auto in) {
    with_float(c, "o", o.dtype, [&](auto to) {
      using T = decltype(in);
      using O = decltype(to);
      if constexpr (std::is_same_v<T, O> || std::is_same_v<T, float>) {
        // grid: a block per 8 rows, R; block: 8 warps, a row each; smem: none
        merge<T, O>
            <<<{blocks, static_cast<unsigned>(c.dim("R"))}, kThreads, 0, cuda_stream(stream)>>>(
                merge_call);
        KDTR_LAUNCHED("merge_state@1");
      }
    });
  });
}

KDTR_KERNEL({"merge_state@1", run});

}  // namespace
}  // namespace kdtr::cuda
