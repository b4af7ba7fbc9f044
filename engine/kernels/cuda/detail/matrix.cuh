// f32 rows times f32 or bf16 weight matrices, norms and rotations of rows. Every output is summed
// in one fixed order that depends on its own row alone, so a token's bits are the same in any
// batch.
#pragma once

#include "floats.cuh"

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

// status[t] = bad_input where a given row holds a NaN or infinity, or the position is negative.
struct Rows {
  const float* x = nullptr;
  std::int64_t n = 0;
  const float* y = nullptr;
  std::int64_t m = 0;
  const std::int32_t* positions = nullptr;
};
// grid: tokens; block: kRowThreads.
static __global__ void check_rows(Rows rows, std::int32_t* status) {
  const std::int64_t t = blockIdx.x;
  bool ok = rows.positions == nullptr || rows.positions[t] >= 0;
  for (std::int64_t i = threadIdx.x; i < rows.n; i += kRowThreads)
    ok = ok && isfinite(rows.x[t * rows.n + i]);
  if (rows.y != nullptr)
    for (std::int64_t i = threadIdx.x; i < rows.m; i += kRowThreads)
      ok = ok && isfinite(rows.y[t * rows.m + i]);
  const int all = __syncthreads_and(ok ? 1 : 0);
  if (threadIdx.x == 0) status[t] = all != 0 ? kOk : kBadInput;
}
inline void check(const Rows& rows, std::int64_t tokens, std::int32_t* status, cudaStream_t s) {
  if (tokens == 0) return;
  check_rows<<<static_cast<unsigned>(tokens), kRowThreads, 0, s>>>(rows, status);
  KDTR_LAUNCHED("check_rows");
}

// out[z, t, n] = sum_k x[z, t, k] w[z, n, k] (+ residual[t, n]); 0 where status[t] is not ok.
// Leading strides in elements; w is dense in k.
struct Product {
  const float* x;
  std::int64_t x_row, x_batch;
  std::int64_t w_batch;
  float* out;
  std::int64_t out_row, out_batch;
  const float* residual;
  const std::int32_t* status;
  std::int64_t tokens, n, k;
};
// grid: (tokens / kTokenTile, n / 8, batches); block: 8 warps, one output column each. A weight is
// read once for kTokenTile tokens; each token's sum has lane_dot's order.
template <class W>
__global__ void __launch_bounds__(8 * kWarp) product(Product p, const W* w) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t column = std::int64_t{blockIdx.y} * 8 + threadIdx.x / kWarp;
  if (column >= p.n) return;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokenTile, z = blockIdx.z;
  const auto count = static_cast<int>(min(std::int64_t{kTokenTile}, p.tokens - first));
  const W* row = w + z * p.w_batch + column * p.k;
  const float* x = p.x + z * p.x_batch + first * p.x_row;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && p.x_row % 4 == 0 &&
                       reinterpret_cast<std::uintptr_t>(row) % (4 * sizeof(W)) == 0;
  float sums[kTokenTile] = {};
  std::int64_t i = lane * 4;
  for (; i + 4 <= p.k; i += kWarp * 4) {
    const float4 b =
        aligned ? load4(row + i)
                : float4{widen(row[i]), widen(row[i + 1]), widen(row[i + 2]), widen(row[i + 3])};
#pragma unroll
    for (int t = 0; t < kTokenTile; ++t) {
      if (t >= count) break;
      const float* from = x + t * p.x_row + i;
      const float4 a = aligned ? load4(from) : float4{from[0], from[1], from[2], from[3]};
      sums[t] += a.x * b.x;
      sums[t] += a.y * b.y;
      sums[t] += a.z * b.z;
      sums[t] += a.w * b.w;
    }
  }
  for (; i < p.k; ++i)
    for (int t = 0; t < kTokenTile; ++t)
      if (t < count) sums[t] += x[t * p.x_row + i] * widen(row[i]);
#pragma unroll
  for (int t = 0; t < kTokenTile; ++t) {
    const float y = warp_sum(sums[t]);
    if (lane != 0 || t >= count) continue;
    const std::int64_t at = first + t;
    float* out = p.out + z * p.out_batch + at * p.out_row + column;
    const bool ok = p.status == nullptr || p.status[at] == kOk;
    const float added = p.residual != nullptr && ok ? y + p.residual[at * p.n + column] : y;
    *out = ok ? added : 0.0f;
  }
}
template <class W>
void multiply(const Product& p, const W* w, std::int64_t batches, cudaStream_t s) {
  if (p.tokens == 0 || p.n == 0 || batches == 0) return;
  const dim3 grid(blocks(p.tokens, kTokenTile), blocks(p.n, 8), static_cast<unsigned>(batches));
  product<W><<<grid, 8 * kWarp, 0, s>>>(p, w);
  KDTR_LAUNCHED("product");
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
