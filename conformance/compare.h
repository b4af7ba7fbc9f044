// Judges one output against its expected value: exact, within a budget, or one of a set.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kdtr/plugin.h"

namespace kdtr::conform {

enum class Verdict { kPass, kWarn, kFail };
enum class NanRule { kForbid, kAny, kBitwise };

// One class B element. NaN never passes by comparison: a NaN gold wants a NaN, an infinite gold
// the same infinity, anything else `|got - gold| <= hard`; above `gate` is a warning.
Verdict judge_element(double got, double gold, double gate, double hard);

struct Mismatch {
  std::int64_t at = 0;                   // flat index, C order
  std::vector<std::int64_t> index;       // the same, by axis
  std::string got, want;                 // values
  std::string got_bits, want_bits;       // on the output dtype's grid
  std::optional<std::uint64_t> ulp;      // floats other than NaN
  double error = 0, gate = 0, hard = 0;  // class B
};

struct Comparison {
  std::string output;
  char judged = 'E';
  std::int64_t elements = 0, mismatches = 0, warnings = 0;
  // Greatest error as a multiple of each bound, over elements; infinity for a NaN, an infinity or
  // an exact mismatch.
  double worst_gate = 0, worst_hard = 0;
  std::optional<Mismatch> first, worst;  // failures, else warnings
  std::vector<std::int64_t> where;       // flat indices of the failures, ascending
  std::vector<std::int64_t> shape;
  // Class B, finite elements by their distance from the rounded gold on the output's grid: how
  // many at 0, 1, 2, 3 to 4, 5 to 8, ... steps.
  std::vector<std::int64_t> steps;

  Verdict verdict() const {
    if (mismatches != 0) return Verdict::kFail;
    return warnings != 0 ? Verdict::kWarn : Verdict::kPass;
  }
};

// What an output should be. Spans are C order, contiguous, and must outlive the calls below.
struct Want {
  char judged = 'E';  // E, B or S
  NanRule nan = NanRule::kForbid;
  DLDataType dtype{};   // of `data`: the call's dtype for E and S, f64 for B
  DLDataType actual{};  // of the output in the call
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  std::span<const float> gate, hard;      // class B
  std::span<const std::uint8_t> allowed;  // class S: [numel, ids] of 0 or 1
  bool distinct = false;                  // class S: no id twice along the last axis
};

Comparison compare(const std::string& output, const Want& want, std::span<const std::byte> got);

// Where failures sit, in words: "all in R=1", "all in the last row of N", "every 32nd D".
// `axes` are names, outermost first; "" where unknown.
std::vector<std::string> concentration(const Comparison& comparison,
                                       std::span<const std::int64_t> shape,
                                       std::span<const std::string> axes);

// Failures over rows (all axes but the last, flattened) and the last axis, in at most `rows` by
// `columns` equal blocks; counts by block. Empty without a failure.
std::vector<std::vector<std::int64_t>> heat(const Comparison& comparison, std::int64_t rows = 32,
                                            std::int64_t columns = 64);

std::vector<std::int64_t> unflatten(std::int64_t at, std::span<const std::int64_t> shape);

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace kdtr::conform
