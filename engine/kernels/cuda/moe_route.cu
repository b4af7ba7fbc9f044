// moe_route@1 on cuda: a warp a token, repeated scans in shared memory; f32 scores and choices.
// logits [T, E], bias [E] -> ids, weights [T, K], status [T]. Host checks: n_group divides E,
// 1 <= topk_group <= n_group, 0 <= top_k <= E.
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

struct Routing {
  std::int64_t experts, groups, kept, k;
  bool renormalize;
  float scale;
};

// The first index of the greatest value above -inf, or -1; every lane gets it.
__device__ int best(const float* values, int n, int lane) {
  float top = -INFINITY;
  int at = n;
  for (int i = lane; i < n; i += kWarp)
    if (values[i] > top) {
      top = values[i];
      at = i;
    }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, top, offset);
    const int other_at = __shfl_xor_sync(~0u, at, offset);
    if (other > top || (other == top && other_at < at)) {
      top = other;
      at = other_at;
    }
  }
  return top == -INFINITY ? -1 : at;
}

// grid: tokens; block: one warp; smem: scores, choices [E], group scores and marks [G].
__global__ void route(const float* logits, const float* bias, std::int32_t* ids, float* weights,
                      std::int32_t* status, Routing r) {
  extern __shared__ float shared[];
  const int experts = static_cast<int>(r.experts), groups = static_cast<int>(r.groups);
  const int per = groups > 0 ? experts / groups : 0, lane = static_cast<int>(threadIdx.x);
  float *score = shared, *choice = score + experts, *group = choice + experts,
        *keep = group + groups;
  const std::int64_t t = blockIdx.x;
  const float* x = logits + t * r.experts;
  bool bad = false;
  for (int e = lane; e < experts; e += kWarp) {
    bad = bad || isnan(x[e]) || isnan(bias[e]) || bias[e] == INFINITY;
    score[e] = 1.0f / (1.0f + expf(-x[e]));
    choice[e] = score[e] + bias[e];
  }
  bad = __any_sync(~0u, bad);
  if (lane == 0) status[t] = bad ? kBadInput : kOk;
  for (int n = lane; n < r.k; n += kWarp) {
    ids[t * r.k + n] = -1;
    weights[t * r.k + n] = 0;
  }
  if (bad) return;
  __syncwarp();
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
    const int g = best(group, groups, lane);
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
  __syncwarp();
  float sum = 0;
  int found = 0;
  for (; found < r.k; ++found) {
    const int e = best(choice, experts, lane);
    if (e < 0) break;
    sum += score[e];
    __syncwarp();
    if (lane == 0) {
      ids[t * r.k + found] = e;
      weights[t * r.k + found] = score[e];
      choice[e] = -INFINITY;
    }
    __syncwarp();
  }
  if (lane != 0) return;
  for (int n = 0; n < found; ++n) {
    float w = weights[t * r.k + n];
    if (r.renormalize) w /= sum + 1e-20f;
    weights[t * r.k + n] = w * r.scale;
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
  const std::size_t smem = static_cast<std::size_t>(2 * (experts + groups)) * sizeof(float);
  if (smem > 48 * 1024)
    KDTR_CUDA(cudaFuncSetAttribute(route, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(smem)));
  route<<<static_cast<unsigned>(rows), kWarp, smem, cuda_stream(stream)>>>(
      logits.data, bias.data, ids.data, weights.data, status.data, routing);
  KDTR_LAUNCHED("moe_route");
}

}  // namespace
KDTR_KERNEL({"moe_route@1", run});
}  // namespace kdtr::cuda
