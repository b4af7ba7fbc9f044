// Flag `membership`: attention outputs that read out which keys each node sees.
//
// All visible scores are equal and V is made of indicator columns, so out[r, i, h, c] times the
// number of visible keys counts the visible keys that column c names. A count that is off names
// the key. Works on the arguments of verify_attn.
#pragma once

#include <string>
#include <vector>

#include "judge.h"

namespace kdtr::conform {

// "node 7 of request 1 sees key 4093, which it must not (tree row 3)" ..., or nothing.
std::vector<std::string> check_membership(const Fixture& fixture, const Outputs& outputs);

}  // namespace kdtr::conform
