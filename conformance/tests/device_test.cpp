// The judge's device path, on a driver that is faked: memory, guards, sticky errors and graphs.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "check.h"
#include "tiny.h"

namespace {

const std::string kBin = KDTR_BINARY_DIR;
std::string scratch;

void expect(const std::string& fault, int exit, const std::string& status,
            const std::string& text = "", const std::string& options = "",
            const std::string& environment = "") {
  const std::string command =
      environment + " LD_LIBRARY_PATH=" + scratch + " '" + kBin + "/kdtr-conform' run --engine '" +
      kBin + "/libkdtr_broken_cuda.so:" + fault + "' " + options + " " + scratch + "/tiny@1 2>&1";
  std::string output;
  std::FILE* pipe = ::popen(command.c_str(), "r");  // NOLINT(bugprone-command-processor): our words
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  const int before = failures;
  CHECK_EQ(WEXITSTATUS(::pclose(pipe)), exit);
  CHECK_HAS(output, status);
  CHECK_HAS(output, text);
  if (failures != before)
    std::fprintf(stderr, "^ fault `%s`:\n%s\n", fault.c_str(), output.c_str());
}

}  // namespace

int main() {
  namespace fs = std::filesystem;
  scratch =
      (fs::temp_directory_path() / ("kdtr_device_test_" + std::to_string(::getpid()))).string();
  fs::create_directories(scratch + "/tiny@1");
  fs::create_symlink(kBin + "/libkdtr_fake_cuda.so", scratch + "/libcuda.so.1");
  CHECK(tiny::Tiny("ordinary").save(scratch + "/tiny@1/ordinary.kdtr") == kdtr::Code::ok);
  CHECK(tiny::Tiny("second", 9).save(scratch + "/tiny@1/second.kdtr") == kdtr::Code::ok);

  expect("correct", 0, "2 PASS", "on Fake GPU, CUDA driver 13.1");
  expect("correct", 0, "2 PASS", "", "--graph");
  expect("writes_past", 1, "2 FAIL", "wrote 300 B past `y`");
  // A sticky error costs its own case only: each is judged in a fresh process.
  expect("faults", 1, "2 CRASH", "CUDA_ERROR_ILLEGAL_ADDRESS (700)");

  expect("bakes_an_input", 0, "2 PASS");
  expect("bakes_an_input", 1, "2 FAIL",
         "y: a graph replay gives other bits than the run, first at [N=0]", "--graph");
  expect("ignores_the_stream", 1, "2 FAIL", "a graph replay gives other bits than the run",
         "--graph");
  // Right in the first replay, wrong in the second.
  expect("counts_launches", 1, "FAIL  tiny@1/ordinary",
         "y: a graph replay gives other bits than the run, first at [N=1]", "--graph");

  expect("correct", 2, "2 SKIP", "CUDA_ERROR_NO_DEVICE", "", "FAKE_CUDA_ABSENT=1");
  expect("correct", 77, "2 SKIP", "", "--skip-code 77", "FAKE_CUDA_ABSENT=1");
  fs::remove(scratch + "/libcuda.so.1");
  fs::create_symlink("/dev/null", scratch + "/libcuda.so.1");
  expect("correct", 2, "2 SKIP", "no GPU driver on this machine");
  fs::remove_all(scratch);
  return failures == 0 ? 0 : 1;
}
