// merge_state@1 on cpu: one pass per row, f32, bf16 or f16 in and out, f32 arithmetic.
// o_a, o_b [R, N, H, Dv], lse_a, lse_b [R, N, H] -> o, lse, status [R]. No aliasing.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kdtr/registry.h"

namespace {

using kdtr::Call;

constexpr float kEmpty = -kdtr::kInfF;

bool refused(float lse) { return std::isnan(lse) || lse == kdtr::kInfF; }

template <class In, class Out>
void convert(const In* from, Out* to, std::int64_t n) {
  if constexpr (std::is_same_v<In, Out>) {
    std::copy(from, from + n, to);  // a move: bits are kept, subnormals too
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = Out(static_cast<float>(from[i]));
  }
}

template <class In, class Out>
void merge(Call& c) {
  const auto o_a = c.in<In>("o_a", "R N H Dv");
  const auto o_b = c.in<In>("o_b", "R N H Dv");
  const auto lse_a = c.in<float>("lse_a", "R N H");
  const auto lse_b = c.in<float>("lse_b", "R N H");
  const auto o = c.out<Out>("o", "R N H Dv");
  const auto lse = c.out<float>("lse", "R N H");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t rows = c.dim("N") * c.dim("H");
  const std::int64_t columns = c.dim("Dv");

  for (std::int64_t r = 0; r < c.dim("R"); ++r) {
    const std::int64_t first = r * rows;
    bool bad = false;
    for (std::int64_t i = first; i < first + rows; ++i)
      bad = bad || refused(lse_a[i]) || refused(lse_b[i]);
    status[r] = bad ? kdtr::kBadInput : kdtr::kOk;

    for (std::int64_t i = first; i < first + rows; ++i) {
      const In* a = o_a.data + i * columns;
      const In* b = o_b.data + i * columns;
      Out* to = o.data + i * columns;
      const float top = bad ? kEmpty : std::max(lse_a[i], lse_b[i]);
      if (top == kEmpty) {
        lse[i] = kEmpty;
        std::fill(to, to + columns, Out(0.0f));
      } else if (lse_b[i] == kEmpty) {
        lse[i] = lse_a[i];
        convert(a, to, columns);
      } else if (lse_a[i] == kEmpty) {
        lse[i] = lse_b[i];
        convert(b, to, columns);
      } else {
        const float w_a = std::exp(lse_a[i] - top);
        const float w_b = std::exp(lse_b[i] - top);
        const float total = w_a + w_b;
        const float p_a = w_a / total;
        const float p_b = w_b / total;
        lse[i] = top + std::log(total);
        for (std::int64_t k = 0; k < columns; ++k)
          to[k] = Out(p_a * static_cast<float>(a[k]) + p_b * static_cast<float>(b[k]));
      }
    }
  }
}

template <class In>
void merge_from(Call& c, const DLTensor& o) {
  if (kdtr::is<In>(o.dtype)) {
    merge<In, In>(c);
  } else if (kdtr::is<kdtr::bf16>(o.dtype)) {
    merge<In, kdtr::bf16>(c);
  } else if (kdtr::is<kdtr::f16>(o.dtype)) {
    merge<In, kdtr::f16>(c);
  } else {
    kdtr::fail(c.where("o"), "dtype", "that of o_a, bf16 or f16", kdtr::dtype_name(o.dtype));
  }
}

void run(Call& c, void*) {
  const DLTensor& o_a = c.any("o_a", KDTR_IN, "R N H Dv");
  const DLTensor& o = c.any("o", KDTR_OUT, "R N H Dv");
  if (kdtr::is<float>(o_a.dtype)) {
    merge_from<float>(c, o);
  } else if (kdtr::is<kdtr::bf16>(o_a.dtype)) {
    merge_from<kdtr::bf16>(c, o);
  } else if (kdtr::is<kdtr::f16>(o_a.dtype)) {
    merge_from<kdtr::f16>(c, o);
  } else {
    kdtr::fail(c.where("o_a"), "dtype", "f32, bf16 or f16", kdtr::dtype_name(o_a.dtype));
  }
}

KDTR_KERNEL({"merge_state@1", run});

}  // namespace
