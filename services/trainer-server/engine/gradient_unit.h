/* One gradient unit: a group of the batch as training samples, and its loss.  Previous hop of a rollout: batch.c.
 * Next: common/model/learning/backward.c.  Pure but for the learner's memory, so that units can be computed side by
 * side, each with a learner of its own.  The unit's own log-probabilities come first: they come out of the same forward
 * pass whose gradient follows, and the coordinator compares them with the sampler's.
 *
 * Until the round's first step the current weights are those of the behaviour policy, and every importance ratio is
 * exactly 1.  After an inner step the behaviour policy's weights are a frozen copy: a forward pass under them gives the
 * log-probabilities that are answered, bit for bit the sampler's as well, and the ratios are against these.  With
 * update "inflight" several versions sampled: the current weights' log-probabilities are answered, and the ratios are
 * against those that the samplers recorded.  The proximal policy is the current one, the version that the step
 * starts from, as in AReaL (see common/model/learning/loss.h). */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_GRADIENT_UNIT_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_GRADIENT_UNIT_H

#include "common/model/learning/backward.h"
#include "common/model/learning/loss.h"
#include "common/wire/training.h"
#include "services/trainer-server/engine/timeline.h"

struct unit_config {
  struct loss_config loss;
  enum advantage_kind advantage; /* where the KL term is in the reward */
  float temperature;
  struct sampling_params cut; /* what the sampler left out; its temperature is not read.  Not of the reference */
};

/* Whose log-probabilities a unit needs. */
struct unit_policies {
  const struct weights *current;   /* whose gradient it is */
  const struct weights *behaviour; /* that sampled it; NULL: the current ones did, or: */
  bool recorded;                   /* the group brings the behaviour policy's log-probabilities */
  const struct weights *reference; /* of the KL term, or NULL; not used for a group that brings its log-probabilities */
  bool taught;                     /* the reference is a teacher's: every group brings its log-probabilities */
};

struct unit_result {
  struct sample_logprobs *samples; /* the version's, in the group's order; arena memory */
  struct loss_stats stats;
  double entropy_sum;
  int64_t logprob_us, compute_us; /* forward, the behaviour policy's included; all else, the reference's too if it is
                                   * computed */
};

/* RC_INVALID for ids outside the vocabulary or segments that do not fit, RC_TOO_LARGE for a sample above the context
 * or chunk_tokens; the field is "samples[i].tokens" or the like. Pure. */
enum rc unit_check(const struct model *m, int chunk_tokens, const struct batch_group *group, struct err *err);
/* RC_INVALID unless every sample brings a behaviour log-probability for each trained token (wanted), or none brings
 * any.  Pure. */
enum rc unit_check_behaviour(const struct batch_group *group, bool wanted, struct err *err);

/* RC_INVALID when the group brings the reference's log-probabilities although the run has no reference, or does not
 * bring one for each trained token.  Pure. */
enum rc unit_check_reference(const struct batch_group *group, bool has_reference, struct err *err);

/* A sample's place among the unit's scored tokens. */
struct scored_sample {
  int first, count;
};

/* A checked group as the learner takes it, with room for its results. */
struct unit {
  int count; /* samples */
  struct train_sample *samples;
  struct scored_sample *scored;
  float *given;      /* the samples' advantages, as they came */
  float *advantages; /* the same; less the KL term where that is in the reward, once it is computed */
  double *kl;        /* of the samples, then */
  float *logprob;   /* of the scored tokens: under the weights of the batch's version */
  float *entropy;   /* of the scored tokens' distributions: of the policy whose gradient it is */
  float *recorded;  /* by the samplers, or NULL */
  float *reference; /* the reference's, or NULL */
  struct gradient_parts *parts; /* begun: its gradient goes there and not to grads; or NULL */
  const struct token_draws *draws; /* made from the logits that the gradient is taken of; or NULL */
  bool brought;     /* the group brought the reference's: it is there before the unit is computed */
  struct sample_logprobs *results;
};

/* Takes all the memory that unit_compute needs.  Errors of unit_check, and RC_NO_MEMORY. */
enum rc unit_prepare(struct unit *out, const struct model *m, const struct unit_policies *policies,
                     const struct batch_group *group, struct arena *arena, struct err *err);
/* What the sampler would have drawn in a unit's places. */
struct unit_draws {
  struct token_draws draws;
  struct draw_difference *differences; /* [count of samples] */
  size_t difference_count;
};
/* What a group's uniforms are keyed by. */
struct unit_key {
  uint64_t seed;
  int64_t round, ordinal;
};
/* Takes memory, and computes the uniforms: those of the group's sample i are the unit's i-th sample's. */
enum rc unit_draws_prepare(struct unit_draws *out, const struct unit *unit, const struct unit_key *key,
                           struct arena *arena, struct err *err);
/* Turns prepared draws into those by which a batch is verified: exact tokens are drawn by their own uniform, older
 * tokens by near ones, and samples that promise nothing are not drawn. */
enum rc unit_draws_verify(struct unit_draws *out, const struct unit *unit, const struct batch_group *group, double near,
                          struct arena *arena, struct err *err);
/* A forward pass under w instead of unit_compute: log-probabilities and draws. */
enum rc unit_draw(struct learner *l, const struct weights *w, const struct unit_config *config, const struct unit *unit,
                  struct unit_draws *draws, struct unit_result *out, struct timeline *timeline, struct err *err);
/* After unit_draw, or after a unit_compute of a unit with draws: finds the first difference of each sample. */
void unit_draws_compare(struct unit_draws *d, const struct unit *unit, const struct batch_group *group);
/* After a unit_compute of a unit with draws, or a unit_draw: the verified samples that are refused
 * (checks/judgement.h), in order. out [count of samples]; returns how many, or -1 when memory was refused. */
int unit_judge(struct sample_refusal *out, const struct unit_draws *d, const struct batch_verify *verify,
               const struct unit *unit, const struct batch_group *group);

/* Adds the unit's gradient to grads (zeroed by the caller), or to the unit's parts: the same each time it is called.
 * Marks the time on the timeline: `logprob` for the forward pass, `compute` for the rest, from the last mark on.  The
 * learner says when a chunk's forward has ended, not when it began: the first chunk's is measured, those of later
 * chunks are taken in proportion to their tokens.  NULL: no time is taken, and the result has none. */
enum rc unit_compute(struct learner *l, const struct unit_policies *policies, const struct unit_config *config,
                     const struct unit *unit, float *grads, struct unit_result *out, struct timeline *timeline,
                     struct err *err);

#endif
