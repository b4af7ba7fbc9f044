// The state of requests between steps, on the host.
#include "../state.h"

#include <algorithm>
#include <cstring>

#include "kdtr/op_call.h"

namespace kdtr::model {

void start_step(const StepStart& s, void*) {
  const auto row = static_cast<std::size_t>(s.state.row_bytes);
  for (std::int64_t i = 0; i < s.r; ++i) {
    const std::int64_t q = s.requests[i];
    s.prefix_len[i] = s.state.length[q];
    s.root[i] = s.state.last[q];
    for (std::int64_t p = 0; p < s.max_pages; ++p)
      s.page_table[i * s.max_pages + p] = static_cast<std::int32_t>(p * s.state.requests + q);
    for (std::int64_t j = 0; j < s.n; ++j)
      s.tree_slots[i * s.n + j] = static_cast<std::int32_t>(s.first_slot + i * s.n + j);
    if (s.hidden != nullptr)
      std::memcpy(s.hidden + i * s.stride, s.state.hidden + q * s.state.row_bytes, row);
  }
}

void end_step(const StepEnd& s, void*) {
  const std::int32_t* end = s.statuses + s.count;
  const std::int32_t* bad = std::find_if(s.statuses, end, [](auto x) { return x != kOk; });
  *s.first_bad = bad == end ? -1 : static_cast<std::int32_t>(bad - s.statuses);
  if (bad != end) return;
  for (std::int64_t i = 0; i < s.r; ++i) {
    const std::int64_t q = s.requests[i], at = s.accept_len[i];
    s.state.length[q] = s.new_len[i];
    s.state.last[q] = s.tokens[i * s.steps + at];
    std::memcpy(s.state.hidden + q * s.state.row_bytes,
                s.hidden + (i * s.n + at) * s.state.row_bytes,
                static_cast<std::size_t>(s.state.row_bytes));
  }
}

}  // namespace kdtr::model
