/* Statistics of the samples of a round that its own sums do not hold: spread of rewards, what their terms gave,
 * lengths, how many were cut.
 *
 * Any thread, on a reader's connection.  Counted are the groups that the round's step took, whichever round issued
 * them, and the round's own groups that were filtered.  Where rows of one of them were dropped (records/retention.h)
 * there is no statistic, because it would cover only the others. A figure for which there is no data is NaN. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_SAMPLE_FIGURES_H
#define LEASEHOLD_COORDINATOR_TRACKERS_SAMPLE_FIGURES_H

#include "services/coordinator/views/reward_terms.h"

struct sample_figures {
  double reward_min, reward_max;
  double reward_std;     /* mean over groups of their samples' standard deviation (n - 1) */
  double zero_std_share; /* of groups whose rewards are all equal */
  double advantage_min, advantage_max;
  double length_mean, length_min, length_max; /* completion tokens */
  double cut_share;                           /* of samples that ended by their length */
  double ended_length_mean;                   /* of those that did not */
  double prompt_length_mean, prompt_length_max;
  double all_tokens; /* of prompts and completions, a prompt counted once for each of its samples */
  struct reward_terms terms; /* of the reward; one where it is one verifier's */
  struct {
    double mean, std; /* over all samples; std with n - 1, NaN of a single one */
  } term_values[REWARD_TERMS_MAX];
};
enum rc sample_figures_read(struct store *s, int64_t run, int64_t round, struct sample_figures *out, struct err *err);
/* By its name ("reward_std"); NaN where there is none of this name. */
double sample_figure(const struct sample_figures *f, const char *name);

#endif
