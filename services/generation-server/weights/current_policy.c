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
