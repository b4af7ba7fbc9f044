#include <algorithm>
#include <climits>
#include <string>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kGateUpSwapped,
  kNoWeights,
  kWeightsShifted,
  kNoShared,
  kSharedScaled,
  kNoResidual,
  kHighNibbleFirst,
  kAwqNibbleOrder,
  kTwosComplement,
  kOffsetMissing,
  kScaleOfNextGroup,
  kScaleOfFirstGroup,
  kScaleOfFirstExpert,
  kScaleTransposed,
  kOtherRounding,
  kExpertZeroForPad,
  kLastExpertMissing,
  kKeepsBadRows,
  kTokenZeroOnly,
  kLastHiddenDropped,
  kNoActivation,
  kRoundsProducts,
  kRoundsExperts,
  kRoundsSum,
  kPastEightTokens,
  kPast64Tokens,
  kPast640Inputs,
  kPast2560Inputs,
  kPast128Tokens,
  kPast512Tokens,
  kPastThreeSlots,
  kPast64Experts,
  kPast64Hidden,
  kPast128Hidden,
  kFactorsInBf16,
  kFactorsInF16,
  kClampsToF16,
  kRowsInF16,
  kHiddenInF16,
  kScalesInF16,
  kChecks64Tokens,
  kChecks128Columns,
  kChecksTwoSlots,
  kExpOverflows,
  kPast512Hidden,
  kPast512Columns,
  kResidualOf8Tokens,
  kResidualOf64Columns,
  kPastEightExperts,
  kPast256Experts,
  kPastEightSlots,
  kEndsAtPad,
  kScalesPositive,
  kFactorsPositive,
  kPast32Tokens,
  kPast1024ColumnsOfDense,
  kPast128TokensOfInt4,
  kPadFactorsUnchecked,
  kInt4RowsUnchecked,
  kInt4FactorsUnchecked,
  kInt4IdsUnchecked,
  kInt4ResidualUnchecked,
  kScalesPositiveOfF32,
  kScalesInF16OfF32,
  // Dense, of each of three types: f32, f32 with bf16 weights, bf16.
  kAcceptsBadAlone,
  kAcceptsBadShared = kAcceptsBadAlone + 3,
  // f32 rows, then bf16 rows; of either, w4_exact, then w4_bf16.
  kAcceptsBadInt4 = kAcceptsBadShared + 3,
  // Of each of three kinds: dense f32 rows, dense bf16 rows, int4.
  kPadsLoseResidual = kAcceptsBadInt4 + 4,
  kPadsLoseShared = kPadsLoseResidual + 3,
  kFactorsPositiveOfF32 = kPadsLoseShared + 3,
  kFactorsInBf16OfF32,
  kFactorsPositiveOfInt4,
  kFactorsInBf16OfInt4,
  kFactorsPositiveWithShared,
  kFactorsInBf16WithShared,
  kFactorsPositiveWithResidual,
  kSkipsSmallFactors,
  kBadFirstOfEight,
  kGateScalesInF16,
  kOnlyIn,  // a fault above, in one type: the first of kOnly
};
enum Type {
  kF32,
  kBfloatWeights,
  kBfloat,
  kInt4Exact,
  kBfloatInt4Exact,
  kInt4Rounded,
  kBfloatInt4
};
constexpr std::pair<int, Type> kOnly[] = {
    {kPastEightSlots, kF32},
    {kExpOverflows, kF32},
    {kChecksTwoSlots, kBfloatWeights},
    {kPastEightSlots, kInt4Exact},
    {kPastEightSlots, kInt4Rounded},
    {kPastEightTokens, kInt4Rounded},
    {kResidualOf8Tokens, kInt4Rounded},
    {kNoShared, kInt4Rounded},
    {kChecksTwoSlots, kBfloatInt4Exact},
    {kExpOverflows, kBfloatInt4Exact},
    {kPastEightSlots, kBfloatInt4},
    {kPastEightTokens, kBfloatInt4},
    {kRowsInF16, kBfloatInt4},
    {kChecks128Columns, kF32},
    {kChecks128Columns, kInt4Exact},
    {kChecks128Columns, kBfloatInt4Exact},
    {kChecks64Tokens, kBfloatInt4Exact},
    {kPast512Hidden, kF32},
    {kClampsToF16, kF32},
    {kResidualOf64Columns, kF32},
    {kPast256Experts, kF32},
};

void round_to_bf16(Row& row) {
  for (double& value : row) value = in_bf16(value);
}
void round_to_f16(Row& row) {
  for (double& value : row) value = clamped_to_f16(in_f16(value));
}

// Row `row` of a dense or an int4 matrix [rows, n] of expert e.
struct Matrix {
  const DLTensor* words = nullptr;
  const DLTensor* scales = nullptr;
  std::int64_t rows, n, group;
  bool rounded;
  int fault;
  bool f32 = false;  // the rows that it multiplies

  Row get(std::int64_t e, std::int64_t row) const {
    const std::int64_t at = e * rows + row;
    if (scales == nullptr) return read(*words, at * n, n);
    Row out(static_cast<std::size_t>(n));
    const auto* q = static_cast<const std::uint32_t*>(words->data);
    const std::int64_t groups = n / group;
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t lane = i % 8, g = i / group;
      if (fault == kHighNibbleFirst) lane = 7 - lane;
      if (fault == kAwqNibbleOrder) lane = lane / 2 + lane % 2 * 4;
      if (fault == kScaleOfNextGroup) g = (g + 1) % groups;
      if (fault == kScaleOfFirstGroup) g = 0;
      const auto code = static_cast<int>((q[at * (n / 8) + i / 8] >> (4 * lane)) & 15u);
      int value = code - 8;
      if (fault == kTwosComplement) value = code > 7 ? code - 16 : code;
      if (fault == kOffsetMissing) value = code;
      std::int64_t s = (fault == kScaleOfFirstExpert ? row : at) * groups + g;
      if (fault == kScaleTransposed) s = e * rows * groups + g * rows + row;
      double scale = load(*scales, s);
      if (fault == kScalesPositive || (fault == kScalesPositiveOfF32 && f32))
        scale = std::fabs(scale);
      const bool in_f16s = fault == kScalesInF16 || (fault == kScalesInF16OfF32 && f32);
      double w = value * (in_f16s ? clamped_to_f16(in_f16(scale)) : scale);
      if (rounded != (fault == kOtherRounding)) w = in_bf16(w);
      out[static_cast<std::size_t>(i)] = w;
    }
    return out;
  }
  Row multiply(std::int64_t e, const Row& x) const {
    Row y(static_cast<std::size_t>(rows), 0.0);
    const std::size_t end = fault == kPast640Inputs    ? 640
                            : fault == kPast2560Inputs ? 2560
                                                       : x.size();
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row w = get(e, r);
      for (std::size_t i = 0; i < std::min(w.size(), end); ++i)
        y[static_cast<std::size_t>(r)] += w[i] * x[i];
    }
    return y;
  }
};

struct Expert {
  Matrix gate, up, down;
  Row operator()(std::int64_t e, const Row& x, int fault) const {
    Row g = gate.multiply(e, x), u = up.multiply(e, x);
    if (fault == kGateUpSwapped) std::swap(g, u);
    if (fault == kRoundsProducts) {
      round_to_bf16(g);
      round_to_bf16(u);
    }
    for (double& v : g)
      if (fault == kExpOverflows && v < -88) v = std::nan("");
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = (fault == kNoActivation ? g[i] : g[i] * logistic(g[i])) * u[i];
    if (fault == kLastHiddenDropped && !g.empty()) g.back() = 0;
    for (std::size_t i = 512; fault == kPast512Hidden && i < g.size(); ++i) g[i] = 0;
    for (std::size_t i = 64; fault == kPast64Hidden && i < g.size(); ++i) g[i] = 0;
    for (std::size_t i = 128; fault == kPast128Hidden && i < g.size(); ++i) g[i] = 0;
    if (fault == kHiddenInF16) round_to_f16(g);
    Row y = down.multiply(e, g);
    if (fault == kRoundsExperts) round_to_bf16(y);
    return y;
  }
};

void moe_experts(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  const auto ids = call.in<std::int32_t>("ids", "T K");
  const DLTensor& factors = call.any("weights", KDTR_IN, "T K");
  const DLTensor& out = call.any("out", KDTR_OUT, "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::string format(call.attr_str("format"));
  const std::int64_t group = call.attr_int("group");
  const std::int64_t d = call.dim("D"), k = call.dim("K");
  const bool dense = format == "dense", rounded = format == "w4_bf16";
  const bool half = is<bf16>(x.dtype);
  if (fault >= kOnlyIn) {
    const auto [only, where] = kOnly[fault - kOnlyIn];
    const bool wide = dense && is<float>(call.any("gate", KDTR_IN, "E * *").dtype);
    const Type here = !dense ? (half ? (rounded ? kBfloatInt4 : kBfloatInt4Exact)
                                     : (rounded ? kInt4Rounded : kInt4Exact))
                      : half ? kBfloat
                             : (wide ? kF32 : kBfloatWeights);
    fault = here == where ? only : kCorrect;
  }
  const auto matrix = [&](const std::string& name, std::int64_t n) {
    Matrix m{};
    m.words = &call.any((name + (dense ? "" : "_packed")).c_str(), KDTR_IN, "E * *");
    m.scales = dense ? nullptr : &call.any((name + "_scale").c_str(), KDTR_IN, "E * *");
    m.rows = m.words->shape[1];
    m.n = n;
    m.group = group;
    m.rounded = rounded;
    m.fault = fault == kGateScalesInF16 && !half && name == "gate" ? kScalesInF16 : fault;
    m.f32 = is<float>(x.dtype);
    return m;
  };
  Expert routed{matrix("gate", d), matrix("up", d), {}};
  routed.down = matrix("down", routed.gate.rows);
  const bool has_shared = call.has("shared_gate", KDTR_IN);
  Expert shared{};
  if (has_shared) {
    const auto plain = [&](const char* name, std::int64_t n) {
      Matrix m{};
      m.words = &call.any(name, KDTR_IN, "* *");
      m.rows = m.words->shape[0];
      m.n = n;
      return m;
    };
    shared.gate = plain("shared_gate", d);
    shared.up = plain("shared_up", d);
    shared.down = plain("shared_down", shared.gate.rows);
  }
  const bool has_residual = call.has("residual", KDTR_IN);
  const DLTensor& residual = has_residual ? call.any("residual", KDTR_IN, "T D") : x;
  const std::int64_t experts = call.dim("E");
  std::vector<int> seen(static_cast<std::size_t>(experts), 0);  // tokens of each expert so far
  const bool past_128 = fault == kPast128Tokens || (fault == kPast128TokensOfInt4 && !dense);
  const int most = fault == kPastEightTokens ? 8
                   : fault == kPast32Tokens  ? 32
                   : fault == kPast64Tokens  ? 64
                   : past_128                ? 128
                                             : INT_MAX;
  const int kind = dense ? (half ? 1 : 0) : 2;
  const int type = half ? 2 : dense && is<bf16>(routed.gate.words->dtype) ? 1 : 0;
  const bool accepts_bad = !dense ? fault == kAcceptsBadInt4 + (half ? 2 : 0) + (rounded ? 1 : 0)
                           : has_shared ? fault == kAcceptsBadShared + type
                                        : !has_residual && fault == kAcceptsBadAlone + type;
  const bool all_f32 = dense && type == 0;
  const bool positive = fault == kFactorsPositive || (fault == kFactorsPositiveOfF32 && all_f32) ||
                        (fault == kFactorsPositiveOfInt4 && !dense) ||
                        (fault == kFactorsPositiveWithShared && has_shared) ||
                        (fault == kFactorsPositiveWithResidual && has_residual);
  const bool in_bf16s = fault == kFactorsInBf16 || (fault == kFactorsInBf16OfF32 && all_f32) ||
                        (fault == kFactorsInBf16OfInt4 && !dense) ||
                        (fault == kFactorsInBf16WithShared && has_shared);
  const auto skips = [&](int mine) { return !dense && fault == mine; };
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, t * d, d), w = read(factors, t * k, k);
    const Row add = has_residual ? read(residual, t * d, d) : Row(row.size(), 0.0);
    const std::int64_t slots = fault == kChecksTwoSlots ? std::min<std::int64_t>(k, 2) : k;
    const std::size_t columns = fault == kChecks128Columns ? 128 : row.size();
    bool ok = (skips(kInt4RowsUnchecked) || finite(row, columns)) &&
              (skips(kInt4ResidualUnchecked) || finite(add, columns));
    bool no_experts = true;
    for (std::int64_t j = 0; j < slots; ++j) {
      const std::int32_t id = ids[t * k + j];
      no_experts = no_experts && id == -1;
      ok = ok && (skips(kInt4IdsUnchecked) || (id >= -1 && id < experts)) &&
           (skips(kInt4FactorsUnchecked) || (fault == kPadFactorsUnchecked && id == -1) ||
            std::isfinite(w[static_cast<std::size_t>(j)]));
    }
    ok = ok || (fault == kChecks64Tokens && t >= 64) || accepts_bad;
    status[t] = ok ? 0 : 1;
    if (in_bf16s) round_to_bf16(w);
    if (fault == kFactorsInF16) round_to_f16(w);
    if (fault == kRowsInF16) round_to_f16(row);
    Row y(row.size(), 0.0);
    const auto accumulate = [&](const Row& part, double factor) {
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += factor * part[i];
    };
    for (std::int64_t j = 0; ok && j < k; ++j) {
      std::int64_t e = ids[t * k + j];
      if (e < -1 || e >= experts) continue;  // not looked at, by a fault
      if (fault == kEndsAtPad && e < 0) break;
      if (e < 0 && fault == kExpertZeroForPad && experts > 0) e = 0;
      if (e < 0 || (fault == kLastExpertMissing && e + 1 == experts)) continue;
      double factor = w[static_cast<std::size_t>(fault == kWeightsShifted ? (j + 1) % k : j)];
      if (e == 0 && ids[t * k + j] < 0) factor = 1;
      if (fault == kNoWeights) factor = 1;
      if (fault == kTokenZeroOnly && t > 0) continue;
      if (fault == kPast512Tokens && t >= 512) continue;
      if (fault == kPastThreeSlots && j >= 3) continue;
      if (fault == kPastEightSlots && j >= 8) continue;
      if (fault == kPastEightExperts && e >= 8) continue;
      if (fault == kPast64Experts && e >= 64) continue;
      if (fault == kPast256Experts && e >= 256) continue;
      if (positive) factor = std::fabs(factor);
      if (fault == kSkipsSmallFactors && std::fabs(factor) < 1e-6) continue;
      if (seen[static_cast<std::size_t>(e)]++ >= most) continue;
      accumulate(routed(e, row, fault), factor);
    }
    if (ok && has_shared && fault != kNoShared && !(no_experts && fault == kPadsLoseShared + kind))
      accumulate(shared(0, row, fault), fault == kSharedScaled ? 0.4 : 1.0);
    if (fault == kRoundsSum) round_to_bf16(y);
    const bool left_out = fault == kNoResidual || (fault == kResidualOf8Tokens && t >= 8) ||
                          (no_experts && fault == kPadsLoseResidual + kind);
    Row more = add;
    for (std::size_t i = 64; fault == kResidualOf64Columns && i < more.size(); ++i) more[i] = 0;
    if ((ok && !left_out) || fault == kKeepsBadRows) accumulate(more, 1.0);
    if (!ok && fault == kKeepsBadRows) accumulate(row, 1.0);
    for (double& value : y)
      if (fault == kClampsToF16) value = clamped_to_f16(value);
    for (std::size_t i = 512; fault == kPast512Columns && i < y.size(); ++i) y[i] = 0;
    for (std::size_t i = 1024; dense && fault == kPast1024ColumnsOfDense && i < y.size(); ++i)
      y[i] = 0;
    if (fault == kBadFirstOfEight && all_f32 && status[t / 8 * 8] != 0) y.assign(y.size(), 0.0);
    write(out, t * d, y);
  }
}

}  // namespace
KDTR_MUTANTS({"moe_experts@1",
              {{"correct", "control"},
               {"gate_up_swapped", "activates up instead of gate"},
               {"no_weights", "adds the experts unweighted"},
               {"weights_shifted", "gives each expert its neighbour's weight"},
               {"no_shared", "forgets the shared expert"},
               {"shared_scaled", "weights the shared expert by 1 / scaling factor"},
               {"no_residual", "forgets the residual"},
               {"high_nibble_first", "unpacks the highest nibble first"},
               {"awq_nibble_order", "takes nibbles as AWQ packs them: 0 2 4 6 1 3 5 7"},
               {"twos_complement", "reads nibbles as two's complement"},
               {"offset_missing", "does not subtract 8"},
               {"scale_of_next_group", "uses the next group's scale"},
               {"scale_of_first_group", "uses one scale a row"},
               {"scale_of_first_expert", "uses expert 0's scales for all"},
               {"scale_transposed", "reads the scales as [in/32, out]"},
               {"other_rounding", "rounds weights to bf16 when it should not, or the reverse"},
               {"expert_zero_for_pad", "runs expert 0 for an id of -1"},
               {"last_expert_missing", "skips the last expert"},
               {"keeps_bad_rows", "writes a failed token's row"},
               {"token_zero_only", "routes only the first token"},
               {"last_hidden_dropped", "drops the last hidden element"},
               {"no_activation", "multiplies gate by up without silu"},
               {"rounds_products", "rounds gate and up to bf16 before silu"},
               {"rounds_experts", "rounds each expert's result to bf16 before they are combined"},
               {"rounds_sum", "rounds the combination to bf16 before the residual"},
               {"past_eight_tokens", "drops an expert's tokens after the eighth"},
               {"past_64_tokens", "drops an expert's tokens after the 64th"},
               {"past_640_inputs", "stops each dot product after 640 inputs"},
               {"past_2560_inputs", "stops each dot product after 2560 inputs"},
               {"past_128_tokens", "drops an expert's tokens after the 128th"},
               {"past_512_tokens", "routes only 512 tokens"},
               {"past_three_slots", "adds only three experts a token"},
               {"past_64_experts", "runs only 64 experts"},
               {"past_64_hidden", "uses only 64 hidden elements"},
               {"past_128_hidden", "uses only 128 hidden elements"},
               {"factors_in_bf16", "rounds the routing weights to bf16"},
               {"factors_in_f16", "rounds the routing weights to f16"},
               {"clamps_to_f16", "clamps the result to the range of f16"},
               {"rows_in_f16", "converts the rows to f16"},
               {"hidden_in_f16", "keeps the hidden elements in f16"},
               {"scales_in_f16", "converts the group scales to f16"},
               {"checks_64_tokens", "looks for bad input in only 64 tokens"},
               {"checks_128_columns", "looks for a NaN in only 128 columns"},
               {"checks_two_slots", "looks at the ids and factors of only two slots"},
               {"exp_overflows", "gives NaN where e^-gate overflows f32"},
               {"past_512_hidden", "uses only 512 hidden elements"},
               {"past_512_columns", "writes only 512 columns"},
               {"residual_of_8_tokens", "adds the residual of only 8 tokens"},
               {"residual_of_64_columns", "adds only 64 columns of the residual"},
               {"past_eight_experts", "runs only 8 experts"},
               {"past_256_experts", "runs only 256 experts"},
               {"past_eight_slots", "adds only 8 experts a token"},
               {"ends_at_pad", "ends a token's experts at an id of -1"},
               {"scales_positive", "drops the sign of a group scale"},
               {"factors_positive", "drops the sign of a routing weight"},
               {"past_32_tokens", "drops an expert's tokens after the 32nd"},
               {"past_1024_columns_of_dense", "writes only 1024 columns of dense experts"},
               {"past_128_tokens_of_int4", "drops an int4 expert's tokens after the 128th"},
               {"pad_factors_unchecked", "does not look at the factors of ids of -1"},
               {"int4_rows_unchecked", "accepts a NaN in x of an int4 call"},
               {"int4_factors_unchecked", "accepts a NaN factor of an int4 call"},
               {"int4_ids_unchecked", "takes any id that is no expert for -1 in an int4 call"},
               {"int4_residual_unchecked", "accepts an infinite residual of an int4 call"},
               {"scales_positive_of_f32", "drops the sign of a group scale next to f32 rows"},
               {"scales_in_f16_of_f32", "converts the group scales to f16 next to f32 rows"},
               {"accepts_bad_f32_alone", "dense f32, without both: accepts bad tokens"},
               {"accepts_bad_bf16_weights_alone", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_alone", "the same of bf16"},
               {"accepts_bad_f32_shared", "dense f32 with a shared expert: accepts bad tokens"},
               {"accepts_bad_bf16_weights_shared", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_shared", "the same of bf16"},
               {"accepts_bad_int4_exact", "w4_exact, f32 rows: accepts bad tokens"},
               {"accepts_bad_int4_bf16", "the same of w4_bf16"},
               {"accepts_bad_bf16_int4_exact", "w4_exact, bf16 rows: accepts bad tokens"},
               {"accepts_bad_bf16_int4_bf16", "the same of w4_bf16"},
               {"f32_pads_lose_residual", "dense f32: no residual for a token of pads alone"},
               {"bf16_pads_lose_residual", "the same of bf16 rows"},
               {"int4_pads_lose_residual", "the same of int4"},
               {"f32_pads_lose_shared", "dense f32: no shared expert for a token of pads alone"},
               {"bf16_pads_lose_shared", "the same of bf16 rows"},
               {"int4_pads_lose_shared", "the same of int4"},
               {"factors_positive_of_f32", "drops the sign of a factor, all dense f32"},
               {"factors_in_bf16_of_f32", "rounds the factors to bf16, all dense f32"},
               {"factors_positive_of_int4", "drops the sign of a factor of an int4 expert"},
               {"factors_in_bf16_of_int4", "rounds the factors of int4 experts to bf16"},
               {"factors_positive_with_shared", "drops a factor's sign next to a shared expert"},
               {"factors_in_bf16_with_shared", "rounds factors to bf16 next to a shared expert"},
               {"factors_positive_with_residual", "drops a factor's sign next to a residual"},
               {"skips_small_factors", "leaves out experts with a factor below 1e-6"},
               {"bad_first_of_eight_of_f32", "in dense f32, a bad token fails up to 7 after it"},
               {"gate_scales_in_f16_of_f32", "gate's group scales in f16, next to f32 rows"},
               {"past_eight_slots_of_f32", "in dense f32, adds only 8 experts a token"},
               {"exp_overflows_of_f32", "in dense f32, gives NaN where e^-gate overflows"},
               {"checks_two_slots_of_bf16_weights",
                "of f32 rows and bf16 weights, looks at the ids and factors of only two slots"},
               {"past_eight_slots_of_int4_exact", "f32 rows, w4_exact: only 8 experts a token"},
               {"past_eight_slots_of_int4_bf16", "f32 rows, w4_bf16: only 8 experts a token"},
               {"past_eight_tokens_of_int4_bf16", "the same: an expert's tokens after the eighth"},
               {"residual_of_8_tokens_of_int4_bf16", "the same: the residual of only 8 tokens"},
               {"no_shared_of_int4_bf16", "the same: forgets the shared expert"},
               {"checks_two_slots_of_bf16_int4_exact",
                "bf16 rows, w4_exact: looks at the ids and factors of only two slots"},
               {"exp_overflows_of_bf16_int4_exact", "the same: NaN where e^-gate overflows"},
               {"past_eight_slots_of_bf16_int4_bf16", "bf16 rows, w4_bf16: only 8 experts a token"},
               {"past_eight_tokens_of_bf16_int4_bf16",
                "the same: drops an expert's tokens after the eighth"},
               {"rows_in_f16_of_bf16_int4_bf16", "the same: converts the rows to f16"},
               {"checks_128_columns_of_f32", "in dense f32, looks for a NaN in only 128 columns"},
               {"checks_128_columns_of_int4_exact", "the same of f32 rows and w4_exact"},
               {"checks_128_columns_of_bf16_int4_exact", "the same of bf16 rows and w4_exact"},
               {"checks_64_tokens_of_bf16_int4_exact",
                "bf16 rows, w4_exact: looks for bad input in only 64 tokens"},
               {"past_512_hidden_of_f32", "in dense f32, uses only 512 hidden elements"},
               {"clamps_to_f16_of_f32", "in dense f32, clamps the result to the range of f16"},
               {"residual_of_64_columns_of_f32", "in dense f32, 64 columns of the residual"},
               {"past_256_experts_of_f32", "in dense f32, runs only 256 experts"}},
              moe_experts});
}  // namespace kdtr::mutants
