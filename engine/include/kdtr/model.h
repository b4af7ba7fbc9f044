/* Decoding with a whole model, in C: exported by each engine library beside its kernels.
 *
 * A decoder owns one model and the caches of its live requests. Functions return 0, or 1 and a
 * message in kdtr_decoder_error(). Not thread-safe; one decoder per thread. */
#ifndef KDTR_MODEL_H
#define KDTR_MODEL_H

#include "kdtr/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kdtr_decoder kdtr_decoder;

typedef struct {
  uint32_t struct_size;
  int32_t requests;     /* the most that are live at once, 1..256 */
  int32_t max_context;  /* cached rows of each, speculation included */
  int32_t page_size;    /* 16 or 64 */
  int32_t max_budget;   /* draft nodes of a tree, the root not counted */
  int32_t precision;    /* of rows, cache and weights: 0 f32, 1 bf16; logits are f32 */
  int32_t rank, world;  /* this process's shard of the model, 0 of 1 = all of it */
  const uint8_t* group; /* of kdtr_decoder_group, the same on every rank; NULL with world 1 */
} kdtr_decoder_options;

/* An id for the ranks of one model: one process makes it and hands it to the others, each of which
 * opens a decoder of its rank, on a device of its own. Every rank then makes the same calls and
 * gets the same tokens. On failure `error` (`size` bytes, cut to fit) says why: the CPU engine has
 * no ranks, the CUDA engine needs NCCL (libnccl.so.2, or the path in KDTR_NCCL). */
#define KDTR_GROUP_BYTES 128
KDTR_EXPORT int kdtr_decoder_group(uint8_t id[KDTR_GROUP_BYTES], char* error, size_t size);

/* `folder` holds config.json, model.safetensors and, for draft trees, draft_heads.safetensors; or
 * model.kdtr and draft_heads.kdtr.
 * On failure *decoder holds only the message; close it all the same. */
KDTR_EXPORT int kdtr_decoder_open(const char* folder, const kdtr_decoder_options* options,
                                  kdtr_decoder** decoder);
KDTR_EXPORT void kdtr_decoder_close(kdtr_decoder* decoder);
KDTR_EXPORT const char* kdtr_decoder_error(const kdtr_decoder* decoder);

/* "vocab", "hidden", "layers", "depth" (draft heads), "row" (elements of a cache row), "eos"
 * (-1 = none); -1 for any other name. */
KDTR_EXPORT int64_t kdtr_decoder_size(const kdtr_decoder* decoder, const char* name);

/* Starts a request over with a prompt; *token is the first token. */
KDTR_EXPORT int kdtr_decoder_prefill(kdtr_decoder* decoder, int32_t request, const int32_t* ids,
                                     int32_t n, int32_t* token);
/* One step of `n` requests: tokens[n]. */
KDTR_EXPORT int kdtr_decoder_greedy(kdtr_decoder* decoder, const int32_t* requests, int32_t n,
                                    int32_t* tokens);
/* One draft-tree round: accept_len[n], and tokens[n][depth + 1], of which accept_len + 1 are new
 * (the bonus last) and the rest -1. */
KDTR_EXPORT int kdtr_decoder_tree(kdtr_decoder* decoder, const int32_t* requests, int32_t n,
                                  int32_t budget, int32_t* accept_len, int32_t* tokens);

/* A buffer of the last step by name ("tree.tokens", "tree.parents", "logits"), or
 * "rows.<layer>.<request>": that request's cached rows in order. With out NULL: *bytes = its size.
 */
KDTR_EXPORT int kdtr_decoder_read(kdtr_decoder* decoder, const char* name, void* out,
                                  uint64_t* bytes);

/* Called after each kernel with the stage ("l2.moe_route") and the call; NULL = no more. On a
 * device, the work is still queued. */
typedef void (*kdtr_decoder_tap)(void* user, const char* stage, const kdtr_call* call);
/* Copies from the decoder's memory to the host, after the work queued so far: for use in a tap. */
KDTR_EXPORT int kdtr_decoder_fetch(kdtr_decoder* decoder, void* host, const void* data,
                                   uint64_t bytes);
KDTR_EXPORT int kdtr_decoder_set_tap(kdtr_decoder* decoder, kdtr_decoder_tap tap, void* user);

#ifdef __cplusplus
}
#endif
#endif /* KDTR_MODEL_H */
