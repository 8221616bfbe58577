/* Checks every message's epoch and fence against what the coordinator gave this trainer. */
#include "services/trainer-server/board/authority.h"

#include <inttypes.h>

void authority_learn(struct board *b, uint64_t epoch, uint64_t fence, bool stands_by) {
  pthread_mutex_lock(&b->lock);
  b->view.registered = true;
  b->view.stands_by = stands_by;
  b->view.epoch = epoch;
  b->view.fence = fence;
  pthread_mutex_unlock(&b->lock);
}

void authority_accepted(struct board *b, uint64_t epoch, uint64_t fence) {
  pthread_mutex_lock(&b->lock);
  if (!b->view.registered && epoch > b->view.epoch) b->view.epoch = epoch;
  if (!b->view.registered && fence > b->view.fence) b->view.fence = fence;
  pthread_mutex_unlock(&b->lock);
}

bool authority_take_doubt(struct board *b) { return atomic_exchange(&b->in_doubt, false); }

static enum rc stale(const char *field, uint64_t got, uint64_t known, struct err *err) {
  return err_set(err, RC_CONFLICT, field, "%s %" PRIu64 " is stale, the newest is %" PRIu64, field, got, known);
}

static enum rc unheard_of(struct board *b, const char *field, uint64_t got, uint64_t known, struct err *err) {
  atomic_store(&b->in_doubt, true);
  return err_set(err, RC_CONFLICT, field,
                 "this trainer is not yet registered under %s %" PRIu64 ", its coordinator gave it %" PRIu64
                 "; it asks again at once",
                 field, got, known);
}

enum rc authority_check(struct board *b, uint64_t epoch, uint64_t fence, struct err *err) {
  struct board_view v;
  board_view(b, &v);
  if (!v.registered && b->has_coordinator)
    return err_set(err, RC_CONFLICT, "epoch", "this trainer has not registered with its coordinator yet");
  if (epoch < v.epoch) return stale("epoch", epoch, v.epoch, err);
  if (v.registered && epoch > v.epoch) return unheard_of(b, "epoch", epoch, v.epoch, err);
  if (v.stands_by) {
    atomic_store(&b->in_doubt, true);
    return err_set(err, RC_CONFLICT, "fence", "this trainer stands by: another one holds the trainer's place");
  }
  if (fence < v.fence) return stale("fence", fence, v.fence, err);
  if (v.registered && fence > v.fence) return unheard_of(b, "fence", fence, v.fence, err);
  return RC_OK;
}
