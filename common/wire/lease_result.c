/* Encodes and decodes a lease's result as JSON, and computes the canonical digest of a sample.
 *
 * The digest covers the content of a sample, not its spelling: fixed-width little-endian numbers, with adjacent
 * segments of one mask and adjacent spans of one version, equally fresh, merged.  It is chained through fixed stack
 * memory, so that it can neither fail nor allocate.
 *
 * Previous hop of a rollout: generation-server/engine/decode_job.c.  Next: coordinator/api/route_results.c. */
#include <float.h>
#include <string.h>

#include "common/wire/lease_result_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are hashed from memory as little-endian bytes");

static const char *const FINISH_NAMES[] = {
    [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_ABORT] = "abort"};

const char *finish_reason_name(enum finish_reason f) {
  return (size_t)f < WIRE_COUNT(FINISH_NAMES) ? FINISH_NAMES[f] : "unknown";
}

static void sample_write(const struct sample_result *s, struct json_writer *w) {
  json_object_begin(w);
  json_kv_int(w, "sample", s->sample);
  json_kv_i32s(w, "token_ids", s->token_ids.items, s->token_ids.count);
  json_kv_f32s(w, "logprobs", s->logprobs.items, s->logprobs.count);
  json_kv_string(w, "finish_reason", finish_reason_name(s->finish));
  wire_kv_segments(w, s->segments, s->segment_count);
  wire_kv_version_spans(w, s->spans, s->span_count);
  json_object_end(w);
}

static enum rc sample_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct sample_result *s = item;
  const char *finish = NULL;
  const struct json *segments = NULL, *spans = NULL;
  const struct json_field fields[] = {
      WIRE_I32("sample", s->sample, 0, LIMIT_SAMPLES_PER_GROUP - 1),
      WIRE_TOKENS("token_ids", s->token_ids, LIMIT_NEW_TOKENS),
      {.name = "logprobs",
       .kind = FIELD_F32_ARRAY,
       .target = &s->logprobs,
       .required = true,
       .min = -FLT_MAX,
       .max = 0,
       .count_max = LIMIT_NEW_TOKENS},
      WIRE_NAME("finish_reason", finish),
      WIRE_VALUE("segments", segments),
      WIRE_VALUE("version_spans", spans),
  };
  int index = 0;
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&index, "finish_reason", finish, FINISH_NAMES, WIRE_COUNT(FINISH_NAMES), err);
  if (rc) return rc;
  s->finish = (enum finish_reason)index;
  rc = sample_tokens_check(s, err);
  if (rc == RC_OK) rc = wire_segments_read(&s->segments, &s->segment_count, segments, s->token_ids.count, arena, err);
  if (rc == RC_OK)
    rc = wire_version_spans_read(&s->spans, &s->span_count, spans, s->token_ids.count, arena, err);
  return rc;
}

enum rc sample_tokens_check(const struct sample_result *s, struct err *err) {
  if (s->logprobs.count != s->token_ids.count)
    return err_set(err, RC_INVALID, "logprobs", "expected one per token (%zu), got %zu", s->token_ids.count,
                   s->logprobs.count);
  if (s->token_ids.count == 0 && s->finish != FINISH_ABORT)
    return err_set(err, RC_INVALID, "token_ids",
                   "expected at least one token of a sample that finished by \"%s\", got 0",
                   finish_reason_name(s->finish));
  return RC_OK;
}

void lease_result_head_write(const struct lease_result *m, struct json_writer *w) {
  json_kv_string(w, "worker_id", m->worker_id);
  json_kv_u64(w, "epoch", m->epoch);
  json_kv_u64(w, "fence", m->fence);
  wire_kv_digest(w, "loaded_digest", &m->loaded_digest);
  json_kv_bool(w, "handed_back", m->handed_back);
  if (m->refused) json_kv_string(w, "refused", m->refused);
  if (m->nonfinite) json_kv_int(w, "nonfinite_version", m->nonfinite_version);
}

void lease_result_encode(const struct lease_result *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  lease_result_head_write(m, &w);
  json_key(&w, "samples");
  json_array_begin(&w);
  for (size_t i = 0; i < m->sample_count; i++) sample_write(&m->samples[i], &w);
  json_array_end(&w);
  json_object_end(&w);
}

enum rc lease_result_decode(struct lease_result *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct lease_result){0};
  const struct json *samples = NULL;
  const struct json_field fields[] = {
      LEASE_RESULT_HEAD(m),
      WIRE_VALUE("samples", samples),
  };
  const struct wire_list list = {.name = "samples",
                                 .min = 1,
                                 .max = LIMIT_SAMPLES_PER_GROUP,
                                 .item_size = sizeof *m->samples,
                                 .read = sample_read};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->sample_count, samples, arena, err);
  m->samples = items;
  return rc == RC_OK ? lease_result_check(m, err) : rc;
}

enum rc lease_result_check(const struct lease_result *m, struct err *err) {
  if (m->refused && !m->handed_back)
    return err_set(err, RC_INVALID, "refused", "expected it only of a lease that is handed back");
  if (m->nonfinite && !m->handed_back)
    return err_set(err, RC_INVALID, "nonfinite_version", "expected it only of a lease that is handed back");
  bool seen[LIMIT_SAMPLES_PER_GROUP] = {0};
  for (size_t i = 0; i < m->sample_count; i++) {
    const int32_t sample = m->samples[i].sample;
    if (seen[sample])
      return err_set(err, RC_INVALID, "samples", "expected every sample once, got sample %d twice", sample);
    seen[sample] = true;
  }
  return RC_OK;
}

void lease_result_answer_encode(const struct lease_result_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_bool(&w, "repeated", m->repeated);
  json_object_end(&w);
}

enum rc lease_result_answer_decode(struct lease_result_answer *m, const struct json *body, struct arena *arena,
                                   struct err *err) {
  *m = (struct lease_result_answer){0};
  const struct json_field fields[] = {WIRE_BOOL("repeated", m->repeated)};
  return wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
}

/* chain := SHA-256(chain || tag || a || b || c) */
static void chain_numbers(struct digest *chain, uint64_t tag, uint64_t a, uint64_t b, uint64_t c) {
  uint8_t bytes[DIGEST_BYTES + 4 * sizeof(uint64_t)];
  const uint64_t numbers[4] = {tag, a, b, c};
  memcpy(bytes, chain->bytes, DIGEST_BYTES);
  memcpy(bytes + DIGEST_BYTES, numbers, sizeof numbers);
  digest_of(chain, bytes, sizeof bytes);
}

/* chain := SHA-256(chain || SHA-256(array)) */
static void chain_array(struct digest *chain, const void *items, size_t bytes_count) {
  struct digest both[2] = {*chain, {{0}}};
  digest_of(&both[1], items, bytes_count);
  digest_of(chain, both, sizeof both);
}

enum { TAG_HEAD = 1, TAG_SEGMENT = 2, TAG_SPAN = 3, TAG_SPAN_NOT_FRESH = 4 };

void sample_result_digest(struct digest *out, const struct sample_result *s) {
  static const char domain[] = "leasehold sample 1";
  struct digest chain;
  digest_of(&chain, domain, sizeof domain);
  chain_numbers(&chain, TAG_HEAD, s->token_ids.count, s->logprobs.count, (uint64_t)s->finish);
  chain_array(&chain, s->token_ids.items, s->token_ids.count * sizeof(int32_t));
  chain_array(&chain, s->logprobs.items, s->logprobs.count * sizeof(float));
  for (size_t i = 0; i < s->segment_count;) {
    const bool mask = s->segments[i].loss_mask;
    const int32_t start = s->segments[i].start;
    int64_t count = 0;
    for (; i < s->segment_count && s->segments[i].loss_mask == mask; i++) count += s->segments[i].count;
    chain_numbers(&chain, TAG_SEGMENT, mask, (uint64_t)start, (uint64_t)count);
  }
  for (size_t i = 0; i < s->span_count;) {
    const struct version_span first = s->spans[i];
    int64_t count = 0;
    for (; i < s->span_count && s->spans[i].version == first.version && s->spans[i].fresh == first.fresh; i++)
      count += s->spans[i].count;
    chain_numbers(&chain, first.fresh ? TAG_SPAN : TAG_SPAN_NOT_FRESH, (uint64_t)first.version, (uint64_t)first.start,
                  (uint64_t)count);
  }
  *out = chain;
}
