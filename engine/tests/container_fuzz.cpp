// libFuzzer entry for the container reader: any bytes must be classified without a bad access,
// and what is accepted must be readable through every accessor.
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iengine/include
//   container_fuzz.cpp

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kdtr/container.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  if (size > 0) std::memcpy(file.data(), data, size);
  // Resealed, so that the fuzzer reaches the rules behind the checksum.
  if (size >= 256) {
    const auto u32 = [&file](std::size_t at) {
      return std::uint64_t{kdtr::detail::load<std::uint32_t>(file.data() + at)};
    };
    const std::uint64_t end = 128 + 128 * u32(56) + 24 * u32(60) + u32(64);
    if (end <= size) {
      const std::uint32_t crc = kdtr::crc32(kdtr::Bytes(file).subspan(16, std::size_t(end) - 16));
      for (std::size_t i = 0; i < 4; ++i) file[12 + i] = std::byte(crc >> (8 * i) & 255);
    }
  }
  kdtr::Index index;
  if (kdtr::parse(file, index) != kdtr::Code::ok) return 0;
  std::uint64_t fault = 0;
  (void)kdtr::check_all(index, file, true, fault);
  for (std::uint32_t i = 0; i < index.tensor_count(); ++i) {
    const kdtr::TensorView t = index.tensor(i, file);
    if (index.find(t.name) != i) std::abort();
  }
  for (std::uint32_t j = 0; j < index.meta_count(); ++j) {
    const kdtr::MetaEntry e = index.meta(j);
    const auto found =
        e.owner == 0 ? index.meta(e.key) : index.meta(index.tensor(e.owner - 1, file), e.key);
    if (!found || found->bits != e.value.bits) std::abort();
  }
  return 0;
}
