// Results as text, JSON lines, JUnit and certificates. docs/results.md describes the fields.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine_host.h"
#include "json.h"
#include "judge.h"

namespace kdtr::conform {

// A result as it crosses from the worker process: what every report needs.
struct Record {
  std::string id, path, tier, flags, arith, digest, root;
  Status status = Status::kInternalError;
  std::string why;   // the first finding
  std::string text;  // what a terminal shows
  double worst_gate = 0, worst_hard = 0, seconds = 0;
  bool engine_lost = false;
  Json json;

  std::string op() const { return id.substr(0, id.find('/')); }
};

Record make_record(const Result& result, const std::string& root, const std::string& engine);
Record make_record(const std::string& id, const std::string& path, Status status,
                   const std::string& why, const std::string& engine);
Record from_json(const Json& json);
// Give a record another status, in every form that it has.
void restate(Record& record, Status status, const std::string& why);

struct EngineInfo {
  std::string spec, name, version, profiles, build, library, sha256, device;
};
EngineInfo describe(EngineHost& engine);
Json to_json(const EngineInfo& info);
EngineInfo engine_from_json(const Json& json);

// Writes `<folder>/<op>.<case>.actual.kdtr`: the inputs, what the engine gave, and the engine.
// Returns the path. Throws kdtr::Error.
std::string save_actual(const Fixture& fixture, const Result& result, const std::string& engine,
                        const std::string& folder);

std::map<Status, int> tally(const std::vector<Record>& records);
// "41 fixtures: 38 PASS, 3 FAIL; worst passing error 0.41 of the gate, 0.02 of the hard budget"
std::string summary(const std::vector<Record>& records);
// The failing case that tells most, and the command that shows it; "" when none of several failed.
std::string look_first(const std::vector<Record>& records);
// 0 yes, 1 no, 2 could not judge. `skip_code` when every case was skipped or not supported.
int exit_code(const std::vector<Record>& records, int skip_code);

std::string junit(const std::vector<Record>& records, const std::string& engine);
// How many cases of each op an engine runs, and why not the others. PASS stands for "it does".
std::string support(const std::vector<Record>& records);
// Ops x statuses, for a terminal.
std::string table(const std::vector<Record>& records);

// An in-toto statement (test-result predicate) about one engine library. `lock` is the path of
// the LOCK file that names the fixtures.
Json certificate(const EngineInfo& engine, const std::vector<Record>& records,
                 const std::string& lock);

std::string file_sha256(const std::string& path);  // hex; "" when it cannot be read
std::string read_file(const std::string& path);    // throws kdtr::Error
void write_file(const std::string& path, const std::string& text);

}  // namespace kdtr::conform
