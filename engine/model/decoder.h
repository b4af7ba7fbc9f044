// Greedy and draft-tree decoding of an MLA + MoE model, made of the registered kernels.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdtr/call_builder.h"
#include "weights.h"

namespace kdtr::model {

struct Options {
  std::int64_t requests = 1;        // the most that are live at once
  std::int64_t max_context = 2048;  // rows of each, speculation included
  std::int64_t page_size = 16;      // 16 or 64: rows move on commit
  std::int64_t max_budget = 64;     // draft nodes of a tree, root not counted
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
    std::int32_t last = -1;
    bool live = false;
  };
  // One forward pass: R requests of N nodes each.
  struct Batch {
    std::int64_t r = 0, n = 0;
    Tensor ids, positions, page_table, prefix_len, tree_slots, visible, n_nodes;
    std::vector<std::int32_t> slots;  // of the nodes, on the host
    bool padded = false;              // some nodes are pads, with id -1
  };
  class Op;

  Tensor buffer(const std::string& name, DLDataType dtype, std::vector<std::int64_t> shape);
  Tensor upload(const std::string& name, const std::vector<std::int32_t>& values,
                std::vector<std::int64_t> shape);
  std::int32_t slot(std::int64_t request, std::int64_t position) const;
  void require_room(std::int64_t request, std::int64_t rows) const;
  Tensor pool(std::int64_t layer) const;
  void lengths(Batch& batch, std::span<const std::int32_t> requests);
  void scatter(const Batch& batch, std::int64_t layer, const Tensor& rows);
  Tensor linear(const std::string& stage, const std::string& out, const Tensor& x, const Tensor& w,
                const Tensor* residual);
  Tensor norm(const std::string& stage, const Tensor& x, const Tensor& w);
  Tensor attention(const Batch& batch, std::int64_t layer, const Tensor& x);
  Tensor mlp(std::int64_t layer, const Tensor& x);
  Tensor forward(const Batch& batch);
  Tensor logits(const std::string& stage, const Tensor& hidden);
  Tensor argmax(const std::string& stage, const Tensor& logits, std::int64_t r, std::int64_t n);
  void check_statuses();

  Options options_;
  Memory& memory_;
  Arena arena_;
  Communicator& ranks_;
  Config config_;
  Weights weights_;
  Tap tap_;
  std::int64_t max_pages_ = 0, slots_ = 0;
  Tensor pool_, hidden_;  // [layers, slots, row] and [requests, hidden]
  std::vector<Request> requests_;
  std::map<std::string, std::pair<Tensor, std::size_t>> buffers_;  // and capacity in bytes
  struct Pending {
    std::string stage;
    std::int64_t first, count;
  };
  std::vector<Pending> pending_;
  std::int64_t status_used_ = 0;
};

}  // namespace kdtr::model
