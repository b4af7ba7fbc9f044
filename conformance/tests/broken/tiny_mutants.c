/* Mutants of tiny@1 for the test of `score`. $TINY_CATALOGUE is the catalogue. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kdtr/plugin.h"

static char fault[64];

static int is(const char* name) { return strcmp(fault, name) == 0; }

static int create(const char* config, void** engine) {
  const char* colon = strchr(config, ':');
  snprintf(fault, sizeof fault, "%s", colon == NULL ? config : colon + 1);
  *engine = fault;
  return KDTR_OK;
}

static void destroy(void* engine) { (void)engine; }

static int describe(void* engine, kdtr_description* out) {
  (void)engine;
  out->device.device_type = kDLCPU;
  out->name = "tiny mutants";
  out->version = out->profiles = out->build = "";
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
  memset(status->data, 0, (size_t)x->shape[0] * 4);
  if (is("crashes")) abort();
  while (is("hangs")) sleep(1);
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    const double value = (double)((const float*)x->data)[i];
    ((float*)y->data)[i] = (float)(is("unscaled") ? value : scale * value);
    double third = value / 3;
    if (is("slightly_off")) third *= 1 + 0x1p-30; /* less than f32 shows */
    if (is("far_off")) third += 1;
    if (z->dtype.bits == 64)
      ((double*)z->data)[i] = third;
    else
      ((float*)z->data)[i] = (float)third;
  }
  return KDTR_OK;
}

static const char* last_error(void* engine) {
  (void)engine;
  return "";
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

const char* kdtr_mutants_v1(void) {
  const char* catalogue = getenv("TINY_CATALOGUE");
  return catalogue == NULL ? "" : catalogue;
}
