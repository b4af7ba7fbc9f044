// One fixture: a call of one op and what must come out, loaded from a .kdtr and checked.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "compare.h"
#include "json.h"
#include "kdtr/container.h"
#include "kdtr/plugin.h"

namespace kdtr::conform {

struct Tensor {
  std::string name;
  DLDataType dtype{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // lives as long as the fixture

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
};

struct Argument {
  std::string name;
  int role = KDTR_IN;
  DLDataType dtype{};  // in the call
  std::vector<std::int64_t> shape;
  std::span<const std::byte> initial;  // in and in/out
};

struct Expected {
  std::string output;  // the argument that it judges
  Want want;
  std::string given;  // a judge rule, or "": see judge.h
};

struct KnownWrong {
  std::string label;                      // "insertion_order_ties"
  std::map<std::string, Tensor> outputs;  // by the argument that they stand for
};

struct Fixture {
  using Attr = std::variant<std::int64_t, double, std::string>;

  std::string path, root;  // root: hex SHA-256 that names the whole content
  std::string op, name, catches, kind, tier, arith, digest, null_ok;
  std::vector<std::string> flags, kills;
  Json contract;
  std::map<std::string, Attr> attrs;
  std::vector<Argument> arguments;
  std::vector<Expected> expected;
  std::vector<KnownWrong> wrong;

  std::string id() const { return op + "/" + name; }
  bool flag(std::string_view name) const;
  const Argument* argument(std::string_view name) const;
  const Expected* expected_for(std::string_view output) const;
  // Axis names of an argument as the contract declares them; empty when it has none.
  std::vector<std::string> axes(std::string_view name) const;
  bool declares(std::string_view name) const;  // a tensor or an attribute of the contract

  std::shared_ptr<File> file;  // what the spans point into
};

// Reads and checks a file. Throws kdtr::Error, "<path>: P_BUDGET: ..., want ..., got ...", when
// it is not a sound fixture: a failing test, never a skipped one.
Fixture load_fixture(const std::string& path);

// The .kdtr files under files and folders, sorted; in folders those of profile recorded/1, which
// are no fixtures, are left out. Throws when a path does not exist.
std::vector<std::string> find_fixtures(const std::vector<std::string>& paths);

}  // namespace kdtr::conform
