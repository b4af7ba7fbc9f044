// Storage types of the kernels and their conversion to and from f32; one rounding, to nearest even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kdtr/cuda.h"
#include "kdtr/op_call.h"

namespace kdtr::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Neighbouring elements, loaded and stored together.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};
// Of 16 bytes of X: the elements of a pack, and whether rows of n elements from `at` on are packs.
template <class X>
constexpr int kPacked = 16 / static_cast<int>(sizeof(X));
template <class X, class T>
bool in_packs(const T* at, std::int64_t n) {
  return n % kPacked<X> == 0 &&
         reinterpret_cast<std::uintptr_t>(at) % (kPacked<X> * sizeof(T)) == 0;
}

// Calls `body` with a zero of the storage type that `dtype` names.
template <class F>
void with_float(const Call& call, const char* name, DLDataType dtype, F&& body) {
  if (is<float>(dtype)) return body(float{});
  if (is<bf16>(dtype)) return body(__nv_bfloat16{});
  if (is<f16>(dtype)) return body(__half{});
  fail(call.where(name), "dtype", "f32, bf16 or f16", dtype_name(dtype));
}

inline void* bytes(const DLTensor& tensor) {
  return tensor.data == nullptr ? nullptr
                                : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

}  // namespace kdtr::cuda
