// tree_build@1 on cuda: a parallel frontier per block, f32 log-probs, f64 weights without FMA.
// logprobs f32 [R, L, K], ids i32 [R, L, K] -> trees of at most B + 1 nodes. No aliasing.
//
// The frontier holds at most one candidate per node, its next child, so slot i belongs to node i
// and lives in a register of one thread. A pop is an argmin over costs (-weight, never below 0, so
// its bits order like an unsigned integer). Ties by rank tuple need no tuple: of two candidates,
// the one whose parent is earlier in post-order has the smaller tuple (a descendant's goes through
// a smaller rank than its ancestor's next child has), and a new node enters post-order right
// before its parent, whose last child it is. Meanwhile other warps validate and clear `visible`.
#include <algorithm>
#include <cstdint>

#include "kdtr/cuda.h"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int kMaxFrontierWarps = 16;
constexpr int kSlotsPerThread = 2;
constexpr int kTable = 4096;                  // ids of several rows, half full
constexpr std::size_t kMaxStaged = 48 << 10;  // log-probs kept in shared memory
constexpr std::uint32_t kNone = 0x7FF00000u;  // high word of +inf: no candidate
constexpr std::uint32_t kRankOne = 1u << 10;  // paths: depth << 20 | rank << 10 | parent

struct Arguments {
  const float* logprobs;
  const std::int32_t *ids, *root_token, *prefix_len;
  std::int32_t *n_nodes, *tokens, *depths, *parents, *positions, *next_token, *next_sibling,
      *status;
  std::uint8_t* visible;
  double* weights;
  int rows, columns, slots, reachable;  // reachable: ranks below min(K, B)
  int frontier_warps, staged;
};

// The popped nodes, in shared memory.
struct Nodes {
  double* cost;
  std::uint32_t* path;  // of the candidate that the node was
  std::int16_t *next_token, *next_sibling;

  __host__ __device__ static std::size_t bytes(int slots) {
    return static_cast<std::size_t>(slots) * (sizeof(double) + sizeof(std::uint32_t) + 4);
  }
  __device__ Nodes(void* base, int slots) {
    cost = static_cast<double*>(base);
    path = reinterpret_cast<std::uint32_t*>(cost + slots);
    next_token = reinterpret_cast<std::int16_t*>(path + slots);
    next_sibling = next_token + slots;
  }
  __device__ int parent(int node) const { return static_cast<int>(path[node] & 1023u); }
  __device__ int rank(int node) const { return static_cast<int>(path[node] >> 10 & 1023u); }
  __device__ int depth(int node) const {  // the row of its log-prob is one less
    return node == 0 ? 0 : static_cast<int>(path[node] >> 20) + 1;
  }
};

struct Slot {
  double cost, sibling, child;  // of the candidate, and of what it leads to; +inf for none
  std::uint32_t tie, path;
  int last;  // youngest child popped so far
};

// The best candidate of one warp.
struct Record {
  std::uint32_t high, low, tie, path;
  double child;
};

__device__ std::uint32_t high(double x) { return static_cast<std::uint32_t>(__double2hiint(x)); }
__device__ std::uint32_t low(double x) { return static_cast<std::uint32_t>(__double2loint(x)); }
__device__ double infinity() { return __hiloint2double(0x7FF00000, 0); }

__device__ void barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The lane with the least (high, low, tie). Ties differ where candidates exist.
__device__ int least(std::uint32_t hi, std::uint32_t lo, std::uint32_t tie) {
  const std::uint32_t best = __reduce_min_sync(kAll, hi);
  bool in = hi == best;
  unsigned lanes = __ballot_sync(kAll, in);
  if ((lanes & (lanes - 1)) != 0) {
    const std::uint32_t best_low = __reduce_min_sync(kAll, in ? lo : kAll);
    in = in && lo == best_low;
    lanes = __ballot_sync(kAll, in);
    if ((lanes & (lanes - 1)) != 0) {
      const std::uint32_t first = __reduce_min_sync(kAll, in ? tie : kAll);
      lanes = __ballot_sync(kAll, in && tie == first);
    }
  }
  return __ffs(static_cast<int>(lanes)) - 1;
}

// Costs of the candidates that popping this one would add.
__device__ void look_ahead(Slot& slot, const Arguments& a, const float* lp, int stride) {
  slot.sibling = slot.child = infinity();
  if (high(slot.cost) >= kNone) return;
  const int depth = static_cast<int>(slot.path >> 20),
            rank = static_cast<int>(slot.path >> 10 & 1023u);
  const float* row = lp + depth * stride;
  if (rank + 1 < a.reachable)
    slot.sibling = __dsub_rn(__dadd_rn(slot.cost, row[rank]), row[rank + 1]);
  if (depth + 1 < a.rows) slot.child = __dsub_rn(slot.cost, row[stride]);
}

// Pops nodes 1, 2, ... and returns their count plus the root.
template <bool kUno>
__device__ int pop(const Arguments& a, const float* lp, int stride, Nodes nodes,
                   Record (*records)[kMaxFrontierWarps]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = a.frontier_warps * 32;
  Slot slots[kSlotsPerThread];
#pragma unroll
  for (Slot& slot : slots) slot = {infinity(), infinity(), infinity(), 0, 0, -1};
  if (thread == 0 && a.rows > 0 && a.reachable > 0) {
    slots[0].cost = __dsub_rn(0.0, lp[0]);
    look_ahead(slots[0], a, lp, stride);
  }

  int node = 1;
  for (; node < a.slots; ++node) {
    Slot best = slots[0];
#pragma unroll
    for (int s = 1; s < kSlotsPerThread; ++s) {
      const auto x = static_cast<std::uint64_t>(__double_as_longlong(slots[s].cost));
      const auto y = static_cast<std::uint64_t>(__double_as_longlong(best.cost));
      if (x < y || (x == y && slots[s].tie < best.tie)) best = slots[s];
    }
    int winner = least(high(best.cost), low(best.cost), best.tie);
    Record top;
    if (a.frontier_warps == 1) {
      top.high = __shfl_sync(kAll, high(best.cost), winner);
      top.tie = __shfl_sync(kAll, best.tie, winner);
      top.path = __shfl_sync(kAll, best.path, winner);
      top.child = __shfl_sync(kAll, best.child, winner);
    } else {
      // Two sets of records, so that one barrier a pop is enough.
      Record* set = records[node & 1];
      if (lane == winner)
        set[warp] = {high(best.cost), low(best.cost), best.tie, best.path, best.child};
      barrier(1, threads);
      const bool in = lane < a.frontier_warps;
      winner =
          least(in ? set[lane].high : kAll, in ? set[lane].low : kAll, in ? set[lane].tie : kAll);
      top = set[winner];
    }
    if (top.high >= kNone) break;

    const int parent = static_cast<int>(top.path & 1023u);
#pragma unroll
    for (int s = 0; s < kSlotsPerThread; ++s) {
      Slot& slot = slots[s];
      const int own = thread + s * threads;
      if (!kUno) slot.tie += slot.tie >= top.tie ? 1 : 0;
      if (own == parent) {
        nodes.cost[node] = slot.cost;
        nodes.path[node] = slot.path;
        if (slot.last < 0)
          nodes.next_token[parent] = static_cast<std::int16_t>(node);
        else
          nodes.next_sibling[slot.last] = static_cast<std::int16_t>(node);
        slot.last = node;
        slot.cost = slot.sibling;
        slot.path += kRankOne;
        if (kUno) slot.tie = slot.path;
      }
      if (own == node) {
        slot.cost = top.child;
        slot.path = (top.path >> 20) + 1 << 20 | static_cast<std::uint32_t>(node);
        slot.tie = kUno ? slot.path : top.tie;
      }
      if (own == parent || own == node) look_ahead(slot, a, lp, stride);
    }
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

// Whether this thread saw a bad entry. Repeated ids meet in a hash table per row.
__device__ bool validate(const Arguments& a, int request, std::uint32_t* table, int thread,
                         int threads) {
  const std::int32_t prefix = a.prefix_len[request];
  bool bad = a.root_token[request] < 0 || prefix < 0 || prefix > 0x7FFFFFFF - a.rows;
  if (a.columns == 0) return bad;
  const std::int64_t base = static_cast<std::int64_t>(request) * a.rows * a.columns;
  const float* lp = a.logprobs + base;
  const std::int32_t* ids = a.ids + base;
  const int bits = 33 - __clz(a.columns - 1 | 1);  // a row's table: at least twice its entries
  const int per_row = 1 << bits, rows = kTable >> bits;
  for (int first = 0; first < a.rows; first += rows) {
    const int count = min(rows, a.rows - first);
    for (int i = thread; i < count * per_row; i += threads) table[i] = kAll;
    barrier(2, threads);
    for (int i = thread; i < count * a.columns; i += threads) {
      const int row = i / a.columns, column = i - row * a.columns;
      const int at = first * a.columns + i;
      const float x = lp[at], left = column == 0 ? 0.0f : lp[at - 1];
      if (!(x <= left)) {
        bad = true;
      } else if (x != -__int_as_float(0x7F800000)) {
        const std::int32_t id = ids[at];
        bad = bad || id < 0;
        std::uint32_t* own = table + row * per_row;
        std::uint32_t place = static_cast<std::uint32_t>(id) * 2654435769u >> (32 - bits);
        while (id >= 0) {
          const std::uint32_t found = atomicCAS(own + place, kAll, static_cast<std::uint32_t>(id));
          if (found == kAll) break;
          if (found == static_cast<std::uint32_t>(id)) {
            bad = true;
            break;
          }
          place = (place + 1) & static_cast<std::uint32_t>(per_row - 1);
        }
      }
    }
    barrier(2, threads);
  }
  return bad;
}

template <bool kUno>
__global__ void __launch_bounds__(1024) build(const Arguments a) {
  extern __shared__ double dynamic[];
  __shared__ std::uint32_t table[kTable];
  __shared__ Record records[2][kMaxFrontierWarps];
  __shared__ int found, bad;
  const int request = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x), popping = a.frontier_warps * 32;
  Nodes nodes(dynamic, a.slots);
  auto* staged = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(dynamic) +
                                          (Nodes::bytes(a.slots) + 7) / 8 * 8);
  const float* lp = a.logprobs + static_cast<std::int64_t>(request) * a.rows * a.columns;
  int stride = a.columns;
  if (a.staged != 0) {
    for (int i = thread; i < a.rows * a.reachable; i += threads) {
      const int row = i / a.reachable;
      staged[i] = lp[row * a.columns + (i - row * a.reachable)];
    }
    lp = staged;
    stride = a.reachable;
  }
  for (int i = thread; i < a.slots; i += threads) nodes.next_token[i] = nodes.next_sibling[i] = -1;
  if (thread == 0) {
    nodes.cost[0] = 0.0;
    nodes.path[0] = 0;
    bad = 0;
  }
  __syncthreads();

  const std::int64_t square = static_cast<std::int64_t>(a.slots) * a.slots;
  std::uint8_t* visible = a.visible + request * square;
  if (thread < popping) {
    const int count = pop<kUno>(a, lp, stride, nodes, records);
    if (thread == 0) found = count;
  } else {
    clear(visible, square, thread - popping, threads - popping);
    if (validate(a, request, table, thread - popping, threads - popping)) atomicOr(&bad, 1);
  }
  __syncthreads();

  const bool refused = bad != 0;
  const int count = refused ? 0 : found;
  const std::int64_t base = static_cast<std::int64_t>(request) * a.slots;
  const std::int32_t* ids = a.ids + static_cast<std::int64_t>(request) * a.rows * a.columns;
  const std::int32_t prefix = a.prefix_len[request];
  if (thread == 0) {
    a.n_nodes[request] = count;
    a.status[request] = refused ? kBadInput : kOk;
  }
  for (int i = thread; i < a.slots; i += threads) {
    const bool live = i < count;
    const int depth = live ? nodes.depth(i) : -1;
    std::int32_t token = -1;
    if (live) token = i == 0 ? a.root_token[request] : ids[(depth - 1) * a.columns + nodes.rank(i)];
    a.tokens[base + i] = token;
    a.depths[base + i] = depth;
    a.parents[base + i] = live && i > 0 ? nodes.parent(i) : -1;
    a.positions[base + i] = live ? prefix + depth : 0;
    a.next_token[base + i] = live ? nodes.next_token[i] : -1;
    a.next_sibling[base + i] = live ? nodes.next_sibling[i] : -1;
    a.weights[base + i] = live ? 0.0 - nodes.cost[i] : 0.0;  // +0.0, never -0.0
    if (live)
      for (int j = i;; j = nodes.parent(j)) {
        visible[static_cast<std::int64_t>(i) * a.slots + j] = 1;
        if (j == 0) break;
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
  constexpr int kPerWarp = 32 * kSlotsPerThread;
  a.frontier_warps = std::max(1, (static_cast<int>(budget) + kPerWarp - 1) / kPerWarp);
  const std::size_t lp_bytes = static_cast<std::size_t>(a.rows * a.reachable) * sizeof(float);
  a.staged = lp_bytes <= kMaxStaged ? 1 : 0;
  const std::size_t smem = (Nodes::bytes(a.slots) + 7) / 8 * 8 + (a.staged != 0 ? lp_bytes : 0);
  const int side_warps = a.frontier_warps <= 4 ? 8 : 16;
  const auto kernel = tie_order == "uno" ? &build<true> : &build<false>;
  if (smem > (30 << 10))  // beside the static arrays, past what a kernel gets unasked
    KDTR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(smem)));
  // grid: a block per request; block: a warp per 64 nodes of budget and 8 or 16 that validate;
  // smem: 17 KiB, 16 bytes a node and up to 48 KiB of log-probs
  kernel<<<static_cast<unsigned>(requests),
           static_cast<unsigned>(32 * (a.frontier_warps + side_warps)), smem,
           cuda_stream(stream)>>>(a);
  KDTR_LAUNCHED("tree_build@1");
}

}  // namespace
}  // namespace kdtr::cuda

KDTR_KERNEL({"tree_build@1", kdtr::cuda::run});
