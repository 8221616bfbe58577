/* Reads and writes the term `http`. */
#include "services/coordinator/verifiers/http_term.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"

static const char *const shape_names[] = {[REWARD_OPENRLHF] = "openrlhf", [REWARD_SLIME] = "slime"};
static const char *const label_names[] = {[LABEL_ANSWER] = "answer", [LABEL_LINE] = "line"};
static const char *const rule_names[] = {[DEADLINE_FAIL] = "fail", [DEADLINE_ZERO] = "zero", [DEADLINE_DROP] = "drop"};
static const char *const keys[] = {[REWARD_OPENRLHF] = "rewards", [REWARD_SLIME] = "score"};

static enum rc port_read(int *port, const char *text, struct err *err) {
  const size_t digits = strspn(text, "0123456789");
  *port = 0;
  for (size_t i = 0; i < digits && *port < 65536; i++) *port = *port * 10 + (text[i] - '0');
  if (digits > 0 && *port > 0 && *port < 65536 && strchr("/?", text[digits])) return RC_OK;
  return err_set(err, RC_INVALID, "url", "expected a port from 1 to 65535, got ':%.20s'", text);
}

bool http_term_secure(const char *url) { return strncmp(url, "https://", 8) == 0; }

enum rc http_term_host(const char *url, const char **host, size_t *len, int *port, struct err *err) {
  const bool secure = http_term_secure(url);
  if (!secure && strncmp(url, "http://", 7) != 0)
    return err_set(err, RC_INVALID, "url", "expected http://host:port/path or https://host:port/path, got '%.60s'",
                   url);
  *host = strstr(url, "//") + 2;
  const bool is_v6 = **host == '[';
  *len = is_v6 ? strcspn(*host, "]") + 1 : strcspn(*host, ":/?");
  const char *behind = *host + *len;
  for (const char *p = url; *p; p++) {
    const bool ends = p >= *host && p < behind && strchr("@#", *p);
    if ((unsigned char)*p <= ' ' || *p == 127 || *p == '#' || ends)
      return err_set(err, RC_INVALID, "url",
                     "expected http://host:port/path without spaces, names and passwords, got '%.60s'", url);
  }
  if (*len == 0 || (is_v6 && !strchr(*host, ']')))
    return err_set(err, RC_INVALID, "url", "expected http://host:port/path, got '%.60s'", url);
  *port = secure ? 443 : 80;
  return *behind == ':' ? port_read(port, behind + 1, err) : RC_OK;
}

enum rc http_term_read(const struct http_term **out, const struct json *v, struct arena *arena, struct err *err) {
  const char *shape = shape_names[0], *label = label_names[0], *rule = rule_names[0], *host;
  size_t len;
  int index = 0, port;
  struct http_term *t = arena_alloc(arena, 1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "a reward server's configuration was refused memory");
  t->policy = (struct reward_policy){.concurrency = 4,
                                     .retries = 1000,
                                     .breaker_failures = 5,
                                     .timeout_ms = 30000,
                                     .deadline_ms = 600000,
                                     .breaker_ms = 1000};
  struct reward_policy *p = &t->policy;
  const struct json_field fields[] = {
      {.name = "url", .kind = FIELD_STRING, .target = &t->url, .required = true, .min = 1, .max = LIMIT_URL_MAX - 1},
      {.name = "shape", .kind = FIELD_STRING, .target = &shape, .min = 1, .max = 32},
      {.name = "key", .kind = FIELD_STRING, .target = &t->key, .min = 1, .max = 64},
      {.name = "label", .kind = FIELD_STRING, .target = &label, .min = 1, .max = 32},
      {.name = "batch", .kind = FIELD_I32, .target = &t->batch, .min = 1, .max = REWARD_BATCH_MAX},
      {.name = "concurrency", .kind = FIELD_I32, .target = &p->concurrency, .min = 1, .max = LIMIT_THREADS},
      {.name = "timeout_ms", .kind = FIELD_I64, .target = &p->timeout_ms, .min = 10, .max = 3600000},
      {.name = "deadline_ms", .kind = FIELD_I64, .target = &p->deadline_ms, .min = 10, .max = 86400000},
      {.name = "retries", .kind = FIELD_I32, .target = &p->retries, .min = 0, .max = 1000000},
      {.name = "breaker_failures", .kind = FIELD_I32, .target = &p->breaker_failures, .min = 1, .max = 1000000},
      {.name = "breaker_ms", .kind = FIELD_I64, .target = &p->breaker_ms, .min = 10, .max = 3600000},
      {.name = "on_deadline", .kind = FIELD_STRING, .target = &rule, .min = 1, .max = 32}};
  enum rc rc = json_fields(v, fields, sizeof fields / sizeof *fields, UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = http_term_host(t->url, &host, &len, &port, err);
  if (rc == RC_OK) rc = name_index(&index, shape, shape_names, 2, "shape", err);
  t->shape = (enum reward_shape)index;
  if (rc == RC_OK) rc = name_index(&index, label, label_names, 2, "label", err);
  t->label = (enum reward_label)index;
  if (rc == RC_OK) rc = name_index(&index, rule, rule_names, 3, "on_deadline", err);
  t->on_deadline = (enum deadline_rule)index;
  if (rc == RC_OK && t->shape == REWARD_SLIME && t->batch > 1)
    rc = err_set(err, RC_INVALID, "batch", "a request of shape 'slime' holds one sample, got a batch of %d", t->batch);
  if (!t->batch) t->batch = t->shape == REWARD_SLIME ? 1 : 64;
  if (!t->key) t->key = keys[t->shape];
  *out = t;
  return rc;
}

void http_term_write(const struct http_term *t, struct json_writer *w) {
  const struct reward_policy *p = &t->policy;
  json_kv_string(w, "url", t->url);
  json_kv_string(w, "shape", shape_names[t->shape]);
  json_kv_string(w, "key", t->key);
  json_kv_string(w, "label", label_names[t->label]);
  json_kv_int(w, "batch", t->batch);
  json_kv_int(w, "concurrency", p->concurrency);
  json_kv_int(w, "timeout_ms", p->timeout_ms);
  json_kv_int(w, "deadline_ms", p->deadline_ms);
  json_kv_int(w, "retries", p->retries);
  json_kv_int(w, "breaker_failures", p->breaker_failures);
  json_kv_int(w, "breaker_ms", p->breaker_ms);
  json_kv_string(w, "on_deadline", rule_names[t->on_deadline]);
}
