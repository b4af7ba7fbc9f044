// topk_logprobs@1 written a second time, in double, and the faults planted in it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;
using kdtr::kInf;

enum FaultId {
  kCorrect,
  kTiesByHighestId,
  kTiesInScanOrderOfThreads,
  kNegativeZeroBelowZero,
  kSubnormalsFlushed,
  kSubnormalsOfF16Flushed,
  kCoarseRadixBin,
  kCandidateBuffer4096,
  kOneCandidatePerVector,
  kTailVectorDropped,
  kZeroLanesPastVocab,
  kZeroLanesInLse,
  kIdsCutTo15Bits,
  kIdsCutTo16Bits,
  kFiniteSentinel,
  kMinusInfIsCandidate,
  kPadsNotWritten,
  kPadLogprobZero,
  kEmptyRowLseZero,
  kNanIgnored,
  kNegativeNanIgnored,
  kNanFailsItsRowOnly,
  kNanFailsTheBatch,
  kPlusInfAccepted,
  kRequestZeroStatus,
  kRequestStride,
  kRowsPast256,
  kRequestsPast64,
  kLseBase2,
  kLseOverTopK,
  kLseWithoutShift,
  kLseF32Chain,
  kLseBf16Terms,
  kLseBelowMax,
  kLseFastExp,
  kProbabilities,
  kLogprobBf16,
  kLogprobFromWideLse,
  kLogprobUnnormalised,
  kFirstSplitOnly,
  kQuietNanOnly,
  kBadPastDepth64,
  kBadPastRequest64,
  kDepthsPast64,
  kBadInFirstTileOnly,
  kNoCandidatesNoStatus,
  kInfiniteLogprobIsAPad,
  kTilesOrderZeros,
  kTilesFlushSubnormals,
  kTilesMinusInfIsCandidate,
  kTilesPadsNotWritten,
  kTilesEmptyRowLseZero,
  kAlignedOrderZeros,
  kAlignedMinusInfIsCandidate,
  kAlignedNanIgnored,
  kAlignedPlusInfAccepted,
  kAlignedFiniteSentinel,
  kKPastVocabTiesByHighestId,
  kKPastVocabFlushesSubnormals,
  kKPastVocabNanIgnored,
  kTop1TiesByHighestId,
  kTop1OrdersZeros,
  kTop1MinusInfIsCandidate,
  kTop1NanIgnored,
  kTop1PlusInfAccepted,
  kLongListFlushesSubnormals,
  kLongListMinusInfIsCandidate,
  kLongListPadsNotWritten,
};

constexpr std::int64_t kTile = 8192;

// The fault that a kernel has in one branch: for rows of several tiles or of whole vectors, for
// more candidates than there are ids, for one, or for many.
int in_branch(int fault, const DLTensor& logits, std::int64_t vocab, std::int64_t k) {
  const bool tiles = vocab > kTile, aligned = vocab % 8 == 0, all = k > vocab;
  const bool one = k == 1, list = k > 256 && k <= vocab;
  const int flush =
      kdtr::is<kdtr::f16>(logits.dtype) ? kSubnormalsOfF16Flushed : kSubnormalsFlushed;
  switch (fault) {
    case kTilesOrderZeros:
      return tiles ? kNegativeZeroBelowZero : kCorrect;
    case kTilesFlushSubnormals:
      return tiles ? flush : kCorrect;
    case kTilesMinusInfIsCandidate:
      return tiles ? kMinusInfIsCandidate : kCorrect;
    case kTilesPadsNotWritten:
      return tiles ? kPadsNotWritten : kCorrect;
    case kTilesEmptyRowLseZero:
      return tiles ? kEmptyRowLseZero : kCorrect;
    case kAlignedOrderZeros:
      return aligned ? kNegativeZeroBelowZero : kCorrect;
    case kAlignedMinusInfIsCandidate:
      return aligned ? kMinusInfIsCandidate : kCorrect;
    case kAlignedNanIgnored:
      return aligned ? kNanIgnored : kCorrect;
    case kAlignedPlusInfAccepted:
      return aligned ? kPlusInfAccepted : kCorrect;
    case kAlignedFiniteSentinel:
      return aligned ? kFiniteSentinel : kCorrect;
    case kKPastVocabTiesByHighestId:
      return all ? kTiesByHighestId : kCorrect;
    case kKPastVocabFlushesSubnormals:
      return all ? flush : kCorrect;
    case kKPastVocabNanIgnored:
      return all ? kNanIgnored : kCorrect;
    case kTop1TiesByHighestId:
      return one ? kTiesByHighestId : kCorrect;
    case kTop1OrdersZeros:
      return one ? kNegativeZeroBelowZero : kCorrect;
    case kTop1MinusInfIsCandidate:
      return one ? kMinusInfIsCandidate : kCorrect;
    case kTop1NanIgnored:
      return one ? kNanIgnored : kCorrect;
    case kTop1PlusInfAccepted:
      return one ? kPlusInfAccepted : kCorrect;
    case kLongListFlushesSubnormals:
      return list ? flush : kCorrect;
    case kLongListMinusInfIsCandidate:
      return list ? kMinusInfIsCandidate : kCorrect;
    case kLongListPadsNotWritten:
      return list ? kPadsNotWritten : kCorrect;
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

struct Row {
  std::vector<double> x;  // what the faulty kernel takes the row to be
  std::vector<std::int64_t> order;
  double lse = -kInf;
};

double to_bf16(double x) {
  return static_cast<double>(static_cast<float>(kdtr::bf16(static_cast<float>(x))));
}

bool flushed(double x) { return std::fabs(x) < std::numeric_limits<float>::min(); }

// Whether id a stands before id b.
bool before(const std::vector<double>& x, std::int64_t a, std::int64_t b, int fault) {
  double left = x[static_cast<std::size_t>(a)];
  double right = x[static_cast<std::size_t>(b)];
  if (fault == kSubnormalsFlushed) {
    left = flushed(left) ? 0 : left;
    right = flushed(right) ? 0 : right;
  }
  if (fault == kSubnormalsOfF16Flushed) {
    left = std::fabs(left) < 0x1p-14 ? 0 : left;
    right = std::fabs(right) < 0x1p-14 ? 0 : right;
  }
  if (fault == kCoarseRadixBin) {
    left = std::floor(left * 64);
    right = std::floor(right * 64);
  }
  if (left != right) return left > right;
  if (fault == kNegativeZeroBelowZero && left == 0 && std::signbit(left) != std::signbit(right))
    return std::signbit(right);
  if (fault == kTiesByHighestId) return a > b;
  if (fault == kTiesInScanOrderOfThreads && a % 32 != b % 32) return a % 32 < b % 32;
  return a < b;
}

bool candidate(double x, int fault) {
  if (fault == kFiniteSentinel) return x > -1e30;
  return x > -kInf || fault == kMinusInfIsCandidate;
}

void select(Row& row, std::int64_t k, int fault) {
  const auto n = static_cast<std::int64_t>(row.x.size());
  const auto better = [&](std::int64_t a, std::int64_t b) { return before(row.x, a, b, fault); };
  for (std::int64_t v = 0; v < n; ++v)
    if (candidate(row.x[static_cast<std::size_t>(v)], fault)) row.order.push_back(v);
  if (fault == kOneCandidatePerVector) {
    std::vector<std::int64_t> best;
    for (const std::int64_t v : row.order) {
      if (!best.empty() && best.back() / 8 == v / 8) {
        if (better(v, best.back())) best.back() = v;
      } else {
        best.push_back(v);
      }
    }
    if (static_cast<std::int64_t>(best.size()) >= k) row.order = best;
  }
  if (fault == kCandidateBuffer4096 && k > 0 && static_cast<std::int64_t>(row.order.size()) > k) {
    std::vector<std::int64_t> sorted = row.order;
    std::sort(sorted.begin(), sorted.end(), better);
    const double threshold =
        row.x[static_cast<std::size_t>(sorted[static_cast<std::size_t>(k - 1)])];
    std::vector<std::int64_t> buffer;
    for (std::int64_t v = n - 1; v >= 0; --v)  // appended in whatever order the blocks arrive
      if (row.x[static_cast<std::size_t>(v)] >= threshold && buffer.size() < 4096)
        buffer.push_back(v);
    row.order = std::move(buffer);
  }
  std::sort(row.order.begin(), row.order.end(), better);
}

double log_sum_exp(const Row& row, std::int64_t k, int fault) {
  std::vector<double> terms = row.x;
  if (fault == kLseOverTopK) {
    terms.clear();
    for (std::size_t i = 0; i < row.order.size() && i < static_cast<std::size_t>(k); ++i)
      terms.push_back(row.x[static_cast<std::size_t>(row.order[i])]);
  }
  if (fault == kZeroLanesInLse) terms.resize((terms.size() + 7) / 8 * 8, 0.0);
  if (fault == kFirstSplitOnly && terms.size() > 16384) terms.resize(16384);
  const double top = terms.empty() ? -kInf : *std::max_element(terms.begin(), terms.end());
  if (top == -kInf) return fault == kEmptyRowLseZero ? 0 : -kInf;
  if (fault == kLseWithoutShift) {
    float sum = 0;
    for (const double x : terms) sum += std::exp(static_cast<float>(x));
    return static_cast<double>(std::log(sum));
  }
  if (fault == kLseF32Chain || fault == kLseBf16Terms || fault == kLseFastExp) {
    float chain = 0;
    double wide = 0;
    for (const double x : terms) {
      const auto e = std::exp(static_cast<float>(x) - static_cast<float>(top));
      chain += e;
      wide += fault == kLseBf16Terms ? to_bf16(static_cast<double>(e))
                                     : static_cast<double>(e) * (1 - 0x1p-20);
    }
    return top + std::log(fault == kLseF32Chain ? static_cast<double>(chain) : wide);
  }
  double sum = 0;
  for (const double x : terms) sum += std::exp(x - top);
  const double lse = top + std::log(sum);
  if (fault == kLseBase2) return lse / std::log(2.0);
  if (fault == kLseBelowMax)
    return static_cast<double>(std::nextafter(static_cast<float>(lse), -kdtr::kInfF));
  return lse;
}

float logprob(double x, double lse, int fault) {
  const auto rounded = static_cast<float>(lse);
  switch (fault) {
    case kProbabilities:
      return std::exp(static_cast<float>(x) - rounded);
    case kLogprobBf16:
      return static_cast<float>(kdtr::bf16(static_cast<float>(x) - rounded));
    case kLogprobFromWideLse:
      return static_cast<float>(x - lse);
    case kLogprobUnnormalised:
      return static_cast<float>(x);
    default:
      return static_cast<float>(x) - rounded;
  }
}

bool bad_value(double x, int fault) {
  if (std::isnan(x))
    return fault != kNanIgnored && !(fault == kNegativeNanIgnored && std::signbit(x));
  return x == kInf && fault != kPlusInfAccepted;
}

void run(Call& c, int fault) {
  const DLTensor& logits = c.any("logits", KDTR_IN, "R L V");
  const std::int64_t k = c.attr_int("K");
  c.bind("K", k);
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const DLTensor& lse = c.any("lse", KDTR_OUT, "R L");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t depths = c.dim("L");
  const std::int64_t vocab = c.dim("V");

  fault = in_branch(fault, logits, vocab, k);
  const auto unseen = [&](std::int64_t row, std::int64_t v) {
    return (fault == kBadPastDepth64 && row % depths >= 64) ||
           (fault == kBadPastRequest64 && row / depths >= 64) ||
           (fault == kBadInFirstTileOnly && v >= kTile) ||
           (fault == kNoCandidatesNoStatus && k == 0) ||
           (fault == kQuietNanOnly && std::isnan(kdtr::load(logits, row * vocab + v)) &&
            !quiet(logits, row * vocab + v));
  };
  std::vector<bool> bad_rows(static_cast<std::size_t>(c.dim("R") * depths));
  std::vector<bool> bad_requests(static_cast<std::size_t>(c.dim("R")));
  for (std::size_t row = 0; row < bad_rows.size(); ++row) {
    const auto at = static_cast<std::int64_t>(row);
    for (std::int64_t v = 0; v < vocab; ++v)
      if (bad_value(kdtr::load(logits, at * vocab + v), fault) && !unseen(at, v))
        bad_rows[row] = true;
    if (bad_rows[row]) bad_requests[row / static_cast<std::size_t>(depths)] = true;
  }
  const bool any_bad = std::find(bad_rows.begin(), bad_rows.end(), true) != bad_rows.end();

  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    const bool bad_request = bad_requests[static_cast<std::size_t>(r)];
    const bool reported = fault == kNanFailsTheBatch ? any_bad : bad_request;
    status[r] = reported && fault != kRequestZeroStatus ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t l = 0; l < depths; ++l) {
      const std::int64_t at = r * depths + l;
      if ((fault == kRowsPast256 && at >= 256) || (fault == kRequestsPast64 && r >= 64) ||
          (fault == kDepthsPast64 && l >= 64))
        continue;
      const std::int64_t source = fault == kRequestStride ? l : at;
      bool refuse = reported;
      if (fault == kNanFailsItsRowOnly) refuse = bad_rows[static_cast<std::size_t>(at)];
      Row row;
      for (std::int64_t v = 0; v < vocab && !refuse; ++v) {
        const double x = kdtr::load(logits, source * vocab + v);
        row.x.push_back(std::isnan(x) ? -kInf : x);
      }
      if (fault == kTailVectorDropped) row.x.resize(row.x.size() / 8 * 8);
      Row seen = row;
      if (fault == kZeroLanesPastVocab) seen.x.resize((seen.x.size() + 7) / 8 * 8, 0.0);
      select(seen, k, fault);
      row.order = seen.order;
      row.lse = log_sum_exp(row, k, fault);
      kdtr::store(lse, at, row.lse);
      for (std::int64_t i = 0; i < k; ++i) {
        const std::int64_t to = at * k + i;
        if (i < static_cast<std::int64_t>(row.order.size())) {
          const std::int64_t id = row.order[static_cast<std::size_t>(i)];
          std::int64_t kept = id;
          if (fault == kIdsCutTo15Bits) kept %= 32768;
          if (fault == kIdsCutTo16Bits) kept %= 65536;
          ids[to] = static_cast<std::int32_t>(kept);
          logprobs[to] = logprob(seen.x[static_cast<std::size_t>(id)], row.lse, fault);
          if (fault == kInfiniteLogprobIsAPad && std::isinf(logprobs[to])) ids[to] = -1;
        } else if (fault != kPadsNotWritten) {
          ids[to] = -1;
          logprobs[to] = fault == kPadLogprobZero ? 0.0f : -kdtr::kInfF;
        }
      }
    }
  }
}

KDTR_MUTANTS({
    "topk_logprobs@1",
    {
        {"correct", "control"},
        {"ties_by_highest_id", "equal values go to the highest id (last wins)"},
        {"ties_in_scan_order", "equal values in the order in which 32 threads come upon them"},
        {"negative_zero_below_zero", "-0 is ordered below +0"},
        {"subnormals_flushed", "subnormal values compare as zero"},
        {"subnormals_of_f16_flushed", "values below the least normal f16 compare as zero"},
        {"coarse_radix_bin", "values in one coarse bin count as equal"},
        {"candidate_buffer_4096", "candidates at or above the threshold beyond 4,096 are lost"},
        {"one_candidate_per_vector", "only the best of each 8 neighbouring ids is considered"},
        {"tail_vector_dropped", "ids past the last whole vector of 8 are not read"},
        {"zero_lanes_past_vocab", "zero-filled lanes past the vocabulary are candidates"},
        {"zero_lanes_in_lse", "zero-filled lanes past the vocabulary are summed"},
        {"ids_cut_to_15_bits", "ids pass through a 15-bit field"},
        {"ids_cut_to_16_bits", "ids pass through a 16-bit field"},
        {"finite_sentinel", "-1e30 stands for minus infinity in the selection"},
        {"minus_inf_is_candidate", "-inf logits are returned with their ids"},
        {"pads_not_written", "missing candidates leave the output as it was"},
        {"pad_logprob_zero", "missing candidates have log-prob 0"},
        {"empty_row_lse_zero", "the lse of a row without finite logits is 0"},
        {"nan_ignored", "NaN logits are skipped and the request is ok"},
        {"negative_nan_ignored", "a NaN whose sign is set is ordered below every number"},
        {"nan_fails_its_row_only", "only the row that holds the bad value is padded"},
        {"nan_fails_the_batch", "one bad request pads and fails every request"},
        {"plus_inf_accepted", "+inf is a candidate like any other"},
        {"status_never_set", "bad requests are padded and reported ok"},
        {"request_stride", "every request reads the rows of request 0"},
        {"rows_past_256", "rows from 256 on are not written"},
        {"requests_past_64", "requests from 64 on are not written"},
        {"lse_base_2", "lse is in base 2"},
        {"lse_over_top_k", "lse is taken over the K candidates only"},
        {"lse_without_shift", "exponentials in f32 without subtracting the maximum"},
        {"lse_f32_chain", "exponentials are summed in one f32 chain"},
        {"lse_bf16_terms", "exponentials are rounded to bf16 before they are summed"},
        {"lse_below_max", "lse is rounded towards minus infinity, one ulp down"},
        {"lse_fast_exp", "a fast exponential, 2^-20 low"},
        {"probabilities", "probabilities are returned in the place of log-probabilities"},
        {"logprob_bf16", "log-probs are rounded to bf16"},
        {"logprob_from_wide_lse", "log-probs are computed with an unrounded lse"},
        {"logprob_unnormalised", "logits are returned in the place of log-probabilities"},
        {"first_split_only", "lse covers the first 16,384 ids only"},
        {"quiet_nan_only", "a NaN whose first fraction bit is 0 is taken for no NaN"},
        {"bad_past_depth_64", "bad values are looked for in the first 64 depths only"},
        {"bad_past_request_64", "bad values are looked for in the first 64 requests only"},
        {"depths_past_64", "depths from 64 on are not written"},
        {"bad_in_first_tile_only", "bad values are looked for in the first 8,192 ids only"},
        {"no_candidates_no_status", "K = 0: bad values are not looked for"},
        {"infinite_logprob_is_a_pad", "a candidate whose log-prob is -inf loses its id"},
        {"tiles_order_zeros", "more than 8,192 ids: -0 is ordered below +0"},
        {"tiles_flush_subnormals", "more than 8,192 ids: subnormal values compare as zero"},
        {"tiles_minus_inf_is_candidate", "more than 8,192 ids: -inf logits fill up the list"},
        {"tiles_pads_not_written", "more than 8,192 ids: missing candidates are not written"},
        {"tiles_empty_row_lse_zero", "more than 8,192 ids: the lse of an empty row is 0"},
        {"aligned_order_zeros", "whole vectors: -0 is ordered below +0"},
        {"aligned_minus_inf_is_candidate", "whole vectors: -inf logits fill up the list"},
        {"aligned_nan_ignored", "whole vectors: NaN logits are skipped"},
        {"aligned_plus_inf_accepted", "whole vectors: +inf is a candidate"},
        {"aligned_finite_sentinel", "whole vectors: what lies below -1e30 counts as -inf"},
        {"k_past_vocab_ties_by_highest_id", "K > V: equal values go to the highest id"},
        {"k_past_vocab_flushes_subnormals", "K > V: subnormal values compare as zero"},
        {"k_past_vocab_nan_ignored", "K > V: NaN logits are skipped"},
        {"top_1_ties_by_highest_id", "K = 1: equal values go to the highest id"},
        {"top_1_orders_zeros", "K = 1: -0 is ordered below +0"},
        {"top_1_minus_inf_is_candidate", "K = 1: an id although no logit is finite"},
        {"top_1_nan_ignored", "K = 1: NaN logits are skipped"},
        {"top_1_plus_inf_accepted", "K = 1: +inf is a candidate"},
        {"long_list_flushes_subnormals", "K > 256: subnormal values compare as zero"},
        {"long_list_minus_inf_is_candidate", "K > 256: -inf logits fill up the list"},
        {"long_list_pads_not_written", "K > 256: missing candidates are not written"},
    },
    run,
});

}  // namespace
