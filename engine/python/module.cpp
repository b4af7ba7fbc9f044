// kdtr._core: the judge and the engines for Python. Tensors cross as DLPack, never copied.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/compare.h"
#include "conformance/engine_host.h"
#include "conformance/worker.h"
#include "kdtr/call_builder.h"
#include "kdtr/error.h"
#include "kdtr/tensor.h"

namespace py = pybind11;

namespace {

using kdtr::conform::EngineHost;

// --- DLPack, versions 0 and 1 -------------------------------------------------------------------
struct Managed {  // DLManagedTensor
  DLTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {  // DLManagedTensorVersioned
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};
constexpr std::uint64_t kReadOnly = 1;

// An argument from Python: a producer of DLPack, or (dtype name, producer) for numpy arrays that
// hold the bits of a type numpy lacks.
class Borrowed {
 public:
  Borrowed(const std::string& name, py::handle value, int role) {
    py::object producer = py::reinterpret_borrow<py::object>(value);
    std::string dtype;
    if (py::isinstance<py::tuple>(producer) && py::len(producer) == 2) {
      dtype = py::cast<std::string>(producer[py::int_(0)]);
      producer = producer[py::int_(1)];
    }
    if (!py::hasattr(producer, "__dlpack__"))
      kdtr::fail(name, "argument", "an object with __dlpack__",
                 py::cast<std::string>(py::str(py::type::of(producer).attr("__name__"))));
    capsule_ = take(producer);
    if (PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned")) {
      const auto* m = static_cast<ManagedVersioned*>(
          PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"));
      KDTR_CHECK(m->major == 1, name, "DLPack major version", 1, m->major);
      tensor_ = m->tensor;
      if ((m->flags & kReadOnly) != 0 && role != KDTR_IN)
        kdtr::fail(name, "output", "writable memory", "a read-only array");
    } else if (PyCapsule_IsValid(capsule_.ptr(), "dltensor")) {
      tensor_ = static_cast<Managed*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"))->tensor;
    } else {
      kdtr::fail(name, "__dlpack__", "a capsule named dltensor", "another");
    }
    data_ = static_cast<std::byte*>(tensor_.data) + tensor_.byte_offset;
    std::int64_t elements = 1;
    for (int i = 0; i < tensor_.ndim; ++i) elements *= tensor_.shape[i];
    std::int64_t stride = 1;
    for (int i = tensor_.ndim - 1; i >= 0 && elements != 0; --i) {  // strides of nothing are free
      if (tensor_.strides != nullptr && tensor_.shape[i] > 1 && tensor_.strides[i] != stride)
        kdtr::fail(
            name, "memory layout", "C order, contiguous",
            "stride " + std::to_string(tensor_.strides[i]) + " on axis " + std::to_string(i));
      stride *= tensor_.shape[i];
    }
    if (!dtype.empty()) tensor_.dtype = reinterpreted(name, dtype, tensor_.dtype.bits);
  }

  void add_to(kdtr::CallBuilder& call, const std::string& name, int role) const {
    call.tensor(name, role, data_, tensor_.dtype, {tensor_.shape, tensor_.shape + tensor_.ndim},
                tensor_.device);
  }
  DLDevice device() const { return tensor_.device; }

 private:
  static py::object take(const py::object& producer) {
    const auto kind = py::cast<int>(producer.attr("__dlpack_device__")()[py::int_(0)]);
    py::dict options;
    // -1: the caller orders its streams. Host producers take no stream.
    if (kind != kDLCPU) options["stream"] = -1;
    options["max_version"] = py::make_tuple(1, 1);
    try {
      return producer.attr("__dlpack__")(**options);
    } catch (py::error_already_set& e) {
      if (!e.matches(PyExc_TypeError)) throw;
      PyDict_DelItemString(options.ptr(), "max_version");
      return producer.attr("__dlpack__")(**options);
    }
  }
  static DLDataType reinterpreted(const std::string& name, const std::string& dtype, int bits) {
    for (const DLDataType t : {kdtr::dtype_of<kdtr::bf16>, kdtr::dtype_of<kdtr::f16>})
      if (kdtr::dtype_name(t) == dtype && t.bits == bits) return t;
    kdtr::fail(name, "dtype of bits", "bf16 or f16 over a 16-bit array", dtype);
  }

  py::object capsule_;  // not consumed: its destructor releases the memory
  DLTensor tensor_{};
  std::byte* data_ = nullptr;
};

// A tensor of a call, lent to Python for the time of the call.
struct View {
  DLTensor tensor;
  std::vector<std::int64_t> shape;
  bool writable;

  py::capsule dlpack() const {
    struct Owned {
      Managed managed;
      std::vector<std::int64_t> shape;
    };
    auto* owned = new Owned{{tensor, nullptr, nullptr}, shape};
    owned->managed.tensor.shape = owned->shape.data();
    owned->managed.context = owned;
    owned->managed.deleter = [](Managed* m) { delete static_cast<Owned*>(m->context); };
    return py::capsule(&owned->managed, "dltensor", [](PyObject* capsule) {
      // A consumer renames the capsule when it takes the tensor over.
      if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
      auto* m = static_cast<Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
      m->deleter(m);
    });
  }
};

std::uintptr_t address(const View& v) {
  return reinterpret_cast<std::uintptr_t>(v.tensor.data) + v.tensor.byte_offset;
}

// --- Python as an engine ------------------------------------------------------------------------
// One call, as a Python kernel sees it. Unknown names raise KeyError and are recorded.
struct PyCall {
  const kdtr_call* call;
  void* stream;

  View view(const std::string& name, int role) const {
    const DLTensor* t = call->tensor(call, name.c_str(), role);
    if (t == nullptr) throw py::key_error(std::string(call->op) + " has no such argument: " + name);
    return {*t, {t->shape, t->shape + t->ndim}, role != KDTR_IN};
  }
  py::object attr(const std::string& name) const {
    // Absent kinds are recorded as unknown requests, so ask in the order of what is common.
    const char* text = nullptr;
    double number = 0;
    std::int64_t integer = 0;
    if (call->attr_i64(call, name.c_str(), &integer) == 0) return py::int_(integer);
    if (call->attr_f64(call, name.c_str(), &number) == 0) return py::float_(number);
    if (call->attr_str(call, name.c_str(), &text) == 0) return py::str(text);
    throw py::key_error(std::string(call->op) + " has no such attribute: " + name);
  }
};

// The Python side is `kdtr.adapter.Adapter`: describe(), supports(call), run(call).
struct PyEngine {
  py::object adapter;
  std::string error, reason, name, version, outputs;
  std::string broken;  // what `unsupported` raised, for run() to report
};
thread_local py::object pending;  // the adapter of the engine that is being created
std::string create_error;

template <class F>
int with_python(void* engine, F&& body) {
  auto* self = static_cast<PyEngine*>(engine);
  const py::gil_scoped_acquire gil;
  try {
    self->error.clear();
    body(*self);
    return KDTR_OK;
  } catch (py::error_already_set& e) {
    self->error =
        py::cast<std::string>(py::module_::import("kdtr.adapter").attr("one_line")(e.value()));
  } catch (const std::exception& e) {
    self->error = e.what();
  }
  return KDTR_ERROR;
}

const kdtr_plugin_table kPython{
    KDTR_ABI_VERSION,
    sizeof(kdtr_plugin_table),
    [](const char*, void** engine) {
      *engine = new PyEngine{pending, {}, {}, {}, {}, {}, {}};
      return static_cast<int>(KDTR_OK);
    },
    [](void* engine) {
      const py::gil_scoped_acquire gil;
      delete static_cast<PyEngine*>(engine);
    },
    [](void* engine, kdtr_description* out) {
      return with_python(engine, [&](PyEngine& self) {
        const auto d = py::cast<py::dict>(self.adapter.attr("describe")());
        self.name = py::cast<std::string>(d["name"]);
        self.version = py::cast<std::string>(d["version"]);
        out->device = {static_cast<DLDeviceType>(py::cast<int>(d["device_type"])),
                       py::cast<std::int32_t>(d["device_id"])};
        out->name = self.name.c_str();
        out->version = self.version.c_str();
        out->profiles = "";
        out->build = "python";
      });
    },
    [](void* engine, const kdtr_call* call, const char** reason) {
      auto* self = static_cast<PyEngine*>(engine);
      self->reason.clear();
      const int rc = with_python(engine, [&](PyEngine& me) {
        me.reason = py::cast<std::string>(me.adapter.attr("unsupported")(PyCall{call, nullptr}));
      });
      // A fault of the engine is no reason to leave a case out: let run() report it.
      self->broken = rc == KDTR_OK ? "" : "unsupported() raised " + self->error;
      if (!self->broken.empty()) self->reason.clear();
      *reason = self->reason.c_str();
      return self->reason.empty() ? 1 : 0;
    },
    [](void* engine, const char* op) -> const char* {
      auto* self = static_cast<PyEngine*>(engine);
      bool all = true;
      const int rc = with_python(engine, [&](PyEngine& me) {
        const py::object names = me.adapter.attr("outputs")(op);
        all = names.is_none();
        if (!all) me.outputs = py::cast<std::string>(names);
      });
      return all || rc != KDTR_OK ? nullptr : self->outputs.c_str();
    },
    nullptr,
    [](void* engine, const kdtr_call* call, void* stream) {
      return with_python(engine, [&](PyEngine& me) {
        if (!me.broken.empty()) throw kdtr::Error(me.broken);
        me.adapter.attr("run")(PyCall{call, stream});
      });
    },
    [](void* engine) -> const char* {
      return engine == nullptr ? create_error.c_str()
                               : static_cast<PyEngine*>(engine)->error.c_str();
    },
    nullptr,
    nullptr,
    nullptr,
    nullptr};

std::shared_ptr<EngineHost> python_engine(const py::object& adapter, const std::string& spec) {
  pending = adapter;
  const auto source = py::cast<std::string>(adapter.attr("source"));
  auto host = std::make_shared<EngineHost>(&kPython, "", spec, source);
  pending = py::none();
  return host;
}

// --- calls --------------------------------------------------------------------------------------
using Named = std::map<std::string, py::object>;

class PyHost {
 public:
  explicit PyHost(std::shared_ptr<EngineHost> host) : host_(std::move(host)) {}
  ~PyHost() {
    if (workspace_ != nullptr) host_->memory().release(workspace_, workspace_size_);
  }
  PyHost(const PyHost&) = delete;
  PyHost& operator=(const PyHost&) = delete;

  EngineHost& host() { return *host_; }

  // A call that is bound once and run many times, as for a CUDA graph. It owns its workspace.
  class Prepared {
   public:
    Prepared(std::shared_ptr<PyHost> engine, const std::string& op, const Named& inputs,
             const Named& outputs, const Named& state, const py::dict& attrs,
             const std::string& arith)
        : engine_(std::move(engine)), call_(op, arith) {
      kept_ = engine_->bind(call_, inputs, outputs, state, attrs);
      bytes_ = engine_->host().workspace_size(call_.call());
      if (bytes_ != 0) workspace_ = engine_->host().memory().alloc(bytes_);
      call_.workspace(workspace_, bytes_);
      abi_ = call_.call();
    }
    ~Prepared() {
      if (workspace_ != nullptr) engine_->host().memory().release(workspace_, bytes_);
    }
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;

    void run(std::uintptr_t stream) {
      const std::string why = engine_->host().run(abi_, reinterpret_cast<void*>(stream));
      if (!why.empty()) throw kdtr::Error(why);
    }

   private:
    std::shared_ptr<PyHost> engine_;
    kdtr::CallBuilder call_;
    const kdtr_call* abi_ = nullptr;
    std::vector<Borrowed> kept_;
    void* workspace_ = nullptr;
    std::size_t bytes_ = 0;
  };

  void run(const std::string& op, const Named& inputs, const Named& outputs, const Named& state,
           const py::dict& attrs, const std::string& arith, std::uintptr_t stream) {
    kdtr::CallBuilder call(op, arith);
    const std::vector<Borrowed> kept = bind(call, inputs, outputs, state, attrs);
    const std::size_t bytes = host_->workspace_size(call.call());
    if (bytes > workspace_size_) {
      kdtr::conform::Memory& memory = host_->memory();
      if (workspace_ != nullptr) memory.release(workspace_, workspace_size_);
      workspace_ = nullptr;
      workspace_ = memory.alloc(bytes);
      workspace_size_ = bytes;
    }
    call.workspace(bytes == 0 ? nullptr : workspace_, bytes);
    const std::string why = host_->run(call.call(), reinterpret_cast<void*>(stream));
    if (!why.empty()) throw kdtr::Error(why);
  }

  std::string unsupported(const std::string& op, const Named& inputs, const Named& outputs,
                          const Named& state, const py::dict& attrs, const std::string& arith) {
    kdtr::CallBuilder call(op, arith);
    const std::vector<Borrowed> kept = bind(call, inputs, outputs, state, attrs);
    return host_->unsupported(call.call());
  }

 private:
  std::vector<Borrowed> bind(kdtr::CallBuilder& call, const Named& inputs, const Named& outputs,
                             const Named& state, const py::dict& attrs) {
    std::vector<Borrowed> kept;
    const DLDevice mine = host_->device();
    const auto add = [&](const Named& named, int role) {
      for (const auto& [name, value] : named) {
        kept.emplace_back(name, value, role);
        const DLDevice theirs = kept.back().device();
        KDTR_CHECK(theirs.device_type == mine.device_type, name, "DLPack device type",
                   static_cast<int>(mine.device_type), static_cast<int>(theirs.device_type));
        kept.back().add_to(call, name, role);
      }
    };
    add(inputs, KDTR_IN);
    add(outputs, KDTR_OUT);
    add(state, KDTR_INOUT);
    for (const auto& [key, value] : attrs) {
      const auto name = py::cast<std::string>(key);
      if (py::isinstance<py::str>(value)) {
        call.attr(name, py::cast<std::string>(value));
      } else if (py::isinstance<py::float_>(value)) {
        call.attr(name, py::cast<double>(value));
      } else {
        call.attr(name, py::cast<std::int64_t>(value));
      }
    }
    return kept;
  }

  std::shared_ptr<EngineHost> host_;
  void* workspace_ = nullptr;
  std::size_t workspace_size_ = 0;
};

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The judge and the engines of kdtr. See kdtr.ops and kdtr.adapter for the Python side.";
  static py::handle error = py::module_::import("kdtr.errors").attr("EngineError");
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const kdtr::Error& e) {
      PyErr_SetObject(error.ptr(), error.attr("from_text")(e.what()).ptr());
    }
  });

  py::class_<View>(m, "View")
      .def_property_readonly("shape", [](const View& v) { return py::tuple(py::cast(v.shape)); })
      .def_property_readonly("dtype",
                             [](const View& v) { return kdtr::dtype_name(v.tensor.dtype); })
      .def_readonly("writable", &View::writable)
      .def_property_readonly("address", &address)
      .def("__dlpack__", [](const View& v, const py::kwargs&) { return v.dlpack(); })
      .def("__dlpack_device__", [](const View& v) {
        return py::make_tuple(static_cast<int>(v.tensor.device.device_type),
                              v.tensor.device.device_id);
      });

  py::class_<PyCall>(m, "Call")
      .def_property_readonly("op", [](const PyCall& c) { return c.call->op; })
      .def_property_readonly("arith", [](const PyCall& c) { return c.call->arith; })
      .def_property_readonly(
          "stream", [](const PyCall& c) { return reinterpret_cast<std::uintptr_t>(c.stream); })
      .def("tensor", &PyCall::view, py::arg("name"), py::arg("role"))
      .def("attr", &PyCall::attr, py::arg("name"))
      .def("names",
           [](const PyCall& c) {
             std::map<std::string, int> roles;
             const char* name = nullptr;
             int role = 0;
             for (std::size_t i = 0; c.call->argument(c.call, i, &name, &role) == 0; ++i)
               roles[name] = role;
             return roles;
           })
      .def("attr_names", [](const PyCall& c) {
        std::vector<std::string> names;
        const char* name = nullptr;
        int kind = 0;
        for (std::size_t i = 0; c.call->attribute(c.call, i, &name, &kind) == 0; ++i)
          names.emplace_back(name);
        return names;
      });

  py::class_<PyHost::Prepared>(m, "Prepared")
      .def("run", &PyHost::Prepared::run, py::arg("stream") = 0);

  py::class_<PyHost, std::shared_ptr<PyHost>>(m, "Engine")
      .def(
          "prepare",
          [](const std::shared_ptr<PyHost>& e, const std::string& op, const Named& inputs,
             const Named& outputs, const Named& state, const py::dict& attrs,
             const std::string& arith) {
            return std::make_unique<PyHost::Prepared>(e, op, inputs, outputs, state, attrs, arith);
          },
          py::arg("op"), py::arg("inputs"), py::arg("outputs"), py::arg("state"), py::arg("attrs"),
          py::arg("arith"))
      .def(py::init([](const std::string& spec) {
             return std::make_shared<PyHost>(kdtr::conform::load_engine(spec));
           }),
           py::arg("spec"))
      .def_static(
          "python",
          [](const py::object& adapter, const std::string& spec) {
            return std::make_shared<PyHost>(python_engine(adapter, spec));
          },
          py::arg("adapter"), py::arg("spec"))
      .def_property_readonly("name", [](PyHost& e) { return e.host().name(); })
      .def_property_readonly("version", [](PyHost& e) { return e.host().version(); })
      .def_property_readonly("library", [](PyHost& e) { return e.host().library(); })
      .def_property_readonly("build", [](PyHost& e) { return e.host().build(); })
      .def_property_readonly("device",
                             [](PyHost& e) {
                               const DLDevice d = e.host().device();
                               return py::make_tuple(static_cast<int>(d.device_type), d.device_id);
                             })
      .def(
          "outputs", [](PyHost& e, const std::string& op) { return e.host().outputs(op); },
          py::arg("op"), "Names of the outputs that the engine writes; None for all.")
      .def("run", &PyHost::run, py::arg("op"), py::arg("inputs"), py::arg("outputs"),
           py::arg("state"), py::arg("attrs"), py::arg("arith"), py::arg("stream"))
      .def("unsupported", &PyHost::unsupported, py::arg("op"), py::arg("inputs"),
           py::arg("outputs"), py::arg("state"), py::arg("attrs"), py::arg("arith"))
      .def(
          "judge",
          [](PyHost& e, const std::string& path, int repeat) {
            kdtr::conform::WorkerOptions options;
            options.options.repeat = repeat;
            return kdtr::conform::judge_file(path, e.host(), options).json.dump();
          },
          py::arg("path"), py::arg("repeat") = 0)
      .def(
          "serve",
          [](PyHost& e, const std::string& spec, int fd, int repeat, const std::string& save,
             bool alone, bool invariant, bool graph, bool support) {
            kdtr::conform::WorkerOptions options;
            options.engine = spec;
            options.options.repeat = repeat;
            options.options.alone = alone;
            options.options.invariant = invariant;
            options.options.graph = graph;
            options.options.support = support;
            options.save = save;
            return kdtr::conform::serve(e.host(), options, fd);
          },
          py::arg("spec"), py::arg("fd"), py::kw_only(), py::arg("repeat"), py::arg("save"),
          py::arg("alone"), py::arg("invariant"), py::arg("graph"), py::arg("support"));

  m.def(
      "judge_element",
      [](double got, double gold, double gate, double hard) {
        switch (kdtr::conform::judge_element(got, gold, gate, hard)) {
          case kdtr::conform::Verdict::kPass:
            return "PASS";
          case kdtr::conform::Verdict::kWarn:
            return "WARN";
          default:
            return "FAIL";
        }
      },
      py::arg("got"), py::arg("gold"), py::arg("gate"), py::arg("hard"),
      "PASS, WARN or FAIL: one element of a class B output.");
}
