#include "config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "json_reader.h"
#include "kdtr/error.h"

namespace kdtr::model {
namespace {

class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t fallback = -1) const {
    const Json* value = get(key);
    if (value == nullptr) {
      if (fallback < 0) fail(where_, "missing key " + key);
      return fallback;
    }
    const double n = value->number;
    if (value->kind != Json::kNumber || n != std::floor(n) || n < static_cast<double>(low) ||
        n > 0x1p40)
      fail(where_ + "/" + key, "value", "an integer of at least " + std::to_string(low),
           value->text);
    return static_cast<std::int64_t>(n);
  }
  double number(const std::string& key, double fallback, bool zero = false) const {
    const Json* value = get(key);
    if (value == nullptr) return fallback;
    if (value->kind != Json::kNumber || !(value->number > 0 || (zero && value->number == 0)))
      fail(where_ + "/" + key, "value", zero ? "a number of at least 0" : "a positive number",
           value->text);
    return value->number;
  }
  bool boolean(const std::string& key, bool fallback) const {
    const Json* value = get(key);
    if (value == nullptr) return fallback;
    if (value->kind != Json::kBool) fail(where_ + "/" + key, "value", "true or false", value->text);
    return value->boolean;
  }
  std::string text(const std::string& key, const std::string& fallback) const {
    const Json* value = get(key);
    if (value == nullptr) return fallback;
    if (value->kind != Json::kString) fail(where_ + "/" + key, "value", "a string", value->text);
    return value->text;
  }
  void require(const std::string& key, const std::string& want) const {
    const std::string got = text(key, want);
    if (got != want) fail(where_ + "/" + key, "not supported", want, got);
  }
  const Json* get(const std::string& key) const {
    const Json* value = object_.find(key);
    return value == nullptr || value->kind == Json::kNull ? nullptr : value;
  }

 private:
  const Json& object_;
  std::string where_;
};

double mscale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

// Frequencies in f32, step by step as transformers computes them: the angles of two engines agree
// only when these do.
void set_rope(Config& c, const Reader& top, const Json* scaling, const std::string& where) {
  const Json empty{Json::kObject, false, 0, "", {}, {}};
  const Reader r(scaling == nullptr ? empty : *scaling, where);
  const auto theta = static_cast<float>(r.number("rope_theta", top.number("rope_theta", 10000.0)));
  const std::int64_t half = c.rope / 2;
  std::string type = r.text("rope_type", r.text("type", "default"));
  if (scaling == nullptr) type = "default";
  c.softmax_scale = static_cast<float>(std::pow(static_cast<double>(c.nope + c.rope), -0.5));
  double factor = 1;
  float low = 0, high = 0;
  if (type == "yarn") {
    factor = r.number("factor", 1.0);
    const double original = r.number("original_max_position_embeddings", 4096);
    const double dim = static_cast<double>(c.rope);
    const auto correction = [&](double rotations) {
      return dim * std::log(original / (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(static_cast<double>(theta)));
    };
    low = static_cast<float>(std::max(std::floor(correction(r.number("beta_fast", 32))), 0.0));
    high = static_cast<float>(std::min(std::ceil(correction(r.number("beta_slow", 1))), dim - 1));
    if (high == low) high += 0.001f;
    const double all = r.number("mscale_all_dim", 0.0, true);  // 0: the softmax scale stays
    c.rope_scale =
        static_cast<float>(mscale(factor, r.number("mscale", 1.0)) / mscale(factor, all));
    const double m = mscale(factor, all);
    c.softmax_scale =
        static_cast<float>(std::pow(static_cast<double>(c.nope + c.rope), -0.5) * m * m);
  } else if (type != "default") {
    fail(where + "/rope_type", "not supported", "yarn or default", type);
  }
  for (std::int64_t i = 0; i < half; ++i) {
    const float power = std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(c.rope));
    const float plain = 1.0f / power;
    if (type != "yarn") {
      c.inv_freq.push_back(plain);
      continue;
    }
    const float slow = 1.0f / (static_cast<float>(factor) * power);
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    c.inv_freq.push_back(slow * (1.0f - keep) + plain * keep);
  }
}

}  // namespace

Config parse_config(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  if (json.kind != Json::kObject) fail(where, "not an object");
  const Reader r(json, where);
  Config c;
  r.require("model_type", "deepseek_v3");
  r.require("hidden_act", "silu");
  r.require("scoring_func", "sigmoid");
  r.require("topk_method", "noaux_tc");
  if (r.boolean("attention_bias", false))
    fail(where + "/attention_bias", "not supported", "false", "true");
  if (!r.boolean("rope_interleave", true))
    fail(where + "/rope_interleave", "not supported", "true", "false");
  if (r.integer("moe_layer_freq", 1, 1) != 1)
    fail(where + "/moe_layer_freq", "not supported", 1, r.integer("moe_layer_freq", 1, 1));
  c.vocab = r.integer("vocab_size", 1);
  c.hidden = r.integer("hidden_size", 1);
  c.layers = r.integer("num_hidden_layers", 1);
  c.heads = r.integer("num_attention_heads", 1);
  c.q_lora = r.integer("q_lora_rank", 1);
  c.kv_lora = r.integer("kv_lora_rank", 1);
  c.nope = r.integer("qk_nope_head_dim", 1);
  c.rope = r.integer("qk_rope_head_dim", 2);
  c.v = r.integer("v_head_dim", 1);
  c.dense = r.integer("intermediate_size", 1);
  c.expert = r.integer("moe_intermediate_size", 1);
  c.experts = r.integer("n_routed_experts", 1);
  c.shared = r.integer("n_shared_experts", 0, 0);
  c.groups = r.integer("n_group", 1, 1);
  c.kept_groups = r.integer("topk_group", 1, 1);
  c.top_k = r.integer("num_experts_per_tok", 1);
  c.first_dense = r.integer("first_k_dense_replace", 0, 0);
  c.renormalize = r.boolean("norm_topk_prob", true);
  c.tied = r.boolean("tie_word_embeddings", false);
  c.routed_scale = r.number("routed_scaling_factor", 1.0);
  c.eps = r.number("rms_norm_eps", 1e-6);
  c.max_positions = r.integer("max_position_embeddings", 1);
  c.bos = r.integer("bos_token_id", 0, c.bos < 0 ? 0 : c.bos);
  c.eos = r.get("eos_token_id") != nullptr && r.get("eos_token_id")->kind == Json::kNumber
              ? r.integer("eos_token_id", 0)
              : -1;
  if (c.rope % 2 != 0) fail(where + "/qk_rope_head_dim", "value", "even", c.rope);
  if (c.experts % c.groups != 0 || c.kept_groups > c.groups || c.top_k > c.experts)
    fail(where, "routing sizes", "n_group divides n_routed_experts, topk_group <= n_group",
         std::to_string(c.groups) + ", " + std::to_string(c.kept_groups));
  const Json* scaling = r.get("rope_parameters");
  if (scaling == nullptr) scaling = r.get("rope_scaling");
  if (scaling != nullptr && scaling->kind != Json::kObject)
    fail(where + "/rope_scaling", "not an object");
  set_rope(c, r, scaling, where + "/rope");
  return c;
}

}  // namespace kdtr::model
