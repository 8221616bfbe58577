/* The version that is current, as far as the coordinator has told this server, and where its weights can be fetched.
 *
 * The coordinator tells it in two ways, in answers to heartbeats and to polls, which may overtake each other.  An older
 * version is therefore ignored, unless several answers in a row name it: then an earlier run was resumed.
 *
 * Pure: no clock, no lock.  staging.c keeps one under its mutex. */
#ifndef LEASEHOLD_GENERATION_SERVER_WEIGHTS_CURRENT_POLICY_H
#define LEASEHOLD_GENERATION_SERVER_WEIGHTS_CURRENT_POLICY_H

#include "common/wire/worker.h"
#include "services/generation-server/engine/decode_job.h"

struct current_policy {
  bool known;
  struct policy policy;
  char trainer_url[LIMIT_URL_MAX]; /* "": its weights can only be pushed */
  int older_in_a_row;              /* how often an older version was told last */
};

/* Should the version that was told replace the known one?  Counts older versions. */
bool current_policy_is_news(struct current_policy *c, const struct current_version *told);
void current_policy_set(struct current_policy *c, const struct current_version *told);

/* Does (run, version) come after (known_run, known_version), or is it the same?  Runs are numbered "r7"; within a run
 * versions rise. */
bool version_supersedes(const char *known_run, int64_t known_version, const char *run, int64_t version);

#endif
