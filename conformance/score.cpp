#include "score.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>

#include "engine_host.h"
#include "fixture.h"
#include "judge.h"
#include "kdtr/error.h"
#include "report.h"
#include "value.h"

namespace kdtr::conform {
namespace {

using Clock = std::chrono::steady_clock;

struct Cell {
  Status status = Status::kInternalError;
  double worst_hard = 0;
  std::string why;

  bool killed() const {
    return status == Status::kFail || status == Status::kCrash || status == Status::kTimeout;
  }
  std::string text() const {
    if (status == Status::kCrash) return "crash";
    if (status == Status::kTimeout) return "hang";
    if (status != Status::kFail && status != Status::kPass && status != Status::kQualityWarning)
      return status_name(status);
    if (std::isinf(worst_hard)) return "X";
    if (killed() && worst_hard <= 1) return "X";  // a rule other than the values
    if (worst_hard == 0) return ".";
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.2g", worst_hard);
    return digits;
  }
};

// One mutant over the cases of its op, in a process of its own. Restarted behind a case that
// killed or stopped it.
struct Task {
  std::string config;  // of the plug-in
  bool wide = false;
  const std::vector<Fixture>* cases = nullptr;
  std::vector<Cell> cells;

  std::size_t next = 0;  // the case that runs
  pid_t pid = -1;
  int from = -1;
  std::string pending;
  Clock::time_point deadline;
  bool done() const { return next == cases->size(); }
};

struct Record {
  std::uint32_t index, status, length;
  double worst_hard;
};

void write_all(int fd, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size != 0) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(3);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

[[noreturn]] void child(const kdtr_plugin_table* table, const Task& task, int out) {
  // Mutants print nothing on purpose; what a crashing one prints would only confuse.
  const int null = ::open("/dev/null", O_WRONLY);
  if (null >= 0) ::dup2(null, STDERR_FILENO);
  Options options;
  options.memory_checks = false;
  options.diagnose = false;
  options.wide = task.wide;
  try {
    EngineHost engine(table, task.config, "mutants:" + task.config);
    for (std::size_t i = task.next; i < task.cases->size(); ++i) {
      std::string why;
      Record record{static_cast<std::uint32_t>(i),
                    static_cast<std::uint32_t>(Status::kInternalError), 0, 0};
      try {
        const Result result = run_case((*task.cases)[i], engine, options);
        record.status = static_cast<std::uint32_t>(result.status);
        record.worst_hard = result.worst_hard;
        if (!result.findings.empty()) why = result.findings.front();
      } catch (const std::exception& e) {
        why = e.what();
      }
      record.length = static_cast<std::uint32_t>(why.size());
      write_all(out, &record, sizeof record);
      write_all(out, why.data(), why.size());
    }
  } catch (...) {
    ::_exit(4);
  }
  ::_exit(0);
}

class Pool {
 public:
  Pool(const kdtr_plugin_table* table, const ScoreOptions& options)
      : table_(table), options_(options) {}

  void run(std::vector<Task>& tasks) {
    std::size_t waiting = 0;
    std::vector<Task*> active;
    while (true) {
      while (active.size() < static_cast<std::size_t>(std::max(options_.jobs, 1)) &&
             waiting < tasks.size()) {
        Task& task = tasks[waiting++];
        if (task.done()) continue;
        start(task);
        active.push_back(&task);
      }
      if (active.empty()) return;
      std::vector<pollfd> fds;
      int wait = 1 << 20;
      for (const Task* task : active) {
        fds.push_back({task->from, POLLIN, 0});
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(task->deadline - Clock::now());
        wait = std::min(wait, static_cast<int>(std::max<std::int64_t>(left.count() + 1, 0)));
      }
      ::poll(fds.data(), fds.size(), wait);
      for (std::size_t i = 0; i < active.size(); ++i) advance(*active[i], fds[i].revents != 0);
      std::erase_if(active, [](const Task* t) { return t->done() && t->pid < 0; });
    }
  }

 private:
  void start(Task& task) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("score", "pipe", "success", std::strerror(errno));
    task.pending.clear();
    task.pid = ::fork();
    if (task.pid < 0) fail("score", "fork", "success", std::strerror(errno));
    if (task.pid == 0) {
      ::close(ends[0]);
      child(table_, task, ends[1]);
    }
    ::close(ends[1]);
    task.from = ends[0];
    renew(task);
  }
  void renew(Task& task) const {
    task.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(options_.timeout));
  }
  int reap(Task& task) {
    int status = 0;
    ::waitpid(task.pid, &status, 0);
    ::close(task.from);
    task.pid = -1;
    return status;
  }
  void advance(Task& task, bool readable) {
    if (!readable) {
      if (Clock::now() < task.deadline) return;
      ::kill(task.pid, SIGKILL);
      reap(task);
      settle(task, {Status::kTimeout, kInfinite, "no answer"});
      return;
    }
    char buffer[1 << 16];
    const ssize_t n = ::read(task.from, buffer, sizeof buffer);
    if (n > 0) {
      task.pending.append(buffer, static_cast<std::size_t>(n));
      take(task);
      return;
    }
    const int status = reap(task);
    if (task.done()) return;
    const bool by_signal = WIFSIGNALED(status);
    settle(task, {by_signal ? Status::kCrash : Status::kInternalError, kInfinite,
                  by_signal ? ::strsignal(WTERMSIG(status)) : "the mutant's process ended early"});
  }
  // The case that was running is over; go on behind it.
  void settle(Task& task, Cell cell) {
    task.cells[task.next++] = std::move(cell);
    if (!task.done()) start(task);
  }
  void take(Task& task) {
    while (task.pending.size() >= sizeof(Record)) {
      Record record;
      std::memcpy(&record, task.pending.data(), sizeof record);
      const std::size_t size = sizeof record + record.length;
      if (task.pending.size() < size) return;
      task.cells[record.index] = {static_cast<Status>(record.status), record.worst_hard,
                                  task.pending.substr(sizeof record, record.length)};
      task.next = record.index + 1;
      task.pending.erase(0, size);
      renew(task);
    }
  }

  const kdtr_plugin_table* table_;
  const ScoreOptions& options_;
};

// ---- null answers -----------------------------------------------------------------------------

std::vector<std::byte> repeated(DLDataType t, std::size_t size, std::uint64_t bits) {
  std::vector<std::byte> bytes(size);
  if (t.bits < 8) {
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(bits == 0 ? 0 : 0xFF));
    return bytes;
  }
  const std::size_t width = std::min<std::size_t>(t.bits / 8u, 8);
  for (std::size_t i = 0; i + width <= size; i += width)
    std::memcpy(bytes.data() + i, &bits, width);
  return bytes;
}

std::uint64_t one(DLDataType t) { return is_float(t) ? round_to(t, 1.0) : 1; }
std::uint64_t minus_one(DLDataType t) {
  if (is_float(t)) return round_to(t, -1.0);
  return t.code == 6 ? 1 : ~0ull;
}

// Names of the null answers that would pass a case.
std::vector<std::string> nulls_that_pass(const Fixture& f) {
  using Fill = std::function<std::vector<std::byte>(const Argument&, std::size_t)>;
  const std::pair<const char*, Fill> kNulls[] = {
      {"zeros", [](const Argument& a, std::size_t n) { return repeated(a.dtype, n, 0); }},
      {"ones", [](const Argument& a, std::size_t n) { return repeated(a.dtype, n, one(a.dtype)); }},
      {"minus ones",
       [](const Argument& a, std::size_t n) { return repeated(a.dtype, n, minus_one(a.dtype)); }},
      {"an untouched output",
       [](const Argument& a, std::size_t n) {
         if (a.role == KDTR_INOUT) return std::vector(a.initial.begin(), a.initial.end());
         return repeated(a.dtype, n, poison_bits(a.dtype, Poison::kA));
       }},
      {"a copy of an input",
       [&f](const Argument& a, std::size_t n) {
         for (const Argument& in : f.arguments)
           if (in.role != KDTR_OUT && same(in.dtype, a.dtype) && in.initial.size() == n)
             return std::vector(in.initial.begin(), in.initial.end());
         return repeated(a.dtype, n, 0);
       }},
  };
  std::vector<std::string> pass;
  for (const auto& [name, fill] : kNulls) {
    Outputs outputs;
    for (const Argument& a : f.arguments) {
      if (a.role == KDTR_IN) continue;
      std::int64_t n = 1;
      for (const std::int64_t d : a.shape) n *= d;
      outputs[a.name] = fill(a, byte_size(a.dtype, n));
    }
    Options options;
    options.diagnose = false;
    if (!is_failure(judge_outputs(f, outputs, options).status)) pass.emplace_back(name);
  }
  return pass;
}

// ---- the score --------------------------------------------------------------------------------

struct Fault {
  std::string op, name, what;
};

std::vector<Fault> catalogue(void* library, const std::string& path) {
  void* symbol = ::dlsym(library, "kdtr_mutants_v1");
  if (symbol == nullptr) fail(path, "exported symbol", "kdtr_mutants_v1", "none");
  const char* (*get)(void) = nullptr;
  std::memcpy(&get, &symbol, sizeof get);
  std::vector<Fault> faults;
  std::istringstream lines(get());
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    Fault f;
    std::getline(fields, f.op, '\t');
    std::getline(fields, f.name, '\t');
    std::getline(fields, f.what, '\t');
    faults.push_back(std::move(f));
  }
  return faults;
}

struct OpScore {
  std::string op;
  std::vector<Fixture> cases;
  std::vector<Fault> faults;  // 0 is the control
};

}  // namespace

Score score_mutants(const ScoreOptions& options, const std::vector<std::string>& files) {
  Score score;
  std::vector<std::string> complaints;
  const auto complain = [&](std::string text) { complaints.push_back(std::move(text)); };

  std::map<std::string, OpScore> ops;
  std::map<std::string, bool> seen;
  for (const std::string& file : files) {
    try {
      Fixture f = load_fixture(file);
      if (f.tier != "small" || seen[f.id()]) continue;
      seen[f.id()] = true;
      OpScore& op = ops[f.op];
      op.op = f.op;
      op.cases.push_back(std::move(f));
    } catch (const Error& e) {
      complain(e.what());
    }
  }
  void* handle = nullptr;
  const kdtr_plugin_table* table = plugin_table(options.library, &handle);
  for (Fault& fault : catalogue(handle, options.library)) {
    const auto it = ops.find(fault.op);
    if (it != ops.end()) it->second.faults.push_back(std::move(fault));
  }

  std::vector<Task> tasks;
  for (const auto& [id, op] : ops) {
    for (const Fault& fault : op.faults) {
      Task task;
      task.config = id + ":" + fault.name;
      task.cases = &op.cases;
      task.cells.resize(op.cases.size());
      if (fault.name == "correct") {
        tasks.push_back(task);
        task.wide = true;
      }
      tasks.push_back(std::move(task));
    }
  }
  Pool(table, options).run(tasks);
  std::map<std::string, const Task*> by_config;
  for (const Task& task : tasks) by_config[task.config + (task.wide ? ":wide" : "")] = &task;

  int killed = 0, survived = 0, cases = 0;
  Json::Array ops_json;
  for (const auto& [id, op] : ops) {
    cases += static_cast<int>(op.cases.size());
    if (op.faults.empty()) {
      complain(id + ": no mutants");
      continue;
    }
    if (op.faults[0].name != "correct") complain(id + ": the first fault is not `correct`");
    // The control, and the control as a second reference.
    for (const bool wide : {false, true}) {
      const auto it = by_config.find(id + ":correct" + (wide ? ":wide" : ""));
      if (it == by_config.end()) continue;
      for (std::size_t c = 0; c < op.cases.size(); ++c) {
        const Cell& cell = it->second->cells[c];
        if (cell.status == Status::kPass || (!wide && cell.status == Status::kQualityWarning))
          continue;
        complain(op.cases[c].id() +
                 (wide ? ": the two references disagree beyond 2^-40: "
                       : ": the control is rejected: ") +
                 std::string(status_name(cell.status)) + " " + cell.why);
      }
    }
    // Every mutant by some case.
    std::string matrix = "\n### " + id + "\n\n";
    for (std::size_t c = 0; c < op.cases.size(); ++c)
      matrix +=
          std::to_string(c + 1) + ". `" + op.cases[c].name + "`: " + op.cases[c].catches + "\n";
    matrix += "\n| mutant |";
    std::string rule = "|---|";
    for (std::size_t c = 0; c < op.cases.size(); ++c) {
      matrix += " " + std::to_string(c + 1) + " |";
      rule += "--:|";
    }
    matrix += " killed by |\n" + rule + "--:|\n";
    Json::Array rows;
    for (const Fault& fault : op.faults) {
      const Task& task = *by_config.at(id + ":" + fault.name);
      int kills = 0;
      std::size_t last = 0;
      Json::Array cells;
      matrix += "| `" + fault.name + "` |";
      for (std::size_t c = 0; c < op.cases.size(); ++c) {
        const Cell& cell = task.cells[c];
        if (cell.killed()) {
          ++kills;
          last = c;
        }
        matrix += " " + (cell.killed() ? "**" + cell.text() + "**" : cell.text()) + " |";
        cells.emplace_back(
            Json::Object{{"status", status_name(cell.status)}, {"worst_hard", cell.worst_hard}});
      }
      matrix += " " + std::to_string(kills) + " |\n";
      Json::Object row{
          {"mutant", fault.name}, {"what", fault.what}, {"cells", cells}, {"killed_by", kills}};
      if (fault.name != "correct") {
        if (kills == 0) {
          ++survived;
          complain(id + ":" + fault.name + " survived: no case rejects it (" + fault.what + ")");
        } else {
          ++killed;
          if (kills == 1) row["only"] = op.cases[last].name;
        }
      }
      rows.emplace_back(std::move(row));
    }
    // What each case says that it kills, and null answers.
    Json::Array names;
    for (std::size_t c = 0; c < op.cases.size(); ++c) {
      const Fixture& f = op.cases[c];
      names.emplace_back(f.name);
      for (const std::string& kill : f.kills) {
        const auto it = by_config.find(id + ":" + kill);
        if (it == by_config.end()) {
          complain(f.id() + ": says that it kills " + kill + ", which is no mutant");
        } else if (!it->second->cells[c].killed()) {
          complain(f.id() + ": says that it kills " + kill + ", and does not (" +
                   it->second->cells[c].text() + ")");
        }
      }
      if (f.null_ok.empty() && !f.flag("fails_call"))
        for (const std::string& null : nulls_that_pass(f))
          complain(f.id() + ": " + null + " would pass, and null_ok does not say why");
    }
    score.markdown += matrix;
    ops_json.emplace_back(Json::Object{{"op", id}, {"cases", names}, {"mutants", rows}});
  }
  for (const std::string& line : complaints) score.text += line + "\n";
  score.text += std::to_string(ops.size()) + " ops, " + std::to_string(cases) +
                " cases: " + std::to_string(killed) + " killed, " + std::to_string(survived) +
                " survived\n";
  score.markdown =
      "# Separation matrix\n\nEach cell is the greatest error as a multiple of the hard budget; "
      "`X` is an exact mismatch, `.` no error at all. Bold: the case rejects the mutant.\n" +
      score.markdown + "\n" + std::to_string(killed) + " killed, " + std::to_string(survived) +
      " survived\n";
  Json::Array complaint_list;
  for (const std::string& line : complaints) complaint_list.emplace_back(line);
  score.json = Json::Object{{"ops", ops_json},
                            {"killed", killed},
                            {"survived", survived},
                            {"complaints", complaint_list}};
  const bool nothing = killed + survived == 0;
  score.exit = nothing ? 2 : complaints.empty() ? 0 : 1;
  if (nothing) score.text += "nothing ran: no small-tier fixture of an op with mutants\n";
  return score;
}

// Columns: dtype, got, want, gate, hard, verdict, why. Values are C hex floats, decimal, inf, nan,
// or the bits of the dtype as 0x... with `#` in front.
int judge_vectors(const std::string& path) {
  if (path.empty()) fail("vectors", "file", "one", "none");
  std::istringstream lines(read_file(path));
  std::string line;
  int number = 0, judged = 0, wrong = 0;
  while (std::getline(lines, line)) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string dtype, got, want, gate, hard, verdict;
    fields >> dtype >> got >> want >> gate >> hard >> verdict;
    const std::string where = path + ":" + std::to_string(number);
    DLDataType t{};
    if (dtype == "f64") {
      t = dtype_of<double>;
    } else if (dtype == "f32") {
      t = dtype_of<float>;
    } else if (dtype == "bf16") {
      t = dtype_of<bf16>;
    } else if (dtype == "f16") {
      t = dtype_of<f16>;
    } else {
      fail(where, "dtype", "f64, f32, bf16 or f16", dtype);
    }
    const auto value = [&](const std::string& text) {
      if (text.starts_with('#')) return float_from(t, std::stoull(text.substr(1), nullptr, 16));
      return std::strtod(text.c_str(), nullptr);
    };
    const Verdict is = judge_element(value(got), value(want), value(gate), value(hard));
    const char* name = is == Verdict::kPass ? "PASS" : is == Verdict::kWarn ? "WARN" : "FAIL";
    ++judged;
    if (name != verdict) {
      ++wrong;
      std::printf("%s: verdict, want %s, got %s\n", where.c_str(), verdict.c_str(), name);
    }
  }
  std::printf("%d vectors, %d judged otherwise\n", judged, wrong);
  return judged == 0 ? 2 : wrong != 0 ? 1 : 0;
}

}  // namespace kdtr::conform
