// The state of requests between steps, on the device: a block a request.
#include "../state.h"

#include "kdtr/cuda.h"
#include "kdtr/op_call.h"
#include "kernels/cuda/detail/overlap.cuh"

namespace kdtr::model {
namespace {

constexpr int kThreads = 256;

__device__ void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) |
                    static_cast<std::uintptr_t>(bytes);
  if (bits % 4 != 0) {
    for (std::int64_t b = threadIdx.x; b < bytes; b += kThreads) to[b] = from[b];
    return;
  }
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  for (std::int64_t w = threadIdx.x; w < bytes / 4; w += kThreads)
    words[w] = reinterpret_cast<const std::uint32_t*>(from)[w];
}

__global__ void __launch_bounds__(kThreads) start(const StepStart s) {
  cuda::wait_for_last();
  cuda::let_next_start();
  const std::int64_t i = blockIdx.x, q = s.requests[i];
  if (threadIdx.x == 0) {
    s.prefix_len[i] = s.state.length[q];
    s.root[i] = s.state.last[q];
  }
  for (std::int64_t p = threadIdx.x; p < s.max_pages; p += kThreads)
    s.page_table[i * s.max_pages + p] = static_cast<std::int32_t>(p * s.state.requests + q);
  for (std::int64_t j = threadIdx.x; j < s.n; j += kThreads)
    s.tree_slots[i * s.n + j] = static_cast<std::int32_t>(s.first_slot + i * s.n + j);
  if (s.hidden != nullptr)
    copy_row(s.hidden + i * s.stride, s.state.hidden + q * s.state.row_bytes, s.state.row_bytes);
}

__global__ void __launch_bounds__(kThreads) end(const StepEnd s) {
  cuda::wait_for_last();
  __shared__ int first;
  const std::int64_t i = blockIdx.x, q = s.requests[i];
  const auto none = static_cast<int>(s.count);
  if (threadIdx.x == 0) first = none;
  __syncthreads();
  int mine = none;
#pragma unroll 8
  for (int k = static_cast<int>(threadIdx.x); k < none; k += kThreads)
    if (s.statuses[k] != kOk) mine = min(mine, k);
  if (mine < none) atomicMin(&first, mine);
  __syncthreads();
  const int bad = first;
  if (i == 0 && threadIdx.x == 0) *s.first_bad = bad < none ? bad : -1;
  if (bad < none) return;
  const std::int64_t at = s.accept_len[i];
  if (threadIdx.x == 0) {
    s.state.length[q] = s.new_len[i];
    s.state.last[q] = s.tokens[i * s.steps + at];
  }
  copy_row(s.state.hidden + q * s.state.row_bytes, s.hidden + (i * s.n + at) * s.state.row_bytes,
           s.state.row_bytes);
}

}  // namespace

void start_step(const StepStart& step, void* stream) {
  // grid: a block a request; block: 256; smem: none
  cuda::launch_next(start, static_cast<unsigned>(step.r), kThreads, 0, cuda_stream(stream), step);
}

void end_step(const StepEnd& step, void* stream) {
  // grid: a block a request, each reading all statuses; block: 256; smem: one index
  cuda::launch_next(end, static_cast<unsigned>(step.r), kThreads, 0, cuda_stream(stream), step);
}

}  // namespace kdtr::model
