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
  kPast16Heads,
  kPast64Heads,
  kPast512Outputs,
  kPast1024Values,
  kPast512Latents,
  kPast64Tokens,
  kPast128Tokens,
  kClampsToF16,
  kRowsInF16,
  kOInF16,
  kValuesInF16,
  kPast1024Inputs,
  kResidualOf64Tokens,
  kResidualOf64Outputs,
  kChecks64Tokens,
  kChecks128Latents,
  kChecks64Outputs,
  // Of each of three types: f32, f32 with bf16 weights, bf16.
  kAcceptsBadAlone,
  kAcceptsBadResidual = kAcceptsBadAlone + 3,
  kOnlyIn = kAcceptsBadResidual + 3,  // a fault above, in one branch: the first of kOnly
};
struct Only {
  int fault, type;
  bool residual;
};
constexpr Only kOnly[] = {
    {kPast128Tokens, 0, false}, {kPast128Tokens, 1, false},   {kPast128Tokens, 2, false},
    {kPast128Tokens, 1, true},  {kChecks128Latents, 1, true}, {kOInF16, 1, true},
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
  const int type = is<bf16>(latent.dtype) ? 2 : is<bf16>(kv_b.dtype) ? 1 : 0;
  if (fault >= kOnlyIn) {
    const Only& only = kOnly[fault - kOnlyIn];
    fault = only.type == type && only.residual == has_residual ? only.fault : kCorrect;
  }
  const bool accepts_bad = fault == (has_residual ? kAcceptsBadResidual : kAcceptsBadAlone) + type;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row row = read(latent, t * h * c, h * c);
    const Row add = has_residual ? read(residual, t * d, d) : Row(static_cast<std::size_t>(d), 0.0);
    const bool ok = (finite(row, fault == kChecks128Latents ? 128 : row.size()) &&
                     finite(add, fault == kChecks64Outputs ? 64 : add.size())) ||
                    (fault == kChecks64Tokens && t >= 64) || accepts_bad;
    status[t] = ok ? 0 : 1;
    Row values(static_cast<std::size_t>(h * v), 0.0);
    for (std::int64_t i = 0; i < h; ++i) {
      if (fault == kLastHeadDropped && i + 1 == h) continue;
      const std::int64_t at =
          (fault == kTokenZero ? 0 : t * h) + (fault == kNextHeadLatent ? (i + 1) % h : i);
      if ((fault == kPast16Heads && i >= 16) || (fault == kPast64Heads && i >= 64)) continue;
      Row x = read(latent, at * c, c);
      for (double& value : x)
        if (fault == kRowsInF16) value = clamped_to_f16(in_f16(value));
      const std::int64_t base =
          ((fault == kHeadZero ? 0 : i) * m + (fault == kKeyRows ? 0 : m - v)) * c;
      const Row mine = multiply(kv_b, base, v, x, fault == kPast512Latents ? 512 : x.size());
      for (std::int64_t j = 0; j < v; ++j) {
        double value = mine[static_cast<std::size_t>(j)];
        if (fault == kBfloatValues) value = in_bf16(value);
        if (fault == kValuesInF16) value = clamped_to_f16(in_f16(value));
        if (fault == kPast1024Values && j >= 1024) value = 0;
        values[static_cast<std::size_t>(fault == kHeadsInner ? j * h + i : i * v + j)] = value;
      }
    }
    Row y = multiply(o, 0, d, values, fault == kPast1024Inputs ? 1024 : values.size());
    if (fault == kOTransposed || fault == kOInF16)
      for (std::int64_t i = 0; i < d; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < h * v; ++j) {
          const double weight = fault == kOInF16 ? clamped_to_f16(in_f16(load(o, i * h * v + j)))
                                                 : load(o, j * d + i);
          sum += weight * values[static_cast<std::size_t>(j)];
        }
        y[static_cast<std::size_t>(i)] = sum;
      }
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (fault != kNoResidual && !(fault == kResidualOf64Tokens && t >= 64) &&
          !(fault == kResidualOf64Outputs && i >= 64))
        y[i] += add[i];
      const bool left_out = (fault == kPast512Outputs && i >= 512) ||
                            (fault == kPast64Tokens && t >= 64) ||
                            (fault == kPast128Tokens && t >= 128);
      if (left_out || (!ok && fault != kKeepsBadRows)) y[i] = 0;
      if (fault == kClampsToF16) y[i] = clamped_to_f16(y[i]);
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
               {"next_head_latent", "reads the next head's latent"},
               {"past_16_heads", "uses only 16 heads"},
               {"past_64_heads", "uses only 64 heads"},
               {"past_512_outputs", "writes only 512 outputs"},
               {"past_1024_values", "uses only 1024 values of a head"},
               {"past_512_latents", "uses only 512 latents of a head"},
               {"past_64_tokens", "handles only 64 tokens"},
               {"past_128_tokens", "handles only 128 tokens"},
               {"clamps_to_f16", "clamps the result to the range of f16"},
               {"rows_in_f16", "converts the latents to f16"},
               {"o_in_f16", "converts o_proj to f16"},
               {"values_in_f16", "keeps the values in f16"},
               {"past_1024_inputs", "stops each sum of o_proj after 1024 inputs"},
               {"residual_of_64_tokens", "adds the residual of only 64 tokens"},
               {"residual_of_64_outputs", "adds the residual of only 64 outputs"},
               {"checks_64_tokens", "looks for a NaN in only 64 tokens"},
               {"checks_128_latents", "looks for a NaN in only 128 latents"},
               {"checks_64_outputs", "looks for a NaN in the residual of only 64 outputs"},
               {"accepts_bad_f32_alone", "in f32 without a residual, accepts bad rows"},
               {"accepts_bad_bf16_weights_alone", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_alone", "the same of bf16"},
               {"accepts_bad_f32_residual", "in f32 with a residual, accepts bad rows"},
               {"accepts_bad_bf16_weights_residual", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_residual", "the same of bf16"},
               {"past_128_tokens_f32_alone", "in f32 without a residual, handles only 128 tokens"},
               {"past_128_tokens_bf16_weights_alone", "the same of f32 rows and bf16 weights"},
               {"past_128_tokens_bf16_alone", "the same of bf16"},
               {"past_128_tokens_bf16_weights_residual",
                "of f32 rows and bf16 weights with a residual, handles only 128 tokens"},
               {"checks_128_latents_bf16_weights_residual",
                "the same: looks for a NaN in only 128 latents"},
               {"o_in_f16_bf16_weights_residual", "the same: converts o_proj to f16"}},
              mla_output});
}  // namespace kdtr::mutants
