/* Finds built-ins by name, and puts a call's arguments to their parameters. */
#include "common/template/builtins/builtin.h"

#include <string.h>

const struct builtin *builtin_find(struct builtin_table table, const char *name, size_t len) {
  for (size_t i = 0; i < table.count; i++)
    if (strlen(table.rows[i].name) == len && memcmp(table.rows[i].name, name, len) == 0) return &table.rows[i];
  return NULL;
}

static int parameter_of(const struct builtin *builtin, const char *name) {
  for (int i = 0; i < PARAMETERS_MAX && builtin->parameters[i]; i++)
    if (strcmp(builtin->parameters[i], name) == 0) return i;
  return -1;
}

static enum rc bind(struct workspace *w, const struct builtin *builtin, const struct call_values *values,
                    struct arguments *a) {
  size_t most = 0;
  while (most < PARAMETERS_MAX && builtin->parameters[most]) most++;
  if (values->count > most)
    return work_fail(w, RC_INVALID, "expected at most %zu arguments of %s, got %zu", most, builtin->name,
                     values->count);
  for (size_t i = 0; i < values->count; i++) {
    a->values[i] = values->items[i];
    a->given[i] = true;
  }
  for (size_t i = 0; i < values->named_count; i++) {
    const int at = parameter_of(builtin, values->named[i].name);
    if (at < 0 || a->given[at])
      return work_fail(w, RC_INVALID, "expected no argument %.64s of %s%s", values->named[i].name, builtin->name,
                       at < 0 ? "" : " beside the one in its place");
    a->values[at] = values->named[i].value;
    a->given[at] = true;
  }
  for (int i = 0; i < builtin->required; i++)
    if (!a->given[i])
      return work_fail(w, RC_INVALID, "expected an argument %s of %s", builtin->parameters[i], builtin->name);
  return RC_OK;
}

enum rc builtin_call(struct workspace *w, const struct builtin *builtin, struct value self,
                     const struct call_values *values, struct value *out) {
  struct arguments a = {.all = values};
  if (!builtin->run) return work_fail(w, RC_UNSUPPORTED, "%s is not supported here", builtin->name);
  const enum rc rc = builtin->takes_all ? RC_OK : bind(w, builtin, values, &a);
  return rc == RC_OK ? builtin->run(w, self, &a, out) : rc;
}

enum rc argument_int(struct workspace *w, const struct arguments *a, int index, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (!a->given[index] || a->values[index].kind == VALUE_NONE || value_integer(a->values[index], out)) return RC_OK;
  return work_fail(w, RC_INVALID, "expected an integer as argument %d, got %s", index + 1,
                   value_type(a->values[index]));
}

bool argument_true(const struct arguments *a, int index, bool otherwise) {
  return a->given[index] ? value_true(a->values[index]) : otherwise;
}

enum rc argument_text(struct workspace *w, const struct arguments *a, int index, const struct text **out) {
  *out = NULL;
  if (!a->given[index] || a->values[index].kind == VALUE_NONE) return RC_OK;
  if (a->values[index].kind == VALUE_TEXT) {
    *out = a->values[index].text;
    return RC_OK;
  }
  return work_fail(w, RC_INVALID, "expected a text as argument %d, got %s", index + 1, value_type(a->values[index]));
}

enum rc test_value(struct workspace *w, const struct builtin *test, struct value v, const struct call_values *values,
                   bool *out) {
  struct value truth;
  const enum rc rc = builtin_call(w, test, v, values, &truth);
  if (rc == RC_OK) *out = value_true(truth);
  return rc;
}
