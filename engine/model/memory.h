// Where tensors live, and how ranks meet: the two seams between the driver and a backend.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kdtr/plugin.h"

namespace kdtr::model {

// Work that was recorded once, to be run again on the same buffers.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // enqueues it
};

// Device memory of one backend. Copies are ordered with kernels on `stream`; `read` waits.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual DLDevice device() const = 0;
  virtual void* stream() const = 0;
  // Whether kernels read bf16 weights at no loss of speed; otherwise they are widened when loaded.
  virtual bool keeps_bf16() const = 0;
  virtual void* alloc(std::size_t bytes) = 0;
  virtual void release(void* data) = 0;
  virtual void write(void* to, const void* host, std::size_t bytes) = 0;
  virtual void read(void* host, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // `rows` pieces of `bytes` each, at these strides in bytes.
  virtual void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                         std::size_t bytes, std::size_t rows) = 0;
  virtual void zero(void* data, std::size_t bytes) = 0;
  // Records what `work` enqueues on the stream without running it. `work` allocates nothing and
  // moves nothing between host and device.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) = 0;
};

// The memory of this library's backend; each backend defines it once.
Memory& backend_memory();

// Blocks of one memory, freed together: also when a constructor fails half way.
class Arena {
 public:
  explicit Arena(Memory& memory) : memory_(memory) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (void* block : blocks_) memory_.release(block);
  }
  void* alloc(std::size_t bytes) {
    blocks_.reserve(blocks_.size() + 1);
    return blocks_.emplace_back(memory_.alloc(bytes));
  }
  void release(void* block) {
    blocks_.erase(std::find(blocks_.begin(), blocks_.end(), block));
    memory_.release(block);
  }

 private:
  Memory& memory_;
  std::vector<void*> blocks_;
};

// Ranks that hold shards of one model. Every rank computes all tokens; heads, hidden columns of
// the MLPs and vocabulary rows are split. Every rank makes the same calls in the same order, with
// `scratch` bytes beside the data where scratch() asks for them.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Of either call, where a rank's data has at most this many bytes.
  virtual std::size_t scratch(std::size_t bytes) const = 0;
  // data[n], f32 or bf16, becomes the sum over ranks in their order, in f32 with one rounding at
  // the end: the same bits on every rank.
  virtual void sum(void* data, DLDataType dtype, std::size_t n, void* scratch, Memory& memory) = 0;
  // out[t, :] is the ranks' part[t, :] side by side, rank r's columns at share(columns, r, world).
  virtual void gather_columns(const float* part, float* out, std::size_t rows, std::size_t columns,
                              void* scratch, Memory& memory) = 0;
};

// What the ranks of one group must share: made by one of them, passed to all.
constexpr std::size_t kGroupBytes = 128;
using Group = std::array<std::uint8_t, kGroupBytes>;
// Processes with a device each; each backend defines both. Throws kdtr::Error where it has none.
Group new_group();
std::unique_ptr<Communicator> join_group(const Group& group, int rank, int world);

// Columns first .. first + count of n belong to `rank` of `world`: as even as possible.
struct Range {
  std::int64_t first = 0, count = 0;
};
inline Range share(std::int64_t n, int rank, int world) {
  const std::int64_t first = n * rank / world;
  return {first, n * (rank + 1) / world - first};
}

// World 1: nothing to do.
class Alone final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world() const override { return 1; }
  std::size_t scratch(std::size_t) const override { return 0; }
  void sum(void*, DLDataType, std::size_t, void*, Memory&) override {}
  void gather_columns(const float* part, float* out, std::size_t rows, std::size_t columns, void*,
                      Memory& memory) override {
    memory.copy(out, part, rows * columns * sizeof(float));
  }
};

}  // namespace kdtr::model
