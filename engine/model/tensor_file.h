// A file of named tensors, safetensors or KDTR, mapped read-only and checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kdtr/container.h"
#include "kdtr/plugin.h"

namespace kdtr::model {

class TensorFile {
 public:
  struct Entry {
    DLDataType dtype{};
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;  // may be unaligned
  };

  // STEM.safetensors, or STEM.kdtr where there is no such file but that one.
  static std::string path_of(const std::string& stem);

  // Throws kdtr::Error naming the file and the tensor at fault.
  explicit TensorFile(const std::string& path);
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  ~TensorFile();

  const std::map<std::string, Entry>& entries() const { return entries_; }
  // The tensor, of this shape. Throws when it is missing or has another shape.
  const Entry& get(const std::string& name, const std::vector<std::int64_t>& shape) const;

 private:
  void read_kdtr();
  void read_safetensors();

  std::string path_;
  std::optional<File> kdtr_;  // else a mapping
  void* map_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, Entry> entries_;
};

}  // namespace kdtr::model
