#include "weights.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "kdtr/error.h"
#include "kdtr/tensor.h"

namespace kdtr::model {
namespace {

bool kept_in_f32(const std::string& name) {
  return name.ends_with("e_score_correction_bias") || name.ends_with(".mlp.gate.weight");
}

// One dtype for all weights of an op: bf16 only where every weight is.
bool all_bf16(const TensorFile& file) {
  for (const auto& [name, entry] : file.entries())
    if (is<float>(entry.dtype) && !kept_in_f32(name)) return false;
  return true;
}

}  // namespace

std::int64_t Tensor::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

std::size_t Tensor::bytes() const { return static_cast<std::size_t>(numel()) * (dtype.bits / 8u); }

Loader::Loader(const std::string& folder, const Config& config, Memory& memory, Arena& arena,
               int rank, int world, bool only_bf16)
    : folder_(folder),
      config_(config),
      memory_(memory),
      arena_(arena),
      rank_(rank),
      world_(world),
      file_(TensorFile::path_of(folder + "/model")),
      widen_(!only_bf16 && (!memory.keeps_bf16() || !all_bf16(file_))) {
  if (!only_bf16) return;
  for (const auto& [name, entry] : file_.entries())
    KDTR_CHECK(!is<float>(entry.dtype) || name.ends_with("e_score_correction_bias"), name,
               "dtype for precision bf16", "bf16", "f32");
}

// One tensor of the parts of `names`, side by side; bf16 is widened to f32 where asked.
Tensor Loader::stack(const TensorFile& file, const std::vector<std::string>& names,
                     const std::vector<std::int64_t>& shape, Part part, bool widen) {
  const std::int64_t columns = shape.back(), rows = shape.size() > 1 ? shape[0] : 1;
  if (part.r.count < 0) part.r = {0, rows};
  if (part.c.count < 0) part.c = {0, columns};
  const DLDataType stored = file.get(names.at(0), shape).dtype;
  const bool widened = widen && is<bf16>(stored);
  Tensor out{nullptr, widened ? dtype_of<float> : stored, shape};
  out.shape.back() = part.c.count;
  if (shape.size() > 1) out.shape[0] = part.r.count;
  const std::size_t each = out.bytes(), from = stored.bits / 8u, to = out.dtype.bits / 8u;
  const auto n = static_cast<std::size_t>(part.c.count);
  out.data = arena_.alloc(each * names.size());
  auto* target = static_cast<std::byte*>(out.data);
  std::vector<std::byte> cut;
  for (const std::string& name : names) {
    const TensorFile::Entry& entry = file.get(name, shape);
    KDTR_CHECK(same(entry.dtype, stored), name, "dtype, as of " + names[0], dtype_name(stored),
               dtype_name(entry.dtype));
    const std::byte* data = entry.bytes.data();
    if (widened || part.c.count != columns) {
      cut.resize(each);
      for (std::int64_t r = 0; r < part.r.count; ++r) {
        const std::byte* source =
            data + static_cast<std::size_t>((part.r.first + r) * columns + part.c.first) * from;
        std::byte* row = cut.data() + static_cast<std::size_t>(r) * n * to;
        if (!widened) std::memcpy(row, source, n * from);
        for (std::size_t i = 0; widened && i < n; ++i) {
          bf16 value;
          std::memcpy(&value, source + i * from, sizeof value);
          const auto wide = static_cast<float>(value);
          std::memcpy(row + i * to, &wide, sizeof wide);
        }
      }
      data = cut.data();
    } else {
      data += static_cast<std::size_t>(part.r.first * columns) * from;
    }
    memory_.write(target, data, each);
    target += each;
  }
  return out;
}

Tensor Loader::get(const std::string& name, const std::vector<std::int64_t>& shape, Part part) {
  return stack(file_, {name}, shape, part, widen_);
}
Tensor Loader::get(const std::string& name, const std::vector<std::int64_t>& shape) {
  return get(name, shape, {});
}

Tensor Loader::stack(const std::vector<std::string>& names, const std::vector<std::int64_t>& shape,
                     Part part) {
  Tensor all = stack(file_, names, shape, part, widen_);
  all.shape.insert(all.shape.begin(), static_cast<std::int64_t>(names.size()));
  return all;
}

// MLPs of `columns` hidden columns in all: this rank's share of them, of every one in `prefixes`.
Mlp Loader::mlp(const std::vector<std::string>& prefixes, std::int64_t columns) {
  const std::int64_t d = config_.hidden;
  const Range mine = share(columns, rank_, world_);
  const auto names = [&](const char* suffix) {
    std::vector<std::string> all;
    for (const std::string& prefix : prefixes) all.push_back(prefix + suffix);
    return all;
  };
  Mlp m;
  const auto& entries = file_.entries();
  const auto scale = entries.find(prefixes[0] + "gate_proj.weight_scale");
  if (scale == entries.end()) {
    m.gate = stack(names("gate_proj.weight"), {columns, d}, {mine, {0, -1}});
    m.up = stack(names("up_proj.weight"), {columns, d}, {mine, {0, -1}});
    m.down = stack(names("down_proj.weight"), {d, columns}, {{0, -1}, mine});
    return m;
  }
  const std::int64_t groups = scale->second.shape.size() == 2 ? scale->second.shape[1] : 0;
  KDTR_CHECK(groups > 0 && d % groups == 0, scale->first, "shape", "[columns, hidden / group]",
             groups);
  m.group = d / groups;
  KDTR_CHECK(mine.first % m.group == 0 && mine.count % m.group == 0, scale->first,
             "columns of a rank", "multiples of " + std::to_string(m.group), mine.count);
  const Range words{mine.first / 8, mine.count / 8};
  const Range scales{mine.first / m.group, mine.count / m.group};
  m.gate = stack(names("gate_proj.weight_packed"), {columns, d / 8}, {mine, {0, -1}});
  m.up = stack(names("up_proj.weight_packed"), {columns, d / 8}, {mine, {0, -1}});
  m.down = stack(names("down_proj.weight_packed"), {d, columns / 8}, {{0, -1}, words});
  const bool widen = std::exchange(widen_, false);  // scales are bf16 by contract
  m.gate_scale = stack(names("gate_proj.weight_scale"), {columns, groups}, {mine, {0, -1}});
  m.up_scale = stack(names("up_proj.weight_scale"), {columns, groups}, {mine, {0, -1}});
  m.down_scale = stack(names("down_proj.weight_scale"), {d, columns / m.group}, {{0, -1}, scales});
  widen_ = widen;
  return m;
}

Layer Loader::layer(std::int64_t index) {
  const Config& c = config_;
  const std::string p = "model.layers." + std::to_string(index) + ".";
  const std::string a = p + "self_attn.", m = p + "mlp.";
  const Range heads = share(c.heads, rank_, world_);
  const auto per_head = [&](std::int64_t rows) {
    return Range{heads.first * rows, heads.count * rows};
  };
  Layer l;
  l.input_norm = get(p + "input_layernorm.weight", {c.hidden});
  l.post_norm = get(p + "post_attention_layernorm.weight", {c.hidden});
  l.q_a = get(a + "q_a_proj.weight", {c.q_lora, c.hidden});
  l.q_a_norm = get(a + "q_a_layernorm.weight", {c.q_lora});
  l.q_b = get(a + "q_b_proj.weight", {c.heads * (c.nope + c.rope), c.q_lora},
              {per_head(c.nope + c.rope), {0, -1}});
  l.kv_a = get(a + "kv_a_proj_with_mqa.weight", {c.row(), c.hidden});
  l.kv_a_norm = get(a + "kv_a_layernorm.weight", {c.kv_lora});
  l.kv_b = get(a + "kv_b_proj.weight", {c.heads * (c.nope + c.v), c.kv_lora},
               {per_head(c.nope + c.v), {0, -1}});
  l.kv_b.shape = {heads.count, c.nope + c.v, c.kv_lora};
  l.o = get(a + "o_proj.weight", {c.hidden, c.heads * c.v}, {{0, -1}, per_head(c.v)});
  if (index < c.first_dense) {
    l.dense = mlp({m}, c.dense);
    return l;
  }
  l.router = get(m + "gate.weight", {c.experts, c.hidden});
  l.bias = get(m + "gate.e_score_correction_bias", {c.experts});
  std::vector<std::string> prefixes;
  for (std::int64_t e = 0; e < c.experts; ++e)
    prefixes.push_back(m + "experts." + std::to_string(e) + ".");
  l.experts = mlp(prefixes, c.expert);
  if (c.shared > 0) l.shared = mlp({m + "shared_experts."}, c.shared * c.expert);
  return l;
}

Weights Loader::load() {
  const Config& c = config_;
  Weights w;
  w.embed = get("model.embed_tokens.weight", {c.vocab, c.hidden});
  w.norm = get("model.norm.weight", {c.hidden});
  const Part rows{share(c.vocab, rank_, world_), {0, -1}};
  w.lm_head =
      get(c.tied ? "model.embed_tokens.weight" : "lm_head.weight", {c.vocab, c.hidden}, rows);
  for (std::int64_t l = 0; l < c.layers; ++l) w.layers.push_back(layer(l));
  w.inv_freq = {nullptr, dtype_of<float>, {c.rope / 2}};
  w.inv_freq.data = arena_.alloc(w.inv_freq.bytes());
  memory_.write(w.inv_freq.data, c.inv_freq.data(), w.inv_freq.bytes());

  const std::string draft = TensorFile::path_of(folder_ + "/draft_heads");
  if (std::filesystem::exists(draft)) {
    const TensorFile heads(draft);
    std::vector<std::string> names;
    while (names.size() < heads.entries().size())
      names.push_back("draft_heads." + std::to_string(names.size()) + ".weight");
    w.depth = static_cast<std::int64_t>(names.size());
    if (w.depth > 0) w.draft = stack(heads, names, {c.hidden, 2 * c.hidden}, {}, widen_);
    w.draft.shape = {w.depth * c.hidden, 2 * c.hidden};
  }
  return w;
}

}  // namespace kdtr::model
