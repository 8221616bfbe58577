/* Reads which terms a reward has, and writes what they gave. */
#include "services/coordinator/views/reward_terms.h"

#include <stdio.h>
#include <string.h>

/* A set of an evaluation has a verifier of its own, or the run's; an evaluate run's have the run's (run_rule). */
static const char VERIFIER_OF[] =
    "SELECT coalesce(iif(objective IN ('evaluate', 'cross_entropy'), NULL, json_extract(config, '$.evaluation.sets[' "
    "|| ?2 || '].verifier')), json_extract(config, '$.verifier')) FROM runs WHERE id = ?1";

static void term_add(struct reward_terms *out, const struct json *term, double weight) {
  const char *kind = json_word(json_get(term, "kind"));
  int same = 1;
  if (!kind || out->count == REWARD_TERMS_MAX) return;
  for (int i = 0; i < out->count; i++) same += strcmp(out->items[i].kind, kind) == 0;
  snprintf(out->items[out->count].kind, REWARD_TERM_NAME_MAX, "%.16s", kind);
  snprintf(out->items[out->count].name, REWARD_TERM_NAME_MAX, same > 1 ? "%.16s_%d" : "%.16s", kind, same);
  out->items[out->count++].weight = weight;
}

static enum rc verifier_parse(struct reward_terms *out, const char *text, size_t len, struct err *err) {
  struct json *v = NULL;
  const enum rc rc = json_parse(&v, text, len, 0, err);
  if (rc != RC_OK) return rc;
  const struct json *terms = json_get(v, "terms");
  out->is_sum = terms && json_type_of(terms) == JSON_ARRAY;
  for (size_t i = 0; out->is_sum && i < json_length(terms); i++) {
    const struct json *weight = json_get(json_at(terms, i), "weight");
    const bool number = weight && (json_type_of(weight) == JSON_REAL || json_type_of(weight) == JSON_INT);
    term_add(out, json_at(terms, i), number ? json_number(weight) : 1);
  }
  if (!out->is_sum) term_add(out, v, 1);
  json_free(v);
  return RC_OK;
}

enum rc reward_terms_read(struct reward_terms *out, struct store *s, int64_t run, int64_t set, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct reward_terms){0};
  enum rc rc = store_query(s, &q, err, VERIFIER_OF, BINDS(b_int(run), set < 0 ? b_null() : b_int(set)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row && !rows_null(&q, 0)) {
    size_t len;
    const char *text = rows_text(&q, 0, &len);
    rc = verifier_parse(out, text, len, err);
  }
  rows_end(&q);
  return rc;
}

bool reward_terms_values(const struct reward_terms *t, const struct rows *q, int column,
                         double values[REWARD_TERMS_MAX]) {
  size_t len;
  if (!t->is_sum || rows_null(q, column)) return false;
  const void *bytes = rows_blob(q, column, &len);
  if (len != (size_t)t->count * sizeof *values) return false;
  memcpy(values, bytes, len);
  return true;
}

void reward_terms_write(struct json_writer *w, const struct reward_terms *t, const struct rows *q, int column) {
  double values[REWARD_TERMS_MAX];
  json_key(w, "terms");
  if (!reward_terms_values(t, q, column, values)) {
    json_write_null(w);
    return;
  }
  json_array_begin(w);
  for (int i = 0; i < t->count; i++) {
    json_object_begin(w);
    json_kv_string(w, "name", t->items[i].name);
    json_kv_string(w, "kind", t->items[i].kind);
    json_kv_f64(w, "weight", t->items[i].weight);
    json_kv_f64(w, "value", values[i]);
    json_object_end(w);
  }
  json_array_end(w);
}
