// The decoder in C++: shards give the tokens of the whole model, on the recorded prompts; in bf16,
// where a shard's partial sums are rounded, all ranks still give the same ones.

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "model/decoder.h"
#include "model/json_reader.h"
#include "model/local_ranks.h"

namespace {

using kdtr::model::Json;

const std::string kFolder = std::string(KDTR_SOURCE_DIR) + "/goldens/model/tiny_deepseek_v3";
int failures = 0;

void check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  ++failures;
}

std::vector<std::int32_t> ids(const Json& list) {
  std::vector<std::int32_t> out;
  for (const Json& item : list.items) out.push_back(static_cast<std::int32_t>(item.number));
  return out;
}

// Tokens of one rank: greedy for a while, then by draft trees.
std::vector<std::int32_t> decode(kdtr::model::Communicator& ranks,
                                 const std::vector<std::int32_t>& prompt, std::size_t count,
                                 bool bf16) {
  kdtr::model::Decoder decoder(kFolder, {1, 512, 16, 16, bf16}, kdtr::model::backend_memory(),
                               ranks);
  const std::int32_t request = 0;
  std::vector<std::int32_t> out{decoder.prefill(0, prompt)};
  std::int32_t token = 0, accepted = 0;
  for (int i = 0; i < 8; ++i) {
    decoder.greedy({&request, 1}, {&token, 1});
    out.push_back(token);
  }
  std::vector<std::int32_t> round(static_cast<std::size_t>(decoder.depth() + 1));
  while (out.size() < count) {
    decoder.tree({&request, 1}, 16, {&accepted, 1}, round);
    out.insert(out.end(), round.begin(), round.begin() + accepted + 1);
  }
  out.resize(count);
  return out;
}

// Of every rank of a world of threads.
std::vector<std::vector<std::int32_t>> decode(int world, const std::vector<std::int32_t>& prompt,
                                              std::size_t count, bool bf16) {
  kdtr::model::LocalGroup group(world);
  std::vector<std::vector<std::int32_t>> got(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      kdtr::model::LocalRank ranks(group, rank);
      got[static_cast<std::size_t>(rank)] = decode(ranks, prompt, count, bf16);
    });
  for (std::thread& thread : threads) thread.join();
  return got;
}

}  // namespace

int main() {
  std::ifstream file(kFolder + "/greedy_tokens.json", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const Json record = kdtr::model::parse_json(text.str(), "greedy_tokens.json");
  for (const std::size_t p : {std::size_t{0}, std::size_t{6}}) {
    const Json& prompt = record.find("prompts")->items[p];
    const std::vector<std::int32_t> want = ids(*prompt.find("output_ids"));
    for (const int world : {1, 2, 3, 4}) {  // 3: heads, columns and vocabulary divide unevenly
      const auto got = decode(world, ids(*prompt.find("prompt_ids")), want.size(), false);
      for (std::size_t rank = 0; rank < got.size(); ++rank)
        check(got[rank] == want, "prompt " + std::to_string(p) + ", rank " + std::to_string(rank) +
                                     " of " + std::to_string(world) +
                                     " decodes the recorded tokens");
    }
    const auto got = decode(3, ids(*prompt.find("prompt_ids")), want.size(), true);
    for (std::size_t rank = 1; rank < got.size(); ++rank)
      check(got[rank] == got[0], "prompt " + std::to_string(p) + " in bf16, rank " +
                                     std::to_string(rank) + " decodes the tokens of rank 0");
  }
  return failures == 0 ? 0 : 1;
}
