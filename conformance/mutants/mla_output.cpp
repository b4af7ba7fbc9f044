#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kKeyRows,
  kHeadsInner,
  kHeadZero,
  kNoResidual,
  kLastHeadDropped,
  kBfloatValues,
  kTokenZero,
  kOTransposed,
  kKeepsBadRows,
  kNextHeadLatent,
};

void mla_output(Call& call, int fault) {
  const DLTensor& latent = call.any("latent", KDTR_IN, "T H C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H M C");
  const DLTensor& o = call.any("o", KDTR_IN, "D V");
  const DLTensor& out = call.any("out", KDTR_OUT, "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t h = call.dim("H"), m = call.dim("M"), c = call.dim("C"), d = call.dim("D");
  const std::int64_t v = call.dim("V") / h;
  const bool has_residual = call.has("residual", KDTR_IN);
  const DLTensor& residual = has_residual ? call.any("residual", KDTR_IN, "T D") : latent;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row row = read(latent, t * h * c, h * c);
    const Row add = has_residual ? read(residual, t * d, d) : Row(static_cast<std::size_t>(d), 0.0);
    const bool ok = finite(row) && finite(add);
    status[t] = ok ? 0 : 1;
    Row values(static_cast<std::size_t>(h * v), 0.0);
    for (std::int64_t i = 0; i < h; ++i) {
      if (fault == kLastHeadDropped && i + 1 == h) continue;
      const std::int64_t at =
          (fault == kTokenZero ? 0 : t * h) + (fault == kNextHeadLatent ? (i + 1) % h : i);
      const Row x = read(latent, at * c, c);
      const std::int64_t base =
          ((fault == kHeadZero ? 0 : i) * m + (fault == kKeyRows ? 0 : m - v)) * c;
      const Row mine = multiply(kv_b, base, v, x);
      for (std::int64_t j = 0; j < v; ++j) {
        double value = mine[static_cast<std::size_t>(j)];
        if (fault == kBfloatValues) value = static_cast<float>(bf16(static_cast<float>(value)));
        values[static_cast<std::size_t>(fault == kHeadsInner ? j * h + i : i * v + j)] = value;
      }
    }
    Row y = multiply(o, 0, d, values);
    if (fault == kOTransposed)
      for (std::int64_t i = 0; i < d; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < h * v; ++j)
          sum += load(o, j * d + i) * values[static_cast<std::size_t>(j)];
        y[static_cast<std::size_t>(i)] = sum;
      }
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (fault != kNoResidual) y[i] += add[i];
      if (!ok && fault != kKeepsBadRows) y[i] = 0;
    }
    write(out, t * d, y);
  }
}

}  // namespace
KDTR_MUTANTS({"mla_output@1",
              {{"correct", "control"},
               {"key_rows", "uses the key rows of kv_b"},
               {"heads_inner", "concatenates with heads innermost"},
               {"head_zero", "uses head 0's value rows for every head"},
               {"no_residual", "forgets the residual"},
               {"last_head_dropped", "leaves the last head out"},
               {"bf16_values", "rounds the values to bf16"},
               {"token_zero", "reads the first token's latents for all"},
               {"o_transposed", "reads o_proj as [in, out]"},
               {"keeps_bad_rows", "writes a failed token's row"},
               {"next_head_latent", "reads the next head's latent"}},
              mla_output});
}  // namespace kdtr::mutants
