/* JSONL datasets: one object a line with `prompt` (text) or `messages` (chat), `answer` (text or number; optional),
 * `completion` (text; cross-entropy only) and `max_new_tokens` (how long a sample of this prompt may be; optional);
 * other keys are kept.  A dataset is loaded whole and tokenized once; a bad line is refused with its number.  The order
 * is that of the lines, or shuffled by (seed, epoch).
 *
 * Made by run_context.c on the driver's thread, and checked on the thread that answers POST /v1/runs; immutable afterwards,
 * and read by the writer too.  Text and ids live in the dataset's arena.  The file must not be read again during a run, and
 * the order must depend on nothing but seed and ordinal, so that the same seed gives the same prompts.  Next hop of a
 * rollout: rounds/round.c. */
#ifndef LEASEHOLD_COORDINATOR_RUN_DATASET_H
#define LEASEHOLD_COORDINATOR_RUN_DATASET_H

#include "common/base/rc.h"
#include "common/model/tokenizer/tokenizer.h"
#include "services/coordinator/run/run_config.h"

struct dataset_item {
  const char *prompt; /* text as encoded (chat template applied); it may hold NULs */
  size_t prompt_bytes;
  const char *answer; /* "" when absent; numbers as their decimal text */
  const char
      *extra; /* the other keys as a JSON object text ("{}"), for verifiers: countdown reads "numbers" and "target" */
  const int32_t *prompt_ids;
  int prompt_length;
  const int32_t *completion_ids;
  int completion_length; /* eos appended; 0 when absent */
  int max_new_tokens;    /* of a sample; 0 when absent: the run's */
  int line;              /* 1-based */
};

struct dataset;

struct dataset_options {
  const char *field; /* of the run's configuration, that faults are reported under: "dataset.path" */
  const char *name;  /* of the file, in their message */
  int prompt_tokens_max, completion_tokens_max;
  int sequence_tokens_max; /* prompt and completion together; 0: not bounded */
  int new_tokens_max;      /* what a line's max_new_tokens may be at most; 0: it is a key like any other */
  bool need_completion, need_answer;
  const struct reward_rule *verifier; /* it must be able to judge every line; NULL: not checked */
  int32_t eos;                 /* appended to completions */
};

enum rc dataset_load(struct dataset **out, const char *path, const struct tokenizer *t,
                     const struct dataset_options *options, struct err *err);
/* Checks whether it would load, line by line, and keeps nothing.  t NULL: there is no tokenizer, so chat templates and the
 * number of tokens are not checked. */
enum rc dataset_check(const char *path, const struct tokenizer *t, const struct dataset_options *options,
                      struct err *err);
void dataset_free(struct dataset *d);
int dataset_count(const struct dataset *d);
const struct dataset_item *dataset_at(const struct dataset *d, int index);
/* Index of the item at `ordinal` (0, 1, 2, ... through any number of epochs); epoch e is a fresh shuffle by (seed,
 * e), or line order. Thread-safe: pure but for a cache of one epoch's order owned by the caller. */
struct dataset_order {
  uint32_t *items;
  int epoch;
};
int dataset_index(const struct dataset *d, struct dataset_order *cache, bool shuffle, uint64_t seed, int64_t ordinal);
void dataset_order_free(struct dataset_order *cache);

#endif
