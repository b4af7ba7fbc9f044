// Runs one case on one engine and gives the verdict: the one door for every front end.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compare.h"
#include "engine_host.h"
#include "fixture.h"

namespace kdtr::conform {

enum class Status {
  kPass,
  kQualityWarning,  // within the hard budget, above the gate: passes
  kFail,
  kNotSupported,  // the engine says so, with its reason
  kSkip,          // this machine lacks the engine's device: recorded, never a pass
  kXfail,
  kXpass,  // expected to fail and did not: fails
  kWaived,
  kVacuous,  // nothing was checked: fails
  kCrash,
  kTimeout,
  kInternalError,
};
const char* status_name(Status status);
bool is_failure(Status status);

struct Options {
  int repeat = 0;             // further runs, which must give the same bits
  bool diagnose = true;       // look for the cause of a failure
  bool memory_checks = true;  // false: run once, outputs only (for scoring)
  bool graph = false;         // capture with other inputs, replay twice: bits must not change
  bool alone = false;         // run requests of a batch alone too: they must pass ...
  bool invariant = false;     // ... and with the same bits
  bool keep_outputs = false;  // `actual` after a pass too
  bool support = false;       // only ask whether the engine runs it; PASS means that it does
  bool wide = false;          // class B outputs as f64, judged at 2^-40: the second reference
};

// Outputs as the engine left them, by argument.
using Outputs = std::map<std::string, std::vector<std::byte>>;

struct Result {
  std::string id, path;  // "tree_build@1/one_node" (or the path when the file is broken)
  std::string tier, flags, catches, arith, digest;
  Status status = Status::kInternalError;
  // What is wrong, most telling first: one line each. For a status without comparisons, why.
  std::vector<std::string> findings;
  std::vector<std::string> diagnosis;  // "equals `insertion_order_ties`"
  std::vector<Comparison> outputs;
  std::vector<std::string> unchecked;  // outputs that the engine does not write
  double worst_gate = 0, worst_hard = 0;
  double seconds = 0;
  Outputs actual;            // after a failure
  bool engine_lost = false;  // the device can no longer be used: start a new process
};

// Never throws for a fault of the engine; throws kdtr::Error for one of the fixture.
Result run_case(const Fixture& fixture, EngineHost& engine, const Options& options = {});

// The verdict on outputs that are already there. `unwritten` maps an output to whether each
// element still holds its poison; may be empty.
Result judge_outputs(const Fixture& fixture, const Outputs& outputs, const Options& options = {},
                     const std::map<std::string, std::vector<bool>>& unwritten = {});

}  // namespace kdtr::conform
