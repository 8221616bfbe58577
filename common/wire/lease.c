/* Encodes and decodes leases: the request, the grant and the answer to a result.  The result's codecs are
 * lease_result.c and lease_result_tensors.c.
 *
 * Previous hop of a rollout: coordinator/pool/leases.c.  Next: generation-server/worker/leases.c. */
#include "common/wire/lease.h"

#include <float.h>

#include "common/wire/fields.h"

static const char *const PURPOSE_NAMES[] = {[LEASE_TRAINING] = "training", [LEASE_EVALUATION] = "evaluation"};

const char *lease_purpose_name(enum lease_purpose p) {
  return (size_t)p < WIRE_COUNT(PURPOSE_NAMES) ? PURPOSE_NAMES[p] : "unknown";
}
static const char *const KV_NAMES[] = {[LEASE_KV_KEEP] = "keep", [LEASE_KV_RECOMPUTE] = "recompute"};

const char *lease_kv_name(enum lease_kv kv) {
  return (size_t)kv < WIRE_COUNT(KV_NAMES) ? KV_NAMES[kv] : "unknown";
}

void lease_request_encode(const struct lease_request *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_int(&w, "slots_free", m->slots_free);
  json_kv_int(&w, "wait_ms", m->wait_ms);
  if (m->has_loaded)
    wire_kv_digest(&w, "loaded_digest", &m->loaded_digest);
  else
    json_kv_string(&w, "loaded_digest", NULL);
  if (m->has_taken) json_kv_int(&w, "leases_taken", m->leases_taken);
  json_object_end(&w);
}

enum rc lease_request_decode(struct lease_request *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct lease_request){0};
  const struct json_field fields[] = {
      WIRE_U64("epoch", m->epoch),
      WIRE_I32("slots_free", m->slots_free, 1, WIRE_HELD_MAX),
      WIRE_I32("wait_ms", m->wait_ms, 0, LIMIT_WAIT_MS_MAX),
      {.name = "loaded_digest", .kind = FIELD_DIGEST, .target = &m->loaded_digest, .present = &m->has_loaded},
      {.name = "leases_taken",
       .kind = FIELD_I64,
       .target = &m->leases_taken,
       .present = &m->has_taken,
       .max = WIRE_EXACT_MAX},
  };
  return wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
}

static void partial_write(const struct partial_sample *p, struct json_writer *w) {
  json_object_begin(w);
  json_kv_int(w, "sample", p->sample);
  json_kv_i32s(w, "token_ids", p->token_ids.items, p->token_ids.count);
  json_kv_f32s(w, "logprobs", p->logprobs.items, p->logprobs.count);
  if (p->span_count > 0) wire_kv_version_spans(w, p->spans, p->span_count);
  json_object_end(w);
}

static enum rc partial_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct partial_sample *p = item;
  const struct json *spans = NULL;
  const struct json_field fields[] = {
      WIRE_I32("sample", p->sample, 0, LIMIT_SAMPLES_PER_GROUP - 1),
      WIRE_TOKENS("token_ids", p->token_ids, LIMIT_NEW_TOKENS),
      {.name = "logprobs",
       .kind = FIELD_F32_ARRAY,
       .target = &p->logprobs,
       .required = true,
       .min = -FLT_MAX,
       .max = 0,
       .count_max = LIMIT_NEW_TOKENS},
      {.name = "version_spans", .kind = FIELD_VALUE, .target = &spans},
  };
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc) return rc;
  if (p->logprobs.count != p->token_ids.count)
    return err_set(err, RC_INVALID, "logprobs", "expected one per token (%zu), got %zu", p->token_ids.count,
                   p->logprobs.count);
  return spans ? wire_version_spans_read(&p->spans, &p->span_count, spans, p->token_ids.count, arena, err) : RC_OK;
}

static void lease_write(const struct lease *m, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", m->id);
  json_kv_u64(w, "fence", m->fence);
  json_kv_string(w, "run", m->run);
  json_kv_string(w, "group", m->group);
  json_kv_string(w, "purpose", lease_purpose_name(m->purpose));
  json_kv_int(w, "round", m->round);
  json_kv_int(w, "group_ordinal", m->group_ordinal);
  json_kv_int(w, "sample_first", m->sample_first);
  json_kv_int(w, "sample_count", m->sample_count);
  json_kv_int(w, "version_min", m->version_min);
  json_kv_int(w, "version_max", m->version_max);
  if (m->kv != LEASE_KV_KEEP) json_kv_string(w, "kv", lease_kv_name(m->kv));
  wire_kv_digest(w, "weights_digest", &m->weights_digest);
  json_kv_f32(w, "temperature", m->temperature);
  sampling_cut_write(&m->cut, w);
  json_kv_int(w, "max_new_tokens", m->max_new_tokens);
  json_kv_i32s(w, "stop_token_ids", m->stop_token_ids.items, m->stop_token_ids.count);
  if (m->ignore_eos) json_kv_bool(w, "ignore_eos", true);
  stop_strings_write(&m->stop, w);
  json_kv_u64(w, "seed", m->seed);
  json_kv_int(w, "ttl_ms", m->ttl_ms);
  if (m->traceparent) json_kv_string(w, "traceparent", m->traceparent);
  json_kv_i32s(w, "prompt_ids", m->prompt_ids.items, m->prompt_ids.count);
  json_key(w, "partials");
  json_array_begin(w);
  for (size_t i = 0; i < m->partial_count; i++) partial_write(&m->partials[i], w);
  json_array_end(w);
  json_object_end(w);
}

/* Checks of a lease that a field table cannot express. */
static enum rc lease_check(const struct lease *m, struct err *err) {
  if (m->sample_first > LIMIT_SAMPLES_PER_GROUP - m->sample_count)
    return err_set(err, RC_INVALID, "sample_count", "expected samples below %d, got %d from %d on",
                   LIMIT_SAMPLES_PER_GROUP, m->sample_count, m->sample_first);
  if (m->version_min > m->version_max)
    return err_set(err, RC_INVALID, "version_max", "expected at least version_min (%lld), got %lld",
                   (long long)m->version_min, (long long)m->version_max);
  if (m->purpose == LEASE_TRAINING && !(m->temperature > 0))
    return err_set(err, RC_INVALID, "temperature", "expected a positive temperature for training, got %.9g",
                   (double)m->temperature);
  if (m->ignore_eos != (m->stop_token_ids.count == 0))
    return err_set(err, RC_INVALID, "ignore_eos", "expected %s with %zu stop_token_ids, got %s",
                   m->ignore_eos ? "false" : "true", m->stop_token_ids.count, m->ignore_eos ? "true" : "false");
  if (m->prompt_ids.count == 0)
    return err_set(err, RC_INVALID, "prompt_ids", "expected 1 to %d tokens, got 0", LIMIT_PROMPT_TOKENS);
  bool seen[LIMIT_SAMPLES_PER_GROUP] = {0};
  for (size_t i = 0; i < m->partial_count; i++) {
    const struct partial_sample *p = &m->partials[i];
    if (p->sample < m->sample_first || p->sample >= m->sample_first + m->sample_count || seen[p->sample])
      return err_set(err, RC_INVALID, "partials", "expected distinct samples from %d to %d, got sample %d",
                     m->sample_first, m->sample_first + m->sample_count - 1, p->sample);
    if (p->token_ids.count > (size_t)m->max_new_tokens)
      return err_set(err, RC_INVALID, "partials", "expected at most max_new_tokens (%d) tokens of sample %d, got %zu",
                     m->max_new_tokens, p->sample, p->token_ids.count);
    if (p->span_count > 0 &&
        (p->spans[0].version < m->version_min || p->spans[p->span_count - 1].version > m->version_max))
      return err_set(err, RC_INVALID, "partials",
                     "expected tokens of versions %lld to %lld of sample %d, got %lld to %lld",
                     (long long)m->version_min, (long long)m->version_max, p->sample, (long long)p->spans[0].version,
                     (long long)p->spans[p->span_count - 1].version);
    seen[p->sample] = true;
  }
  return RC_OK;
}

static enum rc lease_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct lease *m = item;
  const char *purpose = NULL, *kv = KV_NAMES[LEASE_KV_KEEP];
  const struct json *partials = NULL, *stop = NULL;
  double temperature = 0;
  const struct json_field fields[] = {
      WIRE_NAME("id", m->id),
      WIRE_U64("fence", m->fence),
      WIRE_NAME("run", m->run),
      WIRE_NAME("group", m->group),
      WIRE_NAME("purpose", purpose),
      WIRE_I64("round", m->round),
      WIRE_I32("group_ordinal", m->group_ordinal, 0, INT32_MAX),
      WIRE_I32("sample_first", m->sample_first, 0, LIMIT_SAMPLES_PER_GROUP - 1),
      WIRE_I32("sample_count", m->sample_count, 1, LIMIT_SAMPLES_PER_GROUP),
      WIRE_I64("version_min", m->version_min),
      WIRE_I64("version_max", m->version_max),
      WIRE_OPTIONAL_NAME("kv", kv),
      WIRE_DIGEST("weights_digest", m->weights_digest),
      WIRE_F64("temperature", temperature, 0, WIRE_TEMPERATURE_MAX),
      SAMPLING_CUT_FIELDS(&m->cut),
      WIRE_I32("max_new_tokens", m->max_new_tokens, 1, LIMIT_NEW_TOKENS),
      WIRE_TOKENS("stop_token_ids", m->stop_token_ids, LIMIT_STOP_TOKENS),
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &m->ignore_eos},
      {.name = "stop", .kind = FIELD_VALUE, .target = &stop},
      WIRE_U64("seed", m->seed),
      WIRE_I32("ttl_ms", m->ttl_ms, 1, WIRE_MS_MAX),
      WIRE_OPTIONAL_NAME("traceparent", m->traceparent),
      WIRE_TOKENS("prompt_ids", m->prompt_ids, LIMIT_PROMPT_TOKENS),
      {.name = "partials", .kind = FIELD_VALUE, .target = &partials},
  };
  const struct wire_list list = {
      .name = "partials", .max = LIMIT_SAMPLES_PER_GROUP, .item_size = sizeof *m->partials, .read = partial_read};
  int index = 0, kv_index = 0;
  void *items = NULL;
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_INVALID) m->unknown = wire_unknown_field(value, fields, WIRE_COUNT(fields), arena);
  if (m->unknown) rc = RC_OK;
  if (rc == RC_OK) rc = wire_choice(&kv_index, "kv", kv, KV_NAMES, WIRE_COUNT(KV_NAMES), err);
  if (rc == RC_OK) rc = wire_choice(&index, "purpose", purpose, PURPOSE_NAMES, WIRE_COUNT(PURPOSE_NAMES), err);
  if (rc == RC_OK) rc = wire_float(&m->temperature, "temperature", temperature, err);
  if (rc == RC_OK) rc = stop_strings_read(&m->stop, stop, arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->partial_count, partials, arena, err);
  if (rc) return rc;
  m->purpose = (enum lease_purpose)index;
  m->kv = (enum lease_kv)kv_index;
  m->partials = items;
  return lease_check(m, err);
}

enum rc lease_known(const struct lease *m, struct err *err) {
  if (!m->unknown) return RC_OK;
  return err_set(err, RC_INVALID, NULL,
                 "the lease says '%.40s', which is unknown here: this worker is of an earlier version than the "
                 "coordinator, replace it by one of the same",
                 m->unknown);
}

void lease_answer_encode(const struct lease_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  json_key(&w, "leases");
  json_array_begin(&w);
  for (size_t i = 0; i < m->lease_count; i++) lease_write(&m->leases[i], &w);
  json_array_end(&w);
  json_key(&w, "current");
  current_version_write(&m->current, &w);
  json_object_end(&w);
}

enum rc lease_answer_decode(struct lease_answer *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct lease_answer){0};
  const struct json *leases = NULL, *current = NULL;
  const struct json_field fields[] = {WIRE_U64("epoch", m->epoch), WIRE_VALUE("leases", leases),
                                      WIRE_VALUE("current", current)};
  const struct wire_list list = {
      .name = "leases", .max = LIMIT_LEASES_PER_REQUEST, .item_size = sizeof *m->leases, .read = lease_read};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->lease_count, leases, arena, err);
  m->leases = items;
  if (rc == RC_OK && (rc = current_version_read(&m->current, current, arena, err)) != RC_OK)
    err_in_field(err, "current");
  return rc;
}
