// CRC-32 (zlib's) and SHA-256 (FIPS 180-4), with the CPU's instructions where it has them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__) && defined(__GNUC__)
#define KDTR_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define KDTR_X86 0
#endif

namespace kdtr {

using Bytes = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;

namespace detail {

inline constexpr std::uint32_t kCrcPolynomial = 0xEDB88320u;  // x^32 + x^26 + ... + 1, reflected

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) ? kCrcPolynomial : 0);
    t[0][i] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
  return t;
}

inline constexpr CrcTables kCrcTables = make_crc_tables();

// Eight bytes a step ("slicing by 8"). `state` is the inverted CRC, as between zlib's steps.
inline std::uint32_t crc32_step_table(Bytes data, std::uint32_t state) {
  const auto& t = kCrcTables;
  const std::byte* p = data.data();
  std::size_t n = data.size();
  auto at = [&p](std::size_t i) { return std::to_integer<std::uint32_t>(p[i]); };
  for (; n >= 8; n -= 8, p += 8) {
    const std::uint32_t low = state ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
    state = t[7][low & 255] ^ t[6][(low >> 8) & 255] ^ t[5][(low >> 16) & 255] ^ t[4][low >> 24] ^
            t[3][at(4)] ^ t[2][at(5)] ^ t[1][at(6)] ^ t[0][at(7)];
  }
  for (; n > 0; --n, ++p) state = (state >> 8) ^ t[0][(state ^ at(0)) & 255];
  return state;
}

#if KDTR_X86
// x^n mod P in the reflected form that the carry-less multiply wants (shifted left by one).
constexpr std::uint64_t crc_power(int n) {
  std::uint32_t c = 0x80000000u;  // x^0
  for (int i = 0; i < n; ++i) c = (c >> 1) ^ ((c & 1) ? kCrcPolynomial : 0);
  return std::uint64_t{c} << 1;
}

// Folds 64 bytes a step, after Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ" (Intel, 2009). The last 16 folded bytes go through the table, not through Barrett.
// Needs 64 bytes or more.
__attribute__((target("pclmul,sse4.1"))) inline std::uint32_t crc32_step_clmul(
    Bytes data, std::uint32_t state) {
  const auto load = [](const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const __m128i by_512 = _mm_set_epi64x(static_cast<long long>(crc_power(512 - 32)),
                                        static_cast<long long>(crc_power(512 + 32)));
  const __m128i by_128 = _mm_set_epi64x(static_cast<long long>(crc_power(128 - 32)),
                                        static_cast<long long>(crc_power(128 + 32)));
  const std::byte* p = data.data();
  std::size_t n = data.size();
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
#define KDTR_FOLD(x, k, next) \
  _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0), _mm_clmulepi64_si128(x, k, 17)), next)
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
    a = KDTR_FOLD(a, by_512, load(p));
    b = KDTR_FOLD(b, by_512, load(p + 16));
    c = KDTR_FOLD(c, by_512, load(p + 32));
    d = KDTR_FOLD(d, by_512, load(p + 48));
  }
  b = KDTR_FOLD(a, by_128, b);
  c = KDTR_FOLD(b, by_128, c);
  d = KDTR_FOLD(c, by_128, d);
  for (; n >= 16; p += 16, n -= 16) d = KDTR_FOLD(d, by_128, load(p));
#undef KDTR_FOLD
  std::array<std::byte, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), d);
  return crc32_step_table({p, n}, crc32_step_table(rest, 0));
}
#endif

}  // namespace detail

// CRC-32 by tables alone: the reference that the fast path is tested against.
inline std::uint32_t crc32_table(Bytes data, std::uint32_t crc = 0) {
  return ~detail::crc32_step_table(data, ~crc);
}

// CRC-32 of `data`; pass the CRC of what came before to continue it.
inline std::uint32_t crc32(Bytes data, std::uint32_t crc = 0) {
#if KDTR_X86
  static const bool fast = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (fast && data.size() >= 64) return ~detail::crc32_step_clmul(data, ~crc);
#endif
  return crc32_table(data, crc);
}

namespace detail {

alignas(16) inline constexpr std::array<std::uint32_t, 64> kSha256{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Sha256State = std::array<std::uint32_t, 8>;

inline void sha256_blocks_plain(Sha256State& state, const std::byte* p, std::size_t blocks) {
  for (; blocks > 0; --blocks, p += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i)
      w[i] = std::to_integer<std::uint32_t>(p[4 * i]) << 24 |
             std::to_integer<std::uint32_t>(p[4 * i + 1]) << 16 |
             std::to_integer<std::uint32_t>(p[4 * i + 2]) << 8 |
             std::to_integer<std::uint32_t>(p[4 * i + 3]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) + w[i - 7] +
             (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & f) ^ (~e & g)) + kSha256[i] + w[i];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const Sha256State add{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
  }
}

#if KDTR_X86
__attribute__((target("sha,sse4.1,ssse3"))) inline void sha256_blocks_sha(Sha256State& state,
                                                                          const std::byte* p,
                                                                          std::size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* out = reinterpret_cast<__m128i*>(state.data());
  // The instructions want the state as (a, b, e, f) and (c, d, g, h), highest word first.
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(out), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(out + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, p += 64) {
    const __m128i abef_in = abef, cdgh_in = cdgh;
    __m128i w[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& x = w[i & 3];
      if (i < 4) {
        x = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i), swap);
      } else {
        const __m128i &x1 = w[(i + 1) & 3], &x2 = w[(i + 2) & 3], &x3 = w[(i + 3) & 3];
        x = _mm_add_epi32(_mm_sha256msg1_epu32(x, x1), _mm_alignr_epi8(x3, x2, 4));
        x = _mm_sha256msg2_epu32(x, x3);
      }
      const __m128i k =
          _mm_add_epi32(x, _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256.data()) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_in);
    cdgh = _mm_add_epi32(cdgh, cdgh_in);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

// __builtin_cpu_supports does not know "sha" before GCC 14.
inline bool cpu_has_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((b >> 29) & 1) != 0 &&
         __builtin_cpu_supports("sse4.1");
}
#endif

}  // namespace detail

// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  // `fast` = false keeps to portable code, for tests.
  explicit Sha256(bool fast = true) : fast_(fast && has_fast()) {}

  void update(Bytes data) {
    if (data.empty()) return;
    total_ += data.size();
    if (held_ > 0) {
      const std::size_t take = data.size() < 64 - held_ ? data.size() : 64 - held_;
      std::memcpy(block_.data() + held_, data.data(), take);
      held_ += take;
      data = data.subspan(take);
      if (held_ < 64) return;
      blocks(block_.data(), 1);
      held_ = 0;
    }
    blocks(data.data(), data.size() / 64);
    held_ = data.size() % 64;
    if (held_ > 0) std::memcpy(block_.data(), data.data() + (data.size() - held_), held_);
  }

  // Call once, last.
  Digest digest() {
    const std::uint64_t bits = total_ * 8;
    std::array<std::byte, 72> tail{std::byte{0x80}};
    const std::size_t zeros = (held_ < 56 ? 56 : 120) - held_;
    for (std::size_t i = 0; i < 8; ++i) tail[zeros + i] = std::byte(bits >> (56 - 8 * i) & 255);
    update({tail.data(), zeros + 8});
    Digest out;
    for (std::size_t i = 0; i < 32; ++i)
      out[i] = std::byte(state_[i / 4] >> (24 - 8 * (i % 4)) & 255);
    return out;
  }

  static bool has_fast() {
#if KDTR_X86
    static const bool has = detail::cpu_has_sha();
    return has;
#else
    return false;
#endif
  }

 private:
  void blocks(const std::byte* p, std::size_t count) {
#if KDTR_X86
    if (fast_) return detail::sha256_blocks_sha(state_, p, count);
#endif
    detail::sha256_blocks_plain(state_, p, count);
  }

  detail::Sha256State state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::size_t held_ = 0;
  std::uint64_t total_ = 0;
  bool fast_;
};

inline Digest sha256(Bytes data) {
  Sha256 h;
  h.update(data);
  return h.digest();
}

}  // namespace kdtr
