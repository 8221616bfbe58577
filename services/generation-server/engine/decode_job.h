/* A decode job: one prompt and the samples to be drawn from it.  A lease is one decode job (samples of one group), a
 * plain request is one for each of its prompts (n choices).
 *
 * Life:  made by an HTTP thread or the lease puller, all its memory at once, so that the token loop allocates nothing
 *        -> engine_submit: owned by the engine's thread
 *        -> job->done: owned by the callee (poster, streamer or replier), who calls decode_job_free.
 *
 * While the engine owns it one other thread, its follower, may read tokens as they come: the engine counts them up in
 * sample->shown after each is written, sets sample->over when no more will come, and wakes the follower once a step.
 * Nothing is copied and neither waits for the other; a slow follower finds more tokens at once.
 *
 * The samples of a job share the prompt's pages: one of them, the leader, computes the prompt; at its last position
 * all are forked and each draws its first token from the same row of logits. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_DECODE_JOB_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_DECODE_JOB_H

#include <stdatomic.h>

#include "common/base/philox.h"
#include "common/model/network/kv_cache.h"
#include "common/model/network/sampler.h"
#include "common/model/tokenizer/stop_text.h"
#include "common/wire/lease.h"

/* Which weights something was computed with. */
struct policy {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
};

enum decode_state { DECODE_WAITING, DECODE_RUNNING, DECODE_DONE };

struct decode_job;

struct sample {
  struct decode_job *job;
  int32_t index; /* within the group; the choice of a plain request */
  enum decode_state state;
  enum finish_reason finish; /* when done */
  int slot;                  /* -1: none */
  int32_t count;             /* tokens so far */
  int32_t *tokens;           /* [max_new] */
  float *logprobs;           /* [max_new] */
  int64_t *versions;         /* [max_new] of the weights that each token was drawn from */
  bool *fresh;               /* [max_new] whether all keys and values that it attended to were of these weights too */
  int32_t *top_tokens;       /* [max_new, job->top_count] */
  float *top_logprobs;       /* [max_new, job->top_count] */
  struct digest digest;      /* of the weights active when it ended */
  struct kv_sequence kv;     /* kv.length: positions computed (between steps) */
  int64_t kv_swap;           /* engine->swap when position 0 was computed; later positions are of this swap or later
                              * ones */
  struct stop_state matching; /* how much of the job's stop texts its tokens end with */
  bool kv_used;              /* a token was drawn from it */
  bool kv_judged;            /* a token was drawn from all of it, which shows what is not finite */
  bool recomputing;          /* lost it in its slot when weights were swapped, and has drawn no token since */
  struct sample *head;        /* whose first tokens are this one's (branches.h); itself where there is no other */
  struct sample *parted_from; /* of a head: whose token parted_at was another one; NULL: of none */
  int32_t parted_at;
  struct sample *maker; /* of a head: one of its followers, or itself, whose row the others may have in the same step */
  struct row_name {
    int64_t step; /* 0: none */
    int32_t row;  /* among the step's computed rows */
  } row, row_before; /* the last that it had, and the one before; none of keys and values that are gone */

  atomic_int shown;      /* the arrays above are final up to here: a follower may read so far */
  atomic_bool over;      /* so are finish and digest */
  atomic_bool text_over; /* set by the follower: a stop text has come, so the engine ends the sample */
};

/* Woken after each step that gave tokens to its jobs.  Outlives the engine. */
struct follower {
  void (*wake)(void *context); /* on the engine's thread; must not block */
  void *context;
};

enum decode_job_kind { DECODE_JOB_OF_LEASE, DECODE_JOB_OF_REQUEST };
enum decode_job_end {
  DECODE_JOB_COMPLETE,    /* every sample finished */
  DECODE_JOB_HANDED_BACK, /* draining, or the lease is not valid for the active weights: partial samples go back */
  DECODE_JOB_DROPPED      /* cancelled: its result is not wanted */
};

struct decode_job {
  struct arena arena; /* holds everything below but the page lists */
  enum decode_job_kind kind;
  char id[LIMIT_NAME_MAX];
  uint64_t fence; /* of a lease; else 0 */
  int32_t *prompt;
  int32_t prompt_count, max_new;
  struct sampling_params sampling;
  int32_t stop[2 * LIMIT_STOP_TOKENS];
  int stop_count;
  struct rng_key key;               /* .sample is filled in per sample */
  char run[LIMIT_NAME_MAX];         /* a lease's, as are the next five */
  int64_t version_min, version_max; /* equal: the lease holds for the weights of weights_digest alone */
  int64_t version_reached;          /* of the newest token that it brought: older weights must not continue it */
  bool recompute_kv;                /* keys and values are computed again when weights are swapped */
  struct digest weights_digest;
  struct sampling_params cut;        /* of a lease: rows are cut before draws, as the trainer's are; all zero: not */
  struct stop_texts stops;           /* of a lease: a sample ends with the token that completes one */
  const struct tokenizer *tokenizer; /* borrowed; where there are stop texts */
  struct sample *samples;
  int32_t sample_count, done_count;
  bool raw_logprobs;               /* log-probabilities are those of the distribution before temperature and cuts */
  int32_t top_count;               /* likeliest tokens kept beside each one, raw too; 0: none */
  struct logit_changes changes;    /* to the logits that tokens are drawn from; none of a lease */
  bool changed;                    /* there are some */
  /* For the prompt's tokens, raw: NULL where no client asked.  Final once a sample has shown a token.  The first token
   * has none: NaN. */
  float *prompt_logprobs;     /* [prompt_count] */
  int32_t *prompt_ranks;      /* [prompt_count] places of the prompt's tokens among all, from 1 on */
  int32_t *prompt_top_tokens; /* [prompt_count, top_count] */
  float *prompt_top_logprobs; /* [prompt_count, top_count] */
  const struct follower *follower; /* NULL: tokens are read at the end only */

  /* The engine's. */
  struct sample *leader; /* computes the prompt; NULL: none was chosen yet, for the active weights */
  bool prompt_ready;     /* by the active weights */
  bool prompt_judged;    /* once: prompt_logprobs are final when the step is over */
  bool taken;            /* the engine had weights for it */
  bool late;             /* it came while the engine waited for the others to end before a pause */
  enum decode_job_end end;
  bool nonfinite;            /* a lease's: it drew a log-probability that is not finite, so it ends with that step */
  int64_t nonfinite_version; /* of the weights that it was drawn from */
  struct policy policy; /* active when the job ended; of a lease that newer weights void: before them */
  struct decode_job *next_ended;

  /* Called on the engine's thread; must not block. */
  void (*sample_done)(struct decode_job *job, void *context); /* a sample has ended, finished or not; may be NULL */
  void (*done)(struct decode_job *job, void *context);        /* the job is the callee's again */
  void *context, *owner;
  /* Set by another thread when the job's result is not wanted any more; the engine looks between two steps.  NULL:
   * never.  The second one is of this job alone where several share the first. */
  const atomic_bool *abandoned, *abandoned_alone;
};

struct decode_job_spec {
  enum decode_job_kind kind;
  const char *id;
  uint64_t fence;
  const int32_t *prompt;
  int32_t prompt_count, max_new;
  struct sampling_params sampling;
  const int32_t *stop;
  int stop_count;
  struct rng_key key;
  int32_t sample_first, sample_count;
  bool raw_logprobs;
  int32_t top_count;                   /* cut to the vocabulary */
  const struct logit_changes *changes; /* copied; NULL: none */
  bool prompt_logprobs;                /* those of the prompt's tokens are kept too */
};

/* Checks against the model and the pool: prompt ids within the vocabulary, prompt + max_new within context and pages
 * (RC_INVALID, with the numbers). */
enum rc decode_job_create(struct decode_job **out, const struct decode_job_spec *spec, const struct model *m,
                          const struct kv_cache *kv, struct err *err);
/* A lease, with the tokens that an earlier holder handed back, and their version spans.  tokenizer: borrowed; NULL: a
 * lease with stop texts is refused. */
enum rc decode_job_of_lease(struct decode_job **out, const struct lease *lease, const struct model *m,
                            const struct tokenizer *tokenizer, const struct kv_cache *kv, struct err *err);
/* The samples' pages must have been given back. NULL is fine. */
void decode_job_free(struct decode_job *job);

/* Is it one of the job's stop tokens? */
bool sample_stops_at(const struct decode_job *job, int32_t token);
/* Reads the sample's newest token: a stop token, or the one that completes a stop text, ends it.  Once for every token,
 * in order. */
bool sample_stops(struct sample *s);
/* Positions of a sample: prompt and tokens. */
int32_t sample_length(const struct sample *s);
int32_t sample_token_at(const struct sample *s, int32_t position);

/* The result message of a lease's job; memory in the arena. */
enum rc decode_job_result(struct lease_result *out, const struct decode_job *job, struct arena *arena, struct err *err);
/* Version spans of a sample's tokens. NULL when memory is refused. */
struct version_span *sample_spans(const struct sample *s, size_t *count, struct arena *arena);

#endif
