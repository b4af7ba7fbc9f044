#include "tensor_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "json_reader.h"
#include "kdtr/error.h"
#include "kdtr/tensor.h"

namespace kdtr::model {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit

DLDataType dtype_from(const std::string& name, const std::string& where) {
  if (name == "F32") return dtype_of<float>;
  if (name == "BF16") return dtype_of<bf16>;
  if (name == "F16") return dtype_of<f16>;
  if (name == "I32") return dtype_of<std::int32_t>;
  if (name == "I64") return dtype_of<std::int64_t>;
  if (name == "U8") return dtype_of<std::uint8_t>;
  fail(where, "dtype", "F32, BF16, F16, I32, I64 or U8", name);
}

// A count in a header: digits only, so that no fraction or exponent slips through.
std::uint64_t count(const Json& value, const std::string& where) {
  if (value.kind != Json::kNumber ||
      value.text.find_first_not_of("0123456789") != std::string::npos || value.number > 0x1p52)
    fail(where, "value", "an integer from 0 to 2^52", value.text);
  return static_cast<std::uint64_t>(value.number);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape)
    text.append(text.size() > 1 ? ", " : "").append(std::to_string(n));
  return text.append("]");
}

}  // namespace

std::string TensorFile::path_of(const std::string& stem) {
  const std::string kdtr = stem + ".kdtr";
  std::string path = stem + ".safetensors";
  return !std::filesystem::exists(path) && std::filesystem::exists(kdtr) ? kdtr : path;
}

TensorFile::TensorFile(const std::string& path) : path_(path) {
  if (path.ends_with(".kdtr"))
    read_kdtr();
  else
    read_safetensors();
}

void TensorFile::read_kdtr() {
  kdtr_ = File::open(path_, Verify::eager, true);
  if (!*kdtr_)
    fail(path_, std::string(code_name(kdtr_->code())) + " at byte " +
                    std::to_string(kdtr_->fault_offset()));
  for (std::uint32_t i = 0; i < kdtr_->size(); ++i) {
    const TensorView t = (*kdtr_)[i];
    const std::string name(t.name);
    if (t.dtype != kF32 && t.dtype != kBf16 && t.dtype != kI32)
      fail(path_ + "/" + name, "dtype", "f32, bf16 or i32", kdtr::dtype_name(t.dtype));
    Entry entry;
    entry.dtype = {t.dtype.code, t.dtype.bits, 1};
    entry.shape.assign(t.shape().begin(), t.shape().end());
    entry.bytes = t.data;
    entries_.emplace(name, std::move(entry));
  }
}

void TensorFile::read_safetensors() {
  const std::string& path = path_;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, std::strerror(errno));
  struct stat info{};
  const bool known = ::fstat(fd, &info) == 0;
  size_ = known ? static_cast<std::size_t>(info.st_size) : 0;
  if (size_ >= 8) map_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (size_ < 8) fail(path, "file size", "at least 8 bytes", size_);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    fail(path, "cannot map the file");
  }
  try {
    const auto* bytes = static_cast<const std::byte*>(map_);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes, 8);
    KDTR_CHECK(header <= kMaxHeader && header <= size_ - 8, path, "header length",
               "at most " + std::to_string(size_ - 8), header);
    const std::span<const std::byte> data(bytes + 8 + header, size_ - 8 - header);
    const Json json = parse_json({reinterpret_cast<const char*>(bytes) + 8, header}, path);
    if (json.kind != Json::kObject) fail(path, "header is not an object");
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
    for (const auto& [name, value] : json.members) {
      if (name == "__metadata__") continue;
      const std::string where = path + "/" + name;
      const Json *dtype = value.find("dtype"), *shape = value.find("shape"),
                 *offsets = value.find("data_offsets");
      if (dtype == nullptr || dtype->kind != Json::kString || shape == nullptr ||
          shape->kind != Json::kArray || offsets == nullptr || offsets->items.size() != 2)
        fail(where, "entry", "dtype, shape and two data_offsets", "another form");
      Entry entry;
      entry.dtype = dtype_from(dtype->text, where);
      std::uint64_t numel = 1;
      for (const Json& item : shape->items) {
        const std::uint64_t n = count(item, where + "/shape");
        entry.shape.push_back(static_cast<std::int64_t>(n));
        KDTR_CHECK(n == 0 || numel <= data.size() / n, where, "shape",
                   "at most " + std::to_string(data.size()) + " elements", shape_text(entry.shape));
        numel *= n;
      }
      const std::uint64_t begin = count(offsets->items[0], where),
                          end = count(offsets->items[1], where);
      KDTR_CHECK(begin <= end && end <= data.size(), where, "data_offsets",
                 "within " + std::to_string(data.size()) + " bytes",
                 std::to_string(begin) + ".." + std::to_string(end));
      KDTR_CHECK(end - begin == numel * (entry.dtype.bits / 8u), where, "size in bytes",
                 numel * (entry.dtype.bits / 8u), end - begin);
      entry.bytes = data.subspan(begin, end - begin);
      spans.emplace_back(begin, end);
      entries_.emplace(name, std::move(entry));
    }
    std::sort(spans.begin(), spans.end());
    std::uint64_t at = 0;
    for (const auto& [begin, end] : spans) {
      KDTR_CHECK(begin == at, path, "data without gaps or overlaps: next offset", at, begin);
      at = end;
    }
    KDTR_CHECK(at == data.size(), path, "bytes of data", at, data.size());
  } catch (...) {
    ::munmap(map_, size_);
    throw;
  }
}

TensorFile::~TensorFile() {
  if (map_ != nullptr) ::munmap(map_, size_);
}

const TensorFile::Entry& TensorFile::get(const std::string& name,
                                         const std::vector<std::int64_t>& shape) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) fail(path_ + "/" + name, "tensor is missing");
  KDTR_CHECK(it->second.shape == shape, path_ + "/" + name, "shape", shape_text(shape),
             shape_text(it->second.shape));
  return it->second;
}

}  // namespace kdtr::model
