// embed@1 on cpu: a row copy; f32 or bf16 table, widened where out is f32.
// ids [T], table [V, N] -> out [T, N], status [T].
#include <type_traits>

#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), vocabulary = call.dim("V"), n = call.dim("N");
  if (!is<float>(out.dtype)) require_dtype(call, "out", out, table.dtype);
  by_weight(call, "table", table, [&]<class W>(W*) {
    by_weight(call, "out", out, [&]<class Y>(Y*) {
      for (std::int64_t t = 0; t < rows; ++t) {
        const bool ok = ids[t] >= 0 && ids[t] < vocabulary;
        status[t] = ok ? kOk : kBadInput;
        const W* row = data<const W>(table) + (ok ? ids[t] : 0) * n;
        Y* to = data<Y>(out) + t * n;
        for (std::int64_t i = 0; i < n; ++i) {
          if constexpr (std::is_same_v<W, Y>) {
            to[i] = ok ? row[i] : Y(0.0f);  // with the bits of a NaN
          } else {
            to[i] = Y(ok ? widen(row[i]) : 0.0f);
          }
        }
      }
    });
  });
}

}  // namespace
KDTR_KERNEL({"embed@1", run});
}  // namespace kdtr::cpu
