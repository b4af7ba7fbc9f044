// tree_masks@1, the second reference: every output element by element from one predicate,
// written apart from the engine; each fault below changes one thing.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;

enum Fault {
  kCorrect,
  kMsbFirstWords,
  kMsbFirstBytes,
  kBigEndianWords,
  kOneWordRow,
  kRowsByteAligned,
  kFullTransposed,
  kQlenTransposed,
  kFullPaddedToMax,
  kPrefixFromFirst,
  kPrefixIn16Bits,
  kPrefixMissing,
  kPrefixAfterTree,
  kPaddedRowsBlind,
  kOnlyLiveRows,
  kPaddedColumnsRead,
  kByteValuesCopied,
  kCausal,
  kVisibleFromParents,
  kSelfAlwaysVisible,
  kRootAlwaysVisible,
  kLaterNodesHidden,
  kLowBitsOfWideRows,
  kColumnsToWordEnd,
  kWideRowsPastNodes,
  kWidePaddedRowsBlind,
  kWordsPastNodesUnwritten,
  kWordBeforeNNodesLost,
  kIndptrInBits,
  kIndptrUnrounded,
  kIndptrPerRow,
  kRetrieveLocal,
  kRetrieveCompact,
  kRetrievePads,
  kBfsByIndexOnly,
  kBfsIsPopOrder,
  kBfsIsInverse,
  kBfsDescending,
  kBfsIgnoresParentPlace,
  kBfsLevelsPast32,
  kBfsChildrenPast32,
  kParentsUnchecked,
  kDepthsUnchecked,
  kRootUnchecked,
  kNegativeRootParentPasses,
  kNegativeRootDepthPasses,
  kParentsBelowMinus1Pass,
  kSmallestParentPasses,
  kFirstLinkUnchecked,
  kLastParentUnchecked,
  kSmallDepthsPass,
  kDepthsIn16Bits,
  kDepthsPast32Unchecked,
  kLinksPast64Unchecked,
  kLinksPast128Unchecked,
  kParentMayBeSelf,
  kNodesClamped,
  kNodesIn16Bits,
  kNodesBelowMinus1Inactive,
  kSmallestNodesInactive,
  kNegativePrefixPasses,
  kPrefixesBelowMinus1Pass,
  kSmallestPrefixPasses,
  kInactivePrefixUnchecked,
  kFailedWidthZero,
  kFailedMasksKept,
  kCapacityUnchecked,
  kCapacityOfFullOnly,
  kCapacityBeforeLinks,
  kOffsetsIn32Bits,
  kInactiveAlwaysFits,
  kLinksBeforeInput,
  kTailUnwritten,
  kTailOf1024,
  kTailClearedIfOk,
  kNoSlotsNotCleared,
  kNoRequestsNotCleared,
  kLastRequestSkipped,
  kRequestsPast64,
  kRequestsPast128,
  kFirstRequestVisible,
  kBadSpoilsRest,
};

constexpr std::int32_t kLeast = -0x7FFFFFFF - 1;

void run(Call& c, int fault) {
  c.bind("T", c.attr_int("T"));
  c.bind("T8", c.attr_int("T8"));
  const auto visible = c.in<std::uint8_t>("visible", "R N N");
  const auto parents = c.in<std::int32_t>("parents", "R N");
  const auto depths = c.in<std::int32_t>("depths", "R N");
  const auto n_nodes = c.in<std::int32_t>("n_nodes", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const auto qlen = c.out<std::uint8_t>("qlen", "R N N");
  const auto full = c.out<std::uint8_t>("full", "T");
  const auto packed32 = c.out<std::uint32_t>("packed32", "R N W");
  const auto packed8 = c.out<std::uint8_t>("packed8", "T8");
  const auto indptr = c.out<std::int32_t>("indptr", "S");
  const auto bfs_order = c.out<std::int32_t>("bfs_order", "R N");
  const auto retrieve_index = c.out<std::int32_t>("retrieve_index", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t requests = c.dim("R"), slots = c.dim("N"), words = c.dim("W"),
                     total = c.dim("T"), total8 = c.dim("T8");

  std::int64_t widest = 0, rows_before = 0;
  for (std::int64_t r = 0; r < requests; ++r)
    widest = std::max<std::int64_t>(widest, std::max(prefix_len[r], 0));
  const auto clear = [&](std::int64_t from, std::int64_t from8, std::int64_t most) {
    for (std::int64_t t = from; t < total && t - from < most; ++t) full[t] = 0;
    for (std::int64_t t = from8; t < total8 && t - from8 < most; ++t) packed8[t] = 0;
  };
  const bool later = fault == kTailUnwritten || fault == kTailOf1024 || fault == kTailClearedIfOk;
  const bool never = (fault == kNoSlotsNotCleared && slots == 0) ||
                     (fault == kNoRequestsNotCleared && requests == 0);
  if (!later && !never) clear(0, 0, std::max(total, total8));
  indptr[0] = 0;
  std::int64_t begin = 0, begin8 = 0;
  bool spoilt = false;
  for (std::int64_t r = 0; r < requests; ++r) {
    std::int64_t nodes = n_nodes[r];
    if (fault == kNodesIn16Bits) nodes = static_cast<std::int16_t>(nodes);
    if (fault == kNodesBelowMinus1Inactive && nodes < -1) nodes = 0;
    if (fault == kSmallestNodesInactive && nodes == kLeast) nodes = 0;
    if (fault == kNodesClamped) nodes = std::clamp<std::int64_t>(nodes, 0, slots);
    std::int64_t prefix = std::max(prefix_len[fault == kPrefixFromFirst ? 0 : r], 0);
    if (fault == kFullPaddedToMax) prefix = widest;
    if (fault == kPrefixIn16Bits) prefix %= 65536;
    const auto parent = [&](std::int64_t i) { return parents[r * slots + i]; };
    const auto depth = [&](std::int64_t i) { return depths[r * slots + i]; };

    std::int32_t state = kdtr::kOk;
    if (nodes < 0 || nodes > slots) state = kdtr::kBadInput;
    const bool passes = (fault == kInactivePrefixUnchecked && nodes == 0) ||
                        fault == kNegativePrefixPasses ||
                        (fault == kPrefixesBelowMinus1Pass && prefix_len[r] < -1) ||
                        (fault == kSmallestPrefixPasses && prefix_len[r] == kLeast);
    if (prefix_len[r] < 0 && !passes) state = kdtr::kBadInput;
    const bool refused = state != kdtr::kOk;
    if (fault == kLinksBeforeInput) {
      nodes = std::clamp<std::int64_t>(nodes, 0, slots);
      state = kdtr::kOk;
    }
    if (state == kdtr::kOk && nodes > 0 && fault != kRootUnchecked &&
        (fault == kNegativeRootParentPasses ? parent(0) >= 0 : parent(0) != -1))
      state = kdtr::kBadLinks;
    if (state == kdtr::kOk && nodes > 0 && fault != kRootUnchecked &&
        (fault == kNegativeRootDepthPasses ? depth(0) > 0 : depth(0) != 0))
      state = kdtr::kBadLinks;
    std::int64_t checked = nodes;
    if (fault == kLinksPast64Unchecked) checked = std::min<std::int64_t>(nodes, 64);
    if (fault == kLinksPast128Unchecked) checked = std::min<std::int64_t>(nodes, 128);
    for (std::int64_t i = fault == kFirstLinkUnchecked ? 2 : 1; state == kdtr::kOk && i < checked;
         ++i) {
      const std::int64_t below = fault == kParentMayBeSelf ? i + 1 : i;
      const bool inside = parent(i) >= 0 && parent(i) < below;
      const bool parent_passes = fault == kParentsUnchecked ||
                                 (fault == kParentsBelowMinus1Pass && parent(i) < -1) ||
                                 (fault == kSmallestParentPasses && parent(i) == kLeast) ||
                                 (fault == kLastParentUnchecked && i == nodes - 1);
      if (!inside && !parent_passes) state = kdtr::kBadLinks;
      if (!inside || parent(i) == i) continue;
      const std::int32_t wanted = depth(parent(i)) + 1;
      const bool depth_passes = fault == kDepthsUnchecked ||
                                (fault == kSmallDepthsPass && depth(i) < wanted) ||
                                (fault == kDepthsIn16Bits && (depth(i) - wanted) % 65536 == 0) ||
                                (fault == kDepthsPast32Unchecked && i >= 32);
      if (depth(i) != wanted && !depth_passes) state = kdtr::kBadLinks;
    }
    if (fault == kLinksBeforeInput && refused && state == kdtr::kOk) state = kdtr::kBadInput;
    std::int64_t count = slots * (prefix + slots);
    if (fault == kOnlyLiveRows && state == kdtr::kOk) count = nodes * (prefix + slots);
    if (fault == kFailedWidthZero && state != kdtr::kOk) count = 0;
    if (fault == kOffsetsIn32Bits) count = static_cast<std::uint32_t>(count);
    std::int64_t octets = (count + 7) / 8;
    if (fault == kRowsByteAligned) octets = slots * ((prefix + slots + 7) / 8);
    const bool fits = fault == kCapacityUnchecked || (fault == kInactiveAlwaysFits && nodes == 0);
    const bool told = state == kdtr::kBadLinks && fault == kCapacityBeforeLinks;
    if ((state == kdtr::kOk || told) && !fits &&
        (begin + count > total || (fault != kCapacityOfFullOnly && begin8 + octets > total8)))
      state = kdtr::kCapacity;
    if (spoilt && fault == kBadSpoilsRest) state = kdtr::kBadInput;
    spoilt = spoilt || state != kdtr::kOk;
    const bool ok = state == kdtr::kOk;
    const bool shown = ok || (fault == kFailedMasksKept && nodes >= 0 && nodes <= slots);
    const bool skipped = (fault == kLastRequestSkipped && requests > 1 && r == requests - 1) ||
                         (fault == kRequestsPast64 && r >= 64) ||
                         (fault == kRequestsPast128 && r >= 128);

    const auto see = [&](std::int64_t i, std::int64_t j) -> std::uint8_t {
      if (!shown) return 0;
      const std::int64_t rows = fault == kWideRowsPastNodes && slots > 32 ? slots : nodes;
      std::int64_t columns = fault == kPaddedColumnsRead ? slots : nodes;
      if (fault == kColumnsToWordEnd && slots > 32)
        columns = std::min(slots, (nodes + 31) / 32 * 32);
      if (i >= rows || j >= columns) return 0;
      if (fault == kCausal) return j <= i ? 1 : 0;
      if (fault == kVisibleFromParents) {
        std::int64_t at = i;
        while (at > j) at = parent(at);
        return at == j ? 1 : 0;
      }
      if ((fault == kSelfAlwaysVisible && i == j) || (fault == kRootAlwaysVisible && j == 0))
        return 1;
      if (fault == kLaterNodesHidden && j > i) return 0;
      const std::int64_t from = fault == kFirstRequestVisible ? 0 : r;
      const std::uint8_t value = visible[(from * slots + i) * slots + j];
      if (fault == kLowBitsOfWideRows && slots % 16 == 0) return value & 1;
      return fault == kByteValuesCopied ? value : value != 0 ? 1 : 0;
    };
    const auto in_full = [&](std::int64_t t) -> std::uint8_t {
      const std::int64_t width = prefix + slots, i = t / width, j = t % width;
      if (!shown) return 0;
      if (fault == kPaddedRowsBlind && i >= nodes) return 0;
      if (fault == kWidePaddedRowsBlind && i >= nodes && slots > 32) return 0;
      if (fault == kPrefixMissing && j < prefix) return 0;
      if (fault == kPrefixAfterTree) return j < slots ? see(i, j) : 1;
      if (j < prefix) return 1;
      return fault == kFullTransposed ? see(j - prefix, i) : see(i, j - prefix);
    };

    if (!skipped) {
      status[r] = state;
      for (std::int64_t i = 0; i < slots; ++i) {
        const std::int64_t used =
            fault == kWordsPastNodesUnwritten && ok && nodes > 0 ? (nodes + 31) / 32 : words;
        for (std::int64_t w = 0; w < used; ++w) packed32[(r * slots + i) * words + w] = 0;
        for (std::int64_t j = 0; j < slots; ++j) {
          qlen[(r * slots + i) * slots + j] = fault == kQlenTransposed ? see(j, i) : see(i, j);
          std::int64_t word = j / 32, bit = j % 32;
          if (fault == kMsbFirstWords) bit = 31 - bit;
          if (fault == kBigEndianWords) bit = (bit ^ 24);
          if (fault == kOneWordRow && word > 0) continue;
          if (fault == kWordBeforeNNodesLost && nodes < slots && 32 * (word + 1) == nodes) continue;
          if (see(i, j) != 0) packed32[(r * slots + i) * words + word] |= 1u << bit;
        }
      }
      for (std::int64_t t = 0; t < count && begin + t < total; ++t) {
        if (t / (prefix + slots) >= slots) break;
        full[begin + t] = in_full(t);
      }
      for (std::int64_t y = 0; y < octets && begin8 + y < total8; ++y) packed8[begin8 + y] = 0;
      for (std::int64_t t = 0; t < std::min(count, 8 * (total8 - begin8)); ++t) {
        std::int64_t place = t;
        if (fault == kRowsByteAligned)
          place = t / (prefix + slots) * ((prefix + slots + 7) / 8) * 8 + t % (prefix + slots);
        const std::int64_t octet = begin8 + place / 8;
        const auto bit = static_cast<int>(fault == kMsbFirstBytes ? 7 - place % 8 : place % 8);
        if (octet < total8 && in_full(t) != 0)
          packed8[octet] = static_cast<std::uint8_t>(packed8[octet] | (1 << bit));
      }
    }
    begin += count;
    begin8 += octets;
    std::int64_t end = begin8;
    if (fault == kIndptrInBits) end *= 8;
    if (fault == kIndptrUnrounded) end = begin / 8;
    if (fault == kIndptrPerRow) end = (r + 1) * slots;
    indptr[r + 1] = static_cast<std::int32_t>(
        fault == kIndptrInBits ? end : std::min<std::int64_t>(end, total8));
    if (skipped) continue;

    const std::int64_t live = shown ? nodes : 0;
    for (std::int64_t i = 0; i < slots; ++i) {
      const std::int64_t base = fault == kRetrieveLocal     ? 0
                                : fault == kRetrieveCompact ? rows_before
                                                            : r * slots;
      const bool listed = i < live || (fault == kRetrievePads && ok);
      retrieve_index[r * slots + i] = listed ? static_cast<std::int32_t>(base + i) : -1;
      bfs_order[r * slots + i] = -1;
    }
    rows_before += live;
    std::vector<std::int32_t> order;
    std::vector<std::int32_t> place(static_cast<std::size_t>(std::max<std::int64_t>(live, 0)), 0);
    if (fault == kBfsIsPopOrder) {
      for (std::int64_t i = 0; i < live; ++i) order.push_back(static_cast<std::int32_t>(i));
    } else if (ok) {
      for (std::int32_t level = 0; static_cast<std::int64_t>(order.size()) < live && level <= live;
           ++level) {
        std::vector<std::int32_t> row;
        for (std::int64_t i = 0; i < live; ++i)
          if (depth(i) == level) row.push_back(static_cast<std::int32_t>(i));
        if (fault == kBfsLevelsPast32 && level > 32) row.clear();
        std::sort(row.begin(), row.end(), [&](std::int32_t a, std::int32_t b) {
          const auto at = [&](std::int32_t i) {
            const std::int32_t p = parent(i);
            if (p < 0 || p >= live) return -1;
            return fault == kBfsIgnoresParentPlace ? -p : place[static_cast<std::size_t>(p)];
          };
          if (fault == kBfsByIndexOnly) return a < b;
          if (fault == kBfsDescending) return at(a) != at(b) ? at(a) < at(b) : a > b;
          return at(a) != at(b) ? at(a) < at(b) : a < b;
        });
        if (fault == kBfsChildrenPast32) {
          std::vector<std::int64_t> found(static_cast<std::size_t>(live), 0);
          std::erase_if(row, [&](std::int32_t i) {
            return i > 0 && ++found[static_cast<std::size_t>(parent(i))] > 32;
          });
        }
        for (const std::int32_t i : row) {
          place[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(order.size());
          order.push_back(i);
        }
      }
    }
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (fault == kBfsIsInverse)
        bfs_order[r * slots + order[k]] = static_cast<std::int32_t>(k);
      else
        bfs_order[r * slots + static_cast<std::int64_t>(k)] = order[k];
    }
  }
  if (fault == kTailOf1024) clear(begin, begin8, 1024);
  if (fault == kTailClearedIfOk && requests > 0 && status[requests - 1] == kdtr::kOk)
    clear(begin, begin8, std::max(total, total8));
}

}  // namespace

KDTR_MUTANTS({"tree_masks@1",
              {{"correct", "control"},
               {"msb_first_words", "packed32 counts bits from the most significant"},
               {"msb_first_bytes", "packed8 counts bits from the most significant"},
               {"big_endian_words", "packed32 has its bytes in big-endian order"},
               {"one_word_row", "packed32 writes one word a row"},
               {"rows_byte_aligned", "packed8 starts each row on a byte"},
               {"full_transposed", "full has query and key exchanged"},
               {"qlen_transposed", "qlen has query and key exchanged"},
               {"full_padded_to_max", "full gives every request the longest prefix"},
               {"prefix_from_first", "every request has the first one's prefix length"},
               {"prefix_in_16_bits", "a prefix length passes through a 16-bit field"},
               {"prefix_missing", "the prefix columns are 0"},
               {"prefix_after_tree", "the tree columns come before the prefix"},
               {"padded_rows_blind", "padded rows of full are 0"},
               {"only_live_rows", "full has no rows for padded nodes"},
               {"padded_columns_read", "visible is read past n_nodes"},
               {"byte_values_copied", "visible's bytes are copied, not made 0 or 1"},
               {"causal", "every earlier node is visible"},
               {"visible_from_parents", "masks are those of the parents, whatever visible says"},
               {"self_always_visible", "a node always sees itself"},
               {"root_always_visible", "a node always sees the root"},
               {"later_nodes_hidden", "a node never sees one after it"},
               {"low_bits_of_wide_rows", "rows of whole 16 bytes are reduced to their lowest bits"},
               {"columns_to_word_end", "past 32 slots, columns are read to the end of a word"},
               {"wide_rows_past_nodes", "past 32 slots, rows past n_nodes are read"},
               {"wide_padded_rows_blind", "past 32 slots, padded rows of full are 0"},
               {"words_past_nodes_unwritten", "words past n_nodes are left as they were"},
               {"word_before_n_nodes_lost", "a word that ends at n_nodes is 0"},
               {"indptr_in_bits", "indptr counts bits"},
               {"indptr_unrounded", "indptr is rounded once, at the end"},
               {"indptr_per_row", "indptr counts rows"},
               {"retrieve_local", "retrieve_index starts at 0 in each request"},
               {"retrieve_compact", "retrieve_index skips padded slots"},
               {"retrieve_pads", "retrieve_index lists padded slots"},
               {"bfs_by_index_only", "levels are sorted by node index alone"},
               {"bfs_is_pop_order", "bfs_order is the pop order"},
               {"bfs_is_inverse", "bfs_order maps nodes to places"},
               {"bfs_descending", "siblings are listed last first"},
               {"bfs_ignores_parent_place", "levels are sorted by the parent's index, descending"},
               {"bfs_levels_past_32", "levels past the 32nd are left out"},
               {"bfs_children_past_32", "children past the 32nd of a node are left out"},
               {"parents_unchecked", "parents out of range pass"},
               {"depths_unchecked", "depths that do not follow the parents pass"},
               {"root_unchecked", "a root with a parent passes"},
               {"negative_root_parent_passes", "any negative parent of the root passes"},
               {"negative_root_depth_passes", "a negative depth of the root passes"},
               {"parents_below_minus_1_pass", "a negative parent other than -1 passes"},
               {"smallest_parent_passes", "the smallest integer passes for a parent"},
               {"first_link_unchecked", "the links of node 1 are not checked"},
               {"last_parent_unchecked", "the last node's parent is not checked"},
               {"small_depths_pass", "a depth that is too small passes"},
               {"depths_in_16_bits", "depths are compared in 16 bits"},
               {"depths_past_32_unchecked", "depths of nodes from 32 on are not checked"},
               {"links_past_64_unchecked", "links of nodes from 64 on are not checked"},
               {"links_past_128_unchecked", "links of nodes from 128 on are not checked"},
               {"parent_may_be_self", "a node may be its own parent"},
               {"nodes_clamped", "n_nodes out of range is clamped"},
               {"nodes_in_16_bits", "n_nodes passes through a 16-bit field"},
               {"nodes_below_minus_1_inactive", "a negative n_nodes other than -1 is inactive"},
               {"smallest_nodes_inactive", "an n_nodes of the smallest integer is inactive"},
               {"negative_prefix_passes", "a negative prefix_len is taken for 0"},
               {"prefixes_below_minus_1_pass", "a negative prefix_len other than -1 passes"},
               {"smallest_prefix_passes", "the smallest integer passes for a prefix_len"},
               {"inactive_prefix_unchecked",
                "the prefix length of an inactive request is not checked"},
               {"failed_width_zero", "a failing request has no place in full"},
               {"failed_masks_kept", "a failing request keeps its masks"},
               {"capacity_unchecked", "a request that does not fit is cut and ok"},
               {"capacity_of_full_only", "packed8's size is not checked"},
               {"capacity_before_links", "what does not fit is capacity though its links are bad"},
               {"offsets_in_32_bits", "a request's elements are counted in 32 bits"},
               {"inactive_always_fits", "an inactive request is ok where it does not fit"},
               {"links_before_input", "bad links are reported where a length is bad too"},
               {"tail_unwritten", "elements after the last request are left as they were"},
               {"tail_of_1024", "1024 elements after the last request are cleared"},
               {"tail_cleared_if_ok", "the tail is cleared if the last request is ok"},
               {"no_slots_not_cleared", "full and packed8 are left as they were where N is 0"},
               {"no_requests_not_cleared", "full and packed8 are left as they were where R is 0"},
               {"last_request_skipped", "the last request of a batch is left out"},
               {"requests_past_64", "requests from 64 on are not written"},
               {"requests_past_128", "requests from 128 on are not written"},
               {"first_request_visible", "every request has the first one's mask"},
               {"bad_spoils_rest", "every request after a failing one fails"}},
              run});
