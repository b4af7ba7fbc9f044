#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kOtherEps,
  kNoQNorm,
  kNoKvNorm,
  kNormOverRow,
  kHalfPairs,
  kSign,
  kOtherStore,
  kRopeFirst,
  kValueRows,
  kKeyUnrotated,
  kQueryUnrotated,
  kPositionZero,
  kHeadZero,
  kNoRopeScale,
  kKeysTransposed,
  kKeepsBadRows,
  kRopeBeforeNope,
  kBfloatAngle,
};

Row norm(const Row& x, const DLTensor& weight, double eps, std::size_t over) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double root = std::sqrt(sum / static_cast<double>(over) + eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = load(weight, static_cast<std::int64_t>(i)) * x[i] / root;
  return y;
}

Row part(const Row& x, std::int64_t first, std::int64_t count) {
  return {x.begin() + first, x.begin() + first + count};
}

void mla_project(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const DLTensor& q_a = call.any("q_a", KDTR_IN, "Q D");
  const DLTensor& q_a_norm = call.any("q_a_norm", KDTR_IN, "Q");
  const DLTensor& q_b = call.any("q_b", KDTR_IN, "B Q");
  const DLTensor& kv_a = call.any("kv_a", KDTR_IN, "W D");
  const DLTensor& kv_a_norm = call.any("kv_a_norm", KDTR_IN, "C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H M C");
  const DLTensor& q = call.any("q", KDTR_OUT, "T H W");
  const DLTensor& kv = call.any("kv", KDTR_OUT, "T W");
  const auto status = call.out<std::int32_t>("status", "T");
  const double eps = call.attr_float("eps") * (fault == kOtherEps ? 10 : 1);
  double scale = call.attr_float("rope_scale");
  if (fault == kNoRopeScale) scale = 1;
  bool halves = call.attr_str("store") == "halves";
  if (fault == kOtherStore) halves = !halves;
  const std::int64_t d = call.dim("D"), h = call.dim("H"), c = call.dim("C"), w = call.dim("W");
  const std::int64_t f = call.dim("F"), m = call.dim("M"), head = call.dim("B") / h;
  const std::int64_t n = head - 2 * f;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row row = read(x, t * d, d);
    const bool ok = positions[t] >= 0 && finite(row);
    status[t] = ok ? 0 : 1;
    if (!ok && fault != kKeepsBadRows) {
      write(q, t * h * w, Row(static_cast<std::size_t>(h * w), 0.0));
      write(kv, t * w, Row(static_cast<std::size_t>(w), 0.0));
      continue;
    }
    const auto rope = [&](const Row& in, bool turned) {
      Row y(in.size());
      for (std::int64_t i = 0; i < f; ++i) {
        const std::int32_t position = fault == kPositionZero ? 0 : positions[t];
        float angle = turned ? static_cast<float>(position) * inv_freq[i] : 0.0f;
        if (fault == kBfloatAngle) angle = static_cast<float>(bf16(angle));
        const double cosine = scale * std::cos(static_cast<double>(angle));
        const double sine =
            scale * std::sin(static_cast<double>(angle)) * (fault == kSign ? -1 : 1);
        const bool half = fault == kHalfPairs;
        const double a = in[static_cast<std::size_t>(half ? i : 2 * i)];
        const double b = in[static_cast<std::size_t>(half ? f + i : 2 * i + 1)];
        y[static_cast<std::size_t>(halves ? i : 2 * i)] = a * cosine - b * sine;
        y[static_cast<std::size_t>(halves ? f + i : 2 * i + 1)] = b * cosine + a * sine;
      }
      return y;
    };
    const auto emit = [&](const DLTensor& to, std::int64_t at, const Row& latent,
                          const Row& turned) {
      const bool swap = fault == kRopeFirst;
      write(to, at, swap ? turned : latent);
      write(to, at + (swap ? 2 * f : c), swap ? latent : turned);
    };
    Row a = multiply(q_a, 0, call.dim("Q"), row);
    if (fault != kNoQNorm) a = norm(a, q_a_norm, eps, a.size());
    const Row b = multiply(q_b, 0, head * h, a);
    for (std::int64_t i = 0; i < h; ++i) {
      const bool first = fault == kRopeBeforeNope;
      const Row nope = part(b, i * head + (first ? 2 * f : 0), n);
      const Row rotary = part(b, i * head + (first ? 0 : n), 2 * f);
      Row latent(static_cast<std::size_t>(c), 0.0);
      const std::int64_t base =
          (fault == kHeadZero ? 0 : i) * m + (fault == kValueRows ? m - n : 0);
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t l = 0; l < c; ++l) {
          const std::int64_t at =
              fault == kKeysTransposed ? (j * c + l) % n * c + (j * c + l) / n : j * c + l;
          latent[static_cast<std::size_t>(l)] +=
              nope[static_cast<std::size_t>(j)] * load(kv_b, base * c + at);
        }
      emit(q, (t * h + i) * w, latent, rope(rotary, fault != kQueryUnrotated));
    }
    const Row z = multiply(kv_a, 0, w, row);
    Row latent = part(z, 0, c);
    if (fault == kNormOverRow) {
      latent.clear();
      double sum = 0;
      for (const double v : z) sum += v * v;
      const double root = std::sqrt(sum / static_cast<double>(w) + eps);
      for (std::int64_t l = 0; l < c; ++l)
        latent.push_back(load(kv_a_norm, l) * z[static_cast<std::size_t>(l)] / root);
    } else if (fault != kNoKvNorm) {
      latent = norm(latent, kv_a_norm, eps, latent.size());
    }
    emit(kv, t * w, latent, rope(part(z, c, 2 * f), fault != kKeyUnrotated));
  }
}

}  // namespace
KDTR_MUTANTS({"mla_project@1",
              {{"correct", "control"},
               {"other_eps", "uses the model's eps for the latent norms"},
               {"no_q_norm", "leaves q_a_layernorm out"},
               {"no_kv_norm", "caches the latent before its norm"},
               {"norm_over_row", "normalises the latent by the whole row, rope part included"},
               {"half_pairs", "pairs i with F + i"},
               {"sign", "turns the other way"},
               {"other_store", "stores the rope part in the other order"},
               {"rope_first", "stores rope before latent"},
               {"value_rows", "absorbs the value rows of kv_b"},
               {"key_unrotated", "caches the rope part before rotation"},
               {"query_unrotated", "does not rotate the query"},
               {"position_zero", "takes every position as 0"},
               {"head_zero", "absorbs head 0's rows for every head"},
               {"no_rope_scale", "leaves the factor on cos and sin out"},
               {"keys_transposed", "reads the key rows transposed"},
               {"keeps_bad_rows", "writes a failed token's row"},
               {"rope_before_nope", "takes the rope rows of q_b first"},
               {"bf16_angle", "rounds the angle of rope to bf16"}},
              mla_project});
}  // namespace kdtr::mutants
