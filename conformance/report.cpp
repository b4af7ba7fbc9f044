#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "kdtr/container_writer.h"
#include "kdtr/error.h"
#include "value.h"

#ifndef KDTR_VERSION
#define KDTR_VERSION "0.0.0"
#endif

namespace kdtr::conform {
namespace {

constexpr Status kStatuses[] = {
    Status::kPass,    Status::kQualityWarning, Status::kFail,    Status::kNotSupported,
    Status::kSkip,    Status::kXfail,          Status::kXpass,   Status::kWaived,
    Status::kVacuous, Status::kCrash,          Status::kTimeout, Status::kInternalError};

Status status_called(const std::string& name) {
  for (const Status s : kStatuses)
    if (name == status_name(s)) return s;
  return Status::kInternalError;
}

double number(const Json& json) {
  const std::string& text = json.text();
  if (text == "inf") return kInfinite;
  return json.number();
}

std::string ratio_text(double x) {
  if (std::isinf(x)) return "inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  return text;
}

std::string shell_word(const std::string& path) {
  const bool plain = path.find_first_of(" '\"$&;()<>|*?[]\\`") == std::string::npos;
  return plain ? path : "'" + path + "'";
}

Json strings(const std::vector<std::string>& list) {
  Json::Array items;
  for (const std::string& s : list) items.emplace_back(s);
  return items;
}

Json integers(const std::vector<std::int64_t>& list) {
  Json::Array items;
  for (const std::int64_t i : list) items.emplace_back(static_cast<double>(i));
  return items;
}

Json mismatch_json(const Mismatch& m) {
  Json::Object o{{"index", integers(m.index)},
                 {"got", m.got},
                 {"want", m.want},
                 {"got_bits", m.got_bits},
                 {"want_bits", m.want_bits}};
  if (m.ulp) o["ulp"] = static_cast<double>(*m.ulp);
  if (m.hard != 0 || m.gate != 0) {
    o["error"] = m.error;
    o["gate"] = m.gate;
    o["hard"] = m.hard;
  }
  return o;
}

std::string headline(const Record& r) {
  std::string line = status_name(r.status);
  line.resize(std::max<std::size_t>(line.size(), 4), ' ');
  line += "  " + r.id;
  if (r.status == Status::kPass || r.status == Status::kQualityWarning) {
    if (r.worst_gate != 0)
      line += "  worst " + ratio_text(r.worst_gate) + " of the gate, " + ratio_text(r.worst_hard) +
              " of hard";
  }
  return line + "\n";
}

void compose(Record& r, const std::vector<std::string>& findings,
             const std::vector<std::string>& diagnosis, const std::string& catches,
             const std::string& engine) {
  r.text = headline(r);
  const bool loud = is_failure(r.status) || r.status == Status::kQualityWarning;
  for (const std::string& line : findings) r.text += "      " + line + "\n";
  for (const std::string& line : diagnosis) r.text += "      diagnosis: " + line + "\n";
  if (loud && !catches.empty()) r.text += "      this case catches: " + catches + "\n";
  const std::string again =  // nothing to repeat where outputs came without an engine
      engine.empty() ? ""
                     : "kdtr-conform run --engine " + shell_word(engine) + " " + shell_word(r.path);
  if (loud && !again.empty()) r.text += "      again: " + again + "\n";
  r.json = Json::Object{{"kind", "case"},
                        {"case", r.id},
                        {"op", r.op()},
                        {"path", r.path},
                        {"tier", r.tier},
                        {"flags", r.flags},
                        {"arith", r.arith},
                        {"contract_digest", r.digest},
                        {"root", r.root},
                        {"status", status_name(r.status)},
                        {"worst_gate", r.worst_gate},
                        {"worst_hard", r.worst_hard},
                        {"seconds", r.seconds},
                        {"findings", strings(findings)},
                        {"diagnosis", strings(diagnosis)},
                        {"catches", catches},
                        {"again", again},
                        {"engine_lost", r.engine_lost},
                        {"text", r.text}};
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const auto byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

}  // namespace

Record make_record(const Result& result, const std::string& root, const std::string& engine) {
  Record r;
  r.id = result.id;
  r.path = result.path;
  r.tier = result.tier;
  r.flags = result.flags;
  r.arith = result.arith;
  r.digest = result.digest;
  r.root = root;
  r.status = result.status;
  r.worst_gate = result.worst_gate;
  r.worst_hard = result.worst_hard;
  r.seconds = result.seconds;
  r.engine_lost = result.engine_lost;
  std::vector<std::string> findings = result.findings;
  if (!result.unchecked.empty()) {
    std::string list;
    for (const std::string& name : result.unchecked) list += (list.empty() ? "" : ", ") + name;
    findings.push_back("not checked, the engine does not write: " + list);
  }
  r.why = findings.empty() ? "" : findings.front();
  compose(r, findings, result.diagnosis, result.catches, engine);
  Json::Array outputs;
  for (const Comparison& c : result.outputs) {
    Json::Object o{{"output", c.output},
                   {"class", std::string(1, c.judged)},
                   {"elements", static_cast<double>(c.elements)},
                   {"mismatches", static_cast<double>(c.mismatches)},
                   {"warnings", static_cast<double>(c.warnings)},
                   {"worst_gate", c.worst_gate},
                   {"worst_hard", c.worst_hard}};
    o["shape"] = integers(c.shape);
    if (!c.steps.empty()) o["steps"] = integers(c.steps);
    Json::Array heat_rows;
    for (const auto& row : heat(c)) heat_rows.push_back(integers(row));
    if (!heat_rows.empty()) o["heat"] = heat_rows;
    if (c.first) o["first"] = mismatch_json(*c.first);
    if (c.worst) o["worst"] = mismatch_json(*c.worst);
    outputs.emplace_back(std::move(o));
  }
  Json::Object all = r.json.members();
  all["outputs"] = outputs;
  if (!result.unchecked.empty()) all["unchecked"] = strings(result.unchecked);
  r.json = std::move(all);
  return r;
}

Record make_record(const std::string& id, const std::string& path, Status status,
                   const std::string& why, const std::string& engine) {
  Record r;
  r.id = id;
  r.path = path;
  r.status = status;
  r.why = why;
  compose(r, {why}, {}, "", engine);
  return r;
}

Record from_json(const Json& j) {
  Record r;
  r.id = j["case"].text();
  r.path = j["path"].text();
  r.tier = j["tier"].text();
  r.flags = j["flags"].text();
  r.arith = j["arith"].text();
  r.digest = j["contract_digest"].text();
  r.root = j["root"].text();
  r.status = status_called(j["status"].text());
  const auto& findings = j["findings"].items();
  r.why = findings.empty() ? "" : findings.front().text();
  r.text = j["text"].text();
  r.worst_gate = number(j["worst_gate"]);
  r.worst_hard = number(j["worst_hard"]);
  r.seconds = number(j["seconds"]);
  r.engine_lost = j["engine_lost"].dump() == "true";
  r.json = j;
  return r;
}

void restate(Record& r, Status status, const std::string& why) {
  r.status = status;
  const std::size_t line = r.text.find('\n');
  r.text = headline(r) + "      " + why + "\n" +
           (line == std::string::npos ? "" : r.text.substr(line + 1));
  Json::Object all = r.json.members();
  all["status"] = status_name(status);
  all["text"] = r.text;
  Json::Array findings = r.json["findings"].items();
  findings.insert(findings.begin(), why);
  all["findings"] = findings;
  r.json = std::move(all);
}

EngineInfo describe(EngineHost& engine) {
  EngineInfo info{engine.spec(),
                  engine.name(),
                  engine.version(),
                  engine.profiles(),
                  engine.build(),
                  engine.library(),
                  "",
                  ""};
  if (!info.library.empty()) info.sha256 = file_sha256(info.library);
  try {
    info.device = engine.memory().name();
  } catch (const Error& e) {
    info.device = std::string("none: ") + e.what();
  }
  return info;
}

Json to_json(const EngineInfo& info) {
  return Json::Object{
      {"kind", "engine"},        {"spec", info.spec},         {"name", info.name},
      {"version", info.version}, {"profiles", info.profiles}, {"build", info.build},
      {"library", info.library}, {"sha256", info.sha256},     {"device", info.device}};
}

EngineInfo engine_from_json(const Json& j) {
  return {j["spec"].text(),  j["name"].text(),    j["version"].text(), j["profiles"].text(),
          j["build"].text(), j["library"].text(), j["sha256"].text(),  j["device"].text()};
}

std::string save_actual(const Fixture& fixture, const Result& result, const std::string& engine,
                        const std::string& folder) {
  std::filesystem::create_directories(folder);
  ContainerWriter writer;
  writer.meta("kdtr.profile", "actual/1");
  writer.meta("op", fixture.op);
  writer.meta("case", fixture.name);
  writer.meta("arith", fixture.arith);
  writer.meta("engine", engine);
  writer.meta("fixture.root", fixture.root);
  for (const auto& [name, value] : fixture.attrs)
    std::visit([&, key = "attr." + name](const auto& v) { writer.meta(key, v); }, value);
  const auto dims = [](const std::vector<std::int64_t>& shape) {
    return std::vector<std::uint64_t>(shape.begin(), shape.end());
  };
  for (const Argument& a : fixture.arguments) {
    const DType dtype{a.dtype.code, a.dtype.bits};
    if (a.role == KDTR_IN) {
      writer.tensor(a.name, dtype, dims(a.shape), a.initial);
      writer.tensor_meta(a.name, "role", "input");
      continue;
    }
    const auto it = result.actual.find(a.name);
    if (it == result.actual.end()) continue;
    const std::string name = a.role == KDTR_INOUT ? a.name + "/after" : a.name;
    writer.tensor(name, dtype, dims(a.shape), it->second);
    writer.tensor_meta(name, "role", "actual");
    writer.tensor_meta(name, "for", a.name);
  }
  std::string path = folder + "/" + fixture.op + "." + fixture.name + ".actual.kdtr";
  const Code code = writer.save(path);
  if (code != Code::ok) fail(path, std::string("not written: ") + code_name(code));
  return path;
}

std::map<Status, int> tally(const std::vector<Record>& records) {
  std::map<Status, int> counts;
  for (const Record& r : records) ++counts[r.status];
  return counts;
}

std::string summary(const std::vector<Record>& records) {
  std::string text =
      std::to_string(records.size()) + (records.size() == 1 ? " fixture: " : " fixtures: ");
  if (records.empty()) text += "nothing ran";
  bool first = true;
  for (const auto& [status, count] : tally(records)) {
    text += (first ? "" : ", ") + std::to_string(count) + " " + status_name(status);
    first = false;
  }
  double gate = 0, hard = 0;
  for (const Record& r : records) {
    if (r.status != Status::kPass && r.status != Status::kQualityWarning) continue;
    gate = std::max(gate, r.worst_gate);
    hard = std::max(hard, r.worst_hard);
  }
  if (gate != 0)
    text += "; worst passing error " + ratio_text(gate) + " of the gate, " + ratio_text(hard) +
            " of the hard budget";
  return text;
}

std::string look_first(const std::vector<Record>& records) {
  const auto telling = [](const Record& r) {
    int score = 0;  // 2 a known-wrong convention, 1 another diagnosis
    for (const Json& line : r.json["diagnosis"].items())
      score = std::max(score, line.text().starts_with("equals ") ? 2 : 1);
    return score;
  };
  const Record* best = nullptr;
  for (const Record& r : records)
    if (is_failure(r.status) && (best == nullptr || telling(r) > telling(*best))) best = &r;
  if (best == nullptr || records.size() == 1) return "";  // its own text has just been shown
  const std::string saved = best->json["saved"].text();
  const Json::Array& outputs = best->json["outputs"].items();
  const bool wrong = std::any_of(outputs.begin(), outputs.end(),
                                 [](const Json& o) { return o["mismatches"].number() > 0; });
  return "look first at " + best->id + ": " +
         (wrong && !saved.empty() ? "kdtr diff " + shell_word(best->path) + " " + shell_word(saved)
                                  : best->json["again"].text());
}

int exit_code(const std::vector<Record>& records, int skip_code) {
  bool judged = false, undecided = false;
  for (const Record& r : records) {
    if (r.status == Status::kInternalError) {
      undecided = true;
    } else if (is_failure(r.status)) {
      return 1;
    } else if (r.status != Status::kSkip && r.status != Status::kNotSupported) {
      judged = true;
    }
  }
  if (undecided || records.empty()) return 2;
  return judged ? 0 : skip_code;
}

std::string junit(const std::vector<Record>& records, const std::string& engine) {
  int failures = 0, skipped = 0;
  double seconds = 0;
  std::string cases;
  for (const Record& r : records) {
    seconds += r.seconds;
    const std::size_t slash = std::min(r.id.find('/'), r.id.size());
    const std::string name = slash < r.id.size() ? r.id.substr(slash + 1) : r.id;
    cases += "  <testcase classname=\"" + escaped(r.op()) + "\" name=\"" + escaped(name) +
             "\" time=\"" + std::to_string(r.seconds) + "\">";
    if (is_failure(r.status)) {
      ++failures;
      cases += "<failure type=\"" + std::string(status_name(r.status)) + "\" message=\"" +
               escaped(r.why) + "\">" + escaped(r.text) + "</failure>";
    } else if (r.status == Status::kSkip || r.status == Status::kNotSupported ||
               r.status == Status::kWaived || r.status == Status::kXfail) {
      ++skipped;
      cases += "<skipped message=\"" + std::string(status_name(r.status)) + ": " + escaped(r.why) +
               "\"/>";
    } else if (!r.why.empty()) {  // as the outputs that were not checked
      cases += "<system-out>" + escaped(r.text) + "</system-out>";
    }
    cases += "</testcase>\n";
  }
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"kdtr " + escaped(engine) +
         "\" tests=\"" + std::to_string(records.size()) + "\" failures=\"" +
         std::to_string(failures) + "\" skipped=\"" + std::to_string(skipped) + "\" time=\"" +
         std::to_string(seconds) + "\">\n" + cases + "</testsuite>\n";
}

std::string support(const std::vector<Record>& records) {
  std::map<std::string, std::vector<const Record*>> ops;
  std::size_t width = 0;
  for (const Record& r : records) {
    ops[r.op()].push_back(&r);
    width = std::max(width, r.op().size());
  }
  std::string out;
  for (const auto& [op, list] : ops) {
    std::size_t runs = 0;
    std::map<std::string, std::size_t> reasons;
    for (const Record* r : list) {
      if (r->status == Status::kPass) {
        ++runs;
      } else {
        ++reasons[std::string(status_name(r->status)) + ": " + r->why];
      }
    }
    out += op + std::string(width - op.size() + 2, ' ') + std::to_string(runs) + " of " +
           std::to_string(list.size()) + " cases\n";
    for (const auto& [why, count] : reasons)
      out += "      " + std::to_string(count) + " " + why + "\n";
  }
  return out;
}

namespace {

// "; 3 equal `lse_base_2`": a cause that some cases name is likely that of the others too.
std::string named_causes(const std::vector<const Record*>& list) {
  std::map<std::string, int> named;
  for (const Record* r : list)
    for (const Json& line : r->json["diagnosis"].items())
      if (line.text().starts_with("equals ")) ++named[line.text().substr(7)];
  std::string text;
  for (const auto& [name, count] : named)
    text += "; " + std::to_string(count) + (count == 1 ? " equals " : " equal ") + name;
  return text;
}

}  // namespace

std::string table(const std::vector<Record>& records) {
  std::map<std::string, std::vector<const Record*>> ops;
  for (const Record& r : records) ops[r.op()].push_back(&r);
  std::size_t width = 2;
  for (const auto& [op, list] : ops) width = std::max(width, op.size());
  std::string out = "op" + std::string(width, ' ') + "cases  worst/gate  worst/hard  verdict\n";
  for (const auto& [op, list] : ops) {
    double gate = 0, hard = 0;
    bool passed = false, failed = false;
    std::map<Status, int> counts;
    for (const Record* r : list) {
      ++counts[r->status];
      failed |= is_failure(r->status);
      if (r->status == Status::kPass || r->status == Status::kQualityWarning) {
        passed = true;
        gate = std::max(gate, r->worst_gate);
        hard = std::max(hard, r->worst_hard);
      }
    }
    std::string verdict;
    for (const auto& [status, count] : counts)
      verdict += (verdict.empty() ? "" : ", ") + std::to_string(count) + " " + status_name(status);
    const char* none = passed && !failed ? "exact" : "-";
    char line[256];
    std::snprintf(line, sizeof line, "%-*s  %5zu  %10s  %10s  ", static_cast<int>(width),
                  op.c_str(), list.size(), gate == 0 ? none : ratio_text(gate).c_str(),
                  hard == 0 ? none : ratio_text(hard).c_str());
    out += line + verdict + named_causes(list) + "\n";
  }
  return out;
}

Json certificate(const EngineInfo& engine, const std::vector<Record>& records,
                 const std::string& lock) {
  std::map<std::string, std::string> digests;
  std::map<std::string, Json::Array> names;                // passed, warned, failed
  std::map<std::string, std::set<std::string>> unchecked;  // op to outputs
  Json::Array skips;
  std::set<std::string> profiles;
  double gate = 0, hard = 0;
  for (const Record& r : records) {
    if (!r.digest.empty()) digests[r.op()] = r.digest;
    if (is_failure(r.status)) {
      names["failed"].emplace_back(r.id);
      continue;
    }
    if (r.status != Status::kPass && r.status != Status::kQualityWarning) {
      skips.emplace_back(
          Json::Object{{"case", r.id}, {"status", status_name(r.status)}, {"why", r.why}});
      continue;
    }
    names[r.status == Status::kPass ? "passed" : "warned"].emplace_back(r.id);
    for (const Json& output : r.json["unchecked"].items()) unchecked[r.op()].insert(output.text());
    profiles.insert(r.arith);
    gate = std::max(gate, r.worst_gate);
    hard = std::max(hard, r.worst_hard);
  }
  Json::Object contracts;
  for (const auto& [op, digest] : digests) contracts[op] = digest;
  Json::Object not_checked;
  for (const auto& [op, outputs] : unchecked)
    not_checked[op] = Json::Array(outputs.begin(), outputs.end());
  Json::Array profile_list(profiles.begin(), profiles.end());
  const int code = exit_code(records, 2);
  const char* result = code != 0 ? "FAILED" : names["warned"].empty() ? "PASSED" : "WARNED";
  const std::string library = std::filesystem::path(engine.library).filename().string();
  Json::Object details{
      {"judge", "kdtr-conform " KDTR_VERSION},
      {"engine", Json::Object{{"name", engine.name},
                              {"version", engine.version},
                              {"build", engine.build},
                              {"profiles", engine.profiles}}},
      {"device", engine.device},
      {"profiles_judged", profile_list},
      {"contracts", contracts},
      {"outputs_not_checked", not_checked},
      {"skips", skips},
      {"worst_gate", gate},
      {"worst_hard", hard},
      {"does_not_claim",
       Json::Array{"speed", "shapes, dtypes and attributes outside the listed cases",
                   "other devices, drivers or builds than the ones named here",
                   "freedom from data races that did not show in these runs"}}};
  return Json::Object{
      {"_type", "https://in-toto.io/Statement/v1"},
      {"subject", Json::Array{Json::Object{{"name", library.empty() ? engine.spec : library},
                                           {"digest", Json::Object{{"sha256", engine.sha256}}}}}},
      {"predicateType", "https://in-toto.io/attestation/test-result/v0.1"},
      {"predicate", Json::Object{{"result", result},
                                 {"configuration",
                                  Json::Array{Json::Object{
                                      {"name", "goldens/LOCK"},
                                      {"digest", Json::Object{{"sha256", file_sha256(lock)}}}}}},
                                 {"passedTests", names["passed"]},
                                 {"warnedTests", names["warned"]},
                                 {"failedTests", names["failed"]},
                                 {"kdtr", details}}}};
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) fail(path, "cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string file_sha256(const std::string& path) {
  if (path.empty() || !std::filesystem::is_regular_file(path)) return "";
  const std::string bytes = read_file(path);
  return hex(sha256(std::as_bytes(std::span(bytes))));
}

void write_file(const std::string& path, const std::string& text) {
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) fail(path, "cannot be written");
}

}  // namespace kdtr::conform
