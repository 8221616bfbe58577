/* Reads the sampling parameters that all clients spell alike. */
#include "services/generation-server/shapes/sampling_fields.h"
#include "common/base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sampling_fields_add(struct sampling_fields *f, struct json_field field) {
  assert(f->count < SAMPLING_FIELDS_MAX);
  f->items[f->count++] = field;
}

void sampling_fields_refuse(struct sampling_fields *f, const char *name, const char *nothing, const char *why) {
  assert(f->refused_count < REFUSED_FIELDS_MAX);
  f->refused[f->refused_count].name = name;
  f->refused[f->refused_count].why = why;
  f->refused[f->refused_count].nothing = nothing;
  sampling_fields_add(
      f, (struct json_field){.name = name, .kind = FIELD_VALUE, .target = &f->refused[f->refused_count++].value});
}

void sampling_fields_ignore(struct sampling_fields *f, const char *name) {
  sampling_fields_add(f, (struct json_field){.name = name, .kind = FIELD_VALUE, .target = &f->ignored});
}

void sampling_fields_init(struct sampling_fields *f, struct generate_params *p, int choices_max) {
  *f = (struct sampling_fields){.params = p, .hides_special = true, .spaces = true, .repetition = 1};
  const struct json_field fields[] = {
      {.name = "temperature", .kind = FIELD_F64, .target = &p->temperature, .min = 0, .max = 100},
      {.name = "top_p", .kind = FIELD_F64, .target = &p->top_p, .min = 1e-6, .max = 1},
      {.name = "top_k", .kind = FIELD_I32, .target = &p->top_k, .min = -1, .max = LIMIT_VOCABULARY},
      {.name = "min_p", .kind = FIELD_F64, .target = &p->min_p, .min = 0, .max = 1},
      {.name = "n", .kind = FIELD_I32, .target = &p->n, .min = 1, .max = choices_max},
      {.name = "seed", .kind = FIELD_U64, .target = &p->seed, .present = &f->has_seed},
      {.name = "stop", .kind = FIELD_VALUE, .target = &f->stop},
      {.name = "stop_token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &p->stop_token_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_STOP_TOKENS},
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &p->ignore_eos},
      {.name = "presence_penalty", .kind = FIELD_F64, .target = &f->presence, .min = -2, .max = 2},
      {.name = "frequency_penalty", .kind = FIELD_F64, .target = &f->frequency, .min = -2, .max = 2},
      {.name = "repetition_penalty", .kind = FIELD_F64, .target = &f->repetition, .min = 0.01, .max = 100},
      {.name = "logit_bias", .kind = FIELD_VALUE, .target = &f->logit_bias},
      {.name = "skip_special_tokens", .kind = FIELD_BOOL, .target = &f->hides_special},
      {.name = "spaces_between_special_tokens", .kind = FIELD_BOOL, .target = &f->spaces},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) sampling_fields_add(f, fields[i]);
}

enum rc client_id_check(const char *id, const char *field, struct err *err) {
  if (!id) return RC_OK;
  const size_t len = strlen(id);
  return len > 0 && len < LIMIT_NAME_MAX && ascii_visible(id)
             ? RC_OK
             : err_set(err, RC_INVALID, field, "expected 1 to %d visible ASCII characters, got %zu bytes",
                       LIMIT_NAME_MAX - 1, len);
}

/* --- where to stop --- */

static enum rc add_stop(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  if (json_type_of(v) != JSON_STRING)
    return err_set(err, RC_INVALID, "stop", "expected a text or an array of up to %d texts, got %s in it",
                   LIMIT_STOP_TEXTS, json_type_name(json_type_of(v)));
  const size_t characters = json_characters(v);
  if (characters < 1 || characters > LIMIT_STOP_TEXT_CHARS)
    return err_set(err, RC_INVALID, "stop", "expected texts of 1 to %d characters, got %zu", LIMIT_STOP_TEXT_CHARS,
                   characters);
  size_t len;
  const char *text = json_string(v, &len);
  return stop_texts_add(&p->stops, text, len, arena, err);
}

static enum rc read_stop(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  if (!v) return RC_OK;
  if (json_type_of(v) == JSON_STRING) return add_stop(p, v, arena, err);
  if (json_type_of(v) != JSON_ARRAY || json_length(v) > LIMIT_STOP_TEXTS)
    return err_set(err, RC_INVALID, "stop", "expected a text or an array of up to %d texts, got %s of %zu",
                   LIMIT_STOP_TEXTS, json_type_name(json_type_of(v)), json_length(v));
  enum rc rc = RC_OK;
  for (size_t i = 0; i < json_length(v) && rc == RC_OK; i++) rc = add_stop(p, json_at(v, i), arena, err);
  return rc;
}

/* --- biases --- */

/* A decimal id without sign or leading zeros, as JSON's keys spell it. */
static bool read_id(int32_t *out, const char *key) {
  char *end;
  if (*key < '0' || *key > '9' || (*key == '0' && key[1]) || strlen(key) > 7) return false;
  const long id = strtol(key, &end, 10);
  *out = (int32_t)id;
  return *end == '\0' && id < LIMIT_VOCABULARY;
}

static enum rc read_biases(struct generate_params *p, const struct json *v, struct arena *arena, struct err *err) {
  if (!v) return RC_OK;
  if (json_type_of(v) != JSON_OBJECT)
    return err_set(err, RC_INVALID, "logit_bias", "expected an object of token ids, got %s",
                   json_type_name(json_type_of(v)));
  const size_t count = json_length(v);
  if (count > LIMIT_TOKEN_BIASES)
    return err_set(err, RC_INVALID, "logit_bias", "expected at most %d tokens, got %zu", LIMIT_TOKEN_BIASES, count);
  struct token_bias *biases = arena_alloc(arena, count + 1, sizeof *biases);
  if (!biases) return err_set(err, RC_NO_MEMORY, "logit_bias", "%zu biases were refused their memory", count);
  void *cursor = NULL;
  const char *key;
  const struct json *value;
  size_t i = 0;
  while (json_next(v, &cursor, &key, &value)) {
    const enum json_type type = json_type_of(value);
    if (!read_id(&biases[i].token, key))
      return err_set(err, RC_INVALID, "logit_bias", "expected token ids from 0 to %d, got \"%.40s\"",
                     LIMIT_VOCABULARY - 1, key);
    if ((type != JSON_INT && type != JSON_REAL) || json_number(value) < -100 || json_number(value) > 100)
      return err_set(err, RC_INVALID, "logit_bias", "expected biases from -100 to 100, and that of token %s is none",
                     key);
    biases[i++].bias = (float)json_number(value);
  }
  p->changes.biases = biases;
  p->changes.bias_count = count;
  return RC_OK;
}

/* --- all --- */

static bool asks_nothing(const struct json *value, const char *nothing) {
  const enum json_type type = json_type_of(value);
  if (!nothing) return false;
  if (*nothing == 'f') return type == JSON_BOOL && !json_bool(value);
  if (*nothing == '[') return type == JSON_ARRAY && json_length(value) == 0;
  if (*nothing == '{') return type == JSON_OBJECT && json_length(value) == 0;
  return (type == JSON_INT || type == JSON_REAL) && json_number(value) == *nothing - '0';
}

static enum rc refuse_others(const struct sampling_fields *f, struct err *err) {
  for (size_t i = 0; i < f->refused_count; i++)
    if (f->refused[i].value && !asks_nothing(f->refused[i].value, f->refused[i].nothing))
      return err_set(err, RC_UNSUPPORTED, f->refused[i].name, "%s", f->refused[i].why);
  return RC_OK;
}

enum rc sampling_fields_read(struct sampling_fields *f, const struct json *object, struct arena *arena,
                             struct err *err) {
  struct generate_params *p = f->params;
  enum rc rc = json_fields(object, f->items, f->count, UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = read_stop(p, f->stop, arena, err);
  if (rc == RC_OK) rc = read_biases(p, f->logit_bias, arena, err);
  if (rc == RC_OK) rc = refuse_others(f, err);
  if (rc != RC_OK) return rc;
  p->has_seed |= f->has_seed;
  p->shows_special = !f->hides_special;
  p->changes.presence = (float)f->presence;
  p->changes.frequency = (float)f->frequency;
  p->changes.repetition = (float)f->repetition;
  return RC_OK;
}
