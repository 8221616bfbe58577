/* Has the engine, on this thread, compute prompts and decode samples: a prompt alone, then as many samples at once as
 * the server has slots and the run has samples, then fewer, so that what a step costs is known by its rows.  The
 * quickest of each counts. */
#include "services/generation-server/foresee/measure.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/safetensors/safetensors.h"

enum { STEPS = 24, STEPS_LEAST = 2, PROMPT_SHORT = 16, FEWER = 4, PROMPTS = 5, PROMPT_US_QUICK = 100000 };

struct measuring {
  struct engine *engine;
  const struct model *model;
  int32_t *prompt; /* [model->context_max] */
  int open;        /* jobs */
  atomic_bool over;
  int64_t end_us;
};

static int least(int a, int b) { return a < b ? a : b; }

static void on_done(struct decode_job *job, void *context) {
  ((struct measuring *)context)->open--;
  decode_job_free(job);
}

static enum rc job_submit(struct measuring *m, int samples, int prompt, int tokens, uint64_t number, struct err *err) {
  const struct decode_job_spec spec = {.kind = DECODE_JOB_OF_REQUEST,
                                       .id = "measured",
                                       .prompt = m->prompt,
                                       .prompt_count = prompt,
                                       .max_new = tokens,
                                       .sampling = {.temperature = 1},
                                       .key = {.seed = number, .purpose = RNG_SAMPLE},
                                       .sample_count = samples};
  struct decode_job *job;
  m->prompt[0] = (int32_t)(number % (uint64_t)m->model->config.vocabulary); /* groups have other prompts */
  enum rc rc = decode_job_create(&job, &spec, m->model, engine_kv(m->engine), err);
  if (rc != RC_OK) return rc;
  job->done = on_done;
  job->context = m;
  job->abandoned = &m->over;
  rc = engine_submit(m->engine, job, err);
  if (rc == RC_OK)
    m->open++;
  else
    decode_job_free(job);
  return rc;
}

static int64_t steps_decoded(const struct measuring *m) {
  struct engine_counters now;
  int64_t sum = 0;
  engine_read_counters(m->engine, &now);
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) sum += now.by_rows[i].steps;
  return sum;
}

/* Decodes `samples` samples at once, in groups of `each`.  Ends early when the time is over and some steps have
 * decoded. */
static enum rc decode(struct measuring *m, int samples, int each, int prompt, int tokens, struct err *err) {
  enum rc rc = RC_OK;
  for (int at = 0; rc == RC_OK && at < samples; at += each)
    rc = job_submit(m, least(each, samples - at), prompt, tokens, (uint64_t)at + 1, err);
  const int64_t before = steps_decoded(m);
  atomic_store(&m->over, rc != RC_OK);
  while (m->open > 0) {
    if (clock_monotonic_us() > m->end_us && steps_decoded(m) - before > STEPS_LEAST) atomic_store(&m->over, true);
    engine_step(m->engine);
  }
  const enum rc failed = engine_failure(m->engine, rc == RC_OK ? err : NULL);
  return rc == RC_OK ? failed : rc;
}

static enum rc weights_fill(struct loaded_model *loaded, const char *dir, struct policy *policy, struct err *err) {
  struct weights *w = loaded->weights[0];
  const struct model *m = loaded->stage_model;
  if (st_folder_has_weights(dir)) return model_weights_load(w, &policy->digest, dir, err);
  float *masters = m->ops->alloc(m->ops, m->params.elements * sizeof *masters);
  if (!masters) return err_set(err, RC_NO_MEMORY, NULL, "random weights to measure with were refused memory");
  const enum rc rc = masters_random(m, masters, 1, err);
  if (rc == RC_OK) weights_from_masters(w, masters);
  m->ops->release(m->ops, masters);
  return rc;
}

/* Of each number of rows the steps that took least in the mean: what else the machine did meanwhile is not the
 * server's. */
static void steps_keep(struct step_sum best[WIRE_STEP_SLOTS], const struct engine_counters *before,
                       const struct engine_counters *now) {
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    const struct engine_steps *a = &before->by_rows[i], *b = &now->by_rows[i];
    const struct step_sum seen = {i, b->steps - a->steps, b->rows - a->rows, b->us - a->us};
    if (seen.steps < STEPS_LEAST) continue;
    const double us = (double)seen.us / (double)seen.steps, known = (double)best[i].us / (double)best[i].steps;
    if (best[i].steps == 0 || us < known) best[i] = seen;
  }
}

/* Samples at once from the most to one, again and again while there is time. */
static enum rc steps_measure(struct sampling_pace *out, struct measuring *m, int most, int each, int prompt, int tokens,
                             int64_t budget_us, struct err *err) {
  const int64_t over_us = clock_monotonic_us() + budget_us;
  struct step_sum best[WIRE_STEP_SLOTS] = {{0}};
  enum rc rc = RC_OK;
  do {
    for (int rows = most, share = 2; rc == RC_OK; rows = rows / FEWER > 1 ? rows / FEWER : 1, share = 4) {
      struct engine_counters before, now;
      m->end_us = clock_monotonic_us() + budget_us / share;
      engine_read_counters(m->engine, &before);
      rc = decode(m, rows, least(each, rows), prompt, tokens, err);
      engine_read_counters(m->engine, &now);
      steps_keep(best, &before, &now);
      if (rows == 1) break;
    }
  } while (rc == RC_OK && clock_monotonic_us() < over_us);
  for (int i = 0; rc == RC_OK && i < WIRE_STEP_SLOTS; i++)
    if (best[i].steps > 0) out->steps[out->step_count++] = best[i];
  return rc;
}

/* *us: the time of a prompt of `prompt` tokens, the quickest of several. */
static enum rc prompt_measure(struct measuring *m, int prompt, double *us, struct err *err) {
  enum rc rc = RC_OK;
  m->end_us = INT64_MAX;
  for (int i = 0; rc == RC_OK && i < PROMPTS && (i == 0 || *us < PROMPT_US_QUICK); i++) {
    const int64_t begun_us = clock_monotonic_us();
    rc = decode(m, 1, 1, prompt, 1, err);
    const double took_us = (double)(clock_monotonic_us() - begun_us);
    if (i == 0 || took_us < *us) *us = took_us;
  }
  return rc;
}

static enum rc measure(struct sampling_pace *out, struct measuring *m, const struct loaded_model_options *options,
                       const struct foresight_request *q, struct err *err) {
  const int64_t round = (int64_t)q->groups * q->samples, budget_us = (int64_t)q->measure_ms * 1000;
  const int most = (int)(round < options->slots ? round : options->slots), each = least(q->samples, most);
  const int context = m->model->context_max, tokens = least(least(q->new_tokens + 1, STEPS), context / 2);
  int prompt = least(q->prompt_tokens + q->new_tokens / 2, context - tokens);
  double prompt_us = 0;
  m->end_us = INT64_MAX;
  enum rc rc = decode(m, 1, 1, least(prompt, PROMPT_SHORT), 2, err); /* brings the memory in */
  if (rc == RC_OK) rc = prompt_measure(m, prompt, &prompt_us, err);
  if (rc != RC_OK) return rc;
  out->prompt_us_per_token = prompt_us / prompt;
  if (prompt_us * (most / each + 3) > (double)budget_us / 2) prompt = least(prompt, PROMPT_SHORT);
  out->position = prompt + tokens / 2;
  return steps_measure(out, m, most, each, prompt, tokens, budget_us, err);
}

static void nobody_waits(void *context) { (void)context; }

enum rc sampling_measure(struct sampling_pace *out, const struct loaded_model_options *options,
                         const struct model_files *files, const char *model_dir, const struct foresight_request *q,
                         struct err *err) {
  struct loaded_model *loaded = NULL;
  struct policy policy = {0};
  *out = (struct sampling_pace){0};
  enum rc rc = loaded_model_open(&loaded, options, files, NULL, nobody_waits, NULL, err);
  if (rc != RC_OK) return rc;
  struct measuring m = {.engine = loaded->engine, .model = loaded->model};
  m.prompt = calloc((size_t)loaded->model->context_max, sizeof *m.prompt);
  if (!m.prompt) rc = err_set(err, RC_NO_MEMORY, NULL, "a prompt to measure with was refused memory");
  if (rc == RC_OK) rc = weights_fill(loaded, model_dir, &policy, err);
  if (rc == RC_OK) rc = engine_activate(m.engine, loaded->weights[0], &policy);
  if (rc == RC_OK) rc = measure(out, &m, options, q, err);
  engine_stop(m.engine);
  free(m.prompt);
  loaded_model_close(loaded);
  return rc;
}
