// moe_experts@1 on cpu: expert by expert of each token; f32 or bf16 rows, computed in f32; f32,
// bf16 or int4 weights.
// x [T, D], ids, weights [T, K], expert and shared weights -> out [T, D], status [T].
#include <algorithm>
#include <vector>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

// Rows of int4 codes with one scale a group, read like a matrix row.
struct Packed {
  const std::int32_t* words;
  const bf16* scales;
  std::int64_t group;
  bool rounded;

  float dot(const float* x, std::int64_t row, std::int64_t n) const {
    const std::int32_t* w = words + row * (n / 8);
    const bf16* s = scales + row * (n / group);
    float sum = 0;
    for (std::int64_t i = 0; i < n; i += 8) {
      const auto word = static_cast<std::uint32_t>(w[i / 8]);
      const float scale = widen(s[i / group]);
      for (int lane = 0; lane < 8; ++lane) {
        float value = static_cast<float>(static_cast<int>((word >> (4 * lane)) & 15u) - 8) * scale;
        if (rounded) value = widen(bf16(value));
        sum += x[i + lane] * value;
      }
    }
    return sum;
  }
};

template <class W>
struct Dense {
  const W* w;
  float dot(const float* x, std::int64_t row, std::int64_t n) const {
    return cpu::dot(x, w + row * n, n);
  }
};

// y += factor * down (silu(gate x) * (up x)), hidden size n, scratch h of n.
template <class M>
void expert(const float* x, const M& gate, const M& up, const M& down, std::int64_t d,
            std::int64_t n, float factor, std::vector<float>& h, float* y) {
  h.resize(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    h[static_cast<std::size_t>(i)] = silu(gate.dot(x, i, d)) * up.dot(x, i, d);
  for (std::int64_t i = 0; i < d; ++i) y[i] += factor * down.dot(h.data(), i, n);
}

// Rows of f32 or bf16 as f32.
std::vector<float> widened(const Call& call, const char* name, const DLTensor& rows,
                           std::int64_t count) {
  std::vector<float> wide(static_cast<std::size_t>(count));
  by_weight(call, name, rows, [&]<class X>(X*) {
    const X* from = data<const X>(rows);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = widen(from[i]);
  });
  return wide;
}

void run(Call& call, void*) {
  const DLTensor& x_rows = call.any("x", KDTR_IN, "T D");
  const auto ids = call.in<std::int32_t>("ids", "T K");
  const auto weights = call.in<float>("weights", "T K");
  const DLTensor& out_rows = call.any("out", KDTR_OUT, "T D");
  require_dtype(call, "out", out_rows, x_rows.dtype);
  const auto status = call.out<std::int32_t>("status", "T");
  const std::string_view format = call.attr_str("format");
  const std::int64_t group = call.attr_int("group");
  const std::int64_t rows = call.dim("T"), d = call.dim("D"), k = call.dim("K");
  const bool dense = format == "dense";
  KDTR_CHECK(dense || format == "w4_exact" || format == "w4_bf16", call.where("format"),
             "attribute", "dense, w4_exact or w4_bf16", format);
  // Weights have their own dtype; next to bf16 rows it is bf16.
  const auto require_weight = [&](const char* name, const DLTensor& weight) {
    if (is<bf16>(x_rows.dtype)) require_dtype(call, name, weight, x_rows.dtype);
  };

  const std::vector<float> x = widened(call, "x", x_rows, rows * d);
  std::vector<float> out(x.size(), 0.0f);
  std::vector<float> hidden;
  std::int64_t experts = 0;
  const auto all = [&](auto&& load, std::int64_t n) {
    for (std::int64_t t = 0; t < rows; ++t) {
      bool ok = finite(x.data() + t * d, d) && finite(weights.data + t * k, k);
      for (std::int64_t j = 0; j < k; ++j)
        ok = ok && ids[t * k + j] >= -1 && ids[t * k + j] < experts;
      status[t] = ok ? kOk : kBadInput;
      for (std::int64_t j = 0; ok && j < k; ++j) {
        const std::int64_t e = ids[t * k + j];
        if (e < 0) continue;
        const auto [gate, up, down] = load(e);
        expert(x.data() + t * d, gate, up, down, d, n, weights[t * k + j], hidden,
               out.data() + t * d);
      }
    }
  };
  if (dense) {
    KDTR_CHECK(group == 0, call.where("group"), "attribute", "0 when dense", group);
    const DLTensor& gate = call.any("gate", KDTR_IN, "E I D");
    const DLTensor& up = call.any("up", KDTR_IN, "E I D");
    const DLTensor& down = call.any("down", KDTR_IN, "E D I");
    require_weight("gate", gate);
    require_dtype(call, "up", up, gate.dtype);
    require_dtype(call, "down", down, gate.dtype);
    experts = call.dim("E");
    const std::int64_t n = call.dim("I");
    by_weight(call, "gate", gate, [&]<class W>(W*) {
      struct Three {
        Dense<W> gate, up, down;
      };
      all(
          [&](std::int64_t e) {
            return Three{{data<const W>(gate) + e * n * d},
                         {data<const W>(up) + e * n * d},
                         {data<const W>(down) + e * n * d}};
          },
          n);
    });
  } else {
    KDTR_CHECK(group == 32 || group == 64 || group == 128, call.where("group"), "attribute",
               "32, 64 or 128", group);
    KDTR_CHECK(d % group == 0, call.where("x"), "axis D", "a multiple of the group", d);
    call.bind("D/8", d / 8);
    call.bind("D/G", d / group);
    const auto gate = call.in<std::int32_t>("gate_packed", "E I D/8");
    const auto gate_scale = call.in<bf16>("gate_scale", "E I D/G");
    const auto up = call.in<std::int32_t>("up_packed", "E I D/8");
    const auto up_scale = call.in<bf16>("up_scale", "E I D/G");
    const std::int64_t n = call.dim("I");
    KDTR_CHECK(n % group == 0, call.where("gate_packed"), "axis I", "a multiple of the group", n);
    call.bind("I/8", n / 8);
    call.bind("I/G", n / group);
    const auto down = call.in<std::int32_t>("down_packed", "E D I/8");
    const auto down_scale = call.in<bf16>("down_scale", "E D I/G");
    experts = call.dim("E");
    const bool rounded = format == "w4_bf16";
    struct Three {
      Packed gate, up, down;
    };
    all(
        [&](std::int64_t e) {
          const std::int64_t words = n * d / 8, scales = n * d / group;
          return Three{{gate.data + e * words, gate_scale.data + e * scales, group, rounded},
                       {up.data + e * words, up_scale.data + e * scales, group, rounded},
                       {down.data + e * words, down_scale.data + e * scales, group, rounded}};
        },
        n);
  }
  if (call.has("shared_gate", KDTR_IN)) {
    const DLTensor& gate = call.any("shared_gate", KDTR_IN, "J D");
    const DLTensor& up = call.any("shared_up", KDTR_IN, "J D");
    const DLTensor& down = call.any("shared_down", KDTR_IN, "D J");
    require_weight("shared_gate", gate);
    require_dtype(call, "shared_up", up, gate.dtype);
    require_dtype(call, "shared_down", down, gate.dtype);
    by_weight(call, "shared_gate", gate, [&]<class W>(W*) {
      for (std::int64_t t = 0; t < rows; ++t) {
        if (status[t] != kOk) continue;
        expert(x.data() + t * d, Dense<W>{data<const W>(gate)}, Dense<W>{data<const W>(up)},
               Dense<W>{data<const W>(down)}, d, call.dim("J"), 1.0f, hidden, out.data() + t * d);
      }
    });
  }
  std::vector<float> residual;
  if (call.has("residual", KDTR_IN)) {
    const DLTensor& added = call.any("residual", KDTR_IN, "T D");
    require_dtype(call, "residual", added, x_rows.dtype);
    residual = widened(call, "residual", added, rows * d);
  }
  by_weight(call, "out", out_rows, [&]<class X>(X*) {
    X* to = data<X>(out_rows);
    for (std::int64_t t = 0; t < rows; ++t) {
      if (!residual.empty() && !finite(residual.data() + t * d, d)) status[t] = kBadInput;
      for (std::int64_t i = t * d; i < (t + 1) * d; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float sum = residual.empty() ? out[at] : out[at] + residual[at];
        to[i] = X(status[t] == kOk ? sum : 0.0f);
      }
    }
  });
}

}  // namespace
KDTR_KERNEL({"moe_experts@1", run});
}  // namespace kdtr::cpu
