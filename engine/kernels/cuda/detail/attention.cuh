// What the verify_attn kernels share: the call as device pointers, the checks of a request, and the
// split of its keys among blocks. The split depends on the request alone, never on the batch or the
// device, so a request's bits do not change with its neighbours.
#pragma once

#include <cmath>
#include <type_traits>

#include "block.cuh"
#include "floats.cuh"
#include "overlap.cuh"

namespace kdtr::cuda {

struct Attention {
  const void *q, *pool;
  const std::int32_t *page_table, *prefix_len, *tree_slots, *n_nodes;
  const std::uint8_t* visible;
  void* out;
  float* lse;
  std::int32_t* status;
  std::int64_t slots, max_pages;
  int requests, nodes, heads, width, values;  // R, N, H, D, Dv
  int page_size;
  bool has_prefix, has_tree;
  float scale;
  // Workspace: per request `parts` (row block, split) pairs of partial results, then flags.
  float *part_out, *part_lse;
  std::int32_t* part_bad;
  int units, parts;
};

// How a kernel cuts a request: rows per block, keys per tile, blocks wanted, fewest tiles per
// split.
struct Cut {
  int rows, keys, blocks, tiles;
};

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

struct Plan {
  bool bad;               // found so far; pages and slots are checked by the blocks that read them
  int active;             // rows that attend: n_nodes H
  int nodes, prefix;      // n_nodes, P
  int keys;               // P + n_nodes
  int blocks;             // row blocks with active rows, at least 1
  int splits, per_split;  // splits of the keys and tiles in each but the last
};

__device__ inline Plan plan_of(const Attention& a, int request, Cut cut) {
  Plan p{};
  const int n = a.n_nodes[request], prefix = a.has_prefix ? a.prefix_len[request] : 0;
  p.bad = n < 0 || n > a.nodes;
  p.nodes = p.bad ? 0 : n;
  if (p.nodes > 0) {
    p.bad = prefix < 0 || prefix > a.max_pages * a.page_size;
    p.prefix = p.bad ? 0 : prefix;
    if (p.bad) p.nodes = 0;
  }
  p.active = p.nodes * a.heads;
  p.keys = p.prefix + (a.has_tree ? p.nodes : 0);
  p.blocks = max(1, ceil_div(p.active, cut.rows));
  const int tiles = max(1, ceil_div(p.keys, cut.keys));
  const int most = max(1, cut.blocks / p.blocks);
  p.per_split = max(cut.tiles, ceil_div(tiles, most));
  p.splits = ceil_div(tiles, p.per_split);
  return p;
}

// The slot of key `t` of a request, -1 if it is out of range.
__device__ inline std::int64_t slot_of(const Attention& a, int request, const Plan& p, int t) {
  std::int64_t slot;
  if (t < p.prefix) {
    const int shift = 31 - __clz(a.page_size);
    const std::int64_t page = a.page_table[request * a.max_pages + (t >> shift)];
    if (page < 0) return -1;
    slot = (page << shift) + (t & (a.page_size - 1));
  } else {
    slot = a.tree_slots[static_cast<std::int64_t>(request) * a.nodes + (t - p.prefix)];
  }
  return slot >= 0 && slot < a.slots ? slot : -1;
}

// Whether keys [first, last), those that this one of `threads` threads looks at, hold a slot out of
// range.
__device__ inline bool finds_bad(const Attention& a, int request, const Plan& p, int first,
                                 int last, int thread, int threads) {
  bool bad = false;
  const int prefix_last = min(last, p.prefix), step = a.page_size;
  // The last used row of a page is its highest slot.
  for (int page = first / step + thread; page * step < prefix_last; page += threads)
    bad |= slot_of(a, request, p, min((page + 1) * step, p.prefix) - 1) < 0;
  for (int t = max(first, p.prefix) + thread; t < last; t += threads)
    bad |= slot_of(a, request, p, t) < 0;
  return bad;
}

// Whether any key does; for all threads of the block.
__device__ inline bool any_bad(const Attention& a, int request, const Plan& p, int first,
                               int last) {
  return block_any(finds_bad(a, request, p, first, last, static_cast<int>(threadIdx.x),
                             static_cast<int>(blockDim.x)));
}

// Host side: sets what any request of this call can need, `units` of the grid and `parts` of the
// workspace; 0 parts when no request can be split.
inline void size_units(Attention& a, Cut cut) {
  const std::int64_t rows = static_cast<std::int64_t>(a.nodes) * a.heads;
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows + cut.rows - 1) / cut.rows);
  const std::int64_t keys = (a.has_prefix ? a.max_pages * a.page_size : 0) + a.nodes;
  const std::int64_t tiles = (keys + cut.keys - 1) / cut.keys;
  const std::int64_t splits = (tiles + cut.tiles - 1) / cut.tiles;
  a.parts = splits > 1 ? static_cast<int>(std::min<std::int64_t>(cut.blocks, blocks * splits)) : 0;
  a.units = static_cast<int>(std::max<std::int64_t>(blocks, a.parts));
}

// Host side: bytes of the partial results, laid out by `place_workspace`.
inline std::size_t workspace_bytes(const Attention& a, Cut cut) {
  if (a.parts == 0) return 0;
  const std::int64_t rows = static_cast<std::int64_t>(a.parts) * cut.rows;
  return static_cast<std::size_t>(a.requests * (rows * (a.values + 1) + cut.blocks)) *
         sizeof(float);
}

inline void place_workspace(Attention& a, Cut cut, void* workspace) {
  const std::int64_t rows = static_cast<std::int64_t>(a.requests) * a.parts * cut.rows;
  a.part_out = static_cast<float*>(workspace);
  a.part_lse = a.part_out + rows * a.values;
  a.part_bad = reinterpret_cast<std::int32_t*>(a.part_lse + rows);
}

// Row of the partial results of (request, row block, split): first row of the block.
__device__ inline std::int64_t part_row(const Attention& a, const Plan& p, Cut cut, int request,
                                        int block, int split) {
  return (static_cast<std::int64_t>(request) * a.parts + split * p.blocks + block) * cut.rows;
}

// The block's rows from `row0` on, at most `count`: of requests that are refused or inactive, and
// past the active rows.
template <class O>
__device__ void write_pads(const Attention& a, int request, int row0, int count) {
  const std::int64_t all_rows = static_cast<std::int64_t>(a.nodes) * a.heads;
  const std::int64_t first = request * all_rows + row0;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(count), all_rows - row0));
  O* out = static_cast<O*>(a.out) + first * a.values;
  const int me = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = me; i < rows * a.values; i += threads) out[i] = narrow<O>(0.0f);
  for (int i = me; i < rows; i += threads) a.lse[first + i] = -INFINITY;
}

__device__ inline void accumulate(float& total, float weight, float x) {
  total = fmaf(weight, x, total);
}
__device__ inline void accumulate(float4& total, float weight, float4 x) {
  accumulate(total.x, weight, x.x);
  accumulate(total.y, weight, x.y);
  accumulate(total.z, weight, x.z);
  accumulate(total.w, weight, x.w);
}

constexpr int kMergeThreads = 128, kMergeWarps = kMergeThreads / 32, kMostSplits = 264;
constexpr int kManyRows = 4096;  // from here on a warp merges a row, below it a block does

template <class O>
struct alignas(4 * sizeof(O)) Four {
  O at[4];
};

// Adds `splits` weighted vectors that are `stride` apart, up to kBatch in flight.
template <int kBatch, class V>
__device__ V add_splits(const float* part, std::int64_t stride, const float* weight, int splits) {
  V total{};
  for (int from = 0; from < splits; from += kBatch) {
    V x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (from + i < splits) x[i] = *reinterpret_cast<const V*>(part);
      part += stride;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (from + i < splits) accumulate(total, weight[from + i], x[i]);
  }
  return total;
}

template <class V>
__device__ V add_splits(const float* part, std::int64_t stride, const float* weight, int splits) {
  if (splits == 2) return add_splits<2, V>(part, stride, weight, splits);
  if (splits <= 6) return add_splits<6, V>(part, stride, weight, splits);
  return add_splits<12, V>(part, stride, weight, splits);
}

// Merges the splits of a row in ascending order, and writes status and pads of split requests. Each
// warp weighs the splits itself, so that none waits for another.
template <class O>
__global__ void __launch_bounds__(kMergeThreads)
    merge_splits(const Attention a, const Cut cut, const int row_warps) {
  const int request = static_cast<int>(blockIdx.y);
  const Plan p = plan_of(a, request, cut);  // of inputs, which the last launch waited for
  wait_for_last();
  let_next_start();
  __shared__ float weights[kMergeWarps][kMostSplits];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = (static_cast<int>(blockIdx.x) * kMergeWarps + warp) / row_warps;
  if (p.splits == 1 || row >= a.nodes * a.heads) return;
  const bool active = row < p.active;
  const std::int64_t step = static_cast<std::int64_t>(p.blocks) * cut.rows;  // rows between splits
  const std::int64_t first = part_row(a, p, cut, request, row / cut.rows, 0) + row % cut.rows;
  float* weight = weights[warp];
  bool bad = false;
  float top = -INFINITY, sum = 0.0f;
  for (int s = lane; s < p.splits; s += 32) {
    bad |= a.part_bad[request * cut.blocks + s] != 0;
    weight[s] = active ? a.part_lse[first + s * step] : -INFINITY;
    top = fmaxf(top, weight[s]);
  }
  bad = __any_sync(~0u, bad);
  for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  const bool empty = bad || top == -INFINITY;
  for (int s = lane; s < p.splits; s += 32) {
    weight[s] = empty ? 0.0f : expf(weight[s] - top);
    sum += weight[s];
  }
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  __syncwarp();
  const std::int64_t at = static_cast<std::int64_t>(request) * a.nodes * a.heads + row;
  const int own = warp % row_warps * 32 + lane, threads = row_warps * 32;  // of the row
  if (own == 0) {
    a.lse[at] = empty ? -INFINITY : top + logf(sum);
    if (row == 0) a.status[request] = bad ? kBadInput : kOk;
  }
  const float inverse = 1.0f / sum;
  O* out = static_cast<O*>(a.out) + at * a.values;
  const float* part = a.part_out + first * a.values;
  const std::int64_t stride = step * a.values;
  if (a.values % 4 == 0 && reinterpret_cast<std::uintptr_t>(a.out) % sizeof(Four<O>) == 0) {
    for (int c = 4 * own; c < a.values; c += 4 * threads) {
      float4 x{};
      if (!empty) x = add_splits<float4>(part + c, stride, weight, p.splits);
      const float y[4] = {x.x, x.y, x.z, x.w};
      Four<O> four;
#pragma unroll
      for (int i = 0; i < 4; ++i) four.at[i] = narrow<O>(empty ? 0.0f : y[i] * inverse);
      *reinterpret_cast<Four<O>*>(out + c) = four;
    }
  } else {
    for (int c = own; c < a.values; c += threads) {
      const float x = empty ? 0.0f : add_splits<float>(part + c, stride, weight, p.splits);
      out[c] = narrow<O>(empty ? 0.0f : x * inverse);
    }
  }
}

// The launch of it behind a kernel whose blocks all say `let_next_start` after `wait_for_last`, or
// never.
template <class O>
void launch_merge_splits(const Attention& a, Cut cut, cudaStream_t stream) {
  const std::int64_t rows = static_cast<std::int64_t>(a.nodes) * a.heads;
  if (a.parts == 0 || rows == 0) return;
  const int row_warps = rows * a.requests < kManyRows ? kMergeWarps : 1;
  const std::int64_t each = kMergeWarps / row_warps;
  const dim3 grid(static_cast<unsigned>((rows + each - 1) / each),
                  static_cast<unsigned>(a.requests));
  // grid: a block per row or per 4 rows, R; block: 4 warps; smem: 4 KB static
  launch_next(merge_splits<O>, grid, kMergeThreads, 0, stream, a, cut, row_warps);
}

}  // namespace kdtr::cuda
