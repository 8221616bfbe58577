/* Computes made-up groups and a step with the engine's own functions.
 *
 *   a small group --> four times as many rows, again and again, while there is time --> the run's shape, several at once --> a step
 *
 * The quickest counts: what else the machine did meanwhile is not the trainer's.  Where there is no time for the run's
 * shape its time lies on the line through the last two sizes. */
#include "services/trainer-server/foresee/measure.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/trainer-server/engine/batch.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/start_weights.h"
#include "services/trainer-server/engine/step.h"

enum { GROWTH = 4, SMALL_PROMPT = 8, SMALL_COMPLETION = 8, GROUPS_A_LANE = 4, STEPS = 5, STEP_US_QUICK = 100000 };

/* Of a group. */
struct shape {
  int samples, prompt, completion;
};

static int rows_of(const struct shape *s) { return s->samples * (s->prompt + s->completion); }
static bool same(const struct shape *a, const struct shape *b) {
  return a->samples == b->samples && a->prompt == b->prompt && a->completion == b->completion;
}
static int least(int a, int b) { return a < b ? a : b; }

/* No longer than a sample may be: what the run lets it have is a bound of sampling. */
static struct shape shape_of(const struct engine *e, const struct check_run *run, const struct foresight_request *q) {
  const int most = least(run->training.chunk_tokens, e->model->context_max), prompt = least(q->prompt_tokens, most - 1);
  return (struct shape){q->samples, prompt, least(q->new_tokens, most - prompt)};
}

/* ---- groups ---- */

/* A number below `most` that is another one for every token. */
static int32_t made_up(uint32_t group, uint32_t sample, uint32_t position, int32_t most) {
  uint32_t x = group * 0x9e3779b9u ^ sample * 0x85ebca6bu ^ position * 0xc2b2ae35u;
  x = (x ^ x >> 16) * 0x7feb352du;
  return (int32_t)((x ^ x >> 15) % (uint32_t)most);
}

static bool numbers_add(struct json_f32s *out, size_t count, bool wanted, struct arena *arena) {
  if (!wanted) return true;
  *out = (struct json_f32s){arena_alloc(arena, count + 1, sizeof *out->items), count};
  for (size_t i = 0; out->items && i < count; i++) out->items[i] = -1;
  return out->items != NULL;
}

static bool sample_make(struct batch_sample *out, const struct engine *e, const struct shape *s, uint32_t group,
                        uint32_t sample, struct arena *arena) {
  const size_t length = (size_t)(s->prompt + s->completion);
  int32_t *tokens = arena_alloc(arena, length, sizeof *tokens);
  struct sample_segment *segment = arena_alloc(arena, 1, sizeof *segment);
  if (!tokens || !segment) return false;
  for (size_t i = 0; i < length; i++)
    tokens[i] = made_up(group, i < (size_t)s->prompt ? 0 : sample + 1, (uint32_t)i, e->model->config.vocabulary);
  *segment = (struct sample_segment){.count = s->completion, .loss_mask = true};
  *out = (struct batch_sample){.id = "measured",
                               .tokens = {tokens, length},
                               .prompt_length = s->prompt,
                               .segments = segment,
                               .segment_count = 1,
                               .advantage = sample % 2 ? 1 : -1};
  const struct training_config *c = &e->run.training;
  return numbers_add(&out->behaviour, (size_t)s->completion, run_config_takes_behaviour(c), arena) &&
         numbers_add(&out->reference, (size_t)s->completion, c->teacher[0] != 0, arena);
}

static enum rc batch_make(struct submit_batch *out, const struct engine *e, const struct shape *s, int groups,
                          struct arena *arena, struct err *err) {
  struct batch_group *made = arena_alloc(arena, (size_t)groups, sizeof *made);
  bool there = made != NULL;
  for (int g = 0; there && g < groups; g++) {
    struct batch_sample *samples = arena_alloc(arena, (size_t)s->samples, sizeof *samples);
    made[g] = (struct batch_group){.id = "measured",
                                   .has_reference = e->run.training.teacher[0] != 0,
                                   .ordinal = g,
                                   .samples = samples,
                                   .sample_count = (size_t)s->samples};
    there = samples != NULL;
    for (int i = 0; there && i < s->samples; i++)
      there = sample_make(&samples[i], e, s, (uint32_t)g, (uint32_t)i, arena);
  }
  *out = (struct submit_batch){.batch_id = "measured",
                               .run = "",
                               .after_steps = e->run.training.update == UPDATE_MINIBATCH,
                               .groups = made,
                               .group_count = (size_t)groups};
  return there ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "%d groups to measure were refused memory", groups);
}

/* *us: how long it took. */
static enum rc groups_compute(struct engine *e, const struct shape *s, int groups, double *us, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct submit_batch batch;
  uint8_t *adds = arena_alloc(&arena, (size_t)groups, sizeof *adds);
  struct unit_report *reports = arena_alloc(&arena, (size_t)groups, sizeof *reports);
  enum rc rc = adds && reports ? batch_make(&batch, e, s, groups, &arena, err)
                               : err_set(err, RC_NO_MEMORY, NULL, "%d groups to measure were refused memory", groups);
  if (rc == RC_OK) {
    const struct batch_work work = {.in = &batch, .adds = adds, .reports = reports};
    memset(adds, 1, (size_t)groups);
    const int64_t begun_us = clock_monotonic_us();
    rc = batch_units(e, &work, &arena, err);
    *us = (double)(clock_monotonic_us() - begun_us);
  }
  arena_free(&arena);
  return rc;
}

/* ---- sizes ---- */

/* Several times the rows, towards the run's shape: longer samples first, then more of them. */
static struct shape grown(const struct shape *s, const struct shape *whole) {
  struct shape next = *s;
  next.prompt = least(s->prompt * GROWTH, whole->prompt);
  next.completion = least(s->completion * GROWTH, whole->completion);
  if (next.prompt == s->prompt && next.completion == s->completion)
    next.samples = least(s->samples * GROWTH, whole->samples);
  return next;
}

/* What groups of two sizes took, the last of them the largest that there is time for. */
struct sizes {
  struct shape shape;           /* of the last */
  double rows_before, us_before; /* of the one before; rows 0: the run's groups are the smallest that are measured */
  double us;
};

/* The first group brings the memory in and does not count; two sizes are measured whatever they take. */
static enum rc sizes_measure(struct sizes *out, struct engine *e, const struct shape *whole, int64_t end_us,
                             struct err *err) {
  struct shape s = {1, least(whole->prompt, SMALL_PROMPT), least(whole->completion, SMALL_COMPLETION)};
  *out = (struct sizes){.shape = s};
  enum rc rc = groups_compute(e, &s, 1, &out->us, err);
  if (rc == RC_OK) rc = groups_compute(e, &s, 1, &out->us, err);
  while (rc == RC_OK && !same(&s, whole)) {
    const double left_us = (double)(end_us - clock_monotonic_us());
    if (out->rows_before > 0 && GROWTH * out->us > left_us / 2) break;
    out->rows_before = rows_of(&s);
    out->us_before = out->us;
    out->shape = s = grown(&s, whole);
    rc = groups_compute(e, &s, 1, &out->us, err);
  }
  return rc;
}

/* A group costs something whatever its size, as its gradient goes into the sums, and something for each row. */
static double whole_us(const struct sizes *s, double us, const struct shape *whole) {
  if (same(&s->shape, whole)) return us;
  const double rows = rows_of(&s->shape), slope = (us - s->us_before) / (rows - s->rows_before);
  const double more = (rows_of(whole) - rows) * (slope > 0 ? slope : us / rows);
  return us + more;
}

/* ---- the whole ---- */

/* As a run is opened, without a version and its checkpoint. */
static enum rc run_begin(struct engine *e, const struct check_run *run, struct err *err) {
  struct optimizer_config o;
  enum rc rc = run_config_map(&run->training, &e->run.unit, &o, err);
  e->run.training = run->training;
  if (rc == RC_OK) rc = start_weights_initial(e, err);
  if (rc == RC_OK) rc = learning_prepare(e, err);
  if (rc != RC_OK) return rc;
  if (e->learning.behaviour) learning_freeze_behaviour(&e->learning);
  learning_begin(e, &o);
  return RC_OK;
}

/* The first takes the groups' gradients; where steps are quick the quickest of some counts, without gradients as with
 * them. */
static enum rc steps_measure(struct learning_pace *out, struct engine *e, double tokens, struct err *err) {
  const struct order order = {.kind = ORDER_STEP, .denominator = tokens};
  enum rc rc = RC_OK;
  for (int i = 0; rc == RC_OK && i < STEPS && (i == 0 || out->step_us < STEP_US_QUICK); i++) {
    struct step_result result;
    struct digest digest;
    const int64_t begun_us = clock_monotonic_us();
    rc = step_take(e, &order, &result, err);
    if (rc == RC_OK) rc = weights_digest(&digest, e->learning.weights, err);
    const double us = (double)(clock_monotonic_us() - begun_us);
    if (i == 0 || us < out->step_us) out->step_us = us;
  }
  return rc;
}

enum rc learning_measure(struct learning_pace *out, struct engine *e, const struct check_run *run,
                         const struct foresight_request *q, struct err *err) {
  const struct shape whole = shape_of(e, run, q);
  struct sizes sizes;
  double us = 0, best_us = 0;
  *out = (struct learning_pace){0};
  enum rc rc = run_begin(e, run, err);
  const int64_t end_us = clock_monotonic_us() + (int64_t)q->measure_ms * 1000;
  if (rc == RC_OK) rc = sizes_measure(&sizes, e, &whole, end_us, err);
  if (rc != RC_OK) return rc;
  const struct shape *s = &sizes.shape;
  const bool quick = sizes.us * GROUPS_A_LANE < (double)(end_us - clock_monotonic_us()) / GROWTH;
  const int at_once = least(e->options.lanes * (quick ? GROUPS_A_LANE : 1), q->groups);
  int groups = 0;
  do {
    rc = groups_compute(e, s, at_once, &us, err);
    if (groups == 0 || us < best_us) best_us = us;
    groups += at_once;
  } while (rc == RC_OK && clock_monotonic_us() + (int64_t)us < end_us);
  if (rc == RC_OK) rc = steps_measure(out, e, (double)groups * s->samples * s->completion, err);
  if (rc != RC_OK) return rc;
  out->groups = groups;
  out->rows = rows_of(s);
  out->rows_of_a_group = rows_of(&whole);
  out->group_us = whole_us(&sizes, best_us / at_once, &whole);
  return RC_OK;
}
