// Mutants: an op written a second time, in plain double arithmetic, with faults to plant in it.
//
// Fault 0 is the control, "correct": it must pass every case, and is the second reference (run
// with f64 outputs it agrees with the numpy reference). Every other fault must be rejected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kdtr/op_call.h"

namespace kdtr {

struct Fault {
  const char* name;  // "insertion_order_ties"
  const char* what;  // one line: the mistake, as a maintainer would describe it
};

struct MutantOp {
  const char* op;  // "tree_build@1"
  std::vector<Fault> faults;
  // Host memory. Float outputs are written through the tensor's dtype: f16, bf16, f32 or f64.
  void (*run)(Call& call, int fault);
};

std::vector<MutantOp>& mutant_ops();  // of this library, in no order

struct RegisterMutants {
  explicit RegisterMutants(MutantOp op) { mutant_ops().push_back(std::move(op)); }
};

// Store `value` at element i, rounded once to the tensor's own float type.
inline void store(const DLTensor& tensor, std::int64_t i, double value) {
  void* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (is<double>(tensor.dtype)) {
    static_cast<double*>(data)[i] = value;
  } else if (is<float>(tensor.dtype)) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else if (is<bf16>(tensor.dtype)) {
    static_cast<bf16*>(data)[i] = bf16(static_cast<float>(value));
  } else if (is<f16>(tensor.dtype)) {
    static_cast<f16*>(data)[i] = f16(static_cast<float>(value));
  } else {
    fail("store", "dtype", "a float", dtype_name(tensor.dtype));
  }
}

// Element i of a float tensor, widened.
inline double load(const DLTensor& tensor, std::int64_t i) {
  const void* data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  if (is<double>(tensor.dtype)) return static_cast<const double*>(data)[i];
  if (is<float>(tensor.dtype)) return static_cast<double>(static_cast<const float*>(data)[i]);
  if (is<bf16>(tensor.dtype))
    return static_cast<double>(static_cast<float>(static_cast<const bf16*>(data)[i]));
  if (is<f16>(tensor.dtype))
    return static_cast<double>(static_cast<float>(static_cast<const f16*>(data)[i]));
  fail("load", "dtype", "a float", dtype_name(tensor.dtype));
}

}  // namespace kdtr

// KDTR_MUTANTS({"tree_build@1", {{"correct", "control"}, {"ties_by_insertion", "..."}}, run});
#define KDTR_MUTANTS_CONCAT_(a, b) a##b
#define KDTR_MUTANTS_CONCAT(a, b) KDTR_MUTANTS_CONCAT_(a, b)
#define KDTR_MUTANTS(...)                                                 \
  static const ::kdtr::RegisterMutants KDTR_MUTANTS_CONCAT(kdtr_mutants_, \
                                                           __LINE__)(::kdtr::MutantOp __VA_ARGS__)
