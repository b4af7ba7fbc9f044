#include "decoder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "kdtr/error.h"
#include "kdtr/mapped_file.h"
#include "kdtr/registry.h"
#include "kdtr/tensor.h"

namespace kdtr::model {
namespace {

constexpr std::int64_t kChunk = 64;          // prompt tokens a pass
constexpr std::int64_t kStatuses = 1 << 20;  // int32 statuses of a step

Config read_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  InputFile file;
  if (!file.open(path.c_str())) fail(path, "cannot be read");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  if (!file.read(std::as_writable_bytes(std::span(text)))) fail(path, "cannot be read");
  return parse_config(text, path);
}

Tensor view(Tensor tensor, std::vector<std::int64_t> shape) {
  tensor.shape = std::move(shape);
  return tensor;
}

std::byte* at(const Tensor& tensor, std::int64_t element) {
  return static_cast<std::byte*>(tensor.data) +
         static_cast<std::size_t>(element) * (tensor.dtype.bits / 8u);
}

}  // namespace

// One kernel call: collects arguments, finds workspace and status, runs, shows it to the tap.
class Decoder::Op {
 public:
  // `arith` is the profile where rows are bf16.
  Op(Decoder& d, std::string stage, const char* op, const char* arith = "bf16_f32acc")
      : d_(d),
        stage_(std::move(stage)),
        call_(op, d.options_.bf16 ? arith : "f32"),
        kernel_(find_kernel(op)) {
    if (kernel_ == nullptr) fail(stage_, std::string("no kernel for ") + op);
  }
  Op& in(const char* name, const Tensor& t) { return tensor(name, KDTR_IN, t); }
  Op& out(const char* name, const Tensor& t) { return tensor(name, KDTR_OUT, t); }
  Op& inout(const char* name, const Tensor& t) { return tensor(name, KDTR_INOUT, t); }
  Op& attr(const char* name, CallBuilder::Value value) {
    call_.attr(name, std::move(value));
    return *this;
  }
  // Runs with a status of `n` entries; `checked`: whether a status other than ok is an error.
  void run(std::int64_t n, bool checked = true) {
    if (checked) {
      Plan& plan = *d_.plan_;
      const Tensor arena = d_.ints("statuses", {kStatuses});
      KDTR_CHECK(plan.statuses + n <= kStatuses, stage_, "statuses of a step", kStatuses,
                 plan.statuses + n);
      tensor("status", KDTR_OUT, {at(arena, plan.statuses), arena.dtype, {n}});
      plan.checked.push_back({stage_, plan.statuses, n});
      plan.statuses += n;
    } else {
      tensor("status", KDTR_OUT, d_.ints("statuses.ignored", {n}));
    }
    if (kernel_->workspace != nullptr) {
      Call sizes(call_.call());
      const std::size_t bytes = kernel_->workspace(sizes);
      const Tensor space =
          d_.buffer("workspace", dtype_of<std::uint8_t>, {static_cast<std::int64_t>(bytes)});
      call_.workspace(space.data, bytes);
    }
    try {
      Call view(call_.call());
      kernel_->run(view, d_.memory_.stream());
    } catch (const Error& error) {
      fail(stage_, error.what());
    }
    if (d_.tap_) d_.tap_(stage_, call_);
  }

 private:
  Op& tensor(const char* name, int role, const Tensor& t) {
    call_.tensor(name, role, t.data, t.dtype, t.shape, d_.memory_.device());
    return *this;
  }

  Decoder& d_;
  std::string stage_;
  CallBuilder call_;
  const Kernel* kernel_;
};

Decoder::Decoder(const std::string& folder, const Options& options, Memory& memory,
                 Communicator& ranks)
    : options_(options),
      memory_(memory),
      arena_(memory),
      ranks_(ranks),
      config_(read_config(folder)) {
  const Options& o = options_;
  KDTR_CHECK(o.requests >= 1 && o.requests <= 256, "options/requests", "value", "1..256",
             o.requests);
  KDTR_CHECK(o.page_size == 16 || o.page_size == 64, "options/page_size", "value", "16 or 64",
             o.page_size);
  KDTR_CHECK(o.max_budget >= 0 && o.max_budget <= 1024, "options/max_budget", "value", "0..1024",
             o.max_budget);
  KDTR_CHECK(o.max_context >= 1 && o.max_context <= config_.max_positions, "options/max_context",
             "value", "1.." + std::to_string(config_.max_positions), o.max_context);
  KDTR_CHECK(config_.heads >= ranks.world() && config_.expert >= ranks.world(), folder,
             "heads and expert columns", "one a rank at least", ranks.world());
  weights_ = Loader(folder, config_, memory, arena_, ranks.rank(), ranks.world(), o.bf16).load();
  max_pages_ = (o.max_context + o.page_size - 1) / o.page_size;
  // Pages of all requests, then one slot for each node of a pass.
  const std::int64_t nodes = std::max(o.requests * (o.max_budget + 1), kChunk);
  tree_slots_ = (nodes + o.page_size - 1) / o.page_size * o.page_size;
  slots_ = o.requests * max_pages_ * o.page_size + tree_slots_;
  const auto fixed = [&](DLDataType dtype, std::vector<std::int64_t> shape) {
    Tensor t{nullptr, dtype, std::move(shape)};
    t.data = arena_.alloc(t.bytes());
    memory_.zero(t.data, t.bytes());
    return t;
  };
  const DLDataType row = o.bf16 ? dtype_of<bf16> : dtype_of<float>;
  pool_ = fixed(row, {config_.layers, slots_, config_.row()});
  hidden_ = fixed(row, {o.requests, config_.hidden});
  lengths_ = fixed(dtype_of<std::int32_t>, {o.requests});
  last_ = fixed(dtype_of<std::int32_t>, {o.requests});
  listed_ = fixed(dtype_of<std::int32_t>, {o.requests});
  zeros_ = fixed(dtype_of<std::int32_t>, {o.requests});
  ones_ = fixed(dtype_of<std::int32_t>, {o.requests});
  seen_ = fixed(dtype_of<std::uint8_t>, {o.requests});
  const std::vector<std::int32_t> ones(static_cast<std::size_t>(o.requests), 1);
  const std::vector<std::uint8_t> seen(static_cast<std::size_t>(o.requests), 1);
  memory_.write(ones_.data, ones.data(), ones_.bytes());
  memory_.write(seen_.data, seen.data(), seen_.bytes());
  results_ =
      fixed(dtype_of<std::int32_t>, {1 + std::max(o.requests * (weights_.depth + 2), kChunk)});
  requests_.resize(static_cast<std::size_t>(o.requests));
}

Tensor Decoder::buffer(const std::string& name, DLDataType dtype, std::vector<std::int64_t> shape) {
  Tensor want{nullptr, dtype, std::move(shape)};
  Buffer& held = buffers_[name];
  if (held.data == nullptr || held.capacity < want.bytes()) {
    ++moves_;
    if (held.data != nullptr) arena_.release(std::exchange(held.data, nullptr));
    held.data = arena_.alloc(want.bytes());
    held.capacity = want.bytes();
  }
  want.data = held.data;
  plan_->views.insert_or_assign(name, want);
  return want;
}

// Activations.
Tensor Decoder::rows(const std::string& name, std::vector<std::int64_t> shape) {
  return buffer(name, hidden_.dtype, std::move(shape));
}

Tensor Decoder::ints(const std::string& name, std::vector<std::int64_t> shape) {
  return buffer(name, dtype_of<std::int32_t>, std::move(shape));
}

// A part of what the host reads after the step.
Tensor Decoder::result(const std::string& name, std::int64_t first,
                       std::vector<std::int64_t> shape) {
  const Tensor part{at(results_, 1 + first), results_.dtype, std::move(shape)};
  plan_->views.insert_or_assign(name, part);
  return part;
}

Tensor Decoder::upload(const std::string& name, const std::vector<std::int32_t>& values,
                       std::vector<std::int64_t> shape) {
  const Tensor tensor = ints(name, std::move(shape));
  memory_.write(tensor.data, values.data(), tensor.bytes());
  return tensor;
}

std::int64_t Decoder::length(std::int64_t request) const {
  KDTR_CHECK(request >= 0 && request < options_.requests, "request", "id",
             "0.." + std::to_string(options_.requests - 1), request);
  return requests_[static_cast<std::size_t>(request)].length;
}

// Pages of the requests lie interleaved, so that no engine may take them for contiguous.
std::int32_t Decoder::slot(std::int64_t request, std::int64_t position) const {
  const std::int64_t page = position / options_.page_size * options_.requests + request;
  return static_cast<std::int32_t>(page * options_.page_size + position % options_.page_size);
}

void Decoder::require_room(std::int64_t request, std::int64_t rows) const {
  const std::int64_t want = length(request) + rows;
  KDTR_CHECK(want <= options_.max_context, "request " + std::to_string(request), "context rows",
             "at most " + std::to_string(options_.max_context), want);
}

Tensor Decoder::pool(std::int64_t layer) const {
  return {at(pool_, layer * slots_ * config_.row()), pool_.dtype, {slots_, config_.row()}};
}

State Decoder::state() const {
  return {static_cast<std::int32_t*>(lengths_.data), static_cast<std::int32_t*>(last_.data),
          static_cast<std::byte*>(hidden_.data), options_.requests,
          static_cast<std::int64_t>(hidden_.bytes()) / options_.requests};
}

// Checks the requests of a step that adds at most `rows` to each, and lists them for the device.
void Decoder::list(std::span<const std::int32_t> requests, std::int64_t rows) {
  std::vector<bool> seen(requests_.size());
  for (const std::int32_t request : requests) {
    require_room(request, rows);
    const auto q = static_cast<std::size_t>(request);
    KDTR_CHECK(requests_[q].live, "request", "state", "prefilled", request);
    KDTR_CHECK(!seen[q], "request", "times in a step", "once", request);
    seen[q] = true;
  }
  if (std::ranges::equal(requests, list_)) return;
  list_.assign(requests.begin(), requests.end());
  memory_.write(listed_.data, list_.data(), requests.size_bytes());
}

// Enqueues a step's work. The first time sizes the buffers; a record of it is used as long as none
// of them moves. A tap sees the work itself, and a prompt's is never the same twice.
void Decoder::run(Plan& plan, const std::function<void()>& work) {
  plan_ = &plan;
  const auto all = [&plan, work] {
    plan.checked.clear();
    plan.statuses = 0;
    work();
  };
  if (tap_ || &plan == &prompt_ || plan.moves != moves_) {
    plan.record.reset();
    all();
    plan.moves = moves_;
    return;
  }
  if (!plan.record) plan.record = memory_.record(all);
  plan.record->replay();
}

// Runs a step and waits: the first `count` results. A status that is not ok is an error.
std::vector<std::int32_t> Decoder::step(Plan& plan, std::size_t count,
                                        const std::function<void()>& work) {
  run(plan, work);
  std::vector<std::int32_t> results(1 + count);
  memory_.read(results.data(), results_.data, results.size() * sizeof(std::int32_t));
  const std::int64_t bad = results[0];
  for (const Plan::Checked& c : plan.checked) {
    if (bad < c.first || bad >= c.first + c.count) continue;
    std::int32_t status = 0;
    memory_.read(&status, at(plan.views.at("statuses"), bad), sizeof status);
    fail(c.stage, "status of row " + std::to_string(bad - c.first), 0, status);
  }
  results.erase(results.begin());
  return results;
}

// What a pass of r requests with n nodes each starts from; their hidden rows go to the first half
// of each row of `drafts` where given.
Decoder::Batch Decoder::start(std::int64_t r, std::int64_t n, const Tensor* drafts) {
  Batch batch;
  batch.r = r;
  batch.n = n;
  batch.prefix_len = ints("prefix_len", {r});
  batch.root = ints("root", {r});
  batch.page_table = ints("page_table", {r, max_pages_});
  batch.tree_slots = ints("tree_slots", {r, n});
  StepStart s{state(),    static_cast<const std::int32_t*>(listed_.data),
              r,          n,
              max_pages_, slots_ - tree_slots_};
  s.prefix_len = static_cast<std::int32_t*>(batch.prefix_len.data);
  s.root = static_cast<std::int32_t*>(batch.root.data);
  s.page_table = static_cast<std::int32_t*>(batch.page_table.data);
  s.tree_slots = static_cast<std::int32_t*>(batch.tree_slots.data);
  if (drafts != nullptr) {
    s.hidden = static_cast<std::byte*>(drafts->data);
    s.stride = static_cast<std::int64_t>(drafts->bytes()) / r;
  }
  start_step(s, memory_.stream());
  return batch;
}

// Moves each path's rows behind its prefix, and the state on.
void Decoder::finish(const Batch& batch, const Path& path, const Tensor& hidden) {
  const auto as_bytes = [](const Tensor& t, std::vector<std::int64_t> shape) {
    const std::int64_t row = t.dtype.bits / 8 * t.shape.back();
    shape.push_back(row);
    return Tensor{t.data, dtype_of<std::uint8_t>, std::move(shape)};
  };
  const Tensor new_len = ints("tree.new_len", {batch.r});
  Op(*this, "kv_commit", "kv_commit@1")
      .inout("rows", as_bytes(pool_, {config_.layers, slots_}))
      .inout("page_table", batch.page_table)
      .inout("tree_slots", batch.tree_slots)
      .inout("hidden", as_bytes(hidden, {batch.r, batch.n}))
      .in("accept_index", path.accept_index)
      .in("accept_len", path.accept_len)
      .in("prefix_len", batch.prefix_len)
      .out("new_len", new_len)
      .attr("page_size", options_.page_size)
      .run(batch.r);
  StepEnd s{state(),         static_cast<const std::int32_t*>(listed_.data),
            batch.r,         batch.n,
            plan_->statuses, path.tokens.shape[1]};
  s.statuses = static_cast<const std::int32_t*>(plan_->views.at("statuses").data);
  s.new_len = static_cast<const std::int32_t*>(new_len.data);
  s.accept_len = static_cast<const std::int32_t*>(path.accept_len.data);
  s.tokens = static_cast<const std::int32_t*>(path.tokens.data);
  s.hidden = static_cast<const std::byte*>(hidden.data);
  s.first_bad = static_cast<std::int32_t*>(results_.data);
  end_step(s, memory_.stream());
}

Tensor Decoder::linear(const std::string& stage, const Tensor& out, const Tensor& x,
                       const Tensor& w, const Tensor* residual) {
  Op op(*this, stage, "linear@1", same(out.dtype, x.dtype) ? "bf16_f32acc" : "bf16_f32acc_f32out");
  op.in("x", x).in("weight", w).out("out", out);
  if (residual != nullptr) op.in("residual", *residual);
  op.run(x.shape[0]);
  return out;
}

Tensor Decoder::norm(const std::string& stage, const Tensor& x, const Tensor& w) {
  const Tensor y = rows("normed", x.shape);
  Op(*this, stage, "rmsnorm@1")
      .in("x", x)
      .in("weight", w)
      .out("out", y)
      .attr("eps", config_.eps)
      .attr("variant", std::string("f32_then_round"))
      .run(x.shape[0]);
  return y;
}

Tensor Decoder::attention(const Batch& batch, std::int64_t layer, const Tensor& x) {
  const Config& c = config_;
  const Layer& l = weights_.layers[static_cast<std::size_t>(layer)];
  const std::string stage = "l" + std::to_string(layer) + ".";
  const std::int64_t t = x.shape[0], heads = l.kv_b.shape[0], width = c.row();
  const Tensor h = norm(stage + "input_norm", x, l.input_norm);
  const Tensor q = rows("q", {t, heads, width});
  // The nodes' rows go where their slots are: the last of the pool.
  const Tensor kv{at(pool(layer), (slots_ - tree_slots_) * width), pool_.dtype, {t, width}};
  Op(*this, stage + "mla_project", "mla_project@1")
      .in("x", h)
      .in("positions", view(batch.positions, {t}))
      .in("inv_freq", weights_.inv_freq)
      .in("q_a", l.q_a)
      .in("q_a_norm", l.q_a_norm)
      .in("q_b", l.q_b)
      .in("kv_a", l.kv_a)
      .in("kv_a_norm", l.kv_a_norm)
      .in("kv_b", l.kv_b)
      .out("q", q)
      .out("kv", kv)
      .attr("eps", c.latent_eps)
      .attr("rope_scale", static_cast<double>(c.rope_scale))
      .attr("store", std::string("halves"))
      .run(t);
  const Tensor latent = rows("latent", {t, heads, c.kv_lora});
  const Tensor lse = buffer("lse", dtype_of<float>, {batch.r, batch.n, heads});
  Op(*this, stage + "verify_attn", "verify_attn@1", "bf16_f32acc_pbf16")
      .in("q", view(q, {batch.r, batch.n, heads, width}))
      .in("kv_pool", pool(layer))
      .in("page_table", batch.page_table)
      .in("prefix_len", batch.prefix_len)
      .in("tree_slots", batch.tree_slots)
      .in("visible", batch.visible)
      .in("n_nodes", batch.n_nodes)
      .out("out", view(latent, {batch.r, batch.n, heads, c.kv_lora}))
      .out("lse", lse)
      .attr("scale", static_cast<double>(c.softmax_scale))
      .attr("page_size", options_.page_size)
      .attr("part", std::string("whole"))
      .attr("Dv", c.kv_lora)
      .run(batch.r);
  const Tensor y = rows("post_attn", {t, c.hidden});
  Op op(*this, stage + "mla_output", "mla_output@1");
  op.in("latent", latent).in("kv_b", l.kv_b).in("o", l.o).out("out", y);
  if (ranks_.rank() == 0) op.in("residual", x);
  op.run(t);
  sum(y);
  return y;
}

Tensor Decoder::mlp(std::int64_t layer, const Tensor& x) {
  const Config& c = config_;
  const Layer& l = weights_.layers[static_cast<std::size_t>(layer)];
  const std::string stage = "l" + std::to_string(layer) + ".";
  const std::int64_t t = x.shape[0];
  const Tensor h = norm(stage + "post_norm", x, l.post_norm);
  const Tensor* residual = ranks_.rank() == 0 ? &x : nullptr;
  Tensor y;
  if (l.dense) {
    const auto matrix = [](const Tensor& w) { return view(w, {w.shape[1], w.shape[2]}); };
    const auto product = [&](const char* name, const Tensor& w) {
      return linear(stage + name, rows(name, {t, w.shape[1]}), h, matrix(w), nullptr);
    };
    const Tensor gate = product("gate", l.dense->gate), up = product("up", l.dense->up);
    const Tensor both = rows("activated", gate.shape);
    Op(*this, stage + "silu_mul", "silu_mul@1")
        .in("gate", gate)
        .in("up", up)
        .out("out", both)
        .run(t);
    y = rows("post_mlp", {t, c.hidden});
    linear(stage + "down", y, both, matrix(l.dense->down), residual);
  } else {
    const Tensor router = buffer("router", dtype_of<float>, {t, c.experts});
    linear(stage + "router", router, h, l.router, nullptr);
    const Tensor ids = buffer("experts", dtype_of<std::int32_t>, {t, c.top_k});
    const Tensor factors = buffer("factors", dtype_of<float>, {t, c.top_k});
    Op(*this, stage + "moe_route", "moe_route@1")
        .in("logits", router)
        .in("bias", l.bias)
        .out("ids", ids)
        .out("weights", factors)
        .attr("n_group", c.groups)
        .attr("topk_group", c.kept_groups)
        .attr("top_k", c.top_k)
        .attr("renormalize", std::int64_t{c.renormalize})
        .attr("scale", c.routed_scale)
        .run(t);
    y = rows("post_mlp", {t, c.hidden});
    Op op(*this, stage + "moe_experts", "moe_experts@1");
    const Mlp& e = l.experts;
    op.in("x", h).in("ids", ids).in("weights", factors).out("out", y);
    op.attr("format", std::string(e.group == 0 ? "dense" : "w4_exact")).attr("group", e.group);
    if (e.group == 0) {
      op.in("gate", e.gate).in("up", e.up).in("down", e.down);
    } else {
      op.in("gate_packed", e.gate).in("up_packed", e.up).in("down_packed", e.down);
      op.in("gate_scale", e.gate_scale).in("up_scale", e.up_scale).in("down_scale", e.down_scale);
    }
    if (l.shared) {
      const Mlp& s = *l.shared;
      op.in("shared_gate", view(s.gate, {s.gate.shape[1], c.hidden}))
          .in("shared_up", view(s.up, {s.up.shape[1], c.hidden}))
          .in("shared_down", view(s.down, {c.hidden, s.down.shape[2]}));
    }
    if (residual != nullptr) op.in("residual", *residual);
    op.run(t);
  }
  sum(y);
  return y;
}

// Final hidden rows [r * n, hidden], after the last norm: what lm_head and the draft heads read.
Tensor Decoder::forward(const Batch& batch) {
  const std::int64_t t = batch.r * batch.n;
  Tensor x = rows("embedded", {t, config_.hidden});
  Op(*this, "embed", "embed@1")
      .in("ids", view(batch.ids, {t}))
      .in("table", weights_.embed)
      .out("out", x)
      .run(t, !batch.padded);
  for (std::int64_t l = 0; l < config_.layers; ++l) x = mlp(l, attention(batch, l, x));
  return norm("final_norm", x, weights_.norm);
}

Tensor Decoder::logits(const std::string& stage, const Tensor& hidden) {
  Tensor mine = buffer(ranks_.world() == 1 ? stage : stage + ".shard", dtype_of<float>,
                       {hidden.shape[0], weights_.lm_head.shape[0]});
  linear(stage, mine, hidden, weights_.lm_head, nullptr);
  if (ranks_.world() == 1) return mine;
  const Tensor all = buffer(stage, dtype_of<float>, {hidden.shape[0], config_.vocab});
  const std::int64_t most = (config_.vocab + ranks_.world() - 1) / ranks_.world();
  const auto part = static_cast<std::size_t>(hidden.shape[0] * most) * sizeof(float);
  ranks_.gather_columns(static_cast<const float*>(mine.data), static_cast<float*>(all.data),
                        static_cast<std::size_t>(hidden.shape[0]),
                        static_cast<std::size_t>(config_.vocab), scratch(part), memory_);
  return all;
}

// The sum of all ranks' data, on every rank.
void Decoder::sum(const Tensor& data) {
  ranks_.sum(data.data, data.dtype, static_cast<std::size_t>(data.numel()), scratch(data.bytes()),
             memory_);
}

void* Decoder::scratch(std::size_t bytes) {
  const auto n = static_cast<std::int64_t>(ranks_.scratch(bytes));
  return n == 0 ? nullptr : buffer("ranks", dtype_of<std::uint8_t>, {n}).data;
}

void Decoder::argmax(const std::string& stage, const Tensor& scores, const Tensor& ids) {
  Op(*this, stage, "argmax@1")
      .in("logits", view(scores, {ids.shape[0], ids.shape[1], config_.vocab}))
      .out("ids", ids)
      .run(ids.shape[0]);
}

std::int32_t Decoder::prefill(std::int64_t request, std::span<const std::int32_t> ids) {
  if (ids.empty()) fail("prefill", "prompt", "at least one id", 0);
  require_room(request, 0);  // and that there is such a request
  Request& held = requests_[static_cast<std::size_t>(request)];
  held = {};
  const auto count = static_cast<std::int64_t>(ids.size());
  require_room(request, count);
  for (std::size_t i = 0; i < ids.size(); ++i)
    KDTR_CHECK(ids[i] >= 0 && ids[i] < config_.vocab, "prefill", "id " + std::to_string(i),
               "0.." + std::to_string(config_.vocab - 1), ids[i]);
  memory_.zero(at(lengths_, request), sizeof(std::int32_t));
  held.live = true;
  const auto id = static_cast<std::int32_t>(request);
  list({&id, 1}, 0);
  held.live = false;
  std::vector<std::int32_t> results;
  while (held.length < count) {
    const std::int64_t n = std::min(kChunk, count - held.length);
    const bool is_last = held.length + n == count;
    // A chain: each node sees the nodes before it, and all of them are accepted.
    std::vector<std::int32_t> chunk, positions, chain;
    std::vector<std::uint8_t> visible(static_cast<std::size_t>(n * n));
    for (std::int64_t i = 0; i < n; ++i) {
      chunk.push_back(ids[static_cast<std::size_t>(held.length + i)]);
      positions.push_back(static_cast<std::int32_t>(held.length + i));
      chain.push_back(static_cast<std::int32_t>(i));
      for (std::int64_t j = 0; j <= i; ++j) visible[static_cast<std::size_t>(i * n + j)] = 1;
    }
    results = step(prompt_, static_cast<std::size_t>(n), [&] {
      Batch batch = start(1, n, nullptr);
      batch.ids = upload("ids", chunk, {1, n});
      batch.positions = upload("positions", positions, {1, n});
      batch.n_nodes = upload("n_nodes", {static_cast<std::int32_t>(n)}, {1});
      batch.visible = buffer("visible", dtype_of<std::uint8_t>, {1, n, n});
      memory_.write(batch.visible.data, visible.data(), visible.size());
      const Tensor hidden = forward(batch);
      Path path{upload("chain", chain, {1, n}),
                upload("chain_len", {static_cast<std::int32_t>(n - 1)}, {1}), batch.ids};
      if (is_last) {
        const Tensor row{at(hidden, (n - 1) * config_.hidden), hidden.dtype, {1, config_.hidden}};
        path.tokens = result("tokens", 0, {1, n});
        argmax("next", logits("logits", row), result("next", n - 1, {1, 1}));
      }
      finish(batch, path, hidden);
    });
    held.length += n;
  }
  held.live = true;
  return results.back();
}

void Decoder::greedy(std::span<const std::int32_t> requests, std::span<std::int32_t> tokens) {
  KDTR_CHECK(requests.size() == tokens.size(), "greedy", "tokens", requests.size(), tokens.size());
  if (requests.empty()) return;
  list(requests, 1);
  const auto r = static_cast<std::int64_t>(requests.size());
  const auto results = step(plans_[{r, 0}], requests.size(), [this, r] {
    // A tree of its root alone.
    Batch batch = start(r, 1, nullptr);
    batch.ids = view(batch.root, {r, 1});
    batch.positions = view(batch.prefix_len, {r, 1});
    batch.n_nodes = view(ones_, {r});
    batch.visible = view(seen_, {r, 1, 1});
    const Tensor hidden = forward(batch);
    const Tensor next = result("next", 0, {r, 1});
    argmax("next", logits("logits", hidden), next);
    finish(batch, {view(zeros_, {r, 1}), view(zeros_, {r}), next}, hidden);
  });
  std::ranges::copy(results, tokens.begin());
  for (const std::int32_t request : requests) ++requests_[static_cast<std::size_t>(request)].length;
}

void Decoder::tree(std::span<const std::int32_t> requests, std::int64_t budget,
                   std::span<std::int32_t> accept_len, std::span<std::int32_t> tokens) {
  const std::int64_t depth = weights_.depth;
  if (depth == 0) fail("tree", "the model has no draft heads");
  KDTR_CHECK(budget >= 1 && budget <= options_.max_budget, "tree", "budget",
             "1.." + std::to_string(options_.max_budget), budget);
  KDTR_CHECK(accept_len.size() == requests.size() &&
                 tokens.size() == requests.size() * static_cast<std::size_t>(depth + 1),
             "tree", "results", requests.size(), accept_len.size());
  if (requests.empty()) return;
  list(requests, depth + 1);
  const auto r = static_cast<std::int64_t>(requests.size());
  const auto results = step(plans_[{r, budget}], requests.size() + tokens.size(),
                            [this, r, budget] { draft_and_verify(r, budget); });
  const auto lengths = static_cast<std::ptrdiff_t>(requests.size());
  std::copy(results.begin(), results.begin() + lengths, accept_len.begin());
  std::copy(results.begin() + lengths, results.end(), tokens.begin());
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests_[static_cast<std::size_t>(requests[i])].length += accept_len[i] + 1;
}

// The work of a draft-tree round.
void Decoder::draft_and_verify(std::int64_t r, std::int64_t budget) {
  const std::int64_t d = config_.hidden, depth = weights_.depth;
  const std::int64_t n = budget + 1, k = std::min(budget, config_.vocab);
  // Draft: every depth's marginal from [hidden before the root | embedding of the root].
  const Tensor both = rows("draft.input", {r, 2 * d});
  Batch batch = start(r, n, &both);
  batch.padded = true;
  const Tensor embedded = rows("draft.embedded", {r, d});
  Op(*this, "draft.embed", "embed@1")
      .in("ids", batch.root)
      .in("table", weights_.embed)
      .out("out", embedded)
      .run(r);
  const std::size_t row = embedded.bytes() / static_cast<std::size_t>(r);
  memory_.copy_rows(at(both, d), 2 * row, embedded.data, row, row, static_cast<std::size_t>(r));
  const Tensor drafted = rows("draft.hidden", {r, depth * d});
  linear("draft.heads", drafted, both, weights_.draft, nullptr);
  const Tensor marginals = logits("draft.logits", view(drafted, {r * depth, d}));
  const Tensor candidates = ints("draft.ids", {r, depth, k});
  const Tensor logprobs = buffer("draft.logprobs", dtype_of<float>, {r, depth, k});
  Op(*this, "draft.topk", "topk_logprobs@1")
      .in("logits", view(marginals, {r, depth, config_.vocab}))
      .out("ids", candidates)
      .out("logprobs", logprobs)
      .out("lse", buffer("draft.lse", dtype_of<float>, {r, depth}))
      .attr("K", k)
      .run(r);
  // Tree.
  batch.n_nodes = ints("tree.n_nodes", {r});
  batch.ids = ints("tree.tokens", {r, n});
  batch.positions = ints("tree.positions", {r, n});
  batch.visible = buffer("tree.visible", dtype_of<std::uint8_t>, {r, n, n});
  const Tensor next_token = ints("tree.next_token", {r, n});
  const Tensor next_sibling = ints("tree.next_sibling", {r, n});
  Op(*this, "tree_build", "tree_build@1")
      .in("logprobs", logprobs)
      .in("ids", candidates)
      .in("root_token", batch.root)
      .in("prefix_len", batch.prefix_len)
      .out("n_nodes", batch.n_nodes)
      .out("tokens", batch.ids)
      .out("depths", ints("tree.depths", {r, n}))
      .out("parents", ints("tree.parents", {r, n}))
      .out("positions", batch.positions)
      .out("next_token", next_token)
      .out("next_sibling", next_sibling)
      .out("visible", batch.visible)
      .out("weights", buffer("tree.weights", dtype_of<double>, {r, n}))
      .attr("budget", budget)
      .attr("tie_order", std::string("ranks"))
      .run(r);
  // Verify all nodes in one pass, accept, move the path's rows behind the prefix.
  const Tensor hidden = forward(batch);
  const Tensor target = ints("tree.target", {r, n});
  argmax("tree.target", logits("tree.logits", hidden), target);
  const Path path{ints("tree.accept_index", {r, depth + 1}), result("tree.accept_len", 0, {r}),
                  result("tree.accepted_tokens", r, {r, depth + 1})};
  Op(*this, "tree_accept", "tree_accept@1")
      .in("tokens", batch.ids)
      .in("next_token", next_token)
      .in("next_sibling", next_sibling)
      .in("n_nodes", batch.n_nodes)
      .in("target", target)
      .out("accept_index", path.accept_index)
      .out("accept_len", path.accept_len)
      .out("accepted_tokens", path.tokens)
      .out("predicts", ints("tree.predicts", {r, n}))
      .attr("L", depth)
      .attr("V", config_.vocab)
      .run(r);
  finish(batch, path, hidden);
}

std::size_t Decoder::read(const std::string& name, void* out, std::size_t bytes) {
  if (name.starts_with("rows.")) {
    std::int64_t layer = -1, request = -1;
    const char* const end = name.data() + name.size();
    const auto [dot, none] = std::from_chars(name.data() + 5, end, layer);
    if (dot != end && *dot == '.') std::from_chars(dot + 1, end, request);
    KDTR_CHECK(layer >= 0 && layer < config_.layers && request >= 0, name, "buffer",
               "rows.<layer>.<request>", name);
    const std::int64_t n = length(request);
    const auto row = static_cast<std::size_t>(config_.row()) * (pool_.dtype.bits / 8u);
    const std::size_t size = static_cast<std::size_t>(n) * row;
    if (out == nullptr) return size;
    KDTR_CHECK(bytes == size, name, "bytes", size, bytes);
    for (std::int64_t t = 0; t < n; ++t)
      memory_.read(static_cast<std::byte*>(out) + static_cast<std::size_t>(t) * row,
                   at(pool(layer), slot(request, t) * config_.row()), row);
    return size;
  }
  const auto it = plan_->views.find(name);
  if (it == plan_->views.end()) fail(name, "no such buffer");
  const Tensor& tensor = it->second;
  if (out == nullptr) return tensor.bytes();
  KDTR_CHECK(bytes == tensor.bytes(), name, "bytes", tensor.bytes(), bytes);
  memory_.read(out, tensor.data, bytes);
  return bytes;
}

}  // namespace kdtr::model
