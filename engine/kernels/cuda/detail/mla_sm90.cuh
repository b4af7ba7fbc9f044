// verify_attn on sm_90a: wgmma over tiles of 64 query rows x 64 keys, D 576, Dv 512, bf16 | f16.
//
// Two warpgroups share a pair of key tiles. Each scores one tile and holds half of the output
// columns, so that one's softmax runs while the other's products do (the schedule of FlashMLA,
// "A deep dive into the new Flash MLA kernel", 2025). A third warpgroup loads: TMA where 16 or 64
// slots in a row are full prefix pages, else 16-byte copies row by row. The rope columns of a tile
// are dead once it is scored, so its weights P are stored there.
#pragma once

#include <utility>

#include "attention.cuh"
#include "wgmma.cuh"

namespace kdtr::cuda::sm90 {

constexpr int kTileRows = 64, kTileKeys = 64, kChunks = 9, kChunkBytes = 8192, kWidth = 576;
constexpr int kValues = 512, kTileBytes = kChunks * kChunkBytes, kThreads = 384;
constexpr int kSharedBytes = 3 * kTileBytes + 1024;  // q and two key tiles, and room to align
constexpr Cut kCut{kTileRows, kTileKeys, 132, 16};

// A key tile is loaded in five regions: four of 128 value columns, and rope.
constexpr int kRegions = 5, kRope = 4;
__device__ constexpr int chunk_count(int region) { return region == kRope ? 1 : 2; }

enum NamedBarrier { kTop0 = 1, kTop1, kWeights0, kWeights1, kStream0, kStream1 };

struct Shared {
  std::uint64_t full[2][kRegions], empty[2][kRegions], q_full, summed;
  float top[2][kTileRows];  // running maximum after each tile of the pair, log2 units
  float sum[2][kTileRows];
  // Slots of a gathered tile by stream and buffer, -1 = a zero row; row r at r % 4 * 16 + r / 4.
  alignas(16) int slot[2][2][kTileKeys];
  std::uint32_t visible[2][kTileRows][2];  // buffer, node of the block: the keys that it sees
  int bad;                                 // whether a slot is out of range
};

// One block's share of the work, the same for all its threads.
struct Work {
  int request, row0, first_node, first_tile, tiles;
  int page_shift;
  bool gather_all;  // no page is long enough for TMA
};

// Whether a tile holds nothing but prefix rows: no mask.
__device__ inline bool is_plain(const Plan& p, int tile) {
  return (tile + 1) * kTileKeys <= p.prefix;
}

// Whether a tile's rows are copied one by one.
__device__ inline bool is_gathered(const Work& w, const Plan& p, int tile) {
  return w.gather_all || !is_plain(p, tile);
}

// Arrivals that fill a region: two of each thread of its stream. A gathering thread arrives once
// itself, which publishes the masks, and once when its copies are done.
constexpr int kFills = 128;

// Two streams of loads, 64 threads each: stream x loads what warpgroup x is the last to read, in
// the order in which it does, so that neither waits for the other's tiles.
struct Loader {
  const Attention& a;
  const Plan& p;
  const Work& w;
  Shared& shared;
  std::uint8_t* tiles;  // two key tiles
  const CUtensorMap& pool_map;
  int stream, me;     // thread of the stream
  int ahead[2] = {};  // raw table entries of the next pair

  // The key whose table entry this thread looks up: of its TMA box, or of its gathered row.
  __device__ int key_of(int tile) const {
    return tile * kTileKeys +
           (is_gathered(w, p, tile) ? me : me % 32 % (kTileKeys >> w.page_shift) << w.page_shift);
  }
  __device__ int entry_of(int tile) const {
    const int t = key_of(tile);
    if (t < p.prefix) return a.page_table[w.request * a.max_pages + (t >> w.page_shift)];
    if (t >= p.keys) return 0;
    return a.tree_slots[static_cast<std::int64_t>(w.request) * a.nodes + (t - p.prefix)];
  }
  __device__ int slot_from(int entry, int t) const {
    return t >= p.prefix ? entry : (entry << w.page_shift) + (t & (a.page_size - 1));
  }
  // Of both warps of the stream.
  __device__ void meet() const {
    if (stream == 0) {
      named_sync<kStream0>(64);
    } else {
      named_sync<kStream1>(64);
    }
  }

  // Slots of a gathered tile and, for its scorer, which nodes of the block see which keys.
  __device__ void index_tile(int tile, int buffer, int entry) {
    const int t = tile * kTileKeys + me, j = t - p.prefix;
    bool seen = t < p.prefix;
    if (!is_plain(p, tile)) {
      const std::uint8_t* visible =
          a.visible + static_cast<std::int64_t>(w.request) * a.nodes * a.nodes;
      const int last = (min(w.row0 + kTileRows, p.active) - 1) / a.heads;
#pragma unroll 8
      for (int i = w.first_node; i <= last; ++i) {
        const bool sees = t < p.prefix ||
                          (t < p.keys && visible[static_cast<std::int64_t>(i) * a.nodes + j] != 0);
        seen |= sees;
        const std::uint32_t bits = __ballot_sync(~0u, sees);
        if (buffer == stream && me % 32 == 0) {
          shared.visible[buffer][i - w.first_node][me / 32] = bits;
        }
      }
    }
    // Rows that nobody sees may hold NaN, and 0 * NaN is NaN. Slots may be out of range: then the
    // result will not be used.
    const int slot = slot_from(entry, t);
    shared.slot[stream][buffer][me % 4 * 16 + me / 4] =
        seen && static_cast<std::int64_t>(slot) < a.slots ? slot : -1;
  }

  // Groups of 8 or 16 threads copy a row's 128 or 256 bytes, every fourth row.
  template <int chunks>
  __device__ void gather(int buffer, int region) {
    constexpr int kLanes = 8 * chunks;
    const int group = me / kLanes, residue = group % 4, unit = me % 8;
    const int chunk = 2 * region + me % kLanes / 8;
    const std::uint32_t to = shared_address(tiles + buffer * kTileBytes + chunk * kChunkBytes);
    const auto* from = static_cast<const std::uint8_t*>(a.pool) + chunk * 128 + unit * 16;
#pragma unroll 2
    for (int i = 0; i < kLanes; i += 4) {
      const int at = group / 4 * kLanes + i;
      const int4 four =
          *reinterpret_cast<const int4*>(&shared.slot[stream][buffer][residue * 16 + at]);
      const int slots[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 4 * (at + j) + residue;
        const bool there = slots[j] >= 0;
        copy16(to + static_cast<std::uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)),
               from + (there ? static_cast<std::int64_t>(slots[j]) * (kWidth * 2) : 0), there);
      }
    }
    barrier_arrive_copied(&shared.full[buffer][region]);
    barrier_arrive(&shared.full[buffer][region]);
  }

  __device__ void load(int tile, int buffer, int region, int parity, int entry, bool first) {
    std::uint64_t* empty = &shared.empty[buffer][region];
    std::uint64_t* full = &shared.full[buffer][region];
    if (is_gathered(w, p, tile)) {
      // Only the first warp has waited for every earlier region: the other's parity could be that
      // of an older phase.
      if (first) meet();
      barrier_wait(empty, parity ^ 1);
      if (first) {
        index_tile(tile, buffer, entry);
        meet();
      }
      if (region == kRope) {
        gather<1>(buffer, region);
      } else {
        gather<2>(buffer, region);
      }
      return;
    }
    barrier_wait(empty, parity ^ 1);
    // A warp loads a chunk, a lane one of its boxes.
    const int box = me % 32, chunk = 2 * region + me / 32;
    if (me == 0) {
      barrier_arrive(full, kFills - 1);
      barrier_expect(full, chunk_count(region) * kChunkBytes);
    }
    if (box << w.page_shift < kTileKeys && chunk < kChunks) {
      tma_load(tiles + buffer * kTileBytes + chunk * kChunkBytes + (box << w.page_shift) * 128,
               pool_map, chunk * 64, slot_from(entry, tile * kTileKeys), full);
    }
  }

  __device__ void run() {
    const auto look_ahead = [&](int i) {
      if (2 * i < w.tiles) ahead[0] = entry_of(w.first_tile + 2 * i);
      if (2 * i + 1 < w.tiles) ahead[1] = entry_of(w.first_tile + 2 * i + 1);
    };
    look_ahead(0);
#pragma unroll 1
    for (int i = 0; 2 * i < w.tiles; ++i) {
      const int tile = w.first_tile + 2 * i, parity = i & 1;
      const int entry0 = ahead[0], entry1 = ahead[1];
      look_ahead(i + 1);
      // One body for the five steps of a stream: the copies of it would not fit the registers.
#pragma unroll 1
      for (int step = 0; step < kRegions; ++step) {
        const int buffer = step < 2 ? stream : 1 - stream;
        if (2 * i + buffer >= w.tiles) continue;
        const int region = step == 4 ? kRope : 2 * stream + step % 2;
        load(tile + buffer, buffer, region, parity, buffer == 0 ? entry0 : entry1,
             step == 0 || step == 2);
      }
    }
  }
};

// Products of q with one region's columns of a key tile; both as descriptors.
template <class T>
__device__ void score_region(float (&s)[32], std::uint32_t q, std::uint32_t k, int region,
                             bool add) {
#pragma unroll
  for (int c = 0; c < chunk_count(region); ++c) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const auto at = static_cast<std::uint32_t>(((2 * region + c) * kChunkBytes + step * 32) / 16);
      wgmma_scores<T>(s, q + at, k + at, add || c > 0 || step > 0 ? 1 : 0);
    }
  }
}

// Masks scores, if the tile needs it, and gives each of this thread's two rows its maximum.
__device__ inline void mask_and_max(float (&s)[32], const Shared& shared, int buffer, bool plain,
                                    const int (&node)[2], float factor, float (&best)[2]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!plain) {
      const std::uint32_t* mask = shared.visible[buffer][node[h]];
      const std::uint64_t bits = (std::uint64_t{mask[1]} << 32 | mask[0]) >> column;
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

// Weights, times a factor per row, as the A operand: the layout of scores in registers is that of
// four 16-key steps.
template <class T>
__device__ void pack_weights(const float (&s)[32], std::uint32_t (&packed)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}
template <class T>
__device__ void pack_weights(const float (&s)[32], const float (&by)[2],
                             std::uint32_t (&packed)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i] = pack<T>(s[2 * i] * by[i % 2], s[2 * i + 1] * by[i % 2]);
}

// Stores weights over the rope chunk of their tile, as a swizzled [64 x 64] operand.
__device__ inline void store_weights(const std::uint32_t (&packed)[16], std::uint8_t* chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = 2 * i + lane / 16;
    store_matrices(shared_address(chunk + row * 128 + ((unit ^ (row & 7)) << 4)), packed + 4 * i);
  }
  fence_async_proxy();
}

// o += weights times half of a tile's value columns; a commit group. `v`, and weights in shared
// memory, are descriptors.
template <class T>
__device__ void add_values(float (&o)[128], std::uint32_t (&packed)[16], std::uint32_t v) {
  settle(packed);
  wgmma_fence(o);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_values<T>(o, packed + 4 * step, v + static_cast<std::uint32_t>(step * 2048 / 16));
  }
  wgmma_commit();
}

template <class T>
__device__ void add_values(float (&o)[128], std::uint32_t weights, std::uint32_t v) {
  wgmma_fence(o);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_values<T>(o, weights + static_cast<std::uint32_t>(step * 32 / 16),
                    v + static_cast<std::uint32_t>(step * 2048 / 16));
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
  int heads;

  int node[2];  // of rows `row` and `row + 8`, within the block
  float o[128];
  float top[2], sum[2];  // of the two rows; the sum over this thread's columns

  __device__ int row() const {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ bool writes_row() const { return threadIdx.x % 4 == 0; }
  // Descriptor of a region of a key tile.
  __device__ std::uint32_t region(int buffer, int which) const {
    return tile_descriptor(shared_address(tiles)) +
           static_cast<std::uint32_t>((buffer * kTileBytes + which * 2 * kChunkBytes) / 16);
  }
  __device__ void release(int buffer, int which) {
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[buffer][which]);
  }

  // Issues the products of q with this side's tile, steps [from, to) of the order of its loads.
  template <int from, int to>
  __device__ void score(float (&s)[32], int i) {
    constexpr int kOrder[2][kRegions] = {{0, 1, 2, 3, kRope}, {2, 3, 0, 1, kRope}};
    const std::uint32_t keys = region(side, 0), queries = tile_descriptor(shared_address(q));
    const bool gathered = is_gathered(w, p, w.first_tile + 2 * i + side);
    wgmma_fence(s);
#pragma unroll
    for (int step = from; step < to; ++step) {
      const int which = kOrder[side][step];
      barrier_wait(&shared.full[side][which], i & 1);
      if (gathered) fence_async_proxy();
      score_region<T>(s, queries, keys, which, step > 0);
    }
    wgmma_commit();
  }

  // `s` holds the scores of this side's tile of pair i; on return, those of its next one, if any.
  template <bool both, bool more>
  __device__ void pair_even(float (&s)[32], int i) {
    float best[2], shift[2], by[2];
    std::uint32_t packed[16];
    mask_and_max(s, shared, 0, is_plain(p, w.first_tile + 2 * i), node, factor, best);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      best[h] = fmaxf(top[h], best[h]);
      shift[h] = shift_of(best[h]);
      by[h] = exp2_fast(top[h] - shift[h]);
      sum[h] *= by[h];
      if (writes_row()) shared.top[0][row() + 8 * h] = best[h];
    }
    named_arrive<kTop0>(256);
    weigh(s, factor, shift, sum);
    rescale(o, by);
    pack_weights<T>(s, packed);
    add_values<T>(o, packed, region(0, 0));
    if (both) {
      named_sync<kTop1>(256);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[h] = shared.top[1][row() + 8 * h];
        by[h] = exp2_fast(best[h] - shift_of(top[h]));
        sum[h] *= by[h];
      }
      std::uint32_t scaled[16];
      pack_weights<T>(s, by, scaled);
      store_weights(scaled, tiles + kRopeOffset);
    } else {  // a lone last tile: its maximum is the pair's
      top[0] = best[0];
      top[1] = best[1];
      store_weights(packed, tiles + kRopeOffset);
    }
    named_arrive<kWeights0>(256);
    wgmma_wait<0>(o);
    release(0, 0);
    release(0, 1);
    if (both) {
      rescale(o, by);
      named_sync<kWeights1>(256);
      add_values<T>(o, region(1, kRope), region(1, 0));
      // The next scores queue behind them; their first keys were asked for 128 columns ago.
      if (more) {
        score<0, 2>(s, i + 1);
        wgmma_wait<1>(o);
      } else {
        wgmma_wait<0>(o);
      }
      release(1, 0);
      release(1, 1);
      release(1, kRope);
      if (more) {
        score<2, kRegions>(s, i + 1);
        wgmma_wait<0>(s);
      }
    }
  }

  template <bool both, bool more>
  __device__ void pair_odd(float (&s)[32], int i) {
    float best[2] = {-INFINITY, -INFINITY}, shift[2], by[2];
    std::uint32_t packed[16];
    if (both) {
      mask_and_max(s, shared, 1, is_plain(p, w.first_tile + 2 * i + 1), node, factor, best);
    }
    named_sync<kTop0>(256);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float first = shared.top[0][row() + 8 * h];
      best[h] = fmaxf(first, best[h]);
      shift[h] = shift_of(best[h]);
      by[h] = exp2_fast(top[h] - shift_of(first)) * exp2_fast(first - shift[h]);
      sum[h] *= by[h];
      top[h] = best[h];
      if (both && writes_row()) shared.top[1][row() + 8 * h] = best[h];
    }
    if (both) {
      named_arrive<kTop1>(256);
      weigh(s, factor, shift, sum);
      pack_weights<T>(s, packed);
      store_weights(packed, tiles + kTileBytes + kRopeOffset);
    }
    rescale(o, by);
    if (both) add_values<T>(o, packed, region(1, 2));
    named_sync<kWeights0>(256);
    if (is_gathered(w, p, w.first_tile + 2 * i)) fence_async_proxy();
    add_values<T>(o, region(0, kRope), region(0, 2));
    if (both) {
      // Only now: the other's products would delay these, which more loads wait for.
      named_arrive<kWeights1>(256);
      wgmma_wait<1>();
      release(1, 2);
      release(1, 3);
    }
    wgmma_wait<0>(o);
    release(0, 2);
    release(0, 3);
    release(0, kRope);
    if (more) {
      score<0, kRegions>(s, i + 1);
      wgmma_wait<0>(s);
    }
  }

  static constexpr int kRopeOffset = 8 * kChunkBytes;

  __device__ void run() {
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) node[h] = (w.row0 + row() + 8 * h) / heads - w.first_node;
    barrier_wait(&shared.q_full, 0);
    float s[32];
    if (w.tiles > side) {
      score<0, kRegions>(s, 0);
      wgmma_wait<0>(s);
    }
    int i = 0;
#pragma unroll 1
    for (; 2 * i + 2 + side < w.tiles; ++i) pair<true, true>(s, i);
    if (2 * i + 1 < w.tiles) {
      pair<true, false>(s, i);
      ++i;
    }
    if (2 * i < w.tiles) pair<false, false>(s, i);
  }

  template <bool both, bool more>
  __device__ void pair(float (&s)[32], int i) {
    if constexpr (side == 0) {
      pair_even<both, more>(s, i);
    } else {
      pair_odd<both, more>(s, i);
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
  barrier_arrive(&shared.summed);
  barrier_wait(&shared.summed, 0);
  const bool bad = shared.bad != 0;
  if (threadIdx.x == 0 && block == 0) {
    if (p.splits == 1) {
      a.status[w.request] = bad ? kBadInput : kOk;
    } else {
      a.part_bad[w.request * kCut.blocks + split] = bad ? 1 : 0;
    }
  }
  if (bad && p.splits > 1) return;
  const std::int64_t request_row = static_cast<std::int64_t>(w.request) * a.nodes * a.heads;
  const std::int64_t part = part_row(a, p, kCut, w.request, block, split);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h, node_row = w.row0 + r;
    if (node_row >= a.nodes * a.heads) continue;
    const float total = shared.sum[0][r] + shared.sum[1][r];
    const bool empty = bad || total == 0.0f || node_row >= p.active;
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

template <class T, class O>
__global__ void __launch_bounds__(kThreads, 1)
    attend_mla(const Attention a, const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ CUtensorMap pool_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared shared;  // its size also tells the host that this body was compiled
  const auto base = (reinterpret_cast<std::uintptr_t>(dynamic) + 1023) & ~std::uintptr_t{1023};
  auto* q = reinterpret_cast<std::uint8_t*>(base);
  std::uint8_t* tiles = q + kTileBytes;
  if (threadIdx.x == 0) {
    prefetch(q_map);
    prefetch(pool_map);
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int region = 0; region < kRegions; ++region) {
        barrier_init(&shared.full[buffer][region], kFills);
        barrier_init(&shared.empty[buffer][region], 4);
      }
    }
    barrier_init(&shared.q_full, 1);
    barrier_init(&shared.summed, 256);
    barrier_init_done();
    shared.bad = 0;
  }
  __syncthreads();
  wait_for_last();
  let_next_start();
  const int request = static_cast<int>(blockIdx.y), unit = static_cast<int>(blockIdx.x);
  const Plan p = plan_of(a, request, kCut);
  const int block = p.splits == 1 ? unit : unit % p.blocks;
  const int split = p.splits == 1 ? 0 : unit / p.blocks;
  const int row0 = block * kTileRows;
  if (split >= p.splits || (block > 0 && row0 >= a.nodes * a.heads)) return;

  const Work w{request,
               row0,
               row0 / a.heads,
               split * p.per_split,
               min(p.per_split, ceil_div(p.keys, kTileKeys) - split * p.per_split),
               31 - __clz(a.page_size),
               a.page_size < 16};
  const bool idle = row0 >= p.active || w.tiles <= 0;
  if (threadIdx.x == 0 && !idle) {
    barrier_expect(&shared.q_full, kTileBytes);
    for (int c = 0; c < kChunks; ++c) {
      tma_load(q + c * kChunkBytes, q_map, c * 64, request * a.nodes * a.heads + row0,
               &shared.q_full);
    }
  }
  if (idle) {  // its request has no active row, or splits == 1
    if (threadIdx.x == 0 && block == 0) a.status[request] = p.bad ? kBadInput : kOk;
    write_pads<O>(a, request, row0, kTileRows);
    return;
  }

  const float factor = a.scale * 1.44269504088896341f;
  const int first = w.first_tile * kTileKeys, last = min(p.keys, first + w.tiles * kTileKeys);
  // Slots are checked while the first keys are on their way.
  if (threadIdx.x < 256 &&
      finds_bad(a, request, p, first, last, static_cast<int>(threadIdx.x), 256))
    atomicOr(&shared.bad, 1);
  __syncwarp();
  if (threadIdx.x < 128) {
    more_registers<224>();
    Consumer<T, 0> consumer{p, w, shared, q, tiles, factor, a.heads, {}, {}, {}, {}};
    consumer.run();
    write_result<T, O, 0>(a, p, w, block, split, shared, consumer);
  } else if (threadIdx.x < 256) {
    more_registers<224>();
    Consumer<T, 1> consumer{p, w, shared, q, tiles, factor, a.heads, {}, {}, {}, {}};
    consumer.run();
    write_result<T, O, 1>(a, p, w, block, split, shared, consumer);
  } else {
    fewer_registers<56>();
    const int me = static_cast<int>(threadIdx.x) % 128;
    Loader{a, p, w, shared, tiles, pool_map, me / 64, me % 64}.run();
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
         rows > 0 && rows < 1ll << 31 && a.scale > 0 && a.scale < INFINITY && aligned(a.q) &&
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
  launch_next(attend_mla<T, O>, dim3(units, requests), kThreads, kSharedBytes, stream,
              std::as_const(a), std::as_const(q_map), std::as_const(pool_map));
  launch_merge_splits<O>(a, kCut, stream);
  return true;
}

}  // namespace kdtr::cuda::sm90
