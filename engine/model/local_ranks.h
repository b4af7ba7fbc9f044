// Ranks as threads of one process, on host memory: how shards are checked without several devices.
#pragma once

#include <barrier>
#include <cstring>
#include <vector>

#include "kdtr/tensor.h"
#include "memory.h"

namespace kdtr::model {

// What the ranks of one group share. Every rank must make the same calls in the same order.
struct LocalGroup {
  explicit LocalGroup(int n) : world(n), parts(static_cast<std::size_t>(n)), meet(n) {}
  int world;
  std::vector<const void*> parts;
  std::barrier<> meet;
};

class LocalRank final : public Communicator {
 public:
  LocalRank(LocalGroup& group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int world() const override { return group_.world; }

  std::size_t scratch(std::size_t) const override { return 0; }

  void sum(void* data, DLDataType dtype, std::size_t n, void*, Memory&) override {
    is<bf16>(dtype) ? sum_of(static_cast<bf16*>(data), n) : sum_of(static_cast<float*>(data), n);
  }

  void gather_columns(const float* part, float* out, std::size_t rows, std::size_t columns, void*,
                      Memory&) override {
    share_part(part);
    for (int r = 0; r < group_.world; ++r) {
      const Range mine = model::share(static_cast<std::int64_t>(columns), r, group_.world);
      const auto first = static_cast<std::size_t>(mine.first);
      const auto count = static_cast<std::size_t>(mine.count);
      const auto* from = static_cast<const float*>(group_.parts[static_cast<std::size_t>(r)]);
      for (std::size_t t = 0; t < rows; ++t)
        std::memcpy(out + t * columns + first, from + t * count, count * sizeof(float));
    }
    group_.meet.arrive_and_wait();
  }

 private:
  template <class T>
  void sum_of(T* data, std::size_t n) {
    share_part(data);
    std::vector<float> total(n, 0.0f);
    for (const void* part : group_.parts)  // in rank order on every rank: the same bits
      for (std::size_t i = 0; i < n; ++i)
        total[i] += static_cast<float>(static_cast<const T*>(part)[i]);
    group_.meet.arrive_and_wait();
    for (std::size_t i = 0; i < n; ++i) data[i] = T(total[i]);
  }

  void share_part(const void* part) {
    group_.parts[static_cast<std::size_t>(rank_)] = part;
    group_.meet.arrive_and_wait();
  }

  LocalGroup& group_;
  int rank_;
};

}  // namespace kdtr::model
