/* A policy version as a Hugging Face folder that a foreign engine can load: pulled from the trainer, and proven by
 * its digest.
 *
 *   trainer --GET /v1/weights/{version}--> memory --digest of what was announced--> ROOT/NAME.partial --rename--> ROOT/NAME
 *
 * ROOT is this agent's alone.  A folder of the right name was whole when it was renamed; its digest is computed again
 * before it is used again.  The whole file is in memory while it is pulled.  Blocking; called by the loader's
 * thread. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_WEIGHTS_VERSION_FOLDER_H
#define LEASEHOLD_ROLLOUT_AGENT_WEIGHTS_VERSION_FOLDER_H

#include "common/client/trainer_client.h"

struct version_source {
  struct trainer_client trainer;
  const char *run;
  int64_t version;
  const struct digest *digest; /* of the weights, as the trainer announced it */
  size_t bytes_max;
};

/* ROOT/name is there and has the digest, or will be when this returns RC_OK. */
enum rc version_folder_make(const char *root, const char *name, const struct version_source *from, struct err *err);
/* Removes everything in root but these two; either may be "". */
void version_folder_keep(const char *root, const char *one, const char *other);

#endif
