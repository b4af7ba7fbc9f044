// topk_merge@1 written a second time, in double, and the faults planted in it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;
using kdtr::kInf;

enum FaultId {
  kCorrect,
  kTiesByHighestId,
  kTiesByShard,
  kTiesByLocalId,
  kNegativeZeroBelowZero,
  kSubnormalsFlushed,
  kIdsWithinShard,
  kOffsetOfEqualShards,
  kIdsThroughF32,
  kShareOfEachShard,
  kCandidatesPast512,
  kLastShardDropped,
  kFirst32Shards,
  kFirst64Shards,
  kFirst128Shards,
  kFirst256Shards,
  kPadsAreCandidates,
  kPadIsMinusOne,
  kPadsNotWritten,
  kPadLogprobZero,
  kFiniteSentinel,
  kEmptyGivesNan,
  kEmptyRowLseZero,
  kStatusIgnored,
  kStatusOfShard0,
  kStatusOfFirst256,
  kStatusIsOne,
  kStatusIsPositive,
  kStatusLowByte,
  kStatusNeverSet,
  kBadRequestFailsBatch,
  kBadRowOnly,
  kNanLseAccepted,
  kInfLseAccepted,
  kRowsPast64,
  kRequestStride,
  kDepthStride,
  kRequestsBeforeShards,
  kLseBase2,
  kLseIsMax,
  kLseIsSum,
  kLseOfCandidates,
  kLseWithoutShift,
  kLseFastExp,
  kLseBelowMax,
  kPartsToF32,
  kLogprobAgainstPart,
  kLogprobUnnormalised,
  kLogprobBf16,
  kLogprobFromWideLse,
  kRowsPast256,
  kFirst1024Shards,
  kStatusOfFirst1024,
  kStatusOf64Requests,
  kLseOf64Depths,
  kPadsPast512,
  kNoCandidatesNoStatus,
  kOneShardPadsCopied,
  kOneShardStatusIgnored,
  kOneShardNanLseAccepted,
  kManyShardsTiesByShard,
  kManyShardsOrderZeros,
  kManyShardsFlushSubnormals,
  kManyShardsPadIsMinusOne,
  kManyShardsEmptyGivesNan,
  kTop1TiesByShard,
  kTop1OrdersZeros,
  kTop1FlushesSubnormals,
  kTop1PadsAreCandidates,
  kTop1StatusIgnored,
  kLongListOrdersZeros,
  kLongListFlushesSubnormals,
  kLongListIdsThroughF32,
};

// The fault that a kernel has in one branch: for one shard, for many, for one candidate, for many.
int in_branch(int fault, std::int64_t shards, std::int64_t k) {
  const bool many = shards > 32, one = k == 1, list = k > 512;
  switch (fault) {
    case kNoCandidatesNoStatus:
      return k == 0 ? kStatusIgnored : kCorrect;
    case kOneShardStatusIgnored:
      return shards == 1 ? kStatusIgnored : kCorrect;
    case kOneShardNanLseAccepted:
      return shards == 1 ? kNanLseAccepted : kCorrect;
    case kManyShardsTiesByShard:
      return many ? kTiesByShard : kCorrect;
    case kManyShardsOrderZeros:
      return many ? kNegativeZeroBelowZero : kCorrect;
    case kManyShardsFlushSubnormals:
      return many ? kSubnormalsFlushed : kCorrect;
    case kManyShardsPadIsMinusOne:
      return many ? kPadIsMinusOne : kCorrect;
    case kManyShardsEmptyGivesNan:
      return many ? kEmptyGivesNan : kCorrect;
    case kTop1TiesByShard:
      return one ? kTiesByShard : kCorrect;
    case kTop1OrdersZeros:
      return one ? kNegativeZeroBelowZero : kCorrect;
    case kTop1FlushesSubnormals:
      return one ? kSubnormalsFlushed : kCorrect;
    case kTop1PadsAreCandidates:
      return one ? kPadsAreCandidates : kCorrect;
    case kTop1StatusIgnored:
      return one ? kStatusIgnored : kCorrect;
    case kLongListOrdersZeros:
      return list ? kNegativeZeroBelowZero : kCorrect;
    case kLongListFlushesSubnormals:
      return list ? kSubnormalsFlushed : kCorrect;
    case kLongListIdsThroughF32:
      return list ? kIdsThroughF32 : kCorrect;
    default:
      return fault;
  }
}

struct Candidate {
  double value, part_lse;
  std::int64_t shard, local, id;
};

double rank_value(double x, int fault) {
  const bool tiny = std::fabs(x) < static_cast<double>(std::numeric_limits<float>::min());
  if (fault == kSubnormalsFlushed && tiny) return 0;
  // Below every zero and above the least subnormal, as an order by bits would have it.
  if (fault == kNegativeZeroBelowZero && x == 0 && std::signbit(x)) return -0x1p-200;
  return x;
}

bool before(const Candidate& a, const Candidate& b, int fault) {
  const double x = rank_value(a.value, fault);
  const double y = rank_value(b.value, fault);
  if (x != y) return x > y;
  if (fault == kTiesByHighestId) return a.id > b.id;
  if (fault == kTiesByShard && a.shard != b.shard) return a.shard < b.shard;
  if (fault == kTiesByLocalId && a.local != b.local) return a.local < b.local;
  return a.id < b.id;
}

bool bad_lse(double lse, int fault) {
  if (std::isnan(lse)) return fault != kNanLseAccepted;
  return lse == kInf && fault != kInfLseAccepted;
}

bool refuses(std::int32_t status, int fault) {
  switch (fault) {
    case kStatusIgnored:
      return false;
    case kStatusIsOne:
      return status == kdtr::kBadInput;
    case kStatusIsPositive:
      return status > 0;
    case kStatusLowByte:
      return status % 256 != 0;
    default:
      return status != kdtr::kOk;
  }
}

double log_sum_exp(std::vector<double> parts, int fault) {
  if (fault == kPartsToF32)
    for (double& part : parts) part = static_cast<double>(static_cast<float>(part));
  if (fault == kFiniteSentinel) std::erase_if(parts, [](double part) { return part < -1e29; });
  double top = -kInf;
  for (const double part : parts) top = std::max(top, part);
  if (fault == kLseIsMax) return top;
  if (fault == kEmptyGivesNan && std::find(parts.begin(), parts.end(), -kInf) != parts.end())
    return std::nan("");
  if (top == -kInf) return fault == kEmptyRowLseZero ? 0 : -kInf;
  double sum = 0;
  for (const double part : parts) {
    if (fault == kLseIsSum) {
      sum += part;
    } else if (fault == kLseWithoutShift) {
      sum += static_cast<double>(std::exp(static_cast<float>(part)));
    } else if (fault == kLseBase2) {
      sum += std::exp2(part - top);
    } else {
      sum += std::exp(part - top) * (fault == kLseFastExp ? 1 - 0x1p-20 : 1);
    }
  }
  switch (fault) {
    case kLseIsSum:
      return sum;
    case kLseWithoutShift:
      return static_cast<double>(std::log(static_cast<float>(sum)));
    case kLseBase2:
      return top + std::log2(sum);
    case kLseBelowMax: {
      const auto nearest = static_cast<float>(top + std::log(sum));
      return static_cast<double>(std::nextafter(nearest, -kdtr::kInfF));
    }
    default:
      return top + std::log(sum);
  }
}

float logprob(const Candidate& one, double lse, int fault) {
  const auto value = static_cast<float>(one.value);
  switch (fault) {
    case kLogprobAgainstPart:
      return value - static_cast<float>(one.part_lse);
    case kLogprobUnnormalised:
      return value;
    case kLogprobBf16:
      return static_cast<float>(kdtr::bf16(value - static_cast<float>(lse)));
    case kLogprobFromWideLse:
      return static_cast<float>(one.value - lse);
    default:
      return value - static_cast<float>(lse);
  }
}

struct Parts {
  kdtr::Array<const std::int32_t> ids;
  kdtr::Array<const float> values;
  kdtr::Array<const double> lse;
  kdtr::Array<const std::int32_t> status, first;
  std::int64_t shards, requests, depths, k;

  // Where the fault looks for row (r, l) of shard s.
  std::int64_t row(std::int64_t s, std::int64_t r, std::int64_t l, int fault) const {
    if (fault == kRequestStride) r = 0;
    if (fault == kDepthStride) l = 0;
    if (fault == kRequestsBeforeShards) return (r * shards + s) * depths + l;
    return (s * requests + r) * depths + l;
  }
  std::int64_t used(int fault) const {
    switch (fault) {
      case kLastShardDropped:
        return std::max<std::int64_t>(shards - 1, 0);
      case kFirst32Shards:
        return std::min<std::int64_t>(shards, 32);
      case kFirst64Shards:
        return std::min<std::int64_t>(shards, 64);
      case kFirst128Shards:
        return std::min<std::int64_t>(shards, 128);
      case kFirst256Shards:
        return std::min<std::int64_t>(shards, 256);
      case kFirst1024Shards:
        return std::min<std::int64_t>(shards, 1024);
      default:
        return shards;
    }
  }
  bool bad_row(std::int64_t r, std::int64_t l, int fault) const {
    for (std::int64_t s = 0; s < shards; ++s)
      if (bad_lse(static_cast<double>(lse[(s * requests + r) * depths + l]), fault)) return true;
    return false;
  }
  bool bad(std::int64_t r, int fault) const {
    std::int64_t asked = shards;
    if (fault == kStatusOfShard0) asked = 1;
    if (fault == kStatusOfFirst256) asked = std::min<std::int64_t>(shards, 256);
    if (fault == kStatusOfFirst1024) asked = std::min<std::int64_t>(shards, 1024);
    if (fault == kStatusOf64Requests && r >= 64) asked = 0;
    for (std::int64_t s = 0; s < asked; ++s)
      if (refuses(status[s * requests + r], fault)) return true;
    for (std::int64_t l = 0; l < depths; ++l)
      if ((fault != kLseOf64Depths || l < 64) && bad_row(r, l, fault)) return true;
    return false;
  }
};

std::vector<Candidate> candidates(const Parts& p, std::int64_t r, std::int64_t l, int fault) {
  std::vector<Candidate> found;
  const std::int64_t shards = p.used(fault);
  const std::int64_t share = p.k / std::max<std::int64_t>(p.shards, 1);
  for (std::int64_t s = 0; s < shards; ++s) {
    const std::int64_t row = p.row(s, r, l, fault);
    for (std::int64_t j = 0; j < (fault == kShareOfEachShard ? share : p.k); ++j) {
      const std::int64_t local = p.ids[row * p.k + j];
      const auto stored = static_cast<double>(p.values[row * p.k + j]);
      const bool pad = fault == kPadIsMinusOne ? local == -1 : local < 0;
      if (pad && fault != kPadsAreCandidates) continue;
      const double value = std::isnan(stored) ? kInf : stored;  // as an order by bits has it
      if (fault == kFiniteSentinel && value < -1e29) continue;
      std::int64_t offset = p.first[s];
      if (fault == kIdsWithinShard) offset = 0;
      if (fault == kOffsetOfEqualShards) offset = s * (p.shards > 1 ? p.first[1] : 0);
      std::int64_t id = local + offset;
      if (fault == kIdsThroughF32) id = static_cast<std::int64_t>(static_cast<float>(id));
      found.push_back({value, p.lse[row], s, local, id});
    }
  }
  std::sort(found.begin(), found.end(),
            [&](const Candidate& a, const Candidate& b) { return before(a, b, fault); });
  if (fault == kCandidatesPast512 && found.size() > 512) found.resize(512);
  return found;
}

double row_lse(const Parts& p, const std::vector<Candidate>& found, std::int64_t r, std::int64_t l,
               int fault) {
  std::vector<double> terms;
  if (fault == kLseOfCandidates) {
    for (const Candidate& one : found) terms.push_back(one.value);
  } else {
    for (std::int64_t s = 0; s < p.used(fault); ++s) {
      const auto part = static_cast<double>(p.lse[p.row(s, r, l, fault)]);
      terms.push_back(std::isnan(part) || part == kInf ? -kInf : part);
    }
  }
  return log_sum_exp(terms, fault);
}

void run(Call& c, int fault) {
  Parts p{c.in<std::int32_t>("part_ids", "S R L K"),
          c.in<float>("part_values", "S R L K"),
          c.in<double>("part_lse", "S R L"),
          c.in<std::int32_t>("part_status", "S R"),
          c.in<std::int32_t>("first", "S"),
          c.dim("S"),
          c.dim("R"),
          c.dim("L"),
          c.dim("K")};
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const DLTensor& lse = c.any("lse", KDTR_OUT, "R L");
  const auto status = c.out<std::int32_t>("status", "R");

  fault = in_branch(fault, p.shards, p.k);
  std::vector<bool> bad;
  for (std::int64_t r = 0; r < p.requests; ++r) bad.push_back(p.bad(r, fault));
  if (fault == kBadRequestFailsBatch && std::find(bad.begin(), bad.end(), true) != bad.end())
    bad.assign(bad.size(), true);
  for (std::int64_t r = 0; r < p.requests; ++r) {
    const bool refused = bad[static_cast<std::size_t>(r)];
    status[r] = refused && fault != kStatusNeverSet ? kdtr::kBadInput : kdtr::kOk;
    for (std::int64_t l = 0; l < p.depths; ++l) {
      const bool pad = fault == kBadRowOnly ? p.bad_row(r, l, fault) : refused;
      const auto found = pad ? std::vector<Candidate>{} : candidates(p, r, l, fault);
      const double level = pad ? -kInf : row_lse(p, found, r, l, fault);
      const std::int64_t row = r * p.depths + l;
      if ((fault == kRowsPast64 && row >= 64) || (fault == kRowsPast256 && row >= 256)) continue;
      kdtr::store(lse, row, level);
      for (std::int64_t i = 0; i < p.k; ++i) {
        if (i < static_cast<std::int64_t>(found.size())) {
          const Candidate& one = found[static_cast<std::size_t>(i)];
          ids[row * p.k + i] = static_cast<std::int32_t>(one.id);
          logprobs[row * p.k + i] = logprob(one, level, fault);
        } else if (fault != kPadsNotWritten && (fault != kPadsPast512 || i < 512)) {
          const bool copied = fault == kOneShardPadsCopied && p.shards == 1 && !pad;
          ids[row * p.k + i] = copied ? p.ids[row * p.k + i] : -1;
          logprobs[row * p.k + i] = fault == kPadLogprobZero ? 0.0f : -kdtr::kInfF;
        }
      }
    }
  }
}

KDTR_MUTANTS({
    "topk_merge@1",
    {
        {"correct", "control"},
        {"ties_by_highest_id", "equal values go to the highest id"},
        {"ties_by_shard", "equal values go to the shard given first, then by id"},
        {"ties_by_local_id", "equal values go to the lowest id within its shard"},
        {"negative_zero_below_zero", "-0 is ordered below +0"},
        {"subnormals_flushed", "subnormal values compare as zero"},
        {"ids_within_shard", "ids without the offset of their shard"},
        {"offset_of_equal_shards", "the offset is the shard's number times shard 1's"},
        {"ids_through_f32", "ids pass through f32"},
        {"share_of_each_shard", "K / S candidates are taken of each shard"},
        {"candidates_past_512", "ranks from 512 on are pads"},
        {"last_shard_dropped", "the last shard is not merged"},
        {"first_32_shards", "shards from 32 on are not merged"},
        {"first_64_shards", "shards from 64 on are not merged"},
        {"first_128_shards", "shards from 128 on are not merged"},
        {"first_256_shards", "shards from 256 on are not merged"},
        {"pads_are_candidates", "a pad's value is compared like any other"},
        {"pad_is_minus_one", "an id below -1 is no pad"},
        {"pads_not_written", "missing candidates leave the output as it was"},
        {"pad_logprob_zero", "missing candidates have log-prob 0"},
        {"finite_sentinel", "what lies below -1e29 counts as empty"},
        {"empty_gives_nan", "an empty shard makes lse NaN: -inf minus -inf"},
        {"empty_row_lse_zero", "the lse of a row of empty shards is 0"},
        {"status_ignored", "a refused shard adds nothing, and the request is ok"},
        {"status_of_shard_0", "only shard 0 is asked whether it refused"},
        {"status_of_first_256", "only the first 256 shards are asked whether they refused"},
        {"status_is_one", "a shard has refused if its status is 1"},
        {"status_is_positive", "a shard has refused if its status is above 0"},
        {"status_low_byte", "only the lowest byte of a status is looked at"},
        {"status_never_set", "bad requests are padded and reported ok"},
        {"bad_request_fails_batch", "one refused request refuses all"},
        {"bad_row_only", "only the row with a bad lse is padded"},
        {"nan_lse_accepted", "a shard whose lse is NaN adds nothing"},
        {"inf_lse_accepted", "a shard whose lse is +inf adds nothing"},
        {"rows_past_64", "rows from 64 on are not written"},
        {"request_stride", "every request reads the rows of request 0"},
        {"depth_stride", "every depth reads the rows of depth 0"},
        {"requests_before_shards", "parts indexed as [R, S, L]"},
        {"lse_base_2", "exp2 and log2 on natural log-sum-exps"},
        {"lse_is_max", "lse is the greatest part"},
        {"lse_is_sum", "lse is the sum of the parts"},
        {"lse_of_candidates", "lse is taken over the candidates only"},
        {"lse_without_shift", "exponentials in f32 without subtracting the maximum"},
        {"lse_fast_exp", "a fast exponential, 2^-20 low"},
        {"lse_below_max", "lse is rounded towards minus infinity, one ulp down"},
        {"parts_to_f32", "parts are rounded to f32 before they are summed"},
        {"logprob_against_part", "log-probs are relative to the shard's own lse"},
        {"logprob_unnormalised", "values are returned in the place of log-probs"},
        {"logprob_bf16", "log-probs are rounded to bf16"},
        {"logprob_from_wide_lse", "log-probs are computed with an unrounded lse"},
        {"rows_past_256", "rows from 256 on are not written"},
        {"first_1024_shards", "shards from 1,024 on are not merged"},
        {"status_of_first_1024", "only the first 1,024 shards are asked whether they refused"},
        {"status_of_64_requests", "statuses of requests from 64 on are not looked at"},
        {"lse_of_64_depths", "a bad lse is looked for in the first 64 depths only"},
        {"pads_past_512", "pads from rank 512 on are not written"},
        {"no_candidates_no_status", "K = 0: a shard's refusal is ignored"},
        {"one_shard_pads_copied", "one shard: its pads keep their ids"},
        {"one_shard_status_ignored", "one shard: its refusal is ignored"},
        {"one_shard_nan_lse_accepted", "one shard: a NaN lse adds nothing"},
        {"many_shards_ties_by_shard", "more than 32 shards: equal values go to the first shard"},
        {"many_shards_order_zeros", "more than 32 shards: -0 is ordered below +0"},
        {"many_shards_flush_subnormals", "more than 32 shards: subnormals compare as zero"},
        {"many_shards_pad_is_minus_one", "more than 32 shards: an id below -1 is no pad"},
        {"many_shards_empty_gives_nan", "more than 32 shards: an empty one makes lse NaN"},
        {"top_1_ties_by_shard", "K = 1: equal values go to the shard given first"},
        {"top_1_orders_zeros", "K = 1: -0 is ordered below +0"},
        {"top_1_flushes_subnormals", "K = 1: subnormal values compare as zero"},
        {"top_1_pads_are_candidates", "K = 1: a pad's value is compared like any other"},
        {"top_1_status_ignored", "K = 1: a shard's refusal is ignored"},
        {"long_list_orders_zeros", "K > 512: -0 is ordered below +0"},
        {"long_list_flushes_subnormals", "K > 512: subnormal values compare as zero"},
        {"long_list_ids_through_f32", "K > 512: ids pass through f32"},
    },
    run,
});

}  // namespace
