// mla_project@1 on cuda: three products, two norms, absorption and rotation, one launch each; f32
// rows, f32 or bf16 weights.
// x [T, D], positions [T], inv_freq [F], six weights -> q [T, H, C+2F], kv [T, C+2F], status [T].
#include "detail/matrix.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

// x[t, :n] = weight * x / rms, in place. grid: tokens; block: kRowThreads.
template <class W>
__global__ void normalise(float* x, std::int64_t row, std::int64_t n, const W* weight, float eps,
                          float* out, std::int64_t out_row) {
  const std::int64_t t = blockIdx.x;
  const float factor = rms_factor(x + t * row, n, eps);
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads)
    out[t * out_row + i] = widen(weight[i]) * (x[t * row + i] * factor);
}

// q[t, h, l] = sum_j b[t, h, j] keys[h, j, l]. grid: (T, C / 128, H); block: 128, a column each.
template <class W>
__global__ void absorb(const float* b, const W* kv_b, float* q, std::int64_t heads,
                       std::int64_t head, std::int64_t n, std::int64_t c, std::int64_t nv,
                       std::int64_t width) {
  const std::int64_t l = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  const std::int64_t t = blockIdx.x, h = blockIdx.z;
  if (l >= c) return;
  const float* from = b + (t * heads + h) * head;
  const W* keys = kv_b + h * nv * c + l;
  float sum = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += from[j] * widen(keys[j * c]);
  q[(t * heads + h) * width + l] = sum;
}

// Pairs of all heads. grid: tokens; block: kRowThreads. Failed tokens: all columns become 0.
__global__ void turn(const float* x, std::int64_t x_row, std::int64_t x_head,
                     const std::int32_t* positions, const float* inv_freq, std::int64_t heads,
                     std::int64_t f, float scale, bool in_halves, float* out, std::int64_t width,
                     const std::int32_t* status) {
  const std::int64_t t = blockIdx.x;
  float* to = out + t * heads * width;
  if (status[t] != kOk) {
    for (std::int64_t i = threadIdx.x; i < heads * width; i += kRowThreads) to[i] = 0;
    return;
  }
  for (std::int64_t i = threadIdx.x; i < heads * f; i += kRowThreads) {
    const std::int64_t h = i / f;
    turn_pair(x + t * x_row + h * x_head, i % f, f, positions[t], inv_freq[i % f], scale, in_halves,
              to + h * width + width - 2 * f);
  }
}

std::size_t workspace(Call& call) {
  call.any("x", KDTR_IN, "T D");
  call.any("q_a", KDTR_IN, "Q D");
  call.any("q_b", KDTR_IN, "QB Q");
  call.any("kv_a", KDTR_IN, "ROW D");
  return static_cast<std::size_t>(call.dim("T") *
                                  (call.dim("Q") + call.dim("QB") + call.dim("ROW"))) *
         sizeof(float);
}

void run(Call& call, void* stream) {
  const auto x = call.in<float>("x", "T D");
  const auto positions = call.in<std::int32_t>("positions", "T");
  const auto inv_freq = call.in<float>("inv_freq", "F");
  const std::int64_t f = call.dim("F");
  const DLTensor& q_a = call.any("q_a", KDTR_IN, "Q D");
  const DLTensor& q_a_norm = call.any("q_a_norm", KDTR_IN, "Q");
  const DLTensor& q_b = call.any("q_b", KDTR_IN, "QB Q");
  const DLTensor& kv_a = call.any("kv_a", KDTR_IN, "ROW D");
  const DLTensor& kv_a_norm = call.any("kv_a_norm", KDTR_IN, "C");
  const DLTensor& kv_b = call.any("kv_b", KDTR_IN, "H NV C");
  const auto q = call.out<float>("q", "T H ROW");
  const auto kv = call.out<float>("kv", "T ROW");
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
  const auto eps = static_cast<float>(call.attr_float("eps"));
  const auto rope_scale = static_cast<float>(call.attr_float("rope_scale"));
  const bool in_halves = halves(call);
  if (rows == 0) return;
  const cudaStream_t s = cuda_stream(stream);
  auto* a = static_cast<float*>(call.workspace());
  float* b = a + rows * qn;
  float* z = b + rows * qb;
  const auto grid = static_cast<unsigned>(rows);
  check({x.data, d, nullptr, 0, positions.data}, rows, status.data, s);
  with_weight(call, "q_a", q_a.dtype, [&]<class W>(W) {
    const auto w = [](const DLTensor& tensor) { return static_cast<const W*>(bytes(tensor)); };
    multiply({x.data, d, 0, 0, a, qn, 0, nullptr, status.data, rows, qn, d}, w(q_a), 1, s);
    normalise<<<grid, kRowThreads, 0, s>>>(a, qn, qn, w(q_a_norm), eps, a, qn);
    KDTR_LAUNCHED("q_a_norm");
    multiply({a, qn, 0, 0, b, qb, 0, nullptr, status.data, rows, qb, qn}, w(q_b), 1, s);
    if (c > 0 && h > 0) {
      const dim3 all(grid, blocks(c, 128), static_cast<unsigned>(h));
      absorb<<<all, 128, 0, s>>>(b, w(kv_b), q.data, h, head, n, c, nv, width);
      KDTR_LAUNCHED("absorb");
    }
    multiply({x.data, d, 0, 0, z, width, 0, nullptr, status.data, rows, width, d}, w(kv_a), 1, s);
    normalise<<<grid, kRowThreads, 0, s>>>(z, width, c, w(kv_a_norm), eps, kv.data, width);
    KDTR_LAUNCHED("kv_a_norm");
  });
  turn<<<grid, kRowThreads, 0, s>>>(b + n, qb, head, positions.data, inv_freq.data, h, f,
                                    rope_scale, in_halves, q.data, width, status.data);
  KDTR_LAUNCHED("turn q");
  turn<<<grid, kRowThreads, 0, s>>>(z + c, width, 0, positions.data, inv_freq.data, 1, f,
                                    rope_scale, in_halves, kv.data, width, status.data);
  KDTR_LAUNCHED("turn kv");
}

const char* unsupported(Call& call) {
  return is<float>(call.any("x", KDTR_IN, "* *").dtype) ? nullptr : "bf16 rows";
}

}  // namespace
KDTR_KERNEL({"mla_project@1", run, workspace, unsupported});
}  // namespace kdtr::cuda
