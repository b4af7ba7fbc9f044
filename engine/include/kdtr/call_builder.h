// Builds a kdtr_call from host code and records which arguments the kernel asked for.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kdtr/plugin.h"

namespace kdtr {

class CallBuilder {
 public:
  using Value = std::variant<std::int64_t, double, std::string>;
  struct Argument {
    int role = KDTR_IN;
    DLTensor view{};
    std::vector<std::int64_t> shape;
    mutable int asked = 0;  // requests with the right role
  };
  struct Attribute {
    Value value;
    mutable int asked = 0;
  };

  explicit CallBuilder(std::string op, std::string arith = "f32")
      : op_(std::move(op)), arith_(std::move(arith)) {}
  CallBuilder(const CallBuilder&) = delete;
  CallBuilder& operator=(const CallBuilder&) = delete;

  CallBuilder& tensor(const std::string& name, int role, void* data, DLDataType dtype,
                      std::vector<std::int64_t> shape, DLDevice device = {kDLCPU, 0}) {
    Argument& argument = arguments_[name];
    argument.role = role;
    argument.shape = std::move(shape);
    argument.view = {data,
                     device,
                     static_cast<std::int32_t>(argument.shape.size()),
                     dtype,
                     argument.shape.data(),
                     nullptr,
                     0};
    return *this;
  }
  CallBuilder& attr(const std::string& name, Value value) {
    attributes_[name].value = std::move(value);
    return *this;
  }
  CallBuilder& workspace(void* data, std::size_t size) {
    workspace_ = data;
    workspace_size_ = size;
    return *this;
  }

  // The ABI view. Refers to this object; call again after a change.
  const kdtr_call* call() {
    impl_.call = {sizeof(kdtr_call), 0,          op_.c_str(), arith_.c_str(),
                  &find_tensor,      &find_i64,  &find_f64,   &find_str,
                  &argument,         &attribute, workspace_,  workspace_size_};
    impl_.self = this;
    return &impl_.call;
  }

  const std::string& op() const { return op_; }
  std::map<std::string, Argument>& arguments() { return arguments_; }
  std::map<std::string, Attribute>& attributes() { return attributes_; }
  // Names the kernel asked for that this call does not have (or with another role).
  const std::vector<std::string>& unknown() const { return unknown_; }
  void forget_requests() {
    for (auto& [name, argument] : arguments_) argument.asked = 0;
    for (auto& [name, attribute] : attributes_) attribute.asked = 0;
    unknown_.clear();
  }

 private:
  struct Impl {
    kdtr_call call{};  // first, so that a kdtr_call* is an Impl*
    CallBuilder* self = nullptr;
  };
  static CallBuilder& self(const kdtr_call* call) {
    return *reinterpret_cast<const Impl*>(call)->self;
  }
  static const DLTensor* find_tensor(const kdtr_call* call, const char* name, int role) {
    CallBuilder& me = self(call);
    const auto it = me.arguments_.find(name);
    if (it == me.arguments_.end() || it->second.role != role) {
      me.unknown_.emplace_back(name);
      return nullptr;
    }
    ++it->second.asked;
    return &it->second.view;
  }
  template <class T>
  static int find_attr(const kdtr_call* call, const char* name, T* value) {
    CallBuilder& me = self(call);
    const auto it = me.attributes_.find(name);
    if (it != me.attributes_.end()) {
      const Value& stored = it->second.value;
      if constexpr (std::is_same_v<T, const char*>) {
        if (const auto* text = std::get_if<std::string>(&stored)) {
          *value = text->c_str();
          ++it->second.asked;
          return 0;
        }
      } else if (const auto* exact = std::get_if<T>(&stored)) {
        *value = *exact;
        ++it->second.asked;
        return 0;
      } else if constexpr (std::is_same_v<T, double>) {
        if (const auto* integer = std::get_if<std::int64_t>(&stored)) {
          *value = static_cast<double>(*integer);
          ++it->second.asked;
          return 0;
        }
      }
    }
    if (it == me.attributes_.end()) me.unknown_.emplace_back(name);
    return 1;
  }
  static int find_i64(const kdtr_call* call, const char* name, std::int64_t* value) {
    return find_attr(call, name, value);
  }
  static int find_f64(const kdtr_call* call, const char* name, double* value) {
    return find_attr(call, name, value);
  }
  static int find_str(const kdtr_call* call, const char* name, const char** value) {
    return find_attr(call, name, value);
  }

  template <class Map>
  static auto nth(Map& map, std::size_t i) {
    return i < map.size() ? std::next(map.begin(), static_cast<std::ptrdiff_t>(i)) : map.end();
  }
  static int argument(const kdtr_call* call, std::size_t i, const char** name, int* role) {
    auto& all = self(call).arguments_;
    const auto it = nth(all, i);
    if (it == all.end()) return 1;
    *name = it->first.c_str();
    *role = it->second.role;
    return 0;
  }
  static int attribute(const kdtr_call* call, std::size_t i, const char** name, int* kind) {
    auto& all = self(call).attributes_;
    const auto it = nth(all, i);
    if (it == all.end()) return 1;
    *name = it->first.c_str();
    *kind = static_cast<int>(it->second.value.index());
    return 0;
  }

  std::string op_, arith_;
  std::map<std::string, Argument> arguments_;
  std::map<std::string, Attribute> attributes_;
  std::vector<std::string> unknown_;
  void* workspace_ = nullptr;
  std::size_t workspace_size_ = 0;
  Impl impl_;
};

}  // namespace kdtr
