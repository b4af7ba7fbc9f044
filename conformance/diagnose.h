// Why an output is wrong: cheap hypotheses, tried when a case has failed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "judge.h"

namespace kdtr::conform {

// Sentences, most specific first: a known-wrong convention by name, then generic causes.
std::vector<std::string> diagnose(const Fixture& fixture, const std::vector<Comparison>& failed,
                                  const Outputs& outputs,
                                  const std::map<std::string, std::vector<bool>>& unwritten);

}  // namespace kdtr::conform
