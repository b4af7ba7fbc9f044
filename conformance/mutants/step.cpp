// step@1 in plain doubles, written apart from the reference, with planted faults of the wiring.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "mutant.h"

namespace kdtr {
namespace {

enum Fault {
  correct,
  accepts_from_index_order,
  positions_by_index,
  first_request_length,
  verifies_without_mask,
  commits_rows_only,
  commits_at_prefix_plus_one,
  stale_prefix_len,
  commits_root_only,
  refused_request_dropped,
  commits_past_capacity,
  rows_without_position,
  bonus_counted,
  ties_always_by_ranks_reversed,
  ranks_whatever_asked,
  narrow_ties_by_highest_id,
  halves_read_as_bf16,
  nan_in_first_depth_only,
  last_logit_unchecked,
  plus_inf_accepted,
  refused_tree_keeps_root,
  negative_root_accepted,
  negative_prefix_accepted,
  inactive_commits_root,
  verify_status_lost,
  verify_refusal_ends_request,
  bad_page_is_capacity,
  bad_page_past_pool_accepted,
  bonus_lost_at_full_depth,
  position_clamped,
  token_clamped,
};

struct Node {
  std::vector<int> ranks;
  int parent, depth, token;
  double weight;
};

struct Candidate {
  std::vector<int> ranks;
  int parent, token;
  double weight;
};

// Which of two candidates is popped first.
bool before(const Candidate& a, const Candidate& b, bool uno, int fault) {
  if (a.weight != b.weight) return a.weight > b.weight;
  if (fault == ties_always_by_ranks_reversed) return b.ranks < a.ranks;
  if (!uno) return a.ranks < b.ranks;
  if (a.ranks.size() != b.ranks.size()) return a.ranks.size() < b.ranks.size();
  if (a.ranks.back() != b.ranks.back()) return a.ranks.back() < b.ranks.back();
  if (a.token != b.token) return a.token < b.token;
  return a.parent < b.parent;
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

void run(Call& c, int fault) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R L V");
  const int R = static_cast<int>(c.dim("R")), L = static_cast<int>(c.dim("L")),
            V = static_cast<int>(c.dim("V"));
  const int K = static_cast<int>(c.attr_int("K")), N = static_cast<int>(c.attr_int("N")),
            H = static_cast<int>(c.attr_int("H")), Dv = static_cast<int>(c.attr_int("Dv")),
            page = static_cast<int>(c.attr_int("page_size"));
  const double scale = c.attr_float("scale");
  const bool uno = c.attr_str("tie_order") == "uno" && fault != ranks_whatever_asked;
  c.bind("N", N);
  c.bind("steps", L + 1);
  const auto root = c.in<std::int32_t>("root_token", "R");
  const auto lengths = c.in<std::int32_t>("prefix_len", "R");
  const auto table = c.inout<std::int32_t>("page_table", "R max_pages");
  const auto tree_slots = c.inout<std::int32_t>("tree_slots", "R N");
  const auto pool = c.inout<float>("kv_pool", "slots D");
  const int slots = static_cast<int>(c.dim("slots")), D = static_cast<int>(c.dim("D")),
            pages = static_cast<int>(c.dim("max_pages"));
  c.bind("qc", static_cast<std::int64_t>(H) * D);
  c.bind("oc", static_cast<std::int64_t>(H) * Dv);
  const auto token_rows = c.in<float>("token_rows", "V E");
  const auto position_rows = c.in<float>("position_rows", "M E");
  const int E = static_cast<int>(c.dim("E")), M = static_cast<int>(c.dim("M"));
  const auto q_weight = c.in<float>("q_weight", "qc E");
  const auto q_position = c.in<float>("q_position", "qc E");
  const auto kv_weight = c.in<float>("kv_weight", "D E");
  const auto kv_position = c.in<float>("kv_position", "D E");
  const auto head = c.in<float>("head", "V oc");
  const auto n_nodes = c.out<std::int32_t>("n_nodes", "R");
  const auto tokens = c.out<std::int32_t>("tokens", "R N");
  const auto parents = c.out<std::int32_t>("parents", "R N");
  const auto positions = c.out<std::int32_t>("positions", "R N");
  const auto target = c.out<std::int32_t>("target", "R N");
  const auto accept_len = c.out<std::int32_t>("accept_len", "R");
  const auto accepted = c.out<std::int32_t>("accepted_tokens", "R steps");
  const auto new_len = c.out<std::int32_t>("new_len", "R");
  const auto status = c.out<std::int32_t>("status", "5 R");

  DLTensor read = logits;
  if (fault == halves_read_as_bf16 && is<f16>(logits.dtype)) read.dtype = dtype_of<bf16>;
  // A NaN that a fault does not see is the least of all.
  const auto logit = [&](std::int64_t i) {
    const double x = load(read, i);
    return std::isnan(x) ? -kInf : x;
  };
  std::vector<std::vector<Node>> trees(static_cast<std::size_t>(R));
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < 5; ++s) status[s * R + r] = kOk;
    bool refused = false;
    std::vector<std::vector<int>> ids(static_cast<std::size_t>(L));
    std::vector<std::vector<float>> lp(static_cast<std::size_t>(L));
    for (int d = 0; d < L; ++d) {
      std::vector<int> order(static_cast<std::size_t>(V));
      std::iota(order.begin(), order.end(), 0);
      const std::int64_t row = (static_cast<std::int64_t>(r) * L + d) * V;
      for (int v = 0; v < V; ++v) {
        const double x = load(logits, row + v);
        const bool unseen = (fault == nan_in_first_depth_only && d > 0) ||
                            (fault == last_logit_unchecked && v == V - 1);
        refused =
            refused || (!unseen && (std::isnan(x) || (x == kInf && fault != plus_inf_accepted)));
      }
      if (refused) break;
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        const auto x = logit(row + a), y = logit(row + b);
        return x != y ? x > y
                      : (fault == narrow_ties_by_highest_id && !is<float>(logits.dtype)) != (a < b);
      });
      const double top = V > 0 ? logit(row + order[0]) : 0;
      double sum = 0;
      for (int v = 0; v < V; ++v) sum += std::exp(logit(row + v) - top);
      const auto lse = static_cast<float>(top + std::log(sum));
      for (int k = 0; k < std::min(K, V); ++k) {
        const double x = logit(row + order[static_cast<std::size_t>(k)]);
        if (x == -kInf) break;
        ids[static_cast<std::size_t>(d)].push_back(order[static_cast<std::size_t>(k)]);
        lp[static_cast<std::size_t>(d)].push_back(static_cast<float>(x) - lse);
      }
    }
    if (refused) {
      status[r] = kBadInput;
      for (int d = 0; d < L; ++d) ids[static_cast<std::size_t>(d)].clear();
    }
    auto& tree = trees[static_cast<std::size_t>(r)];
    const bool bad_root = root[r] < 0 && fault != negative_root_accepted;
    const bool bad_length = (lengths[r] < 0 && fault != negative_prefix_accepted) ||
                            lengths[r] > std::numeric_limits<std::int32_t>::max() - L;
    if (bad_root || bad_length) status[R + r] = kBadInput;
    if (status[R + r] == kOk || fault == refused_tree_keeps_root)
      tree.push_back({{}, -1, 0, root[r], 0.0});
    std::vector<Candidate> frontier;
    if (status[R + r] == kOk && L > 0 && !ids[0].empty())
      frontier.push_back({{0}, 0, ids[0][0], lp[0][0]});
    while (static_cast<int>(tree.size()) < N && !frontier.empty()) {
      auto best = frontier.begin();
      for (auto it = frontier.begin() + 1; it != frontier.end(); ++it)
        if (before(*it, *best, uno, fault)) best = it;
      const Candidate taken = *best;
      frontier.erase(best);
      const auto d = taken.ranks.size() - 1;
      const auto k = static_cast<std::size_t>(taken.ranks.back());
      const int self = static_cast<int>(tree.size());
      tree.push_back(
          {taken.ranks, taken.parent, static_cast<int>(d) + 1, taken.token, taken.weight});
      if (k + 1 < ids[d].size()) {
        Candidate next = taken;
        ++next.ranks.back();
        next.token = ids[d][k + 1];
        next.weight = (taken.weight - static_cast<double>(lp[d][k])) + lp[d][k + 1];
        frontier.push_back(std::move(next));
      }
      if (d + 1 < static_cast<std::size_t>(L) && !ids[d + 1].empty()) {
        Candidate child{taken.ranks, self, ids[d + 1][0], taken.weight + lp[d + 1][0]};
        child.ranks.push_back(0);
        frontier.push_back(std::move(child));
      }
    }
    if (refused && fault == refused_request_dropped) tree.clear();
    n_nodes[r] = static_cast<int>(tree.size());
    for (int i = 0; i < N; ++i) {
      const bool live = i < n_nodes[r];
      const int at = r * N + i;
      const Node* node = live ? &tree[static_cast<std::size_t>(i)] : nullptr;
      tokens[at] = live ? node->token : -1;
      parents[at] = live ? node->parent : -1;
      const int from = fault == first_request_length ? lengths[0] : lengths[r];
      positions[at] = live ? from + (fault == positions_by_index ? i : node->depth) : 0;
    }
  }

  // The target: projections, one attention layer, the head.
  const int T = R * N, first = slots - T;
  std::vector<double> q(index(std::int64_t{T} * H * D));
  const auto project = [&](int at, const Array<const float>& by_token,
                           const Array<const float>& by_position, int column) {
    double sum = 0;
    const int token = fault == token_clamped ? std::min(tokens[at], V - 1) : tokens[at];
    const int position = fault == position_clamped ? std::min(positions[at], M - 1) : positions[at];
    for (int e = 0; e < E; ++e) {
      if (token >= 0 && token < V)
        sum += static_cast<double>(token_rows[token * E + e]) * by_token[column * E + e];
      const bool known = fault != rows_without_position || &by_position == &q_position;
      if (position >= 0 && position < M && known)
        sum += static_cast<double>(position_rows[position * E + e]) * by_position[column * E + e];
    }
    return sum;
  };
  for (int at = 0; at < T; ++at) {
    for (int j = 0; j < H * D; ++j)
      q[index(std::int64_t{at} * H * D + j)] = project(at, q_weight, q_position, j);
    for (int j = 0; j < D; ++j)
      pool[(first + at) * D + j] = static_cast<float>(project(at, kv_weight, kv_position, j));
  }
  const auto outside = [&](int page_id) { return page_id < 0 || page_id >= slots / page; };
  for (int r = 0; r < R; ++r) {
    const auto& tree = trees[static_cast<std::size_t>(r)];
    bool refused = false;
    if (!tree.empty()) {
      refused = lengths[r] < 0 || lengths[r] > pages * page;
      for (int t = 0; t < lengths[r] && !refused; ++t)
        refused = outside(table[r * pages + t / page]) && fault != bad_page_past_pool_accepted;
      if (refused && fault != verify_status_lost) status[2 * R + r] = kBadInput;
      if (refused && fault == verify_refusal_ends_request)
        trees[static_cast<std::size_t>(r)].clear();
    }
    for (int i = 0; i < N; ++i) {
      std::vector<double> attended(index(std::int64_t{H} * Dv), 0.0);
      if (i < n_nodes[r] && !refused) {
        std::vector<int> keys;
        const int prefix = fault == stale_prefix_len ? std::max(0, lengths[r] - 1) : lengths[r];
        for (int t = 0; t < prefix; ++t) {
          const int page_id = table[r * pages + t / page];
          if (!outside(page_id)) keys.push_back(page_id * page + t % page);
        }
        if (fault == verifies_without_mask) {
          for (int j = 0; j < n_nodes[r]; ++j) keys.push_back(tree_slots[r * N + j]);
        } else {
          for (int j = i; j >= 0; j = tree[static_cast<std::size_t>(j)].parent)
            keys.push_back(tree_slots[r * N + j]);
        }
        for (int h = 0; h < H; ++h) {
          std::vector<double> score;
          for (const int key : keys) {
            double dot = 0;
            for (int j = 0; j < D; ++j)
              dot += q[index((std::int64_t{r} * N + i) * H * D + std::int64_t{h} * D + j)] *
                     pool[key * D + j];
            score.push_back(scale * dot);
          }
          const double top = *std::max_element(score.begin(), score.end());
          double sum = 0;
          for (double& s : score) sum += s = std::exp(s - top);
          for (std::size_t k = 0; k < keys.size(); ++k)
            for (int j = 0; j < Dv; ++j)
              attended[index(std::int64_t{h} * Dv + j)] += score[k] / sum * pool[keys[k] * D + j];
        }
      }
      int best = 0;
      double best_score = -kInf;
      for (int v = 0; v < V; ++v) {
        double s = 0;
        for (int j = 0; j < H * Dv; ++j)
          s += attended[static_cast<std::size_t>(j)] * head[v * H * Dv + j];
        if (s > best_score) {
          best = v;
          best_score = s;
        }
      }
      target[r * N + i] = best;
    }
  }

  for (int r = 0; r < R; ++r) {
    const auto& tree = trees[static_cast<std::size_t>(r)];
    std::vector<int> path;
    for (int k = 0; k <= L; ++k) accepted[r * (L + 1) + k] = -1;
    if (!tree.empty()) path.push_back(0);
    while (!path.empty()) {
      const int here = path.back(), want = target[r * N + here];
      const bool bonus = static_cast<int>(path.size()) > L;
      accepted[r * (L + 1) + static_cast<int>(path.size()) - 1] =
          fault == bonus_lost_at_full_depth && bonus ? -1 : want;
      int next = -1;
      for (int i = n_nodes[r] - 1; i > here; --i) {
        const bool child = fault == accepts_from_index_order
                               ? i == here + 1
                               : tree[static_cast<std::size_t>(i)].parent == here;
        if (child && tree[static_cast<std::size_t>(i)].token == want) next = i;
      }
      if (next < 0 || static_cast<int>(path.size()) > L) break;
      path.push_back(next);
    }
    accept_len[r] = static_cast<int>(path.size()) - 1;
    const int length = lengths[r];
    int count = fault == commits_root_only ? std::min<int>(1, static_cast<int>(path.size()))
                                           : static_cast<int>(path.size());
    if (count == 0 && fault == inactive_commits_root) {
      new_len[r] = length + 1;
      continue;
    }
    const bool full = count > 0 && length + count > pages * page;
    if (full && fault != commits_past_capacity) {
      status[4 * R + r] = kCapacity;
      new_len[r] = length;
      if (fault == bonus_counted) ++accept_len[r];
      continue;
    }
    bool bad_page = false;
    for (int k = 0; k < count; ++k)
      bad_page = bad_page ||
                 ((length + k) / page < pages && outside(table[r * pages + (length + k) / page]));
    if (bad_page) {
      status[4 * R + r] = fault == bad_page_is_capacity ? kCapacity : kBadInput;
      new_len[r] = length;
      continue;
    }
    const int base = length + (fault == commits_at_prefix_plus_one ? 1 : 0);
    if (page == 1 && fault != commits_rows_only) {
      for (int k = 0; k < count && base + k < pages; ++k) {
        const int s = tree_slots[r * N + path[static_cast<std::size_t>(k)]];
        const int d = table[r * pages + base + k];
        for (int i = 0; i < pages; ++i) {
          std::int32_t& entry = table[r * pages + i];
          entry = entry == s ? d : entry == d ? s : entry;
        }
        for (int i = 0; i < N; ++i) {
          std::int32_t& entry = tree_slots[r * N + i];
          entry = entry == s ? d : entry == d ? s : entry;
        }
      }
    } else {
      std::vector<std::vector<float>> moved;
      for (int k = 0; k < count; ++k) {
        const float* row =
            &pool[std::int64_t{tree_slots[r * N + path[static_cast<std::size_t>(k)]]} * D];
        moved.emplace_back(row, row + D);
      }
      for (int k = 0; k < count; ++k) {
        const int t = base + k;
        if (t / page >= pages) break;
        const int slot = table[r * pages + t / page] * page + t % page;
        std::copy(moved[static_cast<std::size_t>(k)].begin(),
                  moved[static_cast<std::size_t>(k)].end(), &pool[std::int64_t{slot} * D]);
      }
    }
    new_len[r] = length + count;
    if (fault == bonus_counted) ++accept_len[r];
  }
}

}  // namespace

KDTR_MUTANTS({"step@1",
              {{"correct", "control"},
               {"accepts_from_index_order", "the walk takes the next index for the child"},
               {"positions_by_index", "positions by node index instead of depth"},
               {"first_request_length", "every request gets the first one's length"},
               {"verifies_without_mask", "each node sees the whole tree"},
               {"commits_rows_only", "page size 1: rows are copied, the tables stay"},
               {"commits_at_prefix_plus_one", "the root's row lands one late"},
               {"stale_prefix_len", "verify reads the length of the step before"},
               {"commits_root_only", "the accepted path is not committed"},
               {"refused_request_dropped", "a refused drafter stops the request"},
               {"commits_past_capacity", "no check of the table's end"},
               {"rows_without_position", "cache rows know nothing of positions"},
               {"bonus_counted", "accept_len counts the bonus"},
               {"ties_always_by_ranks_reversed", "ties go to the larger rank tuple"},
               {"ranks_whatever_asked", "the tie order is not passed on"},
               {"narrow_ties_by_highest_id", "16-bit logits: ties go to the highest id"},
               {"halves_read_as_bf16", "f16 logits are read as bf16"},
               {"nan_in_first_depth_only", "logits of the first depth alone are checked"},
               {"last_logit_unchecked", "the last logit of a row is not checked"},
               {"plus_inf_accepted", "a logit of +inf is a candidate"},
               {"refused_tree_keeps_root", "a request that build refuses decodes plainly"},
               {"negative_root_accepted", "a negative root token is none that build refuses"},
               {"negative_prefix_accepted", "a negative length is none that build refuses"},
               {"inactive_commits_root", "a request without nodes gets a row"},
               {"verify_status_lost", "the status of verify is not passed on"},
               {"verify_refusal_ends_request", "a request that verify refuses accepts nothing"},
               {"bad_page_is_capacity", "a bad page of a destination is reported as capacity"},
               {"bad_page_past_pool_accepted", "verify skips a page outside the pool"},
               {"bonus_lost_at_full_depth", "no bonus where all depths are accepted"},
               {"position_clamped", "positions past the table take its last row"},
               {"token_clamped", "tokens past the vocabulary take its last row"}},
              run});

}  // namespace kdtr
