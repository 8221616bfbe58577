/* The loaded model, made once when the model's files are known: two thread pools, two tables of operations, the model
 * twice (one for the engine, one for the stager, since a table serves one thread at a time), two sets of weights, the
 * KV pool and the engine.
 *
 * Everything big is allocated here, and refused with a message that says how much was needed. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_LOADED_MODEL_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_LOADED_MODEL_H

#include "common/base/memory_plan.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/tokenizer.h"
#include "services/generation-server/engine/engine.h"
#include "services/generation-server/engine/model_options.h"

/* The contents of a model's small files.  Its holder frees it. */
struct model_files {
  struct model_config config;
  struct tokenizer *tokenizer; /* NULL: only ids are served */
  struct chat *chat;           /* NULL: messages are refused, with no_chat's sentence where there is a tokenizer */
  struct err no_chat;
};
void model_files_free(struct model_files *files);

struct loaded_model {
  struct model_files files;
  struct pool *pool, *stage_pool;
  struct ops *ops, *stage_ops;
  struct model *model, *stage_model;
  struct weights *weights[2]; /* both sets, kept here to be freed; staging.c and the engine pass them to each other */
  struct engine *engine;
  size_t weights_file_max; /* bytes of a safetensors file of this model */
};

/* Everything that loading this model allocates under these options, with that many KV pages; pure.  The README's
 * formula. */
void loaded_model_memory_plan(struct memory_plan *out, const struct model *m,
                              const struct loaded_model_options *options, int pages);

/* What a server would load and need: as loaded_model_open finds it, which is not called. */
struct model_foresight {
  struct memory_plan plan;
  struct memory_room room;
  int pages, context_max; /* context_max as --fit leaves it */
  size_t parameters;
  char kernels[LIMIT_NAME_MAX];
};
/* Its error is that of loaded_model_open; where memory is short the rest is told all the same. */
enum rc loaded_model_foresee(struct model_foresight *out, const struct loaded_model_options *options,
                             const struct model_files *files, struct err *err);
/* Takes over the files on RC_OK. */
enum rc loaded_model_open(struct loaded_model **out, const struct loaded_model_options *options,
                          const struct model_files *files,
                          void (*activated)(void *, struct weights *, const struct policy *), void (*settled)(void *),
                          void *context, struct err *err);
/* The engine must have been stopped. NULL is fine. */
void loaded_model_close(struct loaded_model *loaded);

/* A model's files, read from a Hugging Face folder.  A chat template that cannot be read is no reason to refuse the
 * model. */
enum rc model_files_load(struct model_files *out, const char *dir, struct err *err);
/* From their bytes; generation and the chat's may be empty; an empty tokenizer gives NULL. */
enum rc model_files_parse(struct model_files *out, const struct buf *config_json, const struct buf *generation_json,
                          const struct buf *tokenizer_json, const struct chat_files *chat, struct err *err);
/* The folder's weights into w, and their digest. */
enum rc model_weights_load(struct weights *w, struct digest *digest, const char *dir, struct err *err);

#endif
