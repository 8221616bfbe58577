/* All built-ins by name. */
#ifndef LEASEHOLD_TEMPLATE_BUILTINS_NAMES_H
#define LEASEHOLD_TEMPLATE_BUILTINS_NAMES_H

#include "common/template/builtins/builtin.h"

extern const struct builtin_names builtin_names;
const struct builtin *global_find(const char *name); /* NULL: there is none of this name */

#endif
