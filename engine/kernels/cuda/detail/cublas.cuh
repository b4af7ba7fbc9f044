// cuBLAS, loaded when a product first asks for it, so that nothing here needs it to build or to
// load. Its few functions and constants are declared by hand (cuBLAS 12 and 13).
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "kdtr/cuda.h"

#ifndef KDTR_CUBLAS_PATH
#define KDTR_CUBLAS_PATH ""  // where configuring found the library; tried last
#endif

namespace kdtr::cuda {

constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;  // NVIDIA's advice for sm_90

class Blas {
 public:
  // The library, or nullptr where there is none. The variable KDTR_CUBLAS is a path, or "off".
  static Blas* get() {
    static Blas blas;
    return blas.library_ == nullptr ? nullptr : &blas;
  }

  // out[z, t, n] = sum_k x[z, t, k] w[z, n, k] of bf16 x and w, f32 sums;
  // `in_major`: w is [z, k, n]. Strides are in elements. Enqueued on `stream`.
  struct Shape {
    std::int64_t tokens, n, k, batches;
    std::int64_t x_row, x_batch, w_row, w_batch, out_row, out_batch;
    bool in_major;
  };
  void multiply(const Shape& s, const void* x, const void* w, void* out, cudaDataType_t out_type,
                void* workspace, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    void* const handle = handle_of_device();
    require(set_stream_(handle, stream), "cublasSetStream");  // resets the workspace
    require(set_workspace_(handle, workspace, kBlasWorkspace), "cublasSetWorkspace");
    const float one = 1, zero = 0;
    const auto of = [](std::int64_t size) { return static_cast<int>(size); };
    require(multiply_(handle, s.in_major ? 0 : 1, 0, of(s.n), of(s.tokens), of(s.k), &one, w,
                      CUDA_R_16BF, of(s.w_row), s.w_batch, x, CUDA_R_16BF, of(s.x_row), s.x_batch,
                      &zero, out, out_type, of(s.out_row), s.out_batch, of(s.batches), kCompute32F,
                      kDefaultAlgorithm),
            "cublasGemmStridedBatchedEx");
  }

  // Makes the handle of the current device; a stream capture could not.
  void prepare() {
    const std::lock_guard lock(mutex_);
    handle_of_device();
  }

 private:
  static constexpr int kCompute32F = 68, kDefaultAlgorithm = -1, kFullReductions = 16;
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, cudaStream_t);
  using SetWorkspace = int (*)(void*, void*, std::size_t);
  using SetMathMode = int (*)(void*, int);
  using Multiply = int (*)(void*, int, int, int, int, int, const void*, const void*, cudaDataType_t,
                           int, long long, const void*, cudaDataType_t, int, long long, const void*,
                           void*, cudaDataType_t, int, long long, int, int, int);

  Blas() {
    const char* named = std::getenv("KDTR_CUBLAS");
    const std::string choice = named == nullptr ? "" : named;
    if (choice == "off") return;
    if (!choice.empty()) {
      library_ = dlopen(choice.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_ == nullptr) fail("KDTR_CUBLAS", "cannot be loaded", "off, or cuBLAS", dlerror());
    }
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", KDTR_CUBLAS_PATH})
      if (library_ == nullptr && *name != '\0') library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    find("cublasCreate_v2", create_);
    find("cublasSetStream_v2", set_stream_);
    find("cublasSetWorkspace_v2", set_workspace_);
    find("cublasSetMathMode", set_math_mode_);
    find("cublasGemmStridedBatchedEx", multiply_);
  }

  template <class F>
  void find(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library_, name));
    if (function == nullptr) fail("cuBLAS", "lacks a function", name, dlerror());
  }

  static void require(int status, const char* what) {
    if (status != 0) fail(what, "cuBLAS status", 0, status);
  }

  void* handle_of_device() {
    int device = 0;
    KDTR_CUDA(cudaGetDevice(&device));
    void*& handle = handles_[device];
    if (handle == nullptr) {
      require(create_(&handle), "cublasCreate");
      // Partial sums are never added in bf16.
      require(set_math_mode_(handle, kFullReductions), "cublasSetMathMode");
    }
    return handle;
  }

  void* library_ = nullptr;
  Create create_ = nullptr;
  SetStream set_stream_ = nullptr;
  SetWorkspace set_workspace_ = nullptr;
  SetMathMode set_math_mode_ = nullptr;
  Multiply multiply_ = nullptr;
  std::mutex mutex_;
  std::map<int, void*> handles_;  // live as long as the process
};

}  // namespace kdtr::cuda
