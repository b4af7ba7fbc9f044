// rmsnorm@1 on cuda: a block a row, which it holds in registers; f32, bf16, f16; f32 sums in an
// order that the row's length and alignment fix. Long or unaligned rows are read three times. x [T,
// N], weight [N] -> out [T, N], status [T]. out may not alias x.
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

template <class X, class W>
struct Rmsnorm {
  const X* x;
  const W* weight;
  X* out;
  std::int32_t* status;
  std::int64_t n;
  float eps;
  bool twice;

  __device__ X scaled(float x, float factor, W w, bool ok) const {
    float y = x * factor;
    if (twice) y = widen(narrow<X>(y));
    return narrow<X>(ok ? widen(w) * y : 0.0f);
  }
};

// grid: tokens; block: kRowThreads.
template <class X, class W>
__global__ void normalise(Rmsnorm<X, W> c) {
  wait_for_last();
  let_next_start();
  const std::int64_t t = blockIdx.x;
  const X* row = c.x + t * c.n;
  bool finite = true;
  for (std::int64_t i = threadIdx.x; i < c.n; i += kRowThreads)
    finite = finite && isfinite(widen(row[i]));
  const bool ok = __syncthreads_and(finite ? 1 : 0) != 0;
  if (threadIdx.x == 0) c.status[t] = ok ? kOk : kBadInput;
  const float factor = ok ? rms_factor(row, c.n, c.eps) : 0.0f;
  for (std::int64_t i = threadIdx.x; i < c.n; i += kRowThreads)
    c.out[t * c.n + i] = c.scaled(widen(row[i]), factor, c.weight[i], ok);
}

// Rows of at most kHeld packs a thread. grid: tokens; block: whole warps.
constexpr int kHeld = 2, kMostThreads = 1024;
template <class X, class W>
__global__ void __launch_bounds__(kMostThreads) normalise_held(Rmsnorm<X, W> c) {
  constexpr int kCount = kPacked<X>;
  __shared__ float sums[kWarp];
  const auto* weight = reinterpret_cast<const Pack<W, kCount>*>(c.weight);
  const std::int64_t t = blockIdx.x, packs = c.n / kCount;
  const int lane = static_cast<int>(threadIdx.x % kWarp),
            warps = static_cast<int>(blockDim.x) / kWarp;
  for (std::int64_t i = threadIdx.x; i < packs; i += blockDim.x) ask_for(weight + i);
  wait_for_last();
  let_next_start();
  Pack<X, kCount> x[kHeld];
  Pack<W, kCount> w[kHeld];
  const auto* row = reinterpret_cast<const Pack<X, kCount>*>(c.x + t * c.n);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const std::int64_t i = std::int64_t{threadIdx.x} + j * std::int64_t{blockDim.x};
    if (i < packs) {
      x[j] = row[i];
      w[j] = weight[i];
    }
  }
  float sum = 0;
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (threadIdx.x + j * std::int64_t{blockDim.x} >= packs) break;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const float v = widen(x[j].at[e]);
      finite = finite && isfinite(v);
      sum += v * v;
    }
  }
  // A sum of squares is never NaN: it says that an element is not finite.
  sum = warp_sum(finite ? sum : NAN);
  if (lane == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = warp_sum(lane < warps ? sums[lane] : 0.0f);
  const bool ok = !isnan(sum);
  if (threadIdx.x == 0) c.status[t] = ok ? kOk : kBadInput;
  const float factor = ok ? 1.0f / sqrtf(sum / static_cast<float>(c.n) + c.eps) : 0.0f;
  auto* out = reinterpret_cast<Pack<X, kCount>*>(c.out + t * c.n);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const std::int64_t i = std::int64_t{threadIdx.x} + j * std::int64_t{blockDim.x};
    if (i >= packs) break;
    Pack<X, kCount> y;
#pragma unroll
    for (int e = 0; e < kCount; ++e) y.at[e] = c.scaled(widen(x[j].at[e]), factor, w[j].at[e], ok);
    out[i] = y;
  }
}

void run(Call& call, void* stream) {
  const DLTensor& x = call.any("x", KDTR_IN, "T N");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  require_dtype(call, "out", out, x.dtype);
  const auto eps = static_cast<float>(call.attr_float("eps"));
  const std::string_view variant = call.attr_str("variant");
  const bool twice = variant == "round_then_multiply";
  KDTR_CHECK(twice || variant == "f32_then_round", call.where("variant"), "attribute",
             "f32_then_round or round_then_multiply", variant);
  const auto rows = static_cast<unsigned>(call.dim("T"));
  if (rows == 0) return;
  with_float(call, "x", x.dtype, [&]<class X>(X) {
    with_float(call, "weight", weight.dtype, [&]<class W>(W) {
      const Rmsnorm<X, W> c{static_cast<const X*>(bytes(x)),
                            static_cast<const W*>(bytes(weight)),
                            static_cast<X*>(bytes(out)),
                            status.data,
                            call.dim("N"),
                            eps,
                            twice};
      const std::int64_t packs = c.n / kPacked<X>, held = blocks(packs, kMostThreads);
      const cudaStream_t s = cuda_stream(stream);
      if (c.n > 0 && held <= kHeld && in_packs<X>(c.x, c.n) && in_packs<X>(c.weight, c.n) &&
          in_packs<X>(c.out, c.n)) {
        const auto threads = static_cast<int>(blocks(blocks(packs, held), kWarp)) * kWarp;
        return launch_next(normalise_held<X, W>, rows, threads, 0, s, c);
      }
      launch_next(normalise<X, W>, rows, kRowThreads, 0, s, c);
    });
  });
}

}  // namespace
KDTR_KERNEL({"rmsnorm@1", run});
}  // namespace kdtr::cuda
