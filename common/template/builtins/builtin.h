/* The functions that templates may use: filters, tests, methods and global functions, each a row of a table.
 *
 * A row names its parameters, so that arguments may come by place or by name; rows without `run` are known to Jinja but
 * not implemented here: their use is refused by name. */
#ifndef LEASEHOLD_TEMPLATE_BUILTINS_BUILTIN_H
#define LEASEHOLD_TEMPLATE_BUILTINS_BUILTIN_H

#include "common/template/values/value.h"

enum { PARAMETERS_MAX = 5 };

struct named_value {
  const char *name;
  struct value value;
};
/* The arguments of a call, as they were written. */
struct call_values {
  const struct value *items;
  size_t count;
  const struct named_value *named;
  size_t named_count;
};
/* The same, put to a row's parameters. */
struct arguments {
  struct value values[PARAMETERS_MAX];
  bool given[PARAMETERS_MAX];
  const struct call_values *all;
};

/* self: a filter's input, a test's value, a method's object. */
typedef enum rc builtin_run(struct workspace *w, struct value self, const struct arguments *a, struct value *out);

struct builtin {
  const char *name;
  builtin_run *run; /* NULL: not supported */
  const char *parameters[PARAMETERS_MAX];
  int required;
  bool takes_all; /* any arguments: the row reads them from a->all */
};
struct builtin_table {
  const struct builtin *rows;
  size_t count;
};

const struct builtin *builtin_find(struct builtin_table table, const char *name, size_t len);
enum rc builtin_call(struct workspace *w, const struct builtin *builtin, struct value self,
                     const struct call_values *values, struct value *out);

/* The result of a test. */
enum rc test_value(struct workspace *w, const struct builtin *test, struct value v, const struct call_values *values,
                   bool *out);

/* The tables, each in a file of its name. */
extern const struct builtin_table text_filters, item_filters, value_filters, all_tests, text_methods, dict_methods,
    list_methods, tuple_methods, loop_methods, globals;

/* Arguments with defaults; RC_INVALID when one of another type was given. */
enum rc argument_int(struct workspace *w, const struct arguments *a, int index, int64_t otherwise, int64_t *out);
bool argument_true(const struct arguments *a, int index, bool otherwise);
/* NULL when it was not given, or is none. */
enum rc argument_text(struct workspace *w, const struct arguments *a, int index, const struct text **out);

#endif
