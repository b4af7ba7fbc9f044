// topk_logprobs@1 on cuda: one read of the logits, f32, bf16 or f16; lse in f32 pairs and doubles.
// logits [R, L, V], K -> ids, logprobs [R, L, K], lse [R, L], status [R]. No aliasing.
//
// A row is cut into chunks that a block holds in registers. Per chunk: its maximum, the sum of
// exponentials against it, and its K best as a sorted list. A second kernel merges the chunks of a
// row by rank. Chunks depend on V and the dtype only, so a row's bits do not depend on its batch.
#include <algorithm>
#include <cmath>

#include "detail/floats.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kVectors = 5;     // 16-byte vectors a thread holds
constexpr int kFastK = 256;     // up to here thread maxima bound the K-th value well
constexpr int kBuffer = 1024;   // candidates of a chunk; at least the largest K
constexpr int kRankSort = 128;  // up to here sorting by counting is fastest
constexpr int kMergeThreads = 512;
constexpr int kMergeKeys = 4096;                  // lists up to here are merged in shared memory
constexpr std::uint32_t kMinusInf = 0x007FFFFFu;  // ordered(-inf)

// What one chunk contributes to its row. count < 0: a NaN or +inf was seen.
struct Part {
  double sum;  // of exp(x - top)
  float top;
  int count;  // keys in the chunk's list
};

// Order-preserving bits: greater value, greater bits. -0 must be made +0 before.
__device__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ float unordered(std::uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

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

// Elements of a 16-byte vector, and the threshold bits that tell values of the type apart.
template <class T>
struct Lanes {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  static constexpr int kKeyBits = sizeof(T) == 4 ? 32 : std::is_same_v<T, __half> ? 19 : 16;
  static constexpr std::uint32_t kFill =  // -inf in every element
      sizeof(T) == 4              ? 0xFF800000u
      : std::is_same_v<T, __half> ? 0xFC00FC00u
                                  : 0xFF80FF80u;
};

template <class T>
__device__ float element(const uint4& v, int i) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(words[i]);
  } else {
    const std::uint32_t word = words[i / 2];
    if constexpr (std::is_same_v<T, __half>) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (i % 2 * 16))));
    } else {
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    }
  }
}

__device__ std::uint32_t nan_max(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 x = __hmax2_nan(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                       *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&x);
}
__device__ std::uint32_t nan_max(std::uint32_t a, std::uint32_t b, __half) {
  const __half2 x =
      __hmax2_nan(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&x);
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

// 16 bytes from an address that is not a multiple of 16; the 32 bytes around it are readable.
__device__ uint4 load_shifted(const void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const uint4* base = reinterpret_cast<const uint4*>(address & ~std::uintptr_t{15});
  const uint4 a = __ldg(base), b = __ldg(base + 1);
  std::uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if ((address & 4) != 0) {
#pragma unroll
    for (int i = 0; i < 7; ++i) w[i] = w[i + 1];
  }
  if ((address & 8) != 0) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 2];
  }
  const auto bits = static_cast<std::uint32_t>(address & 3) * 8;
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
          __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

// Elements [first, first + Lanes) of a row; -inf past its end. Nothing outside the tensor is read.
template <class T>
__device__ uint4 load_vector(const T* row, std::int64_t first, std::int64_t vocab, const T* begin,
                             const T* end) {
  constexpr int kCount = Lanes<T>::kCount;
  const T* at = row + first;
  if (first + kCount <= vocab) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (address % 16 == 0) return __ldg(reinterpret_cast<const uint4*>(at));
    if (at - kCount >= begin && at + 2 * kCount <= end) return load_shifted(at);
  }
  std::uint32_t words[4] = {Lanes<T>::kFill, Lanes<T>::kFill, Lanes<T>::kFill, Lanes<T>::kFill};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i >= vocab) break;
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(at[i]);
    } else {
      const std::uint32_t bits = reinterpret_cast<const unsigned short*>(at)[i];
      const int shift = i % 2 * 16;
      words[i / 2] = (words[i / 2] & ~(0xFFFFu << shift)) | bits << shift;
    }
  }
  return {words[0], words[1], words[2], words[3]};
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

struct Shared {
  std::uint64_t keys[kBuffer];
  double sums[kWarps];
  std::uint32_t words[2][kWarps];
  int count;
};

__device__ std::uint32_t block_max(std::uint32_t x, Shared& s) {
  x = __reduce_max_sync(~0u, x);
  if (threadIdx.x % 32 == 0) s.words[0][threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) x = max(x, s.words[0][w]);
  return x;
}

// Sum over the block. Calls alternate `slot`, from 1 on, so that one barrier each is enough.
__device__ std::uint32_t block_sum(std::uint32_t x, int slot, Shared& s) {
  x = __reduce_add_sync(~0u, x);
  if (threadIdx.x % 32 == 0) s.words[slot][threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < kWarps; ++w) x += s.words[slot][w];
  return x;
}

// The greatest threshold, in key bits, that at least k of the thread maxima reach; 0 if there are
// fewer finite ones. At least k elements of the chunk reach it too.
template <class T>
__device__ std::uint32_t lower_bound(std::uint32_t mine, std::uint32_t top, int k) {
  std::uint32_t found = 0;
  for (int bit = 31; bit >= 32 - Lanes<T>::kKeyBits; --bit) {
    const std::uint32_t trial = found | 1u << bit;
    if (trial > top) continue;
    const int reached = __syncthreads_count(mine >= trial && mine > kMinusInf);
    if (reached >= k) found = trial;
    if (reached == k) break;
  }
  return found;
}

// The K-th greatest value of the chunk, in key bits; 0 when fewer than k are finite.
template <class T>
__device__ std::uint32_t kth_value(const uint4 (&v)[kVectors], std::uint32_t top, int k,
                                   Shared& s) {
  std::uint32_t found = 0;
  int slot = 0;
  for (int bit = 31; bit >= 32 - Lanes<T>::kKeyBits; --bit) {
    const std::uint32_t trial = found | 1u << bit;
    if (trial > top) continue;
    slot ^= 1;
    const float threshold = unordered(trial);  // NaN below ordered(-inf): reached by none
    std::uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int i = 0; i < Lanes<T>::kCount; ++i) {
        const float x = element<T>(v[j], i);
        mine += x >= threshold && x > -INFINITY ? 1 : 0;
      }
    }
    if (block_sum(mine, slot, s) >= static_cast<std::uint32_t>(k)) found = trial;
  }
  return found;
}

// All elements above `threshold` (at it too, unless `strictly`) into s.keys; true while they fit.
template <class T>
__device__ void collect(const uint4 (&v)[kVectors], float threshold, bool strictly,
                        std::uint32_t first_id, int limit, Shared& s) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      if ((strictly ? x > threshold : x >= threshold) && x > -INFINITY) {
        const int at = atomicAdd(&s.count, 1);
        const std::uint32_t id =
            first_id + static_cast<std::uint32_t>(
                           (j * kThreads + static_cast<int>(threadIdx.x)) * Lanes<T>::kCount + i);
        if (at < limit) s.keys[at] = key_of(x, id);
      }
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
  if (found == 0) {
    collect<T>(v, -INFINITY, true, first_id, kBuffer, s);
    __syncthreads();
    return s.count;
  }
  const float above = unordered(found | kLowBits), at_least = unordered(found);
  collect<T>(v, above, true, first_id, kBuffer, s);
  __syncthreads();
  int left = k - s.count;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {  // vectors of one j are in order of id
    if (left == 0) break;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    std::uint32_t mine = 0;
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      mine += x >= at_least && x <= above ? 1 : 0;
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
    for (int i = 0; i < Lanes<T>::kCount; ++i) {
      const float x = element<T>(v[j], i);
      if (x >= at_least && x <= above) {
        const std::uint32_t id =
            first_id + static_cast<std::uint32_t>(
                           (j * kThreads + static_cast<int>(threadIdx.x)) * Lanes<T>::kCount + i);
        if (before < left) s.keys[k - left + before] = key_of(x, id);
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
    if (thread < count) {
      const std::uint64_t mine = s.keys[thread];
      int rank = 0;
      for (int i = 0; i < count; ++i) rank += s.keys[i] > mine ? 1 : 0;
      if (rank < kept) list[rank] = mine;
    }
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
__global__ void __launch_bounds__(kThreads, 2)
    select_chunk(const T* logits, std::int64_t rows, std::int64_t vocab, int chunks,
                 int chunk_vectors, int k, Part* parts, std::uint64_t* lists) {
  __shared__ Shared s;
  const std::int64_t row_at = blockIdx.x / static_cast<unsigned>(chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(chunks));
  const T* row = logits + row_at * vocab;
  const std::int64_t first = static_cast<std::int64_t>(chunk) * chunk_vectors * Lanes<T>::kCount;
  const int thread = static_cast<int>(threadIdx.x);

  uint4 v[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int vector = j * kThreads + thread;
    const std::int64_t at = first + static_cast<std::int64_t>(vector) * Lanes<T>::kCount;
    constexpr std::uint32_t kFill = Lanes<T>::kFill;
    v[j] = vector < chunk_vectors && at < vocab
               ? load_vector<T>(row, at, vocab, logits, logits + rows * vocab)
               : uint4{kFill, kFill, kFill, kFill};
  }

  if (thread == 0) s.count = 0;
  const float thread_top = thread_max<T>(v);
  const std::uint32_t mine = ordered(thread_top + 0.0f);
  const std::uint32_t top_bits = block_max(mine, s);  // its barrier also shows s.count
  const float top = unordered(top_bits);
  Part& part = parts[blockIdx.x];
  if (top == INFINITY || top_bits == kMinusInf) {
    if (thread == 0) part = {0.0, -INFINITY, top == INFINITY ? -1 : 0};
    return;
  }

  int count = 0;
  if (k > 0) {
    bool exact = k > kFastK;
    if (!exact) {
      const std::uint32_t found = lower_bound<T>(mine, top_bits, k);
      const float threshold = found <= kMinusInf ? -INFINITY : unordered(found);
      if (thread_top >= threshold) {
        collect<T>(v, threshold, false, static_cast<std::uint32_t>(first), kBuffer, s);
      }
      __syncthreads();
      count = s.count;
      exact = count > kBuffer;
    }
    if (exact) {
      count = select_exactly<T>(v, top_bits, k, static_cast<std::uint32_t>(first), s);
    }
    sort_keys(count, min(count, k), lists + static_cast<std::int64_t>(blockIdx.x) * k, s);
  }

  // Near 0 the maximum has bits that x - top cannot keep.
  const bool compensated = sizeof(T) == 4 || (fabsf(top) < 0x1p-6f && top != 0.0f);
  double sum = compensated ? thread_sum<T, true>(v, top) : thread_sum<T, false>(v, top);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (thread % 32 == 0) s.sums[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) {
    sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += s.sums[w];
    part = {sum, top, min(count, k)};
  }
}

// Number of keys of a descending list that are greater than `key`, for up to 8 lists at a time.
__device__ int rank_among(std::uint64_t key, const std::uint64_t* lists, const int* counts,
                          int chunks, int k) {
  int rank = 0;
  int top_step = 1;
  while (2 * top_step <= k) top_step *= 2;
  for (int from = 0; from < chunks; from += 8) {
    int at[8] = {};
    for (int step = top_step; step > 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // eight searches at once hide each other's latency
        const int chunk = from + i;
        if (chunk < chunks && at[i] + step <= counts[chunk] &&
            lists[static_cast<std::int64_t>(chunk) * k + at[i] + step - 1] > key) {
          at[i] += step;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) rank += at[i];
  }
  return rank;
}

struct Outputs {
  std::int32_t* ids;
  float* logprobs;
  float* lse;
  std::int32_t* status;
};

__global__ void __launch_bounds__(kMergeThreads)
    merge_chunks(const Part* parts, const std::uint64_t* lists, int depths, int chunks, int k,
                 bool in_shared, Outputs out) {
  extern __shared__ std::uint64_t keys[];  // [chunks * k] when in_shared, then int counts[chunks]
  __shared__ float shared_lse;
  const std::int64_t row = blockIdx.x;
  const std::int64_t request = row / depths;
  const int thread = static_cast<int>(threadIdx.x);

  bool bad = false;
  const int request_parts = depths * chunks;
  for (int i = thread; i < request_parts; i += kMergeThreads)
    bad = bad || parts[request * request_parts + i].count < 0;
  bad = __syncthreads_or(bad) != 0;
  if (thread == 0 && row % depths == 0) out.status[request] = bad ? kBadInput : kOk;

  const Part* mine = parts + row * chunks;
  int* counts = reinterpret_cast<int*>(keys + (in_shared ? chunks * k : 0));
  for (int i = thread; i < chunks; i += kMergeThreads) counts[i] = bad ? 0 : mine[i].count;
  const std::uint64_t* all = lists + row * chunks * k;
  if (in_shared) {
    for (int i = thread; i < chunks * k; i += kMergeThreads) {
      if (i % k < mine[i / k].count) keys[i] = all[i];
    }
    all = keys;
  }
  if (thread < 32) {
    float top = -INFINITY;
    for (int i = thread; i < chunks; i += 32) top = fmaxf(top, mine[i].top);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    double sum = 0;
    for (int i = thread; i < chunks; i += 32) {
      if (mine[i].top > -INFINITY)
        sum += mine[i].sum * exp(static_cast<double>(mine[i].top) - static_cast<double>(top));
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (thread == 0) {
      const bool empty = bad || top == -INFINITY;
      const auto lse = static_cast<float>(static_cast<double>(top) + log(sum));
      shared_lse = empty ? -INFINITY : fmaxf(lse, top);  // the sum may round below 1
      out.lse[row] = shared_lse;
    }
  }
  __syncthreads();

  const float lse = shared_lse;
  int total = 0;
  for (int i = 0; i < chunks; ++i) total += counts[i];
  for (int i = thread; i < chunks * k; i += kMergeThreads) {
    if (i % k >= counts[i / k]) continue;
    const std::uint64_t key = all[i];
    const int rank = rank_among(key, all, counts, chunks, k);
    if (rank >= k) continue;
    out.ids[row * k + rank] = id_of(key);
    out.logprobs[row * k + rank] = value_of(key) - lse;
  }
  for (int i = total + thread; i < k; i += kMergeThreads) {
    out.ids[row * k + i] = -1;
    out.logprobs[row * k + i] = -INFINITY;
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
    // grid: a block per chunk of a row; block: 512 threads of up to 80 bytes; smem: 8.5 KiB
    select_chunk<T><<<static_cast<unsigned>(p.rows * p.chunks), kThreads, 0, queue>>>(
        static_cast<const T*>(bytes(logits)), p.rows, c.dim("V"), p.chunks, p.chunk_vectors, p.k,
        parts, lists);
    KDTR_LAUNCHED("topk_logprobs@1");
  });
  const std::int64_t keys = static_cast<std::int64_t>(p.chunks) * p.k;
  const bool in_shared = keys <= kMergeKeys;
  const std::size_t smem =
      (in_shared ? static_cast<std::size_t>(keys) * sizeof(std::uint64_t) : 0) +
      static_cast<std::size_t>(p.chunks) * sizeof(int);
  // grid: a block per row; block: 512 threads, a key each at a time; smem: the row's lists
  merge_chunks<<<static_cast<unsigned>(p.rows), kMergeThreads, smem, queue>>>(
      parts, lists, p.depths, p.chunks, p.k, in_shared,
      Outputs{ids.data, logprobs.data, lse.data, status.data});
  KDTR_LAUNCHED("topk_logprobs@1");
}

KDTR_KERNEL({"topk_logprobs@1", run, workspace});

}  // namespace
}  // namespace kdtr::cuda
