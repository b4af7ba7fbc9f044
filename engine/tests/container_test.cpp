// The C++ reader and writer against public known answers, hand-made bytes and hand-made faults.

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kdtr/container.h"
#include "kdtr/container_writer.h"

namespace {

int failures = 0;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: false: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                                 \
    }                                                                             \
  } while (false)

using kdtr::Bytes;
using kdtr::Code;

Bytes bytes_of(std::string_view s) { return std::as_bytes(std::span(s)); }

std::string hex(Bytes bytes) {
  std::string out;
  for (std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

std::vector<std::byte> noise(std::size_t size) {
  std::vector<std::byte> out(size);
  std::uint32_t x = 1;
  for (std::byte& b : out) {
    x = x * 1664525u + 1013904223u;
    b = std::byte(x >> 24);
  }
  return out;
}

void crc32_known_answers() {
  // The check value of CRC-32/ISO-HDLC, and RFC 3720-style fixed patterns as zlib gives them.
  CHECK(kdtr::crc32(bytes_of("")) == 0);
  CHECK(kdtr::crc32(bytes_of("123456789")) == 0xCBF43926u);
  CHECK(kdtr::crc32_table(bytes_of("123456789")) == 0xCBF43926u);
  CHECK(kdtr::crc32(bytes_of("The quick brown fox jumps over the lazy dog")) == 0x414FA339u);
  const std::vector<std::byte> zeros(256), ones(256, std::byte{0xFF});
  CHECK(kdtr::crc32(zeros) == 0x0D968558u);
  CHECK(kdtr::crc32(ones) == 0xFEA8A821u);
}

void crc32_fast_path_equals_tables() {
  const std::vector<std::byte> data = noise(2100);
  for (std::size_t start : {0u, 1u, 7u, 16u})
    for (std::size_t size = 0; size <= 2048; ++size) {
      const Bytes part(data.data() + start, size);
      CHECK(kdtr::crc32(part, 0x12345678u) == kdtr::crc32_table(part, 0x12345678u));
    }
  const Bytes whole(data);
  CHECK(kdtr::crc32(whole.subspan(777), kdtr::crc32(whole.first(777))) == kdtr::crc32(whole));
}

void sha256_known_answers() {
  // FIPS 180-4 examples.
  for (bool fast : {true, false}) {
    const auto digest = [fast](Bytes b, std::size_t step) {
      kdtr::Sha256 h(fast);
      for (; b.size() > step; b = b.subspan(step)) h.update(b.first(step));
      h.update(b);
      return hex(h.digest());
    };
    CHECK(digest(bytes_of(""), 1) ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(digest(bytes_of("abc"), 1) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(digest(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), 9) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const std::string million(1000000, 'a');
    CHECK(digest(bytes_of(million), 4093) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

std::vector<std::byte> first_vector() {
  kdtr::ContainerWriter w;
  static constexpr std::array<float, 1> kOne{1.0f};
  w.tensor<float>("x", {}, kOne);
  std::vector<std::byte> out;
  CHECK(w.dump(out) == Code::ok);
  return out;
}

std::vector<std::byte> second_vector() {
  kdtr::ContainerWriter w;
  static constexpr std::array<std::uint8_t, 2> kPacked{0x21, 0x0F};
  w.tensor("n", kdtr::kU4, {3}, std::as_bytes(std::span(kPacked)));
  w.tensor("e", kdtr::kF64, {0, 3}, {});
  w.meta("z", -1);
  w.meta("t", "");
  w.tensor_meta("n", "f", -0.0);
  w.tensor_meta("n", "b", true);
  std::vector<std::byte> out;
  CHECK(w.dump(out) == Code::ok);
  return out;
}

void writer_matches_the_documented_vectors() {
  const std::vector<std::byte> a = first_vector(), b = second_vector();
  CHECK(a.size() == 768);
  CHECK(hex(Bytes(a).subspan(8, 8)) == "01000000cfb5e81a");
  CHECK(hex(Bytes(a).subspan(16, 32)) ==
        "6429487f7487691bc8508634036f32697e9e37c871faf108484e61328cab0334");
  CHECK(hex(Bytes(a).subspan(128, 32)) ==
        "000000000100000002200100"
        "6a6aa1ac00020000000000000400000000000000");
  CHECK(hex(Bytes(a).subspan(512, 4)) == "0000803f");
  CHECK(b.size() == 768);
  CHECK(hex(Bytes(b).subspan(12, 4)) == "26826efb");
  CHECK(hex(Bytes(b).subspan(16, 32)) ==
        "235597061c4612c52011c0885a9f2040a961859c45e4cdcdb8d91016a827a8fc");
}

void reader_gives_back_what_was_written() {
  const std::vector<std::byte> file = second_vector();
  kdtr::Index index;
  std::uint64_t fault = 0;
  CHECK(kdtr::parse(file, index) == Code::ok);
  CHECK(kdtr::check_all(index, file, true, fault) == Code::ok);
  CHECK(index.tensor_count() == 2);
  CHECK(index.find("e") == 0u);
  CHECK(index.find("n") == 1u);
  CHECK(!index.find("x"));
  CHECK(!index.find(""));
  CHECK(!index.find("z"));
  const kdtr::TensorView e = index.tensor(0, file), n = index.tensor(1, file);
  CHECK(e.name == "e" && e.dtype == kdtr::kF64 && e.rank == 2 && e.numel() == 0);
  CHECK(e.dims[0] == 0 && e.dims[1] == 3 && e.data.empty());
  CHECK(n.dtype == kdtr::kU4 && n.numel() == 3 && hex(n.data) == "210f");
  CHECK(index.meta_as<std::string_view>("t") == "");
  CHECK(index.meta_as<std::int64_t>("z") == -1);
  CHECK(!index.meta_as<std::uint64_t>("z"));
  CHECK(!index.meta_as<double>("z"));
  CHECK(!index.meta("b"));
  CHECK(!index.meta(e, "b"));
  CHECK(index.meta_as<bool>(n, "b") == true);
  const auto f = index.meta_as<double>(n, "f");
  CHECK(f && std::bit_cast<std::uint64_t>(*f) == 1ull << 63);
}

void metadata_keeps_every_type() {
  kdtr::ContainerWriter w;
  w.meta("small", std::uint64_t{7});
  w.meta("large", std::numeric_limits<std::uint64_t>::max());
  w.meta("low", std::numeric_limits<std::int64_t>::min());
  w.meta("nan", -std::numeric_limits<double>::quiet_NaN());
  w.meta("raw", bytes_of(std::string_view("\0\xff", 2)));
  w.meta("text", std::string("h\xc3\xa9"));
  std::vector<std::byte> file;
  CHECK(w.dump(file) == Code::ok);
  kdtr::Index index;
  CHECK(kdtr::parse(file, index) == Code::ok);
  CHECK(index.meta_as<std::uint64_t>("small") == 7u);
  CHECK(index.meta_as<std::int64_t>("small") == 7);
  CHECK(index.meta_as<std::uint64_t>("large") == std::numeric_limits<std::uint64_t>::max());
  CHECK(!index.meta_as<std::int64_t>("large"));
  CHECK(index.meta_as<std::int64_t>("low") == std::numeric_limits<std::int64_t>::min());
  const auto nan = index.meta("nan");
  CHECK(nan && nan->bits == 0x7FF8ull << 48);
  const auto raw = index.meta_as<Bytes>("raw");
  CHECK(raw && hex(*raw) == "00ff");
  CHECK(index.meta_as<std::string_view>("text") == "h\xc3\xa9");
}

void typed_access_checks_the_type() {
  const std::vector<std::byte> file = first_vector();
  kdtr::Index index;
  CHECK(kdtr::parse(file, index) == Code::ok);
  const kdtr::TensorView x = index.tensor(0, file);
  const auto values = x.as<float>();
  CHECK(values && values->size() == 1 && (*values)[0] == 1.0f);
  CHECK(!x.as<std::int32_t>());
  CHECK(!x.as<double>());
  std::vector<std::byte> shifted(file.size() + 1);
  std::copy(file.begin(), file.end(), shifted.begin() + 1);
  const Bytes view = Bytes(shifted).subspan(1);
  CHECK(kdtr::parse(view, index) == Code::ok);
  CHECK(!index.tensor(0, view).as<float>());
}

void writer_refuses_what_a_reader_would() {
  const auto code = [](auto fill) {
    kdtr::ContainerWriter w;
    fill(w);
    std::vector<std::byte> out;
    return w.dump(out);
  };
  static constexpr std::array<std::uint8_t, 2> kTwo{1, 2};
  const Bytes two = std::as_bytes(std::span(kTwo));
  using W = kdtr::ContainerWriter;
  CHECK(code([&](W& w) { w.tensor("a/../b", kdtr::kU8, {2}, two); }) == Code::E_NAME_PATH);
  CHECK(code([&](W& w) { w.tensor("", kdtr::kU8, {2}, two); }) == Code::E_NAME_LENGTH);
  CHECK(code([&](W& w) { w.tensor(std::string(70000, 'a'), kdtr::kU8, {2}, two); }) ==
        Code::E_NAME_LENGTH);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::kU8, {3}, two); }) == Code::E_DATA_LEN);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::kBool, {2}, two); }) == Code::E_BOOL_VALUE);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::DType{1, 3}, {2}, two); }) == Code::E_DTYPE);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::kU4, {3}, two); }) == Code::ok);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::kU1, {9}, two); }) == Code::E_SUBBYTE_TAIL);
  CHECK(code([&](W& w) { w.tensor("a", kdtr::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 2}, two); }) ==
        Code::E_RANK);
  CHECK(code([&](W& w) {
          w.tensor("a", kdtr::kU8, {2}, two);
          w.tensor("a", kdtr::kU8, {2}, two);
        }) == Code::E_NAME_DUP);
  CHECK(code([&](W& w) { w.tensor_meta("none", "k", 1); }) == Code::E_NOT_FOUND);
  CHECK(code([&](W& w) { w.meta("k", "\xed\xa0\x80"); }) == Code::E_KV_UTF8);
  CHECK(code([&](W& w) { w.meta("k\n", 1); }) == Code::E_KV_KEY_CHAR);
}

void utf8_is_strict() {
  // Every lead byte and boundary of Unicode's table of well-formed sequences (3-7).
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(kdtr::detail::is_utf8(good));
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x7f", "\xc2\xc0", "\xe0\x9f\xbf",
        "\xe0\xa0", "\xe1\x80\x7f", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf",
        "\xf0\x90\x80", "\xf1\x80\x80\xc0", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    CHECK(!kdtr::detail::is_utf8(bad));
}

void files_open_read_and_mapped() {
  const char* folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") +
                           "/kdtr_container_test_" + std::to_string(std::random_device{}()) +
                           ".kdtr";
  kdtr::ContainerWriter w;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  w.tensor<float>("x", {2, 3}, std::span(values));
  w.meta("case", "round trip");
  CHECK(w.save(path) == Code::ok);
  for (bool mmap : {false, true}) {
    kdtr::File file = kdtr::File::open(path, kdtr::Verify::deep, mmap);
    CHECK(file);
    kdtr::TensorView x;
    CHECK(file.get("x", x) == Code::ok);
    CHECK(reinterpret_cast<std::uintptr_t>(x.data.data()) % 256 == 0);
    CHECK(hex(x.data) == hex(std::as_bytes(std::span(values))));
    CHECK(file.meta_as<std::string_view>("case") == "round trip");
    const kdtr::File moved = std::move(file);
    CHECK(moved[0].name == "x" && moved.meta_as<std::string_view>("case") == "round trip");
    kdtr::File again = kdtr::File::open(path, kdtr::Verify::lazy, mmap);
    CHECK(again.get("y", x) == Code::E_NOT_FOUND);
  }
  // A damaged payload is found at open when eager, at use when lazy, and never when told so.
  std::FILE* f = std::fopen(path.c_str(), "rb+");
  std::fseek(f, 516, SEEK_SET);
  std::fputc(1, f);
  std::fclose(f);
  for (bool mmap : {false, true}) {
    kdtr::TensorView x;
    CHECK(kdtr::File::open(path, kdtr::Verify::eager, mmap).code() == Code::E_TENSOR_CRC);
    kdtr::File lazy = kdtr::File::open(path, kdtr::Verify::lazy, mmap);
    CHECK(lazy);
    CHECK(lazy.get("x", x) == Code::E_TENSOR_CRC);
    CHECK(lazy.fault_offset() == 128 + 12);
    kdtr::File none = kdtr::File::open(path, kdtr::Verify::none, mmap);
    CHECK(none.get("x", x) == Code::ok);
  }
  CHECK(std::remove(path.c_str()) == 0);
  CHECK(kdtr::File::open(path).code() == Code::E_IO);
  CHECK(w.save(path + "/none/x.kdtr") == Code::E_IO);
}

void every_cut_and_every_flip_is_refused() {
  const std::vector<std::byte> file = second_vector();
  const auto classify = [](Bytes b) {
    kdtr::Index index;
    std::uint64_t fault = 0;
    const Code c = kdtr::parse(b, index);
    return c == Code::ok ? kdtr::check_all(index, b, true, fault) : c;
  };
  for (std::size_t size = 0; size < file.size(); ++size) {
    const std::vector<std::byte> cut(file.begin(),
                                     file.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(classify(cut) == Code::E_TRUNCATED);
  }
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::vector<std::byte> flipped = file;
    flipped[bit / 8] ^= std::byte(1u << (bit % 8));
    CHECK(classify(flipped) != Code::ok);
  }
}

void names_of_codes_and_types() {
  CHECK(std::string_view(kdtr::code_name(Code::ok)) == "OK");
  CHECK(std::string_view(kdtr::code_name(Code::E_TRUNCATED)) == "E_TRUNCATED");
  CHECK(std::string_view(kdtr::code_name(Code::E_HOST)) == "E_HOST");
  CHECK(std::string_view(kdtr::dtype_name(kdtr::kBf16)) == "bf16");
  CHECK(kdtr::dtype_name({3, 64}) == nullptr);
}

}  // namespace

int main() {
  crc32_known_answers();
  crc32_fast_path_equals_tables();
  sha256_known_answers();
  writer_matches_the_documented_vectors();
  reader_gives_back_what_was_written();
  metadata_keeps_every_type();
  typed_access_checks_the_type();
  writer_refuses_what_a_reader_would();
  utf8_is_strict();
  files_open_read_and_mapped();
  every_cut_and_every_flip_is_refused();
  names_of_codes_and_types();
  if (failures > 0) std::fprintf(stderr, "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
