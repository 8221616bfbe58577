/* Tells the other ranks what to do, hears their reports, and ends all of them when one is lost. */
#include "services/trainer-server/ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/trainer-server/fault.h"

enum { TICK_MS = 500 };

void ranks_init(struct ranks *r, const struct ranks_options *options) {
  *r = (struct ranks){.options = *options};
  r->comm = r->arrays = options->comm ? options->comm : comm_self();
  r->count = r->comm->size;
  r->over = r->comm->name;
  pthread_mutex_init(&r->lock, NULL);
}

struct shard ranks_shard(const struct comm *comm, size_t elements) {
  const struct comm *c = comm ? comm : comm_self();
  struct shard shard = shard_of(elements, c->rank, c->size);
  fault_shard(&shard);
  return shard;
}

enum rc ranks_make(struct ranks *r, struct ops *ops, size_t parameters, struct err *err) {
  const size_t n = parameters, bounds = (size_t)r->comm->size + 1;
  r->ops = ops;
  r->parameters = parameters;
  if (ranks_alone(r)) return RC_OK;
  size_t **const arrays[] = {&r->elements, &r->floats, &r->operands, &r->squares, &r->verdicts, &r->places};
  bool good = true;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
    good = (*arrays[i] = calloc(bounds, sizeof **arrays[i])) && good;
  r->block_squares = calloc(shard_blocks(n), sizeof *r->block_squares);
  r->verdict = calloc(bounds, sizeof *r->verdict);
  r->place = calloc(bounds, sizeof *r->place);
  if (!good || !r->block_squares || !r->verdict || !r->place)
    return err_set(err, RC_NO_MEMORY, NULL, "the bounds of %d ranks were refused memory", r->comm->size);
  for (int i = 0; i <= r->comm->size; i++) {
    r->elements[i] = shard_begin(n, i, r->comm->size);
    r->floats[i] = r->elements[i] * sizeof(float);
    r->operands[i] = r->elements[i] * ops->operand_bytes;
    r->squares[i] = shard_blocks(r->elements[i]) * sizeof *r->block_squares;
    r->verdicts[i] = (size_t)i * sizeof *r->verdict;
    r->places[i] = (size_t)i * sizeof *r->place;
  }
  return RC_OK;
}

void ranks_free(struct ranks *r) {
  free(r->elements);
  free(r->floats);
  free(r->operands);
  free(r->squares);
  free(r->verdicts);
  free(r->places);
  free(r->block_squares);
  free(r->verdict);
  free(r->place);
  pthread_mutex_destroy(&r->lock);
}

void ranks_stop(struct ranks *r) { atomic_store(&r->stopping, true); }

bool ranks_stopping(const struct ranks *r) { return atomic_load(&r->stopping); }

bool ranks_lost(struct ranks *r, struct err *why) {
  pthread_mutex_lock(&r->lock);
  *why = r->why;
  pthread_mutex_unlock(&r->lock);
  return why->rc != RC_OK;
}

enum rc ranks_lose(struct ranks *r, const struct err *why) {
  pthread_mutex_lock(&r->lock);
  if (r->why.rc == RC_OK) r->why = *why;
  pthread_mutex_unlock(&r->lock);
  ranks_stop(r);
  r->comm->give_up(r->comm);
  return why->rc;
}

static enum rc carried(struct ranks *r, enum rc rc, const struct err *err) {
  return rc == RC_OK ? RC_OK : ranks_lose(r, err);
}

static enum rc broadcast(struct ranks *r, void *bytes, size_t count, struct err *err) {
  struct comm *c = r->comm;
  return carried(r, c->broadcast(c, bytes, count, 0, r->options.wait_ms, err), err);
}

enum rc ranks_all_gather(struct ranks *r, void *bytes, const size_t *begin, struct err *err) {
  struct comm *c = r->comm;
  return carried(r, c->all_gather(c, bytes, begin, r->options.wait_ms, err), err);
}

enum rc ranks_all_reduce(struct ranks *r, int64_t *values, size_t count, enum comm_reduction how, struct err *err) {
  struct comm *c = r->comm;
  return carried(r, c->all_reduce(c, values, count, how, r->options.wait_ms, err), err);
}

enum rc ranks_look_at_device(struct ranks *r, enum rc rc, struct err *err) {
  struct err device;
  if (ranks_alone(r) || r->ops->status(r->ops, &device) == RC_OK) return rc;
  *err = device;
  return ranks_lose(r, err);
}

enum rc ranks_compare(struct ranks *r, const struct rank_setup *setup, struct err *err) {
  enum { ELEMENTS, CHUNK, CONTEXT, DEVICE, COUNT };
  static const char *const names[COUNT] = {"parameters", "--chunk-tokens", "--context-max",
                                           "--device and --exactness (0 cpu, 1 cuda, 2 cuda and fastest)"};
  if (ranks_alone(r)) return RC_OK;
  const struct device *device = setup->device;
  const int64_t mine[COUNT] = {(int64_t)r->parameters, setup->chunk_tokens, setup->context_max,
                               device->cuda ? 1 + (device->exactness == EXACTNESS_FASTEST) : 0};
  int64_t least[COUNT], most[COUNT];
  memcpy(least, mine, sizeof least);
  memcpy(most, mine, sizeof most);
  enum rc rc = ranks_all_reduce(r, least, COUNT, COMM_MIN, err);
  if (rc == RC_OK) rc = ranks_all_reduce(r, most, COUNT, COMM_MAX, err);
  for (int i = 0; rc == RC_OK && i < COUNT; i++) {
    if (least[i] == most[i]) continue;
    rc = err_set(err, RC_INVALID, NULL, "the ranks differ in %s: %lld here, %lld to %lld in all", names[i],
                 (long long)mine[i], (long long)least[i], (long long)most[i]);
  }
  if (rc == RC_OK) log_info("rank %d of %d over %s", r->comm->rank, r->comm->size, r->comm->name);
  return rc;
}

enum rc ranks_tell(struct ranks *r, const struct order *order, const struct buf *payload, struct err *err) {
  struct order sent = *order;
  if (ranks_alone(r)) return RC_OK;
  sent.payload_bytes = payload ? payload->len : 0;
  r->told_us = clock_monotonic_us();
  enum rc rc = broadcast(r, &sent, sizeof sent, err);
  if (rc == RC_OK && payload) rc = broadcast(r, payload->data, payload->len, err);
  return rc;
}

enum rc ranks_hear(struct ranks *r, struct order *order, struct buf *payload, struct err *err) {
  enum rc rc = broadcast(r, order, sizeof *order, err);
  buf_clear(payload);
  if (rc != RC_OK || order->payload_bytes == 0) return rc;
  buf_reserve(payload, order->payload_bytes);
  if ((rc = buf_check(payload, err)) != RC_OK) return ranks_lose(r, err);
  payload->len = order->payload_bytes;
  return broadcast(r, payload->data, payload->len, err);
}

enum rc ranks_meet(struct ranks *r, struct err *err) {
  int64_t stop = ranks_stopping(r);
  const enum rc rc = ranks_all_reduce(r, &stop, 1, COMM_MAX, err);
  if (rc == RC_OK && stop) ranks_stop(r);
  return rc;
}

enum rc ranks_tick(struct ranks *r, struct err *err) {
  if (ranks_alone(r) || clock_monotonic_us() - r->told_us < TICK_MS * 1000) return RC_OK;
  const enum rc rc = ranks_tell(r, &(struct order){.kind = ORDER_MEET}, NULL, err);
  return rc == RC_OK ? ranks_meet(r, err) : rc;
}

enum rc ranks_check_digest(struct ranks *r, const struct digest *mine, struct err *err) {
  struct err *all = r->verdict;
  if (ranks_alone(r)) return RC_OK;
  const int rank = r->comm->rank;
  all[rank] = (struct err){0};
  digest_hex(all[rank].message, mine);
  const enum rc rc = ranks_all_gather(r, all, r->verdicts, err);
  for (int i = 1; rc == RC_OK && i < r->comm->size; i++) {
    if (strcmp(all[i].message, all[0].message) == 0) continue;
    err_set(err, RC_CORRUPT, NULL, "the weights of rank %d have digest %s, those of rank 0 %s", i, all[i].message,
            all[0].message);
    return ranks_lose(r, err);
  }
  return rc;
}

enum rc ranks_agree(struct ranks *r, enum rc rc, struct err *err) {
  struct err *all = r->verdict;
  struct err lost;
  if (ranks_alone(r)) return rc;
  const int rank = r->comm->rank;
  all[rank] = rc == RC_OK ? (struct err){0} : *err;
  if ((rc = ranks_all_gather(r, all, r->verdicts, &lost)) != RC_OK) {
    *err = lost;
    return rc;
  }
  for (int i = 0; i < r->comm->size; i++) {
    if (all[i].rc == RC_OK) continue;
    return err_set(err, all[i].rc, all[i].field, "rank %d of %d: %s", i, r->comm->size, all[i].message);
  }
  return RC_OK;
}

enum rc ranks_exchange(struct ranks *r, const struct buf *mine, struct buf *all, size_t *begin, struct err *err) {
  const int rank = r->comm->rank, size = r->comm->size;
  enum rc rc = buf_check(mine, err);
  if (rc != RC_OK) return ranks_lose(r, err);
  memset(begin, 0, ((size_t)size + 1) * sizeof *begin);
  begin[rank + 1] = mine->len;
  _Static_assert(sizeof *begin == sizeof(int64_t), "lengths are added up as 64-bit integers");
  if ((rc = ranks_all_reduce(r, (int64_t *)begin, (size_t)size + 1, COMM_SUM, err)) != RC_OK) return rc;
  for (int i = 0; i < size; i++) begin[i + 1] += begin[i];
  buf_clear(all);
  buf_reserve(all, begin[size] + 1);
  if ((rc = buf_check(all, err)) != RC_OK) return ranks_lose(r, err);
  all->len = begin[size];
  if (mine->len) memcpy(all->data + begin[rank], mine->data, mine->len);
  return ranks_all_gather(r, all->data, begin, err);
}
