// Two tiles of 16 weight rows times up to 32 activation rows on tensor cores (mma.sync, sm_80 on):
// weights are read once, at the speed of memory. The four warps of a block share out the columns;
// each streams its part of the 32 rows through a ring of its own in shared memory. A sum's order
// depends on its row's length alone, so a token's bits are the same in any batch.
#pragma once

#include <algorithm>

#include "floats.cuh"

namespace kdtr::cuda::tiles {

constexpr int kLanes = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kRows = 16;      // of one tile
constexpr int kTokens = 32;    // most activation rows
constexpr int kSegment = 128;  // bytes of a weight row that a warp has at a time
constexpr int kStages = 3;     // segments of the ring
constexpr int kStageBytes = 2 * kRows * kSegment;
constexpr int kRingBytes = kWarps * kStages * kStageBytes;

// bf16 weights, rows of n: n is a multiple of 8.
struct Dense {
  static constexpr int kColumns = kSegment / 2;  // of a segment
  static constexpr bool kPacked = false;
  const __nv_bfloat16* w;
};

// int4 codes with one bf16 scale a group; kRounded: their products rounded to bf16.
template <bool kRounded>
struct Packed {
  static constexpr int kColumns = kSegment * 2;
  static constexpr bool kPacked = true, kRound = kRounded;
  const std::uint32_t* w;
  const __nv_bfloat16* scales;
  int group_log2;
};

__device__ inline void copy_async(std::byte* to, const std::byte* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
__device__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8].
__device__ inline void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                           std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

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

// A lane's activations: its row of each tile of 8. They are loaded a batch of steps (of 32 columns)
// at a time, so that one wait serves all.
template <int kCount, class X>
struct Rows {
  const X* row[kCount];  // where there is none any other: its column of the product is not used
  int last;              // the last eight of a row: what lies past it has weights of 0
};
template <int kSteps, int kCount, class X>
constexpr int kBatch = std::min(kSteps, std::max(1, 8 / kCount / static_cast<int>(sizeof(X) / 2)));
template <int kSteps, int kCount, class X>
__device__ void load_batch(const Rows<kCount, X>& rows, int column,
                           Eight<X> (&batch)[kSteps][kCount]) {
#pragma unroll
  for (int c = 0; c < kSteps; ++c) {
    const int at = min(column + 32 * c, rows.last);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(X) / 2); ++i)
        batch[c][j].v[i] = __ldg(reinterpret_cast<const uint4*>(rows.row[j] + at) + i);
  }
}

// Codes j and j + 4 of a word, less 8, as a bf16 pair: 0x4300 | code is 128 + code.
__device__ inline std::uint32_t code_pair(std::uint32_t word, int j) {
  std::uint32_t biased;  // (word >> 4 j) & 0x000F000F | 0x43004300 in one instruction
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(biased)
      : "r"(word >> (4 * j)), "r"(0x000F000Fu), "r"(0x43004300u));
  const std::uint32_t bias = 0x43084308u;  // 136, twice
  const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&biased),
                                      *reinterpret_cast<const __nv_bfloat162*>(&bias));
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline std::uint32_t times(std::uint32_t pair, std::uint32_t scales) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                         *reinterpret_cast<const __nv_bfloat162*>(&scales));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

// The weights of two tiles: rows `first[i]` .. of matrix `m[i]`, `rows[i]` of them, n columns.
template <class M>
struct Pair {
  M m[2];
  std::int64_t first[2];
  int rows[2];
  int n;
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

// The order of the 16-byte pieces of ring row r: no two lanes of an access share a bank.
__device__ inline int piece(int r, int c) { return c ^ ((r & 1) << 2 | ((r >> 1) & 3)); }

// A lane's part of a segment of both tiles: piece lane % 8 of rows lane / 8 + 4 i. Rows that a tile
// does not have, and what lies past the end of a row, become 0.
template <class M>
__device__ void fetch(const Pair<M>& w, int segment, std::byte* stage, int lane) {
  const int row_bytes = M::kPacked ? w.n / 2 : w.n * 2;
  const int at = segment * kSegment + lane % 8 * 16;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const auto* base = reinterpret_cast<const std::byte*>(w.m[tile].w);
    const std::byte* from = base + (w.first[tile] + lane / 8) * row_bytes + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 8 + 4 * i;
      const bool real = at < row_bytes && r < w.rows[tile];
      copy_async(stage + (tile * kRows + r) * kSegment + piece(r, lane % 8) * 16,
                 real ? from + std::int64_t{4 * i} * row_bytes : base, real);
    }
  }
}

// Of a row of scales, the eight of a segment: one for each 32 columns, 0 past the end of the row.
__device__ inline uint4 load_scales(const __nv_bfloat16* row, int n, int log2, int segment) {
  constexpr int kColumns = Packed<true>::kColumns;
  const int column = segment * kColumns;
  if (column >= n) return {0, 0, 0, 0};
  if (n % kColumns == 0) {
    row += column >> log2;
    if (log2 == 5) return __ldcg(reinterpret_cast<const uint4*>(row));
    if (log2 == 6) {
      const uint2 v = __ldcg(reinterpret_cast<const uint2*>(row));
      return {__byte_perm(v.x, 0, 0x1010), __byte_perm(v.x, 0, 0x3232), __byte_perm(v.y, 0, 0x1010),
              __byte_perm(v.y, 0, 0x3232)};
    }
    const std::uint32_t v = __ldcg(reinterpret_cast<const std::uint32_t*>(row));
    const std::uint32_t low = __byte_perm(v, 0, 0x1010), high = __byte_perm(v, 0, 0x3232);
    return {low, low, high, high};
  }
  std::uint32_t v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto at = [&](int i) -> std::uint32_t {
      const int c = column + 32 * i;
      return c < n ? __bfloat16_as_ushort(row[c >> log2]) : 0;
    };
    v[j] = at(2 * j) | at(2 * j + 1) << 16;
  }
  return {v[0], v[1], v[2], v[3]};
}

// sum += 32 columns of weights, step c of a segment, times kCount x 8 activation rows. scales: of
// rows lane / 4 + 8 i, two steps' side by side.
template <int kCount, class X>
__device__ void step(Dense, int c, const std::byte* stage, const std::uint32_t (&)[4],
                     const Eight<X> (&x)[kCount], int count, int lane, float (&sum)[2][kCount][4]) {
  const int g = lane / 4, t = lane % 4;
  uint4 a[4];  // of rows g + 8 i
#pragma unroll
  for (int i = 0; i < 4; ++i)
    a[i] =
        *reinterpret_cast<const uint4*>(stage + (g + 8 * i) * kSegment + piece(g, c * 4 + t) * 16);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j > 0 && j * 8 >= count) break;
    std::uint32_t b[kPieces<X>][4];
    pairs<false>(x[j], b);
#pragma unroll
    for (int p = 0; p < kPieces<X>; ++p) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma(sum[i][j], a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y, b[p][0], b[p][1]);
        mma(sum[i][j], a[2 * i].z, a[2 * i + 1].z, a[2 * i].w, a[2 * i + 1].w, b[p][2], b[p][3]);
      }
    }
  }
}
template <int kCount, class X, bool kRounded>
__device__ void step(Packed<kRounded>, int c, const std::byte* stage,
                     const std::uint32_t (&scales)[4], const Eight<X> (&x)[kCount], int count,
                     int lane, float (&sum)[2][kCount][4]) {
  const int g = lane / 4, t = lane % 4;
  std::uint32_t a[4][4];  // of rows g + 8 i
  float scale[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(
        stage + (g + 8 * i) * kSegment + piece(g, c) * 16 + t * 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = code_pair(word, j);
    if constexpr (kRounded) {
      const std::uint32_t both = __byte_perm(scales[i], 0, c % 2 == 0 ? 0x1010 : 0x3232);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[i][j] = times(a[i][j], both);
    } else {
      scale[i] = __uint_as_float(c % 2 == 0 ? scales[i] << 16 : scales[i] & 0xFFFF0000u);
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j > 0 && j * 8 >= count) break;
    std::uint32_t b[kPieces<X>][4];
    pairs<true>(x[j], b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float part[4] = {};  // not rounded: one group's codes are summed, then scaled
      float (&to)[4] = kRounded ? sum[i][j] : part;
#pragma unroll
      for (int p = 0; p < kPieces<X>; ++p) {
        mma(to, a[2 * i][0], a[2 * i + 1][0], a[2 * i][1], a[2 * i + 1][1], b[p][0], b[p][1]);
        mma(to, a[2 * i][2], a[2 * i + 1][2], a[2 * i][3], a[2 * i + 1][3], b[p][2], b[p][3]);
      }
      if constexpr (!kRounded) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sum[i][j][v] += scale[2 * i + v / 2] * part[v];
      }
    }
  }
}

// done(row, column, first tile's sum, second tile's sum) for each of the 16 rows of the tiles and
// each activation row. kCount: tiles of 8 activation rows.
template <int kCount, class X, class M, class Done>
__device__ void multiply(const Pair<M>& w, const X* x, const Crowd& crowd, const Shared& shared,
                         Done&& done) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int warp = static_cast<int>(threadIdx.x / kLanes);
  std::byte* ring = shared.ring + warp * kStages * kStageBytes;
  const int segments = (w.n + M::kColumns - 1) / M::kColumns;
  // Lane r has the scales of row r of the 32, a segment ahead.
  uint4 scales{}, next{};
  [[maybe_unused]] const __nv_bfloat16* row_scales = nullptr;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    const int segment = warp + i * kWarps;
    if (segment < segments) fetch(w, segment, ring + i * kStageBytes, lane);
    commit();
  }
  if constexpr (M::kPacked) {
    const bool low = lane < kRows;
    const int r = min(lane % kRows, (low ? w.rows[0] : w.rows[1]) - 1);
    row_scales = (low ? w.m[0].scales : w.m[1].scales) +
                 ((low ? w.first[0] : w.first[1]) + r) * (w.n >> w.m[0].group_log2);
    next = load_scales(row_scales, w.n, w.m[0].group_log2, warp);
  }
  if (static_cast<int>(threadIdx.x) < crowd.count) {
    shared.rows[threadIdx.x] = crowd.row;
    shared.slots[threadIdx.x] = crowd.slot;
  }
  __syncthreads();
  Rows<kCount, X> rows{{}, w.n - 8};
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    rows.row[j] = x + shared.rows[min(j * 8 + lane / 4, crowd.count - 1)] * crowd.stride;
  constexpr int kSteps = M::kColumns / 32, kAtOnce = kBatch<kSteps, kCount, X>;
  float sum[2][kCount][4] = {};
  int stage = 0;
  for (int segment = warp; segment < segments; segment += kWarps) {
    const int later = segment + (kStages - 1) * kWarps;
    const int free = stage == 0 ? kStages - 1 : stage - 1;
    if (later < segments) fetch(w, later, ring + free * kStageBytes, lane);
    commit();
    if constexpr (M::kPacked) {
      scales = next;
      next = load_scales(row_scales, w.n, w.m[0].group_log2, segment + kWarps);
    }
    Eight<X> batch[kAtOnce][kCount];
    load_batch(rows, segment * M::kColumns + lane % 4 * 8, batch);
    wait_for_all_but<kStages - 1>();
    __syncwarp();
    const std::uint32_t mine[4] = {scales.x, scales.y, scales.z, scales.w};
    std::uint32_t two[4] = {};
#pragma unroll
    for (int c = 0; c < kSteps; ++c) {
      if (c > 0 && c % kAtOnce == 0)
        load_batch(rows, segment * M::kColumns + lane % 4 * 8 + c * 32, batch);
      if constexpr (M::kPacked)
        if (c % 2 == 0)
#pragma unroll
          for (int i = 0; i < 4; ++i) two[i] = __shfl_sync(~0u, mine[c / 2], lane / 4 + 8 * i);
      step(M{}, c, ring + stage * kStageBytes, two, batch[c % kAtOnce], crowd.count, lane, sum);
    }
    __syncwarp();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_all_but<0>();
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
  for (int i = static_cast<int>(threadIdx.x); i < crowd.count * kRows; i += kThreads) {
    const int row = i % kRows, column = i / kRows;
    const int at =
        (column / 8 * kLanes + row % 8 * 4 + column % 8 / 2) * 4 + row / 8 * 2 + column % 2;
    float both[2] = {};
#pragma unroll
    for (int v = 0; v < kWarps; ++v)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        both[tile] += values[(v * 2 + tile) * kCount * kLanes * 4 + at];
    done(row, column, both[0], both[1]);
  }
}

}  // namespace kdtr::cuda::tiles
