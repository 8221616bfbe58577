/* Whose messages the trainer takes: those of the coordinator that it is registered with.
 *
 *   registration, heartbeat --trainer_registered--> epoch, fence, role: the truth
 *   a message --trainer_check_authority--> exactly these, or 409;  newer ones are not believed on the message's own word:
 *                                          the registration's thread is asked to look (trainer_take_doubt)
 *
 * A trainer without a coordinator has nobody else to ask: it learns epoch and fence from messages that it has accepted.
 * A refused message never teaches anything, and neither does a checkpoint.  Any thread; `lock` guards the view. */
#include "services/trainer-server/engine/trainer_state.h"

#include <inttypes.h>

void trainer_registered(struct trainer *t, uint64_t epoch, uint64_t fence, bool stands_by) {
  pthread_mutex_lock(&t->lock);
  t->view.registered = true;
  t->view.stands_by = stands_by;
  t->view.epoch = epoch;
  t->view.fence = fence;
  pthread_mutex_unlock(&t->lock);
}

void trainer_accepted(struct trainer *t, uint64_t epoch, uint64_t fence) {
  pthread_mutex_lock(&t->lock);
  if (!t->view.registered && epoch > t->view.epoch) t->view.epoch = epoch;
  if (!t->view.registered && fence > t->view.fence) t->view.fence = fence;
  pthread_mutex_unlock(&t->lock);
}

bool trainer_take_doubt(struct trainer *t) { return atomic_exchange(&t->in_doubt, false); }

static enum rc stale(const char *field, uint64_t got, uint64_t known, struct err *err) {
  return err_set(err, RC_CONFLICT, field, "%s %" PRIu64 " is stale, the newest is %" PRIu64, field, got, known);
}

static enum rc unheard_of(struct trainer *t, const char *field, uint64_t got, uint64_t known, struct err *err) {
  atomic_store(&t->in_doubt, true);
  return err_set(err, RC_CONFLICT, field,
                 "this trainer is not yet registered under %s %" PRIu64 ", its coordinator gave it %" PRIu64
                 "; it asks again at once",
                 field, got, known);
}

enum rc trainer_check_authority(struct trainer *t, uint64_t epoch, uint64_t fence, struct err *err) {
  const bool has_coordinator = t->options.coordinator_url && t->options.coordinator_url[0];
  struct trainer_view v;
  trainer_view(t, &v);
  if (!v.registered && has_coordinator)
    return err_set(err, RC_CONFLICT, "epoch", "this trainer has not registered with its coordinator yet");
  if (epoch < v.epoch) return stale("epoch", epoch, v.epoch, err);
  if (v.registered && epoch > v.epoch) return unheard_of(t, "epoch", epoch, v.epoch, err);
  if (v.stands_by) {
    atomic_store(&t->in_doubt, true);
    return err_set(err, RC_CONFLICT, "fence", "this trainer stands by: another one holds the trainer's place");
  }
  if (fence < v.fence) return stale("fence", fence, v.fence, err);
  if (v.registered && fence > v.fence) return unheard_of(t, "fence", fence, v.fence, err);
  return RC_OK;
}
