/* A run's prompts: one file of JSON lines or a mixture of several, loaded whole and tokenized once, and their order.
 *
 *   line_file.h: bytes, gzip, zstd --> lines --dataset_line.h, reading.h--> items --> dataset_index: which one comes when
 *
 * The order is that of the lines, or shuffled by (seed, epoch).  Parts with weights take turns: of every sum-of-weights
 * prompts a part gives as many as its weight, each part in an order and through epochs of its own.
 *
 * Made by run_context.c on the driver's thread, and checked on the thread that answers POST /v1/runs; immutable
 * afterwards, and read by the writer too.  Text and ids live in the dataset's arena.  The file must not be read again
 * during a run, and the order must depend on nothing but seed and ordinal, so that the same seed gives the same
 * prompts.  Next hop of a rollout: rounds/round.c. */
#ifndef LEASEHOLD_COORDINATOR_RUN_DATASET_H
#define LEASEHOLD_COORDINATOR_RUN_DATASET_H

#include "common/base/rc.h"
#include "common/model/tokenizer/tokenizer.h"
#include "services/coordinator/run/dataset_line.h"

enum { DATASET_FAULTS_SHOWN = 3 };

struct dataset;

/* RC_INVALID with the first bad line, its number, and what it would have needed; then nothing is loaded. */
enum rc dataset_load(struct dataset **out, const char *path, const struct tokenizer *t,
                     const struct dataset_options *options, struct err *err);
/* Adds a file behind those that are there.  After a failure the dataset can only be freed. */
enum rc dataset_add(struct dataset *d, const char *path, const struct tokenizer *t,
                    const struct dataset_options *options, struct err *err);
/* Gives every file a weight from 1 to DATASET_WEIGHT_MAX. Without weights all lines are one part. */
void dataset_weigh(struct dataset *d, const int32_t *weights);
/* Asked before every line of a check.  False ends the check. lines: how many of this file were read. */
struct dataset_watch {
  bool (*go_on)(void *context, const char *name, int lines);
  void *context;
};
/* Checks whether it would load, and keeps nothing.  The message names the first DATASET_FAULTS_SHOWN bad lines.  t
 * NULL: there is no tokenizer, so chat templates and the number of tokens are not checked.  watch NULL: to the end.
 * RC_TIMEOUT: the watch has ended it, and no bad line was met before. */
enum rc dataset_check(const char *path, const struct tokenizer *t, const struct dataset_options *options,
                      const struct dataset_watch *watch, struct err *err);
void dataset_free(struct dataset *d);
int dataset_count(const struct dataset *d);
/* Are there prompts of messages that were written in ChatML, because the model has no template? */
bool dataset_used_chatml(const struct dataset *d);
/* Lines that are prompts, and lines whose prompts were left out because they are too long. */
struct dataset_counts {
  int prompts, left_out;
};
struct dataset_counts dataset_counts(const struct dataset *d);
/* The counts of one of its files, in the order in which they were added. */
struct dataset_counts dataset_file_counts(const struct dataset *d, int file);
const struct dataset_item *dataset_at(const struct dataset *d, int index);

/* The file that an item comes from. */
int dataset_part(const struct dataset *d, int index);

/* The order of a dataset's items through any number of epochs, by a seed; it keeps one epoch's order of each part, and
 * one cycle of the parts' turns.  Owned by one thread. */
struct dataset_order {
  bool shuffle; /* false: as the lines are */
  uint64_t seed;
  struct shuffled {
    uint32_t *items;
    int64_t epoch; /* the one that items are of; -1: of none yet */
  } parts[DATASET_PARTS_MAX], turns;
};
/* Freed with dataset_order_free.  d: whole, and weighed if it is to be. */
enum rc dataset_order_make(struct dataset_order *out, const struct dataset *d, bool shuffle, uint64_t seed,
                           struct err *err);
/* The item at `ordinal` (0, 1, 2, ...), and the epoch of its part that it is in.  The answer does not depend on earlier
 * calls. */
struct dataset_place {
  int index;
  int64_t epoch;
};
struct dataset_place dataset_place(const struct dataset *d, struct dataset_order *order, int64_t ordinal);
/* Its index alone. */
int dataset_index(const struct dataset *d, struct dataset_order *order, int64_t ordinal);
void dataset_order_free(struct dataset_order *order); /* {0} has nothing to free */

#endif
