// A DeepSeek-V3 / Kimi-K2 configuration, in transformers' spelling or in the authors' own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kdtr::model {

struct Config {
  std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0;
  std::int64_t q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v = 0;
  std::int64_t dense = 0, expert = 0, experts = 0, shared = 0;
  std::int64_t groups = 1, kept_groups = 1, top_k = 0, first_dense = 0;
  bool renormalize = true, tied = false;
  double routed_scale = 1.0;
  double eps = 1e-6;
  // transformers builds q_a and kv_a norms with its class default, whatever rms_norm_eps says.
  double latent_eps = 1e-6;
  float softmax_scale = 0, rope_scale = 1;
  std::vector<float> inv_freq;  // YaRN applied
  std::int64_t max_positions = 0;
  std::int64_t bos = -1, eos = -1;

  std::int64_t row() const { return kv_lora + rope; }  // of the cache, in elements
};

// Throws kdtr::Error naming the key that is missing, has another type, or is not supported.
Config parse_config(const std::string& text, const std::string& where);

}  // namespace kdtr::model
