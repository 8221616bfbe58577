/* Decides which prompts of a dataset come again, by how many of their samples passed when they last came: a prompt that
 * every sample solves, or none, teaches a group's policy nothing.
 *
 *   epoch         0          1          2          3
 *   rate 1.0      sampled    rests      sampled    rests      rate_max 0.9, rest_epochs 1
 *   rate 0.5      sampled    sampled    sampled    sampled
 *
 * A prompt without a record never rests, so every prompt is tried.  One that rested is tried again, since the policy
 * has changed meanwhile.
 *
 *   {"rate_min": 0.1, "rate_max": 0.9, "pass_reward": 1, "rest_epochs": 1, "from": "r3"}       a run's `dataset.curriculum`
 *
 * Pure.  The configuration is read and written by run_config.c, its strings live in the caller's arena;
 * records/curriculum.c keeps the records and asks. */
#ifndef LEASEHOLD_COORDINATOR_RUN_CURRICULUM_H
#define LEASEHOLD_COORDINATOR_RUN_CURRICULUM_H

#include "common/json/json.h"

struct curriculum_rule {
  double rate_min, rate_max; /* of samples that passed; prompts between them, both included, come in every epoch */
  int32_t rest_epochs;       /* for how many epochs the others are passed over */
};

/* A prompt's record in the epoch in which it was last sampled; -1: before the run's first. */
struct curriculum_record {
  int64_t samples, passed, epoch; /* samples 0: there is no record */
};

bool curriculum_rests(const struct curriculum_rule *rule, const struct curriculum_record *record, int64_t epoch);

struct curriculum_config {
  bool given;
  struct curriculum_rule rule;
  double pass_reward; /* a sample passes that earned at least so much, but for rounding */
  const char *from;   /* an earlier run over the same dataset, whose rates are known at the start; "": none */
};

/* v NULL: none was given.  RC_INVALID names the field below `curriculum`. */
enum rc curriculum_config_read(struct curriculum_config *out, const struct json *v, struct arena *arena,
                               struct err *err);
/* Its member of the object that is being written; nothing where none was given. */
void curriculum_config_write(const struct curriculum_config *c, struct json_writer *w);

#endif
