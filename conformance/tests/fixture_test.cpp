// Each rule of the fixture profile: a file that breaks only that rule is refused by its code.
#include "fixture.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "check.h"
#include "kdtr/error.h"
#include "tiny.h"

namespace {

using kdtr::ContainerWriter;
using kdtr::conform::Fixture;
using kdtr::conform::load_fixture;
using tiny::Tiny;

std::string path;

std::string refusal(const Tiny& fixture) {
  CHECK(fixture.save(path) == kdtr::Code::ok);
  try {
    load_fixture(path);
  } catch (const kdtr::Error& e) {
    return e.what();
  }
  return "accepted";
}

void refused(const char* code, const std::function<void(ContainerWriter&)>& change) {
  Tiny fixture;
  fixture.change = change;
  CHECK_HAS(refusal(fixture), code);
}

void refused_values(const char* code, const std::function<void(Tiny&)>& change) {
  Tiny fixture;
  change(fixture);
  CHECK_HAS(refusal(fixture), code);
}

const float kSome[7] = {1, 2, 3, 4, 5, 6, 7};
kdtr::Bytes some() { return std::as_bytes(std::span(kSome)); }

}  // namespace

int main() {
  path = (std::filesystem::temp_directory_path() /
          ("kdtr_fixture_test_" + std::to_string(::getpid()) + ".kdtr"))
             .string();
  CHECK_EQ(refusal(Tiny()), std::string("accepted"));

  const Fixture f = load_fixture(path);
  CHECK_EQ(f.id(), std::string("tiny@1/ordinary"));
  CHECK_EQ(f.arguments.size(), std::size_t{4});
  CHECK_EQ(f.axes("y"), std::vector<std::string>{"N"});
  CHECK(f.declares("scale") && f.declares("x") && !f.declares("bias"));
  CHECK_EQ(std::get<double>(f.attrs.at("scale")), 2.0);
  CHECK_EQ(f.wrong.at(0).label, std::string("negated"));

  refused("P_PROFILE", [](auto& w) { w.meta("kdtr.profile", "fixture/2"); });
  refused("P_META", [](auto& w) { w.meta("catches", std::int64_t{1}); });
  refused("P_KIND", [](auto& w) { w.meta("kind", "GUESS"); });
  refused("P_CONTRACT", [](auto& w) { w.meta("op", "tiny@2"); });
  refused("P_DIGEST", [](auto& w) { w.meta("contract.digest", std::string(64, '0')); });
  refused("JSON", [](auto& w) { w.meta("contract", "{"); });
  refused("P_FIELD: attribute beta", [](auto& w) { w.meta("attr.beta", 1.0); });
  refused("P_FIELD: tensor bias", [](auto& w) {
    w.tensor("bias", kdtr::kF32, {7}, some());
    w.tensor_meta("bias", "role", "input");
  });
  refused("P_ROLE", [](auto& w) { w.tensor_meta("x", "role", "banana"); });
  refused("P_ROLE", [](auto& w) { w.tensor_meta("x", "role", "state"); });
  refused_values("P_SHAPE: rank of x", [](Tiny& t) { t.shape_of_x = {1, 7}; });
  refused_values("P_SHAPE: axis N of x, want 7, got 8", [](Tiny& t) {
    t.shape_of_x = {8};
    t.x_only.assign(8, 1);
  });
  refused("P_CLASS", [](auto& w) { w.tensor_meta("y", "class", "A"); });
  refused("P_DTYPE: gold", [](auto& w) { w.tensor_meta("y", "class", "B"); });
  refused("P_DTYPE: actual.dtype", [](auto& w) { w.tensor_meta("z", "actual.dtype", "f31"); });
  refused("P_BUDGET: budget for class E", [](auto& w) { w.tensor_meta("z/gate", "for", "y"); });
  refused("P_REPEATED", [](auto& w) { w.tensor_meta("z/hard", "role", "budget_gate"); });
  refused("P_BUDGET", [](auto& w) {
    w.tensor_meta("z/hard", "role", "known_wrong");  // then class B lacks its hard budget
  });
  refused("P_FOR", [](auto& w) { w.tensor_meta("y", "for", ""); });
  refused("P_EXPECTED", [](auto& w) { w.tensor_meta("z/gate", "for", "q"); });
  refused("P_ALLOWED", [](auto& w) {
    w.tensor("y/allowed", kdtr::kF32, {7}, some());
    w.tensor_meta("y/allowed", "role", "allowed");
    w.tensor_meta("y/allowed", "for", "y");
  });
  refused("P_NAN: nan of y", [](auto& w) { w.tensor_meta("y", "nan", "sometimes"); });
  refused("P_WRONG: name", [](auto& w) {
    w.tensor("strange", kdtr::kF32, {7}, some());
    w.tensor_meta("strange", "role", "known_wrong");
    w.tensor_meta("strange", "for", "y");
  });
  refused("P_WRONG: dtype and shape", [](auto& w) {
    w.tensor("wrong/short/y", kdtr::kF32, {1, 7}, some());
    w.tensor_meta("wrong/short/y", "role", "known_wrong");
    w.tensor_meta("wrong/short/y", "for", "y");
  });
  refused_values("P_WRONG: known-wrong negated", [](Tiny& t) { t.negated = t.y; });
  refused_values("P_NAN: expected value of y", [](Tiny& t) { t.y[3] = std::nanf(""); });
  refused_values("P_NAN: expected value of z", [](Tiny& t) { t.z[3] = std::nan(""); });
  refused_values("P_BUDGET: budgets of z at element 2", [](Tiny& t) { t.gate[2] = 1; });
  refused_values("P_BUDGET: budgets of z at element 2", [](Tiny& t) { t.gate[2] = -1; });
  refused_values("P_BUDGET: budgets of z at element 2", [](Tiny& t) { t.gate[2] = std::nanf(""); });
  refused_values("P_BUDGET: budgets of z at element 6",
                 [](Tiny& t) { t.hard[6] = std::numeric_limits<float>::infinity(); });

  // Nothing expected: a call alone is no case.
  ContainerWriter w;
  Tiny bare;
  bare.change = [](ContainerWriter& writer) {
    for (const char* name : {"status", "y", "z", "z/gate", "z/hard", "wrong/negated/y"})
      writer.tensor_meta(name, "role", "known_wrong");
  };
  CHECK_HAS(refusal(bare), "P_EXPECTED: expected tensors, want one or more, got 0");
  std::filesystem::remove(path);
  return failures == 0 ? 0 : 1;
}
