/* Checkpoints: a Hugging Face folder that transformers can load, plus what training needs to go on.
 *
 *   STATE/<run>/v<version>/  the model's small files (model_files.h), model.safetensors (bf16) and its index,
 *                            optimizer.safetensors (masters, moments: fp32, or in 8 bits)  trainer_state.json (run,
 *   version, digests, steps, config, history)
 *   STATE/<run>/kept.json    which of them stay (struct kept_checkpoints)
 *   STATE/latest             "<run>/v<version>": replaced atomically, after the folder is durable
 *
 * Written to STATE/<run>/.partial-v<version>, all files of it fsynced together, then renamed: a half-written checkpoint
 * is never loaded, and is swept away by the next pruning. Loading checks everything that is loaded against a digest:
 * trainer_state.json carries its own, and those of the weights and of the optimizer's bytes.
 *
 * When the newest checkpoint is damaged the newest whole older one of its run is loaded: the coordinator has the rounds
 * since replayed.  So the folder of the run that `latest` names must hold no version of another run of that name, and
 * none newer than `latest` that could become an older one: pruning removes what is newer than the version at hand,
 * when a run is opened and when it is restored.  Called by the engine's thread, and by trainer_create before that
 * thread runs; checkpoints are also written and pruned by a thread that the engine waits for (version.h).  Previous hop
 * of a version: version.c.  Next: publish/publisher.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_CHECKPOINT_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_CHECKPOINT_H

#include "common/model/learning/optimizer.h"
#include "common/model/network/model.h"
#include "common/wire/training.h"

enum { ROUNDS_RECORDED = 1024 };

struct round_record {
  int64_t version;
  struct digest digest;
  double loss, grad_norm, lr;
  double kl_coefficient; /* of the next round, where it is adapted; else 0, and not written */
  int64_t tokens;
  bool skipped;
};

/* The outcome of a run's newest rounds, for people who read a checkpoint; a trainer goes on from the last of them only.
 * Every checkpoint holds it, so it is bounded: the coordinator keeps the figures of all rounds. */
struct round_history {
  struct round_record items[ROUNDS_RECORDED]; /* the oldest first */
  size_t count;
};

/* records: any number, the oldest first.  Where there is no room, the oldest of all are dropped. */
void round_history_add(struct round_history *h, const struct round_record *records, size_t count);

struct checkpoint_meta {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  uint64_t seed;
  uint64_t epoch, fence; /* under which it was written: for people to read; never trusted */
  int64_t optimizer_steps;
  char step_id[LIMIT_NAME_MAX];    /* the step that led to this version, "" for version 0 */
  struct digest step_request;      /* its request's content */
  struct run_start start;          /* strings borrowed, here */
  struct training_config training; /* and here */
  const struct round_record *history;
  size_t history_count;
};

/* The optimizer's arrays of all parameters, one at a time: where a checkpoint's come from and go to.  They have
 * [params.elements] floats each; with moments in 8 bits the moments have as many codes, and two arrays more the largest
 * magnitudes of their blocks.  A single rank has them in its optimizer; of several ranks each has a shard, and
 * optimizer_arrays.c puts these together.  The files are the same, byte for byte. */
enum {
  CHECKPOINT_MASTERS,
  CHECKPOINT_MOMENT1,
  CHECKPOINT_MOMENT2,
  CHECKPOINT_ARRAYS,
  CHECKPOINT_MAX1 = CHECKPOINT_ARRAYS,
  CHECKPOINT_MAX2,
  CHECKPOINT_ARRAYS_8BIT
};
struct checkpoint_arrays {
  void *context;
  bool moments8;
  /* The whole array, borrowed until the next call. */
  enum rc (*collect)(void *context, int which, const void **out, struct err *err);
  /* Where to read the whole array to; then spread it. */
  void *(*room)(void *context, int which);
  enum rc (*spread)(void *context, int which, struct err *err);
  /* These bytes of an array have been written out or read in. */
  void (*done)(void *context, const void *values, size_t bytes);
  /* These bytes of the weights have been written out; NULL: nobody asks. */
  void (*weights_done)(const void *weights, const void *bytes, size_t count);
  const void *weights;
};
/* Array `which` as the optimizer keeps it: its shard. */
void *checkpoint_array(struct optimizer *o, int which);
/* In the memory of an optimizer of all parameters, borrowed. */
struct checkpoint_arrays checkpoint_arrays_of(struct optimizer *o);

/* weights_bytes: the serialized bf16 weights (the very bytes that are pushed). model_dir: where the
 * model's small files are copied from. */
enum rc checkpoint_write(const char *state_dir, const char *model_dir, const struct checkpoint_meta *meta,
                         const struct model *m, const struct checkpoint_arrays *arrays, const struct buf *weights_bytes,
                         struct err *err);

struct checkpoint {
  struct checkpoint_meta meta;
  char dir[LIMIT_PATH_MAX];
  char damage[ERR_MESSAGE_MAX]; /* what is wrong with the newest one when this is an older one; else "" */
  struct round_record *history;
  struct arena arena;
};
/* The checkpoint that STATE/latest names, or the newest older one of its run that is whole: RC_NOT_FOUND when there is
 * no STATE/latest; RC_CORRUPT when none is whole, or `latest` does not say which run; RC_UNSUPPORTED when it holds the
 * other kind of moments.  RC_IO, RC_NO_MEMORY and RC_UNAVAILABLE (another rank is lost) are not damage: nothing older
 * is tried. Fills weights, masters and moments, also when it fails; the caller configures the optimizer and its step
 * count from meta. */
enum rc checkpoint_load(struct checkpoint *out, const char *state_dir, const struct model *m, struct weights *w,
                        const struct checkpoint_arrays *arrays, struct err *err);
/* Reads only that checkpoint's meta, without its weights and arrays. RC_NOT_FOUND and RC_CORRUPT as above, but only for
 * the newest. */
enum rc checkpoint_read_meta(struct checkpoint *out, const char *state_dir, struct err *err);
void checkpoint_free(struct checkpoint *c);
/* Makes the loaded one the newest: `latest` names it, and newer ones, which are damaged or were never named, are
 * removed. */
enum rc checkpoint_settle(const struct checkpoint *c, const char *state_dir, int64_t keep, struct err *err);
/* Makes the next start begin from "<run>/v<version>" instead of the newest: `latest` names it, and that start removes
 * newer ones.  For a coordinator that goes on from an older copy of its database; nothing else may use STATE meanwhile.
 *  RC_INVALID for another form, RC_NOT_FOUND when it is not there. */
enum rc checkpoint_go_back(const char *state_dir, const char *name, struct err *err);
/* Is there a checkpoint of that version?  Any thread. */
bool checkpoint_exists(const char *state_dir, const char *run, int64_t version);
/* Only the weights of one version, held against their digest. RC_CORRUPT when it is missing or damaged. */
enum rc checkpoint_load_weights(const char *state_dir, const char *run, int64_t version, struct weights *w,
                                struct err *err);
/* Which checkpoints of a run stay.  Written to STATE/<run>/kept.json, so that a restart knows before the coordinator
 * has said anything; {0} where there is none. */
struct kept_checkpoints {
  int64_t last;              /* this many of the newest; 0: as many as the caller says */
  struct json_i32s versions; /* and these, sorted or not */
  int64_t asked_since_ms;    /* and those asked for since then; by the wall clock */
};
enum rc checkpoint_keep(const char *state_dir, const char *run, const struct kept_checkpoints *kept, struct err *err);
/* Whether there is a checkpoint of that version, for a run that may start from it but is not known to the steps under
 * way: it stays until a checkpoint_keep whose asked_since_ms is later than now.  A file beside it, "asked-v<version>",
 * tells a restart.  Any thread. */
bool checkpoint_ask(const char *state_dir, const char *run, int64_t version);
/* The versions of the run that have a checkpoint, oldest first, arena memory; none when the folder cannot be listed. */
struct json_i32s checkpoint_versions(const char *state_dir, const char *run, struct arena *arena);
/* The oldest of them above 0 that is among the newest `keep`; 0: there is none.  A restart may begin with it, when the
 * newer ones are damaged. */
int64_t checkpoint_oldest(const char *state_dir, const char *run, int64_t keep);
/* The version whose weights are the reference at `version`; they are taken anew every reference_every rounds, 0:
 * never. */
static inline int64_t checkpoint_reference(int64_t version, int32_t reference_every) {
  return reference_every > 0 ? version / reference_every * reference_every : 0;
}
/* Keeps v0, the newest `keep` of the run up to version `newest`, what checkpoint_keep named, what was asked for, and
 * the references of these; removes the rest, newer ones too, and the remains of half-written ones. */
enum rc checkpoint_prune(const char *state_dir, const char *run, int64_t newest, int64_t keep, int32_t reference_every,
                         struct err *err);

#endif
