/* The kdtr plug-in interface, version 1: how a judge calls anyone's kernels.
 *
 * A shared library exports one symbol, `kdtr_plugin_v1`, that returns a table of functions.
 * The judge owns all memory. It passes arguments by name; a kernel asks for each it needs and
 * the judge records what was asked for. `run` only enqueues work on the stream; the judge
 * synchronises. Nothing here needs another header. */
#ifndef KDTR_PLUGIN_H
#define KDTR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/* DLPack's types, for those who do not include dlpack.h first. */
#if !defined(DLPACK_DLPACK_H_) && !defined(DLPACK_VERSION) && !defined(DLPACK_MAJOR_VERSION)
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLMetal = 8,
  kDLROCM = 10
} DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 7.. float8/6/4 */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* elements; NULL = C order, contiguous */
  uint64_t byte_offset;
} DLTensor;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KDTR_ABI_VERSION 1u

/* What a call may do with an argument. */
enum { KDTR_IN = 0, KDTR_OUT = 1, KDTR_INOUT = 2 };

/* What a table function returns. After KDTR_ERROR, last_error() says why. */
enum { KDTR_OK = 0, KDTR_ERROR = 1 };

/* One call of one op. Owned by the caller; valid until the table function returns. Pointers
 * to tensors stay valid as long; tensor data stays valid until the stream is synchronised. */
typedef struct kdtr_call kdtr_call;
struct kdtr_call {
  uint32_t struct_size;
  uint32_t reserved;
  const char* op;    /* "tree_build@1" */
  const char* arith; /* arithmetic profile whose budgets apply: "exact", "f32", ... */
  /* The argument, or NULL when this call has none of that name or its role differs. In
   * `supports` and `workspace_size` the tensors have shapes and dtypes but data == NULL. */
  const DLTensor* (*tensor)(const kdtr_call* call, const char* name, int role);
  /* 0 when found. Integers and booleans by attr_i64; attr_f64 takes integers too. */
  int (*attr_i64)(const kdtr_call* call, const char* name, int64_t* value);
  int (*attr_f64)(const kdtr_call* call, const char* name, double* value);
  int (*attr_str)(const kdtr_call* call, const char* name, const char** value);
  /* The i-th argument's name and role, or attribute's name; 0 when there is one. For adapters
   * that pass a whole call on; not recorded. `kind`: 0 i64, 1 f64, 2 text. */
  int (*argument)(const kdtr_call* call, size_t i, const char** name, int* role);
  int (*attribute)(const kdtr_call* call, size_t i, const char** name, int* kind);
  void* workspace; /* 256-aligned device memory, contents undefined; NULL when size is 0 */
  size_t workspace_size;
};

typedef struct {
  uint32_t struct_size;
  DLDevice device;
  const char* name;      /* "kdtr-cpu" */
  const char* version;   /* "0.1.0" */
  const char* profiles;  /* comma-separated arithmetic profiles; "" = all of the fixtures' */
  const char* build;     /* compiler and flags, free text */
  int32_t capturable;    /* run() may be captured into a CUDA graph */
  int32_t deterministic; /* promises equal bits on every run */
} kdtr_description;

typedef struct {
  uint32_t abi_version; /* KDTR_ABI_VERSION */
  uint32_t struct_size; /* sizeof(kdtr_plugin_table) of the plug-in */
  /* `config` is free text from the command line, "" by default. */
  int (*create)(const char* config, void** engine);
  void (*destroy)(void* engine);
  int (*describe)(void* engine, kdtr_description* out);
  /* 1 = can run this call; 0 = cannot, and *reason says why (a static or engine-owned string). */
  int (*supports)(void* engine, const kdtr_call* call, const char** reason);
  /* Comma-separated outputs of `op` that run() writes; NULL = all of them. May be NULL. */
  const char* (*outputs)(void* engine, const char* op);
  /* Bytes of workspace that run() needs for this call. May be NULL = none. */
  int (*workspace_size)(void* engine, const kdtr_call* call, size_t* bytes);
  int (*run)(void* engine, const kdtr_call* call, void* stream);
  const char* (*last_error)(void* engine);
  /* Device memory, for devices other than kDLCPU and kDLCUDA (the judge drives those itself).
   * All four or none. `copy` works between any two of host and device; both synchronous. */
  int (*alloc)(void* engine, size_t bytes, void** data);
  void (*release)(void* engine, void* data);
  int (*copy)(void* engine, void* to, const void* from, size_t bytes);
  int (*sync)(void* engine);
} kdtr_plugin_table;

#if defined(_WIN32)
#define KDTR_EXPORT __declspec(dllexport)
#else
#define KDTR_EXPORT __attribute__((visibility("default")))
#endif

/* The one exported symbol. `last_error(NULL)` reports a failed create. */
KDTR_EXPORT const kdtr_plugin_table* kdtr_plugin_v1(void);

#ifdef __cplusplus
}
#endif
#endif /* KDTR_PLUGIN_H */
