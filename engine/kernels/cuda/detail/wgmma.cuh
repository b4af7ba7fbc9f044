// The wgmma, TMA and mbarrier instructions of sm_90a that verify_attn uses, one function each.
// Register lists are macros because inline assembly cannot loop over operands.
#pragma once

#include <cuda.h>

#include "mma.cuh"

namespace kdtr::cuda::sm90 {

__device__ inline void barrier_init(std::uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
// Returns once the phase of this parity has completed.
__device__ inline void barrier_wait(std::uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* bar, int count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(count)
               : "memory");
}
__device__ inline void barrier_expect(std::uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}

// Hardware barriers among `threads` threads; `arrive` does not wait.
template <int id>
__device__ void named_sync(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(id), "r"(threads) : "memory");
}
template <int id>
__device__ void named_arrive(int threads) {
  asm volatile("bar.arrive %0, %1;" ::"n"(id), "r"(threads) : "memory");
}

// Ordinary stores to shared memory before it are seen by wgmma and TMA after it.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ inline void tma_load(void* to, const CUtensorMap& map, int column, int row,
                                std::uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(bar))
      : "memory");
}

// Arrives once all of this thread's copies so far are done.
__device__ inline void barrier_arrive_copied(std::uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar))
               : "memory");
}

// Four 8x8 matrices of 2-byte elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrices(std::uint32_t to, const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

template <int count>
__device__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// Keeps the compiler from moving arithmetic on accumulators across the instruction beside it.
template <int n>
__device__ void settle(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n>
__device__ void settle(std::uint32_t (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
template <int n>
__device__ void wgmma_fence(float (&d)[n]) {
  settle(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int pending, int n>
__device__ void wgmma_wait(float (&d)[n]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  settle(d);
}

// Low word of the descriptor of a tile of 128-byte rows, 128-byte swizzle, 8-row groups 1,024 bytes
// apart, 64-column chunks 8,192 bytes apart, which only operands that run along columns (V) use.
// Adding n to it moves the tile by 16 n bytes. The high word is constant, and is added within the
// instruction so that the compiler does not keep 64-bit copies in registers.
__device__ inline std::uint32_t tile_descriptor(std::uint32_t address) {
  return (address & 0x3FFFF) >> 4 | 512 << 16;
}
#define KDTR_DESCRIPTOR_HIGH 0x40000040

// clang-format off
#define KDTR_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KDTR_F16(d, i) KDTR_F4(d, i), KDTR_F4(d, i + 4), KDTR_F4(d, i + 8), KDTR_F4(d, i + 12)
#define KDTR_F32(d, i) KDTR_F16(d, i), KDTR_F16(d, i + 16)
#define KDTR_F128(d) KDTR_F32(d, 0), KDTR_F32(d, 32), KDTR_F32(d, 64), KDTR_F32(d, 96)
#define KDTR_D32 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KDTR_D128 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
      "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
      "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
      "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
      "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
      "%119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

#define KDTR_WGMMA_QK(type)                                                     \
  asm volatile(                                                                 \
      "{ .reg .pred p; .reg .b64 q, k;\n"                                       \
      "setp.ne.b32 p, %34, 0; mov.b64 q, {%32, %35}; mov.b64 k, {%33, %35};\n"  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KDTR_D32 \
      "}, q, k, p, 1, 1, 0, 0; }"                                               \
      : KDTR_F32(s, 0)                                                          \
      : "r"(q), "r"(k), "r"(add), "r"(KDTR_DESCRIPTOR_HIGH))

// s [64 x 64] (+)= q [64 x 16] k^T, both row tiles in shared memory.
template <class T>
__device__ void wgmma_scores(float (&s)[32], std::uint32_t q, std::uint32_t k, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    KDTR_WGMMA_QK("f16");
  } else {
    KDTR_WGMMA_QK("bf16");
  }
}

#define KDTR_WGMMA_PV(type)                                                       \
  asm volatile(                                                                   \
      "{ .reg .pred p; .reg .b64 v;\n"                                            \
      "setp.ne.b32 p, %133, 0; mov.b64 v, {%132, %134};\n"                        \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" KDTR_D128 \
      "}, {%128, %129, %130, %131}, v, p, 1, 1, 1; }"                             \
      : KDTR_F128(o)                                                              \
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(v), "r"(1), "r"(KDTR_DESCRIPTOR_HIGH))

// o [64 x 256] += p [64 x 16] v, p in registers.
template <class T>
__device__ void wgmma_values(float (&o)[128], const std::uint32_t* p, std::uint32_t v) {
  if constexpr (std::is_same_v<T, __half>) {
    KDTR_WGMMA_PV("f16");
  } else {
    KDTR_WGMMA_PV("bf16");
  }
}

#define KDTR_WGMMA_PV_SHARED(type)                                                  \
  asm volatile(                                                                     \
      "{ .reg .pred p; .reg .b64 w, v;\n"                                           \
      "setp.ne.b32 p, %130, 0; mov.b64 w, {%128, %131}; mov.b64 v, {%129, %131};\n" \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" KDTR_D128   \
      "}, w, v, p, 1, 1, 0, 1; }"                                                   \
      : KDTR_F128(o)                                                                \
      : "r"(p), "r"(v), "r"(1), "r"(KDTR_DESCRIPTOR_HIGH))

// The same, p in shared memory.
template <class T>
__device__ void wgmma_values(float (&o)[128], std::uint32_t p, std::uint32_t v) {
  if constexpr (std::is_same_v<T, __half>) {
    KDTR_WGMMA_PV_SHARED("f16");
  } else {
    KDTR_WGMMA_PV_SHARED("bf16");
  }
}

}  // namespace kdtr::cuda::sm90
