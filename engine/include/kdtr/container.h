// Reads KDTR v1 tensor files; the bytes and the rules are described in docs/format.md.
//
//   kdtr::File file = kdtr::File::open("case.kdtr");
//   if (!file) return fail(file.error());
//   kdtr::TensorView q;
//   if (file.get("q", q) != kdtr::Code::ok) return fail(file.error());
//   std::span<const float> values = q.as<float>().value();
//
// parse() allocates nothing and throws nothing. Views point into the bytes that were parsed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kdtr/checksum.h"
#include "kdtr/mapped_file.h"

namespace kdtr {

// The rules by name; docs/format.md gives their order.
// clang-format off
#define KDTR_CODES(X) \
  X(E_TRUNCATED) X(E_MAGIC_TEXTMODE) X(E_MAGIC) X(E_VERSION) X(E_LIMIT) X(E_TRAILING) \
  X(E_FILE_SIZE) X(E_PREFIX_RANGE) X(E_PREFIX_CRC) X(E_RESERVED) X(E_NAME_SPAN) X(E_NAME_LENGTH) \
  X(E_NAME_UTF8) X(E_NAME_CHAR) X(E_NAME_PATH) X(E_NAME_DUP) X(E_NAME_ORDER) X(E_DTYPE) \
  X(E_RANK) X(E_DIM_UNUSED) X(E_DIM_RANGE) X(E_NUMEL_OVERFLOW) X(E_DATA_LEN) X(E_DATA_ALIGN) \
  X(E_DATA_OFFSET) X(E_DATA_RANGE) X(E_KV_OWNER) X(E_KV_SPAN) X(E_KV_KEY_LENGTH) \
  X(E_KV_KEY_UTF8) X(E_KV_KEY_CHAR) X(E_KV_KEY_PATH) X(E_KV_DUP) X(E_KV_ORDER) X(E_KV_TYPE) \
  X(E_KV_VALUE) X(E_KV_UTF8) X(E_STRINGS_UNUSED) X(E_PADDING) X(E_TENSOR_CRC) X(E_BOOL_VALUE) \
  X(E_SUBBYTE_TAIL) X(E_TENSOR_DIGEST) X(E_ROOT_DIGEST) X(E_IO) X(E_NOT_FOUND) \
  X(E_DTYPE_MISMATCH) X(E_SHAPE_MISMATCH) X(E_HOST)
// clang-format on

enum class Code : std::uint8_t {
  ok,
#define KDTR_ENUM(name) name,
  KDTR_CODES(KDTR_ENUM)
#undef KDTR_ENUM
};

constexpr const char* code_name(Code code) {
#define KDTR_CODE_NAME(name) #name,
  constexpr const char* kNames[] = {"OK", KDTR_CODES(KDTR_CODE_NAME)};
#undef KDTR_CODE_NAME
  return kNames[static_cast<std::size_t>(code)];
}
#undef KDTR_CODES

enum class Verify { none, lazy, eager, deep };  // when payloads are checked; deep adds SHA-256

// An element type: DLPack's type code and width in bits.
struct DType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  friend constexpr bool operator==(DType, DType) = default;
};

inline constexpr DType kBool{6, 8}, kU1{1, 1}, kU2{1, 2}, kU4{1, 4}, kI2{0, 2}, kI4{0, 4};
inline constexpr DType kU8{1, 8}, kU16{1, 16}, kU32{1, 32}, kU64{1, 64};
inline constexpr DType kI8{0, 8}, kI16{0, 16}, kI32{0, 32}, kI64{0, 64};
inline constexpr DType kF16{2, 16}, kF32{2, 32}, kF64{2, 64}, kBf16{4, 16};
inline constexpr DType kC32{5, 32}, kC64{5, 64}, kC128{5, 128};
inline constexpr DType kF8E3m4{7, 8}, kF8E4m3{8, 8}, kF8E4m3b11fnuz{9, 8}, kF8E4m3fn{10, 8};
inline constexpr DType kF8E4m3fnuz{11, 8}, kF8E5m2{12, 8}, kF8E5m2fnuz{13, 8}, kF8E8m0fnu{14, 8};
inline constexpr DType kF6E2m3fn{15, 6}, kF6E3m2fn{16, 6}, kF4E2m1fn{17, 4};

// KDTR's name of a type, or null when the format has no such type.
constexpr const char* dtype_name(DType t) {
  struct Entry {
    DType type;
    const char* name;
  };
  constexpr Entry kTable[] = {
      {kBool, "bool"},
      {kU1, "u1"},
      {kU2, "u2"},
      {kU4, "u4"},
      {kU8, "u8"},
      {kU16, "u16"},
      {kU32, "u32"},
      {kU64, "u64"},
      {kI2, "i2"},
      {kI4, "i4"},
      {kI8, "i8"},
      {kI16, "i16"},
      {kI32, "i32"},
      {kI64, "i64"},
      {kF16, "f16"},
      {kF32, "f32"},
      {kF64, "f64"},
      {kBf16, "bf16"},
      {kC32, "c32"},
      {kC64, "c64"},
      {kC128, "c128"},
      {kF8E3m4, "f8_e3m4"},
      {kF8E4m3, "f8_e4m3"},
      {kF8E4m3b11fnuz, "f8_e4m3b11fnuz"},
      {kF8E4m3fn, "f8_e4m3fn"},
      {kF8E4m3fnuz, "f8_e4m3fnuz"},
      {kF8E5m2, "f8_e5m2"},
      {kF8E5m2fnuz, "f8_e5m2fnuz"},
      {kF8E8m0fnu, "f8_e8m0fnu"},
      {kF6E2m3fn, "f6_e2m3fn"},
      {kF6E3m2fn, "f6_e3m2fn"},
      {kF4E2m1fn, "f4_e2m1fn"},
  };
  for (const Entry& e : kTable)
    if (e.type == t) return e.name;
  return nullptr;
}

// Maps a C++ type to the element type it can view. Specialise it for your own types, such as
//   template <> struct kdtr::ElementOf<__nv_bfloat16> { static constexpr DType type = kBf16; };
template <class T>
struct ElementOf;
#define KDTR_ELEMENT(T, value)           \
  template <>                            \
  struct ElementOf<T> {                  \
    static constexpr DType type = value; \
  }
KDTR_ELEMENT(bool, kBool);
KDTR_ELEMENT(std::uint8_t, kU8);
KDTR_ELEMENT(std::uint16_t, kU16);
KDTR_ELEMENT(std::uint32_t, kU32);
KDTR_ELEMENT(std::uint64_t, kU64);
KDTR_ELEMENT(std::int8_t, kI8);
KDTR_ELEMENT(std::int16_t, kI16);
KDTR_ELEMENT(std::int32_t, kI32);
KDTR_ELEMENT(std::int64_t, kI64);
KDTR_ELEMENT(float, kF32);
KDTR_ELEMENT(double, kF64);
#undef KDTR_ELEMENT

inline constexpr std::size_t kAlign = 256;
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::uint64_t kReadLimit = 64u << 20;

// One tensor: what its record says, and its bytes.
struct TensorView {
  std::string_view name;
  DType dtype;
  std::uint32_t rank = 0;
  std::array<std::uint64_t, kMaxRank> dims{};  // outermost first
  Bytes data;                                  // packed elements; little-endian, C order
  std::uint32_t index = 0;                     // place in the file
  std::uint32_t crc32 = 0;
  std::uint64_t offset = 0;  // of `data` in the file

  std::span<const std::uint64_t> shape() const { return {dims.data(), rank}; }
  std::uint64_t numel() const {
    std::uint64_t n = 1;
    for (std::uint64_t d : shape()) n *= d;
    return n;
  }

  // The elements as T. Empty when T is not the tensor's type, the bytes are not aligned for T,
  // or the host is big-endian.
  template <class T>
  std::optional<std::span<const T>> as() const {
    static_assert(ElementOf<T>::type.bits == 8 * sizeof(T), "packed types have no C++ element");
    static_assert(std::is_trivially_copyable_v<T>);
    if (std::endian::native != std::endian::little || dtype != ElementOf<T>::type) return {};
    if (reinterpret_cast<std::uintptr_t>(data.data()) % alignof(T) != 0) return {};
    return std::span<const T>(reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T));
  }
};

// One metadata value.
struct MetaValue {
  enum class Type : std::uint8_t { boolean = 1, i64, u64, f64, utf8, bytes };
  Type type = Type::boolean;
  std::uint64_t bits = 0;  // of a scalar
  Bytes data;              // of utf8 and bytes

  // The value as bool, std::int64_t, std::uint64_t, double, std::string_view or Bytes. Empty
  // when it is of another type; an integer is given as either integer type that can hold it.
  template <class T>
  std::optional<T> get() const {
    if constexpr (std::is_same_v<T, bool>) {
      if (type == Type::boolean) return bits != 0;
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (type == Type::i64) return static_cast<std::int64_t>(bits);
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (type == Type::u64 || (type == Type::i64 && bits >> 63 == 0)) return bits;
    } else if constexpr (std::is_same_v<T, double>) {
      if (type == Type::f64) return std::bit_cast<double>(bits);
    } else if constexpr (std::is_same_v<T, std::string_view>) {
      if (type == Type::utf8)
        return std::string_view(reinterpret_cast<const char*>(data.data()), data.size());
    } else {
      static_assert(std::is_same_v<T, Bytes>, "not a metadata type");
      if (type == Type::bytes) return data;
    }
    return {};
  }
};

struct MetaEntry {
  std::uint32_t owner = 0;  // 0 for the file, index + 1 for a tensor
  std::string_view key;
  MetaValue value;
};

namespace detail {

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) {
    T swapped = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i, value = T(value >> 8))
      swapped = T(T(swapped << 8) | T(value & 255));
    return swapped;
  } else {
    return value;
  }
}

constexpr std::uint64_t align_up(std::uint64_t x) { return (x + (kAlign - 1)) & ~(kAlign - 1ull); }

inline std::string_view text(Bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// Index of the first byte that is not zero, or b.size().
inline std::size_t first_nonzero(Bytes b) {
  std::size_t i = 0;
  for (; i + 8 <= b.size() && load<std::uint64_t>(b.data() + i) == 0; i += 8) {
  }
  while (i < b.size() && b[i] == std::byte{0}) ++i;
  return i;
}

// Strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
inline bool is_utf8(std::string_view s) {
  const auto at = [&s](std::size_t i) {
    return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
  };
  for (std::size_t i = 0; i < s.size();) {
    const unsigned lead = at(i), next = at(i + 1);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t extra = lead < 0xC2   ? 0
                              : lead < 0xE0 ? 1
                              : lead < 0xF0 ? 2
                              : lead < 0xF5 ? 3
                                            : 0;
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (extra == 0 || next < low || next > high) return false;
    for (std::size_t k = 2; k <= extra; ++k)
      if ((at(i + k) & 0xC0) != 0x80) return false;
    i += extra + 1;
  }
  return true;
}

// Which of the four name rules `s` breaks first: 0 none, 1 length, 2 UTF-8, 3 character, 4 path.
inline unsigned name_rule(std::string_view s) {
  if (s.empty() || s.size() > 1024) return 1;
  bool plain = true, controls = false, dots = s.front() == '/' || s.back() == '/';
  char previous = '/';
  for (char ch : s) {
    const auto c = static_cast<unsigned char>(ch);
    plain &= c < 0x80;
    controls |= c < 0x20 || c == 0x7F || c == '\\';
    dots |= previous == '/' && (ch == '/' || ch == '.');
    previous = ch;
  }
  if (!plain && !is_utf8(s)) return 2;
  if (controls) return 3;
  if (!dots) return 0;
  for (std::size_t start = 0; start <= s.size();) {
    const std::size_t stop = std::min(s.find('/', start), s.size());
    const std::string_view segment = s.substr(start, stop - start);
    if (segment.empty() || segment == "." || segment == "..") return 4;
    start = stop + 1;
  }
  return 0;
}

inline Code shift(Code base, unsigned by) {
  return static_cast<Code>(static_cast<unsigned>(base) + by);
}

}  // namespace detail

class Index;
Code parse(Bytes front, std::uint64_t file_size, Index& out);

// A checked prefix: header, records and strings. Views memory that it does not own.
class Index {
 public:
  std::uint32_t tensor_count() const { return n_; }
  std::uint32_t meta_count() const { return m_; }
  std::uint64_t file_size() const { return size_; }
  Bytes prefix() const { return prefix_; }
  std::uint64_t fault_offset() const { return fault_; }  // byte at fault after a failed parse
  Digest root() const {
    Digest d;
    std::memcpy(d.data(), prefix_.data() + 16, d.size());
    return d;
  }

  // Tensor i < tensor_count(), in file order; its `data` lies in `file`.
  TensorView tensor(std::uint32_t i, Bytes file) const {
    const std::byte* r = record(i);
    TensorView t;
    t.name = name(i);
    t.dtype = {std::to_integer<std::uint8_t>(r[8]), std::to_integer<std::uint8_t>(r[9])};
    t.rank = std::to_integer<std::uint32_t>(r[6]);
    for (std::size_t k = 0; k < kMaxRank; ++k) t.dims[k] = u64(r + 32 + 8 * k);
    t.index = i;
    t.crc32 = u32(r + 12);
    t.offset = u64(r + 16);
    t.data =
        file.subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(u64(r + 24)));
    return t;
  }

  Digest tensor_sha256(std::uint32_t i) const {
    Digest d;
    std::memcpy(d.data(), record(i) + 96, d.size());
    return d;
  }

  // Place of the tensor called `name`.
  std::optional<std::uint32_t> find(std::string_view wanted) const {
    std::uint32_t low = 0, high = n_;
    while (low < high) {
      const std::uint32_t mid = low + (high - low) / 2;
      if (name(mid) < wanted) {
        low = mid + 1;
      } else {
        high = mid;
      }
    }
    if (low < n_ && name(low) == wanted) return low;
    return {};
  }

  // Metadata record j < meta_count(), in file order.
  MetaEntry meta(std::uint32_t j) const {
    const std::byte* r = kv(j);
    MetaEntry e;
    e.owner = u32(r);
    e.key = detail::text(pool().subspan(u32(r + 4), u16(r + 8)));
    e.value.type = static_cast<MetaValue::Type>(r[10]);
    e.value.bits = u64(r + 16);
    if (e.value.type >= MetaValue::Type::utf8)
      e.value.data = pool().subspan(static_cast<std::size_t>(e.value.bits), u32(r + 12));
    return e;
  }

  // The file's metadata value `key`, or a tensor's.
  std::optional<MetaValue> meta(std::string_view key) const { return find_meta(0, key); }
  std::optional<MetaValue> meta(const TensorView& t, std::string_view key) const {
    return find_meta(t.index + 1, key);
  }
  template <class T>
  std::optional<T> meta_as(std::string_view key) const {
    const auto v = meta(key);
    return v ? v->get<T>() : std::nullopt;
  }
  template <class T>
  std::optional<T> meta_as(const TensorView& t, std::string_view key) const {
    const auto v = meta(t, key);
    return v ? v->get<T>() : std::nullopt;
  }

 private:
  friend Code parse(Bytes front, std::uint64_t file_size, Index& out);

  static std::uint16_t u16(const std::byte* p) { return detail::load<std::uint16_t>(p); }
  static std::uint32_t u32(const std::byte* p) { return detail::load<std::uint32_t>(p); }
  static std::uint64_t u64(const std::byte* p) { return detail::load<std::uint64_t>(p); }
  const std::byte* record(std::uint32_t i) const { return prefix_.data() + 128 + 128ull * i; }
  const std::byte* kv(std::uint32_t j) const { return record(n_) + 24ull * j; }
  Bytes pool() const { return prefix_.subspan(128 + 128ull * n_ + 24ull * m_); }
  std::string_view name(std::uint32_t i) const {
    return detail::text(pool().subspan(u32(record(i)), u16(record(i) + 4)));
  }
  std::optional<MetaValue> find_meta(std::uint32_t owner, std::string_view key) const {
    std::uint32_t low = 0, high = m_;
    while (low < high) {
      const std::uint32_t mid = low + (high - low) / 2;
      const MetaEntry e = meta(mid);
      if (e.owner < owner || (e.owner == owner && e.key < key)) {
        low = mid + 1;
      } else {
        high = mid;
      }
    }
    if (low == m_) return {};
    const MetaEntry e = meta(low);
    if (e.owner != owner || e.key != key) return {};
    return e.value;
  }

  Code fail(Code code, std::uint64_t offset) {
    fault_ = offset;
    return code;
  }
  Code parse_header(Bytes front, std::uint64_t actual);
  Code parse_tensors(std::uint64_t& cursor);
  Code parse_shape(std::uint64_t at, std::uint32_t rank, std::uint32_t bits);
  Code parse_meta(std::uint64_t& cursor);
  Code parse_value(std::uint64_t at, unsigned type, Bytes data);

  Bytes prefix_;
  std::uint64_t size_ = 0;
  std::uint64_t fault_ = 0;
  std::uint32_t n_ = 0, m_ = 0, s_ = 0;
};

inline Code Index::parse_header(Bytes front, std::uint64_t actual) {
  if (actual < kAlign || front.size() < kAlign) return fail(Code::E_TRUNCATED, actual);
  const std::byte* h = front.data();
  const std::string_view magic = detail::text(front.first(8));
  constexpr std::string_view kMagic = "KDTR\r\n\x1a\n";
  if (magic.starts_with("KDTR") &&
      (magic[4] == '\n' || magic.substr(4, 2) == "\r\r" || magic.substr(4) == "\r\n\x1a\r"))
    return fail(Code::E_MAGIC_TEXTMODE, 0);
  if (magic != kMagic) return fail(Code::E_MAGIC, 0);
  if (u32(h + 8) != 1) return fail(Code::E_VERSION, 8);
  n_ = u32(h + 56), m_ = u32(h + 60), s_ = u32(h + 64);
  if (n_ > 1u << 20) return fail(Code::E_LIMIT, 56);
  if (m_ > 1u << 20) return fail(Code::E_LIMIT, 60);
  if (s_ > 1u << 26) return fail(Code::E_LIMIT, 64);
  size_ = u64(h + 48);
  if (size_ > actual) return fail(Code::E_TRUNCATED, 48);
  if (size_ < actual) return fail(Code::E_TRAILING, 48);
  if (size_ % kAlign != 0) return fail(Code::E_FILE_SIZE, 48);
  const std::uint64_t end = 128 + 128ull * n_ + 24ull * m_ + s_;
  if (end > size_) return fail(Code::E_PREFIX_RANGE, 56);
  if (front.size() < detail::align_up(end)) return fail(Code::E_TRUNCATED, front.size());
  prefix_ = front.first(static_cast<std::size_t>(end));
  if (crc32(prefix_.subspan(16)) != u32(h + 12)) return fail(Code::E_PREFIX_CRC, 12);
  const std::size_t bad = detail::first_nonzero(prefix_.subspan(68, 60));
  return bad < 60 ? fail(Code::E_RESERVED, 68 + bad) : Code::ok;
}

inline Code Index::parse_shape(std::uint64_t at, std::uint32_t rank, std::uint32_t bits) {
  const std::byte* dims = prefix_.data() + at + 32;
  constexpr std::uint64_t kMaxBits = 1ull << 56;
  if (rank > kMaxRank) return fail(Code::E_RANK, at + 6);
  for (std::size_t k = rank; k < kMaxRank; ++k)
    if (u64(dims + 8 * k) != 0) return fail(Code::E_DIM_UNUSED, at + 32 + 8 * k);
  for (std::size_t k = 0; k < rank; ++k)
    if (u64(dims + 8 * k) > 1ull << 48) return fail(Code::E_DIM_RANGE, at + 32 + 8 * k);
  std::uint64_t total = bits, numel = 1;
  for (std::size_t k = 0; k < rank; ++k) {
    const std::uint64_t dim = u64(dims + 8 * k);
    // A zero dim counts as one here, so that it cannot hide an overflow.
    if (dim > 1) {
      // Shifts decide the common case; the division is exact.
      if ((dim | total) >> 28 != 0 && dim > kMaxBits / total)
        return fail(Code::E_NUMEL_OVERFLOW, at + 32 + 8 * k);
      total *= dim;
    }
    numel *= dim;
  }
  if (u64(prefix_.data() + at + 24) != (numel * bits + 7) / 8)
    return fail(Code::E_DATA_LEN, at + 24);
  return Code::ok;
}

inline Code Index::parse_tensors(std::uint64_t& cursor) {
  const std::uint64_t pool_at = prefix_.size() - s_;
  std::uint64_t expected = detail::align_up(prefix_.size());
  std::string_view previous;
  DType known = kU8;  // the last type that was looked up
  for (std::uint32_t i = 0; i < n_; ++i) {
    const std::uint64_t at = 128 + 128ull * i;
    const std::byte* r = record(i);
    if (r[7] != std::byte{0}) return fail(Code::E_RESERVED, at + 7);
    const std::uint32_t length = u16(r + 4);
    if (u32(r) != cursor || length > s_ - cursor) return fail(Code::E_NAME_SPAN, at);
    const std::string_view current = name(i);
    if (const unsigned rule = detail::name_rule(current); rule != 0)
      return fail(detail::shift(Code::E_NAME_LENGTH, rule - 1),
                  rule == 1 ? at + 4 : pool_at + cursor);
    if (i > 0 && current <= previous)
      return fail(current == previous ? Code::E_NAME_DUP : Code::E_NAME_ORDER, at);
    previous = current;
    cursor += length;
    const DType type{std::to_integer<std::uint8_t>(r[8]), std::to_integer<std::uint8_t>(r[9])};
    if (type != known && dtype_name(type) != nullptr) known = type;
    if (u16(r + 10) != 1 || type != known) return fail(Code::E_DTYPE, at + 8);
    if (const Code code = parse_shape(at, std::to_integer<std::uint32_t>(r[6]), type.bits);
        code != Code::ok)
      return code;
    const std::uint64_t offset = u64(r + 16), length_bytes = u64(r + 24);
    if (offset % kAlign != 0) return fail(Code::E_DATA_ALIGN, at + 16);
    if (offset != expected) return fail(Code::E_DATA_OFFSET, at + 16);
    if (offset > size_ || length_bytes > size_ - offset) return fail(Code::E_DATA_RANGE, at + 16);
    expected = detail::align_up(offset + length_bytes);
  }
  return expected == size_ ? Code::ok : fail(Code::E_FILE_SIZE, 48);
}

inline Code Index::parse_value(std::uint64_t at, unsigned type, Bytes data) {
  const std::byte* r = prefix_.data() + at;
  const std::uint64_t value = u64(r + 16);
  if (type < 1 || type > 6) return fail(Code::E_KV_TYPE, at + 10);
  if (type == 5 && !detail::is_utf8(detail::text(data)))
    return fail(Code::E_KV_UTF8, prefix_.size() - s_ + value);
  if (type >= 5) return Code::ok;
  if (u32(r + 12) != 0) return fail(Code::E_KV_VALUE, at + 12);
  const bool nan = (value << 1) > 0x7FF0ull << 49;
  const bool bad = (type == 1 && value > 1) || (type == 3 && value >> 63 == 0) ||
                   (type == 4 && nan && value != 0x7FF8ull << 48);
  return bad ? fail(Code::E_KV_VALUE, at + 16) : Code::ok;
}

inline Code Index::parse_meta(std::uint64_t& cursor) {
  const std::uint64_t pool_at = prefix_.size() - s_;
  std::uint32_t previous_owner = 0;
  std::string_view previous;
  for (std::uint32_t j = 0; j < m_; ++j) {
    const std::uint64_t at = 128 + 128ull * n_ + 24ull * j;
    const std::byte* r = kv(j);
    if (r[11] != std::byte{0}) return fail(Code::E_RESERVED, at + 11);
    const std::uint32_t owner = u32(r);
    if (owner > n_) return fail(Code::E_KV_OWNER, at);
    const std::uint32_t key_length = u16(r + 8), value_length = u32(r + 12);
    if (u32(r + 4) != cursor || key_length > s_ - cursor) return fail(Code::E_KV_SPAN, at + 4);
    const std::string_view key = detail::text(pool().subspan(u32(r + 4), key_length));
    const std::uint64_t key_at = pool_at + cursor;
    cursor += key_length;
    const unsigned type = std::to_integer<unsigned>(r[10]);
    Bytes data;
    if (type == 5 || type == 6) {
      if (u64(r + 16) != cursor || value_length > s_ - cursor)
        return fail(Code::E_KV_SPAN, at + 16);
      data = pool().subspan(static_cast<std::size_t>(cursor), value_length);
      cursor += value_length;
    }
    if (const unsigned rule = detail::name_rule(key); rule != 0)
      return fail(detail::shift(Code::E_KV_KEY_LENGTH, rule - 1), rule == 1 ? at + 8 : key_at);
    if (j > 0 && owner == previous_owner && key == previous) return fail(Code::E_KV_DUP, at);
    if (j > 0 && (owner < previous_owner || (owner == previous_owner && key < previous)))
      return fail(Code::E_KV_ORDER, at);
    previous_owner = owner, previous = key;
    if (const Code code = parse_value(at, type, data); code != Code::ok) return code;
  }
  return Code::ok;
}

// Checks the structure of a file of `file_size` bytes, of which `front` holds at least the prefix
// and the padding after it. On failure `out` holds nothing but `fault_offset()`.
inline Code parse(Bytes front, std::uint64_t file_size, Index& out) {
  out = Index();
  const Code code = [&] {
    std::uint64_t cursor = 0;
    if (const Code c = out.parse_header(front, file_size); c != Code::ok) return c;
    if (const Code c = out.parse_tensors(cursor); c != Code::ok) return c;
    if (const Code c = out.parse_meta(cursor); c != Code::ok) return c;
    const std::size_t end = out.prefix_.size();
    if (cursor < out.s_) return out.fail(Code::E_STRINGS_UNUSED, end - out.s_ + cursor);
    const std::size_t gap = static_cast<std::size_t>(detail::align_up(end)) - end;
    const std::size_t bad = detail::first_nonzero(front.subspan(end, gap));
    return bad < gap ? out.fail(Code::E_PADDING, end + bad) : Code::ok;
  }();
  if (code != Code::ok) {
    const std::uint64_t fault = out.fault_;
    out = Index();
    out.fault_ = fault;
  }
  return code;
}

// Checks the structure of a whole file in memory.
inline Code parse(Bytes file, Index& out) { return parse(file, file.size(), out); }

// Checks the payload of one tensor of `file`. `fault` is the byte at fault.
inline Code check_payload(const TensorView& t, Bytes file, std::uint64_t& fault) {
  const auto fail = [&fault](Code code, std::uint64_t offset) {
    fault = offset;
    return code;
  };
  if (crc32(t.data) != t.crc32) return fail(Code::E_TENSOR_CRC, 128 + 128ull * t.index + 12);
  const std::uint64_t end = t.offset + t.data.size();
  const Bytes gap = file.subspan(static_cast<std::size_t>(end),
                                 static_cast<std::size_t>(detail::align_up(end) - end));
  const std::size_t bad = detail::first_nonzero(gap);
  if (bad < gap.size()) return fail(Code::E_PADDING, end + bad);
  if (t.dtype == kBool) {
    const auto wrong =
        std::find_if(t.data.begin(), t.data.end(), [](std::byte b) { return b > std::byte{1}; });
    if (wrong != t.data.end())
      return fail(Code::E_BOOL_VALUE,
                  t.offset + static_cast<std::uint64_t>(wrong - t.data.begin()));
  }
  const unsigned used = static_cast<unsigned>(t.numel() * t.dtype.bits % 8);
  if (used != 0 && std::to_integer<unsigned>(t.data.back()) >> used != 0)
    return fail(Code::E_SUBBYTE_TAIL, end - 1);
  return Code::ok;
}

// Checks every payload of `file`, and with `deep` the SHA-256 digests.
inline Code check_all(const Index& index, Bytes file, bool deep, std::uint64_t& fault) {
  for (std::uint32_t i = 0; i < index.tensor_count(); ++i)
    if (const Code c = check_payload(index.tensor(i, file), file, fault); c != Code::ok) return c;
  if (!deep) return Code::ok;
  for (std::uint32_t i = 0; i < index.tensor_count(); ++i)
    if (sha256(index.tensor(i, file).data) != index.tensor_sha256(i)) {
      fault = 128 + 128ull * i + 96;
      return Code::E_TENSOR_DIGEST;
    }
  fault = 16;
  return sha256(index.prefix().subspan(48)) == index.root() ? Code::ok : Code::E_ROOT_DIGEST;
}

// An open file. Files up to 64 MiB are read, larger ones mapped. Not for concurrent get().
class File {
 public:
  // Never fails to return: test the result with `if (!file)`.
  static File open(std::string path, Verify verify = Verify::lazy, bool mmap = false) {
    File f;
    f.path_ = std::move(path);
    f.verify_ = verify;
    f.code_ = f.load(mmap);
    return f;
  }

  explicit operator bool() const { return code_ == Code::ok; }
  Code code() const { return code_; }                    // why open() or the last get() failed
  std::uint64_t fault_offset() const { return fault_; }  // and the byte at fault
  std::string error() const {
    return path_ + ": " + code_name(code_) + " at byte " + std::to_string(fault_);
  }
  const std::string& path() const { return path_; }
  const Index& index() const { return index_; }
  Bytes bytes() const { return block_.bytes(); }

  std::uint32_t size() const { return index_.tensor_count(); }
  TensorView operator[](std::uint32_t i) const { return index_.tensor(i, bytes()); }

  // The tensor called `name`, with its payload checked on first use (unless opened with
  // Verify::none). E_NOT_FOUND, or the payload rule that is broken.
  Code get(std::string_view name, TensorView& out) {
    const auto i = index_.find(name);
    fault_ = 0;
    if (!i) return code_ = Code::E_NOT_FOUND;
    const TensorView t = (*this)[*i];
    if (!checked_[*i]) {
      if (code_ = check_payload(t, bytes(), fault_); code_ != Code::ok) return code_;
      checked_[*i] = true;
    }
    out = t;
    return code_ = Code::ok;
  }

  std::optional<MetaValue> meta(std::string_view key) const { return index_.meta(key); }
  std::optional<MetaValue> meta(const TensorView& t, std::string_view key) const {
    return index_.meta(t, key);
  }
  template <class T>
  std::optional<T> meta_as(std::string_view key) const {
    return index_.meta_as<T>(key);
  }
  template <class T>
  std::optional<T> meta_as(const TensorView& t, std::string_view key) const {
    return index_.meta_as<T>(t, key);
  }

 private:
  Code load(bool mmap) {
    InputFile file;
    if (!file.open(path_.c_str())) return Code::E_IO;
    Code code;
    if (mmap || file.size() > kReadLimit) {
      code = load_mapped(file);
    } else {
      block_ = Block::read(file, file.size());
      if (!block_) return Code::E_IO;
      code = parse(bytes(), index_);
    }
    if (code != Code::ok) {
      fault_ = index_.fault_offset();
      return code;
    }
    checked_.reset(new (std::nothrow) bool[size() + 1]);
    if (!checked_) return Code::E_IO;
    std::fill_n(checked_.get(), size(), verify_ != Verify::lazy);
    if (verify_ == Verify::none || verify_ == Verify::lazy) return Code::ok;
    return check_all(index_, bytes(), verify_ == Verify::deep, fault_);
  }

  // The prefix is read, not mapped: a mapping can change after it was checked.
  Code load_mapped(InputFile& file) {
    std::array<std::byte, kAlign> head;
    if (file.size() < kAlign) return parse({}, file.size(), index_);
    if (!file.read(head)) return Code::E_IO;
    const auto u32 = [&head](std::size_t at) {
      return std::uint64_t{detail::load<std::uint32_t>(head.data() + at)};
    };
    const std::uint64_t end = detail::align_up(128 + 128 * u32(56) + 24 * u32(60) + u32(64));
    const bool sane = u32(56) <= 1u << 20 && u32(60) <= 1u << 20 && u32(64) <= 1u << 26;
    if (!sane || end > file.size()) return parse(head, file.size(), index_);
    prefix_.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(end)]);
    if (!prefix_) return Code::E_IO;
    const std::span<std::byte> front(prefix_.get(), static_cast<std::size_t>(end));
    std::copy(head.begin(), head.end(), front.begin());
    if (!file.read(front.subspan(kAlign))) return Code::E_IO;
    if (const Code c = parse(front, file.size(), index_); c != Code::ok) return c;
    block_ = Block::map(file);
    return block_ ? Code::ok : Code::E_IO;
  }

  std::string path_;
  Verify verify_ = Verify::lazy;
  Block block_;
  std::unique_ptr<std::byte[]> prefix_;
  std::unique_ptr<bool[]> checked_;
  Index index_;
  Code code_ = Code::E_IO;
  std::uint64_t fault_ = 0;
};

}  // namespace kdtr
