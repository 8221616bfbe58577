/* Draws a sample between two looks at the engine's weights.  No state of its own. */
#include "services/rollout-agent/worker/sampling.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

enum { ENTER_WAIT_MS = 5000, ENTER_STEP_MS = 200, FULL_PAUSE_MS = 200 };

/* --- what came with the lease --- */

static bool is_stop(const struct lease *lease, int32_t token) {
  for (size_t i = 0; i < lease->stop_token_ids.count; i++)
    if (lease->stop_token_ids.items[i] == token) return true;
  return false;
}

static const struct partial_sample *partial_of(const struct lease *lease, int32_t sample) {
  for (size_t i = 0; i < lease->partial_count; i++)
    if (lease->partials[i].sample == sample) return &lease->partials[i];
  return NULL;
}

static enum rc no_memory(const struct lease *lease, struct err *err) {
  return err_set(err, RC_NO_MEMORY, NULL, "a sample of lease %s was refused memory", lease->id);
}

/* Without spans all tokens are version_min's: they come of a lease for one version. */
static void copy_spans(struct sample_result *r, const struct lease *lease, const struct partial_sample *p) {
  const struct version_span whole = {
      .version = lease->version_min, .count = (int32_t)r->token_ids.count, .fresh = true};
  if (r->token_ids.count == 0) return;
  r->span_count = p->span_count > 0 ? p->span_count : 1;
  memcpy(r->spans, p->span_count > 0 ? p->spans : &whole, r->span_count * sizeof *r->spans);
}

enum rc sampling_begin(struct draw *out, const struct lease *lease, int32_t index, struct arena *arena,
                       struct err *err) {
  const int32_t sample = lease->sample_first + index;
  const struct partial_sample none = {0}, *found = partial_of(lease, sample), *p = found ? found : &none;
  const size_t room = (size_t)lease->max_new_tokens;
  if (p->token_ids.count > room || p->token_ids.count != p->logprobs.count)
    return err_set(err, RC_INVALID, "partials", "lease %s brings %zu tokens and %zu log-probabilities of up to %zu",
                   lease->id, p->token_ids.count, p->logprobs.count, room);
  struct sample_result *r = &out->result;
  *out = (struct draw){.version = lease->version_min,
                       .digest = lease->weights_digest,
                       .result = {.sample = sample, .finish = FINISH_ABORT}};
  r->token_ids = (struct json_i32s){arena_alloc(arena, room + 1, sizeof(int32_t)), p->token_ids.count};
  r->logprobs = (struct json_f32s){arena_alloc(arena, room + 1, sizeof(float)), p->logprobs.count};
  r->segments = arena_alloc(arena, 1, sizeof *r->segments);
  r->spans = arena_alloc(arena, p->span_count + 2, sizeof *r->spans);
  if (!r->token_ids.items || !r->logprobs.items || !r->segments || !r->spans) return no_memory(lease, err);
  if (r->token_ids.count > 0) {
    memcpy(r->token_ids.items, p->token_ids.items, p->token_ids.count * sizeof(int32_t));
    memcpy(r->logprobs.items, p->logprobs.items, p->logprobs.count * sizeof(float));
  }
  copy_spans(r, lease, p);
  r->segment_count = r->token_ids.count > 0;
  r->segments[0] = (struct sample_segment){.count = (int32_t)r->token_ids.count, .loss_mask = true};
  return RC_OK;
}

/* A sample that an earlier holder had ended: its last token shows it. */
static bool has_ended(struct draw *d, const struct lease *lease) {
  const size_t n = d->result.token_ids.count;
  if (n == 0) return false;
  if (is_stop(lease, d->result.token_ids.items[n - 1]))
    d->result.finish = FINISH_STOP;
  else if (n == (size_t)lease->max_new_tokens)
    d->result.finish = FINISH_LENGTH;
  else
    return false;
  return d->done = true;
}

/* --- drawing --- */

static enum rc enter(const struct sampling *s, struct held_version *held, struct err *err) {
  for (int64_t waited = 0; waited < ENTER_WAIT_MS && !s->abandoned(s->context); waited += ENTER_STEP_MS)
    if (loader_enter(s->loader, held, ENTER_STEP_MS) == RC_OK) return RC_OK;
  return err_set(err, RC_UNAVAILABLE, NULL, "the engine holds no version that was proven");
}

/* A lease for one version is for its weights, whatever they were called when they were loaded. */
static enum rc check_lease(const struct lease *lease, const struct held_version *held, struct err *err) {
  if (lease->version_min == lease->version_max && digest_equal(&lease->weights_digest, &held->digest)) return RC_OK;
  if (lease->version_min < lease->version_max && strcmp(lease->run, held->run) == 0 &&
      held->version >= lease->version_min && held->version <= lease->version_max)
    return RC_OK;
  return err_set(err, RC_CONFLICT, "version",
                 "lease %s is valid for versions %lld to %lld of run %s, the engine holds %lld of run %s", lease->id,
                 (long long)lease->version_min, (long long)lease->version_max, lease->run, (long long)held->version,
                 held->run);
}

static enum rc check_word(const struct held_version *held, const char *said, const char *when, struct err *err) {
  if (!held->named || strcmp(said, held->name) == 0) return RC_OK;
  return err_set(err, RC_CONFLICT, "version", "the engine was proven to hold '%s', %s it says '%s'", held->name, when,
                 said);
}

static enum rc ask(const struct sampling *s, const struct held_version *held, const struct engine_request *r,
                   struct engine_answer *answer, struct arena *arena, struct err *err) {
  char word[ENGINE_VERSION_MAX] = "";
  enum rc rc = held->named ? engine_version(&s->engine, word, s->version_timeout_ms, err) : RC_OK;
  if (rc == RC_OK) rc = check_word(held, word, "before a request", err);
  const int64_t end_ms = clock_monotonic_ms() + s->request_timeout_ms;
  if (rc == RC_OK) rc = engine_generate(&s->engine, r, answer, arena, s->request_timeout_ms, err);
  while (rc == RC_FULL && clock_monotonic_ms() + FULL_PAUSE_MS < end_ms && !s->abandoned(s->context)) {
    clock_sleep_ms(FULL_PAUSE_MS); /* the engine has no room: that says nothing about its weights */
    rc = engine_generate(&s->engine, r, answer, arena, end_ms - clock_monotonic_ms(), err);
  }
  if (rc == RC_OK && answer->version[0]) rc = check_word(held, answer->version, "with an answer", err);
  return rc;
}

static void append(struct draw *d, const struct lease *lease, const struct engine_answer *a,
                   const struct held_version *held) {
  struct sample_result *r = &d->result;
  const int64_t version = lease->version_min == lease->version_max ? lease->version_min : held->version;
  const int32_t before = (int32_t)r->token_ids.count, added = (int32_t)a->token_ids.count;
  memcpy(r->token_ids.items + before, a->token_ids.items, a->token_ids.count * sizeof(int32_t));
  memcpy(r->logprobs.items + before, a->logprobs.items, a->logprobs.count * sizeof(float));
  r->token_ids.count += a->token_ids.count;
  r->logprobs.count += a->logprobs.count;
  r->finish = a->finish;
  r->segment_count = 1;
  r->segments[0].count += added;
  struct version_span *last = r->span_count > 0 ? &r->spans[r->span_count - 1] : NULL;
  if (last && last->version == version && last->fresh)
    last->count += added;
  else
    r->spans[r->span_count++] =
        (struct version_span){.version = version, .start = before, .count = added, .fresh = true};
  d->version = version;
  d->digest = held->digest;
  d->sampled = added;
  d->done = true;
}

/* Between loader_enter and loader_leave. */
static enum rc draw_inside(const struct sampling *s, struct draw *d, const struct lease *lease,
                           const struct held_version *held, struct arena *arena, struct err *err) {
  struct engine_answer answer;
  const struct sample_result *r = &d->result;
  const size_t prompt = lease->prompt_ids.count, count = prompt + r->token_ids.count;
  enum rc rc = check_lease(lease, held, err);
  if (rc != RC_OK) return rc;
  char id[2 * LIMIT_NAME_MAX];
  int32_t *ids = arena_alloc(arena, count, sizeof *ids);
  if (!ids) return no_memory(lease, err);
  memcpy(ids, lease->prompt_ids.items, prompt * sizeof *ids);
  if (r->token_ids.count > 0) memcpy(ids + prompt, r->token_ids.items, r->token_ids.count * sizeof *ids);
  snprintf(id, sizeof id, "%s-%d-%llu", lease->group, r->sample, (unsigned long long)lease->fence);
  const struct engine_request request = {.id = id,
                                         .model = s->engine.model,
                                         .token_ids = {ids, count},
                                         .max_new_tokens = lease->max_new_tokens - (int32_t)r->token_ids.count,
                                         .temperature = lease->temperature,
                                         .stop_token_ids = lease->stop_token_ids};
  rc = ask(s, held, &request, &answer, arena, err);
  if (rc == RC_OK) {
    rc = loader_prove(s->loader, held->generation, err);
    if (rc == RC_OK) append(d, lease, &answer, held);
    return rc;
  }
  /* What the engine finds wrong with the request says nothing about its weights, nor does a call that was cut. */
  if (rc != RC_INVALID && rc != RC_TOO_LARGE && rc != RC_NO_MEMORY && !s->abandoned(s->context))
    loader_doubt(s->loader, held->generation, err);
  return rc == RC_TOO_LARGE ? RC_INVALID : rc;
}

enum rc sampling_run(const struct sampling *s, struct draw *d, const struct lease *lease, struct arena *arena,
                     struct err *err) {
  struct held_version held;
  enum rc rc = lease_known(lease, err);
  if (rc != RC_OK || has_ended(d, lease)) return rc;
  if (lease->purpose == LEASE_TRAINING && lease->temperature != 1 && !s->logprobs_at_temperature)
    return err_set(
        err, RC_INVALID, "temperature",
        "lease %s samples at temperature %.9g, and the engine's log-probabilities are those of the raw logits",
        lease->id, (double)lease->temperature);
  if (sampling_cut_name(&lease->cut))
    return err_set(err, RC_INVALID, sampling_cut_name(&lease->cut),
                   "lease %s leaves tokens out by %s, and the engine leaves out others than the trainer", lease->id,
                   sampling_cut_name(&lease->cut));
  if (lease->stop.count > 0)
    return err_set(err, RC_INVALID, "stop", "lease %s has stop texts; samples of an engine end by tokens", lease->id);
  rc = enter(s, &held, err);
  if (rc != RC_OK) return rc;
  rc = draw_inside(s, d, lease, &held, arena, err);
  loader_leave(s->loader);
  return rc;
}
