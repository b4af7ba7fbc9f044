// Engines run in a process of their own, so that a crash or a hang costs one case.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "report.h"

namespace kdtr::conform {

struct WorkerOptions {
  std::string engine;
  Options options;
  std::string save;     // folder for actual.kdtr of failures, or ""
  double timeout = 60;  // seconds a case
  std::string python;   // interpreter that runs `kdtr.worker` for engines in Python, or ""
  std::vector<std::string> arguments() const;  // the command line of the worker
};

// Judges one file in this process. Never throws: what cannot be judged has a status too.
Record judge_file(const std::string& path, EngineHost& engine, const WorkerOptions& options);

// The worker's end: paths on stdin, one a line; JSON, one a line, on descriptor `out`.
int serve(const WorkerOptions& options, int out);
// The same for an engine that is already there.
int serve(EngineHost& engine, const WorkerOptions& options, int out);

// The judge's end. Starts a worker when there is none, and again after it died.
class Worker {
 public:
  explicit Worker(WorkerOptions options) : options_(std::move(options)) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the worker and learns about its engine. Throws kdtr::Error when it cannot be loaded.
  EngineInfo engine();
  Record judge(const std::string& path);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Got { kLine, kEnd, kTimeout };
  void start();
  void stop();
  Clock::time_point deadline() const;  // of what starts now
  Got read_line(std::string& line, Clock::time_point deadline);
  std::string how_it_ended(const char* when = "");  // "killed by SIGSEGV (segmentation fault)"
  Record broken(const std::string& path, Status status, const std::string& why) const;

  WorkerOptions options_;
  EngineInfo info_;
  pid_t pid_ = -1;
  std::set<pid_t> before_;  // the judge's children when the worker was started
  int to_ = -1, from_ = -1;
  std::string pending_;  // bytes read past the last line
};

// "<op>@<v>/<case>" from a fixture's path, for files that could not be opened.
std::string id_from_path(const std::string& path);

// Reports the faulting address of SIGSEGV and SIGBUS on `out` as "!<text>" before dying of it.
void install_fault_handler(int out);

}  // namespace kdtr::conform
