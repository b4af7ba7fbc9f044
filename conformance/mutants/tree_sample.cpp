// tree_sample@1, the second reference: children gathered first, then judged, probabilities in
// units of 2^-24; written apart from the engine; each fault below changes one thing.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;

enum Fault {
  kCorrect,
  kInclusiveCoin,
  kZeroMassBySingle,
  kAccNotSummed,
  kAccNotReset,
  kThresholdAccIgnored,
  kThresholdAccMultiplied,
  kThresholdSingleIgnored,
  kThresholdSingleStrict,
  kCoinPerSibling,
  kCoinPerNode,
  kFirstCoinOnly,
  kFinalCoinIsCoin,
  kFinalCoinNextCoin,
  kResidualKept,
  kResidualLastOnly,
  kResidualFirstOnly,
  kTotalNotUsed,
  kTotalIsOneMinusAcc,
  kInclusiveDraw,
  kDrawDescending,
  kDrawIsArgmax,
  kDrawFromParent,
  kDrawFromRoot,
  kTileOfVocab,
  kIdsCutTo15Bits,
  kSiblingsPast32,
  kNodesPast64,
  kCoinsPast32,
  kThresholdsInF32,
  kAccInF32,
  kRunningSumInF32,
  kTotalInF32,
  kMarkInF32,
  kSmallChildRefused,
  kSmallResidualIsNone,
  kDenormalIsNone,
  kSiblingOrderByIndex,
  kGreedyChild,
  kDrawNotPredicted,
  kDrawCounted,
  kTokensShifted,
  kEmptyResidualIsLastId,
  kNanProbability,
  kNegativeProbability,
  kInfiniteProbability,
  kNanPast1024,
  kNegativePast1024,
  kInfinitePast1024,
  kCoinUnchecked,
  kFinalCoinUnchecked,
  kUnusedCoinsChecked,
  kUnreadRowsChecked,
  kTokenUnchecked,
  kOutOfRangeEndsWalk,
  kChildMustFollowParent,
  kCountUnbounded,
  kDepthClipped,
  kDepthLimit0Clipped,
  kDepthLimit0NotWalked,
  kInactiveDraws,
  kNegativeIsInactive,
  kNodesIn16Bits,
  kFailedPathKept,
  kFirstRequestProbs,
  kFirstRequestCoins,
  kLastRequestSkipped,
};

double in_f32(double x) { return static_cast<double>(static_cast<float>(x)); }

void run(Call& c, int fault) {
  const auto limit = static_cast<int>(c.attr_int("L"));
  double threshold_acc = c.attr_float("threshold_acc");
  double threshold_single = c.attr_float("threshold_single");
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
  const auto requests = static_cast<int>(c.dim("R")), slots = static_cast<int>(c.dim("N")),
             steps = static_cast<int>(c.dim("S")), vocab = static_cast<int>(c.dim("V"));
  if (fault == kThresholdAccIgnored) threshold_acc = 1;
  if (fault == kThresholdAccMultiplied) threshold_acc = 1 / threshold_acc;
  if (fault == kThresholdSingleIgnored) threshold_single = 2;
  if (fault == kThresholdsInF32) threshold_single = in_f32(threshold_single);

  for (int r = 0; r < requests; ++r) {
    if (fault == kLastRequestSkipped && requests > 1 && r == requests - 1) continue;
    const auto at = [&](int i) { return static_cast<std::int64_t>(r) * slots + i; };
    const auto p_of = [&](int node, int id) {
      const int from = fault == kFirstRequestProbs ? 0 : r;
      const auto p =
          static_cast<double>(probs[(static_cast<std::int64_t>(from) * slots + node) * vocab + id]);
      return fault == kDenormalIsNone && p > 0 && p < 0x1p-126 ? 0 : p;
    };
    const auto coin_of = [&](int k) {
      const int from = fault == kFirstRequestCoins ? 0 : r;
      return static_cast<double>(
          coins[static_cast<std::int64_t>(from) * steps + std::min(k, steps - 1)]);
    };
    const auto good = [&](double p) {
      if (p != p) return fault == kNanProbability;
      if (p < 0) return fault == kNegativeProbability;
      return p < kdtr::kInf || fault == kInfiniteProbability;
    };
    const auto unit = [](double x) { return x >= 0 && x < 1; };

    int nodes = n_nodes[r];
    if (fault == kNegativeIsInactive) nodes = std::max(nodes, 0);
    if (fault == kNodesIn16Bits) nodes = static_cast<std::int16_t>(nodes);
    std::vector<int> path, emitted;
    const auto solve = [&]() -> std::int32_t {
      if (nodes < 0 || nodes > slots) return kdtr::kBadInput;
      if (nodes == 0 && fault != kInactiveDraws) return kdtr::kOk;
      if (nodes == 0 && slots == 0) return kdtr::kOk;
      if (fault == kUnusedCoinsChecked)
        for (int k = 0; k < steps; ++k)
          if (!unit(coin_of(k))) return kdtr::kBadInput;
      if (fault == kUnreadRowsChecked)
        for (int i = 0; i < nodes; ++i)
          for (int id = 0; id < vocab; ++id)
            if (!good(p_of(i, id))) return kdtr::kBadInput;
      path = {0};
      int read = 0;
      double acc = 0;
      for (;;) {
        const int cur = path.back();
        const auto depth = static_cast<int>(path.size()) - 1;
        if (fault != kAccNotReset) acc = 0;
        std::vector<int> tried;
        int accepted = -1;
        std::vector<int> order;
        int child = nodes == 0 ? -1 : next_token[at(cur)];
        if (fault == kDepthLimit0NotWalked && limit == 0) child = -1;
        while (child != -1) {
          if (child < 1 || child >= nodes) {
            if (fault == kOutOfRangeEndsWalk) break;
            return kdtr::kBadLinks;
          }
          if (fault == kChildMustFollowParent && child <= cur) return kdtr::kBadLinks;
          if (fault == kSiblingsPast32 && tried.size() >= 32) break;
          if (fault == kNodesPast64 && child >= 64) break;
          ++read;
          if (read > nodes - 1 && !(fault == kCountUnbounded && read < 4 * nodes))
            return kdtr::kBadLinks;
          int candidate = child;
          if (fault == kSiblingOrderByIndex || fault == kGreedyChild) {
            order.push_back(child);
            child = next_sibling[at(child)];
            if (child != -1 && (child < 1 || child >= nodes)) return kdtr::kBadLinks;
            continue;
          }
          order = {candidate};
          const int token = tokens[at(candidate)];
          double coin = coin_of(depth);
          if (fault == kCoinPerSibling) coin = coin_of(depth + static_cast<int>(tried.size()));
          if (fault == kCoinPerNode) coin = coin_of(cur);
          if (fault == kFirstCoinOnly) coin = coin_of(0);
          if (token < 0 || token >= vocab) {
            if (fault != kTokenUnchecked) return kdtr::kBadInput;
            child = next_sibling[at(candidate)];
            continue;
          }
          const double p = p_of(cur, token);
          if (!good(p) || (!unit(coin) && fault != kCoinUnchecked)) return kdtr::kBadInput;
          acc = fault == kAccNotSummed ? p : acc + p;
          if (fault == kAccInF32) acc = in_f32(acc);
          double edge = acc / threshold_acc;
          if (fault == kThresholdsInF32)
            edge = static_cast<double>(static_cast<float>(acc) / static_cast<float>(threshold_acc));
          if (fault == kCoinsPast32) coin = coin_of(std::min(depth, 32));
          bool yes = fault == kInclusiveCoin ? coin <= edge : coin < edge && p > 0;
          yes = yes || (fault == kThresholdSingleStrict
                            ? p > threshold_single
                            : p >= threshold_single && (p > 0 || fault == kZeroMassBySingle));
          if (fault == kSmallChildRefused && p < 1e-6) yes = false;
          if (yes) {
            accepted = candidate;
            break;
          }
          tried.push_back(token);
          child = next_sibling[at(candidate)];
        }
        if (fault == kSiblingOrderByIndex || fault == kGreedyChild) {
          std::sort(order.begin(), order.end(), [&](int a, int b) {
            if (fault == kSiblingOrderByIndex) return a < b;
            return p_of(cur, tokens[at(a)]) > p_of(cur, tokens[at(b)]);
          });
          for (const int candidate : order) {
            const int token = tokens[at(candidate)];
            if (token < 0 || token >= vocab || !good(p_of(cur, token)) || !unit(coin_of(depth)))
              return kdtr::kBadInput;
            const double p = p_of(cur, token);
            acc += p;
            if (p > 0 && (coin_of(depth) < acc / threshold_acc || p >= threshold_single)) {
              accepted = candidate;
              break;
            }
            tried.push_back(token);
          }
        }
        if (accepted >= 0) {
          if (depth + 1 > limit) {
            const bool clipped =
                fault == kDepthClipped || (fault == kDepthLimit0Clipped && limit == 0);
            if (!clipped) return kdtr::kCapacity;
          } else {
            emitted.push_back(tokens[at(accepted)]);
            path.push_back(accepted);
            continue;
          }
        }

        // Draw.
        double coin = static_cast<double>(final_coin[fault == kFirstRequestCoins ? 0 : r]);
        if (fault == kFinalCoinIsCoin) coin = coin_of(depth);
        if (fault == kFinalCoinNextCoin) coin = coin_of(depth + 1);
        if (!unit(coin) && fault != kFinalCoinUnchecked) return kdtr::kBadInput;
        int from = cur;
        if (fault == kDrawFromParent && depth > 0) from = path[static_cast<std::size_t>(depth) - 1];
        if (fault == kDrawFromRoot) from = 0;
        std::vector<double> residual(static_cast<std::size_t>(vocab));
        for (int id = 0; id < vocab; ++id) {
          const double p = p_of(from, id);
          const bool passes = id >= 1024 && ((fault == kNanPast1024 && p != p) ||
                                             (fault == kNegativePast1024 && p < 0) ||
                                             (fault == kInfinitePast1024 && p == kdtr::kInf));
          if (!passes && !good(p)) return kdtr::kBadInput;
          residual[static_cast<std::size_t>(id)] = passes ? 0 : p;
        }
        for (std::size_t i = 0; i < tried.size(); ++i) {
          if (fault == kResidualKept) break;
          if (fault == kResidualLastOnly && i + 1 < tried.size()) continue;
          if (fault == kResidualFirstOnly && i > 0) continue;
          residual[static_cast<std::size_t>(tried[i])] = 0;
        }
        const int seen = fault == kTileOfVocab ? std::min(vocab, 1024) : vocab;
        double total = 0;
        for (int id = 0; id < seen; ++id) total += residual[static_cast<std::size_t>(id)];
        if (fault == kTotalInF32) total = in_f32(total);
        if (!(total > (fault == kSmallResidualIsNone ? 1e-6 : 0))) {
          if (fault == kEmptyResidualIsLastId && vocab > 0) {
            emitted.push_back(vocab - 1);
            return kdtr::kOk;
          }
          return kdtr::kBadInput;
        }
        double mark = coin * total;
        if (fault == kMarkInF32) mark = in_f32(mark);
        if (fault == kTotalNotUsed) mark = coin;
        if (fault == kTotalIsOneMinusAcc) mark = coin * (1 - acc);
        int drawn = -1, last = -1;
        double running = 0;
        for (int k = 0; k < seen; ++k) {
          const int id = fault == kDrawDescending ? seen - 1 - k : k;
          const double p = residual[static_cast<std::size_t>(id)];
          running += p;
          if (fault == kRunningSumInF32) running = in_f32(running);
          if (p > 0) last = id;
          if (fault == kInclusiveDraw ? running >= mark : running > mark) {
            drawn = id;
            break;
          }
        }
        if (drawn < 0) drawn = last;
        if (fault == kIdsCutTo15Bits) drawn %= 32768;
        if (fault == kDrawIsArgmax)
          drawn = static_cast<int>(std::max_element(residual.begin(), residual.end()) -
                                   residual.begin());
        emitted.push_back(drawn);
        return kdtr::kOk;
      }
    };
    const std::int32_t state = solve();
    if (state != kdtr::kOk) {
      if (fault == kFailedPathKept)
        emitted.resize(path.size(), -1);
      else
        path.clear();
    }
    const auto length = static_cast<int>(path.size()) - 1;
    status[r] = state;
    accept_len[r] = length + (fault == kDrawCounted && length >= 0 ? 1 : 0);
    for (int i = 0; i < slots; ++i) predicts[at(i)] = -1;
    for (int k = 0; k < steps; ++k) {
      const std::int64_t to = static_cast<std::int64_t>(r) * steps + k;
      const auto step = static_cast<std::size_t>(k);
      accept_index[to] = k <= length ? path[step] : -1;
      accepted_tokens[to] = k <= length ? emitted[step] : -1;
      if (fault == kTokensShifted && k <= length)
        accepted_tokens[to] = k == 0 ? tokens[at(0)] : emitted[step - 1];
      if (k > length || (fault == kDrawNotPredicted && k == length)) continue;
      predicts[at(path[step])] = emitted[step];
    }
  }
}

}  // namespace

KDTR_MUTANTS({"tree_sample@1",
              {{"correct", "control"},
               {"inclusive_coin", "a child is accepted at coin == acc, with or without mass"},
               {"zero_mass_by_single", "threshold_single 0 accepts a token without mass"},
               {"acc_not_summed", "each sibling is compared by its own probability"},
               {"acc_not_reset", "acc goes on after an acceptance"},
               {"threshold_acc_ignored", "threshold_acc is taken for 1"},
               {"threshold_acc_multiplied", "threshold_acc multiplies"},
               {"threshold_single_ignored", "threshold_single is taken for 2"},
               {"threshold_single_strict", "threshold_single must be exceeded"},
               {"coin_per_sibling", "each sibling takes the next coin"},
               {"coin_per_node", "coins are indexed by node"},
               {"first_coin_only", "every depth uses the first coin"},
               {"final_coin_is_coin", "the draw reuses the acceptance coin"},
               {"final_coin_next_coin", "the draw uses the next acceptance coin"},
               {"residual_kept", "tried siblings keep their mass"},
               {"residual_last_only", "only the last tried sibling loses its mass"},
               {"residual_first_only", "only the first tried sibling loses its mass"},
               {"total_not_used", "the draw compares with final_coin alone"},
               {"total_is_one_minus_acc", "the total is taken for 1 - acc"},
               {"inclusive_draw", "the draw takes the first id whose sum reaches the mark"},
               {"draw_descending", "the draw sums from the last id"},
               {"draw_is_argmax", "the draw is the likeliest id"},
               {"draw_from_parent", "the draw reads the row of the last node's parent"},
               {"draw_from_root", "the draw reads the root's row"},
               {"tile_of_vocab", "the draw sees the first 1024 ids"},
               {"ids_cut_to_15_bits", "ids drawn pass through a 15-bit field"},
               {"siblings_past_32", "children past the 32nd are not tried"},
               {"nodes_past_64", "nodes from 64 on are not found"},
               {"coins_past_32", "coins of depths past 32 are those of depth 32"},
               {"thresholds_in_f32", "thresholds and the quotient by them are f32"},
               {"acc_in_f32", "acc is an f32"},
               {"running_sum_in_f32", "the running sum of a draw is an f32"},
               {"total_in_f32", "the total of a draw is an f32"},
               {"mark_in_f32", "final_coin times the total is an f32"},
               {"small_child_refused", "a child of less than 1e-6 is never accepted"},
               {"small_residual_is_none", "a residual below 1e-6 is taken for none"},
               {"denormal_is_none", "denormal probabilities are flushed to 0"},
               {"sibling_order_by_index", "siblings are tried by index"},
               {"greedy_child", "siblings are tried by probability"},
               {"draw_not_predicted", "predicts misses the draw"},
               {"draw_counted", "accept_len counts the draw"},
               {"tokens_shifted", "accepted_tokens start with the root's token"},
               {"empty_residual_is_last_id", "an empty residual draws the last id"},
               {"nan_probability", "NaN passes for a probability"},
               {"negative_probability", "a negative probability passes"},
               {"infinite_probability", "an infinite probability passes"},
               {"nan_past_1024", "NaN past id 1,024 is no mass"},
               {"negative_past_1024", "a negative probability past id 1,024 is no mass"},
               {"infinite_past_1024", "an infinite probability past id 1,024 is no mass"},
               {"coin_unchecked", "a coin outside [0, 1) passes"},
               {"final_coin_unchecked", "a final coin outside [0, 1) passes"},
               {"unused_coins_checked", "coins that the walk does not use are checked"},
               {"unread_rows_checked", "rows that the walk does not read are checked"},
               {"token_unchecked", "a child whose token is out of range is passed over"},
               {"out_of_range_ends_walk", "a link out of range ends the list"},
               {"child_must_follow_parent", "a child must have a greater index than its parent"},
               {"count_unbounded", "more links than a tree has may be read"},
               {"depth_clipped", "a path longer than L draws instead"},
               {"depth_limit_0_clipped", "an accepted child draws instead where L is 0"},
               {"depth_limit_0_not_walked", "children are not tried where L is 0"},
               {"inactive_draws", "n_nodes 0 draws from the root's row"},
               {"negative_is_inactive", "a negative n_nodes is an inactive request"},
               {"nodes_in_16_bits", "n_nodes passes through a 16-bit field"},
               {"failed_path_kept", "a failing request keeps the path walked so far"},
               {"first_request_probs", "every request reads the first one's probabilities"},
               {"first_request_coins", "every request uses the first one's coins"},
               {"last_request_skipped", "the last request of a batch is not walked"}},
              run});
