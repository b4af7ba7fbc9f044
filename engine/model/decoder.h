// Greedy and draft-tree decoding of an MLA + MoE model, made of the registered kernels.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdtr/call_builder.h"
#include "state.h"
#include "weights.h"

namespace kdtr::model {

struct Options {
  std::int64_t requests = 1;        // the most that are live at once
  std::int64_t max_context = 2048;  // rows of each, speculation included
  std::int64_t page_size = 16;      // 16 or 64: rows move on commit
  std::int64_t max_budget = 64;     // draft nodes of a tree, root not counted
  bool bf16 = false;                // rows, cache and weights; router and lm_head give f32
};

class Decoder {
 public:
  // Called after each kernel: the stage ("l2.moe_route") and the call with its arguments.
  using Tap = std::function<void(const std::string& stage, CallBuilder& call)>;

  Decoder(const std::string& folder, const Options& options, Memory& memory, Communicator& ranks);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Config& config() const { return config_; }
  std::int64_t depth() const { return weights_.depth; }
  std::int64_t length(std::int64_t request) const;  // cached rows
  void set_tap(Tap tap) { tap_ = std::move(tap); }

  // Starts a request over with a prompt of at least one id; returns the first token.
  std::int32_t prefill(std::int64_t request, std::span<const std::int32_t> ids);
  // Feeds each request its last token; tokens[i] = the next one.
  void greedy(std::span<const std::int32_t> requests, std::span<std::int32_t> tokens);
  // One speculative round. accept_len[i] drafts were accepted; tokens[i, 0 .. accept_len[i]] are
  // the new tokens, the bonus last (depth + 1 a row, the rest -1).
  void tree(std::span<const std::int32_t> requests, std::int64_t budget,
            std::span<std::int32_t> accept_len, std::span<std::int32_t> tokens);
  // A buffer of the last step by name ("tree.tokens"), or "rows.<layer>.<request>": the request's
  // cached rows in order. Returns its size in bytes; copies that much when out is not null.
  std::size_t read(const std::string& name, void* out, std::size_t bytes);

 private:
  struct Request {
    std::int64_t length = 0;
    bool live = false;
  };
  // One forward pass: r requests of n nodes each.
  struct Batch {
    std::int64_t r = 0, n = 0;
    Tensor root, ids, positions, page_table, prefix_len, tree_slots, visible, n_nodes;
    bool padded = false;  // some nodes are pads, with id -1
  };
  // The path that each request takes through its nodes, and the token after each of its nodes.
  struct Path {
    Tensor accept_index, accept_len, tokens;  // [r, steps], [r], [r, steps]
  };
  // One kind of step: what its work enqueues on buffers that stay where they are.
  struct Plan {
    std::map<std::string, Tensor> views;  // buffers by name, in the shapes of this step
    struct Checked {
      std::string stage;
      std::int64_t first, count;
    };
    std::vector<Checked> checked;       // statuses that must be ok
    std::int64_t statuses = 0;          // used so far
    std::int64_t moves = -1;            // of buffers, before it last ran
    std::unique_ptr<Recording> record;  // of the work, once nothing moves any more
  };
  struct Buffer {
    void* data = nullptr;
    std::size_t capacity = 0;
  };
  class Op;

  Tensor buffer(const std::string& name, DLDataType dtype, std::vector<std::int64_t> shape);
  Tensor ints(const std::string& name, std::vector<std::int64_t> shape);
  Tensor result(const std::string& name, std::int64_t first, std::vector<std::int64_t> shape);
  Tensor upload(const std::string& name, const std::vector<std::int32_t>& values,
                std::vector<std::int64_t> shape);
  std::int32_t slot(std::int64_t request, std::int64_t position) const;
  void require_room(std::int64_t request, std::int64_t rows) const;
  Tensor pool(std::int64_t layer) const;
  State state() const;
  void list(std::span<const std::int32_t> requests, std::int64_t rows);
  void run(Plan& plan, const std::function<void()>& work);
  std::vector<std::int32_t> step(Plan& plan, std::size_t results,
                                 const std::function<void()>& work);
  Batch start(std::int64_t r, std::int64_t n, const Tensor* drafts);
  void finish(const Batch& batch, const Path& path, const Tensor& hidden);
  Tensor rows(const std::string& name, std::vector<std::int64_t> shape);
  Tensor linear(const std::string& stage, const Tensor& out, const Tensor& x, const Tensor& w,
                const Tensor* residual);
  Tensor norm(const std::string& stage, const Tensor& x, const Tensor& w);
  Tensor attention(const Batch& batch, std::int64_t layer, const Tensor& x);
  Tensor mlp(std::int64_t layer, const Tensor& x);
  Tensor forward(const Batch& batch);
  Tensor logits(const std::string& stage, const Tensor& hidden);
  void sum(const Tensor& data);
  void* scratch(std::size_t bytes);
  void argmax(const std::string& stage, const Tensor& logits, const Tensor& ids);
  void draft_and_verify(std::int64_t r, std::int64_t budget);

  Options options_;
  Memory& memory_;
  Arena arena_;
  Communicator& ranks_;
  Config config_;
  Weights weights_;
  Tap tap_;
  std::int64_t max_pages_ = 0, slots_ = 0, tree_slots_ = 0;  // the slots of trees are the last
  Tensor pool_, hidden_;        // [layers, slots, row] and [requests, hidden]
  Tensor lengths_, last_;       // [requests]
  Tensor listed_;               // [requests]: those of the step
  Tensor zeros_, ones_, seen_;  // constants: i32, i32 and u8 [requests]
  Tensor results_;              // what the host reads after a step; the first bad status first
  std::vector<Request> requests_;
  std::vector<std::int32_t> list_;  // what listed_ holds
  std::map<std::string, Buffer> buffers_;
  std::int64_t moves_ = 0;                             // of buffers so far
  std::map<std::array<std::int64_t, 2>, Plan> plans_;  // by requests and budget
  Plan prompt_;                                        // of prefill: never recorded
  Plan* plan_ = &prompt_;                              // of the last step
};

}  // namespace kdtr::model
