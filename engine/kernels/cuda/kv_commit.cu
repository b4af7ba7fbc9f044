// kv_commit@1 on cuda: each block moves a slice of all rows of a path through shared memory.
// rows [layers, slots, row_bytes], page_table [R, max_pages], tree_slots [R, N],
// hidden [R, N, hidden_bytes], accept_index [R, steps] -> new_len, status [R]. No aliasing.
#include <algorithm>
#include <utility>

#include "detail/block.cuh"
#include "detail/floats.cuh"
#include "detail/overlap.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileBytes = 32 << 10;
constexpr int kMaxSteps = 768;
constexpr int kFilterBits = 1 << 15;

struct Commit {
  std::uint8_t* rows;
  std::int32_t* page_table;
  std::int32_t* tree_slots;
  std::uint8_t* hidden;
  const std::int32_t *accept_index, *accept_len, *prefix_len;
  std::int32_t *new_len, *status;
  std::int64_t slots, row_bytes, hidden_bytes, max_pages, page_size;
  int nodes, steps;
  int row_unit, hidden_unit;      // bytes that are moved at a time: 16, 4 or 1
  int row_slices, hidden_slices;  // blocks per layer and request
  int layers;                     // 0 at page size 1
};

__device__ bool inside(std::int64_t x, std::int64_t end) { return 0 <= x && x < end; }

struct Path {
  Status status;
  int count;
};

// Checks a request with all threads of the block and, when it is good, leaves the node, source and
// target of each row in `node`, `source` and `target`.
__device__ Path read_path(const Commit& p, std::int64_t request, int* node, std::int64_t* source,
                          std::int64_t* target) {
  const std::int64_t count = std::int64_t{p.accept_len[request]} + 1;
  const std::int64_t prefix = p.prefix_len[request];
  if (count == 0) return {kOk, 0};
  if (count < 0 || count > min(p.steps, p.nodes) || prefix < 0) return {kBadInput, 0};
  if (prefix + count > p.max_pages * p.page_size) return {kCapacity, 0};
  bool bad = false;
  for (int k = static_cast<int>(threadIdx.x); k < count; k += kThreads) {
    const std::int64_t position = prefix + k;
    const std::int32_t at = p.accept_index[request * p.steps + k];
    const std::int64_t page = p.page_table[request * p.max_pages + position / p.page_size];
    const std::int64_t slot = inside(at, p.nodes) ? p.tree_slots[request * p.nodes + at] : -1;
    bad = bad || !inside(slot, p.slots) || !inside(page, p.slots / p.page_size);
    node[k] = at;
    source[k] = slot;
    target[k] = page * p.page_size + position % p.page_size;
  }
  bad = block_any(bad);
  return {bad ? kBadInput : kOk, bad ? 0 : static_cast<int>(count)};
}

// Columns [first, first + columns) of row to(k) = those of row from(k), through `tile`.
template <class Unit, class From, class To>
__device__ void move_slice(std::uint8_t* base, std::int64_t row_bytes, int count,
                           std::int64_t slice, int steps, unsigned char* tile, From from, To to) {
  constexpr int kUnit = static_cast<int>(sizeof(Unit));
  const std::int64_t width = row_bytes / kUnit;
  const int most = kTileBytes / (steps * kUnit);
  const std::int64_t first = slice * most;
  const int columns = static_cast<int>(min(static_cast<std::int64_t>(most), width - first));
  Unit* stage = reinterpret_cast<Unit*>(tile);
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += kThreads) {
    const auto* row = reinterpret_cast<const Unit*>(base + from(i / columns) * row_bytes);
    stage[i] = row[first + i % columns];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * columns; i += kThreads) {
    if (from(i / columns) == to(i / columns)) continue;
    reinterpret_cast<Unit*>(base + to(i / columns) * row_bytes)[first + i % columns] = stage[i];
  }
}

template <class From, class To>
__device__ void move_any(int unit, std::uint8_t* base, std::int64_t row_bytes, int count,
                         std::int64_t slice, int steps, unsigned char* tile, From from, To to) {
  if (unit == 16) {
    move_slice<uint4>(base, row_bytes, count, slice, steps, tile, from, to);
  } else if (unit == 4) {
    move_slice<std::uint32_t>(base, row_bytes, count, slice, steps, tile, from, to);
  } else {
    move_slice<std::uint8_t>(base, row_bytes, count, slice, steps, tile, from, to);
  }
}

__global__ void __launch_bounds__(kThreads) move_rows(const Commit p) {
  __shared__ __align__(16) unsigned char tile[kTileBytes];
  extern __shared__ std::int64_t paths[];  // steps sources, steps targets, steps nodes as int
  std::int64_t *source = paths, *target = paths + p.steps;
  int* node = reinterpret_cast<int*>(target + p.steps);
  wait_for_last();
  let_next_start();
  const std::int64_t request = blockIdx.y;
  const Path path = read_path(p, request, node, source, target);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.status[request] = path.status;
    p.new_len[request] = p.prefix_len[request] + path.count;
  }
  if (path.count == 0) return;
  const int at = static_cast<int>(blockIdx.x), row_blocks = p.layers * p.row_slices;
  if (at < row_blocks) {
    std::uint8_t* layer = p.rows + at / p.row_slices * p.slots * p.row_bytes;
    move_any(
        p.row_unit, layer, p.row_bytes, path.count, at % p.row_slices, p.steps, tile,
        [&](int k) { return source[k]; }, [&](int k) { return target[k]; });
  } else if (at < row_blocks + p.hidden_slices) {
    std::uint8_t* of_request = p.hidden + request * p.nodes * p.hidden_bytes;
    move_any(
        p.hidden_unit, of_request, p.hidden_bytes, path.count, at - row_blocks, p.steps, tile,
        [&](int k) { return std::int64_t{node[k]}; }, [](int k) { return std::int64_t{k}; });
  }
}

// Page size 1: the exchanges of a path compose to one map of values, which is then applied once.
__global__ void __launch_bounds__(kThreads) exchange_entries(const Commit p) {
  __shared__ std::uint32_t filter[kFilterBits / 32];
  extern __shared__ std::int32_t values[];  // before[2 steps], after[2 steps]
  wait_for_last();
  let_next_start();
  const std::int64_t request = blockIdx.x;
  if (p.status[request] != kOk || p.accept_len[request] < 0) return;
  const int thread = static_cast<int>(threadIdx.x), count = p.accept_len[request] + 1;
  const std::int64_t prefix = p.prefix_len[request];
  std::int32_t* table = p.page_table + request * p.max_pages;
  std::int32_t* tree = p.tree_slots + request * p.nodes;
  std::int32_t *before = values, *after = values + 2 * p.steps;

  for (int i = thread; i < kFilterBits / 32; i += kThreads) filter[i] = 0;
  for (int k = thread; k < count; k += kThreads) {
    before[k] = after[k] = tree[p.accept_index[request * p.steps + k]];
    before[count + k] = after[count + k] = table[prefix + k];
  }
  __syncthreads();
  for (int k = 0; k < count; ++k) {
    const std::int32_t here = before[k], there = after[count + k];
    __syncthreads();
    for (int i = thread; i < 2 * count; i += kThreads) {
      const std::int32_t now = after[i];
      if (now == here || now == there) after[i] = now == here ? there : here;
    }
    __syncthreads();
  }
  for (int i = thread; i < 2 * count; i += kThreads) {
    const auto bit = static_cast<std::uint32_t>(before[i]) % kFilterBits;
    atomicOr(&filter[bit / 32], 1u << bit % 32);
  }
  __syncthreads();
  const auto apply = [&](std::int32_t& entry) {
    const std::int32_t value = entry;
    const auto bit = static_cast<std::uint32_t>(value) % kFilterBits;
    if ((filter[bit / 32] >> bit % 32 & 1) == 0) return;
    for (int i = 0; i < 2 * count; ++i) {
      if (before[i] != value) continue;
      entry = after[i];
      return;
    }
  };
  for (std::int64_t i = thread; i < p.max_pages; i += kThreads) apply(table[i]);
  for (int i = thread; i < p.nodes; i += kThreads) apply(tree[i]);
}

// The widest unit that divides a row and its base address.
int unit_of(const void* base, std::int64_t row_bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(base) | static_cast<std::uintptr_t>(row_bytes);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

int slices_of(std::int64_t row_bytes, int unit, int steps) {
  const std::int64_t slice = kTileBytes / (std::max(steps, 1) * unit) * unit;
  return static_cast<int>((row_bytes + slice - 1) / slice);
}

void run(Call& c, void* stream) {
  const auto rows = c.inout<std::uint8_t>("rows", "layers slots row_bytes");
  const auto page_table = c.inout<std::int32_t>("page_table", "R max_pages");
  const auto tree_slots = c.inout<std::int32_t>("tree_slots", "R N");
  const auto hidden = c.inout<std::uint8_t>("hidden", "R N hidden_bytes");
  const auto accept_index = c.in<std::int32_t>("accept_index", "R steps");
  const auto accept_len = c.in<std::int32_t>("accept_len", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const auto new_len = c.out<std::int32_t>("new_len", "R");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t page_size = c.attr_int("page_size"), requests = c.dim("R");
  KDTR_CHECK(page_size >= 1, c.where("page_size"), "rows per page", "1 or more", page_size);
  KDTR_CHECK(c.dim("steps") <= kMaxSteps, c.where("accept_index"), "steps", "at most 768",
             c.dim("steps"));
  KDTR_CHECK(requests <= 65535, c.where("accept_len"), "requests", "at most 65535", requests);
  if (requests == 0) return;

  Commit p{rows.data,
           page_table.data,
           tree_slots.data,
           hidden.data,
           accept_index.data,
           accept_len.data,
           prefix_len.data,
           new_len.data,
           status.data,
           c.dim("slots"),
           c.dim("row_bytes"),
           c.dim("hidden_bytes"),
           c.dim("max_pages"),
           page_size,
           static_cast<int>(c.dim("N")),
           static_cast<int>(c.dim("steps")),
           unit_of(rows.data, c.dim("row_bytes")),
           unit_of(hidden.data, c.dim("hidden_bytes")),
           0,
           0,
           0};
  p.row_slices = slices_of(p.row_bytes, p.row_unit, p.steps);
  p.hidden_slices = slices_of(p.hidden_bytes, p.hidden_unit, p.steps);
  p.layers = page_size == 1 || p.row_slices == 0 ? 0 : static_cast<int>(c.dim("layers"));
  const auto blocks = static_cast<unsigned>(
      std::max<std::int64_t>(std::int64_t{p.layers} * p.row_slices + p.hidden_slices, 1));
  const std::size_t steps = static_cast<std::size_t>(p.steps);
  cudaStream_t queue = cuda_stream(stream);
  // grid: a block per slice of a layer or of the hidden rows, R; block: 256; smem: tile and path
  launch_next(move_rows, dim3(blocks, static_cast<unsigned>(requests)), kThreads,
              steps * (2 * sizeof(std::int64_t) + sizeof(int)), queue, std::as_const(p));
  if (page_size == 1) {
    // grid: a block per request; block: 256 threads over its entries; smem: the map of values
    launch_next(exchange_entries, dim3(static_cast<unsigned>(requests)), kThreads,
                4 * steps * sizeof(std::int32_t), queue, std::as_const(p));
  }
}

KDTR_KERNEL({"kv_commit@1", run});

}  // namespace
}  // namespace kdtr::cuda
