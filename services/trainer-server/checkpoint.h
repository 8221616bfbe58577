/* Checkpoints: a Hugging Face folder that transformers can load, plus what training needs to go on.
 *
 *   STATE/<run>/v<version>/  config.json tokenizer.json generation_config.json model.safetensors (bf16)
 *                            optimizer.safetensors (masters, moments, fp32)  trainer_state.json (run, version, digests, steps, config, history)
 *   STATE/latest             "<run>/v<version>": replaced atomically, after the folder is durable
 *
 * Written to STATE/<run>/.partial-v<version>, every file fsynced, then renamed: a half-written checkpoint is never
 * loaded, and is swept away by the next pruning. Loading checks the recorded digests against the weights as loaded
 * and against the optimizer's bytes.  Called by the engine's thread only.
 */
#ifndef LEASEHOLD_TRAINER_CHECKPOINT_H
#define LEASEHOLD_TRAINER_CHECKPOINT_H

#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "common/wire/training.h"

struct round_record {
  int64_t version;
  struct digest digest;
  double loss, grad_norm, lr;
  int64_t tokens;
  bool skipped;
};

struct checkpoint_meta {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  uint64_t seed, epoch, fence;
  int64_t optimizer_steps;
  char step_id[LIMIT_NAME_MAX];    /* the step that led to this version, "" for version 0 */
  struct digest step_request;      /* its request's content */
  struct training_config training; /* strings borrowed */
  const struct round_record *history;
  size_t history_count;
};

/* weights_bytes: the serialized bf16 weights (the very bytes that are pushed). model_dir: where the tokenizer and
 * config files are copied from. */
enum rc checkpoint_write(const char *state_dir, const char *model_dir, const struct checkpoint_meta *meta,
                         const struct model *m, struct optimizer *o, const struct buf *weights_bytes, struct err *err);

struct checkpoint {
  struct checkpoint_meta meta;
  char dir[LIMIT_PATH_MAX];
  struct round_record *history;
  struct arena arena;
};
/* The checkpoint that STATE/latest names: RC_NOT_FOUND when there is none; RC_CORRUPT when it is not whole or not
 * what was written. Fills weights, masters and moments; the caller configures the optimizer and its step count from
 * meta. */
enum rc checkpoint_load(struct checkpoint *out, const char *state_dir, const struct model *m, struct weights *w,
                        struct optimizer *o, struct err *err);
void checkpoint_free(struct checkpoint *c);
/* Keeps v0 and the newest `keep` of the run up to version `newest`; removes the rest, and what half-written ones
 * left. */
enum rc checkpoint_prune(const char *state_dir, const char *run, int64_t newest, int64_t keep, struct err *err);

#endif
