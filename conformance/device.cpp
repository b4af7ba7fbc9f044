#include "device.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kdtr/error.h"
#include "value.h"

namespace kdtr::conform {
namespace {

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// ---- host -------------------------------------------------------------------------------------

class HostMemory final : public Memory {
 public:
  DLDevice device() const override { return {kDLCPU, 0}; }
  std::string name() const override { return "CPU"; }
  void* alloc(std::size_t size) override {
    const std::size_t body = round_up(size, page_);
    // Address space costs nothing: the fences are wide, so that a far write faults too.
    void* map = ::mmap(nullptr, body + 2 * kFence, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) fail("host memory", "mmap", std::to_string(body) + " bytes", "none");
    auto* base = static_cast<std::byte*>(map) + kFence;
    if (::mprotect(base, body, PROT_READ | PROT_WRITE) != 0) fail("host memory", "mprotect failed");
    return base + (body - size);  // size is a multiple of 256
  }
  void release(void* data, std::size_t size) override {
    const std::size_t body = round_up(size, page_);
    ::munmap(static_cast<std::byte*>(data) - (body - size) - kFence, body + 2 * kFence);
  }
  void upload(void* to, const void* from, std::size_t size) override {
    std::memcpy(to, from, size);
  }
  void download(void* to, const void* from, std::size_t size) override {
    std::memcpy(to, from, size);
  }
  void sync() override {}

 private:
  static constexpr std::size_t kFence = 1u << 20;
  std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
};

// ---- CUDA driver ------------------------------------------------------------------------------

// The few driver entry points used here, so that neither building nor starting the judge needs
// CUDA. Types as in cuda.h: CUresult int, CUdevice int, CUdeviceptr 64-bit, handles opaque.
struct Driver {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*driver_version)(int*);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*mem_alloc)(std::uint64_t*, std::size_t);
  int (*mem_free)(std::uint64_t);
  int (*to_device)(std::uint64_t, const void*, std::size_t);
  int (*to_host)(void*, std::uint64_t, std::size_t);
  int (*stream_create)(void**, unsigned);
  int (*stream_sync)(void*);
  int (*error_name)(int, const char**);

  void check(int code, const char* what) const {
    if (code == 0) return;
    const char* text = nullptr;
    if (error_name == nullptr || error_name(code, &text) != 0 || text == nullptr) text = "unknown";
    fail(std::string("CUDA driver: ") + what, "failed", "CUDA_SUCCESS",
         std::string(text) + " (" + std::to_string(code) + ")");
  }
};

constexpr const char* kDriverLibrary = "libcuda.so.1";

template <class F>
void bind(void* library, const char* name, F& function) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) fail("CUDA driver", std::string("no symbol ") + name);
  std::memcpy(&function, &symbol, sizeof symbol);
}

const Driver& driver() {
  static const Driver loaded = [] {
    void* library = ::dlopen(kDriverLibrary, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) fail("CUDA driver", "no GPU driver on this machine (libcuda.so.1)");
    Driver d{};
    bind(library, "cuInit", d.init);
    bind(library, "cuDeviceGet", d.device_get);
    bind(library, "cuDeviceGetName", d.device_name);
    bind(library, "cuDriverGetVersion", d.driver_version);
    bind(library, "cuDevicePrimaryCtxRetain", d.retain);
    bind(library, "cuCtxSetCurrent", d.set_current);
    bind(library, "cuMemAlloc_v2", d.mem_alloc);
    bind(library, "cuMemFree_v2", d.mem_free);
    bind(library, "cuMemcpyHtoD_v2", d.to_device);
    bind(library, "cuMemcpyDtoH_v2", d.to_host);
    bind(library, "cuStreamCreate", d.stream_create);
    bind(library, "cuStreamSynchronize", d.stream_sync);
    bind(library, "cuGetErrorName", d.error_name);
    d.check(d.init(0), "cuInit");
    return d;
  }();
  return loaded;
}

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(DLDevice device) : device_(device), d_(driver()) {
    int ordinal = 0;
    d_.check(d_.device_get(&ordinal, device.device_id), "cuDeviceGet");
    void* context = nullptr;
    d_.check(d_.retain(&context, ordinal), "cuDevicePrimaryCtxRetain");
    d_.check(d_.set_current(context), "cuCtxSetCurrent");
    // A stream of our own, non-blocking: what an engine enqueues elsewhere is not in a graph.
    d_.check(d_.stream_create(&stream_, 1), "cuStreamCreate");
    char text[128] = "";
    d_.check(d_.device_name(text, sizeof text, ordinal), "cuDeviceGetName");
    int version = 0;
    d_.check(d_.driver_version(&version), "cuDriverGetVersion");
    name_ = std::string(text) + ", CUDA driver " + std::to_string(version / 1000) + "." +
            std::to_string(version % 1000 / 10);
  }
  DLDevice device() const override { return device_; }
  std::string name() const override { return name_; }
  void* alloc(std::size_t size) override {
    std::uint64_t address = 0;
    d_.check(d_.mem_alloc(&address, size), "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }
  void release(void* data, std::size_t) override {
    d_.mem_free(reinterpret_cast<std::uint64_t>(data));  // fails after a sticky error: no matter
  }
  void upload(void* to, const void* from, std::size_t size) override {
    d_.check(d_.to_device(reinterpret_cast<std::uint64_t>(to), from, size), "cuMemcpyHtoD");
    // From pageable memory it may return before the bytes are there, and the stream of the calls
    // does not wait for the default one.
    d_.check(d_.stream_sync(nullptr), "cuStreamSynchronize");
  }
  void download(void* to, const void* from, std::size_t size) override {
    d_.check(d_.to_host(to, reinterpret_cast<std::uint64_t>(from), size), "cuMemcpyDtoH");
  }
  void sync() override { d_.check(d_.stream_sync(stream_), "cuStreamSynchronize"); }
  void* stream() override { return stream_; }

  bool has_graphs() const override { return true; }
  void begin_capture() override {
    if (graphs_.begin == nullptr) {
      void* library = ::dlopen(kDriverLibrary, RTLD_NOW);
      bind(library, "cuStreamBeginCapture_v2", graphs_.begin);
      bind(library, "cuStreamEndCapture", graphs_.end);
      bind(library, "cuGraphInstantiateWithFlags", graphs_.instantiate);
      bind(library, "cuGraphLaunch", graphs_.launch);
      bind(library, "cuGraphExecDestroy", graphs_.destroy_exec);
      bind(library, "cuGraphDestroy", graphs_.destroy);
    }
    d_.check(graphs_.begin(stream_, 0), "cuStreamBeginCapture");
  }
  std::string end_capture() override {
    void* graph = nullptr;
    try {
      // Also ends a capture that was invalidated, and says so.
      d_.check(graphs_.end(stream_, &graph), "cuStreamEndCapture");
      if (exec_ != nullptr) graphs_.destroy_exec(exec_);
      exec_ = nullptr;
      d_.check(graphs_.instantiate(&exec_, graph, 0), "cuGraphInstantiate");
    } catch (const Error& e) {
      if (graph != nullptr) graphs_.destroy(graph);
      return e.what();
    }
    graphs_.destroy(graph);
    return "";
  }
  void replay() override { d_.check(graphs_.launch(exec_, stream_), "cuGraphLaunch"); }

 private:
  struct Graphs {  // bound on first use
    int (*begin)(void*, int) = nullptr;
    int (*end)(void*, void**) = nullptr;
    int (*instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*launch)(void*, void*) = nullptr;
    int (*destroy_exec)(void*) = nullptr;
    int (*destroy)(void*) = nullptr;
  };
  DLDevice device_;
  const Driver& d_;
  Graphs graphs_;
  void* stream_ = nullptr;
  void* exec_ = nullptr;
  std::string name_;
};

// ---- the engine's own -------------------------------------------------------------------------

class EngineMemory final : public Memory {
 public:
  EngineMemory(DLDevice device, const kdtr_plugin_table& table, void* engine)
      : device_(device), table_(table), engine_(engine) {
    if (table.alloc == nullptr || table.release == nullptr || table.copy == nullptr ||
        table.sync == nullptr) {
      fail("engine", "memory functions for device type " + std::to_string(device.device_type),
           "alloc, release, copy and sync", "NULL");
    }
  }
  DLDevice device() const override { return device_; }
  std::string name() const override { return "device type " + std::to_string(device_.device_type); }
  void* alloc(std::size_t size) override {
    void* data = nullptr;
    check(table_.alloc(engine_, size, &data), "alloc");
    return data;
  }
  void release(void* data, std::size_t) override { table_.release(engine_, data); }
  void upload(void* to, const void* from, std::size_t size) override {
    check(table_.copy(engine_, to, from, size), "copy to device");
  }
  void download(void* to, const void* from, std::size_t size) override {
    check(table_.copy(engine_, to, from, size), "copy to host");
  }
  void sync() override { check(table_.sync(engine_), "sync"); }

 private:
  void check(int code, const char* what) const {
    if (code == KDTR_OK) return;
    const char* why = table_.last_error(engine_);
    const bool silent = why == nullptr || *why == '\0';
    fail(std::string("engine ") + what,
         silent ? "failed; the plug-in gave no reason (its last_error is empty)" : why);
  }
  DLDevice device_;
  const kdtr_plugin_table& table_;
  void* engine_;
};

// ---- fences -----------------------------------------------------------------------------------

struct Fence {
  std::uintptr_t begin, end;
  char name[48];
};
constexpr std::size_t kFences = 128;
Fence fences[kFences];
std::size_t fence_count = 0;

// Position-dependent, so that a guard copied onto itself at an offset is noticed. In B a NaN of
// f32, bf16 and f16, in A mostly numbers: what is read past an end and multiplied by 0 shows.
std::byte guard_byte(std::size_t i, Poison pattern) {
  const std::size_t a = 0xC5u ^ (i * 29u + (i >> 8));
  return static_cast<std::byte>(pattern == Poison::kA ? a : i % 2 != 0 ? 0xFFu : a | 0x81u);
}

}  // namespace

std::unique_ptr<Memory> open_memory(DLDevice device, const kdtr_plugin_table& table, void* engine) {
  if (device.device_type == kDLCPU) return std::make_unique<HostMemory>();
  if (device.device_type == kDLCUDA && table.alloc == nullptr)
    return std::make_unique<CudaMemory>(device);
  return std::make_unique<EngineMemory>(device, table, engine);
}

std::uint64_t poison_bits(DLDataType t, Poison pattern) {
  const bool a = pattern == Poison::kA;
  if (is_float(t)) {  // NaNs with a payload and, in B, a sign
    if (t.bits == 64) return a ? 0x7FF8A5A5A5A5A5A5ull : 0xFFFA5A5A5A5A5A5Aull;
    if (t.bits == 32) return a ? 0x7FC5A5A5u : 0xFFDA5A5Au;
    if (t.code == 4) return a ? 0x7FD5u : 0xFFEAu;
    return a ? 0x7EA5u : 0xFF5Au;
  }
  const std::uint64_t all = a ? 0xA5A5A5A5A5A5A5A5ull : 0x5A5A5A5A5A5A5A5Aull;
  return t.bits >= 64 ? all : all & ((1ull << t.bits) - 1);
}

Buffer::Buffer(Memory& memory, std::string name, std::size_t payload)
    : memory_(memory), name_(std::move(name)), payload_(payload) {
  // On the host the fault page follows the payload's last 256 bytes; elsewhere a guard does.
  const bool host = memory.device().device_type == kDLCPU;
  total_ = kGuard + round_up(std::max<std::size_t>(payload, 1), 256) + (host ? 0 : kGuard);
  base_ = static_cast<std::byte*>(memory_.alloc(total_));
  if (reinterpret_cast<std::uintptr_t>(base_) % 256 != 0)
    fail("buffer " + name_, "alignment", 256, reinterpret_cast<std::uintptr_t>(base_) % 256);
  image_.resize(total_);
  if (host && fence_count < kFences) {
    Fence& fence = fences[fence_count++];
    fence.begin = reinterpret_cast<std::uintptr_t>(data());
    fence.end = fence.begin + payload_;
    std::snprintf(fence.name, sizeof fence.name, "%s", name_.c_str());
  }
}

Buffer::~Buffer() {
  const auto begin = reinterpret_cast<std::uintptr_t>(data());
  for (std::size_t i = 0; i < fence_count; ++i) {
    if (fences[i].begin != begin) continue;
    fences[i] = fences[--fence_count];
    break;
  }
  memory_.release(base_, total_);
}

void Buffer::arm(Poison pattern) {
  guards_ = pattern;
  for (std::size_t i = 0; i < kGuard; ++i) image_[i] = guard_byte(i, guards_);
  for (std::size_t i = kGuard + payload_; i < total_; ++i) image_[i] = guard_byte(i, guards_);
  memory_.upload(base_, image_.data(), total_);
  damage_.clear();
}

void Buffer::fill(std::span<const std::byte> bytes, Poison pattern) {
  if (!bytes.empty()) std::memcpy(image_.data() + kGuard, bytes.data(), bytes.size());
  arm(pattern);
}

void Buffer::poison(DLDataType dtype, Poison pattern) {
  const std::uint64_t bits = poison_bits(dtype, pattern);
  std::byte* payload = image_.data() + kGuard;
  if (dtype.bits < 8) {
    std::memset(payload, pattern == Poison::kA ? 0xA5 : 0x5A, payload_);
  } else {
    const std::size_t size = std::min<std::size_t>(dtype.bits / 8u, 8);
    for (std::size_t i = 0; i < payload_; i += size)
      std::memcpy(payload + i, &bits, std::min(size, payload_ - i));
  }
  arm(pattern);
}

void Buffer::zero() {
  std::memset(image_.data() + kGuard, 0, payload_);
  arm(Poison::kA);
}

void Buffer::scribble(Poison pattern) {
  // Every float format reads 0xFF as NaN, and 0x5B as a number.
  std::memset(image_.data() + kGuard, pattern == Poison::kA ? 0xFF : 0x5B, payload_);
  arm(pattern);
}

void Buffer::collect() {
  memory_.download(image_.data(), base_, total_);
  damage_.clear();
  std::size_t front = kGuard;  // first damaged byte before the payload
  for (std::size_t i = 0; i < kGuard && front == kGuard; ++i)
    if (image_[i] != guard_byte(i, guards_)) front = i;
  if (front != kGuard)
    damage_ = "wrote " + std::to_string(kGuard - front) + " B before `" + name_ + "`";
  std::size_t last = 0;
  for (std::size_t i = kGuard + payload_; i < total_; ++i)
    if (image_[i] != guard_byte(i, guards_)) last = i - kGuard - payload_ + 1;
  if (last != 0) {
    if (!damage_.empty()) damage_ += " and ";
    damage_ += "wrote " + std::to_string(last) + " B past `" + name_ + "`";
  }
}

std::size_t explain_address(std::uintptr_t address, char* text, std::size_t size) {
  const Fence* nearest = nullptr;
  std::uintptr_t distance = 1u << 20;
  bool past = true;
  for (std::size_t i = 0; i < fence_count; ++i) {
    const Fence& f = fences[i];
    if (address >= f.end && address - f.end < distance) {
      nearest = &f;
      distance = address - f.end;
      past = true;
    } else if (address < f.begin && f.begin - address < distance) {
      nearest = &f;
      distance = f.begin - address;
      past = false;
    }
  }
  if (nearest == nullptr) return 0;
  char digits[24];
  std::size_t n = 0;
  std::uintptr_t rest = distance;
  do digits[n++] = static_cast<char>('0' + rest % 10);
  while ((rest /= 10) != 0);
  std::size_t at = 0;
  const auto put = [&](const char* s) {
    for (; *s != '\0' && at + 1 < size; ++s) text[at++] = *s;
  };
  while (n > 0 && at + 1 < size) text[at++] = digits[--n];
  put(past ? " B past the end of `" : " B before the start of `");
  put(nearest->name);
  put("`");
  text[at] = '\0';
  return at;
}

}  // namespace kdtr::conform
