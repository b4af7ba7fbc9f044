// What the transformer ops share: sums over rows, checks, norms and rotations of rows. Every output
// is summed in one fixed order that depends on its own row alone, so a token's bits are the same in
// any batch.
#pragma once

#include "floats.cuh"
#include "overlap.cuh"

namespace kdtr::cuda {

constexpr int kWarp = 32;
constexpr int kRowThreads = 256;  // of kernels with a block per row
constexpr int kTokenTile = 8;     // tokens that share one read of a weight row

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// Sum over a block of kRowThreads; every thread gets it.
__device__ inline float block_sum(float x) {
  __shared__ float parts[kRowThreads / kWarp];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRowThreads / kWarp; ++i) sum += parts[i];
  return sum;
}

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

template <class F>
void with_weight(const Call& call, const char* name, DLDataType dtype, F&& body) {
  if (is<float>(dtype)) return body(float{});
  if (is<bf16>(dtype)) return body(__nv_bfloat16{});
  fail(call.where(name), "dtype", "f32 or bf16", dtype_name(dtype));
}

// Calls `body` with zeros of the types of x and of the weights: f32 and f32 or bf16, or both bf16.
template <class F>
void with_rows(const Call& call, const char* name, DLDataType x, const char* weight, DLDataType w,
               F&& body) {
  with_weight(call, name, x, [&]<class X>(X rows) {
    with_weight(call, weight, w, [&]<class W>(W weights) {
      if constexpr (std::is_same_v<X, float> || std::is_same_v<W, X>) {
        body(rows, weights);
      } else {
        fail(call.where(weight), "dtype", "bf16, as x", dtype_name(w));
      }
    });
  });
}

inline void require_dtype(const Call& call, const char* name, const DLTensor& tensor,
                          DLDataType want) {
  KDTR_CHECK(same(tensor.dtype, want), call.where(name), "dtype", dtype_name(want),
             dtype_name(tensor.dtype));
}

inline unsigned blocks(std::int64_t n, std::int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

inline bool halves(const Call& call) {
  const std::string_view store = call.attr_str("store");
  KDTR_CHECK(store == "interleaved" || store == "halves", call.where("store"), "attribute",
             "interleaved or halves", store);
  return store == "halves";
}

// Four neighbouring weights; `at` is aligned to four elements.
__device__ inline float4 load4(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ inline float4 load4(const __nv_bfloat16* at) {
  const uint2 v = *reinterpret_cast<const uint2*>(at);
  return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u),
          __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF0000u)};
}

// One warp's part of sum_i x[i] w[i]: lanes take fours in turn, then single elements.
template <class W>
__device__ float lane_dot(const float* x, const W* w, std::int64_t n, int lane) {
  float sum = 0;
  std::int64_t i = lane * 4;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(w) % (4 * sizeof(W)) == 0;
  for (; i + 4 <= n; i += kWarp * 4) {
    const float4 a = aligned ? load4(x + i) : float4{x[i], x[i + 1], x[i + 2], x[i + 3]};
    const float4 b = aligned
                         ? load4(w + i)
                         : float4{widen(w[i]), widen(w[i + 1]), widen(w[i + 2]), widen(w[i + 3])};
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
  }
  for (; i < n; ++i) sum += x[i] * widen(w[i]);  // only the lane whose four reach past the end
  return sum;
}

// Whether this thread's part of a row is finite: 16 bytes at a time where the row allows it.
template <class T>
__device__ bool part_finite(const T* x, std::int64_t n) {
  constexpr std::int64_t kCount = 16 / sizeof(T);
  constexpr std::uint32_t kInf = 0x7F800000u;
  bool ok = true;
  std::int64_t whole = 0;
  if (reinterpret_cast<std::uintptr_t>(x) % 16 == 0) {
    whole = n / kCount;
#pragma unroll 8
    for (std::int64_t i = threadIdx.x; i < whole; i += blockDim.x) {
      const uint4 v = reinterpret_cast<const uint4*>(x)[i];
      for (const std::uint32_t word : {v.x, v.y, v.z, v.w}) {
        ok = ok && (word & kInf) != kInf;
        if (sizeof(T) == 2) ok = ok && (word << 16 & kInf) != kInf;
      }
    }
  }
  for (std::int64_t i = whole * kCount + threadIdx.x; i < n; i += blockDim.x)
    ok = ok && isfinite(widen(x[i]));
  return ok;
}

// status[t] = bad_input where a given row holds a NaN or infinity, or the position is negative.
// f32 and bf16 rows.
template <class X, class Y>
struct Rows {
  const X* x = nullptr;
  std::int64_t n = 0;
  const Y* y = nullptr;
  std::int64_t m = 0;
  const std::int32_t* positions = nullptr;
};
constexpr int kCheckThreads = 512;
// grid: tokens; block: kCheckThreads.
template <class X, class Y>
__global__ void check_rows(Rows<X, Y> rows, std::int32_t* status) {
  wait_for_last();
  let_next_start();
  const std::int64_t t = blockIdx.x;
  bool ok = rows.positions == nullptr || rows.positions[t] >= 0;
  ok = ok && part_finite(rows.x + t * rows.n, rows.n);
  if (rows.y != nullptr) ok = ok && part_finite(rows.y + t * rows.m, rows.m);
  const int all = __syncthreads_and(ok ? 1 : 0);
  if (threadIdx.x == 0) status[t] = all != 0 ? kOk : kBadInput;
}
template <class X, class Y>
void check(const Rows<X, Y>& rows, std::int64_t tokens, std::int32_t* status, cudaStream_t s) {
  if (tokens == 0) return;
  launch_next(check_rows<X, Y>, static_cast<unsigned>(tokens), kCheckThreads, 0, s, rows, status);
}

// The factor 1 / sqrt(mean(x^2) + eps) of one row, by a block of kRowThreads.
template <class X>
__device__ float rms_factor(const X* x, std::int64_t n, float eps) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    const float v = widen(x[i]);
    sum += v * v;
  }
  return 1.0f / sqrtf(block_sum(sum) / static_cast<float>(n) + eps);
}

// Pair i of one head, turned by one position's angle and stored interleaved or in halves.
template <class X, class Y>
__device__ void turn_pair(const X* x, std::int64_t i, std::int64_t f, std::int32_t position,
                          float inv_freq, float scale, bool in_halves, Y* y) {
  float sine, cosine;
  sincosf(static_cast<float>(position) * inv_freq, &sine, &cosine);
  sine *= scale;
  cosine *= scale;
  const float a = widen(x[2 * i]), b = widen(x[2 * i + 1]);
  y[in_halves ? i : 2 * i] = narrow<Y>(a * cosine - b * sine);
  y[in_halves ? f + i : 2 * i + 1] = narrow<Y>(b * cosine + a * sine);
}

}  // namespace kdtr::cuda
