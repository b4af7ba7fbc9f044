// Who judges the judge: every kernel with a planted fault must be rejected, null answers too, and
// the control must pass and agree with the gold as a second reference.
#pragma once

#include <string>
#include <vector>

#include "json.h"

namespace kdtr::conform {

struct ScoreOptions {
  std::string library;  // libkdtr_mutants.so
  int jobs = 2;
  double timeout = 10;  // seconds a case may take; a mutant that hangs is rejected
};

struct Score {
  std::string text;      // complaints, then "N killed, M survived"
  std::string markdown;  // the separation matrix of each op
  Json json;             // the same
  int exit = 2;
};

// Small-tier fixtures only: the others are left out. Throws kdtr::Error when the library is not
// one of mutants.
Score score_mutants(const ScoreOptions& options, const std::vector<std::string>& files);

// Judges a table of single values; prints each that is judged otherwise. Returns an exit status.
int judge_vectors(const std::string& path);

}  // namespace kdtr::conform
