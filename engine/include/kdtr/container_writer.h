// Writes KDTR v1 tensor files, byte for byte as kdtr/container.py does.
//
//   kdtr::ContainerWriter w;
//   w.meta("case", "ragged_batch");
//   w.tensor("q", kdtr::kF32, shape, std::as_bytes(values));
//   w.tensor_meta("q", "role", "input");
//   kdtr::Code code = w.save("case.kdtr");
//
// Holds references to the payloads until the end, and the whole file in memory.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kdtr/container.h"

namespace kdtr {

class ContainerWriter {
 public:
  using Shape = std::span<const std::uint64_t>;

  // Adds a tensor. `data` is its packed payload, and must outlive the writer.
  void tensor(std::string_view name, DType dtype, Shape dims, Bytes data) {
    const bool added =
        tensors_.try_emplace(std::string(name), Tensor{dtype, {dims.begin(), dims.end()}, data, {}})
            .second;
    if (!added) note(Code::E_NAME_DUP);
    if (dims.size() > kMaxRank) note(Code::E_RANK);
  }
  void tensor(std::string_view name, DType dtype, std::initializer_list<std::uint64_t> dims,
              Bytes data) {
    tensor(name, dtype, Shape(dims.begin(), dims.size()), data);
  }
  template <class T>
  void tensor(std::string_view name, std::initializer_list<std::uint64_t> dims,
              std::span<const T> values) {
    tensor(name, ElementOf<T>::type, dims, std::as_bytes(values));
  }

  // Sets the file's metadata value `key`: bool, integer, double, text or bytes.
  template <class T>
  void meta(std::string_view key, const T& value) {
    set(meta_, key, value);
  }
  // Sets a metadata value of a tensor that was added before.
  template <class T>
  void tensor_meta(std::string_view name, std::string_view key, const T& value) {
    const auto t = tensors_.find(name);
    if (t == tensors_.end()) return note(Code::E_NOT_FOUND);
    set(t->second.meta, key, value);
  }

  // The file's bytes in `out`, or the rule that the content would break.
  Code dump(std::vector<std::byte>& out) const {
    if (code_ != Code::ok) return code_;
    if (tensors_.size() > 1u << 20) return Code::E_LIMIT;
    std::string names, strings;
    std::vector<std::byte> records, kvs;
    std::size_t kv_count = meta_.size();
    for (const auto& [name, t] : tensors_) {
      names += name;
      kv_count += t.meta.size();
    }
    strings = names;
    if (kv_count > 1u << 20) return Code::E_LIMIT;
    std::uint32_t owner = 0;
    if (const Code c = put_meta(kvs, strings, owner, meta_); c != Code::ok) return c;
    for (const auto& [name, t] : tensors_)
      if (const Code c = put_meta(kvs, strings, ++owner, t.meta); c != Code::ok) return c;
    if (strings.size() > 1u << 26) return Code::E_LIMIT;

    const std::size_t prefix = 128 + 128 * tensors_.size() + kvs.size() + strings.size();
    std::uint64_t offset = detail::align_up(prefix);
    std::uint32_t cursor = 0;
    for (const auto& [name, t] : tensors_) {
      if (name.size() > 1024) return Code::E_NAME_LENGTH;
      put<std::uint32_t>(records, cursor);
      put<std::uint16_t>(records, name.size());
      put<std::uint8_t>(records, t.dims.size());
      put<std::uint8_t>(records, 0);
      put<std::uint8_t>(records, t.dtype.code);
      put<std::uint8_t>(records, t.dtype.bits);
      put<std::uint16_t>(records, 1);
      put<std::uint32_t>(records, crc32(t.data));
      put<std::uint64_t>(records, offset);
      put<std::uint64_t>(records, t.data.size());
      for (std::size_t k = 0; k < kMaxRank; ++k)
        put<std::uint64_t>(records, k < t.dims.size() ? t.dims[k] : 0);
      append(records, sha256(t.data));
      cursor += static_cast<std::uint32_t>(name.size());
      offset = detail::align_up(offset + t.data.size());
    }

    out.clear();
    out.reserve(static_cast<std::size_t>(offset));
    append(out, std::as_bytes(std::span(std::string_view("KDTR\r\n\x1a\n"))));
    put<std::uint32_t>(out, 1);
    out.resize(48);
    put<std::uint64_t>(out, offset);
    put<std::uint32_t>(out, tensors_.size());
    put<std::uint32_t>(out, kv_count);
    put<std::uint32_t>(out, strings.size());
    out.resize(128);
    append(out, records);
    append(out, kvs);
    append(out, std::as_bytes(std::span(strings)));
    const Digest root = sha256(Bytes(out).subspan(48));
    std::copy(root.begin(), root.end(), out.begin() + 16);
    std::vector<std::byte> sum;
    put<std::uint32_t>(sum, crc32(Bytes(out).subspan(16)));
    std::copy(sum.begin(), sum.end(), out.begin() + 12);
    for (const auto& [name, t] : tensors_) {
      out.resize(static_cast<std::size_t>(detail::align_up(out.size())));
      append(out, t.data);
    }
    out.resize(static_cast<std::size_t>(detail::align_up(out.size())));

    // The reader's own rules decide whether the content is allowed.
    Index index;
    std::uint64_t fault = 0;
    const Code c = parse(out, index);
    return c == Code::ok ? check_all(index, out, false, fault) : c;
  }

  // Writes the file in one step: it appears under `path` only when it is whole.
  Code save(const std::string& path) const {
    std::vector<std::byte> bytes;
    if (const Code c = dump(bytes); c != Code::ok) return c;
    std::random_device random;
    const std::string temporary =
        path + "." + std::to_string(random()) + std::to_string(random()) + ".tmp";
    std::FILE* f = std::fopen(temporary.c_str(), "wbx");
    if (f == nullptr) return Code::E_IO;
    bool good = std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
    good = std::fflush(f) == 0 && good;
#if !defined(_WIN32)
    good = good && ::fsync(::fileno(f)) == 0;
#endif
    good = std::fclose(f) == 0 && good;
#if defined(_WIN32)
    good = good && MoveFileExA(temporary.c_str(), path.c_str(), MOVEFILE_REPLACE_EXISTING) != 0;
#else
    good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
#endif
    if (!good) std::remove(temporary.c_str());
    return good ? Code::ok : Code::E_IO;
  }

 private:
  struct Value {
    MetaValue::Type type = MetaValue::Type::boolean;
    std::uint64_t bits = 0;
    std::string data;
  };
  using Meta = std::map<std::string, Value, std::less<>>;  // std::string compares as bytes
  struct Tensor {
    DType dtype;
    std::vector<std::uint64_t> dims;
    Bytes data;
    Meta meta;
  };

  template <class T>
  static void set(Meta& meta, std::string_view key, const T& value) {
    using Type = MetaValue::Type;
    Value v{};
    if constexpr (std::is_same_v<T, bool>) {
      v = {Type::boolean, value ? 1u : 0u, {}};
    } else if constexpr (std::integral<T>) {
      const bool large = std::is_unsigned_v<T> && static_cast<std::uint64_t>(value) >> 63 != 0;
      v = {large ? Type::u64 : Type::i64, static_cast<std::uint64_t>(value), {}};
    } else if constexpr (std::floating_point<T>) {
      const auto wide = static_cast<double>(value);
      v = {Type::f64, std::isnan(wide) ? 0x7FF8ull << 48 : std::bit_cast<std::uint64_t>(wide), {}};
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      v = {Type::utf8, 0, std::string(std::string_view(value))};
    } else {
      v = {Type::bytes, 0, std::string(detail::text(Bytes(value)))};
    }
    meta.insert_or_assign(std::string(key), std::move(v));
  }

  void note(Code code) {
    if (code_ == Code::ok) code_ = code;
  }

  static void append(std::vector<std::byte>& to, Bytes bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
  }

  template <class T>
  static void put(std::vector<std::byte>& to, std::uint64_t value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) to.push_back(std::byte(value >> (8 * i) & 255));
  }

  static Code put_meta(std::vector<std::byte>& kvs, std::string& strings, std::uint32_t owner,
                       const Meta& meta) {
    for (const auto& [key, v] : meta) {
      if (key.size() > 1024) return Code::E_KV_KEY_LENGTH;
      if (strings.size() + key.size() + v.data.size() > 1u << 26) return Code::E_LIMIT;
      const bool scalar = v.type < MetaValue::Type::utf8;
      put<std::uint32_t>(kvs, owner);
      put<std::uint32_t>(kvs, strings.size());
      put<std::uint16_t>(kvs, key.size());
      put<std::uint8_t>(kvs, static_cast<std::uint64_t>(v.type));
      put<std::uint8_t>(kvs, 0);
      put<std::uint32_t>(kvs, v.data.size());
      strings += key;
      put<std::uint64_t>(kvs, scalar ? v.bits : strings.size());
      strings += v.data;
    }
    return Code::ok;
  }

  std::map<std::string, Tensor, std::less<>> tensors_;
  Meta meta_;
  Code code_ = Code::ok;
};

}  // namespace kdtr
