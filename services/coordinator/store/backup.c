/* Copies a database that is in use: see backup.h. */
#include "services/coordinator/store/backup.h"

#include <unistd.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "services/coordinator/store/store.h"

enum rc store_backup(const char *from, const char *to, struct err *err) {
  char partial[LIMIT_PATH_MAX];
  struct store *s = NULL;
  int64_t pages = 0, page_bytes = 0;
  enum rc rc = path_format(partial, err, "%s.partial", to);
  if (rc != RC_OK) return rc;
  if (!file_exists(from)) return err_set(err, RC_NOT_FOUND, "db", "expected a database to copy, there is no %s", from);
  if (file_exists(to))
    return err_set(err, RC_CONFLICT, "backup", "expected the name of a new file, %s is there already", to);
  unlink(partial); /* of a copy that was killed */
  rc = store_open(&s, from, true, err);
  if (rc == RC_OK) rc = store_script(s, "PRAGMA query_only=OFF", err); /* which forbids copies too; the file stays read
                                                                        * only */
  if (rc == RC_OK) rc = store_exec(s, err, "VACUUM INTO ?1", BINDS(b_text(partial)));
  if (rc == RC_OK) rc = store_int(s, &pages, err, "PRAGMA page_count", NO_BINDS);
  if (rc == RC_OK) rc = store_int(s, &page_bytes, err, "PRAGMA page_size", NO_BINDS);
  store_close(s);
  if (rc == RC_OK) rc = file_sync(partial, err);
  if (rc == RC_OK) rc = file_rename_durable(partial, to, err);
  if (rc == RC_OK)
    log_info("%s is a copy of %s as it was when this began, %.1f MiB", to, from,
             (double)(pages * page_bytes) / (1 << 20));
  else
    unlink(partial);
  return rc;
}
