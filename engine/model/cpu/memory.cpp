// Host memory for the CPU engine.
#include "../memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace kdtr::model {
namespace {

// The host has no queue to record: the work runs again.
class Again final : public Recording {
 public:
  explicit Again(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

class HostMemory final : public Memory {
 public:
  DLDevice device() const override { return {kDLCPU, 0}; }
  void* stream() const override { return nullptr; }
  bool keeps_bf16() const override { return false; }
  void* alloc(std::size_t bytes) override {
    void* data = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    if (data == nullptr) throw std::bad_alloc();
    return data;
  }
  void release(void* data) override { std::free(data); }
  void write(void* to, const void* host, std::size_t bytes) override { copy(to, host, bytes); }
  void read(void* host, const void* from, std::size_t bytes) override { copy(host, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t bytes, std::size_t rows) override {
    for (std::size_t r = 0; r < rows; ++r)
      copy(static_cast<std::byte*>(to) + r * to_stride,
           static_cast<const std::byte*>(from) + r * from_stride, bytes);
  }
  void zero(void* data, std::size_t bytes) override { std::memset(data, 0, bytes); }
  std::unique_ptr<Recording> record(std::function<void()> work) override {
    return std::make_unique<Again>(std::move(work));
  }
};

}  // namespace

Memory& backend_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace kdtr::model
