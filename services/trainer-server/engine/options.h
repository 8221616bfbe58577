/* The options of a trainer: main.c's flags, and the ranks that main.c has joined.  Constant; the strings are borrowed.
 * */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_OPTIONS_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_OPTIONS_H

#include "common/model/device.h"
#include "services/trainer-server/ranks/ranks.h"

/* What start does not plan for.  Copies of the weights for the kernels alone: the reference of a run with a KL term,
 * the behaviour policy of one that takes inner steps.  And `versions`: published ones that a run with update "inflight"
 * pushes while it makes later ones. */
struct frozen_weights {
  bool reference, behaviour, versions;
};

struct trainer_options {
  const char *model_dir, *state_dir;
  int64_t state_wait_ms; /* how long for another trainer to leave state_dir */
  const char *coordinator_url; /* NULL or "": none; messages are taken from anybody */
  struct device device;
  int64_t threads, chunk_tokens, context_max, keep_checkpoints, memory_max;
  int64_t random_init_seed;   /* used when model_dir has no model.safetensors; < 0: refuse */
  bool recompute_activations; /* see struct learner_options */
  bool push_changes;          /* servers are sent what differs between versions, where that is less */
  bool lean;                  /* nothing is kept that can be made again, or lie in a scratch file: see learning.c */
  bool optimizer_mapped;      /* masters and moments lie in a scratch file */
  bool moments8;               /* the optimizer's moments in 8 bits; only for runs that say so */
  const char *scratch_dir;    /* where scratch files are; "": in state_dir */
  bool fit;                   /* what the plan does not leave room for is given up: fit.h */
  bool teaches;               /* role teach: passes are computed with the folder's weights */
  struct frozen_weights going_on; /* of the run that the newest checkpoint is of: --fit leaves room for them */
  int lanes;                  /* units computed side by side; no flag: memory_choose_lanes */
  struct ranks_options ranks;
};

static inline const char *trainer_scratch_dir(const struct trainer_options *o) {
  return o->scratch_dir && o->scratch_dir[0] ? o->scratch_dir : o->state_dir;
}

#endif
