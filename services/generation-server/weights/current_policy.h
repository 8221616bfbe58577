/* The version that is current, as far as the coordinator has told this server, where its weights can be fetched, and
 * what follows for the weights that decode.
 *
 * The coordinator tells it in two ways, in answers to heartbeats and to polls, which may overtake each other.  An older
 * version is therefore ignored, unless several answers in a row name it: then an earlier run was resumed.  A push may
 * say that its version was announced: the coordinator has accepted it before, and newer ones perhaps since.
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
/* A pushed version that was announced is current unless a newer one is known.  The trainer's URL of its run is kept. */
void current_policy_announced(struct current_policy *c, const struct policy *pushed);

/* The policy to decode with next: one that is staged, or another name for the active weights when it has their digest;
 * NULL: the active one stays.  The current version comes first.  An announced one that is staged comes next: when
 * versions are announced faster than weights come, the current one is never here, and waiting for it would leave the
 * server with its old weights.  active, staged: NULL when there is none. */
const struct policy *current_policy_next(const struct current_policy *c, const struct policy *active,
                                         const struct policy *staged, bool announced);

enum { PUSH_GRACE_MS = 15000 };
/* Where versions are announced before they are pushed, a push is on its way to a server that is behind: it pulls only
 * when none has come for PUSH_GRACE_MS.  pushed_ms: when the last one began to come. */
bool current_policy_awaits_push(int64_t behind_since_ms, int64_t pushed_ms, int64_t now_ms);

/* Does (run, version) come after (known_run, known_version), or is it the same?  Runs are numbered "r7"; within a run
 * versions rise. */
bool version_supersedes(const char *known_run, int64_t known_version, const char *run, int64_t version);

#endif
