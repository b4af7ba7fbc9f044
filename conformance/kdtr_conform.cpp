// kdtr-conform: list | run | certify | score. Exit 0 yes, 1 no, 2 could not judge.
#include <fnmatch.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>

#include "expectations.h"
#include "fixture.h"
#include "kdtr/error.h"
#include "report.h"
#include "score.h"
#include "worker.h"

namespace {

using namespace kdtr::conform;
using kdtr::Error;
using kdtr::fail;

constexpr const char* kUsage = R"(usage:
  kdtr-conform list [--op OP] FILE|DIR...
      One line a case: id, tier, flags and the mistake that it catches.
  kdtr-conform run --engine E [options] FILE|DIR...
      Judge an engine. E is cpu, cuda, or PATH[:configuration] of a plug-in.
  kdtr-conform certify --engine E [--out DIR] [--lock FILE] [options] FILE|DIR...
      As run, then a table of ops and a certificate (DIR/certificate.json, DIR/results.jsonl).
  kdtr-conform support --engine E [options] FILE|DIR...
      How many cases of each op the engine runs, and why not the others. Runs no kernel.
  kdtr-conform score [--mutants LIB] [--op OP] [--json FILE] [--md FILE] [--jobs N] DIR...
      Run every kernel with a planted fault; each must be rejected, the control must pass.
  kdtr-conform vectors FILE
      Judge a table of single values (got, want, gate, hard -> verdict).

options of run and certify:
  --op OP            only this op ("tree_build" or "tree_build@1"); may be repeated
  --case GLOB        only cases whose name or id matches
  --tier small|full  only this tier
  --save DIR         keep what a failing engine gave, as actual.kdtr files
  --json FILE        results as JSON lines (docs/results.md)
  --junit FILE       results as JUnit XML
  --repeat N         run N times more; bits must not change
  --alone            run requests of a batch alone too; they must pass
  --invariant        as --alone, and with the same bits as in the batch
  --graph            capture engines that allow it into a graph, and replay it
  --timeout S        seconds a case may take (60)
  --python PATH      interpreter for an engine in Python (MODULE[:OBJECT] or cmd:PROGRAM)
  --no-isolate       in this process, for a debugger
  --expect FILE      known failures: xfail and waive lines
  --skip-code N      exit status when every case was skipped or not supported (2)
  --quiet            failures and the summary only
)";

struct Arguments {
  std::string command, engine, case_glob = "*", tier, save, json, md, junit, expect, out, lock,
                               mutants, python;
  std::vector<std::string> ops, paths;
  int repeat = 0, skip_code = 2, fd = -1, jobs = 2;
  double timeout = 0;  // 0 = the command's own
  bool isolate = true, quiet = false, support = false, graph = false, alone = false,
       invariant = false;
};

double to_number(const std::string& flag, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size()) fail(flag, "value", "a number", text);
  return value;
}

int to_integer(const std::string& flag, const std::string& text) {
  const double value = to_number(flag, text);
  if (!(std::abs(value) <= 1e9) || value != static_cast<int>(value))
    fail(flag, "value", "an integer", text);
  return static_cast<int>(value);
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  bool has_case = false;
  if (argc > 1) a.command = argv[1];
  for (int i = 2; i < argc; ++i) {
    std::string flag = argv[i];
    if (!flag.starts_with("--")) {
      a.paths.push_back(std::move(flag));
      continue;
    }
    std::string attached;
    bool has_attached = false;
    if (const std::size_t equals = flag.find('='); equals != std::string::npos) {
      attached = flag.substr(equals + 1);
      flag.resize(equals);
      has_attached = true;
    }
    const auto value = [&]() -> std::string {
      if (has_attached) return attached;
      if (i + 1 >= argc) fail(flag, "value", "one", "none");
      return argv[++i];
    };
    if (flag == "--engine") {
      a.engine = value();
    } else if (flag == "--op") {
      a.ops.push_back(value());
    } else if (flag == "--case") {
      if (has_case) fail(flag, "patterns", "one", "another");
      has_case = true;
      a.case_glob = value();
    } else if (flag == "--tier") {
      a.tier = value();
      if (a.tier != "small" && a.tier != "full") fail(flag, "value", "small or full", a.tier);
    } else if (flag == "--save") {
      a.save = value();
    } else if (flag == "--json") {
      a.json = value();
    } else if (flag == "--md") {
      a.md = value();
    } else if (flag == "--junit") {
      a.junit = value();
    } else if (flag == "--expect") {
      a.expect = value();
    } else if (flag == "--out") {
      a.out = value();
    } else if (flag == "--lock") {
      a.lock = value();
    } else if (flag == "--mutants") {
      a.mutants = value();
    } else if (flag == "--python") {
      a.python = value();
    } else if (flag == "--repeat") {
      a.repeat = to_integer(flag, value());
    } else if (flag == "--skip-code") {
      a.skip_code = to_integer(flag, value());
    } else if (flag == "--fd") {
      a.fd = to_integer(flag, value());
    } else if (flag == "--jobs") {
      a.jobs = to_integer(flag, value());
    } else if (flag == "--timeout") {
      a.timeout = to_number(flag, value());
      if (!(a.timeout > 0 && a.timeout <= 1e6)) fail(flag, "seconds", "0 to 1e6", a.timeout);
    } else if (flag == "--no-isolate") {
      a.isolate = false;
    } else if (flag == "--support") {  // of the worker
      a.support = true;
    } else if (flag == "--alone") {
      a.alone = true;
    } else if (flag == "--invariant") {
      a.invariant = true;
    } else if (flag == "--graph") {
      a.graph = true;
    } else if (flag == "--quiet") {
      a.quiet = true;
    } else {
      fail(flag, "unknown option (see kdtr-conform --help)");
    }
  }
  return a;
}

bool is_op(const std::vector<std::string>& ops, const std::string& id) {
  const std::string versioned = id.substr(0, id.find('/'));
  if (ops.empty()) return true;
  for (const std::string& op : ops)
    if (op == versioned || op == versioned.substr(0, versioned.find('@'))) return true;
  return false;
}

// Chosen by path alone, so that a damaged file is judged (and fails) too.
std::vector<std::string> choose(const Arguments& a, const std::vector<std::string>& found) {
  std::vector<std::string> chosen;
  for (const std::string& path : found) {
    const std::string id = id_from_path(path);
    const std::string name = id.substr(id.find('/') + 1);
    if (!is_op(a.ops, id)) continue;
    if (::fnmatch(a.case_glob.c_str(), name.c_str(), 0) != 0 &&
        ::fnmatch(a.case_glob.c_str(), id.c_str(), 0) != 0)
      continue;
    if (!a.tier.empty()) {
      const kdtr::File file = kdtr::File::open(path, kdtr::Verify::none);  // owns what `tier` views
      const auto tier = file.meta_as<std::string_view>("tier");
      if (tier && *tier != a.tier) continue;
    }
    chosen.push_back(path);
  }
  return chosen;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

// The LOCK beside the fixtures: in a folder above one of them.
std::string find_lock(const Arguments& a, const std::vector<std::string>& files) {
  if (!a.lock.empty()) return a.lock;
  namespace fs = std::filesystem;
  for (const std::string& file : files) {
    fs::path folder = fs::absolute(file).parent_path();
    for (int up = 0; up < 2; ++up, folder = folder.parent_path())
      if (fs::exists(folder / "LOCK")) return (folder / "LOCK").string();
  }
  return "";
}

// Roots by case id, as published.
std::map<std::string, std::string> read_lock(const std::string& path) {
  std::map<std::string, std::string> roots;
  std::istringstream lines(read_file(path));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind, id, tier, root;
    if (words >> kind >> id >> tier >> root && kind == "case") roots[id] = root;
  }
  return roots;
}

enum class Mode { kRun, kCertify, kSupport };

int run(const Arguments& a, Mode mode) {
  const bool certify = mode == Mode::kCertify;
  if (a.engine.empty()) fail("--engine", "value", "cpu, cuda or PATH[:configuration]", "none");
  if (a.paths.empty()) fail("kdtr-conform", "fixtures", "files or folders", "none");
  const std::vector<std::string> found = find_fixtures(a.paths);
  const std::vector<std::string> files = choose(a, found);
  std::vector<Expectation> expectations;
  if (!a.expect.empty()) expectations = load_expectations(a.expect);
  std::string lock;
  std::map<std::string, std::string> roots;
  if (certify) {
    lock = find_lock(a, files);
    if (lock.empty()) fail("certify", "LOCK that names the fixtures", "--lock FILE", "none");
    roots = read_lock(lock);
  }

  WorkerOptions options;
  options.engine = a.engine;
  options.options.repeat = a.repeat;
  options.options.graph = a.graph;
  options.options.alone = a.alone;
  options.options.invariant = a.invariant;
  options.options.support = mode == Mode::kSupport;
  options.save = a.save;
  options.python = a.python;
  if (!a.python.empty() && !a.isolate)
    fail("--no-isolate", "engine", "a library", a.engine + ", which --python runs");
  if (!a.python.empty() && ::access(a.python.c_str(), X_OK) != 0)
    fail("--python", "interpreter", "the path of a program", a.python);
  if (a.timeout > 0) options.timeout = a.timeout;
  Worker worker(options);
  std::unique_ptr<EngineHost> here;
  EngineInfo info;
  if (a.isolate) {
    info = worker.engine();
  } else {
    here = load_engine(a.engine);
    info = describe(*here);
  }
  if (!a.quiet)
    std::printf("engine %s %s (%s) on %s\n", info.name.c_str(), info.version.c_str(),
                info.build.c_str(), info.device.c_str());

  std::vector<Record> records;
  std::string lines = to_json(info).dump() + "\n";
  for (const std::string& file : files) {
    Record record = a.isolate ? worker.judge(file) : judge_file(file, *here, options);
    if (certify && !record.root.empty()) {
      const auto it = roots.find(record.id);
      if (it == roots.end() || it->second != record.root)
        restate(record, Status::kFail,
                "not the published fixture: root " + record.root + ", want " +
                    (it == roots.end() ? "none (no such case in LOCK)" : it->second));
    }
    apply(expectations, a.engine, today(), record);
    const bool loud = is_failure(record.status) || record.status == Status::kQualityWarning;
    if (mode == Mode::kSupport) {
      lines += record.json.dump() + "\n";
      records.push_back(std::move(record));
      continue;
    }
    if (!a.quiet || loud) std::fputs(record.text.c_str(), stdout);
    std::fflush(stdout);
    lines += record.json.dump() + "\n";
    records.push_back(std::move(record));
  }
  if (mode == Mode::kSupport) {
    std::fputs(support(records).c_str(), stdout);
    if (!a.json.empty()) write_file(a.json, lines);
    const int code = exit_code(records, 2);
    if (code == 2) std::fprintf(stderr, "kdtr-conform: the engine runs none of them\n");
    return code;
  }
  if (certify) std::printf("\n%s\n", table(records).c_str());
  const std::string last = summary(records), next = look_first(records);
  std::printf("%s\n", last.c_str());
  if (!next.empty()) std::printf("%s\n", next.c_str());
  const int code = exit_code(records, a.skip_code);
  if (records.empty())
    std::fprintf(stderr, "kdtr-conform: nothing ran: %zu fixtures found, none chosen\n",
                 found.size());
  lines += Json(Json::Object{{"kind", "summary"}, {"text", last}, {"exit", code}}).dump() + "\n";
  if (!a.json.empty()) write_file(a.json, lines);
  if (!a.junit.empty()) write_file(a.junit, junit(records, a.engine));
  if (certify) {
    const Json statement = certificate(info, records, lock);
    if (!a.out.empty()) {
      write_file(a.out + "/certificate.json", statement.dump() + "\n");
      write_file(a.out + "/results.jsonl", lines);
      std::printf("certificate: %s/certificate.json\n", a.out.c_str());
    }
  }
  return code;
}

int list(const Arguments& a) {
  const std::vector<std::string> files = choose(a, find_fixtures(a.paths));
  int broken = 0;
  for (const std::string& file : files) {
    try {
      const Fixture f = load_fixture(file);
      std::string flags;
      for (const std::string& flag : f.flags) flags += (flags.empty() ? "" : ",") + flag;
      std::printf("%s\t%s\t%s\t%s\n", f.id().c_str(), f.tier.c_str(),
                  flags.empty() ? "-" : flags.c_str(), f.catches.c_str());
    } catch (const Error& e) {
      ++broken;
      std::fprintf(stderr, "%s\n", e.what());
    }
  }
  if (files.empty()) std::fprintf(stderr, "kdtr-conform: no fixture found\n");
  return files.empty() ? 2 : broken != 0 ? 1 : 0;
}

int score(const Arguments& a) {
  ScoreOptions options;
  options.library = a.mutants.empty() ? resolve_engine("mutants").library
                                      : std::filesystem::absolute(a.mutants).string();
  options.jobs = a.jobs;
  if (a.timeout > 0) options.timeout = a.timeout;
  std::vector<std::string> there;
  for (const std::string& path : a.paths) {
    if (std::filesystem::exists(path)) {
      there.push_back(path);
    } else {
      std::fprintf(stderr, "kdtr-conform: %s: no such file or folder, left out\n", path.c_str());
    }
  }
  const Score result = score_mutants(options, choose(a, find_fixtures(there)));
  std::fputs(result.text.c_str(), stdout);
  if (!a.json.empty()) write_file(a.json, result.json.dump() + "\n");
  if (!a.md.empty()) write_file(a.md, result.markdown);
  return result.exit;
}

int dispatch(const Arguments& a) {
  if (a.command == "list") return list(a);
  if (a.command == "run") return run(a, Mode::kRun);
  if (a.command == "certify") return run(a, Mode::kCertify);
  if (a.command == "support") return run(a, Mode::kSupport);
  if (a.command == "score") return score(a);
  if (a.command == "vectors") return judge_vectors(a.paths.empty() ? "" : a.paths[0]);
  if (a.command == "worker") {
    WorkerOptions options;
    options.engine = a.engine;
    options.options.repeat = a.repeat;
    options.options.graph = a.graph;
    options.options.alone = a.alone;
    options.options.invariant = a.invariant;
    options.options.support = a.support;
    options.save = a.save;
    return serve(options, a.fd);
  }
  const bool help = a.command == "--help" || a.command == "-h" || a.command == "help";
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int code = dispatch(parse(argc, argv));
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    fail("standard output", "cannot be written");  // a full disk
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kdtr-conform: %s\n", e.what());
    return 2;
  }
}
