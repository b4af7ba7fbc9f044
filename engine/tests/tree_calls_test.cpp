// Calls of the tree ops that must fail on the host, with a message that names the argument.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kdtr/call_builder.h"
#include "kdtr/registry.h"

namespace {

using kdtr::CallBuilder;

int failures = 0;

// A call whose tensors are zero: every one gets a buffer of its own.
class Builder {
 public:
  explicit Builder(const std::string& op) : call_(std::make_unique<CallBuilder>(op, "exact")) {}
  template <class T>
  Builder& tensor(const char* name, int role, std::vector<std::int64_t> shape) {
    std::size_t bytes = sizeof(T);
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    buffers_.emplace_back(bytes + 1);
    call_->tensor(name, role, buffers_.back().data(), kdtr::dtype_of<T>, std::move(shape));
    return *this;
  }
  Builder& attr(const char* name, CallBuilder::Value value) {
    call_->attr(name, std::move(value));
    return *this;
  }
  // The error of running the call, or "" when it runs.
  std::string run() {
    const kdtr::Kernel* kernel = kdtr::find_kernel(call_->op());
    if (kernel == nullptr) return "no kernel";
    try {
      kdtr::Call view(call_->call());
      kernel->run(view, nullptr);
      return "";
    } catch (const kdtr::Error& error) {
      return error.what();
    }
  }

 private:
  std::unique_ptr<CallBuilder> call_;
  std::vector<std::vector<std::byte>> buffers_;
};

void expect(const char* what, Builder call, const std::string& want) {
  const std::string got = call.run();
  if (got == want) return;
  std::fprintf(stderr, "%s:\n  want %s\n  got  %s\n", what, want.c_str(), got.c_str());
  ++failures;
}

Builder tree_build(std::int64_t budget, std::string order, std::int64_t depth, std::int64_t width,
                   std::int64_t slots) {
  Builder b("tree_build@1");
  b.attr("budget", budget).attr("tie_order", std::move(order));
  b.tensor<float>("logprobs", KDTR_IN, {1, depth, width});
  b.tensor<std::int32_t>("ids", KDTR_IN, {1, depth, width});
  for (const char* name : {"root_token", "prefix_len"}) b.tensor<std::int32_t>(name, KDTR_IN, {1});
  for (const char* name :
       {"tokens", "depths", "parents", "positions", "next_token", "next_sibling"})
    b.tensor<std::int32_t>(name, KDTR_OUT, {1, slots});
  for (const char* name : {"n_nodes", "status"}) b.tensor<std::int32_t>(name, KDTR_OUT, {1});
  b.tensor<std::uint8_t>("visible", KDTR_OUT, {1, slots, slots});
  b.tensor<double>("weights", KDTR_OUT, {1, slots});
  return b;
}

Builder tree_accept(std::int64_t limit, std::int64_t vocab, std::int64_t slots,
                    std::int64_t steps) {
  Builder b("tree_accept@1");
  b.attr("L", limit).attr("V", vocab);
  for (const char* name : {"tokens", "next_token", "next_sibling", "target"})
    b.tensor<std::int32_t>(name, KDTR_IN, {1, slots});
  b.tensor<std::int32_t>("n_nodes", KDTR_IN, {1});
  for (const char* name : {"accept_index", "accepted_tokens"})
    b.tensor<std::int32_t>(name, KDTR_OUT, {1, steps});
  for (const char* name : {"accept_len", "status"}) b.tensor<std::int32_t>(name, KDTR_OUT, {1});
  b.tensor<std::int32_t>("predicts", KDTR_OUT, {1, slots});
  return b;
}

Builder tree_masks(std::int64_t slots, std::int64_t total, std::int64_t allocated) {
  Builder b("tree_masks@1");
  b.attr("T", total).attr("T8", std::int64_t{64});
  b.tensor<std::uint8_t>("visible", KDTR_IN, {1, slots, slots});
  for (const char* name : {"parents", "depths"}) b.tensor<std::int32_t>(name, KDTR_IN, {1, slots});
  for (const char* name : {"n_nodes", "prefix_len"}) b.tensor<std::int32_t>(name, KDTR_IN, {1});
  b.tensor<std::uint8_t>("qlen", KDTR_OUT, {1, slots, slots});
  b.tensor<std::uint8_t>("full", KDTR_OUT, {allocated});
  b.tensor<std::uint32_t>("packed32", KDTR_OUT, {1, slots, (slots + 31) / 32});
  b.tensor<std::uint8_t>("packed8", KDTR_OUT, {64});
  b.tensor<std::int32_t>("indptr", KDTR_OUT, {2});
  for (const char* name : {"bfs_order", "retrieve_index"})
    b.tensor<std::int32_t>(name, KDTR_OUT, {1, slots});
  b.tensor<std::int32_t>("status", KDTR_OUT, {1});
  return b;
}

Builder tree_sample(std::int64_t limit, double acc, double single, std::int64_t vocab) {
  Builder b("tree_sample@1");
  b.attr("L", limit).attr("threshold_acc", acc).attr("threshold_single", single);
  for (const char* name : {"tokens", "next_token", "next_sibling"})
    b.tensor<std::int32_t>(name, KDTR_IN, {1, 1});
  b.tensor<std::int32_t>("n_nodes", KDTR_IN, {1});
  b.tensor<float>("probs", KDTR_IN, {1, 1, vocab});
  b.tensor<float>("coins", KDTR_IN, {1, 3});
  b.tensor<float>("final_coin", KDTR_IN, {1});
  for (const char* name : {"accept_index", "accepted_tokens"})
    b.tensor<std::int32_t>(name, KDTR_OUT, {1, 3});
  for (const char* name : {"accept_len", "status"}) b.tensor<std::int32_t>(name, KDTR_OUT, {1});
  b.tensor<std::int32_t>("predicts", KDTR_OUT, {1, 1});
  return b;
}

}  // namespace

int main() {
  expect("the least tree", tree_build(0, "ranks", 0, 0, 1), "");
  expect("the largest sizes", tree_build(1024, "uno", 64, 1024, 1025), "");
  expect("a negative budget", tree_build(-1, "ranks", 2, 3, 1),
         "tree_build@1/budget: out of range, want 0..1024, got -1");
  expect("a budget past the limit", tree_build(1025, "ranks", 2, 3, 1026),
         "tree_build@1/budget: out of range, want 0..1024, got 1025");
  expect("an unknown tie order", tree_build(4, "depth", 2, 3, 5),
         "tree_build@1/tie_order: unknown, want ranks or uno, got depth");
  expect("too many depths", tree_build(4, "ranks", 65, 3, 5),
         "tree_build@1/logprobs: axis L, want at most 64, got 65");
  expect("too many candidates", tree_build(4, "ranks", 2, 1025, 5),
         "tree_build@1/logprobs: axis K, want at most 1024, got 1025");
  expect("outputs of another budget", tree_build(4, "ranks", 2, 3, 4),
         "tree_build@1/tokens: axis N, want 5, got 4");

  expect("a root alone", tree_accept(3, 10, 1, 4), "");
  expect("a negative depth limit", tree_accept(-1, 10, 4, 0),
         "tree_accept@1/L: out of range, want 0..64, got -1");
  expect("a depth limit past the bound", tree_accept(65, 10, 4, 66),
         "tree_accept@1/L: out of range, want 0..64, got 65");
  expect("a vocabulary past 32 bits", tree_accept(3, std::int64_t{1} << 31, 4, 4),
         "tree_accept@1/V: out of range, want 0..2^31-1, got 2147483648");
  expect("too many nodes", tree_accept(3, 10, 1026, 4),
         "tree_accept@1/tokens: axis N, want at most 1025, got 1026");
  expect("a path without room for the bonus", tree_accept(3, 10, 4, 3),
         "tree_accept@1/accept_index: axis S, want 4, got 3");

  expect("room to spare", tree_masks(4, 100, 100), "");
  expect("a size that is not the buffer's", tree_masks(4, 100, 99),
         "tree_masks@1/full: axis T, want 100, got 99");
  expect("too many nodes", tree_masks(1026, 100, 100),
         "tree_masks@1/visible: axis N, want at most 1025, got 1026");

  expect("thresholds of 1", tree_sample(2, 1.0, 1.0, 8), "");
  expect("threshold_acc 0", tree_sample(2, 0.0, 1.0, 8),
         "tree_sample@1/threshold_acc: out of range, want above 0, got 0");
  expect("a NaN threshold", tree_sample(2, 1.0, std::numeric_limits<double>::quiet_NaN(), 8),
         "tree_sample@1/threshold_single: out of range, want a number, got nan");
  expect("too large a vocabulary", tree_sample(2, 1.0, 1.0, 262145),
         "tree_sample@1/probs: axis V, want at most 262144, got 262145");
  return failures == 0 ? 0 : 1;
}
