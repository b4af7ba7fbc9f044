// An engine behind the plug-in interface, loaded from a library or given in process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "kdtr/plugin.h"

namespace kdtr::conform {

class EngineHost {
 public:
  // `table` must outlive the host. `spec` is how a user names the engine; `library` its path, or
  // "" in process. Throws kdtr::Error when the table is not one of version 1 or create fails.
  EngineHost(const kdtr_plugin_table* table, const std::string& config, std::string spec,
             std::string library = "");
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  const std::string& spec() const { return spec_; }
  const std::string& library() const { return library_; }
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const std::string& profiles() const { return profiles_; }
  const std::string& build() const { return build_; }
  DLDevice device() const { return device_; }
  bool capturable() const { return capturable_; }
  // Opened on first use, so that an engine can be described on a machine without its device.
  Memory& memory();

  // Whether the engine has the arithmetic profile; an engine that names none has all.
  bool has_profile(const std::string& arith) const;
  // "" when it can run the call, else why not.
  std::string unsupported(const kdtr_call* call) const;
  // Outputs that the engine writes for an op, or nothing = all of them.
  std::optional<std::vector<std::string>> outputs(const std::string& op) const;
  std::size_t workspace_size(const kdtr_call* call) const;  // throws with the engine's message
  // Enqueues; "" or the engine's message. Synchronise with memory().sync().
  std::string run(const kdtr_call* call);
  std::string run(const kdtr_call* call, void* stream);  // on the caller's stream

 private:
  std::string last_error() const;
  const kdtr_plugin_table* table_;
  void* engine_ = nullptr;
  std::string spec_, library_, name_, version_, profiles_, build_;
  DLDevice device_{};
  bool capturable_ = false;
  std::unique_ptr<Memory> memory_;
};

// Loads "cpu", "cuda" (libkdtr_<name>.so in $KDTR_LIB_DIR, beside the program, or in ../lib) or
// "PATH[:configuration]". Throws kdtr::Error with one line. The library is never unloaded.
std::unique_ptr<EngineHost> load_engine(const std::string& spec);

// Where `spec` points: the library's path and the configuration.
struct EngineSpec {
  std::string library, config;
};
EngineSpec resolve_engine(const std::string& spec);

// The table of an open library; throws kdtr::Error when it has none.
const kdtr_plugin_table* plugin_table(const std::string& library, void** handle = nullptr);

}  // namespace kdtr::conform
