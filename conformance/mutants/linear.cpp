#include <bit>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kTransposed,
  kNoResidual,
  kResidualTwice,
  kTail,
  kBfloatRows,
  kBfloatSum,
  kRowZero,
  kLastColumn,
  kTokenLimit,
  kKeepsBadRows,
  kBfloatPartial,
  kCutStore,
  kPast64Outputs,
  kPast128Outputs,
  kPast128Tokens,
  kResidualInBfloat,
  kNoInputsZero,
  kClampsToF16,
  kThroughF16,
  kRowsInF16,
  kWeightsInF16,
  kPast512Tokens,
  kPast1024Outputs,
  kPast1024Inputs,
  kPast4096Inputs,
  kResidualOf64Tokens,
  kResidualOf64Outputs,
  kChecks128Inputs,
  kChecks64Outputs,
  kChecks128Tokens,
  kPast8By32,
  // Of each of four types: f32, f32 with bf16 weights, bf16, bf16 to f32.
  kAcceptsBadAlone,
  kAcceptsBadResidual = kAcceptsBadAlone + 4,
  kPast256Residual = kAcceptsBadResidual + 4,
  kOnlyIn = kPast256Residual + 4,  // a fault above, in one branch: the first of kOnly
};
struct Only {
  int fault, type;
  bool residual;
};
constexpr Only kOnly[] = {
    {kPast128Outputs, 1, false},  {kWeightsInF16, 1, false},    {kChecks128Tokens, 0, false},
    {kChecks128Tokens, 1, false}, {kChecks128Tokens, 2, false}, {kChecks128Tokens, 3, false},
    {kChecks128Tokens, 1, true},  {kChecks128Inputs, 0, false}, {kChecks128Inputs, 2, false},
};

// Sums of 16 products, added in bf16.
Row partly_in_bf16(const DLTensor& w, std::int64_t n, const Row& x) {
  Row y(static_cast<std::size_t>(n), 0.0);
  const auto k = static_cast<std::int64_t>(x.size());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      double& sum = y[static_cast<std::size_t>(i)];
      sum += load(w, i * k + j) * x[static_cast<std::size_t>(j)];
      if (j % 16 == 15) sum = static_cast<float>(bf16(static_cast<float>(sum)));
    }
  return y;
}

double cut(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

void linear(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T K");
  const DLTensor& weight = call.any("weight", KDTR_IN, "N K");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t n = call.dim("N"), k = call.dim("K");
  const bool has_residual = call.has("residual", KDTR_IN);
  const DLTensor& residual = has_residual ? call.any("residual", KDTR_IN, "T N") : x;
  const int type =
      is<float>(x.dtype) ? (is<float>(weight.dtype) ? 0 : 1) : (is<bf16>(out.dtype) ? 2 : 3);
  if (fault >= kOnlyIn) {
    const Only& only = kOnly[fault - kOnlyIn];
    fault = only.type == type && only.residual == has_residual ? only.fault : kCorrect;
  }
  const bool accepts_bad = fault == (has_residual ? kAcceptsBadResidual : kAcceptsBadAlone) + type;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, (fault == kRowZero ? 0 : t) * k, k);
    const Row add = has_residual ? read(residual, t * n, n) : Row(static_cast<std::size_t>(n), 0.0);
    const bool ok = (finite(read(x, t * k, k), fault == kChecks128Inputs ? 128 : row.size()) &&
                     finite(add, fault == kChecks64Outputs ? 64 : add.size())) ||
                    (fault == kChecks128Tokens && t >= 128) || accepts_bad;
    status[t] = ok ? 0 : 1;
    if (fault == kBfloatRows)
      for (double& v : row) v = static_cast<float>(bf16(static_cast<float>(v)));
    if (fault == kRowsInF16)
      for (double& v : row) v = clamped_to_f16(in_f16(v));
    const bool ends = has_residual && fault == kPast256Residual + type;
    const std::size_t terms = ends                       ? 256
                              : fault == kTail           ? row.size() / 16 * 16
                              : fault == kPast1024Inputs ? 1024
                              : fault == kPast4096Inputs ? 4096
                                                         : row.size();
    Row y = multiply(weight, 0, n, row, terms);
    if (fault == kBfloatPartial) y = partly_in_bf16(weight, n, row);
    if (fault == kTransposed)
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j)
          sum += load(weight, (j * n + i) % (n * k)) * row[static_cast<std::size_t>(j)];
        y[static_cast<std::size_t>(i)] = sum;
      }
    if (fault == kWeightsInF16)
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j)
          sum += clamped_to_f16(in_f16(load(weight, i * k + j))) * row[static_cast<std::size_t>(j)];
        y[static_cast<std::size_t>(i)] = sum;
      }
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (fault == kBfloatSum) y[i] = static_cast<float>(bf16(static_cast<float>(y[i])));
      double more = fault == kResidualInBfloat ? in_bf16(add[i]) : add[i];
      if ((fault == kResidualOf64Tokens && t >= 64) || (fault == kResidualOf64Outputs && i >= 64))
        more = 0;
      if (fault != kNoResidual) y[i] += more * (fault == kResidualTwice ? 2 : 1);
      const bool left_out =
          (fault == kLastColumn && i + 1 == y.size()) || (fault == kPast64Outputs && i >= 64) ||
          (fault == kPast128Outputs && i >= 128) || (fault == kTokenLimit && t >= 64) ||
          (fault == kPast128Tokens && t >= 128) || (fault == kPast512Tokens && t >= 512) ||
          (fault == kPast1024Outputs && i >= 1024) || (fault == kNoInputsZero && k == 0) ||
          (fault == kPast8By32 && is<float>(x.dtype) && t >= 8 && i >= 32);
      if (left_out) y[i] = 0;
      if (fault == kClampsToF16) y[i] = clamped_to_f16(y[i]);
      if (fault == kThroughF16) y[i] = in_f16(y[i]);
      if (!ok && fault != kKeepsBadRows) y[i] = 0;
      if (fault == kCutStore) y[i] = cut(y[i]);
    }
    write(out, t * n, y);
  }
}

}  // namespace
KDTR_MUTANTS({"linear@1",
              {{"correct", "control"},
               {"transposed", "reads the weights as [in, out]"},
               {"no_residual", "forgets the residual"},
               {"residual_twice", "adds the residual twice"},
               {"tail", "leaves the last K mod 16 inputs out"},
               {"bf16_rows", "rounds the rows to bf16"},
               {"bf16_sum", "rounds the product to bf16"},
               {"row_zero", "reads the first row for every token"},
               {"last_column", "never writes the last output"},
               {"token_limit", "handles only 64 tokens"},
               {"keeps_bad_rows", "writes NaN for a row that holds one"},
               {"bf16_partial", "keeps partial sums in bf16"},
               {"cut_store", "cuts the result to bf16 instead of rounding it"},
               {"past_64_outputs", "writes only 64 outputs"},
               {"past_128_outputs", "writes only 128 outputs"},
               {"past_128_tokens", "handles only 128 tokens"},
               {"residual_in_bf16", "rounds the residual to bf16"},
               {"no_inputs_zero", "gives 0 where there are no inputs"},
               {"clamps_to_f16", "clamps the result to the range of f16"},
               {"through_f16", "rounds the result to f16"},
               {"rows_in_f16", "converts the rows to f16"},
               {"weights_in_f16", "converts the weights to f16"},
               {"past_512_tokens", "handles only 512 tokens"},
               {"past_1024_outputs", "writes only 1024 outputs"},
               {"past_1024_inputs", "stops each sum after 1024 inputs"},
               {"past_4096_inputs", "stops each sum after 4096 inputs"},
               {"residual_of_64_tokens", "adds the residual of only 64 tokens"},
               {"residual_of_64_outputs", "adds the residual of only 64 outputs"},
               {"checks_128_inputs", "looks for a NaN in only 128 inputs"},
               {"checks_64_outputs", "looks for a NaN in the residual of only 64 outputs"},
               {"checks_128_tokens", "looks for a NaN in only 128 tokens"},
               {"past_8_by_32", "in f32, drops the outputs past 32 of tokens past 8"},
               {"accepts_bad_f32_alone", "in f32 without a residual, accepts bad rows"},
               {"accepts_bad_bf16_weights_alone", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_alone", "the same of bf16"},
               {"accepts_bad_bf16_to_f32_alone", "the same of bf16 stored as f32"},
               {"accepts_bad_f32_residual", "in f32 with a residual, accepts bad rows"},
               {"accepts_bad_bf16_weights_residual", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_residual", "the same of bf16"},
               {"accepts_bad_bf16_to_f32_residual", "the same of bf16 stored as f32"},
               {"past_256_f32_residual", "in f32 with a residual, stops after 256 inputs"},
               {"past_256_bf16_weights_residual", "the same of f32 rows and bf16 weights"},
               {"past_256_bf16_residual", "the same of bf16"},
               {"past_256_bf16_to_f32_residual", "the same of bf16 stored as f32"},
               {"past_128_outputs_bf16_weights",
                "of f32 rows and bf16 weights without a residual, writes only 128 outputs"},
               {"weights_in_f16_bf16_weights", "the same: converts the weights to f16"},
               {"checks_128_tokens_f32_alone",
                "in f32 without a residual, looks for a NaN in only 128 tokens"},
               {"checks_128_tokens_bf16_weights_alone", "the same of f32 rows and bf16 weights"},
               {"checks_128_tokens_bf16_alone", "the same of bf16"},
               {"checks_128_tokens_bf16_to_f32_alone", "the same of bf16 stored as f32"},
               {"checks_128_tokens_bf16_weights_residual",
                "of f32 rows and bf16 weights with a residual, looks for a NaN in only 128 tokens"},
               {"checks_128_inputs_f32_alone",
                "in f32 without a residual, looks for a NaN in only 128 inputs"},
               {"checks_128_inputs_bf16_alone", "the same of bf16"}},
              linear});
}  // namespace kdtr::mutants
