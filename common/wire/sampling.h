/* Sampling options that leases, a run's training configuration and the run's own configuration say alike: what is left
 * out of the vocabulary before a token is drawn, and the texts that end a sample.
 *
 * Sampler and trainer cut rows of logits by the same float32 numbers (common/model/NUMERICS.md, "Cuts"): a double
 * travels as it was written, and either side rounds it.  Zero is off, and off is left out of messages, so that those of
 * runs without these options are what they were. */
#ifndef LEASEHOLD_WIRE_SAMPLING_H
#define LEASEHOLD_WIRE_SAMPLING_H

#include <stdbool.h>

#include "common/base/arena.h"
#include "common/json/json.h"

struct sampling_cut {
  int32_t top_k; /* 0: off */
  double top_p;  /* 0 or 1: off */
  double min_p;  /* 0: off */
};

/* Entries of a field table. */
#define SAMPLING_CUT_FIELDS(cut)                                                                           \
  {.name = "top_k", .kind = FIELD_I32, .target = &(cut)->top_k, .min = 0, .max = LIMIT_VOCABULARY},        \
      {.name = "top_p", .kind = FIELD_F64, .target = &(cut)->top_p, .min = 1e-6, .max = 1},                \
      {.name = "min_p", .kind = FIELD_F64, .target = &(cut)->min_p, .min = 0, .max = 1}

/* The first of its names that leaves anything out, NULL: none does. */
const char *sampling_cut_name(const struct sampling_cut *cut);
/* Members of an object: those that are on. */
void sampling_cut_write(const struct sampling_cut *cut, struct json_writer *w);

/* Texts that end a sample, the first to be complete in its text: the sample ends with the token that completes it. */
struct stop_strings {
  const char **items;
  size_t count;
};

/* An array of up to LIMIT_STOP_TEXTS texts, or one text; value NULL: none.  RC_INVALID under "stop". */
enum rc stop_strings_read(struct stop_strings *out, const struct json *value, struct arena *arena, struct err *err);
/* The member "stop", if there are any. */
void stop_strings_write(const struct stop_strings *stops, struct json_writer *w);

#endif
