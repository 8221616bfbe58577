/* Finds built-ins in the tables. */
#include "common/template/builtins/names.h"

#include <string.h>

static const struct builtin *filter_find(const char *name) {
  const struct builtin_table tables[] = {text_filters, item_filters, value_filters};
  const struct builtin *found = NULL;
  for (size_t i = 0; i < sizeof tables / sizeof tables[0] && !found; i++)
    found = builtin_find(tables[i], name, strlen(name));
  return found;
}

static const struct builtin *test_find(const char *name) { return builtin_find(all_tests, name, strlen(name)); }

const struct builtin_names builtin_names = {filter_find, test_find};

const struct builtin *global_find(const char *name) { return builtin_find(globals, name, strlen(name)); }
