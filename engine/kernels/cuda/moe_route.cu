// moe_route@1 on cuda: a warp a token, each lane the best of its experts; f32 scores and choices.
// logits [T, E], bias [E] -> ids, weights [T, K], status [T]. Host checks: n_group divides E,
// 1 <= topk_group <= n_group, 0 <= top_k <= E.
#include "detail/matrix.cuh"
#include "detail/rows.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

struct Routing {
  std::int64_t experts, groups, kept, k;
  bool renormalize;
  float scale;
};

// The greatest of a lane's values, every 32nd of n from `lane` on, as a key, 0 if all are -inf; the
// first index of it.
struct Best {
  std::uint32_t key;
  int at;
};
__device__ Best best_of_lane(const float* values, int n, int lane) {
  float top = -INFINITY;
  int at = 0;
#pragma unroll 4
  for (int i = lane; i < n; i += kWarp)
    if (values[i] > top) {
      top = values[i];
      at = i;
    }
  return {top == -INFINITY ? 0 : ordered(top + 0.0f), at};
}

// The first index of the greatest value of all lanes, or -1.
__device__ int best_of_warp(const Best& mine) {
  const std::uint32_t top = __reduce_max_sync(~0u, mine.key);
  const std::uint32_t at =
      __reduce_min_sync(~0u, mine.key == top ? static_cast<std::uint32_t>(mine.at) : ~0u);
  return top == 0 ? -1 : static_cast<int>(at);
}

// grid: tokens; block: one warp; smem: scores, choices [E], group scores and marks [G], ids [K].
__global__ void route(const float* logits, const float* bias, std::int32_t* ids, float* weights,
                      std::int32_t* status, Routing r) {
  extern __shared__ float shared[];
  const int experts = static_cast<int>(r.experts), groups = static_cast<int>(r.groups);
  const int per = groups > 0 ? experts / groups : 0, lane = static_cast<int>(threadIdx.x);
  float *score = shared, *choice = score + experts, *group = choice + experts,
        *keep = group + groups;
  auto* chosen = reinterpret_cast<int*>(keep + groups);
  const std::int64_t t = blockIdx.x;
  wait_for_last();
  let_next_start();
  const float* x = logits + t * r.experts;
  bool bad = false;
#pragma unroll 4
  for (int e = lane; e < experts; e += kWarp) {
    const float z = x[e], b = bias[e];
    bad = bad || isnan(z) || isnan(b) || b == INFINITY;
    score[e] = 1.0f / (1.0f + expf(-z));
    choice[e] = score[e] + b;
  }
  bad = __any_sync(~0u, bad);
  if (lane == 0) status[t] = bad ? kBadInput : kOk;
  __syncwarp();
  if (!bad && r.kept < r.groups) {
    for (int g = lane; g < groups; g += kWarp) {
      float first = -INFINITY, second = -INFINITY;
      for (int e = g * per; e < (g + 1) * per; ++e) {
        second = fmaxf(second, fminf(first, choice[e]));
        first = fmaxf(first, choice[e]);
      }
      group[g] = per == 1 ? first : first + second;
      keep[g] = 0;
    }
    __syncwarp();
    for (int n = 0; n < r.kept; ++n) {
      const int g = best_of_warp(best_of_lane(group, groups, lane));
      if (lane == 0) {
        int take = g;
        if (g < 0)  // only -inf left: the lowest id that is not kept yet
          for (take = 0; keep[take] != 0; ++take) {
          }
        keep[take] = 1;
        group[take] = -INFINITY;
      }
      __syncwarp();
    }
    for (int e = lane; e < experts; e += kWarp)
      if (keep[e / per] == 0) choice[e] = -INFINITY;
  }
  float sum = 0;
  int found = 0;
  // From here on a lane reads and changes the choices of its own experts alone.
  Best mine = bad ? Best{} : best_of_lane(choice, experts, lane);
  for (; found < r.k; ++found) {
    const int e = best_of_warp(mine);
    if (e < 0) break;
    sum += score[e];
    if (lane == 0) chosen[found] = e;
    if (e % kWarp == lane) {
      choice[e] = -INFINITY;
      mine = best_of_lane(choice, experts, lane);
    }
  }
  __syncwarp();
  for (int n = lane; n < r.k; n += kWarp) {
    float w = 0;
    if (n < found) {
      w = score[chosen[n]];
      if (r.renormalize) w /= sum + 1e-20f;
      w *= r.scale;
    }
    ids[t * r.k + n] = n < found ? chosen[n] : -1;
    weights[t * r.k + n] = w;
  }
}

void run(Call& call, void* stream) {
  const auto logits = call.in<float>("logits", "T E");
  const auto bias = call.in<float>("bias", "E");
  const auto ids = call.out<std::int32_t>("ids", "T K");
  const auto weights = call.out<float>("weights", "T K");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), experts = call.dim("E"), k = call.dim("K");
  const std::int64_t groups = call.attr_int("n_group"), kept = call.attr_int("topk_group");
  KDTR_CHECK(groups >= 1 && experts % groups == 0, call.where("n_group"), "attribute",
             "a divisor of " + std::to_string(experts), groups);
  KDTR_CHECK(kept >= 1 && kept <= groups, call.where("topk_group"), "attribute",
             "1 .. " + std::to_string(groups), kept);
  KDTR_CHECK(call.attr_int("top_k") == k && k <= experts, call.where("top_k"), "attribute", k,
             call.attr_int("top_k"));
  KDTR_CHECK(experts <= 4096, call.where("logits"), "axis E", "at most 4096", experts);
  const Routing routing{experts,
                        groups,
                        kept,
                        k,
                        call.attr_int("renormalize") != 0,
                        static_cast<float>(call.attr_float("scale"))};
  if (rows == 0) return;
  const std::size_t smem = static_cast<std::size_t>(2 * (experts + groups) + k) * sizeof(float);
  if (smem > 48 * 1024)
    KDTR_CUDA(cudaFuncSetAttribute(route, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(smem)));
  launch_next(route, static_cast<unsigned>(rows), kWarp, smem, cuda_stream(stream), logits.data,
              bias.data, ids.data, weights.data, status.data, routing);
}

}  // namespace
KDTR_KERNEL({"moe_route@1", run});
}  // namespace kdtr::cuda
