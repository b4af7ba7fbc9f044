/* A kdtr plug-in in plain C with one op: tree_accept@1 on the CPU.
 *
 *   cc -std=c99 -shared -fPIC -I"$(kdtr --include-dir)" mine.c -o libmine.so
 *   kdtr certify --engine ./libmine.so
 */
#include <stdio.h>
#include <string.h>

#include "kdtr/plugin.h"

static char error[256];

static const DLTensor* want(const kdtr_call* c, const char* name, int role, int rank, int bits) {
  const DLTensor* t = c->tensor(c, name, role);
  if (t == NULL) {
    snprintf(error, sizeof error, "tree_accept/%s: missing argument", name);
  } else if (t->ndim != rank || t->dtype.code != 0 || t->dtype.bits != bits) {
    snprintf(error, sizeof error, "tree_accept/%s: want i%d of rank %d, got i%d of rank %d", name,
             bits, rank, t->dtype.bits, (int)t->ndim);
    t = NULL;
  }
  return t;
}

static void fill(int32_t* row, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] = -1;
}

/* One request: returns its status, 0 ok, 1 bad_input, 2 bad_links, 3 capacity. */
static int32_t walk(const int32_t* tokens, const int32_t* next_token, const int32_t* next_sibling,
                    const int32_t* target, int64_t nodes, int64_t slots, int64_t depth_limit,
                    int64_t vocab, int32_t* index, int32_t* len, int32_t* accepted,
                    int32_t* predicts) {
  int64_t node = 0, depth = 0, reads = 0;
  if (nodes < 0 || nodes > slots) return 1;
  if (nodes == 0) return 0;
  for (;;) {
    if (target[node] < 0 || target[node] >= vocab) return 1;
    index[depth] = (int32_t)node;
    accepted[depth] = predicts[node] = target[node];
    *len = (int32_t)depth;
    int64_t child = next_token[node];
    for (;; child = next_sibling[child]) {
      if (child == -1) return 0;
      if (child < 1 || child >= nodes || ++reads > nodes - 1) return 2;
      if (tokens[child] == target[node]) break;
    }
    if (depth + 1 > depth_limit) return 3;
    node = child;
    ++depth;
  }
}

static int run(void* engine, const kdtr_call* c, void* stream) {
  (void)engine, (void)stream;
  const DLTensor* tokens = want(c, "tokens", KDTR_IN, 2, 32);
  const DLTensor* next_token = want(c, "next_token", KDTR_IN, 2, 32);
  const DLTensor* next_sibling = want(c, "next_sibling", KDTR_IN, 2, 32);
  const DLTensor* n_nodes = want(c, "n_nodes", KDTR_IN, 1, 32);
  const DLTensor* target = want(c, "target", KDTR_IN, 2, 32);
  const DLTensor* index = want(c, "accept_index", KDTR_OUT, 2, 32);
  const DLTensor* len = want(c, "accept_len", KDTR_OUT, 1, 32);
  const DLTensor* accepted = want(c, "accepted_tokens", KDTR_OUT, 2, 32);
  const DLTensor* predicts = want(c, "predicts", KDTR_OUT, 2, 32);
  const DLTensor* status = want(c, "status", KDTR_OUT, 1, 32);
  int64_t depth_limit, vocab;
  if (!tokens || !next_token || !next_sibling || !n_nodes || !target || !index || !len ||
      !accepted || !predicts || !status)
    return KDTR_ERROR;
  if (c->attr_i64(c, "L", &depth_limit) != 0 || c->attr_i64(c, "V", &vocab) != 0) {
    snprintf(error, sizeof error, "tree_accept: want attributes L and V");
    return KDTR_ERROR;
  }
  const int64_t slots = tokens->shape[1], width = depth_limit + 1;
  for (int64_t r = 0; r < tokens->shape[0]; ++r) {
    const int64_t at = r * slots;
    int32_t* my_index = (int32_t*)index->data + r * width;
    int32_t* my_accepted = (int32_t*)accepted->data + r * width;
    int32_t* my_predicts = (int32_t*)predicts->data + at;
    int32_t* my_len = (int32_t*)len->data + r;
    int32_t* my_status = (int32_t*)status->data + r;
    fill(my_index, width), fill(my_accepted, width), fill(my_predicts, slots), fill(my_len, 1);
    *my_status = walk((int32_t*)tokens->data + at, (int32_t*)next_token->data + at,
                      (int32_t*)next_sibling->data + at, (int32_t*)target->data + at,
                      ((int32_t*)n_nodes->data)[r], slots, depth_limit, vocab, my_index, my_len,
                      my_accepted, my_predicts);
    if (*my_status != 0)
      fill(my_index, width), fill(my_accepted, width), fill(my_predicts, slots), fill(my_len, 1);
  }
  return KDTR_OK;
}

static int create(const char* config, void** engine) {
  (void)config;
  *engine = error;
  return KDTR_OK;
}
static void destroy(void* engine) { (void)engine; }
static int describe(void* engine, kdtr_description* out) {
  (void)engine;
  out->device.device_type = kDLCPU;
  out->device.device_id = 0;
  out->name = "mine", out->version = "1.0", out->profiles = "", out->build = "";
  out->capturable = 0, out->deterministic = 1;
  return KDTR_OK;
}
static int supports(void* engine, const kdtr_call* call, const char** reason) {
  (void)engine;
  *reason = "only tree_accept@1";
  return strcmp(call->op, "tree_accept@1") == 0;
}
static const char* last_error(void* engine) { return (void)engine, error; }

const kdtr_plugin_table* kdtr_plugin_v1(void) {
  static const kdtr_plugin_table table = {KDTR_ABI_VERSION, sizeof(kdtr_plugin_table),
                                          create, destroy, describe, supports,
                                          NULL, NULL, run, last_error, NULL, NULL, NULL, NULL};
  return &table;
}
