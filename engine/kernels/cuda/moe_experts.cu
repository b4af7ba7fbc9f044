// moe_experts@1 on cuda: slots are grouped by expert on the device; each expert's weights are read
// once for up to 32 of its tokens; each slot's result is kept, so that a token's are added in
// order. Tensor cores for bf16 and int4 weights (tiles.cuh), plain loops for f32 and for odd sizes.
// x [T, D], ids, weights [T, K], expert and shared weights -> out [T, D], status [T].
#include <algorithm>

#include "detail/matrix.cuh"
#include "detail/tiles.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kCrowd = tiles::kTokens;  // tokens of an expert that a block takes
constexpr std::int64_t kSlice = 512;    // tokens of one round of launches: bounds the workspace
constexpr int kPlain = 8;               // tokens that a plain loop takes at a time

// Some tokens of one expert: slots[first], ..., count of them; of its first group, all its tokens.
struct alignas(16) Group {
  std::int32_t expert, first, count, all;
};

// One slice of tokens. Slot t (K + 1) + k is token t's k-th expert, k = K the shared one.
template <class X>
struct Work {
  const X* x;
  const std::int32_t* ids;
  const float* weights;
  const X* residual;
  std::int32_t* status;
  X* out;
  X* hidden;     // [T (K + 1), widest]
  float* parts;  // [T (K + 1), D]: what each slot adds
  Group* groups;
  std::int32_t* slots;
  std::int32_t* counts;  // [E]
  std::int32_t* n_groups;
  std::int64_t rows, d, k, experts, widest, most_groups;
  bool routed, shared;  // whether there is anything of either
};

template <class M>
struct Mlp {
  M gate, up, down;
  std::int64_t n = 0;  // hidden elements of one expert
};

// Slots by expert, in order of slots: counts, groups, then each expert's slots by one warp.
template <class X>
__device__ void plan(const Work<X>& c) {
  __shared__ unsigned long long totals[kPlanThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const auto ids = static_cast<int>(c.rows * c.k);
  const auto experts = static_cast<int>(c.experts);
  const auto valid = [&](int i) { return c.ids[i] >= 0 && c.ids[i] < experts; };
  for (int e = thread; e < experts; e += kPlanThreads) c.counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < ids; i += kPlanThreads)
    if (valid(i)) atomicAdd(c.counts + c.ids[i], 1);
  __syncthreads();
  unsigned long long before = 0;  // slots << 32 | groups of the experts before
  for (int base = 0; base < experts; base += kPlanThreads) {
    const int e = base + thread, count = e < experts ? c.counts[e] : 0;
    const unsigned long long mine = static_cast<unsigned long long>(count) << 32 |
                                    static_cast<unsigned>((count + kCrowd - 1) / kCrowd);
    unsigned long long sum = mine;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const unsigned long long lower = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += lower;
    }
    if (lane == kWarp - 1) totals[warp] = sum;
    __syncthreads();
    unsigned long long start = before + sum - mine;
    for (int i = 0; i < kPlanThreads / kWarp; ++i) {
      if (i < warp) start += totals[i];
      before += totals[i];
    }
    __syncthreads();
    auto slot = static_cast<int>(start >> 32), group = static_cast<int>(start & 0xFFFFFFFFu);
    for (int first = 0; first < count; first += kCrowd, ++group)
      c.groups[group] = {e, slot + first, min(kCrowd, count - first), first == 0 ? count : 0};
  }
  const auto n_groups = static_cast<int>(before & 0xFFFFFFFFu);
  if (thread == 0) *c.n_groups = n_groups;
  __syncthreads();
  for (int i = warp; i < n_groups; i += kPlanThreads / kWarp) {
    const Group group = c.groups[i];
    if (group.all == 0) continue;
    int at = group.first;
    for (int base = 0; base < ids; base += kWarp) {
      const int j = base + lane;
      const bool mine = j < ids && c.ids[j] == group.expert;
      const unsigned all = __ballot_sync(~0u, mine);
      if (mine) c.slots[at + __popc(all & ((1u << lane) - 1))] = j + j / static_cast<int>(c.k);
      at += __popc(all);
    }
  }
}

// grid: tokens, and one block that plans; block: kPlanThreads.
template <class X>
__global__ void __launch_bounds__(kPlanThreads) check_and_plan(Work<X> c) {
  wait_for_last();
  let_next_start();
  const std::int64_t t = blockIdx.x;
  if (t == c.rows) return plan(c);
  bool ok = true;
  for (std::int64_t i = threadIdx.x; i < c.d; i += kPlanThreads) {
    ok = ok && isfinite(widen(c.x[t * c.d + i]));
    if (c.residual != nullptr) ok = ok && isfinite(widen(c.residual[t * c.d + i]));
  }
  for (std::int64_t i = threadIdx.x; i < c.k; i += kPlanThreads) {
    const std::int32_t id = c.ids[t * c.k + i];
    ok = ok && isfinite(c.weights[t * c.k + i]) && id >= -1 && id < c.experts;
  }
  const int all = __syncthreads_and(ok ? 1 : 0);
  if (threadIdx.x == 0) c.status[t] = all != 0 ? kOk : kBadInput;
}

// The group of block row y: the shared expert's first, then the plan's; false past the last. What
// the plan wrote is read past L1: the second half does not wait for its own launch to be ordered.
template <class X>
__device__ bool find_group(const Work<X>& c, unsigned y, unsigned shared_groups, Group& group) {
  if (y < shared_groups) {
    const auto first = static_cast<int>(y) * kCrowd;
    group = {0, first, min(kCrowd, static_cast<int>(c.rows) - first), 0};
    return true;
  }
  if (static_cast<int>(y - shared_groups) >= __ldcg(c.n_groups)) return false;
  const int4 found = __ldcg(reinterpret_cast<const int4*>(c.groups) + (y - shared_groups));
  group = {found.x, found.y, found.z, found.w};
  return true;
}
template <class X>
__device__ int slot_of(const Work<X>& c, const Group& group, int i, bool shared) {
  if (i >= group.count) return 0;
  const auto k = static_cast<int>(c.k);
  return shared ? (group.first + i) * (k + 1) + k : __ldcg(c.slots + group.first + i);
}

// Whether a block's warps take 32 rows each, not a part of the columns of the same: where there are
// so few columns that a warp's part would end before it is under way.
template <class M>
__host__ __device__ bool whole_rows(bool first_half, std::int64_t n) {
  return !first_half && n < 4 * tiles::kWarps * M::kColumns;
}
// Blocks that cover the rows of one expert.
template <class M>
__host__ __device__ unsigned width_of(bool first_half, const Mlp<M>& m, std::int64_t d) {
  const std::int64_t rows = first_half ? m.n : d;
  const std::int64_t each = first_half                  ? tiles::kRows
                            : whole_rows<M>(false, m.n) ? 2 * tiles::kRows * tiles::kWarps
                                                        : 2 * tiles::kRows;
  return static_cast<unsigned>((rows + each - 1) / each);
}

// One tile of one group. First half: hidden = silu(gate x) * (up x), 16 rows of either; second:
// parts = down hidden, 32 rows.
template <int kCount, class X, class M>
__device__ void tile_of(const Work<X>& c, const Mlp<M>& m, const Group& group, bool is_shared,
                        bool first_half, const tiles::Shared& shared) {
  const int slot = slot_of(c, group, static_cast<int>(threadIdx.x), is_shared);
  const std::int64_t all = first_half ? m.n : c.d;
  const int n = static_cast<int>(first_half ? c.d : m.n);
  const int each = tiles::kRows * (first_half ? 1 : 2);
  const bool whole = whole_rows<M>(first_half, n);
  const std::int64_t row =
      whole ? (std::int64_t{blockIdx.x} * tiles::kWarps + threadIdx.x / kWarp) * each
            : std::int64_t{blockIdx.x} * each;
  const std::int64_t first = group.expert * all + min(row, all - 1);
  const auto left = static_cast<int>(max(std::int64_t{0}, min(all - row, std::int64_t{32})));
  const int low_rows = min(left, tiles::kRows), high_rows = first_half ? low_rows : left - low_rows;
  const std::int64_t second = first_half || high_rows <= 0 ? first : first + tiles::kRows;
  const tiles::Crowd crowd{group.count, first_half ? slot / (static_cast<int>(c.k) + 1) : slot,
                           slot, first_half ? c.d : c.widest};
  const tiles::Pair<M> weights{{first_half ? m.gate : m.down, first_half ? m.up : m.down},
                               {first, second},
                               {max(low_rows, 1), max(high_rows, 1)},
                               n,
                               whole};
  tiles::multiply<kCount>(
      weights, first_half ? c.x : c.hidden, crowd, shared,
      [] {
        wait_for_last();
        let_next_start();
      },
      [&](int r, int column, float low, float high) {
        const std::int64_t to = shared.slots[column];
        if (first_half) {
          if (r < low_rows) c.hidden[to * c.widest + row + r] = narrow<X>(silu(low) * high);
        } else {
          float* part = c.parts + to * c.d + row;
          if (r < low_rows) part[r] = low;
          if (r < high_rows) part[r + tiles::kRows] = high;
        }
      });
}
// grid: (tiles, groups), the shared expert's groups first, where it has some here. The second half
// asks for its first weights while the first one ends; the first, for those of the shared expert
// before there is a plan.
template <class X, class M>
__global__ void __launch_bounds__(tiles::kThreads, tiles::kBlocks)
    half(Work<X> c, Mlp<M> routed, Mlp<tiles::Dense> shared, unsigned shared_groups, bool first) {
  extern __shared__ uint4 ring[];
  __shared__ int rows[kCrowd], slots[kCrowd];
  const bool is_shared = blockIdx.y < shared_groups;
  if (first && !is_shared) wait_for_last();
  Group group;
  if (blockIdx.x >= (is_shared ? width_of(first, shared, c.d) : width_of(first, routed, c.d)) ||
      !find_group(c, blockIdx.y, shared_groups, group)) {
    wait_for_last();
    return;
  }
  const tiles::Shared memory{reinterpret_cast<std::byte*>(ring), rows, slots};
  constexpr int kAll = kCrowd / 8;
  if (is_shared && !tiles::kIsDense<M>) return tile_of<kAll>(c, shared, group, true, first, memory);
  Mlp<M> m = routed;
  if constexpr (tiles::kIsDense<M>)
    if (is_shared) m = shared;
  if (group.count <= 8) {
    tile_of<1>(c, m, group, is_shared, first, memory);
  } else {
    tile_of<kAll>(c, m, group, is_shared, first, memory);
  }
}

// The same with plain loops, a warp a row (of gate and up, or of down); W is f32 or bf16. kFours:
// f32 in fours, where sizes allow it; else element by element.
template <class W>
struct Plain {
  const W* w;
};
template <bool kFours, class T>
__device__ float4 some(const T* at) {
  if constexpr (kFours) return load4(at);
  return {widen(*at), 0, 0, 0};
}
// sums[m][t] = row[m] . x[t], of `matrices` rows, and of `count` rows of x at at[t] * stride; every
// lane gets them.
template <bool kFours, class X, class W>
__device__ void plain_dots(const W* const (&row)[2], int matrices, const X* x, const int* at,
                           int count, std::int64_t n, std::int64_t stride,
                           float (&sums)[2][kPlain]) {
  constexpr int kAhead = 4, kUnit = kFours ? 4 : 1;  // loads of a row in flight, elements of each
  const std::int64_t lane = threadIdx.x % kWarp * kUnit;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int t = 0; t < kPlain; ++t) sums[m][t] = 0;
  for (std::int64_t base = lane; base < n; base += kAhead * kUnit * kWarp) {
    float4 w[2][kAhead] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if (const std::int64_t i = base + u * kUnit * kWarp; i < n && m < matrices)
          w[m][u] = some<kFours>(row[m] + i);
#pragma unroll
    for (int t = 0; t < kPlain; ++t) {
      if (t >= count) break;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const std::int64_t i = base + u * kUnit * kWarp;
        if (i >= n) break;
        const float4 a = some<kFours>(x + at[t] * stride + i);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          sums[m][t] += a.x * w[m][u].x;
          if (!kFours) continue;
          sums[m][t] += a.y * w[m][u].y;
          sums[m][t] += a.z * w[m][u].z;
          sums[m][t] += a.w * w[m][u].w;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int t = 0; t < kPlain; ++t) sums[m][t] = warp_sum(sums[m][t]);
}
// grid: (rows / 8, groups); block: 8 warps. Of the shared expert where it has groups here.
template <bool kFours, class X, class W>
__global__ void __launch_bounds__(8 * kWarp)
    plain_half(Work<X> c, Mlp<Plain<W>> m, unsigned shared_groups, bool first_half) {
  __shared__ int rows[kCrowd], slots[kCrowd];
  Group group;
  if (!find_group(c, blockIdx.y, shared_groups, group)) return;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < group.count) {
    slots[thread] = slot_of(c, group, thread, shared_groups > 0);
    rows[thread] = first_half ? slots[thread] / (static_cast<int>(c.k) + 1) : slots[thread];
  }
  __syncthreads();
  const std::int64_t n = first_half ? m.n : c.d;
  const std::int64_t i = std::int64_t{blockIdx.x} * 8 + thread / kWarp;
  if (i >= n) return;
  const std::int64_t k = first_half ? c.d : m.n, at = (group.expert * n + i) * k;
  const W* const row[2] = {(first_half ? m.gate : m.down).w + at, m.up.w + at};
  for (int first = 0; first < group.count; first += kPlain) {
    const int count = min(kPlain, group.count - first);
    float sums[2][kPlain];
    plain_dots<kFours>(row, first_half ? 2 : 1, first_half ? c.x : c.hidden, rows + first, count, k,
                       first_half ? c.d : c.widest, sums);
    if (thread % kWarp != 0) continue;
#pragma unroll
    for (int t = 0; t < kPlain; ++t) {
      if (t >= count) break;
      const std::int64_t slot = slots[first + t];
      if (first_half) {
        c.hidden[slot * c.widest + i] = narrow<X>(silu(sums[0][t]) * sums[1][t]);
      } else {
        c.parts[slot * c.d + i] = sums[0][t];
      }
    }
  }
}

// out[t] = sum over k ascending of weight * part, then the shared part, then the residual.
// grid: (D / kRowThreads, T); block: kRowThreads.
template <class X>
__global__ void __launch_bounds__(kRowThreads) combine(Work<X> c) {
  wait_for_last();
  let_next_start();
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x, t = blockIdx.y;
  if (i >= c.d) return;
  float y = 0;
  if (c.status[t] == kOk) {
    const float* part = c.parts + t * (c.k + 1) * c.d + i;
    for (std::int64_t k = 0; c.routed && k < c.k; ++k)
      if (c.ids[t * c.k + k] >= 0) y += c.weights[t * c.k + k] * part[k * c.d];
    if (c.shared) y += part[c.k * c.d];
    if (c.residual != nullptr) y += widen(c.residual[t * c.d + i]);
  }
  c.out[t * c.d + i] = narrow<X>(y);
}

template <class X, class M>
void launch_tiles(const Work<X>& c, const Mlp<M>& routed, const Mlp<tiles::Dense>& shared,
                  unsigned shared_groups, bool first, cudaStream_t s) {
  const std::int64_t groups = shared_groups + (c.routed ? c.most_groups : 0);
  if (groups == 0) return;
  const auto kernel = half<X, M>;
  KDTR_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tiles::kRingBytes));
  const unsigned width = std::max(c.routed ? width_of(first, routed, c.d) : 0,
                                  shared_groups > 0 ? width_of(first, shared, c.d) : 0);
  launch_next(kernel, dim3(width, static_cast<unsigned>(groups)), tiles::kThreads,
              tiles::kRingBytes, s, c, routed, shared, shared_groups, first);
}
template <class X, class W>
void launch_plain(const Work<X>& c, const Mlp<Plain<W>>& m, unsigned shared_groups, bool first,
                  cudaStream_t s) {
  const auto groups =
      shared_groups > 0 ? shared_groups : static_cast<unsigned>(c.routed ? c.most_groups : 0);
  if (groups == 0) return;
  auto* kernel = plain_half<false, X, W>;
  if constexpr (std::is_same_v<W, float>)
    if (c.d % 4 == 0 && m.n % 4 == 0) kernel = plain_half<true, X, W>;
  kernel<<<dim3(blocks(first ? m.n : c.d, 8), groups), 8 * kWarp, 0, s>>>(c, m, shared_groups,
                                                                          first);
  KDTR_LAUNCHED("plain_half");
}
template <class X, class M, class S>
void launch_half(const Work<X>& c, const Mlp<M>& routed, const Mlp<S>& shared, bool first,
                 cudaStream_t s) {
  const unsigned groups = c.shared ? blocks(c.rows, kCrowd) : 0;
  if constexpr (std::is_same_v<S, tiles::Dense>) {
    launch_tiles(c, routed, shared, groups, first, s);
  } else {
    if constexpr (requires { M::kPacked; }) {
      launch_tiles(c, routed, Mlp<tiles::Dense>{}, 0, first, s);
    } else {
      launch_plain(c, routed, 0, first, s);
    }
    if (groups > 0) launch_plain(c, shared, groups, first, s);
  }
}

// Sizes of one slice and the places of its arrays in the workspace; from null, only sizes.
template <class X>
std::size_t place(Work<X>& c, void* workspace) {
  std::size_t at = 0;
  const auto take = [&]<class T>(T*& array, std::int64_t count) {
    array = workspace == nullptr ? nullptr
                                 : reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + at);
    at += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  const std::int64_t ids = c.rows * c.k, slots = ids + c.rows;
  c.most_groups = std::min(c.experts, ids) + ids / kCrowd;
  take(c.groups, c.most_groups);
  take(c.slots, ids);
  take(c.counts, c.experts);
  take(c.n_groups, 1);
  take(c.hidden, slots * c.widest);
  take(c.parts, slots * c.d);
  return at;
}

// Axes of the call; data pointers may be null.
template <class X>
Work<X> sizes(Call& call) {
  call.any("x", KDTR_IN, "T D");
  call.any("ids", KDTR_IN, "T K");
  call.any(call.attr_str("format") == "dense" ? "gate" : "gate_packed", KDTR_IN, "E I *");
  std::int64_t shared = 0;
  if (call.has("shared_gate", KDTR_IN)) {
    call.any("shared_gate", KDTR_IN, "J D");
    shared = call.dim("J");
  }
  Work<X> c{};
  c.rows = std::min(call.dim("T"), kSlice);
  c.d = call.dim("D");
  c.k = call.dim("K");
  c.experts = call.dim("E");
  c.widest = (std::max(call.dim("I"), shared) + 7) / 8 * 8;
  c.routed = call.dim("I") > 0 && c.k > 0 && c.experts > 0;
  c.shared = shared > 0;
  return c;
}

template <class X, class M, class S>
void launch(Work<X> c, const Mlp<M>& routed, const Mlp<S>& shared, std::int64_t tokens,
            cudaStream_t s) {
  for (std::int64_t left = tokens; left > 0; left -= kSlice) {
    c.rows = std::min(left, kSlice);
    c.most_groups = std::min(c.experts, c.rows * c.k) + c.rows * c.k / kCrowd;
    launch_next(check_and_plan<X>, static_cast<unsigned>(c.rows) + 1, kPlanThreads, 0, s, c);
    if (c.d > 0) {
      launch_half(c, routed, shared, true, s);
      launch_half(c, routed, shared, false, s);
      launch_next(combine<X>, dim3(blocks(c.d, kRowThreads), static_cast<unsigned>(c.rows)),
                  kRowThreads, 0, s, c);
    }
    c.x += c.rows * c.d;
    c.ids += c.rows * c.k;
    c.weights += c.rows * c.k;
    if (c.residual != nullptr) c.residual += c.rows * c.d;
    c.status += c.rows;
    c.out += c.rows * c.d;
  }
}

void require_aligned(const Call& call, const char* name, const DLTensor& tensor) {
  KDTR_CHECK(reinterpret_cast<std::uintptr_t>(bytes(tensor)) % 16 == 0, call.where(name), "address",
             "a multiple of 16", bytes(tensor));
}

template <class M>
M matrix(const DLTensor& w) {
  M m{};
  m.w = static_cast<decltype(m.w)>(bytes(w));
  return m;
}

template <class X, class W>  // rows and float weights
void run_rows(Call& call, cudaStream_t s) {
  Work<X> c = sizes<X>(call);
  place(c, call.workspace());
  const std::string_view format = call.attr_str("format");
  const std::int64_t group = call.attr_int("group"), d = c.d, n = call.dim("I");
  const auto storage = dtype_of<std::conditional_t<std::is_same_v<X, float>, float, bf16>>;
  const auto rows = [&](const char* name, int role) {
    const DLTensor& tensor = call.any(name, role, "T D");
    require_dtype(call, name, tensor, storage);
    require_aligned(call, name, tensor);
    return static_cast<X*>(bytes(tensor));
  };
  c.x = rows("x", KDTR_IN);
  c.ids = call.in<std::int32_t>("ids", "T K").data;
  c.weights = call.in<float>("weights", "T K").data;
  if (call.has("residual", KDTR_IN)) c.residual = rows("residual", KDTR_IN);
  c.out = rows("out", KDTR_OUT);
  c.status = call.out<std::int32_t>("status", "T").data;
  const auto weight = [&](const char* name, DLDataType dtype, const char* axes) -> const DLTensor& {
    const DLTensor& tensor = call.any(name, KDTR_IN, axes);
    require_dtype(call, name, tensor, dtype);
    require_aligned(call, name, tensor);
    return tensor;
  };
  const auto three = [&]<class M>(M, const char* gate, const char* up, const char* down,
                                  const char* axes_in, const char* axes_out, std::int64_t hidden) {
    const auto dtype = dtype_of<std::conditional_t<std::is_same_v<W, float>, float, bf16>>;
    return Mlp<M>{matrix<M>(weight(gate, dtype, axes_in)), matrix<M>(weight(up, dtype, axes_in)),
                  matrix<M>(weight(down, dtype, axes_out)), hidden};
  };
  const bool has_shared = call.has("shared_gate", KDTR_IN);
  const std::int64_t tokens = call.dim("T"), j = has_shared ? call.dim("J") : 0;
  // Tensor cores take bf16 rows of whole 16 bytes.
  const bool even = std::is_same_v<W, __nv_bfloat16> && d % 8 == 0 && j % 8 == 0;
  const auto with_shared = [&](auto kind, const auto& routed) {
    using S = decltype(kind);
    launch(c, routed,
           has_shared ? three(kind, "shared_gate", "shared_up", "shared_down", "J D", "D J", j)
                      : Mlp<S>{},
           tokens, s);
  };
  if (format == "dense") {
    KDTR_CHECK(group == 0, call.where("group"), "attribute", "0 when dense", group);
    const auto both = [&](auto kind) {
      with_shared(kind, three(kind, "gate", "up", "down", "E I D", "E D I", n));
    };
    if constexpr (std::is_same_v<W, __nv_bfloat16>)
      if (even && n % 8 == 0) return both(tiles::Dense{});
    return both(Plain<W>{});
  }
  KDTR_CHECK(format == "w4_exact" || format == "w4_bf16", call.where("format"), "attribute",
             "dense, w4_exact or w4_bf16", format);
  KDTR_CHECK(group == 32 || group == 64 || group == 128, call.where("group"), "attribute",
             "32, 64 or 128", group);
  KDTR_CHECK(d % group == 0, call.where("x"), "axis D", "a multiple of the group", d);
  KDTR_CHECK(n % group == 0, call.where("gate_packed"), "axis I", "a multiple of the group", n);
  call.bind("D/8", d / 8);
  call.bind("D/G", d / group);
  call.bind("I/8", n / 8);
  call.bind("I/G", n / group);
  const auto packed = [&]<class M>(M) {
    const auto one = [&](const char* words, const char* scales, const char* word_axes,
                         const char* scale_axes) {
      M m = matrix<M>(weight(words, dtype_of<std::int32_t>, word_axes));
      m.scales =
          static_cast<const __nv_bfloat16*>(bytes(weight(scales, dtype_of<bf16>, scale_axes)));
      m.group_log2 = group == 32 ? 5 : group == 64 ? 6 : 7;
      return m;
    };
    const Mlp<M> routed{one("gate_packed", "gate_scale", "E I D/8", "E I D/G"),
                        one("up_packed", "up_scale", "E I D/8", "E I D/G"),
                        one("down_packed", "down_scale", "E D I/8", "E D I/G"), n};
    if constexpr (std::is_same_v<W, __nv_bfloat16>)
      if (even) return with_shared(tiles::Dense{}, routed);
    return with_shared(Plain<W>{}, routed);
  };
  if (format == "w4_exact") return packed(tiles::Packed<false>{});
  return packed(tiles::Packed<true>{});
}

// The one float dtype of the weights: the dense experts', else the shared one's.
bool bf16_weights(Call& call) {
  const bool dense = call.attr_str("format") == "dense";
  if (!dense && !call.has("shared_gate", KDTR_IN)) return true;
  const char* name = dense ? "gate" : "shared_gate";
  const DLDataType dtype = call.any(name, KDTR_IN, dense ? "E I D" : "J D").dtype;
  KDTR_CHECK(is<float>(dtype) || is<bf16>(dtype), call.where(name), "dtype", "f32 or bf16",
             dtype_name(dtype));
  return is<bf16>(dtype);
}

std::size_t workspace(Call& call) {
  if (is<float>(call.any("x", KDTR_IN, "T D").dtype)) {
    Work<float> c = sizes<float>(call);
    return place(c, nullptr);
  }
  Work<__nv_bfloat16> c = sizes<__nv_bfloat16>(call);
  return place(c, nullptr);
}

void run(Call& call, void* stream) {
  const cudaStream_t s = cuda_stream(stream);
  const DLDataType dtype = call.any("x", KDTR_IN, "T D").dtype;
  if (is<bf16>(dtype)) return run_rows<__nv_bfloat16, __nv_bfloat16>(call, s);
  KDTR_CHECK(is<float>(dtype), call.where("x"), "dtype", "f32 or bf16", dtype_name(dtype));
  if (bf16_weights(call)) return run_rows<float, __nv_bfloat16>(call, s);
  return run_rows<float, float>(call, s);
}

}  // namespace
KDTR_KERNEL({"moe_experts@1", run, workspace});
}  // namespace kdtr::cuda
