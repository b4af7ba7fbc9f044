// `score` finds a mutant that survives, a false claim, a null answer and references that disagree.
#include "score.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "check.h"
#include "tiny.h"

namespace {

using kdtr::conform::Score;

std::string folder;

// Scores one fixture with a catalogue of faults, space-separated.
Score score(const std::string& faults, const tiny::Tiny& fixture = tiny::Tiny()) {
  std::string catalogue, fault;
  for (const char c : faults + " ") {
    if (c != ' ') {
      fault += c;
    } else if (!fault.empty()) {
      catalogue += "tiny@1\t" + fault + "\tplanted\n";
      fault.clear();
    }
  }
  ::setenv("TINY_CATALOGUE", catalogue.c_str(), 1);
  const std::string path = folder + "/ordinary.kdtr";
  CHECK(fixture.save(path) == kdtr::Code::ok);
  kdtr::conform::ScoreOptions options;
  options.library = KDTR_BINARY_DIR "/libkdtr_tiny_mutants.so";
  options.timeout = 1;
  return kdtr::conform::score_mutants(options, {path});
}

tiny::Tiny claiming(const std::string& kills) {
  tiny::Tiny t;
  t.change = [kills](kdtr::ContainerWriter& w) { w.meta("kills", kills); };
  return t;
}

void expect(const Score& score, int exit, const std::string& text) {
  CHECK_EQ(score.exit, exit);
  CHECK_HAS(score.text, text);
}

}  // namespace

int main() {
  folder = (std::filesystem::temp_directory_path() /
            ("kdtr_score_test_" + std::to_string(::getpid())) / "tiny@1")
               .string();
  std::filesystem::create_directories(folder);

  const Score good = score("correct unscaled far_off");
  expect(good, 0, "1 ops, 1 cases: 2 killed, 0 survived");
  CHECK_HAS(good.markdown, "| `unscaled` | **X** | 1 |");
  CHECK_HAS(good.markdown, "| `far_off` | **1e+03** | 1 |");  // off by 1, hard 2^-10
  CHECK_EQ(good.json["killed"].number(), 2.0);

  expect(score("correct crashes hangs"), 0, "2 killed, 0 survived");
  CHECK_HAS(score("correct crashes hangs").markdown, "**crash**");
  expect(score("correct harmless unscaled"), 1,
         "tiny@1:harmless survived: no case rejects it (planted)");
  expect(score("unscaled"), 1, "tiny@1: the first fault is not `correct`");
  expect(score("correct unscaled", claiming("unscaled")), 0, "1 killed");
  expect(score("correct unscaled harmless", claiming("harmless")), 1,
         "says that it kills harmless, and does not");
  expect(score("correct unscaled", claiming("unheard_of")), 1,
         "says that it kills unheard_of, which is no mutant");
  expect(score(""), 2, "tiny@1: no mutants");

  // The control: gold that is off, and gold that is off by less than the output can show.
  tiny::Tiny off;
  off.z[2] += 1;
  expect(score("correct unscaled", off), 1, "tiny@1/ordinary: the control is rejected: FAIL z:");
  tiny::Tiny slightly;
  slightly.z[2] *= 1 + 0x1p-36;
  expect(score("correct unscaled", slightly), 1, "the two references disagree beyond 2^-40");
  tiny::Tiny barely;
  barely.z[2] *= 1 + 0x1p-42;
  expect(score("correct unscaled", barely), 0, "1 killed");

  // All zeros in, so all zeros out: an answer of zeros proves nothing.
  tiny::Tiny empty;
  empty.x.assign(7, 0);
  empty.fill();
  empty.negated.assign(7, 1);
  expect(score("correct far_off", empty), 1,
         "tiny@1/ordinary: zeros would pass, and null_ok does not say why");
  empty.change = [](kdtr::ContainerWriter& w) { w.meta("null_ok", "zero is the answer"); };
  expect(score("correct far_off", empty), 0, "1 killed");

  std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
  return failures == 0 ? 0 : 1;
}
