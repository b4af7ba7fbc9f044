// mla_project@1 on cpu: token by token, stage by stage; f32 rows with f32 or bf16 weights, or bf16
// both; f32 between stages, one rounding at the end.
// x [T, D], positions [T], inv_freq [F], six weights -> q [T, H, C+2F], kv [T, C+2F], status [T].
#include <algorithm>
#include <vector>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

template <class W>
void normalise(std::vector<float>& x, std::int64_t n, const W* weight, float eps) {
  const float factor = rms_factor(x.data(), n, eps);
  for (std::int64_t i = 0; i < n; ++i) {
    float& value = x[static_cast<std::size_t>(i)];
    value = widen(weight[i]) * (value * factor);
  }
}

void run(Call& call, void*) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const std::int64_t f = call.dim("F");
  const DLTensor& q_a = call.any("q_a", KDTR_IN, "Q D");
  const DLTensor& q_a_norm = call.any("q_a_norm", KDTR_IN, "Q");
  const DLTensor& q_b = call.any("q_b", KDTR_IN, "QB Q");
  const DLTensor& kv_a = call.any("kv_a", KDTR_IN, "ROW D");
  const DLTensor& kv_a_norm = call.any("kv_a_norm", KDTR_IN, "C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& q = call.any("q", KDTR_OUT, "T H ROW");
  const DLTensor& kv = call.any("kv", KDTR_OUT, "T ROW");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), d = call.dim("D"), h = call.dim("H");
  const std::int64_t c = call.dim("C"), width = call.dim("ROW"), qn = call.dim("Q");
  KDTR_CHECK(width == c + 2 * f, call.where("kv_a"), "rows", c + 2 * f, width);
  const std::int64_t head = h > 0 ? call.dim("QB") / h : 0, n = head - 2 * f;
  KDTR_CHECK(head * h == call.dim("QB") && n >= 0 && n <= call.dim("NV"), call.where("q_b"), "rows",
             "H * (n + 2F) with n <= " + std::to_string(call.dim("NV")), call.dim("QB"));
  const DLTensor* weights[] = {&q_a, &q_a_norm, &q_b, &kv_a, &kv_a_norm, &kv_b};
  for (const DLTensor* w : weights) require_dtype(call, "weights", *w, q_a.dtype);
  require_dtype(call, "q", q, x.dtype);
  require_dtype(call, "kv", kv, x.dtype);
  const auto eps = static_cast<float>(call.attr_float("eps"));
  const auto rope_scale = static_cast<float>(call.attr_float("rope_scale"));
  const bool in_halves = halves(call);

  std::vector<float> a(static_cast<std::size_t>(qn)), b(static_cast<std::size_t>(head * h));
  std::vector<float> z(static_cast<std::size_t>(width)), latent(static_cast<std::size_t>(c));
  std::vector<float> cosine(static_cast<std::size_t>(f)), sine(cosine.size());
  by_rows(call, "x", x, "q_a", q_a, [&]<class X, class W>(X*, W*) {
    const auto store = [](const std::vector<float>& from, X* to, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = X(from[static_cast<std::size_t>(i)]);
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      const X* row = data<const X>(x) + t * d;
      X* q_out = data<X>(q) + t * h * width;
      X* kv_out = data<X>(kv) + t * width;
      const bool ok = positions[t] >= 0 && finite(row, d);
      status[t] = ok ? kOk : kBadInput;
      std::fill_n(q_out, h * width, X(0.0f));
      std::fill_n(kv_out, width, X(0.0f));
      if (!ok) continue;
      angles(positions[t], inv_freq.data, f, rope_scale, cosine.data(), sine.data());
      apply(row, data<const W>(q_a), qn, d, a.data());
      normalise(a, qn, data<const W>(q_a_norm), eps);
      apply(a.data(), data<const W>(q_b), head * h, qn, b.data());
      for (std::int64_t i = 0; i < h; ++i) {
        const float* from = b.data() + i * head;
        X* to = q_out + i * width;
        const W* keys = data<const W>(kv_b) + i * call.dim("NV") * c;
        std::fill(latent.begin(), latent.end(), 0.0f);
        for (std::int64_t j = 0; j < n; ++j)
          for (std::int64_t l = 0; l < c; ++l)
            latent[static_cast<std::size_t>(l)] += from[j] * widen(keys[j * c + l]);
        store(latent, to, c);
        rotate(from + n, cosine.data(), sine.data(), f, in_halves, to + c);
      }
      apply(row, data<const W>(kv_a), width, d, z.data());
      rotate(z.data() + c, cosine.data(), sine.data(), f, in_halves, kv_out + c);
      normalise(z, c, data<const W>(kv_a_norm), eps);
      store(z, kv_out, c);
    }
  });
}

}  // namespace
KDTR_KERNEL({"mla_project@1", run});
}  // namespace kdtr::cpu
