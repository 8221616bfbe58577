/* Orders what the coordinator says about the current version, since its answers may overtake each other. */
#include "services/generation-server/weights/current_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDER_BELIEVED = 3 };

static bool run_number(const char *run, unsigned long long *out) {
  char *end;
  if (run[0] != 'r' || run[1] < '0' || run[1] > '9') return false;
  *out = strtoull(run + 1, &end, 10);
  return *end == '\0';
}

bool version_supersedes(const char *known_run, int64_t known_version, const char *run, int64_t version) {
  unsigned long long known_number, number;
  if (strcmp(known_run, run) == 0) return version >= known_version;
  if (!run_number(known_run, &known_number) || !run_number(run, &number)) return true;
  return number > known_number;
}

bool current_policy_is_news(struct current_policy *c, const struct current_version *told) {
  const bool newer = !c->known || version_supersedes(c->policy.run, c->policy.version, told->run, told->version);
  c->older_in_a_row = newer ? 0 : c->older_in_a_row + 1;
  if (c->older_in_a_row < OLDER_BELIEVED) return newer;
  c->older_in_a_row = 0;
  return true;
}

void current_policy_set(struct current_policy *c, const struct current_version *told) {
  *c = (struct current_policy){.known = true, .policy = {.version = told->version, .digest = told->digest}};
  snprintf(c->policy.run, sizeof c->policy.run, "%s", told->run);
  snprintf(c->trainer_url, sizeof c->trainer_url, "%s", told->trainer_url ? told->trainer_url : "");
}

static bool same_version(const struct policy *a, const struct policy *b) {
  return a->version == b->version && strcmp(a->run, b->run) == 0;
}

static bool is_newer(const struct policy *known, const struct policy *p) {
  return !same_version(known, p) && version_supersedes(known->run, known->version, p->run, p->version);
}

void current_policy_announced(struct current_policy *c, const struct policy *pushed) {
  if (c->known && !is_newer(&c->policy, pushed)) return;
  if (!c->known || strcmp(c->policy.run, pushed->run) != 0) c->trainer_url[0] = '\0';
  c->known = true;
  c->policy = *pushed;
  c->older_in_a_row = 0;
}

const struct policy *current_policy_next(const struct current_policy *c, const struct policy *active,
                                         const struct policy *staged, bool announced) {
  if (!c->known) return NULL;
  if (active && digest_equal(&active->digest, &c->policy.digest))
    return same_version(active, &c->policy) ? NULL : &c->policy;
  if (!staged) return NULL;
  if (digest_equal(&staged->digest, &c->policy.digest)) return &c->policy;
  return announced && (!active || is_newer(active, staged)) ? staged : NULL;
}

bool current_policy_awaits_push(int64_t behind_since_ms, int64_t pushed_ms, int64_t now_ms) {
  const int64_t since_ms = pushed_ms > behind_since_ms ? pushed_ms : behind_since_ms;
  return now_ms - since_ms < PUSH_GRACE_MS;
}
