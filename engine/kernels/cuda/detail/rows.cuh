// Rows of logits read once, 16 bytes at a time, from any alignment; and keys that order them.
#pragma once

#include "floats.cuh"

namespace kdtr::cuda {

constexpr std::uint32_t kMinusInf = 0x007FFFFFu;  // ordered(-inf)

// Order-preserving bits: greater value, greater bits. -0 must be made +0 before.
__device__ inline std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float unordered(std::uint32_t bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

// Elements of a 16-byte vector, and the leading key bits that tell values of the type apart.
template <class T>
struct Lanes {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  static constexpr int kKeyBits = sizeof(T) == 4 ? 32 : std::is_same_v<T, __half> ? 19 : 16;
  static constexpr std::uint32_t kFill =  // -inf in every element
      sizeof(T) == 4              ? 0xFF800000u
      : std::is_same_v<T, __half> ? 0xFC00FC00u
                                  : 0xFF80FF80u;
};

template <class T>
__device__ float element(const uint4& v, int i) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(words[i]);
  } else {
    const std::uint32_t word = words[i / 2];
    if constexpr (std::is_same_v<T, __half>) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (i % 2 * 16))));
    } else {
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    }
  }
}

__device__ inline std::uint32_t nan_max(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 x = __hmax2_nan(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                       *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&x);
}
__device__ inline std::uint32_t nan_max(std::uint32_t a, std::uint32_t b, __half) {
  const __half2 x =
      __hmax2_nan(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&x);
}

// 16 bytes from an address that is not a multiple of 16; the 32 bytes around it are readable.
__device__ inline uint4 load_shifted(const void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const uint4* base = reinterpret_cast<const uint4*>(address & ~std::uintptr_t{15});
  const uint4 a = __ldg(base), b = __ldg(base + 1);
  std::uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if ((address & 4) != 0) {
#pragma unroll
    for (int i = 0; i < 7; ++i) w[i] = w[i + 1];
  }
  if ((address & 8) != 0) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 2];
  }
  const auto bits = static_cast<std::uint32_t>(address & 3) * 8;
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
          __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

// The first `count` elements from `at`, one by one; -inf in the place of the others.
template <class T>
__device__ uint4 load_edge(const T* at, std::int64_t count) {
  std::uint32_t words[4] = {Lanes<T>::kFill, Lanes<T>::kFill, Lanes<T>::kFill, Lanes<T>::kFill};
#pragma unroll
  for (int i = 0; i < Lanes<T>::kCount; ++i) {
    if (i >= count) break;
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(at[i]);
    } else {
      const std::uint32_t bits = reinterpret_cast<const unsigned short*>(at)[i];
      const int shift = i % 2 * 16;
      words[i / 2] = (words[i / 2] & ~(0xFFFFu << shift)) | bits << shift;
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// One whole vector, or what is left of the row; -inf past its end. `aligned`: the row starts at a
// multiple of 16 bytes. Nothing outside the tensor [begin, end) is read.
template <class T>
__device__ uint4 load_vector(const T* at, std::int64_t left, bool aligned, const T* begin,
                             const T* end) {
  constexpr int kCount = Lanes<T>::kCount;
  if (aligned && left >= kCount) return __ldg(reinterpret_cast<const uint4*>(at));
  if (left >= kCount && at - kCount >= begin && at + 2 * kCount <= end) return load_shifted(at);
  return load_edge(at, left);
}

}  // namespace kdtr::cuda
