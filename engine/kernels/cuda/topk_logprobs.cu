// topk_logprobs@1 on cuda: one read of the logits, f32, bf16 or f16; lse in f32 pairs and doubles.
// logits [R, L, V], K -> ids, logprobs [R, L, K], lse [R, L], status [R]. No aliasing.
//
// A row is cut into chunks that a block holds in registers. Per chunk: its maximum, the sum of
// exponentials against it, and its K best as a sorted list. A second kernel merges the chunks of a
// row by rank. Chunks depend on V and the dtype only, so a row's bits do not depend on its batch.
#include <algorithm>
#include <cmath>

#include "detail/block.cuh"
#include "detail/overlap.cuh"
#include "detail/rows.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kVectors = 5;            // 16-byte vectors a thread holds
constexpr int kFastK = 256;            // up to here thread maxima bound the K-th value well
constexpr int kBuffer = 2 * kThreads;  // candidates of a chunk; at least the largest K
constexpr int kStaged = 96;            // threads that hand their vectors to the block
constexpr int kBinBits = 9;            // of the histogram of thread maxima
constexpr int kBins = 1 << kBinBits;
constexpr int kLaneBins = kBins / 32;
static_assert(kBins == kThreads);
constexpr int kRankSort = kThreads / 4;      // up to here sorting by counting is fastest
constexpr int kMergeBytes = 96 << 10;        // shared memory that every architecture has
constexpr float kLowest = -0x1.fffffep127f;  // every finite value is at least this

// What one chunk contributes to its row. count < 0: a NaN or +inf was seen.
struct Part {
  double lse;
  float top;
  int count;  // keys in the chunk's list
};

// Unique keys: greater value, then smaller id. The last bit keeps the sign of a zero.
__device__ std::uint64_t key_of(float x, std::uint32_t id) {
  const std::uint32_t negative_zero = __float_as_uint(x) == 0x80000000u ? 1u : 0u;
  return static_cast<std::uint64_t>(ordered(x + 0.0f)) << 32 |
         ((0x7FFFFFFFu - id) << 1 | negative_zero);
}
__device__ std::int32_t id_of(std::uint64_t key) {
  return static_cast<std::int32_t>(0x7FFFFFFFu - (static_cast<std::uint32_t>(key) >> 1));
}
__device__ float value_of(std::uint64_t key) {
  return (key & 1) != 0 ? -0.0f : unordered(static_cast<std::uint32_t>(key >> 32));
}

// The greatest of a thread's elements; +inf or NaN when it holds either.
template <class T>
__device__ float thread_max(const uint4 (&v)[kVectors]) {
  if constexpr (sizeof(T) == 4) {
    float top = -INFINITY;
    bool good = true;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = element<T>(v[j], i);
        top = fmaxf(top, x);
        good = good && x < INFINITY;
      }
    }
    return good ? top : INFINITY;
  } else {
    std::uint32_t top = Lanes<T>::kFill;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const std::uint32_t a = nan_max(v[j].x, v[j].y, T{});
      const std::uint32_t b = nan_max(v[j].z, v[j].w, T{});
      top = nan_max(top, nan_max(a, b, T{}), T{});
    }
    const uint4 both{top, top, top, top};
    const float a = element<T>(both, 0), b = element<T>(both, 1);
    return a < INFINITY && b < INFINITY ? fmaxf(a, b) : INFINITY;
  }
}

// The greatest element of a vector without NaN.
template <class T>
__device__ float vector_max(const uint4& v) {
  if constexpr (sizeof(T) == 4) {
    return fmaxf(fmaxf(element<T>(v, 0), element<T>(v, 1)),
                 fmaxf(element<T>(v, 2), element<T>(v, 3)));
  } else {
    const std::uint32_t top = nan_max(nan_max(v.x, v.y, T{}), nan_max(v.z, v.w, T{}), T{});
    const uint4 both{top, top, top, top};
    return fmaxf(element<T>(both, 0), element<T>(both, 1));
  }
}

// A thread's vectors of a chunk; -inf past its end. Nothing outside [begin, end) is read.
template <class T>
__device__ void load_chunk(const T* row, std::int64_t first, std::int64_t vocab, int chunk_vectors,
                           const T* begin, const T* end, uint4 (&v)[kVectors]) {
  constexpr int kCount = Lanes<T>::kCount;
  constexpr std::uint32_t kFill = Lanes<T>::kFill;
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
  if (aligned && first + static_cast<std::int64_t>(chunk_vectors) * kCount <= vocab) {
    const uint4* from = reinterpret_cast<const uint4*>(row + first) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      v[j] = {kFill, kFill, kFill, kFill};
      if (j * kThreads + static_cast<int>(threadIdx.x) < chunk_vectors)
        v[j] = __ldg(from + j * kThreads);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int vector = j * kThreads + static_cast<int>(threadIdx.x);
    const std::int64_t id = first + static_cast<std::int64_t>(vector) * kCount;
    v[j] = {kFill, kFill, kFill, kFill};
    if (vector >= chunk_vectors || id >= vocab) continue;
    v[j] = load_vector(row + id, vocab - id, aligned, begin, end);
  }
}

// 2^x for |x| <= 1/2 by the special-function unit: |error| < 2^-22 of it.
__device__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^(x - top) = 2^n (1 + rest), n = the low bits of the result, for x <= top: |error| < 2^-24.4 of
// it; x far below top gives n = -126. kCompensated: x - top is not exact in f32, and its rounding
// error is carried along.
template <bool kCompensated>
__device__ std::uint32_t exp_parts(float x, float top, float& rest) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float difference = x - top;
  const float d = fmaxf(difference, -87.0f);
  const float shifted = fmaf(d, 1.44269504f, kMagic);
  const float n = shifted - kMagic;
  float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, d));
  if constexpr (kCompensated) {
    const float back = difference - x;
    const float lost = (x - (difference - back)) + (-top - back);
    r += difference < -87.0f ? 0.0f : lost;
  }
  float p = fmaf(0x1.6db518p-10f, r, 0x1.123c02p-7f);  // minimax of (e^r - 1 - r) / r^2
  p = fmaf(p, r, 0x1.55545cp-5f);
  p = fmaf(p, r, 0x1.55548ep-3f);
  p = fmaf(p, r, 0.5f);
  rest = fmaf(p, r * r, r);
  return __float_as_uint(shifted);
}

template <class T, bool kCompensated>
__device__ double thread_sum(const uint4 (&v)[kVectors], float top) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    // Powers of two are summed in double and the rest apart: a small term beside a large one, or
    // many equal terms, would lose bits in an f32 sum.
    float part[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      float rest;
      const std::uint32_t n = exp_parts<kCompensated>(element<T>(v[j], i), top, rest);
      const float scale = __uint_as_float((n << 23) + 0x3F800000u);
      sum += __hiloint2double(static_cast<int>((n << 20) + 0x3FF00000u), 0);
      part[i % 2] = fmaf(scale, rest, part[i % 2]);
    }
    sum += static_cast<double>(part[0] + part[1]);
  }
  return sum;
}

constexpr float kLog2E = 1.44269502f;           // log2(e) in f32,
constexpr double kLog2ERest = 1.9259629911e-8;  // and what it leaves
constexpr float kMiddle = 6.0f;                 // of the exponents that matter, below the greatest

// Sum of 2^(x kLog2E - shift) by the hardware's 2^x, where shift is about top kLog2E - kMiddle and
// |top| < 2^13; that is e^x over a constant if kLog2ERest is made up for at top - kMiddle ln 2. Of
// it, |error| < 2^-21: where up to 20,480 elements matter, their exponents lie in [-8, 8] and are
// rounded by 2^-22, 1.65e-7 of e^x; 2^x is within 1.44e-7 of itself (every f32 was tried), two
// additions in f32 within 1.19e-7, and what kLog2ERest leaves within 0.8e-7, of the other sign than
// the greater error of 2^x.
template <class T>
__device__ double thread_sum_fast(const uint4 (&v)[kVectors], float shift) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; i += 4) {
      float e[4];
#pragma unroll
      for (int l = 0; l < 4; ++l)
        e[l] = power_of_two(fmaf(element<T>(v[j], i + l), kLog2E, -shift));
      sum += static_cast<double>((e[0] + e[1]) + (e[2] + e[3]));
    }
  }
  return sum;
}

struct Shared {
  std::uint64_t keys[kBuffer];
  uint4 staged[kStaged * kVectors];  // vectors of threads whose maximum reaches the threshold
  int owner[kStaged];                // those threads
  double sums[kWarps];
  std::uint32_t words[2][kWarps];
  int bins[kLaneBins][32];    // those of a lane follow each other in the histogram
  std::uint32_t most, least;  // the bin in which the first k thread maxima end
  int above, reached;         // how many are above it, and how many above it or in it
  int count;                  // of keys
  int stages;                 // of staged threads; more than kStaged: not all are there
};

// The greatest of the thread maxima of a block and the least finite one, in key bits.
struct Range {
  std::uint32_t top, least;
};

__device__ Range block_range(std::uint32_t mine, Shared& s) {
  const std::uint32_t top = __reduce_max_sync(~0u, mine);
  const std::uint32_t least = __reduce_min_sync(~0u, mine > kMinusInf ? mine : ~0u);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  if (lane == 0) {
    s.words[0][warp] = top;
    s.words[1][warp] = least;
  }
  __syncthreads();
  const int from = lane % kWarps;
  return {__reduce_max_sync(~0u, s.words[0][from]), __reduce_min_sync(~0u, s.words[1][from])};
}

// Sum over a warp in a fixed order, so that it has the same bits on every run.
__device__ double warp_sum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Of what each warp left in s.sums.
__device__ double sum_of_warps(const Shared& s) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return warp_sum(lane < kWarps ? s.sums[lane] : 0.0);
}

__device__ double block_sum(double x, Shared& s) {
  x = warp_sum(x);
  __syncthreads();  // an earlier sum has been read by all
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = x;
  __syncthreads();
  return sum_of_warps(s);
}

// Sum over the block. Calls alternate `slot`, so that one barrier each is enough.
__device__ int block_count(int x, int slot, Shared& s) {
  const std::uint32_t warp_count = __reduce_add_sync(~0u, static_cast<std::uint32_t>(x));
  if (threadIdx.x % 32 == 0) s.words[slot][threadIdx.x / 32] = warp_count;
  __syncthreads();
  x = 0;
  for (int w = 0; w < kWarps; ++w) x += static_cast<int>(s.words[slot][w]);
  return x;
}

// A bin of the histogram of [least, top] is 2^bin_shift keys wide; bin 0 holds `top`.
__device__ int bin_shift(std::uint32_t top, std::uint32_t least) {
  return max(32 - __clz(static_cast<int>(top - least)) - kBinBits, 0);
}

__device__ void count_in_bin(std::uint32_t mine, std::uint32_t top, std::uint32_t least,
                             Shared& s) {
  if (mine > top || mine < least) return;
  const std::uint32_t bin = (top - mine) >> bin_shift(top, least);
  atomicAdd(&s.bins[bin % kLaneBins][bin / kLaneBins], 1);
}

// Sums of x over the lanes up to this one.
__device__ int sums_upto(int x) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, x, step);
    x += lane >= step ? other : 0;
  }
  return x;
}

// By one warp: the bin in which the first k keys end, when `above` are above all bins.
__device__ void find_bin(std::uint32_t top, std::uint32_t least, int above, int k, Shared& s) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int sum = 0;
#pragma unroll 4
  for (int i = 0; i < kLaneBins; ++i) sum += s.bins[i][lane];
  int upto = above + sums_upto(sum);
  unsigned enough = __ballot_sync(~0u, upto >= k);
  if (enough == 0) {  // fewer than k are finite: whatever is
    if (lane == 0) {
      s.least = 0;
      s.reached = 0;
    }
    return;
  }
  const int owner = __ffs(static_cast<int>(enough)) - 1;
  above = __shfl_sync(~0u, upto - sum, owner);
  sum = lane < kLaneBins ? s.bins[lane][owner] : 0;
  upto = above + sums_upto(sum);
  enough = __ballot_sync(~0u, upto >= k);
  if (lane != __ffs(static_cast<int>(enough)) - 1) return;
  const int shift = bin_shift(top, least);
  s.most = top - (static_cast<std::uint32_t>(owner * kLaneBins + lane) << shift);
  const std::uint32_t width = (1u << shift) - 1;
  s.least = s.most - least > width ? s.most - width : least;
  s.reached = upto;
  s.above = upto - sum;
}

// The K-th greatest value of the chunk, in key bits; 0 when fewer than k are finite.
template <class T>
__device__ std::uint32_t kth_value(const uint4 (&v)[kVectors], std::uint32_t top, int k,
                                   Shared& s) {
  std::uint32_t found = 0;
  int slot = 0;
  __syncthreads();  // the words have been read by all
  for (int bit = 31; bit >= 32 - Lanes<T>::kKeyBits; --bit) {
    const std::uint32_t trial = found | 1u << bit;
    if (trial > top) continue;
    if (trial <= kMinusInf) break;
    const float threshold = unordered(trial);
    int mine = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int i = 0; i < Lanes<T>::kCount; ++i) mine += element<T>(v[j], i) >= threshold ? 1 : 0;
    }
    slot ^= 1;
    if (block_count(mine, slot, s) >= k) found = trial;
  }
  return found;
}

template <class T>
__device__ std::uint32_t id_in_chunk(int j, int i) {
  return static_cast<std::uint32_t>(
      (j * kThreads + static_cast<int>(threadIdx.x)) * Lanes<T>::kCount + i);
}

// All elements of at least `threshold` (finite) into s.keys, as far as they fit; s.count of them.
template <class T>
__device__ void collect(const uint4 (&v)[kVectors], float threshold, std::uint32_t first_id,
                        Shared& s) {
  int mine = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (vector_max<T>(v[j]) < threshold) continue;
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) mine += element<T>(v[j], i) >= threshold ? 1 : 0;
  }
  if (mine == 0) return;
  int at = atomicAdd(&s.count, mine);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (vector_max<T>(v[j]) < threshold) continue;
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      if (x >= threshold) {
        if (at < kBuffer) s.keys[at] = key_of(x, first_id + id_in_chunk<T>(j, i));
        ++at;
      }
    }
  }
}

// The same where few threads have a maximum of at least `threshold`: these hand their vectors to
// the block, a vector to a thread. All threads.
template <class T>
__device__ void collect_staged(const uint4 (&v)[kVectors], float thread_top, float threshold,
                               std::uint32_t first_id, Shared& s) {
  const bool has = thread_top >= threshold;
  const unsigned having = __ballot_sync(~0u, has);
  const int lane = static_cast<int>(threadIdx.x % 32);
  int at = 0;
  if (lane == 0 && having != 0) at = atomicAdd(&s.stages, __popc(having));
  at = __shfl_sync(~0u, at, 0) + __popc(having & ((1u << lane) - 1));
  if (has && at < kStaged) {
    s.owner[at] = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) s.staged[at * kVectors + j] = v[j];
  }
  __syncthreads();
  const int stages = s.stages;
  if (stages > kStaged) {
    if (has) collect<T>(v, threshold, first_id, s);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < stages * kVectors; i += kThreads) {
    const uint4 mine = s.staged[i];
    if (vector_max<T>(mine) < threshold) continue;
    const int vector = i % kVectors * kThreads + s.owner[i / kVectors];
#pragma unroll
    for (int e = 0; e < Lanes<T>::kCount; ++e) {
      const float x = element<T>(mine, e);
      if (x < threshold) continue;
      const int to = atomicAdd(&s.count, 1);
      if (to < kBuffer)
        s.keys[to] =
            key_of(x, first_id + static_cast<std::uint32_t>(vector * Lanes<T>::kCount + e));
    }
  }
}

// Exactly the k best of the chunk (or all finite ones) into s.keys: whatever is above the K-th
// value, then of its equals those of the lowest ids. Returns their number.
template <class T>
__device__ int select_exactly(const uint4 (&v)[kVectors], std::uint32_t top, int k,
                              std::uint32_t first_id, Shared& s) {
  constexpr std::uint32_t kLowBits =
      Lanes<T>::kKeyBits == 32 ? 0u : (1u << (32 - Lanes<T>::kKeyBits)) - 1u;
  const std::uint32_t found = kth_value<T>(v, top, k, s);
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  const float at_least = unordered(found);
  const float above = unordered((found | kLowBits) + 1);  // the least value above the K-th
  collect<T>(v, found == 0 ? kLowest : above, first_id, s);
  __syncthreads();
  if (found == 0) return s.count;
  int left = k - s.count;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {  // ids ascend with j, then with the thread
    if (left == 0) break;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      mine += x >= at_least && x < above ? 1 : 0;
    }
    std::uint32_t upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0u, upto, step);
      upto += lane >= step ? other : 0;
    }
    if (lane == 31) s.words[j % 2][warp] = upto;
    __syncthreads();
    int before = static_cast<int>(upto - mine), all = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int warp_count = static_cast<int>(s.words[j % 2][w]);
      before += w < warp ? warp_count : 0;
      all += warp_count;
    }
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      if (x >= at_least && x < above) {
        if (before < left) s.keys[k - left + before] = key_of(x, first_id + id_in_chunk<T>(j, i));
        ++before;
      }
    }
    left -= min(left, all);
  }
  __syncthreads();
  return k - left;
}

// The first `kept` of s.keys[0..count) in descending order to `list`.
__device__ void sort_keys(int count, int kept, std::uint64_t* list, Shared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  if (count <= kRankSort) {
    if (thread / 32 * 8 >= count) return;  // nothing for the whole warp
    const int quarter = thread % 4;
    const std::uint64_t mine = thread / 4 < count ? s.keys[thread / 4] : 0;
    int rank = 0;
#pragma unroll 4
    for (int i = quarter; i < count; i += 4) rank += s.keys[i] > mine ? 1 : 0;
    rank += __shfl_xor_sync(~0u, rank, 1);
    rank += __shfl_xor_sync(~0u, rank, 2);
    if (quarter == 0 && thread / 4 < count && rank < kept) list[rank] = mine;
    return;
  }
  int size = 2 * kRankSort;
  while (size < count) size *= 2;
  for (int i = count + thread; i < size; i += kThreads) s.keys[i] = 0;
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      if (thread < size / 2) {
        const int a = 2 * thread - (thread & (step - 1)), b = a + step;
        const bool descending = (a & width) == 0;
        const std::uint64_t x = s.keys[a], y = s.keys[b];
        if ((x < y) == descending) {
          s.keys[a] = y;
          s.keys[b] = x;
        }
      }
      __syncthreads();
    }
  }
  for (int i = thread; i < kept; i += kThreads) list[i] = s.keys[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    select_chunk(const T* logits, std::int64_t rows, std::int64_t vocab, int chunks,
                 int chunk_vectors, int k, Part* parts, std::uint64_t* lists) {
  __shared__ Shared s;
  const std::int64_t row_at = blockIdx.x / static_cast<unsigned>(chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(chunks));
  const T* row = logits + row_at * vocab;
  const std::int64_t first = static_cast<std::int64_t>(chunk) * chunk_vectors * Lanes<T>::kCount;
  const int thread = static_cast<int>(threadIdx.x);

  s.bins[thread / 32][thread % 32] = 0;
  if (thread == 0) s.count = s.stages = 0;
  wait_for_last();
  let_next_start();
  uint4 v[kVectors];
  load_chunk(row, first, vocab, chunk_vectors, logits, logits + rows * vocab, v);
  const float thread_top = thread_max<T>(v);
  const std::uint32_t mine = ordered(thread_top + 0.0f);
  const Range range = block_range(mine, s);  // its barrier also shows the zeros
  const float top = unordered(range.top);
  Part& part = parts[blockIdx.x];
  if (top == INFINITY || range.top <= kMinusInf) {
    if (thread == 0) part = {-INFINITY, -INFINITY, top == INFINITY ? -1 : 0};
    return;
  }

  // Beside the sums, a histogram of the thread maxima finds a value that at least k elements of the
  // chunk reach, and few more.
  const bool by_bins = k > 0 && k <= kFastK;
  const int warp = thread / 32;
  if (by_bins) {
    count_in_bin(mine, range.top, range.least, s);
    __syncthreads();
    if (warp == 0) find_bin(range.top, range.least, 0, k, s);
  }
  const bool fast = fabsf(top) < 8192.0f;
  const float shift = top * kLog2E - kMiddle;
  if (fast) {
    const double sum = warp_sum(thread_sum_fast<T>(v, shift));
    if (thread % 32 == 0) s.sums[warp] = sum;
  }
  __syncthreads();

  int count = 0;
  if (k > 0) {
    bool exact = !by_bins;
    if (!exact) {
      // An outlier makes the bins wide: split the last one until it holds few.
      while (s.reached > k + k / 4 && s.most - s.least >> (32 - Lanes<T>::kKeyBits) != 0) {
        const std::uint32_t bin_top = s.most, bin_least = s.least;
        const int above = s.above;
        __syncthreads();
        s.bins[warp][thread % 32] = 0;
        __syncthreads();
        count_in_bin(mine, bin_top, bin_least, s);
        __syncthreads();
        if (warp == 0) find_bin(bin_top, bin_least, above, k, s);
        __syncthreads();
      }
      const float threshold = s.least <= kMinusInf ? kLowest : unordered(s.least);
      collect_staged<T>(v, thread_top, threshold, static_cast<std::uint32_t>(first), s);
      __syncthreads();
      count = s.count;
      exact = count > kBuffer;
    }
    if (exact) {
      count = select_exactly<T>(v, range.top, k, static_cast<std::uint32_t>(first), s);
    }
    sort_keys(count, min(count, k), lists + static_cast<std::int64_t>(blockIdx.x) * k, s);
  }

  // An lse of 8 or more has an ulp that the fast sum keeps well; the row's is at least the chunk's.
  const double fast_sum = fast ? sum_of_warps(s) : 0.0;
  const int exponent = (__double2hiint(fast_sum) >> 20) - 1023 + static_cast<int>(floorf(shift));
  if (fast && exponent >= 12) {     // 2^12 > e^8
    if (thread == kThreads - 32) {  // of a warp with little to sort
      constexpr double kLn2 = 0.6931471805599453;
      const double middle = static_cast<double>(top) - kLn2 * kMiddle;
      const double base = (static_cast<double>(shift) + middle * kLog2ERest) * kLn2;
      part = {log(fast_sum) + base, top, min(count, k)};
    }
    return;
  }
  // Near 0 the maximum has bits that x - top cannot keep.
  const bool compensated = sizeof(T) == 4 || (fabsf(top) < 0x1p-6f && top != 0.0f);
  const double sum =
      block_sum(compensated ? thread_sum<T, true>(v, top) : thread_sum<T, false>(v, top), s);
  if (thread == 0) part = {static_cast<double>(top) + log(sum), top, min(count, k)};
}

// How many keys of a descending list are greater than `key`; top_step is a power of two above n
// / 2.
__device__ int greater_keys(const std::uint64_t* list, int n, int top_step, std::uint64_t key) {
  int at = 0;
  for (int step = top_step; step > 0; step /= 2)
    if (at + step <= n && list[at + step - 1] > key) at += step;
  return at;
}

// Merges n descending lists of stride k in `from`, pair by pair, to one of at most k keys: each key
// finds its place by a search in the other list. Returns the buffer that holds it.
__device__ std::uint64_t* merge_lists(std::uint64_t* from, std::uint64_t* to, int* counts, int n,
                                      int k) {
  const int thread = static_cast<int>(threadIdx.x);
  int top_step = 1;
  while (2 * top_step <= k) top_step *= 2;
  for (; n > 1; n = (n + 1) / 2) {
    for (int i = thread; i < n * k; i += kThreads) {
      const int list = i / k, at = i % k, other = list ^ 1;
      if (at >= counts[list]) continue;
      const std::uint64_t key = from[i];
      const int ahead = other < n ? counts[other] : 0;
      const int rank = at + greater_keys(from + other * k, ahead, top_step, key);
      if (rank < k) to[list / 2 * k + rank] = key;
    }
    const int left = 2 * thread < n ? counts[2 * thread] : 0;
    const int right = 2 * thread + 1 < n ? counts[2 * thread + 1] : 0;
    __syncthreads();
    if (2 * thread < n) counts[thread] = min(k, left + right);
    __syncthreads();
    std::uint64_t* swap = from;
    from = to;
    to = swap;
  }
  return from;
}

struct Outputs {
  std::int32_t* ids;
  float* logprobs;
  float* lse;
  std::int32_t* status;
};

// Merges the chunks of a row. `capacity` lists fit shared memory at a time.
__global__ void __launch_bounds__(kThreads)
    merge_chunks(const Part* parts, const std::uint64_t* lists, int depths, int chunks, int k,
                 int capacity, Outputs out) {
  extern __shared__ std::uint64_t shared_keys[];  // capacity lists, then half as many
  __shared__ int counts[kThreads];
  __shared__ float shared_lse;
  const std::int64_t row = blockIdx.x;
  const std::int64_t request = row / depths;
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_last();
  let_next_start();

  const Part* mine = parts + row * chunks;
  // Lists [from, from + more) to places held, held + 1, ...
  const auto take = [&](int from, int held, int more) {
    const std::uint64_t* source = lists + (row * chunks + from) * k;
    for (int i = thread; i < more; i += kThreads) counts[held + i] = mine[from + i].count;
    for (int i = thread; i < more * k; i += kThreads)
      if (i % k < mine[from + i / k].count) shared_keys[held * k + i] = source[i];
  };
  bool bad = false;
  const int request_parts = depths * chunks;
  for (int i = thread; i < request_parts; i += kThreads)
    bad = bad || parts[request * request_parts + i].count < 0;
  int done = k > 0 ? min(capacity, chunks) : 0;
  take(0, 0, done);
  bad = block_any(bad);
  if (thread == 0 && row % depths == 0) out.status[request] = bad ? kBadInput : kOk;

  if (thread >= kThreads - 32) {  // the last warp has the least to do below
    const int lane = thread % 32;
    float top = -INFINITY;
    double most = -INFINITY;
    for (int i = lane; i < chunks; i += 32) {
      top = fmaxf(top, mine[i].top);
      most = fmax(most, mine[i].lse);
    }
    for (int step = 16; step > 0; step /= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      most = fmax(most, __shfl_xor_sync(~0u, most, step));
    }
    double sum = 0;
    for (int i = lane; i < chunks; i += 32)
      if (mine[i].top > -INFINITY) sum += exp(mine[i].lse - most);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
      // Rounding may not take lse below the maximum.
      const float lse = fmaxf(static_cast<float>(most + log(sum)), top);
      shared_lse = bad || top == -INFINITY ? -INFINITY : lse;
      out.lse[row] = shared_lse;
    }
  }

  std::uint64_t* keys = shared_keys;
  for (int held = done; !bad && k > 0;) {
    keys = merge_lists(shared_keys, shared_keys + static_cast<std::int64_t>(capacity) * k, counts,
                       held, k);
    if (done == chunks) break;
    if (keys != shared_keys)
      for (int i = thread; i < counts[0]; i += kThreads) shared_keys[i] = keys[i];
    const int more = min(capacity - 1, chunks - done);
    take(done, 1, more);
    done += more;
    held = 1 + more;
    __syncthreads();
  }
  __syncthreads();

  const int count = bad || k == 0 ? 0 : counts[0];
  const float lse = shared_lse;
  for (int i = thread; i < k; i += kThreads) {
    out.ids[row * k + i] = i < count ? id_of(keys[i]) : -1;
    out.logprobs[row * k + i] = i < count ? value_of(keys[i]) - lse : -INFINITY;
  }
}

struct Plan {
  std::int64_t rows;
  int depths, chunks, chunk_vectors, k;
  std::size_t parts_bytes, bytes;
};

Plan plan(Call& c) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R L V");
  const std::int64_t k = c.attr_int("K");
  KDTR_CHECK(k >= 0 && k <= kBuffer, c.where("K"), "candidates per depth", "0 to 1024", k);
  const std::int64_t vocab = c.dim("V"), rows = c.dim("R") * c.dim("L");
  KDTR_CHECK(vocab < 0x7FFFFFFF, c.where("logits"), "vocabulary", "below 2^31 - 1", vocab);
  const std::int64_t lanes = 128 / logits.dtype.bits;
  const std::int64_t vectors = (vocab + lanes - 1) / lanes;
  const std::int64_t most = kThreads * kVectors;
  const std::int64_t chunks = std::max<std::int64_t>((vectors + most - 1) / most, 1);
  KDTR_CHECK(rows * chunks < 0x7FFFFFFF, c.where("logits"), "blocks", "below 2^31 - 1",
             rows * chunks);
  Plan p{};
  p.rows = rows;
  p.depths = static_cast<int>(c.dim("L"));
  p.chunks = static_cast<int>(chunks);
  p.chunk_vectors = static_cast<int>((vectors + chunks - 1) / chunks);
  p.k = static_cast<int>(k);
  p.parts_bytes = static_cast<std::size_t>(rows * chunks) * sizeof(Part);
  p.bytes = p.parts_bytes + static_cast<std::size_t>(rows * chunks * k) * sizeof(std::uint64_t);
  return p;
}

std::size_t workspace(Call& c) { return plan(c).bytes; }

void run(Call& c, void* stream) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R L V");
  const Plan p = plan(c);
  c.bind("K", p.k);
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const auto lse = c.out<float>("lse", "R L");
  const auto status = c.out<std::int32_t>("status", "R");
  KDTR_CHECK(c.workspace_size() >= p.bytes, c.where("workspace"), "bytes", p.bytes,
             c.workspace_size());
  cudaStream_t queue = cuda_stream(stream);
  if (p.rows == 0) {
    const auto bytes_of_status = static_cast<std::size_t>(c.dim("R")) * sizeof(std::int32_t);
    if (bytes_of_status > 0) KDTR_CUDA(cudaMemsetAsync(status.data, 0, bytes_of_status, queue));
    return;
  }
  auto* parts = static_cast<Part*>(c.workspace());
  auto* lists =
      reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(c.workspace()) + p.parts_bytes);
  with_float(c, "logits", logits.dtype, [&](auto in) {
    using T = decltype(in);
    // grid: a block per chunk of a row; block: 512 threads of up to 80 bytes; smem: 19 KiB
    launch_next(select_chunk<T>, dim3(static_cast<unsigned>(p.rows * p.chunks)), kThreads, 0, queue,
                static_cast<const T*>(bytes(logits)), p.rows, c.dim("V"), p.chunks, p.chunk_vectors,
                p.k, parts, lists);
  });
  // grid: a block per row; block: 512 threads, a key each at a time; smem: 1.5 times the lists
  const std::size_t list_bytes = static_cast<std::size_t>(std::max(p.k, 1)) * sizeof(std::uint64_t);
  const auto fit = static_cast<int>(kMergeBytes / (list_bytes + list_bytes / 2)) / 2 * 2;
  const int capacity = std::min({fit, (p.chunks + 1) / 2 * 2, int{kThreads}});
  const std::size_t smem = static_cast<std::size_t>(capacity + capacity / 2) * list_bytes;
  KDTR_CUDA(
      cudaFuncSetAttribute(merge_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize, kMergeBytes));
  launch_next(merge_chunks, dim3(static_cast<unsigned>(p.rows)), kThreads, smem, queue,
              static_cast<const Part*>(parts), static_cast<const std::uint64_t*>(lists), p.depths,
              p.chunks, p.k, capacity, Outputs{ids.data, logprobs.data, lse.data, status.data});
}

KDTR_KERNEL({"topk_logprobs@1", run, workspace});

}  // namespace
}  // namespace kdtr::cuda
