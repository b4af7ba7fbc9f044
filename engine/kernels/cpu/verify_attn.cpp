// verify_attn@1 on cpu: online softmax over key tiles, f32, bf16 or f16 in, f32 accumulators.
// q [R, N, H, D], kv_pool [slots, D] -> out [R, N, H, Dv], lse [R, N, H], status [R]. No aliasing.
// Each row's arithmetic depends on its own request alone: bits do not change with batch, pages or
// threads, nor with the vector width, since lanes never meet.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "kdtr/registry.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KDTR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KDTR_CLONES
#endif

namespace {

using kdtr::Call;

constexpr std::int64_t kRows = 64;   // query rows of one work item
constexpr std::int64_t kKeys = 64;   // keys of one tile
constexpr std::int64_t kLanes = 16;  // columns of a panel: keys in Q K, value columns in P V
constexpr std::int64_t kStrip = 4;   // rows that share each load of a panel
constexpr float kNothing = -kdtr::kInfF;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// y[kStrip rows][kLanes] += a[row][k] * panel[k][lane], k ascending. `y` is one strip of a matrix
// with row stride y_stride.
KDTR_CLONES void multiply_panel(const float* a, std::int64_t a_stride, const float* panel,
                                std::int64_t inner, float* y, std::int64_t y_stride) {
  float sum[kStrip][kLanes];
  for (std::int64_t row = 0; row < kStrip; ++row)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sum[row][lane] = y[row * y_stride + lane];
  for (std::int64_t k = 0; k < inner; ++k)
    for (std::int64_t row = 0; row < kStrip; ++row)
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        sum[row][lane] += a[row * a_stride + k] * panel[k * kLanes + lane];
  for (std::int64_t row = 0; row < kStrip; ++row)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) y[row * y_stride + lane] = sum[row][lane];
}

// What a request attends to: its nodes, and the slots of all rows that any node sees.
struct Request {
  std::int64_t nodes = 0;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> tree;  // tree row of slots[prefix + t]
  std::int64_t prefix = 0;
};

struct Shape {
  std::int64_t R, N, H, D, Dv, slots;
};

struct Index {
  const std::int32_t* n_nodes;
  const std::int32_t* page_table = nullptr;  // null: no prefix
  const std::int32_t* prefix_len = nullptr;
  const std::int32_t* tree_slots = nullptr;  // null: no tree
  const std::uint8_t* visible = nullptr;
  std::int64_t max_pages = 0;
  std::int64_t page_size = 1;
};

// False when the request is refused.
bool collect(const Shape& x, const Index& index, std::int64_t r, Request& request) {
  const std::int64_t n = index.n_nodes[r];
  if (n < 0 || n > x.N) return false;
  if (n == 0) return true;
  if (index.prefix_len != nullptr) {
    request.prefix = index.prefix_len[r];
    if (request.prefix < 0 || request.prefix > index.max_pages * index.page_size) return false;
    request.slots.reserve(static_cast<std::size_t>(request.prefix + n));
    const std::int32_t* table = index.page_table + r * index.max_pages;
    for (std::int64_t t = 0; t < request.prefix; ++t) {
      const std::int64_t page = table[t / index.page_size];
      const std::int64_t slot = page * index.page_size + t % index.page_size;
      if (page < 0 || slot >= x.slots) return false;
      request.slots.push_back(slot);
    }
  }
  if (index.tree_slots != nullptr) {
    const std::int32_t* slots = index.tree_slots + r * x.N;
    const std::uint8_t* visible = index.visible + r * x.N * x.N;
    for (std::int64_t j = 0; j < n; ++j) {
      if (slots[j] < 0 || slots[j] >= x.slots) return false;
      bool seen = false;
      for (std::int64_t i = 0; i < n; ++i) seen = seen || visible[i * x.N + j] != 0;
      if (!seen) continue;  // its row may hold anything
      request.slots.push_back(slots[j]);
      request.tree.push_back(j);
    }
  }
  request.nodes = n;
  return true;
}

// Buffers of one thread. Rows and panels are padded with zeros.
struct Scratch {
  explicit Scratch(const Shape& x)
      : q(static_cast<std::size_t>(kRows * x.D)),
        k(static_cast<std::size_t>(kKeys * x.D)),
        v(static_cast<std::size_t>(kKeys * round_up(x.Dv, kLanes))),
        p(static_cast<std::size_t>(kRows * kKeys)),
        o(static_cast<std::size_t>(kRows * round_up(x.Dv, kLanes))),
        top(kRows),
        mass(kRows) {}
  std::vector<float> q;          // [kRows][D]
  std::vector<float> k;          // [kKeys / kLanes][D][kLanes]
  std::vector<float> v;          // [Dv / kLanes][kKeys][kLanes]
  std::vector<float> p;          // [kRows][kKeys] scores, then weights
  std::vector<float> o;          // [kRows][Dv padded]
  std::vector<float> top, mass;  // running maximum and sum of weights
};

template <class In>
void pack_keys(const Shape& x, const In* pool, const Request& request, std::int64_t first,
               Scratch& s) {
  const std::int64_t end = static_cast<std::int64_t>(request.slots.size());
  for (std::int64_t j = 0; j < kKeys; ++j) {
    float* k = s.k.data() + j / kLanes * x.D * kLanes + j % kLanes;
    float* v = s.v.data() + j * kLanes;
    const bool real = first + j < end;
    const In* row =
        real ? pool + request.slots[static_cast<std::size_t>(first + j)] * x.D : nullptr;
    for (std::int64_t d = 0; d < x.D; ++d) {
      const float value = real ? static_cast<float>(row[d]) : 0.0f;
      k[d * kLanes] = value;
      if (d < x.Dv) v[d / kLanes * kKeys * kLanes + d % kLanes] = value;
    }
  }
}

// Scores of a row's tile become weights; what the row had is rescaled to the new maximum.
void softmax_row(float* p, const std::uint8_t* hidden, std::int64_t keys, float scale, float* o,
                 std::int64_t columns, float& top, float& mass) {
  float tile_top = kNothing;
  for (std::int64_t j = 0; j < keys; ++j) {
    p[j] = hidden[j] != 0 ? kNothing : p[j] * scale;
    tile_top = std::max(tile_top, p[j]);
  }
  if (tile_top == kNothing) {
    std::fill(p, p + kKeys, 0.0f);
    return;
  }
  const float new_top = std::max(top, tile_top);
  if (new_top != top) {
    const float rescale = std::exp(top - new_top);  // 0 at the first tile
    mass *= rescale;
    for (std::int64_t c = 0; c < columns; ++c) o[c] *= rescale;
    top = new_top;
  }
  float sum = 0.0f;
  for (std::int64_t j = 0; j < keys; ++j) {
    p[j] = std::exp(p[j] - top);
    sum += p[j];
  }
  std::fill(p + keys, p + kKeys, 0.0f);
  mass += sum;
}

// Rows [first, first + count) of a request's nodes x heads.
template <class In, class Out>
void attend(const Shape& x, const Index& index, std::int64_t r, const Request& request,
            std::int64_t first, std::int64_t count, float scale, const In* q, const In* pool,
            Out* out, float* lse, Scratch& s) {
  const std::int64_t wide = round_up(x.Dv, kLanes);
  const std::int64_t at = r * x.N * x.H + first;  // flat index of the first row
  std::fill(s.q.begin(), s.q.end(), 0.0f);
  for (std::int64_t i = 0; i < count * x.D; ++i)
    s.q[static_cast<std::size_t>(i)] = static_cast<float>(q[at * x.D + i]);
  std::fill(s.o.begin(), s.o.end(), 0.0f);
  std::fill(s.v.begin(), s.v.end(), 0.0f);
  std::fill(s.top.begin(), s.top.end(), kNothing);
  std::fill(s.mass.begin(), s.mass.end(), 0.0f);

  const auto end = static_cast<std::int64_t>(request.slots.size());
  for (std::int64_t tile = 0; tile < end; tile += kKeys) {
    const std::int64_t keys = std::min(kKeys, end - tile);
    pack_keys(x, pool, request, tile, s);
    std::fill(s.p.begin(), s.p.end(), 0.0f);
    for (std::int64_t row = 0; row < count; row += kStrip)
      for (std::int64_t j = 0; j < keys; j += kLanes)
        multiply_panel(s.q.data() + row * x.D, x.D, s.k.data() + j * x.D, x.D,
                       s.p.data() + row * kKeys + j, kKeys);
    for (std::int64_t row = 0; row < count; ++row) {
      std::uint8_t hidden[kKeys] = {};
      for (std::int64_t j = std::max<std::int64_t>(0, request.prefix - tile); j < keys; ++j) {
        const std::int64_t node = (first + row) / x.H;
        const std::int64_t tree = request.tree[static_cast<std::size_t>(tile + j - request.prefix)];
        hidden[j] = index.visible[(r * x.N + node) * x.N + tree] == 0;
      }
      softmax_row(s.p.data() + row * kKeys, hidden, keys, scale, s.o.data() + row * wide, wide,
                  s.top[static_cast<std::size_t>(row)], s.mass[static_cast<std::size_t>(row)]);
    }
    for (std::int64_t row = 0; row < count; row += kStrip)
      for (std::int64_t c = 0; c < wide; c += kLanes)
        multiply_panel(s.p.data() + row * kKeys, kKeys, s.v.data() + c * kKeys, keys,
                       s.o.data() + row * wide + c, wide);
  }

  for (std::int64_t row = 0; row < count; ++row) {
    const float mass = s.mass[static_cast<std::size_t>(row)];
    const bool nothing = mass == 0.0f;
    lse[at + row] = nothing ? kNothing : s.top[static_cast<std::size_t>(row)] + std::log(mass);
    const float* o = s.o.data() + row * wide;
    for (std::int64_t c = 0; c < x.Dv; ++c)
      out[(at + row) * x.Dv + c] = Out(nothing ? 0.0f : o[c] / mass);
  }
}

template <class In, class Out>
void verify(Call& c, const Shape& x, const Index& index, float scale) {
  const auto q = c.in<In>("q", "R N H D");
  const auto pool = c.in<In>("kv_pool", "slots D");
  const auto out = c.out<Out>("out", "R N H Dv");
  const auto lse = c.out<float>("lse", "R N H");
  const auto status = c.out<std::int32_t>("status", "R");

  struct Item {
    std::int64_t r, first, count;
  };
  std::vector<Request> requests(static_cast<std::size_t>(x.R));
  std::vector<Item> items;
  std::int64_t work = 0;
  const std::int64_t rows = x.N * x.H;
  for (std::int64_t r = 0; r < x.R; ++r) {
    Request& request = requests[static_cast<std::size_t>(r)];
    status[r] = collect(x, index, r, request) ? kdtr::kOk : kdtr::kBadInput;
    const std::int64_t active = request.nodes * x.H;
    for (std::int64_t first = 0; first < active; first += kRows)
      items.push_back({r, first, std::min(kRows, active - first)});
    work += active * static_cast<std::int64_t>(request.slots.size()) * (x.D + x.Dv);
    for (std::int64_t i = r * rows + active; i < (r + 1) * rows; ++i) {
      lse[i] = kNothing;
      for (std::int64_t k = i * x.Dv; k < (i + 1) * x.Dv; ++k) out[k] = Out(0.0f);
    }
  }

  std::atomic<std::size_t> next{0};
  const auto drain = [&] {
    Scratch scratch(x);
    for (std::size_t i = next++; i < items.size(); i = next++) {
      const Item& item = items[i];
      attend(x, index, item.r, requests[static_cast<std::size_t>(item.r)], item.first, item.count,
             scale, q.data, pool.data, out.data, lse.data, scratch);
    }
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> helpers;
  if (work > 10'000'000)
    for (std::size_t t = 1; t < std::min(cores, items.size()); ++t) helpers.emplace_back(drain);
  drain();
  for (std::thread& helper : helpers) helper.join();
}

template <class In>
void verify_from(Call& c, const Shape& x, const Index& index, float scale, const DLTensor& out) {
  if (kdtr::is<In>(out.dtype)) {
    verify<In, In>(c, x, index, scale);
  } else if (kdtr::is<float>(out.dtype)) {
    verify<In, float>(c, x, index, scale);
  } else {
    kdtr::fail(c.where("out"), "dtype", "that of q, or f32", kdtr::dtype_name(out.dtype));
  }
}

void run(Call& c, void*) {
  const DLTensor& q = c.any("q", KDTR_IN, "R N H D");
  c.any("kv_pool", KDTR_IN, "slots D");
  c.bind("Dv", c.attr_int("Dv"));
  const DLTensor& out = c.any("out", KDTR_OUT, "R N H Dv");
  const Shape x{c.dim("R"), c.dim("N"), c.dim("H"), c.dim("D"), c.dim("Dv"), c.dim("slots")};
  KDTR_CHECK(x.Dv >= 0 && x.Dv <= x.D, c.where("Dv"), "value columns", "at most D", x.Dv);
  const auto scale = static_cast<float>(c.attr_float("scale"));
  const std::string_view part = c.attr_str("part");
  KDTR_CHECK(part == "whole" || part == "prefix" || part == "tail", c.where("part"), "part",
             "whole, prefix or tail", part);

  Index index{};
  index.page_size = c.attr_int("page_size");
  KDTR_CHECK(index.page_size == 1 || index.page_size == 16 || index.page_size == 64,
             c.where("page_size"), "page size", "1, 16 or 64", index.page_size);
  index.n_nodes = c.in<std::int32_t>("n_nodes", "R").data;
  if (part != "tail") {
    index.page_table = c.in<std::int32_t>("page_table", "R max_pages").data;
    index.prefix_len = c.in<std::int32_t>("prefix_len", "R").data;
    index.max_pages = c.dim("max_pages");
  }
  if (part != "prefix") {
    index.tree_slots = c.in<std::int32_t>("tree_slots", "R N").data;
    index.visible = c.in<std::uint8_t>("visible", "R N N").data;
  }

  if (kdtr::is<float>(q.dtype)) {
    verify_from<float>(c, x, index, scale, out);
  } else if (kdtr::is<kdtr::bf16>(q.dtype)) {
    verify_from<kdtr::bf16>(c, x, index, scale, out);
  } else if (kdtr::is<kdtr::f16>(q.dtype)) {
    verify_from<kdtr::f16>(c, x, index, scale, out);
  } else {
    kdtr::fail(c.where("q"), "dtype", "f32, bf16 or f16", kdtr::dtype_name(q.dtype));
  }
}

KDTR_KERNEL({"verify_attn@1", run});

}  // namespace
