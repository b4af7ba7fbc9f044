// verify_attn on sm_90a: wgmma over tiles of 64 query rows x 64 keys, D 576, Dv 512, bf16 | f16.
//
// Two warpgroups share a pair of key tiles. Each scores one tile and holds half of the output
// columns, so that one's softmax runs while the other's products do (the schedule of FlashMLA,
// "A deep dive into the new Flash MLA kernel", 2025). A third warpgroup loads: TMA where 16 or 64
// slots in a row are full prefix pages, else 16-byte copies row by row. The rope columns of a tile
// are dead once it is scored, so its weights P are stored there.
#pragma once

#include "attention.cuh"
#include "wgmma.cuh"

namespace kdtr::cuda::sm90 {

constexpr int kTileRows = 64, kTileKeys = 64, kChunks = 9, kChunkBytes = 8192, kWidth = 576;
constexpr int kValues = 512, kTileBytes = kChunks * kChunkBytes, kThreads = 384;
constexpr int kSharedBytes = 3 * kTileBytes + 1024;  // q and two key tiles, and room to align
constexpr Cut kCut{kTileRows, kTileKeys, 132, 4};

// A key tile is loaded and released in three regions: value columns 0..255, 256..511, and rope.
enum Region { kLeft = 0, kRight = 1, kRope = 2 };
__device__ constexpr int first_chunk(int region) { return region * 4; }
__device__ constexpr int chunk_count(int region) { return region == kRope ? 1 : 4; }

enum NamedBarrier { kTop0 = 1, kTop1, kWeights0, kWeights1, kLoaders, kBoth };

struct Shared {
  std::uint64_t full[2][3], empty[2][3], q_full;
  float top[2][kTileRows];  // running maximum after each tile of the pair, log2 units
  float sum[2][kTileRows];
  std::int64_t slot[2][kTileKeys];      // of a gathered tile, -1 = a row of zeros
  std::uint64_t visible[2][kTileRows];  // bit j: the row sees key j of the tile
};

// One block's share of the work, the same for all its threads.
struct Work {
  int request, row0, first_tile, tiles;
  bool gather_all;  // no page is long enough for TMA
};

// Whether a tile holds nothing but prefix rows: no mask.
__device__ inline bool is_plain(const Plan& p, int tile) {
  return (tile + 1) * kTileKeys <= p.prefix;
}

struct Loader {
  const Attention& a;
  const Plan& p;
  const Work& w;
  Shared& shared;
  std::uint8_t* tiles;  // two key tiles
  const CUtensorMap& pool_map;
  std::uint64_t* pending = nullptr;  // gathered, not yet announced

  __device__ void announce() {
    if (pending == nullptr) return;
    copy_wait<0>();
    fence_async_proxy();
    barrier_arrive(pending);
    pending = nullptr;
  }

  // Waits until the region's last user is done; announces first what that user may be waiting for.
  __device__ void acquire(std::uint64_t* empty, int parity) {
    if (pending != nullptr && !barrier_test(empty, parity)) announce();
    barrier_wait(empty, parity);
  }

  // Slots and masks of a gathered tile, in shared memory.
  __device__ void index_tile(int tile, int buffer) {
    const int me = static_cast<int>(threadIdx.x) % 128, t0 = tile * kTileKeys;
    const std::uint8_t* visible =
        a.visible + static_cast<std::int64_t>(w.request) * a.nodes * a.nodes;
    const int last_row = min(w.row0 + kTileRows, p.active) - 1;
    if (me < kTileKeys) {
      const int t = t0 + me, j = t - p.prefix;
      bool seen = t < p.prefix;
      if (!seen && t < p.keys) {
        for (int i = w.row0 / a.heads; i <= last_row / a.heads && !seen; ++i) {
          seen = visible[static_cast<std::int64_t>(i) * a.nodes + j] != 0;
        }
      }
      // Rows that nobody sees may hold NaN, and 0 * NaN is NaN.
      shared.slot[buffer][me] = seen ? slot_of(a, w.request, p, t) : -1;
    } else if (!is_plain(p, tile)) {
      const int row = me - kTileKeys;
      std::uint64_t bits = 0;
      if (w.row0 + row < p.active) {
        const std::uint8_t* mine =
            visible + static_cast<std::int64_t>((w.row0 + row) / a.heads) * a.nodes;
#pragma unroll 8
        for (int k = 0; k < kTileKeys; ++k) {
          const int t = t0 + k;
          const bool sees = t < p.prefix || (t < p.keys && mine[t - p.prefix] != 0);
          bits |= std::uint64_t{sees} << k;
        }
      }
      shared.visible[buffer][row] = bits;
    }
  }

  __device__ void gather(int buffer, int region) {
    const int me = static_cast<int>(threadIdx.x) % 128;
    const std::uint32_t tile = shared_address(tiles + buffer * kTileBytes);
    const int units = chunk_count(region) * 8;  // of 16 bytes, in a row
    for (int u = me; u < kTileKeys * units; u += 128) {
      const int row = u / units, chunk = first_chunk(region) + u % units / 8, unit = u % 8;
      const std::int64_t slot = shared.slot[buffer][row];
      const auto* from = static_cast<const std::uint8_t*>(a.pool) +
                         (slot < 0 ? 0 : slot * (kWidth * 2)) + chunk * 128 + unit * 16;
      copy16(tile + static_cast<std::uint32_t>(chunk * kChunkBytes + row * 128 +
                                               ((unit ^ (row & 7)) << 4)),
             from, slot >= 0);
    }
    copy_commit();
    pending = &shared.full[buffer][region];
  }

  __device__ void load(int tile, int buffer, int region, int parity, bool first_region) {
    const int me = static_cast<int>(threadIdx.x) % 128;
    std::uint64_t* empty = &shared.empty[buffer][region];
    std::uint64_t* full = &shared.full[buffer][region];
    if (!w.gather_all && is_plain(p, tile)) {
      announce();
      if (me != 0) return;
      barrier_wait(empty, parity ^ 1);
      barrier_arrive(full, 127);
      barrier_expect(full, chunk_count(region) * kChunkBytes);
      const int step = min(a.page_size, kTileKeys);
      for (int row = 0; row < kTileKeys; row += step) {
        const auto slot = static_cast<int>(slot_of(a, w.request, p, tile * kTileKeys + row));
        for (int c = 0; c < chunk_count(region); ++c) {
          const int chunk = first_chunk(region) + c;
          tma_load(tiles + buffer * kTileBytes + chunk * kChunkBytes + row * 128, pool_map,
                   chunk * 64, slot, full);
        }
      }
      return;
    }
    // Thread 0 has waited for every earlier region, so no parity is a phase behind.
    named_sync(kLoaders, 128);
    acquire(empty, parity ^ 1);
    if (first_region) {
      index_tile(tile, buffer);
      named_sync(kLoaders, 128);
    }
    announce();
    gather(buffer, region);
  }

  // In the order in which the regions become free.
  __device__ void run() {
    for (int i = 0; 2 * i < w.tiles; ++i) {
      const int tile = w.first_tile + 2 * i, parity = i & 1;
      const bool both = 2 * i + 1 < w.tiles;
      load(tile, 0, kLeft, parity, true);
      if (both) {
        load(tile + 1, 1, kRight, parity, true);
        load(tile + 1, 1, kLeft, parity, false);
        load(tile + 1, 1, kRope, parity, false);
      }
      load(tile, 0, kRight, parity, false);
      load(tile, 0, kRope, parity, false);
    }
    announce();
  }
};

// Products of q with one region's columns of a key tile.
template <class T>
__device__ void score_region(float (&s)[32], std::uint32_t q, std::uint32_t k, int region,
                             bool add) {
#pragma unroll
  for (int c = 0; c < chunk_count(region); ++c) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const auto at =
          static_cast<std::uint32_t>((first_chunk(region) + c) * kChunkBytes + step * 32);
      wgmma_scores<T>(s, tile_descriptor(q + at), tile_descriptor(k + at),
                      add || c > 0 || step > 0 ? 1 : 0);
    }
  }
}

// Masks scores, if the tile needs it, and gives each of this thread's two rows its maximum.
__device__ inline void mask_and_max(float (&s)[32], const Shared& shared, int buffer, bool plain,
                                    int row, float factor, float (&best)[2]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!plain) {
      const std::uint64_t bits = shared.visible[buffer][row + 8 * h] >> column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if ((bits >> (8 * j + e) & 1) == 0) s[4 * j + 2 * h + e] = -INFINITY;
        }
      }
    }
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    best[h] = top * factor;
  }
}

// What to subtract for a running maximum: never -inf.
__device__ inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Scores to weights; adds their sum to the row's.
__device__ inline void weigh(float (&s)[32], float factor, const float (&shift)[2],
                             float (&sum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float part = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * h + e];
        x = exp2_fast(fmaf(x, factor, -shift[h]));
        part += x;
      }
    }
    sum[h] += part;
  }
}

__device__ inline void rescale(float (&o)[128], const float (&by)[2]) {
  if (!__any_sync(~0u, by[0] != 1.0f || by[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i] *= by[i / 2 % 2];
}

// Weights as the A operand: the layout of scores in registers is that of four 16-key steps.
template <class T>
__device__ void pack_weights(const float (&s)[32], std::uint32_t (&packed)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

// Stores packed weights over the rope chunk of their tile, as a swizzled [64 x 64] operand.
__device__ inline void store_weights(const std::uint32_t (&packed)[16], std::uint8_t* chunk,
                                     int row) {
  const int lane = static_cast<int>(threadIdx.x) % 4 * 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = row + i % 2 * 8, unit = i / 2;
    *reinterpret_cast<std::uint32_t*>(chunk + r * 128 + ((unit ^ (r & 7)) << 4) + lane) = packed[i];
  }
  fence_async_proxy();
}

template <class T>
__device__ void values_from_registers(float (&o)[128], std::uint32_t (&packed)[16],
                                      std::uint32_t v) {
  settle(packed);
  wgmma_fence(o);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_values<T>(o, packed + 4 * step,
                    tile_descriptor(v + static_cast<std::uint32_t>(step * 2048)));
  }
  wgmma_commit();
}

template <class T>
__device__ void values_from_shared(float (&o)[128], std::uint32_t weights, std::uint32_t v) {
  wgmma_fence(o);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_values<T>(o, tile_descriptor(weights + static_cast<std::uint32_t>(step * 32)),
                    tile_descriptor(v + static_cast<std::uint32_t>(step * 2048)));
  }
  wgmma_commit();
}

// The warpgroup of the even tiles and the left half of the output (side 0), or of the odd tiles
// and the right half (side 1).
template <class T, int side>
struct Consumer {
  const Plan& p;
  const Work& w;
  Shared& shared;
  std::uint8_t* q;
  std::uint8_t* tiles;
  float factor;  // scale log2(e)

  float o[128];
  float top[2], sum[2];  // of rows `row` and `row + 8`; the sum over this thread's columns

  __device__ int row() const {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ bool writes_row() const { return threadIdx.x % 4 == 0; }
  __device__ std::uint32_t region(int buffer, int which) const {
    return shared_address(tiles) +
           static_cast<std::uint32_t>(buffer * kTileBytes + first_chunk(which) * kChunkBytes);
  }
  __device__ void release(int buffer, int which) {
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[buffer][which]);
  }

  // Scores this side's tile, its earliest loaded columns first.
  __device__ void score(float (&s)[32], int parity) {
    const std::uint32_t keys = region(side, kLeft), queries = shared_address(q);
    constexpr int order[3] = {side == 0 ? kLeft : kRight, side == 0 ? kRight : kLeft, kRope};
    wgmma_fence(s);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      barrier_wait(&shared.full[side][order[i]], parity);
      score_region<T>(s, queries, keys, order[i], i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(s);
  }

  __device__ void pair_even(int tile, int parity, bool both) {
    float s[32], best[2], shift[2], by[2];
    std::uint32_t packed[16];
    score(s, parity);
    mask_and_max(s, shared, 0, is_plain(p, tile), row(), factor, best);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      best[h] = fmaxf(top[h], best[h]);
      shift[h] = shift_of(best[h]);
      by[h] = exp2_fast(top[h] - shift[h]);
      sum[h] *= by[h];
      if (writes_row()) shared.top[0][row() + 8 * h] = best[h];
    }
    named_arrive(kTop0, 256);
    weigh(s, factor, shift, sum);
    rescale(o, by);
    pack_weights<T>(s, packed);
    values_from_registers<T>(o, packed, region(0, kLeft));
    named_sync(kTop1, 256);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = shared.top[1][row() + 8 * h];
      by[h] = exp2_fast(best[h] - shift_of(top[h]));
      sum[h] *= by[h];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] *= by[i / 2 % 2];
    std::uint32_t shrunk[16];
    pack_weights<T>(s, shrunk);
    store_weights(shrunk, tiles + kRopeOffset, row());
    named_arrive(kWeights0, 256);
    wgmma_wait<0>(o);
    release(0, kLeft);
    rescale(o, by);
    named_sync(kWeights1, 256);
    if (both) {
      values_from_shared<T>(o, region(1, kRope), region(1, kLeft));
      wgmma_wait<0>(o);
      release(1, kLeft);
      release(1, kRope);
    }
  }

  __device__ void pair_odd(int tile, int parity, bool both) {
    float s[32], best[2] = {-INFINITY, -INFINITY}, shift[2], by[2];
    std::uint32_t packed[16];
    if (both) {
      score(s, parity);
      mask_and_max(s, shared, 1, is_plain(p, tile + 1), row(), factor, best);
    }
    named_sync(kTop0, 256);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float first = shared.top[0][row() + 8 * h];
      best[h] = fmaxf(first, best[h]);
      shift[h] = shift_of(best[h]);
      by[h] = exp2_fast(top[h] - shift_of(first)) * exp2_fast(first - shift[h]);
      sum[h] *= by[h];
      top[h] = best[h];
      if (writes_row()) shared.top[1][row() + 8 * h] = best[h];
    }
    named_arrive(kTop1, 256);
    if (both) {
      weigh(s, factor, shift, sum);
      pack_weights<T>(s, packed);
      store_weights(packed, tiles + kTileBytes + kRopeOffset, row());
    }
    named_arrive(kWeights1, 256);
    rescale(o, by);
    if (both) values_from_registers<T>(o, packed, region(1, kRight));
    named_sync(kWeights0, 256);
    values_from_shared<T>(o, region(0, kRope), region(0, kRight));
    if (both) {
      wgmma_wait<1>(o);
      release(1, kRight);
    }
    wgmma_wait<0>(o);
    release(0, kRight);
    release(0, kRope);
  }

  static constexpr int kRopeOffset = 8 * kChunkBytes;

  __device__ void run() {
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    barrier_wait(&shared.q_full, 0);
#pragma unroll 1
    for (int i = 0; 2 * i < w.tiles; ++i) {
      const int tile = w.first_tile + 2 * i;
      const bool both = 2 * i + 1 < w.tiles;
      if constexpr (side == 0) {
        pair_even(tile, i & 1, both);
      } else {
        pair_odd(tile, i & 1, both);
      }
    }
  }
};

// Writes this warpgroup's columns of the result: final rows, or partial ones of a split.
template <class T, class O, int side>
__device__ void write_result(const Attention& a, const Plan& p, const Work& w, int block, int split,
                             Shared& shared, const Consumer<T, side>& mine) {
  const int row = mine.row(), lane = static_cast<int>(threadIdx.x) % 4;
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = mine.sum[h];
    sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    if (lane == 0) shared.sum[side][row + 8 * h] = sum[h];
  }
  named_sync(kBoth, 256);
  const std::int64_t request_row = static_cast<std::int64_t>(w.request) * a.nodes * a.heads;
  const std::int64_t part = part_row(a, p, kCut, w.request, block, split);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h, node_row = w.row0 + r;
    if (node_row >= a.nodes * a.heads) continue;
    const float total = shared.sum[0][r] + shared.sum[1][r];
    const bool empty = total == 0.0f || node_row >= p.active;
    const float lse = empty ? -INFINITY : (mine.top[h] + log2f(total)) * 0.693147180559945309f;
    const float inverse = 1.0f / total;
    if (p.splits == 1) {
      if (side == 0 && lane == 0) a.lse[request_row + node_row] = lse;
      O* out = static_cast<O*>(a.out) + (request_row + node_row) * kValues + side * 256 + lane * 2;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const float x = empty ? 0.0f : mine.o[4 * j + 2 * h] * inverse;
        const float y = empty ? 0.0f : mine.o[4 * j + 2 * h + 1] * inverse;
        if constexpr (std::is_same_v<O, float>) {
          *reinterpret_cast<float2*>(out + 8 * j) = make_float2(x, y);
        } else {
          *reinterpret_cast<std::uint32_t*>(out + 8 * j) = pack<O>(x, y);
        }
      }
    } else {
      if (side == 0 && lane == 0) a.part_lse[part + r] = lse;
      float* out = a.part_out + (part + r) * kValues + side * 256 + lane * 2;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const float x = empty ? 0.0f : mine.o[4 * j + 2 * h] * inverse;
        const float y = empty ? 0.0f : mine.o[4 * j + 2 * h + 1] * inverse;
        *reinterpret_cast<float2*>(out + 8 * j) = make_float2(x, y);
      }
    }
  }
}

// Rows of requests that are refused or inactive, and blocks past the active rows.
template <class O>
__device__ void write_pads(const Attention& a, int request, int row0) {
  const int rows = min(kTileRows, a.nodes * a.heads - row0);
  const std::int64_t first = static_cast<std::int64_t>(request) * a.nodes * a.heads + row0;
  O* out = static_cast<O*>(a.out) + first * kValues;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kValues; i += kThreads) {
    out[i] = narrow<O>(0.0f);
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kThreads) {
    a.lse[first + i] = -INFINITY;
  }
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads, 1)
    attend_mla(const Attention a, const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ CUtensorMap pool_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared shared;  // its size also tells the host that this body was compiled
  const int request = static_cast<int>(blockIdx.y), unit = static_cast<int>(blockIdx.x);
  const Plan p = plan_of(a, request, kCut);
  const int block = p.splits == 1 ? unit : unit % p.blocks;
  const int split = p.splits == 1 ? 0 : unit / p.blocks;
  const int row0 = block * kTileRows;
  if (split >= p.splits || (block > 0 && row0 >= a.nodes * a.heads)) return;

  const Work w{request, row0, split * p.per_split,
               min(p.per_split, ceil_div(p.keys, kTileKeys) - split * p.per_split),
               a.page_size < 16};
  const bool idle = row0 >= p.active;
  const int first = w.first_tile * kTileKeys;
  const bool bad = any_bad(a, request, p, first, min(p.keys, first + w.tiles * kTileKeys)) || p.bad;
  if (threadIdx.x == 0 && block == 0) {
    if (p.splits == 1) {
      a.status[request] = bad ? kBadInput : kOk;
    } else {
      a.part_bad[request * kCut.blocks + split] = bad ? 1 : 0;
    }
  }
  if (bad || idle || w.tiles <= 0) {
    if (p.splits == 1) write_pads<O>(a, request, row0);
    return;
  }

  const auto base = (reinterpret_cast<std::uintptr_t>(dynamic) + 1023) & ~std::uintptr_t{1023};
  auto* q = reinterpret_cast<std::uint8_t*>(base);
  std::uint8_t* tiles = q + kTileBytes;
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int region = 0; region < 3; ++region) {
        barrier_init(&shared.full[buffer][region], 128);
        barrier_init(&shared.empty[buffer][region], 4);
      }
    }
    barrier_init(&shared.q_full, 1);
    barrier_init_done();
  }
  __syncthreads();

  const float factor = a.scale * 1.44269504088896341f;
  if (threadIdx.x < 128) {
    more_registers<224>();
    Consumer<T, 0> consumer{p, w, shared, q, tiles, factor, {}, {}, {}};
    consumer.run();
    write_result<T, O, 0>(a, p, w, block, split, shared, consumer);
  } else if (threadIdx.x < 256) {
    more_registers<224>();
    Consumer<T, 1> consumer{p, w, shared, q, tiles, factor, {}, {}, {}};
    consumer.run();
    write_result<T, O, 1>(a, p, w, block, split, shared, consumer);
  } else {
    fewer_registers<56>();
    if (threadIdx.x == 256) {
      barrier_expect(&shared.q_full, kTileBytes);
      for (int c = 0; c < kChunks; ++c) {
        tma_load(q + c * kChunkBytes, q_map, c * 64, request * a.nodes * a.heads + row0,
                 &shared.q_full);
      }
    }
    Loader{a, p, w, shared, tiles, pool_map}.run();
  }
#endif
}

// A [rows, 576] tensor of 2-byte elements, loaded in boxes of 64 columns.
inline bool describe_rows(CUtensorMap& map, const void* data, std::int64_t rows, int box_rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      found = nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (encode == nullptr) return false;
  const cuuint64_t size[2] = {kWidth, static_cast<cuuint64_t>(rows)}, stride[1] = {kWidth * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, stride,
                box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Whether this device runs sm_90a code and this library holds it.
template <class T, class O>
bool available() {
  static const bool yes = [] {
    int device = 0, major = 0, minor = 0;
    cudaFuncAttributes attributes{};
    const bool found =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
        major == 9 && minor == 0 &&
        cudaFuncGetAttributes(&attributes, attend_mla<T, O>) == cudaSuccess &&
        attributes.sharedSizeBytes >= sizeof(Shared) &&
        cudaFuncSetAttribute(attend_mla<T, O>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kSharedBytes) == cudaSuccess;
    if (!found) static_cast<void>(cudaGetLastError());
    return found;
  }();
  return yes;
}

// The shapes that this path takes; pointers may still be null.
inline bool fits(const Attention& a) {
  const std::int64_t rows = static_cast<std::int64_t>(a.requests) * a.nodes * a.heads;
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  return a.width == kWidth && a.values == kValues && a.slots > 0 && a.slots < 1ll << 31 &&
         rows > 0 && rows < 1ll << 31 && a.scale >= 0 && a.scale < INFINITY && aligned(a.q) &&
         aligned(a.pool) && aligned(a.out);
}

// Runs the call, or returns false if it cannot.
template <class T, class O>
bool run(Attention a, void* workspace, cudaStream_t stream) {
  if (!fits(a) || !available<T, O>()) return false;
  CUtensorMap q_map{}, pool_map{};
  const int box_rows = a.page_size < 16 ? kTileKeys : std::min(a.page_size, kTileKeys);
  if (!describe_rows(q_map, a.q, static_cast<std::int64_t>(a.requests) * a.nodes * a.heads,
                     kTileRows) ||
      !describe_rows(pool_map, a.pool, a.slots, box_rows)) {
    return false;
  }
  size_units(a, kCut);
  place_workspace(a, kCut, workspace);
  const auto units = static_cast<unsigned>(a.units), requests = static_cast<unsigned>(a.requests);
  // grid: (row block, split) units, R; block: 2 warpgroups of products, 1 of loads; smem: 217 KB
  attend_mla<T, O><<<{units, requests}, kThreads, kSharedBytes, stream>>>(a, q_map, pool_map);
  KDTR_LAUNCHED("verify_attn@1");
  const int rows = a.nodes * a.heads;
  if (a.parts > 0) {
    // grid: a block per row, R; block: 128; smem: 1 KB static
    merge_splits<O><<<{static_cast<unsigned>(rows), requests}, kMergeThreads, 0, stream>>>(a, kCut);
    KDTR_LAUNCHED("verify_attn@1");
  }
  return true;
}

}  // namespace kdtr::cuda::sm90
