#include "membership.h"

#include <cmath>
#include <map>

#include "kdtr/container.h"
#include "kdtr/error.h"
#include "value.h"

namespace kdtr::conform {
namespace {

constexpr std::size_t kLines = 4;  // nodes named; one is enough to find a fault

struct Key {
  std::int64_t slot;
  bool visible;
  std::string name;  // "prefix key 4093", "tree row 3 (a sibling)"
};

class Reader {
 public:
  explicit Reader(const Fixture& f) : f_(f) {}
  // Fixtures come from anywhere: what they lack or point outside of is an error, not a read.
  std::int64_t integer(const char* name, std::int64_t i) const {
    const Argument* a = f_.argument(name);
    if (a == nullptr || a->dtype.bits < 8 || !(is_integer(a->dtype) || a->dtype.code == kBool.code))
      fail(f_.path, std::string("P_MEMBERSHIP: input ") + name, "integers", "none");
    inside(name, i, static_cast<std::int64_t>(a->initial.size() * 8 / a->dtype.bits));
    return int_from(a->dtype, bits_at(a->dtype, a->initial.data(), i));
  }
  std::int64_t positive_attr(const char* name) const {
    const auto it = f_.attrs.find(name);
    const auto* value = it == f_.attrs.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
    if (value == nullptr || *value < 1)
      fail(f_.path, std::string("P_MEMBERSHIP: attribute ") + name, "1 or more", "less or none");
    return *value;
  }
  void inside(const char* what, std::int64_t i, std::int64_t size) const {
    if (i < 0 || i >= size)
      fail(f_.path, std::string("P_MEMBERSHIP: index in ") + what, "below " + std::to_string(size),
           i);
  }
  void rank(const Argument& a, std::size_t want) const {
    if (a.shape.size() != want)
      fail(f_.path, "P_MEMBERSHIP: rank of " + a.name, want, a.shape.size());
  }

 private:
  const Fixture& f_;
};

// How tree row j is related to node i, judged by what both see.
std::string relation(const Reader& read, std::int64_t row, std::int64_t n, std::int64_t i,
                     std::int64_t j) {
  const auto sees = [&](std::int64_t a, std::int64_t b) {
    return read.integer("visible", (row + a) * n + b) != 0;
  };
  if (i == j) return "itself";
  if (sees(i, j)) return "an ancestor";
  if (sees(j, i)) return "a descendant";
  for (std::int64_t k = 0; k < n; ++k)
    if (k != i && k != j && sees(i, k) != sees(j, k)) return "of another branch";
  return "a sibling";
}

// Every key that request r has: its prefix rows, then its tree rows.
std::vector<Key> keys_of(const Fixture& f, std::int64_t r, std::int64_t node) {
  const Reader read(f);
  std::vector<Key> keys;
  if (const Argument* table = f.argument("page_table")) {
    read.rank(*table, 2);
    const std::int64_t page = read.positive_attr("page_size"), pages = table->shape[1];
    const std::int64_t length = read.integer("prefix_len", r);
    if (length > 0) read.inside("page_table", (length - 1) / page, pages);
    for (std::int64_t t = 0; t < length; ++t)
      keys.push_back({read.integer("page_table", r * pages + t / page) * page + t % page, true,
                      "prefix key " + std::to_string(t)});
  }
  if (const Argument* slots = f.argument("tree_slots")) {
    read.rank(*slots, 2);
    const std::int64_t n = slots->shape[1], nodes = read.integer("n_nodes", r);
    if (nodes > 0) read.inside("tree_slots", nodes - 1, n);
    for (std::int64_t j = 0; j < nodes; ++j)
      keys.push_back(
          {read.integer("tree_slots", r * n + j),
           read.integer("visible", (r * n + node) * n + j) != 0,
           "tree row " + std::to_string(j) + " (" + relation(read, r * n, n, node, j) + ")"});
  }
  return keys;
}

}  // namespace

std::vector<std::string> check_membership(const Fixture& f, const Outputs& outputs) {
  std::vector<std::string> found;
  const auto it = outputs.find("out");
  const Argument *pool = f.argument("kv_pool"), *out = f.argument("out");
  if (it == outputs.end() || pool == nullptr || out == nullptr || out->shape.size() != 4) return {};
  const Reader read(f);
  const std::int64_t R = out->shape[0], N = out->shape[1], H = out->shape[2], Dv = out->shape[3];
  read.rank(*pool, 2);
  const std::int64_t D = pool->shape[1];
  if (!is_float(pool->dtype) || !is_float(out->dtype) || D < Dv)
    fail(f.path, "P_MEMBERSHIP: kv_pool and out", "floats, a key at least as wide", "others");
  const auto names = [&](const Key& key, std::int64_t column) {
    read.inside("kv_pool", key.slot, pool->shape[0]);
    return float_at(pool->dtype, pool->initial.data(), key.slot * D + column) != 0;
  };
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t nodes = read.integer("n_nodes", r);
    if (nodes < 0 || nodes > N) continue;
    for (std::int64_t i = 0; i < nodes && found.size() < kLines; ++i) {
      const std::vector<Key> keys = keys_of(f, r, i);
      std::int64_t visible = 0;
      for (const Key& key : keys) visible += key.visible ? 1 : 0;
      // Columns whose count is off, for the first head that is wrong.
      for (std::int64_t h = 0; h < H; ++h) {
        std::map<std::int64_t, std::int64_t> off;
        for (std::int64_t c = 0; c < Dv; ++c) {
          std::int64_t want = 0;
          for (const Key& key : keys) want += key.visible && names(key, c) ? 1 : 0;
          const double got =
              float_at(out->dtype, it->second.data(), ((r * N + i) * H + h) * Dv + c) *
              static_cast<double>(visible);
          // A dropped or a leaked key changes n as well, and so every count a little: within
          // half a key of the exact count it is right.
          if (!(std::fabs(got - static_cast<double>(want)) < 0.5))
            off[c] = std::isfinite(got) ? std::llround(got) - want : 0;
        }
        if (off.empty()) continue;
        const auto& [column, difference] = *off.begin();
        std::string text = "node " + std::to_string(i) + " of request " + std::to_string(r) +
                           ", head " + std::to_string(h) + ": column " + std::to_string(column);
        if (difference == 0) {
          found.push_back(text + " holds no count: a nan or an infinity");
          break;
        }
        text += " counts " + std::to_string(std::llabs(difference)) +
                (difference > 0 ? " too many" : " too few");
        // The keys that would explain every wrong column, else those that explain the first.
        std::string suspects;
        int count = 0;
        for (const bool every : {true, false}) {
          for (const Key& key : keys) {
            if (key.visible != (difference < 0) || !names(key, column)) continue;
            bool all = true;
            for (const auto& [c, d] : off) all = all && names(key, c);
            if (every && !all) continue;
            if (++count <= 4) suspects += (suspects.empty() ? "" : ", ") + key.name;
          }
          if (count != 0) break;
        }
        if (count > 4) suspects += " and " + std::to_string(count - 4) + " more";
        if (!suspects.empty())
          text += difference > 0 ? "; it sees, and must not, one of: " + suspects
                                 : "; it misses one of: " + suspects;
        found.push_back(text);
        break;
      }
    }
  }
  return found;
}

}  // namespace kdtr::conform
