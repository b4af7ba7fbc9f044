// argmax@1 written a second time, in double, and the faults planted in it.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;
using kdtr::kInf;

enum FaultId {
  kCorrect,
  kLastWins,
  kAnyLaneWins,
  kNegativeZeroBelowZero,
  kSubnormalsFlushed,
  kSubnormalsOfF16Flushed,
  kStartAtMinusOne,
  kStartAtSentinel,
  kStartAtMinusFltMax,
  kZeroLanesPastVocab,
  kTailVectorDropped,
  kIdsCutTo15Bits,
  kIdsCutTo16Bits,
  kNanIgnored,
  kNegativeNanIgnored,
  kNanWins,
  kNanFailsItsRowOnly,
  kNanFailsTheBatch,
  kStatusNeverSet,
  kPlusInfRefused,
  kRequestStride,
  kRowsPast256,
  kRequestsPast64,
  kNodesPast64,
  kFirstTileOnly,
  kBf16Compare,
  kNodesPast1024,
  kRequestsPast1024,
  kNanPastNode64,
  kNanPastRequest64,
  kQuietNanOnly,
  kNanAtId0Ignored,
  kNanAfterInfIgnored,
  kNanInFirstTileOnly,
  kOneTokenUnread,
  kTilesStartAtSentinel,
  kTilesOrderZeros,
  kTilesFlushSubnormals,
  kAlignedStartAtSentinel,
  kAlignedFlushSubnormals,
  kAlignedNanIgnored,
};

constexpr std::int64_t kTile = 8192;

// The fault that a kernel has in one branch: for rows of several tiles, or of whole vectors.
int in_branch(int fault, const DLTensor& logits, std::int64_t vocab) {
  const bool tiles = vocab > kTile, aligned = vocab % 8 == 0;
  const int flush =
      kdtr::is<kdtr::f16>(logits.dtype) ? kSubnormalsOfF16Flushed : kSubnormalsFlushed;
  switch (fault) {
    case kTilesStartAtSentinel:
      return tiles ? kStartAtSentinel : kCorrect;
    case kTilesOrderZeros:
      return tiles ? kNegativeZeroBelowZero : kCorrect;
    case kTilesFlushSubnormals:
      return tiles ? flush : kCorrect;
    case kAlignedStartAtSentinel:
      return aligned ? kStartAtSentinel : kCorrect;
    case kAlignedFlushSubnormals:
      return aligned ? flush : kCorrect;
    case kAlignedNanIgnored:
      return aligned ? kNanIgnored : kCorrect;
    default:
      return fault;
  }
}

// Whether the first bit of a NaN's fraction is set.
bool quiet(const DLTensor& logits, std::int64_t i) {
  const auto* data = static_cast<const std::byte*>(logits.data) + logits.byte_offset;
  if (kdtr::is<float>(logits.dtype)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, data + i * 4, sizeof bits);
    return (bits & 0x400000) != 0;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + i * 2, sizeof bits);
  return (bits & (kdtr::is<kdtr::f16>(logits.dtype) ? 0x200 : 0x40)) != 0;
}

double seen(double x, int fault) {
  if (fault == kSubnormalsFlushed && std::fabs(x) < std::numeric_limits<float>::min()) return 0;
  if (fault == kSubnormalsOfF16Flushed && std::fabs(x) < 0x1p-14) return 0;
  if (fault == kBf16Compare)
    return static_cast<double>(static_cast<float>(kdtr::bf16(static_cast<float>(x))));
  return x;
}

bool replaces(double x, std::int64_t v, double best, std::int64_t at, int fault) {
  if (x != best) return x > best;
  if (fault == kNegativeZeroBelowZero && x == 0 && std::signbit(x) != std::signbit(best))
    return std::signbit(best);
  if (fault == kLastWins) return true;
  return fault == kAnyLaneWins && v % 32 < at % 32;
}

std::int64_t best_of(const std::vector<double>& row, int fault) {
  std::int64_t at = -1;
  double best = -kInf;
  if (fault == kStartAtMinusOne) best = -1;
  if (fault == kStartAtSentinel) best = -1e4;
  if (fault == kStartAtMinusFltMax) best = -static_cast<double>(std::numeric_limits<float>::max());
  const bool free_start = best == -kInf;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto v = static_cast<std::int64_t>(i);
    const double x = seen(row[i], fault);
    if (std::isnan(x) && fault == kNanWins) return v;
    if ((at < 0 && free_start) || replaces(x, v, best, at, fault)) {
      best = x;
      at = v;
    }
  }
  return !row.empty() && at < 0 ? 0 : at;
}

void run(Call& c, int fault) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R N V");
  const auto ids = c.out<std::int32_t>("ids", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t rows = c.dim("N");
  const std::int64_t vocab = c.dim("V");
  fault = in_branch(fault, logits, vocab);
  const auto refused = [&](std::int64_t row) {
    if ((fault == kNanPastNode64 && row % rows >= 64) ||
        (fault == kNanPastRequest64 && row / rows >= 64) ||
        (fault == kOneTokenUnread && vocab == 1))
      return false;
    bool infinite = false;
    for (std::int64_t v = fault == kNanAtId0Ignored ? 1 : 0; v < vocab; ++v) {
      if (fault == kNanInFirstTileOnly && v >= kTile) break;
      const double x = kdtr::load(logits, row * vocab + v);
      const bool unseen = fault == kNanIgnored || fault == kNanWins ||
                          (fault == kNegativeNanIgnored && std::signbit(x)) ||
                          (fault == kQuietNanOnly && !quiet(logits, row * vocab + v)) ||
                          (fault == kNanAfterInfIgnored && infinite);
      infinite = infinite || x == kInf;
      if (std::isnan(x) && !unseen) return true;
      if (x == kInf && fault == kPlusInfRefused) return true;
    }
    return false;
  };
  bool any = false;
  for (std::int64_t row = 0; row < c.dim("R") * rows; ++row) any = any || refused(row);

  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    bool bad = false;
    for (std::int64_t n = 0; n < rows; ++n) bad = bad || refused(r * rows + n);
    if (fault == kNanFailsTheBatch) bad = any;
    status[r] = bad && fault != kStatusNeverSet ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t n = 0; n < rows; ++n) {
      const std::int64_t at = r * rows + n;
      if ((fault == kRowsPast256 && at >= 256) || (fault == kRequestsPast64 && r >= 64) ||
          (fault == kRequestsPast1024 && r >= 1024) || (fault == kNodesPast64 && n >= 64) ||
          (fault == kNodesPast1024 && n >= 1024))
        continue;
      const std::int64_t source = fault == kRequestStride ? n : at;
      std::vector<double> row;
      for (std::int64_t v = 0; v < vocab; ++v) {
        const double x = kdtr::load(logits, source * vocab + v);
        row.push_back(std::isnan(x) && fault != kNanWins ? -kInf : x);
      }
      if (fault == kZeroLanesPastVocab) row.resize((row.size() + 7) / 8 * 8, 0.0);
      if (fault == kTailVectorDropped) row.resize(row.size() / 8 * 8);
      if (fault == kFirstTileOnly && row.size() > kTile) row.resize(kTile);
      std::int64_t best = best_of(row, fault);
      if (fault == kIdsCutTo15Bits && best >= 0) best %= 32768;
      if (fault == kIdsCutTo16Bits && best >= 0) best %= 65536;
      const bool pad = fault == kNanFailsItsRowOnly ? refused(at) : bad;
      ids[at] = pad ? -1 : static_cast<std::int32_t>(best);
    }
  }
}

KDTR_MUTANTS({
    "argmax@1",
    {
        {"correct", "control"},
        {"last_wins", "equal maxima go to the highest id"},
        {"any_lane_wins", "equal maxima go to the lowest lane of a warp, not the lowest id"},
        {"negative_zero_below_zero", "-0 is ordered below +0"},
        {"subnormals_flushed", "subnormal values compare as zero"},
        {"subnormals_of_f16_flushed", "values below the least normal f16 compare as zero"},
        {"start_at_minus_one", "the running maximum starts at -1"},
        {"start_at_sentinel", "the running maximum starts at -1e4"},
        {"start_at_minus_flt_max", "the running maximum starts at -FLT_MAX and id 0"},
        {"zero_lanes_past_vocab", "zero-filled lanes past the vocabulary take part"},
        {"tail_vector_dropped", "ids past the last whole vector of 8 are not read"},
        {"ids_cut_to_15_bits", "ids pass through a 15-bit field"},
        {"ids_cut_to_16_bits", "ids pass through a 16-bit field"},
        {"nan_ignored", "NaN logits are skipped and the request is ok"},
        {"negative_nan_ignored", "a NaN whose sign is set is ordered below every number"},
        {"nan_wins", "the first NaN is the maximum, as in numpy and torch"},
        {"nan_fails_its_row_only", "only the row that holds the NaN is padded"},
        {"nan_fails_the_batch", "one bad request fails every request"},
        {"status_never_set", "bad requests are padded and reported ok"},
        {"plus_inf_refused", "+inf is treated like NaN"},
        {"request_stride", "every request reads the rows of request 0"},
        {"rows_past_256", "rows from 256 on are not written"},
        {"requests_past_64", "requests from 64 on are not written"},
        {"nodes_past_64", "nodes from 64 on are not written"},
        {"first_tile_only", "only the first 8,192 ids are read"},
        {"bf16_compare", "values are rounded to bf16 before they are compared"},
        {"nodes_past_1024", "nodes from 1,024 on are not written"},
        {"requests_past_1024", "requests from 1,024 on are not written"},
        {"nan_past_node_64", "NaN is looked for in the first 64 nodes only"},
        {"nan_past_request_64", "NaN is looked for in the first 64 requests only"},
        {"quiet_nan_only", "a NaN whose first fraction bit is 0 is taken for no NaN"},
        {"nan_at_id_0_ignored", "the scan starts from id 0, which is not looked at"},
        {"nan_after_inf_ignored", "the scan ends at +inf"},
        {"nan_in_first_tile_only", "NaN is looked for in the first 8,192 ids only"},
        {"one_token_unread", "V = 1: id 0 without a look at the logit"},
        {"tiles_start_at_sentinel", "more than 8,192 ids: the running maximum starts at -1e4"},
        {"tiles_order_zeros", "more than 8,192 ids: -0 is ordered below +0"},
        {"tiles_flush_subnormals", "more than 8,192 ids: subnormal values compare as zero"},
        {"aligned_start_at_sentinel", "whole vectors: the running maximum starts at -1e4"},
        {"aligned_flush_subnormals", "whole vectors: subnormal values compare as zero"},
        {"aligned_nan_ignored", "whole vectors: NaN logits are skipped"},
    },
    run,
});

}  // namespace
