// Two tiles of 16 weight rows times up to 32 activation rows on tensor cores (mma.sync, sm_80 on):
// weights are read once, at the speed of memory. The four warps of a block share out the columns;
// each streams its part of the 32 rows through a ring of its own in shared memory. A sum's order
// depends on its row's length alone, so a token's bits are the same in any batch.
#pragma once

#include <algorithm>

#include "floats.cuh"
#include "mma.cuh"

namespace kdtr::cuda::tiles {

constexpr int kLanes = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kRows = 16;      // of one tile
constexpr int kTokens = 32;    // most activation rows
constexpr int kSegment = 128;  // bytes of a weight row that a warp has at a time
constexpr int kBlocks = 4;     // of a multiprocessor
constexpr int kStages = 2;     // segments of the ring; more would take room from L1
constexpr int kStageBytes = 2 * kRows * kSegment;
constexpr int kRingBytes = kWarps * kStages * kStageBytes;

// bf16 weights, rows of n: n is a multiple of 8.
struct Dense {
  static constexpr bool kPacked = false;
  static constexpr int kColumns = kSegment / 2;  // of a segment
  static constexpr float kFactor = 1;            // of sums
  const __nv_bfloat16* w;
};

// int4 codes with one bf16 scale a group; kRounded: their products rounded to bf16.
template <bool kRounded>
struct Packed {
  static constexpr bool kPacked = true;
  static constexpr int kColumns = kSegment * 2;
  static constexpr float kFactor = 64;  // see codes_of
  const std::uint32_t* w;
  const __nv_bfloat16* scales;
  int group_log2;
};

template <class M>
constexpr bool kIsDense = std::is_same_v<M, Dense>;
template <class M>
constexpr bool kIsExact = std::is_same_v<M, Packed<false>>;

// bf16 pieces that add up to a value: one of bf16, three of f32 (8 bits each, cut, not rounded).
template <class X>
constexpr int kPieces = sizeof(X) == 4 ? 3 : 1;

// Eight neighbouring activations of a row, as they are stored.
template <class X>
struct Eight {
  uint4 v[sizeof(X) / 2];
};

// The eight as four pairs, in neighbours' order or, as int4 words give them, (j, j + 4).
template <bool kApart>
__device__ void pairs(const Eight<__nv_bfloat16>& e, std::uint32_t (&b)[1][4]) {
  const uint4& v = e.v[0];
  if constexpr (kApart) {
    b[0][0] = __byte_perm(v.x, v.z, 0x5410);
    b[0][1] = __byte_perm(v.x, v.z, 0x7632);
    b[0][2] = __byte_perm(v.y, v.w, 0x5410);
    b[0][3] = __byte_perm(v.y, v.w, 0x7632);
  } else {
    b[0][0] = v.x;
    b[0][1] = v.y;
    b[0][2] = v.z;
    b[0][3] = v.w;
  }
}
template <bool kApart>
__device__ void pairs(const Eight<float>& e, std::uint32_t (&b)[3][4]) {
  const std::uint32_t bits[8] = {e.v[0].x, e.v[0].y, e.v[0].z, e.v[0].w,
                                 e.v[1].x, e.v[1].y, e.v[1].z, e.v[1].w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    std::uint32_t low = bits[kApart ? j : 2 * j], high = bits[kApart ? j + 4 : 2 * j + 1];
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      b[p][j] = __byte_perm(low, high, 0x7632);
      low = __float_as_uint(__uint_as_float(low) - __uint_as_float(low & 0xFFFF0000u));
      high = __float_as_uint(__uint_as_float(high) - __uint_as_float(high & 0xFFFF0000u));
    }
  }
}

// The weights of two tiles: rows `first[i]` .. of matrix `m[i]`, `rows[i]` of them, n columns.
template <class M>
struct Pair {
  M m[2];
  std::int64_t first[2];
  int rows[2];
  int n;
  bool whole;  // a warp has the tiles to itself; else the block's warps share out their columns
};

// The activation rows: thread i names the i-th one's row in x and its place in what is written.
struct Crowd {
  int count;
  int row;
  int slot;
  std::int64_t stride;  // of x's rows, in elements, a multiple of 8
};
struct Shared {
  std::byte* ring;
  int* rows;
  int* slots;
};

// The order of the 16-byte pieces of ring row r: no two lanes of an access share a bank. Eight
// lanes read four pieces of two rows: neighbours of bf16 weights, every second one of int4.
template <class M>
__device__ int piece(int r, int c) {
  return c ^ (M::kPacked ? r & 7 : (r & 1) << 2 | ((r >> 1) & 3));
}

// Streams a warp's segments of both tiles: a lane copies piece lane % 8 of rows lane / 8 + 4 i.
// Rows that a tile does not have, and what lies past the end of a row, become 0.
template <class M>
struct Stream {
  const std::byte *from[2], *any;  // any: an address of the weights
  std::int64_t step;               // of 4 rows
  int row_bytes, rows[2], at, to;

  __device__ Stream(const Pair<M>& w, int lane) {
    row_bytes = M::kPacked ? w.n / 2 : w.n * 2;
    step = std::int64_t{4} * row_bytes;
    at = lane % 8 * 16;
    to = lane / 8;
    any = reinterpret_cast<const std::byte*>(w.m[0].w);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      from[tile] = reinterpret_cast<const std::byte*>(w.m[tile].w) +
                   (w.first[tile] + lane / 8) * row_bytes + at;
      rows[tile] = w.rows[tile];
    }
  }
  __device__ void fetch(int segment, std::byte* stage) const {
    const std::uint32_t base = shared_address(stage);
    const bool inside = at + segment * kSegment < row_bytes;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = to + 4 * i;
        const bool real = inside && r < rows[tile];
        copy16(base + static_cast<std::uint32_t>((tile * kRows + r) * kSegment +
                                                 piece<M>(r, at / 16) * 16),
               real ? from[tile] + segment * kSegment + i * step : any, real);
      }
  }
};

// A lane's scales: of the weight rows lane / 4 + 8 i, for its 64 columns of a segment, a bf16 for
// each half. 0 past the end of a row.
template <class M>
struct Scales {
  __device__ Scales(const Pair<M>&, int) {}
  __device__ void load(int) {}
  __device__ void advance() {}
};
template <bool kRounded>
struct Scales<Packed<kRounded>> {
  const __nv_bfloat16* row[4];
  int n, log2, column;
  bool pairs;  // both halves' scales lie in one word
  std::uint32_t now[4], next[4];

  __device__ Scales(const Pair<Packed<kRounded>>& w, int lane)
      : n(w.n), log2(w.m[0].group_log2), column(lane % 4 * 64) {
    pairs = log2 == 5 && n % 64 == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = min(lane / 4 + i % 2 * 8, w.rows[i / 2] - 1);
      row[i] = w.m[i / 2].scales + (w.first[i / 2] + r) * (n >> log2);
    }
  }
  __device__ void load(int segment) {
    const int first = segment * Packed<kRounded>::kColumns + column, second = first + 32;
    if (pairs) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        next[i] =
            first < n ? __ldg(reinterpret_cast<const std::uint32_t*>(row[i] + (first >> 5))) : 0;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* from = reinterpret_cast<const unsigned short*>(row[i]);
      const std::uint32_t low = first < n ? __ldg(from + (first >> log2)) : 0;
      const std::uint32_t high = second < n ? __ldg(from + (second >> log2)) : 0;
      next[i] = low | high << 16;
    }
  }
  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < 4; ++i) now[i] = next[i];
  }
};

// A lane's activations: its row of each tile of 8, eight columns a unit. They are loaded a batch of
// units ahead.
template <class M, int kCount, class X>
struct Rows {
  static constexpr int kUnits = M::kPacked ? 8 : 2;  // of a segment
  static constexpr bool kAhead = kCount == 1;        // else registers are short
  static constexpr int kBatch =
      std::min(kUnits, std::max(1, 4 / kCount / static_cast<int>(sizeof(X) / 2)));
  const X* row[kCount];  // where there is none any other: its column of the product is not used
  int count, last;       // the last eight of a row: what lies past it has weights of 0
  Eight<X> now[kBatch][kCount], next[kBatch][kCount];

  // The first of a unit's columns. Of a segment, a lane has 8 of each 32 columns of bf16 weights,
  // and 64 neighbours of int4.
  __device__ static int column(int segment, int unit, int lane) {
    return segment * M::kColumns +
           (M::kPacked ? lane % 4 * 64 + unit * 8 : unit * 32 + lane % 4 * 8);
  }
  __device__ void load(int segment, int unit, int lane) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int at = min(column(segment, unit + u, lane), last);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (j > 0 && j * 8 >= count) break;
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(X) / 2); ++i)
          next[u][j].v[i] = __ldg(reinterpret_cast<const uint4*>(row[j] + at) + i);
      }
    }
  }
  __device__ void advance() {
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
#pragma unroll
      for (int j = 0; j < kCount; ++j) now[u][j] = next[u][j];
  }
};

__device__ inline std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ inline std::uint32_t minus(std::uint32_t pair) {
  std::uint32_t d;
  asm("neg.bf16x2 %0, %1;" : "=r"(d) : "r"(pair));
  return d;
}

// Eight codes as bf16 pairs (j, j + 4), less 8, times 2^-6: a code in the lowest bits of a bf16 is
// a denormal number, code * 2^-133, or 2^-129 four bits up, which one exact multiply-add lifts.
__device__ inline void codes_of(std::uint32_t word, std::uint32_t (&pairs)[4]) {
  constexpr std::uint32_t kLow = 0x7F007F00u, kHigh = 0x7D007D00u;  // 2^127, 2^123
  constexpr std::uint32_t kBias = 0xBE00BE00u;                      // -2^-3
  const std::uint32_t upper = word >> 8;
  pairs[0] = fma_pair(word & 0x000F000Fu, kLow, kBias);
  pairs[1] = fma_pair(word & 0x00F000F0u, kHigh, kBias);
  pairs[2] = fma_pair(upper & 0x000F000Fu, kLow, kBias);
  pairs[3] = fma_pair(upper & 0x00F000F0u, kHigh, kBias);
}

// A unit of weights: of rows lane / 4 + 8 i four pairs. `rest`: what rounding the products of codes
// and scales took from them; only of Packed<false>.
template <class M>
struct Weights {
  std::uint32_t w[4][4], rest[4][4];
};
__device__ inline std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ inline void take(const Scales<Dense>&, int, const uint4 (&pieces)[4],
                            Weights<Dense>& out) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) out.w[i][j] = word_of(pieces[i], j);
}
template <bool kRounded>
__device__ void take(const Scales<Packed<kRounded>>& scales, int unit, const uint4 (&pieces)[4],
                     Weights<Packed<kRounded>>& out) {
  constexpr std::uint32_t kMinusZero = 0x80008000u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t scale = __byte_perm(scales.now[i], 0, unit < 4 ? 0x1010 : 0x3232);
    std::uint32_t codes[4];
    codes_of(word_of(pieces[i], unit % 4), codes);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out.w[i][j] = fma_pair(codes[j], scale, kMinusZero);
      if constexpr (!kRounded) out.rest[i][j] = fma_pair(codes[j], scale, minus(out.w[i][j]));
    }
  }
}

// done(row, column, first tile's sum, second tile's sum) for each of the 16 rows of the tiles and
// each activation row. kCount: tiles of 8 activation rows. wait() is called before x is read.
template <int kCount, class X, class M, class Wait, class Done>
__device__ void multiply(const Pair<M>& w, const X* x, const Crowd& crowd, const Shared& shared,
                         Wait&& wait, Done&& done) {
  using R = Rows<M, kCount, X>;
  const int lane = static_cast<int>(threadIdx.x % kLanes), g = lane / 4, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x / kLanes);
  std::byte* ring = shared.ring + warp * kStages * kStageBytes;
  const int segments = (w.n + M::kColumns - 1) / M::kColumns;
  const int first = w.whole ? 0 : warp, stride = w.whole ? 1 : kWarps;
  const Stream<M> stream(w, lane);
  Scales<M> scales(w, lane);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    const int segment = first + i * stride;
    if (segment < segments) stream.fetch(segment, ring + i * kStageBytes);
    commit_copies();
  }
  scales.load(first);
  if (static_cast<int>(threadIdx.x) < crowd.count) {
    shared.rows[threadIdx.x] = crowd.row;
    shared.slots[threadIdx.x] = crowd.slot;
  }
  wait();
  __syncthreads();
  R rows;
  rows.count = crowd.count;
  rows.last = w.n - 8;
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    rows.row[j] = x + shared.rows[min(j * 8 + g, crowd.count - 1)] * crowd.stride;
  if constexpr (R::kAhead) rows.load(first, 0, lane);
  float sum[2][kCount][4] = {};
  int stage = 0;
  for (int segment = first; segment < segments; segment += stride) {
    const int later = segment + (kStages - 1) * stride;
    const int free = stage == 0 ? kStages - 1 : stage - 1;
    if (later < segments) stream.fetch(later, ring + free * kStageBytes);
    commit_copies();
    scales.advance();
    scales.load(segment + stride);
    wait_copies_but<kStages - 1>();
    __syncwarp();
    uint4 pieces[4];  // of rows g + 8 i
#pragma unroll
    for (int unit = 0; unit < R::kUnits; ++unit) {
      if (unit % R::kBatch == 0) {
        if constexpr (R::kAhead) {
          rows.advance();
          const bool here = unit + R::kBatch < R::kUnits;
          rows.load(here ? segment : segment + stride, here ? unit + R::kBatch : 0, lane);
        } else {
          rows.load(segment, unit, lane);
          rows.advance();
        }
      }
      if (!M::kPacked || unit % 4 == 0) {
        const int at = piece<M>(g, M::kPacked ? 2 * t + unit / 4 : 4 * unit + t) * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pieces[i] = *reinterpret_cast<const uint4*>(ring + stage * kStageBytes +
                                                      (g + 8 * i) * kSegment + at);
      }
      Weights<M> a;
      take(scales, unit, pieces, a);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (j > 0 && j * 8 >= crowd.count) break;
        std::uint32_t b[kPieces<X>][4];
        pairs<M::kPacked>(rows.now[unit % R::kBatch][j], b);
        // f32 rows: tensor cores cut what they add to a large sum, so each unit has its own.
        constexpr bool kOwn = sizeof(X) == 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float part[4] = {};
          float (&to)[4] = kOwn ? part : sum[i][j];
          const auto add = [&](const std::uint32_t (&low)[4], const std::uint32_t (&high)[4]) {
#pragma unroll
            for (int p = 0; p < kPieces<X>; ++p) {
              multiply_add<__nv_bfloat16>(to, {low[0], high[0], low[1], high[1]}, b[p][0], b[p][1]);
              multiply_add<__nv_bfloat16>(to, {low[2], high[2], low[3], high[3]}, b[p][2], b[p][3]);
            }
          };
          add(a.w[2 * i], a.w[2 * i + 1]);
          if constexpr (kIsExact<M>) add(a.rest[2 * i], a.rest[2 * i + 1]);
          if constexpr (kOwn)
#pragma unroll
            for (int v = 0; v < 4; ++v) sum[i][j][v] += part[v];
        }
      }
    }
    __syncwarp();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_copies();
  // The ring is free: it takes each warp's sums, [warp][tile][tokens / 8][lane][4].
  __syncthreads();
  auto* parts = reinterpret_cast<float4*>(shared.ring);
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      parts[((warp * 2 + i) * kCount + j) * kLanes + lane] = {sum[i][j][0], sum[i][j][1],
                                                              sum[i][j][2], sum[i][j][3]};
  __syncthreads();
  const auto* values = reinterpret_cast<const float*>(parts);
  const int me = w.whole ? lane : static_cast<int>(threadIdx.x);
  for (int i = me; i < crowd.count * kRows; i += w.whole ? kLanes : kThreads) {
    const int row = i % kRows, column = i / kRows;
    const int at =
        (column / 8 * kLanes + row % 8 * 4 + column % 8 / 2) * 4 + row / 8 * 2 + column % 2;
    float both[2] = {};
#pragma unroll
    for (int v = 0; v < kWarps; ++v)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        if (!w.whole || v == warp) both[tile] += values[(v * 2 + tile) * kCount * kLanes * 4 + at];
    done(row, column, both[0] * M::kFactor, both[1] * M::kFactor);
  }
}

}  // namespace kdtr::cuda::tiles
