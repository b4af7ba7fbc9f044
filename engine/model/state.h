// What a decoder keeps of its requests between steps, in the backend's memory, and what a step
// takes from it and leaves in it: a step needs nothing from the host but the list of its requests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kdtr::model {

struct State {
  std::int32_t* length = nullptr;  // [requests] cached rows
  std::int32_t* last = nullptr;    // [requests] the newest token, which has no row yet
  std::byte* hidden = nullptr;     // [requests, row_bytes] the final hidden row that chose it
  std::int64_t requests = 0, row_bytes = 0;
};

// A step of r requests, n nodes each; i is a request's place in the step.
struct StepStart {
  State state;
  const std::int32_t* requests = nullptr;  // [r]
  std::int64_t r = 0, n = 0, max_pages = 0, first_slot = 0;
  std::int32_t* prefix_len = nullptr;  // [r] = length
  std::int32_t* root = nullptr;        // [r] = last
  std::int32_t* page_table = nullptr;  // [r, max_pages]: page p of request q is p * requests + q
  std::int32_t* tree_slots = nullptr;  // [r, n] = first_slot, first_slot + 1, ...
  std::byte* hidden = nullptr;         // its hidden row goes to hidden + i * stride, or nullptr
  std::int64_t stride = 0;
};
void start_step(const StepStart& step, void* stream);

// After the ops of a step: the state moves on, unless one of their statuses is not ok.
struct StepEnd {
  State state;
  const std::int32_t* requests = nullptr;  // [r]
  std::int64_t r = 0, n = 0, count = 0, steps = 0;
  const std::int32_t* statuses = nullptr;    // [count]
  const std::int32_t* new_len = nullptr;     // [r] -> length
  const std::int32_t* accept_len = nullptr;  // [r]
  const std::int32_t* tokens = nullptr;      // [r, steps]: the one at accept_len -> last
  const std::byte* hidden = nullptr;         // [r, n, row_bytes]: the one at accept_len -> hidden
  std::int32_t* first_bad = nullptr;         // the first status that is not ok, or -1
};
void end_step(const StepEnd& step, void* stream);

}  // namespace kdtr::model
