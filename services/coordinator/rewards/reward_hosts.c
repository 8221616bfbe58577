/* Looks up a URL's host in --reward-hosts. */
#include "services/coordinator/rewards/reward_hosts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* entry[len]: "host" or "host:port" */
static bool admits(const char *entry, size_t len, const char *host, size_t host_len, int port) {
  char tail[16];
  if (len < host_len || strncasecmp(entry, host, host_len) != 0) return false;
  if (len == host_len) return true;
  snprintf(tail, sizeof tail, ":%d", port);
  return len - host_len == strlen(tail) && memcmp(entry + host_len, tail, strlen(tail)) == 0;
}

enum rc reward_host_check(const char *hosts, const char *url, struct err *err) {
  const char *host;
  size_t len;
  int port;
  const enum rc rc = http_term_host(url, &host, &len, &port, err);
  if (rc != RC_OK) return rc;
  for (const char *p = hosts ? hosts : ""; *p;) {
    p += strspn(p, ", ");
    const size_t n = strcspn(p, ", ");
    if (n && admits(p, n, host, len, port)) return RC_OK;
    p += n;
  }
  return err_set(
      err, RC_INVALID, "url",
      "the coordinator may not ask %.*s:%d for rewards: start it with --reward-hosts %.*s:%d (it has '%.200s')",
      (int)len, host, port, (int)len, host, port, hosts ? hosts : "");
}

enum rc reward_hosts_check(const char *hosts, const struct reward_rule *rule, struct err *err) {
  for (int i = 0; i < rule->count; i++) {
    char field[48];
    if (rule->terms[i].kind != VERIFIER_HTTP) continue;
    const enum rc rc = reward_host_check(hosts, rule->terms[i].http->url, err);
    if (rc == RC_OK) continue;
    snprintf(field, sizeof field, rule->is_sum ? "verifier.terms[%d].server" : "verifier.server", i);
    err_in_field(err, field);
    return rc;
  }
  return RC_OK;
}
