// tree_sample@1 on cpu: one bounded walk per request, f32 probabilities, f64 sums in id order.
// tokens, links i32 [R, N], probs f32 [R, N, V], coins f32 [R, L + 1] -> path i32 [R, L + 1].
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;

struct Request {
  const std::int32_t *tokens, *next_token, *next_sibling;
  const float *probs, *coins;
  float final_coin;
  std::int32_t nodes;
  std::int64_t vocab, limit;
  double threshold_acc, threshold_single;
};

bool unit(float x) { return x >= 0 && x < 1; }
bool mass(float x) { return x >= 0 && x < kdtr::kInfF; }

// The id drawn from row `probs` with the ids of `tried` left out; -1 for bad input.
std::int32_t draw(const float* probs, std::int64_t vocab, const std::vector<std::int32_t>& tried,
                  float coin, std::vector<float>& residual) {
  if (!unit(coin)) return -1;
  residual.assign(probs, probs + vocab);
  if (!std::all_of(residual.begin(), residual.end(), mass)) return -1;
  for (const std::int32_t id : tried) residual[static_cast<std::size_t>(id)] = 0;
  double total = 0;
  for (const float p : residual) total += static_cast<double>(p);
  if (!(total > 0)) return -1;
  const double mark = static_cast<double>(coin) * total;
  double running = 0;
  std::int32_t last = -1;
  for (std::int64_t id = 0; id < vocab; ++id) {
    const float p = residual[static_cast<std::size_t>(id)];
    if (p > 0) last = static_cast<std::int32_t>(id);
    running += static_cast<double>(p);
    if (running > mark) return static_cast<std::int32_t>(id);
  }
  return last;
}

struct Scratch {
  std::vector<std::int32_t> tried;
  std::vector<float> residual;
};

// Fills path and emitted [0..accept_len] and returns the status.
std::int32_t walk(const Request& q, Scratch& scratch, std::int32_t* path, std::int32_t* emitted,
                  std::int32_t& accept_len) {
  std::int32_t read = 0;
  path[0] = 0;
  for (std::int32_t depth = 0;; ++depth) {
    const float* probs = q.probs + path[depth] * q.vocab;
    const float coin = q.coins[depth];
    double acc = 0;
    scratch.tried.clear();
    std::int32_t child = q.next_token[path[depth]];
    for (; child != -1; child = q.next_sibling[child]) {
      // A tree has nodes - 1 links; a walk that reads more goes in a circle.
      if (child < 1 || child >= q.nodes || ++read >= q.nodes) return kdtr::kBadLinks;
      const std::int32_t token = q.tokens[child];
      if (token < 0 || token >= q.vocab || !unit(coin) || !mass(probs[token]))
        return kdtr::kBadInput;
      const auto p = static_cast<double>(probs[token]);
      acc += p;
      if (p > 0 && (static_cast<double>(coin) < acc / q.threshold_acc || p >= q.threshold_single))
        break;
      scratch.tried.push_back(token);
    }
    if (child == -1) {
      const std::int32_t id = draw(probs, q.vocab, scratch.tried, q.final_coin, scratch.residual);
      if (id < 0) return kdtr::kBadInput;
      emitted[depth] = id;
      accept_len = depth;
      return kdtr::kOk;
    }
    if (depth >= q.limit) return kdtr::kCapacity;
    emitted[depth] = q.tokens[child];
    path[depth + 1] = child;
  }
}

void run(Call& c, void*) {
  const std::int64_t limit = c.attr_int("L");
  const double threshold_acc = c.attr_float("threshold_acc");
  const double threshold_single = c.attr_float("threshold_single");
  KDTR_CHECK(limit >= 0 && limit <= 64, c.where("L"), "out of range", "0..64", limit);
  KDTR_CHECK(threshold_acc > 0, c.where("threshold_acc"), "out of range", "above 0", threshold_acc);
  KDTR_CHECK(threshold_single == threshold_single, c.where("threshold_single"), "out of range",
             "a number", threshold_single);
  c.bind("S", limit + 1);
  const auto tokens = c.in<std::int32_t>("tokens", "R N");
  const auto next_token = c.in<std::int32_t>("next_token", "R N");
  const auto next_sibling = c.in<std::int32_t>("next_sibling", "R N");
  const auto n_nodes = c.in<std::int32_t>("n_nodes", "R");
  const auto probs = c.in<float>("probs", "R N V");
  const auto coins = c.in<float>("coins", "R S");
  const auto final_coin = c.in<float>("final_coin", "R");
  const auto accept_index = c.out<std::int32_t>("accept_index", "R S");
  const auto accept_len = c.out<std::int32_t>("accept_len", "R");
  const auto accepted_tokens = c.out<std::int32_t>("accepted_tokens", "R S");
  const auto predicts = c.out<std::int32_t>("predicts", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t slots = c.dim("N"), vocab = c.dim("V"), steps = limit + 1;
  KDTR_CHECK(slots <= 1025, c.where("tokens"), "axis N", "at most 1025", slots);
  KDTR_CHECK(vocab <= 262144, c.where("probs"), "axis V", "at most 262144", vocab);

  std::fill_n(predicts.data, predicts.numel(), -1);
  Scratch scratch;
  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    std::int32_t* path = accept_index.data + r * steps;
    std::int32_t* emitted = accepted_tokens.data + r * steps;
    const Request request{tokens.data + r * slots,
                          next_token.data + r * slots,
                          next_sibling.data + r * slots,
                          probs.data + r * slots * vocab,
                          coins.data + r * steps,
                          final_coin[r],
                          n_nodes[r],
                          vocab,
                          limit,
                          threshold_acc,
                          threshold_single};
    std::int32_t length = -1;
    status[r] = kdtr::kOk;
    if (request.nodes < 0 || request.nodes > slots)
      status[r] = kdtr::kBadInput;
    else if (request.nodes > 0)
      status[r] = walk(request, scratch, path, emitted, length);
    accept_len[r] = length;
    std::fill(path + length + 1, path + steps, -1);
    std::fill(emitted + length + 1, emitted + steps, -1);
    for (std::int32_t k = 0; k <= length; ++k) predicts[r * slots + path[k]] = emitted[k];
  }
}

}  // namespace

KDTR_KERNEL({"tree_sample@1", run});
