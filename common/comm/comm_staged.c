/* Carries arrays in a device's memory over a comm for the host's memory, piece by piece through one buffer.
 *
 *   device memory --copy--> bounce --the host comm, a piece at a time--> bounce --copy--> device memory of the others
 *
 * For ranks whose devices cannot reach each other: several ranks on one GPU, or a build without NCCL.  The buffer has a
 * fixed size, whatever the model's; every rank cuts an array alike (message_pieces.h) and copies only the bytes that it
 * needs: the owner does not take back a piece that it sent, and only the owner takes a sum.  The host comm adds, in
 * 64-bit integers, so the bits are those of arrays in the host's memory.
 *
 * A copy that fails is one rank's trouble; it gives up, so that the others do not wait.  Owned by its caller, which has
 * the host comm too; one thread calls both. */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/comm/comm_over_host.h"
#include "common/comm/awake_timeout.h"
#include "common/comm/message_pieces.h"

struct comm_staged {
  struct over_host over; /* first */
  struct comm_copies copies;
  size_t bounce_bytes;
  void *bounce;  /* [bounce_bytes] of the host's memory */
  size_t *begin; /* [size + 1] a piece as the only part that is not empty */
};

static struct comm_staged *staged_of(struct comm *c) { return (struct comm_staged *)c; }

static enum rc copied(struct comm_staged *c, enum rc rc) {
  if (rc != RC_OK) c->over.host->give_up(c->over.host);
  return rc;
}

static enum rc to_bounce(struct comm_staged *c, const void *device, size_t bytes, struct err *err) {
  return copied(c, c->copies.to_host(c->copies.context, c->bounce, device, bytes, err));
}

static enum rc from_bounce(struct comm_staged *c, void *device, size_t bytes, struct err *err) {
  return copied(c, c->copies.to_device(c->copies.context, device, c->bounce, bytes, err));
}

/* Bytes of rank `owner` to all. */
static enum rc piece_hand_out(struct comm_staged *c, void *bytes, size_t count, int owner, int64_t wait_ms,
                              struct err *err) {
  const bool mine = owner == c->over.comm.rank;
  enum rc rc = mine ? to_bounce(c, bytes, count, err) : RC_OK;
  if (rc == RC_OK) rc = c->over.host->broadcast(c->over.host, c->bounce, count, owner, wait_ms, err);
  if (rc == RC_OK && !mine) rc = from_bounce(c, bytes, count, err);
  return rc;
}

/* The sum of every rank's elements, to `owner`. */
static enum rc piece_add_up(struct comm_staged *c, void *sums, size_t count, int owner, int64_t wait_ms,
                            struct err *err) {
  const size_t bytes = count * sizeof(int64_t);
  for (int r = 0; r <= c->over.comm.size; r++) c->begin[r] = r > owner ? count : 0;
  enum rc rc = to_bounce(c, sums, bytes, err);
  if (rc == RC_OK) rc = c->over.host->reduce_scatter(c->over.host, c->bounce, c->begin, wait_ms, err);
  if (rc == RC_OK && owner == c->over.comm.rank) rc = from_bounce(c, sums, bytes, err);
  return rc;
}

/* pieces: of `array`, in elements of `width` bytes; a piece is its part's rank's, or `root`'s where that is a rank. */
static enum rc by_pieces(struct comm_staged *c, char *array, size_t width, struct message_pieces *pieces, int root,
                         enum rc (*carry)(struct comm_staged *c, void *piece, size_t count, int owner, int64_t wait_ms,
                                          struct err *err),
                         int64_t wait_ms, struct err *err) {
  struct awake_timeout timeout = awake_timeout_start(wait_ms, clock_monotonic_us());
  struct message_piece piece;
  enum rc rc = c->over.host->check(c->over.host, err); /* an array without a piece does not ask the host comm */
  pieces->most = c->bounce_bytes / width;
  while (rc == RC_OK && message_pieces_next(pieces, &piece)) {
    if (awake_timeout_expired(&timeout, clock_monotonic_us())) {
      c->over.host->give_up(c->over.host);
      return err_set(err, RC_UNAVAILABLE, NULL, "an array's exchange on rank %d of %d did not end within %lld ms",
                     c->over.comm.rank, c->over.comm.size, (long long)wait_ms);
    }
    rc = carry(c, array + piece.begin * width, piece.count, root < 0 ? piece.part : root, timeout.left_us / 1000 + 1,
               err);
  }
  return rc;
}

static enum rc staged_broadcast(struct comm *comm, void *bytes, size_t count, int root, int64_t wait_ms,
                                struct err *err) {
  const size_t whole[2] = {0, count};
  struct message_pieces pieces = {.begin = whole, .parts = 1};
  return by_pieces(staged_of(comm), bytes, 1, &pieces, root, piece_hand_out, wait_ms, err);
}

static enum rc staged_all_gather(struct comm *comm, void *bytes, const size_t *begin, int64_t wait_ms,
                                 struct err *err) {
  struct message_pieces pieces = {.begin = begin, .parts = comm->size};
  return by_pieces(staged_of(comm), bytes, 1, &pieces, -1, piece_hand_out, wait_ms, err);
}

static enum rc staged_reduce_scatter(struct comm *comm, int64_t *sums, const size_t *begin, int64_t wait_ms,
                                     struct err *err) {
  struct message_pieces pieces = {.begin = begin, .parts = comm->size};
  return by_pieces(staged_of(comm), (char *)sums, sizeof *sums, &pieces, -1, piece_add_up, wait_ms, err);
}

static void staged_free(struct comm *comm) {
  struct comm_staged *c = staged_of(comm);
  free(c->bounce);
  free(c->begin);
  free(c);
}

enum rc comm_staged_create(struct comm **out, struct comm *host, const struct comm_copies *copies, size_t bounce_bytes,
                           struct err *err) {
  assert(bounce_bytes >= sizeof(int64_t));
  struct comm_staged *c = calloc(1, sizeof *c);
  void *bounce = malloc(bounce_bytes);
  size_t *begin = calloc((size_t)host->size + 1, sizeof *begin);
  if (!c || !bounce || !begin) {
    free(c);
    free(bounce);
    free(begin);
    return err_set(err, RC_NO_MEMORY, NULL, "a buffer of %zu bytes between the device and the ranks was refused",
                   bounce_bytes);
  }
  c->over = over_host_begin("staged", host);
  c->over.comm.broadcast = staged_broadcast;
  c->over.comm.all_gather = staged_all_gather;
  c->over.comm.reduce_scatter = staged_reduce_scatter;
  c->over.comm.free = staged_free;
  c->copies = *copies;
  c->bounce_bytes = bounce_bytes;
  c->bounce = bounce;
  c->begin = begin;
  *out = &c->over.comm;
  return RC_OK;
}
