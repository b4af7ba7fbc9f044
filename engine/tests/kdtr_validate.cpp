// Names the first rule that a KDTR file breaks, for comparing readers.
//
//   kdtr_validate FILE...   one line a file: path, code or OK, byte at fault, by tabs
//   kdtr_validate --rewrite as --stream, and REWRITE for a good file that the C++ writer, given
//                           its content, does not write back to the same bytes
//   kdtr_validate --stream  the same without path for each file on stdin: u32 length, then bytes
//
// All rules are checked, with the SHA-256 digests. Exit status: 0 all good, 1 some bad, 2 usage.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kdtr/container.h"
#include "kdtr/container_writer.h"

namespace {

kdtr::Code classify(kdtr::Bytes file, std::uint64_t& fault) {
  kdtr::Index index;
  if (const kdtr::Code c = kdtr::parse(file, index); c != kdtr::Code::ok) {
    fault = index.fault_offset();
    return c;
  }
  return kdtr::check_all(index, file, true, fault);
}

void print(kdtr::Code code, std::uint64_t fault) {
  const long long at = code == kdtr::Code::ok ? -1 : static_cast<long long>(fault);
  std::printf("%s\t%lld\n", kdtr::code_name(code), at);
}

// Calls `set` with the value as its C++ type.
void copy_meta(const kdtr::MetaValue& value, const auto& set) {
  const auto as = [&]<class T>() {
    if (const std::optional<T> v = value.get<T>()) set(*v);
  };
  using Type = kdtr::MetaValue::Type;
  if (value.type == Type::boolean) as.template operator()<bool>();
  if (value.type == Type::i64) as.template operator()<std::int64_t>();
  if (value.type == Type::u64) as.template operator()<std::uint64_t>();
  if (value.type == Type::f64) as.template operator()<double>();
  if (value.type == Type::utf8) as.template operator()<std::string_view>();
  if (value.type == Type::bytes) as.template operator()<kdtr::Bytes>();
}

bool writes_back(kdtr::Bytes file) {
  kdtr::Index index;
  if (kdtr::parse(file, index) != kdtr::Code::ok) return false;
  kdtr::ContainerWriter writer;
  for (std::uint32_t i = index.tensor_count(); i-- > 0;) {
    const kdtr::TensorView t = index.tensor(i, file);
    writer.tensor(t.name, t.dtype, t.shape(), t.data);
  }
  for (std::uint32_t j = index.meta_count(); j-- > 0;) {
    const kdtr::MetaEntry e = index.meta(j);
    copy_meta(e.value, [&](const auto& value) {
      if (e.owner == 0) {
        writer.meta(e.key, value);
      } else {
        writer.tensor_meta(index.tensor(e.owner - 1, file).name, e.key, value);
      }
    });
  }
  std::vector<std::byte> out;
  return writer.dump(out) == kdtr::Code::ok &&
         std::equal(out.begin(), out.end(), file.begin(), file.end());
}

int stream(bool rewrite) {
  std::vector<std::byte> file;
  std::array<std::byte, 4> length;
  int status = 0;
  while (std::fread(length.data(), 1, 4, stdin) == 4) {
    // A fresh block of the exact size lets AddressSanitizer see reads past its end.
    file = std::vector<std::byte>(kdtr::detail::load<std::uint32_t>(length.data()));
    if (std::fread(file.data(), 1, file.size(), stdin) != file.size()) return 2;
    std::uint64_t fault = 0;
    const kdtr::Code code = classify(file, fault);
    if (code != kdtr::Code::ok) status = 1;
    if (rewrite && code == kdtr::Code::ok && !writes_back(file)) {
      std::printf("REWRITE\n");
      continue;
    }
    print(code, fault);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--stream") == 0) return stream(false);
  if (argc == 2 && std::strcmp(argv[1], "--rewrite") == 0) return stream(true);
  if (argc < 2) {
    std::fprintf(stderr, "usage: kdtr_validate FILE... | --stream | --rewrite\n");
    return 2;
  }
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    const kdtr::File file = kdtr::File::open(argv[i], kdtr::Verify::deep);
    if (!file) status = 1;
    std::printf("%s\t", argv[i]);
    print(file.code(), file.fault_offset());
  }
  return status;
}
