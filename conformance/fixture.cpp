#include "fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "kdtr/error.h"
#include "value.h"

namespace kdtr::conform {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const auto byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (comma != 0) parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

DLDataType to_dl(DType t) { return {t.code, t.bits, 1}; }

std::optional<DLDataType> dtype_called(std::string_view name) {
  static constexpr DType kAll[] = {
      kBool,     kU1,         kU2,     kU4,         kU8,        kU16,
      kU32,      kU64,        kI2,     kI4,         kI8,        kI16,
      kI32,      kI64,        kF16,    kF32,        kF64,       kBf16,
      kC32,      kC64,        kC128,   kF8E3m4,     kF8E4m3,    kF8E4m3b11fnuz,
      kF8E4m3fn, kF8E4m3fnuz, kF8E5m2, kF8E5m2fnuz, kF8E8m0fnu, kF6E2m3fn,
      kF6E3m2fn, kF4E2m1fn};
  for (const DType t : kAll)
    if (name == dtype_name(t)) return to_dl(t);
  return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// Reads one file. `code` names the broken profile rule in each message.
class Loader {
 public:
  explicit Loader(const std::string& path) : path_(path) {
    auto opened = std::make_shared<File>(File::open(path, Verify::deep));
    if (!*opened) fail(opened->error());
    f_.file = opened;
    f_.path = path;
    f_.root = hex(opened->index().root());
  }

  Fixture load() {
    header();
    tensors();
    outputs();
    wrong();
    return std::move(f_);
  }

 private:
  template <class Want, class Got>
  [[noreturn]] void bad(const char* code, const std::string& what, const Want& want,
                        const Got& got) const {
    fail(path_, std::string(code) + ": " + what, want, got);
  }
  [[noreturn]] static void fail(const std::string& text) { throw Error(text); }
  template <class Want, class Got>
  [[noreturn]] static void fail(const std::string& where, const std::string& what, const Want& want,
                                const Got& got) {
    ::kdtr::fail(where, what, want, got);
  }

  std::string meta(const char* key, bool required) const {
    const auto value = f_.file->meta_as<std::string_view>(key);
    if (!value && required) bad("P_META", std::string("file metadata ") + key, "utf-8", "none");
    return std::string(value.value_or(""));
  }
  std::string meta(const TensorView& t, const char* key) const {
    return std::string(f_.file->meta_as<std::string_view>(t, key).value_or(""));
  }

  void header() {
    if (const std::string profile = meta("kdtr.profile", true); profile != "fixture/1")
      bad("P_PROFILE", "kdtr.profile", "fixture/1", profile);
    f_.op = meta("op", true);
    f_.name = meta("case", true);
    f_.catches = meta("catches", true);
    f_.kind = meta("kind", true);
    f_.tier = meta("tier", true);
    f_.arith = meta("arith", true);
    f_.null_ok = meta("null_ok", false);
    f_.flags = split(meta("flags", false));
    f_.kills = split(meta("kills", false));
    f_.digest = meta("contract.digest", true);
    const std::string contract = meta("contract", true);
    f_.contract = Json::parse(contract, path_ + ": contract");
    const std::string digest = hex(sha256(std::as_bytes(std::span(contract))));
    if (digest != f_.digest) bad("P_DIGEST", "contract.digest", digest, f_.digest);
    const std::string id = f_.contract["op"].text() + "@" +
                           std::to_string(static_cast<int>(f_.contract["version"].number()));
    if (id != f_.op) bad("P_CONTRACT", "op of the contract", f_.op, id);
    static const std::set<std::string, std::less<>> kKinds{"KAT", "MCT", "ACC", "NEG", "META"};
    if (!kKinds.contains(f_.kind)) bad("P_KIND", "kind", "KAT, MCT, ACC, NEG or META", f_.kind);
    attributes();
  }

  void attributes() {
    std::map<std::string, const Json*> declared;
    for (const Json& a : f_.contract["attrs"].items()) declared[a["name"].text()] = &a;
    for (std::uint32_t j = 0; j < f_.file->index().meta_count(); ++j) {
      const MetaEntry entry = f_.file->index().meta(j);
      if (entry.owner != 0 || !entry.key.starts_with("attr.")) continue;
      const std::string name(entry.key.substr(5));
      if (!declared.contains(name))
        bad("P_FIELD", "attribute " + name, "one that the contract declares", "unknown");
      if (const auto b = entry.value.get<bool>()) {
        f_.attrs[name] = std::int64_t{*b};
      } else if (const auto i = entry.value.get<std::int64_t>()) {
        f_.attrs[name] = *i;
      } else if (const auto d = entry.value.get<double>()) {
        f_.attrs[name] = *d;
      } else if (const auto s = entry.value.get<std::string_view>()) {
        f_.attrs[name] = std::string(*s);
      } else {
        bad("P_FIELD", "type of attribute " + name, "bool, i64, f64 or utf-8", "another");
      }
    }
  }

  void tensors() {
    static const std::set<std::string, std::less<>> kRoles{
        "input", "state", "expected", "budget_gate", "budget_hard", "allowed", "known_wrong"};
    for (std::uint32_t i = 0; i < f_.file->size(); ++i) {
      const TensorView view = (*f_.file)[i];
      const std::string name(view.name), role = meta(view, "role");
      if (!kRoles.contains(role)) bad("P_ROLE", "role of " + name, "a role of the profile", role);
      Tensor t{name, to_dl(view.dtype), {}, view.data};
      for (const std::uint64_t n : view.shape()) t.shape.push_back(static_cast<std::int64_t>(n));
      const std::string target = meta(view, "for");
      if (const Json* tensor = declared(role == "expected" ? target : name)) {
        const Json::Array& axes = (*tensor)["axes"].items();
        if (axes.size() != t.shape.size())
          bad("P_SHAPE", "rank of " + name, axes.size(), t.shape.size());
        for (std::size_t axis = 0; axis < axes.size(); ++axis) {
          const std::int64_t size = t.shape[axis];
          const auto [known, first] = sizes_.try_emplace(axes[axis].text(), size);
          if (!first && known->second != size)
            bad("P_SHAPE", "axis " + known->first + " of " + name, known->second, size);
        }
      }
      if (role == "input" || role == "state") {
        const Json* tensor = declared(name);
        if (tensor == nullptr) bad("P_FIELD", "tensor " + name, "one of the contract", "unknown");
        const bool inout = (*tensor)["role"].text() == "inout";
        if ((*tensor)["role"].text() == "out") bad("P_ROLE", "role of " + name, "expected", role);
        if (inout != (role == "state")) bad("P_ROLE", "role of " + name, "state if in/out", role);
        f_.arguments.push_back({name, inout ? KDTR_INOUT : KDTR_IN, t.dtype, t.shape, view.data});
        continue;
      }
      if (target.empty()) bad("P_FOR", "`for` of " + name, "the output that it judges", "none");
      if (role == "known_wrong") {
        wrong_.push_back({name, target, std::move(t)});
        continue;
      }
      auto& slot = role == "expected"      ? expected_
                   : role == "budget_gate" ? gate_
                   : role == "budget_hard" ? hard_
                                           : allowed_;
      if (!slot.try_emplace(target, Item{view, std::move(t)}).second)
        bad("P_REPEATED", role + " for " + target, "one", "two or more");
    }
  }

  const Json* declared(std::string_view name) const {
    for (const Json& t : f_.contract["tensors"].items())
      if (t["name"].text() == name) return &t;
    return nullptr;
  }

  void outputs();
  void wrong();

  struct Wrong {
    std::string name, target;
    Tensor tensor;
  };
  struct Item {
    TensorView view;
    Tensor tensor;
  };
  std::string path_;
  Fixture f_;
  std::map<std::string, Item> expected_, gate_, hard_, allowed_;
  std::map<std::string, std::int64_t> sizes_;  // of the contract's axes
  std::vector<Wrong> wrong_;
};

void Loader::outputs() {
  if (expected_.empty()) bad("P_EXPECTED", "expected tensors", "one or more", 0);
  for (const auto* part : {&gate_, &hard_, &allowed_})
    for (const auto& [output, item] : *part)
      if (!expected_.contains(output))
        bad("P_EXPECTED", "expected tensor for " + output, "one", "none");
  for (auto& [output, item] : expected_) {
    const auto& [view, tensor] = item;
    const Json* contract = declared(output);
    if (contract == nullptr || (*contract)["role"].text() == "in")
      bad("P_FIELD", "output " + output, "an output of the contract", "unknown");
    Expected e;
    e.output = output;
    e.given = meta(view, "given");
    Want& want = e.want;
    const std::string judged = meta(view, "class"), nan = meta(view, "nan");
    if (judged != "E" && judged != "B" && judged != "S")
      bad("P_CLASS", "class of " + tensor.name, "E, B or S", judged);
    if (!nan.empty() && nan != "forbid" && nan != "any" && nan != "bitwise")
      bad("P_NAN", "nan of " + tensor.name, "forbid, any or bitwise", nan);
    want.judged = judged[0];
    want.nan = nan == "any"       ? NanRule::kAny
               : nan == "bitwise" ? NanRule::kBitwise
                                  : NanRule::kForbid;
    want.dtype = tensor.dtype;
    want.shape = tensor.shape;
    want.data = tensor.data;
    const std::string actual = meta(view, "actual.dtype");
    want.actual = tensor.dtype;
    if (!actual.empty()) {
      const auto found = dtype_called(actual);
      if (!found) bad("P_DTYPE", "actual.dtype of " + tensor.name, "a dtype", actual);
      want.actual = *found;
    }
    const std::int64_t n = tensor.numel();
    if (judged == "B") {
      if (!is_float(want.actual))
        bad("P_DTYPE", "dtype of class B output " + output, "a float", dtype_name(want.actual));
      if (!is<double>(want.dtype))
        bad("P_DTYPE", "gold of class B output " + output, "f64", dtype_name(want.dtype));
      for (auto* part : {&gate_, &hard_}) {
        const char* role = part == &gate_ ? "budget_gate" : "budget_hard";
        const auto it = part->find(output);
        if (it == part->end()) bad("P_BUDGET", std::string(role) + " for " + output, "one", "none");
        const Tensor& b = it->second.tensor;
        if (!is<float>(b.dtype) || b.shape != tensor.shape)
          bad("P_BUDGET", "dtype and shape of " + b.name, "f32 " + shape_text(tensor.shape),
              dtype_name(b.dtype) + " " + shape_text(b.shape));
        (part == &gate_ ? want.gate : want.hard) = it->second.view.as<float>().value();
      }
      for (std::size_t i = 0; i < want.gate.size(); ++i) {
        const float gate = want.gate[i], hard = want.hard[i];
        if (!(gate >= 0 && gate <= hard && std::isfinite(hard)))
          bad("P_BUDGET", "budgets of " + output + " at element " + std::to_string(i),
              "0 <= gate <= hard, finite", std::to_string(gate) + " and " + std::to_string(hard));
      }
    } else {
      if (gate_.contains(output) || hard_.contains(output))
        bad("P_BUDGET", "budget for class " + judged + " output " + output, "none", "one");
      if (!same(want.actual, want.dtype))
        bad("P_DTYPE", "expected dtype of " + output, dtype_name(want.actual),
            dtype_name(want.dtype));
    }
    if (judged == "S") {
      const auto it = allowed_.find(output);
      if (it == allowed_.end()) bad("P_ALLOWED", "allowed ids for " + output, "one", "none");
      const Tensor& a = it->second.tensor;
      const bool prefix = a.shape.size() == tensor.shape.size() + 1 &&
                          std::equal(tensor.shape.begin(), tensor.shape.end(), a.shape.begin());
      if (!prefix || (!is<bool>(a.dtype) && !is<std::uint8_t>(a.dtype)))
        bad("P_ALLOWED", "dtype and shape of " + a.name,
            "bool " + shape_text(tensor.shape) + " and an axis of ids",
            dtype_name(a.dtype) + " " + shape_text(a.shape));
      if (!is_integer(want.actual))
        bad("P_DTYPE", "dtype of class S output " + output, "an integer", dtype_name(want.actual));
      const std::string distinct = meta(view, "distinct");
      if (!distinct.empty() && distinct != "true")
        bad("P_FIELD", "distinct of " + tensor.name, "true or nothing", distinct);
      want.distinct = !distinct.empty();
      want.allowed = {reinterpret_cast<const std::uint8_t*>(a.data.data()), a.data.size()};
    } else if (allowed_.contains(output)) {
      bad("P_ALLOWED", "allowed ids for class " + judged + " output " + output, "none", "one");
    }
    if (want.nan == NanRule::kForbid && is_float(want.dtype)) {
      for (std::int64_t i = 0; i < n; ++i)
        if (std::isnan(float_at(want.dtype, want.data.data(), i)))
          bad("P_NAN", "expected value of " + output + " at element " + std::to_string(i),
              "a number", "nan");
    }
    Argument* state = nullptr;
    for (Argument& a : f_.arguments)
      if (a.name == output) state = &a;
    if (state != nullptr) {
      if (state->shape != tensor.shape || !same(state->dtype, want.actual))
        bad("P_SHAPE", "expected value of in/out " + output, shape_text(state->shape),
            shape_text(tensor.shape));
    } else {
      if ((*contract)["role"].text() == "inout")
        bad("P_STATE", "initial value of in/out " + output, "a tensor of role state", "none");
      f_.arguments.push_back({output, KDTR_OUT, want.actual, tensor.shape, {}});
    }
    f_.expected.push_back(std::move(e));
  }
  for (const Argument& a : f_.arguments)
    if (a.role == KDTR_INOUT && !expected_.contains(a.name))
      bad("P_EXPECTED", "expected value of in/out " + a.name, "one", "none");
}

void Loader::wrong() {
  for (Wrong& w : wrong_) {
    // "wrong/<label>/<output>"
    const std::size_t end = w.name.rfind('/');
    const bool shaped = w.name.starts_with("wrong/") && end != std::string::npos && end > 6;
    if (!shaped) bad("P_WRONG", "name", "wrong/<label>/<output>", w.name);
    const auto it = expected_.find(w.target);
    if (it == expected_.end()) bad("P_WRONG", w.name + " judges", "an expected output", w.target);
    const Tensor& right = it->second.tensor;
    if (w.tensor.shape != right.shape || !same(w.tensor.dtype, right.dtype))
      bad("P_WRONG", "dtype and shape of " + w.name,
          dtype_name(right.dtype) + " " + shape_text(right.shape),
          dtype_name(w.tensor.dtype) + " " + shape_text(w.tensor.shape));
    const std::string label = w.name.substr(6, end - 6);
    auto known = std::find_if(f_.wrong.begin(), f_.wrong.end(),
                              [&](const KnownWrong& k) { return k.label == label; });
    if (known == f_.wrong.end()) known = f_.wrong.insert(known, KnownWrong{label, {}});
    known->outputs.emplace(w.target, std::move(w.tensor));
  }
  for (const KnownWrong& known : f_.wrong) {
    const bool differs = std::any_of(known.outputs.begin(), known.outputs.end(), [&](auto& entry) {
      const auto& [output, tensor] = entry;
      const auto right = expected_.at(output).tensor.data;
      return !std::equal(right.begin(), right.end(), tensor.data.begin(), tensor.data.end());
    });
    if (!differs) bad("P_WRONG", "known-wrong " + known.label, "another result", "the right one");
  }
}

}  // namespace

bool Fixture::flag(std::string_view wanted) const {
  return std::find(flags.begin(), flags.end(), wanted) != flags.end();
}

const Argument* Fixture::argument(std::string_view wanted) const {
  for (const Argument& a : arguments)
    if (a.name == wanted) return &a;
  return nullptr;
}

const Expected* Fixture::expected_for(std::string_view output) const {
  for (const Expected& e : expected)
    if (e.output == output) return &e;
  return nullptr;
}

std::vector<std::string> Fixture::axes(std::string_view wanted) const {
  std::vector<std::string> names;
  for (const Json& t : contract["tensors"].items()) {
    if (t["name"].text() != wanted) continue;
    for (const Json& axis : t["axes"].items()) names.push_back(axis.text());
  }
  return names;
}

bool Fixture::declares(std::string_view wanted) const {
  for (const char* list : {"tensors", "attrs"})
    for (const Json& item : contract[list].items())
      if (item["name"].text() == wanted) return true;
  return false;
}

namespace {

// Inputs recorded from models lie among the goldens; they say so themselves.
bool is_recording(const std::filesystem::path& path) {
  if (path.parent_path().filename().string().find('@') != std::string::npos) return false;
  const File file = File::open(path.string(), Verify::none);
  return file && file.meta_as<std::string_view>("kdtr.profile").value_or("") == "recorded/1";
}

}  // namespace

Fixture load_fixture(const std::string& path) { return Loader(path).load(); }

std::vector<std::string> find_fixtures(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    if (!fs::exists(path)) fail(path, "no such file or folder");
    if (!fs::is_directory(path)) {
      if (!fs::is_regular_file(path))  // its writer may never come
        fail(path, "fixture", "a file or a folder", "a pipe or a device");
      found.push_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file() && entry.path().extension() == ".kdtr" &&
          !is_recording(entry.path()))
        found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace kdtr::conform
