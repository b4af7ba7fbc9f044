// tree_build@1, the second reference: a linear scan over candidates with explicit rank tuples,
// written apart from the engine; each fault below changes one thing.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;

enum Fault {
  kCorrect,
  kInsertionOrderTies,
  kReverseInsertionTies,
  kLastRankTies,
  kDeeperFirstTies,
  kUnoForRanks,
  kRanksForUno,
  kF32Weights,
  kSiblingReassociated,
  kSiblingFromParent,
  kNegativeZeroWeight,
  kWeightsF32Stored,
  kPositionsByIndex,
  kPositionsPlusOne,
  kPositionsFromFirstRequest,
  kBudgetIncludesRoot,
  kDepthLimitShort,
  kDepthLimitIgnoresLastSibling,
  kRowOfParent,
  kVisibleWithoutSelf,
  kVisibleCausal,
  kVisibleSiblings,
  kVisibleOneWord,
  kVisibleTransposed,
  kSiblingsDescending,
  kFirstChildIsLast,
  kSiblingLinkAcrossParents,
  kMinusInfPushed,
  kLeastIsAbsent,
  kMinusInfRejected,
  kOnlyPoppedValidated,
  kFirstRowValidated,
  kFirst16RowsValidated,
  kFirst32RowsValidated,
  kNanAccepted,
  kNanPast64Accepted,
  kPositiveAccepted,
  kAscendingAccepted,
  kAscendingPast64Accepted,
  kAscendingBetweenTilesAccepted,
  kDuplicatesAccepted,
  kDuplicatesByLowBits,
  kNegativeIdsAccepted,
  kNegativeIdsPast64Accepted,
  kIdsBelowMinus1Accepted,
  kSmallestIdAccepted,
  kAbsentIdsValidated,
  kTiedIdsMustAscend,
  kRootTokenUnchecked,
  kRootsBelowMinus1Accepted,
  kSmallestRootAccepted,
  kPrefixUnchecked,
  kPrefixesBelowMinus1Accepted,
  kSmallestPrefixAccepted,
  kBadRequestSpoilsRest,
  kBadRequestUnwritten,
  kPadsZero,
  kPadsUnwritten,
  kNodesIsBudget,
  kSixtyFourNodes,
  kRankLimit31,
  kRankLimit256,
  kRowStride64,
  kIdsCutTo16Bits,
  kIdsThroughF32,
  kLastRequestSkipped,
  kRequestsPast64,
  kRequestsPast128,
  kFirstRequestRows,
  kValidationSkippedWhenEmpty,
};

struct Candidate {
  double weight;
  std::vector<int> ranks;
  int parent;
  int serial;
  int token;
};

bool first(const Candidate& a, const Candidate& b, bool uno, int fault) {
  if (a.weight != b.weight) return a.weight > b.weight;
  switch (fault) {
    case kInsertionOrderTies:
      return a.serial < b.serial;
    case kReverseInsertionTies:
      return a.serial > b.serial;
    case kLastRankTies:
      if (a.ranks.back() != b.ranks.back()) return a.ranks.back() < b.ranks.back();
      break;
    case kDeeperFirstTies:
      if (a.ranks.size() != b.ranks.size()) return a.ranks.size() > b.ranks.size();
      break;
    default:
      break;
  }
  if (fault == kUnoForRanks) uno = true;
  if (fault == kRanksForUno) uno = false;
  if (!uno) return a.ranks < b.ranks;
  if (a.ranks.size() != b.ranks.size()) return a.ranks.size() < b.ranks.size();
  if (a.ranks.back() != b.ranks.back()) return a.ranks.back() < b.ranks.back();
  if (a.token != b.token) return a.token < b.token;
  return a.parent < b.parent;
}

void run(Call& c, int fault) {
  const auto budget = static_cast<int>(c.attr_int("budget"));
  const bool uno = c.attr_str("tie_order") == "uno";
  const auto logprobs = c.in<float>("logprobs", "R L K");
  const auto ids = c.in<std::int32_t>("ids", "R L K");
  const auto root_token = c.in<std::int32_t>("root_token", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const auto n_nodes = c.out<std::int32_t>("n_nodes", "R");
  const auto tokens = c.out<std::int32_t>("tokens", "R N");
  const auto depths = c.out<std::int32_t>("depths", "R N");
  const auto parents = c.out<std::int32_t>("parents", "R N");
  const auto positions = c.out<std::int32_t>("positions", "R N");
  const auto next_token = c.out<std::int32_t>("next_token", "R N");
  const auto next_sibling = c.out<std::int32_t>("next_sibling", "R N");
  const auto visible = c.out<std::uint8_t>("visible", "R N N");
  const auto weights = c.out<double>("weights", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const auto requests = static_cast<int>(c.dim("R")), rows = static_cast<int>(c.dim("L")),
             columns = static_cast<int>(c.dim("K")), slots = budget + 1;
  const double minus_inf = -kdtr::kInf;

  bool spoilt = false;
  for (int r = 0; r < requests; ++r) {
    if (fault == kLastRequestSkipped && requests > 1 && r == requests - 1) continue;
    if ((fault == kRequestsPast64 && r >= 64) || (fault == kRequestsPast128 && r >= 128)) continue;
    const int source = fault == kFirstRequestRows ? 0 : r;
    const int stride = fault == kRowStride64 ? std::min(columns, 64) : columns;
    const auto lp = [&](int d, int k) {
      return static_cast<double>(logprobs[source * rows * columns + d * stride + k]);
    };
    const auto id = [&](int d, int k) { return ids[source * rows * columns + d * stride + k]; };
    const auto at = [&](int i) { return static_cast<std::int64_t>(r) * slots + i; };

    bool bad = false;
    const auto negative = [&](int x, int below_minus_1, int smallest) {
      if ((fault == below_minus_1 && x < -1) || (fault == smallest && x == -0x7FFFFFFF - 1))
        return false;
      return x < 0;
    };
    if (negative(root_token[r], kRootsBelowMinus1Accepted, kSmallestRootAccepted) &&
        fault != kRootTokenUnchecked)
      bad = true;
    if (fault != kPrefixUnchecked &&
        (negative(prefix_len[r], kPrefixesBelowMinus1Accepted, kSmallestPrefixAccepted) ||
         prefix_len[r] > 0x7FFFFFFF - rows))
      bad = true;
    int checked_rows = rows;
    if (fault == kFirstRowValidated) checked_rows = std::min(rows, 1);
    if (fault == kFirst16RowsValidated) checked_rows = std::min(rows, 16);
    if (fault == kFirst32RowsValidated) checked_rows = std::min(rows, 32);
    const int checked_columns = fault == kOnlyPoppedValidated ? std::min(columns, budget) : columns;
    if (!(fault == kValidationSkippedWhenEmpty && budget == 0)) {
      for (int d = 0; d < checked_rows; ++d) {
        std::set<int> seen;
        for (int k = 0; k < checked_columns; ++k) {
          const double x = lp(d, k);
          const bool far = k >= 64;
          if (x != x && fault != kNanAccepted && !(fault == kNanPast64Accepted && far)) bad = true;
          if (x > 0 && fault != kPositiveAccepted) bad = true;
          if (k > 0 && x > lp(d, k - 1) && fault != kAscendingAccepted &&
              !(fault == kAscendingPast64Accepted && far) &&
              !(fault == kAscendingBetweenTilesAccepted && k % 32 == 0))
            bad = true;
          if (k > 0 && x == lp(d, k - 1) && id(d, k) < id(d, k - 1) && x != minus_inf &&
              fault == kTiedIdsMustAscend)
            bad = true;
          if (x == minus_inf && fault == kMinusInfRejected) bad = true;
          if (x == minus_inf && fault != kAbsentIdsValidated) continue;
          if (negative(id(d, k), kIdsBelowMinus1Accepted, kSmallestIdAccepted) &&
              fault != kNegativeIdsAccepted && !(fault == kNegativeIdsPast64Accepted && far))
            bad = true;
          const int low = fault == kDuplicatesByLowBits ? id(d, k) & 0xFFFF : id(d, k);
          if (!seen.insert(low).second && fault != kDuplicatesAccepted) bad = true;
        }
      }
    }
    if (spoilt && fault == kBadRequestSpoilsRest) bad = true;
    spoilt = spoilt || bad;
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;
    if (bad && fault == kBadRequestUnwritten) continue;

    int first_pad = 0;
    if (!bad) {
      // Pop.
      const int limit = fault == kDepthLimitShort ? rows - 1 : rows;
      int nodes = budget;
      if (fault == kBudgetIncludesRoot) nodes = budget - 1;
      if (fault == kSixtyFourNodes) nodes = std::min(budget, 64);
      std::vector<Candidate> frontier, popped{{0.0, {}, -1, 0, root_token[r]}};
      int serial = 0;
      const auto push = [&](double weight, std::vector<int> ranks, int parent) {
        const int d = static_cast<int>(ranks.size()) - 1, k = ranks.back();
        if (lp(d, k) == minus_inf && fault != kMinusInfPushed) return;
        if (lp(d, k) < -1e30 && fault == kLeastIsAbsent) return;
        if (fault == kF32Weights) weight = static_cast<double>(static_cast<float>(weight));
        frontier.push_back({weight, std::move(ranks), parent, serial++, id(d, k)});
      };
      const auto push_child = [&](int node) {
        const Candidate& from = popped[static_cast<std::size_t>(node)];
        const int d = static_cast<int>(from.ranks.size());
        if (d >= limit || columns == 0) return;
        std::vector<int> ranks = from.ranks;
        ranks.push_back(0);
        double step = lp(d, 0);
        if (fault == kRowOfParent) step = lp(std::max(d - 1, 0), 0);
        const bool bare = fault == kNegativeZeroWeight && node == 0;
        push(bare ? step : from.weight + step, ranks, node);
      };
      push_child(0);
      while (static_cast<int>(popped.size()) <= nodes && !frontier.empty()) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < frontier.size(); ++i)
          if (first(frontier[i], frontier[best], uno, fault)) best = i;
        const Candidate taken = frontier[best];
        frontier.erase(frontier.begin() + static_cast<std::ptrdiff_t>(best));
        popped.push_back(taken);
        push_child(static_cast<int>(popped.size()) - 1);
        const int d = static_cast<int>(taken.ranks.size()) - 1, k = taken.ranks.back();
        int last = columns;
        if (fault == kRankLimit31) last = std::min(columns, 31);
        if (fault == kRankLimit256) last = std::min(columns, 256);
        if (k + 1 >= last) continue;
        if (fault == kDepthLimitIgnoresLastSibling && d + 1 == rows) continue;
        std::vector<int> ranks = taken.ranks;
        ++ranks.back();
        double weight = (taken.weight - lp(d, k)) + lp(d, k + 1);
        if (fault == kSiblingReassociated) weight = taken.weight + (lp(d, k + 1) - lp(d, k));
        if (fault == kSiblingFromParent)
          weight = popped[static_cast<std::size_t>(taken.parent)].weight + lp(d, k + 1);
        push(weight, ranks, taken.parent);
      }

      // Write.
      const auto count = static_cast<int>(popped.size());
      first_pad = count;
      n_nodes[r] = fault == kNodesIsBudget ? slots : count;
      for (int i = 0; i < count; ++i) {
        const Candidate& node = popped[static_cast<std::size_t>(i)];
        const auto depth = static_cast<int>(node.ranks.size());
        tokens[at(i)] = node.token;
        if (fault == kIdsCutTo16Bits) tokens[at(i)] &= 0xFFFF;
        if (fault == kIdsThroughF32) {
          const auto rounded = static_cast<double>(static_cast<float>(node.token));
          tokens[at(i)] = static_cast<std::int32_t>(std::min(rounded, 2147483647.0));
        }
        depths[at(i)] = depth;
        parents[at(i)] = node.parent;
        const int prefix = prefix_len[fault == kPositionsFromFirstRequest ? 0 : r];
        positions[at(i)] = prefix + (fault == kPositionsByIndex ? i : depth) +
                           (fault == kPositionsPlusOne ? 1 : 0);
        weights[at(i)] = fault == kWeightsF32Stored
                             ? static_cast<double>(static_cast<float>(node.weight))
                             : node.weight;
        next_token[at(i)] = next_sibling[at(i)] = -1;
        for (int j = count - 1; j > 0; --j) {
          const int parent = popped[static_cast<std::size_t>(j)].parent;
          if (parent == i && !(fault == kFirstChildIsLast && next_token[at(i)] >= 0))
            next_token[at(i)] = j;
          const bool related =
              fault == kSiblingLinkAcrossParents
                  ? popped[static_cast<std::size_t>(j)].ranks.size() == node.ranks.size()
                  : parent == node.parent;
          if (i > 0 && j > i && related) next_sibling[at(i)] = j;
        }
        if (fault == kSiblingsDescending) {
          next_sibling[at(i)] = -1;
          for (int j = 1; j < i; ++j)
            if (popped[static_cast<std::size_t>(j)].parent == node.parent) next_sibling[at(i)] = j;
          for (int j = 1; j < count; ++j)
            if (popped[static_cast<std::size_t>(j)].parent == i) next_token[at(i)] = j;
        }
        for (int j = 0; j < slots; ++j) {
          bool sees = false;
          for (int k = i; k >= 0; k = popped[static_cast<std::size_t>(k)].parent) sees |= k == j;
          if (fault == kVisibleWithoutSelf && i == j) sees = false;
          if (fault == kVisibleCausal) sees = j <= i;
          if (fault == kVisibleSiblings && j > 0 && j < i &&
              popped[static_cast<std::size_t>(j)].parent == node.parent)
            sees = true;
          if (fault == kVisibleOneWord && j >= 32) sees = false;
          if (fault == kVisibleTransposed) {
            sees = false;
            if (j < count)
              for (int k = j; k >= 0; k = popped[static_cast<std::size_t>(k)].parent)
                sees |= k == i;
          }
          visible[at(i) * slots + j] = sees ? 1 : 0;
        }
      }
    } else {
      n_nodes[r] = 0;
    }
    if (fault == kPadsUnwritten && !bad) continue;
    for (int i = first_pad; i < slots; ++i) {
      const int none = fault == kPadsZero ? 0 : -1;
      tokens[at(i)] = depths[at(i)] = parents[at(i)] = none;
      next_token[at(i)] = next_sibling[at(i)] = none;
      positions[at(i)] = 0;
      weights[at(i)] = 0;
      for (int j = 0; j < slots; ++j) visible[at(i) * slots + j] = 0;
    }
  }
}

}  // namespace

KDTR_MUTANTS({"tree_build@1",
              {{"correct", "control"},
               {"insertion_order_ties", "equal weights pop in order of insertion"},
               {"reverse_insertion_ties", "equal weights pop last in, first out"},
               {"last_rank_ties", "equal weights compare the last rank before the tuple"},
               {"deeper_first_ties", "equal weights pop the deeper path first"},
               {"uno_for_ranks", "tie_order ranks gives the order of uno"},
               {"ranks_for_uno", "tie_order uno gives the order of ranks"},
               {"f32_weights", "weights accumulate in f32"},
               {"sibling_reassociated", "sibling weight is w + (b - a)"},
               {"sibling_from_parent", "sibling weight is the parent's plus the log-prob"},
               {"negative_zero_weight", "the first candidate is lp itself, which may be -0.0"},
               {"weights_f32_stored", "weights are rounded to f32 when written"},
               {"positions_by_index", "position is prefix_len + node index"},
               {"positions_plus_one", "the root is one position late"},
               {"positions_from_first_request", "all requests use prefix_len[0]"},
               {"budget_includes_root", "budget counts the root"},
               {"depth_limit_short", "no node at depth L"},
               {"depth_limit_ignores_last_sibling", "no sibling is pushed at depth L"},
               {"row_of_parent", "the child's log-prob comes from the row above"},
               {"visible_without_self", "a node does not see itself"},
               {"visible_causal", "a node sees every earlier node"},
               {"visible_siblings", "a node sees its earlier siblings"},
               {"visible_one_word", "columns from 32 on stay 0"},
               {"visible_transposed", "ancestors see their descendants"},
               {"siblings_descending", "children are linked last first"},
               {"first_child_is_last", "next_token is the last child"},
               {"sibling_link_across_parents", "next_sibling joins nodes of one depth"},
               {"minus_inf_pushed", "absent candidates become nodes"},
               {"least_is_absent", "a log-prob below -1e30 is an absent candidate"},
               {"minus_inf_rejected", "an absent candidate is bad input"},
               {"only_popped_validated", "entries past the budget are not validated"},
               {"first_row_validated", "only the first depth is validated"},
               {"first_16_rows_validated", "rows of depths past 16 are not checked"},
               {"first_32_rows_validated", "rows of depths past 32 are not checked"},
               {"nan_accepted", "NaN passes validation"},
               {"nan_past_64_accepted", "NaN past rank 64 passes validation"},
               {"positive_accepted", "a log-prob above 0 passes validation"},
               {"ascending_accepted", "an ascending row passes validation"},
               {"ascending_past_64_accepted", "a row that ascends past rank 64 passes validation"},
               {"ascending_between_tiles_accepted", "entries 31 and 32 are not compared"},
               {"duplicates_accepted", "a repeated id passes validation"},
               {"duplicates_by_low_bits", "ids count as repeated when their low 16 bits are"},
               {"negative_ids_accepted", "a negative id passes validation"},
               {"negative_ids_past_64_accepted", "a negative id past rank 64 passes validation"},
               {"ids_below_minus_1_accepted", "a negative id other than -1 passes validation"},
               {"smallest_id_accepted", "the smallest integer passes for an id"},
               {"absent_ids_validated", "ids of absent candidates are validated"},
               {"tied_ids_must_ascend", "tied entries in descending id order are bad input"},
               {"root_token_unchecked", "a negative root token passes"},
               {"roots_below_minus_1_accepted", "a negative root token other than -1 passes"},
               {"smallest_root_accepted", "the smallest integer passes for a root token"},
               {"prefix_unchecked", "a prefix_len out of range passes"},
               {"prefixes_below_minus_1_accepted", "a negative prefix_len other than -1 passes"},
               {"smallest_prefix_accepted", "the smallest integer passes for a prefix_len"},
               {"bad_request_spoils_rest", "every request after a bad one is bad"},
               {"bad_request_unwritten", "outputs of a bad request are left as they were"},
               {"pads_zero", "pads are 0 instead of -1"},
               {"pads_unwritten", "slots past n_nodes are left as they were"},
               {"nodes_is_budget", "n_nodes is B + 1 when candidates run out"},
               {"sixty_four_nodes", "at most 64 nodes besides the root"},
               {"rank_limit_31", "ranks stop at 30"},
               {"rank_limit_256", "ranks stop at 255"},
               {"row_stride_64", "rows wider than 64 are read as if 64 apart"},
               {"ids_cut_to_16_bits", "ids pass through a 16-bit field"},
               {"ids_through_f32", "ids pass through f32"},
               {"last_request_skipped", "the last request of a batch is not built"},
               {"requests_past_64", "requests from 64 on are not written"},
               {"requests_past_128", "requests from 128 on are not written"},
               {"first_request_rows", "every request reads the rows of the first"},
               {"validation_skipped_when_empty", "budget 0 skips validation"}},
              run});
