/* Answers what the coordinator asks of a trainer, over real HTTP, without computing anything. */
#include "tests/unit/coordinator/fake_trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/queue.h"

enum {
  STOP_MS = 500,
  ASKED_AGAIN_MS = 20
}; /* a step that goes on is answered after so long, so that the driver does not spin */

float fake_logprob(int32_t token) { return -(float)(token + 1) / 1024; }

int32_t fake_token(int position, int32_t digit, bool right) {
  if (position != 1) return position == 0 ? '#' : EOS;
  return right ? digit : '0' + (digit - '0' + 1) % 10;
}

bool fake_is_right(int64_t sample) { return sample % 2 == 0; }

float fake_reference(int32_t token) { return -(float)(token + 1) / 512; }

void fake_digest(struct digest *out, const char *run, int64_t version) {
  char text[160];
  snprintf(text, sizeof text, "%s/%lld", run, (long long)version);
  digest_of(out, text, strlen(text));
}

static void fake_file(struct http_request *r, void *context) {
  char path[200];
  (void)context;
  snprintf(path, sizeof path, "deploy/demo/model/%s", http_param(r, "name"));
  http_reply_file(r, "application/json", path);
}

static void fake_check_run(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct check_run m;
  struct err err;
  struct buf out = BUF_INIT;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = check_run_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&t->lock);
  if (rc == RC_OK && t->refuse_run)
    rc = err_set(&err, RC_INVALID, "training.chunk_tokens", "more than the trainer takes");
  const struct check_run_answer answer = {.context_max = t->context_max ? t->context_max : 512};
  pthread_mutex_unlock(&t->lock);
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  check_run_answer_encode(&answer, &out);
  http_reply_json(r, 200, &out);
}

static void fake_open(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct open_run m;
  struct err err;
  struct buf out = BUF_INIT;
  if (http_body_json(r, &body, &err) != RC_OK || open_run_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&t->lock);
  if (t->strange > 0) {
    t->strange--;
    pthread_mutex_unlock(&t->lock);
    err_set(&err, RC_CONFLICT, "epoch", "this trainer is not yet registered under it");
    http_fail(r, &err);
    return;
  }
  t->opens++;
  t->start = m.start;
  if (strcmp(t->run, m.run) != 0) {
    if (t->run[0]) t->round_steps = 0; /* of the run before */
    snprintf(t->run, sizeof t->run, "%s", m.run);
    t->version = 0;
  }
  struct open_run_answer answer = {.run = t->run, .version = t->version};
  fake_digest(&answer.digest, t->other_weights ? "other" : t->run, t->version);
  open_run_answer_encode(&answer, &out);
  pthread_mutex_unlock(&t->lock);
  http_reply_json(r, 200, &out);
}

/* Log-probabilities of the tokens under a loss mask. */
static struct json_f32s fake_logprobs(const struct batch_sample *in, struct arena *arena) {
  struct json_f32s out = {.items = arena_alloc(arena, in->tokens.count, sizeof *out.items)};
  for (size_t g = 0; g < in->segment_count; g++) {
    const struct sample_segment *s = &in->segments[g];
    for (int32_t k = s->start; s->loss_mask && k < s->start + s->count; k++)
      out.items[out.count++] = fake_logprob(in->tokens.items[in->prompt_length + k]);
  }
  return out;
}

/* lock held.  Of long rounds only the beginning is kept. */
static void order_put(struct fake_trainer *t, const char *before, const char *text) {
  const size_t at = strlen(t->order);
  snprintf(t->order + at, sizeof t->order - at, "%s%s", before, text);
}

static void order_add(struct fake_trainer *t, const char *what, const char *const *groups, size_t count) {
  order_put(t, t->order[0] ? " " : "", what);
  order_put(t, "", "[");
  for (size_t i = 0; i < count; i++) order_put(t, i ? "," : "", strrchr(groups[i], '.') + 1);
  order_put(t, "", "]");
}

/* lock held.  The real one takes such a job and fails it; that it came at all is what tests want to know. */
static enum rc order_check(const struct fake_trainer *t, int32_t after_steps, struct err *err) {
  if (!t->run[0]) return err_set(err, RC_CONFLICT, "run", "expected a run that is open, this trainer has forgotten it");
  if (after_steps == t->round_steps) return RC_OK;
  return err_set(err, RC_CONFLICT, "after_steps", "expected %d, got %d", t->round_steps, after_steps);
}

/* lock held; behind the last one that was counted. */
static void answer_keep(struct fake_trainer *t, const struct batch_status *s) {
  const int at = (t->batches + t->checks) % FAKE_BATCHES;
  snprintf(t->batch[at].id, sizeof t->batch[at].id, "%s", s->batch_id);
  buf_free(&t->batch[at].answer);
  batch_status_encode(s, &t->batch[at].answer);
}

static enum rc read_batch(struct submit_batch *m, struct http_request *r, struct err *err) {
  size_t len;
  const char *bytes = http_body(r, &len);
  if (!http_body_is_bytes(r)) return err_set(err, RC_INVALID, NULL, "expected tensors");
  return submit_batch_decode_tensors(m, bytes, len, http_arena(r), err);
}

/* lock held */
static void references_note(struct fake_trainer *t, const struct batch_group *g) {
  bool right = true;
  if (!g->has_reference) return;
  for (size_t i = 0; i < g->sample_count; i++) {
    const struct batch_sample *s = &g->samples[i];
    for (size_t k = 0; k < s->reference.count; k++)
      right &= s->reference.items[k] == fake_reference(s->tokens.items[(size_t)s->prompt_length + k]);
  }
  t->references++;
  t->wrong_references += !right;
}

/* ---- checks ---- */

/* lock held */
static bool is_doubted(struct fake_trainer *t, const char *id) {
  const enum fake_doubt doubt = t->doubt;
  struct digest d;
  if (doubt == DOUBT_ONCE) t->doubt = DOUBT_NOTHING;
  if (doubt != DOUBT_SOME) return doubt == DOUBT_ONCE;
  digest_of(&d, id, strlen(id));
  return d.bytes[0] % 4 == 0;
}

/* The first token that is not drawn, if any.  lock held */
static void difference_find(struct fake_trainer *t, struct batch_status *s, const struct batch_sample *in) {
  const int64_t sample = strtoll(strrchr(in->id, '.') + 1, NULL, 10);
  const int32_t digit = in->tokens.items[0], count = (int32_t)in->tokens.count - in->prompt_length;
  int32_t at = 0, due = '?';
  if (!is_doubted(t, in->id)) {
    while (at < count && in->tokens.items[in->prompt_length + at] == fake_token(at, digit, fake_is_right(sample))) at++;
    if (at == count) return;
    due = fake_token(at, digit, fake_is_right(sample));
  }
  s->differences[s->difference_count++] = (struct draw_difference){in->id, at, due, fake_logprob(due)};
}

/* Nothing of it is trained on. */
static void fake_check(struct http_request *r, struct fake_trainer *t, const struct submit_batch *m) {
  struct arena *arena = http_arena(r);
  struct batch_status s = {.batch_id = m->batch_id, .state = JOB_DONE};
  size_t count = 0;
  for (size_t g = 0; g < m->group_count; g++) count += m->groups[g].sample_count;
  s.samples = arena_alloc(arena, count + 1, sizeof *s.samples);
  s.differences = arena_alloc(arena, count + 1, sizeof *s.differences);
  pthread_mutex_lock(&t->lock);
  for (size_t g = 0; g < m->group_count; g++) {
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      const struct batch_sample *in = &m->groups[g].samples[i];
      s.samples[s.sample_count++] = (struct sample_logprobs){.id = in->id, .logprobs = fake_logprobs(in, arena)};
      difference_find(t, &s, in);
    }
  }
  logprobs_digest(&s.logprobs_sha256, s.samples, s.sample_count);
  if (t->failed_checks > 0) {
    t->failed_checks--;
    s = (struct batch_status){.batch_id = m->batch_id, .state = JOB_FAILED};
    err_set(&s.error, RC_CONFLICT, NULL, "superseded");
  }
  t->checks++;
  answer_keep(t, &s);
  pthread_mutex_unlock(&t->lock);
  http_reply_text(r, 202, "{}");
}

static bool is_refused(const struct fake_trainer *t, const char *group) {
  const size_t len = strlen(t->refuse);
  return len > 0 && (t->refuse[len - 1] == '.' ? strncmp(group, t->refuse, len) == 0 : strcmp(group, t->refuse) == 0);
}

/* Answers are computed when the batch arrives, and kept as text. */
static void fake_submit(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  struct submit_batch m;
  struct err err;
  if (read_batch(&m, r, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  if (m.check.wanted) {
    fake_check(r, t, &m);
    return;
  }
  const char **groups = arena_alloc(http_arena(r), m.group_count + 1, sizeof *groups);
  pthread_mutex_lock(&t->lock);
  if (order_check(t, m.after_steps, &err) != RC_OK) {
    pthread_mutex_unlock(&t->lock);
    http_fail(r, &err);
    return;
  }
  struct batch_status s = {.batch_id = m.batch_id, .state = JOB_DONE};
  s.samples = arena_alloc(http_arena(r), 4096, sizeof *s.samples);
  struct sample_refusal *refusals = arena_alloc(http_arena(r), m.group_count + 1, sizeof *refusals);
  if (m.verify.wanted) {
    t->verified++;
    t->exact_from = m.groups[0].samples[0].exact_from;
  }
  for (size_t g = 0; g < m.group_count; g++) {
    const struct batch_sample *first = &m.groups[g].samples[0];
    groups[g] = m.groups[g].id;
    const bool judged = m.verify.wanted && (first->exact_from >= 0 || m.verify.inexact_too);
    if (judged && is_refused(t, m.groups[g].id)) {
      refusals[s.refusal_count++] = (struct sample_refusal){
          .id = first->id, .reason = t->refuse_for, .token = 1, .token_logprob = -0.5, .logprob = -4};
      s.refusals = refusals;
      continue;
    }
    for (size_t i = 0; i < m.groups[g].sample_count; i++) {
      const struct batch_sample *in = &m.groups[g].samples[i];
      const struct json_f32s lp = fake_logprobs(in, http_arena(r));
      if (t->wrong_logprobs) lp.items[0] = lp.items[0] * (1 + 1e-6f);
      if (t->nan_logprobs) lp.items[0] = NAN;
      s.samples[s.sample_count++] = (struct sample_logprobs){.id = in->id, .logprobs = lp};
      s.stats.tokens += (int64_t)lp.count;
    }
    references_note(t, &m.groups[g]);
    t->last_groups++;
  }
  order_add(t, strrchr(m.batch_id, '.') + 1, groups, m.group_count);
  s.stats.samples = (int64_t)s.sample_count;
  logprobs_digest(&s.logprobs_sha256, s.samples, s.sample_count);
  s.stats.loss = 1;
  s.stats.ratio_sum = (double)s.stats.tokens * (m.after_steps ? 1.25 : 1);
  s.stats.ratio_squares = (double)s.stats.tokens * (m.after_steps ? 2 : 1);
  s.stats.clipped = m.after_steps ? 1 : 0;
  s.stats.difference_new_old = m.after_steps ? (double)s.stats.tokens / 8 : 0;
  s.stats.kl_new_old = m.after_steps ? (double)s.stats.tokens / 4 : 0;
  s.stats.compute_us = t->compute_us;
  t->batches++;
  answer_keep(t, &s);
  pthread_mutex_unlock(&t->lock);
  http_reply_text(r, 202, "{}");
}

/* Waits a little while for a check that goes on, and tells that it does.  lock held */
static void check_await(struct fake_trainer *t, const char *id, struct buf *out) {
  const struct timespec deadline = clock_deadline_in(ASKED_AGAIN_MS);
  const struct batch_status s = {.batch_id = id, .state = JOB_RUNNING};
  if (strrchr(id, '.') == strstr(id, ".b")) return;
  while (t->slow_checks && pthread_cond_timedwait(&t->changed, &t->lock, &deadline) == 0) continue;
  if (t->slow_checks) batch_status_encode(&s, out);
}

static void fake_batch(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  struct buf out = BUF_INIT;
  struct err err;
  pthread_mutex_lock(&t->lock);
  check_await(t, http_param(r, "id"), &out);
  for (int i = 0; i < FAKE_BATCHES && !out.len; i++) {
    if (strcmp(t->batch[i].id, http_param(r, "id")) == 0 && t->batch[i].id[0]) {
      buf_clear(&out);
      if (t->slow_batches)
        batch_status_encode(&(struct batch_status){.batch_id = t->batch[i].id, .state = JOB_RUNNING}, &out);
      else
        buf_append(&out, t->batch[i].answer.data, t->batch[i].answer.len);
    }
  }
  pthread_mutex_unlock(&t->lock);
  if (out.len) {
    http_reply_json(r, 200, &out);
    return;
  }
  err_set(&err, RC_NOT_FOUND, "id", "no such batch");
  http_fail(r, &err);
}

static void fake_step(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  const struct json *body;
  struct submit_step m;
  struct err err;
  if (http_body_json(r, &body, &err) != RC_OK || submit_step_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&t->lock);
  bool refuse = t->refuse_step;
  t->refuse_step = false;
  if (refuse) {
    pthread_mutex_unlock(&t->lock);
    err_set(&err, RC_CONFLICT, "version", "superseded");
    http_fail(r, &err);
    return;
  }
  if (order_check(t, m.after_steps, &err) != RC_OK) {
    pthread_mutex_unlock(&t->lock);
    http_fail(r, &err);
    return;
  }
  order_add(t, m.inner ? strrchr(m.step_id, '.') + 1 : "step", m.groups, m.group_count);
  snprintf(t->order + strlen(t->order), sizeof t->order - strlen(t->order), "/%g", m.denominator);
  if (m.inner) {
    t->round_steps++;
    snprintf(t->inner[t->inner_count++ % FAKE_INNER_STEPS], sizeof t->inner[0], "%s", m.step_id);
    pthread_mutex_unlock(&t->lock);
    http_reply_text(r, 202, "{}");
    return;
  }
  t->steps++;
  t->failed_step = t->full_then = t->disk_full;
  if (!t->failed_step) t->round_steps = 0; /* else it is submitted again, after as many */
  t->version = m.version + !t->failed_step;
  t->last_groups = (int)m.group_count;
  t->last_denominator = m.denominator;
  t->last_pushes = m.push_count;
  snprintf(t->step_id, sizeof t->step_id, "%s", m.step_id);
  pthread_mutex_unlock(&t->lock);
  http_reply_text(r, 202, "{}");
}

static bool step_is(const struct fake_trainer *t, const char *id) { return strcmp(t->step_id, id) == 0; }

/* lock held */
static bool inner_is_known(const struct fake_trainer *t, const char *id) {
  for (int i = 0; i < FAKE_INNER_STEPS; i++)
    if (t->inner[i][0] && strcmp(t->inner[i], id) == 0) return true;
  return false;
}

/* Waits a little while for a step that goes on: it may have been forgotten after that. */
static void step_await(struct fake_trainer *t, const char *id) {
  const struct timespec deadline = clock_deadline_in(ASKED_AGAIN_MS);
  while ((inner_is_known(t, id) || (step_is(t, id) && !t->failed_step)) && t->slow_steps)
    if (pthread_cond_timedwait(&t->changed, &t->lock, &deadline) != 0) return;
}

/* lock held */
static void inner_status(const struct fake_trainer *t, const char *id, struct buf *out) {
  struct step_status s = {.step_id = id,
                          .state = t->slow_steps ? JOB_RUNNING : JOB_DONE,
                          .version = t->version,
                          .grad_norm = 1,
                          .lr = 0.125,
                          .step_us = 500};
  fake_digest(&s.digest, id, t->other_steps);
  step_status_encode(&s, out);
}

static void fake_step_status(struct http_request *r, void *context) {
  struct fake_trainer *t = context;
  struct buf out = BUF_INIT;
  struct err err;
  pthread_mutex_lock(&t->lock);
  step_await(t, http_param(r, "id"));
  const bool inner = inner_is_known(t, http_param(r, "id")), known = inner || step_is(t, http_param(r, "id"));
  if (inner) inner_status(t, http_param(r, "id"), &out);
  if (known && !inner) {
    struct step_status s = {.step_id = t->step_id,
                            .state = t->failed_step  ? JOB_FAILED
                                     : t->slow_steps ? JOB_RUNNING
                                                     : JOB_DONE,
                            .version = t->version,
                            .grad_norm = 0.5,
                            .lr = 0.25,
                            .step_us = 1000};
    fake_digest(&s.digest, t->run, t->version);
    if (t->failed_step && t->full_then)
      err_set(&s.error, RC_IO, NULL, "writing optimizer.safetensors: No space left on device");
    else if (t->failed_step)
      err_set(&s.error, RC_CONFLICT, NULL, "the step names groups that were not accumulated");
    step_status_encode(&s, &out);
  }
  pthread_mutex_unlock(&t->lock);
  if (known) {
    http_reply_json(r, 200, &out);
    return;
  }
  err_set(&err, RC_NOT_FOUND, "id", "no such step");
  http_fail(r, &err);
}

static const struct http_route fake_routes[] = {
    {.method = "GET", .path = "/v1/model/files/{name}", .handler = fake_file},
    {.method = "POST", .path = "/v1/check-run", .handler = fake_check_run},
    {.method = "POST", .path = "/v1/runs", .handler = fake_open},
    {.method = "POST", .path = "/v1/submit-batch", .handler = fake_submit},
    {.method = "GET", .path = "/v1/batches/{id}", .handler = fake_batch},
    {.method = "POST", .path = "/v1/submit-step", .handler = fake_step},
    {.method = "GET", .path = "/v1/steps/{id}", .handler = fake_step_status},
};

enum rc fake_trainer_start(struct fake_trainer *t, struct err *err) {
  const struct http_server_options options = {.bind_address = "127.0.0.1",
                                              .threads = 2,
                                              .routes = fake_routes,
                                              .route_count = sizeof fake_routes / sizeof fake_routes[0],
                                              .context = t};
  pthread_mutex_init(&t->lock, NULL);
  cond_init(&t->changed);
  enum rc rc = http_server_start(&t->server, &options, err);
  if (rc == RC_OK) snprintf(t->url, sizeof t->url, "http://127.0.0.1:%d", http_server_port(t->server));
  return rc;
}

void fake_trainer_stop(struct fake_trainer *t) {
  if (t->server) http_server_stop(t->server, STOP_MS);
  t->server = NULL;
}

void fake_trainer_free(struct fake_trainer *t) {
  fake_trainer_stop(t);
  for (int i = 0; i < FAKE_BATCHES; i++) buf_free(&t->batch[i].answer);
  pthread_cond_destroy(&t->changed);
  pthread_mutex_destroy(&t->lock);
}

void fake_trainer_finish_steps(struct fake_trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->slow_steps = false;
  pthread_cond_broadcast(&t->changed);
  pthread_mutex_unlock(&t->lock);
}

void fake_trainer_finish_batches(struct fake_trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->slow_batches = false;
  pthread_mutex_unlock(&t->lock);
}

void fake_trainer_finish_checks(struct fake_trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->slow_checks = false;
  pthread_cond_broadcast(&t->changed);
  pthread_mutex_unlock(&t->lock);
}

void fake_trainer_forget(struct fake_trainer *t, bool other_weights) {
  pthread_mutex_lock(&t->lock);
  t->run[0] = t->step_id[0] = '\0';
  t->other_weights = other_weights;
  for (int i = 0; i < FAKE_BATCHES; i++) t->batch[i].id[0] = '\0';
  for (int i = 0; i < FAKE_INNER_STEPS; i++) t->inner[i][0] = '\0';
  t->round_steps = 0;
  pthread_mutex_unlock(&t->lock);
}

static int count_of(struct fake_trainer *t, const int *count) {
  pthread_mutex_lock(&t->lock);
  const int now = *count;
  pthread_mutex_unlock(&t->lock);
  return now;
}

int fake_trainer_opens(struct fake_trainer *t) { return count_of(t, &t->opens); }
int fake_trainer_batches(struct fake_trainer *t) { return count_of(t, &t->batches); }
int fake_trainer_steps(struct fake_trainer *t) { return count_of(t, &t->steps); }
int fake_trainer_checks(struct fake_trainer *t) { return count_of(t, &t->checks); }

void fake_trainer_order(struct fake_trainer *t, char out[FAKE_ORDER]) {
  pthread_mutex_lock(&t->lock);
  memcpy(out, t->order, FAKE_ORDER);
  pthread_mutex_unlock(&t->lock);
}
