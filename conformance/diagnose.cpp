#include "diagnose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <ranges>

#include "value.h"

namespace kdtr::conform {
namespace {

// One failing output, with the elements as numbers.
struct Failed {
  const Comparison& comparison;
  const Want& want;
  std::span<const std::byte> got;

  std::int64_t n() const { return comparison.elements; }
  double value(std::int64_t i) const { return number(want.actual, got, i); }
  double gold(std::int64_t i) const { return number(want.dtype, want.data, i); }
  static double number(DLDataType t, std::span<const std::byte> data, std::int64_t i) {
    const std::uint64_t bits = bits_at(t, data.data(), i);
    return is_float(t) ? float_from(t, bits) : static_cast<double>(int_from(t, bits));
  }
  // Whether `value` would be a right answer at element i.
  bool right(std::int64_t i, double value) const {
    const auto at = static_cast<std::size_t>(i);
    if (want.judged == 'B') {
      // Room for one rounding of the hypothesis itself.
      const double hard = static_cast<double>(want.hard[at]);
      return judge_element(value, gold(i), hard, hard) == Verdict::kPass;
    }
    return value == gold(i) || (std::isnan(value) && std::isnan(gold(i)));
  }
};

// Whether `change(got)` makes every element right. Some element must be wrong as it is.
template <class F>
bool fixes(const Failed& f, F&& change) {
  for (std::int64_t i = 0; i < f.n(); ++i)
    if (!f.right(i, change(f.value(i), i))) return false;
  return true;
}

// Budgets under which a known-wrong result is recognised. Where the right answer has none, as in
// the rows of a refused request, the wrong one has the greatest of its output.
std::vector<float> lenient(const Want& want, std::span<const std::byte> wrong) {
  std::vector<float> hard(want.hard.begin(), want.hard.end());
  const float most = hard.empty() ? 0 : *std::max_element(hard.begin(), hard.end());
  for (std::size_t i = 0; i < hard.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const bool told =
        bits_at(want.dtype, want.data.data(), at) != bits_at(want.dtype, wrong.data(), at);
    if (told && hard[i] == 0) hard[i] = most;
  }
  return hard;
}

bool matches_wrong(const Fixture& fixture, const KnownWrong& known, const Outputs& outputs) {
  bool any = false;
  for (const auto& [output, tensor] : known.outputs) {
    const auto it = outputs.find(output);
    if (it == outputs.end()) continue;  // the engine does not write it
    const Expected* expected = fixture.expected_for(output);
    Want want = expected->want;
    std::vector<float> hard;
    if (want.judged == 'B') {
      hard = lenient(want, tensor.data);
      want.gate = want.hard = hard;
    }
    want.data = tensor.data;
    // Outputs on which right and wrong agree tell nothing, but must hold all the same.
    if (compare(output, want, it->second).mismatches != 0) return false;
    any = any || !std::equal(tensor.data.begin(), tensor.data.end(), expected->want.data.begin(),
                             expected->want.data.end());
  }
  return any;
}

// Fewer digits than a value: a factor found from one element carries that element's rounding.
std::string multiple(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

void generic(const Failed& f, std::vector<std::string>& out) {
  const std::string name = "`" + f.comparison.output + "`";
  const std::int64_t n = f.n();
  if (n == 0) return;
  const auto all = [&](auto&& test) {
    for (std::int64_t i = 0; i < n; ++i)
      if (!test(i)) return false;
    return true;
  };
  if (all([&](auto i) { return f.value(i) == 0; })) {
    out.push_back(name + " is all zeros");
    return;
  }
  if (n > 1 && f.want.actual.bits <= 64) {
    const std::uint64_t first = bits_at(f.want.actual, f.got.data(), 0);
    if (all([&](auto i) { return bits_at(f.want.actual, f.got.data(), i) == first; })) {
      out.push_back(name + " is " + show(f.want.actual, first) + " everywhere");
      return;
    }
  }
  const bool is_real = is_float(f.want.actual);
  if (is_real && f.want.judged == 'E' && all([&](auto i) { return f.value(i) == f.gold(i); })) {
    out.push_back(name + " differs in the sign of zero only");
    return;
  }
  std::int64_t nans = 0;
  if (is_real)
    for (const std::int64_t i : f.comparison.where) nans += std::isnan(f.value(i)) ? 1 : 0;
  if (nans != 0)
    out.push_back(std::to_string(nans) + " of the wrong elements of " + name + " are nan");
  if (is_real && fixes(f, [&](double v, std::int64_t i) {
        return std::isinf(v) && std::isinf(f.gold(i)) ? -v : v;
      }))
    out.push_back(name + " has +inf and -inf exchanged");
  if (is_real && fixes(f, [&](double v, std::int64_t) { return v * std::numbers::ln2; }))
    out.push_back(name + " is in base 2: times ln 2 it is right");
  if (is_real && fixes(f, [&](double v, std::int64_t) { return v / std::numbers::ln2; }))
    out.push_back(name + " was multiplied by ln 2: divided by it it is right");
  if (fixes(f, [&](double v, std::int64_t) { return -v; }))
    out.push_back(name + " has the wrong sign everywhere");
  // A constant factor or offset, taken from the largest expected value.
  std::int64_t largest = -1;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::isfinite(f.gold(i)) && std::isfinite(f.value(i)) &&
        (largest < 0 || std::fabs(f.gold(i)) > std::fabs(f.gold(largest))))
      largest = i;
  if (largest >= 0 && n > 2) {
    const double v = f.value(largest), w = f.gold(largest);
    if (is_real && v != 0 && w != 0 && v != w) {
      const double factor = v / w;
      if (fixes(f, [&](double x, std::int64_t) { return x / factor; }))
        out.push_back(name + " is the right value times " + multiple(factor));
    }
    const double offset = v - w;
    if (offset != 0 && fixes(f, [&](double x, std::int64_t i) {
          return std::isfinite(f.gold(i)) ? x - offset : x;
        }))
      out.push_back(name + " is the right value plus " + multiple(offset));
  }
  // The right values in the bits of another type: of the same width, or packed in half of it.
  const bool flat = all([&](auto i) { return f.gold(i) == f.gold(0); });
  const std::pair<DLDataType, const char*> types[] = {
      {dtype_of<bf16>, "bf16"},  {dtype_of<f16>, "f16"},          {dtype_of<float>, "f32"},
      {dtype_of<double>, "f64"}, {dtype_of<std::int32_t>, "i32"}, {dtype_of<std::int64_t>, "i64"},
  };
  for (const auto& [type, label] : types) {
    if (flat || same(type, f.want.actual) || type.bits > f.want.actual.bits) continue;
    if (fixes(f, [&](double, std::int64_t i) { return Failed::number(type, f.got, i); }))
      out.push_back(name +
                    (type.bits == f.want.actual.bits ? " holds bits of " : " holds packed ") +
                    label + ": read as such it is right");
  }
  // Shifted along the flat order. Constant tensors fit any shift, so something must vary.
  for (const std::int64_t shift : {1, -1}) {
    bool varies = false, shifted = n > 2;
    for (std::int64_t i = 0; i < n && shifted; ++i) {
      const std::int64_t from = i + shift;
      if (from < 0 || from >= n) continue;
      shifted = f.right(i, f.value(from));
      varies = varies || f.gold(i) != f.gold(0);
    }
    if (shifted && varies)
      out.push_back(name + " is shifted: element i holds the value of i " +
                    (shift > 0 ? "- 1" : "+ 1"));
  }
  // Low precision: every value lies on a coarser grid and is the nearest one there.
  if (is_real && f.want.actual.bits > 16) {
    const std::pair<DLDataType, const char*> grids[] = {{dtype_of<bf16>, "bf16"},
                                                        {dtype_of<f16>, "f16"}};
    for (const auto& [grid, label] : grids) {
      if (all([&](auto i) {
            const double w = f.gold(i), v = f.value(i);
            if (std::isnan(w) || std::isnan(v)) return std::isnan(w) && std::isnan(v);
            return float_from(grid, round_to(grid, w)) == v;
          }))
        out.push_back(name + " was rounded to " + label);
    }
    if (!is<float>(f.want.actual) && all([&](auto i) {
          return static_cast<double>(static_cast<float>(f.gold(i))) == f.value(i);
        }))
      out.push_back(name + " was rounded to f32");
  }
  if (is_real && fixes(f, [&](double v, std::int64_t i) {
        return v == 0 && std::fabs(f.gold(i)) < 0x1p-126 ? f.gold(i) : v;
      }))
    out.push_back(name + " has denormals flushed to zero");
}

// Ids that stand for equal logits in another order than the op's.
void ties(const Fixture& fixture, const Failed& f, std::vector<std::string>& out) {
  const Argument* logits = fixture.argument("logits");
  if (logits == nullptr || f.comparison.output != "ids" || !is_integer(f.want.actual)) return;
  const std::int64_t vocabulary = logits->shape.empty() ? 0 : logits->shape.back();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < logits->shape.size(); ++i) rows *= logits->shape[i];
  if (rows == 0 || vocabulary == 0 || f.n() % rows != 0) return;
  for (const std::int64_t i : f.comparison.where) {
    const auto got = static_cast<std::int64_t>(f.value(i));
    const auto want = static_cast<std::int64_t>(f.gold(i));
    if (std::min(got, want) < 0 || std::max(got, want) >= vocabulary) return;
    const std::int64_t row = i / (f.n() / rows) * vocabulary;
    const std::byte* data = logits->initial.data();
    if (float_at(logits->dtype, data, row + got) != float_at(logits->dtype, data, row + want))
      return;
  }
  out.push_back("`ids`: every wrong id has the wanted id's logit: the order of ties");
}

}  // namespace

std::vector<std::string> diagnose(const Fixture& fixture, const std::vector<Comparison>& failed,
                                  const Outputs& outputs,
                                  const std::map<std::string, std::vector<bool>>& unwritten) {
  std::vector<std::string> out;
  for (const KnownWrong& known : fixture.wrong)
    if (matches_wrong(fixture, known, outputs)) out.push_back("equals `" + known.label + "`");
  for (const Comparison& c : failed) {
    if (c.mismatches == 0) continue;
    const auto it = outputs.find(c.output);
    const Expected* expected = fixture.expected_for(c.output);
    if (it == outputs.end() || expected == nullptr) continue;
    const auto marks = unwritten.find(c.output);
    if (marks != unwritten.end()) {
      const auto count = std::count(marks->second.begin(), marks->second.end(), true);
      if (count == c.elements) {
        out.push_back("`" + c.output + "` was never written");
        continue;
      }
      if (count != 0) {
        const bool only = std::all_of(c.where.begin(), c.where.end(), [&](std::int64_t i) {
          return marks->second[static_cast<std::size_t>(i)];
        });
        out.push_back(std::to_string(count) + " elements of `" + c.output + "` were never written" +
                      (only ? "; all the others are right" : ""));
      }
    }
    const Failed one{c, expected->want, it->second};
    const auto stored = [&](std::int64_t i) { return one.value(i) == one.gold(i); };
    if (!expected->given.empty() &&
        std::ranges::all_of(std::views::iota(std::int64_t{0}, one.n()), stored)) {
      out.push_back("`" + c.output + "` is as stored, but not what the outputs beside it give (" +
                    expected->given + "): look at those");
      continue;
    }
    ties(fixture, one, out);
    generic(one, out);
    for (const std::string& where : concentration(c, expected->want.shape, fixture.axes(c.output)))
      out.push_back("`" + c.output + "`: " + where);
  }
  return out;
}

}  // namespace kdtr::conform
