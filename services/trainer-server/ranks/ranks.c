/* What the ranks of one trainer tell each other; the parts of a step and of start that all of them take together.  The
 * engine's thread, before it runs trainer_create's.
 *
 *   rank 0:       job --> ranks_tell(order) --> the order's part --> the rest of the job
 *   other ranks:          ranks_hear        --> the order's part --> ranks_hear ..      (ranks/follow.c)
 *
 * Large arrays go through the memory of a unit's gradient, which is free between units: whole optimizer arrays of fp32
 * numbers, and weights.  That memory is the table's, a device's maybe: array_* hand it to the comm that takes such.  A failed
 * call has lost the comm for good, so it ends the engine. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/trainer-server/fault.h"
#include "services/trainer-server/engine/trainer_state.h"

enum { TICK_MS = 500 };

struct shard ranks_shard(const struct trainer_options *options, size_t elements) {
  const struct comm *c = options->comm ? options->comm : comm_self();
  struct shard shard = shard_of(elements, c->rank, c->size);
  fault_shard(&shard);
  return shard;
}

enum rc ranks_make(struct trainer *t, struct err *err) {
  struct ranks *r = &t->ranks;
  const size_t n = t->model->params.elements, bounds = (size_t)r->comm->size + 1;
  if (ranks_alone(t)) return RC_OK;
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
    r->operands[i] = r->elements[i] * t->ops->operand_bytes;
    r->squares[i] = shard_blocks(r->elements[i]) * sizeof *r->block_squares;
    r->verdicts[i] = (size_t)i * sizeof *r->verdict;
    r->places[i] = (size_t)i * sizeof *r->place;
  }
  return RC_OK;
}

void ranks_free(struct trainer *t) {
  struct ranks *r = &t->ranks;
  free(r->elements);
  free(r->floats);
  free(r->operands);
  free(r->squares);
  free(r->verdicts);
  free(r->places);
  free(r->block_squares);
  free(r->verdict);
  free(r->place);
}

enum rc ranks_lose(struct trainer *t, const struct err *why) {
  pthread_mutex_lock(&t->lock);
  if (t->why.rc == RC_OK) t->why = *why;
  pthread_mutex_unlock(&t->lock);
  atomic_store(&t->stopping, true);
  t->ranks.comm->give_up(t->ranks.comm);
  return why->rc;
}

static enum rc carried(struct trainer *t, enum rc rc, const struct err *err) {
  return rc == RC_OK ? RC_OK : ranks_lose(t, err);
}

static enum rc broadcast(struct trainer *t, void *bytes, size_t count, struct err *err) {
  struct comm *c = t->ranks.comm;
  return carried(t, c->broadcast(c, bytes, count, 0, t->options.rank_wait_ms, err), err);
}

enum rc ranks_all_gather(struct trainer *t, void *bytes, const size_t *begin, struct err *err) {
  struct comm *c = t->ranks.comm;
  return carried(t, c->all_gather(c, bytes, begin, t->options.rank_wait_ms, err), err);
}

static enum rc all_reduce(struct trainer *t, int64_t *values, size_t count, enum comm_reduction how, struct err *err) {
  struct comm *c = t->ranks.comm;
  return carried(t, c->all_reduce(c, values, count, how, t->options.rank_wait_ms, err), err);
}

enum rc ranks_look_at_device(struct trainer *t, enum rc rc, struct err *err) {
  struct err device;
  if (ranks_alone(t) || t->ops->status(t->ops, &device) == RC_OK) return rc;
  *err = device;
  return ranks_lose(t, err);
}

/* The table's memory, as the comm for arrays takes it: what was to be written there has been, or the device's failure is
 * this rank's and nothing is sent. */

static enum rc array_broadcast(struct trainer *t, void *array, size_t bytes, struct err *err) {
  struct comm *c = t->ranks.arrays;
  enum rc rc = t->ops->status(t->ops, err);
  if (rc == RC_OK) rc = c->broadcast(c, array, bytes, 0, t->options.rank_wait_ms, err);
  return carried(t, rc, err);
}

static enum rc array_gather(struct trainer *t, void *array, const size_t *begin, struct err *err) {
  struct comm *c = t->ranks.arrays;
  enum rc rc = t->ops->status(t->ops, err);
  if (rc == RC_OK) rc = c->all_gather(c, array, begin, t->options.rank_wait_ms, err);
  return carried(t, rc, err);
}

static enum rc array_add_up(struct trainer *t, int64_t *sums, const size_t *begin, struct err *err) {
  struct comm *c = t->ranks.arrays;
  enum rc rc = t->ops->status(t->ops, err);
  if (rc == RC_OK) rc = c->reduce_scatter(c, sums, begin, t->options.rank_wait_ms, err);
  return carried(t, rc, err);
}

enum rc ranks_compare(struct trainer *t, struct err *err) {
  enum { ELEMENTS, CHUNK, CONTEXT, DEVICE, COUNT };
  static const char *const names[COUNT] = {"parameters", "--chunk-tokens", "--context-max",
                                           "--device and --exactness (0 cpu, 1 cuda, 2 cuda and fastest)"};
  if (ranks_alone(t)) return RC_OK;
  const struct device *device = &t->options.device;
  const int64_t mine[COUNT] = {(int64_t)t->model->params.elements, t->options.chunk_tokens,
                               (int64_t)t->model->context_max,
                               device->cuda ? 1 + (device->exactness == EXACTNESS_FASTEST) : 0};
  int64_t least[COUNT], most[COUNT];
  memcpy(least, mine, sizeof least);
  memcpy(most, mine, sizeof most);
  enum rc rc = all_reduce(t, least, COUNT, COMM_MIN, err);
  if (rc == RC_OK) rc = all_reduce(t, most, COUNT, COMM_MAX, err);
  for (int i = 0; rc == RC_OK && i < COUNT; i++) {
    if (least[i] == most[i]) continue;
    rc = err_set(err, RC_INVALID, NULL, "the ranks differ in %s: %lld here, %lld to %lld in all", names[i],
                 (long long)mine[i], (long long)least[i], (long long)most[i]);
  }
  if (rc == RC_OK) log_info("rank %d of %d over %s", t->ranks.comm->rank, t->ranks.comm->size, t->ranks.comm->name);
  return rc;
}

enum rc ranks_tell(struct trainer *t, const struct command *command, const struct buf *payload, struct err *err) {
  struct command c = *command;
  if (ranks_alone(t)) return RC_OK;
  c.payload_bytes = payload ? payload->len : 0;
  t->ranks.told_us = clock_monotonic_us();
  enum rc rc = broadcast(t, &c, sizeof c, err);
  if (rc == RC_OK && payload) rc = broadcast(t, payload->data, payload->len, err);
  return rc;
}

enum rc ranks_hear(struct trainer *t, struct command *c, struct buf *payload, struct err *err) {
  enum rc rc = broadcast(t, c, sizeof *c, err);
  buf_clear(payload);
  if (rc != RC_OK || c->payload_bytes == 0) return rc;
  buf_reserve(payload, c->payload_bytes);
  if ((rc = buf_check(payload, err)) != RC_OK) return ranks_lose(t, err);
  payload->len = c->payload_bytes;
  return broadcast(t, payload->data, payload->len, err);
}

enum rc ranks_meet(struct trainer *t, struct err *err) {
  int64_t stop = atomic_load(&t->stopping);
  const enum rc rc = all_reduce(t, &stop, 1, COMM_MAX, err);
  if (rc == RC_OK && stop) atomic_store(&t->stopping, true);
  return rc;
}

enum rc ranks_tick(struct trainer *t, struct err *err) {
  if (ranks_alone(t) || clock_monotonic_us() - t->ranks.told_us < TICK_MS * 1000) return RC_OK;
  const enum rc rc = ranks_tell(t, &(struct command){.order = ORDER_MEET}, NULL, err);
  return rc == RC_OK ? ranks_meet(t, err) : rc;
}

enum rc ranks_share_weights(struct trainer *t, struct weights *w, struct err *err) {
  const bool mine = t->ranks.comm->rank == 0;
  t->grads_clear = false;
  if (mine) weights_to_operands(w, t->grads);
  const enum rc rc = array_broadcast(t, t->grads, t->model->params.elements * t->ops->operand_bytes, err);
  if (rc != RC_OK || mine) return rc;
  weights_from_operands(w, t->grads);
  return w == t->weights ? weights_digest(&t->ranks.digest, w, err) : RC_OK;
}

enum rc ranks_spread(struct trainer *t, int which, struct err *err) {
  const struct shard s = optimizer_shard(t->optimizer);
  t->grads_clear = false;
  const enum rc rc = array_broadcast(t, t->grads, t->model->params.elements * sizeof *t->grads, err);
  if (rc == RC_OK)
    t->ops->copy(t->ops, checkpoint_array(t->optimizer, which), t->grads + s.begin, shard_count(s) * sizeof *t->grads);
  return rc;
}

enum rc ranks_collect(struct trainer *t, int which, struct err *err) {
  const struct shard s = optimizer_shard(t->optimizer);
  t->grads_clear = false;
  t->ops->copy(t->ops, t->grads + s.begin, checkpoint_array(t->optimizer, which), shard_count(s) * sizeof *t->grads);
  return array_gather(t, t->grads, t->ranks.floats, err);
}

/* NUMERICS.md's step, each rank on its shard: see optimizer.h. */
static enum rc step_shard(struct trainer *t, double denominator, struct step_result *result, struct err *err) {
  struct optimizer *o = t->optimizer;
  enum rc rc = array_add_up(t, optimizer_sums(o), t->ranks.elements, err);
  if (rc != RC_OK) return rc;
  optimizer_shard_gradient(o, denominator, t->ranks.block_squares);
  if ((rc = ranks_all_gather(t, t->ranks.block_squares, t->ranks.squares, err)) != RC_OK) return rc;
  optimizer_shard_step(o, t->ranks.block_squares, result);
  optimizer_shard_operands(o, t->grads);
  if ((rc = array_gather(t, t->grads, t->ranks.operands, err)) != RC_OK) return rc;
  weights_from_operands(t->weights, t->grads);
  return RC_OK;
}

enum rc ranks_step(struct trainer *t, double denominator, struct step_result *result, struct err *err) {
  int64_t poisoned = optimizer_poisoned(t->optimizer);
  enum rc rc = all_reduce(t, &poisoned, 1, COMM_MAX, err);
  if (rc != RC_OK) return rc;
  if (poisoned) {
    optimizer_poison(t->optimizer);
    optimizer_step(t->optimizer, denominator, result);
    return RC_OK;
  }
  return step_shard(t, denominator, result, err);
}

enum rc ranks_check_digest(struct trainer *t, const struct digest *mine, struct err *err) {
  struct err *all = t->ranks.verdict;
  if (ranks_alone(t)) return RC_OK;
  const int rank = t->ranks.comm->rank;
  all[rank] = (struct err){0};
  digest_hex(all[rank].message, mine);
  const enum rc rc = ranks_all_gather(t, all, t->ranks.verdicts, err);
  for (int r = 1; rc == RC_OK && r < t->ranks.comm->size; r++) {
    if (strcmp(all[r].message, all[0].message) == 0) continue;
    err_set(err, RC_CORRUPT, NULL, "the weights of rank %d have digest %s, those of rank 0 %s", r, all[r].message,
            all[0].message);
    return ranks_lose(t, err);
  }
  return rc;
}

enum rc ranks_agree(struct trainer *t, enum rc rc, struct err *err) {
  struct err *all = t->ranks.verdict;
  struct err lost;
  if (ranks_alone(t)) return rc;
  const int rank = t->ranks.comm->rank;
  all[rank] = rc == RC_OK ? (struct err){0} : *err;
  if ((rc = ranks_all_gather(t, all, t->ranks.verdicts, &lost)) != RC_OK) {
    *err = lost;
    return rc;
  }
  for (int r = 0; r < t->ranks.comm->size; r++) {
    if (all[r].rc == RC_OK) continue;
    return err_set(err, all[r].rc, all[r].field, "rank %d of %d: %s", r, t->ranks.comm->size, all[r].message);
  }
  return RC_OK;
}

enum rc ranks_exchange(struct trainer *t, const struct buf *mine, struct buf *all, size_t *begin, struct err *err) {
  const int rank = t->ranks.comm->rank, size = t->ranks.comm->size;
  enum rc rc = buf_check(mine, err);
  if (rc != RC_OK) return ranks_lose(t, err);
  memset(begin, 0, ((size_t)size + 1) * sizeof *begin);
  begin[rank + 1] = mine->len;
  _Static_assert(sizeof *begin == sizeof(int64_t), "lengths are added up as 64-bit integers");
  if ((rc = all_reduce(t, (int64_t *)begin, (size_t)size + 1, COMM_SUM, err)) != RC_OK) return rc;
  for (int r = 0; r < size; r++) begin[r + 1] += begin[r];
  buf_clear(all);
  buf_reserve(all, begin[size] + 1);
  if ((rc = buf_check(all, err)) != RC_OK) return ranks_lose(t, err);
  all->len = begin[size];
  if (mine->len) memcpy(all->data + begin[rank], mine->data, mine->len);
  return ranks_all_gather(t, all->data, begin, err);
}

enum rc ranks_tell_weights(struct trainer *t, struct weights *w, int which, struct err *err) {
  if (ranks_alone(t)) return RC_OK;
  const enum rc rc = ranks_tell(t, &(struct command){.order = ORDER_WEIGHTS, .which = which}, NULL, err);
  return rc == RC_OK ? ranks_share_weights(t, w, err) : rc;
}

enum rc ranks_begin(struct trainer *t, const struct digest *digest, struct err *err) {
  enum rc rc = ranks_tell_weights(t, t->weights, WEIGHTS_CURRENT, err);
  if (rc == RC_OK) rc = ranks_tell(t, &(struct command){.order = ORDER_CHECK}, NULL, err);
  return rc == RC_OK ? ranks_check_digest(t, digest, err) : rc;
}

/* --- an optimizer that several ranks hold, as a checkpoint sees it --- */

static enum rc shared_collect(void *context, int which, const float **out, struct err *err) {
  struct trainer *t = context;
  *out = t->grads;
  const enum rc rc = ranks_tell(t, &(struct command){.order = ORDER_COLLECT, .which = which}, NULL, err);
  return rc == RC_OK ? ranks_collect(t, which, err) : rc;
}

static float *shared_room(void *context, int which) {
  (void)which;
  struct trainer *t = context;
  t->grads_clear = false;
  return t->grads;
}

static enum rc shared_spread(void *context, int which, struct err *err) {
  struct trainer *t = context;
  const enum rc rc = ranks_tell(t, &(struct command){.order = ORDER_SPREAD, .which = which}, NULL, err);
  return rc == RC_OK ? ranks_spread(t, which, err) : rc;
}

struct checkpoint_arrays ranks_arrays(struct trainer *t) {
  if (ranks_alone(t)) return checkpoint_arrays_of(t->optimizer);
  return (struct checkpoint_arrays){
      .context = t, .collect = shared_collect, .room = shared_room, .spread = shared_spread};
}
