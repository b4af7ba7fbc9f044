#include "expectations.h"

#include <fnmatch.h>

#include <sstream>

#include "kdtr/error.h"

namespace kdtr::conform {
namespace {

bool matches(const std::string& pattern, const std::string& text) {
  return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

bool is_date(const std::string& text) {
  return text.size() == 10 &&
         ::fnmatch("[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]", text.c_str(), 0) == 0;
}

}  // namespace

std::vector<Expectation> load_expectations(const std::string& path) {
  std::vector<Expectation> all;
  std::istringstream lines(read_file(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string status;
    if (!(words >> status) || status[0] == '#') continue;
    const std::string where = path + ":" + std::to_string(number);
    Expectation e;
    e.waive = status == "waive";
    if (!e.waive && status != "xfail") fail(where, "status", "xfail or waive", status);
    words >> e.cases >> e.engine;
    if (e.waive && (!(words >> e.expiry) || !is_date(e.expiry)))
      fail(where, "expiry of a waiver", "YYYY-MM-DD", e.expiry);
    std::getline(words >> std::ws, e.why);
    if (e.why.empty()) fail(where, e.waive ? "issue link" : "reason", "one", "none");
    if (e.waive && e.why.find("://") == std::string::npos)
      fail(where, "issue link of a waiver", "a URL", e.why);
    all.push_back(std::move(e));
  }
  return all;
}

void apply(const std::vector<Expectation>& all, const std::string& engine, const std::string& today,
           Record& r) {
  for (const Expectation& e : all) {
    if (!matches(e.cases, r.id) || !matches(e.engine, engine)) continue;
    const bool failed = is_failure(r.status) && r.status != Status::kInternalError;
    const bool passed = r.status == Status::kPass || r.status == Status::kQualityWarning;
    if (e.waive && failed) {
      if (today <= e.expiry) {
        restate(r, Status::kWaived, "until " + e.expiry + ": " + e.why);
      } else {
        restate(r, r.status, "the waiver ended on " + e.expiry + ": " + e.why);
      }
    } else if (!e.waive && failed) {
      restate(r, Status::kXfail, e.why);
    } else if (!e.waive && passed) {
      restate(r, Status::kXpass, "expected to fail, and passed: " + e.why);
    }
    return;
  }
}

}  // namespace kdtr::conform
