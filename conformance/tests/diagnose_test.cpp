// Each hypothesis about a wrong output is found when it holds, and only then.
#include "diagnose.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "check.h"
#include "fixture.h"
#include "kdtr/tensor.h"
#include "tiny.h"
#include "value.h"

namespace {

using namespace kdtr::conform;

// What is said when `y` (exact) or `z` (budget) is changed by `change`.
std::string said(const char* output, const std::function<float(float, std::size_t)>& change,
                 const std::vector<float>& x = {1, 2, 3, 4, 5, 6, 7},
                 const std::function<void(tiny::Tiny&)>& prepare = {}) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("kdtr_diagnose_test_" + std::to_string(::getpid()) + ".kdtr"))
                               .string();
  tiny::Tiny t;
  t.x = x;
  t.fill();
  if (prepare) prepare(t);
  CHECK(t.save(path) == kdtr::Code::ok);
  const Fixture fixture = load_fixture(path);
  std::filesystem::remove(path);
  std::vector<float> y = t.y, z;
  for (const double v : t.z) z.push_back(static_cast<float>(v));
  std::vector<float>& changed = *output == 'y' ? y : z;
  const std::vector<float> before = changed;
  for (std::size_t i = 0; i < changed.size(); ++i) changed[i] = change(before[i], i);
  const auto bytes = [](const std::vector<float>& v) {
    const auto s = std::as_bytes(std::span(v));
    return std::vector<std::byte>(s.begin(), s.end());
  };
  std::string text;
  for (const auto& line : judge_outputs(fixture, {{"y", bytes(y)}, {"z", bytes(z)}}).diagnosis)
    text += line + "; ";
  return text;
}

}  // namespace

int main() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK_EQ(said("y", [](float v, auto) { return v; }), std::string());
  CHECK_HAS(said("y", [](float v, auto) { return -v; }), "equals `negated`");
  CHECK_HAS(said("y", [](float, auto) { return 0.0f; }), "`y` is all zeros");
  CHECK_HAS(said("y", [](float, auto) { return 3.0f; }), "`y` is 3 everywhere");
  CHECK_HAS(said("z", [](float v, auto) { return v * 3; }), "`z` is the right value times 3");
  CHECK_HAS(said("z", [](float v, auto) { return v + 5; }), "`z` is the right value plus 5");
  CHECK_HAS(said("z", [](float v, auto) { return static_cast<float>(v / std::numbers::ln2); }),
            "`z` is in base 2: times ln 2 it is right");
  CHECK_HAS(said("z", [](float v, auto) { return static_cast<float>(v * std::numbers::ln2); }),
            "`z` was multiplied by ln 2");
  CHECK_HAS(said("y", [](float v, auto i) { return i < 6 ? v + 2 : 0; }),
            "`y` is shifted: element i holds the value of i + 1");
  CHECK_HAS(said("y", [](float v, auto i) { return i > 0 ? v - 2 : 99; }),
            "`y` is shifted: element i holds the value of i - 1");
  CHECK_HAS(said("y", [](float v, auto i) { return i == 6 ? v + 1 : v; }),
            "`y`: all at N=6 (the last)");
  CHECK_HAS(said("y", [](float v, auto i) { return i == 2 || i == 4 ? std::nanf("") : v; }),
            "2 of the wrong elements of `y` are nan");
  const std::vector<float> fine{1.001f, -2.003f, 3.007f, 4.1f, 5.3f, 6.7f, 7.9f};
  CHECK_HAS(said(
                "y", [](float v, auto) { return static_cast<float>(kdtr::bf16(v)); }, fine),
            "`y` was rounded to bf16");
  CHECK_HAS(said(
                "y", [](float v, auto) { return static_cast<float>(kdtr::f16(v)); }, fine),
            "`y` was rounded to f16");
  const std::vector<float> infinite{1, -kInfinity, kInfinity, 4, 5, 6, 7};
  CHECK_HAS(said(
                "y", [](float v, auto) { return std::isinf(v) ? -v : v; }, infinite),
            "`y` has +inf and -inf exchanged");
  const std::vector<float> tiny_values{1, 0x1p-140f, -0x1p-130f, 4, 5, 6, 7};
  CHECK_HAS(said(
                "y", [](float v, auto) { return std::fabs(v) < 0x1p-126f ? 0 : v; }, tiny_values),
            "`y` has denormals flushed to zero");
  const std::vector<float> zeros{1, 0, 3, 4, 5, 6, 7};
  CHECK_HAS(said(
                "y", [](float v, auto i) { return i == 1 ? -0.0f : v; }, zeros),
            "`y` differs in the sign of zero only; ");
  CHECK(said(
            "y", [](float v, auto i) { return i == 1 ? -0.0f : v; }, zeros)
            .find("rounded") == std::string::npos);
  CHECK_HAS(
      said("y", [](float v, auto) { return std::bit_cast<float>(static_cast<std::int32_t>(v)); }),
      "`y` holds bits of i32: read as such it is right");
  const auto bits = [](float v) { return std::bit_cast<std::uint32_t>(v) >> 16; };  // of its bf16
  CHECK_HAS(said("y",
                 [&](float, std::size_t i) {
                   const auto at = [&](std::size_t k) {
                     return k < 7 ? bits(2 * static_cast<float>(k + 1)) : 0u;
                   };
                   return std::bit_cast<float>(at(2 * i) | at(2 * i + 1) << 16);
                 }),
            "`y` holds packed bf16: read as such it is right");
  // A known-wrong result is recognised, within a budget, where the right one has none.
  const auto without_budget = [](tiny::Tiny& t) {
    t.gate[2] = t.hard[2] = 0;
    std::vector<double> wrong = t.z;
    wrong[2] = 7.25;
    t.change = [wrong](kdtr::ContainerWriter& w) {
      w.tensor("wrong/kept/z", kdtr::kF64, {wrong.size()}, std::as_bytes(std::span(wrong)));
      w.tensor_meta("wrong/kept/z", "role", "known_wrong");
      w.tensor_meta("wrong/kept/z", "for", "z");
    };
  };
  const std::vector<float> ones{1, 2, 3, 4, 5, 6, 7};
  const auto kept = [](float by) {
    return [by](float v, std::size_t i) { return i == 2 ? 7.25f + by : v; };
  };
  CHECK_HAS(said("z", kept(0x1p-12f), ones, without_budget), "equals `kept`");
  CHECK(said("z", kept(0x1p-8f), ones, without_budget).find("kept") == std::string::npos);
  // One wrong element fits no hypothesis about all of them.
  CHECK_EQ(said("y", [](float v, auto i) { return i == 3 ? v * 2 : v; }),
           std::string("`y`: all at N=3; "));
  return failures == 0 ? 0 : 1;
}
