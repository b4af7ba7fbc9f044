// CUDA on the host side: errors with the place, and the check after each launch.
#pragma once

#include <cuda_runtime.h>

#include "kdtr/error.h"

#define KDTR_CUDA(expression)                                      \
  do {                                                             \
    const cudaError_t kdtr_status = (expression);                  \
    if (kdtr_status != cudaSuccess)                                \
      ::kdtr::fail(#expression, "CUDA call failed", "cudaSuccess", \
                   ::cudaGetErrorString(kdtr_status));             \
  } while (false)

// Right after a <<<>>> launch.
#define KDTR_LAUNCHED(name)                                                                  \
  do {                                                                                       \
    const cudaError_t kdtr_status = ::cudaGetLastError();                                    \
    if (kdtr_status != cudaSuccess)                                                          \
      ::kdtr::fail(name, "launch failed", "cudaSuccess", ::cudaGetErrorString(kdtr_status)); \
  } while (false)

namespace kdtr {
inline cudaStream_t cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
}  // namespace kdtr
