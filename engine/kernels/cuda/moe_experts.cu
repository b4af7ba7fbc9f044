// moe_experts@1 on cuda: a warp a hidden element of each chosen expert, then a warp an output; f32
// rows; f32, bf16 or int4 weights.
// x [T, D], ids, weights [T, K], expert and shared weights -> out [T, D], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

template <class W>
struct Dense {
  const W* w;
  // One lane's part of row . x, row of n elements.
  __device__ float lane_dot(const float* x, std::int64_t row, std::int64_t n, int lane) const {
    return cuda::lane_dot(x, w + row * n, n, lane);
  }
};

// int4 codes with one scale a group; a lane takes a word of eight at a time.
struct Packed {
  const std::uint32_t* words;
  const __nv_bfloat16* scales;
  std::int64_t group;
  bool rounded;
  __device__ float lane_dot(const float* x, std::int64_t row, std::int64_t n, int lane) const {
    const std::uint32_t* w = words + row * (n / 8);
    const __nv_bfloat16* s = scales + row * (n / group);
    float sum = 0;
    for (std::int64_t i = lane; i < n / 8; i += kWarp) {
      const std::uint32_t word = w[i];
      const float scale = widen(s[i * 8 / group]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float value = static_cast<float>(static_cast<int>((word >> (4 * j)) & 15u) - 8) * scale;
        if (rounded) value = widen(__float2bfloat16_rn(value));
        sum += x[i * 8 + j] * value;
      }
    }
    return sum;
  }
};

template <class M>
struct Mlp {
  M gate, up, down;
  std::int64_t n;  // hidden elements of one expert
};

struct Tokens {
  const float* x;
  const std::int32_t* ids;
  const float* weights;
  const float* residual;
  std::int32_t* status;
  float* out;
  float* hidden;  // [T, K + 1, widest]; slot K is the shared expert's
  std::int64_t rows, d, k, experts, widest;
};

// grid: tokens; block: kRowThreads.
__global__ void check_tokens(Tokens c) {
  const std::int64_t t = blockIdx.x;
  bool ok = true;
  for (std::int64_t i = threadIdx.x; i < c.d; i += kRowThreads) {
    ok = ok && isfinite(c.x[t * c.d + i]);
    if (c.residual != nullptr) ok = ok && isfinite(c.residual[t * c.d + i]);
  }
  for (std::int64_t i = threadIdx.x; i < c.k; i += kRowThreads) {
    const std::int32_t id = c.ids[t * c.k + i];
    ok = ok && isfinite(c.weights[t * c.k + i]) && id >= -1 && id < c.experts;
  }
  const int all = __syncthreads_and(ok ? 1 : 0);
  if (threadIdx.x == 0) c.status[t] = all != 0 ? kOk : kBadInput;
}

// hidden[t, slot] = silu(gate x) * (up x). grid: (T, n / 8, slots); block: 8 warps.
template <class M>
__global__ void __launch_bounds__(8 * kWarp) first_half(Tokens c, Mlp<M> m, bool shared) {
  const std::int64_t i = std::int64_t{blockIdx.y} * 8 + threadIdx.x / kWarp, t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (i >= m.n || c.status[t] != kOk) return;
  const std::int64_t slot = shared ? c.k : blockIdx.z;
  const std::int64_t e = shared ? 0 : c.ids[t * c.k + slot];
  if (e < 0) return;
  const float* x = c.x + t * c.d;
  const float gate = warp_sum(m.gate.lane_dot(x, e * m.n + i, c.d, lane));
  const float up = warp_sum(m.up.lane_dot(x, e * m.n + i, c.d, lane));
  if (lane == 0) c.hidden[(t * (c.k + 1) + slot) * c.widest + i] = silu(gate) * up;
}

// out[t, i] = sum over slots of weight * down[i] hidden, then shared, then residual.
// grid: (T, D / 8); block: 8 warps.
template <class M, class S>
__global__ void __launch_bounds__(8 * kWarp)
    second_half(Tokens c, Mlp<M> m, Mlp<S> shared, bool has_shared) {
  const std::int64_t i = std::int64_t{blockIdx.y} * 8 + threadIdx.x / kWarp, t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (i >= c.d) return;
  float y = 0;
  if (c.status[t] == kOk) {
    const float* hidden = c.hidden + t * (c.k + 1) * c.widest;
    for (std::int64_t slot = 0; slot < c.k; ++slot) {
      const std::int64_t e = c.ids[t * c.k + slot];
      if (e < 0) continue;
      y += c.weights[t * c.k + slot] *
           warp_sum(m.down.lane_dot(hidden + slot * c.widest, e * c.d + i, m.n, lane));
    }
    if (has_shared) y += warp_sum(shared.down.lane_dot(hidden + c.k * c.widest, i, shared.n, lane));
    if (c.residual != nullptr) y += c.residual[t * c.d + i];
  }
  if (lane == 0) c.out[t * c.d + i] = y;
}

template <class M, class S>
void launch(const Tokens& c, const Mlp<M>& m, const Mlp<S>& shared, bool has_shared,
            cudaStream_t s) {
  const auto rows = static_cast<unsigned>(c.rows);
  if (rows == 0) return;
  check_tokens<<<rows, kRowThreads, 0, s>>>(c);
  KDTR_LAUNCHED("check_tokens");
  if (m.n > 0 && c.k > 0) {
    const dim3 grid(rows, blocks(m.n, 8), static_cast<unsigned>(c.k));
    first_half<<<grid, 8 * kWarp, 0, s>>>(c, m, false);
    KDTR_LAUNCHED("first_half");
  }
  if (has_shared && shared.n > 0) {
    first_half<<<dim3(rows, blocks(shared.n, 8)), 8 * kWarp, 0, s>>>(c, shared, true);
    KDTR_LAUNCHED("first_half shared");
  }
  if (c.d > 0) {
    second_half<<<dim3(rows, blocks(c.d, 8)), 8 * kWarp, 0, s>>>(c, m, shared, has_shared);
    KDTR_LAUNCHED("second_half");
  }
}

std::int64_t widest(Call& call) {
  const bool dense = call.attr_str("format") == "dense";
  call.any(dense ? "gate" : "gate_packed", KDTR_IN, "E I *");
  std::int64_t n = call.dim("I");
  if (call.has("shared_gate", KDTR_IN)) {
    call.any("shared_gate", KDTR_IN, "J *");
    n = std::max(n, call.dim("J"));
  }
  return n;
}

std::size_t workspace(Call& call) {
  call.any("ids", KDTR_IN, "T K");
  return static_cast<std::size_t>(call.dim("T") * (call.dim("K") + 1) * widest(call)) *
         sizeof(float);
}

void run(Call& call, void* stream) {
  const auto x = call.in<float>("x", "T D");
  const auto ids = call.in<std::int32_t>("ids", "T K");
  const auto weights = call.in<float>("weights", "T K");
  const auto out = call.out<float>("out", "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::string_view format = call.attr_str("format");
  const std::int64_t group = call.attr_int("group"), d = call.dim("D");
  const bool dense = format == "dense", has_shared = call.has("shared_gate", KDTR_IN);
  KDTR_CHECK(dense || format == "w4_exact" || format == "w4_bf16", call.where("format"),
             "attribute", "dense, w4_exact or w4_bf16", format);
  Tokens c{x.data,
           ids.data,
           weights.data,
           call.has("residual", KDTR_IN) ? call.in<float>("residual", "T D").data : nullptr,
           status.data,
           out.data,
           static_cast<float*>(call.workspace()),
           call.dim("T"),
           d,
           call.dim("K"),
           0,
           widest(call)};
  const cudaStream_t s = cuda_stream(stream);
  const auto three = [&]<class W>(W, const char* gate, const char* up, const char* down,
                                  const char* axes_in, const char* axes_out, const char* n) {
    const DLTensor& g = call.any(gate, KDTR_IN, axes_in);
    const DLTensor& u = call.any(up, KDTR_IN, axes_in);
    const DLTensor& w = call.any(down, KDTR_IN, axes_out);
    require_dtype(call, up, u, g.dtype);
    require_dtype(call, down, w, g.dtype);
    return Mlp<Dense<W>>{{static_cast<const W*>(bytes(g))},
                         {static_cast<const W*>(bytes(u))},
                         {static_cast<const W*>(bytes(w))},
                         call.dim(n)};
  };
  const auto with_shared = [&](const auto& routed) {
    if (!has_shared) return launch(c, routed, Mlp<Dense<float>>{}, false, s);
    with_weight(call, "shared_gate", call.any("shared_gate", KDTR_IN, "J D").dtype,
                [&]<class S>(S zero) {
                  launch(c, routed,
                         three(zero, "shared_gate", "shared_up", "shared_down", "J D", "D J", "J"),
                         true, s);
                });
  };
  if (dense) {
    KDTR_CHECK(group == 0, call.where("group"), "attribute", "0 when dense", group);
    with_weight(call, "gate", call.any("gate", KDTR_IN, "E I D").dtype, [&]<class W>(W zero) {
      const auto routed = three(zero, "gate", "up", "down", "E I D", "E D I", "I");
      c.experts = call.dim("E");
      with_shared(routed);
    });
    return;
  }
  KDTR_CHECK(group == 32 || group == 64 || group == 128, call.where("group"), "attribute",
             "32, 64 or 128", group);
  KDTR_CHECK(d % group == 0, call.where("x"), "axis D", "a multiple of the group", d);
  call.bind("D/8", d / 8);
  call.bind("D/G", d / group);
  const std::int64_t n = call.dim("I");
  KDTR_CHECK(n % group == 0, call.where("gate_packed"), "axis I", "a multiple of the group", n);
  call.bind("I/8", n / 8);
  call.bind("I/G", n / group);
  const auto packed = [&](const char* words, const char* scales, const char* word_axes,
                          const char* scale_axes) {
    return Packed{
        reinterpret_cast<const std::uint32_t*>(call.in<std::int32_t>(words, word_axes).data),
        reinterpret_cast<const __nv_bfloat16*>(call.in<bf16>(scales, scale_axes).data), group,
        format == "w4_bf16"};
  };
  const Mlp<Packed> routed{packed("gate_packed", "gate_scale", "E I D/8", "E I D/G"),
                           packed("up_packed", "up_scale", "E I D/8", "E I D/G"),
                           packed("down_packed", "down_scale", "E D I/8", "E D I/G"), n};
  c.experts = call.dim("E");
  with_shared(routed);
}

const char* unsupported(Call& call) {
  return is<float>(call.any("x", KDTR_IN, "* *").dtype) ? nullptr : "bf16 rows";
}

}  // namespace
KDTR_KERNEL({"moe_experts@1", run, workspace, unsupported});
}  // namespace kdtr::cuda
