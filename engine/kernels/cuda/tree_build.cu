// tree_build@1 on cuda: a block per request, f32 log-probs, f64 weights without FMA.
// logprobs f32 [R, L, K], ids i32 [R, L, K] -> trees of at most B + 1 nodes. No aliasing.
//
// Costs are -weight. Where every sum of log-probs is exact, cost never falls along a path, and the
// tree is the B least paths by (cost, tie order), in that order. So: count paths by cost rounded up
// (a convolution, depth by depth) until B are found, list all paths of at most that cost depth by
// depth, sort them, keep B. Other requests (log-probs on a finer grid than 2^-46, more ties at the
// bound than fit, costs past 20 nats, fewer than B paths) are popped one by one.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "detail/block.cuh"
#include "detail/overlap.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int kTable = 4096;  // ids of several rows, half full
constexpr int kEach = 4;      // of them a thread checks: 512 threads, half a table
constexpr std::size_t kTableBytes = kTable * sizeof(std::uint32_t);
constexpr std::size_t kMaxShared = 80 << 10;  // dynamic, which every architecture has
constexpr int kBuckets = 320;
constexpr float kPerNat = 16.0f;  // buckets of cost
constexpr unsigned kMany = 2048;  // no count above is told apart
constexpr int kFew = 128;         // ranks that are added one by one

struct Arguments {
  const float* logprobs;
  const std::int32_t *ids, *root_token, *prefix_len;
  std::int32_t *n_nodes, *tokens, *depths, *parents, *positions, *next_token, *next_sibling,
      *status;
  std::uint8_t* visible;
  double* weights;
  int rows, columns, slots, reachable;  // reachable: ranks below min(K, B)
  int capacity, staged;
};

// Room for paths: twice the tree and some, since ties at the bound are all listed.
constexpr int capacity_of(int slots) { return 2 * slots + 64; }

// Paths in shared memory; entry 0 is the root. A link is an entry, -1 for none.
struct Paths {
  double* cost;
  std::uint64_t *key, *sorted;  // fixed-point cost << 12 | entry
  std::uint32_t* word;          // depth << 22 | rank << 12 | parent
  std::int16_t *first, *next;   // child of rank 0, sibling of the next rank
  std::int16_t *node, *entry;   // of an entry: its node, -1 if cut; of a node: its entry

  __host__ __device__ static std::size_t bytes(int capacity) {
    return static_cast<std::size_t>(capacity) * 36;
  }
  __device__ Paths(void* base, int capacity) {
    cost = static_cast<double*>(base);
    key = reinterpret_cast<std::uint64_t*>(cost + capacity);
    sorted = key + capacity;
    word = reinterpret_cast<std::uint32_t*>(sorted + capacity);
    first = reinterpret_cast<std::int16_t*>(word + capacity);
    next = first + capacity;
    node = next + capacity;
    entry = node + capacity;
  }
  __device__ static std::uint32_t pack(int depth, int rank, int parent) {
    return static_cast<std::uint32_t>(depth << 22 | rank << 12 | parent);
  }
  __device__ int parent(int i) const { return static_cast<int>(word[i] & 4095u); }
  __device__ int rank(int i) const { return static_cast<int>(word[i] >> 12 & 1023u); }
  __device__ int depth(int i) const { return static_cast<int>(word[i] >> 22); }
};

// Whether path a is before path b, of equal cost.
template <bool kUno>
__device__ bool before(const Paths& p, int a, int b) {
  const int depth_a = p.depth(a), depth_b = p.depth(b);
  if constexpr (kUno) {
    if (depth_a != depth_b) return depth_a < depth_b;
    while (p.rank(a) == p.rank(b)) {  // then the parents' order decides
      a = p.parent(a);
      b = p.parent(b);
      if (p.cost[a] != p.cost[b]) return p.cost[a] < p.cost[b];
    }
    return p.rank(a) < p.rank(b);
  } else {
    while (p.depth(a) > depth_b) a = p.parent(a);
    while (p.depth(b) > depth_a) b = p.parent(b);
    if (a == b) return depth_a < depth_b;
    while (p.parent(a) != p.parent(b)) {
      a = p.parent(a);
      b = p.parent(b);
    }
    return p.rank(a) < p.rank(b);
  }
}

struct Counts {
  // Of paths of one depth by cost, behind as many zeros; of one row's ranks; of all paths.
  unsigned paths[2][2 * kBuckets], ranks[2][kBuckets], total[kBuckets];
  std::int16_t bucket[2][kFew];  // of the first ranks; kBuckets where there is none
  int limit;
  unsigned found;
};

// A cost that at least `wanted` paths do not exceed, or -1. All threads.
__device__ double bound(const Arguments& a, const float* lp, int stride, int wanted, Counts& c) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto count_ranks = [&](int depth, int from, int step) {
    if (depth >= a.rows) return;
    for (int k = from; k < a.reachable; k += step) {
      const int up = static_cast<int>(fminf(ceilf(-kPerNat * lp[depth * stride + k]), kBuckets));
      if (up < kBuckets) atomicAdd(&c.ranks[depth & 1][up], 1u);
      if (k < kFew) c.bucket[depth & 1][k] = static_cast<std::int16_t>(up);
    }
  };
  for (int b = thread; b < kBuckets; b += threads) {
    c.paths[0][b] = c.paths[1][b] = c.ranks[0][b] = 0;
  }
  if (thread == 0) c.found = 0;
  __syncthreads();
  count_ranks(0, thread, threads);
  __syncthreads();
  int limit = kBuckets - 1;
  unsigned found = 0;
  for (int depth = 0; depth < a.rows; ++depth) {
    const unsigned* shorter = c.paths[depth & 1 ^ 1] + kBuckets;
    const unsigned* ranks = c.ranks[depth & 1];
    const std::int16_t* bucket = c.bucket[depth & 1];
    unsigned* paths = c.paths[depth & 1] + kBuckets;
    for (int b = thread; b < kBuckets; b += threads) {
      if (depth == 0 || b > limit) paths[b] = depth == 0 ? ranks[b] : 0;
      if (depth == 0) c.total[b] = ranks[b];
      c.ranks[depth & 1 ^ 1][b] = 0;
    }
    if (depth > 0) {  // neighbouring threads share a bucket
      int log = 0;
      while (log < 3 && (2 << log) * (limit + 1) <= threads) ++log;
      const int shared_by = 1 << log, last = ((limit + 1 << log) + 31) / 32 * 32;
      for (int t = thread; t < last; t += threads) {
        const int b = min(t >> log, limit);
        unsigned sum = 0;
        if (a.reachable <= min(limit, kFew)) {  // fewer ranks than buckets
#pragma unroll 8
          for (int k = t & shared_by - 1; k < a.reachable; k += shared_by)
            sum += shorter[b - bucket[k]];
        } else {
#pragma unroll 8
          for (int q = t & shared_by - 1; q <= limit; q += shared_by)
            sum += ranks[q] * shorter[b - q];
        }
        for (int other = 1; other < shared_by; other *= 2) sum += __shfl_xor_sync(kAll, sum, other);
        if ((t & shared_by - 1) == 0 && t >> log <= limit) {
          paths[b] = min(sum, kMany);
          c.total[b] = min(c.total[b] + sum, kMany);
        }
      }
    }
    __syncthreads();
    if (thread < 32) {  // the first bucket up to which there are enough
      const int each = limit / 32 + 1;
      unsigned mine = 0;
      for (int b = thread * each; b < min((thread + 1) * each, limit + 1); ++b) mine += c.total[b];
      unsigned sum = mine;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned left = __shfl_up_sync(kAll, sum, offset);
        if (thread >= offset) sum += left;
      }
      const unsigned enough = __ballot_sync(kAll, sum >= static_cast<unsigned>(wanted));
      if (thread == 31) c.found = sum;
      if (enough == 0) {
        if (thread == 0) c.limit = limit;
      } else if (thread == __ffs(static_cast<int>(enough)) - 1) {
        int b = thread * each;
        for (sum += c.total[b] - mine; sum < static_cast<unsigned>(wanted); sum += c.total[b]) ++b;
        c.limit = b;
      }
    } else {
      count_ranks(depth + 1, thread - 32, threads - 32);
    }
    __syncthreads();
    // Where depth adds no path of at most the limit, no greater depth does.
    if (c.limit == limit && c.found == found) break;
    limit = c.limit;
    found = c.found;
  }
  return found < static_cast<unsigned>(wanted) ? -1.0 : static_cast<double>(limit) / kPerNat;
}

// Lists the paths of at most this cost; returns how many entries there are, the root included, or
// 0 if they do not fit. All threads.
__device__ int list(const Arguments& a, const float* lp, int stride, double most, Paths p,
                    int& used) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  if (threadIdx.x == 0) used = 1;
  __syncthreads();
  int begin = 0, end = 1;
  for (int depth = 0; depth < a.rows && begin < end; ++depth) {
    const float* row = lp + depth * stride;
    for (int some = begin; some < end; some += 32 * warps) {
      const int own = some + lane * warps + warp;
      const bool bears = own < end && a.reachable > 0 &&
                         __dsub_rn(p.cost[own], static_cast<double>(row[0])) <= most;
      for (unsigned left = __ballot_sync(kAll, bears); left != 0; left &= left - 1) {
        // A warp lists one path's children.
        const int e = some + (__ffs(static_cast<int>(left)) - 1) * warps + warp;
        const double cost = p.cost[e];
        int last = -1;
        for (int from = 0; from < a.reachable; from += 32) {
          const int rank = from + lane;
          double x = 0;
          if (rank < a.reachable) x = __dsub_rn(cost, static_cast<double>(row[rank]));
          const int n = __popc(__ballot_sync(kAll, rank < a.reachable && x <= most));
          if (n == 0) break;
          int base = 0;
          if (lane == 0) base = atomicAdd(&used, n);
          base = __shfl_sync(kAll, base, 0);
          if (base + n > a.capacity) break;
          if (lane < n) {
            p.cost[base + lane] = x;
            p.word[base + lane] = Paths::pack(depth + 1, rank, e);
            p.first[base + lane] = -1;
            p.next[base + lane] = static_cast<std::int16_t>(lane + 1 < n ? base + lane + 1 : -1);
          }
          __syncwarp();
          if (lane == 0) (last < 0 ? p.first[e] : p.next[last]) = static_cast<std::int16_t>(base);
          last = base + n - 1;
          if (n < 32) break;
        }
      }
    }
    __syncthreads();
    begin = end;
    end = used;
    if (end > a.capacity) return 0;
    __syncthreads();
  }
  return end;
}

// Gives each of entries 1 .. entries - 1 its node, its place among them, if that is in the tree.
// All threads; costs are below 32 and multiples of 2^-46.
template <bool kUno>
__device__ void rank_paths(const Arguments& a, Paths p, int entries) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  // By cost, those of equal cost by entry: each counts the keys below its own. Neighbouring threads
  // share one.
  const int n = entries - 1;
  for (int i = thread; i < n; i += threads) {
    p.key[i] = __double2ull_rn(p.cost[i + 1] * 0x1p46) << 12 | static_cast<std::uint64_t>(i + 1);
    p.node[i + 1] = -1;
  }
  __syncthreads();
  int log = 0;
  while (log < 5 && (2 << log) * n <= threads) ++log;
  const int shared_by = 1 << log, last = ((n << log) + 31) / 32 * 32;
  for (int t = thread; t < last; t += threads) {
    const std::uint64_t mine = p.key[min(t >> log, n - 1)];
    int below = 0;
#pragma unroll 8
    for (int i = t & shared_by - 1; i < n; i += shared_by) below += p.key[i] < mine ? 1 : 0;
    for (int other = 1; other < shared_by; other *= 2) below += __shfl_xor_sync(kAll, below, other);
    if ((t & shared_by - 1) == 0 && t >> log < n) p.sorted[below] = mine;
  }
  __syncthreads();
  // Then each among its equals.
  for (int at = thread; at < n; at += threads) {
    const std::uint64_t key = p.sorted[at];
    const auto entry = static_cast<int>(key & 4095u);
    int node = at + 1;
    for (int i = at - 1; i >= 0 && p.sorted[i] >> 12 == key >> 12; --i)
      node -= before<kUno>(p, entry, static_cast<int>(p.sorted[i] & 4095u)) ? 1 : 0;
    for (int i = at + 1; i < n && p.sorted[i] >> 12 == key >> 12; ++i)
      node += before<kUno>(p, static_cast<int>(p.sorted[i] & 4095u), entry) ? 1 : 0;
    if (node < a.slots) {
      p.node[entry] = static_cast<std::int16_t>(node);
      p.entry[node] = static_cast<std::int16_t>(entry);
    }
  }
}

// Whether candidate x, the next child of node x, is popped before candidate y, at the same cost.
// Nodes are numbered as popped: where paths part, the older node has the smaller rank, and a
// descendant's tuple goes through a smaller rank than its ancestor's candidate has.
template <bool kUno>
__device__ bool pops_before(const Paths& p, int slots, int x, int y) {
  if constexpr (kUno) return p.word[slots + x] < p.word[slots + y];
  int from_x = 0x7FFF, from_y = 0x7FFF;
  while (x != y) {  // parents are older
    int& later = x > y ? x : y;
    (x > y ? from_x : from_y) = later;
    later = p.parent(later);
  }
  return from_x < from_y;
}

// Pops nodes 1, 2, ... into entries of their numbers and returns their count plus the root. Entry
// slots + i is node i's candidate, with its youngest child as `next`. One warp.
template <bool kUno>
__device__ int pop(const Arguments& a, const float* lp, int stride, Paths p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const double none = __hiloint2double(0x7FF00000, 0);
  const auto propose = [&](int node, int depth, double cost) {  // its first child
    const bool some = depth < a.rows && a.reachable > 0;
    p.cost[a.slots + node] = some ? __dsub_rn(cost, static_cast<double>(lp[depth * stride])) : none;
    p.word[a.slots + node] = Paths::pack(depth + 1, 0, node);
    p.next[a.slots + node] = -1;
  };
  const auto sooner = [&](int x, int y) {
    const double cx = p.cost[a.slots + x], cy = p.cost[a.slots + y];
    return cx != cy ? cx < cy : pops_before<kUno>(p, a.slots, x, y);
  };
  if (lane == 0) propose(0, 0, 0.0);
  __syncwarp();
  int node = 1;
  for (; node < a.slots; ++node) {
    int best = -1;
    for (int i = lane; i < node; i += 32)
      if (p.cost[a.slots + i] < none && (best < 0 || sooner(i, best))) best = i;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const int other = __shfl_xor_sync(kAll, best, offset);
      if (other >= 0 && other != best && (best < 0 || sooner(other, best))) best = other;
    }
    if (best < 0) break;
    if (lane == 0) {
      const int candidate = a.slots + best, last = p.next[candidate];
      const int depth = p.depth(candidate), rank = p.rank(candidate);
      const double cost = p.cost[candidate];
      p.cost[node] = cost;
      p.word[node] = p.word[candidate];
      p.first[node] = p.next[node] = -1;
      (last < 0 ? p.first[best] : p.next[last]) = static_cast<std::int16_t>(node);
      const float* at = lp + (depth - 1) * stride + rank;
      p.cost[candidate] = none;
      if (rank + 1 < a.reachable) {
        p.cost[candidate] =
            __dsub_rn(__dadd_rn(cost, static_cast<double>(at[0])), static_cast<double>(at[1]));
        p.word[candidate] = Paths::pack(depth, rank + 1, best);
      }
      p.next[candidate] = static_cast<std::int16_t>(node);
      propose(node, depth, cost);
    }
    __syncwarp();
  }
  return node;
}

// Zeroes `bytes` bytes at any address with 16-byte stores inside.
__device__ void clear(std::uint8_t* to, std::int64_t bytes, int thread, int threads) {
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % 16);
  const std::int64_t head = min(bytes, misaligned == 0 ? std::int64_t{0} : 16 - misaligned);
  const std::int64_t vectors = (bytes - head) / 16, tail = head + vectors * 16;
  for (std::int64_t i = thread; i < head; i += threads) to[i] = 0;
  auto* wide = reinterpret_cast<uint4*>(to + head);
  for (std::int64_t i = thread; i < vectors; i += threads) wide[i] = make_uint4(0, 0, 0, 0);
  for (std::int64_t i = tail + thread; i < bytes; i += threads) to[i] = 0;
}

// What a request's entries are: bad_input, and whether all sums of log-probs up to 64 nats are
// exact in f64. All threads. Copies the log-probs that can be reached to `staged`, if there is one.
struct Findings {
  bool bad, exact;
};

// i / by for i < 2^17 and by < 2^11, by a product with its inverse.
struct Divisor {
  int by;
  std::uint32_t inverse;

  __device__ explicit Divisor(int n) : by(n), inverse(n <= 1 ? 0 : kAll / n + 1) {}
  __device__ int divide(int i) const {
    return inverse == 0 ? i : static_cast<int>(__umulhi(static_cast<std::uint32_t>(i), inverse));
  }
};

__device__ std::uint32_t place_of(std::int32_t id, int row, int round) {
  std::uint32_t x = static_cast<std::uint32_t>(id) * 2654435769u;
  x += static_cast<std::uint32_t>(row) * 2246822519u +
       static_cast<std::uint32_t>(round) * 668265263u;
  x = (x ^ x >> 15) * 2246822519u;
  return x >> 20;
}

__device__ Findings validate(const Arguments& a, int request, std::uint32_t* table, float* staged) {
  const float none = -__int_as_float(0x7F800000);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::int32_t prefix = a.prefix_len[request];
  bool bad = a.root_token[request] < 0 || prefix < 0 || prefix > 0x7FFFFFFF - a.rows;
  bool inexact = false;
  const std::int64_t base = static_cast<std::int64_t>(request) * a.rows * a.columns;
  const int rows = a.columns == 0 ? 0 : kTable / 2 / a.columns;
  const Divisor columns(a.columns);
  for (int first = 0; first < a.rows && rows > 0; first += rows) {
    const int count = min(rows, a.rows - first) * a.columns;
    const float* lp = a.logprobs + base + first * a.columns;
    const std::int32_t* ids = a.ids + base + first * a.columns;
    float value[kEach], left[kEach];
    std::int32_t id[kEach];
    int rows_of[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {  // all in flight
      const int i = thread + j * threads;
      const bool there = i < count;
      rows_of[j] = columns.divide(i);
      value[j] = there ? lp[i] : none;
      left[j] = there && i != rows_of[j] * a.columns ? lp[i - 1] : 0.0f;
      id[j] = there ? ids[i] : 0;
    }
    unsigned open = 0;  // of this thread's entries: not yet known to be the only one of its id
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = thread + j * threads, column = i - rows_of[j] * a.columns;
      if (i >= count) break;
      const float x = value[j], grid = x * 0x1p46f;
      if (staged != nullptr && column < a.reachable)
        staged[(first + rows_of[j]) * a.reachable + column] = x;
      inexact = inexact || truncf(grid) != grid;
      bad = bad || !(x <= left[j]) || (x > none && id[j] < 0);
      open |= x > none ? 1u << j : 0;
    }
    // A round: the first entry of each place of a table is alone there, or finds its equals.
    for (int round = 0; block_any(open != 0); ++round) {
      auto* clean = reinterpret_cast<uint4*>(table);
      for (int i = thread; i < kTable / 4; i += threads) clean[i] = {kAll, kAll, kAll, kAll};
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if ((open >> j & 1) != 0)
          atomicMin(&table[place_of(id[j], rows_of[j], round)],
                    static_cast<std::uint32_t>(thread + j * threads));
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if ((open >> j & 1) == 0) continue;
        const auto other = static_cast<int>(table[place_of(id[j], rows_of[j], round)]);
        const bool self = other == thread + j * threads;
        const bool equal = !self && columns.divide(other) == rows_of[j] && ids[other] == id[j];
        bad = bad || equal;
        if (self || equal) open &= ~(1u << j);
      }
    }
  }
  return {block_any(bad), !block_any(inexact)};
}

template <bool kUno>
__global__ void __launch_bounds__(1024, 1) build(const Arguments a) {
  extern __shared__ double dynamic[];
  __shared__ Counts counts;
  __shared__ int shared_count;
  const int request = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x), budget = a.slots - 1;
  wait_for_last();
  let_next_start();
  const std::int64_t square = static_cast<std::int64_t>(a.slots) * a.slots;
  std::uint8_t* visible = a.visible + request * square;
  auto* staged = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(dynamic) +
                                          max(Paths::bytes(a.capacity), kTableBytes));
  const Findings found = validate(a, request, reinterpret_cast<std::uint32_t*>(dynamic),
                                  a.staged != 0 ? staged : nullptr);
  clear(visible, square, thread, threads);
  const Paths paths(dynamic, a.capacity);
  const float* lp = a.logprobs + static_cast<std::int64_t>(request) * a.rows * a.columns;
  int stride = a.columns, count = 0;
  if (!found.bad) {
    if (a.staged != 0) {
      lp = staged;
      stride = a.reachable;
    }
    if (thread == 0) {
      paths.cost[0] = 0.0;
      paths.word[0] = 0;
      paths.first[0] = paths.next[0] = -1;
    }
    __syncthreads();
    const double most = found.exact ? bound(a, lp, stride, budget, counts) : -1.0;
    if (most >= 0) count = list(a, lp, stride, most, paths, shared_count);
    if (count > budget) {
      rank_paths<kUno>(a, paths, count);
      count = a.slots;
    } else {
      __syncthreads();
      if (thread < 32) {
        if (thread == 0) paths.first[0] = paths.next[0] = -1;
        __syncwarp();
        const int popped = pop<kUno>(a, lp, stride, paths);
        if (thread == 0) shared_count = popped;
      }
      __syncthreads();
      count = shared_count;
      for (int i = 1 + thread; i < count; i += threads)
        paths.node[i] = paths.entry[i] = static_cast<std::int16_t>(i);
    }
    if (thread == 0) paths.node[0] = paths.entry[0] = 0;
    __syncthreads();
  }

  const std::int64_t base = static_cast<std::int64_t>(request) * a.slots;
  const std::int32_t* ids = a.ids + static_cast<std::int64_t>(request) * a.rows * a.columns;
  const std::int32_t prefix = a.prefix_len[request];
  if (thread == 0) {
    a.n_nodes[request] = count;
    a.status[request] = found.bad ? kBadInput : kOk;
  }
  const auto node_of = [&](int entry) { return entry < 0 ? -1 : paths.node[entry]; };
  for (int i = thread; i < a.slots; i += threads) {
    const bool live = i < count;
    const int entry = live ? paths.entry[i] : 0, depth = live ? paths.depth(entry) : -1;
    std::int32_t token = -1;
    if (live)
      token = i == 0 ? a.root_token[request] : ids[(depth - 1) * a.columns + paths.rank(entry)];
    a.tokens[base + i] = token;
    a.depths[base + i] = depth;
    a.parents[base + i] = live && i > 0 ? node_of(paths.parent(entry)) : -1;
    a.positions[base + i] = live ? prefix + depth : 0;
    a.next_token[base + i] = live ? node_of(paths.first[entry]) : -1;
    a.next_sibling[base + i] = live ? node_of(paths.next[entry]) : -1;
    a.weights[base + i] = live ? 0.0 - paths.cost[entry] : 0.0;  // +0.0, never -0.0
    if (live)
      for (int e = entry;; e = paths.parent(e)) {
        visible[static_cast<std::int64_t>(i) * a.slots + paths.node[e]] = 1;
        if (e == 0) break;
      }
  }
}

void run(Call& c, void* stream) {
  const std::int64_t budget = c.attr_int("budget");
  KDTR_CHECK(budget >= 0 && budget <= 1024, c.where("budget"), "out of range", "0..1024", budget);
  const std::string_view tie_order = c.attr_str("tie_order");
  KDTR_CHECK(tie_order == "ranks" || tie_order == "uno", c.where("tie_order"), "unknown",
             "ranks or uno", tie_order);
  c.bind("N", budget + 1);
  Arguments a{};
  a.logprobs = c.in<float>("logprobs", "R L K").data;
  a.ids = c.in<std::int32_t>("ids", "R L K").data;
  a.root_token = c.in<std::int32_t>("root_token", "R").data;
  a.prefix_len = c.in<std::int32_t>("prefix_len", "R").data;
  a.n_nodes = c.out<std::int32_t>("n_nodes", "R").data;
  a.tokens = c.out<std::int32_t>("tokens", "R N").data;
  a.depths = c.out<std::int32_t>("depths", "R N").data;
  a.parents = c.out<std::int32_t>("parents", "R N").data;
  a.positions = c.out<std::int32_t>("positions", "R N").data;
  a.next_token = c.out<std::int32_t>("next_token", "R N").data;
  a.next_sibling = c.out<std::int32_t>("next_sibling", "R N").data;
  a.visible = c.out<std::uint8_t>("visible", "R N N").data;
  a.weights = c.out<double>("weights", "R N").data;
  a.status = c.out<std::int32_t>("status", "R").data;
  const std::int64_t requests = c.dim("R"), rows = c.dim("L"), columns = c.dim("K");
  KDTR_CHECK(rows <= 64, c.where("logprobs"), "axis L", "at most 64", rows);
  KDTR_CHECK(columns <= 1024, c.where("logprobs"), "axis K", "at most 1024", columns);
  if (requests == 0) return;

  a.rows = static_cast<int>(rows);
  a.columns = static_cast<int>(columns);
  a.slots = static_cast<int>(budget) + 1;
  a.reachable = static_cast<int>(std::min(columns, budget));
  a.capacity = capacity_of(a.slots);
  // The table of ids lies where the paths will.
  const std::size_t paths = std::max(Paths::bytes(a.capacity), kTableBytes);
  const std::size_t lp_bytes = static_cast<std::size_t>(a.rows * a.reachable) * sizeof(float);
  a.staged = paths + lp_bytes <= kMaxShared ? 1 : 0;
  const std::size_t smem = paths + (a.staged != 0 ? lp_bytes : 0);
  const auto kernel = tie_order == "uno" ? &build<true> : &build<false>;
  KDTR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(smem)));
  const int threads = budget <= 512 ? 512 : 1024;
  // grid: a block per request; block: 512 or 1024; smem: 16 to 80 KiB of paths and log-probs, 9 KiB
  launch_next(kernel, dim3(static_cast<unsigned>(requests)), threads, smem, cuda_stream(stream),
              std::as_const(a));
}

}  // namespace
}  // namespace kdtr::cuda

KDTR_KERNEL({"tree_build@1", kdtr::cuda::run});
