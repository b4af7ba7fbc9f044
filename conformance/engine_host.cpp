#include "engine_host.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kdtr/container.h"
#include "kdtr/error.h"

namespace kdtr::conform {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxWorkspace = std::size_t{1} << 48;  // sizes are rounded up: no overflow

// An engine's text as part of a line of a report: other bytes than UTF-8 would make JSON and XML
// that nobody reads, and a newline would look like a line of the judge's.
std::string text(const char* s) {
  std::string out;
  for (std::string_view rest = s == nullptr ? "" : s; !rest.empty();) {
    const auto lead = static_cast<unsigned char>(rest[0]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view part = rest.substr(0, size);
    const bool good = part.size() == size && detail::is_utf8(part);
    if (!good) {
      out += '?';
    } else if (lead < 0x20 || lead == 0x7F) {
      out += ' ';
    } else {
      out += part;
    }
    rest.remove_prefix(good ? size : 1);
  }
  return out;
}

// Calls a function of the table. An exception through a C interface is the engine's fault.
template <class Function, class... Arguments>
auto guarded(const char* name, Function* function, Arguments... arguments) {
  try {
    return function(arguments...);
  } catch (const std::exception& e) {
    fail(name, "threw a C++ exception: " + text(e.what()));
  }
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    const std::string part = list.substr(from, comma - from);
    const std::size_t begin = part.find_first_not_of(' ');
    if (begin != std::string::npos)
      parts.push_back(part.substr(begin, part.find_last_not_of(' ') - begin + 1));
    from = comma + 1;
  }
  return parts;
}

const kdtr_plugin_table* checked(const kdtr_plugin_table* t, const std::string& where) {
  if (t == nullptr) fail(where, "plug-in table", "one", "NULL");
  // Read only what every version has before the version is known.
  KDTR_CHECK(t->abi_version == KDTR_ABI_VERSION, where, "plug-in abi_version", KDTR_ABI_VERSION,
             t->abi_version);
  KDTR_CHECK(t->struct_size >= sizeof(kdtr_plugin_table), where, "plug-in table struct_size",
             sizeof(kdtr_plugin_table), t->struct_size);
  const bool complete =
      t->create && t->destroy && t->describe && t->supports && t->run && t->last_error;
  if (!complete)
    fail(where, "plug-in table", "create, destroy, describe, supports, run and last_error", "NULL");
  return t;
}

}  // namespace

EngineHost::EngineHost(const kdtr_plugin_table* table, const std::string& config, std::string spec,
                       std::string library)
    : table_(checked(table, library.empty() ? spec : library)),
      spec_(std::move(spec)),
      library_(std::move(library)) {
  if (guarded("create", table_->create, config.c_str(), &engine_) != KDTR_OK) {
    engine_ = nullptr;  // for which last_error() tells of a failed create
    fail(spec_, "engine not created: " + last_error());
  }
  kdtr_description d{};
  d.struct_size = sizeof d;
  if (guarded("describe", table_->describe, engine_, &d) != KDTR_OK) {
    const std::string why = last_error();
    table_->destroy(engine_);
    fail(spec_, "engine not described: " + why);
  }
  device_ = d.device;
  capturable_ = d.capturable != 0;
  name_ = text(d.name);
  version_ = text(d.version);
  profiles_ = text(d.profiles);
  build_ = text(d.build);
}

EngineHost::~EngineHost() {
  memory_.reset();
  table_->destroy(engine_);
}

std::string EngineHost::last_error() const {
  const std::string why = text(table_->last_error(engine_));
  return why.empty() ? "the plug-in gave no reason (its last_error is empty)" : why;
}

Memory& EngineHost::memory() {
  if (memory_ == nullptr) memory_ = open_memory(device_, *table_, engine_);
  return *memory_;
}

bool EngineHost::has_profile(const std::string& arith) const {
  if (profiles_.empty()) return true;
  for (const std::string& profile : split(profiles_))
    if (profile == arith) return true;
  return false;
}

std::string EngineHost::unsupported(const kdtr_call* call) const {
  const char* reason = nullptr;
  if (guarded("supports", table_->supports, engine_, call, &reason) != 0) return "";
  const std::string why = text(reason);
  return why.empty() ? "the engine gives no reason" : why;
}

std::optional<std::vector<std::string>> EngineHost::outputs(const std::string& op) const {
  if (table_->outputs == nullptr) return {};
  const char* list = guarded("outputs", table_->outputs, engine_, op.c_str());
  if (list == nullptr) return {};
  return split(list);
}

std::size_t EngineHost::workspace_size(const kdtr_call* call) const {
  std::size_t bytes = 0;
  if (table_->workspace_size == nullptr) return 0;
  if (guarded("workspace_size", table_->workspace_size, engine_, call, &bytes) != KDTR_OK)
    fail("workspace_size", last_error());
  if (bytes > kMaxWorkspace) fail("workspace_size", "bytes", "at most 2^48", bytes);
  return bytes;
}

std::string EngineHost::run(const kdtr_call* call) { return run(call, memory().stream()); }

std::string EngineHost::run(const kdtr_call* call, void* stream) {
  try {
    return guarded("run", table_->run, engine_, call, stream) == KDTR_OK ? "" : last_error();
  } catch (const Error& e) {
    return e.what();
  }
}

EngineSpec resolve_engine(const std::string& spec) {
  const bool plain = spec.find_first_of("/:.") == std::string::npos;
  if (plain) {
    const std::string file = "libkdtr_" + spec + ".so";
    std::vector<fs::path> folders;
    if (const char* folder = std::getenv("KDTR_LIB_DIR")) folders.emplace_back(folder);
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path();
    folders.push_back(self);
    folders.push_back(self.parent_path() / "lib");
    for (const fs::path& folder : folders)
      if (fs::exists(folder / file)) return {(folder / file).string(), ""};
    if (spec == "cuda")
      fail("engine cuda",
           "this build has none: build again with nvcc on PATH, without KDTR_CUDA=OFF");
    fail("engine " + spec, "library",
         file + " in $KDTR_LIB_DIR, beside the program or in ../lib, or a path", "none");
  }
  // A path may hold colons, and so may a configuration: the shortest path that exists wins.
  for (std::size_t colon = spec.find(':'); colon != std::string::npos;
       colon = spec.find(':', colon + 1))
    if (fs::is_regular_file(spec.substr(0, colon)))
      return {fs::absolute(spec.substr(0, colon)).string(), spec.substr(colon + 1)};
  if (!fs::is_regular_file(spec))
    fail("engine " + spec, "library", "PATH[:configuration]", "no such file");
  if (fs::path(spec).extension() == ".py")
    fail("engine " + spec, "library", "a shared library, or a module's name without .py",
         "a Python file");
  return {fs::absolute(spec).string(), ""};
}

const kdtr_plugin_table* plugin_table(const std::string& library, void** handle) {
  void* opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) fail("engine", std::string(::dlerror()));
  void* symbol = ::dlsym(opened, "kdtr_plugin_v1");
  if (symbol == nullptr) fail(library, "exported symbol", "kdtr_plugin_v1", "none");
  const kdtr_plugin_table* (*get)(void) = nullptr;
  std::memcpy(&get, &symbol, sizeof get);
  if (handle != nullptr) *handle = opened;
  return checked(get(), library);
}

std::unique_ptr<EngineHost> load_engine(const std::string& spec) {
  const EngineSpec found = resolve_engine(spec);
  return std::make_unique<EngineHost>(plugin_table(found.library), found.config, spec,
                                      found.library);
}

}  // namespace kdtr::conform
