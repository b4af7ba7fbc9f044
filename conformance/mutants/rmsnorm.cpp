#include <algorithm>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kEpsOutside,
  kNoEps,
  kSubtractsMean,
  kTailDropped,
  kOnePlusWeight,
  kOtherVariant,
  kNoRoot,
  kFirstRowFactor,
  kTruncates,
  kKeepsBadRows,
  kEpsTenTimes,
  kLastElementUnscaled,
  kPast1024Summed,
  kPast4096Summed,
  kPast1024Written,
  kPast64Rows,
  kPast1024Rows,
  kSquaresInF16,
  kClampsToF16,
  kRowsInF16,
  kChecks64Rows,
  kChecks1024Elements,
  kWeightPositive,
  kPast256OfVectorsSummed,
  kChecks256OfVectors,
  kWeightInRowsType,
  kBfloatInfAccepted,
  kEpsFixedInF32,
  kEpsFixedInF16,
  kEpsFixedRounded,
  kUncheckedRounded,
  kUnchecked,  // in one branch: the first of six
};

double rounded(const DLTensor& like, double value) {
  if (is<bf16>(like.dtype)) return static_cast<float>(bf16(static_cast<float>(value)));
  if (is<f16>(like.dtype)) return static_cast<float>(f16(static_cast<float>(value)));
  return static_cast<float>(value);
}

void rmsnorm(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T N");
  DLTensor weight = call.any("weight", KDTR_IN, "N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  double eps = call.attr_float("eps") * (fault == kEpsTenTimes ? 0.1 : 1.0);
  bool twice = call.attr_str("variant") == "round_then_multiply";
  if ((fault == kEpsFixedInF32 && is<float>(x.dtype)) ||
      (fault == kEpsFixedInF16 && is<f16>(x.dtype)) || (fault == kEpsFixedRounded && twice))
    eps = 1e-5;
  if (fault == kWeightInRowsType && weight.dtype.bits > x.dtype.bits) weight.dtype = x.dtype;
  const bool narrow_vectors = x.dtype.bits == 16 && branch(x) % 2 == 1;
  const bool unchecked = (fault == kUncheckedRounded && twice) || fault - kUnchecked == branch(x);
  if (fault == kOtherVariant) twice = !twice;
  const std::int64_t n = call.dim("N");
  double factor = 0;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, t * n, n);
    const std::size_t looked_at = fault == kChecks1024Elements                     ? 1024
                                  : fault == kChecks256OfVectors && narrow_vectors ? 256
                                                                                   : row.size();
    const bool inf = fault == kBfloatInfAccepted && is<bf16>(x.dtype) &&
                     std::none_of(row.begin(), row.end(), [](double v) { return std::isnan(v); });
    const bool ok =
        finite(row, looked_at) || unchecked || inf || (fault == kChecks64Rows && t >= 64);
    status[t] = ok ? 0 : 1;
    const bool left_out =
        (fault == kPast64Rows && t >= 64) || (fault == kPast1024Rows && t >= 1024);
    if (left_out || (!ok && fault != kKeepsBadRows)) {
      write(out, t * n, Row(row.size(), 0.0));
      continue;
    }
    if (fault == kSubtractsMean) {
      double mean = 0;
      for (const double v : row) mean += v / static_cast<double>(n);
      for (double& v : row) v -= mean;
    }
    if (fault == kRowsInF16)
      for (double& v : row) v = clamped_to_f16(in_f16(v));
    double sum = 0;
    const std::size_t used = fault == kPast256OfVectorsSummed && narrow_vectors
                                 ? std::min<std::size_t>(row.size(), 256)
                             : fault == kTailDropped    ? row.size() / 8 * 8
                             : fault == kPast1024Summed ? std::min<std::size_t>(row.size(), 1024)
                             : fault == kPast4096Summed ? std::min<std::size_t>(row.size(), 4096)
                                                        : row.size();
    for (std::size_t i = 0; i < used; ++i)
      sum += fault == kSquaresInF16 ? clamped_to_f16(row[i] * row[i]) : row[i] * row[i];
    const double ms = sum / static_cast<double>(n);
    const double mine = fault == kEpsOutside ? 1 / (std::sqrt(ms) + eps)
                        : fault == kNoEps    ? 1 / std::sqrt(ms)
                        : fault == kNoRoot   ? 1 / (ms + eps)
                                             : 1 / std::sqrt(ms + eps);
    if (fault != kFirstRowFactor || t == 0) factor = mine;
    for (std::size_t i = 0; i < row.size(); ++i) {
      double inner = row[i] * factor;
      if (twice) inner = rounded(x, inner);
      double w = load(weight, static_cast<std::int64_t>(i)) + (fault == kOnePlusWeight);
      if (fault == kWeightPositive) w = std::fabs(w);
      row[i] = fault == kLastElementUnscaled && i + 1 == row.size() ? inner : inner * w;
      if (fault == kClampsToF16) row[i] = clamped_to_f16(row[i]);
      if (fault == kPast1024Written && i >= 1024) row[i] = 0;
      if (fault == kTruncates)
        row[i] -= std::fabs(row[i]) * (is<float>(x.dtype) ? 0x1p-12 : 0x1p-7);
    }
    write(out, t * n, row);
  }
}

}  // namespace
KDTR_MUTANTS({"rmsnorm@1",
              {{"correct", "control"},
               {"eps_outside_root", "adds eps to the root instead of under it"},
               {"no_eps", "leaves eps out"},
               {"subtracts_mean", "layer norm: the mean is subtracted"},
               {"tail_dropped", "leaves the last N mod 8 elements out of the sum"},
               {"one_plus_weight", "multiplies by 1 + weight"},
               {"other_variant", "rounds at the other variant's place"},
               {"no_root", "divides by the mean of squares"},
               {"first_row_factor", "uses the first row's factor for all rows"},
               {"low_precision", "loses low bits of the result"},
               {"keeps_bad_rows", "writes NaN for a row that holds one"},
               {"eps_tenth", "uses another norm's eps"},
               {"last_unscaled", "does not multiply the last element by its weight"},
               {"past_1024_summed", "sums only 1024 elements"},
               {"past_4096_summed", "sums only 4096 elements"},
               {"past_1024_written", "writes only 1024 elements"},
               {"past_64_rows", "handles only 64 rows"},
               {"past_1024_rows", "handles only 1024 rows"},
               {"squares_in_f16", "keeps the squares in f16"},
               {"clamps_to_f16", "clamps the result to the range of f16"},
               {"rows_in_f16", "converts the rows to f16"},
               {"checks_64_rows", "looks for a NaN in only 64 rows"},
               {"checks_1024_elements", "looks for a NaN in only 1024 elements"},
               {"weight_positive", "drops the sign of the weight"},
               {"past_256_of_vectors_summed", "sums only 256 elements of 16 bits in whole vectors"},
               {"checks_256_of_vectors",
                "looks for bad input in only 256 elements of 16 bits in vectors"},
               {"weight_in_rows_type", "reads f32 weights as the rows' type"},
               {"bf16_inf_accepted", "takes infinities for numbers in bf16"},
               {"f32_eps_fixed", "uses eps 1e-5 in f32, whatever is asked"},
               {"f16_eps_fixed", "uses eps 1e-5 in f16, whatever is asked"},
               {"rounded_eps_fixed", "uses eps 1e-5 where it rounds first, whatever is asked"},
               {"rounded_unchecked", "does not look for bad input where it rounds first"},
               {"f32_odd_unchecked", "does not look for bad input in f32, in odd widths"},
               {"f32_vectors_unchecked", "does not look for bad input in f32, in whole vectors"},
               {"bf16_odd_unchecked", "does not look for bad input in bf16, in odd widths"},
               {"bf16_vectors_unchecked", "does not look for bad input in bf16, in whole vectors"},
               {"f16_odd_unchecked", "does not look for bad input in f16, in odd widths"},
               {"f16_vectors_unchecked", "does not look for bad input in f16, in whole vectors"}},
              rmsnorm});
}  // namespace kdtr::mutants
