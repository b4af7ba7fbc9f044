// The products of product.cuh. Once for all ops, for they take long to compile.
#include "product.cuh"

#include <algorithm>

#include "mma.cuh"

namespace kdtr::cuda {
namespace {

// The side of a row of blocks of `rows` rows each, and the row within it.
__device__ inline const Side& side_of(const Product& p, int rows, std::int64_t& row) {
  const std::int64_t first = (p.sides[0].n + rows - 1) / rows * rows;
  if (row < first) return p.sides[0];
  row -= first;
  return p.sides[1];
}

__device__ inline void store(const Product& p, const Side& side, std::int64_t z, std::int64_t t,
                             std::int64_t column, float y) {
  const bool ok = p.status == nullptr || p.status[t] == kOk;
  const std::int64_t at = z * side.out_batch + t * side.out_row + column;
  const std::int64_t from = t * side.n + column;
  if (p.out_bf16) {
    if (p.residual != nullptr && ok) y += widen(static_cast<const Half*>(p.residual)[from]);
    static_cast<Half*>(side.out)[at] = narrow<Half>(ok ? y : 0.0f);
  } else {
    if (p.residual != nullptr && ok) y += static_cast<const float*>(p.residual)[from];
    static_cast<float*>(side.out)[at] = ok ? y : 0.0f;
  }
}

// --- any types, any alignment
// ---------------------------------------------------------------------

__device__ inline float element(const void* at, bool bf16, std::int64_t i) {
  return bf16 ? widen(static_cast<const Half*>(at)[i]) : static_cast<const float*>(at)[i];
}

// grid: (tokens / kTokenTile, n / 8, batches); block: 8 warps, a column each. Lanes take inputs in
// turn.
__global__ void __launch_bounds__(8 * kWarp) by_columns(Product p) {
  if (p.after == Product::After::nothing) wait_for_last();
  let_next_start();
  wait_for_last();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  std::int64_t column = std::int64_t{blockIdx.y} * 8;
  const Side& side = side_of(p, 8, column);
  column += threadIdx.x / kWarp;
  if (column >= side.n) return;
  const std::int64_t z = blockIdx.z, first = std::int64_t{blockIdx.x} * kTokenTile;
  const auto count = static_cast<int>(min(std::int64_t{kTokenTile}, p.tokens - first));
  float sums[kTokenTile] = {};
  for (std::int64_t k = lane; k < p.k; k += kWarp) {
    const float w = element(side.w, p.w_bf16, z * side.w_batch + column * side.w_row + k);
#pragma unroll
    for (int t = 0; t < kTokenTile; ++t)
      if (t < count)
        sums[t] += element(p.x.at, p.x.bf16, z * p.x_batch + (first + t) * p.x_row + k) * w;
  }
#pragma unroll
  for (int t = 0; t < kTokenTile; ++t) {
    const float y = warp_sum(sums[t]);
    if (lane == 0 && t < count) store(p, side, z, first + t, column, y);
  }
}

// --- f32 rows
// -------------------------------------------------------------------------------------

// Eight lanes share a row: each has every eighth piece of 16 bytes of weights, in order; then the
// eight sums are added as a tree.
constexpr int kLanesOfRow = 8, kRowsOfWarp = kWarp / kLanesOfRow;
template <class W>
constexpr int kChunk = 16 / static_cast<int>(sizeof(W));  // inputs of a piece

__device__ inline float part_of(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A block has some rows and up to 64 tokens, a warp 4 kRows of the rows and kTokens of the tokens.
// Both pass through shared memory, at least 256 bytes of each weight row at a time: less would
// leave DRAM's pages too often. With few tokens memory is what blocks wait for: they are small, and
// several on a multiprocessor.
template <int kRows, int kTokens, class W>
struct Block {
  static constexpr int kBlockRows = kRows == 8 ? 64 : 32, kSteps = kRows == 8 ? 2 : 4;
  static constexpr int kRowPieces = kSteps * kLanesOfRow, kInputs = kRowPieces * kChunk<W>;
  static constexpr int kRowWarps = kBlockRows / (kRowsOfWarp * kRows);
  static constexpr int kTokenWarps = kRows;  // at most: 16, 32 or 64 tokens
  static constexpr int kThreads = kRowWarps * kTokenWarps * kWarp;
  // Stages in flight, and one: as many as 99 KiB hold.
  static constexpr bool kHalf = sizeof(W) == 2;
  static constexpr int kDepth = kRows == 8     ? 3
                                : kTokens == 1 ? (kHalf ? 5 : 6)
                                : kRows == 2   ? 4
                                               : (kHalf ? 3 : 4);
  static constexpr int kWeights = kBlockRows * kRowPieces * 16;  // bytes of a stage
  __host__ __device__ static constexpr int stage(int tokens) {
    return kWeights + tokens * kInputs * 4;
  }
};
// grid: (tokens / (kTokens token_warps), n / kBlockRows, batches); block: kRowWarps x token_warps
// warps.
template <int kRows, int kTokens, class W>
__global__ void __launch_bounds__(Block<kRows, kTokens, W>::kThreads)
    by_blocks(Product p, int token_warps) {
  using B = Block<kRows, kTokens, W>;
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kBlockRows = B::kBlockRows, kRowPieces = B::kRowPieces, kInputs = B::kInputs;
  constexpr int kXPieces = kInputs / 4, kAhead = B::kDepth - 1;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int part = lane % kLanesOfRow, threads = static_cast<int>(blockDim.x);
  const std::int64_t token = std::int64_t{blockIdx.x} * kTokens * token_warps, z = blockIdx.z;
  std::int64_t row = std::int64_t{blockIdx.y} * kBlockRows;
  const Side& side = side_of(p, kBlockRows, row);
  const auto rows = static_cast<int>(min(side.n - row, std::int64_t{kBlockRows}));
  const auto tokens = static_cast<int>(min(p.tokens - token, std::int64_t{kTokens} * token_warps));
  const int stage_bytes = B::stage(kTokens * token_warps);
  const std::uint32_t base = shared_address(memory);
  const auto steps = static_cast<int>((p.k + kInputs - 1) / kInputs);
  // A thread copies one piece of every few rows, and of every few tokens.
  const int w_piece = thread % kRowPieces, x_piece = thread % kXPieces;
  const W* const w = static_cast<const W*>(side.w) + z * side.w_batch + row * side.w_row;
  const float* const x = static_cast<const float*>(p.x.at) + z * p.x_batch + token * p.x_row;
  const auto fetch_weights = [&](int step) {
    const std::int64_t k = std::int64_t{step} * kInputs + w_piece * kChunk<W>;
    const auto bytes = static_cast<int>(
        max(std::int64_t{0}, min(std::int64_t{16}, (p.k - k) * std::int64_t{sizeof(W)})));
    const std::uint32_t to =
        base + static_cast<std::uint32_t>(step % B::kDepth * stage_bytes + w_piece * 16);
#pragma unroll 4
    for (int r = thread / kRowPieces; r < kBlockRows; r += threads / kRowPieces) {
      const int some = r < rows ? bytes : 0;
      copy_some(to + static_cast<std::uint32_t>(r * kRowPieces * 16),
                some > 0 ? w + r * side.w_row + k : w, some);
    }
  };
  const auto fetch_rows = [&](int step) {
    const std::int64_t k = std::int64_t{step} * kInputs + x_piece * 4;
    const auto bytes = static_cast<int>(max(std::int64_t{0}, min(std::int64_t{16}, (p.k - k) * 4)));
    const std::uint32_t to = base + static_cast<std::uint32_t>(step % B::kDepth * stage_bytes +
                                                               B::kWeights + x_piece * 16);
#pragma unroll 4
    for (int t = thread / kXPieces; t < tokens; t += threads / kXPieces)
      copy_some(to + static_cast<std::uint32_t>(t * kXPieces * 16),
                bytes > 0 ? x + t * p.x_row + k : x, bytes);
  };
  if (p.after == Product::After::nothing) wait_for_last();
  let_next_start();
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < steps) fetch_weights(i);
  if (p.after == Product::After::rows) wait_for_last();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < steps) fetch_rows(i);
    commit_copies();
  }
  float sums[kRows][kTokens] = {};
  const int first_row = warp % B::kRowWarps * kRowsOfWarp * kRows + lane / kLanesOfRow;
  const int first_token = warp / B::kRowWarps * kTokens;
  for (int step = 0; step < steps; ++step) {
    wait_copies_but<kAhead - 1>();
    __syncthreads();  // and all have read the stage that is filled next
    if (step + kAhead < steps) {
      fetch_weights(step + kAhead);
      fetch_rows(step + kAhead);
    }
    commit_copies();
    const unsigned char* const stage = memory + step % B::kDepth * stage_bytes;
    const auto* const from = reinterpret_cast<const W*>(stage) + first_row * kInputs;
    const auto* const with =
        reinterpret_cast<const float*>(stage + B::kWeights) + first_token * kInputs;
#pragma unroll
    for (int i = 0; i < B::kSteps; ++i)
#pragma unroll
      for (int j = 0; j < kChunk<W>; j += 4) {
        const int at = (i * kLanesOfRow + part) * kChunk<W> + j;
        float4 a[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) a[r] = load4(from + r * kRowsOfWarp * kInputs + at);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float4 b = load4(with + t * kInputs + at);
#pragma unroll
          for (int e = 0; e < 4; ++e)  // outside, for a sum waits for its last addition
#pragma unroll
            for (int r = 0; r < kRows; ++r)
              sums[r][t] = fmaf(part_of(b, e), part_of(a[r], e), sums[r][t]);
        }
      }
  }
  wait_copies();
  // While lanes hold several tokens, each halving of the lanes halves them: lane `part` ends with
  // token part / (8 / kTokens).
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int offset = kLanesOfRow / 2, held = kTokens; offset > 0; offset /= 2) {
      if (held == 1) {
        sums[r][0] += __shfl_xor_sync(~0u, sums[r][0], offset);
        continue;
      }
      const bool high = (lane & offset) != 0;
      held /= 2;
#pragma unroll
      for (int t = 0; t < held; ++t) {
        const float mine = high ? sums[r][t + held] : sums[r][t];
        const float other = high ? sums[r][t] : sums[r][t + held];
        sums[r][t] = mine + __shfl_xor_sync(~0u, other, offset);
      }
    }
  wait_for_last();
  const int t = first_token + part / (kLanesOfRow / kTokens);
  if (t >= tokens || part % (kLanesOfRow / kTokens) != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int at = first_row + r * kRowsOfWarp;
    if (at < rows) store(p, side, z, token + t, row + at, sums[r][0]);
  }
}

// --- bf16 on tensor cores
// -------------------------------------------------------------------------

constexpr int kSlices = 8;  // warps of a block: each sums its own inputs
constexpr int kStageK = kSlices * 32;

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
template <int kRowTiles, int kTokenTiles>
__global__ void __launch_bounds__(kSlices* kWarp) by_tiles(Product p) {
  using R = Ring<kRowTiles, kTokenTiles>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = static_cast<int>(threadIdx.x % kWarp), slice = threadIdx.x / kWarp;
  const int g = lane / 4, c = lane % 4;
  const std::int64_t token = std::int64_t{blockIdx.x} * R::kTokens;
  std::int64_t row = std::int64_t{blockIdx.y} * R::kRows, z = blockIdx.z;
  const Side side = side_of(p, R::kRows, row);
  const Half* const w = static_cast<const Half*>(side.w) + z * side.w_batch;
  const Half* const x = static_cast<const Half*>(p.x.at) + z * p.x_batch;
  unsigned char* const ring = memory + slice * R::kDepth * R::kStage;
  const std::uint32_t base = shared_address(ring);

  const auto place = [&](int r) { return 64 * r + 16 * c; };
  const auto input = [&](int step) {  // steps 2i and 2i + 1: halves of the same 128 bytes
    return step / 2 * (2 * kStageK) + slice * 64 + step % 2 * 32 + c * 8;
  };
  const auto fetch_weights = [&](int step) {
    const int k = input(step);
    const std::uint32_t stage = base + static_cast<std::uint32_t>(step % R::kDepth * R::kStage);
    const bool inside = k < p.k;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const std::int64_t r = row + 8 * i + g;
      const bool valid = inside && r < side.n;
      copy16(stage + place(8 * i + g), valid ? w + r * side.w_row + k : w, valid);
    }
  };
  const auto fetch_rows = [&](int step) {
    const int k = input(step);
    const std::uint32_t stage = base + static_cast<std::uint32_t>(step % R::kDepth * R::kStage);
    const bool inside = k < p.k;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const std::int64_t t = token + 8 * i + g;
      const bool valid = inside && t < p.tokens;
      copy16(stage + place(R::kRows + 8 * i + g), valid ? x + t * p.x_row + k : x, valid);
    }
  };

  float sums[kRowTiles][kTokenTiles][4] = {};
  const auto steps = static_cast<int>((p.k + 2 * kStageK - 1) / (2 * kStageK) * 2);
  if (p.after == Product::After::nothing) wait_for_last();
  let_next_start();
#pragma unroll
  for (int i = 0; i < R::kDepth - 1; ++i)
    if (i < steps) fetch_weights(i);
  if (p.after == Product::After::rows) wait_for_last();
#pragma unroll
  for (int i = 0; i < R::kDepth - 1; ++i) {
    if (i < steps) fetch_rows(i);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_copies_but<R::kDepth - 2>();
    __syncwarp();  // and all lanes have read the stage that is filled next
    if (step + R::kDepth - 1 < steps) {
      fetch_weights(step + R::kDepth - 1);
      fetch_rows(step + R::kDepth - 1);
    }
    commit_copies();
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
        multiply_add<Half>(sums[m][i], {low.x, high.x, low.y, high.y}, b[i].x, b[i].y);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i)
        multiply_add<Half>(sums[m][i], {low.z, high.z, low.w, high.w}, b[i].z, b[i].w);
    }
  }
  wait_copies();
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
    if (token + t < p.tokens && row + r < side.n) store(p, side, z, token + t, row + r, y);
  }
}

// Bytes that a block of this device may have: 99 KiB on sm_120, 227 KiB on sm_90.
int shared_memory() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

// --- cuBLAS
// ---------------------------------------------------------------------------------------

// Failed tokens' rows become 0. grid: tokens; block: kRowThreads.
template <class Y>
__global__ void clear_failed(Y* out, std::int64_t row, std::int64_t n, const std::int32_t* status) {
  const std::int64_t t = blockIdx.x;
  if (status[t] == kOk) return;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) out[t * row + i] = narrow<Y>(0.0f);
}

void blas(const Product& p, const Side& side, void* workspace, cudaStream_t s) {
  Blas::get()->multiply(Blas::Shape{p.tokens, side.n, p.k, p.batches, p.x_row, p.x_batch,
                                    side.w_row, side.w_batch, side.out_row, side.out_batch, false},
                        p.x.at, side.w, side.out, p.out_bf16 ? CUDA_R_16BF : CUDA_R_32F, workspace,
                        s);
  if (p.status == nullptr) return;
  const auto clear = [&](auto* out) {
    clear_failed<<<static_cast<unsigned>(p.tokens), kRowThreads, 0, s>>>(out, side.out_row, side.n,
                                                                         p.status);
    KDTR_LAUNCHED("clear_failed");
  };
  if (p.out_bf16) {
    clear(static_cast<Half*>(side.out));
  } else {
    clear(static_cast<float*>(side.out));
  }
}

// --- which of them
// --------------------------------------------------------------------------------

template <class... A>
void launch(const Product& p, void (*kernel)(Product, A...), dim3 grid, int threads,
            std::size_t shared, cudaStream_t s, A... more) {
  if (shared > 48 * 1024)
    KDTR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared)));
  launch_next(kernel, grid, threads, shared, s, p, more...);
}
// Blocks of so many rows, of both sides.
unsigned row_blocks(const Product& p, std::int64_t rows) {
  return blocks(p.sides[0].n, rows) + blocks(p.sides[1].n, rows);
}

template <int kRowTiles, int kTokenTiles>
void launch_tiles(const Product& p, cudaStream_t s) {
  using R = Ring<kRowTiles, kTokenTiles>;
  const dim3 grid(blocks(p.tokens, R::kTokens), row_blocks(p, R::kRows),
                  static_cast<unsigned>(p.batches));
  launch(p, by_tiles<kRowTiles, kTokenTiles>, grid, kSlices * kWarp, R::kBytes, s);
}

template <int kRows, int kTokens, class W>
void launch_blocks(const Product& p, cudaStream_t s) {
  using B = Block<kRows, kTokens, W>;
  const auto bytes = [](int warps) {
    return static_cast<std::size_t>(B::kDepth) *
           static_cast<std::size_t>(B::stage(kTokens * warps));
  };
  int warps = std::min(static_cast<int>(blocks(p.tokens, kTokens)), B::kTokenWarps);
  while (warps > 1 && bytes(warps) > static_cast<std::size_t>(shared_memory())) warps /= 2;
  const dim3 grid(blocks(p.tokens, kTokens * warps), row_blocks(p, B::kBlockRows),
                  static_cast<unsigned>(p.batches));
  launch(p, by_blocks<kRows, kTokens, W>, grid, B::kRowWarps * warps * kWarp, bytes(warps), s,
         warps);
}
template <class W>
void launch_f32(const Product& p, cudaStream_t s) {
  if (p.tokens == 1) return launch_blocks<2, 1, W>(p, s);
  if (p.tokens <= 8) return launch_blocks<2, 8, W>(p, s);
  // More tokens: fewer and busier warps for each.
  if (p.tokens <= 32) return launch_blocks<4, 8, W>(p, s);
  launch_blocks<8, 8, W>(p, s);
}

}  // namespace

void multiply(const Product& p, void* workspace, cudaStream_t s) {
  const std::int64_t n = p.sides[0].n + p.sides[1].n;
  if (p.tokens == 0 || n == 0 || p.batches == 0) return;
  bool rows_whole = whole_pieces(p.x.at, {});
  bool whole = true;
  const std::int64_t x_each = p.x.bf16 ? 8 : 4, w_each = p.w_bf16 ? 8 : 4;
  rows_whole = rows_whole && p.x_row % x_each == 0 && p.x_batch % x_each == 0;
  for (const Side& side : p.sides)
    whole = whole && (side.n == 0 || (whole_pieces(side.w, {}) && side.w_row % w_each == 0 &&
                                      side.w_batch % w_each == 0));
  whole = whole && rows_whole;
  if (p.x.bf16) {
    // Not with a residual: the sum that cuBLAS gave for one in bf16 was beyond the budget.
    if (p.k > 0 && p.residual == nullptr && by_blas(p.tokens)) {
      for (const Side& side : p.sides)
        if (side.n > 0) blas(p, side, workspace, s);
      return;
    }
    if (whole && p.k % 8 == 0) {
      const bool many = n * p.batches >= 4096;  // else more blocks, of fewer rows each
      if (p.tokens == 1 || (p.tokens <= 8 && !many)) return launch_tiles<1, 1>(p, s);
      if (p.tokens <= 8) return launch_tiles<2, 1>(p, s);
      if (p.tokens <= 16) return launch_tiles<2, 2>(p, s);
      if (shared_memory() < Ring<4, 8>::kBytes) return launch_tiles<2, 4>(p, s);
      if (p.tokens <= 32) return many ? launch_tiles<4, 4>(p, s) : launch_tiles<2, 4>(p, s);
      return many ? launch_tiles<4, 8>(p, s) : launch_tiles<2, 8>(p, s);
    }
  } else if (whole) {
    return p.w_bf16 ? launch_f32<Half>(p, s) : launch_f32<float>(p, s);
  }
  const dim3 grid(blocks(p.tokens, kTokenTile), row_blocks(p, 8), static_cast<unsigned>(p.batches));
  launch(p, by_columns, grid, 8 * kWarp, 0, s);
}

}  // namespace kdtr::cuda
