// merge_state@1 on cuda: one pass, 16 bytes at a time where rows allow, o f32 | bf16 | f16, f32
// arithmetic.
// o_a, o_b [R, N, H, Dv], lse_a, lse_b [R, N, H] -> o, lse, status [R]; no aliasing.
#include <cmath>

#include "detail/block.cuh"
#include "detail/floats.cuh"
#include "detail/overlap.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

struct Merge {
  const void *o_a, *o_b;
  const float *lse_a, *lse_b;
  void* o;
  float* lse;
  std::int32_t* status;
  int rows, width;  // rows of a request (N H), columns (Dv)
  bool vectors;     // whether every row is whole 16-byte vectors of o_a and o_b
};

template <class T, int n>
struct alignas(n * sizeof(T)) Vector {
  T at[n];
};

__device__ bool refused(float lse) { return !(lse < INFINITY); }

// The first two vectors of each lane of a row of both parts.
template <class T>
struct Head {
  using In = Vector<T, 16 / static_cast<int>(sizeof(T))>;
  In a[2], b[2];

  __device__ void load(const T* o_a, const T* o_b, int width) {
    constexpr int kCount = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int c = (static_cast<int>(threadIdx.x % 32) + 32 * j) * kCount;
      if (c >= width) continue;
      a[j] = *reinterpret_cast<const In*>(o_a + c);
      b[j] = *reinterpret_cast<const In*>(o_b + c);
    }
  }
};

template <int n, class T, class O>
__device__ void blend_vector(const Vector<T, n>& a, const Vector<T, n>& b, O* o, float w_a,
                             float w_b) {
  Vector<O, n> out;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    out.at[i] = narrow<O>(fmaf(w_a, widen(a.at[i]), w_b * widen(b.at[i])));
  }
  *reinterpret_cast<Vector<O, n>*>(o) = out;
}

// o = w_a o_a + w_b o_b over the columns of a row from `from` on, by a warp, n at a time.
template <int n, class T, class O>
__device__ void blend(const T* o_a, const T* o_b, O* o, int from, int width, float w_a, float w_b) {
  using In = Vector<T, n>;
#pragma unroll 2
  for (int c = from + static_cast<int>(threadIdx.x % 32) * n; c < width; c += 32 * n) {
    blend_vector(*reinterpret_cast<const In*>(o_a + c), *reinterpret_cast<const In*>(o_b + c),
                 o + c, w_a, w_b);
  }
}

// o = `only`, or 0 where there is none: not multiplied, for the other part may hold anything.
template <int n, class T, class O>
__device__ void copy(const T* only, O* o, int width) {
  using In = Vector<T, n>;
  using Out = Vector<O, n>;
#pragma unroll 2
  for (int c = static_cast<int>(threadIdx.x % 32) * n; c < width; c += 32 * n) {
    Out out;
    if (only == nullptr) {
#pragma unroll
      for (int i = 0; i < n; ++i) out.at[i] = narrow<O>(0.0f);
    } else {
      const In in = *reinterpret_cast<const In*>(only + c);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<T, O>) {
          out.at[i] = in.at[i];
        } else {
          out.at[i] = narrow<O>(widen(in.at[i]));
        }
      }
    }
    *reinterpret_cast<Out*>(o + c) = out;
  }
}

// One warp per row. Each block looks at every lse of its request, for one bad row refuses them all;
// meanwhile the first rows are on their way.
template <class T, class O>
__global__ void __launch_bounds__(kThreads) merge(const Merge p) {
  constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  wait_for_last();
  let_next_start();
  const std::int64_t request = blockIdx.y, first = request * p.rows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  const T* all_a = static_cast<const T*>(p.o_a) + first * p.width;
  const T* all_b = static_cast<const T*>(p.o_b) + first * p.width;
  const auto at = [&](int row) { return static_cast<std::int64_t>(row) * p.width; };
  Head<T> head;
  if (p.vectors && warp < p.rows) head.load(all_a + at(warp), all_b + at(warp), p.width);
  bool bad = false;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < p.rows; i += kThreads) {
    bad |= refused(p.lse_a[first + i]) || refused(p.lse_b[first + i]);
  }
  bad = block_any(bad);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.status[request] = bad ? kBadInput : kOk;

  for (int row = warp; row < p.rows; row += static_cast<int>(gridDim.x) * kWarps) {
    const float a = bad ? -INFINITY : p.lse_a[first + row];
    const float b = bad ? -INFINITY : p.lse_b[first + row];
    const bool has_a = a != -INFINITY, has_b = b != -INFINITY;
    const T *o_a = all_a + at(row), *o_b = all_b + at(row);
    O* o = static_cast<O*>(p.o) + first * p.width + at(row);
    if (has_a && has_b) {
      const float top = fmaxf(a, b), rest = expf(fminf(a, b) - top), sum = 1.0f + rest;
      const float w_a = (a == top ? 1.0f : rest) / sum, w_b = (a == top ? rest : 1.0f) / sum;
      if (p.vectors) {
        if (row != warp) head.load(o_a, o_b, p.width);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int c = (lane + 32 * j) * kCount;
          if (c < p.width) blend_vector(head.a[j], head.b[j], o + c, w_a, w_b);
        }
        blend<kCount>(o_a, o_b, o, 64 * kCount, p.width, w_a, w_b);
      } else {
        blend<1>(o_a, o_b, o, 0, p.width, w_a, w_b);
      }
      if (lane == 0) p.lse[first + row] = top + log1pf(rest);
    } else {
      const T* only = has_a ? o_a : has_b ? o_b : nullptr;
      if (p.vectors) {
        copy<kCount>(only, o, p.width);
      } else {
        copy<1>(only, o, p.width);
      }
      if (lane == 0) p.lse[first + row] = has_a ? a : b;
    }
  }
}

bool aligned(const DLTensor& t) { return reinterpret_cast<std::uintptr_t>(bytes(t)) % 16 == 0; }
bool whole_vectors(const DLTensor& t) { return aligned(t) && t.shape[3] * t.dtype.bits % 128 == 0; }

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
                         static_cast<int>(c.dim("Dv")),
                         whole_vectors(o_a) && whole_vectors(o_b) && aligned(o)};
  if (c.dim("R") == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows / kWarps + 1, 1024));
  with_float(c, "o_a", o_a.dtype, [&](auto in) {
    with_float(c, "o", o.dtype, [&](auto to) {
      using T = decltype(in);
      using O = decltype(to);
      if constexpr (std::is_same_v<T, O> || std::is_same_v<T, float>) {
        // grid: a block per 16 rows, R; block: 16 warps, a row each; smem: none
        launch_next(merge<T, O>, dim3(blocks, static_cast<unsigned>(c.dim("R"))), kThreads, 0,
                    cuda_stream(stream), merge_call);
      }
    });
  });
}

KDTR_KERNEL({"merge_state@1", run});

}  // namespace
}  // namespace kdtr::cuda
