/* Encodes and decodes a batch and its status as JSON, for people, and digests both; services exchange tensors.
 *
 * A poisoned batch has numbers that are not finite.  JSON has no such numbers, so they travel as null and are read as
 * NaN, which equals nothing: no comparison with a behaviour log-probability can pass by accident.
 *
 * The log-probabilities in the status are the trainer's own.  Previous hop of a rollout:
 * coordinator/driver/batch_build.c.  Next: trainer-server/api/route_submit_batch.c. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "common/wire/training_batch_internal.h"

static const char *const STATE_NAMES[] = {
    [JOB_QUEUED] = "queued", [JOB_RUNNING] = "running", [JOB_DONE] = "done", [JOB_FAILED] = "failed"};

const char *job_state_name(enum job_state s) {
  return (size_t)s < WIRE_COUNT(STATE_NAMES) ? STATE_NAMES[s] : "unknown";
}

enum rc job_state_read(enum job_state *out, const char *text, struct err *err) {
  int index = 0;
  const enum rc rc = wire_choice(&index, "state", text, STATE_NAMES, WIRE_COUNT(STATE_NAMES), err);
  *out = (enum job_state)index;
  return rc;
}

static void sample_write(const struct batch_sample *s, bool verified, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", s->id);
  json_kv_i32s(w, "tokens", s->tokens.items, s->tokens.count);
  json_kv_int(w, "prompt_length", s->prompt_length);
  wire_kv_segments(w, s->segments, s->segment_count);
  json_kv_f32(w, "advantage", s->advantage);
  if (s->behaviour.count > 0) json_kv_f32s(w, "behaviour", s->behaviour.items, s->behaviour.count);
  if (s->reference.count > 0) json_kv_f32s(w, "reference", s->reference.items, s->reference.count);
  if (verified) json_kv_int(w, "exact_from", s->exact_from);
  json_object_end(w);
}

/* An optional array of log-probabilities. */
#define SAMPLE_LOGPROBS(key, lvalue)                                                             \
  {                                                                                              \
    .name = (key), .kind = FIELD_F32_ARRAY, .target = &(lvalue), .min = -FLT_MAX, .max = 0,      \
    .count_max = LIMIT_SEQUENCE_TOKENS                                                           \
  }

static enum rc sample_counted(const char *field, size_t count, size_t trained, struct err *err) {
  if (count == trained) return RC_OK;
  return err_set(err, RC_INVALID, field, "expected one for each of %zu trained tokens, got %zu", trained, count);
}

static enum rc sample_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct batch_sample *s = item;
  const struct json *segments = NULL;
  double advantage = 0;
  s->exact_from = -1;
  const struct json_field fields[] = {
      WIRE_NAME("id", s->id),
      WIRE_TOKENS("tokens", s->tokens, LIMIT_SEQUENCE_TOKENS),
      WIRE_I32("prompt_length", s->prompt_length, 1, LIMIT_PROMPT_TOKENS),
      WIRE_VALUE("segments", segments),
      {.name = "advantage", .kind = FIELD_F64, .target = &advantage, .required = true},
      SAMPLE_LOGPROBS("behaviour", s->behaviour),
      SAMPLE_LOGPROBS("reference", s->reference),
      {.name = "exact_from", .kind = FIELD_I32, .target = &s->exact_from, .min = -1, .max = LIMIT_SEQUENCE_TOKENS},
  };
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_float(&s->advantage, "advantage", advantage, err);
  if (rc == RC_OK) rc = batch_sample_check(s, err);
  if (rc == RC_OK)
    rc = wire_segments_read(&s->segments, &s->segment_count, segments, s->tokens.count - (size_t)s->prompt_length,
                            arena, err);
  if (rc == RC_OK) rc = batch_exact_check(s, err);
  if (rc != RC_OK || s->behaviour.count == 0) return rc;
  return sample_counted("behaviour", s->behaviour.count, wire_segments_trained(s->segments, s->segment_count), err);
}

enum rc batch_sample_check(const struct batch_sample *s, struct err *err) {
  if (s->tokens.count < 2)
    return err_set(err, RC_INVALID, "tokens", "expected at least 2: a prompt's and one that was sampled, got %zu",
                   s->tokens.count);
  if ((size_t)s->prompt_length >= s->tokens.count)
    return err_set(err, RC_INVALID, "prompt_length", "expected a prompt shorter than the %zu tokens, got %d",
                   s->tokens.count, s->prompt_length);
  return RC_OK;
}

static void group_write(const struct batch_group *g, bool numbers, bool verified, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", g->id);
  if (g->has_reference) json_kv_bool(w, "reference", true);
  if (g->round != 0) json_kv_int(w, "round", g->round);
  if (g->ordinal != 0) json_kv_int(w, "ordinal", g->ordinal);
  if (g->ahead) json_kv_bool(w, "ahead", true);
  if (!wire_digest_is_zero(&g->recorded_sha256)) wire_kv_digest_or_null(w, "recorded_sha256", &g->recorded_sha256);
  json_key(w, "samples");
  json_array_begin(w);
  for (size_t i = 0; i < g->sample_count; i++) {
    if (numbers)
      sample_write(&g->samples[i], verified, w);
    else
      json_write_string(w, g->samples[i].id);
  }
  json_array_end(w);
  json_object_end(w);
}

enum rc batch_samples_read(struct batch_group *g, const struct json *samples, item_read sample, struct arena *arena,
                           struct err *err) {
  const struct wire_list list = {
      .name = "samples", .min = 1, .max = LIMIT_SAMPLES_PER_GROUP, .item_size = sizeof *g->samples, .read = sample};
  void *items = NULL;
  const enum rc rc = wire_items(&list, &items, &g->sample_count, samples, arena, err);
  if (rc) return rc;
  g->samples = items;
  const char *ids[LIMIT_SAMPLES_PER_GROUP];
  for (size_t i = 0; i < g->sample_count; i++) ids[i] = g->samples[i].id;
  return wire_distinct("samples", ids, g->sample_count, arena, err);
}

enum rc batch_group_read(void *item, const struct json *value, item_read sample, struct arena *arena,
                         struct err *err) {
  struct batch_group *g = item;
  const struct json *samples = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("id", g->id),
      {.name = "reference", .kind = FIELD_BOOL, .target = &g->has_reference},
      {.name = "round", .kind = FIELD_I64, .target = &g->round, .min = 0, .max = UINT32_MAX},
      {.name = "ordinal", .kind = FIELD_I64, .target = &g->ordinal, .min = 0, .max = UINT32_MAX},
      {.name = "ahead", .kind = FIELD_BOOL, .target = &g->ahead},
      {.name = "recorded_sha256", .kind = FIELD_DIGEST, .target = &g->recorded_sha256},
      WIRE_VALUE("samples", samples)};
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  return rc ? rc : batch_samples_read(g, samples, sample, arena, err);
}

static enum rc group_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  const struct batch_group *g = item;
  enum rc rc = batch_group_read(item, value, sample_read, arena, err);
  for (size_t i = 0; rc == RC_OK && i < g->sample_count; i++) {
    const struct batch_sample *s = &g->samples[i];
    const size_t expected = g->has_reference ? wire_segments_trained(s->segments, s->segment_count) : 0;
    char place[32];
    rc = sample_counted("reference", s->reference.count, expected, err);
    snprintf(place, sizeof place, "samples[%zu]", i);
    if (rc != RC_OK) err_in_field(err, place);
  }
  return rc;
}

static void check_write(const struct draw_check *c, struct json_writer *w) {
  json_key(w, "check");
  json_object_begin(w);
  json_kv_u64(w, "seed", c->seed);
  json_kv_int(w, "round", c->round);
  json_object_end(w);
}

static enum rc check_read(struct draw_check *c, const struct json *value, struct arena *arena, struct err *err) {
  const struct json_field fields[] = {WIRE_U64("seed", c->seed), WIRE_I64("round", c->round)};
  if (!value) return RC_OK;
  c->wanted = true;
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc != RC_OK) err_in_field(err, "check");
  return rc;
}

static void verify_write(const struct batch_verify *v, struct json_writer *w) {
  json_key(w, "verify");
  json_object_begin(w);
  json_kv_u64(w, "seed", v->seed);
  json_kv_f64(w, "mismatch_most", v->mismatch_most);
  json_kv_f64(w, "draws_near", v->draws_near);
  json_kv_f64(w, "draws_most", v->draws_most);
  if (v->inexact_too) json_kv_bool(w, "inexact_too", true);
  json_object_end(w);
}

static enum rc verify_read(struct batch_verify *v, const struct json *value, struct arena *arena, struct err *err) {
  const struct json_field fields[] = {
      WIRE_U64("seed", v->seed),
      WIRE_F64("mismatch_most", v->mismatch_most, 0, 1000),
      WIRE_F64("draws_near", v->draws_near, 0, 1),
      WIRE_F64("draws_most", v->draws_most, 0, 1),
      {.name = "inexact_too", .kind = FIELD_BOOL, .target = &v->inexact_too},
  };
  if (!value) return RC_OK;
  v->wanted = true;
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc != RC_OK) err_in_field(err, "verify");
  return rc;
}

enum rc batch_exact_check(const struct batch_sample *s, struct err *err) {
  const size_t trained = wire_segments_trained(s->segments, s->segment_count);
  if (s->exact_from < 0 || (size_t)s->exact_from <= trained) return RC_OK;
  return err_set(err, RC_INVALID, "exact_from", "expected at most the %zu trained tokens, got %d", trained,
                 s->exact_from);
}

void submit_batch_write(const struct submit_batch *m, bool numbers, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "batch_id", m->batch_id);
  json_kv_string(&w, "run", m->run);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  json_kv_int(&w, "version", m->version);
  if (m->after_steps != 0) json_kv_int(&w, "after_steps", m->after_steps);
  if (m->check.wanted) check_write(&m->check, &w);
  if (m->verify.wanted) verify_write(&m->verify, &w);
  json_key(&w, "groups");
  json_array_begin(&w);
  for (size_t i = 0; i < m->group_count; i++) group_write(&m->groups[i], numbers, m->verify.wanted, &w);
  json_array_end(&w);
  json_object_end(&w);
}

void submit_batch_encode(const struct submit_batch *m, struct buf *out) { submit_batch_write(m, true, out); }

enum rc submit_batch_read(struct submit_batch *m, const struct json *body, item_read group, struct arena *arena,
                          struct err *err) {
  *m = (struct submit_batch){0};
  const struct json *groups = NULL, *check = NULL, *verify = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("batch_id", m->batch_id), WIRE_NAME("run", m->run),        WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),        WIRE_I64("version", m->version), WIRE_AFTER_STEPS(m->after_steps),
      WIRE_VALUE("groups", groups),       {.name = "check", .kind = FIELD_VALUE, .target = &check},
      {.name = "verify", .kind = FIELD_VALUE, .target = &verify},
  };
  const struct wire_list list = {
      .name = "groups", .min = 1, .max = LIMIT_GROUPS_PER_ROUND, .item_size = sizeof *m->groups, .read = group};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = check_read(&m->check, check, arena, err);
  if (rc == RC_OK) rc = verify_read(&m->verify, verify, arena, err);
  if (rc == RC_OK && m->check.wanted && m->verify.wanted)
    rc = err_set(err, RC_INVALID, "verify",
                 "expected a batch that is trained on, got one with a check, which judges by itself");
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->group_count, groups, arena, err);
  if (rc) return rc;
  m->groups = items;
  const char *ids[LIMIT_GROUPS_PER_ROUND];
  for (size_t i = 0; i < m->group_count; i++) ids[i] = m->groups[i].id;
  return wire_distinct("groups", ids, m->group_count, arena, err);
}

enum rc submit_batch_decode(struct submit_batch *m, const struct json *body, struct arena *arena, struct err *err) {
  return submit_batch_read(m, body, group_read, arena, err);
}

static void sample_digest(struct digest_state *d, const struct batch_sample *s) {
  digest_update_text(d, s->id);
  digest_update_u32(d, (uint32_t)s->prompt_length);
  digest_update_u64(d, s->tokens.count);
  digest_update(d, s->tokens.items, s->tokens.count * sizeof *s->tokens.items);
  digest_update_u64(d, s->segment_count);
  for (size_t i = 0; i < s->segment_count; i++) {
    digest_update_u32(d, (uint32_t)s->segments[i].start);
    digest_update_u32(d, (uint32_t)s->segments[i].count);
    digest_update_u32(d, s->segments[i].loss_mask);
  }
  digest_update(d, &s->advantage, sizeof s->advantage);
  digest_update_u64(d, s->behaviour.count);
  digest_update(d, s->behaviour.items, s->behaviour.count * sizeof *s->behaviour.items);
}

static void verify_digest(struct digest_state *d, const struct batch_verify *v) {
  digest_update_text(d, "verify");
  digest_update_u64(d, v->seed);
  digest_update(d, &v->mismatch_most, sizeof v->mismatch_most);
  digest_update(d, &v->draws_near, sizeof v->draws_near);
  digest_update(d, &v->draws_most, sizeof v->draws_most);
  digest_update_u32(d, v->inexact_too);
}

void submit_batch_digest(struct digest *out, const struct submit_batch *m) {
  struct digest_state d;
  digest_begin(&d);
  digest_update_text(&d, m->batch_id);
  digest_update_text(&d, m->run);
  digest_update_u64(&d, (uint64_t)m->version);
  digest_update_u32(&d, (uint32_t)m->after_steps);
  if (m->check.wanted) {
    digest_update_text(&d, "check");
    digest_update_u64(&d, m->check.seed);
    digest_update_u64(&d, (uint64_t)m->check.round);
  }
  if (m->verify.wanted) verify_digest(&d, &m->verify);
  digest_update_u64(&d, m->group_count);
  for (size_t g = 0; g < m->group_count; g++) {
    digest_update_text(&d, m->groups[g].id);
    if (m->check.wanted) {
      digest_update_u64(&d, (uint64_t)m->groups[g].ordinal << 1 | m->groups[g].ahead);
      digest_update(&d, m->groups[g].recorded_sha256.bytes, DIGEST_BYTES);
    }
    if (m->verify.wanted) {
      digest_update_u64(&d, (uint64_t)m->groups[g].round);
      digest_update_u64(&d, (uint64_t)m->groups[g].ordinal);
    }
    digest_update_u64(&d, m->groups[g].sample_count);
    for (size_t i = 0; i < m->groups[g].sample_count; i++) {
      if (m->verify.wanted) digest_update_u32(&d, (uint32_t)m->groups[g].samples[i].exact_from);
      sample_digest(&d, &m->groups[g].samples[i]);
    }
  }
  digest_end(out, &d);
}

void batch_group_digest(struct digest *out, const struct batch_group *g) {
  struct digest_state d;
  digest_begin(&d);
  for (size_t i = 0; i < g->sample_count; i++) sample_digest(&d, &g->samples[i]);
  digest_end(out, &d);
}

/* Each element is a number, or null for NaN. */
static enum rc numbers_read(struct json_f32s *out, const char *field, const struct json *value, struct arena *arena,
                            struct err *err) {
  if (json_type_of(value) != JSON_ARRAY)
    return err_set(err, RC_INVALID, field, "expected an array, got %s", json_type_name(json_type_of(value)));
  const size_t n = json_length(value);
  if (n > LIMIT_SEQUENCE_TOKENS)
    return err_set(err, RC_INVALID, field, "expected at most %d items, got %zu", LIMIT_SEQUENCE_TOKENS, n);
  out->items = arena_alloc(arena, n, sizeof *out->items);
  if (!out->items)
    return err_set(err, RC_NO_MEMORY, field, "%zu items of %zu bytes were refused memory", n, sizeof *out->items);
  for (size_t i = 0; i < n; i++) {
    char path[ERR_FIELD_MAX] = "";
    double number = 0;
    enum rc rc = wire_number_or_nan(&number, NULL, json_at(value, i), err);
    if (rc == RC_OK && !isnan(number))
      rc = wire_float(&out->items[i], NULL, number, err);
    else
      out->items[i] = NAN;
    if (rc) {
      snprintf(path, sizeof path, "%s[%zu]", field, i);
      err_in_field(err, path);
      return rc;
    }
  }
  out->count = n;
  return RC_OK;
}

static enum rc sample_logprobs_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct sample_logprobs *s = item;
  const struct json *logprobs = NULL, *entropies = NULL;
  const struct json_field fields[] = {WIRE_NAME("id", s->id),
                                      WIRE_VALUE("logprobs", logprobs),
                                      {.name = "entropies", .kind = FIELD_VALUE, .target = &entropies}};
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = numbers_read(&s->logprobs, "logprobs", logprobs, arena, err);
  if (rc != RC_OK || !entropies) return rc;
  rc = numbers_read(&s->entropies, "entropies", entropies, arena, err);
  return rc == RC_OK ? sample_counted("entropies", s->entropies.count, s->logprobs.count, err) : rc;
}

void logprobs_digest(struct digest *out, const struct sample_logprobs *samples, size_t count) {
  struct digest_state state;
  digest_begin(&state);
  for (size_t i = 0; i < count; i++) {
    digest_update_text(&state, samples[i].id);
    digest_update_u64(&state, samples[i].logprobs.count);
    digest_update(&state, samples[i].logprobs.items, samples[i].logprobs.count * sizeof(float));
  }
  digest_end(out, &state);
}

static void stats_write(const struct batch_stats *s, struct json_writer *w) {
  json_object_begin(w);
  json_kv_f64(w, "loss", s->loss);
  json_kv_f64(w, "entropy_sum", s->entropy_sum);
  json_kv_f64(w, "kl_reference_sum", s->kl_reference_sum);
  json_kv_f64(w, "ratio_sum", s->ratio_sum);
  json_kv_f64(w, "ratio_squares", s->ratio_squares);
  if (s->kl_new_old != 0) json_kv_f64(w, "kl_new_old", s->kl_new_old);
  if (s->difference_new_old != 0) json_kv_f64(w, "difference_new_old", s->difference_new_old);
  json_kv_int(w, "tokens", s->tokens);
  json_kv_int(w, "clipped", s->clipped);
  json_kv_int(w, "samples", s->samples);
  json_kv_int(w, "logprob_us", s->logprob_us);
  json_kv_int(w, "compute_us", s->compute_us);
  json_kv_bool(w, "poisoned", s->poisoned);
  json_object_end(w);
}

/* A sum that is left out is 0; null is one that is not finite. */
static enum rc optional_sum_read(double *out, const char *key, const struct json *stats, struct err *err) {
  const struct json *value = json_get(stats, key);
  return value ? wire_number_or_nan(out, key, value, err) : RC_OK;
}

static enum rc stats_read(struct batch_stats *s, const struct json *value, struct arena *arena, struct err *err) {
  const struct json *loss = NULL, *entropy = NULL, *kl = NULL, *ratio = NULL, *squares = NULL, *kl_new_old = NULL,
                    *difference = NULL;
  const struct json_field fields[] = {
      WIRE_VALUE("loss", loss),
      WIRE_VALUE("entropy_sum", entropy),
      WIRE_VALUE("kl_reference_sum", kl),
      WIRE_VALUE("ratio_sum", ratio),
      WIRE_VALUE("ratio_squares", squares),
      {.name = "kl_new_old", .kind = FIELD_VALUE, .target = &kl_new_old},
      {.name = "difference_new_old", .kind = FIELD_VALUE, .target = &difference},
      WIRE_I64("tokens", s->tokens),
      WIRE_I64("clipped", s->clipped),
      WIRE_I64("samples", s->samples),
      WIRE_I64("logprob_us", s->logprob_us),
      WIRE_I64("compute_us", s->compute_us),
      WIRE_BOOL("poisoned", s->poisoned),
  };
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&s->loss, "loss", loss, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&s->entropy_sum, "entropy_sum", entropy, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&s->kl_reference_sum, "kl_reference_sum", kl, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&s->ratio_sum, "ratio_sum", ratio, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&s->ratio_squares, "ratio_squares", squares, err);
  if (rc == RC_OK) rc = optional_sum_read(&s->kl_new_old, "kl_new_old", value, err);
  if (rc == RC_OK) rc = optional_sum_read(&s->difference_new_old, "difference_new_old", value, err);
  return rc;
}

static void sample_logprobs_write(const struct sample_logprobs *s, bool entropies, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", s->id);
  json_kv_f32s(w, "logprobs", s->logprobs.items, s->logprobs.count);
  if (entropies && s->entropies.count > 0) json_kv_f32s(w, "entropies", s->entropies.items, s->entropies.count);
  json_object_end(w);
}

/* NaN for null. */
static enum rc float_or_nan(float *out, const char *key, const struct json *value, struct err *err) {
  double number = 0;
  const enum rc rc = wire_number_or_nan(&number, key, value, err);
  *out = NAN;
  return rc == RC_OK && !isnan(number) ? wire_float(out, key, number, err) : rc;
}

static void difference_write(const struct draw_difference *d, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", d->id);
  json_kv_int(w, "position", d->position);
  json_kv_int(w, "token", d->token);
  json_kv_f32(w, "logprob", d->logprob);
  json_object_end(w);
}

static enum rc difference_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct draw_difference *d = item;
  const struct json *logprob = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("id", d->id), WIRE_I32("position", d->position, 0, LIMIT_SEQUENCE_TOKENS),
      WIRE_I32("token", d->token, 0, LIMIT_VOCABULARY - 1), WIRE_VALUE("logprob", logprob)};
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  return rc == RC_OK ? float_or_nan(&d->logprob, "logprob", logprob, err) : rc;
}

static const char *const REASON_NAMES[] = {[REFUSED_TOKEN] = "token",
                                           [REFUSED_LOGPROB] = "logprob",
                                           [REFUSED_DRAWS] = "draws",
                                           [REFUSED_MISMATCH] = "mismatch"};

static void refusal_write(const struct sample_refusal *r, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", r->id);
  json_kv_string(w, "reason", REASON_NAMES[r->reason]);
  json_kv_int(w, "position", r->position);
  json_kv_int(w, "token", r->token);
  json_kv_f32(w, "token_logprob", r->token_logprob);
  json_kv_f32(w, "logprob", r->logprob);
  json_kv_int(w, "unequal", r->unequal);
  json_kv_int(w, "far", r->far);
  json_kv_f64(w, "mismatch", r->mismatch);
  json_object_end(w);
}

static enum rc refusal_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct sample_refusal *r = item;
  const struct json *token_logprob = NULL, *logprob = NULL, *mismatch = NULL;
  const char *reason = NULL;
  int index = 0;
  const struct json_field fields[] = {WIRE_NAME("id", r->id),
                                      WIRE_NAME("reason", reason),
                                      WIRE_I32("position", r->position, 0, LIMIT_SEQUENCE_TOKENS),
                                      WIRE_I32("token", r->token, 0, LIMIT_VOCABULARY - 1),
                                      WIRE_VALUE("token_logprob", token_logprob),
                                      WIRE_VALUE("logprob", logprob),
                                      WIRE_I32("unequal", r->unequal, 0, LIMIT_SEQUENCE_TOKENS),
                                      WIRE_I32("far", r->far, 0, LIMIT_SEQUENCE_TOKENS),
                                      WIRE_VALUE("mismatch", mismatch)};
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&index, "reason", reason, REASON_NAMES, WIRE_COUNT(REASON_NAMES), err);
  if (rc == RC_OK) rc = float_or_nan(&r->token_logprob, "token_logprob", token_logprob, err);
  if (rc == RC_OK) rc = float_or_nan(&r->logprob, "logprob", logprob, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&r->mismatch, "mismatch", mismatch, err);
  r->reason = (enum refusal_reason)index;
  return rc;
}

/* Before the batch is done there are no samples and no intervals, stats and the digest are null; only a failed one has
 * an error. */
void batch_status_write(const struct batch_status *m, bool numbers, struct buf *out) {
  const bool done = m->state == JOB_DONE;
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "batch_id", m->batch_id);
  json_kv_string(&w, "state", job_state_name(m->state));
  wire_kv_error(&w, "error", &m->error, m->state == JOB_FAILED);
  json_key(&w, "samples");
  json_array_begin(&w);
  for (size_t i = 0; done && i < m->sample_count; i++) {
    if (numbers)
      sample_logprobs_write(&m->samples[i], m->numbers & STATUS_ENTROPIES, &w);
    else
      json_write_string(&w, m->samples[i].id);
  }
  json_array_end(&w);
  wire_kv_digest_or_null(&w, "logprobs_sha256", &m->logprobs_sha256);
  if (done && m->difference_count > 0) {
    json_key(&w, "differences");
    json_array_begin(&w);
    for (size_t i = 0; i < m->difference_count; i++) difference_write(&m->differences[i], &w);
    json_array_end(&w);
  }
  if (done && m->refusal_count > 0) {
    json_key(&w, "refusals");
    json_array_begin(&w);
    for (size_t i = 0; i < m->refusal_count; i++) refusal_write(&m->refusals[i], &w);
    json_array_end(&w);
  }
  json_key(&w, "stats");
  if (done)
    stats_write(&m->stats, &w);
  else
    json_write_null(&w);
  json_key(&w, "intervals");
  intervals_write(&w, m->intervals, done ? m->interval_count : 0);
  json_object_end(&w);
}

void batch_status_encode(const struct batch_status *m, struct buf *out) { batch_status_write(m, true, out); }

enum rc batch_status_read(struct batch_status *m, const struct json *body, item_read sample, struct arena *arena,
                          struct err *err) {
  *m = (struct batch_status){0};
  const char *state = NULL;
  const struct json *error = NULL, *samples = NULL, *stats = NULL, *intervals = NULL, *differences = NULL,
                    *refusals = NULL;
  bool has_digest = false;
  const struct json_field fields[] = {
      WIRE_NAME("batch_id", m->batch_id),
      WIRE_NAME("state", state),
      WIRE_VALUE("error", error),
      WIRE_VALUE("samples", samples),
      WIRE_VALUE("stats", stats),
      WIRE_VALUE("intervals", intervals),
      {.name = "differences", .kind = FIELD_VALUE, .target = &differences},
      {.name = "refusals", .kind = FIELD_VALUE, .target = &refusals},
      {.name = "logprobs_sha256", .kind = FIELD_DIGEST, .target = &m->logprobs_sha256, .present = &has_digest},
  };
  const struct wire_list list = {.name = "samples",
                                 .max = (size_t)LIMIT_GROUPS_PER_ROUND * LIMIT_SAMPLES_PER_GROUP,
                                 .item_size = sizeof *m->samples,
                                 .read = sample};
  const struct wire_list different = {.name = "differences",
                                      .max = (size_t)LIMIT_GROUPS_PER_ROUND * LIMIT_SAMPLES_PER_GROUP,
                                      .item_size = sizeof *m->differences,
                                      .read = difference_read};
  const struct wire_list refused = {.name = "refusals",
                                    .max = (size_t)LIMIT_GROUPS_PER_ROUND * LIMIT_SAMPLES_PER_GROUP,
                                    .item_size = sizeof *m->refusals,
                                    .read = refusal_read};
  void *items = NULL, *found = NULL, *left_out = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = job_state_read(&m->state, state, err);
  if (rc == RC_OK) rc = wire_error_read(&m->error, error, arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->sample_count, samples, arena, err);
  if (rc == RC_OK) rc = wire_items(&different, &found, &m->difference_count, differences, arena, err);
  if (rc == RC_OK) rc = wire_items(&refused, &left_out, &m->refusal_count, refusals, arena, err);
  if (rc == RC_OK) rc = intervals_read(&m->intervals, &m->interval_count, intervals, arena, err);
  if (rc) return rc;
  m->samples = items;
  m->differences = found;
  m->refusals = left_out;
  if ((m->state == JOB_FAILED) != (m->error.rc != RC_OK))
    return err_set(err, RC_INVALID, "error", "expected an error exactly when the state is \"failed\", got state \"%s\"",
                   state);
  if ((m->state == JOB_DONE) == (json_type_of(stats) == JSON_NULL))
    return err_set(err, RC_INVALID, "stats", "expected stats exactly when the state is \"done\", got state \"%s\"",
                   state);
  if (m->state == JOB_DONE && !has_digest)
    return err_set(err, RC_INVALID, "logprobs_sha256", "expected the digest of a batch that is done, got none");
  if (m->state == JOB_DONE && (rc = stats_read(&m->stats, stats, arena, err)) != RC_OK) err_in_field(err, "stats");
  return rc;
}

enum rc batch_status_decode(struct batch_status *m, const struct json *body, struct arena *arena, struct err *err) {
  return batch_status_read(m, body, sample_logprobs_read, arena, err);
}
