// Errors of the host side: where, what, want, got, as one line.
#pragma once

#include <concepts>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kdtr {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value as text. No streams: a host process may have brought a C++ library of its own, whose
// locales they would take.
template <class T>
std::string shown(const T& value) {
  if constexpr (std::convertible_to<const T&, std::string_view>) {
    return std::string(std::string_view(value));
  } else if constexpr (std::integral<T>) {
    return std::to_string(value);
  } else {
    char text[32];
    if constexpr (std::floating_point<T>) {
      std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
    } else {
      std::snprintf(text, sizeof text, "%p", static_cast<const void*>(value));
    }
    return text;
  }
}

template <class Want, class Got>
[[noreturn]] void fail(const std::string& where, const std::string& what, const Want& want,
                       const Got& got) {
  throw Error(where + ": " + what + ", want " + shown(want) + ", got " + shown(got));
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
