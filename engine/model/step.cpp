// step@1 on any backend: the registered kernels of one decoding step, enqueued one after the other.
// Shapes as in the contract. In/out: kv_pool, page_table, tree_slots. No host decision in between.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "kdtr/call_builder.h"
#include "kdtr/registry.h"

namespace kdtr {
namespace {

// A tensor of the step: an argument of the call, or scratch in its workspace.
struct Place {
  std::byte* data = nullptr;
  DLDataType dtype{};

  Place at(std::int64_t bytes) const { return {data == nullptr ? data : data + bytes, dtype}; }
};

// The stages of one step, bound to memory. With a null base it only measures.
class Plan {
 public:
  Plan(Call& c, std::byte* base) : base_(base) {
    device_ = c.any("logits", KDTR_IN, "R L V").device;
    const std::int64_t V = c.dim("V"), R = c.dim("R"), L = c.dim("L");
    const std::int64_t K = c.attr_int("K"), N = c.attr_int("N"), H = c.attr_int("H"),
                       Dv = c.attr_int("Dv"), page_size = c.attr_int("page_size");
    const double scale = c.attr_float("scale");
    const std::string tie_order(c.attr_str("tie_order"));
    KDTR_CHECK(N >= 1, c.where("N"), "out of range", "1 or more", N);
    KDTR_CHECK(H >= 0 && Dv >= 0, c.where("H"), "out of range", "0 or more", std::min(H, Dv));
    c.bind("N", N);
    c.bind("steps", L + 1);
    c.bind("stages", 5);
    const Place logits = place(c.any("logits", KDTR_IN, "R L V"));
    const Place root = place(c.any("root_token", KDTR_IN, "R"));
    const Place prefix_len = place(c.any("prefix_len", KDTR_IN, "R"));
    const Place page_table = place(c.any("page_table", KDTR_INOUT, "R max_pages"));
    const Place tree_slots = place(c.any("tree_slots", KDTR_INOUT, "R N"));
    const Place pool = place(c.any("kv_pool", KDTR_INOUT, "slots D"));
    const std::int64_t slots = c.dim("slots"), D = c.dim("D"), T = R * N;
    KDTR_CHECK(slots >= T, c.where("kv_pool"), "slots", "at least R N = " + std::to_string(T),
               slots);
    c.bind("q_columns", H * D);
    c.bind("out_columns", H * Dv);
    const Place token_rows = place(c.any("token_rows", KDTR_IN, "V E"));
    const Place position_rows = place(c.any("position_rows", KDTR_IN, "M E"));
    const Place q_weight = place(c.any("q_weight", KDTR_IN, "q_columns E"));
    const Place q_position = place(c.any("q_position", KDTR_IN, "q_columns E"));
    const Place kv_weight = place(c.any("kv_weight", KDTR_IN, "D E"));
    const Place kv_position = place(c.any("kv_position", KDTR_IN, "D E"));
    const Place head = place(c.any("head", KDTR_IN, "V out_columns"));
    const std::int64_t E = c.dim("E"), M = c.dim("M"), pages = c.dim("max_pages");
    const Place n_nodes = place(c.any("n_nodes", KDTR_OUT, "R"));
    const Place tokens = place(c.any("tokens", KDTR_OUT, "R N"));
    const Place parents = place(c.any("parents", KDTR_OUT, "R N"));
    const Place positions = place(c.any("positions", KDTR_OUT, "R N"));
    const Place target = place(c.any("target", KDTR_OUT, "R N"));
    const Place accept_len = place(c.any("accept_len", KDTR_OUT, "R"));
    const Place accepted = place(c.any("accepted_tokens", KDTR_OUT, "R steps"));
    const Place new_len = place(c.any("new_len", KDTR_OUT, "R"));
    const Place status = place(c.any("status", KDTR_OUT, "stages R"));
    const auto status_of = [&](std::int64_t stage) { return status.at(stage * R * 4); };

    const Place ids = scratch<std::int32_t>(R * L * K), logprobs = scratch<float>(R * L * K),
                lse = scratch<float>(R * L);
    stage("topk_logprobs@1")
        .in("logits", logits, {R, L, V})
        .attr("K", K)
        .out("ids", ids, {R, L, K})
        .out("logprobs", logprobs, {R, L, K})
        .out("lse", lse, {R, L})
        .out("status", status_of(0), {R});

    const Place depths = scratch<std::int32_t>(T), next_token = scratch<std::int32_t>(T),
                next_sibling = scratch<std::int32_t>(T), visible = scratch<std::uint8_t>(T * N),
                weights = scratch<double>(T);
    stage("tree_build@1")
        .in("logprobs", logprobs, {R, L, K})
        .in("ids", ids, {R, L, K})
        .in("root_token", root, {R})
        .in("prefix_len", prefix_len, {R})
        .attr("budget", N - 1)
        .attr("tie_order", tie_order)
        .out("n_nodes", n_nodes, {R})
        .out("tokens", tokens, {R, N})
        .out("depths", depths, {R, N})
        .out("parents", parents, {R, N})
        .out("positions", positions, {R, N})
        .out("next_token", next_token, {R, N})
        .out("next_sibling", next_sibling, {R, N})
        .out("visible", visible, {R, N, N})
        .out("weights", weights, {R, N})
        .out("status", status_of(1), {R});

    const Place x = scratch<float>(T * E), p = scratch<float>(T * E),
                row_status = scratch<std::int32_t>(T);
    const auto embed = [&](const Place& which, const Place& table, std::int64_t rows,
                           const Place& out) {
      stage("embed@1")
          .in("ids", which, {T})
          .in("table", table, {rows, E})
          .out("out", out, {T, E})
          .out("status", row_status, {T});
    };
    embed(tokens, token_rows, V, x);
    embed(positions, position_rows, M, p);

    const Place q_part = scratch<float>(T * H * D), q = scratch<float>(T * H * D),
                row_part = scratch<float>(T * D);
    const auto linear = [&](const Place& from, std::int64_t inner, const Place& weight,
                            std::int64_t columns, const Place* residual, const Place& out) {
      Stage next = stage("linear@1");
      next.in("x", from, {T, inner}).in("weight", weight, {columns, inner});
      if (residual != nullptr) next.in("residual", *residual, {T, columns});
      next.out("out", out, {T, columns}).out("status", row_status, {T});
    };
    linear(p, E, q_position, H * D, nullptr, q_part);
    linear(x, E, q_weight, H * D, &q_part, q);
    linear(p, E, kv_position, D, nullptr, row_part);
    linear(x, E, kv_weight, D, &row_part, pool.at((slots - T) * D * 4));

    const Place attended = scratch<float>(T * H * Dv), row_lse = scratch<float>(T * H);
    stage("verify_attn@1")
        .in("q", q, {R, N, H, D})
        .in("kv_pool", pool, {slots, D})
        .in("page_table", page_table, {R, pages})
        .in("prefix_len", prefix_len, {R})
        .in("tree_slots", tree_slots, {R, N})
        .in("visible", visible, {R, N, N})
        .in("n_nodes", n_nodes, {R})
        .attr("scale", scale)
        .attr("page_size", page_size)
        .attr("part", std::string("whole"))
        .attr("Dv", Dv)
        .out("out", attended, {R, N, H, Dv})
        .out("lse", row_lse, {R, N, H})
        .out("status", status_of(2), {R});

    const Place scores = scratch<float>(T * V), argmax_status = scratch<std::int32_t>(R);
    linear(attended, H * Dv, head, V, nullptr, scores);
    stage("argmax@1")
        .in("logits", scores, {R, N, V})
        .out("ids", target, {R, N})
        .out("status", argmax_status, {R});

    const Place path = scratch<std::int32_t>(R * (L + 1)), predicts = scratch<std::int32_t>(T);
    stage("tree_accept@1")
        .in("tokens", tokens, {R, N})
        .in("next_token", next_token, {R, N})
        .in("next_sibling", next_sibling, {R, N})
        .in("n_nodes", n_nodes, {R})
        .in("target", target, {R, N})
        .attr("L", L)
        .attr("V", V)
        .out("accept_index", path, {R, L + 1})
        .out("accept_len", accept_len, {R})
        .out("accepted_tokens", accepted, {R, L + 1})
        .out("predicts", predicts, {R, N})
        .out("status", status_of(3), {R});

    Place bytes = pool;
    bytes.dtype = dtype_of<std::uint8_t>;
    stage("kv_commit@1")
        .state("rows", bytes, {1, slots, D * 4})
        .state("page_table", page_table, {R, pages})
        .state("tree_slots", tree_slots, {R, N})
        .state("hidden", scratch<std::uint8_t>(0), {R, N, 0})
        .in("accept_index", path, {R, L + 1})
        .in("accept_len", accept_len, {R})
        .in("prefix_len", prefix_len, {R})
        .attr("page_size", page_size)
        .out("new_len", new_len, {R})
        .out("status", status_of(4), {R});

    for (CallBuilder& call : calls_) {
      const Kernel* kernel = find_kernel(call.op());
      KDTR_CHECK(kernel != nullptr, c.where("stage"), "kernel", call.op(), "none");
      Call view(call.call());
      if (kernel->workspace != nullptr)
        stage_bytes_ = std::max(stage_bytes_, kernel->workspace(view));
    }
  }

  std::size_t bytes() const { return used_ + stage_bytes_; }

  void run(void* stream) {
    for (CallBuilder& call : calls_) {
      const Kernel* kernel = find_kernel(call.op());
      call.workspace(stage_bytes_ == 0 ? nullptr : base_ + used_, stage_bytes_);
      Call view(call.call());
      kernel->run(view, stream);
    }
  }

 private:
  // Adds arguments to one call.
  class Stage {
   public:
    Stage(CallBuilder& call, DLDevice device) : call_(&call), device_(device) {}
    Stage& in(const char* name, const Place& place, std::vector<std::int64_t> shape) {
      return add(name, KDTR_IN, place, std::move(shape));
    }
    Stage& out(const char* name, const Place& place, std::vector<std::int64_t> shape) {
      return add(name, KDTR_OUT, place, std::move(shape));
    }
    Stage& state(const char* name, const Place& place, std::vector<std::int64_t> shape) {
      return add(name, KDTR_INOUT, place, std::move(shape));
    }
    Stage& attr(const char* name, CallBuilder::Value value) {
      call_->attr(name, std::move(value));
      return *this;
    }

   private:
    Stage& add(const char* name, int role, const Place& place, std::vector<std::int64_t> shape) {
      call_->tensor(name, role, place.data, place.dtype, std::move(shape), device_);
      return *this;
    }
    CallBuilder* call_;
    DLDevice device_;
  };

  Stage stage(const char* op) { return {calls_.emplace_back(op, "f32"), device_}; }

  static Place place(const DLTensor& tensor) {
    auto* data = static_cast<std::byte*>(tensor.data);
    return {data == nullptr ? data : data + tensor.byte_offset, tensor.dtype};
  }

  template <class T>
  Place scratch(std::int64_t count) {
    Place found{base_ == nullptr ? nullptr : base_ + used_, dtype_of<T>};
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return found;
  }

  std::byte* base_;
  DLDevice device_{};
  std::deque<CallBuilder> calls_;
  std::size_t used_ = 0, stage_bytes_ = 0;
};

std::size_t workspace(Call& c) { return Plan(c, nullptr).bytes(); }

void run(Call& c, void* stream) {
  Plan plan(c, static_cast<std::byte*>(c.workspace()));
  KDTR_CHECK(c.workspace_size() >= plan.bytes(), c.where("workspace"), "bytes", plan.bytes(),
             c.workspace_size());
  plan.run(stream);
}

}  // namespace
}  // namespace kdtr

KDTR_KERNEL({"step@1", kdtr::run, kdtr::workspace});
