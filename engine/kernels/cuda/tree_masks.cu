// tree_masks@1 on cuda: every output byte from one predicate in one launch; integers only.
// visible u8 [R, N, N] and links -> byte and bit masks, orders. No aliasing.
#include <algorithm>
#include <cstdint>

#include "detail/block.cuh"
#include "kdtr/cuda.h"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 256;

struct Arguments {
  const std::uint8_t* visible;
  const std::int32_t *parents, *depths, *n_nodes, *prefix_len;
  std::uint8_t *qlen, *full, *packed8;
  std::uint32_t* packed32;
  std::int32_t *indptr, *bfs_order, *retrieve_index, *status;
  int requests, slots;
  std::int64_t total, total8;
};

// Where a request lies in full and packed8, and what it shows.
struct Place {
  std::int64_t begin, end, begin8, end8, prefix;
  int live;  // nodes, or 0 where the request fails
  bool ok;
};

__device__ std::int64_t prefix_of(const Arguments& a, int request) {
  return max(a.prefix_len[request], 0);
}

__device__ bool sees(const Arguments& a, const std::uint8_t* visible, const Place& place, int i,
                     std::int64_t j) {
  return i < place.live && j < place.live &&
         visible[static_cast<std::int64_t>(i) * a.slots + j] != 0;
}

// Up to `count` values of the request's part of full from value t on, as bits from bit 0.
__device__ std::uint32_t bits_at(const Arguments& a, const std::uint8_t* visible,
                                 const Place& place, std::int64_t t, int count) {
  if (!place.ok) return 0;
  const std::int64_t width = place.prefix + a.slots;
  auto row = static_cast<int>(static_cast<std::uint32_t>(t) / static_cast<std::uint32_t>(width));
  std::int64_t column = t - row * width;
  if (column + count <= place.prefix) return (1u << count) - 1;
  std::uint32_t bits = 0;
  for (int b = 0; b < count; ++b) {
    const bool on = column < place.prefix || sees(a, visible, place, row, column - place.prefix);
    bits |= (on ? 1u : 0u) << b;
    if (++column == width) {
      column = 0;
      ++row;
    }
  }
  return bits;
}

// Eight bits as eight bytes of 0 or 1.
__device__ std::uint64_t spread(std::uint32_t bits) {
  std::uint64_t out = 0;
  for (int b = 0; b < 8; ++b) out |= static_cast<std::uint64_t>(bits >> b & 1u) << (8 * b);
  return out;
}

// The order of nodes by level. `first` and `next` list each node's children in ascending index.
__device__ void breadth_first(const std::int32_t* parents, int nodes, std::int16_t* first,
                              std::int16_t* next, std::int16_t* order) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < nodes; i += kThreads) {
    first[i] = next[i] = -1;
    for (int j = i + 1; j < nodes; ++j) {
      const int parent = parents[j];
      if (parent == i && first[i] < 0) first[i] = static_cast<std::int16_t>(j);
      if (i > 0 && parent == parents[i] && next[i] < 0) next[i] = static_cast<std::int16_t>(j);
    }
  }
  __syncthreads();
  if (thread == 0 && nodes > 0) {
    int filled = 1;
    order[0] = 0;
    for (int k = 0; k < filled; ++k)
      for (int i = first[order[k]]; i >= 0; i = next[i])
        order[filled++] = static_cast<std::int16_t>(i);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) derive(const Arguments a) {
  extern __shared__ std::int32_t links[];
  __shared__ unsigned long long before, before8;
  const int request = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int first_thread = static_cast<int>(blockIdx.x) * kThreads + thread;
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const std::int64_t n = a.slots, base = request * n;
  const std::int32_t nodes = a.n_nodes[request];

  if (thread == 0) before = before8 = 0;
  __syncthreads();
  for (int r = thread; r < request; r += kThreads) {
    const std::int64_t values = n * (prefix_of(a, r) + n);
    atomicAdd(&before, static_cast<unsigned long long>(values));
    atomicAdd(&before8, static_cast<unsigned long long>((values + 7) / 8));
  }
  bool bad_links = false;
  const bool bad_input = nodes < 0 || nodes > a.slots || a.prefix_len[request] < 0;
  if (!bad_input)
    for (int i = thread; i < nodes; i += kThreads) {
      const std::int32_t parent = a.parents[base + i];
      links[i] = parent;
      if (i == 0)
        bad_links = bad_links || parent != -1 || a.depths[base] != 0;
      else  // unsigned: the depth of a bad link's end may be the greatest integer
        bad_links = bad_links || parent < 0 || parent >= i ||
                    static_cast<std::uint32_t>(a.depths[base + i]) !=
                        static_cast<std::uint32_t>(a.depths[base + parent]) + 1u;
    }
  bad_links = block_any(bad_links);

  Place place;
  place.prefix = prefix_of(a, request);
  const std::int64_t values = n * (place.prefix + n);
  place.begin = static_cast<std::int64_t>(before);
  place.begin8 = static_cast<std::int64_t>(before8);
  place.end = place.begin + values;
  place.end8 = place.begin8 + (values + 7) / 8;
  std::int32_t state = kOk;
  if (bad_input)
    state = kBadInput;
  else if (bad_links)
    state = kBadLinks;
  else if (place.end > a.total || place.end8 > a.total8)
    state = kCapacity;
  place.ok = state == kOk;
  place.live = place.ok ? nodes : 0;
  const std::uint8_t* visible = a.visible + base * n;

  const std::int64_t square = n * n;
  for (std::int64_t t = first_thread; t < square; t += stride) {
    const auto i = static_cast<int>(t / n);
    a.qlen[base * n + t] = sees(a, visible, place, i, t - i * n) ? 1 : 0;
  }
  const int words = (a.slots + 31) / 32;
  for (int t = first_thread; t < a.slots * words; t += stride) {
    const int i = t / words, column = 32 * (t - i * words);
    std::uint32_t bits = 0;
    for (int b = 0; b < min(32, a.slots - column); ++b)
      bits |= (sees(a, visible, place, i, column + b) ? 1u : 0u) << b;
    a.packed32[base * words + t] = bits;
  }

  // full in aligned groups of eight bytes; the last request also clears what is left.
  const bool last = request == a.requests - 1;
  const std::int64_t end = last ? a.total : min(place.end, a.total);
  for (std::int64_t g = place.begin / 8 + first_thread; g * 8 < end; g += stride) {
    const std::int64_t from = max(g * 8, place.begin), to = min(g * 8 + 8, end);
    const auto count = static_cast<int>(min(to, place.end) - from);
    const std::uint64_t bytes =
        spread(count > 0 ? bits_at(a, visible, place, from - place.begin, count) : 0u);
    if (to - from == 8)
      *reinterpret_cast<std::uint64_t*>(a.full + from) = bytes;
    else
      for (std::int64_t t = from; t < to; ++t)
        a.full[t] = static_cast<std::uint8_t>(bytes >> (8 * (t - from)) & 1u);
  }
  const std::int64_t end8 = last ? a.total8 : min(place.end8, a.total8);
  for (std::int64_t y = place.begin8 + first_thread; y < end8; y += stride) {
    const std::int64_t t = (y - place.begin8) * 8;
    const auto count = static_cast<int>(min(std::int64_t{8}, values - t));
    a.packed8[y] = static_cast<std::uint8_t>(count > 0 ? bits_at(a, visible, place, t, count) : 0u);
  }

  if (blockIdx.x != 0) return;
  auto* first = reinterpret_cast<std::int16_t*>(links + a.slots);
  std::int16_t *next = first + a.slots, *order = next + a.slots;
  breadth_first(links, place.live, first, next, order);
  for (int i = thread; i < a.slots; i += kThreads) {
    a.bfs_order[base + i] = i < place.live ? order[i] : -1;
    a.retrieve_index[base + i] = i < place.live ? static_cast<std::int32_t>(base + i) : -1;
  }
  if (thread == 0) {
    a.status[request] = state;
    if (request == 0) a.indptr[0] = 0;
    a.indptr[request + 1] = static_cast<std::int32_t>(min(place.end8, a.total8));
  }
}

// R = 0 has no request that could clear full and packed8, nor one that starts indptr.
__global__ void __launch_bounds__(kThreads) clear(const Arguments a) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  if (first == 0) a.indptr[0] = 0;
  for (std::int64_t t = first; t < a.total; t += stride) a.full[t] = 0;
  for (std::int64_t t = first; t < a.total8; t += stride) a.packed8[t] = 0;
}

void run(Call& c, void* stream) {
  Arguments a{};
  a.total = c.attr_int("T");
  a.total8 = c.attr_int("T8");
  KDTR_CHECK(a.total >= 0 && a.total <= 0x7FFFFFFF, c.where("T"), "out of range", "0..2^31-1",
             a.total);
  KDTR_CHECK(a.total8 >= 0 && a.total8 <= 0x7FFFFFFF, c.where("T8"), "out of range", "0..2^31-1",
             a.total8);
  c.bind("T", a.total);
  c.bind("T8", a.total8);
  a.visible = c.in<std::uint8_t>("visible", "R N N").data;
  a.parents = c.in<std::int32_t>("parents", "R N").data;
  a.depths = c.in<std::int32_t>("depths", "R N").data;
  a.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  a.prefix_len = c.in<std::int32_t>("prefix_len", "R").data;
  const std::int64_t requests = c.dim("R"), slots = c.dim("N");
  c.bind("W", (slots + 31) / 32);
  c.bind("S", requests + 1);
  a.qlen = c.out<std::uint8_t>("qlen", "R N N").data;
  a.full = c.out<std::uint8_t>("full", "T").data;
  a.packed32 = c.out<std::uint32_t>("packed32", "R N W").data;
  a.packed8 = c.out<std::uint8_t>("packed8", "T8").data;
  a.indptr = c.out<std::int32_t>("indptr", "S").data;
  a.bfs_order = c.out<std::int32_t>("bfs_order", "R N").data;
  a.retrieve_index = c.out<std::int32_t>("retrieve_index", "R N").data;
  a.status = c.out<std::int32_t>("status", "R").data;
  KDTR_CHECK(slots <= 1025, c.where("visible"), "axis N", "at most 1025", slots);
  a.requests = static_cast<int>(requests);
  a.slots = static_cast<int>(slots);
  if (requests == 0) {
    // grid: 64 blocks over both buffers; block: 256 threads; smem: none
    clear<<<64, kThreads, 0, cuda_stream(stream)>>>(a);
    KDTR_LAUNCHED("tree_masks@1");
    return;
  }
  const std::int64_t share = std::max(slots * slots, a.total / requests) / (8 * kThreads);
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(share, 1, 64));
  const std::size_t smem = static_cast<std::size_t>(slots) * 10 + 16;
  // grid: blocks that share a request, by requests; block: 256 threads; smem: 10 bytes a node
  derive<<<dim3(blocks, static_cast<unsigned>(requests)), kThreads, smem, cuda_stream(stream)>>>(a);
  KDTR_LAUNCHED("tree_masks@1");
}

}  // namespace
}  // namespace kdtr::cuda

KDTR_KERNEL({"tree_masks@1", kdtr::cuda::run});
