// A request must not feel its neighbours: each is run again alone.
#pragma once

#include <string>
#include <vector>

#include "judge.h"

namespace kdtr::conform {

struct BatchCheck {
  std::vector<std::string> wrong;     // a request that is wrong alone
  std::vector<std::string> variance;  // right, but with other bits than in the batch
};

// Runs the first, the last and some other requests alone (all of them up to 8). The batch axis is
// that of `status`. Empty where an output does not lead with that axis, as in packed layouts.
// `whole` is what the engine gave for the batch.
BatchCheck check_alone(const Fixture& fixture, EngineHost& engine, const Outputs& whole);

}  // namespace kdtr::conform
