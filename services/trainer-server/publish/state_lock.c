/* Locks the folder of the checkpoints against a second trainer. */
#include "services/trainer-server/publish/state_lock.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/file_lock.h"
#include "common/base/limits.h"
#include "common/base/log.h"

enum { GUARD_AT = 0, AGAIN_MS = 50 };

/* " (process 7)", or nothing where it cannot be seen from here. */
static void name_process(char out[40], long holder) {
  out[0] = '\0';
  if (holder) snprintf(out, 40, " (process %ld)", holder);
}

enum rc state_lock_take(int *out, const char *state_dir, int64_t wait_ms, struct err *err) {
  const int64_t deadline_ms = clock_monotonic_ms() + wait_ms;
  char path[LIMIT_PATH_MAX], process[40];
  struct err why = {0};
  long holder;
  *out = -1;
  enum rc rc = path_format(path, err, "%s/trainer-lock", state_dir);
  if (rc != RC_OK) return rc;
  for (bool waited = false; (rc = file_lock_take(out, &holder, path, GUARD_AT, &why)) == RC_CONFLICT; waited = true) {
    name_process(process, holder);
    if (clock_monotonic_ms() >= deadline_ms)
      return err_set(err, rc, "state-dir",
                     "another trainer%s keeps its checkpoints in %s: stop it, or give --state-dir another folder",
                     process, state_dir);
    if (!waited) log_info("waiting for the trainer%s that has %s", process, state_dir);
    clock_sleep_ms(AGAIN_MS);
  }
  if (rc == RC_OK)
    file_lock_sign(*out, GUARD_AT);
  else
    log_warn("nothing keeps another trainer from using %s: %s", state_dir, why.message);
  return RC_OK;
}

void state_lock_release(int fd) { file_lock_release(fd); }
