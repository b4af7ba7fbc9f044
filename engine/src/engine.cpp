// The plug-in table of a kernel library: finds registered kernels and turns errors into codes.
#include <cstring>
#include <string>

#include "kdtr/registry.h"

#ifndef KDTR_BACKEND
#define KDTR_BACKEND "cpu"
#endif
// Only kdtr's own engines are called by kdtr's name.
#ifndef KDTR_NAME
#define KDTR_NAME "unnamed"
#endif
#ifndef KDTR_VERSION
#define KDTR_VERSION "0.0.0"
#endif
#ifndef KDTR_BUILD
#define KDTR_BUILD ""
#endif

namespace kdtr {

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

const Kernel* find_kernel(std::string_view op) {
  for (const Kernel& kernel : kernels())
    if (op == kernel.op) return &kernel;
  return nullptr;
}

}  // namespace kdtr

namespace {

constexpr bool kCuda = std::string_view(KDTR_BACKEND) == "cuda";

struct Engine {
  std::string error, reason;
};
std::string create_error;

template <class F>
int guarded(void* engine, F&& body) {
  std::string& error = static_cast<Engine*>(engine)->error;
  try {
    error.clear();
    body();
    return KDTR_OK;
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "unknown C++ exception";
  }
  return KDTR_ERROR;
}

const kdtr::Kernel& require(const kdtr_call* call) {
  const kdtr::Kernel* kernel = kdtr::find_kernel(call->op);
  if (kernel == nullptr) kdtr::fail(call->op, "no kernel in engine " KDTR_BACKEND);
  return *kernel;
}

int create(const char* config, void** engine) {
  if (config != nullptr && *config != '\0') {
    create_error =
        "engine " KDTR_BACKEND ": takes no configuration, got '" + std::string(config) + "'";
    return KDTR_ERROR;
  }
  *engine = new Engine;
  return KDTR_OK;
}

void destroy(void* engine) { delete static_cast<Engine*>(engine); }

int describe(void*, kdtr_description* out) {
  const std::uint32_t size = out->struct_size;
  kdtr_description mine{};
  mine.struct_size = size;
  mine.device = {kCuda ? kDLCUDA : kDLCPU, 0};
  mine.name = KDTR_NAME;
  mine.version = KDTR_VERSION;
  mine.profiles = "";
  mine.build = KDTR_BUILD;
  mine.capturable = kCuda ? 1 : 0;
  mine.deterministic = 1;
  std::memcpy(out, &mine, std::min<std::size_t>(size, sizeof mine));
  return KDTR_OK;
}

int supports(void* engine, const kdtr_call* call, const char** reason) {
  std::string& text = static_cast<Engine*>(engine)->reason;
  text.clear();
  const kdtr::Kernel* kernel = kdtr::find_kernel(call->op);
  if (kernel == nullptr) {
    text = std::string("no kernel for ") + call->op;
  } else if (kernel->unsupported != nullptr) {
    const int rc = guarded(engine, [&] {
      kdtr::Call view(call);
      if (const char* why = kernel->unsupported(view)) text = why;
    });
    if (rc != KDTR_OK) text = static_cast<Engine*>(engine)->error;
  }
  *reason = text.c_str();
  return text.empty() ? 1 : 0;
}

const char* outputs(void*, const char*) { return nullptr; }

int workspace_size(void* engine, const kdtr_call* call, std::size_t* bytes) {
  return guarded(engine, [&] {
    const kdtr::Kernel& kernel = require(call);
    kdtr::Call view(call);
    *bytes = kernel.workspace == nullptr ? 0 : kernel.workspace(view);
  });
}

int run(void* engine, const kdtr_call* call, void* stream) {
  return guarded(engine, [&] {
    const kdtr::Kernel& kernel = require(call);
    kdtr::Call view(call);
    kernel.run(view, stream);
  });
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
                                   outputs,
                                   workspace_size,
                                   run,
                                   last_error,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};

}  // namespace

extern "C" KDTR_EXPORT const kdtr_plugin_table* kdtr_plugin_v1(void) { return &kTable; }
