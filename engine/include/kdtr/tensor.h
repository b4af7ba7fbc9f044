// Element types and dense views of tensors. Shapes are outermost first, C order.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "kdtr/plugin.h"

namespace kdtr {

// bfloat16 and IEEE half as storage; arithmetic is done in float or double.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7E00u);
    } else if (magnitude >= 0x47800000u) {  // 65536 and above
      bits = static_cast<std::uint16_t>(sign | 0x7C00u);
    } else if (magnitude < 0x38800000u) {  // below 2^-14: add 0.5 so that the FPU rounds
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      bits =
          static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
    } else {
      const std::uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
      bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
    }
  }
  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0) {
      const float value = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
};

template <class T>
inline constexpr DLDataType dtype_of{};
template <>
inline constexpr DLDataType dtype_of<bool>{6, 8, 1};
template <>
inline constexpr DLDataType dtype_of<std::uint8_t>{1, 8, 1};
template <>
inline constexpr DLDataType dtype_of<std::uint16_t>{1, 16, 1};
template <>
inline constexpr DLDataType dtype_of<std::uint32_t>{1, 32, 1};
template <>
inline constexpr DLDataType dtype_of<std::uint64_t>{1, 64, 1};
template <>
inline constexpr DLDataType dtype_of<std::int8_t>{0, 8, 1};
template <>
inline constexpr DLDataType dtype_of<std::int16_t>{0, 16, 1};
template <>
inline constexpr DLDataType dtype_of<std::int32_t>{0, 32, 1};
template <>
inline constexpr DLDataType dtype_of<std::int64_t>{0, 64, 1};
template <>
inline constexpr DLDataType dtype_of<f16>{2, 16, 1};
template <>
inline constexpr DLDataType dtype_of<float>{2, 32, 1};
template <>
inline constexpr DLDataType dtype_of<double>{2, 64, 1};
template <>
inline constexpr DLDataType dtype_of<bf16>{4, 16, 1};

inline constexpr bool same(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

template <class T>
inline constexpr bool is(DLDataType dtype) {
  return same(dtype, dtype_of<T>);
}

inline std::string dtype_name(DLDataType dtype) {
  const std::string bits = std::to_string(dtype.bits);
  switch (dtype.code) {
    case 0:
      return "i" + bits;
    case 1:
      return "u" + bits;
    case 2:
      return "f" + bits;
    case 4:
      return "bf" + bits;
    case 5:
      return "c" + bits;
    case 6:
      return "bool";
    default:
      return "code" + std::to_string(dtype.code) + "x" + bits;
  }
}

// A dense view: data, and a shape that lives as long as the call.
template <class T>
struct Array {
  T* data = nullptr;
  int rank = 0;
  const std::int64_t* shape = nullptr;

  std::int64_t dim(int axis) const { return shape[axis]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  T& operator[](std::int64_t i) const { return data[i]; }
};

inline constexpr float kInfF = std::numeric_limits<float>::infinity();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace kdtr
