// tree_accept@1, the second reference: recursion over children gathered from the links, written
// apart from the engine; each fault below changes one thing.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;

enum Fault {
  kCorrect,
  kBonusCounted,
  kRootNotListed,
  kNoBonusOnFullAccept,
  kNoBonusOnReject,
  kBonusIsDraftToken,
  kTokensOfDrafts,
  kWalkByIndex,
  kHeapOrderChain,
  kFirstChildOnly,
  kLastMatch,
  kLowestIndexMatch,
  kAnyNodeMatch,
  kBacktracks,
  kLongestPath,
  kTargetOfChild,
  kTargetOfRoot,
  kTokensIn16Bits,
  kTokensThroughF32,
  kTokenPastVocabRefused,
  kNegativeTokenRefused,
  kNegativeTokenEndsList,
  kPredictsEverywhere,
  kPredictsWithoutLast,
  kPredictsByStep,
  kUnusedZero,
  kUnusedUnwritten,
  kNodesIgnored,
  kNodesClamped,
  kNodesIn16Bits,
  kUnreadLinksChecked,
  kUnreadTargetsChecked,
  kAllLinksMustDescend,
  kOutOfRangeEndsWalk,
  kNegativeEndsWalk,
  kLinksPast64EndWalk,
  kZeroLinkFollowed,
  kLinkBoundIsSlots,
  kLinkBoundInclusive,
  kCountPerNode,
  kCountOneMore,
  kCountOneLess,
  kCycleIsCapacity,
  kDepthLimitShort,
  kDepthClipped,
  kDepthBeforeLinks,
  kVocabInclusive,
  kNegativeTargetEndsWalk,
  kLeafTargetUnchecked,
  kLinksBeforeTarget,
  kInactiveIsBad,
  kInactiveLenZero,
  kInactiveBonus,
  kFailedPathKept,
  kFailedLenZero,
  kFirstRequestTarget,
  kFirstRequestNodes,
  kLastRequestSkipped,
  kStrideWithoutBonus,
  kBadSpoilsRest,
};

struct Result {
  std::int32_t status = kdtr::kOk;
  std::vector<int> path;
};

void run(Call& c, int fault) {
  const auto limit = static_cast<int>(c.attr_int("L"));
  const std::int64_t vocab = c.attr_int("V");
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
  const auto requests = static_cast<int>(c.dim("R")), slots = static_cast<int>(c.dim("N")),
             steps = static_cast<int>(c.dim("S"));

  bool spoilt = false;
  for (int r = 0; r < requests; ++r) {
    if (fault == kLastRequestSkipped && requests > 1 && r == requests - 1) continue;
    const auto at = [&](int i) { return static_cast<std::int64_t>(r) * slots + i; };
    const auto want = [&](int i) { return target[fault == kFirstRequestTarget ? i : at(i)]; };
    int nodes = n_nodes[fault == kFirstRequestNodes ? 0 : r];
    if (fault == kNodesIn16Bits) nodes = static_cast<std::int16_t>(nodes);
    if (fault == kNodesClamped) nodes = std::clamp(nodes, 0, slots);
    if (fault == kNodesIgnored && nodes >= 0 && nodes <= slots) nodes = slots;

    Result result;
    std::vector<int>& path = result.path;
    const auto ok_target = [&](int t) {
      return t >= 0 && (t < vocab || (fault == kVocabInclusive && t == vocab));
    };
    const auto solve = [&]() -> std::int32_t {
      if (nodes < 0 || nodes > slots) return kdtr::kBadInput;
      if (nodes == 0) {
        if (fault == kInactiveBonus && slots > 0) path = {0};
        return fault == kInactiveIsBad ? kdtr::kBadInput : kdtr::kOk;
      }
      if (fault == kUnreadLinksChecked || fault == kAllLinksMustDescend) {
        for (int i = 0; i < nodes; ++i)
          for (const int link : {next_token[at(i)], next_sibling[at(i)]}) {
            if (link != -1 && (link < 1 || link >= nodes)) return kdtr::kBadLinks;
            if (link != -1 && link <= i && fault == kAllLinksMustDescend) return kdtr::kBadLinks;
          }
      }
      if (fault == kUnreadTargetsChecked)
        for (int i = 0; i < nodes; ++i)
          if (!ok_target(want(i))) return kdtr::kBadInput;
      path = {0};
      int read = 0;
      for (;;) {
        const int cur = path.back();
        int wanted = want(cur);
        if (fault == kTargetOfRoot) wanted = want(0);
        const bool leaf = next_token[at(cur)] == -1;
        const bool checked = !(fault == kLeafTargetUnchecked && leaf);
        if (fault == kNegativeTargetEndsWalk && wanted < 0) return kdtr::kOk;
        if (checked && !ok_target(wanted) && fault != kLinksBeforeTarget) return kdtr::kBadInput;
        const bool full = static_cast<int>(path.size()) > limit;
        if (fault == kDepthBeforeLinks && full && !leaf) return kdtr::kCapacity;

        // Children in sibling order up to the first match, each checked as it is read.
        std::vector<int> matches;
        if (fault == kCountPerNode) read = 0;
        if (fault == kWalkByIndex) {
          for (int i = cur + 1; i < nodes && matches.empty(); ++i)
            if (tokens[at(i)] == wanted) matches.push_back(i);
        } else if (fault == kHeapOrderChain) {
          if (cur + 1 < nodes && tokens[at(cur + 1)] == wanted) matches.push_back(cur + 1);
        } else if (fault == kAnyNodeMatch) {
          for (int i = 1; i < nodes && matches.empty(); ++i)
            if (tokens[at(i)] == wanted && std::find(path.begin(), path.end(), i) == path.end())
              matches.push_back(i);
        } else {
          int child = next_token[at(cur)];
          while (child != -1) {
            if (fault == kOutOfRangeEndsWalk && (child < 1 || child >= nodes)) break;
            if (fault == kNegativeEndsWalk && child < 0) break;
            if (fault == kLinksPast64EndWalk && read > 64 && (child < 1 || child >= nodes)) break;
            const int bound = fault == kLinkBoundIsSlots     ? slots
                              : fault == kLinkBoundInclusive ? std::min(nodes + 1, slots)
                                                             : nodes;
            if (child < (fault == kZeroLinkFollowed ? 0 : 1) || child >= bound)
              return kdtr::kBadLinks;
            ++read;
            int most = nodes - 1;
            if (fault == kCountOneMore) ++most;
            if (fault == kCountOneLess) --most;
            if (read > most) return fault == kCycleIsCapacity ? kdtr::kCapacity : kdtr::kBadLinks;
            int compared = tokens[at(child)];
            if ((fault == kTokenPastVocabRefused && compared >= vocab) ||
                (fault == kNegativeTokenRefused && compared < 0))
              return kdtr::kBadInput;
            if (fault == kNegativeTokenEndsList && compared < 0) break;
            if (fault == kTargetOfChild) compared = want(child);
            bool equal = compared == wanted;
            if (fault == kTokensIn16Bits) equal = (compared & 0xFFFF) == (wanted & 0xFFFF);
            if (fault == kTokensThroughF32)
              equal = static_cast<float>(compared) == static_cast<float>(wanted);
            if (equal) matches.push_back(child);
            if (!matches.empty() && fault != kLastMatch && fault != kLowestIndexMatch) break;
            if (fault == kFirstChildOnly) break;
            child = next_sibling[at(child)];
          }
          if (matches.empty() && fault == kBacktracks && cur != 0) {
            // Tries the siblings of the node it stands on.
            const int sibling = next_sibling[at(cur)];
            if (sibling >= 1 && sibling < nodes && tokens[at(sibling)] == wanted)
              matches.push_back(sibling);
          }
        }
        if (fault == kLinksBeforeTarget && !ok_target(wanted)) return kdtr::kBadInput;
        if (matches.empty()) return kdtr::kOk;
        if (fault == kDepthLimitShort && static_cast<int>(path.size()) > limit - 1)
          return kdtr::kCapacity;
        if (full) {
          if (fault == kDepthClipped) return kdtr::kOk;
          return kdtr::kCapacity;
        }
        int next = matches.front();
        if (fault == kLastMatch) next = matches.back();
        if (fault == kLowestIndexMatch) next = *std::min_element(matches.begin(), matches.end());
        path.push_back(next);
        if (fault == kLongestPath && static_cast<int>(path.size()) == nodes) return kdtr::kOk;
      }
    };
    result.status = solve();
    const bool failed = result.status != kdtr::kOk;
    if (spoilt && fault == kBadSpoilsRest) result.status = kdtr::kBadInput;
    if ((failed && fault != kFailedPathKept) || (spoilt && fault == kBadSpoilsRest)) path.clear();
    spoilt = spoilt || failed;

    const auto length = static_cast<int>(path.size()) - 1;
    status[r] = result.status;
    accept_len[r] = fault == kBonusCounted && length >= 0 ? length + 1 : length;
    if (fault == kInactiveLenZero && nodes == 0) accept_len[r] = 0;
    if (fault == kFailedLenZero && failed) accept_len[r] = 0;
    const int stride = fault == kStrideWithoutBonus ? steps - 1 : steps;
    const int none = fault == kUnusedZero ? 0 : -1;
    for (int k = 0; k < steps; ++k) {
      const std::int64_t to = static_cast<std::int64_t>(r) * stride + k;
      if (k > length) {
        if (fault == kUnusedUnwritten && !failed && length >= 0) continue;
        accept_index[to] = accepted_tokens[to] = none;
        continue;
      }
      const int node = path[static_cast<std::size_t>(k)];
      accept_index[to] = node;
      if (fault == kRootNotListed)
        accept_index[to] = k < length ? path[static_cast<std::size_t>(k) + 1] : -1;
      int token = want(node);
      if (fault == kTokensOfDrafts) token = tokens[at(node)];
      if (fault == kBonusIsDraftToken && k == length) token = tokens[at(node)];
      if (fault == kNoBonusOnFullAccept && k == length && next_token[at(node)] == -1) token = -1;
      if (fault == kNoBonusOnReject && k == length && length == 0) token = -1;
      accepted_tokens[to] = token;
    }
    for (int i = 0; i < slots; ++i) {
      const auto found = std::find(path.begin(), path.end(), i);
      bool on_path = found != path.end();
      if (fault == kPredictsWithoutLast && on_path && i == path.back()) on_path = false;
      if (fault == kPredictsEverywhere && length >= 0 && i < nodes) on_path = true;
      if (fault == kPredictsByStep) {
        predicts[at(i)] = i <= length ? want(path[static_cast<std::size_t>(i)]) : -1;
        continue;
      }
      if (fault == kUnusedUnwritten && !on_path && length >= 0) continue;
      predicts[at(i)] = on_path ? want(i) : none;
    }
  }
}

}  // namespace

KDTR_MUTANTS({"tree_accept@1",
              {{"correct", "control"},
               {"bonus_counted", "accept_len counts the bonus"},
               {"root_not_listed", "accept_index starts at the first accepted node"},
               {"no_bonus_on_full_accept", "no bonus when the walk ends at a leaf"},
               {"no_bonus_on_reject", "no bonus when nothing is accepted"},
               {"bonus_is_draft_token", "the bonus is the last accepted draft token"},
               {"tokens_of_drafts", "accepted_tokens are the draft tokens, the root's first"},
               {"walk_by_index", "any later node with the token is taken for a child"},
               {"heap_order_chain", "the next node index is taken for the child"},
               {"first_child_only", "siblings are not tried"},
               {"last_match", "the last matching sibling wins"},
               {"lowest_index_match", "the lowest matching index wins, whatever the sibling order"},
               {"any_node_match", "any node with the token is taken for a child"},
               {"backtracks", "siblings of the current node are tried after its children"},
               {"longest_path", "the walk ends without reading the last node's links"},
               {"target_of_child", "children are matched by their own target"},
               {"target_of_root", "every node is matched against the root's target"},
               {"tokens_in_16_bits", "tokens are compared in 16 bits"},
               {"tokens_through_f32", "tokens are compared as f32"},
               {"token_past_vocab_refused", "a draft token past the vocabulary is bad input"},
               {"negative_token_refused", "a negative draft token is bad input"},
               {"negative_token_ends_list", "a negative draft token ends the sibling list"},
               {"predicts_everywhere", "predicts is filled off the path"},
               {"predicts_without_last", "predicts misses the bonus"},
               {"predicts_by_step", "predicts is indexed by step, not by node"},
               {"unused_zero", "unused entries are 0"},
               {"unused_unwritten", "unused entries are left as they were"},
               {"nodes_ignored", "slots past n_nodes are part of the tree"},
               {"nodes_clamped", "n_nodes out of range is clamped"},
               {"nodes_in_16_bits", "n_nodes passes through a 16-bit field"},
               {"unread_links_checked", "links that the walk does not read are checked"},
               {"unread_targets_checked", "targets that the walk does not read are checked"},
               {"all_links_must_descend", "a child must have a greater index than its parent"},
               {"out_of_range_ends_walk", "a link out of range ends the walk as -1 does"},
               {"negative_ends_walk", "any negative link ends the walk"},
               {"links_past_64_end_walk", "a bad link of a node past 64 ends the walk"},
               {"zero_link_followed", "a link to the root is followed"},
               {"link_bound_is_slots", "links may point past n_nodes"},
               {"link_bound_inclusive", "a link may equal n_nodes"},
               {"count_per_node", "links are counted per node, not per walk"},
               {"count_one_more", "one more link than a tree has may be read"},
               {"count_one_less", "the last link of a tree may not be read"},
               {"cycle_is_capacity", "too many links is reported as capacity"},
               {"depth_limit_short", "the walk may accept L - 1 nodes"},
               {"depth_clipped", "a path longer than L is cut and ok"},
               {"depth_before_links", "a node at depth L with children is a capacity error"},
               {"vocab_inclusive", "a target equal to V passes"},
               {"negative_target_ends_walk", "a negative target ends the walk"},
               {"leaf_target_unchecked", "the target of a leaf is not checked"},
               {"links_before_target", "links are checked before the target id"},
               {"inactive_is_bad", "n_nodes 0 is bad input"},
               {"inactive_len_zero", "n_nodes 0 gives accept_len 0"},
               {"inactive_bonus", "n_nodes 0 emits the root's target"},
               {"failed_path_kept", "a failing request keeps the path walked so far"},
               {"failed_len_zero", "a failing request has accept_len 0"},
               {"first_request_target", "every request is matched against the first one's targets"},
               {"first_request_nodes", "every request has the node count of the first"},
               {"last_request_skipped", "the last request of a batch is not walked"},
               {"stride_without_bonus", "rows of accept_index are L apart"},
               {"bad_spoils_rest", "every request after a failing one fails"}},
              run});
