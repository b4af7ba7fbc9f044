/* A plug-in for the fake device, with one fault by configuration. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kdtr/plugin.h"

static char fault[64];

static int is(const char* name) { return strcmp(fault, name) == 0; }

typedef struct {
  const float* x;
  float *y, *z;
  int32_t* status;
  int64_t n;
  float scale, first;
} Job;

static void work(void* argument) {
  static int launches;
  const Job* job = argument;
  ++launches;
  for (int64_t i = 0; i < job->n; ++i) {
    job->y[i] = job->scale * job->x[i];
    job->z[i] = job->x[i] / 3;
    job->status[i] = 0;
  }
  if (is("bakes_an_input")) job->y[0] = job->scale * job->first;
  if (is("counts_launches")) job->y[1] += (float)(launches > 3);
  if (is("writes_past")) memset(job->y + job->n, 0, 300);
  if (is("faults")) {
    void (*fake_fault)(void);
    void* symbol = dlsym(RTLD_DEFAULT, "fake_fault");
    memcpy(&fake_fault, &symbol, sizeof symbol);
    fake_fault();
  }
}

static int create(const char* config, void** engine) {
  snprintf(fault, sizeof fault, "%s", config);
  *engine = fault;
  return KDTR_OK;
}

static void destroy(void* engine) { (void)engine; }

static int describe(void* engine, kdtr_description* out) {
  (void)engine;
  out->device.device_type = kDLCUDA;
  out->name = "broken-cuda";
  out->version = out->profiles = out->build = "";
  out->capturable = 1;
  return KDTR_OK;
}

static int supports(void* engine, const kdtr_call* call, const char** reason) {
  (void)engine, (void)call;
  *reason = "";
  return 1;
}

static int run(void* engine, const kdtr_call* call, void* stream) {
  const DLTensor* x = call->tensor(call, "x", KDTR_IN);
  const DLTensor* y = call->tensor(call, "y", KDTR_OUT);
  const DLTensor* z = call->tensor(call, "z", KDTR_OUT);
  const DLTensor* status = call->tensor(call, "status", KDTR_OUT);
  double scale = 0;
  (void)engine, (void)stream;
  call->attr_f64(call, "scale", &scale);
  Job job = {
      x->data, y->data, z->data, status->data, x->shape[0], (float)scale, *(const float*)x->data};
  if (is("ignores_the_stream")) {
    work(&job);
    return KDTR_OK;
  }
  void (*fake_launch)(void (*)(void*), const void*, size_t);
  void* symbol = dlsym(RTLD_DEFAULT, "fake_launch");
  if (symbol == NULL) return KDTR_ERROR;
  memcpy(&fake_launch, &symbol, sizeof symbol);
  fake_launch(work, &job, sizeof job);
  return KDTR_OK;
}

static const char* last_error(void* engine) {
  (void)engine;
  return "no fake device";
}

static const kdtr_plugin_table table = {KDTR_ABI_VERSION,
                                        sizeof(kdtr_plugin_table),
                                        create,
                                        destroy,
                                        describe,
                                        supports,
                                        NULL,
                                        NULL,
                                        run,
                                        last_error,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

const kdtr_plugin_table* kdtr_plugin_v1(void) { return &table; }
