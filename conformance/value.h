// Elements of a tensor as bits, numbers and text. Sub-byte types are LSB-first (docs/format.md).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "kdtr/tensor.h"

namespace kdtr::conform {

inline bool is_float(DLDataType t) { return (t.code == 2 && t.bits >= 16) || t.code == 4; }
inline bool is_integer(DLDataType t) { return t.code == 0 || t.code == 1 || t.code == 6; }

inline std::size_t byte_size(DLDataType t, std::int64_t numel) {
  return static_cast<std::size_t>((numel * t.bits + 7) / 8);
}

// Little-endian host. Complex elements wider than 64 bits give their low half.
inline std::uint64_t bits_at(DLDataType t, const std::byte* data, std::int64_t i) {
  if (t.bits < 8) {
    std::uint64_t bits = 0;
    for (int b = 0; b < t.bits; ++b) {
      const std::int64_t at = i * t.bits + b;
      const auto byte = static_cast<unsigned>(data[at / 8]);
      bits |= static_cast<std::uint64_t>((byte >> (at % 8)) & 1u) << b;
    }
    return bits;
  }
  const std::size_t size = t.bits / 8u;
  std::uint64_t bits = 0;
  std::memcpy(&bits, data + static_cast<std::size_t>(i) * size, size < 8 ? size : 8);
  return bits;
}

inline std::int64_t int_from(DLDataType t, std::uint64_t bits) {
  if (t.code != 0 || t.bits == 0 || t.bits >= 64) return static_cast<std::int64_t>(bits);
  const int shift = 64 - t.bits;
  return static_cast<std::int64_t>(bits << shift) >> shift;
}

inline double float_from(DLDataType t, std::uint64_t bits) {
  if (t.code == 4) {
    bf16 v;
    v.bits = static_cast<std::uint16_t>(bits);
    return static_cast<double>(static_cast<float>(v));
  }
  if (t.bits == 16) {
    f16 v;
    v.bits = static_cast<std::uint16_t>(bits);
    return static_cast<double>(static_cast<float>(v));
  }
  if (t.bits == 32)
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  return std::bit_cast<double>(bits);
}

inline double float_at(DLDataType t, const std::byte* data, std::int64_t i) {
  return float_from(t, bits_at(t, data, i));
}

// Bits of `value` rounded to nearest even in `t` (16-bit types round from double by way of odd
// rounding to float, so only once).
inline std::uint64_t round_to(DLDataType t, double value) {
  if (t.bits == 64) return std::bit_cast<std::uint64_t>(value);
  auto narrow = static_cast<float>(value);
  if (t.bits == 32) return std::bit_cast<std::uint32_t>(narrow);
  if (std::isfinite(narrow) && static_cast<double>(narrow) != value) {
    auto u = std::bit_cast<std::uint32_t>(narrow);
    // Truncate toward zero, then make the last bit sticky.
    if (std::fabs(static_cast<double>(narrow)) > std::fabs(value)) --u;
    narrow = std::bit_cast<float>(u | 1u);
  }
  return t.code == 4 ? bf16(narrow).bits : f16(narrow).bits;
}

// Distance in units of the last place on the grid of `t`; both are bits of `t`, not NaN.
inline std::uint64_t ulps(DLDataType t, std::uint64_t a, std::uint64_t b) {
  const auto ordered = [&](std::uint64_t u) {
    const std::uint64_t sign = 1ull << (t.bits - 1);
    const auto magnitude = static_cast<std::int64_t>(u & (sign - 1));
    return (u & sign) != 0 ? -magnitude : magnitude;
  };
  const auto x = static_cast<std::uint64_t>(ordered(a)), y = static_cast<std::uint64_t>(ordered(b));
  return static_cast<std::int64_t>(x - y) < 0 ? y - x : x - y;
}

inline std::string show_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

inline std::string show_bits(DLDataType t, std::uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", (t.bits + 3) / 4,
                static_cast<unsigned long long>(bits));
  return text;
}

inline std::string show(DLDataType t, std::uint64_t bits) {
  if (is_float(t)) {
    if (t.bits == 64 && std::isfinite(float_from(t, bits))) {
      char text[40];
      std::snprintf(text, sizeof text, "%.17g", float_from(t, bits));
      return text;
    }
    return show_double(float_from(t, bits));
  }
  if (t.code == 1 || t.code == 6) return std::to_string(bits);
  if (t.code == 0) return std::to_string(int_from(t, bits));
  return show_bits(t, bits);
}

}  // namespace kdtr::conform
