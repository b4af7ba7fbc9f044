#include <array>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kHalfPairs,
  kSign,
  kOtherStore,
  kNoScale,
  kScaleTwice,
  kWideAngle,
  kFastTrig,
  kStartIgnored,
  kRestZeroed,
  kInt16Position,
  kHeadStride,
  kBfloatAngle,
  kPositionOfFirst,
  kNegativeAccepted,
  kLastPairSkipped,
  kPast262143,
  kPast16Heads,
  kPast64Heads,
  kPast32Pairs,
  kPast64Pairs,
  kPast64Tokens,
  kPast256Tokens,
  kClampsToF16,
  kRowsInF16,
  kChecks64Tokens,
  kChecks128Columns,
  kChecksTurnedColumns,
  kMinusInfAccepted,
  kScaleAtLeast1,
  kNothingWithoutPairs,
  kUnchecked,  // in one branch: the first of four
  kNegativeAcceptedIn = kUnchecked + 4,
};

void rope(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T H W");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const DLTensor& out = call.any("out", KDTR_OUT, "T H W");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t heads = call.dim("H"), width = call.dim("W"), f = call.dim("F");
  std::int64_t start = call.attr_int("start");
  double scale = call.attr_float("scale");
  bool halves = call.attr_str("store") == "halves";
  if (fault == kStartIgnored) start = 0;
  if (fault == kNoScale) scale = 1;
  if (fault == kScaleTwice) scale *= scale;
  if (fault == kScaleAtLeast1) scale = std::max(scale, 1.0);
  if (fault == kOtherStore) halves = !halves;
  const std::array branches{is<bf16>(x.dtype), is<f16>(x.dtype), halves, scale != 1};
  const auto lives_here = [&](int first) {
    return fault >= first && fault < first + 4 && branches[static_cast<std::size_t>(fault - first)];
  };
  if (fault == kNothingWithoutPairs && f == 0) return;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, t * heads * width, heads * width);
    bool rows_ok = true;
    for (std::int64_t h = 0; h < heads; ++h) {
      const Row head(row.begin() + h * width, row.begin() + (h + 1) * width);
      const std::size_t looked_at = fault == kChecks128Columns ? 128
                                    : fault == kChecksTurnedColumns
                                        ? static_cast<std::size_t>(start + 2 * f)
                                        : head.size();
      rows_ok = rows_ok && finite(head, looked_at, fault == kMinusInfAccepted);
    }
    const bool any_position = fault == kNegativeAccepted || lives_here(kNegativeAcceptedIn);
    const bool ok = ((positions[t] >= 0 || any_position) && (rows_ok || lives_here(kUnchecked))) ||
                    (fault == kChecks64Tokens && t >= 64);
    status[t] = ok ? 0 : 1;
    for (double& v : row)
      if (fault == kRowsInF16) v = clamped_to_f16(in_f16(v));
    Row y = ok && fault != kRestZeroed ? row : Row(row.size(), 0.0);
    const bool turned =
        ok && !(fault == kPast64Tokens && t >= 64) && !(fault == kPast256Tokens && t >= 256);
    for (std::int64_t h = 0; turned && h < heads; ++h) {
      if ((fault == kPast16Heads && h >= 16) || (fault == kPast64Heads && h >= 64)) continue;
      for (std::int64_t i = 0; i < f; ++i) {
        if (fault == kLastPairSkipped && i + 1 == f) continue;
        if ((fault == kPast32Pairs && i >= 32) || (fault == kPast64Pairs && i >= 64)) continue;
        std::int32_t position = positions[fault == kPositionOfFirst ? 0 : t];
        if (fault == kInt16Position) position = std::min(position, 32767);
        if (fault == kPast262143) position = std::min(position, 262143);
        double angle = static_cast<float>(position) * inv_freq[i];
        if (fault == kWideAngle) angle = static_cast<double>(position) * double{inv_freq[i]};
        if (fault == kBfloatAngle) angle = static_cast<float>(bf16(static_cast<float>(angle)));
        if (fault == kFastTrig) angle += angle * 0x1p-22;  // reduced with a short pi
        const double c = scale * std::cos(angle);
        const double s = scale * std::sin(angle) * (fault == kSign ? -1 : 1);
        const std::int64_t head = (fault == kHeadStride ? 0 : h) * width;
        const auto at = [&](std::int64_t j) { return static_cast<std::size_t>(head + start + j); };
        const auto to = [&](std::int64_t j) {
          return static_cast<std::size_t>(h * width + start + j);
        };
        const bool half = fault == kHalfPairs;
        const double a = row[at(half ? i : 2 * i)], b = row[at(half ? f + i : 2 * i + 1)];
        y[to(halves ? i : 2 * i)] = a * c - b * s;
        y[to(halves ? f + i : 2 * i + 1)] = b * c + a * s;
      }
    }
    for (double& v : y)
      if (fault == kClampsToF16) v = clamped_to_f16(v);
    write(out, t * heads * width, y);
  }
}

}  // namespace
KDTR_MUTANTS({"rope@1",
              {{"correct", "control"},
               {"half_pairs", "pairs i with F + i (GPT-NeoX order)"},
               {"sign", "turns the other way"},
               {"other_store", "stores in the other order"},
               {"no_scale", "leaves the factor on cos and sin out"},
               {"scale_twice", "multiplies the factor in twice"},
               {"wide_angle", "computes the angle in f64"},
               {"fast_trig", "reduces large angles inaccurately"},
               {"start_ignored", "rotates from column 0"},
               {"rest_zeroed", "does not copy the other columns"},
               {"int16_position", "clamps positions to 32767"},
               {"head_stride", "reads head 0 for every head"},
               {"bf16_angle", "computes the angle in bf16"},
               {"position_of_first", "uses the first token's position for all"},
               {"negative_accepted", "accepts a negative position"},
               {"last_pair_skipped", "leaves the last pair unrotated"},
               {"past_262143", "clamps positions to 262143"},
               {"past_16_heads", "rotates only 16 heads"},
               {"past_64_heads", "rotates only 64 heads"},
               {"past_32_pairs", "rotates only 32 pairs"},
               {"past_64_pairs", "rotates only 64 pairs"},
               {"past_64_tokens", "rotates only 64 tokens"},
               {"past_256_tokens", "rotates only 256 tokens"},
               {"clamps_to_f16", "clamps the result to the range of f16"},
               {"rows_in_f16", "converts the rows to f16"},
               {"checks_64_tokens", "looks for bad input in only 64 tokens"},
               {"checks_128_columns", "looks for a NaN in only 128 columns of a head"},
               {"checks_turned_columns", "looks for a NaN only up to the rotated columns"},
               {"minus_inf_accepted", "takes -inf for a number"},
               {"scale_at_least_1", "takes a factor below 1 for 1"},
               {"nothing_without_pairs", "writes nothing when there are no pairs"},
               {"bf16_unchecked", "does not look for a NaN or infinity in bf16"},
               {"f16_unchecked", "does not look for a NaN or infinity in f16"},
               {"halves_unchecked", "does not look for a NaN or infinity where it stores halves"},
               {"scaled_unchecked", "does not look for a NaN or infinity with a factor"},
               {"bf16_negative_accepted", "accepts a negative position in bf16"},
               {"f16_negative_accepted", "accepts a negative position in f16"},
               {"halves_negative_accepted", "accepts a negative position where it stores halves"},
               {"scaled_negative_accepted", "accepts a negative position with a factor"}},
              rope});
}  // namespace kdtr::mutants
