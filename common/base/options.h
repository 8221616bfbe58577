/* Command-line flags and LEASEHOLD_* variables: the only reader of the environment.
 *
 * A service declares one table; options_parse fills the targets from defaults, then the environment, then flags
 * (`--name value` or `--name=value`; booleans also bare).  A wrong name or value is a one-line error.  `--help`
 * and `--version` are answered by the caller: options_parse reports them through *action.
 */
#ifndef LEASEHOLD_BASE_OPTIONS_H
#define LEASEHOLD_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"

enum option_type { OPTION_STRING, OPTION_INT, OPTION_BOOL, OPTION_FLOAT };

struct option {
  const char *name; /* "lease-ttl-ms"; the variable is LEASEHOLD_LEASE_TTL_MS */
  enum option_type type;
  void *target; /* const char ** | int64_t * | bool * | double *; strings point into argv or the environment */
  const char *default_text; /* parsed like a value; NULL leaves *target as it is */
  double min, max;          /* inclusive bounds for numbers; both 0 means no bounds */
  const char *help;         /* one line */
};

enum options_action { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION };

enum rc options_parse(enum options_action *action, const struct option *options, size_t count, int argc, char **argv,
                      struct err *err);
/* true or false, in a word that can only be the value of a boolean: "off". */
bool options_bool(bool *out, const char *text);
/* Prints usage to stdout: summary, then every flag with its variable, default and help. */
void options_print_help(const char *program, const char *summary, const struct option *options, size_t count);

extern const char leasehold_version[]; /* "0.1.0" */

#endif
