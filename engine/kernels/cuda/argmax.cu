// argmax@1 on cuda: one read of the logits, f32, bf16 or f16, by all blocks; ties by key.
// logits [R, N, V] -> ids [R, N], status [R]. No aliasing.
#include <algorithm>
#include <cmath>

#include "detail/overlap.cuh"
#include "detail/rows.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// 16-byte vectors of a row that a thread reads: few where there are few rows, for more blocks.
constexpr int kFew = 4, kMany = 16, kManyRows = 16;
constexpr std::uint64_t kNan = ~std::uint64_t{0};

// The greatest element of a vector, NaN when it holds one.
template <class T>
__device__ float vector_max(const uint4& v) {
  if constexpr (sizeof(T) == 4) {
    float top = element<T>(v, 0);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      const float x = element<T>(v, i);
      top = x > top || std::isnan(x) ? x : top;  // a NaN stays: nothing is greater
    }
    return top;
  } else {
    const std::uint32_t half = nan_max(nan_max(v.x, v.y, T{}), nan_max(v.z, v.w, T{}), T{});
    const uint4 both{half, half, half, half};
    const float a = element<T>(both, 0), b = element<T>(both, 1);
    return std::isnan(a) || b < a ? a : b;
  }
}

// Best key of a chunk: greater value, then smaller id; kNan if it holds a NaN, 0 if it is empty.
template <class T>
__global__ void __launch_bounds__(kThreads)
    best_of_chunk(const T* logits, std::int64_t rows, std::int64_t vocab, int chunks, int vectors,
                  std::uint64_t* best) {
  __shared__ std::uint64_t warp_best[kWarps];
  constexpr int kCount = Lanes<T>::kCount;
  wait_for_last();
  let_next_start();
  const std::int64_t row_at = blockIdx.x / static_cast<unsigned>(chunks);
  const std::int64_t chunk = blockIdx.x % static_cast<unsigned>(chunks);
  const T* row = logits + row_at * vocab;
  const T* end = logits + rows * vocab;
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = chunk * vectors * kThreads * kCount;

  float top = -INFINITY;
  std::int64_t top_id = first + static_cast<std::int64_t>(thread) * kCount;
  bool nan = false;
#pragma unroll 4
  for (int j = 0; j < vectors; ++j) {
    const std::int64_t id = first + static_cast<std::int64_t>(j * kThreads + thread) * kCount;
    if (id >= vocab) break;
    const float x = vector_max<T>(load_vector(row + id, vocab - id, aligned, logits, end));
    nan = nan || std::isnan(x);
    if (x > top) {
      top = x;
      top_id = id;
    }
  }
  std::uint64_t key = 0;
  if (nan) {
    key = kNan;
  } else if (top_id < vocab) {
    const uint4 v = load_vector(row + top_id, vocab - top_id, aligned, logits, end);
    int at = 0;
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i) at = element<T>(v, i) == top ? i : at;
    const auto id = static_cast<std::uint32_t>(top_id) + static_cast<std::uint32_t>(at);
    key = static_cast<std::uint64_t>(ordered(top + 0.0f)) << 32 | ~id;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, key, step);
    key = other > key ? other : key;
  }
  if (thread % 32 == 0) warp_best[thread / 32] = key;
  __syncthreads();
  if (thread == 0) {
    for (int w = 1; w < kWarps; ++w) key = warp_best[w] > key ? warp_best[w] : key;
    best[blockIdx.x] = key;
  }
}

// The best chunk of each row of a request, which one NaN refuses.
__global__ void __launch_bounds__(kThreads)
    best_of_row(const std::uint64_t* best, int nodes, int chunks, std::int32_t* ids,
                std::int32_t* status) {
  wait_for_last();
  const std::int64_t request = blockIdx.x;
  const std::int64_t parts = static_cast<std::int64_t>(nodes) * chunks;
  bool bad = false;
  for (std::int64_t i = threadIdx.x; i < parts; i += kThreads)
    bad = bad || best[request * parts + i] == kNan;
  bad = __syncthreads_or(bad) != 0;
  if (threadIdx.x == 0) status[request] = bad ? kBadInput : kOk;
  for (int n = static_cast<int>(threadIdx.x); n < nodes; n += kThreads) {
    std::uint64_t key = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::uint64_t other =
          best[request * parts + static_cast<std::int64_t>(n) * chunks + chunk];
      key = other > key ? other : key;
    }
    ids[request * nodes + n] =
        bad || key == 0 ? -1 : static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
  }
}

int vectors_of(Call& c) { return c.dim("R") * c.dim("N") < kManyRows ? kFew : kMany; }

std::int64_t chunks_of(Call& c, const DLTensor& logits) {
  const std::int64_t vocab = c.dim("V");
  const std::int64_t chunk = vectors_of(c) * kThreads * (128 / logits.dtype.bits);
  KDTR_CHECK(vocab < 0x7FFFFFFF, c.where("logits"), "vocabulary", "below 2^31 - 1", vocab);
  const std::int64_t chunks = std::max<std::int64_t>((vocab + chunk - 1) / chunk, 1);
  const std::int64_t blocks = c.dim("R") * c.dim("N") * chunks;
  KDTR_CHECK(blocks < 0x7FFFFFFF, c.where("logits"), "blocks", "below 2^31 - 1", blocks);
  return chunks;
}

std::size_t workspace(Call& c) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R N V");
  return static_cast<std::size_t>(c.dim("R") * c.dim("N") * chunks_of(c, logits)) *
         sizeof(std::uint64_t);
}

void run(Call& c, void* stream) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R N V");
  const auto ids = c.out<std::int32_t>("ids", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::size_t need = workspace(c);
  KDTR_CHECK(c.workspace_size() >= need, c.where("workspace"), "bytes", need, c.workspace_size());
  if (c.dim("R") == 0) return;
  const std::int64_t rows = c.dim("R") * c.dim("N"), chunks = chunks_of(c, logits);
  auto* best = static_cast<std::uint64_t*>(c.workspace());
  cudaStream_t queue = cuda_stream(stream);
  if (rows > 0) {
    with_float(c, "logits", logits.dtype, [&](auto in) {
      using T = decltype(in);
      // grid: a block per chunk of a row; block: 256 threads; smem: a key per warp
      launch_next(best_of_chunk<T>, static_cast<unsigned>(rows * chunks), kThreads, 0, queue,
                  static_cast<const T*>(bytes(logits)), rows, c.dim("V"), static_cast<int>(chunks),
                  vectors_of(c), best);
    });
  }
  // grid: a block per request; block: a thread per row; smem: none
  launch_next(best_of_row, static_cast<unsigned>(c.dim("R")), kThreads, 0, queue, best,
              static_cast<int>(c.dim("N")), static_cast<int>(chunks), ids.data, status.data);
}

KDTR_KERNEL({"argmax@1", run, workspace});

}  // namespace
}  // namespace kdtr::cuda
