/* Reads and writes sampling options.  Pure; called by the codecs of leases and training configurations, and by the
 * coordinator for a run's. */
#include "common/wire/sampling.h"

#include <string.h>

#include "common/wire/fields.h"

const char *sampling_cut_name(const struct sampling_cut *cut) {
  if (cut->top_k > 0) return "top_k";
  if ((float)cut->top_p > 0 && (float)cut->top_p < 1) return "top_p";
  return (float)cut->min_p > 0 ? "min_p" : NULL;
}

void sampling_cut_write(const struct sampling_cut *cut, struct json_writer *w) {
  if (cut->top_k > 0) json_kv_int(w, "top_k", cut->top_k);
  if (cut->top_p > 0 && cut->top_p < 1) json_kv_f64(w, "top_p", cut->top_p);
  if (cut->min_p > 0) json_kv_f64(w, "min_p", cut->min_p);
}

static enum rc read_text(const char **out, const struct json *v, struct arena *arena, struct err *err) {
  const bool is_text = json_type_of(v) == JSON_STRING;
  const size_t characters = is_text ? json_characters(v) : 0;
  size_t len = 0;
  const char *text = is_text ? json_string(v, &len) : NULL;
  if (!is_text)
    return err_set(err, RC_INVALID, "stop", "expected texts, got %s", json_type_name(json_type_of(v)));
  if (characters < 1 || characters > LIMIT_STOP_TEXT_CHARS || strlen(text) != len)
    return err_set(err, RC_INVALID, "stop", "expected texts of 1 to %d characters, none of them NUL, got %zu",
                   LIMIT_STOP_TEXT_CHARS, characters);
  *out = arena_strndup(arena, text, len);
  return *out ? RC_OK : err_set(err, RC_NO_MEMORY, "stop", "a text of %zu bytes was refused memory", len);
}

enum rc stop_strings_read(struct stop_strings *out, const struct json *value, struct arena *arena, struct err *err) {
  const bool many = value && json_type_of(value) == JSON_ARRAY;
  const size_t n = many ? json_length(value) : value != NULL;
  enum rc rc = RC_OK;
  *out = (struct stop_strings){0};
  if (n == 0) return RC_OK;
  if (n > LIMIT_STOP_TEXTS)
    return err_set(err, RC_INVALID, "stop", "expected at most %d texts, got %zu", LIMIT_STOP_TEXTS, n);
  out->items = arena_alloc(arena, n, sizeof *out->items);
  if (!out->items) return err_set(err, RC_NO_MEMORY, "stop", "%zu texts were refused memory", n);
  for (size_t i = 0; i < n && rc == RC_OK; i++) {
    rc = read_text(&out->items[i], many ? json_at(value, i) : value, arena, err);
    if (rc == RC_OK) out->count++;
  }
  return rc;
}

void stop_strings_write(const struct stop_strings *stops, struct json_writer *w) {
  if (stops->count == 0) return;
  json_key(w, "stop");
  json_array_begin(w);
  for (size_t i = 0; i < stops->count; i++) json_write_string(w, stops->items[i]);
  json_array_end(w);
}
