/* See program.h. */
#include "common/base/program.h"

#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/signals.h"

enum rc program_start(bool *run, const struct program *p, int argc, char **argv, struct err *err) {
  enum options_action action;
  enum log_level level;
  *run = false;
  enum rc rc = options_parse(&action, p->options, p->option_count, argc, argv, err);
  if (rc != RC_OK) return rc;
  if (action == OPTIONS_HELP) {
    options_print_help(p->name, p->summary, p->options, p->option_count);
    return RC_OK;
  }
  if (action == OPTIONS_VERSION) {
    printf("%s %s\n", p->name, leasehold_version);
    return RC_OK;
  }
  if ((rc = log_level_parse(&level, p->settings->log_level, err)) != RC_OK) return rc;
  log_init(p->name, level);
  signals_install();
  *run = true;
  return RC_OK;
}

enum rc program_write_port(const struct program_settings *s, int port, struct err *err) {
  char text[16];
  if (!s->port_file[0]) return RC_OK;
  snprintf(text, sizeof text, "%d\n", port);
  return file_write_atomic(s->port_file, text, strlen(text), err);
}

void program_default_url(char *out, size_t size, const char *bind, int port) {
  const bool any = strcmp(bind, "0.0.0.0") == 0 || strcmp(bind, "::") == 0;
  const bool v6 = !any && strchr(bind, ':');
  snprintf(out, size, "http://%s%s%s:%d", v6 ? "[" : "", any ? "127.0.0.1" : bind, v6 ? "]" : "", port);
}

int program_end(const struct program *p, enum rc rc, const struct err *err) {
  if (rc == RC_OK) return 0;
  fprintf(stderr, "%s: %s\n", p->name, err->message);
  return 1;
}
