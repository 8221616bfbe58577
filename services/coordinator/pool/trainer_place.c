/* Decides which registered trainer holds the place, and hands it to a standby when it is free. */
#include "services/coordinator/pool/trainer_place.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/store/ids.h"

enum rc place_begin(struct core *c, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc =
      store_query(c->store, &q, err, "SELECT identity FROM workers WHERE live = 1 AND kind = ?1 AND holder = 1",
                  BINDS(b_int(WORKER_TRAINER)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) snprintf(c->pool->place_for, sizeof c->pool->place_for, "%s", rows_text(&q, 0, NULL));
  rows_end(&q);
  c->pool->place_kept_until_ms = c->now_ms + c->options.worker_ttl_ms;
  return rc;
}

struct live_worker *place_same_trainer(struct core *c, const struct worker_register *m) {
  for (int i = 0; i < c->pool->worker_count; i++) {
    struct live_worker *w = &c->pool->workers[i];
    if (w->kind != WORKER_TRAINER) continue;
    if (m->identity ? strcmp(w->identity, m->identity) == 0 : !w->identity[0] && strcmp(w->name, m->name) == 0)
      return w;
  }
  return NULL;
}

const struct live_worker *place_holder(const struct core *c) {
  for (int i = 0; i < c->pool->worker_count; i++)
    if (c->pool->workers[i].holder) return &c->pool->workers[i];
  return NULL;
}

bool place_is_free(struct core *c, const char *identity) {
  if (place_holder(c)) return false;
  if (expiry_passed(c->pool->place_kept_until_ms, c->now_ms)) c->pool->place_for[0] = 0;
  return !c->pool->place_for[0] || (identity && strcmp(c->pool->place_for, identity) == 0);
}

enum rc place_take(struct core *c, int64_t worker, int64_t *fence, struct err *err) {
  enum rc rc = store_exec(c->store, err, "UPDATE meta SET value = value + 1 WHERE key = 'trainer_fence'", NO_BINDS);
  if (rc == RC_OK) rc = store_int(c->store, fence, err, "SELECT value FROM meta WHERE key = 'trainer_fence'", NO_BINDS);
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE workers SET holder = 1, fence = ?2 WHERE id = ?1",
                    BINDS(b_int(worker), b_int(*fence)));
  if (rc == RC_OK) c->pool->place_for[0] = 0;
  return rc;
}

enum rc place_fill(struct core *c, struct err *err) {
  struct live_worker *next = NULL;
  for (int i = 0; i < c->pool->worker_count; i++) {
    struct live_worker *w = &c->pool->workers[i];
    if (w->kind == WORKER_TRAINER && !w->holder && (!next || w->id < next->id)) next = w;
  }
  if (!next || !place_is_free(c, NULL)) return RC_OK;
  const enum rc rc = place_take(c, next->id, &next->fence, err);
  if (rc != RC_OK) return rc;
  next->holder = true;
  c->kick_due = true;
  log_info("worker %s (%s) stood by and takes the trainer's place, fence %lld", id_worker(next->id).text, next->name,
           (long long)next->fence);
  return RC_OK;
}
