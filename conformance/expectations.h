// Known failures: a text file that says which cases may fail, for which engine and until when.
//
//   # status  case pattern              engine pattern  ...
//   xfail     tree_build@1/tie_*        *mutants*       why
//   waive     verify_attn@1/far_page    cuda            2027-01-31 https://example.org/issues/7
#pragma once

#include <string>
#include <vector>

#include "report.h"

namespace kdtr::conform {

struct Expectation {
  bool waive = false;
  std::string cases, engine, expiry, why;  // expiry "YYYY-MM-DD"
};

// Throws kdtr::Error naming the line at fault.
std::vector<Expectation> load_expectations(const std::string& path);

// FAIL to XFAIL or WAIVED, PASS to XPASS. `today` is "YYYY-MM-DD"; a waiver past its day has no
// effect but to say so.
void apply(const std::vector<Expectation>& all, const std::string& engine, const std::string& today,
           Record& record);

}  // namespace kdtr::conform
