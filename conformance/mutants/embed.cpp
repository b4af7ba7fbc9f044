#include "rows.h"

namespace kdtr::mutants {
namespace {

enum Fault {
  kCorrect,
  kOffByOne,
  kClamps,
  kScaled,
  kFirstToken,
  kUint8,
  kTail,
  kWrapsNegative,
  kStatusOnly,
};

void embed(Call& call, int fault) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t n = call.dim("N"), v = call.dim("V");
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    std::int64_t id = ids[fault == kFirstToken ? 0 : t];
    if (fault == kClamps) id = std::max<std::int64_t>(0, std::min(id, v - 1));
    if (fault == kWrapsNegative && id < 0) id += v;
    if (fault == kOffByOne) id = (id + 1) % std::max<std::int64_t>(v, 1);
    if (fault == kUint8 && id >= 0) id &= 255;
    const bool ok = id >= 0 && id < v;
    status[t] = ok || fault == kStatusOnly ? 0 : 1;
    Row row = ok ? read(table, id * n, n) : Row(static_cast<std::size_t>(n), 0.0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (fault == kScaled) row[i] *= std::sqrt(static_cast<double>(n));
      if (fault == kTail && i >= row.size() / 4 * 4) row[i] = 0;
    }
    write(out, t * n, row);
  }
}

}  // namespace
KDTR_MUTANTS({"embed@1",
              {{"correct", "control"},
               {"off_by_one", "reads the next row"},
               {"clamps", "clamps a bad id into range"},
               {"scaled", "multiplies by sqrt(N)"},
               {"first_token", "reads the first token's row for all"},
               {"uint8_id", "keeps only the low byte of an id"},
               {"tail", "copies whole groups of four only"},
               {"wraps_negative", "takes -1 as the last row"},
               {"no_status", "reports a bad id as ok"}},
              embed});
}  // namespace kdtr::mutants
