// The plug-in table of libkdtr_mutants.so. The configuration names one mutant:
// "<op>@<v>:<fault>", or "correct" for the control of every op.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "mutant.h"

namespace kdtr {

std::vector<MutantOp>& mutant_ops() {
  static std::vector<MutantOp> all;
  return all;
}

}  // namespace kdtr

namespace {

using kdtr::Fault;
using kdtr::MutantOp;

struct Engine {
  std::string op;  // "" = any
  std::string fault;
  std::string error, reason;
};
std::string create_error;

const MutantOp* find_op(std::string_view op) {
  for (const MutantOp& candidate : kdtr::mutant_ops())
    if (op == candidate.op) return &candidate;
  return nullptr;
}

int find_fault(const MutantOp& op, std::string_view name) {
  for (std::size_t i = 0; i < op.faults.size(); ++i)
    if (name == op.faults[i].name) return static_cast<int>(i);
  return -1;
}

int create(const char* config, void** engine) {
  const std::string_view text = config == nullptr || *config == '\0' ? "correct" : config;
  const std::size_t colon = text.rfind(':');
  auto made = std::make_unique<Engine>();
  made->fault = colon == std::string_view::npos ? text : text.substr(colon + 1);
  if (colon != std::string_view::npos) made->op = text.substr(0, colon);
  if (made->op.empty()) {
    if (made->fault != "correct") {
      create_error =
          "mutants: configuration, want <op>@<v>:<fault> or correct, got " + std::string(text);
      return KDTR_ERROR;
    }
  } else {
    const MutantOp* op = find_op(made->op);
    if (op == nullptr || find_fault(*op, made->fault) < 0) {
      create_error = "mutants: no such mutant, got " + std::string(text);
      return KDTR_ERROR;
    }
  }
  *engine = made.release();
  return KDTR_OK;
}

void destroy(void* engine) { delete static_cast<Engine*>(engine); }

int describe(void* engine, kdtr_description* out) {
  const std::uint32_t size = out->struct_size;
  kdtr_description mine{};
  mine.struct_size = size;
  mine.device = {kDLCPU, 0};
  mine.name = "kdtr-mutants";
  mine.version = static_cast<Engine*>(engine)->fault.c_str();
  mine.profiles = "";
  mine.build = "";
  mine.deterministic = 1;
  std::memcpy(out, &mine, std::min<std::size_t>(size, sizeof mine));
  return KDTR_OK;
}

const MutantOp* wanted(const Engine& engine, const kdtr_call* call) {
  return engine.op.empty() || engine.op == call->op ? find_op(call->op) : nullptr;
}

int supports(void* engine, const kdtr_call* call, const char** reason) {
  Engine& me = *static_cast<Engine*>(engine);
  me.reason = wanted(me, call) == nullptr ? std::string("no mutants of ") + call->op : "";
  *reason = me.reason.c_str();
  return me.reason.empty() ? 1 : 0;
}

int run(void* engine, const kdtr_call* call, void*) {
  Engine& me = *static_cast<Engine*>(engine);
  try {
    me.error.clear();
    const MutantOp* op = wanted(me, call);
    if (op == nullptr) kdtr::fail(call->op, "no mutants of this op");
    kdtr::Call view(call);
    op->run(view, find_fault(*op, me.fault));
    return KDTR_OK;
  } catch (const std::exception& e) {
    me.error = e.what();
  }
  return KDTR_ERROR;
}

const char* last_error(void* engine) {
  return engine == nullptr ? create_error.c_str() : static_cast<Engine*>(engine)->error.c_str();
}

constexpr kdtr_plugin_table kTable{KDTR_ABI_VERSION,
                                   sizeof(kdtr_plugin_table),
                                   create,
                                   destroy,
                                   describe,
                                   supports,
                                   nullptr,
                                   nullptr,
                                   run,
                                   last_error,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};

}  // namespace

extern "C" KDTR_EXPORT const kdtr_plugin_table* kdtr_plugin_v1(void) { return &kTable; }

// One line a mutant, "<op>\t<fault>\t<what>\n", controls included; what `kdtr-conform score` runs.
extern "C" KDTR_EXPORT const char* kdtr_mutants_v1(void) {
  static const std::string text = [] {
    std::string all;
    for (const MutantOp& op : kdtr::mutant_ops())
      for (const Fault& fault : op.faults)
        all += std::string(op.op) + '\t' + fault.name + '\t' + fault.what + '\n';
    return all;
  }();
  return text.c_str();
}
