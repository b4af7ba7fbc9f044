// What the threads of a block do together.
#pragma once

#include <cuda_runtime.h>

namespace kdtr::cuda {

// Whether any thread of the block says so; a barrier. compute-sanitizer's racecheck does not take a
// reducing barrier for one, so a plain one stands beside it.
__device__ inline bool block_any(bool mine) {
  const int any = __syncthreads_or(mine ? 1 : 0);
  __syncthreads();
  return any != 0;
}

}  // namespace kdtr::cuda
