/* Checks a broadcast that a trainer offers, joins its communicator and receives the bytes. */
#include "services/generation-server/weights/broadcast_intake.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

enum rc broadcast_intake_check(const struct fabric *fabric, const struct broadcast_offer *offer, size_t bytes_max,
                               struct err *err) {
  if (!fabric) return err_set(err, RC_INVALID, "token", "expected a body: this server shares no fabric (--fabric)");
  const enum rc rc = fabric_seat_check(offer->token, offer->rank, offer->size, err);
  if (rc != RC_OK) return rc;
  if (offer->rank == 0)
    return err_set(err, RC_INVALID, "rank", "expected 1 or more, for rank 0 is the trainer's, got 0");
  if (offer->bytes == 0 || offer->bytes > bytes_max)
    return err_set(err, RC_INVALID, "bytes", "expected 1 to %zu bytes, the most that a file of this model has, got %zu",
                   bytes_max, offer->bytes);
  return RC_OK;
}

void broadcast_intake_leave(struct broadcast_intake *i) {
  if (i->comm) i->comm->free(i->comm);
  i->comm = NULL;
}

static enum rc join(struct broadcast_intake *i, const struct broadcast_offer *offer, const atomic_bool *cancel,
                    struct err *err) {
  const struct fabric_seat seat = {.token = offer->token, .rank = offer->rank, .size = offer->size, .cancel = cancel};
  broadcast_intake_leave(i);
  if (strcmp(i->token, offer->token) == 0)
    return err_set(err, RC_UNAVAILABLE, "token", "the communicator under this token was lost");
  const enum rc rc = i->fabric->join(i->fabric, &i->comm, &seat, offer->wait_ms, err);
  if (rc == RC_OK) log_info("member %d of %d of a communicator over %s", offer->rank, offer->size, i->fabric->kind);
  if (rc != RC_INVALID) snprintf(i->token, sizeof i->token, "%s", offer->token);
  return rc;
}

enum rc broadcast_intake_receive(struct broadcast_intake *i, const struct broadcast_offer *offer, void *bytes,
                                 const atomic_bool *cancel, struct err *err) {
  const int64_t until_ms = clock_monotonic_ms() + offer->wait_ms;
  const bool joined = i->comm && strcmp(i->token, offer->token) == 0;
  if (joined && (i->comm->rank != offer->rank || i->comm->size != offer->size))
    return err_set(err, RC_INVALID, "rank", "expected rank %d of %d, as this token was joined, got %d of %d",
                   i->comm->rank, i->comm->size, offer->rank, offer->size);
  enum rc rc = joined ? RC_OK : join(i, offer, cancel, err);
  const int64_t left_ms = until_ms - clock_monotonic_ms();
  if (rc == RC_OK) rc = i->comm->broadcast(i->comm, bytes, offer->bytes, 0, left_ms > 0 ? left_ms : 0, err);
  if (rc != RC_OK) broadcast_intake_leave(i);
  return rc;
}
