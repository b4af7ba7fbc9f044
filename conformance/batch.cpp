#include "batch.h"

#include <algorithm>
#include <set>

#include "value.h"

namespace kdtr::conform {
namespace {

// Request r of something that leads with the batch axis.
template <class T>
std::span<const T> part(std::span<const T> all, std::int64_t r, std::int64_t batch) {
  const std::size_t size = all.size() / static_cast<std::size_t>(batch);
  return all.subspan(static_cast<std::size_t>(r) * size, size);
}

// Whether each tensor leads with `axis` or does not have it, and each output leads with it.
bool sliceable(const Fixture& f, const std::string& axis, std::int64_t batch) {
  for (const Argument& a : f.arguments) {
    const std::vector<std::string> axes = f.axes(a.name);
    const bool leads = !axes.empty() && axes[0] == axis;
    if (a.role != KDTR_IN && !leads) return false;
    if (leads && (a.shape.empty() || a.shape[0] != batch || a.dtype.bits < 8)) return false;
    for (std::size_t i = 1; i < axes.size(); ++i)
      if (axes[i].find(axis) != std::string::npos) return false;
  }
  return true;
}

Fixture alone(const Fixture& f, const std::string& axis, std::int64_t r, std::int64_t batch) {
  Fixture one = f;
  one.wrong.clear();
  one.name += "[" + axis + "=" + std::to_string(r) + "]";
  std::erase(one.flags, "membership");
  for (Argument& a : one.arguments) {
    const std::vector<std::string> axes = f.axes(a.name);
    if (axes.empty() || axes[0] != axis) continue;
    a.shape[0] = 1;
    if (a.role != KDTR_OUT) a.initial = part(a.initial, r, batch);
  }
  for (Expected& e : one.expected) {
    e.want.shape[0] = 1;
    e.want.data = part(e.want.data, r, batch);
    if (e.want.judged == 'B') {
      e.want.gate = part(e.want.gate, r, batch);
      e.want.hard = part(e.want.hard, r, batch);
    }
    if (e.want.judged == 'S') e.want.allowed = part(e.want.allowed, r, batch);
  }
  return one;
}

}  // namespace

BatchCheck check_alone(const Fixture& f, EngineHost& engine, const Outputs& whole) {
  BatchCheck check;
  const Argument* status = f.argument("status");
  if (status == nullptr || status->shape.size() != 1 || status->shape[0] < 2) return check;
  const std::int64_t batch = status->shape[0];
  const std::vector<std::string> axes = f.axes("status");
  if (axes.empty()) return check;
  const std::string& axis = axes.front();
  if (!sliceable(f, axis, batch)) return check;
  std::set<std::int64_t> requests;
  if (batch <= 8) {
    for (std::int64_t r = 0; r < batch; ++r) requests.insert(r);
  } else {
    requests = {0, 1, batch / 2, batch - 2, batch - 1};
  }
  Options options;
  options.diagnose = false;
  options.memory_checks = false;
  options.keep_outputs = true;
  for (const std::int64_t r : requests) {
    const std::string who = axis + "=" + std::to_string(r) + " alone: ";
    const Result result = run_case(alone(f, axis, r, batch), engine, options);
    if (result.status != Status::kPass && result.status != Status::kQualityWarning) {
      const std::string why = result.findings.empty() ? "" : ": " + result.findings.front();
      check.wrong.push_back(who + status_name(result.status) + why);
      continue;
    }
    for (const auto& [name, bytes] : result.actual) {
      const auto it = whole.find(name);
      if (it == whole.end()) continue;
      const auto in_batch = part(std::span<const std::byte>(it->second), r, batch);
      if (!std::equal(bytes.begin(), bytes.end(), in_batch.begin(), in_batch.end()))
        check.variance.push_back(who + name + " has other bits than in the batch");
    }
  }
  return check;
}

}  // namespace kdtr::conform
