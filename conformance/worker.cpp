#include "worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "kdtr/error.h"

namespace kdtr::conform {
namespace {

int fault_fd = -1;

// Async-signal-safe: no allocation, only write(2).
void on_fault(int number, siginfo_t* info, void*) {
  char text[160] = "!";
  const std::size_t n =
      explain_address(reinterpret_cast<std::uintptr_t>(info->si_addr), text + 1, sizeof text - 2);
  if (n != 0) {
    text[n + 1] = '\n';
    [[maybe_unused]] const auto written = ::write(fault_fd, text, n + 2);
  }
  ::signal(number, SIG_DFL);
  ::raise(number);
}

// The worker leads a process group of its own, so that what it started ends with it: a program that
// is an engine, or what that program started. 0: none. One worker at a time.
volatile sig_atomic_t worker_group = 0;

// The judge is told to end, and a group of its own does not hear of it.
void on_end(int number) {
  if (worker_group != 0) ::kill(-worker_group, SIGKILL);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

// Processes that this one is the parent of, as the kernel lists them.
std::set<pid_t> children() {
  const std::string self = std::to_string(::getpid());
  std::ifstream list("/proc/self/task/" + self + "/children");
  return {std::istream_iterator<pid_t>(list), {}};
}

// What left a worker's group (setsid) is the judge's own child once its parent is gone, and ends
// too. `before`: children that the judge had before it had a worker.
void end_strays(const std::set<pid_t>& before) {
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : children()) {
      if (before.contains(pid)) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      found = true;
    }
  }
}

void end_worker_too() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (::signal(number, on_end) == SIG_IGN) ::signal(number, SIG_IGN);
}

// For as long as it lives, a write to a pipe that nobody reads fails instead of killing the judge.
class NoPipeSignal {
 public:
  NoPipeSignal() : before_(::signal(SIGPIPE, SIG_IGN)) {}
  ~NoPipeSignal() { ::signal(SIGPIPE, before_); }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sighandler_t before_;
};

void write_all(int fd, const std::string& text) {
  const NoPipeSignal guard;
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("worker", "write to the pipe", "success", std::strerror(errno));
    at += static_cast<std::size_t>(n);
  }
}

}  // namespace

std::vector<std::string> WorkerOptions::arguments() const {
  std::vector<std::string> all{"--engine", engine, "--repeat", std::to_string(options.repeat)};
  if (options.alone) all.emplace_back("--alone");
  if (options.invariant) all.emplace_back("--invariant");
  if (options.graph) all.emplace_back("--graph");
  if (options.support) all.emplace_back("--support");
  if (!save.empty()) all.insert(all.end(), {"--save", save});
  return all;
}

std::string id_from_path(const std::string& path) {
  const std::filesystem::path p(path);
  const std::string folder = p.parent_path().filename().string();
  return (folder.empty() ? "" : folder + "/") + p.stem().string();
}

Record judge_file(const std::string& path, EngineHost& engine, const WorkerOptions& options) {
  try {
    const Fixture fixture = load_fixture(path);
    Result result = run_case(fixture, engine, options.options);
    Record record = make_record(result, fixture.root, options.engine);
    if (result.status == Status::kFail && !options.save.empty() && !result.actual.empty()) {
      Json::Object all = record.json.members();
      try {
        const std::string saved = save_actual(fixture, result, options.engine, options.save);
        record.text += "      saved: " + saved + "\n";
        all["saved"] = saved;
      } catch (const std::exception& e) {  // a full disk does not change the verdict
        record.text += std::string("      not saved: ") + e.what() + "\n";
      }
      all["text"] = record.text;
      record.json = std::move(all);
    }
    return record;
  } catch (const Error& e) {
    // A damaged fixture is a failing test.
    return make_record(id_from_path(path), path, Status::kFail, e.what(), options.engine);
  } catch (const std::exception& e) {
    return make_record(id_from_path(path), path, Status::kInternalError, e.what(), options.engine);
  }
}

void install_fault_handler(int out) {
  fault_fd = out;
  static std::byte stack[64 << 10];  // a stack overflow leaves no stack to report it on
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  ::sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, nullptr);
  ::sigaction(SIGBUS, &action, nullptr);
}

int serve(const WorkerOptions& options, int out) {
  try {
    const std::unique_ptr<EngineHost> engine = load_engine(options.engine);
    return serve(*engine, options, out);
  } catch (const Error& e) {
    write_all(out, Json(Json::Object{{"kind", "error"}, {"why", e.what()}}).dump() + "\n");
    return 2;
  }
}

int serve(EngineHost& engine, const WorkerOptions& options, int out) {
  install_fault_handler(out);
  write_all(out, to_json(describe(engine)).dump() + "\n");
  std::string path;
  while (std::getline(std::cin, path)) {
    const Record record = judge_file(path, engine, options);
    write_all(out, record.json.dump() + "\n");
    if (record.engine_lost) ::_exit(0);  // a sticky device error: the next case needs a new process
  }
  return 0;
}

void Worker::start() {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
    fail("worker", "pipe", "success", std::strerror(errno));
  const bool python = !options_.python.empty();
  std::vector<std::string> words{"kdtr-conform", "worker"};
  if (python) words = {options_.python, "-m", "kdtr.worker"};
  words.insert(words.end(), {"--fd", std::to_string(from[1])});
  for (const std::string& word : options_.arguments()) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  end_worker_too();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  before_ = children();
  pid_ = ::fork();
  if (pid_ < 0) fail("worker", "fork", "success", std::strerror(errno));
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a judge that is killed cannot take it along
    ::dup2(to[0], STDIN_FILENO);
    ::fcntl(from[1], F_SETFD, 0);
    // `-m` would take a package kdtr of the working directory, a clone's, for the installed one.
    if (python) ::setenv("PYTHONSAFEPATH", "kdtr", 0);
    ::execv(python ? argv[0] : "/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);  // whichever of the two comes first
  worker_group = pid_;
  ::close(to[0]);
  ::close(from[1]);
  to_ = to[1];
  from_ = from[0];
  pending_.clear();
}

void Worker::stop() {
  if (pid_ < 0) return;
  ::close(to_);
  ::close(from_);
  ::kill(-pid_, SIGKILL);
  worker_group = 0;
  ::waitpid(pid_, nullptr, 0);
  end_strays(before_);
  pid_ = -1;
}

Worker::Clock::time_point Worker::deadline() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(options_.timeout));
}

Worker::Got Worker::read_line(std::string& line, Clock::time_point deadline) {
  while (true) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return Got::kLine;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wait{from_, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Got::kTimeout;
    char buffer[1 << 16];
    const ssize_t n = ::read(from_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Got::kEnd;
    pending_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string Worker::how_it_ended(const char* when) {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  ::kill(-pid_, SIGKILL);  // what it leaves behind; as yet its number is nobody else's
  worker_group = 0;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  end_strays(before_);
  ::close(to_);
  ::close(from_);
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    return std::string("killed by SIG") + (name == nullptr ? "?" : name) + " (" +
           ::strsignal(WTERMSIG(status)) + ")";
  }
  return "exited with " + std::to_string(WEXITSTATUS(status)) + when;
}

EngineInfo Worker::engine() {
  if (pid_ >= 0) return info_;
  start();
  std::string line;
  switch (read_line(line, deadline())) {
    case Got::kEnd:
      fail(options_.engine, "loading the engine: " + how_it_ended());
    case Got::kTimeout:
      stop();
      fail(options_.engine, "loading the engine", "done in " + shown(options_.timeout) + " s",
           "no answer");
    case Got::kLine:
      break;
  }
  const Json json = Json::parse(line, "worker");
  if (json["kind"].text() != "engine") {
    stop();
    throw Error(json["why"].text());
  }
  return info_ = engine_from_json(json);
}

Record Worker::broken(const std::string& path, Status status, const std::string& why) const {
  return make_record(id_from_path(path), path, status, why, options_.engine);
}

Record Worker::judge(const std::string& path) {
  // One line is one path to the worker.
  if (path.find('\n') != std::string::npos)
    return broken(path, Status::kInternalError, "a path with a newline cannot be judged");
  try {
    engine();
    try {
      write_all(to_, path + "\n");
    } catch (const Error&) {  // it died after the case before: this one has not been tried yet
      stop();
      engine();
      write_all(to_, path + "\n");
    }
  } catch (const Error& e) {
    stop();
    return broken(path, Status::kInternalError, e.what());
  }
  const Clock::time_point limit = deadline();
  std::string note, line;
  while (true) {
    switch (read_line(line, limit)) {
      case Got::kTimeout: {
        stop();
        char seconds[32];
        std::snprintf(seconds, sizeof seconds, "%g", options_.timeout);
        return broken(path, Status::kTimeout, std::string("no answer within ") + seconds + " s");
      }
      case Got::kEnd: {
        const std::string how = how_it_ended(" in the middle of the case");
        return broken(path, Status::kCrash, note.empty() ? how : how + ", touching memory " + note);
      }
      case Got::kLine:
        break;
    }
    if (line.starts_with('!')) {
      note = line.substr(1);
      continue;
    }
    // A process that the engine forked, or the engine itself, may write to the pipe as well.
    Record record;
    try {
      record = from_json(Json::parse(line, "worker"));
    } catch (const Error&) {
      stop();
      return broken(path, Status::kCrash, "the engine's process sent what is no result");
    }
    if (record.path != path) {
      stop();
      return broken(path, Status::kCrash, "the engine's process answered for another case");
    }
    if (record.engine_lost) how_it_ended();  // it left by itself
    return record;
  }
}

}  // namespace kdtr::conform
