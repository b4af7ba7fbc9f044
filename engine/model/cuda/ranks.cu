// Ranks as processes with a GPU each, over NCCL, which is opened when it is first asked for. Only
// its gather is used: partial sums are gathered and added in rank order by one kernel, so that
// every rank has the same bits whatever algorithm NCCL takes, and the same as ranks that are
// threads.
#include <cuda_bf16.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "../memory.h"
#include "kdtr/cuda.h"
#include "kdtr/tensor.h"

namespace kdtr::model {
namespace {

// The part of NCCL's stable C interface that is used here; nccl.h is not needed.
struct Id {
  char bytes[kGroupBytes];
};
constexpr int kNcclChar = 0;

class Nccl {
 public:
  int (*unique_id)(Id*) = nullptr;
  int (*init_rank)(void**, int, Id, int) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, void*, cudaStream_t) = nullptr;
  int (*destroy)(void*) = nullptr;
  const char* (*error)(int) = nullptr;

  static const Nccl& get() {
    static const Nccl nccl;
    return nccl;
  }
  void check(const char* what, int code) const {
    if (code != 0) fail(what, "NCCL call failed", "ncclSuccess", error(code));
  }

 private:
  Nccl() {
    const char* given = std::getenv("KDTR_NCCL");
    const char* name = given != nullptr ? given : "libnccl.so.2";
    library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr)
      fail("ranks", "NCCL cannot be opened", "libnccl.so.2, or its path in KDTR_NCCL", dlerror());
    load(unique_id, "ncclGetUniqueId");
    load(init_rank, "ncclCommInitRank");
    load(all_gather, "ncclAllGather");
    load(destroy, "ncclCommDestroy");
    load(error, "ncclGetErrorString");
  }
  template <class F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library_, name));
    if (function == nullptr) fail("ranks", "NCCL lacks a function", name, "none");
  }
  void* library_ = nullptr;
};

constexpr int kThreads = 256;

// out[i] = parts[0, i] + parts[1, i] + ... in that order.
template <class T>
__global__ void add(const T* parts, int world, std::size_t n, T* out) {
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * kThreads) {
    float sum = 0;
    for (int r = 0; r < world; ++r)
      sum += static_cast<float>(parts[static_cast<std::size_t>(r) * n + i]);
    out[i] = T(sum);
  }
}

class Ranks final : public Communicator {
 public:
  Ranks(const Group& group, int rank, int world) : nccl_(Nccl::get()), rank_(rank), world_(world) {
    Id id;
    std::memcpy(id.bytes, group.data(), group.size());
    nccl_.check("ncclCommInitRank", nccl_.init_rank(&ranks_, world, id, rank));
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() override { nccl_.destroy(ranks_); }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::size_t scratch(std::size_t bytes) const override {
    return (static_cast<std::size_t>(world_) + 1) * bytes;
  }

  void sum(void* data, DLDataType dtype, std::size_t n, void* scratch, Memory& memory) override {
    gather(data, scratch, n * (dtype.bits / 8u), memory);
    const auto blocks = static_cast<unsigned>(std::min<std::size_t>((n + 255) / kThreads, 1024));
    const auto all = [&]<class T>(T*) {
      // grid: at most 1024 blocks; block: 256; smem: none
      add<<<blocks, kThreads, 0, cuda_stream(memory.stream())>>>(static_cast<const T*>(scratch),
                                                                 world_, n, static_cast<T*>(data));
      KDTR_LAUNCHED("sum of ranks");
    };
    is<bf16>(dtype) ? all(static_cast<__nv_bfloat16*>(nullptr)) : all(static_cast<float*>(nullptr));
  }

  void gather_columns(const float* part, float* out, std::size_t rows, std::size_t columns,
                      void* scratch, Memory& memory) override {
    const auto all = static_cast<std::int64_t>(columns);
    const std::size_t most =
        (columns + static_cast<std::size_t>(world_) - 1) / static_cast<std::size_t>(world_);
    const std::size_t bytes = rows * most * sizeof(float);
    const auto mine = static_cast<std::size_t>(share(all, rank_, world_).count);
    auto* parts = static_cast<std::byte*>(scratch);
    std::byte* send = parts + static_cast<std::size_t>(world_) * bytes;  // all ranks send as much
    memory.copy(send, part, rows * mine * sizeof(float));
    gather(send, parts, bytes, memory);
    for (int r = 0; r < world_; ++r) {
      const Range range = share(all, r, world_);
      const std::size_t row = static_cast<std::size_t>(range.count) * sizeof(float);
      memory.copy_rows(out + range.first, columns * sizeof(float),
                       parts + static_cast<std::size_t>(r) * bytes, row, row, rows);
    }
  }

 private:
  void gather(const void* from, void* to, std::size_t bytes, Memory& memory) {
    nccl_.check("ncclAllGather",
                nccl_.all_gather(from, to, bytes, kNcclChar, ranks_, cuda_stream(memory.stream())));
  }

  const Nccl& nccl_;
  void* ranks_ = nullptr;
  int rank_, world_;
};

}  // namespace

Group new_group() {
  const Nccl& nccl = Nccl::get();
  Id id;
  nccl.check("ncclGetUniqueId", nccl.unique_id(&id));
  Group group;
  std::memcpy(group.data(), id.bytes, group.size());
  return group;
}

std::unique_ptr<Communicator> join_group(const Group& group, int rank, int world) {
  KDTR_CHECK(world >= 1, "ranks", "world", "1 or more", world);
  KDTR_CHECK(rank >= 0 && rank < world, "ranks", "rank", "0.." + std::to_string(world - 1), rank);
  backend_memory();  // NCCL wants the device to be chosen
  return std::make_unique<Ranks>(group, rank, world);
}

}  // namespace kdtr::model
