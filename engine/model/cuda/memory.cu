// Device memory and one stream for the CUDA engine.
#include "../memory.h"

#include "kdtr/cuda.h"

namespace kdtr::model {
namespace {

class DeviceMemory final : public Memory {
 public:
  DeviceMemory() { KDTR_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
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
    KDTR_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_));
    KDTR_CUDA(cudaStreamSynchronize(stream_));
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

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

Memory& backend_memory() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace kdtr::model
