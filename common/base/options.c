/* Reads flags and LEASEHOLD_* variables into a service's table of options.
 *
 * Called once by main, before threads start; strings point into argv, the environment or the table, all of which live
 * as long as the process.
 *
 * Order: defaults, then the environment (an empty variable counts as unset, as compose files produce them), then flags,
 * the last one winning.  --help and --version are looked for first, so that they answer even beside a mistake. */
#include "common/base/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_VARIABLE_MAX = 96 };

const char leasehold_version[] = "0.1.0";

static void variable_name(char out[OPTION_VARIABLE_MAX], const char *flag) {
  int n = snprintf(out, OPTION_VARIABLE_MAX, "LEASEHOLD_%s", flag);
  assert(n > 0 && n < OPTION_VARIABLE_MAX);
  for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

bool options_bool(bool *out, const char *text) {
  static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
  for (size_t i = 0; i < 4; i++) {
    if (strcmp(text, yes[i]) == 0) return *out = true, true;
    if (strcmp(text, no[i]) == 0) return *out = false, true;
  }
  return false;
}

static bool parse_int(int64_t *out, const char *text) {
  const char *digits = text[0] == '-' ? text + 1 : text;
  if (!*digits || digits[strspn(digits, "0123456789")]) return false;
  errno = 0;
  const long long value = strtoll(text, NULL, 10);
  if (errno == ERANGE) return false;
  *out = value;
  return true;
}

static bool parse_float(double *out, const char *text) {
  if (!*text || text[0] == '+' || text[strspn(text, "0123456789.eE+-")]) return false;
  char *end;
  const double value = strtod(text, &end);
  if (*end || end == text || !isfinite(value)) return false;
  *out = value;
  return true;
}

static bool has_bounds(const struct option *o) { return o->min != 0 || o->max != 0; }

/* Parses text into the option's target; `where` names its source ("--slots" or "LEASEHOLD_SLOTS"). */
static enum rc assign(const struct option *o, const char *text, const char *where, struct err *err) {
  double number;
  switch (o->type) {
    case OPTION_STRING: *(const char **)o->target = text; return RC_OK;
    case OPTION_BOOL:
      if (options_bool(o->target, text)) return RC_OK;
      return err_set(err, RC_INVALID, o->name, "%s: expected true or false, got \"%s\"", where, text);
    case OPTION_INT: {
      int64_t value;
      if (!parse_int(&value, text))
        return err_set(err, RC_INVALID, o->name, "%s: expected an integer, got \"%s\"", where, text);
      number = (double)value;
      if (has_bounds(o) && (number < o->min || number > o->max)) break;
      *(int64_t *)o->target = value;
      return RC_OK;
    }
    case OPTION_FLOAT:
      if (!parse_float(&number, text))
        return err_set(err, RC_INVALID, o->name, "%s: expected a number, got \"%s\"", where, text);
      if (has_bounds(o) && (number < o->min || number > o->max)) break;
      *(double *)o->target = number;
      return RC_OK;
  }
  return err_set(err, RC_INVALID, o->name, "%s: expected a number from %.15g to %.15g, got %s", where, o->min, o->max,
                 text);
}

static const struct option *find(const struct option *options, size_t count, const char *name, size_t name_len) {
  for (size_t i = 0; i < count; i++)
    if (strlen(options[i].name) == name_len && memcmp(options[i].name, name, name_len) == 0) return &options[i];
  return NULL;
}

/* Reads the flag at argv[*at] and its value, and moves *at past them. */
static enum rc parse_flag(const struct option *options, size_t count, int argc, char **argv, int *at, struct err *err) {
  const char *arg = argv[(*at)++];
  if (strncmp(arg, "--", 2) != 0 || !arg[2])
    return err_set(err, RC_INVALID, NULL, "expected a flag like --name, got \"%s\"; --help lists the flags", arg);
  const char *name = arg + 2, *equals = strchr(name, '=');
  const size_t name_len = equals ? (size_t)(equals - name) : strlen(name);
  const struct option *o = find(options, count, name, name_len);
  if (!o)
    return err_set(err, RC_INVALID, NULL, "unknown flag --%.*s; --help lists the flags",
                   (int)(name_len < 100 ? name_len : 100), name);
  char where[OPTION_VARIABLE_MAX];
  snprintf(where, sizeof where, "--%s", o->name);
  if (equals) return assign(o, equals + 1, where, err);
  if (o->type == OPTION_BOOL) { /* bare, or followed by a word that can only be its value */
    if (*at < argc && options_bool(o->target, argv[*at]))
      (*at)++;
    else
      *(bool *)o->target = true;
    return RC_OK;
  }
  if (*at >= argc)
    return err_set(err, RC_INVALID, o->name, "%s: expected a value after it, got the end of the line", where);
  return assign(o, argv[(*at)++], where, err);
}

static enum options_action wanted_action(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return OPTIONS_HELP;
    if (strcmp(argv[i], "--version") == 0) return OPTIONS_VERSION;
  }
  return OPTIONS_RUN;
}

enum rc options_parse(enum options_action *action, const struct option *options, size_t count, int argc, char **argv,
                      struct err *err) {
  *action = wanted_action(argc, argv);
  if (*action != OPTIONS_RUN) return RC_OK;
  for (size_t i = 0; i < count; i++) {
    if (!options[i].default_text) continue;
    const enum rc rc = assign(&options[i], options[i].default_text, options[i].name, err);
    if (rc) return rc;
  }
  for (size_t i = 0; i < count; i++) {
    char variable[OPTION_VARIABLE_MAX];
    variable_name(variable, options[i].name);
    const char *text = getenv(variable);
    if (!text || !*text) continue;
    const enum rc rc = assign(&options[i], text, variable, err);
    if (rc) return rc;
  }
  for (int at = 1; at < argc;) {
    const enum rc rc = parse_flag(options, count, argc, argv, &at, err);
    if (rc) return rc;
  }
  return RC_OK;
}

static const char *placeholder(enum option_type type) {
  switch (type) {
    case OPTION_STRING: return " TEXT";
    case OPTION_INT: return " INTEGER";
    case OPTION_FLOAT: return " NUMBER";
    case OPTION_BOOL: return "";
  }
  return "";
}

void options_print_help(const char *program, const char *summary, const struct option *options, size_t count) {
  printf("usage: %s [--flag value | --flag=value]...\n\n%s\n\nFlags:\n", program, summary);
  for (size_t i = 0; i < count; i++) {
    const struct option *o = &options[i];
    char variable[OPTION_VARIABLE_MAX];
    variable_name(variable, o->name);
    printf("  --%s%s\n      %s\n      variable %s", o->name, placeholder(o->type), o->help ? o->help : "", variable);
    if (o->default_text) printf(", default %s", *o->default_text ? o->default_text : "\"\"");
    if (has_bounds(o)) printf(", from %.15g to %.15g", o->min, o->max);
    putchar('\n');
  }
  printf("  --help\n      this text\n  --version\n      the version\n");
}
