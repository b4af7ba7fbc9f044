// merge_state@1 written a second time, in double, and the faults planted in it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "mutant.h"

namespace {

using kdtr::Call;
using kdtr::kInf;

enum FaultId {
  kCorrect,
  kLseBase2,
  kSwappedWeights,
  kNotNormalised,
  kLseIsMax,
  kBf16Weights,
  kBf16Sum,
  kLseHeadsFirst,
  kRequest0Weights,
  kHead0Weights,
  kBothEmptyNan,
  kBothEmptyCopiesB,
  kEmptyLseIsPlusInf,
  kEmptySideRead,
  kLoneSideRecomputed,
  kLoneSideThroughBf16,
  kLoneSideFlushed,
  kLoneSideCutToBf16,
  kLoneSideCutToF16,
  kNanLseAccepted,
  kNegativeNanAccepted,
  kInfLseAccepted,
  kBadEmptyPairAccepted,
  kBadRequestFailsBatch,
  kBadRowsOnly,
  kNoMaxShift,
  kSentinelIsEmpty,
  kLightSideDropped,
  kTailColumnsUnmerged,
  kColumnsPast256,
  kColumnsPast512,
  kColumnsPast1024,
  kRowsPast256,
  kRequestsPast64,
  kRequestsPast256,
  kOddEmptySideRead,
  kF16EmptyBRead,
  kF32ToBf16Unchecked,
  kF32ToF16Unchecked,
  kChecks256Rows,
};

struct Row {
  double lse_a, lse_b;
  std::int64_t at;  // flat index of the row
};

double to_bf16(double x) {
  return static_cast<double>(static_cast<float>(kdtr::bf16(static_cast<float>(x))));
}

// The first `bits` bits of x.
double cut(double x, int bits) {
  int exponent = 0;
  const double whole = std::trunc(std::ldexp(std::frexp(x, &exponent), bits));
  return std::ldexp(whole, exponent - bits);
}

bool refused(double lse, int fault) {
  if (std::isnan(lse))
    return fault != kNanLseAccepted && !(fault == kNegativeNanAccepted && std::signbit(lse));
  return lse == kInf && fault != kInfLseAccepted;
}

bool refused(const Row& row, int fault) {
  const bool pair_empty = row.lse_a == -kInf || row.lse_b == -kInf;
  if (fault == kBadEmptyPairAccepted && pair_empty) return false;
  return refused(row.lse_a, fault) || refused(row.lse_b, fault);
}

void merge_row(const Row& row, std::int64_t columns, int fault, const DLTensor& o_a,
               const DLTensor& o_b, const DLTensor& o, const DLTensor& lse) {
  const auto level_of = [&](double x) {
    return fault == kNegativeNanAccepted && std::isnan(x) ? -kInf : x;
  };
  const double a = level_of(row.lse_a);
  const double b = level_of(row.lse_b);
  const bool sentinel = fault == kSentinelIsEmpty;
  const bool empty_a = sentinel ? a < -1e29 : a == -kInf;
  const bool empty_b = sentinel ? b < -1e29 : b == -kInf;
  const auto put = [&](std::int64_t k, double x) { kdtr::store(o, row.at * columns + k, x); };
  const auto get_a = [&](std::int64_t k) { return kdtr::load(o_a, row.at * columns + k); };
  const auto get_b = [&](std::int64_t k) { return kdtr::load(o_b, row.at * columns + k); };

  if (empty_a && empty_b) {
    const double nothing = fault == kBothEmptyNan ? std::nan("") : 0.0;
    for (std::int64_t k = 0; k < columns; ++k)
      put(k, fault == kBothEmptyCopiesB ? get_b(k) : nothing);
    const double lse_of_nothing = fault == kEmptyLseIsPlusInf ? kInf : -kInf;
    kdtr::store(lse, row.at, fault == kBothEmptyNan ? nothing : lse_of_nothing);
    return;
  }
  const bool read = fault == kEmptySideRead || (fault == kOddEmptySideRead && columns % 4 != 0) ||
                    (fault == kF16EmptyBRead && empty_b && kdtr::is<kdtr::f16>(o_b.dtype));
  if ((empty_a || empty_b) && !read) {
    double level = empty_a ? b : a;
    const double smallest = kdtr::is<kdtr::f16>(o.dtype) ? 0x1p-14 : 0x1p-126;
    if (fault == kLoneSideRecomputed) level = std::log(std::exp(level * 0.5)) * 2 * (1 + 0x1p-22);
    kdtr::store(lse, row.at, level);
    for (std::int64_t k = 0; k < columns; ++k) {
      double x = empty_a ? get_b(k) : get_a(k);
      if (fault == kLoneSideThroughBf16) x = to_bf16(x);
      if (fault == kLoneSideFlushed && std::fabs(x) < smallest) x = 0;
      if (fault == kLoneSideCutToBf16 && kdtr::is<kdtr::bf16>(o.dtype)) x = cut(x, 8);
      if (fault == kLoneSideCutToF16 && kdtr::is<kdtr::f16>(o.dtype)) x = cut(x, 11);
      put(k, x);
    }
    return;
  }
  const double top = std::max(a, b);
  const double shift = fault == kNoMaxShift ? 0.0 : top;
  const auto weight = [&](double x) {
    if (fault == kLseBase2) return std::exp2(x - shift);
    // What f32 would give: without the shift the overflow is the fault.
    if (fault == kNoMaxShift) return static_cast<double>(std::exp(static_cast<float>(x)));
    return std::exp(x - shift);
  };
  double w_a = weight(a);
  double w_b = weight(b);
  if (fault == kLightSideDropped) {
    if (w_a < 1e-4) w_a = 0;
    if (w_b < 1e-4) w_b = 0;
  }
  const double total = w_a + w_b;
  const double log_total = fault == kLseBase2 ? std::log2(total) : std::log(total);
  kdtr::store(lse, row.at, fault == kLseIsMax ? top : shift + log_total);
  if (fault == kSwappedWeights) std::swap(w_a, w_b);
  double p_a = w_a / total;
  double p_b = w_b / total;
  if (fault == kNotNormalised) {
    p_a = w_a;
    p_b = w_b;
  }
  if (fault == kBf16Weights) {
    p_a = to_bf16(p_a);
    p_b = to_bf16(p_b);
  }
  for (std::int64_t k = 0; k < columns; ++k) {
    const bool past_tile = fault == kTailColumnsUnmerged && k >= columns / 32 * 32;
    if (past_tile || (fault == kColumnsPast256 && k >= 256) ||
        (fault == kColumnsPast512 && k >= 512) || (fault == kColumnsPast1024 && k >= 1024)) {
      put(k, get_a(k));
    } else if (fault == kBf16Sum) {
      put(k, to_bf16(to_bf16(p_a * to_bf16(get_a(k))) + to_bf16(p_b * to_bf16(get_b(k)))));
    } else {
      put(k, p_a * get_a(k) + p_b * get_b(k));
    }
  }
}

void run(Call& c, int fault) {
  const DLTensor& o_a = c.any("o_a", KDTR_IN, "R N H Dv");
  const DLTensor& o_b = c.any("o_b", KDTR_IN, "R N H Dv");
  const auto lse_a = c.in<float>("lse_a", "R N H");
  const auto lse_b = c.in<float>("lse_b", "R N H");
  const DLTensor& o = c.any("o", KDTR_OUT, "R N H Dv");
  const DLTensor& lse = c.any("lse", KDTR_OUT, "R N H");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t R = c.dim("R");
  const std::int64_t N = c.dim("N");
  const std::int64_t H = c.dim("H");
  const std::int64_t columns = c.dim("Dv");

  const bool from_f32 = kdtr::is<float>(o_a.dtype);
  const bool unchecked =
      (fault == kF32ToBf16Unchecked && from_f32 && kdtr::is<kdtr::bf16>(o.dtype)) ||
      (fault == kF32ToF16Unchecked && from_f32 && kdtr::is<kdtr::f16>(o.dtype));

  std::vector<Row> rows;
  std::vector<bool> bad(static_cast<std::size_t>(R), false);
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t at = (r * N + n) * H + h;
        std::int64_t from = at;
        if (fault == kLseHeadsFirst) from = (r * H + h) * N + n;
        if (fault == kRequest0Weights) from = n * H + h;
        if (fault == kHead0Weights) from = (r * N + n) * H;
        rows.push_back({static_cast<double>(lse_a[from]), static_cast<double>(lse_b[from]), at});
        if (fault == kChecks256Rows && n * H + h >= 256) continue;
        if (!unchecked && refused(rows.back(), fault)) bad[static_cast<std::size_t>(r)] = true;
      }
  const bool any_bad = std::find(bad.begin(), bad.end(), true) != bad.end();
  if (fault == kBadRequestFailsBatch && any_bad) bad.assign(bad.size(), true);

  std::int64_t written = R;
  if (fault == kRequestsPast64) written = 64;
  if (fault == kRequestsPast256) written = 256;
  for (std::int64_t r = 0; r < R; ++r)
    if (r < written) status[r] = bad[static_cast<std::size_t>(r)] ? kdtr::kBadInput : kdtr::kOk;
  for (const Row& row : rows) {
    const auto r = static_cast<std::size_t>(row.at / (N * H));
    if (static_cast<std::int64_t>(r) >= written) continue;
    const bool pad = fault == kBadRowsOnly ? refused(row, fault) : bad[r];
    if (pad) {
      kdtr::store(lse, row.at, -kInf);
      for (std::int64_t k = 0; k < columns; ++k) kdtr::store(o, row.at * columns + k, 0.0);
    } else if (fault != kRowsPast256 || row.at < 256) {
      merge_row(row, columns, fault, o_a, o_b, o, lse);
    }
  }
}

KDTR_MUTANTS({"merge_state@1",
              {{"correct", "control"},
               {"lse_base_2", "exp2 and log2 on natural log-sum-exps"},
               {"swapped_weights", "the weight of a applied to b and the reverse"},
               {"not_normalised", "the weights are not divided by their sum"},
               {"lse_is_max", "lse is the larger of the two, the log of the sum is missing"},
               {"bf16_weights", "weights rounded to bf16"},
               {"bf16_sum", "products and sum rounded to bf16 on the way"},
               {"lse_heads_first", "lse indexed as [R, H, N]"},
               {"request_0_weights", "every request uses the log-sum-exps of request 0"},
               {"head_0_weights", "every head uses the log-sum-exps of head 0"},
               {"both_empty_nan", "two empty states give NaN: -inf minus -inf"},
               {"both_empty_copies_b", "two empty states give side b's o, whatever it holds"},
               {"empty_lse_is_plus_inf", "two empty states give lse +inf"},
               {"empty_side_read", "an empty side is multiplied by a weight of zero, not skipped"},
               {"lone_side_recomputed", "a lone side's lse goes through exp and log"},
               {"lone_side_through_bf16", "a lone side's o is rounded to bf16"},
               {"lone_side_flushed", "subnormals of a lone side become zero"},
               {"lone_side_cut_to_bf16", "a lone f32 side is cut to bf16, not rounded"},
               {"lone_side_cut_to_f16", "a lone f32 side is cut to f16, not rounded"},
               {"nan_lse_accepted", "a NaN lse is not refused"},
               {"negative_nan_accepted", "a NaN lse whose sign is set is taken for -inf"},
               {"inf_lse_accepted", "a +inf lse is not refused"},
               {"bad_empty_pair_accepted", "a bad lse beside an empty side is not refused"},
               {"bad_request_fails_batch", "one refused request refuses all"},
               {"bad_rows_only", "only the bad row of a refused request is padded"},
               {"no_max_shift", "exp of lse without the shift by the maximum, in f32"},
               {"sentinel_is_empty", "a finite lse below -1e29 is taken for the empty marker"},
               {"light_side_dropped", "a side with a weight below 1e-4 is dropped"},
               {"tail_columns_unmerged", "columns past the last full 32 are copied from side a"},
               {"columns_past_256", "columns from 256 on are copied from side a"},
               {"columns_past_512", "columns from 512 on are copied from side a"},
               {"columns_past_1024", "columns from 1,024 on are copied from side a"},
               {"rows_past_256", "rows from 256 on are not written"},
               {"requests_past_64", "requests from 64 on are not written"},
               {"requests_past_256", "requests from 256 on are not written"},
               {"odd_empty_side_read", "an empty side is read where a row is no whole vectors"},
               {"f16_empty_b_read", "an empty side b is multiplied by a weight of zero in f16"},
               {"f32_to_bf16_unchecked", "bad log-sum-exps of f32 parts are accepted for bf16"},
               {"f32_to_f16_unchecked", "bad log-sum-exps of f32 parts are accepted for f16"},
               {"checks_256_rows", "bad log-sum-exps past row 256 of a request are accepted"}},
              run});

}  // namespace
