#include "compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "value.h"

namespace kdtr::conform {
namespace {

double ratio(double error, double bound) {
  if (error == 0) return 0;
  const double r = error / bound;
  return std::isnan(r) ? kInfinite : r;
}

Mismatch describe(const Want& want, std::span<const std::byte> got, std::int64_t i) {
  Mismatch m;
  m.at = i;
  m.index = unflatten(i, want.shape);
  const std::uint64_t g = bits_at(want.actual, got.data(), i);
  m.got = show(want.actual, g);
  m.got_bits = show_bits(want.actual, g);
  const std::uint64_t stored = bits_at(want.dtype, want.data.data(), i);
  m.want = show(want.dtype, stored);
  std::uint64_t w = stored;
  if (is_float(want.actual) && is_float(want.dtype)) {
    const double gold = float_from(want.dtype, stored);
    if (!same(want.dtype, want.actual)) w = round_to(want.actual, gold);
    const double value = float_from(want.actual, g);
    if (!std::isnan(gold) && !std::isnan(value)) m.ulp = ulps(want.actual, g, w);
    m.error = std::fabs(value - gold);
  }
  m.want_bits = show_bits(want.actual, w);
  if (want.judged == 'B') {
    m.gate = static_cast<double>(want.gate[static_cast<std::size_t>(i)]);
    m.hard = static_cast<double>(want.hard[static_cast<std::size_t>(i)]);
  }
  return m;
}

// The most telling failure: the greatest error over its hard bound; the first when equal.
void note(Comparison& c, std::int64_t i, double badness, double& greatest, std::int64_t& at) {
  c.where.push_back(i);
  if (at < 0 || badness > greatest) {
    greatest = badness;
    at = i;
  }
}

}  // namespace

Verdict judge_element(double got, double gold, double gate, double hard) {
  if (std::isnan(gold)) return std::isnan(got) ? Verdict::kPass : Verdict::kFail;
  if (std::isinf(gold)) return got == gold ? Verdict::kPass : Verdict::kFail;
  const double error = std::fabs(got - gold);
  if (!(error <= hard)) return Verdict::kFail;
  return error <= gate ? Verdict::kPass : Verdict::kWarn;
}

std::vector<std::int64_t> unflatten(std::int64_t at, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = at % shape[axis];
    at /= shape[axis];
  }
  return index;
}

Comparison compare(const std::string& output, const Want& want, std::span<const std::byte> got) {
  Comparison c;
  c.output = output;
  c.judged = want.judged;
  c.shape = want.shape;
  c.elements = 1;
  for (const std::int64_t n : want.shape) c.elements *= n;
  double greatest = 0, warned = 0;
  std::int64_t worst = -1, worst_warning = -1, first_warning = -1;

  if (want.judged == 'B') {
    for (std::int64_t i = 0; i < c.elements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double value = float_at(want.actual, got.data(), i);
      const double gold = float_at(want.dtype, want.data.data(), i);
      const auto gate = static_cast<double>(want.gate[at]);
      const auto hard = static_cast<double>(want.hard[at]);
      const Verdict verdict = judge_element(value, gold, gate, hard);
      double over_gate = 0, over_hard = 0;
      if (std::isfinite(gold)) {
        over_gate = ratio(std::fabs(value - gold), gate);
        over_hard = ratio(std::fabs(value - gold), hard);
      } else if (verdict == Verdict::kFail) {
        over_gate = over_hard = kInfinite;
      }
      c.worst_gate = std::max(c.worst_gate, over_gate);
      c.worst_hard = std::max(c.worst_hard, over_hard);
      if (std::isfinite(gold) && std::isfinite(value)) {
        const std::uint64_t apart =
            ulps(want.actual, bits_at(want.actual, got.data(), i), round_to(want.actual, gold));
        const auto bin = static_cast<std::size_t>(apart == 0 ? 0 : std::bit_width(apart - 1) + 1);
        if (c.steps.size() <= bin) c.steps.resize(bin + 1);
        ++c.steps[bin];
      }
      if (verdict == Verdict::kFail) {
        note(c, i, over_hard, greatest, worst);
      } else if (verdict == Verdict::kWarn) {
        ++c.warnings;
        if (first_warning < 0) first_warning = i;
        if (worst_warning < 0 || over_gate > warned) {
          warned = over_gate;
          worst_warning = i;
        }
      }
    }
  } else if (want.judged == 'S') {
    const std::int64_t ids =
        c.elements == 0 ? 0 : static_cast<std::int64_t>(want.allowed.size()) / c.elements;
    for (std::int64_t i = 0; i < c.elements; ++i) {
      const auto row =
          want.allowed.subspan(static_cast<std::size_t>(i * ids), static_cast<std::size_t>(ids));
      const std::int64_t id = int_from(want.actual, bits_at(want.actual, got.data(), i));
      // Nothing allowed means a pad: then the expected value is the one answer.
      const bool pad = std::none_of(row.begin(), row.end(), [](auto a) { return a != 0; });
      bool ok =
          pad ? bits_at(want.actual, got.data(), i) == bits_at(want.dtype, want.data.data(), i)
              : id >= 0 && id < ids && row[static_cast<std::size_t>(id)] != 0;
      // Sets that overlap would take one id in the place of several.
      if (!pad && want.distinct && !want.shape.empty())
        for (std::int64_t j = i - i % want.shape.back(); j < i; ++j)
          ok = ok && int_from(want.actual, bits_at(want.actual, got.data(), j)) != id;
      if (!ok) note(c, i, 1, greatest, worst);
    }
  } else if (c.elements != 0 &&
             std::memcmp(want.data.data(), got.data(), byte_size(want.actual, c.elements)) != 0) {
    for (std::int64_t i = 0; i < c.elements; ++i) {
      const std::uint64_t g = bits_at(want.actual, got.data(), i);
      const std::uint64_t w = bits_at(want.dtype, want.data.data(), i);
      if (g == w && want.actual.bits <= 64) continue;
      if (want.actual.bits > 64) {
        const std::size_t size = want.actual.bits / 8u, from = static_cast<std::size_t>(i) * size;
        if (std::memcmp(got.data() + from, want.data.data() + from, size) == 0) continue;
      }
      double badness = 1;
      if (is_float(want.actual)) {
        const double a = float_from(want.actual, g), b = float_from(want.dtype, w);
        if (want.nan == NanRule::kAny && std::isnan(a) && std::isnan(b)) continue;
        badness = std::isnan(a - b) ? kInfinite : std::fabs(a - b);
      } else if (is_integer(want.actual)) {
        badness = std::fabs(static_cast<double>(int_from(want.actual, g)) -
                            static_cast<double>(int_from(want.actual, w)));
      }
      note(c, i, badness, greatest, worst);
    }
  }
  c.mismatches = static_cast<std::int64_t>(c.where.size());
  if (want.judged != 'B' && c.mismatches != 0) c.worst_gate = c.worst_hard = kInfinite;
  if (worst >= 0) {
    c.first = describe(want, got, c.where.front());
    c.worst = describe(want, got, worst);
  } else if (worst_warning >= 0) {
    c.first = describe(want, got, first_warning);
    c.worst = describe(want, got, worst_warning);
  }
  return c;
}

std::vector<std::vector<std::int64_t>> heat(const Comparison& c, std::int64_t rows,
                                            std::int64_t columns) {
  if (c.where.empty()) return {};
  const std::int64_t width = c.shape.empty() ? 1 : c.shape.back(), height = c.elements / width;
  rows = std::min(rows, height);
  columns = std::min(columns, width);
  std::vector<std::vector<std::int64_t>> counts(
      static_cast<std::size_t>(rows), std::vector<std::int64_t>(static_cast<std::size_t>(columns)));
  for (const std::int64_t at : c.where) {
    const std::int64_t row = at / width * rows / height, column = at % width * columns / width;
    ++counts[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)];
  }
  return counts;
}

std::vector<std::string> concentration(const Comparison& c, std::span<const std::int64_t> shape,
                                       std::span<const std::string> axes) {
  std::vector<std::string> found;
  if (c.where.empty() || c.mismatches == c.elements || shape.empty()) return found;
  const auto name = [&](std::size_t axis) {
    const bool known = axis < axes.size() && !axes[axis].empty();
    return known ? axes[axis] : "axis " + std::to_string(axis);
  };
  std::string fixed;
  std::int64_t stride = 1;
  std::vector<std::int64_t> strides(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::int64_t size = shape[axis];
    if (size < 2) continue;
    std::vector<std::int64_t> count(static_cast<std::size_t>(size));
    for (const std::int64_t at : c.where)
      ++count[static_cast<std::size_t>(at / strides[axis] % size)];
    std::vector<std::int64_t> hit;
    for (std::int64_t i = 0; i < size; ++i)
      if (count[static_cast<std::size_t>(i)] != 0) hit.push_back(i);
    if (hit.size() == 1) {
      if (!fixed.empty()) fixed += ", ";
      fixed += name(axis) + "=" + std::to_string(hit[0]);
      if (hit[0] == size - 1) fixed += " (the last)";
      continue;
    }
    if (hit.size() == static_cast<std::size_t>(size)) continue;
    const bool tail = hit.back() == size - 1 &&
                      hit.back() - hit.front() + 1 == static_cast<std::int64_t>(hit.size());
    if (tail) {
      found.push_back("all at " + name(axis) + " >= " + std::to_string(hit.front()));
      continue;
    }
    for (const std::int64_t period : {128, 64, 32, 16, 8}) {
      if (size <= period || hit.size() < 2) continue;
      const std::int64_t phase = hit[0] % period;
      if (std::all_of(hit.begin(), hit.end(), [&](auto i) { return i % period == phase; })) {
        found.push_back("all at " + name(axis) + " = " + std::to_string(phase) + " mod " +
                        std::to_string(period));
        break;
      }
    }
  }
  if (!fixed.empty()) found.insert(found.begin(), "all at " + fixed);
  return found;
}

}  // namespace kdtr::conform
