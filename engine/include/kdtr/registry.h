// Kernels register themselves: one object at namespace scope in the kernel's own file.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kdtr/op_call.h"

namespace kdtr {

struct Kernel {
  const char* op;  // "tree_build@1"
  // Validates on the host, then enqueues on `stream` (nullptr on the CPU). Throws kdtr::Error.
  void (*run)(Call& call, void* stream);
  // Bytes of workspace; data pointers are null. nullptr = none.
  std::size_t (*workspace)(Call& call) = nullptr;
  // nullptr, or why this call cannot be run. Data pointers are null. nullptr = runs every call.
  const char* (*unsupported)(Call& call) = nullptr;
};

std::vector<Kernel>& kernels();  // of this library, in no order
const Kernel* find_kernel(std::string_view op);

struct Register {
  explicit Register(const Kernel& kernel) { kernels().push_back(kernel); }
};

}  // namespace kdtr

#define KDTR_CONCAT_(a, b) a##b
#define KDTR_CONCAT(a, b) KDTR_CONCAT_(a, b)
// KDTR_KERNEL({"tree_build@1", run, workspace});
#define KDTR_KERNEL(...) \
  static const ::kdtr::Register KDTR_CONCAT(kdtr_register_, __LINE__)(::kdtr::Kernel __VA_ARGS__)
