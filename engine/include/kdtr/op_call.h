// A kernel's view of one call: arguments by name, dtypes and axes checked on the way.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "kdtr/error.h"
#include "kdtr/plugin.h"
#include "kdtr/tensor.h"

namespace kdtr {

// Status of one request, written by every op to `status i32 [R]`.
enum Status : std::int32_t { kOk = 0, kBadInput = 1, kBadLinks = 2, kCapacity = 3 };

class Call {
 public:
  explicit Call(const kdtr_call* call) : call_(call) {}

  // Axes are space-separated names, outermost first ("R L K"), or numbers ("R 2"). The first use
  // of a name binds its size; each later use must agree. "*" takes any size.
  template <class T>
  Array<const T> in(const char* name, std::string_view axes) {
    return view<const T>(name, KDTR_IN, axes);
  }
  template <class T>
  Array<T> out(const char* name, std::string_view axes) {
    return view<T>(name, KDTR_OUT, axes);
  }
  template <class T>
  Array<T> inout(const char* name, std::string_view axes) {
    return view<T>(name, KDTR_INOUT, axes);
  }
  // Any dtype: the caller dispatches on `dtype`.
  const DLTensor& any(const char* name, int role, std::string_view axes) {
    const DLTensor* tensor = call_->tensor(call_, name, role);
    if (tensor == nullptr) fail(where(name), "missing argument");
    if (tensor->strides != nullptr) check_dense(name, *tensor);
    bind_axes(name, *tensor, axes);
    return *tensor;
  }
  bool has(const char* name, int role) const { return call_->tensor(call_, name, role) != nullptr; }

  std::int64_t attr_int(const char* name) const {
    std::int64_t value = 0;
    if (call_->attr_i64(call_, name, &value) != 0) fail(where(name), "missing integer attribute");
    return value;
  }
  double attr_float(const char* name) const {
    double value = 0;
    if (call_->attr_f64(call_, name, &value) != 0) fail(where(name), "missing float attribute");
    return value;
  }
  std::string_view attr_str(const char* name) const {
    const char* value = nullptr;
    if (call_->attr_str(call_, name, &value) != 0) fail(where(name), "missing string attribute");
    return value;
  }

  // The size bound to an axis name so far; `bind` sets it from an attribute.
  std::int64_t dim(const std::string& axis) const {
    const auto it = dims_.find(axis);
    if (it == dims_.end()) fail(where(axis), "axis has no size yet");
    return it->second;
  }
  void bind(const std::string& axis, std::int64_t size) {
    const auto [it, added] = dims_.emplace(axis, size);
    KDTR_CHECK(added || it->second == size, where(axis), "axis size", it->second, size);
  }

  std::string_view op() const { return call_->op; }
  std::string_view arith() const { return call_->arith; }
  void* workspace() const { return call_->workspace; }
  std::size_t workspace_size() const { return call_->workspace_size; }
  const kdtr_call* raw() const { return call_; }
  std::string where(std::string_view name) const {
    return std::string(call_->op) + "/" + std::string(name);
  }

 private:
  template <class T>
  Array<T> view(const char* name, int role, std::string_view axes) {
    const DLTensor& tensor = any(name, role, axes);
    using Value = std::remove_const_t<T>;
    KDTR_CHECK(is<Value>(tensor.dtype), where(name), "dtype", dtype_name(dtype_of<Value>),
               dtype_name(tensor.dtype));
    auto* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;  // null with offset 0
    return {reinterpret_cast<T*>(data), tensor.ndim, tensor.shape};
  }

  void bind_axes(const char* name, const DLTensor& tensor, std::string_view axes) {
    int i = 0;
    for (std::size_t at = 0; (at = axes.find_first_not_of(' ', at)) != axes.npos; ++i) {
      const std::string axis(axes.substr(at, axes.find(' ', at) - at));
      at += axis.size();
      KDTR_CHECK(i < tensor.ndim, where(name), "rank", "[" + std::string(axes) + "]", tensor.ndim);
      const std::int64_t size = tensor.shape[i];
      if (axis == "*") continue;
      if (axis[0] >= '0' && axis[0] <= '9') {
        KDTR_CHECK(std::stoll(axis) == size, where(name), "axis " + std::to_string(i), axis, size);
        continue;
      }
      const auto [it, added] = dims_.emplace(axis, size);
      KDTR_CHECK(added || it->second == size, where(name), "axis " + axis, it->second, size);
    }
    KDTR_CHECK(i == tensor.ndim, where(name), "rank", "[" + std::string(axes) + "]", tensor.ndim);
  }

  void check_dense(const char* name, const DLTensor& tensor) const {
    std::int64_t stride = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      if (tensor.shape[i] != 1) {
        KDTR_CHECK(tensor.strides[i] == stride, where(name), "stride of axis " + std::to_string(i),
                   stride, tensor.strides[i]);
      }
      stride *= tensor.shape[i];
    }
  }

  const kdtr_call* call_;
  std::map<std::string, std::int64_t> dims_;
};

}  // namespace kdtr
