// mla_project@1 on cuda: products as linear's, both norms in one launch, absorption, rotation; f32
// rows with f32 or bf16 weights, or bf16 both, when the normed latent and the queries before
// absorption are rounded to bf16.
// x [T, D], positions [T], inv_freq [F], six weights -> q [T, H, C+2F], kv [T, C+2F], status [T].
#include "detail/mma.cuh"
#include "detail/product.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

struct Rope {
  const std::int32_t* positions;
  const float* inv_freq;
  std::int64_t f;
  float scale;
  bool halves;
  const std::int32_t* status;
};
// q[t, h, l] = sum_j b[t, h, j] keys[h, j, l], then the turned last 2F of b. `from` and `to` are
// [T, H, head] and [T, H, width]; keys [H, rows, C], of which the first n rows of a head are read.
// Failed tokens become 0.
template <class B, class W>
struct Absorb {
  const B* from;
  const W* keys;
  B* to;
  std::int64_t tokens, heads, head, n, c, rows, width;
  Rope rope;
};
constexpr int kAbsorbThreads = 128;

// The turned part of `count` tokens of a head, by a block of kAbsorbThreads.
template <class B, class W>
__device__ void turn(const Absorb<B, W>& a, std::int64_t first, std::int64_t count,
                     std::int64_t h) {
  const std::int64_t f = a.rope.f;
  for (std::int64_t i = threadIdx.x; i < min(count, a.tokens - first) * f; i += kAbsorbThreads) {
    const std::int64_t t = first + i / f, j = i % f;
    B* const to = a.to + (t * a.heads + h) * a.width + a.c;
    if (a.rope.status[t] == kOk) {
      turn_pair(a.from + (t * a.heads + h + 1) * a.head - 2 * f, j, f, a.rope.positions[t],
                a.rope.inv_freq[j], a.rope.scale, a.rope.halves, to);
    } else {
      to[2 * j] = to[2 * j + 1] = narrow<B>(0.0f);
    }
  }
}

// Any sizes. grid: (T / kTokenTile, C / 128 and one that turns, H); block: 128, a column each.
template <class B, class W>
__global__ void __launch_bounds__(kAbsorbThreads) absorb(Absorb<B, W> a) {
  let_next_start();
  wait_for_last();
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokenTile, h = blockIdx.z;
  if (blockIdx.y == gridDim.y - 1) return turn(a, first, kTokenTile, h);
  const std::int64_t l = std::int64_t{blockIdx.y} * kAbsorbThreads + threadIdx.x;
  const auto count = static_cast<int>(min(std::int64_t{kTokenTile}, a.tokens - first));
  if (l >= a.c) return;
  const B* from = a.from + (first * a.heads + h) * a.head;
  const W* keys = a.keys + h * a.rows * a.c + l;
  const std::int64_t token = a.heads * a.head;
  float sums[kTokenTile] = {};
#pragma unroll 8
  for (std::int64_t j = 0; j < a.n; ++j) {
    const float key = widen(keys[j * a.c]);
#pragma unroll
    for (int t = 0; t < kTokenTile; ++t)
      if (t < count) sums[t] += widen(from[t * token + j]) * key;
  }
#pragma unroll
  for (int t = 0; t < kTokenTile; ++t)
    if (t < count)
      a.to[((first + t) * a.heads + h) * a.width + l] =
          narrow<B>(a.rope.status[first + t] == kOk ? sums[t] : 0.0f);
}

// bf16, n a multiple of 16 and C of 64, on tensor cores: 16 tokens by 64 columns a warp. Lane (g,
// c) loads 8 columns of the key rows 2c, 2c + 1, 2c + 8, 2c + 9 of each 16; column 8g + i is column
// g of the product i, so that each load is 16 bytes. grid: (T / 16, C / 256 and one that
// turns, H); block: 4 warps.
__global__ void __launch_bounds__(kAbsorbThreads) absorb_tiles(Absorb<Half, Half> a) {
  let_next_start();
  if (blockIdx.y == gridDim.y - 1) {
    wait_for_last();
    return turn(a, std::int64_t{blockIdx.x} * 16, 16, blockIdx.z);
  }
  const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, c = lane % 4;
  const std::int64_t column = (std::int64_t{blockIdx.y} * 4 + threadIdx.x / kWarp) * 64;
  if (column >= a.c) return wait_for_last();
  const std::int64_t h = blockIdx.z, low = std::int64_t{blockIdx.x} * 16 + g, high = low + 8;
  const Half* const keys = a.keys + h * a.rows * a.c + column + 8 * g;
  const Half* const from = a.from + h * a.head;
  const std::int64_t token = a.heads * a.head;
  const auto pair = [&](std::int64_t t, std::int64_t j) {
    return t < a.tokens ? *reinterpret_cast<const std::uint32_t*>(from + t * token + j) : 0u;
  };
  const auto row = [&](std::int64_t j) {
    return j < a.n ? __ldg(reinterpret_cast<const uint4*>(keys + j * a.c)) : uint4{};
  };
  // Keys are asked for kAhead steps ahead, the first before the queries are there.
  constexpr int kAhead = 4;
  uint4 next[kAhead][4];
  const auto load = [&](uint4(&to)[4], std::int64_t j) {
    to[0] = row(j);
    to[1] = row(j + 1);
    to[2] = row(j + 8);
    to[3] = row(j + 9);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(next[i], 2 * c + 16 * i);
  wait_for_last();
  float sums[8][4] = {};
  for (std::int64_t base = 2 * c; base < a.n; base += 16 * kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const std::int64_t j = base + 16 * u;
      const uint4 k0 = next[u][0], k1 = next[u][1], k8 = next[u][2], k9 = next[u][3];
      load(next[u], j + 16 * kAhead);
      const bool in = j < a.n;
      const auto pair_in = [&](std::int64_t t, std::int64_t at) { return in ? pair(t, at) : 0u; };
      const std::uint32_t q[4] = {pair_in(low, j), pair_in(high, j), pair_in(low, j + 8),
                                  pair_in(high, j + 8)};
      const std::uint32_t w0[4] = {k0.x, k0.y, k0.z, k0.w}, w1[4] = {k1.x, k1.y, k1.z, k1.w};
      const std::uint32_t w8[4] = {k8.x, k8.y, k8.z, k8.w}, w9[4] = {k9.x, k9.y, k9.z, k9.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // two columns a word: their low halves, then their high halves
        multiply_add<Half>(sums[2 * i], q, __byte_perm(w0[i], w1[i], 0x5410),
                           __byte_perm(w8[i], w9[i], 0x5410));
        multiply_add<Half>(sums[2 * i + 1], q, __byte_perm(w0[i], w1[i], 0x7632),
                           __byte_perm(w8[i], w9[i], 0x7632));
      }
    }
  }
  // Lane (g, c) holds tokens g and g + 8 of the columns 8 (2c) + i and 8 (2c + 1) + i.
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::int64_t t = j < 2 ? low : high;
    if (t >= a.tokens) continue;
    const bool ok = a.rope.status[t] == kOk;
    Half* to = a.to + (t * a.heads + h) * a.width + column + 8 * (2 * c + j % 2);
    uint4 whole;
    auto* const eight = reinterpret_cast<Half*>(&whole);
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = narrow<Half>(ok ? sums[i][j] : 0.0f);
    *reinterpret_cast<uint4*>(to) = whole;
  }
}

// The turned part of eight heads behind cuBLAS's. Failed tokens: all their columns become 0.
// grid: (T, H / 8); block: kAbsorbThreads.
constexpr std::int64_t kTurnHeads = 8;
__global__ void turn_heads(Absorb<Half, Half> a) {
  const std::int64_t t = blockIdx.x, first = blockIdx.y * kTurnHeads;
  const std::int64_t count = min(kTurnHeads, a.heads - first);
  for (std::int64_t h = first; h < first + count; ++h) turn(a, t, 1, h);
  if (a.rope.status[t] == kOk) return;
  Half* const to = a.to + (t * a.heads + first) * a.width;
  for (std::int64_t i = threadIdx.x; i < count * a.width; i += kAbsorbThreads)
    to[i] = narrow<Half>(0.0f);
}

template <class B, class W>
void absorbed(const Absorb<B, W>& a, void* workspace, cudaStream_t s) {
  if (a.heads == 0) return;
  const auto heads = static_cast<unsigned>(a.heads);
  if constexpr (std::is_same_v<B, Half>) {
    if (a.n > 0 && a.c > 0 && by_blas(a.tokens)) {
      Blas::get()->multiply(Blas::Shape{a.tokens, a.c, a.n, a.heads, a.heads * a.head, a.head, a.c,
                                        a.rows * a.c, a.heads * a.width, a.width, true},
                            a.from, a.keys, a.to, CUDA_R_16BF, workspace, s);
      turn_heads<<<dim3(static_cast<unsigned>(a.tokens), blocks(a.heads, kTurnHeads)),
                   kAbsorbThreads, 0, s>>>(a);
      KDTR_LAUNCHED("turn_heads");
      return;
    }
    if (a.n % 16 == 0 && a.c % 64 == 0 && whole_pieces(a.keys, {}) && a.head % 2 == 0 &&
        whole_pieces(a.to, {a.width})) {
      return launch_next(absorb_tiles, dim3(blocks(a.tokens, 16), blocks(a.c, 256) + 1, heads),
                         kAbsorbThreads, 0, s, a);
    }
  }
  launch_next(absorb<B, W>,
              dim3(blocks(a.tokens, kTokenTile), blocks(a.c, kAbsorbThreads) + 1, heads),
              kAbsorbThreads, 0, s, a);
}

// Both latent norms, the cached row's rope part, and the status. Failed tokens: the cached row
// becomes 0. The products come in parts, which are added here first, in order.
template <class W, class B>
struct Latents {
  const B* x;  // [T, D]
  float* a;    // [parts, T, Q]
  float* z;    // [parts, T, C + 2F]
  const W *a_norm, *z_norm;
  B* normed;                            // [T, Q]
  B* kv;                                // [T, C + 2F]
  std::int64_t parts, tokens, d, q, c;  // parts: 1 or 4
};
constexpr int kHeld = 2048;  // floats
// grid: (T, 2): the queries' latent, the cached row; block: kRowThreads.
template <class W, class B>
__global__ void __launch_bounds__(kRowThreads)
    normalise(Latents<W, B> x, Rope rope, std::int32_t* status, float eps) {
  let_next_start();
  const std::int64_t t = blockIdx.x, width = x.c + 2 * rope.f;
  float* const given = blockIdx.y == 0 ? x.a + t * x.q : x.z + t * width;
  const std::int64_t n = blockIdx.y == 0 ? x.q : x.c, all = blockIdx.y == 0 ? x.q : width;
  bool ok = true;
  if (blockIdx.y == 1) {
    const bool mine = part_finite(x.x + t * x.d, x.d) && rope.positions[t] >= 0;
    ok = __syncthreads_and(mine ? 1 : 0) != 0;
    if (threadIdx.x == 0) status[t] = ok ? kOk : kBadInput;
  }
  const W* const norm = blockIdx.y == 0 ? x.a_norm : x.z_norm;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) ask_for(norm + i);
  wait_for_last();
  // The sum of the parts stays in shared memory where there is room.
  __shared__ float held[kHeld];
  float* const row = all <= kHeld ? held : given;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < all; i += kRowThreads) {
    const std::int64_t part = x.tokens * all;
    if (x.parts == 4) {
      const float v[4] = {given[i], given[i + part], given[i + 2 * part], given[i + 3 * part]};
      row[i] = v[0] + v[1] + v[2] + v[3];
    } else {
      row[i] = given[i];
    }
  }
  __syncthreads();
  const float factor = rms_factor(row, n, eps);
  if (blockIdx.y == 0) {
    for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
      x.normed[t * n + i] = narrow<B>(widen(norm[i]) * (row[i] * factor));
    return;
  }
  B* kv = x.kv + t * width;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    kv[i] = narrow<B>(ok ? widen(norm[i]) * (row[i] * factor) : 0.0f);
  for (std::int64_t i = threadIdx.x; i < rope.f; i += kRowThreads) {
    if (ok) {
      turn_pair(row + x.c, i, rope.f, rope.positions[t], rope.inv_freq[i], rope.scale, rope.halves,
                kv + x.c);
    } else {
      kv[x.c + 2 * i] = kv[x.c + 2 * i + 1] = narrow<B>(0.0f);
    }
  }
}

// q_a and kv_a have few rows: their inputs are cut in parts, for more blocks. As many for any
// number of tokens, so that sums keep their order; cuBLAS cuts by itself.
std::int64_t parts(std::int64_t d, std::int64_t tokens, DLDataType rows) {
  return d % 32 == 0 && !(is<bf16>(rows) && by_blas(tokens)) ? 4 : 1;
}

std::size_t workspace(Call& call) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  call.any("q_a", KDTR_IN, "Q D");
  call.any("q_b", KDTR_IN, "QB Q");
  call.any("kv_a", KDTR_IN, "ROW D");
  const std::int64_t t = call.dim("T"), q = call.dim("Q"), size = x.dtype.bits / 8;
  const std::int64_t each = parts(call.dim("D"), t, x.dtype) * t * 4;
  return padded(each * q) + padded(each * call.dim("ROW")) + padded(t * q * size) +
         padded(t * call.dim("QB") * size) + blas_workspace(t, x.dtype);
}

void run(Call& call, void* stream) {
  const DLTensor& x = call.any("x", KDTR_IN, "T D");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const std::int64_t f = call.dim("F");
  const DLTensor& q_a = call.any("q_a", KDTR_IN, "Q D");
  const DLTensor& q_a_norm = call.any("q_a_norm", KDTR_IN, "Q");
  const DLTensor& q_b = call.any("q_b", KDTR_IN, "QB Q");
  const DLTensor& kv_a = call.any("kv_a", KDTR_IN, "ROW D");
  const DLTensor& kv_a_norm = call.any("kv_a_norm", KDTR_IN, "C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const DLTensor& q = call.any("q", KDTR_OUT, "T H ROW");
  const DLTensor& kv = call.any("kv", KDTR_OUT, "T ROW");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), d = call.dim("D"), h = call.dim("H");
  const std::int64_t c = call.dim("C"), width = call.dim("ROW"), qn = call.dim("Q");
  const std::int64_t qb = call.dim("QB"), nv = call.dim("NV");
  KDTR_CHECK(width == c + 2 * f, call.where("kv_a"), "rows", c + 2 * f, width);
  const std::int64_t head = h > 0 ? qb / h : 0, n = head - 2 * f;
  KDTR_CHECK(head * h == qb && n >= 0 && n <= nv, call.where("q_b"), "rows",
             "H * (n + 2F) with n <= " + std::to_string(nv), qb);
  const DLTensor* weights[] = {&q_a, &q_a_norm, &q_b, &kv_a, &kv_a_norm, &kv_b};
  for (const DLTensor* w : weights) require_dtype(call, "weights", *w, q_a.dtype);
  require_dtype(call, "q", q, x.dtype);
  require_dtype(call, "kv", kv, x.dtype);
  const auto eps = static_cast<float>(call.attr_float("eps"));
  const Rope rope{
      positions.data, inv_freq.data, f, static_cast<float>(call.attr_float("rope_scale")),
      halves(call),   status.data};
  if (rows == 0) return;
  const cudaStream_t s = cuda_stream(stream);
  const auto grid = static_cast<unsigned>(rows);
  with_rows(call, "x", x.dtype, "q_a", q_a.dtype, [&]<class X, class W>(X, W) {
    const auto w = [](const DLTensor& tensor) { return static_cast<const W*>(bytes(tensor)); };
    auto* free = static_cast<std::byte*>(call.workspace());
    const auto take = [&]<class T>(T, std::int64_t count) {
      auto* part = reinterpret_cast<T*>(free);
      free += padded(count * std::int64_t{sizeof(T)});
      return part;
    };
    const std::int64_t cut = parts(d, rows, x.dtype), part = d / cut;
    float* const a = take(float{}, cut * rows * qn);
    float* const z = take(float{}, cut * rows * width);
    X* const normed = take(X{}, rows * qn);
    X* const b = take(X{}, rows * qb);
    const auto* from = static_cast<const X*>(bytes(x));
    constexpr bool x_bf16 = std::is_same_v<X, Half>, w_bf16 = std::is_same_v<W, Half>;
    multiply({.x = data(from),
              .x_row = d,
              .x_batch = part,
              .tokens = rows,
              .k = part,
              .batches = cut,
              .w_bf16 = w_bf16,
              .out_bf16 = false,
              .sides = {{w(q_a), d, part, a, qn, rows * qn, qn},
                        {w(kv_a), d, part, z, width, rows * width, width}},
              .after = Product::After::nothing},
             free, s);
    launch_next(normalise<W, X>, dim3(grid, 2), kRowThreads, 0, s,
                Latents<W, X>{from, a, z, w(q_a_norm), w(kv_a_norm), normed,
                              static_cast<X*>(bytes(kv)), cut, rows, d, qn, c},
                rope, status.data, eps);
    multiply({.x = data(normed),
              .x_row = qn,
              .x_batch = 0,
              .tokens = rows,
              .k = qn,
              .batches = 1,
              .w_bf16 = w_bf16,
              .out_bf16 = x_bf16,
              .sides = {{w(q_b), qn, 0, b, qb, 0, qb}, {}}},
             free, s);
    absorbed(
        Absorb<X, W>{b, w(kv_b), static_cast<X*>(bytes(q)), rows, h, head, n, c, nv, width, rope},
        free, s);
  });
}

}  // namespace
KDTR_KERNEL({"mla_project@1", run, workspace});
}  // namespace kdtr::cuda
