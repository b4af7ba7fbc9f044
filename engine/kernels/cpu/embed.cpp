// embed@1 on cpu: a row copy; f32 or bf16 table, widened.
// ids [T], table [V, N] -> out [T, N], status [T].
#include "detail/rows.h"
#include "kdtr/registry.h"

namespace kdtr::cpu {
namespace {

void run(Call& call, void*) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const auto out = call.out<float>("out", "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t rows = call.dim("T"), vocabulary = call.dim("V"), n = call.dim("N");
  by_weight(call, "table", table, [&]<class W>(W*) {
    for (std::int64_t t = 0; t < rows; ++t) {
      const bool ok = ids[t] >= 0 && ids[t] < vocabulary;
      status[t] = ok ? kOk : kBadInput;
      const W* row = data<const W>(table) + (ok ? ids[t] : 0) * n;
      for (std::int64_t i = 0; i < n; ++i) out[t * n + i] = ok ? widen(row[i]) : 0.0f;
    }
  });
}

}  // namespace
KDTR_KERNEL({"embed@1", run});
}  // namespace kdtr::cpu
