// tree_accept@1 on cuda: a bounded walk per request over links in shared memory; integers only.
// tokens, next_token, next_sibling, target i32 [R, N] -> path i32 [R, L + 1]. No aliasing.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "detail/overlap.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 128;

struct Arguments {
  const std::int32_t *tokens, *next_token, *next_sibling, *n_nodes, *target;
  std::int32_t *accept_index, *accept_len, *accepted_tokens, *predicts, *status;
  int slots, limit, vocab;
};

// Slots of one request; a walk reads them in an order that no prefetch knows.
struct Tree {
  const std::int32_t *tokens, *next_token, *next_sibling, *target;
  std::int32_t* path;  // limit + 1 nodes
};

// Fills path[0..length] and returns the status.
__device__ std::int32_t walk(const Tree& tree, int nodes, int limit, int vocab, int& length) {
  int read = 0;
  tree.path[0] = 0;
  for (int depth = 0, cur = 0;; ++depth) {
    const std::int32_t wanted = tree.target[cur];
    if (wanted < 0 || wanted >= vocab) return kBadInput;
    std::int32_t child = tree.next_token[cur];
    for (; child != -1; child = tree.next_sibling[child]) {
      // A tree has nodes - 1 links; a walk that reads more goes in a circle.
      if (child < 1 || child >= nodes || ++read >= nodes) return kBadLinks;
      if (tree.tokens[child] == wanted) break;
    }
    if (child == -1) {
      length = depth;
      return kOk;
    }
    if (depth >= limit) return kCapacity;
    tree.path[depth + 1] = cur = child;
  }
}

__global__ void __launch_bounds__(kThreads) accept(const Arguments a) {
  extern __shared__ std::int32_t shared[];
  __shared__ int length;
  const int request = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const std::int64_t base = static_cast<std::int64_t>(request) * a.slots;
  std::int32_t *tokens = shared, *next_token = tokens + a.slots,
               *next_sibling = next_token + a.slots, *target = next_sibling + a.slots,
               *predicts = target + a.slots, *path = predicts + a.slots;
  wait_for_last();
  let_next_start();
  const std::int32_t nodes = thread == 0 ? a.n_nodes[request] : 0;
  for (int i = thread; i < a.slots; i += kThreads) {
    tokens[i] = a.tokens[base + i];
    next_token[i] = a.next_token[base + i];
    next_sibling[i] = a.next_sibling[base + i];
    target[i] = a.target[base + i];
    predicts[i] = -1;
  }
  __syncthreads();
  if (thread == 0) {
    std::int32_t state = kOk;
    int found = -1;
    if (nodes < 0 || nodes > a.slots)
      state = kBadInput;
    else if (nodes > 0)
      state =
          walk({tokens, next_token, next_sibling, target, path}, nodes, a.limit, a.vocab, found);
    a.status[request] = state;
    a.accept_len[request] = length = found;
  }
  __syncthreads();
  const std::int64_t row = static_cast<std::int64_t>(request) * (a.limit + 1);
  for (int k = thread; k <= a.limit; k += kThreads) {
    const bool used = k <= length;
    const std::int32_t node = used ? path[k] : -1, token = used ? target[path[k]] : -1;
    a.accept_index[row + k] = node;
    a.accepted_tokens[row + k] = token;
    if (used) predicts[node] = token;
  }
  __syncthreads();
  for (int i = thread; i < a.slots; i += kThreads) a.predicts[base + i] = predicts[i];
}

void run(Call& c, void* stream) {
  const std::int64_t limit = c.attr_int("L"), vocab = c.attr_int("V");
  KDTR_CHECK(limit >= 0 && limit <= 64, c.where("L"), "out of range", "0..64", limit);
  KDTR_CHECK(vocab >= 0 && vocab <= 0x7FFFFFFF, c.where("V"), "out of range", "0..2^31-1", vocab);
  c.bind("S", limit + 1);
  Arguments a{};
  a.tokens = c.in<std::int32_t>("tokens", "R N").data;
  a.next_token = c.in<std::int32_t>("next_token", "R N").data;
  a.next_sibling = c.in<std::int32_t>("next_sibling", "R N").data;
  a.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  a.target = c.in<std::int32_t>("target", "R N").data;
  a.accept_index = c.out<std::int32_t>("accept_index", "R S").data;
  a.accept_len = c.out<std::int32_t>("accept_len", "R").data;
  a.accepted_tokens = c.out<std::int32_t>("accepted_tokens", "R S").data;
  a.predicts = c.out<std::int32_t>("predicts", "R N").data;
  a.status = c.out<std::int32_t>("status", "R").data;
  const std::int64_t requests = c.dim("R"), slots = c.dim("N");
  KDTR_CHECK(slots <= 1025, c.where("tokens"), "axis N", "at most 1025", slots);
  if (requests == 0) return;
  a.slots = static_cast<int>(slots);
  a.limit = static_cast<int>(limit);
  a.vocab = static_cast<int>(vocab);
  const std::size_t smem = sizeof(std::int32_t) * static_cast<std::size_t>(5 * slots + limit + 1);
  // grid: a block per request; block: 128 threads that load and store, one walks;
  // smem: 20 bytes a slot
  launch_next(accept, dim3(static_cast<unsigned>(requests)), kThreads, smem, cuda_stream(stream),
              std::as_const(a));
}

}  // namespace
}  // namespace kdtr::cuda

KDTR_KERNEL({"tree_accept@1", kdtr::cuda::run});
