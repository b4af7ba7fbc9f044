// Broken plug-ins get the verdict they deserve, and none takes the judge down.
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "check.h"
#include "fixture.h"
#include "kdtr/error.h"
#include "tiny.h"
#include "worker.h"

namespace {

const std::string kBin = KDTR_BINARY_DIR;
std::string scratch;

struct Ran {
  int exit = -1;
  std::string output;
};

Ran shell(const std::string& command) {
  Ran ran;
  std::FILE* pipe =
      ::popen((command + " 2>&1").c_str(), "r");  // NOLINT(bugprone-command-processor)
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe))
    ran.output.append(buffer, n);
  ran.exit = WEXITSTATUS(::pclose(pipe));
  return ran;
}

Ran judge(const std::string& engine, const std::string& arguments) {
  return shell("'" + kBin + "/kdtr-conform' run --engine '" + kBin + "/" + engine + "' " +
               arguments);
}

// One fixture on one fault: exit status, status word and a part of the text.
void expect(const std::string& fault, int exit, const std::string& status,
            const std::string& text = "", const std::string& options = "") {
  const Ran ran = judge("libkdtr_broken.so:" + fault,
                        "--timeout 2 " + options + " " + scratch + "/tiny@1/ordinary.kdtr");
  const int before = failures;
  CHECK_EQ(ran.exit, exit);
  CHECK_HAS(ran.output, status + "  tiny@1/ordinary");
  CHECK_HAS(ran.output, text);
  if (failures != before)
    std::fprintf(stderr, "^ fault `%s`, exit %d:\n%s\n", fault.c_str(), ran.exit,
                 ran.output.c_str());
}

void verdicts() {
  expect("correct", 0, "PASS");
  expect("zeros", 1, "FAIL", "`y` is all zeros");
  expect("zeros", 1, "FAIL",
         "7 of 7 differ; first at [N=0]: got 0 (0x00000000), want 2 (0x40000000)");
  expect("zeros", 1, "FAIL", "this case catches: a test's own mistakes");
  expect("zeros", 1, "FAIL", "again: kdtr-conform run --engine ");
  expect("wrong_sign", 1, "FAIL", "diagnosis: equals `negated`");
  expect("untouched", 1, "FAIL", "`y` was never written");
  expect("early_return", 1, "FAIL",
         "3 elements of `y` were never written; all the others are right");
  expect("early_return", 1, "FAIL", "`y`: all at N >= 4");
  expect("changes_input", 1, "FAIL", "engine changed input `x` at byte 14 of 28");
  expect("writes_past", 1, "FAIL", "wrote 12 B past `y`");
  expect("writes_before", 1, "FAIL", "wrote 8 B before `y`");
  expect("writes_far", 1, "CRASH", "SIGSEGV");
  expect("writes_far", 1, "CRASH", "B past the end of `y`");
  expect("reads_padding", 1, "FAIL", "y: 1 of 7 ");
  expect("reads_padding_times_0", 1, "FAIL", "y");
  expect("reads_far", 1, "CRASH", "B past the end of `x`");
  expect("small_workspace", 1, "FAIL", "wrote 24 B past `workspace` of 16 B");
  expect("reads_workspace", 1, "FAIL", "y: output depends on uninitialised memory, first at [N=1]");
  expect("reads_output", 1, "FAIL", "y:");
  expect("random", 1, "FAIL", "bits differ from run to run, first at [N=4]");
  expect("hang", 1, "TIMEOUT", "no answer within 2 s");
  expect("segfault", 1, "CRASH", "killed by SIGSEGV");
  expect("abort", 1, "CRASH", "killed by SIGABRT");
  expect("exit", 1, "CRASH", "exited with 0 in the middle of the case");
  expect("error", 1, "FAIL", "run failed: tiny: out of luck");
  expect("silent_error", 1, "FAIL", "run failed: the plug-in gave no reason (its last_error is");
  expect("binary_error", 1, "FAIL", "run failed: tiny: ?\xc3\xa9 of  \n");
  expect("endless_workspace", 1, "FAIL", "workspace_size: bytes, want at most 2^48, got 1844");
  expect("babbles", 1, "CRASH", "the engine's process sent what is no result");
  expect("keeps_noting", 1, "TIMEOUT", "no answer within 2 s");
  expect("asks_undeclared", 1, "FAIL", "kernel asked for 'bias', which tiny@1 does not declare");
  expect("fails_for_undeclared", 1, "FAIL",
         "run failed: the plug-in gave no reason (its last_error is empty)\n      kernel asked for "
         "'epsilon', which tiny@1 does not declare");
  expect("asks_undeclared_attribute", 1, "FAIL", "kernel asked for 'alpha', which tiny@1 does not");
  expect("never_asks_attribute", 1, "FAIL", "kernel never used attribute 'scale'");
  expect("never_asks_output", 1, "FAIL", "kernel never used 'z'");
  expect("nan", 1, "FAIL", "z: 7 of 7 beyond the hard budget");
  expect("low_precision", 0, "QUALITY_WARNING", "z: 7 of 7 above the gate");
  expect("off_by_more", 1, "FAIL", "`z` is the right value plus 0.0019");
  expect("feels_neighbours", 0, "PASS");
  expect("feels_neighbours", 1, "FAIL", "N=6 alone: FAIL: z: 1 of 1 beyond the hard budget",
         "--alone");
  expect("batch_variant", 0, "PASS", "N=3 alone: z has other bits than in the batch", "--alone");
  expect("batch_variant", 1, "FAIL", "N=3 alone: z has other bits than in the batch",
         "--invariant");
  expect("correct", 0, "PASS", "", "--invariant --repeat 3");
  expect("unsupported", 2, "NOT_SUPPORTED", "only on Tuesdays");
  expect("unsupported", 77, "NOT_SUPPORTED", "only on Tuesdays", "--skip-code 77");
  expect("other_profile", 2, "NOT_SUPPORTED",
         "profile exact is not one of the engine's, bf16, tf32");
  expect("one_output", 0, "PASS", "not checked, the engine does not write: status, z");
  expect("no_outputs", 1, "VACUOUS", "nothing was checked");
}

// A crash or a hang costs one case: the next is judged.
void the_next_case_is_judged() {
  for (const char* fault : {"abort", "hang", "exit"}) {
    const Ran ran = judge(std::string("libkdtr_broken.so:") + fault, "--timeout 1 " + scratch);
    CHECK_EQ(ran.exit, 1);
    CHECK_HAS(ran.output, "tiny@1/ordinary");
    CHECK_HAS(ran.output, "tiny@1/second");
    CHECK_HAS(ran.output, std::string("2 fixtures: 2 ") + (*fault == 'h' ? "TIMEOUT" : "CRASH"));
  }
}

// Workers that are shell scripts: one that answers every case with the first one's verdict, as a
// process that an engine forked can, and one that leaves after its first answer.
void workers_that_answer_out_of_turn() {
  const std::string program = scratch + "/worker.sh", result = scratch + "/record";
  CHECK_EQ(judge("libkdtr_broken.so:correct", "--json " + result + " " + scratch).exit, 0);
  std::istringstream lines(kdtr::conform::read_file(result));
  std::string line;
  for (const char* name : {"engine", "ordinary", "second"})
    if (std::getline(lines, line)) kdtr::conform::write_file(scratch + "/" + name, line + "\n");
  const auto run = [&](const std::string& body) {
    kdtr::conform::write_file(program, "#!/bin/sh\ncd " + scratch + "\ncat engine >&$4\n" + body);
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return shell("'" + kBin + "/kdtr-conform' run --engine fake --python " + program + " " +
                 scratch + "/tiny@1");
  };
  Ran ran = run("while read path; do cat ordinary >&$4; done");
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "PASS  tiny@1/ordinary");
  CHECK_HAS(ran.output, "CRASH  tiny@1/second");
  CHECK_HAS(ran.output, "the engine's process answered for another case");
  ran = run("read path\nexec 0<&-\ncat $(basename $path .kdtr) >&$4\nsleep 5");
  CHECK_EQ(ran.exit, 0);
  CHECK_HAS(ran.output, "2 fixtures: 2 PASS");
}

// An engine in this process whose functions throw through the C interface.
void exceptions_are_the_engines_fault() {
  using kdtr::conform::EngineHost;
  static const char* thrower = "";
  const auto may_throw = [](const char* name) {
    if (std::string(thrower) == name) throw std::runtime_error("out\nof luck");
  };
  static const auto check = may_throw;
  kdtr_plugin_table table{};
  table.abi_version = KDTR_ABI_VERSION;
  table.struct_size = sizeof table;
  table.create = [](const char*, void**) { return check("create"), int{KDTR_OK}; };
  table.destroy = [](void*) {};
  table.describe = [](void*, kdtr_description* d) {
    d->device = {kDLCPU, 0};
    return check("describe"), int{KDTR_OK};
  };
  table.supports = [](void*, const kdtr_call*, const char**) { return check("supports"), 1; };
  table.run = [](void*, const kdtr_call*, void*) { return check("run"), int{KDTR_OK}; };
  table.last_error = [](void*) { return ""; };
  const auto said = [&](const char* name) -> std::string {
    thrower = name;
    try {
      EngineHost engine(&table, "", "thrower");
      const auto record = kdtr::conform::judge_file(scratch + "/tiny@1/ordinary.kdtr", engine, {});
      return record.text.substr(0, record.text.find('\n', 30));
    } catch (const kdtr::Error& e) {
      return e.what();
    }
  };
  CHECK_EQ(said("create"), std::string("create: threw a C++ exception: out of luck"));
  CHECK_EQ(said("describe"), std::string("describe: threw a C++ exception: out of luck"));
  CHECK_HAS(said("supports"), "FAIL  tiny@1/ordinary\n      supports: threw a C++ exception: out");
  CHECK_HAS(said("run"),
            "FAIL  tiny@1/ordinary\n      run failed: run: threw a C++ exception: out");
}

// Poison is a NaN: where any NaN is right, leaving an element alone must fail all the same.
void an_unwritten_nan_fails() {
  const std::string file = scratch + "/nan/tiny@1/nan.kdtr";
  std::filesystem::create_directories(scratch + "/nan/tiny@1");
  tiny::Tiny fixture("nan");
  for (std::size_t i = 4; i < 7; ++i)
    fixture.x[i] = fixture.y[i] = std::numeric_limits<float>::quiet_NaN(), fixture.z[i] = NAN;
  fixture.change = [](kdtr::ContainerWriter& w) {
    w.tensor_meta("y", "nan", "any");
    w.tensor_meta("z", "nan", "any");
  };
  CHECK(fixture.save(file) == kdtr::Code::ok);
  CHECK_EQ(judge("libkdtr_broken.so:correct", file).exit, 0);
  const Ran ran = judge("libkdtr_broken.so:early_return", file);
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "y: 3 of 7 elements were never written");
  CHECK_HAS(ran.output, "z: 3 of 7 elements were never written");
  std::filesystem::remove_all(scratch + "/nan");  // the other tests judge all of the folder
}

// An answer kept from the first call is right there, and wrong on the second case.
void a_stale_answer_fails_the_second_case() {
  const Ran ran = judge("libkdtr_broken.so:stale", scratch);
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "PASS  tiny@1/ordinary");
  CHECK_HAS(ran.output, "FAIL  tiny@1/second");
}

void engines_that_do_not_load() {
  const std::string one = scratch + "/tiny@1/ordinary.kdtr";
  const auto refused = [&](const std::string& engine, const std::string& text) {
    const Ran ran = judge(engine, one);
    CHECK_EQ(ran.exit, 2);
    CHECK_HAS(ran.output, text);
  };
  refused("libkdtr_wrong_abi.so", "plug-in abi_version, want 1, got 2");
  refused("libkdtr_short_table.so", "plug-in table struct_size, want ");
  refused("libkdtr_no_symbol.so", "exported symbol, want kdtr_plugin_v1, got none");
  refused("libkdtr_absent.so", "library, want PATH[:configuration], got no such file");
  refused("libkdtr_broken.so:refuses_to_start", "engine not created: no licence for this machine");
  refused("libkdtr_broken.so:silent_at_start", "engine not created: the plug-in gave no reason");
  refused("libkdtr_broken.so:exit_at_start", "loading the engine: exited with 3\n");
  refused("libkdtr_broken.so:crash_at_start", "loading the engine: killed by SIGABRT");
}

// A judge with no library beside it, as of a build without CUDA.
void a_build_without_cuda_says_so() {
  std::filesystem::create_directories(scratch + "/bare");
  std::filesystem::copy_file(kBin + "/kdtr-conform", scratch + "/bare/kdtr-conform");
  const Ran ran = shell("env -u KDTR_LIB_DIR " + scratch + "/bare/kdtr-conform run --engine cuda " +
                        scratch + "/tiny@1");
  CHECK_EQ(ran.exit, 2);
  CHECK_EQ(ran.output, std::string("kdtr-conform: engine cuda: this build has none: build again "
                                   "with nvcc on PATH, without KDTR_CUDA=OFF\n"));
}

void the_summary_counts_what_was_chosen() {
  const Ran ran = judge("libkdtr_broken.so:correct", "--case second " + scratch);
  CHECK_EQ(ran.exit, 0);
  CHECK_HAS(ran.output, "\n1 fixture: 1 PASS");
}

// Of several failing cases one is named, with the command that shows it.
void a_failed_run_says_where_to_look() {
  const std::string files = scratch + "/tiny@1 ", engine = "libkdtr_broken.so:";
  const std::string ordinary = scratch + "/tiny@1/ordinary.kdtr";
  CHECK_HAS(judge(engine + "wrong_sign", files).output,
            "FAIL\nlook first at tiny@1/ordinary: kdtr-conform run --engine " + kBin + "/" +
                engine + "wrong_sign " + ordinary);
  CHECK_HAS(judge(engine + "wrong_sign", files + "--save " + scratch + "/saved").output,
            "look first at tiny@1/ordinary: kdtr diff " + ordinary + " " + scratch +
                "/saved/tiny@1.ordinary.actual.kdtr");
  // What `kdtr diff` would not show: a broken rule.
  CHECK_HAS(judge(engine + "writes_past", files + "--save " + scratch + "/saved").output,
            "look first at tiny@1/ordinary: kdtr-conform run ");
  // Not the first: only the second fails.
  CHECK_HAS(judge(engine + "stale", files).output, "look first at tiny@1/second: ");
  CHECK(judge(engine + "wrong_sign", ordinary).output.find("look first") == std::string::npos);
  CHECK(judge(engine + "correct", files).output.find("look first") == std::string::npos);
}

void wrong_arguments_are_named() {
  const auto refused = [&](const std::string& arguments, const std::string& text) {
    const Ran ran = judge("libkdtr_broken.so:correct", arguments + " " + scratch + "/tiny@1");
    CHECK_EQ(ran.exit, 2);
    CHECK_HAS(ran.output, text);
  };
  refused("--timeout 1e300", "--timeout: seconds, want 0 to 1e6, got 1e+300");
  refused("--timeout nan", "--timeout: seconds, want 0 to 1e6, got nan");
  refused("--timeout 0", "--timeout: seconds, want 0 to 1e6, got 0");
  refused("--repeat 1e99", "--repeat: value, want an integer, got 1e99");
  refused("--tier huge", "--tier: value, want small or full, got huge");
  refused("--python " + scratch, "loading the engine: ");
  refused("--python /absent", "--python: interpreter, want the path of a program, got /absent");
  const Ran full = judge("libkdtr_broken.so:wrong_sign", "--save /dev/null/x " + scratch);
  CHECK_EQ(full.exit, 1);
  CHECK_HAS(full.output, "diagnosis: equals `negated`");
  CHECK_HAS(full.output, "not saved: filesystem error: ");
  refused("--expect " + scratch, scratch + ": cannot be read");
  CHECK_EQ(judge("libkdtr_broken.so:correct", scratch + "/tiny@1 > /dev/full").exit, 2);
}

void a_pipe_is_refused_at_once() {
  CHECK_EQ(::mkfifo((scratch + "/pipe").c_str(), 0600), 0);
  const Ran ran = shell("timeout 20 " + kBin + "/kdtr-conform list " + scratch + "/pipe");
  CHECK_EQ(ran.exit, 2);
  CHECK_HAS(ran.output, "/pipe: fixture, want a file or a folder, got a pipe or a device");
}

void nothing_ran_is_never_a_pass() {
  const std::string engine = "libkdtr_broken.so:correct";
  CHECK_EQ(judge(engine, "--case no_such_case " + scratch).exit, 2);
  std::filesystem::create_directories(scratch + "/empty");
  CHECK_EQ(judge(engine, scratch + "/empty").exit, 2);
  const Ran absent = judge(engine, scratch + "/absent");
  CHECK_EQ(absent.exit, 2);
  CHECK_HAS(absent.output, "no such file or folder");
}

void a_damaged_file_is_a_failing_test() {
  const std::string folder = scratch + "/damaged/tiny@1";
  std::filesystem::create_directories(folder);
  tiny::Tiny fixture("damaged");
  CHECK(fixture.save(folder + "/damaged.kdtr") == kdtr::Code::ok);
  std::filesystem::resize_file(folder + "/damaged.kdtr", 700);
  const Ran ran = judge("libkdtr_broken.so:correct", folder);
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "FAIL  tiny@1/damaged");
  CHECK_HAS(ran.output, "E_TRUNCATED");
}

void known_failures() {
  const std::string file = scratch + "/expect.txt";
  const auto run = [&](const std::string& fault, const std::string& line) {
    kdtr::conform::write_file(file, line + "\n");
    return judge("libkdtr_broken.so:" + fault,
                 "--expect " + file + " " + scratch + "/tiny@1/ordinary.kdtr");
  };
  Ran ran = run("zeros", "xfail tiny@1/* *broken* zeros are its nature");
  CHECK_EQ(ran.exit, 0);
  CHECK_HAS(ran.output, "XFAIL  tiny@1/ordinary");
  ran = run("correct", "xfail tiny@1/* *broken* zeros are its nature");
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "XPASS  tiny@1/ordinary");
  ran = run("zeros", "waive tiny@1/* *broken* 2999-12-31 https://example.org/issues/1");
  CHECK_EQ(ran.exit, 0);
  CHECK_HAS(ran.output, "WAIVED  tiny@1/ordinary");
  ran = run("zeros", "waive tiny@1/* *broken* 2001-12-31 https://example.org/issues/1");
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "the waiver ended on 2001-12-31");
  ran = run("zeros", "waive tiny@1/* *broken* soon https://example.org/issues/1");
  CHECK_EQ(ran.exit, 2);
  CHECK_HAS(ran.output, "expiry of a waiver, want YYYY-MM-DD, got soon");
}

void reports() {
  const std::string json = scratch + "/out.jsonl", xml = scratch + "/out.xml";
  const Ran ran = judge("libkdtr_broken.so:wrong_sign", "--json " + json + " --junit " + xml +
                                                            " --save " + scratch + "/saved " +
                                                            scratch + "/tiny@1/ordinary.kdtr");
  CHECK_EQ(ran.exit, 1);
  std::string lines = kdtr::conform::read_file(json);
  const auto first = kdtr::conform::Json::parse(lines.substr(0, lines.find('\n')), json);
  CHECK_EQ(first["kind"].text(), std::string("engine"));
  CHECK_EQ(first["sha256"].text().size(), std::size_t{64});
  lines.erase(0, lines.find('\n') + 1);
  const auto second = kdtr::conform::Json::parse(lines.substr(0, lines.find('\n')), json);
  CHECK_EQ(second["status"].text(), std::string("FAIL"));
  CHECK_EQ(second["case"].text(), std::string("tiny@1/ordinary"));
  CHECK_EQ(second["diagnosis"].items()[0].text(), std::string("equals `negated`"));
  const auto& y = second["outputs"].items()[1];  // status, y, z
  CHECK_EQ(y["mismatches"].number(), 7.0);
  CHECK_EQ(y["first"]["want_bits"].text(), std::string("0x40000000"));
  CHECK_HAS(kdtr::conform::read_file(xml), "failures=\"1\"");
  CHECK_EQ(judge("libkdtr_broken.so:one_output", "--junit " + xml + " " + scratch + "/tiny@1").exit,
           0);
  CHECK_HAS(kdtr::conform::read_file(xml),
            "<system-out>PASS  tiny@1/ordinary\n      not checked, the engine does not write: "
            "status, z\n</system-out></testcase>");
  // What the engine gave, byte for byte.
  auto saved = kdtr::File::open(second["saved"].text(), kdtr::Verify::deep);
  CHECK(static_cast<bool>(saved));
  kdtr::TensorView view;
  CHECK(saved.get("y", view) == kdtr::Code::ok);
  CHECK_EQ(view.as<float>().value()[6], -14.0f);
}

// A certificate binds the verdict to the library, the fixtures and the contract.
void certificates() {
  using kdtr::conform::Json;
  const std::string file = scratch + "/tiny@1/ordinary.kdtr", lock = scratch + "/LOCK";
  const std::string root = kdtr::conform::load_fixture(file).root;
  const auto certify = [&](const std::string& fault, const std::string& named) {
    kdtr::conform::write_file(lock, "case tiny@1/ordinary small " + named + "\n");
    return shell("'" + kBin + "/kdtr-conform' certify --engine '" + kBin +
                 "/libkdtr_broken.so:" + fault + "' --out " + scratch + "/certificate " + file);
  };
  const auto statement = [&] {
    const std::string path = scratch + "/certificate/certificate.json";
    return Json::parse(kdtr::conform::read_file(path), path);
  };
  Ran ran = certify("correct", root);
  CHECK_EQ(ran.exit, 0);
  CHECK_HAS(ran.output, "tiny@1      1");
  Json s = statement();
  CHECK_EQ(s["predicate"]["result"].text(), std::string("PASSED"));
  CHECK_EQ(s["subject"].items()[0]["digest"]["sha256"].text(),
           kdtr::conform::file_sha256(kBin + "/libkdtr_broken.so"));
  CHECK_EQ(s["predicate"]["configuration"].items()[0]["digest"]["sha256"].text(),
           kdtr::conform::file_sha256(lock));
  CHECK_EQ(s["predicate"]["kdtr"]["contracts"]["tiny@1"].text(),
           kdtr::conform::load_fixture(file).digest);
  CHECK_EQ(s["predicate"]["passedTests"].items()[0].text(), std::string("tiny@1/ordinary"));

  CHECK_EQ(certify("one_output", root).exit, 0);
  s = statement();
  CHECK_EQ(s["predicate"]["kdtr"]["outputs_not_checked"]["tiny@1"].dump(),
           std::string(R"(["status","z"])"));
  CHECK_EQ(certify("low_precision", root).exit, 0);
  CHECK_EQ(statement()["predicate"]["result"].text(), std::string("WARNED"));
  CHECK_EQ(certify("zeros", root).exit, 1);
  CHECK_EQ(statement()["predicate"]["result"].text(), std::string("FAILED"));
  CHECK_EQ(certify("unsupported", root).exit, 2);
  s = statement();
  CHECK_EQ(s["predicate"]["result"].text(), std::string("FAILED"));
  CHECK_EQ(s["predicate"]["kdtr"]["skips"].items()[0]["why"].text(),
           std::string("only on Tuesdays"));

  // Another file under a published name certifies nothing.
  ran = certify("correct", std::string(64, '0'));
  CHECK_EQ(ran.exit, 1);
  CHECK_HAS(ran.output, "not the published fixture: root " + root);
}

}  // namespace

int main() {
  scratch =
      (std::filesystem::temp_directory_path() / ("kdtr_conform_test_" + std::to_string(::getpid())))
          .string();
  std::filesystem::create_directories(scratch + "/tiny@1");
  CHECK(tiny::Tiny("ordinary").save(scratch + "/tiny@1/ordinary.kdtr") == kdtr::Code::ok);
  CHECK(tiny::Tiny("second", 9).save(scratch + "/tiny@1/second.kdtr") == kdtr::Code::ok);
  verdicts();
  the_next_case_is_judged();
  workers_that_answer_out_of_turn();
  exceptions_are_the_engines_fault();
  an_unwritten_nan_fails();
  a_stale_answer_fails_the_second_case();
  engines_that_do_not_load();
  a_build_without_cuda_says_so();
  the_summary_counts_what_was_chosen();
  a_failed_run_says_where_to_look();
  wrong_arguments_are_named();
  a_pipe_is_refused_at_once();
  nothing_ran_is_never_a_pass();
  a_damaged_file_is_a_failing_test();
  known_failures();
  reports();
  certificates();
  std::filesystem::remove_all(scratch);
  return failures == 0 ? 0 : 1;
}
