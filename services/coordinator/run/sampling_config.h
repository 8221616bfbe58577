/* A run's `sampling`: how completions are drawn, and what ends them.
 *
 * Tokens that are left out before a draw (top_k, top_p, min_p) are left out by the trainer too, so a token is judged by
 * the distribution that it came from; the trainer can do so for tokens that its own weights drew, in runs of update
 * "strict".  The trainer has nothing that changes logits by earlier tokens or by hand (penalties, biases): such fields
 * are refused by name.  Called by run_config.c; strings live in the caller's arena. */
#ifndef LEASEHOLD_COORDINATOR_RUN_SAMPLING_CONFIG_H
#define LEASEHOLD_COORDINATOR_RUN_SAMPLING_CONFIG_H

#include "common/wire/training.h"

struct sampling_config {
  double temperature;              /* training: > 0; evaluate runs and evaluation blocks may use 0 (greedy) */
  struct sampling_cut cut;         /* not of evaluation blocks */
  int32_t max_new_tokens;          /* of every sample; a line of the dataset may name fewer for its own */
  struct json_i32s stop_token_ids; /* empty: the model's eos ids */
  bool tokenizer_eos;              /* the tokenizer's eos_token is one of these, and what completions end with */
  bool says_tokenizer_eos;         /* written though it is false; not of runs from before it was known */
  bool ignore_eos;                 /* no stop ids at all: no token ends a sample */
  struct stop_strings stop;        /* texts that end a sample */
};

/* Over defaults; fields are those of `sampling`.  tokenizer_eos is false where the model's eos ids are not used. */
enum rc sampling_config_read(struct sampling_config *s, const struct json *value, struct arena *arena, struct err *err);
/* Its members, in a fixed order; those that are off by default are left out then. */
void sampling_config_write(const struct sampling_config *s, struct json_writer *w);
/* The trainer's part of it: temperature and cut of the distribution that tokens were drawn from.  RC_INVALID where the
 * run cannot have the cut; fields are those of the run. */
enum rc sampling_config_resolve(const struct sampling_config *s, struct training_config *training, struct err *err);

#endif
