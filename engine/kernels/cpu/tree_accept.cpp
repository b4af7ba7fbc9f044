// tree_accept@1 on cpu: one bounded walk per request, integers only.
// tokens, next_token, next_sibling, target i32 [R, N] -> path i32 [R, L + 1]; nothing aliases.
#include <algorithm>
#include <cstdint>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;

struct Tree {
  const std::int32_t *tokens, *next_token, *next_sibling, *target;
  std::int32_t nodes;
};

// Fills path[0..accept_len] and returns the status. `path` holds depth_limit + 1 indices.
std::int32_t walk(const Tree& tree, std::int64_t depth_limit, std::int64_t vocab,
                  std::int32_t* path, std::int32_t& accept_len) {
  std::int32_t read = 0;
  path[0] = 0;
  for (std::int32_t depth = 0;; ++depth) {
    const std::int32_t wanted = tree.target[path[depth]];
    if (wanted < 0 || wanted >= vocab) return kdtr::kBadInput;
    std::int32_t child = tree.next_token[path[depth]];
    for (; child != -1; child = tree.next_sibling[child]) {
      // A tree has nodes - 1 links; a walk that reads more goes in a circle.
      if (child < 1 || child >= tree.nodes || ++read >= tree.nodes) return kdtr::kBadLinks;
      if (tree.tokens[child] == wanted) break;
    }
    if (child == -1) {
      accept_len = depth;
      return kdtr::kOk;
    }
    if (depth >= depth_limit) return kdtr::kCapacity;
    path[depth + 1] = child;
  }
}

void run(Call& c, void*) {
  const std::int64_t depth_limit = c.attr_int("L"), vocab = c.attr_int("V");
  KDTR_CHECK(depth_limit >= 0 && depth_limit <= 64, c.where("L"), "out of range", "0..64",
             depth_limit);
  KDTR_CHECK(vocab >= 0 && vocab <= 0x7FFFFFFF, c.where("V"), "out of range", "0..2^31-1", vocab);
  c.bind("S", depth_limit + 1);
  const auto tokens = c.in<std::int32_t>("tokens", "R N");
  const auto next_token = c.in<std::int32_t>("next_token", "R N");
  const auto next_sibling = c.in<std::int32_t>("next_sibling", "R N");
  const auto n_nodes = c.in<std::int32_t>("n_nodes", "R");
  const auto target = c.in<std::int32_t>("target", "R N");
  const auto accept_index = c.out<std::int32_t>("accept_index", "R S");
  const auto accept_len = c.out<std::int32_t>("accept_len", "R");
  const auto accepted_tokens = c.out<std::int32_t>("accepted_tokens", "R S");
  const auto predicts = c.out<std::int32_t>("predicts", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t slots = c.dim("N"), steps = depth_limit + 1;
  KDTR_CHECK(slots <= 1025, c.where("tokens"), "axis N", "at most 1025", slots);

  std::fill_n(accepted_tokens.data, accepted_tokens.numel(), -1);
  std::fill_n(predicts.data, predicts.numel(), -1);
  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    std::int32_t* path = accept_index.data + r * steps;
    const Tree tree{tokens.data + r * slots, next_token.data + r * slots,
                    next_sibling.data + r * slots, target.data + r * slots, n_nodes[r]};
    std::int32_t length = -1;
    if (tree.nodes < 0 || tree.nodes > slots) {
      status[r] = kdtr::kBadInput;
    } else {
      status[r] = tree.nodes == 0 ? kdtr::kOk : walk(tree, depth_limit, vocab, path, length);
    }
    accept_len[r] = length;
    std::fill(path + length + 1, path + steps, -1);
    for (std::int32_t k = 0; k <= length; ++k) {
      const std::int32_t token = tree.target[path[k]];
      accepted_tokens[r * steps + k] = token;
      predicts[r * slots + path[k]] = token;
    }
  }
}

}  // namespace

KDTR_KERNEL({"tree_accept@1", run});
