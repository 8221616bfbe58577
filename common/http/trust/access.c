/* Makes a process's tokens and allowed hosts of its flags, and refuses to be open to a network by oversight. */
#include "common/http/trust/access.h"

#include <stdlib.h>

static enum rc check_bind(const struct http_access *a, const struct program_settings *s, struct err *err) {
  bool loopback = false;
  if (s->insecure || tokens_wanted(a->tokens)) return RC_OK;
  const enum rc rc = hosts_bind_is_loopback(s->bind, &loopback, err);
  if (rc != RC_OK || loopback) return rc;
  return err_set(
      err, RC_INVALID, "bind",
      "--bind %.100s would admit everybody who can reach this machine: give --token-dir or --auth-token, listen on "
      "127.0.0.1, or say --insecure",
      s->bind);
}

enum rc http_access_open(struct http_access **out, const struct program_settings *settings, unsigned shows,
                         const char *coordinator, struct err *err) {
  const struct tokens_options tokens = {.all = settings->token, .dir = settings->token_dir, .shows = shows};
  struct http_access *a = calloc(1, sizeof *a);
  *out = NULL;
  if (a == NULL) return err_set(err, RC_NO_MEMORY, NULL, "the tokens and allowed hosts were refused their memory");
  a->hosts_given = settings->allow_hosts != NULL && settings->allow_hosts[0] != '\0';
  enum rc rc = tokens_open(&a->tokens, &tokens, err);
  if (rc == RC_OK) rc = hosts_open(&a->hosts, settings->allow_hosts, settings->bind, coordinator, err);
  if (rc == RC_OK) rc = check_bind(a, settings, err);
  if (rc == RC_OK)
    *out = a;
  else
    http_access_close(a);
  return rc;
}

void http_access_close(struct http_access *a) {
  if (a == NULL) return;
  tokens_close(a->tokens);
  hosts_close(a->hosts);
  free(a);
}
