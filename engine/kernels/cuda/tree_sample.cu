// tree_sample@1 on cuda: a bounded walk per request, then a draw by the whole block; f64 sums.
// tokens, links i32 [R, N], probs f32 [R, N, V], coins f32 [R, L + 1] -> path i32 [R, L + 1].
#include <algorithm>
#include <cstdint>

#include "detail/block.cuh"
#include "kdtr/cuda.h"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxLimit = 64;

struct Arguments {
  const std::int32_t *tokens, *next_token, *next_sibling, *n_nodes;
  const float *probs, *coins, *final_coin;
  std::int32_t *accept_index, *accept_len, *accepted_tokens, *predicts, *status;
  int slots, limit, vocab;
  double threshold_acc, threshold_single;
};

struct Walk {
  std::int32_t path[kMaxLimit + 1], emitted[kMaxLimit + 1];
  std::int32_t status;
  int length;  // accepted nodes; the draw is made at path[length]
};

__device__ bool unit(float x) { return x >= 0.0f && x < 1.0f; }
__device__ bool mass(float x) { return x >= 0.0f && x < __int_as_float(0x7F800000); }

// By one thread. Marks the tokens of the last node's children in `tried`.
__device__ void walk(const Arguments& a, int request, const std::int32_t* tokens,
                     const std::int32_t* next_token, const std::int32_t* next_sibling, Walk& out,
                     std::uint32_t* tried) {
  const std::int64_t base = static_cast<std::int64_t>(request) * a.slots;
  const int nodes = a.n_nodes[request];
  int read = 0;
  out.path[0] = 0;
  for (int depth = 0;; ++depth) {
    const int cur = out.path[depth];
    const float* probs = a.probs + (base + cur) * a.vocab;
    const float coin = a.coins[static_cast<std::int64_t>(request) * (a.limit + 1) + depth];
    double acc = 0.0;
    std::int32_t child = next_token[cur], token = -1;
    for (; child != -1; child = next_sibling[child]) {
      // A tree has nodes - 1 links; a walk that reads more goes in a circle.
      if (child < 1 || child >= nodes || ++read >= nodes) {
        out.status = kBadLinks;
        return;
      }
      token = tokens[child];
      if (token < 0 || token >= a.vocab || !unit(coin) || !mass(probs[token])) {
        out.status = kBadInput;
        return;
      }
      const auto p = static_cast<double>(probs[token]);
      acc = __dadd_rn(acc, p);
      if (p > 0.0 &&
          (static_cast<double>(coin) < __ddiv_rn(acc, a.threshold_acc) || p >= a.threshold_single))
        break;
    }
    if (child == -1) {
      for (child = next_token[cur]; child != -1; child = next_sibling[child])
        tried[tokens[child] >> 5] |= 1u << (tokens[child] & 31);
      out.length = depth;
      out.status = kOk;
      return;
    }
    if (depth >= a.limit) {
      out.status = kCapacity;
      return;
    }
    out.emitted[depth] = token;
    out.path[depth + 1] = child;
  }
}

// Inclusive sum over the lanes of a warp, in a fixed order.
__device__ double scan(double x, int lane) {
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(kAll, x, step);
    if (lane >= step) x = __dadd_rn(x, other);
  }
  return x;
}

// By the whole block: the drawn id, or -1 for bad input. Warp w has the w-th part of the row.
__device__ int draw(const float* probs, int vocab, float coin, const std::uint32_t* tried) {
  __shared__ double sums[kWarps];
  __shared__ int first, last;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    first = vocab;
    last = -1;
  }
  const int part = (vocab + kThreads - 1) / kThreads * 32;
  const int begin = min(warp * part, vocab), end = min(begin + part, vocab);
  const auto residual = [&](int id) {
    return (tried[id >> 5] >> (id & 31) & 1u) != 0 ? 0.0f : probs[id];
  };
  bool bad = !unit(coin);
  double sum = 0.0;
  for (int id = begin + lane; id < end; id += 32) {
    bad = bad || !mass(probs[id]);
    sum = __dadd_rn(sum, static_cast<double>(residual(id)));
  }
  sum = __shfl_sync(kAll, scan(sum, lane), 31);
  if (lane == 0) sums[warp] = sum;
  if (block_any(bad)) return -1;

  double before = 0.0, total = 0.0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total = __dadd_rn(total, sums[w]);
  }
  if (!(total > 0.0)) return -1;
  const double mark = __dmul_rn(static_cast<double>(coin), total);
  if (before <= mark)  // else an earlier warp has it
    for (int at = begin; at < end; at += 32) {
      const int id = at + lane;
      const double p = id < end ? static_cast<double>(residual(id)) : 0.0;
      const double running = __dadd_rn(before, scan(p, lane));
      const unsigned above = __ballot_sync(kAll, id < end && running > mark);
      const unsigned positive = __ballot_sync(kAll, p > 0.0);
      if (lane == 0 && positive != 0) atomicMax(&last, at + 31 - __clz(static_cast<int>(positive)));
      if (above != 0) {
        if (lane == 0) atomicMin(&first, at + __ffs(static_cast<int>(above)) - 1);
        break;
      }
      before = __shfl_sync(kAll, running, 31);
    }
  __syncthreads();
  return first < vocab ? first : last;
}

__global__ void __launch_bounds__(kThreads) sample(const Arguments a) {
  extern __shared__ std::uint32_t tried[];
  __shared__ Walk found;
  const int request = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const std::int64_t base = static_cast<std::int64_t>(request) * a.slots;
  const int words = (a.vocab + 31) / 32;
  auto* tokens = reinterpret_cast<std::int32_t*>(tried + words);
  std::int32_t *next_token = tokens + a.slots, *next_sibling = next_token + a.slots;
  for (int w = thread; w < words; w += kThreads) tried[w] = 0;
  for (int i = thread; i < a.slots; i += kThreads) {
    tokens[i] = a.tokens[base + i];
    next_token[i] = a.next_token[base + i];
    next_sibling[i] = a.next_sibling[base + i];
    a.predicts[base + i] = -1;
  }
  __syncthreads();
  if (thread == 0) {
    const std::int32_t nodes = a.n_nodes[request];
    found.length = -1;
    found.status = nodes < 0 || nodes > a.slots ? kBadInput : kOk;
    if (found.status == kOk && nodes > 0)
      walk(a, request, tokens, next_token, next_sibling, found, tried);
  }
  __syncthreads();
  std::int32_t state = found.status;
  int length = found.length, drawn = -1;
  if (state == kOk && length >= 0) {
    drawn = draw(a.probs + (base + found.path[length]) * a.vocab, a.vocab, a.final_coin[request],
                 tried);
    if (drawn < 0) {
      state = kBadInput;
      length = -1;
    }
  }
  const std::int64_t row = static_cast<std::int64_t>(request) * (a.limit + 1);
  for (int k = thread; k <= a.limit; k += kThreads) {
    const bool used = k <= length;
    const std::int32_t token = !used ? -1 : k < length ? found.emitted[k] : drawn;
    a.accept_index[row + k] = used ? found.path[k] : -1;
    a.accepted_tokens[row + k] = token;
    if (used) a.predicts[base + found.path[k]] = token;
  }
  if (thread == 0) {
    a.accept_len[request] = length;
    a.status[request] = state;
  }
}

void run(Call& c, void* stream) {
  const std::int64_t limit = c.attr_int("L");
  Arguments a{};
  a.threshold_acc = c.attr_float("threshold_acc");
  a.threshold_single = c.attr_float("threshold_single");
  KDTR_CHECK(limit >= 0 && limit <= kMaxLimit, c.where("L"), "out of range", "0..64", limit);
  KDTR_CHECK(a.threshold_acc > 0, c.where("threshold_acc"), "out of range", "above 0",
             a.threshold_acc);
  KDTR_CHECK(a.threshold_single == a.threshold_single, c.where("threshold_single"), "out of range",
             "a number", a.threshold_single);
  c.bind("S", limit + 1);
  a.tokens = c.in<std::int32_t>("tokens", "R N").data;
  a.next_token = c.in<std::int32_t>("next_token", "R N").data;
  a.next_sibling = c.in<std::int32_t>("next_sibling", "R N").data;
  a.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  a.probs = c.in<float>("probs", "R N V").data;
  a.coins = c.in<float>("coins", "R S").data;
  a.final_coin = c.in<float>("final_coin", "R").data;
  a.accept_index = c.out<std::int32_t>("accept_index", "R S").data;
  a.accept_len = c.out<std::int32_t>("accept_len", "R").data;
  a.accepted_tokens = c.out<std::int32_t>("accepted_tokens", "R S").data;
  a.predicts = c.out<std::int32_t>("predicts", "R N").data;
  a.status = c.out<std::int32_t>("status", "R").data;
  const std::int64_t requests = c.dim("R"), slots = c.dim("N"), vocab = c.dim("V");
  KDTR_CHECK(slots <= 1025, c.where("tokens"), "axis N", "at most 1025", slots);
  KDTR_CHECK(vocab <= 262144, c.where("probs"), "axis V", "at most 262144", vocab);
  if (requests == 0) return;
  a.slots = static_cast<int>(slots);
  a.limit = static_cast<int>(limit);
  a.vocab = static_cast<int>(vocab);
  const std::size_t smem = static_cast<std::size_t>((vocab + 31) / 32 + 3 * slots) * 4;
  // grid: a block per request; block: 1024 threads, one walks and all draw;
  // smem: a bit per id, up to 32 KiB, and 12 bytes a slot
  sample<<<static_cast<unsigned>(requests), kThreads, smem, cuda_stream(stream)>>>(a);
  KDTR_LAUNCHED("tree_sample@1");
}

}  // namespace
}  // namespace kdtr::cuda

KDTR_KERNEL({"tree_sample@1", kdtr::cuda::run});
