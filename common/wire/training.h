/* Messages between the coordinator and the trainer-server: open a run, submit a batch, step, and announce the version
 * that the step made.  The trainer answers a batch with its own log-probabilities, and the coordinator compares.  It
 * receives those that the samplers recorded only where several versions sampled, with update "inflight": its loss needs
 * them, and its answer does not depend on them. */
#ifndef LEASEHOLD_WIRE_TRAINING_H
#define LEASEHOLD_WIRE_TRAINING_H

#include "common/wire/interval.h"
#include "common/wire/lease.h"

/* When the optimizer steps. */
enum update_rule {
  UPDATE_STRICT,    /* "strict": once a round; left out of messages, as in those from before there was a choice */
  UPDATE_MINIBATCH, /* "minibatch": inner steps too, see struct submit_step */
  UPDATE_INFLIGHT   /* "inflight": once a round, over samples of earlier versions, which bring behaviour
                     * log-probabilities */
}; /* the last two not for "evaluate" and "cross_entropy" */

/* Names are those of the model module's parsers ("grpo", "tokens", "cosine"); the trainer maps and checks them. */
struct training_config {
  /* "grpo" | "reinforce" | "ppo" | "gspo" | "cispo" | "decoupled_ppo" | "tis" | "cross_entropy" | "evaluate" (no
   * training) */
  const char *objective;
  double clip_low, clip_high;
  double importance_cap; /* of "tis", at least 1; 0 for the others, and then left out of messages */
  double kl_coefficient;
  /* The KL term's fields; each is left out of messages where it has its default: "k3", "loss", "" and 0. */
  const char *kl_estimator; /* "k1" | "k2" | "k3" */
  const char *kl_in; /* "loss" | "reward": then the trainer takes it off the advantages, whose kind it is told: */
  const char *advantage;    /* "leave_one_out" | "group_centered"; "" unless kl_in is "reward" */
  double kl_target;          /* of a token, by the estimator: kl_coefficient is adapted to it after each round; 0: it is
                              * constant */
  int32_t kl_horizon;        /* samples in which it may change by a fifth; with kl_target, else 0 */
  /* The digest, in hex, of weights that are the reference in the place of version 0's: a teacher's, which computes all
   * passes (trainer-server --role teach); the trainer has them not. "": none. */
  const char *teacher;
  int32_t reference_every;   /* rounds after which the reference becomes the weights of then; 0: never */
  double entropy_coefficient;
  int32_t length_max;        /* of normalization "length": the longest that a completion may be; else 0 */
  const char *normalization; /* "tokens" | "samples" | "sequences" | "length" */
  double lr, beta1, beta2, eps, weight_decay, clip_norm, lr_min_ratio;
  const char *schedule; /* "constant" | "linear" | "cosine" */
  int32_t warmup_steps, total_steps;
  double temperature;       /* of the behaviour policy */
  struct sampling_cut cut;  /* likewise; where other weights sampled, the current ones' rows are cut by their own
                             * logits */
  int32_t chunk_tokens;     /* budget that cuts a unit into chunks */
  int32_t checkpoint_every; /* rounds; the last round always writes one */
  /* "optimizer_moments": "8bit" rather than "32bit", which is left out; the trainer must have been started so. */
  bool moments8;
  enum update_rule update;
};
const char *training_moments_name(bool moments8);
void training_config_defaults(struct training_config *c);
void training_config_write(const struct training_config *c, struct json_writer *w); /* an object */
/* Over defaults */
enum rc training_config_read(struct training_config *c, const struct json *value, struct arena *arena, struct err *err);
/* RC_INVALID where its loss cannot have its cut; under the name of what cuts. */
enum rc training_config_check_cut(const struct training_config *c, struct err *err);

/* What a posted configuration may leave to be resolved, and a trainer needs: `advantage` and `length_max`. */
enum rc training_config_complete(const struct training_config *c, struct err *err);

/* Where the weights of a run's version 0 come from. */
enum start_from {
  START_UNNAMED,   /* left out, as in older messages and configurations: the same as START_CURRENT */
  START_MODEL,     /* "model": the trainer's model folder, or its seed */
  START_CURRENT,   /* "current": what the trainer holds */
  START_CHECKPOINT /* {"run", "version"}: a checkpoint of the trainer's */
};
struct run_start {
  enum start_from from;
  const char *run;
  int64_t version;
};
/* A value; not for START_UNNAMED. */
void run_start_write(const struct run_start *s, struct json_writer *w);
enum rc run_start_read(struct run_start *s, const struct json *value, struct arena *arena, struct err *err);

/* POST trainer /v1/runs: idempotent by run.  The run starts from the weights that `start` says; optimizer state
 * is fresh (kept for "evaluate").  A trainer that holds an older version than current_version is replaying until the
 * logged rounds, submitted again, have made it reach that version. */
struct open_run {
  const char *run;
  uint64_t epoch, fence, seed;
  int64_t current_version; /* the coordinator's recorded version; absent: 0.  A repeat may have another */
  struct run_start start;
  struct training_config training;
};
struct open_run_answer {
  const char *run;
  int64_t version;
  struct digest digest;
  bool replaying; /* "state": "ready" | "replaying" */
};

/* POST trainer /v1/check-run: tells whether such a run could be opened.  Nothing changes. */
struct check_run {
  struct run_start start;
  struct training_config training;
};
struct check_run_answer {
  int32_t context_max; /* the longest sequence that the trainer takes */
};

/* POST trainer /v1/submit-batch: idempotent by batch id. 409 when version is not the trainer's, or epoch or fence is
 * stale. */
struct batch_sample {
  const char *id;          /* "r7.12.3.0" */
  struct json_i32s tokens; /* prompt and completion */
  int32_t prompt_length;   /* >= 1 */
  struct sample_segment *segments;
  size_t segment_count; /* over the completion */
  float advantage;
  /* One for each trained token, as the sampler recorded it; none but in a run with update "inflight". */
  struct json_f32s behaviour;
  /* One for each trained token, where the group says so. */
  struct json_f32s reference;
  /* In a batch that is verified: the version drew the trained tokens from this one on, and computed all that they
   * attended to; the number of trained tokens: none. -1: the worker that drew the sample does not promise equal
   * bits. */
  int32_t exact_from;
};
struct batch_group {
  const char *id;
  /* Its samples bring the log-probabilities of the run's version 0, as a pass computed them (passes.h), and the trainer
   * computes none; only of a run with a KL term.  false is left out of messages. */
  bool has_reference;
  int64_t round;   /* in which it was issued; of a batch that is verified, else 0 and left out of messages */
  int64_t ordinal; /* in its round, refills counted; of a check or of such a batch, else 0 and left out of messages */
  /* In a check: where all draws are the same the trainer may take its gradient at once; the batch that has the same
   * group later finds it done.  false is left out of messages. */
  bool ahead;
  /* For a group that goes ahead: logprobs_digest of the log-probabilities recorded for its samples.  Where the
   * trainer's own differ the group will be refused, so its gradient stays out.  Zero, and left out of messages: any
   * will do. */
  struct digest recorded_sha256;
  struct batch_sample *samples;
  size_t sample_count;
};
/* What the uniforms of a batch's tokens are keyed by, besides their group, sample and position (base/philox.h). */
struct draw_check {
  bool wanted; /* false: the batch is trained on, and the message has no check */
  uint64_t seed;
  int64_t round;
};
/* How the samples of a batch with update "inflight" are judged by the forward pass that their gradient is taken of, and
 * what a sample may be off where other versions drew its tokens.  A group of a sample that is refused stays out of the
 * sums, and the answer says why. */
struct batch_verify {
  bool wanted;
  bool inexact_too;     /* those that promise nothing are held against mismatch_most */
  uint64_t seed;        /* as struct draw_check's; the round is the group's */
  double mismatch_most; /* |behaviour - own log-probability| in nats, the mean over trained tokens */
  /* The share of trained tokens that the version would only draw from uniforms that are farther than draws_near off. */
  double draws_near, draws_most;
};
struct submit_batch {
  const char *batch_id; /* "r7.12.b0" */
  const char *run;
  uint64_t epoch, fence;
  int64_t version;
  int32_t after_steps; /* inner steps of the round that come before; 0 is left out of messages */
  /* Wanted: nothing is trained on, but groups `ahead`.  The trainer draws every token of the groups' samples, which are
   * all of a group's, in order, again: from its own logits and the token's uniform.  The answer names the first that
   * differs of each sample. */
  struct draw_check check;
  struct batch_verify verify; /* not of a check */
  struct batch_group *groups;
  size_t group_count;
};

/* No finite gradient of float32 numbers has a norm near it, and it is representable with room to spare. */
#define WIRE_GRAD_NORM_MAX 1e300

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_FAILED }; /* "queued" | "running" | "done" | "failed" */

/* Under the weights of the batch's version, also after inner steps. */
struct sample_logprobs {
  const char *id;
  struct json_f32s logprobs;  /* one per trained token */
  struct json_f32s entropies; /* of the distributions behind them, in nats, where they are told: as many, or none */
};
/* The first token of a sample that the batch's version would not have drawn. */
struct draw_difference {
  const char *id;
  int32_t position; /* in the completion */
  int32_t token;    /* that it would have drawn */
  float logprob;    /* of that one; the given one's is among the sample's */
};
/* What a sample of a batch that is verified is refused for. */
enum refusal_reason {
  REFUSED_TOKEN,   /* "token": an exact token is not what the version draws */
  REFUSED_LOGPROB, /* "logprob": an exact token's log-probability has other bits */
  REFUSED_DRAWS,   /* "draws": the version draws too many of its tokens from far other uniforms */
  REFUSED_MISMATCH /* "mismatch": its log-probabilities are too far off */
};
struct sample_refusal {
  const char *id;
  enum refusal_reason reason;
  int32_t position; /* in the completion: the first token of that kind; of "mismatch" the farthest off */
  int32_t token;    /* there: "token": that the version draws; "draws": from the nearest uniform; else that was sent */
  float token_logprob; /* of that one; not a number where it was not asked for */
  float logprob;       /* of the one that was sent */
  int32_t unequal;     /* exact tokens whose log-probabilities have other bits */
  int32_t far;         /* trained tokens that the version draws from uniforms farther than draws_near off */
  double mismatch;     /* as mismatch_most */
};
/* SHA-256 over every sample's id, count and float32s, in order: two sides compare 32 bytes instead of all numbers. */
void logprobs_digest(struct digest *out, const struct sample_logprobs *samples, size_t count);
struct batch_stats {
  double loss, entropy_sum, kl_reference_sum, ratio_sum, ratio_squares;
  /* Sums over tokens, see struct loss_stats; exactly 0, and then left out of messages, before the first inner step. */
  double kl_new_old, difference_new_old;
  int64_t tokens, clipped, samples;
  int64_t logprob_us; /* in forward passes, for the trainer's own log-probabilities */
  int64_t compute_us; /* in the loss (the reference's forward included), the backward pass and the sums */
  bool poisoned;
};
/* Which numbers of samples a status has. */
enum { STATUS_LOGPROBS = 1, STATUS_ENTROPIES = 2 };
/* GET trainer /v1/batches/{id}?wait_ms=&logprobs=&entropies= : long poll until done or failed. */
struct batch_status {
  const char *batch_id;
  enum job_state state;
  struct err error; /* when failed */
  struct sample_logprobs *samples;
  size_t sample_count;           /* when done; 0 when only their digest was asked for (logprobs=0) */
  int numbers;                   /* STATUS_*, to be written; 0: STATUS_LOGPROBS.  As JSON entropies come beside these
                                  * only */
  struct digest logprobs_sha256; /* when done, else zero: logprobs_digest */
  struct draw_difference *differences; /* when done: of a check; none is left out of messages */
  size_t difference_count;
  /* When done: of a batch that is verified; none is left out of messages.  The groups of these samples are not in the
   * sums, nor in samples, logprobs_sha256 and stats. */
  struct sample_refusal *refusals;
  size_t refusal_count;
  struct batch_stats stats;
  struct interval *intervals; /* when done: what the engine did since the last answer, until the end of this batch */
  size_t interval_count;
};

/* POST trainer /v1/submit-step: one optimizer step over the run's units since the last, then durable, then pushed,
 * then POST coordinator /v1/versions. Idempotent by step id.
 *
 * With announce_first the version is announced at once, which ends the step, and pushed afterwards, while the next one
 * is computed; so is its checkpoint written, which the next step waits for, but the last one's before it is announced.
 * Until then the newest checkpoint and the record of the rounds since make it durable.  Its answer has no pushes;
 * push_us, checkpoint_us and the intervals of both come with the answer of a later step.
 *
 * An inner step ends with the optimizer step: no version, nothing durable, nothing pushed.  The round's own step comes
 * after all of its inner steps, over the groups that are left, which may be none.  `after_steps` lets the trainer
 * refuse (409 in the job's error) a batch or a step that is not next: a trainer that was started again has lost the
 * inner steps of its round, and is sent all batches and steps of the round again. */
enum { KEPT_VERSIONS_MAX = 4096 };
struct push_target {
  const char *worker_id;
  const char *url;
  bool shares_fabric;   /* with the trainer: the bytes may go by broadcast */
  int64_t fabric_place; /* then: where in it */
  const char *push_token; /* worker_register's; NULL: none is shown */
};
struct submit_step {
  const char *step_id; /* the round: "r7.12", or an inner step of it: "r7.12.s0" */
  const char *run;
  uint64_t epoch, fence;
  int64_t version; /* the version that is stepped from */
  const char **groups;
  size_t group_count; /* the units that must have been accumulated, exactly */
  double denominator; /* tokens, samples or sequences of the groups */
  bool last;  /* the run's last round: write a checkpoint whatever checkpoint_every says; never of an inner one */
  bool inner; /* false is left out of messages; true: at least one group, and no push_to */
  int32_t after_steps; /* inner steps of the round that come before; 0 is left out of messages */
  bool announce_first; /* false is left out of messages; never of an inner step */
  bool checkpoint;     /* write one whatever checkpoint_every says; as announce_first */
  /* Which of the run's checkpoints stay from now on, besides version 0's: the newest keep_last (0: as the trainer was
   * started to keep, and left out of messages), and those of keep_versions (none: left out). */
  int32_t keep_last;
  struct json_i32s keep_versions;
  struct push_target *push_to;
  size_t push_count;
  int32_t stage_timeout_ms;
};
enum push_way { PUSH_NONE, PUSH_HTTP, PUSH_FABRIC };
struct push_report {
  const char *worker_id;
  bool staged;
  enum push_way way; /* by which it was reached: "http", "fabric", or null */
  struct digest digest;
  const char *error;
};
struct step_status {
  const char *step_id;
  enum job_state state;
  struct err error;
  int64_t version;      /* the new one; of an inner step the round's */
  struct digest digest; /* of the weights after the step, also of an inner one */
  double grad_norm, lr; /* of a round's own step without groups: of its last inner step */
  /* A poisoned step changes no weight and still makes a version.  Of a round's own step: nor did any inner step. */
  bool skipped;
  int64_t step_us, checkpoint_us, push_us;
  /* When done: the oldest version above 0 whose checkpoint is kept for a restart; 0: only version 0's is.
   * keep_versions do not count. */
  int64_t oldest_checkpoint;
  struct json_i32s checkpoints; /* when done: the versions whose checkpoints are kept, oldest first; none is left out */
  struct push_report *pushes;
  size_t push_count;
  struct interval *intervals; /* when done: as a batch's; and the publisher's push */
  size_t interval_count;
};

/* POST coordinator /v1/versions */
struct version_announce {
  const char *run, *step_id, *worker_id;
  uint64_t epoch, fence;
  int64_t version;
  struct digest digest;
  double grad_norm, lr; /* of the step that made it, as step_status says them: so they outlive a trainer that is lost
                         * now.  NAN: null */
  bool skipped;
  struct push_report *pushes;
  size_t push_count;
};

/* POST generation-server /v1/push-weights: a safetensors body; query run, version, epoch; header X-Leasehold-Digest
 * with the digest the trainer computed.  Instead of a body the request may say where the server finds a broadcast of
 * the bytes: */
struct push_broadcast {
  const char *token; /* of the communicator: see common/comm/fabric.h */
  int rank, size;    /* the server's */
  size_t bytes;      /* of the file */
  int64_t wait_ms;   /* how long the server waits for the broadcast */
};
struct push_answer {
  bool staged;
  struct digest digest;
}; /* computed by the server from its own memory */

void open_run_encode(const struct open_run *m, struct buf *out);
enum rc open_run_decode(struct open_run *m, const struct json *body, struct arena *arena, struct err *err);
void open_run_answer_encode(const struct open_run_answer *m, struct buf *out);
enum rc open_run_answer_decode(struct open_run_answer *m, const struct json *body, struct arena *arena,
                               struct err *err);
void check_run_encode(const struct check_run *m, struct buf *out);
enum rc check_run_decode(struct check_run *m, const struct json *body, struct arena *arena, struct err *err);
void check_run_answer_encode(const struct check_run_answer *m, struct buf *out);
enum rc check_run_answer_decode(struct check_run_answer *m, const struct json *body, struct arena *arena,
                                struct err *err);
void submit_batch_encode(const struct submit_batch *m, struct buf *out);
enum rc submit_batch_decode(struct submit_batch *m, const struct json *body, struct arena *arena, struct err *err);
void batch_status_encode(const struct batch_status *m, struct buf *out);
enum rc batch_status_decode(struct batch_status *m, const struct json *body, struct arena *arena, struct err *err);
/* The same as safetensors, the form that the services send: training_batch_tensors.c. */
enum rc submit_batch_encode_tensors(const struct submit_batch *m, struct buf *out, struct err *err);
enum rc submit_batch_decode_tensors(struct submit_batch *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err);
enum rc batch_status_encode_tensors(const struct batch_status *m, struct buf *out, struct err *err);
enum rc batch_status_decode_tensors(struct batch_status *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err);
/* The digest of what a batch asks for, in whichever form it came: everything but epoch, fence and the reference's
 * log-probabilities, which are the same wherever they are computed: a batch may come again with or without them. */
void submit_batch_digest(struct digest *out, const struct submit_batch *m);
/* The digest of a group's samples, likewise. */
void batch_group_digest(struct digest *out, const struct batch_group *g);
void submit_step_encode(const struct submit_step *m, struct buf *out);
enum rc submit_step_decode(struct submit_step *m, const struct json *body, struct arena *arena, struct err *err);
void step_status_encode(const struct step_status *m, struct buf *out);
enum rc step_status_decode(struct step_status *m, const struct json *body, struct arena *arena, struct err *err);
void version_announce_encode(const struct version_announce *m, struct buf *out);
enum rc version_announce_decode(struct version_announce *m, const struct json *body, struct arena *arena,
                                struct err *err);
void push_answer_encode(const struct push_answer *m, struct buf *out);
enum rc push_answer_decode(struct push_answer *m, const struct json *body, struct arena *arena, struct err *err);
const char *job_state_name(enum job_state s);
/* RC_INVALID naming the states. */
enum rc job_state_read(enum job_state *out, const char *text, struct err *err);
const char *push_way_name(enum push_way way); /* NULL for PUSH_NONE */

#endif
