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
  kParentsUnchecked,
  kDepthsUnchecked,
  kRootUnchecked,
  kLinksPast64Unchecked,
  kParentMayBeSelf,
  kNodesClamped,
  kNegativePrefixPasses,
  kInactivePrefixUnchecked,
  kFailedWidthZero,
  kFailedMasksKept,
  kCapacityUnchecked,
  kCapacityOfFullOnly,
  kCapacityBeforeLinks,
  kLinksBeforeInput,
  kTailUnwritten,
  kLastRequestSkipped,
  kRequestsPast64,
  kRequestsPast128,
  kFirstRequestVisible,
  kBadSpoilsRest,
};

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
  if (fault != kTailUnwritten) {
    for (std::int64_t t = 0; t < total; ++t) full[t] = 0;
    for (std::int64_t t = 0; t < total8; ++t) packed8[t] = 0;
  }
  indptr[0] = 0;
  std::int64_t begin = 0, begin8 = 0;
  bool spoilt = false;
  for (std::int64_t r = 0; r < requests; ++r) {
    std::int64_t nodes = n_nodes[r];
    if (fault == kNodesClamped) nodes = std::clamp<std::int64_t>(nodes, 0, slots);
    std::int64_t prefix = std::max(prefix_len[fault == kPrefixFromFirst ? 0 : r], 0);
    if (fault == kFullPaddedToMax) prefix = widest;
    if (fault == kPrefixIn16Bits) prefix %= 65536;
    const auto parent = [&](std::int64_t i) { return parents[r * slots + i]; };
    const auto depth = [&](std::int64_t i) { return depths[r * slots + i]; };

    std::int32_t state = kdtr::kOk;
    if (nodes < 0 || nodes > slots) state = kdtr::kBadInput;
    const bool inactive = fault == kInactivePrefixUnchecked && nodes == 0;
    if (prefix_len[r] < 0 && fault != kNegativePrefixPasses && !inactive) state = kdtr::kBadInput;
    const bool refused = state != kdtr::kOk;
    if (fault == kLinksBeforeInput) {
      nodes = std::clamp<std::int64_t>(nodes, 0, slots);
      state = kdtr::kOk;
    }
    if (state == kdtr::kOk && nodes > 0 && fault != kRootUnchecked &&
        (parent(0) != -1 || depth(0) != 0))
      state = kdtr::kBadLinks;
    const std::int64_t checked =
        fault == kLinksPast64Unchecked ? std::min<std::int64_t>(nodes, 64) : nodes;
    for (std::int64_t i = 1; state == kdtr::kOk && i < checked; ++i) {
      const std::int64_t below = fault == kParentMayBeSelf ? i + 1 : i;
      const bool inside = parent(i) >= 0 && parent(i) < below;
      if (!inside && fault != kParentsUnchecked) state = kdtr::kBadLinks;
      if (inside && fault != kDepthsUnchecked && parent(i) != i && depth(i) != depth(parent(i)) + 1)
        state = kdtr::kBadLinks;
    }
    if (fault == kLinksBeforeInput && refused && state == kdtr::kOk) state = kdtr::kBadInput;
    std::int64_t count = slots * (prefix + slots);
    if (fault == kOnlyLiveRows && state == kdtr::kOk) count = nodes * (prefix + slots);
    if (fault == kFailedWidthZero && state != kdtr::kOk) count = 0;
    std::int64_t octets = (count + 7) / 8;
    if (fault == kRowsByteAligned) octets = slots * ((prefix + slots + 7) / 8);
    const bool told = state == kdtr::kBadLinks && fault == kCapacityBeforeLinks;
    if ((state == kdtr::kOk || told) && fault != kCapacityUnchecked &&
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
      const std::int64_t columns = fault == kPaddedColumnsRead ? slots : nodes;
      if (i >= nodes || j >= columns) return 0;
      if (fault == kCausal) return j <= i ? 1 : 0;
      const std::int64_t from = fault == kFirstRequestVisible ? 0 : r;
      const std::uint8_t value = visible[(from * slots + i) * slots + j];
      return fault == kByteValuesCopied ? value : value != 0 ? 1 : 0;
    };
    const auto in_full = [&](std::int64_t t) -> std::uint8_t {
      const std::int64_t width = prefix + slots, i = t / width, j = t % width;
      if (!shown) return 0;
      if (fault == kPaddedRowsBlind && i >= nodes) return 0;
      if (fault == kPrefixMissing && j < prefix) return 0;
      if (fault == kPrefixAfterTree) return j < slots ? see(i, j) : 1;
      if (j < prefix) return 1;
      return fault == kFullTransposed ? see(j - prefix, i) : see(i, j - prefix);
    };

    if (!skipped) {
      status[r] = state;
      for (std::int64_t i = 0; i < slots; ++i) {
        for (std::int64_t w = 0; w < words; ++w) packed32[(r * slots + i) * words + w] = 0;
        for (std::int64_t j = 0; j < slots; ++j) {
          qlen[(r * slots + i) * slots + j] = fault == kQlenTransposed ? see(j, i) : see(i, j);
          std::int64_t word = j / 32, bit = j % 32;
          if (fault == kMsbFirstWords) bit = 31 - bit;
          if (fault == kBigEndianWords) bit = (bit ^ 24);
          if (fault == kOneWordRow && word > 0) continue;
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
               {"parents_unchecked", "parents out of range pass"},
               {"depths_unchecked", "depths that do not follow the parents pass"},
               {"root_unchecked", "a root with a parent passes"},
               {"links_past_64_unchecked", "links of nodes from 64 on are not checked"},
               {"parent_may_be_self", "a node may be its own parent"},
               {"nodes_clamped", "n_nodes out of range is clamped"},
               {"negative_prefix_passes", "a negative prefix_len is taken for 0"},
               {"inactive_prefix_unchecked",
                "the prefix length of an inactive request is not checked"},
               {"failed_width_zero", "a failing request has no place in full"},
               {"failed_masks_kept", "a failing request keeps its masks"},
               {"capacity_unchecked", "a request that does not fit is cut and ok"},
               {"capacity_of_full_only", "packed8's size is not checked"},
               {"capacity_before_links", "what does not fit is capacity though its links are bad"},
               {"links_before_input", "bad links are reported where a length is bad too"},
               {"tail_unwritten", "elements after the last request are left as they were"},
               {"last_request_skipped", "the last request of a batch is left out"},
               {"requests_past_64", "requests from 64 on are not written"},
               {"requests_past_128", "requests from 128 on are not written"},
               {"first_request_visible", "every request has the first one's mask"},
               {"bad_spoils_rest", "every request after a failing one fails"}},
              run});
