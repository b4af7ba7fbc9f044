#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kSwapped,
  kPlainSigmoid,
  kNoActivation,
  kHard,
  kGelu,
  kOverflows,
  kTail,
  kRowZero,
  kBfloatExp,
  kKeepsBadRows,
  kClamped,
  kPast1024Elements,
  kPast64Tokens,
  kPast1024Tokens,
  kProductFirst,
  kClampsToF16,
  kRowsInF16,
  kExpInF16,
  kChecks64Tokens,
  kChecks1024Elements,
  kMinusInfAccepted,
  kPast256OfVectors,
  kChecks256OfVectors,
  kNothingWithoutColumns,
  kUpUncheckedInF16,
  kGateUnchecked,  // in one branch: the first of six
};

void silu_mul(Call& call, int fault) {
  const DLTensor& gate = call.any("gate", KDTR_IN, "T N");
  const DLTensor& up = call.any("up", KDTR_IN, "T N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t n = call.dim("N");
  const bool narrow_vectors = gate.dtype.bits == 16 && branch(gate) % 2 == 1;
  if (fault == kNothingWithoutColumns && n == 0) return;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row g = read(gate, t * n, n);
    const Row u = read(up, (fault == kRowZero ? 0 : t) * n, n);
    const std::size_t looked_at = fault == kChecks1024Elements                     ? 1024
                                  : fault == kChecks256OfVectors && narrow_vectors ? 256
                                                                                   : g.size();
    const auto good = [&](const Row& row) {
      return finite(row, looked_at, fault == kMinusInfAccepted);
    };
    const bool gate_ok = good(g) || fault - kGateUnchecked == branch(gate);
    const bool up_ok =
        good(read(up, t * n, n)) || (fault == kUpUncheckedInF16 && is<f16>(up.dtype));
    const bool ok = (gate_ok && up_ok) || (fault == kChecks64Tokens && t >= 64);
    status[t] = ok ? 0 : 1;
    Row y(g.size(), 0.0);
    for (std::size_t i = 0; i < y.size() && (ok || fault == kKeepsBadRows); ++i) {
      double a = fault == kSwapped ? u[i] : g[i], b = fault == kSwapped ? g[i] : u[i];
      if (fault == kRowsInF16) {
        a = clamped_to_f16(in_f16(a));
        b = clamped_to_f16(in_f16(b));
      }
      double s = a * logistic(a);
      if (fault == kPlainSigmoid) s = logistic(a);
      if (fault == kNoActivation) s = a;
      if (fault == kHard) s = a * std::min(1.0, std::max(0.0, a / 6 + 0.5));
      if (fault == kGelu) s = a * logistic(1.702 * a);
      if (fault == kOverflows && a < -88) s = std::nan("");
      if (fault == kBfloatExp)
        s = a / (1 + double{static_cast<float>(bf16(static_cast<float>(std::exp(-a))))});
      if (fault == kClamped) s = a * logistic(std::max(a, -8.0));
      if (fault == kExpInF16) s = a / (1 + in_f16(std::exp(-a)));
      y[i] = s * b;
      if (fault == kProductFirst) y[i] = double{static_cast<float>(a * b)} * logistic(a);
      if (fault == kClampsToF16) y[i] = clamped_to_f16(y[i]);
      if ((fault == kPast1024Elements && i >= 1024) || (fault == kPast64Tokens && t >= 64) ||
          (fault == kPast1024Tokens && t >= 1024) ||
          (fault == kPast256OfVectors && i >= 256 && narrow_vectors))
        y[i] = 0;
      if (fault == kTail && i >= y.size() / 8 * 8) y[i] = 0;
    }
    write(out, t * n, y);
  }
}

}  // namespace
KDTR_MUTANTS(
    {"silu_mul@1",
     {{"correct", "control"},
      {"swapped", "activates up instead of gate"},
      {"plain_sigmoid", "uses sigmoid(gate) alone"},
      {"no_activation", "multiplies gate by up"},
      {"hard", "uses the hard swish"},
      {"gelu", "uses the sigmoid form of GELU"},
      {"overflows", "gives NaN where e^-x overflows f32"},
      {"tail", "leaves the last N mod 8 elements 0"},
      {"row_zero", "reads up's first row for every token"},
      {"bf16_exp", "rounds e^-x to bf16"},
      {"keeps_bad_rows", "writes NaN for a row that holds one"},
      {"clamped", "clamps gate at -8 inside the sigmoid"},
      {"past_1024_elements", "handles only 1024 elements of a row"},
      {"past_64_tokens", "handles only 64 tokens"},
      {"past_1024_tokens", "handles only 1024 tokens"},
      {"product_first", "multiplies gate by up in f32 before the sigmoid"},
      {"clamps_to_f16", "clamps the result to the range of f16"},
      {"rows_in_f16", "converts gate and up to f16"},
      {"exp_in_f16", "keeps e^-x in f16"},
      {"checks_64_tokens", "looks for bad input in only 64 tokens"},
      {"checks_1024_elements", "looks for bad input in only 1024 elements"},
      {"minus_inf_accepted", "takes -inf for a number"},
      {"past_256_of_vectors", "handles only 256 elements of 16 bits in whole vectors"},
      {"checks_256_of_vectors", "looks for bad input in only 256 elements of 16 bits in vectors"},
      {"nothing_without_columns", "writes nothing when rows are empty"},
      {"f16_up_unchecked", "does not look for bad input in up in f16"},
      {"f32_odd_unchecked", "does not look at gate in f32, in rows of an odd width"},
      {"f32_vectors_unchecked", "does not look at gate in f32, in rows of whole vectors"},
      {"bf16_odd_unchecked", "does not look at gate in bf16, in rows of an odd width"},
      {"bf16_vectors_unchecked", "does not look at gate in bf16, in rows of whole vectors"},
      {"f16_odd_unchecked", "does not look at gate in f16, in rows of an odd width"},
      {"f16_vectors_unchecked", "does not look at gate in f16, in rows of whole vectors"}},
     silu_mul});
}  // namespace kdtr::mutants
