// CHECK for test programs: prints what was false and goes on; `failures` is the exit status.
#pragma once

#include <cstdio>
#include <string>

inline int failures = 0;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: false: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                                 \
    }                                                                             \
  } while (false)

#define CHECK_EQ(a, b)                                                       \
  do {                                                                       \
    const auto check_a = (a);                                                \
    const auto check_b = (b);                                                \
    if (!(check_a == check_b)) {                                             \
      std::fprintf(stderr, "%s:%d: %s == %s\n", __FILE__, __LINE__, #a, #b); \
      ++failures;                                                            \
    }                                                                        \
  } while (false)

// That `text` holds `part`; prints both when it does not.
inline void check_has(const char* file, int line, const std::string& text,
                      const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  std::fprintf(stderr, "%s:%d: want \"%s\" in:\n%s\n", file, line, part.c_str(), text.c_str());
  ++failures;
}
#define CHECK_HAS(text, part) check_has(__FILE__, __LINE__, text, part)
