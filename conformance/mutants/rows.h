// What the transformer mutants share: rows of any float type as doubles, and how they fail.
#pragma once

#include <cmath>
#include <vector>

#include "mutant.h"

namespace kdtr::mutants {

using Row = std::vector<double>;

inline Row read(const DLTensor& tensor, std::int64_t first, std::int64_t count) {
  Row row(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    row[static_cast<std::size_t>(i)] = load(tensor, first + i);
  return row;
}

// Whether the first `count` values are finite, or -inf where that is `accepted`.
inline bool finite(const Row& row, std::size_t count = static_cast<std::size_t>(-1),
                   bool accepted = false) {
  for (std::size_t i = 0; i < row.size() && i < count; ++i)
    if (!std::isfinite(row[i]) && !(accepted && row[i] == -kInf)) return false;
  return true;
}

// The branch of a kernel that x takes: f32, bf16 or f16 rows; odd, or of whole 16-byte vectors.
inline int branch(const DLTensor& x) {
  const bool vectors = x.shape[x.ndim - 1] * x.dtype.bits % 128 == 0;
  return (is<bf16>(x.dtype) ? 2 : is<f16>(x.dtype) ? 4 : 0) + (vectors ? 1 : 0);
}

inline void write(const DLTensor& tensor, std::int64_t first, const Row& row) {
  for (std::size_t i = 0; i < row.size(); ++i)
    store(tensor, first + static_cast<std::int64_t>(i), row[i]);
}

// y[i] = sum_j w[first + i * k + j] x[j], the first `terms` of them.
inline Row multiply(const DLTensor& w, std::int64_t first, std::int64_t n, const Row& x,
                    std::size_t terms = static_cast<std::size_t>(-1)) {
  Row y(static_cast<std::size_t>(n), 0.0);
  const auto k = static_cast<std::int64_t>(x.size());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k && static_cast<std::size_t>(j) < terms; ++j)
      y[static_cast<std::size_t>(i)] += load(w, first + i * k + j) * x[static_cast<std::size_t>(j)];
  return y;
}

inline double in_bf16(double x) { return static_cast<float>(bf16(static_cast<float>(x))); }
inline double in_f16(double x) { return static_cast<float>(f16(static_cast<float>(x))); }
inline double clamped_to_f16(double x) { return std::fmin(65504.0, std::fmax(-65504.0, x)); }

inline double logistic(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

}  // namespace kdtr::mutants
