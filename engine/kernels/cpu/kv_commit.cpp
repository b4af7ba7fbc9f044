// kv_commit@1 on cpu: sources are staged, then written; any row size. No aliasing of arguments.
// rows [layers, slots, row_bytes], page_table [R, max_pages], tree_slots [R, N],
// hidden [R, N, hidden_bytes], accept_index [R, steps] -> new_len, status [R].
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;

struct Request {
  std::int32_t* table;
  std::int32_t* tree;
  const std::int32_t* path;
  std::int64_t max_pages, nodes, steps, slots, page_size, count, prefix;
};

struct Move {
  std::int64_t node, source, target;
};

bool inside(std::int64_t x, std::int64_t end) { return 0 <= x && x < end; }

// The moves of a request in path order, or why there are none.
kdtr::Status plan(const Request& q, std::vector<Move>& moves) {
  moves.clear();
  if (q.count < 0 || q.count > std::min(q.steps, q.nodes)) return kdtr::kBadInput;
  if (q.count == 0) return kdtr::kOk;
  if (q.prefix < 0) return kdtr::kBadInput;
  if (q.prefix + q.count > q.max_pages * q.page_size) return kdtr::kCapacity;
  for (std::int64_t k = 0; k < q.count; ++k) {
    const std::int64_t node = q.path[k], position = q.prefix + k;
    const std::int64_t page = q.table[position / q.page_size];
    if (!inside(node, q.nodes) || !inside(q.tree[node], q.slots) ||
        !inside(page, q.slots / q.page_size)) {
      moves.clear();
      return kdtr::kBadInput;
    }
    moves.push_back({node, q.tree[node], page * q.page_size + position % q.page_size});
  }
  return kdtr::kOk;
}

void exchange_entries(const Request& q, const std::vector<Move>& moves) {
  for (std::size_t k = 0; k < moves.size(); ++k) {
    const auto here = static_cast<std::int32_t>(moves[k].source);
    const std::int32_t there = q.table[q.prefix + static_cast<std::int64_t>(k)];
    const auto swap = [&](std::int32_t& x) { x = x == here ? there : x == there ? here : x; };
    std::for_each(q.table, q.table + q.max_pages, swap);
    std::for_each(q.tree, q.tree + q.nodes, swap);
  }
}

// base[target] = base[source] for every pair, all read before any is written.
void move_rows(std::uint8_t* base, std::int64_t bytes,
               const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs,
               std::vector<std::uint8_t>& stage) {
  stage.clear();
  for (const auto& [source, target] : pairs)
    stage.insert(stage.end(), base + source * bytes, base + (source + 1) * bytes);
  auto from = stage.begin();
  for (const auto& [source, target] : pairs) {
    std::copy_n(from, bytes, base + target * bytes);
    from += bytes;
  }
}

void run(Call& c, void*) {
  const auto rows = c.inout<std::uint8_t>("rows", "layers slots row_bytes");
  const auto table = c.inout<std::int32_t>("page_table", "R max_pages");
  const auto tree = c.inout<std::int32_t>("tree_slots", "R N");
  const auto hidden = c.inout<std::uint8_t>("hidden", "R N hidden_bytes");
  const auto path = c.in<std::int32_t>("accept_index", "R steps");
  const auto accept_len = c.in<std::int32_t>("accept_len", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const auto new_len = c.out<std::int32_t>("new_len", "R");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t page_size = c.attr_int("page_size");
  KDTR_CHECK(page_size >= 1, c.where("page_size"), "rows per page", "1 or more", page_size);
  const std::int64_t slots = c.dim("slots"), nodes = c.dim("N");
  const std::int64_t row_bytes = c.dim("row_bytes"), hidden_bytes = c.dim("hidden_bytes");
  std::vector<Move> moves;
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  std::vector<std::uint8_t> stage;

  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    const Request q{table.data + r * c.dim("max_pages"),
                    tree.data + r * nodes,
                    path.data + r * c.dim("steps"),
                    c.dim("max_pages"),
                    nodes,
                    c.dim("steps"),
                    slots,
                    page_size,
                    static_cast<std::int64_t>(accept_len[r]) + 1,
                    prefix_len[r]};
    status[r] = plan(q, moves);
    new_len[r] = prefix_len[r] + static_cast<std::int32_t>(moves.size());
    if (page_size == 1) {
      exchange_entries(q, moves);
    } else {
      pairs.clear();
      for (const Move& m : moves) pairs.emplace_back(m.source, m.target);
      for (std::int64_t layer = 0; layer < c.dim("layers"); ++layer)
        move_rows(rows.data + layer * slots * row_bytes, row_bytes, pairs, stage);
    }
    pairs.clear();
    for (const Move& m : moves) pairs.emplace_back(m.node, static_cast<std::int64_t>(pairs.size()));
    move_rows(hidden.data + r * nodes * hidden_bytes, hidden_bytes, pairs, stage);
  }
}

KDTR_KERNEL({"kv_commit@1", run});

}  // namespace
