/* Writes requests to reward servers and reads their answers. */
#include "services/coordinator/rewards/reward_message.h"

#include <math.h>

static void text_write(struct json_writer *w, const char *key, const char *text, size_t len) {
  json_key(w, key);
  json_write_string_len(w, text, len);
}

static void slime_write(struct json_writer *w, const struct reward_item *item) {
  json_object_begin(w);
  text_write(w, "prompt", item->prompt, item->prompt_len);
  text_write(w, "response", item->text, item->text_len);
  json_kv_string(w, "label", item->label);
  json_object_end(w);
}

static void query_write(struct json_writer *w, const struct reward_item *item) {
  struct buf query = BUF_INIT;
  buf_append(&query, item->prompt, item->prompt_len);
  buf_append(&query, item->text, item->text_len);
  json_write_string_len(w, query.data ? query.data : "", query.len);
  if (query.failed) w->out->failed = true;
  buf_free(&query);
}

void reward_request_write(struct buf *out, const struct http_term *t, const struct reward_item *items, int n) {
  struct json_writer w;
  json_writer_init(&w, out);
  if (t->shape == REWARD_SLIME) {
    slime_write(&w, &items[0]);
    return;
  }
  json_object_begin(&w);
  json_key(&w, "query");
  json_array_begin(&w);
  for (int i = 0; i < n; i++) query_write(&w, &items[i]);
  json_array_end(&w);
  json_key(&w, "prompts");
  json_array_begin(&w);
  for (int i = 0; i < n; i++) json_write_string_len(&w, items[i].prompt, items[i].prompt_len);
  json_array_end(&w);
  json_key(&w, "labels");
  json_array_begin(&w);
  for (int i = 0; i < n; i++) json_write_string(&w, items[i].label);
  json_array_end(&w);
  json_object_end(&w);
}

size_t reward_answer_bytes_max(int n) { return (size_t)64 * 1024 + (size_t)n * 4096; }

static enum rc value_read(double *out, const struct json *v, int i, struct err *err) {
  const enum json_type type = json_type_of(v);
  if (type != JSON_INT && type != JSON_REAL)
    return err_set(err, RC_INVALID, NULL, "expected a number as reward %d, got %s", i, json_type_name(type));
  *out = json_number(v);
  if (isfinite(*out) && fabs(*out) <= REWARD_VALUE_MAX) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "expected reward %d between -1e9 and 1e9, got %g", i, *out);
}

static enum rc values_read(double *values, const struct http_term *t, int n, const struct json *v, struct err *err) {
  const struct json *given = json_type_of(v) == JSON_OBJECT ? json_get(v, t->key) : NULL;
  enum rc rc = RC_OK;
  if (t->shape == REWARD_SLIME && json_type_of(v) != JSON_OBJECT) return value_read(&values[0], v, 0, err);
  if (!given) return err_set(err, RC_INVALID, NULL, "expected an object with a member '%s'", t->key);
  if (t->shape == REWARD_SLIME) return value_read(&values[0], given, 0, err);
  if (json_type_of(given) != JSON_ARRAY || json_length(given) != (size_t)n)
    return err_set(err, RC_INVALID, NULL, "expected '%s' to be an array of %d numbers, got %s of %zu", t->key, n,
                   json_type_name(json_type_of(given)), json_length(given));
  for (int i = 0; i < n && rc == RC_OK; i++) rc = value_read(&values[i], json_at(given, (size_t)i), i, err);
  return rc;
}

enum rc reward_answer_read(double *values, const struct http_term *t, int n, const char *bytes, size_t len,
                           struct err *err) {
  struct json *v = NULL;
  enum rc rc = json_parse(&v, bytes, len, reward_answer_bytes_max(n), err);
  if (rc == RC_OK) rc = values_read(values, t, n, v, err);
  json_free(v);
  if (rc != RC_OK && rc != RC_NO_MEMORY) rc = RC_INVALID;
  return rc;
}

void reward_key(char out[DIGEST_HEX_MAX], const char *group, int term, const struct reward_item *items, int n) {
  struct digest_state d;
  struct digest digest;
  digest_begin(&d);
  digest_update_text(&d, group);
  digest_update_u32(&d, (uint32_t)term);
  for (int i = 0; i < n; i++) {
    digest_update_u32(&d, (uint32_t)items[i].sample);
    digest_update(&d, items[i].digest.bytes, DIGEST_BYTES);
    digest_update(&d, items[i].prompt, items[i].prompt_len);
    digest_update_text(&d, items[i].label);
  }
  digest_end(&digest, &d);
  digest_hex(out, &digest);
}
