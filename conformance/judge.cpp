#include "judge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "batch.h"
#include "diagnose.h"
#include "kdtr/call_builder.h"
#include "kdtr/error.h"
#include "membership.h"
#include "value.h"

namespace kdtr::conform {
namespace {

constexpr double kSecondReference = 0x1p-40;

std::string place(const Fixture& fixture, const std::string& output, const Mismatch& m) {
  const std::vector<std::string> axes = fixture.axes(output);
  std::string text = "[";
  for (std::size_t i = 0; i < m.index.size(); ++i) {
    if (i != 0) text += ", ";
    if (i < axes.size()) text += axes[i] + "=";
    text += std::to_string(m.index[i]);
  }
  return text + "]";
}

std::string value_text(const Mismatch& m, char judged) {
  std::string text = "got " + m.got + " (" + m.got_bits + "), want " + m.want;
  if (judged != 'S') text += " (" + m.want_bits + ")";
  if (m.ulp && *m.ulp != 0) text += ", " + std::to_string(*m.ulp) + " ulp";
  if (judged == 'B')
    text += ", error " + show_double(m.error) + ", gate " + show_double(m.gate) + ", hard " +
            show_double(m.hard);
  return text;
}

void report(const Fixture& fixture, const Comparison& c, std::vector<std::string>& findings) {
  if (!c.first) return;
  const bool failed = c.mismatches != 0;
  const std::int64_t count = failed ? c.mismatches : c.warnings;
  const char* verb = c.judged == 'B'   ? (failed ? " beyond the hard budget" : " above the gate")
                     : c.judged == 'S' ? " not among the allowed ids, or there twice"
                                       : " differ";
  const std::string head =
      c.output + ": " + std::to_string(count) + " of " + std::to_string(c.elements) + verb;
  findings.push_back(head + "; first at " + place(fixture, c.output, *c.first) + ": " +
                     value_text(*c.first, c.judged));
  if (c.worst->at != c.first->at)
    findings.push_back(c.output + ": worst at " + place(fixture, c.output, *c.worst) + ": " +
                       value_text(*c.worst, c.judged));
}

std::span<const std::byte> bytes_of(const std::vector<std::uint32_t>& words) {
  return std::as_bytes(std::span(words));
}

// The logit of token `id` in a row of logits [R, L, V], or none.
using Lookup = std::function<std::optional<float>(std::int64_t row, std::int32_t id)>;

// Whether `bytes` hold `count` elements of `size` bytes: a fixture may come from anywhere.
bool holds(std::size_t bytes, std::int64_t count, std::size_t size) {
  return count == 0 || bytes / static_cast<std::size_t>(count) >= size;
}

std::optional<Lookup> logits_of(const Fixture& fixture, std::int64_t rows) {
  const Argument* logits = fixture.argument("logits");
  if (logits == nullptr || !is_float(logits->dtype)) return {};
  const std::int64_t vocabulary = logits->shape.empty() ? 0 : logits->shape.back();
  if (!holds(logits->initial.size(), rows,
             static_cast<std::size_t>(vocabulary) * logits->dtype.bits / 8))
    return {};
  return [logits, vocabulary](std::int64_t row, std::int32_t id) -> std::optional<float> {
    if (id < 0 || id >= vocabulary) return {};
    return static_cast<float>(
        float_at(logits->dtype, logits->initial.data(), row * vocabulary + id));
  };
}

// The same from the parts of topk_merge: part_ids and part_values [S, rows, K], first [S].
std::optional<Lookup> parts_of(const Fixture& fixture, std::int64_t rows, std::int64_t k) {
  const Argument* ids = fixture.argument("part_ids");
  const Argument* values = fixture.argument("part_values");
  const Argument* first = fixture.argument("first");
  if (ids == nullptr || values == nullptr || first == nullptr || first->shape.size() != 1)
    return {};
  const std::int64_t shards = first->shape[0];
  if (!is<std::int32_t>(ids->dtype) || !is<float>(values->dtype) ||
      !is<std::int32_t>(first->dtype) || !holds(first->initial.size(), shards, 4) ||
      !holds(ids->initial.size(), rows * k, static_cast<std::size_t>(shards) * 4) ||
      !holds(values->initial.size(), rows * k, static_cast<std::size_t>(shards) * 4))
    return {};
  auto found = std::make_shared<std::vector<std::map<std::int64_t, float>>>();
  found->resize(static_cast<std::size_t>(rows));
  std::int64_t at = 0;
  for (std::int64_t shard = 0; shard < shards; ++shard)
    for (std::int64_t row = 0; row < rows; ++row)
      for (const std::int64_t end = at + k; at < end; ++at) {
        const std::int64_t id = int_from(ids->dtype, bits_at(ids->dtype, ids->initial.data(), at));
        if (id < 0) continue;
        const std::int64_t offset =
            int_from(first->dtype, bits_at(first->dtype, first->initial.data(), shard));
        (*found)[static_cast<std::size_t>(row)][offset + id] =
            static_cast<float>(float_at(values->dtype, values->initial.data(), at));
      }
  return [found](std::int64_t row, std::int32_t id) -> std::optional<float> {
    const auto& values_of_row = (*found)[static_cast<std::size_t>(row)];
    const auto it = values_of_row.find(id);
    if (it == values_of_row.end()) return {};
    return it->second;
  };
}

bool is_given_rule(const std::string& rule) {
  return rule == "logit_minus_lse" || rule == "value_minus_lse";
}

// Both rules: logprobs = f32(logit of the engine's id) - the engine's own lse, one f32
// subtraction; -inf where the id is a pad (-1). `logit_minus_lse` finds the logit in the input
// `logits`, `value_minus_lse` among the parts. Returns the wanted bits, or why there are none.
std::string minus_lse(const Fixture& fixture, const std::string& rule, const Outputs& outputs,
                      const Want& want, std::vector<std::uint32_t>& bits) {
  const auto ids = outputs.find("ids"), lse = outputs.find("lse");
  const Expected* lse_expected = fixture.expected_for("lse");
  if (ids == outputs.end() || lse == outputs.end() || lse_expected == nullptr)
    return "rule " + rule + " needs outputs `ids` and `lse`";
  const std::int64_t k = want.shape.empty() ? 0 : want.shape.back();
  std::int64_t n = 1;
  for (const std::int64_t d : want.shape) n *= d;
  const std::int64_t rows = k == 0 ? 0 : n / k;
  const Expected* ids_expected = fixture.expected_for("ids");
  const std::optional<Lookup> lookup =
      rule == "logit_minus_lse" ? logits_of(fixture, rows) : parts_of(fixture, rows, k);
  if (!lookup || ids_expected == nullptr || !is<std::int32_t>(ids_expected->want.actual) ||
      !is<float>(lse_expected->want.actual) || !holds(ids->second.size(), n, 4) ||
      !holds(lse->second.size(), rows, 4))
    fail(fixture.path, "P_GIVEN: the inputs, ids and lse of " + rule,
         "logits or parts, i32 and f32, a row for each row of logprobs", "others");
  // The second-reference check runs with a wider lse.
  const bool wide = rows != 0 && lse->second.size() == static_cast<std::size_t>(rows) * 8;
  bits.resize(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t id = 0;
    std::memcpy(&id, ids->second.data() + i * 4, 4);
    float value = -std::numeric_limits<float>::infinity();
    if (const std::optional<float> logit = (*lookup)(i / k, id)) {
      const auto own = static_cast<float>(
          float_at(wide ? dtype_of<double> : dtype_of<float>, lse->second.data(), i / k));
      value = *logit - own;
    }
    bits[static_cast<std::size_t>(i)] = std::bit_cast<std::uint32_t>(value);
  }
  return "";
}

// Budgets of the second-reference check: 2^-40 of the element, or of the greatest in its row.
std::vector<float> wide_budget(const Want& want) {
  std::int64_t n = 1;
  for (const std::int64_t d : want.shape) n *= d;
  const std::int64_t row = want.shape.empty() ? 1 : std::max<std::int64_t>(want.shape.back(), 1);
  std::vector<float> budget(static_cast<std::size_t>(n));
  for (std::int64_t from = 0; from < n; from += row) {
    double scale = 0;
    for (std::int64_t i = from; i < from + row; ++i) {
      const double gold = float_at(want.dtype, want.data.data(), i);
      if (std::isfinite(gold)) scale = std::max(scale, std::fabs(gold));
    }
    for (std::int64_t i = from; i < from + row; ++i)
      budget[static_cast<std::size_t>(i)] = static_cast<float>(scale * kSecondReference);
  }
  return budget;
}

struct Run {
  std::string error;  // of the engine
  std::string lost;   // of the device
  Outputs outputs;
  std::vector<std::string> damage;
};

// All buffers of a case, used again for each run.
class Bench {
 public:
  Bench(const Fixture& fixture, EngineHost& engine, const Options& options)
      : fixture_(fixture), engine_(engine), call_(fixture.op, fixture.arith) {
    for (const Argument& a : fixture.arguments) {
      const Expected* expected = fixture.expected_for(a.name);
      const bool widen =
          options.wide && expected != nullptr && expected->want.judged == 'B' && a.role == KDTR_OUT;
      dtypes_[a.name] = widen ? dtype_of<double> : a.dtype;
      declare(a, nullptr, {});
    }
    for (const auto& [name, value] : fixture.attrs) call_.attr(name, value);
  }

  // Shapes and dtypes only, as `supports` and `workspace_size` see them.
  CallBuilder& call() { return call_; }

  void allocate(std::size_t workspace) {
    Memory& memory = engine_.memory();
    for (const Argument& a : fixture_.arguments) {
      std::int64_t n = 1;
      for (const std::int64_t d : a.shape) n *= d;
      auto buffer = std::make_unique<Buffer>(memory, a.name, byte_size(dtypes_.at(a.name), n));
      declare(a, buffer->data(), memory.device());
      buffers_[a.name] = std::move(buffer);
    }
    if (workspace != 0) {
      workspace_ = std::make_unique<Buffer>(memory, "workspace", workspace);
      call_.workspace(workspace_->data(), workspace);
    }
  }

  Run run(Poison pattern) {
    Run result;
    try {
      const Changed changed = prepare(pattern);
      call_.forget_requests();
      result.error = engine_.run(call_.call());
      finish(changed, result);
    } catch (const Error& e) {
      result.lost = e.what();
    }
    return result;
  }

  // Captures the run over zeros instead of the inputs, so that nothing of the inputs can be baked
  // in, and replays it `times` over the inputs. `error` when it cannot be captured.
  std::vector<Run> replay(int times) {
    Memory& memory = engine_.memory();
    std::vector<Run> runs(1);
    for (const auto& [name, buffer] : buffers_) buffer->zero();
    try {
      memory.begin_capture();
    } catch (const Error& e) {
      runs[0].error = e.what();
      return runs;
    }
    runs[0].error = engine_.run(call_.call());
    const std::string captured = memory.end_capture();
    if (runs[0].error.empty()) runs[0].error = captured;
    if (!runs[0].error.empty()) return runs;
    runs.resize(static_cast<std::size_t>(times));
    for (Run& result : runs) {
      try {
        const Changed changed = prepare(Poison::kA);
        memory.replay();
        finish(changed, result);
      } catch (const Error& e) {
        result.lost = e.what();
        return runs;
      }
    }
    return runs;
  }

  // Elements of an output that held poison A after run A and poison B after run B.
  std::vector<bool> unwritten(const std::string& output, const Run& a, const Run& b) const {
    const DLDataType t = dtypes_.at(output);
    const auto& x = a.outputs.at(output);
    const auto& y = b.outputs.at(output);
    if (t.bits < 8 || t.bits > 64) return {};
    std::vector<bool> marks(x.size() / (t.bits / 8u));
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      marks[i] = bits_at(t, x.data(), at) == poison_bits(t, Poison::kA) &&
                 bits_at(t, y.data(), at) == poison_bits(t, Poison::kB);
    }
    return marks;
  }

 private:
  using Changed = std::map<std::string, std::vector<std::byte>>;  // inputs other than the fixture's

  Changed prepare(Poison pattern) {
    Changed changed;
    for (const Argument& a : fixture_.arguments) {
      Buffer& buffer = *buffers_.at(a.name);
      if (a.role == KDTR_OUT) {
        buffer.poison(dtypes_.at(a.name), pattern);
      } else if (pattern == Poison::kB && fixture_.flag("poison") && is_float(a.dtype)) {
        buffer.fill(changed[a.name] = other_garbage(a), pattern);
      } else {
        buffer.fill(a.initial, pattern);
      }
    }
    if (workspace_ != nullptr) workspace_->scribble(pattern);
    return changed;
  }

  void finish(const Changed& changed, Run& result) {
    engine_.memory().sync();
    for (const Argument& a : fixture_.arguments) {
      Buffer& buffer = *buffers_.at(a.name);
      buffer.collect();
      if (!buffer.damage().empty()) result.damage.push_back(buffer.damage());
      const auto bytes = buffer.bytes();
      if (a.role == KDTR_IN) {
        const auto before =
            changed.contains(a.name) ? std::span<const std::byte>(changed.at(a.name)) : a.initial;
        if (!std::equal(bytes.begin(), bytes.end(), before.begin(), before.end()))
          result.damage.push_back("engine changed input `" + a.name + "`" +
                                  first_change(bytes, before));
      } else {
        result.outputs[a.name] = {bytes.begin(), bytes.end()};
      }
    }
    if (workspace_ != nullptr) {
      workspace_->collect();
      if (!workspace_->damage().empty())
        result.damage.push_back(workspace_->damage() + " of " + std::to_string(workspace_->size()) +
                                " B (workspace_size is too small)");
    }
  }

  void declare(const Argument& a, void* data, DLDevice device) {
    call_.tensor(a.name, a.role, data, dtypes_.at(a.name), a.shape,
                 data == nullptr ? engine_.device() : device);
  }

  // Flag `poison`: the NaNs of the inputs are what no visible entry names. A kernel that
  // multiplies them by 0 survives finite garbage, one that compares them survives NaN: try both.
  static std::vector<std::byte> other_garbage(const Argument& a) {
    std::vector<std::byte> bytes(a.initial.begin(), a.initial.end());
    const std::uint64_t garbage =
        round_to(a.dtype, a.dtype.bits == 16 && a.dtype.code == 2 ? 6e4 : 3e38);
    const std::size_t size = a.dtype.bits / 8u;
    for (std::size_t i = 0; i < bytes.size() / size; ++i)
      if (std::isnan(float_at(a.dtype, bytes.data(), static_cast<std::int64_t>(i))))
        std::memcpy(bytes.data() + i * size, &garbage, size);
    return bytes;
  }

  static std::string first_change(std::span<const std::byte> now,
                                  std::span<const std::byte> before) {
    const auto at = std::mismatch(now.begin(), now.end(), before.begin(), before.end());
    return " at byte " + std::to_string(at.first - now.begin()) + " of " +
           std::to_string(before.size());
  }

  const Fixture& fixture_;
  EngineHost& engine_;
  CallBuilder call_;
  std::map<std::string, DLDataType> dtypes_;
  std::map<std::string, std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<Buffer> workspace_;
};

void account_unknown(const Fixture& fixture, const CallBuilder& call,
                     std::vector<std::string>& findings) {
  std::set<std::string> told;
  for (const std::string& name : call.unknown())
    if (!fixture.declares(name) && told.insert(name).second)
      findings.push_back("kernel asked for '" + name + "', which " + fixture.op +
                         " does not declare");
}

void account(const Fixture& fixture, CallBuilder& call,
             const std::optional<std::vector<std::string>>& written,
             std::vector<std::string>& findings) {
  const auto writes = [&](const std::string& name) {
    return !written || std::find(written->begin(), written->end(), name) != written->end();
  };
  for (const auto& [name, argument] : call.arguments())
    if (argument.asked == 0 && (argument.role == KDTR_IN || writes(name)))
      findings.push_back("kernel never used '" + name + "'");
  for (const auto& [name, attribute] : call.attributes())
    if (attribute.asked == 0) findings.push_back("kernel never used attribute '" + name + "'");
  account_unknown(fixture, call, findings);
}

void compare_runs(const Fixture& fixture, const Run& a, const Run& b, const char* cause,
                  std::vector<std::string>& findings) {
  for (const auto& [name, x] : a.outputs) {
    const auto& y = b.outputs.at(name);
    if (x == y) continue;
    const Argument* argument = fixture.argument(name);
    const auto at = std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin();
    Mismatch m;
    m.at = at * 8 / static_cast<std::int64_t>(argument->dtype.bits);
    m.index = unflatten(m.at, argument->shape);
    findings.push_back(name + ": " + cause + ", first at " + place(fixture, name, m) + ": " +
                       show(argument->dtype, bits_at(argument->dtype, x.data(), m.at)) + ", then " +
                       show(argument->dtype, bits_at(argument->dtype, y.data(), m.at)));
  }
}

Result begin(const Fixture& fixture) {
  Result r;
  r.id = fixture.id();
  r.path = fixture.path;
  r.tier = fixture.tier;
  for (const std::string& flag : fixture.flags) r.flags += (r.flags.empty() ? "" : ",") + flag;
  r.catches = fixture.catches;
  r.arith = fixture.arith;
  r.digest = fixture.digest;
  return r;
}

Result& end(Result& r, Status status, std::string why) {
  r.status = status;
  r.findings.push_back(std::move(why));
  return r;
}

}  // namespace

const char* status_name(Status status) {
  static constexpr const char* kNames[] = {
      "PASS",  "QUALITY_WARNING", "FAIL",    "NOT_SUPPORTED", "SKIP",    "XFAIL",
      "XPASS", "WAIVED",          "VACUOUS", "CRASH",         "TIMEOUT", "INTERNAL_ERROR"};
  return kNames[static_cast<std::size_t>(status)];
}

bool is_failure(Status status) {
  switch (status) {
    case Status::kFail:
    case Status::kXpass:
    case Status::kVacuous:
    case Status::kCrash:
    case Status::kTimeout:
    case Status::kInternalError:
      return true;
    default:
      return false;
  }
}

Result judge_outputs(const Fixture& fixture, const Outputs& outputs, const Options& options,
                     const std::map<std::string, std::vector<bool>>& unwritten) {
  Result r = begin(fixture);
  r.status = Status::kPass;
  for (const Expected& expected : fixture.expected) {
    const auto it = outputs.find(expected.output);
    if (it == outputs.end()) {
      r.unchecked.push_back(expected.output);
      continue;
    }
    Want want = expected.want;
    std::vector<std::uint32_t> given;
    std::vector<float> budget;
    if (is_given_rule(expected.given)) {
      if (const std::string why = minus_lse(fixture, expected.given, outputs, want, given);
          !why.empty()) {
        r.unchecked.push_back(expected.output + " (" + why + ")");
        continue;
      }
      want.judged = 'E';
      want.dtype = want.actual = dtype_of<float>;
      want.data = bytes_of(given);
    } else if (!expected.given.empty()) {
      fail(fixture.path, "P_GIVEN: judge rule of " + expected.output,
           "logit_minus_lse or value_minus_lse", expected.given);
    }
    if (options.wide && want.judged == 'B') {
      want.actual = dtype_of<double>;
      budget = wide_budget(want);
      want.gate = want.hard = budget;
    }
    r.outputs.push_back(compare(expected.output, want, it->second));
  }
  if (r.outputs.empty()) {
    r.status = Status::kVacuous;
    r.findings.emplace_back("nothing was checked: the engine writes none of the outputs");
    return r;
  }
  for (const Comparison& c : r.outputs) {
    r.worst_gate = std::max(r.worst_gate, c.worst_gate);
    r.worst_hard = std::max(r.worst_hard, c.worst_hard);
    if (c.mismatches != 0) {
      r.status = Status::kFail;
    } else if (c.warnings != 0 && r.status == Status::kPass) {
      r.status = Status::kQualityWarning;
    }
  }
  for (const Comparison& c : r.outputs)
    if (c.mismatches != 0 || r.status == Status::kQualityWarning) report(fixture, c, r.findings);
  if (fixture.flag("membership") && !options.wide) {
    const std::vector<std::string> read = check_membership(fixture, outputs);
    if (!read.empty()) {
      r.status = Status::kFail;
      r.diagnosis = read;
    }
  }
  if (r.status == Status::kFail && options.diagnose) {
    const auto causes = diagnose(fixture, r.outputs, outputs, unwritten);
    r.diagnosis.insert(r.diagnosis.end(), causes.begin(), causes.end());
  }
  return r;
}

Result run_case(const Fixture& fixture, EngineHost& engine, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Result r = begin(fixture);
  if (!engine.has_profile(fixture.arith))
    return end(r, Status::kNotSupported,
               "profile " + fixture.arith + " is not one of the engine's, " + engine.profiles());
  Bench bench(fixture, engine, options);
  if (const std::string why = engine.unsupported(bench.call().call()); !why.empty())
    return end(r, Status::kNotSupported, why);
  try {
    engine.memory();
  } catch (const Error& e) {
    return end(r, Status::kSkip, e.what());
  }
  if (options.support) {
    r.status = Status::kPass;
    return r;
  }
  const auto written = engine.outputs(fixture.op);
  for (const std::string& name : written.value_or(std::vector<std::string>{}))
    if (std::ranges::none_of(fixture.arguments, [&](const Argument& a) {
          return a.name == name && a.role != KDTR_IN;
        }))
      return end(r, Status::kFail,
                 "the engine writes `" + name + "`, which is no output of the op");
  bench.call().forget_requests();
  std::size_t workspace = 0;
  try {
    workspace = engine.workspace_size(bench.call().call());
  } catch (const Error& e) {
    return end(r, Status::kFail, e.what());
  }
  try {
    bench.allocate(workspace);
  } catch (const Error& e) {  // too little memory is not the engine's fault
    return end(r, Status::kInternalError, e.what());
  }

  const Run a = bench.run(Poison::kA);
  std::vector<std::string> broken;  // rules other than the values
  if (!a.lost.empty()) {
    r.engine_lost = true;
    r.seconds = seconds();
    return end(r, Status::kCrash, a.lost);
  }
  if (fixture.flag("fails_call")) {
    broken = a.damage;
    if (a.error.empty()) broken.emplace_back("run succeeded, want an error before anything runs");
    r.status = broken.empty() ? Status::kPass : Status::kFail;
    r.findings = std::move(broken);
    r.seconds = seconds();
    return r;
  }
  if (!a.error.empty()) {
    r.seconds = seconds();
    r.findings = a.damage;
    end(r, Status::kFail, "run failed: " + a.error);
    account_unknown(fixture, bench.call(), r.findings);  // often why
    return r;
  }
  account(fixture, bench.call(), written, broken);
  broken.insert(broken.end(), a.damage.begin(), a.damage.end());
  std::map<std::string, std::vector<bool>> unwritten;
  if (options.memory_checks) {
    const Run b = bench.run(Poison::kB);
    if (!b.lost.empty() || !b.error.empty()) {
      r.engine_lost = !b.lost.empty();
      r.seconds = seconds();
      return end(r, r.engine_lost ? Status::kCrash : Status::kFail,
                 "second run failed: " + (r.engine_lost ? b.lost : b.error));
    }
    for (const std::string& d : b.damage)
      if (std::find(broken.begin(), broken.end(), d) == broken.end()) broken.push_back(d);
    for (const auto& [name, bytes] : a.outputs) {
      auto marks = bench.unwritten(name, a, b);
      if (std::find(marks.begin(), marks.end(), true) != marks.end())
        unwritten[name] = std::move(marks);
    }
    if (a.outputs != b.outputs) {
      // Poison, or chance? The same poison again tells.
      const Run again = bench.run(Poison::kA);
      if (again.lost.empty() && again.outputs != a.outputs) {
        compare_runs(fixture, a, again, "bits differ from run to run", broken);
      } else {
        Run x = a, y = b;
        for (const auto& [name, marks] : unwritten) {  // reported as unwritten, not here
          const auto size = fixture.argument(name)->dtype.bits / 8u;
          for (std::size_t i = 0; i < marks.size(); ++i)
            if (marks[i])
              std::copy_n(x.outputs[name].begin() + static_cast<std::ptrdiff_t>(i * size), size,
                          y.outputs[name].begin() + static_cast<std::ptrdiff_t>(i * size));
        }
        compare_runs(fixture, x, y,
                     fixture.flag("poison")
                         ? "output depends on uninitialised memory or on unused input"
                         : "output depends on uninitialised memory",
                     broken);
      }
    }
    for (int i = 0; i < options.repeat; ++i) {
      const Run again = bench.run(Poison::kA);
      if (again.lost.empty() && again.error.empty() && again.outputs == a.outputs) continue;
      if (!again.lost.empty() || !again.error.empty()) {
        broken.push_back("repeat " + std::to_string(i + 1) + " failed: " + again.lost +
                         again.error);
      } else {
        compare_runs(fixture, a, again, "bits differ from run to run", broken);
      }
      break;
    }
  }
  if (options.graph && engine.capturable() && engine.memory().has_graphs()) {
    for (const Run& again : bench.replay(2)) {
      if (!again.lost.empty()) {
        r.engine_lost = true;
        r.seconds = seconds();
        return end(r, Status::kCrash, "graph replay: " + again.lost);
      }
      if (!again.error.empty()) {
        broken.push_back("graph capture failed: " + again.error);
        break;
      }
      for (const std::string& d : again.damage)
        if (std::find(broken.begin(), broken.end(), d) == broken.end())
          broken.push_back("graph replay: " + d);
      if (again.outputs == a.outputs) continue;
      compare_runs(fixture, a, again, "a graph replay gives other bits than the run", broken);
      break;
    }
  }
  Outputs outputs = a.outputs;
  if (written) {
    std::erase_if(outputs, [&](const auto& entry) {
      return std::find(written->begin(), written->end(), entry.first) == written->end();
    });
  }
  std::vector<std::string> notes;
  if (options.alone || options.invariant) {
    BatchCheck check = check_alone(fixture, engine, outputs);
    broken.insert(broken.end(), check.wrong.begin(), check.wrong.end());
    std::vector<std::string>& list = options.invariant ? broken : notes;
    list.insert(list.end(), check.variance.begin(), check.variance.end());
  }
  r = judge_outputs(fixture, outputs, options, unwritten);
  for (const Comparison& c : r.outputs) {
    // Poison is a NaN, and passes for one where any NaN does.
    const auto marks = unwritten.find(c.output);
    if (c.mismatches == 0 && marks != unwritten.end())
      broken.push_back(
          c.output + ": " +
          std::to_string(std::count(marks->second.begin(), marks->second.end(), true)) + " of " +
          std::to_string(c.elements) + " elements were never written");
  }
  r.findings.insert(r.findings.end(), notes.begin(), notes.end());
  if (!broken.empty()) {
    r.status = Status::kFail;
    r.findings.insert(r.findings.begin(), broken.begin(), broken.end());
  }
  if (r.status == Status::kFail || options.keep_outputs) r.actual = std::move(outputs);
  r.seconds = seconds();
  return r;
}

}  // namespace kdtr::conform
