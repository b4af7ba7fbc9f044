// Rows times weight matrices. f32 rows: a warp a few columns, each lane's sum in one order. bf16
// rows and weights: tensor cores, the weights streamed through shared memory; cuBLAS beyond
// kTileTokens. Every sum is in one order that depends on sizes and alignment alone, so a token's
// bits are the same in any batch; with cuBLAS, in any batch of at most kTileTokens.
#pragma once

#include "cublas.cuh"
#include "matrix.cuh"

namespace kdtr::cuda {

// out[z, t, n] = sum_k x[z, t, k] w[z, n, k] (+ residual[t, n]); 0 where status[t] is not ok.
// Strides in elements; x and w are dense in k, residual [T, N] is.
template <class X, class W, class Y>
struct Product {
  const X* x;
  std::int64_t x_row, x_batch;
  const W* w;
  std::int64_t w_row, w_batch;
  Y* out;
  std::int64_t out_row, out_batch;
  const Y* residual;
  const std::int32_t* status;
  std::int64_t tokens, n, k, batches;
  bool x_given;  // x is an input of the op, not written by the launch before

  __device__ void store(std::int64_t z, std::int64_t t, std::int64_t column, float y) const {
    const bool ok = status == nullptr || status[t] == kOk;
    if (residual != nullptr && ok) y += widen(residual[t * n + column]);
    out[z * out_batch + t * out_row + column] = narrow<Y>(ok ? y : 0.0f);
  }
};

// --- any dtypes, any alignment
// --------------------------------------------------------------------

template <bool kWhole, class T>
__device__ float4 four(const T* at) {
  if constexpr (kWhole) return load4(at);
  return {widen(at[0]), widen(at[1]), widen(at[2]), widen(at[3])};
}

// grid: (tokens / kTokens, n / (8 kColumns), batches); block: 8 warps, kColumns neighbouring
// columns each. A weight is read once for kTokens tokens. Lanes take fours of k in turn. Tokens
// past the last repeat it, so that loads need no branch and are asked for together. kWhole: fours
// are aligned.
template <int kColumns, int kTokens, bool kWhole, class X, class W, class Y>
__global__ void __launch_bounds__(8 * kWarp) by_columns(Product<X, W, Y> p) {
  // Steps whose weights are asked for at once; fewer where rows take the registers.
  constexpr int kAhead = kTokens == 1 ? 8 / kColumns : 4 / kColumns;
  let_next_start();
  if (!p.x_given) wait_for_last();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t column = (std::int64_t{blockIdx.y} * 8 + threadIdx.x / kWarp) * kColumns;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens, z = blockIdx.z;
  const X* x[kTokens];
  const W* rows[kColumns];
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    x[t] = p.x + z * p.x_batch + min(first + t, p.tokens - 1) * p.x_row;
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    rows[i] = p.w + z * p.w_batch + min(column + i, p.n - 1) * p.w_row;
  float sums[kColumns][kTokens] = {};
  const auto add = [&](std::int64_t k, const float4(&w)[kColumns]) {
    float4 a[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) a[t] = four<kWhole>(x[t] + k);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        sums[i][t] += a[t].x * w[i].x;
        sums[i][t] += a[t].y * w[i].y;
        sums[i][t] += a[t].z * w[i].z;
        sums[i][t] += a[t].w * w[i].w;
      }
  };
  constexpr std::int64_t kStep = kWarp * 4;
  std::int64_t k = lane * 4;
  for (; k + (kAhead - 1) * kStep + 4 <= p.k; k += kAhead * kStep) {
    float4 w[kAhead][kColumns];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) w[j][i] = four<kWhole>(rows[i] + k + j * kStep);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) add(k + j * kStep, w[j]);
  }
  for (; k + 4 <= p.k; k += kStep) {
    float4 w[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) w[i] = four<kWhole>(rows[i] + k);
    add(k, w);
  }
  for (; k < p.k; ++k)  // only the lane whose four reach past the end
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sums[i][t] += widen(x[t][k]) * widen(rows[i][k]);
  wait_for_last();
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float y = warp_sum(sums[i][t]);
      if (lane == 0 && first + t < p.tokens && column + i < p.n)
        p.store(z, first + t, column + i, y);
    }
}

// --- bf16 on tensor cores
// -------------------------------------------------------------------------

using Half = __nv_bfloat16;

constexpr std::int64_t kTileTokens = 64;  // tokens of a block at most
constexpr int kSlices = 8;                // warps of a block: each sums its own inputs
constexpr int kStageK = kSlices * 32;

__device__ inline void copy_async(void* to, const void* from, bool valid) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// d += a b: a is 16 weight rows by 16 inputs, b 16 inputs by 8 tokens.
__device__ inline void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                           std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Shared memory of one block: a ring of stages for each warp, used again for the warps' sums.
template <int kRowTiles, int kTokenTiles>
struct Ring {
  static constexpr int kRows = 16 * kRowTiles, kTokens = 8 * kTokenTiles;
  static constexpr int kStage = (kRows + kTokens) * 64;  // bytes of one warp: 32 inputs a row
  static constexpr int kDepth = kStage * kSlices >= 64 * 1024 ? 3 : 4;
  static constexpr int kLine = kRows + 4;  // floats; the 4 keep banks apart
  static constexpr int kRing = kDepth * kSlices * kStage;
  static constexpr int kSums = kSlices * kTokens * kLine * 4;
  static constexpr int kBytes = kRing > kSums ? kRing : kSums;
};

// grid: (tokens / 8 kTokenTiles, n / 16 kRowTiles, batches); block: kSlices warps. Warp s takes the
// inputs 512 i + 64 s .. + 63, in order; then the warps' sums are added in order. A lane holds
// 16-byte pieces: the four lanes of a row hold its 32 inputs, 8 each, of which mma gets 4 and 4. So
// inputs are permuted within the 32, the same way for weights and tokens.
template <int kRowTiles, int kTokenTiles, class Y>
__global__ void __launch_bounds__(kSlices* kWarp) by_tiles(Product<Half, Half, Y> p) {
  using R = Ring<kRowTiles, kTokenTiles>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = static_cast<int>(threadIdx.x % kWarp), slice = threadIdx.x / kWarp;
  const int g = lane / 4, c = lane % 4;
  const std::int64_t token = std::int64_t{blockIdx.x} * R::kTokens;
  const std::int64_t row = std::int64_t{blockIdx.y} * R::kRows, z = blockIdx.z;
  const Half* const w = p.w + z * p.w_batch;
  const Half* const x = p.x + z * p.x_batch;
  unsigned char* const ring = memory + slice * R::kDepth * R::kStage;

  const auto place = [&](int r) { return 64 * r + 16 * c; };
  const auto input = [&](std::int64_t step) {  // steps 2i and 2i + 1: halves of the same 128 bytes
    return step / 2 * (2 * kStageK) + slice * 64 + step % 2 * 32 + c * 8;
  };
  const auto fetch_weights = [&](std::int64_t step) {
    const std::int64_t k = input(step);
    unsigned char* const stage = ring + step % R::kDepth * R::kStage;
    const bool inside = k < p.k;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const std::int64_t r = row + 8 * i + g;
      const bool valid = inside && r < p.n;
      copy_async(stage + place(8 * i + g), valid ? w + r * p.w_row + k : w, valid);
    }
  };
  const auto fetch_rows = [&](std::int64_t step) {
    const std::int64_t k = input(step);
    unsigned char* const stage = ring + step % R::kDepth * R::kStage;
    const bool inside = k < p.k;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const std::int64_t t = token + 8 * i + g;
      const bool valid = inside && t < p.tokens;
      copy_async(stage + place(R::kRows + 8 * i + g), valid ? x + t * p.x_row + k : x, valid);
    }
  };

  float sums[kRowTiles][kTokenTiles][4] = {};
  const std::int64_t steps = (p.k + 2 * kStageK - 1) / (2 * kStageK) * 2;
  let_next_start();
#pragma unroll
  for (int i = 0; i < R::kDepth - 1; ++i)
    if (i < steps) fetch_weights(i);
  if (!p.x_given) wait_for_last();
#pragma unroll
  for (int i = 0; i < R::kDepth - 1; ++i) {
    if (i < steps) fetch_rows(i);
    copy_commit();
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    copy_wait<R::kDepth - 2>();
    __syncwarp();  // and all lanes have read the stage that is filled next
    if (step + R::kDepth - 1 < steps) {
      fetch_weights(step + R::kDepth - 1);
      fetch_rows(step + R::kDepth - 1);
    }
    copy_commit();
    const unsigned char* const stage = ring + step % R::kDepth * R::kStage;
    const auto piece = [&](int r) { return *reinterpret_cast<const uint4*>(stage + place(r)); };
    uint4 b[kTokenTiles];
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) b[i] = piece(R::kRows + 8 * i + g);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint4 low = piece(16 * m + g), high = piece(16 * m + 8 + g);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        mma(sums[m][i], low.x, high.x, low.y, high.y, b[i].x, b[i].y);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        mma(sums[m][i], low.z, high.z, low.w, high.w, b[i].z, b[i].w);
    }
  }
  copy_wait<0>();
  wait_for_last();
  __syncthreads();
  auto* const lines = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        lines[(slice * R::kTokens + 8 * i + 2 * c + j % 2) * R::kLine + 16 * m + 8 * (j / 2) + g] =
            sums[m][i][j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < R::kRows * R::kTokens; i += kSlices * kWarp) {
    const int r = i % R::kRows, t = i / R::kRows;
    float y = 0;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) y += lines[(s * R::kTokens + t) * R::kLine + r];
    if (token + t < p.tokens && row + r < p.n) p.store(z, token + t, row + r, y);
  }
}

// Bytes that a block of this device may have: 99 KiB on sm_120, 227 KiB on sm_90.
inline int shared_memory() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

template <int kRowTiles, int kTokenTiles, class Y>
void launch_tiles(const Product<Half, Half, Y>& p, cudaStream_t s) {
  using R = Ring<kRowTiles, kTokenTiles>;
  const auto kernel = by_tiles<kRowTiles, kTokenTiles, Y>;
  KDTR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes));
  const dim3 grid(blocks(p.tokens, R::kTokens), blocks(p.n, R::kRows),
                  static_cast<unsigned>(p.batches));
  launch_next(kernel, grid, kSlices * kWarp, R::kBytes, s, p);
}

// --- cuBLAS
// ---------------------------------------------------------------------------------------

inline bool by_blas(std::int64_t tokens) { return tokens > kTileTokens && Blas::get() != nullptr; }

// Sizes of the parts of a workspace: each starts at a multiple of 256 bytes.
inline std::size_t padded(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + 255) / 256 * 256);
}

// Bytes at the end of a workspace for products of rows of this type.
inline std::size_t blas_workspace(std::int64_t tokens, DLDataType rows) {
  if (!is<bf16>(rows) || !by_blas(tokens)) return 0;
  Blas::get()->prepare();
  return kBlasWorkspace;
}

// Failed tokens' rows become 0. grid: tokens; block: kRowThreads.
template <class Y>
__global__ void clear_failed(Y* out, std::int64_t row, std::int64_t n, const std::int32_t* status) {
  const std::int64_t t = blockIdx.x;
  if (status[t] == kOk) return;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) out[t * row + i] = narrow<Y>(0.0f);
}

template <class Y>
void blas(const Product<Half, Half, Y>& p, void* workspace, cudaStream_t s) {
  Blas::get()->multiply(Blas::Shape{p.tokens, p.n, p.k, p.batches, p.x_row, p.x_batch, p.w_row,
                                    p.w_batch, p.out_row, p.out_batch, false},
                        p.x, p.w, p.out, std::is_same_v<Y, float> ? CUDA_R_32F : CUDA_R_16BF,
                        workspace, s);
  if (p.status == nullptr) return;
  clear_failed<<<static_cast<unsigned>(p.tokens), kRowThreads, 0, s>>>(p.out, p.out_row, p.n,
                                                                       p.status);
  KDTR_LAUNCHED("clear_failed");
}

// --- which of them
// --------------------------------------------------------------------------------

inline bool whole_pieces(const void* at, std::initializer_list<std::int64_t> strides) {
  bool whole = reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  for (const std::int64_t stride : strides) whole = whole && stride % 8 == 0;
  return whole;
}

// `workspace`: blas_workspace bytes. A status or a residual needs one batch.
template <class X, class W, class Y>
void multiply(const Product<X, W, Y>& p, void* workspace, cudaStream_t s) {
  if (p.tokens == 0 || p.n == 0 || p.batches == 0) return;
  if constexpr (std::is_same_v<X, Half> && std::is_same_v<W, Half>) {
    // Not with a residual: the sum that cuBLAS gave for one in bf16 was beyond the budget.
    if (p.k > 0 && p.residual == nullptr && by_blas(p.tokens)) return blas(p, workspace, s);
    if (whole_pieces(p.x, {p.x_row, p.x_batch, p.w_row, p.w_batch, p.k}) && whole_pieces(p.w, {})) {
      const bool many = p.n * p.batches >= 4096;  // else more blocks, of fewer rows each
      if (p.tokens == 1 || (p.tokens <= 8 && !many)) return launch_tiles<1, 1>(p, s);
      if (p.tokens <= 8) return launch_tiles<2, 1>(p, s);
      if (p.tokens <= 16) return launch_tiles<2, 2>(p, s);
      if (shared_memory() < Ring<4, 8>::kBytes) return launch_tiles<2, 4>(p, s);
      if (p.tokens <= 32) return many ? launch_tiles<4, 4>(p, s) : launch_tiles<2, 4>(p, s);
      return many ? launch_tiles<4, 8>(p, s) : launch_tiles<2, 8>(p, s);
    }
  }
  const auto launch = [&](auto kernel, std::int64_t columns, std::int64_t tokens) {
    const dim3 grid(blocks(p.tokens, tokens), blocks(p.n, 8 * columns),
                    static_cast<unsigned>(p.batches));
    launch_next(kernel, grid, 8 * kWarp, 0, s, p);
  };
  if constexpr (!std::is_same_v<X, Half>) {
    const auto fours = [](const auto* at, std::int64_t row, std::int64_t batch) {
      return reinterpret_cast<std::uintptr_t>(at) % (4 * sizeof(*at)) == 0 && row % 4 == 0 &&
             batch % 4 == 0;
    };
    if (fours(p.x, p.x_row, p.x_batch) && fours(p.w, p.w_row, p.w_batch)) {
      const bool many = p.n * p.batches >= 4096;
      if (p.tokens == 1 && many) return launch(by_columns<4, 1, true, X, W, Y>, 4, 1);
      if (p.tokens == 1) return launch(by_columns<1, 1, true, X, W, Y>, 1, 1);
      if (many) return launch(by_columns<4, kTokenTile, true, X, W, Y>, 4, kTokenTile);
      return launch(by_columns<1, kTokenTile, true, X, W, Y>, 1, kTokenTile);
    }
  }
  launch(by_columns<1, kTokenTile, false, X, W, Y>, 1, kTokenTile);
}

}  // namespace kdtr::cuda
