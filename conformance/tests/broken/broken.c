/* Plug-ins with one fault each, for the judge's own tests: the configuration names the fault. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kdtr/plugin.h"

static char fault[64];
static char error[128];
static int calls;

static int is(const char* name) { return strcmp(fault, name) == 0; }

static int create(const char* config, void** engine) {
  if (strcmp(config, "refuses_to_start") == 0) {
    strcpy(error, "no licence for this machine");
    return KDTR_ERROR;
  }
  if (strcmp(config, "silent_at_start") == 0) return KDTR_ERROR;
  if (strcmp(config, "exit_at_start") == 0) _exit(3);
  if (strcmp(config, "crash_at_start") == 0) abort();
  snprintf(fault, sizeof fault, "%s", config);
  *engine = fault;
  return KDTR_OK;
}

static void destroy(void* engine) { (void)engine; }

static int describe(void* engine, kdtr_description* out) {
  (void)engine;
  out->device.device_type = kDLCPU;
  out->device.device_id = 0;
  out->name = "broken";
  out->version = fault;
  out->profiles = is("other_profile") ? "bf16, tf32" : "";
  out->build = "";
  out->capturable = 0;
  out->deterministic = 1;
  return KDTR_OK;
}

static int supports(void* engine, const kdtr_call* call, const char** reason) {
  (void)engine;
  if (is("unsupported") || strcmp(call->op, "tiny@1") != 0) {
    *reason = "only on Tuesdays";
    return 0;
  }
  *reason = "";
  return 1;
}

static const char* outputs(void* engine, const char* op) {
  (void)engine, (void)op;
  return is("no_outputs") ? "" : is("one_output") ? "y" : NULL;
}

static int workspace_size(void* engine, const kdtr_call* call, size_t* bytes) {
  (void)engine, (void)call;
  *bytes = is("endless_workspace") ? SIZE_MAX
           : is("small_workspace") ? 16
           : is("reads_workspace") ? 64
                                   : 0;
  return KDTR_OK;
}

/* The descriptor on which the worker answers. */
static int answers(void) {
  char words[4096];
  FILE* file = fopen("/proc/self/cmdline", "r");
  const size_t n = fread(words, 1, sizeof words - 1, file);
  fclose(file);
  words[n] = 0;
  for (size_t at = 0; at < n; at += strlen(words + at) + 1)
    if (strcmp(words + at, "--fd") == 0) return atoi(words + at + 5);
  return -1;
}

__attribute__((noreturn)) static void spin(void) {
  for (;;) sleep(1);
}

static int run(void* engine, const kdtr_call* call, void* stream) {
  static float stale_y[64], stale_z[64];
  const DLTensor* xt = call->tensor(call, "x", KDTR_IN);
  const DLTensor* yt = call->tensor(call, "y", KDTR_OUT);
  const DLTensor* zt =
      is("never_asks_output") || is("one_output") ? NULL : call->tensor(call, "z", KDTR_OUT);
  const DLTensor* st = is("one_output") ? NULL : call->tensor(call, "status", KDTR_OUT);
  double scale = 2;
  (void)engine, (void)stream;
  if (xt == NULL || yt == NULL) {
    strcpy(error, "tiny: an argument is missing");
    return KDTR_ERROR;
  }
  if (!is("never_asks_attribute")) call->attr_f64(call, "scale", &scale);
  if (is("asks_undeclared")) call->tensor(call, "bias", KDTR_IN);
  if (is("asks_undeclared_attribute")) call->attr_f64(call, "alpha", &scale);
  if (is("error")) {
    strcpy(error, "tiny: out of luck");
    return KDTR_ERROR;
  }
  if (is("silent_error")) return KDTR_ERROR;
  if (is("fails_for_undeclared") && call->attr_f64(call, "epsilon", &scale)) return KDTR_ERROR;
  if (is("binary_error")) {
    strcpy(error, "tiny: \xff\xc3\xa9\nof \x01");
    return KDTR_ERROR;
  }
  if (is("babbles")) dprintf(answers(), "hello\n");
  while (is("keeps_noting")) {
    dprintf(answers(), "!\n");
    usleep(100000);
  }
  if (is("hang")) spin();
  if (is("segfault")) *(volatile int*)8 = 1;
  if (is("abort")) abort();
  if (is("exit")) _exit(0);
  const int64_t n = xt->shape[0];
  float* x = (float*)xt->data;
  float* y = (float*)yt->data;
  float* z = zt == NULL ? NULL : (float*)zt->data;
  ++calls;
  if (is("untouched")) return KDTR_OK;
  if (st != NULL) memset(st->data, 0, (size_t)n * 4);
  const int64_t end = is("early_return") ? n - 3 : n;
  for (int64_t i = 0; i < end; ++i) {
    float value = (float)scale * x[i];
    if (is("zeros")) value = 0;
    if (is("wrong_sign")) value = -value;
    if (is("reads_output")) value += y[i] == y[i] ? y[i] * 0 : 0;
    if (is("reads_output") && i == 2) memcpy(&value, &y[i], 4);
    if (is("reads_workspace") && i == 1) memcpy(&value, call->workspace, 4);
    if (is("random") && i == 4) value += (float)calls;
    y[i] = value;
    if (z == NULL) continue;
    z[i] = x[i] / 3;
    if (is("feels_neighbours") && n == 1) z[i] += 1;
    if (is("batch_variant") && n == 1) z[i] = nextafterf(z[i], 0);
    if (is("nan")) z[i] = (float)NAN;
    if (is("low_precision")) z[i] += 0x1p-12f;
    if (is("off_by_more")) z[i] += 0x1p-9f;
  }
  if (is("stale")) {
    if (calls == 1) {
      memcpy(stale_y, y, (size_t)n * 4);
      memcpy(stale_z, z, (size_t)n * 4);
    }
    memcpy(y, stale_y, (size_t)n * 4);
    memcpy(z, stale_z, (size_t)n * 4);
  }
  if (is("changes_input")) x[3] = 0;
  if (is("writes_past")) memset(y + n, 0, 12);
  if (is("writes_before")) y[-2] = 1;
  if (is("writes_far")) y[4096] = 1;
  if (is("reads_padding")) y[0] += ((volatile float*)x)[n];
  if (is("reads_padding_times_0")) y[0] += ((volatile float*)x)[n] * 0;
  if (is("reads_far")) y[0] += ((volatile float*)x)[1024];
  if (is("small_workspace")) memset(call->workspace, 0, 40);
  return KDTR_OK;
}

static const char* last_error(void* engine) {
  (void)engine;
  return error;
}

static const kdtr_plugin_table table = {KDTR_ABI_VERSION,
                                        sizeof(kdtr_plugin_table),
                                        create,
                                        destroy,
                                        describe,
                                        supports,
                                        outputs,
                                        workspace_size,
                                        run,
                                        last_error,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

const kdtr_plugin_table* kdtr_plugin_v1(void) { return &table; }
