/* Parts that the two forms of a batch and of its status share: training_batch.c writes and reads them as JSON,
 * training_batch_tensors.c as safetensors; and what passes have in common with them.  Private to common/wire. */
#ifndef LEASEHOLD_WIRE_TRAINING_BATCH_INTERNAL_H
#define LEASEHOLD_WIRE_TRAINING_BATCH_INTERNAL_H

#include "common/safetensors/safetensors.h"
#include "common/wire/fields.h"
#include "common/wire/training.h"

/* Reads one element of a wire_list. */
typedef enum rc (*item_read)(void *item, const struct json *value, struct arena *arena, struct err *err);

/* numbers false: of the samples only their ids. */
void submit_batch_write(const struct submit_batch *m, bool numbers, struct buf *out);
enum rc submit_batch_read(struct submit_batch *m, const struct json *body, item_read group, struct arena *arena,
                          struct err *err);
/* A struct batch_group, whose samples `sample` reads. */
enum rc batch_group_read(void *item, const struct json *value, item_read sample, struct arena *arena, struct err *err);
/* The group's samples alone, which have distinct ids. */
enum rc batch_samples_read(struct batch_group *g, const struct json *samples, item_read sample, struct arena *arena,
                           struct err *err);
/* What the bounds of single numbers cannot express; without segments and log-probabilities, which are read after it. */
enum rc batch_sample_check(const struct batch_sample *s, struct err *err);
/* Its exact tokens are trained ones; once it has its segments. */
enum rc batch_exact_check(const struct batch_sample *s, struct err *err);

/* The tensors that answers with log-probabilities have: `trained` I32 [samples], and as numbers (STATUS_*) say
 * `logprobs` F32 [trained] and `entropies` F32 [trained], which are left out where they are not told.  The samples that
 * are read have their ids; any bits are a log-probability here. */
enum { LOGPROB_TENSORS = 3 };
/* *tensors: how many there are. */
void sample_logprobs_entries(struct st_entry entries[LOGPROB_TENSORS], size_t *tensors,
                             const struct sample_logprobs *samples, size_t count, int numbers);
void sample_logprobs_append(struct buf *out, const struct sample_logprobs *samples, size_t count, int numbers);
/* numbers: what may be there; one of them must. */
enum rc sample_logprobs_take(struct sample_logprobs *samples, size_t count, int numbers, const struct st_file *f,
                             struct arena *arena, struct err *err);

/* numbers false: of the samples only their ids. */
void batch_status_write(const struct batch_status *m, bool numbers, struct buf *out);
enum rc batch_status_read(struct batch_status *m, const struct json *body, item_read sample, struct arena *arena,
                          struct err *err);

#endif
