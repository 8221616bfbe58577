/* Judges a sample by the trainer's second drawing, and by that the worker that sent it.  Pure.
 *
 * Where the kernels of both promise the same bits, a sample is what its version draws or it is refused: one token, or
 * one log-probability, that differs is enough.  Where they promise nothing (fastest kernels, foreign engines), draws
 * differ without anybody's fault, and only log-probabilities that are far from the trainer's tell of something: see
 * MISMATCH_MOST.
 *
 * A difference has two sides.  A worker that disagrees with the trainer while another agrees with it in the same round
 * is at fault.  Where nobody has agreed yet, the first to disagree stands back while others are there to be asked; a
 * second one, or the last one, says that the trainer is as likely at fault, so the run must wait for people, and the
 * pool stays.
 *
 * Called by settle.c. */
#ifndef LEASEHOLD_COORDINATOR_CHECKS_VERDICT_H
#define LEASEHOLD_COORDINATOR_CHECKS_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

/* Mean over a sample's tokens of |log p(sampler) - log p(trainer)|, in nats, where no equality is promised.  Engines of
 * others in bf16 are a few hundredths off. */
#define VERDICT_MISMATCH_MOST 0.25

/* The same in flight, where earlier versions drew (services/trainer-server/checks/judgement.h), and the share of a
 * sample's tokens that the trainer's version may draw only from uniforms that are farther off than so much. */
#define VERDICT_LAG_MISMATCH_MOST 2.0
#define VERDICT_LAG_DRAWS_NEAR 0.25
#define VERDICT_LAG_DRAWS_MOST 0.3

/* Past these bounds is a lie, or a policy that has moved so far since that no step can learn from the sample.  The
 * step's other samples tell, by their older tokens.  Only where there are so many of others', and none of them would be
 * more than so far off in the mean, had it been as many versions behind as the sample, who sent the sample is accused;
 * else it is left out, and that is all.  A policy that moves on evenly is twice as far off after twice as many
 * versions, so tokens of the last version say little about a sample that a server has held for ten. */
#define VERDICT_CALM_TOKENS 64
#define VERDICT_CALM_MOST 0.1
struct older_tokens {
  int64_t tokens;
  int64_t lags;    /* versions that came since the newest of a sample's tokens was drawn, at least 1; the sum */
  double distance; /* |log p(sampler) - log p(trainer)|, the sum */
};
/* Whether there are enough of them, and how far behind they are was counted: lags is 0 of a step that was begun before
 * it was. */
bool verdict_can_tell(const struct older_tokens *others);
/* What others' tokens would be off by in the mean, lag versions behind; as far off as they are where that is less than
 * they are behind.  Finite only where they can tell. */
double verdict_distance(const struct older_tokens *others, int64_t lag);
bool verdict_is_calm(const struct older_tokens *others, int64_t lag);

struct checked_sample {
  bool promised;      /* equality: by the worker's kernels and by the trainer's */
  int32_t position;   /* of the first token that would not have been drawn; -1: there is none */
  int64_t unequal;    /* log-probabilities whose bits differ */
  int64_t nonfinite;  /* of these: by how much cannot be said */
  double mean_abs;    /* of the finite ones' differences, over all tokens */
};
enum sample_verdict { SAMPLE_HOLDS, SAMPLE_INEXACT, SAMPLE_REFUSED };
enum sample_verdict verdict_of_sample(const struct checked_sample *s);

/* The other workers of the round, when one sent samples that are refused. */
struct checked_pool {
  int64_t others_held;        /* of these: sent a sample that holds */
  int64_t others_live;        /* live, or about to be again after the coordinator's start, and not in quarantine */
  int64_t others_quarantined; /* in this round */
};
enum worker_verdict {
  WORKER_QUARANTINED, /* it gets nothing more of the run */
  WORKER_UNDECIDED    /* nobody can tell who is at fault: the run is paused, the round's quarantines are lifted */
};
enum worker_verdict verdict_of_worker(const struct checked_pool *p);

#endif
