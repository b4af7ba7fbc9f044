// Rows times weight matrices. Sums are f32, in one order that depends on sizes and alignment alone,
// so a token's bits are the same in any batch; with cuBLAS, in any batch of at most kTileTokens.
#pragma once

#include "cublas.cuh"
#include "matrix.cuh"

namespace kdtr::cuda {

using Half = __nv_bfloat16;

constexpr std::int64_t kTileTokens = 64;  // bf16 tokens of a block at most; cuBLAS takes more

// Rows in f32 or bf16.
struct Data {
  const void* at = nullptr;
  bool bf16 = false;
};
template <class T>
Data data(const T* at) {
  return {at, std::is_same_v<T, Half>};
}

// One matrix [n, k] of each batch, and where its results go. Strides in elements; dense in k.
struct Side {
  const void* w;
  std::int64_t w_row, w_batch;
  void* out;
  std::int64_t out_row, out_batch, n;
};

// out[z, t, n] = sum_k x[z, t, k] w[z, n, k] (+ residual[t, n]); 0 where status[t] is not ok.
// Types: x f32 with w f32 or bf16, or both bf16. A status or a residual [T, N], of out's type,
// needs one batch and one side; the second side has n = 0 where there is none.
struct Product {
  Data x;
  std::int64_t x_row, x_batch, tokens, k, batches;
  bool w_bf16, out_bf16;
  Side sides[2];
  const void* residual = nullptr;
  const std::int32_t* status = nullptr;
  // Whether x is an input of the op, checked by the launch before; or written by it; or this is the
  // op's first launch.
  enum class After { check, rows, nothing } after = After::rows;
};

// Enqueues it. `workspace`: blas_workspace bytes.
void multiply(const Product& p, void* workspace, cudaStream_t s);

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

// Whether pieces of 16 bytes from here, at these strides of 2-byte elements, are aligned.
inline bool whole_pieces(const void* at, std::initializer_list<std::int64_t> strides) {
  bool whole = reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  for (const std::int64_t stride : strides) whole = whole && stride % 8 == 0;
  return whole;
}

}  // namespace kdtr::cuda
