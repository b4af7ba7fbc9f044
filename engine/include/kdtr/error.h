// Errors of the host side: where, what, want, got, as one line.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace kdtr {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class Want, class Got>
[[noreturn]] void fail(const std::string& where, const std::string& what, const Want& want,
                       const Got& got) {
  std::ostringstream text;
  text << where << ": " << what << ", want " << want << ", got " << got;
  throw Error(text.str());
}

[[noreturn]] inline void fail(const std::string& where, const std::string& what) {
  throw Error(where + ": " + what);
}

}  // namespace kdtr

// Fails the call with `where: what, want ..., got ...` unless the condition holds.
#define KDTR_CHECK(condition, where, what, want, got)       \
  do {                                                      \
    if (!(condition)) ::kdtr::fail(where, what, want, got); \
  } while (false)
