// tree_build@1 on cpu: best-first search with a binary heap, f32 log-probs, f64 weights.
// logprobs f32 [R, L, K], ids i32 [R, L, K] -> trees of at most B + 1 nodes; nothing aliases.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Array;
using kdtr::Call;

struct Arguments {
  Array<const float> logprobs;
  Array<const std::int32_t> ids, root_token, prefix_len;
  Array<std::int32_t> n_nodes, tokens, depths, parents, positions, next_token, next_sibling, status;
  Array<std::uint8_t> visible;
  Array<double> weights;
  std::int64_t requests, rows, columns, slots;
  bool uno;
};

// A frontier holds at most one candidate per node: its next child. Costs are -weight, which
// rounds alike and is never below 0.
class Frontier {
 public:
  explicit Frontier(std::int64_t slots, bool uno) : uno_(uno) {
    const auto n = static_cast<std::size_t>(slots);
    heap_.reserve(n);
    order_.reserve(n);
    rank_.resize(n);
    depth_.resize(n);
  }

  struct Candidate {
    double cost;
    std::int32_t parent;
  };

  void clear() {
    heap_.clear();
    order_.clear();
  }
  bool empty() const { return heap_.empty(); }
  const Candidate& top() const { return heap_.front(); }
  std::int32_t rank(std::int32_t parent) const { return rank_[static_cast<std::size_t>(parent)]; }

  // Node `node` exists, its parent's candidate having just been popped; it has no candidate yet.
  // Of two equal candidates with rank tuples, that of the parent earlier in *post-order* is
  // first: a descendant's tuple goes through a smaller rank than its ancestor's next child has.
  // Each new node is its parent's last child, so it enters post-order right before its parent.
  void add_node(std::int32_t node, std::int32_t parent, std::int32_t depth) {
    depth_[static_cast<std::size_t>(node)] = depth;
    if (uno_) return;
    const std::uint16_t at =
        node == 0 ? std::uint16_t{0} : order_[static_cast<std::size_t>(parent)];
    for (std::uint16_t& place : order_)
      place = static_cast<std::uint16_t>(place + (place >= at ? 1 : 0));
    order_.push_back(at);
  }

  void push(std::int32_t parent, double cost) {
    rank_[static_cast<std::size_t>(parent)] = 0;
    heap_.push_back({cost, parent});
    std::size_t i = heap_.size() - 1;
    const Candidate moving = heap_[i];
    for (; i > 0 && before(moving, heap_[(i - 1) / 2]); i = (i - 1) / 2)
      heap_[i] = heap_[(i - 1) / 2];
    heap_[i] = moving;
  }
  void replace_top_by_sibling(double cost) {
    ++rank_[static_cast<std::size_t>(heap_.front().parent)];
    sink({cost, heap_.front().parent});
  }
  void pop() {
    const Candidate last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
  }

 private:
  bool before(const Candidate& a, const Candidate& b) const {
    if (a.cost != b.cost) return a.cost < b.cost;
    const auto p = static_cast<std::size_t>(a.parent), q = static_cast<std::size_t>(b.parent);
    if (!uno_) return order_[p] < order_[q];
    // Equal depth and rank mean equal token ids, so uno's third key never decides.
    if (depth_[p] != depth_[q]) return depth_[p] < depth_[q];
    if (rank_[p] != rank_[q]) return rank_[p] < rank_[q];
    return p < q;
  }
  void sink(const Candidate moving) {
    std::size_t i = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * i + 1) {
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], moving)) break;
      heap_[i] = heap_[child];
      i = child;
    }
    heap_[i] = moving;
  }

  bool uno_;
  std::vector<Candidate> heap_;
  std::vector<std::uint16_t> order_;
  std::vector<std::int32_t> rank_, depth_;
};

bool valid(const Arguments& a, std::int64_t r, std::vector<std::int32_t>& scratch) {
  const std::int64_t last_prefix = 0x7FFFFFFF - a.rows;
  if (a.root_token[r] < 0 || a.prefix_len[r] < 0 || a.prefix_len[r] > last_prefix) return false;
  for (std::int64_t d = 0; d < a.rows; ++d) {
    const float* lp = a.logprobs.data + (r * a.rows + d) * a.columns;
    const std::int32_t* ids = a.ids.data + (r * a.rows + d) * a.columns;
    scratch.clear();
    float left = 0;
    for (std::int64_t k = 0; k < a.columns; ++k) {
      if (!(lp[k] <= left)) return false;  // also NaN, +inf and values above 0
      left = lp[k];
      if (left == -kdtr::kInfF) continue;
      if (ids[k] < 0) return false;
      scratch.push_back(ids[k]);
    }
    std::sort(scratch.begin(), scratch.end());
    if (std::adjacent_find(scratch.begin(), scratch.end()) != scratch.end()) return false;
  }
  return true;
}

void pad(const Arguments& a, std::int64_t r, std::int64_t first) {
  const std::int64_t begin = r * a.slots + first, end = (r + 1) * a.slots;
  for (const auto* links : {&a.tokens, &a.depths, &a.parents, &a.next_token, &a.next_sibling})
    std::fill(links->data + begin, links->data + end, -1);
  std::fill(a.positions.data + begin, a.positions.data + end, 0);
  std::fill(a.weights.data + begin, a.weights.data + end, 0.0);
  std::memset(a.visible.data + begin * a.slots, 0,
              static_cast<std::size_t>((end - begin) * a.slots));
}

void build(const Arguments& a, std::int64_t r, Frontier& frontier,
           std::vector<std::int32_t>& last_child) {
  const float* lp = a.logprobs.data + r * a.rows * a.columns;
  const std::int32_t* ids = a.ids.data + r * a.rows * a.columns;
  const std::int64_t base = r * a.slots;
  std::uint8_t* visible = a.visible.data + base * a.slots;

  const auto add_node = [&](std::int32_t node, std::int32_t parent, std::int32_t depth,
                            std::int32_t token, double cost) {
    a.tokens[base + node] = token;
    a.depths[base + node] = depth;
    a.parents[base + node] = parent;
    a.positions[base + node] = a.prefix_len[r] + depth;
    a.next_token[base + node] = -1;
    a.next_sibling[base + node] = -1;
    a.weights[base + node] = 0.0 - cost;  // +0.0, never -0.0
    std::uint8_t* row = visible + node * a.slots;
    if (parent >= 0) {
      std::memcpy(row, visible + parent * a.slots, static_cast<std::size_t>(a.slots));
      std::int32_t& sibling = last_child[static_cast<std::size_t>(parent)];
      (sibling < 0 ? a.next_token[base + parent] : a.next_sibling[base + sibling]) = node;
      sibling = node;
    } else {
      std::memset(row, 0, static_cast<std::size_t>(a.slots));
    }
    row[node] = 1;
    last_child[static_cast<std::size_t>(node)] = -1;
    frontier.add_node(node, parent, depth);
    if (depth < a.rows && a.columns > 0 && lp[depth * a.columns] != -kdtr::kInfF)
      frontier.push(node, cost - static_cast<double>(lp[depth * a.columns]));
  };

  frontier.clear();
  add_node(0, -1, 0, a.root_token[r], 0.0);
  std::int32_t node = 1;
  for (; node < a.slots && !frontier.empty(); ++node) {
    const auto [cost, parent] = frontier.top();
    const std::int32_t rank = frontier.rank(parent);
    const std::int64_t depth = a.depths[base + parent];
    const float* row = lp + depth * a.columns;
    if (rank + 1 < a.columns && row[rank + 1] != -kdtr::kInfF) {
      frontier.replace_top_by_sibling((cost + static_cast<double>(row[rank])) -
                                      static_cast<double>(row[rank + 1]));
    } else {
      frontier.pop();
    }
    add_node(node, parent, static_cast<std::int32_t>(depth) + 1, ids[depth * a.columns + rank],
             cost);
  }
  a.n_nodes[r] = node;
  pad(a, r, node);
}

void run(Call& c, void*) {
  Arguments a{};
  const std::int64_t budget = c.attr_int("budget");
  KDTR_CHECK(budget >= 0 && budget <= 1024, c.where("budget"), "out of range", "0..1024", budget);
  const std::string_view tie_order = c.attr_str("tie_order");
  KDTR_CHECK(tie_order == "ranks" || tie_order == "uno", c.where("tie_order"), "unknown",
             "ranks or uno", tie_order);
  a.uno = tie_order == "uno";
  a.slots = budget + 1;
  c.bind("N", a.slots);
  a.logprobs = c.in<float>("logprobs", "R L K");
  a.ids = c.in<std::int32_t>("ids", "R L K");
  a.root_token = c.in<std::int32_t>("root_token", "R");
  a.prefix_len = c.in<std::int32_t>("prefix_len", "R");
  a.n_nodes = c.out<std::int32_t>("n_nodes", "R");
  a.tokens = c.out<std::int32_t>("tokens", "R N");
  a.depths = c.out<std::int32_t>("depths", "R N");
  a.parents = c.out<std::int32_t>("parents", "R N");
  a.positions = c.out<std::int32_t>("positions", "R N");
  a.next_token = c.out<std::int32_t>("next_token", "R N");
  a.next_sibling = c.out<std::int32_t>("next_sibling", "R N");
  a.visible = c.out<std::uint8_t>("visible", "R N N");
  a.weights = c.out<double>("weights", "R N");
  a.status = c.out<std::int32_t>("status", "R");
  a.requests = c.dim("R");
  a.rows = c.dim("L");
  a.columns = c.dim("K");
  KDTR_CHECK(a.rows <= 64, c.where("logprobs"), "axis L", "at most 64", a.rows);
  KDTR_CHECK(a.columns <= 1024, c.where("logprobs"), "axis K", "at most 1024", a.columns);

  Frontier frontier(a.slots, a.uno);
  std::vector<std::int32_t> last_child(static_cast<std::size_t>(a.slots)), scratch;
  scratch.reserve(static_cast<std::size_t>(a.columns));
  for (std::int64_t r = 0; r < a.requests; ++r) {
    if (valid(a, r, scratch)) {
      a.status[r] = kdtr::kOk;
      build(a, r, frontier, last_child);
    } else {
      a.status[r] = kdtr::kBadInput;
      a.n_nodes[r] = 0;
      pad(a, r, 0);
    }
  }
}

}  // namespace

KDTR_KERNEL({"tree_build@1", run});
