// topk_merge@1 on cuda: one pass; each candidate finds its own rank by searching the other lists.
// part_ids, part_values [S, R, L, K], part_lse [S, R, L], part_status [S, R], first [S]
// -> ids, logprobs [R, L, K], lse [R, L], status [R]. No aliasing.
#include <algorithm>
#include <cmath>

#include "detail/block.cuh"
#include "detail/overlap.cuh"
#include "detail/rows.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kManyThreads = 1 << 18;  // more than this fill a large device
constexpr int kManyShards = 32;

struct Merge {
  const std::int32_t* part_ids;
  const float* part_values;
  const double* part_lse;
  const std::int32_t *part_status, *first;
  std::int32_t* ids;
  float *logprobs, *lse;
  std::int32_t* status;
  std::int64_t requests, depths;
  int shards, k;
  int log;  // of the threads that search for one candidate, a shard each at a time
};

// A shard's list for one row, which descends.
struct List {
  const std::int32_t* ids;
  const float* values;
  std::uint32_t first;
};

__device__ List list_of(const Merge& p, int shard, std::int64_t row, std::int64_t rows) {
  const std::int64_t at = (shard * rows + row) * p.k;
  return {p.part_ids + at, p.part_values + at, static_cast<std::uint32_t>(p.first[shard])};
}

// Unique keys: greater value, then smaller id; 0 at a pad, whose value is not read.
__device__ std::uint64_t key_at(const List& list, int at) {
  const std::int32_t id = list.ids[at];
  if (id < 0) return 0;
  const std::uint32_t token = static_cast<std::uint32_t>(id) + list.first;
  return static_cast<std::uint64_t>(ordered(list.values[at] + 0.0f)) << 32 | ~token;
}

// How many of the k keys of a list are greater than `key`.
__device__ int greater_keys(const List& list, int k, std::uint64_t key) {
  int low = 0, high = k;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (key_at(list, middle) > key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// log-sum-exp of the row's parts, by a warp: a lane adds every 32nd, in a fixed order.
__device__ float row_lse(const Merge& p, std::int64_t row, std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double top = -INFINITY;
  for (int s = lane; s < p.shards; s += 32) top = fmax(top, p.part_lse[s * rows + row]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmax(top, __shfl_xor_sync(~0u, top, step));
  if (top == -INFINITY) return -INFINITY;
  double sum = 0;  // at least 1, so lse is at least top
  for (int s = lane; s < p.shards; s += 32) sum += exp(p.part_lse[s * rows + row] - top);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return static_cast<float>(top + log(sum));
}

// A block: some candidates of a row; the first block of a row writes what is not a candidate's.
// Without depths, a block for each request, which has its status to write.
__global__ void __launch_bounds__(kThreads) merge(const Merge p) {
  wait_for_last();
  let_next_start();
  __shared__ float shared_lse;
  __shared__ int shared_count;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t rows = p.requests * p.depths, row = blockIdx.x;
  const std::int64_t request = p.depths == 0 ? row : row / p.depths;
  const bool first_block = blockIdx.y == 0;

  bool bad = false;
  for (int s = thread; s < p.shards; s += kThreads) {
    bad = bad || p.part_status[s * p.requests + request] != kOk;
    for (std::int64_t l = 0; l < p.depths; ++l)
      bad = bad || !(p.part_lse[s * rows + request * p.depths + l] < INFINITY);
  }
  if (thread == 0) shared_count = 0;
  bad = block_any(bad);
  if (first_block && thread == 0 && (p.depths == 0 || row % p.depths == 0))
    p.status[request] = bad ? kBadInput : kOk;
  if (p.depths == 0) return;

  if (thread < 32) {
    const float lse = bad ? -INFINITY : row_lse(p, row, rows);
    if (thread == 0) shared_lse = lse;
    if (first_block && thread == 0) p.lse[row] = lse;
  }
  if (first_block && !bad) {
    for (int s = thread; s < p.shards; s += kThreads)
      atomicAdd(&shared_count, greater_keys(list_of(p, s, row, rows), p.k, 0));  // all but pads
  }
  __syncthreads();

  if (first_block) {
    for (int i = min(shared_count, p.k) + thread; i < p.k; i += kThreads) {
      p.ids[row * p.k + i] = -1;
      p.logprobs[row * p.k + i] = -INFINITY;
    }
  }
  const int lanes = 1 << p.log, lane = thread & (lanes - 1);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * kThreads + thread) >> p.log;
  const bool one = !bad && i < static_cast<std::int64_t>(p.shards) * p.k;
  const int mine = one ? static_cast<int>(i / p.k) : 0, at = one ? static_cast<int>(i % p.k) : 0;
  const std::uint64_t key = one ? key_at(list_of(p, mine, row, rows), at) : 0;
  int rank = 0;
  for (int s = lane; s < p.shards && key != 0; s += lanes)
    rank += s == mine ? at : greater_keys(list_of(p, s, row, rows), p.k, key);
  for (int step = lanes / 2; step > 0; step /= 2) rank += __shfl_xor_sync(~0u, rank, step);
  if (key == 0 || rank >= p.k || lane != 0) return;
  p.ids[row * p.k + rank] = static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
  p.logprobs[row * p.k + rank] = list_of(p, mine, row, rows).values[at] - shared_lse;
}

void run(Call& c, void* stream) {
  const auto part_ids = c.in<std::int32_t>("part_ids", "S R L K");
  const auto part_values = c.in<float>("part_values", "S R L K");
  const auto part_lse = c.in<double>("part_lse", "S R L");
  const auto part_status = c.in<std::int32_t>("part_status", "S R");
  const auto first = c.in<std::int32_t>("first", "S");
  const auto ids = c.out<std::int32_t>("ids", "R L K");
  const auto logprobs = c.out<float>("logprobs", "R L K");
  const auto lse = c.out<float>("lse", "R L");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t shards = c.dim("S"), k = c.dim("K"), depths = c.dim("L");
  const std::int64_t blocks = c.dim("R") * std::max<std::int64_t>(depths, 1);
  KDTR_CHECK(k <= 1024, c.where("part_ids"), "candidates per depth", "0 to 1024", k);
  KDTR_CHECK(shards <= (1 << 20) && shards * k <= 1 << 20, c.where("part_ids"),
             "shards, and shards times candidates", "at most 2^20", shards * k);
  KDTR_CHECK(blocks < 0x7FFFFFFF, c.where("part_ids"), "rows", "below 2^31 - 1", blocks);
  if (blocks == 0) return;
  // Each block takes status and lse anew, so that many threads pay only for few candidates, or for
  // many searches each.
  const std::int64_t candidates = blocks * shards * k;
  int log = 0;
  if (8 * candidates <= kManyThreads || shards >= kManyShards)
    while (log < 3 && 1 << log < shards) ++log;
  const std::int64_t each = kThreads >> log;
  const auto per_row =
      static_cast<unsigned>(std::max<std::int64_t>((shards * k + each - 1) / each, 1));
  // grid: rows, a block per 32 to 256 candidates; block: 256, 1 to 8 a candidate; smem: two words
  launch_next(merge, dim3(static_cast<unsigned>(blocks), per_row), kThreads, 0, cuda_stream(stream),
              Merge{part_ids.data, part_values.data, part_lse.data, part_status.data, first.data,
                    ids.data, logprobs.data, lse.data, status.data, c.dim("R"), depths,
                    static_cast<int>(shards), static_cast<int>(k), log});
}

KDTR_KERNEL({"topk_merge@1", run});

}  // namespace
}  // namespace kdtr::cuda
