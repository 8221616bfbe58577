/* Keeps the view that handlers copy, and the published weights, under one lock. */
#include "services/trainer-server/board/board.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

void board_init(struct board *b, bool has_coordinator) {
  *b = (struct board){.has_coordinator = has_coordinator};
  pthread_mutex_init(&b->lock, NULL);
  change_history_init(&b->changes);
  b->metric_version = metrics_register(METRIC_GAUGE, "leasehold_trainer_version", "", "The current policy version");
  b->metric_replaying = metrics_register(METRIC_GAUGE, "leasehold_trainer_replaying", "",
                                         "1 while the logged rounds of a recovery are replayed");
}

void board_free(struct board *b) {
  if (b->superseded) weights_blob_forget(b->superseded);
  weights_blob_release(b->current);
  change_history_free(&b->changes);
  pthread_mutex_destroy(&b->lock);
}

void board_view(struct board *b, struct board_view *out) {
  pthread_mutex_lock(&b->lock);
  *out = b->view;
  pthread_mutex_unlock(&b->lock);
}

enum rc board_check_version(struct board *b, const char *run, int64_t version, struct err *err) {
  struct board_view v;
  board_view(b, &v);
  if (strcmp(run, v.run) != 0)
    return err_set(err, RC_CONFLICT, "run", "this trainer works on run '%s', not on '%s'", v.run, run);
  if (version != v.version)
    return err_set(err, RC_CONFLICT, "version", "version %" PRId64 " is not the current one, %" PRId64, version,
                   v.version);
  return RC_OK;
}

enum rc board_read_weights(struct board *b, const char *run, int64_t version, struct weights_blob **out,
                           struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&b->lock);
  const struct board_view *v = &b->view;
  if (run[0] && strcmp(run, v->run) != 0) {
    rc = err_set(err, RC_NOT_FOUND, "run", "this trainer holds run '%s', not '%s'", v->run, run);
  } else if (version > v->version && version <= v->replay_to) {
    rc = err_set(err, RC_UNAVAILABLE, "version", "version %" PRId64 " is being replayed, %" PRId64 " is reached",
                 version, v->version);
  } else if (version != v->version) {
    rc = err_set(err, version < v->version ? RC_CONFLICT : RC_NOT_FOUND, "version",
                 "version %" PRId64 " is not the current one, %" PRId64, version, v->version);
  } else {
    weights_blob_read_begin(b->current);
    *out = b->current;
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

void board_busy(struct board *b, bool busy) {
  pthread_mutex_lock(&b->lock);
  b->view.busy = busy;
  pthread_mutex_unlock(&b->lock);
}

void board_run_begin(struct board *b, const struct board_run *run) {
  pthread_mutex_lock(&b->lock);
  b->view.run_digest = run->run_digest;
  b->view.chunk_tokens = run->chunk_tokens;
  b->view.takes_behaviour = run->takes_behaviour;
  b->view.has_reference = run->has_reference;
  b->view.reference_digest = run->reference_digest;
  b->view.frozen_copies = run->frozen_copies;
  pthread_mutex_unlock(&b->lock);
}

void board_run_end(struct board *b) {
  pthread_mutex_lock(&b->lock);
  b->view.run[0] = 0;
  b->view.replay_from = b->view.replay_to = b->view.attached_us = 0;
  metric_set(b->metric_replaying, 0);
  pthread_mutex_unlock(&b->lock);
}

void board_attach(struct board *b, const char *run, int64_t current_version, struct board_view *out) {
  int64_t begun = -1;
  pthread_mutex_lock(&b->lock);
  struct board_view *v = &b->view;
  if (strcmp(v->run, run) == 0) {
    if (v->attached_us == 0) v->attached_us = clock_monotonic_us();
    if (current_version > v->version && current_version > v->replay_to) {
      if (!board_replaying(v)) v->replay_from = v->version;
      v->replay_to = current_version;
      begun = v->version;
      metric_set(b->metric_replaying, 1);
    }
  }
  *out = *v;
  pthread_mutex_unlock(&b->lock);
  if (begun >= 0)
    log_info("run %s is at version %" PRId64 ", recorded is %" PRId64 ": replaying", run, begun, current_version);
}

void board_detach(struct board *b) {
  pthread_mutex_lock(&b->lock);
  b->view.attached_us = 0;
  pthread_mutex_unlock(&b->lock);
}

enum rc board_make_room(struct board *b, struct err *err) {
  struct weights_blob *old = b->superseded;
  if (!old) return RC_OK;
  if (!weights_blob_shut(old))
    return err_set(err, RC_UNAVAILABLE, NULL, "version %" PRId64 " of run %s is still being pushed; try again",
                   old->version, old->run);
  b->superseded = NULL;
  weights_blob_forget(old);
  return RC_OK;
}

void board_make_room_for_changes(struct board *b, size_t made, size_t most) {
  change_history_trim(&b->changes, made < most ? most - made : 0);
}

void board_publish(struct board *b, struct weights_blob *blob) {
  assert(!b->superseded);
  pthread_mutex_lock(&b->lock);
  struct board_view *v = &b->view;
  const bool was_replaying = board_replaying(v);
  if (blob->changes.len > 0)
    change_history_add(&b->changes, &blob->changes, &blob->base, &blob->digest, blob->len / CHANGES_PART);
  b->superseded = b->current;
  b->current = blob;
  snprintf(v->run, sizeof v->run, "%s", blob->run);
  v->version = blob->version;
  v->digest = blob->digest;
  const bool replayed = was_replaying && !board_replaying(v);
  if (replayed) metric_set(b->metric_replaying, 0);
  const int64_t from = v->replay_from;
  if (b->superseded) weights_blob_keep(b->superseded);
  pthread_mutex_unlock(&b->lock);
  metric_set(b->metric_version, (double)blob->version);
  if (replayed) log_info("run %s is replayed from version %" PRId64 " to %" PRId64, blob->run, from, blob->version);
}

const struct weights_blob *board_current(const struct board *b) { return b->current; }
