/* A fabric's communicators among the ranks of a comm, which tells them the token as HTTP tells servers: for
 * check_comm.c over MPI and check_nccl.c over NCCL.  Every rank calls it; a wrong answer goes to `fail`, which does not
 * return. */
#ifndef LEASEHOLD_TESTS_RANKS_CHECK_FABRIC_H
#define LEASEHOLD_TESTS_RANKS_CHECK_FABRIC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/comm/fabric.h"

enum { FABRIC_WAIT_MS = 60000, FABRIC_SHORT_MS = 1500, FABRIC_RANKS_MAX = 64, FABRIC_ROUNDS = 3 };

struct fabric_check {
  struct comm *host;
  struct fabric *fabric;
  void (*fail)(const char *what);
  atomic_bool cancel;
  char token[FABRIC_TOKEN_MAX];
  int64_t places[FABRIC_RANKS_MAX]; /* by the group's ranks */
  struct fabric_seat seat;
};

static inline void fabric_check_must(struct fabric_check *c, bool good, const char *what) {
  if (!good) c->fail(what);
}

/* A seat in a group whose root is rank `root` of the host. */
static inline void fabric_check_seat(struct fabric_check *c, int root) {
  struct comm *host = c->host;
  struct err err;
  size_t begin[FABRIC_RANKS_MAX + 1];
  int64_t places[FABRIC_RANKS_MAX];
  for (int r = 0; r <= host->size; r++) begin[r] = (size_t)r * sizeof places[0];
  places[host->rank] = c->fabric->place;
  fabric_check_must(c, host->all_gather(host, places, begin, FABRIC_WAIT_MS, &err) == RC_OK, err.message);
  if (host->rank == root) fabric_check_must(c, c->fabric->token(c->fabric, c->token, &err) == RC_OK, err.message);
  fabric_check_must(c, host->broadcast(host, c->token, sizeof c->token, root, FABRIC_WAIT_MS, &err) == RC_OK,
                    err.message);
  for (int r = 0; r < host->size; r++) c->places[r] = places[(r + root) % host->size];
  c->seat = (struct fabric_seat){.token = c->token,
                                 .rank = (host->rank - root + host->size) % host->size,
                                 .size = host->size,
                                 .places = c->places,
                                 .cancel = &c->cancel};
}

static inline uint8_t fabric_check_value(int round, size_t i) {
  return (uint8_t)((i * 2654435761u >> 13) + (size_t)round);
}

/* Of no piece, of one, of many; again and again over one communicator. */
static inline void fabric_check_carries(struct fabric_check *c, int root) {
  static const size_t counts[] = {0, 1, 1000, 1 << 20, (1 << 20) + 1, 23456789};
  struct comm *group;
  struct err err;
  fabric_check_seat(c, root);
  fabric_check_must(c, c->fabric->join(c->fabric, &group, &c->seat, FABRIC_WAIT_MS, &err) == RC_OK, err.message);
  fabric_check_must(c, group->rank == c->seat.rank && group->size == c->host->size, "another seat was taken");
  for (int round = 0; round < FABRIC_ROUNDS; round++) {
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
      uint8_t *x = malloc(counts[k] + 1);
      fabric_check_must(c, x, "no memory");
      for (size_t i = 0; i < counts[k]; i++) x[i] = fabric_check_value(group->rank == 0 ? round : 99, i);
      fabric_check_must(c, group->broadcast(group, x, counts[k], 0, FABRIC_WAIT_MS, &err) == RC_OK, err.message);
      for (size_t i = 0; i < counts[k]; i++)
        fabric_check_must(c, x[i] == fabric_check_value(round, i), "the fabric brought something else");
      free(x);
    }
  }
  fabric_check_must(c, group->check(group, &err) == RC_OK, "a whole communicator calls itself lost");
  group->free(group);
}

/* The group's last member stays away: nobody joins, and nobody waits longer than it said, or than `cancel`. */
static inline void fabric_check_ends(struct fabric_check *c, bool cancelled) {
  struct comm *group = NULL;
  struct err err;
  fabric_check_seat(c, 0);
  atomic_store(&c->cancel, cancelled);
  const int64_t begun_ms = clock_monotonic_ms(), wait_ms = cancelled ? FABRIC_WAIT_MS : FABRIC_SHORT_MS;
  if (c->seat.rank + 1 < c->seat.size)
    fabric_check_must(c, c->fabric->join(c->fabric, &group, &c->seat, wait_ms, &err) == RC_UNAVAILABLE,
                      "a group was joined that lacks a member");
  fabric_check_must(c, clock_monotonic_ms() - begun_ms < FABRIC_SHORT_MS + 1000, "a wait did not end");
  atomic_store(&c->cancel, false);
  fabric_check_must(c, c->host->barrier(c->host, FABRIC_WAIT_MS, &err) == RC_OK, err.message);
}

/* The root does not come to a broadcast; after that the communicator is lost, and another one is made. */
static inline void fabric_check_loses(struct fabric_check *c) {
  struct comm *group;
  struct err err;
  uint8_t bytes[100] = {0};
  fabric_check_seat(c, 0);
  fabric_check_must(c, c->fabric->join(c->fabric, &group, &c->seat, FABRIC_WAIT_MS, &err) == RC_OK, err.message);
  if (group->rank > 0) {
    fabric_check_must(c, group->broadcast(group, bytes, sizeof bytes, 0, FABRIC_SHORT_MS, &err) == RC_UNAVAILABLE,
                      "a broadcast came from nowhere");
    fabric_check_must(c, group->check(group, &err) == RC_UNAVAILABLE, "a lost communicator calls itself whole");
    fabric_check_must(c, group->broadcast(group, bytes, sizeof bytes, 0, FABRIC_WAIT_MS, &err) == RC_UNAVAILABLE,
                      "a lost communicator carried on");
  }
  group->give_up(group);
  fabric_check_must(c, group->check(group, &err) == RC_UNAVAILABLE, "what was given up calls itself whole");
  group->free(group);
}

static inline void fabric_check(struct comm *host, struct fabric *fabric, void (*fail)(const char *)) {
  struct fabric_check *c = calloc(1, sizeof *c);
  if (!c || host->size > FABRIC_RANKS_MAX || host->size < 2) fail("expected memory, and two to 64 ranks");
  c->host = host;
  c->fabric = fabric;
  c->fail = fail;
  fabric_check_carries(c, 0);
  fabric_check_ends(c, false);
  fabric_check_ends(c, true);
  fabric_check_loses(c);
  fabric_check_carries(c, host->size - 1);
  free(c);
}

#endif
