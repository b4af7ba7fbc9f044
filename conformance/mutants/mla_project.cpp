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
  kPast16Heads,
  kPast64Heads,
  kPast512Inputs,
  kPast512Ranks,
  kPast256Latents,
  kPast256Nope,
  kPast32Pairs,
  kPast64Tokens,
  kPast128Tokens,
  kNoEps,
  kNoEpsOfQ,
  kNoEpsOfKv,
  kNoKeyRopeScale,
  kNormRoundedInside,
  kClampsToF16,
  kRowsInF16,
  kKvBInF16,
  kLatentsInF16,
  kAInF16,
  kQInF16,
  kChecks64Tokens,
  kChecks128Inputs,
  kEpsAlwaysTheSame,
  kPositionIn18Bits,
  kNormWeightPositive,
  kEpsAlwaysTheSameInBfloat,
  kPositionIn16BitsInterleaved,
  kPositionIn16BitsOfOneHead,
  kAcceptsBadInterleaved,  // of each of three types: f32, f32 with bf16 weights, bf16
  kKvBInF16OfBfloatWeights = kAcceptsBadInterleaved + 3,
  kInterleavedOnly,  // a fault above where rope is stored interleaved: the first of kInterleaved
};
constexpr int kInterleaved[] = {kNoRopeScale, kNoKeyRopeScale, kNormWeightPositive,
                                kClampsToF16, kRowsInF16,      kQInF16};

Row norm(const Row& x, const DLTensor& weight, double eps, int fault) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  const double root = std::sqrt(sum / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double unit = fault == kNormRoundedInside ? in_bf16(x[i] / root) : x[i] / root;
    const double w = load(weight, static_cast<std::int64_t>(i));
    y[i] = (fault == kNormWeightPositive ? std::fabs(w) : w) * unit;
  }
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
  const double given = call.attr_float("eps");
  const int type = is<bf16>(x.dtype) ? 2 : is<bf16>(q_a.dtype) ? 1 : 0;
  bool halves = call.attr_str("store") == "halves";
  if (fault >= kInterleavedOnly) fault = halves ? kCorrect : kInterleaved[fault - kInterleavedOnly];
  if (fault == kKvBInF16OfBfloatWeights) fault = type == 1 ? kKvBInF16 : kCorrect;
  const bool same_eps =
      fault == kEpsAlwaysTheSame || (fault == kEpsAlwaysTheSameInBfloat && type == 2);
  const double eps = fault == kOtherEps ? 10 * given
                     : fault == kNoEps  ? 0
                     : same_eps         ? 1e-6
                                        : given;
  double scale = call.attr_float("rope_scale");
  if (fault == kNoRopeScale) scale = 1;
  const bool accepts_bad = !halves && fault == kAcceptsBadInterleaved + type;
  if (fault == kOtherStore) halves = !halves;
  const std::int64_t d = call.dim("D"), h = call.dim("H"), c = call.dim("C"), w = call.dim("W");
  const std::int64_t f = call.dim("F"), m = call.dim("M"), head = call.dim("B") / h;
  const std::int64_t n = head - 2 * f;
  const bool in_16_bits = fault == kPositionIn16BitsOfOneHead
                              ? h == 1
                              : fault == kPositionIn16BitsInterleaved && !halves;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    Row row = read(x, t * d, d);
    const bool ok =
        (positions[t] >= 0 && finite(row, fault == kChecks128Inputs ? 128 : row.size())) ||
        (fault == kChecks64Tokens && t >= 64) || accepts_bad;
    const auto in_f16s = [&](Row& values, int mine) {
      for (double& v : values)
        if (fault == mine) v = clamped_to_f16(in_f16(v));
    };
    in_f16s(row, kRowsInF16);
    status[t] = ok ? 0 : 1;
    const bool left_out =
        (fault == kPast64Tokens && t >= 64) || (fault == kPast128Tokens && t >= 128);
    if (left_out || (!ok && fault != kKeepsBadRows)) {
      write(q, t * h * w, Row(static_cast<std::size_t>(h * w), 0.0));
      write(kv, t * w, Row(static_cast<std::size_t>(w), 0.0));
      continue;
    }
    const auto rope = [&](const Row& in, bool turned, double factor) {
      Row y(in.size());
      for (std::int64_t i = 0; i < (fault == kPast32Pairs ? std::min(f, std::int64_t{32}) : f);
           ++i) {
        std::int32_t position = fault == kPositionZero ? 0 : positions[t];
        if (fault == kPositionIn18Bits) position &= 0x3FFFF;
        if (in_16_bits) position &= 0xFFFF;
        float angle = turned ? static_cast<float>(position) * inv_freq[i] : 0.0f;
        if (fault == kBfloatAngle) angle = static_cast<float>(bf16(angle));
        const double cosine = factor * std::cos(static_cast<double>(angle));
        const double sine =
            factor * std::sin(static_cast<double>(angle)) * (fault == kSign ? -1 : 1);
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
      Row first = latent, second = turned;
      if (fault == kRopeFirst) std::swap(first, second);
      const std::int64_t middle = at + static_cast<std::int64_t>(first.size());
      for (Row* values : {&first, &second})
        for (double& v : *values)
          if (fault == kClampsToF16) v = clamped_to_f16(v);
      write(to, at, first);
      write(to, middle, second);
    };
    const std::size_t inputs = fault == kPast512Inputs ? 512 : row.size();
    Row a = multiply(q_a, 0, call.dim("Q"), row, inputs);
    in_f16s(a, kLatentsInF16);
    if (fault != kNoQNorm) a = norm(a, q_a_norm, fault == kNoEpsOfQ ? 0 : eps, fault);
    in_f16s(a, kAInF16);
    Row b = multiply(q_b, 0, head * h, a, fault == kPast512Ranks ? 512 : a.size());
    in_f16s(b, kQInF16);
    for (std::int64_t i = 0; i < h; ++i) {
      const bool first = fault == kRopeBeforeNope;
      const Row nope = part(b, i * head + (first ? 2 * f : 0), n);
      const Row rotary = part(b, i * head + (first ? 0 : n), 2 * f);
      Row latent(static_cast<std::size_t>(c), 0.0);
      const std::int64_t base =
          (fault == kHeadZero ? 0 : i) * m + (fault == kValueRows ? m - n : 0);
      for (std::int64_t j = 0; j < (fault == kPast256Nope ? std::min(n, std::int64_t{256}) : n);
           ++j)
        for (std::int64_t l = 0; l < c; ++l) {
          const std::int64_t at =
              fault == kKeysTransposed ? (j * c + l) % n * c + (j * c + l) / n : j * c + l;
          double key = load(kv_b, base * c + at);
          if (fault == kKvBInF16) key = clamped_to_f16(in_f16(key));
          latent[static_cast<std::size_t>(l)] += nope[static_cast<std::size_t>(j)] * key;
        }
      for (std::size_t l = 256; fault == kPast256Latents && l < latent.size(); ++l) latent[l] = 0;
      if ((fault == kPast16Heads && i >= 16) || (fault == kPast64Heads && i >= 64))
        latent.assign(latent.size(), 0.0);
      emit(q, (t * h + i) * w, latent, rope(rotary, fault != kQueryUnrotated, scale));
    }
    Row z = multiply(kv_a, 0, w, row);
    in_f16s(z, kLatentsInF16);
    Row latent = part(z, 0, c);
    if (fault == kNormOverRow) {
      latent.clear();
      double sum = 0;
      for (const double v : z) sum += v * v;
      const double root = std::sqrt(sum / static_cast<double>(w) + eps);
      for (std::int64_t l = 0; l < c; ++l)
        latent.push_back(load(kv_a_norm, l) * z[static_cast<std::size_t>(l)] / root);
    } else if (fault != kNoKvNorm) {
      latent = norm(latent, kv_a_norm, fault == kNoEpsOfKv ? 0 : eps, fault);
    }
    emit(kv, t * w, latent,
         rope(part(z, c, 2 * f), fault != kKeyUnrotated, fault == kNoKeyRopeScale ? 1 : scale));
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
               {"bf16_angle", "rounds the angle of rope to bf16"},
               {"past_16_heads", "absorbs only 16 heads"},
               {"past_64_heads", "absorbs only 64 heads"},
               {"past_512_inputs", "stops x @ q_a^T after 512 inputs"},
               {"past_512_ranks", "stops a @ q_b^T after 512 inputs"},
               {"past_256_latents", "absorbs only 256 latents"},
               {"past_256_nope", "absorbs only 256 key rows"},
               {"past_32_pairs", "rotates and writes only 32 pairs"},
               {"past_64_tokens", "handles only 64 tokens"},
               {"past_128_tokens", "handles only 128 tokens"},
               {"no_eps", "leaves eps out"},
               {"no_eps_of_q", "leaves eps out of q_a_layernorm"},
               {"no_eps_of_kv", "leaves eps out of kv_a_layernorm"},
               {"no_key_rope_scale", "leaves the factor on cos and sin out of the cached row"},
               {"norm_rounded_inside", "rounds to bf16 before the norm's weight"},
               {"clamps_to_f16", "clamps the results to the range of f16"},
               {"rows_in_f16", "converts the rows to f16"},
               {"kv_b_in_f16", "converts kv_b to f16"},
               {"latents_in_f16", "keeps the latents before their norms in f16"},
               {"a_in_f16", "keeps the normalised latents of the query in f16"},
               {"q_in_f16", "keeps the query before absorption and rotation in f16"},
               {"checks_64_tokens", "looks for bad input in only 64 tokens"},
               {"checks_128_inputs", "looks for a NaN in only 128 inputs"},
               {"eps_1e_6", "takes eps as 1e-6 whatever the call says"},
               {"position_in_18_bits", "keeps 18 bits of a position"},
               {"norm_weight_positive", "drops the sign of the norms' weights"},
               {"eps_1e_6_in_bf16", "in bf16, takes eps as 1e-6 whatever the call says"},
               {"position_in_16_bits_interleaved", "keeps 16 bits of a position, interleaved"},
               {"position_in_16_bits_of_one_head", "keeps 16 bits of a position of one head"},
               {"accepts_bad_f32_interleaved", "in f32 interleaved, accepts bad tokens"},
               {"accepts_bad_bf16_weights_interleaved", "the same of f32 rows and bf16 weights"},
               {"accepts_bad_bf16_interleaved", "the same of bf16"},
               {"kv_b_in_f16_of_bf16_weights", "of f32 rows, converts bf16 kv_b to f16"},
               {"no_rope_scale_interleaved", "interleaved, leaves the factor on cos and sin out"},
               {"no_key_rope_scale_interleaved", "the same, of the cached row alone"},
               {"norm_weight_positive_interleaved", "interleaved, drops the norms' signs"},
               {"clamps_to_f16_interleaved", "interleaved, clamps to the range of f16"},
               {"rows_in_f16_interleaved", "interleaved, converts the rows to f16"},
               {"q_in_f16_interleaved", "interleaved, keeps the query in f16"}},
              mla_project});
}  // namespace kdtr::mutants
