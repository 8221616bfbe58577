/* Carries weights and optimizer arrays between the ranks, and takes the optimizer step over all shards. */
#include "services/trainer-server/ranks/shared_arrays.h"

/* These hand the table's memory to the comm for arrays.  All that was to be written there has been written by then; where the
 * device has failed instead, this rank is lost and nothing is sent. */

static enum rc carried(struct ranks *r, enum rc rc, const struct err *err) {
  return rc == RC_OK ? RC_OK : ranks_lose(r, err);
}

static enum rc array_broadcast(struct ranks *r, void *array, size_t bytes, struct err *err) {
  struct comm *c = r->arrays;
  enum rc rc = r->ops->status(r->ops, err);
  if (rc == RC_OK) rc = c->broadcast(c, array, bytes, 0, r->options.wait_ms, err);
  return carried(r, rc, err);
}

static enum rc array_gather(struct ranks *r, void *array, const size_t *begin, struct err *err) {
  struct comm *c = r->arrays;
  enum rc rc = r->ops->status(r->ops, err);
  if (rc == RC_OK) rc = c->all_gather(c, array, begin, r->options.wait_ms, err);
  return carried(r, rc, err);
}

static enum rc array_add_up(struct ranks *r, int64_t *sums, const size_t *begin, struct err *err) {
  struct comm *c = r->arrays;
  enum rc rc = r->ops->status(r->ops, err);
  if (rc == RC_OK) rc = c->reduce_scatter(c, sums, begin, r->options.wait_ms, err);
  return carried(r, rc, err);
}

enum rc ranks_share_weights(struct ranks *r, struct weights *w, float *whole, struct err *err) {
  const bool mine = r->comm->rank == 0;
  if (mine) weights_to_operands(w, whole);
  const enum rc rc = array_broadcast(r, whole, r->parameters * r->ops->operand_bytes, err);
  if (rc == RC_OK && !mine) weights_from_operands(w, whole);
  return rc;
}

enum rc ranks_spread(struct ranks *r, float *whole, float *part, struct shard shard, struct err *err) {
  const enum rc rc = array_broadcast(r, whole, r->parameters * sizeof *whole, err);
  if (rc == RC_OK) r->ops->copy(r->ops, part, whole + shard.begin, shard_count(shard) * sizeof *whole);
  return rc;
}

enum rc ranks_collect(struct ranks *r, float *whole, const float *part, struct shard shard, struct err *err) {
  r->ops->copy(r->ops, whole + shard.begin, part, shard_count(shard) * sizeof *whole);
  return array_gather(r, whole, r->floats, err);
}

/* Each rank on its shard: see optimizer.h. */
static enum rc step_shard(struct ranks *r, struct optimizer *o, struct weights *w, float *whole, double denominator,
                          struct step_result *result, struct err *err) {
  enum rc rc = array_add_up(r, optimizer_sums(o), r->elements, err);
  if (rc != RC_OK) return rc;
  optimizer_shard_gradient(o, denominator, r->block_squares);
  if ((rc = ranks_all_gather(r, r->block_squares, r->squares, err)) != RC_OK) return rc;
  optimizer_shard_step(o, r->block_squares, result);
  optimizer_shard_operands(o, whole);
  if ((rc = array_gather(r, whole, r->operands, err)) != RC_OK) return rc;
  weights_from_operands(w, whole);
  return RC_OK;
}

enum rc ranks_step(struct ranks *r, struct optimizer *o, struct weights *w, float *whole, double denominator,
                   struct step_result *result, struct err *err) {
  int64_t poisoned = optimizer_poisoned(o);
  const enum rc rc = ranks_all_reduce(r, &poisoned, 1, COMM_MAX, err);
  if (rc != RC_OK) return rc;
  if (!poisoned) return step_shard(r, o, w, whole, denominator, result, err);
  optimizer_poison(o);
  optimizer_step(o, denominator, result);
  return RC_OK;
}

enum rc ranks_tell_weights(struct ranks *r, struct weights *w, int which, float *whole, struct err *err) {
  if (ranks_alone(r)) return RC_OK;
  const enum rc rc = ranks_tell(r, &(struct order){.kind = ORDER_WEIGHTS, .which = which}, NULL, err);
  return rc == RC_OK ? ranks_share_weights(r, w, whole, err) : rc;
}

enum rc ranks_begin(struct ranks *r, struct weights *w, float *whole, const struct digest *digest, struct err *err) {
  enum rc rc = ranks_tell_weights(r, w, WEIGHTS_CURRENT, whole, err);
  if (rc == RC_OK) rc = ranks_tell(r, &(struct order){.kind = ORDER_CHECK}, NULL, err);
  return rc == RC_OK ? ranks_check_digest(r, digest, err) : rc;
}
