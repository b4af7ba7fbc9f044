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
};

// Sums of 16 products, added in bf16.
Row in_bf16(const DLTensor& w, std::int64_t n, const Row& x) {
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
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, (fault == kRowZero ? 0 : t) * k, k);
    const Row add = has_residual ? read(residual, t * n, n) : Row(static_cast<std::size_t>(n), 0.0);
    const bool ok = finite(read(x, t * k, k)) && finite(add);
    status[t] = ok ? 0 : 1;
    if (fault == kBfloatRows)
      for (double& v : row) v = static_cast<float>(bf16(static_cast<float>(v)));
    Row y = multiply(weight, 0, n, row, fault == kTail ? row.size() / 16 * 16 : row.size());
    if (fault == kBfloatPartial) y = in_bf16(weight, n, row);
    if (fault == kTransposed)
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j)
          sum += load(weight, (j * n + i) % (n * k)) * row[static_cast<std::size_t>(j)];
        y[static_cast<std::size_t>(i)] = sum;
      }
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (fault == kBfloatSum) y[i] = static_cast<float>(bf16(static_cast<float>(y[i])));
      if (fault != kNoResidual) y[i] += add[i] * (fault == kResidualTwice ? 2 : 1);
      if ((fault == kLastColumn && i + 1 == y.size()) || (fault == kTokenLimit && t >= 64))
        y[i] = 0;
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
               {"cut_store", "cuts the result to bf16 instead of rounding it"}},
              linear});
}  // namespace kdtr::mutants
