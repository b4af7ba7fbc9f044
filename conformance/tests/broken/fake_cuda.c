/* A CUDA driver that is none, so that the judge's device path is tested without a GPU. Device
 * memory is the heap. Work on a stream waits until it is synchronised, as on a busy device.
 * Plug-ins enqueue with fake_launch. $FAKE_CUDA_ABSENT: no device. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Work)(void*);
typedef struct {
  Work work;
  char argument[128];
} Node;
typedef struct {
  Node nodes[64];
  int count;
} Queue;

static Queue queue, graph;
static int capturing, sticky;

int cuInit(unsigned flags) {
  (void)flags;
  return getenv("FAKE_CUDA_ABSENT") != NULL ? 100 : 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  (void)device;
  strncpy(name, "Fake GPU", (size_t)size);
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13010;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  *context = &queue;
  return 0;
}
int cuCtxSetCurrent(void* context) { return context == &queue ? 0 : 201; }
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  void* data = aligned_alloc(256, (size + 255) / 256 * 256);
  *address = (uint64_t)(uintptr_t)data;
  return sticky;
}
int cuMemFree_v2(uint64_t address) {
  free((void*)(uintptr_t)address);
  return sticky;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t size) {
  memcpy((void*)(uintptr_t)to, from, size);
  return sticky;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
  memcpy(to, (void*)(uintptr_t)from, size);
  return sticky;
}
int cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  *stream = &queue;
  return 0;
}
static void drain(Queue* q) {
  for (int i = 0; i < q->count; ++i) q->nodes[i].work(q->nodes[i].argument);
}
int cuStreamSynchronize(void* stream) {
  (void)stream;
  drain(&queue);
  queue.count = 0;
  return sticky;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "?";
  return 0;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  (void)stream, (void)mode;
  capturing = 1;
  graph.count = 0;
  return 0;
}
int cuStreamEndCapture(void* stream, void** out) {
  (void)stream;
  capturing = 0;
  *out = &graph;
  return 0;
}
int cuGraphInstantiateWithFlags(void** exec, void* from, unsigned long long flags) {
  (void)flags;
  *exec = from;
  return 0;
}
int cuGraphLaunch(void* exec, void* stream) {
  const Queue* from = exec;
  (void)stream;
  for (int i = 0; i < from->count; ++i) queue.nodes[queue.count++] = from->nodes[i];
  return sticky;
}
int cuGraphExecDestroy(void* exec) { return exec == &graph ? 0 : 1; }
int cuGraphDestroy(void* which) { return which == &graph ? 0 : 1; }

/* For the plug-ins of the tests. */
void fake_launch(Work work, const void* argument, size_t size) {
  Queue* to = capturing ? &graph : &queue;
  Node* node = &to->nodes[to->count++];
  node->work = work;
  memcpy(node->argument, argument, size);
}
void fake_fault(void) { sticky = 700; }
