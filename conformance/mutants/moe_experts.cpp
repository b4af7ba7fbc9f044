#include <algorithm>
#include <climits>
#include <string>

#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kGateUpSwapped,
  kNoWeights,
  kWeightsShifted,
  kNoShared,
  kSharedScaled,
  kNoResidual,
  kHighNibbleFirst,
  kTwosComplement,
  kOffsetMissing,
  kScaleOfNextGroup,
  kScaleOfFirstGroup,
  kScaleOfFirstExpert,
  kScaleTransposed,
  kOtherRounding,
  kExpertZeroForPad,
  kLastExpertMissing,
  kKeepsBadRows,
  kTokenZeroOnly,
  kLastHiddenDropped,
  kNoActivation,
  kRoundsProducts,
  kRoundsExperts,
  kRoundsSum,
  kPastEightTokens,
  kPast64Tokens,
  kPast640Inputs,
  kPast2560Inputs,
};

void round_to_bf16(Row& row) {
  for (double& value : row) value = static_cast<float>(bf16(static_cast<float>(value)));
}

// Row `row` of a dense or an int4 matrix [rows, n] of expert e.
struct Matrix {
  const DLTensor* words = nullptr;
  const DLTensor* scales = nullptr;
  std::int64_t rows, n, group;
  bool rounded;
  int fault;

  Row get(std::int64_t e, std::int64_t row) const {
    const std::int64_t at = e * rows + row;
    if (scales == nullptr) return read(*words, at * n, n);
    Row out(static_cast<std::size_t>(n));
    const auto* q = static_cast<const std::uint32_t*>(words->data);
    const std::int64_t groups = n / group;
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t lane = i % 8, g = i / group;
      if (fault == kHighNibbleFirst) lane = 7 - lane;
      if (fault == kScaleOfNextGroup) g = (g + 1) % groups;
      if (fault == kScaleOfFirstGroup) g = 0;
      const auto code = static_cast<int>((q[at * (n / 8) + i / 8] >> (4 * lane)) & 15u);
      int value = code - 8;
      if (fault == kTwosComplement) value = code > 7 ? code - 16 : code;
      if (fault == kOffsetMissing) value = code;
      std::int64_t s = (fault == kScaleOfFirstExpert ? row : at) * groups + g;
      if (fault == kScaleTransposed) s = e * rows * groups + g * rows + row;
      double w = value * load(*scales, s);
      if (rounded != (fault == kOtherRounding)) w = static_cast<float>(bf16(static_cast<float>(w)));
      out[static_cast<std::size_t>(i)] = w;
    }
    return out;
  }
  Row multiply(std::int64_t e, const Row& x) const {
    Row y(static_cast<std::size_t>(rows), 0.0);
    const std::size_t end = fault == kPast640Inputs    ? 640
                            : fault == kPast2560Inputs ? 2560
                                                       : x.size();
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row w = get(e, r);
      for (std::size_t i = 0; i < std::min(w.size(), end); ++i)
        y[static_cast<std::size_t>(r)] += w[i] * x[i];
    }
    return y;
  }
};

struct Expert {
  Matrix gate, up, down;
  Row operator()(std::int64_t e, const Row& x, int fault) const {
    Row g = gate.multiply(e, x), u = up.multiply(e, x);
    if (fault == kGateUpSwapped) std::swap(g, u);
    if (fault == kRoundsProducts) {
      round_to_bf16(g);
      round_to_bf16(u);
    }
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = (fault == kNoActivation ? g[i] : g[i] * logistic(g[i])) * u[i];
    if (fault == kLastHiddenDropped && !g.empty()) g.back() = 0;
    Row y = down.multiply(e, g);
    if (fault == kRoundsExperts) round_to_bf16(y);
    return y;
  }
};

void moe_experts(Call& call, int fault) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  const auto ids = call.in<std::int32_t>("ids", "T K");
  const DLTensor& factors = call.any("weights", KDTR_IN, "T K");
  const DLTensor& out = call.any("out", KDTR_OUT, "T D");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::string format(call.attr_str("format"));
  const std::int64_t group = call.attr_int("group");
  const std::int64_t d = call.dim("D"), k = call.dim("K");
  const bool dense = format == "dense", rounded = format == "w4_bf16";
  const auto matrix = [&](const std::string& name, std::int64_t n) {
    Matrix m{};
    m.words = &call.any((name + (dense ? "" : "_packed")).c_str(), KDTR_IN, "E * *");
    m.scales = dense ? nullptr : &call.any((name + "_scale").c_str(), KDTR_IN, "E * *");
    m.rows = m.words->shape[1];
    m.n = n;
    m.group = group;
    m.rounded = rounded;
    m.fault = fault;
    return m;
  };
  Expert routed{matrix("gate", d), matrix("up", d), {}};
  routed.down = matrix("down", routed.gate.rows);
  const bool has_shared = call.has("shared_gate", KDTR_IN);
  Expert shared{};
  if (has_shared) {
    const auto plain = [&](const char* name, std::int64_t n) {
      Matrix m{};
      m.words = &call.any(name, KDTR_IN, "* *");
      m.rows = m.words->shape[0];
      m.n = n;
      return m;
    };
    shared.gate = plain("shared_gate", d);
    shared.up = plain("shared_up", d);
    shared.down = plain("shared_down", shared.gate.rows);
  }
  const bool has_residual = call.has("residual", KDTR_IN);
  const DLTensor& residual = has_residual ? call.any("residual", KDTR_IN, "T D") : x;
  const std::int64_t experts = call.dim("E");
  std::vector<int> seen(static_cast<std::size_t>(experts), 0);  // tokens of each expert so far
  const int most = fault == kPastEightTokens ? 8 : fault == kPast64Tokens ? 64 : INT_MAX;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    const Row row = read(x, t * d, d), w = read(factors, t * k, k);
    const Row add = has_residual ? read(residual, t * d, d) : Row(row.size(), 0.0);
    bool ok = finite(row) && finite(w) && finite(add);
    for (std::int64_t j = 0; j < k; ++j)
      ok = ok && ids[t * k + j] >= -1 && ids[t * k + j] < experts;
    status[t] = ok ? 0 : 1;
    Row y(row.size(), 0.0);
    const auto accumulate = [&](const Row& part, double factor) {
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += factor * part[i];
    };
    for (std::int64_t j = 0; ok && j < k; ++j) {
      std::int64_t e = ids[t * k + j];
      if (e < 0 && fault == kExpertZeroForPad && experts > 0) e = 0;
      if (e < 0 || (fault == kLastExpertMissing && e + 1 == experts)) continue;
      double factor = w[static_cast<std::size_t>(fault == kWeightsShifted ? (j + 1) % k : j)];
      if (e == 0 && ids[t * k + j] < 0) factor = 1;
      if (fault == kNoWeights) factor = 1;
      if (fault == kTokenZeroOnly && t > 0) continue;
      if (seen[static_cast<std::size_t>(e)]++ >= most) continue;
      accumulate(routed(e, row, fault), factor);
    }
    if (ok && has_shared && fault != kNoShared)
      accumulate(shared(0, row, fault), fault == kSharedScaled ? 0.4 : 1.0);
    if (fault == kRoundsSum) round_to_bf16(y);
    if ((ok && fault != kNoResidual) || fault == kKeepsBadRows) accumulate(add, 1.0);
    if (!ok && fault == kKeepsBadRows) accumulate(row, 1.0);
    write(out, t * d, y);
  }
}

}  // namespace
KDTR_MUTANTS({"moe_experts@1",
              {{"correct", "control"},
               {"gate_up_swapped", "activates up instead of gate"},
               {"no_weights", "adds the experts unweighted"},
               {"weights_shifted", "gives each expert its neighbour's weight"},
               {"no_shared", "forgets the shared expert"},
               {"shared_scaled", "weights the shared expert by 1 / scaling factor"},
               {"no_residual", "forgets the residual"},
               {"high_nibble_first", "unpacks the highest nibble first"},
               {"twos_complement", "reads nibbles as two's complement"},
               {"offset_missing", "does not subtract 8"},
               {"scale_of_next_group", "uses the next group's scale"},
               {"scale_of_first_group", "uses one scale a row"},
               {"scale_of_first_expert", "uses expert 0's scales for all"},
               {"scale_transposed", "reads the scales as [in/32, out]"},
               {"other_rounding", "rounds weights to bf16 when it should not, or the reverse"},
               {"expert_zero_for_pad", "runs expert 0 for an id of -1"},
               {"last_expert_missing", "skips the last expert"},
               {"keeps_bad_rows", "writes a failed token's row"},
               {"token_zero_only", "routes only the first token"},
               {"last_hidden_dropped", "drops the last hidden element"},
               {"no_activation", "multiplies gate by up without silu"},
               {"rounds_products", "rounds gate and up to bf16 before silu"},
               {"rounds_experts", "rounds each expert's result to bf16 before they are combined"},
               {"rounds_sum", "rounds the combination to bf16 before the residual"},
               {"past_eight_tokens", "drops an expert's tokens after the eighth"},
               {"past_64_tokens", "drops an expert's tokens after the 64th"},
               {"past_640_inputs", "stops each dot product after 640 inputs"},
               {"past_2560_inputs", "stops each dot product after 2560 inputs"}},
              moe_experts});
}  // namespace kdtr::mutants
