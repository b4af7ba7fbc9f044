// verify_attn@1 written a second time, in double and one key at a time, and the faults planted in
// it. Wrong slots are wrapped into the pool, so that a fault is a wrong answer and not a crash.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;
using kdtr::kInf;
using std::int64_t;

enum FaultId {
  kCorrect,
  // What a node sees of the tree.
  kCausalMask,
  kSeesAllNodes,
  kSiblingLeak,
  kNoSelf,
  kParentOnly,
  kRootNotSeen,
  kMaskTransposed,
  kMaskOfRequest0,
  kMaskStrideNNodes,
  kSlotStrideNNodes,
  kSeesItself,
  kVisibleIsBit0,
  kVisibleIs1,
  kVisibleIsSigned,
  kColumnsPast32Hidden,
  kColumnsPast64Hidden,
  kColumnsPast128Hidden,
  kColumnsPast256Hidden,
  kMaskWordWraps,
  kTilesAboveDiagonalSkipped,
  kPadNodesSeen,
  kPadRowsComputed,
  kPadRowsNotWritten,
  kNodesPast65,
  kNodesPast256,
  kRequestsPast64,
  kRequestsPast256,
  kUnseenRowTimesZero,
  // What it sees of the prefix, and where that lies.
  kFirstPrefixKeyDropped,
  kLastPrefixKeyDropped,
  kOnePastPrefix,
  kPartialPageSkipped,
  kPageTailRead,
  kPageTailTimesZero,
  kPageIdIsSlot,
  kPageTableIgnored,
  kPageTableOfRequest0,
  kPrefixLenOfRequest0,
  kPageSizeIs16,
  kTreeRowsFollowPrefix,
  kTreeSkippedWithoutPrefix,
  kShortPrefixDropped,
  kPrefixIsCausal,
  kPrefixWindow256,
  kPrefixPast4096,
  kTablePast64,
  kTablePast256,
  kSharedPageDropped,
  kRepeatedSlotDropped,
  kTailTileDropped,
  kTailTileWeighsOne,
  kOffsetIn16Bits,
  kSlotIn32Bits,
  // Queries, layout.
  kQueryOfRequest0,
  kQueryRowsPacked,
  kOutRowsPacked,
  kHead0Query,
  kHeadsPast16,
  kHeadsPast32,
  kHeadsPast64,
  kHeadsPast128,
  kOutHeadsFirst,
  kLseHeadsFirst,
  kRopeFirst,
  kRopeDropped,
  kRowsThroughF16,
  kWidthTailDropped,
  kValueTailNotWritten,
  // Softmax.
  kScaleMissing,
  kScaleFromWidth,
  kScaleBuiltIn,
  kScaleWithoutMscale,
  kScaleZeroIsDefault,
  kScaleWithoutSign,
  kLseBase2,
  kLseIsMax,
  kLseWithoutMax,
  kNoMaxShift,
  kConstantShift,
  kMaskedScoreIsSmall,
  kEmptyLseIsPlusInf,
  kEmptyRowIsMean,
  kEmptyRowIsNan,
  kTiesWinOnce,
  kPRoundedToBf16,
  kOInBf16,
  kF32OutThroughBf16,
  kOutputNotRescaled,
  kSumNotRescaled,
  kTileMaxReplacesMax,
  kTileMaxOverflows,
  kSplitsAveraged,
  kSplitsMergedBase2,
  kLightSplitDropped,
  kMaskedSplitIsNan,
  // Refusals.
  kBadPageAccepted,
  kNegativePageAccepted,
  kBadSlotAccepted,
  kNegativeSlotAccepted,
  kSlotsPast32Accepted,
  kUnseenSlotAccepted,
  kLongPrefixAccepted,
  kManyNodesAccepted,
  kNegativeLengthsAccepted,
  kLengthWraps,
  kBadRequestFailsBatch,
  kRefusedRowsNotWritten,
  kStatusAlwaysOk,
  kPrefixPartUnchecked,
  kTailPartUnchecked,
  kUnusedPageRefused,
  kInactiveRequestChecked,
  kFullTableRefused,
  kEmptyTableRefused,
  kEmptyPoolRefused,
  kNothingWithoutElements,
  kWholePageChecked,
  kPageStartChecked,
  kFaults,
};

// A branch of a kernel: a part, and the type of the rows or an output in f32.
struct Branch {
  const char *name, *part;
  DLDataType rows;  // f32 stands for: another one, and out in f32
  bool holds(std::string_view here, DLDataType q, DLDataType out) const {
    if (here != part || kdtr::is<float>(q)) return false;
    return kdtr::is<float>(rows) ? kdtr::is<float>(out) : kdtr::same(rows, q) && kdtr::same(q, out);
  }
};
constexpr DLDataType kF32 = kdtr::dtype_of<float>, kF16 = kdtr::dtype_of<kdtr::f16>,
                     kBf16 = kdtr::dtype_of<kdtr::bf16>;
constexpr Branch kBranches[] = {
    {"prefix_bf16", "prefix", kBf16},   {"prefix_f16", "prefix", kF16},
    {"prefix_f32_out", "prefix", kF32}, {"tail_bf16", "tail", kBf16},
    {"tail_f16", "tail", kF16},         {"tail_f32_out", "tail", kF32},
};
// The faults that are planted also in one branch alone.
constexpr FaultId kInPrefix[] = {kFullTableRefused,     kPageStartChecked,    kBadPageAccepted,
                                 kNegativePageAccepted, kValueTailNotWritten, kScaleWithoutSign,
                                 kSumNotRescaled,       kTileMaxOverflows};
constexpr FaultId kInTail[] = {kBadSlotAccepted,    kNegativeSlotAccepted, kSlotsPast32Accepted,
                               kSeesItself,         kVisibleIsBit0,        kMaskStrideNNodes,
                               kUnseenRowTimesZero, kValueTailNotWritten,  kEmptyRowIsNan,
                               kMaskedScoreIsSmall, kScaleWithoutSign,     kSumNotRescaled,
                               kTileMaxOverflows};
struct InBranch {
  Branch branch;
  FaultId fault;
};
const std::vector<InBranch>& in_branches() {  // fault kFaults + i is the i-th of these
  static const std::vector<InBranch> all = [] {
    std::vector<InBranch> found;
    for (const Branch& branch : kBranches) {
      const auto add = [&](const auto& faults) {
        for (const FaultId fault : faults) found.push_back({branch, fault});
      };
      std::string_view(branch.part) == "prefix" ? add(kInPrefix) : add(kInTail);
    }
    return found;
  }();
  return all;
}

// A sum with the rounding errors carried along (Neumaier), so that the second reference is not the
// less exact one.
class Sum {
 public:
  void add(double x) {
    const double next = total_ + x;
    error_ += std::fabs(total_) >= std::fabs(x) ? (total_ - next) + x : (x - next) + total_;
    total_ = next;
  }
  double value() const { return std::isfinite(error_) ? total_ + error_ : total_; }

 private:
  double total_ = 0;
  double error_ = 0;
};

double to_bf16(double x) {
  return static_cast<double>(static_cast<float>(kdtr::bf16(static_cast<float>(x))));
}

struct Op {
  int fault;
  int64_t R, N, H, D, Dv, slots;
  int64_t page_size, max_pages = 0;
  double scale;
  const DLTensor *q, *pool, *out, *lse;
  const std::int32_t *n_nodes, *page_table = nullptr, *prefix_len = nullptr, *tree_slots = nullptr;
  const std::uint8_t* visible = nullptr;

  bool is(FaultId id) const { return fault == id; }

  // --- validation -------------------------------------------------------------------------------

  int64_t prefix(int64_t r) const {
    if (prefix_len == nullptr) return 0;
    const int64_t p = prefix_len[is(kPrefixLenOfRequest0) ? 0 : r];
    if (is(kLongPrefixAccepted)) return std::min(p, max_pages * page_size);
    if (is(kLengthWraps) && p > 0x7FFFFFFF - page_size) return 0;
    return is(kNegativeLengthsAccepted) ? std::max<int64_t>(p, 0) : p;
  }
  int64_t nodes(int64_t r) const {
    const int64_t n = n_nodes[r];
    if (is(kManyNodesAccepted)) return std::min(n, N);
    return is(kNegativeLengthsAccepted) ? std::max<int64_t>(n, 0) : n;
  }
  int64_t slot(int64_t page, int64_t row) const {
    if (is(kSlotIn32Bits)) {
      const auto wrapped = static_cast<std::uint32_t>(page) * static_cast<std::uint32_t>(page_size);
      return static_cast<std::int32_t>(wrapped) + row;
    }
    return page * page_size + row;
  }
  bool page_ok(int64_t page, int64_t rows) const {
    if (is(kBadPageAccepted)) return true;
    if (is(kWholePageChecked)) rows = page_size;
    if (is(kPageStartChecked)) rows = 1;
    const int64_t last = slot(page, rows - 1);
    if (is(kNegativePageAccepted)) return last < slots;
    return page >= 0 && last >= 0 && last < slots;
  }
  bool refused(int64_t r) const {
    const int64_t n = nodes(r);
    if (is(kEmptyPoolRefused) && slots == 0) return true;
    if (n < 0 || n > N) return true;
    if (n == 0 && !is(kInactiveRequestChecked)) return false;
    if (prefix_len != nullptr) {
      const int64_t p = prefix(r);
      if (p < 0 || p > max_pages * page_size) return true;
      if (is(kFullTableRefused) && p > 0 && p == max_pages * page_size) return true;
      if (is(kEmptyTableRefused) && max_pages == 0) return true;
      for (int64_t first = 0; first < p; first += page_size)
        if (!page_ok(page_table[r * max_pages + first / page_size], std::min(page_size, p - first)))
          return true;
      if (is(kUnusedPageRefused))
        for (int64_t i = 0; i < max_pages; ++i)
          if (!page_ok(page_table[r * max_pages + i], 1)) return true;
    }
    if (tree_slots != nullptr && !is(kBadSlotAccepted))
      for (int64_t j = 0; j < (is(kSlotsPast32Accepted) ? std::min<int64_t>(n, 32) : n); ++j)
        if ((tree_slot(r, j) < 0 && !is(kNegativeSlotAccepted)) || tree_slot(r, j) >= slots)
          if (!is(kUnseenSlotAccepted) || seen_by_any(r, j)) return true;
    return false;
  }
  int64_t tree_slot(int64_t r, int64_t j) const {
    return tree_slots[r * (is(kSlotStrideNNodes) ? n_nodes[r] : N) + j];
  }
  bool seen_by_any(int64_t r, int64_t j) const {
    for (int64_t i = 0; i < n_nodes[r]; ++i)
      if (mark(r, i, j) != 0) return true;
    return false;
  }

  // --- keys -------------------------------------------------------------------------------------

  // A key is the flat offset of its row in the pool; kZeroRow is a row of zeros.
  static constexpr int64_t kZeroRow = -1;

  int64_t offset(int64_t at) const {
    at = (at % slots + slots) % slots;
    return is(kOffsetIn16Bits) ? at * D % 65536 : at * D;
  }
  int64_t prefix_slot(int64_t r, int64_t t) const {
    const std::int32_t* table = page_table + (is(kPageTableOfRequest0) ? 0 : r) * max_pages;
    const auto entry = [&](int64_t i) -> int64_t { return table[std::min(i, max_pages - 1)]; };
    if (is(kPageIdIsSlot)) return entry(t / page_size) + t % page_size;
    if (is(kPageTableIgnored)) return t;
    if (is(kPageSizeIs16)) return entry(t / 16) * 16 + t % 16;
    return slot(entry(t / page_size), t % page_size);
  }
  std::uint8_t mark(int64_t r, int64_t i, int64_t j) const {
    const int64_t request = is(kMaskOfRequest0) ? 0 : r;
    const int64_t stride = is(kMaskStrideNNodes) ? n_nodes[r] : N;
    const std::uint8_t byte = visible[request * N * N + i * stride + j];
    if (is(kVisibleIs1)) return byte == 1 ? 1 : 0;
    if (is(kVisibleIsSigned)) return byte < 128 ? byte : 0;
    return is(kVisibleIsBit0) ? byte & 1 : byte;
  }
  int64_t parent(int64_t r, int64_t i) const {
    for (int64_t j = i - 1; j >= 0; --j)
      if (mark(r, i, j) != 0) return j;
    return -1;
  }
  bool sees(int64_t r, int64_t i, int64_t j) const {
    switch (fault) {
      case kCausalMask:
        return j <= i;
      case kSeesAllNodes:
        return true;
      case kSiblingLeak:
        if (i > 0 && j > 0 && parent(r, i) == parent(r, j)) return true;
        break;
      case kNoSelf:
        if (i == j) return false;
        break;
      case kSeesItself:
        if (i == j) return true;
        break;
      case kParentOnly:
        return i == j || j == parent(r, i);
      case kRootNotSeen:
        if (j == 0 && i > 0) return false;
        break;
      case kMaskTransposed:
        return mark(r, j, i) != 0;
      case kColumnsPast32Hidden:
        if (j >= 32) return false;
        break;
      case kColumnsPast64Hidden:
        if (j >= 64) return false;
        break;
      case kColumnsPast128Hidden:
        if (j >= 128) return false;
        break;
      case kColumnsPast256Hidden:
        if (j >= 256) return false;
        break;
      case kTilesAboveDiagonalSkipped:
        if (j / 16 > i / 16) return false;
        break;
      case kMaskWordWraps:
        return mark(r, i, j % 32) != 0;
      default:
        break;
    }
    return mark(r, i, j) != 0;
  }

  // Whether a request before r has rows of its prefix in this page.
  bool owned_before(int64_t r, std::int32_t page) const {
    for (int64_t before = 0; before < r; ++before)
      for (int64_t t = 0; t < prefix(before); t += page_size)
        if (page_table[before * max_pages + t / page_size] == page) return true;
    return false;
  }

  struct Keys {
    std::vector<int64_t> seen;
    std::vector<int64_t> masked;  // tree rows the node does not see
    std::vector<int64_t> multiplied_by_zero;
  };
  Keys keys(int64_t r, int64_t i) const {
    Keys found;
    const int64_t n = nodes(r);
    int64_t p = prefix(r);
    int64_t first = 0;
    const int64_t capacity = max_pages * page_size;
    const int64_t whole_pages = (p + page_size - 1) / page_size * page_size;
    if (is(kPageTailTimesZero))
      for (int64_t t = p; t < whole_pages; ++t)
        found.multiplied_by_zero.push_back(offset(prefix_slot(r, t)));
    if (is(kFirstPrefixKeyDropped)) first = 1;
    if (is(kLastPrefixKeyDropped)) p -= 1;
    if (is(kOnePastPrefix) && p < capacity) p += 1;
    if (is(kPartialPageSkipped)) p = p / page_size * page_size;
    if (is(kPageTailRead)) p = whole_pages;
    if (is(kShortPrefixDropped) && p < n) p = 0;
    if (is(kPrefixIsCausal)) p = std::max<int64_t>(0, p - (n - 1 - i));
    if (is(kPrefixWindow256)) first = std::max<int64_t>(0, p - 256);
    if (is(kPrefixPast4096)) p = std::min<int64_t>(p, 4096);
    if (is(kTablePast64)) p = std::min<int64_t>(p, 64 * page_size);
    if (is(kTablePast256)) p = std::min<int64_t>(p, 256 * page_size);
    for (int64_t t = first; t < p; ++t)
      if (!is(kSharedPageDropped) || !owned_before(r, page_table[r * max_pages + t / page_size]))
        found.seen.push_back(offset(prefix_slot(r, t)));
    const bool skip = is(kTreeSkippedWithoutPrefix) && page_table != nullptr && prefix(r) == 0;
    if (tree_slots != nullptr && !skip) {
      for (int64_t j = 0; j < (is(kPadNodesSeen) ? N : n); ++j) {
        const bool follow = is(kTreeRowsFollowPrefix) && page_table != nullptr;
        const int64_t at = follow ? prefix_slot(r, prefix(r) + j) : tree_slot(r, j);
        (sees(r, i, j) ? found.seen : found.masked).push_back(offset(at));
      }
      if (is(kUnseenRowTimesZero)) found.multiplied_by_zero = found.masked;
    }
    if (is(kRepeatedSlotDropped)) {
      std::sort(found.seen.begin(), found.seen.end());
      found.seen.erase(std::unique(found.seen.begin(), found.seen.end()), found.seen.end());
    }
    const auto count = static_cast<int64_t>(found.seen.size());
    if (is(kTailTileDropped) && count > 64)
      found.seen.resize(static_cast<std::size_t>(count / 64 * 64));
    if (is(kTailTileWeighsOne))
      found.seen.resize(static_cast<std::size_t>((count + 63) / 64 * 64), kZeroRow);
    return found;
  }

  // --- one row ----------------------------------------------------------------------------------

  double row(int64_t key, int64_t d) const {
    const double value = key == kZeroRow ? 0.0 : kdtr::load(*pool, key + d);
    if (!is(kRowsThroughF16) || !kdtr::is<kdtr::bf16>(pool->dtype)) return value;
    return static_cast<double>(static_cast<float>(kdtr::f16(static_cast<float>(value))));
  }
  double score(int64_t query, int64_t key) const {
    int64_t width = D;
    if (is(kRopeDropped)) width = Dv;
    if (is(kWidthTailDropped) && D > 16) width = D / 16 * 16;
    Sum sum;
    for (int64_t d = 0; d < width; ++d) sum.add(kdtr::load(*q, query + d) * row(key, d));
    const double dot = sum.value();
    if (is(kScaleMissing)) return dot;
    if (is(kScaleFromWidth)) return dot / std::sqrt(static_cast<double>(D));
    if (is(kScaleBuiltIn)) return dot * 0.14467963576316833;
    if (is(kScaleWithoutMscale)) return dot / std::sqrt(192.0);
    if (is(kScaleZeroIsDefault) && scale == 0) return dot / std::sqrt(static_cast<double>(D));
    if (is(kScaleWithoutSign)) return dot * std::fabs(scale);
    return dot * scale;
  }

  struct State {
    double lse = -kInf;
    std::vector<double> o;
  };

  State softmax(const std::vector<double>& s, const std::vector<int64_t>& seen) const {
    State state;
    state.o.assign(static_cast<std::size_t>(Dv), 0.0);
    if (s.empty()) return state;
    double top = *std::max_element(s.begin(), s.end());
    if (is(kNoMaxShift)) top = 0;
    if (is(kConstantShift)) top = 10;
    Sum mass;
    std::vector<Sum> sums(static_cast<std::size_t>(Dv));
    const int64_t skip = is(kRopeFirst) ? D - Dv : 0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      if (is(kTiesWinOnce) && std::find(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(j),
                                        s[j]) != s.begin() + static_cast<std::ptrdiff_t>(j))
        continue;
      const double p = std::exp(s[j] - top);
      mass.add(p);
      const double weight = is(kPRoundedToBf16) ? to_bf16(p) : p;
      for (int64_t c = 0; c < Dv; ++c) {
        Sum& o = sums[static_cast<std::size_t>(c)];
        o.add(weight * row(seen[j], skip + c));
        if (is(kOInBf16)) {
          const double rounded = to_bf16(o.value());
          o = Sum();
          o.add(rounded);
        }
      }
    }
    for (std::size_t c = 0; c < sums.size(); ++c) state.o[c] = sums[c].value() / mass.value();
    state.lse = top + std::log(mass.value());
    if (is(kLseBase2)) state.lse /= std::log(2.0);
    if (is(kLseIsMax)) state.lse = top;
    if (is(kLseWithoutMax)) state.lse = std::log(mass.value());
    return state;
  }

  // Tiles of 64 keys with a running maximum, to get the rescaling wrong.
  State online(const std::vector<double>& s, const std::vector<int64_t>& seen) const {
    State state;
    state.o.assign(static_cast<std::size_t>(Dv), 0.0);
    if (s.empty()) return state;
    double top = -kInf;
    double mass = 0;
    for (std::size_t first = 0; first < s.size(); first += 64) {
      const std::size_t end = std::min(s.size(), first + 64);
      const double tile_top = *std::max_element(s.begin() + static_cast<std::ptrdiff_t>(first),
                                                s.begin() + static_cast<std::ptrdiff_t>(end));
      const bool tile_only = is(kTileMaxReplacesMax) || is(kTileMaxOverflows);
      const double new_top = tile_only ? tile_top : std::max(top, tile_top);
      double rescale = new_top > top || is(kTileMaxOverflows) ? std::exp(top - new_top) : 1.0;
      if (rescale > std::numeric_limits<float>::max()) rescale = kInf;
      if (!is(kSumNotRescaled)) mass *= rescale;
      if (!is(kOutputNotRescaled))
        for (double& o : state.o) o *= rescale;
      top = new_top;
      for (std::size_t j = first; j < end; ++j) {
        const double p = std::exp(s[j] - top);
        mass += p;
        for (int64_t c = 0; c < Dv; ++c)
          state.o[static_cast<std::size_t>(c)] += p * row(seen[j], c);
      }
    }
    for (double& o : state.o) o /= mass;
    state.lse = top + std::log(mass);
    return state;
  }

  // Two halves of the keys, to get the merge wrong.
  State split(const std::vector<double>& s, const std::vector<int64_t>& seen) const {
    const auto half = static_cast<std::ptrdiff_t>(s.size() / 2);
    const State a = softmax({s.begin(), s.begin() + half}, {seen.begin(), seen.begin() + half});
    const State b = softmax({s.begin() + half, s.end()}, {seen.begin() + half, seen.end()});
    State state = b;
    if (half == 0) return state;
    const double top = std::max(a.lse, b.lse);
    double w_a = std::exp(a.lse - top);
    double w_b = std::exp(b.lse - top);
    state.lse = top + std::log(w_a + w_b);
    if (is(kSplitsAveraged)) w_a = w_b = 1;
    if (is(kSplitsMergedBase2)) {
      w_a = std::exp2(a.lse - top);
      w_b = std::exp2(b.lse - top);
    }
    if (is(kLightSplitDropped)) {
      w_a = w_a < 1e-4 ? 0 : w_a;
      w_b = w_b < 1e-4 ? 0 : w_b;
    }
    for (std::size_t c = 0; c < state.o.size(); ++c)
      state.o[c] = (w_a * a.o[c] + w_b * b.o[c]) / (w_a + w_b);
    return state;
  }

  // Row of the first node of r when requests follow each other without padding.
  int64_t packed(int64_t r) const {
    int64_t at = 0;
    for (int64_t before = 0; before < r; ++before) at += std::clamp<int64_t>(n_nodes[before], 0, N);
    return at;
  }
  // Whether node i sees nothing of the first or of the second half of its request's keys.
  bool half_is_masked(int64_t r, int64_t i) const {
    const int64_t p = prefix(r);
    const int64_t all = p + (tree_slots != nullptr ? nodes(r) : 0);
    int64_t first = std::min(p, all / 2);
    int64_t second = p - first;
    for (int64_t j = 0; p + j < all; ++j)
      if (mark(r, i, j) != 0) ++(p + j < all / 2 ? first : second);
    return all > 1 && (first == 0 || second == 0);
  }

  State attend(int64_t r, int64_t i, int64_t h) const {
    Keys found = keys(r, i);
    int64_t head = h;
    if (is(kHead0Query)) head = 0;
    if (is(kHeadsPast16)) head = h % 16;
    if (is(kHeadsPast32)) head = h % 32;
    if (is(kHeadsPast64)) head = h % 64;
    if (is(kHeadsPast128)) head = h % 128;
    const int64_t request = is(kQueryOfRequest0) ? 0 : r;
    const int64_t node = is(kQueryRowsPacked) ? packed(r) + i : request * N + i;
    const int64_t query = (node * H + head) * D;
    std::vector<double> s;
    s.reserve(found.seen.size());
    for (const int64_t key : found.seen) s.push_back(score(query, key));
    if (is(kMaskedScoreIsSmall))
      for (const int64_t key : found.masked) {
        found.seen.push_back(key);
        s.push_back(-10000.0);
      }
    if (is(kEmptyRowIsMean) && s.empty()) {
      found.seen = found.masked;
      s.assign(found.masked.size(), 0.0);
    }
    State state;
    if (is(kOutputNotRescaled) || is(kSumNotRescaled) || is(kTileMaxReplacesMax) ||
        is(kTileMaxOverflows)) {
      state = online(s, found.seen);
    } else if (is(kSplitsAveraged) || is(kSplitsMergedBase2) || is(kLightSplitDropped)) {
      state = split(s, found.seen);
    } else {
      state = softmax(s, found.seen);
    }
    for (const int64_t key : found.multiplied_by_zero)
      for (int64_t c = 0; c < Dv; ++c) state.o[static_cast<std::size_t>(c)] += 0.0 * row(key, c);
    if (is(kMaskedSplitIsNan) && half_is_masked(r, i)) state.o.assign(state.o.size(), std::nan(""));
    if (s.empty() && is(kEmptyLseIsPlusInf)) state.lse = kInf;
    if (s.empty() && is(kEmptyRowIsNan)) state.o.assign(state.o.size(), std::nan(""));
    return state;
  }

  void write(int64_t r, int64_t i, int64_t h, const State& state) const {
    const int64_t usual = ((is(kOutRowsPacked) && i < n_nodes[r] ? packed(r) : r * N) + i) * H + h;
    const int64_t turned = (r * H + h) * N + i;
    kdtr::store(*lse, is(kLseHeadsFirst) ? turned : usual, state.lse);
    const int64_t columns = is(kValueTailNotWritten) && Dv > 16 ? Dv / 16 * 16 : Dv;
    const bool narrow =
        is(kF32OutThroughBf16) && kdtr::is<float>(out->dtype) && kdtr::is<kdtr::bf16>(q->dtype);
    for (int64_t c = 0; c < columns; ++c) {
      const double o = state.o[static_cast<std::size_t>(c)];
      kdtr::store(*out, (is(kOutHeadsFirst) ? turned : usual) * Dv + c, narrow ? to_bf16(o) : o);
    }
  }

  void request(int64_t r, bool bad) const {
    if (bad && is(kRefusedRowsNotWritten)) return;
    const int64_t n = bad ? 0 : nodes(r);
    State pad;
    pad.o.assign(static_cast<std::size_t>(Dv), 0.0);
    for (int64_t i = 0; i < N; ++i)
      for (int64_t h = 0; h < H; ++h) {
        const bool past = (is(kNodesPast65) && i > 65) || (is(kNodesPast256) && i >= 256) ||
                          (is(kRequestsPast64) && r >= 64) || (is(kRequestsPast256) && r >= 256);
        const bool computed = !past && (i < n || (n > 0 && is(kPadRowsComputed)));
        if (computed) {
          write(r, i, h, attend(r, i, h));
        } else if (past || bad || !is(kPadRowsNotWritten)) {
          write(r, i, h, pad);
        }
      }
  }
};

void run(Call& c, int fault) {
  Op op{};
  op.q = &c.any("q", KDTR_IN, "R N H D");
  op.pool = &c.any("kv_pool", KDTR_IN, "slots D");
  op.out = &c.any("out", KDTR_OUT, "R N H Dv");
  const std::string_view part = c.attr_str("part");
  if (fault >= kFaults) {
    const InBranch& only = in_branches()[static_cast<std::size_t>(fault - kFaults)];
    fault = only.branch.holds(part, op.q->dtype, op.out->dtype) ? only.fault : kCorrect;
  }
  op.fault = fault;
  op.lse = &c.any("lse", KDTR_OUT, "R N H");
  c.bind("Dv", c.attr_int("Dv"));
  op.R = c.dim("R");
  op.N = c.dim("N");
  op.H = c.dim("H");
  op.D = c.dim("D");
  op.Dv = c.dim("Dv");
  op.slots = c.dim("slots");
  op.scale = c.attr_float("scale");
  op.page_size = c.attr_int("page_size");
  op.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  if (part != "tail") {
    op.page_table = c.in<std::int32_t>("page_table", "R max_pages").data;
    op.prefix_len = c.in<std::int32_t>("prefix_len", "R").data;
    op.max_pages = c.dim("max_pages");
  }
  if (part != "prefix") {
    op.tree_slots = c.in<std::int32_t>("tree_slots", "R N").data;
    op.visible = c.in<std::uint8_t>("visible", "R N N").data;
  }
  const auto status = c.out<std::int32_t>("status", "R");

  if (fault == kNothingWithoutElements && op.R * op.N * op.H * op.Dv == 0) return;
  const bool silent = fault == kStatusAlwaysOk ||
                      (fault == kPrefixPartUnchecked && part == "prefix") ||
                      (fault == kTailPartUnchecked && part == "tail");
  std::vector<bool> bad(static_cast<std::size_t>(op.R));
  for (int64_t r = 0; r < op.R; ++r) bad[static_cast<std::size_t>(r)] = op.refused(r);
  if (fault == kBadRequestFailsBatch && std::find(bad.begin(), bad.end(), true) != bad.end())
    bad.assign(bad.size(), true);
  for (int64_t r = 0; r < op.R; ++r) {
    const bool refused = bad[static_cast<std::size_t>(r)];
    status[r] = refused && !silent ? kdtr::kBadInput : kdtr::kOk;
    op.request(r, refused);
  }
}

std::vector<kdtr::Fault> faults() {
  std::vector<kdtr::Fault> all = {
      {"correct", "control"},
      {"causal_mask", "a node sees all earlier nodes, not only its ancestors"},
      {"sees_all_nodes", "the tree mask is ignored"},
      {"sibling_leak", "a node also sees its siblings"},
      {"no_self", "a node does not see its own row"},
      {"parent_only", "a node sees its parent and itself, no further ancestors"},
      {"root_not_seen", "the root is left out of its descendants' keys"},
      {"mask_transposed", "visible is read as [column, row]"},
      {"mask_of_request_0", "every request uses the mask of request 0"},
      {"mask_stride_n_nodes", "mask rows are n_nodes apart, not N"},
      {"slot_stride_n_nodes", "slots of requests are n_nodes apart, not N"},
      {"sees_itself", "a node sees its own row whatever the mask says"},
      {"visible_is_bit_0", "only bit 0 of a mask byte is looked at"},
      {"visible_is_1", "a mask byte other than 1 hides the row"},
      {"visible_is_signed", "a mask byte from 128 on hides the row"},
      {"columns_past_32_hidden", "one 32-bit mask word a row: columns from 32 on are hidden"},
      {"columns_past_64_hidden", "one 64-bit mask word a row: columns from 64 on are hidden"},
      {"columns_past_128_hidden", "two 64-bit mask words a row: columns from 128 on are hidden"},
      {"columns_past_256_hidden", "mask columns from 256 on are hidden"},
      {"mask_word_wraps", "mask column taken modulo 32"},
      {"tiles_above_diagonal_skipped", "tree rows in tiles of 16 behind a node's own are skipped"},
      {"pad_nodes_seen", "columns past n_nodes are believed"},
      {"pad_rows_computed", "rows past n_nodes are computed from whatever their queries hold"},
      {"pad_rows_not_written", "rows past n_nodes are left as they were"},
      {"nodes_past_65", "rows of nodes from 66 on are empty"},
      {"nodes_past_256", "rows of nodes from 256 on are empty"},
      {"requests_past_64", "rows of requests from 64 on are empty"},
      {"requests_past_256", "rows of requests from 256 on are empty"},
      {"unseen_row_times_zero", "a masked row is multiplied by a weight of zero"},
      {"first_prefix_key_dropped", "the first prefix row is skipped"},
      {"last_prefix_key_dropped", "the last prefix row is skipped"},
      {"one_past_prefix", "one row behind the prefix is seen"},
      {"partial_page_skipped", "the last page is seen only when it is full"},
      {"page_tail_read", "the last page is seen whole"},
      {"page_tail_times_zero", "rows behind the prefix are multiplied by a weight of zero"},
      {"page_id_is_slot", "a page id is taken for the slot of its first row"},
      {"page_table_ignored", "prefix rows are read in pool order"},
      {"page_table_of_request_0", "every request uses the page table of request 0"},
      {"prefix_len_of_request_0", "every request uses the prefix length of request 0"},
      {"page_size_is_16", "a page size of 16 is built in"},
      {"tree_rows_follow_prefix", "tree rows are read behind the prefix, tree_slots is ignored"},
      {"tree_skipped_without_prefix", "an empty prefix ends the whole row"},
      {"short_prefix_dropped", "a prefix with fewer rows than the tree has nodes is skipped"},
      {"prefix_is_causal", "node i of n misses the last n-1-i prefix rows"},
      {"prefix_window_256", "only the last 256 prefix rows are seen"},
      {"prefix_past_4096", "prefix rows from 4,096 on are not seen"},
      {"table_past_64", "table entries from 64 on are not read"},
      {"table_past_256", "table entries from 256 on are not read"},
      {"shared_page_dropped", "prefix rows in a page of an earlier request are skipped"},
      {"repeated_slot_dropped", "of keys on one slot only the first counts"},
      {"tail_tile_dropped", "keys past the last full tile of 64 are dropped"},
      {"tail_tile_weighs_one", "padding of the last tile counts as keys of score 0"},
      {"offset_in_16_bits", "a row's element offset wraps at 2^16"},
      {"slot_in_32_bits", "page times page size wraps at 2^32"},
      {"query_of_request_0", "every request uses the queries of request 0"},
      {"query_rows_packed", "queries are read as if requests were not padded to N nodes"},
      {"out_rows_packed", "outputs are written as if requests were not padded to N nodes"},
      {"head_0_query", "every head uses the query of head 0"},
      {"heads_past_16", "heads from 16 on use the queries of the first 16"},
      {"heads_past_32", "heads from 32 on use the queries of the first 32"},
      {"heads_past_64", "heads from 64 on use the queries of the first 64"},
      {"heads_past_128", "heads from 128 on use the queries of the first 128"},
      {"out_heads_first", "out is written as [R, H, N, Dv]"},
      {"lse_heads_first", "lse is written as [R, H, N]"},
      {"rope_first", "rows are taken for rope then latent: V is the last Dv columns"},
      {"rope_dropped", "scores leave the rope columns out"},
      {"rows_through_f16", "bf16 rows pass through f16"},
      {"width_tail_dropped", "columns past the last full 16 are left out of scores"},
      {"value_tail_not_written", "value columns past the last full 16 are not written"},
      {"scale_missing", "scores are not scaled"},
      {"scale_from_width", "the scale is D^-1/2, not the attribute"},
      {"scale_built_in", "the scale of one model is built in, the attribute is not used"},
      {"scale_without_mscale", "the scale is 192^-1/2, without mscale squared"},
      {"scale_zero_is_default", "a scale of 0 means D^-1/2"},
      {"scale_without_sign", "the scale's magnitude is used"},
      {"lse_base_2", "lse is a base-2 logarithm"},
      {"lse_is_max", "lse is the largest score"},
      {"lse_without_max", "lse lacks the maximum that was subtracted"},
      {"no_max_shift", "exp of scores without subtracting their maximum"},
      {"constant_shift", "exp of scores less a constant 10"},
      {"masked_score_is_small", "masked scores are -10000, not -inf"},
      {"empty_lse_is_plus_inf", "a row that sees nothing has lse +inf"},
      {"empty_row_is_mean", "a row that sees nothing gets the mean of the rows it must not see"},
      {"empty_row_is_nan", "a row that sees nothing is 0/0"},
      {"ties_win_once", "of keys with equal scores only the first counts"},
      {"p_rounded_to_bf16", "weights are rounded to bf16 before P V"},
      {"o_in_bf16", "the output is accumulated in bf16"},
      {"f32_out_through_bf16", "f32 out of bf16 rows is rounded to bf16 before it is written"},
      {"output_not_rescaled", "a new maximum rescales the sum but not the output"},
      {"sum_not_rescaled", "a new maximum rescales the output but not the sum"},
      {"tile_max_replaces_max", "a tile with a lower maximum lowers the running one"},
      {"tile_max_overflows", "sums are rescaled to each tile's maximum, which overflows f32"},
      {"splits_averaged", "two splits are merged with equal weights"},
      {"splits_merged_base_2", "two splits are merged as if their lse were base 2"},
      {"light_split_dropped", "a split with a weight below 1e-4 is dropped"},
      {"masked_split_is_nan", "a split of which a node sees nothing leaves NaN in the merge"},
      {"bad_page_accepted", "a page id outside the pool is not refused"},
      {"negative_page_accepted", "a page id below 0 is not refused"},
      {"bad_slot_accepted", "a tree slot outside the pool is not refused"},
      {"negative_slot_accepted", "a tree slot below 0 is not refused"},
      {"slots_past_32_accepted", "slots of nodes from 32 on are not checked"},
      {"unseen_slot_accepted", "the slot of a row that nobody sees is not checked"},
      {"long_prefix_accepted", "a prefix longer than its page table is cut, not refused"},
      {"many_nodes_accepted", "n_nodes above N is cut, not refused"},
      {"negative_lengths_accepted", "a negative prefix_len or n_nodes counts as 0"},
      {"length_wraps", "a prefix_len to which a page cannot be added in 32 bits counts as 0"},
      {"bad_request_fails_batch", "one refused request refuses all"},
      {"refused_rows_not_written", "outputs of a refused request are left as they were"},
      {"status_always_ok", "status is 0 even for a refused request"},
      {"prefix_part_unchecked", "a refused request of the prefix part is reported ok"},
      {"tail_part_unchecked", "a refused request of the tail part is reported ok"},
      {"unused_page_refused", "table entries behind the prefix are checked"},
      {"inactive_request_checked", "a request without nodes is checked"},
      {"full_table_refused", "a prefix that fills its table is refused"},
      {"empty_table_refused", "a table without pages refuses its requests"},
      {"empty_pool_refused", "a pool without slots refuses every request"},
      {"nothing_without_elements", "nothing is written when out has no elements"},
      {"whole_page_checked", "a page that ends past the pool is refused though its rows are there"},
      {"page_start_checked", "only a page's first row is checked against the pool"}};
  static std::deque<std::string> texts;  // what the names point to
  for (const InBranch& only : in_branches()) {
    const kdtr::Fault& fault = all[static_cast<std::size_t>(only.fault)];
    const char* name =
        texts.emplace_back(std::string(fault.name) + "_in_" + only.branch.name).c_str();
    all.push_back({name, fault.what});
  }
  return all;
}

KDTR_MUTANTS({"verify_attn@1", faults(), run});

}  // namespace
