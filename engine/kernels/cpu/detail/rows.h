// Rows of floats on the CPU: widening, dot products in a fixed order, finiteness.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kdtr/op_call.h"

namespace kdtr::cpu {

template <class T>
float widen(T value) {
  return static_cast<float>(value);
}

template <class T>
T* data(const DLTensor& tensor) {
  if (tensor.data == nullptr) return nullptr;
  return reinterpret_cast<T*>(static_cast<std::byte*>(tensor.data) + tensor.byte_offset);
}

// Calls f with a null pointer of the tensor's element type: f32, bf16 or f16.
template <class F>
void by_float(const Call& call, const char* name, const DLTensor& tensor, F&& f) {
  if (is<float>(tensor.dtype)) return f(static_cast<float*>(nullptr));
  if (is<bf16>(tensor.dtype)) return f(static_cast<bf16*>(nullptr));
  if (is<f16>(tensor.dtype)) return f(static_cast<f16*>(nullptr));
  fail(call.where(name), "dtype", "f32, bf16 or f16", dtype_name(tensor.dtype));
}

// The same for weights: f32 or bf16.
template <class F>
void by_weight(const Call& call, const char* name, const DLTensor& tensor, F&& f) {
  if (is<float>(tensor.dtype)) return f(static_cast<float*>(nullptr));
  if (is<bf16>(tensor.dtype)) return f(static_cast<bf16*>(nullptr));
  fail(call.where(name), "dtype", "f32 or bf16", dtype_name(tensor.dtype));
}

// Calls f with null pointers of the types of x and of the weights: f32 and f32 or bf16, or bf16
// both.
template <class F>
void by_rows(const Call& call, const char* name, const DLTensor& x, const char* weight,
             const DLTensor& w, F&& f) {
  by_weight(call, name, x, [&]<class X>(X* rows) {
    by_weight(call, weight, w, [&]<class W>(W* weights) {
      if constexpr (std::is_same_v<X, bf16> && !std::is_same_v<W, bf16>) {
        fail(call.where(weight), "dtype", "bf16, as x", dtype_name(w.dtype));
      } else {
        f(rows, weights);
      }
    });
  });
}

inline void require_dtype(const Call& call, const char* name, const DLTensor& tensor,
                          DLDataType want) {
  KDTR_CHECK(same(tensor.dtype, want), call.where(name), "dtype", dtype_name(want),
             dtype_name(tensor.dtype));
}

template <class T>
bool finite(const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (!std::isfinite(widen(x[i]))) return false;
  return true;
}

// Sum of x[i] * w[i * stride]: sixteen running sums, added in order. The same bits for a row
// whatever the batch.
template <class X, class W>
float dot(const X* x, const W* w, std::int64_t n) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) sums[j] += widen(x[i + j]) * widen(w[i + j]);
  for (int j = 0; i < n; ++i, ++j) sums[j] += widen(x[i]) * widen(w[i]);
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

// y[n] = W[n, k] x[k].
template <class X, class W>
void apply(const X* x, const W* w, std::int64_t n, std::int64_t k, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = dot(x, w + i * k, k);
}

// 1 / sqrt(mean(x^2) + eps).
template <class X>
float rms_factor(const X* x, std::int64_t n, float eps) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) sums[i % kLanes] += widen(x[i]) * widen(x[i]);
  float sum = 0;
  for (const float s : sums) sum += s;
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

inline float silu(float x) { return x / (1.0f + std::exp(-x)); }

// The factors of one position: cosine[f], sine[f], times scale, of the angle rounded to f32.
inline void angles(std::int32_t position, const float* inv_freq, std::int64_t f, float scale,
                   float* cosine, float* sine) {
  for (std::int64_t i = 0; i < f; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cosine[i] = scale * std::cos(angle);
    sine[i] = scale * std::sin(angle);
  }
}

// One head's pairs (2i, 2i+1), stored interleaved or in halves.
template <class X, class Y>
void rotate(const X* x, const float* cosine, const float* sine, std::int64_t f, bool halves, Y* y) {
  for (std::int64_t i = 0; i < f; ++i) {
    const float a = widen(x[2 * i]), b = widen(x[2 * i + 1]);
    y[halves ? i : 2 * i] = Y(a * cosine[i] - b * sine[i]);
    y[halves ? f + i : 2 * i + 1] = Y(b * cosine[i] + a * sine[i]);
  }
}

inline bool halves(const Call& call) {
  const std::string_view store = call.attr_str("store");
  KDTR_CHECK(store == "interleaved" || store == "halves", call.where("store"), "attribute",
             "interleaved or halves", store);
  return store == "halves";
}

}  // namespace kdtr::cpu
