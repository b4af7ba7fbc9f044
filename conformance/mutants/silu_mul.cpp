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
};

void silu_mul(Call& call, int fault) {
  const DLTensor& gate = call.any("gate", KDTR_IN, "T N");
  const DLTensor& up = call.any("up", KDTR_IN, "T N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t n = call.dim("N");
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row g = read(gate, t * n, n);
    const Row u = read(up, (fault == kRowZero ? 0 : t) * n, n);
    const bool ok = finite(g) && finite(read(up, t * n, n));
    status[t] = ok ? 0 : 1;
    Row y(g.size(), 0.0);
    for (std::size_t i = 0; i < y.size() && (ok || fault == kKeepsBadRows); ++i) {
      const double a = fault == kSwapped ? u[i] : g[i], b = fault == kSwapped ? g[i] : u[i];
      double s = a * logistic(a);
      if (fault == kPlainSigmoid) s = logistic(a);
      if (fault == kNoActivation) s = a;
      if (fault == kHard) s = a * std::min(1.0, std::max(0.0, a / 6 + 0.5));
      if (fault == kGelu) s = a * logistic(1.702 * a);
      if (fault == kOverflows && a < -88) s = std::nan("");
      if (fault == kBfloatExp)
        s = a / (1 + double{static_cast<float>(bf16(static_cast<float>(std::exp(-a))))});
      if (fault == kClamped) s = a * logistic(std::max(a, -8.0));
      y[i] = s * b;
      if (fault == kTail && i >= y.size() / 8 * 8) y[i] = 0;
    }
    write(out, t * n, y);
  }
}

}  // namespace
KDTR_MUTANTS({"silu_mul@1",
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
               {"clamped", "clamps gate at -8 inside the sigmoid"}},
              silu_mul});
}  // namespace kdtr::mutants
