/* A trainer behind real HTTP that computes nothing: it answers the coordinator's calls at once, and as a test has told
 * it to.  Its convention, which fake generation-servers keep too: the log-probability of token t is -(t + 1) / 1024,
 * and the weights of version v of run r have the digest of the text "r/v".  Behind inner steps a batch tells of ratios
 * of 5/4 on average and squares of 2, of one clipped token, of a KL of 1/4 a token and of a difference of 1/8.
 *
 * Samples are drawn by a rule too (fake_token), so it can check them: it finds what a fake server has made up.
 *
 * It is part of struct fixture (service_fixture.h).  The HTTP server's threads and the test share it: `lock` guards
 * every field below it. */
#ifndef LEASEHOLD_TESTS_FAKE_TRAINER_H
#define LEASEHOLD_TESTS_FAKE_TRAINER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/http/server.h"
#include "common/wire/training.h"

enum { FAKE_BATCHES = 256, FAKE_INNER_STEPS = 64, FAKE_ORDER = 1024, FAKE_TOKENS = 3, EOS = 256 };

/* What a check finds besides what is there. */
enum fake_doubt {
  DOUBT_NOTHING,
  DOUBT_ONCE,  /* a difference in the next check's first sample, and never again */
  DOUBT_SOME,  /* one in every fourth sample, the same each time: a trainer that draws otherwise */
};

struct fake_trainer {
  struct http_server *server; /* NULL: stopped */
  char url[64];
  pthread_mutex_t lock;   /* guards all below */
  pthread_cond_t changed; /* slow_steps was cleared */

  /* What the test wishes. */
  bool wrong_logprobs; /* a little off in the first token of every sample */
  bool nan_logprobs;   /* none for it, as of a poisoned batch */
  bool slow_steps;     /* steps, inner ones too, go on until fake_trainer_finish_steps */
  bool other_weights;  /* version 0 is of other weights than the first time */
  bool refuse_step;    /* the next submit-step is answered 409, as of a version that is superseded */
  bool refuse_run;     /* check-run is answered 422 */
  int32_t context_max; /* what check-run is answered otherwise; 0: 512 */
  bool disk_full;      /* steps fail for want of room until this is cleared */
  enum fake_doubt doubt;
  int failed_checks;   /* so many of the next checks fail */
  bool slow_checks;    /* checks go on until this is cleared */
  int64_t compute_us;  /* that every batch is said to have taken */
  char refuse[64];     /* the first sample of this group is refused where it is verified; "r1.0.": of each of a round */
  enum refusal_reason refuse_for;
  bool slow_batches;   /* those that come are still computed while this is set */
  int strange;         /* so many openings are refused: this trainer has not heard of the epoch */

  /* What it holds, and what it has been told. */
  char run[32];
  int64_t version;
  struct run_start start;    /* of the last opening; its run is not kept */
  int opens, batches, steps; /* steps: rounds' own */
  int checks;                /* of samples; the counts of batches and groups are without them */
  int last_groups;           /* of the last step, or of the batches since */
  double last_denominator;
  size_t last_pushes;
  int verified;             /* batches that were to be; of the last of them: */
  int32_t exact_from;       /* its first sample's */
  int references, wrong_references; /* groups that brought the reference's log-probabilities; with others than
                                     * fake_reference's */
  char step_id[64];
  bool failed_step;       /* step_id is remembered as failed, until it is submitted again */
  bool full_then;         /* disk_full, when it was submitted */
  int round_steps;        /* inner steps since the version */
  bool other_steps;       /* inner steps end in other weights than the first time */
  char order[FAKE_ORDER]; /* of what it took, with the groups' ordinals: "b0[0,2] s0[0,2]/24 b1[1] step[1]/12" */
  char inner[FAKE_INNER_STEPS][64];
  int inner_count; /* of these, the newest FAKE_INNER_STEPS are known */
  struct {
    char id[64];
    struct buf answer;
  } batch[FAKE_BATCHES]; /* the newest */
};

float fake_logprob(int32_t token);
/* Of a sample of a prompt "<digit>+0=": "#<digit>" and the end; of one that is not right another digit. */
int32_t fake_token(int position, int32_t digit, bool right);
bool fake_is_right(int64_t sample); /* by a sample's place in its group */
float fake_reference(int32_t token); /* under the reference, as fake preprocessors compute it */
void fake_digest(struct digest *out, const char *run, int64_t version);

/* Begins to answer under t->url; what the test sets beforehand stays. */
enum rc fake_trainer_start(struct fake_trainer *t, struct err *err);
/* Nobody answers under t->url any more; what it has been told can still be read. */
void fake_trainer_stop(struct fake_trainer *t);
/* Stops it, and frees what it keeps; t itself is the caller's. */
void fake_trainer_free(struct fake_trainer *t);
/* From now on steps are done when they are asked for (see slow_steps). */
void fake_trainer_finish_steps(struct fake_trainer *t);
/* The same for batches (see slow_batches) and checks (see slow_checks). */
void fake_trainer_finish_batches(struct fake_trainer *t);
void fake_trainer_finish_checks(struct fake_trainer *t);
/* As after a start from nothing: no run, no batches and no step; version 0 is of other weights than before, or of the
 * same. */
void fake_trainer_forget(struct fake_trainer *t, bool other_weights);
/* How often it has been asked to open a run, and how many batches, steps and checks it has been sent so far. */
int fake_trainer_opens(struct fake_trainer *t);
int fake_trainer_batches(struct fake_trainer *t);
int fake_trainer_steps(struct fake_trainer *t);
int fake_trainer_checks(struct fake_trainer *t);
/* What it took so far: `order`. */
void fake_trainer_order(struct fake_trainer *t, char out[FAKE_ORDER]);

#endif
