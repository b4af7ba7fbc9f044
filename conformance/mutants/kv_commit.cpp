// kv_commit@1 written a second time, with maps of bytes, and the faults planted in it.
#include <algorithm>
#include <map>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;

enum FaultId {
  kCorrect,
  kWritesBeforeReads,
  kHiddenWritesBeforeReads,
  kHiddenNotMoved,
  kHiddenByRank,
  kHiddenPast256,
  kHiddenPast4096,
  kPageIdAsSlot,
  kFirstPageOnly,
  kOffsetFromPathOnly,
  kDestinationByNode,
  kSourceByRank,
  kRootNotMoved,
  kLastNotMoved,
  kOnlyFourMoved,
  kLengthWithoutRoot,
  kLengthReset,
  kPathSorted,
  kPaddedMoves,
  kFirstLayerOnly,
  kLayerTwice,
  kLayersPast8,
  kLayersPast64,
  kWholeWordsOnly,
  kRowBytesPast2048,
  kRowsAsHalf,
  kRequestZeroPath,
  kRequestZeroTable,
  kRequestsPast64,
  kEntriesCopied,
  kEntriesExchangedInPlace,
  kTableOnlyExchanged,
  kTablePast256,
  kExchangesOfOldTable,
  kExchangesOfNewSlots,
  kRowsMovedAtPageOne,
  kBadSlotClamped,
  kBadPageClamped,
  kBadEntrySkipped,
  kBadRequestHalfMoved,
  kBadRequestFailsBatch,
  kRefusedLengthGrows,
  kCapacityOffByOne,
  kCapacityNotChecked,
  kCapacityIsBadInput,
  kCapacityBeforeLengths,
  kEntriesBeforeCapacity,
  kCapacityWraps,
  kMoreThanNodesAccepted,
  kPrefixIn16Bits,
  kUnusedEntriesChecked,
  kInactiveRefused,
  kNothingWithoutNodes,
  kPrefixBeforeInactive,
  kMoreThanStepsAccepted,
  kExchangedFromPrefix,
  kExchangedOnce,
  kSlotWraps,
  kHiddenVectorsInPlace,
  kWordsInPlace,
  kStageOf32Kib,
  kFirstPageChecked,
  kExchangedBy16Bits,
};

using Bytes = std::vector<std::uint8_t>;

struct Tables {
  std::vector<std::int64_t> pages, tree, path;
  std::int64_t slots, page_size, count, prefix;
};

struct Move {
  std::int64_t node, source, target;
};

bool within(std::int64_t x, std::int64_t end) { return x >= 0 && x < end; }

std::int64_t clamped(std::int64_t x, std::int64_t end) {
  return std::clamp<std::int64_t>(x, 0, std::max<std::int64_t>(end - 1, 0));
}

std::int64_t size(const std::vector<std::int64_t>& v) {
  return static_cast<std::int64_t>(v.size());
}

// Moves so far, and the status: a faulty kernel keeps the moves that it met before the error.
int walk(const Tables& t, int fault, std::vector<Move>& moves) {
  const std::int64_t pool = t.slots / t.page_size;
  if (fault == kPrefixBeforeInactive && t.prefix < 0) return kdtr::kBadInput;
  if (t.count == 0) return fault == kInactiveRefused ? kdtr::kBadInput : kdtr::kOk;
  const std::int64_t most =
      fault == kMoreThanNodesAccepted ? size(t.path) : std::min(size(t.path), size(t.tree));
  const std::int64_t room = size(t.pages) * t.page_size - (fault == kCapacityOffByOne ? 1 : 0);
  std::int64_t end = t.prefix + t.count;
  if (fault == kCapacityWraps) end = static_cast<std::int32_t>(end);
  if (fault == kCapacityBeforeLengths && end > room) return kdtr::kCapacity;
  if (t.count < 0 || t.count > most || t.prefix < 0) return kdtr::kBadInput;
  if (fault == kEntriesBeforeCapacity)
    for (std::int64_t k = 0; k < t.count; ++k) {
      const std::int64_t node = t.path[static_cast<std::size_t>(k)];
      if (!within(node, size(t.tree)) || !within(t.tree[static_cast<std::size_t>(node)], t.slots))
        return kdtr::kBadInput;
    }
  if (end > room && fault != kCapacityNotChecked)
    return fault == kCapacityIsBadInput ? kdtr::kBadInput : kdtr::kCapacity;
  if (fault == kUnusedEntriesChecked) {
    for (const std::int64_t page : t.pages)
      if (!within(page, pool)) return kdtr::kBadInput;
    for (const std::int64_t slot : t.tree)
      if (!within(slot, t.slots)) return kdtr::kBadInput;
  }
  std::int64_t count = t.count;
  if (fault == kPaddedMoves) count = size(t.path);
  if (fault == kOnlyFourMoved) count = std::min<std::int64_t>(count, 4);
  if (fault == kLastNotMoved && count > 1) --count;
  std::vector<std::int64_t> path = t.path;
  if (fault == kPathSorted) std::sort(path.begin(), path.begin() + t.count);
  for (std::int64_t k = fault == kRootNotMoved ? 1 : 0; k < count; ++k) {
    std::int64_t node = path[static_cast<std::size_t>(k)];
    if (fault == kPaddedMoves && k >= t.count) node = clamped(node, size(t.tree));
    std::int64_t position = t.prefix + k;
    if (fault == kDestinationByNode) position = t.prefix + node;
    std::int64_t entry = position / t.page_size;
    if (fault == kFirstPageOnly) entry = t.prefix / t.page_size;
    if (!within(entry, size(t.pages))) {
      if (k >= t.count || fault == kCapacityNotChecked || fault == kDestinationByNode) continue;
      return kdtr::kBadInput;
    }
    std::int64_t page = t.pages[static_cast<std::size_t>(entry)];
    if (fault == kSlotWraps)
      page =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(page * t.page_size)) / t.page_size;
    if (fault == kFirstPageChecked && t.page_size > 1 && entry > t.prefix / t.page_size)
      page = clamped(page, pool);
    if (fault == kBadPageClamped) page = clamped(page, pool);
    const bool skip = fault == kBadEntrySkipped || k >= t.count;
    if (!within(node, size(t.tree)) || !within(page, pool)) {
      if (skip) continue;
      return kdtr::kBadInput;
    }
    std::int64_t source = t.tree[static_cast<std::size_t>(fault == kSourceByRank ? k : node)];
    if (fault == kBadSlotClamped) source = clamped(source, t.slots);
    if (!within(source, t.slots)) {
      if (skip) continue;
      return kdtr::kBadInput;
    }
    const std::int64_t offset = (fault == kOffsetFromPathOnly ? k : position) % t.page_size;
    std::int64_t target = page * t.page_size + offset;
    if (fault == kPageIdAsSlot) target = clamped(page + offset, t.slots);
    moves.push_back({node, source, target});
  }
  return kdtr::kOk;
}

void move_rows(std::uint8_t* base, std::int64_t bytes, std::int64_t moved_bytes,
               const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs, bool in_place,
               bool as_half) {
  std::map<std::int64_t, Bytes> written;
  for (const auto& [source, target] : pairs) {
    const std::uint8_t* from = base + source * bytes;
    Bytes row(from, from + moved_bytes);
    for (std::size_t i = 1; as_half && i < row.size(); i += 2)
      if ((row[i] & 0x7C) == 0x7C) row[i] = static_cast<std::uint8_t>((row[i] & 0x80) | 0x7E);
    if (in_place)
      std::copy(row.begin(), row.end(), base + target * bytes);
    else
      written[target] = row;
  }
  for (const auto& [target, row] : written)
    std::copy(row.begin(), row.end(), base + target * bytes);
}

void exchange(Tables& t, const std::vector<Move>& moves, int fault) {
  const Tables old = t;
  for (std::size_t k = 0; k < moves.size(); ++k) {
    const auto node = static_cast<std::size_t>(moves[k].node);
    const auto at = static_cast<std::size_t>(t.prefix) + k;
    const std::int64_t here = (fault == kExchangesOfNewSlots ? t : old).tree[node];
    const std::int64_t there = (fault == kExchangesOfOldTable ? old : t).pages[at];
    if (fault == kEntriesCopied) {
      t.pages[at] = here;
      continue;
    }
    if (fault == kEntriesExchangedInPlace) {
      t.pages[at] = here;
      t.tree[node] = there;
      continue;
    }
    const auto swap = [&](std::vector<std::int64_t>& values) {
      const auto is = [&](std::int64_t x, std::int64_t value) {
        return x == value || (fault == kExchangedBy16Bits && (x & 0xFFFF) == value);
      };
      bool had_here = false, had_there = false;
      const bool late = fault == kExchangedFromPrefix && &values == &t.pages;
      for (std::size_t i = late ? static_cast<std::size_t>(t.prefix) : 0; i < values.size(); ++i) {
        std::int64_t& x = values[i];
        if (is(x, here)) {
          if (!had_here || fault != kExchangedOnce) x = there;
          had_here = true;
        } else if (is(x, there)) {
          if (!had_there || fault != kExchangedOnce) x = here;
          had_there = true;
        }
      }
    };
    if (fault == kTablePast256 && t.pages.size() > 256) {
      const std::vector<std::int64_t> rest(t.pages.begin() + 256, t.pages.end());
      swap(t.pages);
      std::copy(rest.begin(), rest.end(), t.pages.begin() + 256);
    } else {
      swap(t.pages);
    }
    if (fault != kTableOnlyExchanged) swap(t.tree);
  }
}

void run(Call& c, int fault) {
  const auto rows = c.inout<std::uint8_t>("rows", "layers slots row_bytes");
  const auto table = c.inout<std::int32_t>("page_table", "R max_pages");
  const auto tree = c.inout<std::int32_t>("tree_slots", "R N");
  const auto hidden = c.inout<std::uint8_t>("hidden", "R N hidden_bytes");
  const auto accept_index = c.in<std::int32_t>("accept_index", "R steps");
  const auto accept_len = c.in<std::int32_t>("accept_len", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const auto new_len = c.out<std::int32_t>("new_len", "R");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t page_size = c.attr_int("page_size");
  const std::int64_t requests = c.dim("R"), nodes = c.dim("N"), width = c.dim("max_pages");
  const std::int64_t steps = c.dim("steps"), slots = c.dim("slots");
  const std::int64_t row_bytes = c.dim("row_bytes"), hidden_bytes = c.dim("hidden_bytes");
  const std::int64_t stage = (32 << 10) / std::max<std::int64_t>(steps, 1);

  std::vector<Tables> tables;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t from = fault == kRequestZeroPath ? 0 : r;
    const std::int64_t pages_of = fault == kRequestZeroTable ? 0 : r;
    const std::int64_t path_end =
        fault == kMoreThanStepsAccepted
            ? std::min(r * steps + std::max(steps, nodes), requests * steps)
            : (from + 1) * steps;
    tables.push_back({{table.data + pages_of * width, table.data + (pages_of + 1) * width},
                      {tree.data + r * nodes, tree.data + (r + 1) * nodes},
                      {accept_index.data + from * steps, accept_index.data + path_end},
                      slots,
                      page_size,
                      static_cast<std::int64_t>(accept_len[from]) + 1,
                      fault == kPrefixIn16Bits ? prefix_len[r] & 0xFFFF : prefix_len[r]});
  }
  if (fault == kNothingWithoutNodes && nodes == 0) return;
  std::vector<std::vector<Move>> all(tables.size());
  bool any_refused = false;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto r = static_cast<std::int64_t>(i);
    if (fault == kRequestsPast64 && r >= 64) continue;
    status[r] = walk(tables[i], fault, all[i]);
    if (status[r] != kdtr::kOk && fault != kBadRequestHalfMoved) all[i].clear();
    any_refused = any_refused || status[r] != kdtr::kOk;
  }
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto r = static_cast<std::int64_t>(i);
    if (fault == kRequestsPast64 && r >= 64) continue;
    Tables& t = tables[i];
    if (fault == kBadRequestFailsBatch && any_refused) {
      status[r] = kdtr::kBadInput;
      all[i].clear();
    }
    std::vector<Move>& moves = all[i];
    const bool grows = status[r] == kdtr::kOk || fault == kRefusedLengthGrows;
    std::int64_t length = t.prefix + (grows ? t.count : 0);
    if (fault == kLengthWithoutRoot && grows && t.count > 0) --length;
    if (fault == kLengthReset && t.count == 0) length = 0;
    new_len[r] = static_cast<std::int32_t>(length);

    if (page_size > 1 || fault == kRowsMovedAtPageOne) {
      std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
      pairs.reserve(moves.size());
      for (const Move& m : moves) pairs.emplace_back(m.source, m.target);
      std::int64_t layers = c.dim("layers");
      if (fault == kFirstLayerOnly) layers = std::min<std::int64_t>(layers, 1);
      if (fault == kLayersPast8) layers = std::min<std::int64_t>(layers, 8);
      if (fault == kLayersPast64) layers = std::min<std::int64_t>(layers, 64);
      std::int64_t moved = fault == kWholeWordsOnly ? row_bytes / 4 * 4 : row_bytes;
      if (fault == kStageOf32Kib) moved = std::min(moved, stage);
      if (fault == kRowBytesPast2048) moved = std::min<std::int64_t>(moved, 2048);
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        std::uint8_t* base = rows.data + layer * slots * row_bytes;
        for (int times = fault == kLayerTwice ? 2 : 1; times > 0; --times)
          move_rows(base, row_bytes, moved, pairs,
                    fault == kWritesBeforeReads ||
                        (fault == kWordsInPlace && row_bytes % 16 != 0 && row_bytes % 4 == 0),
                    fault == kRowsAsHalf);
      }
    }
    if (page_size == 1) {
      exchange(t, moves, fault);
      for (std::int64_t p = 0; p < width; ++p)
        table[r * width + p] = static_cast<std::int32_t>(t.pages[static_cast<std::size_t>(p)]);
      for (std::int64_t n = 0; n < nodes; ++n)
        tree[r * nodes + n] = static_cast<std::int32_t>(t.tree[static_cast<std::size_t>(n)]);
    }
    if (fault == kHiddenNotMoved) continue;
    std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
    for (const Move& m : moves) {
      const std::int64_t k = fault == kRootNotMoved ? static_cast<std::int64_t>(pairs.size()) + 1
                                                    : static_cast<std::int64_t>(pairs.size());
      if (k < nodes) pairs.emplace_back(fault == kHiddenByRank ? k : m.node, k);
    }
    std::int64_t moved = hidden_bytes;
    if (fault == kStageOf32Kib) moved = std::min(moved, stage);
    if (fault == kHiddenPast256) moved = std::min<std::int64_t>(moved, 256);
    if (fault == kHiddenPast4096) moved = std::min<std::int64_t>(moved, 4096);
    move_rows(hidden.data + r * nodes * hidden_bytes, hidden_bytes, moved, pairs,
              fault == kHiddenWritesBeforeReads ||
                  (fault == kHiddenVectorsInPlace && hidden_bytes % 16 == 0),
              false);
  }
}

KDTR_MUTANTS({
    "kv_commit@1",
    {
        {"correct", "control"},
        {"writes_before_reads", "rows are written before the later ones are read"},
        {"hidden_writes_before_reads", "hidden rows are written before the later ones are read"},
        {"hidden_not_moved", "the hidden rows stay where they were"},
        {"hidden_by_rank", "hidden row k is taken from node k, not from the path"},
        {"hidden_past_256", "bytes past 256 of a hidden row are not moved"},
        {"hidden_past_4096", "bytes past 4,096 of a hidden row are not moved"},
        {"page_id_as_slot", "the page id is used as a slot"},
        {"first_page_only", "every row goes to the page of the first"},
        {"offset_from_path_only", "the offset in the page starts at 0, not at the prefix"},
        {"destination_by_node", "row k goes to prefix + node instead of prefix + k"},
        {"source_by_rank", "row k is taken from node k's slot, not from the path's"},
        {"root_not_moved", "the root's row stays where it was"},
        {"last_not_moved", "the last accepted row stays where it was"},
        {"only_four_moved", "at most four rows are moved"},
        {"length_without_root", "new_len = prefix_len + accept_len"},
        {"length_reset", "an inactive request's length becomes 0"},
        {"path_sorted", "the path is taken in index order"},
        {"padded_moves", "unused path entries are moved too"},
        {"first_layer_only", "only the first layer is moved"},
        {"layer_twice", "each layer is moved twice, as when two names share one tensor"},
        {"layers_past_8", "layers from 8 on are not moved"},
        {"layers_past_64", "layers from 64 on are not moved"},
        {"whole_words_only", "bytes after the last whole word of a row are not moved"},
        {"row_bytes_past_2048", "bytes past 2,048 of a row are not moved"},
        {"rows_as_half", "rows pass through f16, which changes NaN patterns"},
        {"request_zero_path", "every request uses the path of request 0"},
        {"request_zero_table", "every request uses the page table of request 0"},
        {"requests_past_64", "requests from 64 on are left as they were"},
        {"entries_copied", "table entries are copied, and the replaced slots lost"},
        {"entries_exchanged_in_place", "only the two entries are exchanged, not their values"},
        {"table_only_exchanged", "tree_slots keeps the old slots"},
        {"table_past_256", "entries from 256 on of a table are not exchanged"},
        {"exchanges_of_old_table", "destinations are read from the table before the step"},
        {"exchanges_of_new_slots", "sources are read from slots that were exchanged already"},
        {"rows_moved_at_page_one", "rows move although the table has changed"},
        {"bad_slot_clamped", "a slot out of range is clamped"},
        {"bad_page_clamped", "a page out of range is clamped"},
        {"bad_entry_skipped", "a bad entry is skipped and the request is ok"},
        {"bad_request_half_moved", "rows before the bad entry have moved already"},
        {"bad_request_fails_batch", "one bad request refuses every request"},
        {"refused_length_grows", "a refused request's length grows"},
        {"capacity_off_by_one", "the last free row is refused"},
        {"capacity_not_checked", "rows past the table are dropped in silence"},
        {"capacity_is_bad_input", "capacity is reported as bad input"},
        {"capacity_before_lengths", "capacity is reported where accept_len is bad too"},
        {"entries_before_capacity", "bad entries are reported where there is no room too"},
        {"capacity_wraps", "prefix and path are added in 32 bits"},
        {"more_than_nodes_accepted",
         "accept_len is held against the path's room, not against the nodes"},
        {"prefix_in_16_bits", "the prefix length passes through a 16-bit field"},
        {"unused_entries_checked", "entries that the step does not use are checked"},
        {"inactive_refused", "an inactive request is bad input"},
        {"nothing_without_nodes", "nothing is written when there are no nodes"},
        {"prefix_before_inactive", "a negative prefix is reported where the request is inactive"},
        {"more_than_steps_accepted", "accept_len is held against the nodes, not against the path"},
        {"exchanged_from_prefix", "table entries before the prefix are not exchanged"},
        {"exchanged_once", "only the first entry of a value is exchanged"},
        {"slot_wraps", "page and offset become a slot in 32 bits before they are checked"},
        {"hidden_vectors_in_place", "hidden rows of whole vectors are written before all are read"},
        {"words_in_place", "rows of whole words, but not vectors, are written before all are read"},
        {"stage_of_32_kib", "of a path's rows only what fits 32 KiB at once is moved"},
        {"first_page_checked",
         "only the first page of a path is checked, others are clamped, past page size 1"},
        {"exchanged_by_16_bits", "entries are compared in 16 bits"},
    },
    run,
});

}  // namespace
