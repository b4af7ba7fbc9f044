// Device memory, one stream and CUDA graphs for the CUDA engine.
#include "../memory.h"

#include <cstring>

#include "kdtr/cuda.h"

namespace kdtr::model {
namespace {

class Graph final : public Recording {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    KDTR_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    KDTR_CUDA(cudaStreamEndCapture(stream, &graph));
    const cudaError_t made = cudaGraphInstantiate(&run_, graph, 0);
    cudaGraphDestroy(graph);
    KDTR_CUDA(made);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() override { cudaGraphExecDestroy(run_); }
  void replay() override { KDTR_CUDA(cudaGraphLaunch(run_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t run_ = nullptr;
};

class DeviceMemory final : public Memory {
 public:
  DeviceMemory() {
    KDTR_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    KDTR_CUDA(cudaMallocHost(&staged_, kStaged));
  }
  DLDevice device() const override { return {kDLCUDA, 0}; }
  void* stream() const override { return stream_; }
  bool keeps_bf16() const override { return true; }
  void* alloc(std::size_t bytes) override {
    void* data = nullptr;
    KDTR_CUDA(cudaMalloc(&data, bytes + 256));
    return data;
  }
  void release(void* data) override { cudaFree(data); }
  void write(void* to, const void* host, std::size_t bytes) override {
    // Pageable source: the call returns once the bytes are staged, so `host` may be reused.
    KDTR_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void read(void* host, const void* from, std::size_t bytes) override {
    const bool small = bytes <= kStaged;  // the results of a step: pinned, so that one wait is all
    KDTR_CUDA(
        cudaMemcpyAsync(small ? staged_ : host, from, bytes, cudaMemcpyDeviceToHost, stream_));
    KDTR_CUDA(cudaStreamSynchronize(stream_));
    if (small) std::memcpy(host, staged_, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    KDTR_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t bytes, std::size_t rows) override {
    if (bytes == 0 || rows == 0) return;
    KDTR_CUDA(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows,
                                cudaMemcpyDeviceToDevice, stream_));
  }
  void zero(void* data, std::size_t bytes) override {
    KDTR_CUDA(cudaMemsetAsync(data, 0, bytes, stream_));
  }
  std::unique_ptr<Recording> record(std::function<void()> work) override {
    return std::make_unique<Graph>(stream_, work);
  }

 private:
  static constexpr std::size_t kStaged = 64 << 10;
  cudaStream_t stream_ = nullptr;
  void* staged_ = nullptr;
};

}  // namespace

Memory& backend_memory() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace kdtr::model
