// mla_project@1 on cuda: products as linear's, both norms in one launch, absorption, rotation; f32
// rows with f32 or bf16 weights, or bf16 both, when the normed latent and the queries before
// absorption are rounded to bf16.
// x [T, D], positions [T], inv_freq [F], six weights -> q [T, H, C+2F], kv [T, C+2F], status [T].
#include "detail/product.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// q[t, h, l] = sum_j b[t, h, j] keys[h, j, l]. `from` and `to` are [T, H, head] and [T, H, width];
// keys [H, rows, C], of which the first n rows of a head are read.
template <class B, class W, class Y>
struct Absorb {
  const B* from;
  const W* keys;
  Y* to;
  std::int64_t tokens, heads, head, n, c, rows, width;
};

// Any sizes. grid: (T / kTokenTile, C / 128, H); block: 128, a column each.
template <class B, class W, class Y>
__global__ void __launch_bounds__(128) absorb(Absorb<B, W, Y> a) {
  let_next_start();
  wait_for_last();
  const std::int64_t l = std::int64_t{blockIdx.y} * 128 + threadIdx.x, h = blockIdx.z;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokenTile;
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
    if (t < count) a.to[((first + t) * a.heads + h) * a.width + l] = narrow<Y>(sums[t]);
}

// bf16, n a multiple of 16 and C of 64, on tensor cores: 16 tokens by 64 columns a warp. Lane (g,
// c) loads 8 columns of the key rows 2c, 2c + 1, 2c + 8, 2c + 9 of each 16; column 8g + i is column
// g of the product i, so that each load is 16 bytes. grid: (T / 16, C / 256, H); block: 4 warps.
__global__ void __launch_bounds__(4 * kWarp) absorb_tiles(Absorb<Half, Half, Half> a) {
  let_next_start();
  wait_for_last();
  const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, c = lane % 4;
  const std::int64_t column = (std::int64_t{blockIdx.y} * 4 + threadIdx.x / kWarp) * 64;
  if (column >= a.c) return;
  const std::int64_t h = blockIdx.z, low = std::int64_t{blockIdx.x} * 16 + g, high = low + 8;
  const Half* const keys = a.keys + h * a.rows * a.c + column + 8 * g;
  const Half* const from = a.from + h * a.head;
  const std::int64_t token = a.heads * a.head;
  const auto pair = [&](std::int64_t t, std::int64_t j) {
    return t < a.tokens ? *reinterpret_cast<const std::uint32_t*>(from + t * token + j) : 0u;
  };
  float sums[8][4] = {};
#pragma unroll 4
  for (std::int64_t j = 2 * c; j < a.n; j += 16) {
    const auto row = [&](std::int64_t r) {
      return __ldg(reinterpret_cast<const uint4*>(keys + (j + r) * a.c));
    };
    const uint4 k0 = row(0), k1 = row(1), k8 = row(8), k9 = row(9);
    const std::uint32_t q[4] = {pair(low, j), pair(high, j), pair(low, j + 8), pair(high, j + 8)};
    const std::uint32_t w0[4] = {k0.x, k0.y, k0.z, k0.w}, w1[4] = {k1.x, k1.y, k1.z, k1.w};
    const std::uint32_t w8[4] = {k8.x, k8.y, k8.z, k8.w}, w9[4] = {k9.x, k9.y, k9.z, k9.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two columns a word: their low halves, then their high halves
      mma(sums[2 * i], q[0], q[1], q[2], q[3], __byte_perm(w0[i], w1[i], 0x5410),
          __byte_perm(w8[i], w9[i], 0x5410));
      mma(sums[2 * i + 1], q[0], q[1], q[2], q[3], __byte_perm(w0[i], w1[i], 0x7632),
          __byte_perm(w8[i], w9[i], 0x7632));
    }
  }
  // Lane (g, c) holds tokens g and g + 8 of the columns 8 (2c) + i and 8 (2c + 1) + i.
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::int64_t t = j < 2 ? low : high;
    if (t >= a.tokens) continue;
    Half* to = a.to + (t * a.heads + h) * a.width + column + 8 * (2 * c + j % 2);
    uint4 whole;
    auto* const eight = reinterpret_cast<Half*>(&whole);
#pragma unroll
    for (int i = 0; i < 8; ++i) eight[i] = narrow<Half>(sums[i][j]);
    *reinterpret_cast<uint4*>(to) = whole;
  }
}

template <class B, class W, class Y>
void absorbed(const Absorb<B, W, Y>& a, void* workspace, cudaStream_t s) {
  if (a.c == 0 || a.heads == 0) return;
  const auto heads = static_cast<unsigned>(a.heads);
  if constexpr (std::is_same_v<B, Half>) {
    if (a.n > 0 && by_blas(a.tokens))
      return Blas::get()->multiply(
          Blas::Shape{a.tokens, a.c, a.n, a.heads, a.heads * a.head, a.head, a.c, a.rows * a.c,
                      a.heads * a.width, a.width, true},
          a.from, a.keys, a.to, CUDA_R_16BF, workspace, s);
    if (a.n % 16 == 0 && a.c % 64 == 0 && whole_pieces(a.keys, {}) && a.head % 2 == 0 &&
        whole_pieces(a.to, {a.width})) {
      return launch_next(absorb_tiles, dim3(blocks(a.tokens, 16), blocks(a.c, 256), heads),
                         4 * kWarp, 0, s, a);
    }
  }
  launch_next(absorb<B, W, Y>, dim3(blocks(a.tokens, kTokenTile), blocks(a.c, 128), heads), 128, 0,
              s, a);
}

// Both latent norms, and the cached row's rope part. Failed tokens: the cached row becomes 0. The
// products come in parts, which are added here first, in order.
template <class W, class B, class Y>
struct Latents {
  float* a;  // [parts, T, Q]
  float* z;  // [parts, T, C + 2F]
  const W *a_norm, *z_norm;
  B* normed;  // [T, Q]
  Y* kv;      // [T, C + 2F]
  std::int64_t parts, tokens, q, c;
};
struct Rope {
  const std::int32_t* positions;
  const float* inv_freq;
  std::int64_t f;
  float scale;
  bool halves;
  const std::int32_t* status;
};
// grid: (T, 2): the queries' latent, the cached row; block: kRowThreads.
template <class W, class B, class Y>
__global__ void normalise(Latents<W, B, Y> x, Rope rope, float eps) {
  let_next_start();
  wait_for_last();
  const std::int64_t t = blockIdx.x, width = x.c + 2 * rope.f;
  float* row = blockIdx.y == 0 ? x.a + t * x.q : x.z + t * width;
  const std::int64_t n = blockIdx.y == 0 ? x.q : x.c, all = blockIdx.y == 0 ? x.q : width;
  for (std::int64_t i = threadIdx.x; i < all; i += kRowThreads) {
    float sum = row[i];
    for (std::int64_t p = 1; p < x.parts; ++p) sum += row[p * x.tokens * all + i];
    row[i] = sum;
  }
  const float factor = rms_factor(row, n, eps);
  if (blockIdx.y == 0) {
    for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
      x.normed[t * n + i] = narrow<B>(widen(x.a_norm[i]) * (row[i] * factor));
    return;
  }
  const bool ok = rope.status[t] == kOk;
  Y* kv = x.kv + t * width;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    kv[i] = narrow<Y>(ok ? widen(x.z_norm[i]) * (row[i] * factor) : 0.0f);
  for (std::int64_t i = threadIdx.x; i < rope.f; i += kRowThreads) {
    if (ok) {
      turn_pair(row + x.c, i, rope.f, rope.positions[t], rope.inv_freq[i], rope.scale, rope.halves,
                kv + x.c);
    } else {
      kv[x.c + 2 * i] = kv[x.c + 2 * i + 1] = narrow<Y>(0.0f);
    }
  }
}

// The rope part of eight heads of q. Failed tokens: all their columns become 0.
// grid: (T, H / 8); block: kRowThreads.
constexpr std::int64_t kTurnHeads = 8;
template <class B, class Y>
__global__ void turn(const B* b, std::int64_t heads, std::int64_t head, Rope rope, Y* q,
                     std::int64_t width) {
  wait_for_last();
  const std::int64_t t = blockIdx.x, first = blockIdx.y * kTurnHeads, f = rope.f;
  const std::int64_t count = min(kTurnHeads, heads - first);
  Y* to = q + (t * heads + first) * width;
  if (rope.status[t] != kOk) {
    for (std::int64_t i = threadIdx.x; i < count * width; i += kRowThreads) to[i] = narrow<Y>(0.0f);
    return;
  }
  const B* from = b + (t * heads + first) * head + head - 2 * f;
  for (std::int64_t i = threadIdx.x; i < count * f; i += kRowThreads)
    turn_pair(from + i / f * head, i % f, f, rope.positions[t], rope.inv_freq[i % f], rope.scale,
              rope.halves, to + i / f * width + width - 2 * f);
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
    check(Rows<X, X>{from, d, nullptr, 0, positions.data}, rows, status.data, s);
    const auto cut_product = [&](const DLTensor& matrix, float* out, std::int64_t columns) {
      multiply(Product<X, W, float>{from, d, part, w(matrix), d, part, out, columns, rows * columns,
                                    nullptr, nullptr, rows, columns, part, cut, true},
               free, s);
    };
    cut_product(q_a, a, qn);
    cut_product(kv_a, z, width);
    launch_next(normalise<W, X, X>, dim3(grid, 2), kRowThreads, 0, s,
                Latents<W, X, X>{a, z, w(q_a_norm), w(kv_a_norm), normed,
                                 static_cast<X*>(bytes(kv)), cut, rows, qn, c},
                rope, eps);
    multiply(Product<X, W, X>{normed, qn, 0, w(q_b), qn, 0, b, qb, 0, nullptr, nullptr, rows, qb,
                              qn, 1, false},
             free, s);
    auto* const to = static_cast<X*>(bytes(q));
    absorbed(Absorb<X, W, X>{b, w(kv_b), to, rows, h, head, n, c, nv, width}, free, s);
    if (h == 0) return;
    launch_next(turn<X, X>, dim3(grid, blocks(h, kTurnHeads)), kRowThreads, 0, s, b, h, head, rope,
                to, width);
  });
}

}  // namespace
KDTR_KERNEL({"mla_project@1", run, workspace});
}  // namespace kdtr::cuda
