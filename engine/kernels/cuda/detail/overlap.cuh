// Launches that overlap. A kernel launched by `launch_next` may start when all blocks of the launch
// before have said `let_next_start` or ended, and does what needs nothing of it: on sm_90;
// elsewhere launches are in order. Each such kernel waits, whatever path it takes, before it ends:
// so what it waits for includes all launches before.
//
// Where one op follows another its inputs, weights too, may come from the launch before. So the
// first kernel of an op waits before it reads anything, and lets the next start only then: all
// later ones may read the op's inputs at once. Before the wait it may ask for them: `ask_for`
// changes no bits, since caches beyond L1 are one for the device.
#pragma once

#include <utility>

#include "kdtr/cuda.h"

namespace kdtr::cuda {

__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings a line of memory to L2.
__device__ inline void ask_for(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  KDTR_CUDA(cudaGetDevice(&device));
  KDTR_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Whether this device runs code for sm_90, which waits. What is compiled for sm_80 does not, on
// later GPUs either.
inline bool kernels_wait() {
  for (const int arch : {__CUDA_ARCH_LIST__})
    if (arch == 900) return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
  return false;
}

template <class... P, class... A>
void launch_next(void (*kernel)(P...), dim3 grid, int block, std::size_t shared, cudaStream_t s,
                 A&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(block));
  config.dynamicSmemBytes = shared;
  config.stream = s;
  config.attrs = &overlap;
  config.numAttrs = kernels_wait() ? 1 : 0;
  KDTR_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<A>(arguments)...));
}

}  // namespace kdtr::cuda
