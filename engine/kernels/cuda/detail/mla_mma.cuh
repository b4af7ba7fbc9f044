// verify_attn on every GPU from sm_80 on: mma.sync over tiles of 64 query rows x 32 keys, D 576,
// Dv 512, bf16 | f16. Made for 99 KB of shared memory, which sm_86 and sm_120 have.
//
// Queries stay in registers: warps 2 p and 2 p + 1 hold rows 16 p to 16 p + 15, each one half of
// each 64 columns; they exchange halves of the sums, so that each weighs 8 rows. Each of the 8
// warps holds 64 output columns of all 64 rows.
#pragma once

#include "attention.cuh"
#include "mma.cuh"

namespace kdtr::cuda::portable {

constexpr int kWidth = 576, kValues = 512, kTileRows = 64, kTileKeys = 32, kThreads = 256;
constexpr int kWarps = kThreads / 32, kSteps = kWidth / 2 / 16;  // products of a half of D
constexpr Cut kCut{kTileRows, kTileKeys, 132, 32};

// One block's share of the work. It lies in shared memory because registers are short.
struct Work {
  Plan p;
  int request, row0, first_node, last_node;
  int first, tiles, block, split;
};

struct Shared {
  Work work;
  // Swizzled: unit u of 16 bytes of row r is at u ^ (r & 7), so that eight rows of a matrix lie in
  // different banks. Rows padded for that take 10 wavefronts a copy instead of 4.
  alignas(128) std::uint8_t keys[2][kTileKeys][kWidth * 2];
  alignas(16) std::uint8_t weights[kTileRows][kTileKeys * 2 + 16];
  float4 scores[kWarps][2][32];  // sums of a warp for its partner: 16 keys, lane
  float keep[kTileRows];         // what a tile's new maximum leaves of earlier sums
  float top[kTileRows], sum[kTileRows];
  std::uint32_t visible[2][kTileRows];  // buffer, node of the block: the keys that it sees
};
static_assert(sizeof(Shared) <= 99 * 1024);

// The thread's number, asked for anew each time: as the compiler does not take it for a constant,
// nothing derived from it holds a register through the other phases of a tile.
__device__ inline int thread() {
  int me;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(me));
  return me;
}

// Where this thread stands.
struct Place {
  const int me = thread();
  const int warp = me / 32, lane = me % 32;
  const int half = warp % 2;                    // of D in its sums, of the 16 rows in its weights
  const int octet = lane / 4, pair = lane % 4;  // row and columns in a 16 x 8 accumulator
  const int row = warp / 2 * 16 + octet;        // of its sums; also row + 8
};

// Loads key tiles: 8 threads a row, which each copy every eighth unit of 16 bytes.
struct Loader {
  const Attention& a;
  Shared& shared;
  int entry;  // raw table entry of this thread's row of the next tile

  __device__ static int row() { return thread() / 8; }
  __device__ int page_shift() const { return 31 - __clz(a.page_size); }
  __device__ void look_up(int tile) {
    const Work& w = shared.work;
    const int t = tile * kTileKeys + row();
    entry = 0;
    if (t < w.p.prefix) {
      entry = a.page_table[w.request * a.max_pages + (t >> page_shift())];
    } else if (t < w.p.keys) {
      entry = a.tree_slots[static_cast<std::int64_t>(w.request) * a.nodes + (t - w.p.prefix)];
    }
  }

  // Whether any node of the block sees this thread's row; stores who sees which.
  __device__ bool mark(int tile, int buffer) {
    const Work& w = shared.work;
    const int lane = thread() % 32, t = tile * kTileKeys + lane;
    const std::uint8_t* visible =
        a.visible + static_cast<std::int64_t>(w.request) * a.nodes * a.nodes;
    std::uint32_t seen = 0;
#pragma unroll 1
    for (int i = w.first_node; i <= w.last_node; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * a.nodes + (t - w.p.prefix);
      const std::uint32_t bits =
          __ballot_sync(~0u, t < w.p.prefix || (t < w.p.keys && visible[at] != 0));
      seen |= bits;
      if (threadIdx.x == 0) shared.visible[buffer][i - w.first_node] = bits;
    }
    return (seen >> row() & 1) != 0;
  }

  // Starts the copies of a tile that `look_up` was called for; looks up the next.
  __device__ void start(int tile, int buffer) {
    const int t = tile * kTileKeys + row(), unit = thread() % 8;
    // Rows that nobody sees may hold NaN, and 0 * NaN is NaN.
    const bool there = (tile + 1) * kTileKeys <= shared.work.p.prefix || mark(tile, buffer);
    std::int64_t slot = entry;
    if (t < shared.work.p.prefix) slot = (slot << page_shift()) + (t & (a.page_size - 1));
    const std::uint8_t* from =
        static_cast<const std::uint8_t*>(a.pool) + (there ? slot * (kWidth * 2) : 0) + unit * 16;
    look_up(tile + 1);  // before the copies, which what it reads would queue behind
    const std::uint32_t to = shared_address(&shared.keys[buffer][row()][(unit ^ (row() & 7)) * 16]);
#pragma unroll
    for (int i = 0; i < kWidth / 64; ++i) copy16(to + i * 128u, from + i * 128, there);
  }
};

// This thread's part of the queries, as operands; rows past the active ones are 0.
__device__ inline void load_queries(const Attention& a, const Work& w,
                                    std::uint32_t (&q)[kSteps][4]) {
  const Place at;
  const std::int64_t request_row = static_cast<std::int64_t>(w.request) * a.nodes * a.heads;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = w.row0 + at.row + 8 * h;
    const bool there = row < w.p.active;
    const auto* from = static_cast<const std::uint32_t*>(a.q) +
                       (request_row + (there ? row : w.row0)) * (kWidth / 2) + at.half * 16 +
                       at.pair;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = step / 2 * 32 + step % 2 * 8;  // in pairs
      q[step][h] = there ? from[column] : 0;
      q[step][2 + h] = there ? from[column + 4] : 0;
    }
  }
}

// This warp's half of the sums of its rows times the tile's keys: keeps those of the 8 rows that
// it weighs, stores the others for its partner.
template <class T>
__device__ void score(Shared& shared, const std::uint32_t (&q)[kSteps][4], int buffer,
                      float (&mine)[8]) {
  const Place at;
  constexpr auto kHigh = static_cast<std::uint32_t>(16 * sizeof(shared.keys[0][0]));
  const int unit = (at.half * 4 + at.lane / 8 % 2) ^ (at.lane % 8);
  const std::uint32_t keys =
      shared_address(&shared.keys[buffer][at.lane / 16 * 8 + at.lane % 8][unit * 16]);
  float s[4][4] = {};
#pragma unroll
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    std::uint32_t low[4], high[4];
    const std::uint32_t from = (keys ^ step % 2 * 32) + step / 2 * 128;
    load_matrices(low, from);
    load_matrices(high, from + kHigh);
    multiply_add<T>(s[0], q[step], low[0], low[1]);
    multiply_add<T>(s[1], q[step], low[2], low[3]);
    multiply_add<T>(s[2], q[step], high[0], high[1]);
    multiply_add<T>(s[3], q[step], high[2], high[3]);
  }
  float other[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float low = s[i / 2][i % 2], high = s[i / 2][i % 2 + 2];
    mine[i] = at.half == 0 ? low : high;
    other[i] = at.half == 0 ? high : low;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    shared.scores[at.warp][i][at.lane] =
        make_float4(other[4 * i], other[4 * i + 1], other[4 * i + 2], other[4 * i + 3]);
  }
}

// Adds the partner's half of the scores of this thread's row, masks them, moves the row's maximum
// and stores its weights. `sum` is over this thread's keys.
template <class T>
__device__ void weigh(const Attention& a, Shared& shared, int tile, int buffer, float (&s)[8],
                      float& top, float& sum) {
  const Place at;
  const Work& w = shared.work;
  const int row = at.row + 8 * at.half;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 other = shared.scores[at.warp ^ 1][i][at.lane];
    s[4 * i] += other.x;
    s[4 * i + 1] += other.y;
    s[4 * i + 2] += other.z;
    s[4 * i + 3] += other.w;
  }
  if ((tile + 1) * kTileKeys > w.p.prefix) {
    const int node = min((w.row0 + row) / a.heads, w.last_node);
    const std::uint32_t bits = shared.visible[buffer][node - w.first_node] >> 2 * at.pair;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((bits >> (i / 2 * 8 + i % 2) & 1) == 0) s[i] = -INFINITY;
    }
  }
  const float factor = a.scale * 1.44269504088896341f;
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) best = fmaxf(best, s[i]);
  best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
  best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
  best = fmaxf(top, best * factor);
  const float shift = best == -INFINITY ? 0.0f : best;
  const float keep = exp2_fast(top - shift);
  top = best;
  if (at.pair == 0) shared.keep[row] = keep;
  float part = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i] = exp2_fast(fmaf(s[i], factor, -shift));
    part += s[i];
  }
  sum = fmaf(sum, keep, part);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<std::uint32_t*>(&shared.weights[row][i * 16 + at.pair * 4]) =
        pack<T>(s[2 * i], s[2 * i + 1]);
  }
}

// o += weights times this warp's 64 columns of the tile, after what the new maxima leave of o.
template <class T>
__device__ void add_values(Shared& shared, int buffer, float (&o)[4][8][4]) {
  const Place at;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float keep[2] = {shared.keep[16 * m + at.octet], shared.keep[16 * m + at.octet + 8]};
    if (!__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) continue;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[m][n][e] *= keep[e / 2];
    }
  }
  const int unit = at.lane / 16;
  const std::uint32_t weights = shared_address(&shared.weights[at.lane % 16][unit * 16]);
  const std::uint32_t values = shared_address(
      &shared.keys[buffer][at.lane % 16][at.warp * 128 + (unit ^ (at.lane % 8)) * 16]);
#pragma unroll
  for (std::uint32_t step = 0; step < 2; ++step) {
    std::uint32_t w[4][4];
#pragma unroll
    for (std::uint32_t m = 0; m < 4; ++m) {
      load_matrices(w[m], weights + m * 16 * sizeof(shared.weights[0]) + step * 32);
    }
#pragma unroll
    for (std::uint32_t n = 0; n < 4; ++n) {
      std::uint32_t v[4];
      load_transposed(v, (values ^ n * 32) + step * 16 * sizeof(shared.keys[0][0]));
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        multiply_add<T>(o[m][2 * n], w[m], v[0], v[1]);
        multiply_add<T>(o[m][2 * n + 1], w[m], v[2], v[3]);
      }
    }
  }
}

// Writes final rows, or partial ones of a split.
template <class O>
__device__ void write_result(const Attention& a, Shared& shared, const float (&o)[4][8][4],
                             float top, float sum) {
  const Place at;
  const Work& w = shared.work;
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (at.pair == 0) {
    shared.sum[at.row + 8 * at.half] = sum;
    shared.top[at.row + 8 * at.half] = top;
  }
  __syncthreads();
  const int all_rows = a.nodes * a.heads;
  const bool whole = w.p.splits == 1;
  const std::int64_t first = whole ? static_cast<std::int64_t>(w.request) * all_rows + w.row0
                                   : part_row(a, w.p, kCut, w.request, w.block, w.split);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int row = 8 * k + at.octet;
    if (w.row0 + row >= all_rows) continue;
    const float total = shared.sum[row];
    const bool empty = total == 0.0f || w.row0 + row >= w.p.active;
    const float inverse = 1.0f / total;
    if (at.warp == 0 && at.pair == 0) {
      (whole ? a.lse : a.part_lse)[first + row] =
          empty ? -INFINITY : (shared.top[row] + log2f(total)) * 0.693147180559945309f;
    }
    const std::int64_t to = (first + row) * kValues + at.warp * 64 + at.pair * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float x = empty ? 0.0f : o[k / 2][n][k % 2 * 2] * inverse;
      const float y = empty ? 0.0f : o[k / 2][n][k % 2 * 2 + 1] * inverse;
      if (!whole) {
        *reinterpret_cast<float2*>(a.part_out + to + 8 * n) = make_float2(x, y);
      } else if constexpr (std::is_same_v<O, float>) {
        *reinterpret_cast<float2*>(static_cast<O*>(a.out) + to + 8 * n) = make_float2(x, y);
      } else {
        *reinterpret_cast<std::uint32_t*>(static_cast<O*>(a.out) + to + 8 * n) = pack<O>(x, y);
      }
    }
  }
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads, 1) attend_mla(const Attention a) {
  extern __shared__ __align__(128) std::uint8_t room[];
  Shared& shared = *reinterpret_cast<Shared*>(room);
  const int request = static_cast<int>(blockIdx.y), unit = static_cast<int>(blockIdx.x);
  const Plan p = plan_of(a, request, kCut);
  const int block = p.splits == 1 ? unit : unit % p.blocks;
  const int split = p.splits == 1 ? 0 : unit / p.blocks;
  const int row0 = block * kTileRows;
  if (split >= p.splits || (block > 0 && row0 >= a.nodes * a.heads)) return;

  const int first = split * p.per_split;
  const int tiles = min(p.per_split, ceil_div(p.keys, kTileKeys) - first);
  const bool bad =
      any_bad(a, request, p, first * kTileKeys, min(p.keys, (first + tiles) * kTileKeys)) || p.bad;
  if (threadIdx.x == 0) {
    if (block == 0 && p.splits == 1) a.status[request] = bad ? kBadInput : kOk;
    if (block == 0 && p.splits > 1) a.part_bad[request * kCut.blocks + split] = bad ? 1 : 0;
    const int last_node = (min(row0 + kTileRows, p.active) - 1) / a.heads;
    shared.work = {p, request, row0, row0 / a.heads, last_node, first, tiles, block, split};
  }
  if (bad || row0 >= p.active || tiles <= 0) {
    if (p.splits == 1) write_pads<O>(a, request, row0, kTileRows);
    return;
  }
  __syncthreads();

  Loader loader{a, shared, 0};
  loader.look_up(first);
  loader.start(first, 0);
  std::uint32_t q[kSteps][4];
  load_queries(a, shared.work, q);
  float o[4][8][4] = {};  // 16 rows, 8 columns
  float s[8], top = -INFINITY, sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < shared.work.tiles; ++i) {
    const int buffer = i % 2, tile = shared.work.first + i;
    wait_copies();
    __syncthreads();  // the tile is there; the one before, its weights and scores have been read
    if (i + 1 < shared.work.tiles) loader.start(tile + 1, 1 - buffer);
    score<T>(shared, q, buffer, s);
    __syncthreads();
    weigh<T>(a, shared, tile, buffer, s, top, sum);
    __syncthreads();
    add_values<T>(shared, buffer, o);
  }
  write_result<O>(a, shared, o, top, sum);
}

// Whether this device has the shared memory.
template <class T, class O>
bool available() {
  static const bool yes = [] {
    const bool found =
        cudaFuncSetAttribute(attend_mla<T, O>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared)) == cudaSuccess;
    if (!found) static_cast<void>(cudaGetLastError());
    return found;
  }();
  return yes;
}

// The shapes that this path takes; pointers may still be null.
inline bool fits(const Attention& a) {
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  return a.width == kWidth && a.values == kValues && a.nodes > 0 && a.heads > 0 && a.scale > 0 &&
         a.scale < INFINITY && aligned(a.q) && aligned(a.pool) && aligned(a.out);
}

// Runs the call, or returns false if it cannot.
template <class T, class O>
bool run(Attention a, void* workspace, cudaStream_t stream) {
  if (!fits(a) || !available<T, O>()) return false;
  size_units(a, kCut);
  place_workspace(a, kCut, workspace);
  const auto units = static_cast<unsigned>(a.units), requests = static_cast<unsigned>(a.requests);
  // grid: (row block, split) units, R; block: 8 warps; smem: 87 KB
  attend_mla<T, O><<<{units, requests}, kThreads, sizeof(Shared), stream>>>(a);
  KDTR_LAUNCHED("verify_attn@1");
  launch_merge_splits<O>(a, kCut, stream);
  return true;
}

}  // namespace kdtr::cuda::portable
