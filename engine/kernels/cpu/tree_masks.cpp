// tree_masks@1 on cpu: bit strings filled byte by byte; integers only.
// visible u8 [R, N, N] and links -> byte and bit masks, orders; nothing aliases.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kdtr/registry.h"

namespace {

using kdtr::Array;
using kdtr::Call;

std::int32_t check(const std::int32_t* parents, const std::int32_t* depths, std::int64_t nodes) {
  for (std::int64_t i = 0; i < nodes; ++i) {
    const std::int32_t parent = parents[i];
    if (i == 0 ? parent != -1 || depths[0] != 0 : parent < 0 || parent >= i) return kdtr::kBadLinks;
    // The parent's depth is below i, so it cannot overflow.
    if (i > 0 && depths[i] != depths[parent] + 1) return kdtr::kBadLinks;
  }
  return kdtr::kOk;
}

// Ones or the bits of a row, appended to a string of bits.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) : out_(out) {}
  void append(std::uint64_t bits, int count) {  // count <= 32; bits above it are 0
    pending_ |= bits << filled_;
    filled_ += count;
    for (; filled_ >= 8; filled_ -= 8, pending_ >>= 8)
      *out_++ = static_cast<std::uint8_t>(pending_ & 0xFF);
  }
  void ones(std::int64_t count) {
    for (; count > 0 && filled_ != 0; --count) append(1, 1);
    std::memset(out_, 0xFF, static_cast<std::size_t>(count / 8));
    out_ += count / 8;
    append((std::uint64_t{1} << (count % 8)) - 1, static_cast<int>(count % 8));
  }
  void finish() {
    if (filled_ > 0) *out_++ = static_cast<std::uint8_t>(pending_ & 0xFF);
  }

 private:
  std::uint8_t* out_;
  std::uint64_t pending_ = 0;
  int filled_ = 0;
};

// Children of a node in ascending index, appended as their parent is reached.
void breadth_first(const std::int32_t* parents, std::int64_t nodes, std::int32_t* order,
                   std::vector<std::int32_t>& first, std::vector<std::int32_t>& next) {
  if (nodes == 0) return;
  first.assign(static_cast<std::size_t>(nodes), -1);
  next.assign(static_cast<std::size_t>(nodes), -1);
  for (std::int64_t i = nodes - 1; i > 0; --i) {
    std::int32_t& head = first[static_cast<std::size_t>(parents[i])];
    next[static_cast<std::size_t>(i)] = head;
    head = static_cast<std::int32_t>(i);
  }
  order[0] = 0;
  std::int64_t filled = 1;
  for (std::int64_t k = 0; k < nodes; ++k)
    for (std::int32_t i = first[static_cast<std::size_t>(order[k])]; i >= 0;
         i = next[static_cast<std::size_t>(i)])
      order[filled++] = i;
}

void run(Call& c, void*) {
  c.bind("T", c.attr_int("T"));
  c.bind("T8", c.attr_int("T8"));
  const auto visible = c.in<std::uint8_t>("visible", "R N N");
  const auto parents = c.in<std::int32_t>("parents", "R N");
  const auto depths = c.in<std::int32_t>("depths", "R N");
  const auto n_nodes = c.in<std::int32_t>("n_nodes", "R");
  const auto prefix_len = c.in<std::int32_t>("prefix_len", "R");
  const std::int64_t requests = c.dim("R"), slots = c.dim("N"), words = (slots + 31) / 32;
  c.bind("W", words);
  c.bind("S", requests + 1);
  const auto qlen = c.out<std::uint8_t>("qlen", "R N N");
  const auto full = c.out<std::uint8_t>("full", "T");
  const auto packed32 = c.out<std::uint32_t>("packed32", "R N W");
  const auto packed8 = c.out<std::uint8_t>("packed8", "T8");
  const auto indptr = c.out<std::int32_t>("indptr", "S");
  const auto bfs_order = c.out<std::int32_t>("bfs_order", "R N");
  const auto retrieve_index = c.out<std::int32_t>("retrieve_index", "R N");
  const auto status = c.out<std::int32_t>("status", "R");
  const std::int64_t total = c.dim("T"), total8 = c.dim("T8");
  KDTR_CHECK(slots <= 1025, c.where("visible"), "axis N", "at most 1025", slots);
  KDTR_CHECK(total <= 0x7FFFFFFF, c.where("full"), "axis T", "below 2^31", total);
  KDTR_CHECK(total8 <= 0x7FFFFFFF, c.where("packed8"), "axis T8", "below 2^31", total8);

  std::vector<std::int32_t> first, next;
  std::int64_t begin = 0, begin8 = 0;
  indptr[0] = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t nodes = n_nodes[r], prefix = std::max(prefix_len[r], 0);
    const std::int64_t end = begin + slots * (prefix + slots);
    const std::int64_t end8 = begin8 + (slots * (prefix + slots) + 7) / 8;
    std::int32_t state = kdtr::kOk;
    if (nodes < 0 || nodes > slots || prefix_len[r] < 0)
      state = kdtr::kBadInput;
    else
      state = check(parents.data + r * slots, depths.data + r * slots, nodes);
    if (state == kdtr::kOk && (end > total || end8 > total8)) state = kdtr::kCapacity;
    status[r] = state;
    indptr[r + 1] = static_cast<std::int32_t>(std::min(end8, total8));
    const std::int64_t live = state == kdtr::kOk ? nodes : 0;

    std::uint8_t* square = qlen.data + r * slots * slots;
    std::uint32_t* bits = packed32.data + r * slots * words;
    std::memset(square, 0, static_cast<std::size_t>(slots * slots));
    std::fill_n(bits, slots * words, 0u);
    for (std::int64_t i = 0; i < live; ++i) {
      const std::uint8_t* row = visible.data + (r * slots + i) * slots;
      for (std::int64_t j = 0; j < live; ++j) {
        const std::uint32_t seen = row[j] != 0 ? 1 : 0;
        square[i * slots + j] = static_cast<std::uint8_t>(seen);
        bits[i * words + j / 32] |= seen << (j % 32);
      }
    }
    if (state == kdtr::kOk) {
      BitWriter writer(packed8.data + begin8);
      for (std::int64_t i = 0; i < slots; ++i) {
        std::uint8_t* row = full.data + begin + i * (prefix + slots);
        std::memset(row, 1, static_cast<std::size_t>(prefix));
        std::memcpy(row + prefix, square + i * slots, static_cast<std::size_t>(slots));
        writer.ones(prefix);
        for (std::int64_t w = 0; w < words; ++w)
          writer.append(bits[i * words + w],
                        static_cast<int>(std::min<std::int64_t>(slots - 32 * w, 32)));
      }
      writer.finish();
    } else {
      const auto clear = [](const Array<std::uint8_t>& a, std::int64_t from, std::int64_t to,
                            std::int64_t size) {
        from = std::min(from, size);
        std::memset(a.data + from, 0, static_cast<std::size_t>(std::min(to, size) - from));
      };
      clear(full, begin, end, total);
      clear(packed8, begin8, end8, total8);
    }
    std::int32_t* order = bfs_order.data + r * slots;
    breadth_first(parents.data + r * slots, live, order, first, next);
    std::fill(order + live, order + slots, -1);
    for (std::int64_t i = 0; i < slots; ++i)
      retrieve_index[r * slots + i] = i < live ? static_cast<std::int32_t>(r * slots + i) : -1;
    begin = end;
    begin8 = end8;
  }
  if (begin < total) std::memset(full.data + begin, 0, static_cast<std::size_t>(total - begin));
  if (begin8 < total8)
    std::memset(packed8.data + begin8, 0, static_cast<std::size_t>(total8 - begin8));
}

}  // namespace

KDTR_KERNEL({"tree_masks@1", run});
