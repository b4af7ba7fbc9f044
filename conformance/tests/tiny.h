// Fixtures of a made-up op for the judge's own tests:
//   tiny@1: x f32 [N], attr scale -> y f32 [N] = scale * x (exact), z f32 [N] = x / 3 (budget),
//   status i32 [N] = 0. Each of the N elements is a request of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kdtr/container_writer.h"
#include "report.h"

namespace tiny {

inline constexpr const char* kContract =
    R"({"attrs":[{"choices":[],"name":"scale","type":"f64"}],"budget":"","conventions":{},)"
    R"("formula":"y = scale x; z = x / 3","limits":"","op":"tiny","profiles":["exact"],"tensors":[)"
    R"({"axes":["N"],"dtypes":["i32"],"judged":"E","name":"status","nan":"forbid","role":"out","when":""},)"
    R"({"axes":["N"],"dtypes":["f32"],"judged":null,"name":"x","nan":"forbid","role":"in","when":""},)"
    R"({"axes":["N"],"dtypes":["f32"],"judged":"E","name":"y","nan":"forbid","role":"out","when":""},)"
    R"({"axes":["N"],"dtypes":["f32"],"judged":"B","name":"z","nan":"forbid","role":"out","when":""}],)"
    R"("version":1})";

// The parts of a fixture, to be changed before it is written.
struct Tiny {
  std::string name = "ordinary";
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7};
  std::vector<float> y, negated, gate, hard;
  std::vector<double> z;
  std::vector<std::int32_t> status;
  std::vector<std::uint64_t> shape_of_x;  // another than the rest's ...
  std::vector<float> x_only;              // ... with these values
  // Called last, on the writer.
  std::function<void(kdtr::ContainerWriter&)> change;

  explicit Tiny(std::string case_name = "ordinary", float first = 1) : name(std::move(case_name)) {
    x[0] = first;
    fill();
  }
  void fill() {
    y.clear(), negated.clear(), z.clear(), gate.clear(), hard.clear(), status.clear();
    for (const float v : x) {
      y.push_back(2 * v);
      negated.push_back(-2 * v);
      z.push_back(static_cast<double>(v) / 3);
      gate.push_back(0x1p-22f);  // half an ulp below 8/3, and its double
      hard.push_back(0x1p-10f);
      status.push_back(0);
    }
  }

  kdtr::Code save(const std::string& path) const {
    using kdtr::kF32;
    using kdtr::kF64;
    kdtr::ContainerWriter w;
    const std::string contract = kContract;
    std::string digest;
    for (const auto byte : kdtr::sha256(std::as_bytes(std::span(contract)))) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
      digest += two;
    }
    w.meta("kdtr.profile", "fixture/1");
    w.meta("op", "tiny@1");
    w.meta("contract", contract);
    w.meta("contract.digest", digest);
    w.meta("case", name);
    w.meta("catches", "a test's own mistakes");
    w.meta("kind", "KAT");
    w.meta("tier", "small");
    w.meta("arith", "exact");
    w.meta("attr.scale", 2.0);
    const std::uint64_t n = x.size();
    const auto add = [&](const std::string& tensor, kdtr::DType type, kdtr::Bytes data,
                         const char* role, const char* target) {
      w.tensor(tensor, type, {n}, data);
      w.tensor_meta(tensor, "role", role);
      if (*target != '\0') w.tensor_meta(tensor, "for", target);
    };
    w.tensor("x", kF32, shape_of_x.empty() ? std::vector{n} : shape_of_x,
             std::as_bytes(std::span(x_only.empty() ? x : x_only)));
    w.tensor_meta("x", "role", "input");
    add("y", kF32, std::as_bytes(std::span(y)), "expected", "y");
    w.tensor_meta("y", "class", "E");
    w.tensor_meta("y", "actual.dtype", "f32");
    add("z", kF64, std::as_bytes(std::span(z)), "expected", "z");
    w.tensor_meta("z", "class", "B");
    w.tensor_meta("z", "actual.dtype", "f32");
    add("status", kdtr::kI32, std::as_bytes(std::span(status)), "expected", "status");
    w.tensor_meta("status", "class", "E");
    add("z/gate", kF32, std::as_bytes(std::span(gate)), "budget_gate", "z");
    add("z/hard", kF32, std::as_bytes(std::span(hard)), "budget_hard", "z");
    add("wrong/negated/y", kF32, std::as_bytes(std::span(negated)), "known_wrong", "y");
    if (change) change(w);
    return w.save(path);
  }
};

}  // namespace tiny
