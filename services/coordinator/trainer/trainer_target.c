/* Reads who holds the trainer's place, and where it is reached. */
#include "services/coordinator/trainer/trainer_target.h"

#include <stdio.h>

#include "common/wire/worker.h"

enum rc trainer_target_read(struct store *s, struct trainer_target *out, struct err *err) {
  struct rows q;
  bool row = false;
  *out = (struct trainer_target){0};
  enum rc rc = store_query(s, &q, err,
                           "SELECT id, url, epoch, fence, name, exactness FROM workers WHERE live = 1 AND kind = ?1 "
                           "AND holder = 1",
                           BINDS(b_int(WORKER_TRAINER)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct trainer_target){.found = true,
                                   .worker = rows_int(&q, 0),
                                   .epoch = (uint64_t)rows_int(&q, 2),
                                   .fence = (uint64_t)rows_int(&q, 3),
                                   .fastest = rows_int(&q, 5) == WORKER_FASTEST};
    snprintf(out->name, sizeof out->name, "%s", rows_text(&q, 4, NULL));
    snprintf(out->url, sizeof out->url, "%s", rows_text(&q, 1, NULL));
  }
  rows_end(&q);
  return rc;
}

enum rc trainer_target_now(struct readers *readers, struct trainer_target *out, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = trainer_target_read(s, out, err);
  readers_give(readers, s);
  return rc;
}
