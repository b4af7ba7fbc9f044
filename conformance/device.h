// Memory that the judge lends to a kernel: fenced, poisoned and checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdtr/plugin.h"

namespace kdtr::conform {

// Where an engine's tensors live. All calls but `stream` are synchronous; they throw kdtr::Error.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual DLDevice device() const = 0;
  virtual std::string name() const = 0;  // "NVIDIA H200, driver 13.0"
  // `size` bytes, 256-aligned. Host memory ends at a page that faults when touched.
  virtual void* alloc(std::size_t size) = 0;
  virtual void release(void* data, std::size_t size) = 0;
  virtual void upload(void* to, const void* from, std::size_t size) = 0;
  virtual void download(void* to, const void* from, std::size_t size) = 0;
  virtual void sync() = 0;
  virtual void* stream() { return nullptr; }

  // Graphs, where the device has them: what is enqueued between begin and end is kept, not run.
  // end_capture returns "" or why nothing usable was captured; replay enqueues it once.
  virtual bool has_graphs() const { return false; }
  virtual void begin_capture() {}
  virtual std::string end_capture() { return "no graphs"; }
  virtual void replay() {}
};

// Host memory; the CUDA driver, opened at run time; or the engine's own alloc/copy/sync.
std::unique_ptr<Memory> open_memory(DLDevice device, const kdtr_plugin_table& table, void* engine);

enum class Poison { kA, kB };

// One argument: guard | payload | guard. A payload of 0 bytes has an address and guards too.
class Buffer {
 public:
  Buffer(Memory& memory, std::string name, std::size_t payload);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return base_ + kGuard; }
  std::size_t size() const { return payload_; }
  // Renew the guards, and the payload with bytes or with a pattern that suits `dtype`.
  void fill(std::span<const std::byte> bytes, Poison pattern);
  void poison(DLDataType dtype, Poison pattern);
  void zero();
  void scribble(Poison pattern);  // workspace: no dtype, and no poison of an output
  // What the kernel left. Then `bytes` is the payload and `damage` says which guard was hit:
  // "wrote 12 B past `out`", or "".
  void collect();
  std::span<const std::byte> bytes() const { return {image_.data() + kGuard, payload_}; }
  const std::string& damage() const { return damage_; }

  static constexpr std::size_t kGuard = 4096;

 private:
  void arm(Poison pattern);
  Memory& memory_;
  std::string name_;
  std::size_t payload_, total_;
  std::byte* base_;
  std::vector<std::byte> image_;
  std::string damage_;
  Poison guards_ = Poison::kA;
};

// The poison of one element, as bits.
std::uint64_t poison_bits(DLDataType dtype, Poison pattern);

// Host buffers alive now, for a fault handler: finds the one nearest to `address` and writes
// "300 B past the end of `out`" to `text`. Async-signal-safe. Returns the length, 0 when none.
std::size_t explain_address(std::uintptr_t address, char* text, std::size_t size);

}  // namespace kdtr::conform
