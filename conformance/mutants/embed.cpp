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
  kUint16,
  kInt16,
  kPast64Tokens,
  kPast1024Tokens,
  kPast1024Elements,
  kThroughF16,
  kClampsToF16,
  kFlushes,
  kPlusZero,
  kChecks64Tokens,
  kNothingWithoutRows,
  kInfinityRefused,
  kEndAccepted,  // in one branch: the first of three
};

void embed(Call& call, int fault) {
  const auto ids = call.in<std::int32_t>("ids", "T");
  const DLTensor& table = call.any("table", KDTR_IN, "V N");
  const DLTensor& out = call.any("out", KDTR_OUT, "T N");
  const auto status = call.out<std::int32_t>("status", "T");
  const std::int64_t n = call.dim("N"), v = call.dim("V");
  const int kind = is<float>(table.dtype) ? 0 : is<float>(out.dtype) ? 1 : 2;
  if (fault == kNothingWithoutRows && v == 0) return;
  for (std::int64_t t = 0; t < call.dim("T"); ++t) {
    std::int64_t id = ids[fault == kFirstToken ? 0 : t];
    if (fault == kClamps) id = std::max<std::int64_t>(0, std::min(id, v - 1));
    if (fault == kWrapsNegative && id < 0) id += v;
    if (fault - kEndAccepted == kind && id == v) id = v - 1;
    if (fault == kOffByOne) id = (id + 1) % std::max<std::int64_t>(v, 1);
    if (fault == kUint8 && id >= 0) id &= 255;
    if (fault == kUint16 && id >= 0 && id < v) id &= 65535;
    if (fault == kInt16 && id >= 32768 && id < v) id = std::max<std::int64_t>(0, id - 65536);
    const bool ok =
        id >= 0 && id < v && (fault != kInfinityRefused || finite(read(table, id * n, n)));
    status[t] = ok || fault == kStatusOnly || (fault == kChecks64Tokens && t >= 64) ? 0 : 1;
    Row row = ok ? read(table, id * n, n) : Row(static_cast<std::size_t>(n), 0.0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (fault == kScaled) row[i] *= std::sqrt(static_cast<double>(n));
      if (fault == kThroughF16) row[i] = in_f16(row[i]);
      if (fault == kClampsToF16) row[i] = clamped_to_f16(row[i]);
      if (fault == kFlushes && std::fabs(row[i]) < 0x1p-126) row[i] = std::copysign(0.0, row[i]);
      if (fault == kPlusZero && row[i] == 0) row[i] = 0;
      if ((fault == kPast64Tokens && t >= 64) || (fault == kPast1024Tokens && t >= 1024) ||
          (fault == kPast1024Elements && i >= 1024))
        row[i] = 0;
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
               {"no_status", "reports a bad id as ok"},
               {"uint16_id", "keeps an id in 16 bits"},
               {"int16_id",
                "keeps an id in 16 bits with a sign, and takes row 0 for a negative one"},
               {"past_64_tokens", "handles only 64 tokens"},
               {"past_1024_tokens", "handles only 1024 tokens"},
               {"past_1024_elements", "copies only 1024 elements of a row"},
               {"through_f16", "rounds the rows to f16"},
               {"clamps_to_f16", "clamps the rows to the range of f16"},
               {"flushes", "makes subnormals 0"},
               {"plus_zero", "drops the sign of zero"},
               {"checks_64_tokens", "reports a bad id in only 64 tokens"},
               {"nothing_without_rows", "writes nothing when the table has no rows"},
               {"infinity_refused", "refuses rows that hold an infinity"},
               {"end_accepted", "accepts id V in an f32 table"},
               {"widened_end_accepted", "accepts id V in a bf16 table that is widened"},
               {"bf16_end_accepted", "accepts id V in a bf16 table that is copied"}},
              embed});
}  // namespace kdtr::mutants
