// Names the first rule that a KDTR file breaks, for comparing readers.
//
//   kdtr_validate FILE...   one line a file: path, code or OK, byte at fault, by tabs
//   kdtr_validate --stream  the same without path for each file on stdin: u32 length, then bytes
//
// All rules are checked, with the SHA-256 digests. Exit status: 0 all good, 1 some bad, 2 usage.

#include <cstdio>
#include <cstring>
#include <vector>

#include "kdtr/container.h"

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

int stream() {
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
    print(code, fault);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--stream") == 0) return stream();
  if (argc < 2) {
    std::fprintf(stderr, "usage: kdtr_validate FILE... | --stream\n");
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
