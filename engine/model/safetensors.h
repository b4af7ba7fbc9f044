// A safetensors file, mapped read-only. Every length and offset is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kdtr/plugin.h"

namespace kdtr::model {

class Safetensors {
 public:
  struct Entry {
    DLDataType dtype{};
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;  // may be unaligned
  };

  // Throws kdtr::Error naming the file and the tensor at fault.
  explicit Safetensors(const std::string& path);
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;
  ~Safetensors();

  const std::map<std::string, Entry>& entries() const { return entries_; }
  // The tensor, of this shape. Throws when it is missing or has another shape.
  const Entry& get(const std::string& name, const std::vector<std::int64_t>& shape) const;

 private:
  std::string path_;
  void* map_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, Entry> entries_;
};

}  // namespace kdtr::model
