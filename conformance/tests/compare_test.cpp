// The comparator: known verdicts, the counts and places it reports, and where failures sit.
#include "compare.h"

#include <bit>
#include <cmath>

#include "check.h"
#include "kdtr/tensor.h"
#include "score.h"
#include "value.h"

namespace {

using namespace kdtr::conform;
using kdtr::bf16;
using kdtr::dtype_of;
using kdtr::f16;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T>
std::span<const std::byte> bytes(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

template <class T>
Want exact(const std::vector<T>& want, std::vector<std::int64_t> shape) {
  Want w;
  w.judged = 'E';
  w.dtype = w.actual = dtype_of<T>;
  w.shape = std::move(shape);
  w.data = bytes(want);
  return w;
}

void exact_is_bytes() {
  const std::vector<std::int32_t> want{1, 2, 3, 4, 5, 6}, got{1, 2, 9, 4, 5, -6};
  const Comparison c = compare("n", exact(want, {2, 3}), bytes(got));
  CHECK_EQ(c.mismatches, 2);
  CHECK_EQ(c.elements, 6);
  CHECK(c.verdict() == Verdict::kFail);
  CHECK_EQ(c.first->index, (std::vector<std::int64_t>{0, 2}));
  CHECK_EQ(c.worst->index, (std::vector<std::int64_t>{1, 2}));  // off by 12, the first by 6
  CHECK_EQ(c.first->got, std::string("9"));
  CHECK_EQ(c.worst->got_bits, std::string("0xfffffffa"));
  CHECK_EQ(c.worst_hard, kInf);
  CHECK(compare("n", exact(want, {6}), bytes(want)).verdict() == Verdict::kPass);

  // Signed zeros and NaN payloads are different bytes.
  const std::vector<float> zero{0.0f}, minus{-0.0f};
  CHECK_EQ(compare("x", exact(zero, {1}), bytes(minus)).mismatches, 1);
  const std::vector<float> nan{kNan}, other{-kNan};
  Want w = exact(nan, {1});
  w.nan = NanRule::kBitwise;
  CHECK_EQ(compare("x", w, bytes(other)).mismatches, 1);
  w.nan = NanRule::kAny;
  CHECK_EQ(compare("x", w, bytes(other)).mismatches, 0);
  CHECK_EQ(compare("x", w, bytes(zero)).mismatches, 1);
}

void exact_sub_byte() {
  // u4, LSB first: 0x21, 0x43 = 1 2 3 4.
  const std::vector<std::uint8_t> want{0x21, 0x43}, got{0x21, 0x53};
  Want w = exact(want, {4});
  w.dtype = w.actual = {1, 4, 1};
  const Comparison c = compare("codes", w, bytes(got));
  CHECK_EQ(c.mismatches, 1);
  CHECK_EQ(c.first->at, 3);
  CHECK_EQ(c.first->got, std::string("5"));
  CHECK_EQ(c.first->want, std::string("4"));
}

void budget_reports_the_worst_element() {
  const std::vector<double> gold{1, 2, 4, -kInf};
  const std::vector<float> gate{0.25f, 0.25f, 0.25f, 0}, hard{1, 1, 1, 0};
  Want w;
  w.judged = 'B';
  w.dtype = dtype_of<double>;
  w.actual = dtype_of<float>;
  w.shape = {4};
  w.data = bytes(gold);
  w.gate = gate;
  w.hard = hard;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> fair{1.125f, 2, 4, -inf};
  Comparison c = compare("o", w, bytes(fair));
  CHECK(c.verdict() == Verdict::kPass);
  CHECK_EQ(c.worst_gate, 0.5);
  CHECK_EQ(c.worst_hard, 0.125);
  CHECK(!c.first);

  const std::vector<float> low{1.5f, 2.75f, 4, -inf};
  c = compare("o", w, bytes(low));
  CHECK(c.verdict() == Verdict::kWarn);
  CHECK_EQ(c.warnings, 2);
  CHECK_EQ(c.first->at, 0);
  CHECK_EQ(c.worst->at, 1);
  CHECK_EQ(c.worst_gate, 3.0);

  const std::vector<float> bad{1, 4, 10, -inf};
  c = compare("o", w, bytes(bad));
  CHECK_EQ(c.mismatches, 2);
  CHECK_EQ(c.first->at, 1);
  CHECK_EQ(c.worst->at, 2);
  CHECK_EQ(c.worst_hard, 6.0);
  CHECK_EQ(c.worst->error, 6.0);

  const std::vector<float> nan{1, kNan, 4, -inf};
  c = compare("o", w, bytes(nan));
  CHECK_EQ(c.mismatches, 1);
  CHECK_EQ(c.worst_hard, kInf);
  CHECK(!c.first->ulp);

  const std::vector<float> swapped{1, 2, 4, inf};
  CHECK_EQ(compare("o", w, bytes(swapped)).mismatches, 1);
}

void sets_hold_ids() {
  const std::vector<std::int32_t> want{1, 0, -1};
  const std::vector<std::uint8_t> allowed{0, 1, 1, 1, 0, 0, 0, 0, 0};  // {1, 2}, {0}, a pad
  Want w = exact(want, {3});
  w.judged = 'S';
  w.allowed = allowed;
  const auto mismatches = [&](const std::vector<std::int32_t>& got) {
    return compare("ids", w, bytes(got)).mismatches;
  };
  CHECK_EQ(mismatches({1, 0, -1}), 0);
  CHECK_EQ(mismatches({2, 0, -1}), 0);
  CHECK_EQ(mismatches({0, 0, -1}), 1);
  CHECK_EQ(mismatches({3, 0, -1}), 1);
  CHECK_EQ(mismatches({-1, 0, -1}), 1);
  CHECK_EQ(mismatches({2, 1, 0}), 2);
  CHECK_EQ(mismatches({1 << 30, -(1 << 30), 2}), 3);
}

void overlapping_sets_hold_an_id_once() {
  const std::vector<std::int32_t> want{0, 1, -1, 2, 0, -1};
  const std::vector<std::uint8_t> row{1, 1, 0, 1, 1, 1, 0, 0, 0};  // {0, 1}, {0, 1, 2}, a pad
  std::vector<std::uint8_t> allowed = row;
  allowed.insert(allowed.end(), {1, 0, 1, 1, 1, 1, 0, 0, 0});  // {0, 2}, {0, 1, 2}, a pad
  Want w = exact(want, {2, 3});
  w.judged = 'S';
  w.allowed = allowed;
  const auto where = [&](const std::vector<std::int32_t>& got) {
    return compare("ids", w, bytes(got)).where;
  };
  using At = std::vector<std::int64_t>;
  CHECK(where({0, 0, -1, 0, 0, -1}).empty());
  w.distinct = true;
  CHECK(where({0, 0, -1, 0, 0, -1}) == (At{1, 4}));
  CHECK(where({0, 1, -1, 0, 1, -1}).empty());  // in another row it is another choice
  CHECK(where({1, 1, -1, 2, 0, -1}) == At{1});
  CHECK(where({3, 3, -1, 2, 0, -1}) == (At{0, 1}));
}

void empty_tensors_pass() {
  const std::vector<float> none;
  CHECK(compare("x", exact(none, {0, 3}), {}).verdict() == Verdict::kPass);
}

void places() {
  const std::vector<std::int32_t> want(std::size_t{2} * 4 * 64, 0);
  const std::vector<std::string> axes{"R", "N", "D"};
  const auto where = [&](auto&& wrong) {
    std::vector<std::int32_t> got = want;
    for (std::int64_t i = 0; i < std::ssize(got); ++i)
      if (wrong(i / 256, i / 64 % 4, i % 64)) got[static_cast<std::size_t>(i)] = 1;
    const Want w = exact(want, {2, 4, 64});
    std::string text;
    for (const auto& line : concentration(compare("x", w, bytes(got)), w.shape, axes))
      text += line + "; ";
    return text;
  };
  CHECK_EQ(where([](auto r, auto, auto) { return r == 1; }),
           std::string("all at R=1 (the last); "));
  CHECK_EQ(where([](auto, auto n, auto) { return n == 2; }), std::string("all at N=2; "));
  CHECK_EQ(where([](auto r, auto n, auto) { return r == 0 && n == 3; }),
           std::string("all at R=0, N=3 (the last); "));
  CHECK_EQ(where([](auto, auto, auto d) { return d >= 61; }), std::string("all at D >= 61; "));
  CHECK_EQ(where([](auto, auto, auto d) { return d % 16 == 5; }),
           std::string("all at D = 5 mod 16; "));
  CHECK_EQ(where([](auto, auto, auto d) { return d % 32 == 7; }),
           std::string("all at D = 7 mod 32; "));
  CHECK_EQ(where([](auto, auto, auto) { return true; }), std::string());
  CHECK_EQ(where([](auto r, auto n, auto d) { return (r + n + d) % 3 == 0; }), std::string());
}

void ulp_is_on_the_output_grid() {
  CHECK_EQ(ulps(dtype_of<float>, 0x3f800000, 0x3f800001), 1u);
  CHECK_EQ(ulps(dtype_of<float>, 0x00000001, 0x80000001), 2u);
  CHECK_EQ(ulps(dtype_of<float>, 0x00000000, 0x80000000), 0u);
  CHECK_EQ(ulps(dtype_of<bf16>, 0x3f80, 0x3f82), 2u);
  CHECK_EQ(ulps(dtype_of<double>, 0x3ff0000000000000, 0x3ff0000000000003), 3u);
}

void rounding_is_single() {
  // Just above the middle of two bf16 or f16 neighbours, by less than f32 can hold: rounding by
  // way of f32 would land on the tie and go to even.
  CHECK_EQ(round_to(dtype_of<bf16>, 1 + 0x1p-8 + 0x1p-40), 0x3f81u);
  CHECK_EQ(round_to(dtype_of<bf16>, 1 + 0x1p-8 - 0x1p-40), 0x3f80u);
  CHECK_EQ(round_to(dtype_of<bf16>, 1 + 0x1p-8), 0x3f80u);
  CHECK_EQ(round_to(dtype_of<bf16>, 1 + 0x3p-8), 0x3f82u);
  CHECK_EQ(round_to(dtype_of<bf16>, -1 - 0x1p-8 - 0x1p-40), 0xbf81u);
  CHECK_EQ(round_to(dtype_of<f16>, 1 + 0x1p-11 + 0x1p-40), 0x3c01u);
  CHECK_EQ(round_to(dtype_of<f16>, 1 + 0x1p-11 - 0x1p-40), 0x3c00u);
  CHECK_EQ(round_to(dtype_of<f16>, 65520.0), 0x7c00u);
  CHECK_EQ(round_to(dtype_of<f16>, 65519.99), 0x7bffu);
}

void steps_are_counted_and_places_are_shaded() {
  // Around 1 one step of f32 is 2^-23: 0, 1, 2, 4, 5, 9 steps, an infinity and a NaN.
  const float u = 0x1p-23f;
  const std::vector<double> gold(8, 1.0);
  const std::vector<float> got{1,
                               1 + u,
                               1 + 2 * u,
                               1 + 4 * u,
                               1 + 5 * u,
                               1 + 9 * u,
                               std::numeric_limits<float>::infinity(),
                               kNan};
  const std::vector<float> budget(8, 2 * u);
  Want w;
  w.judged = 'B';
  w.dtype = dtype_of<double>;
  w.actual = dtype_of<float>;
  w.shape = {2, 4};
  w.data = bytes(gold);
  w.gate = w.hard = budget;
  const Comparison c = compare("x", w, bytes(got));
  CHECK_EQ(c.mismatches, 5);
  CHECK_EQ(c.steps, (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}));  // 5 to 8, 9 to 16 last
  CHECK_EQ(heat(c)[0], (std::vector<std::int64_t>{0, 0, 0, 1}));
  CHECK_EQ(heat(c)[1], (std::vector<std::int64_t>{1, 1, 1, 1}));
  CHECK_EQ(heat(c, 1, 2)[0], (std::vector<std::int64_t>{2, 3}));
  CHECK(
      heat(compare("n", exact(std::vector<std::int32_t>{7}, {1}), bytes(std::vector{7}))).empty());
}

}  // namespace

int main() {
  if (judge_vectors(KDTR_SOURCE_DIR "/conformance/vectors/compare.tsv") != 0) ++failures;
  exact_is_bytes();
  exact_sub_byte();
  budget_reports_the_worst_element();
  sets_hold_ids();
  overlapping_sets_hold_an_id_once();
  empty_tensors_pass();
  places();
  ulp_is_on_the_output_grid();
  rounding_is_single();
  steps_are_counted_and_places_are_shaded();
  return failures == 0 ? 0 : 1;
}
