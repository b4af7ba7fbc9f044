// verify_attn@1 on cuda: online softmax over key tiles, split-KV, f32 | bf16 | f16, f32
// accumulation; tensor cores for bf16 and f16 at D 576, Dv 512. q [R, N, H, D], kv_pool [slots, D]
// -> out [R, N, H, Dv], lse [R, N, H], status [R]; no aliasing.
#include <algorithm>
#include <cstdlib>

#include "detail/attention.cuh"
#include "detail/mla_mma.cuh"
#include "detail/mla_sm90.cuh"
#include "kdtr/registry.h"

namespace kdtr::cuda {
namespace {

constexpr int kRows = 8, kKeys = 32, kThreads = 256, kChunk = 1024, kColumns = 512;
constexpr Cut kAnyCut{kRows, kKeys, kMostSplits, 2};
constexpr int kWarpKeys = kKeys / (kThreads / 32);  // keys that a warp scores
constexpr int kBatch = 8;                           // keys whose values are asked for together

// dot[8 i + r] += the lane's part of key i's product with query r over n columns, kCount at a time.
template <int kCount, class T>
__device__ void add_dots(const T* const (&keys)[kWarpKeys], const float (*queries)[kChunk], int n,
                         int lane, float (&dot)[kWarpKeys * kRows]) {
#pragma unroll 2
  for (int d = lane * kCount; d < n; d += 32 * kCount) {
    Pack<T, kCount> key[kWarpKeys];
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i)
      key[i] = *reinterpret_cast<const Pack<T, kCount>*>(keys[i] + d);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto query = *reinterpret_cast<const Pack<float, kCount>*>(queries[row] + d);
#pragma unroll
      for (int i = 0; i < kWarpKeys; ++i)
#pragma unroll
        for (int e = 0; e < kCount; ++e)
          dot[i * kRows + row] = fmaf(query.at[e], widen(key[i].at[e]), dot[i * kRows + row]);
    }
  }
}

// Lane l gets the warp's sum of x[l] in x[0].
template <int kHalf = 16>
__device__ void sum_by_lane(float (&x)[kWarpKeys * kRows], int lane) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = x[i], high = x[i + kHalf];
    x[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kHalf);
  }
  if constexpr (kHalf > 1) sum_by_lane<kHalf / 2>(x, lane);
}

// Any shape: each warp scores 4 keys with 8 rows, then weighs 32 keys of one row, then each thread
// owns two value columns of all rows.
template <class T, class O>
__global__ void __launch_bounds__(kThreads, 2) attend_any(const Attention a) {
  __shared__ __align__(16) float queries[kRows][kChunk];
  __shared__ __align__(32) float p_of[kKeys][kRows];  // scores, weights; negative = not visible
  __shared__ float alpha[kRows], total[kRows];
  __shared__ std::int64_t slots[kKeys];

  const int request = static_cast<int>(blockIdx.y), unit = static_cast<int>(blockIdx.x);
  const int column0 = static_cast<int>(blockIdx.z) * kColumns;
  Plan p = plan_of(a, request, kAnyCut);
  const int all_rows = a.nodes * a.heads;
  const int block = p.splits == 1 ? unit : unit % p.blocks;
  const int split = p.splits == 1 ? 0 : unit / p.blocks;
  if (split >= p.splits || (block > 0 && block * kRows >= all_rows)) return;

  const int first = split * p.per_split * kKeys;
  const int last = min(p.keys, first + p.per_split * kKeys);
  const bool bad = any_bad(a, request, p, first, last) || p.bad;
  const int me = static_cast<int>(threadIdx.x), warp = me / 32, lane = me % 32;
  if (me == 0 && block == 0 && blockIdx.z == 0) {
    if (p.splits == 1) {
      a.status[request] = bad ? kBadInput : kOk;
    } else {
      a.part_bad[request * kAnyCut.blocks + split] = bad ? 1 : 0;
    }
  }

  const int row0 = block * kRows;
  const int rows = bad ? 0 : min(kRows, p.active - row0);  // that attend; may be negative
  const std::int64_t request_row = static_cast<std::int64_t>(request) * all_rows;
  const T* q = static_cast<const T*>(a.q) + (request_row + row0) * a.width;
  const T* pool = static_cast<const T*>(a.pool);

  const bool packed =
      a.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(pool) % (4 * sizeof(T)) == 0;

  float acc[kRows][2] = {};
  float top = -INFINITY, sum = 0.0f;  // of this warp's row
  for (int t0 = first; rows > 0 && t0 < last; t0 += kKeys) {
    const int count = min(kKeys, last - t0);
    float dot[kWarpKeys * kRows] = {};
    for (int d0 = 0; d0 == 0 || d0 < a.width; d0 += kChunk) {
      const int n = min(kChunk, a.width - d0);
      __syncthreads();  // queries, slots and weights have been read
      if (d0 == 0 && me < count) slots[me] = slot_of(a, request, p, t0 + me);
      if (t0 == first || a.width > kChunk) {
        for (int row = warp; row < kRows; row += kThreads / 32) {
          const T* from = q + static_cast<std::int64_t>(row) * a.width + d0;
          for (int d = lane; d < n; d += 32) queries[row][d] = row < rows ? widen(from[d]) : 0.0f;
        }
      }
      __syncthreads();
      const T* keys[kWarpKeys];
#pragma unroll
      for (int i = 0; i < kWarpKeys; ++i)
        keys[i] = pool + slots[min(warp * kWarpKeys + i, count - 1)] * a.width + d0;
      if (packed) {
        add_dots<4>(keys, queries, n, lane, dot);
      } else {
        add_dots<1>(keys, queries, n, lane, dot);
      }
    }
    sum_by_lane(dot, lane);
    p_of[warp * kWarpKeys + lane / kRows][lane % kRows] = dot[0];
    __syncthreads();

    const int t = t0 + lane;
    bool sees = lane < count && warp < rows;
    if (sees && t >= p.prefix) {
      const std::int64_t node = (row0 + warp) / a.heads;
      sees = a.visible[(static_cast<std::int64_t>(request) * a.nodes + node) * a.nodes +
                       (t - p.prefix)] != 0;
    }
    const float score = sees ? a.scale * p_of[lane][warp] : -INFINITY;
    float best = score;
    for (int o = 16; o > 0; o /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
    const float new_top = fmaxf(top, best);
    const float shift = new_top == -INFINITY ? 0.0f : new_top;
    const float weight = sees ? expf(score - shift) : 0.0f;
    float part = weight;
    for (int o = 16; o > 0; o /= 2) part += __shfl_xor_sync(~0u, part, o);
    const float keep = expf(top - shift);
    sum = fmaf(sum, keep, part);
    top = new_top;
    p_of[lane][warp] = sees ? weight : -1.0f;
    if (lane == 0) alpha[warp] = keep;
    __syncthreads();

#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      acc[row][0] *= alpha[row];
      acc[row][1] *= alpha[row];
    }
    for (int key0 = 0; key0 < count; key0 += kBatch) {
      float value[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int64_t at = slots[min(key0 + i, count - 1)] * a.width;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int c = column0 + j * kThreads + me;
          value[i][j] = c < a.values ? widen(pool[at + c]) : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (key0 + i >= count) break;
        const auto w = *reinterpret_cast<const Pack<float, kRows>*>(p_of[key0 + i]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          // Skipped, not multiplied by 0: the row may hold anything.
          if (w.at[row] < 0.0f) continue;
          acc[row][0] = fmaf(w.at[row], value[i][0], acc[row][0]);
          acc[row][1] = fmaf(w.at[row], value[i][1], acc[row][1]);
        }
      }
    }
  }

  const float lse = sum == 0.0f ? -INFINITY : top + logf(sum);
  if (lane == 0) total[warp] = sum == 0.0f ? 0.0f : 1.0f / sum;
  __syncthreads();
  if (p.splits == 1) {
    if (lane == 0 && row0 + warp < all_rows && blockIdx.z == 0)
      a.lse[request_row + row0 + warp] = lse;
    O* out = static_cast<O*>(a.out) + (request_row + row0) * a.values;
    for (int row = 0; row < kRows && row0 + row < all_rows; ++row) {
      for (int j = 0; j < 2; ++j) {
        const int c = column0 + j * kThreads + me;
        const float value = total[row] == 0.0f ? 0.0f : acc[row][j] * total[row];
        if (c < a.values) out[static_cast<std::int64_t>(row) * a.values + c] = narrow<O>(value);
      }
    }
  } else {
    const std::int64_t at = part_row(a, p, kAnyCut, request, block, split);
    if (lane == 0 && blockIdx.z == 0) a.part_lse[at + warp] = lse;
    for (int row = 0; row < kRows; ++row) {
      for (int j = 0; j < 2; ++j) {
        const int c = column0 + j * kThreads + me;
        const float value = total[row] == 0.0f ? 0.0f : acc[row][j] * total[row];
        if (c < a.values) a.part_out[(at + row) * a.values + c] = value;
      }
    }
  }
}

// Reads the call. Data pointers may be null (`workspace`, `unsupported`).
struct Parsed {
  Attention a;
  DLDataType in, out;
};

Parsed parse(Call& c) {
  const std::string_view part = c.attr_str("part");
  KDTR_CHECK(part == "whole" || part == "prefix" || part == "tail", c.where("part"), "attribute",
             "whole, prefix or tail", part);
  const std::int64_t page_size = c.attr_int("page_size");
  KDTR_CHECK(page_size == 1 || page_size == 16 || page_size == 64, c.where("page_size"),
             "attribute", "1, 16 or 64", page_size);
  const std::int64_t values = c.attr_int("Dv");
  c.bind("Dv", values);
  const DLTensor& q = c.any("q", KDTR_IN, "R N H D");
  const DLTensor& pool = c.any("kv_pool", KDTR_IN, "slots D");
  const DLTensor& out = c.any("out", KDTR_OUT, "R N H Dv");
  KDTR_CHECK(same(pool.dtype, q.dtype), c.where("kv_pool"), "dtype of q", dtype_name(q.dtype),
             dtype_name(pool.dtype));
  KDTR_CHECK(same(out.dtype, q.dtype) || is<float>(out.dtype), c.where("out"), "dtype of q, or f32",
             dtype_name(q.dtype), dtype_name(out.dtype));
  KDTR_CHECK(values >= 0 && values <= c.dim("D"), c.where("Dv"), "value columns", "0 to D", values);
  const std::int64_t rows = c.dim("N") * c.dim("H");
  KDTR_CHECK(rows < 1 << 30 && c.dim("R") <= 65535 && c.dim("D") <= 65536, c.where("q"), "size",
             "N H < 2^30, R < 2^16, D <= 2^16", rows);

  Parsed parsed{{}, q.dtype, out.dtype};
  Attention& a = parsed.a;
  a.q = bytes(q);
  a.pool = bytes(pool);
  a.out = bytes(out);
  a.has_prefix = part != "tail";
  a.has_tree = part != "prefix";
  if (a.has_prefix) {
    const auto table = c.in<std::int32_t>("page_table", "R max_pages");
    a.page_table = table.data;
    a.prefix_len = c.in<std::int32_t>("prefix_len", "R").data;
    a.max_pages = c.dim("max_pages");
  }
  if (a.has_tree) {
    a.tree_slots = c.in<std::int32_t>("tree_slots", "R N").data;
    a.visible = c.in<std::uint8_t>("visible", "R N N").data;
  }
  a.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  a.lse = c.out<float>("lse", "R N H").data;
  a.status = c.out<std::int32_t>("status", "R").data;
  a.slots = c.dim("slots");
  a.requests = static_cast<int>(c.dim("R"));
  a.nodes = static_cast<int>(c.dim("N"));
  a.heads = static_cast<int>(c.dim("H"));
  a.width = static_cast<int>(c.dim("D"));
  a.values = static_cast<int>(values);
  a.page_size = static_cast<int>(page_size);
  a.scale = static_cast<float>(c.attr_float("scale"));
  size_units(a, kAnyCut);
  return parsed;
}

// Enough for each kernel: which one runs also depends on where the data lies.
std::size_t workspace_of(Attention a) {
  std::size_t most = workspace_bytes(a, kAnyCut);
  const auto add = [&](bool fits, Cut cut) {
    size_units(a, cut);
    if (fits) most = std::max(most, workspace_bytes(a, cut));
  };
  add(sm90::fits(a), sm90::kCut);
  add(portable::fits(a), portable::kCut);
  return most;
}

// Runs the fastest kernel that takes the call; false if only `attend_any` does. For tests and
// benchmarks the environment can leave out faster ones: KDTR_VERIFY_ATTN=mma | any.
template <class T, class O>
bool run_tensor_cores(const Attention& a, void* workspace, cudaStream_t stream) {
  const char* named = std::getenv("KDTR_VERIFY_ATTN");
  const std::string_view most = named == nullptr ? "" : named;
  if (most == "any") return false;
  return (most != "mma" && sm90::run<T, O>(a, workspace, stream)) ||
         portable::run<T, O>(a, workspace, stream);
}

std::size_t workspace(Call& c) {
  const Parsed parsed = parse(c);
  return workspace_of(parsed.a);
}

void run(Call& c, void* stream) {
  Parsed parsed = parse(c);
  Attention& a = parsed.a;
  if (a.requests == 0) return;
  const std::size_t need = workspace_of(a);
  KDTR_CHECK(c.workspace_size() >= need, c.where("workspace"), "bytes", need, c.workspace_size());
  place_workspace(a, kAnyCut, c.workspace());
  const auto units = static_cast<unsigned>(a.units), requests = static_cast<unsigned>(a.requests);
  const auto chunks = static_cast<unsigned>(std::max(1, ceil_div(a.values, kColumns)));
  with_float(c, "q", parsed.in, [&](auto in) {
    with_float(c, "out", parsed.out, [&](auto to) {
      using T = decltype(in);
      using O = decltype(to);
      if constexpr (std::is_same_v<T, O> || std::is_same_v<O, float>) {
        if constexpr (!std::is_same_v<T, float>) {
          if (run_tensor_cores<T, O>(a, c.workspace(), cuda_stream(stream))) return;
        }
        // grid: (row block, split) units, R, 512 columns each; block: 8 warps; smem: 34 KB static
        attend_any<T, O><<<{units, requests, chunks}, kThreads, 0, cuda_stream(stream)>>>(a);
        KDTR_LAUNCHED("verify_attn@1");
        launch_merge_splits<O>(a, kAnyCut, cuda_stream(stream));
      }
    });
  });
}

KDTR_KERNEL({"verify_attn@1", run, workspace});

}  // namespace
}  // namespace kdtr::cuda
