/* The terms of the reward by which a group's samples were judged, read from the run's stored configuration, and what
 * each gave for a sample (samples.term_values), as JSON.
 *
 * Values are before their weights.  Rows that were stored by older coordinators have none; in a control run
 * (shuffle_rewards) they stay with the sample that earned them while its reward goes to another.
 *
 * HTTP threads, on a reader's snapshot.  Reads only.  The spelling is openapi/coordinator.yaml's. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_REWARD_TERMS_H
#define LEASEHOLD_COORDINATOR_VIEWS_REWARD_TERMS_H

#include "common/json/json.h"
#include "services/coordinator/store/store.h"
#include "services/coordinator/verifiers/reward.h"

enum { REWARD_TERM_NAME_MAX = 24 };

struct reward_terms {
  bool is_sum; /* else the reward is one verifier's: one term, whose value is the reward */
  int count;
  struct {
    char kind[REWARD_TERM_NAME_MAX];
    char name[REWARD_TERM_NAME_MAX]; /* its kind; of several of a kind the second is "regex_2" */
    double weight;
  } items[REWARD_TERMS_MAX];
};

/* set: the group's evaluation_set; -1: of training.  count 0: the configuration tells of no verifier. */
enum rc reward_terms_read(struct reward_terms *out, struct store *s, int64_t run, int64_t set, struct err *err);
/* What the terms gave for the row's sample, NaN where that is not known; false: nothing is stored. */
bool reward_terms_values(const struct reward_terms *t, const struct rows *q, int column,
                         double values[REWARD_TERMS_MAX]);
/* The member `terms` of a sample: null where the reward is one verifier's or nothing is stored. */
void reward_terms_write(struct json_writer *w, const struct reward_terms *t, const struct rows *q, int column);

#endif
