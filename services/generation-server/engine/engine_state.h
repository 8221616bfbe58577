/* The engine's memory, shared by engine.c (thread, messages), engine_step.c (one forward pass), activation.c (swaps of
 * weights) and sample_life.c (slots, pages, endings); no other file includes it.  The engine's thread owns everything
 * but the fields that say otherwise. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_STATE_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/queue.h"
#include "common/model/network/forward.h"
#include "common/wire/worker.h"
#include "services/generation-server/engine/engine_options.h"
#include "services/generation-server/engine/scheduler.h"

enum {
  ENGINE_LOGITS_ROWS = 64, /* rows of logits computed at once: bounds the buffer, V wide */
  ENGINE_DRAWS = 256       /* tokens drawn from them at once: several from the last row of a group's prompt */
};

/* One computed row of the step whose logits are drawn from. */
struct pick {
  int32_t row, logits; /* logits: where they lie while they are at hand */
  struct sample *sample; /* draws its next token */
  bool for_group;        /* the prompt's last position: every sample of the job without a token draws */
  int32_t judges;        /* the prompt's position whose token the row's logits judge; nothing is drawn.  0: none */
};

struct engine {
  struct engine_options options;
  const struct model *model;
  struct weights *active; /* NULL before the first activation */
  struct policy policy;
  int64_t swap; /* how many sets of weights were activated */
  bool swapped; /* `activated` was not called yet */
  bool nonfinite;           /* a lease's job drew what is not finite in this step */
  struct weights *replaced; /* by the last swap */
  struct kv_cache *kv;
  struct workspace *ws;
  struct sampler *sampler;

  /* Unfinished samples, oldest first. */
  struct sample **live;     /* [samples_max] */
  struct sched_item *items; /* [samples_max] */
  int *take;                /* [samples_max] rows of this step */
  int live_count;
  struct decode_job *ended;    /* their done is called once the step is over */
  const struct follower *told; /* woken once the step is over; all jobs of a server have the same one */
  bool *slot_used;             /* [slots] */
  int slots_busy, leased_busy;

  /* One step. */
  int64_t step; /* its number */
  int rows_max, pages_per_sequence;
  int32_t *sequence, *position, *computed; /* [rows_max] which of the computed rows each row is */
  int32_t *tokens, *computed_sequence, *computed_position; /* [rows_max] of the computed rows */
  int32_t *pages;                        /* [slots, pages_per_sequence] */
  struct pick *picks;                    /* [rows_max] */
  int row_count, computed_count, pick_count, judged_count; /* judged_count: picks that judge */
  int32_t pick_rows[ENGINE_LOGITS_ROWS];                    /* computed rows whose logits are at hand */
  const struct decode_job *pick_jobs[ENGINE_LOGITS_ROWS];   /* and the jobs that they are of */
  int32_t *logits_row;                                      /* [rows_max] where these lie; -1: not at hand */
  float *logits; /* [ENGINE_LOGITS_ROWS, V] */
  struct draw draws[ENGINE_DRAWS];
  struct sample *drawn[ENGINE_DRAWS]; /* the sample that each draw is for */
  const struct sampling_params *params[ENGINE_DRAWS];
  int draw_count;

  struct queue *inbox; /* of struct message */
  pthread_t thread;
  bool started;
  atomic_bool stop;

  /* Of activation.c. */
  int64_t step_begin_us, step_end_us; /* of the last step: its end is when all was told that followed from it */
  int64_t step_us;                    /* how long the last step took that only decoded */
  bool step_decoded;                  /* the last one did */
  int64_t paused_since_us;      /* weights were swapped since the last step; 0: no */
  int64_t recompute_since_us;
  atomic_bool recomputing; /* a sample that lost keys and values in its slot has drawn no token since; read anywhere */
  struct metric *metric_pause, *metric_recompute;

  bool failed; /* the device did */
  atomic_bool paused;  /* no step is computed; set by the engine, read anywhere */
  atomic_bool pausing; /* so will it be when the jobs that are not `late` have ended; likewise */

  pthread_mutex_t mutex; /* guards shown, shown_valid and failure, which other threads read */
  struct policy shown;
  bool shown_valid;
  struct err failure; /* rc RC_OK: none */

  atomic_llong tokens_sampled, steps, rows, rows_shared, preemptions, activations, pauses, pause_us, recomputed,
      busy_slot_us;
  struct {
    atomic_llong steps, rows, us;
  } by_rows[WIRE_STEP_SLOTS];
  atomic_int shown_slots_busy, shown_waiting, shown_pages_free;
};

#endif
