/* Plays one rank of a comm over MPI, for tests/e2e/test_ranks.py, which starts several with mpirun:
 *
 *   collectives          every call against what it must give, with empty parts and with arrays of many pieces
 *   steps [MUTANT]       optimizer steps by shards; rank 0 prints the digest of the weights, which is that of one rank
 *                        unless MUTANT spoils the last rank: `doubled`, its sums count twice; `boundary`, its shard
 *   ends a block early
 *   fabric               communicators of the fabric over MPI, beside the comm (check_fabric.h)
 *   silence MS           meets the others at barriers until one has been silent for MS
 *   late MS              rank 0 stays away from a barrier that the others wait MS for
 *   give-up              rank 0 gives up while the others wait
 *
 * The last three print, on every rank that found it out: "rank R lost after N ms: MESSAGE", and end with status 3.  A
 * wrong answer ends with status 1 and a sentence. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/comm/comm.h"
#include "common/model/learning/optimizer.h"
#include "common/threads/pool.h"
#include "tests/ranks/check_fabric.h"

enum { WAIT_MS = 60000, RANKS_MAX = 64, LOST = 3 };

static struct comm *comm;

static void fail(const char *what) {
  fprintf(stderr, "rank %d of %d: %s\n", comm ? comm->rank : -1, comm ? comm->size : -1, what);
  exit(1);
}

static void must(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail(err->message);
}

static void check(bool good, const char *what) {
  if (!good) fail(what);
}

/* Differs in every place and on every rank. */
static int64_t value_at(int rank, size_t i) { return (int64_t)((i * 2654435761u) ^ 0x5bd1e995u) * (rank + 1) - 77; }

/* begin[ranks + 1]: rank 0's part is empty, the others grow. */
static void parts_make(size_t *begin, size_t total) {
  const size_t shares = (size_t)comm->size * (size_t)(comm->size - 1) / 2;
  begin[0] = 0;
  for (int r = 0; r < comm->size; r++) begin[r + 1] = begin[r] + (shares ? total * (size_t)r / shares : total);
  begin[comm->size] = total;
}

static void check_broadcast(size_t count) {
  struct err err;
  int64_t *x = malloc(count * sizeof *x);
  check(x, "no memory");
  for (int root = 0; root < comm->size; root++) {
    for (size_t i = 0; i < count; i++) x[i] = value_at(comm->rank, i);
    must(comm->broadcast(comm, x, count * sizeof *x, root, WAIT_MS, &err), &err);
    for (size_t i = 0; i < count; i++) check(x[i] == value_at(root, i), "broadcast brought something else");
  }
  free(x);
}

static void check_gather(size_t count) {
  struct err err;
  size_t begin[RANKS_MAX + 1];
  uint8_t *x = calloc(count, 1);
  check(x, "no memory");
  parts_make(begin, count);
  for (size_t i = begin[comm->rank]; i < begin[comm->rank + 1]; i++) x[i] = (uint8_t)value_at(comm->rank, i);
  must(comm->all_gather(comm, x, begin, WAIT_MS, &err), &err);
  for (int r = 0; r < comm->size; r++) {
    for (size_t i = begin[r]; i < begin[r + 1]; i++)
      check(x[i] == (uint8_t)value_at(r, i), "all_gather brought something else");
  }
  free(x);
}

static void check_scatter(size_t count) {
  struct err err;
  size_t begin[RANKS_MAX + 1];
  int64_t *x = malloc(count * sizeof *x);
  check(x, "no memory");
  parts_make(begin, count);
  for (size_t i = 0; i < count; i++) x[i] = value_at(comm->rank, i);
  must(comm->reduce_scatter(comm, x, begin, WAIT_MS, &err), &err);
  for (size_t i = begin[comm->rank]; i < begin[comm->rank + 1]; i++) {
    int64_t sum = 0;
    for (int r = 0; r < comm->size; r++) sum += value_at(r, i);
    check(x[i] == sum, "reduce_scatter brought another sum");
  }
  free(x);
}

static void check_reduce(void) {
  struct err err;
  const int64_t last = comm->size - 1;
  int64_t sum[2] = {comm->rank, INT64_C(1) << 50}, least[1] = {comm->rank - 5}, most[1] = {-comm->rank};
  must(comm->all_reduce(comm, sum, 2, COMM_SUM, WAIT_MS, &err), &err);
  must(comm->all_reduce(comm, least, 1, COMM_MIN, WAIT_MS, &err), &err);
  must(comm->all_reduce(comm, most, 1, COMM_MAX, WAIT_MS, &err), &err);
  check(sum[0] == last * (last + 1) / 2 && sum[1] == (INT64_C(1) << 50) * comm->size, "all_reduce: another sum");
  check(least[0] == -5 && most[0] == 0, "all_reduce: another bound");
}

static void collectives(void) {
  static const size_t counts[] = {0, 1, 1000, 5000017};
  struct err err;
  for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
    check_broadcast(counts[k]);
    check_gather(counts[k]);
    check_scatter(counts[k]);
    check_reduce();
    must(comm->barrier(comm, WAIT_MS, &err), &err);
  }
  if (comm->rank == 0) printf("collectives of %d ranks over %s are right\n", comm->size, comm->name);
}

/* --- optimizer steps by shards --- */

static const struct model_config CONFIG = {.layers = 2,
                                           .hidden = 120,
                                           .heads = 6,
                                           .kv_heads = 2,
                                           .head_dim = 12,
                                           .ffn = 250,
                                           .vocabulary = 600,
                                           .positions_max = 16,
                                           .rms_eps = 1e-6f,
                                           .rope_theta = 10000,
                                           .head_norms = true,
                                           .initializer_range = 0.1f};
static const struct optimizer_config ADAMW = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 0.5, .grad_scale_log2 = 32};
enum { UNITS = 7, STEPS = 3 };

/* Gradient unit `index`, zero in the padding as units are. */
static void unit_make(const struct model *m, float *grads, uint32_t index) {
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    for (size_t k = 0; k < p->count; k++)
      grads[p->offset + k] = (float)((uint32_t)(k * 40503u + index * 9973u + (uint32_t)i) % 2001) * 1e-4f - 0.1f;
  }
}

static void step_together(struct optimizer *o, const struct model *m, double *squares, bool doubled) {
  const size_t n = m->params.elements;
  size_t elements[RANKS_MAX + 1], blocks[RANKS_MAX + 1];
  struct step_result result;
  struct err err;
  for (int r = 0; r <= comm->size; r++) {
    elements[r] = shard_begin(n, r, comm->size);
    blocks[r] = shard_blocks(elements[r]) * sizeof *squares;
  }
  for (size_t i = 0; doubled && i < n; i++) optimizer_sums(o)[i] *= 2;
  must(comm->reduce_scatter(comm, optimizer_sums(o), elements, WAIT_MS, &err), &err);
  optimizer_shard_gradient(o, UNITS, squares);
  must(comm->all_gather(comm, squares, blocks, WAIT_MS, &err), &err);
  optimizer_shard_step(o, squares, &result);
}

static void share_weights(struct optimizer *o, struct weights *w) {
  const struct model *m = w->model;
  void *operands = optimizer_gradient(o);
  size_t begin[RANKS_MAX + 1];
  struct err err;
  for (int r = 0; r <= comm->size; r++)
    begin[r] = shard_begin(m->params.elements, r, comm->size) * m->ops->operand_bytes;
  optimizer_shard_operands(o, operands);
  must(comm->all_gather(comm, operands, begin, WAIT_MS, &err), &err);
  weights_from_operands(w, operands);
}

static void steps(const char *mutant) {
  struct pool *pool;
  struct ops *ops;
  struct model *m;
  struct optimizer *o;
  struct weights *w;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  struct err err;
  must(pool_create(&pool, 1, &err), &err);
  must(ops_cpu_create(&ops, FORMAT_BF16, NULL, pool, &err), &err);
  must(model_create(&m, &CONFIG, ops, 0, &err), &err);
  must(weights_create(&w, m, false, &err), &err);
  const size_t n = m->params.elements;
  const bool last = comm->rank == comm->size - 1;
  struct shard shard = shard_of(n, comm->rank, comm->size);
  if (last && strcmp(mutant, "boundary") == 0) shard.end = (shard_blocks(n) - 1) * SHARD_BLOCK;
  must(optimizer_create_shard(&o, m, shard, &ADAMW, &err), &err);
  float *grads = calloc(n, sizeof *grads);
  double *squares = calloc(shard_blocks(n), sizeof *squares);
  check(grads && squares, "no memory");
  masters_random(m, grads, 1, NULL);
  memcpy(optimizer_masters(o), grads + shard.begin, shard_count(shard) * sizeof *grads);
  for (uint32_t step = 0; step < STEPS; step++) {
    for (uint32_t u = 0; u < UNITS; u++) {
      if ((int)(u % (uint32_t)comm->size) != comm->rank) continue;
      unit_make(m, grads, step * UNITS + u);
      check(optimizer_add_unit(o, grads), "a unit was refused");
    }
    step_together(o, m, squares, last && strcmp(mutant, "doubled") == 0);
  }
  share_weights(o, w);
  must(weights_digest(&digest, w, &err), &err);
  digest_hex(hex, &digest);
  if (comm->rank == 0) printf("digest %s\n", hex);
  free(grads);
  free(squares);
  optimizer_free(o);
  weights_free(w);
  model_free(m);
  ops_free(ops);
  pool_destroy(pool);
}

static void fabric(void) {
  struct fabric *over_mpi;
  struct err err;
  must(fabric_mpi_create(&over_mpi, true, WAIT_MS, &err), &err);
  fabric_check(comm, over_mpi, fail);
  over_mpi->free(over_mpi);
  if (comm->rank == 0) printf("a fabric of %d ranks over mpi carries right\n", comm->size);
}

/* --- losses --- */

static void report(int64_t begun_ms, const struct err *err) {
  printf("rank %d lost after %" PRId64 " ms: %s\n", comm->rank, clock_monotonic_ms() - begun_ms, err->message);
  fflush(stdout);
}

/* What the last look before the loss was. */
static enum rc meet_until_lost(void) {
  struct err err;
  for (;;) {
    const int64_t begun_ms = clock_monotonic_ms();
    const enum rc rc = comm->barrier(comm, WAIT_MS, &err);
    if (rc != RC_OK) {
      report(begun_ms, &err);
      check(comm->check(comm, &err) == RC_UNAVAILABLE, "a lost comm calls itself whole");
      check(comm->barrier(comm, WAIT_MS, &err) == RC_UNAVAILABLE, "a lost comm carried on");
      return rc;
    }
    if (comm->rank == 0) printf("met\n"), fflush(stdout);
    clock_sleep_ms(20);
  }
}

static enum rc be_late(int64_t wait_ms) {
  struct err err = {0};
  const int64_t begun_ms = clock_monotonic_ms();
  must(comm->barrier(comm, WAIT_MS, &err), &err);
  if (comm->rank == 0) clock_sleep_ms(2 * wait_ms + 1000);
  const enum rc rc = comm->barrier(comm, wait_ms, &err);
  report(begun_ms, &err);
  return rc;
}

static enum rc give_up(void) {
  struct err err = {0};
  const int64_t begun_ms = clock_monotonic_ms();
  must(comm->barrier(comm, WAIT_MS, &err), &err);
  if (comm->rank == 0) comm->give_up(comm);
  const enum rc rc = comm->barrier(comm, WAIT_MS, &err);
  report(begun_ms, &err);
  return rc;
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "", *detail = argc > 2 ? argv[2] : "";
  const bool silence = strcmp(mode, "silence") == 0;
  const struct comm_mpi_options options = {.start_ms = WAIT_MS,
                                           .silence_ms = silence ? atoi(detail) : 20000,
                                           .several_threads = strcmp(mode, "fabric") == 0};
  struct err err;
  enum rc rc = RC_OK;
  must(comm_mpi_create(&comm, &options, &err), &err);
  check(comm->size <= RANKS_MAX, "too many ranks for this program");
  if (strcmp(mode, "collectives") == 0)
    collectives();
  else if (strcmp(mode, "steps") == 0)
    steps(detail);
  else if (strcmp(mode, "fabric") == 0)
    fabric();
  else if (silence)
    rc = meet_until_lost();
  else if (strcmp(mode, "late") == 0)
    rc = be_late(atoi(detail));
  else if (strcmp(mode, "give-up") == 0)
    rc = give_up();
  else
    fail("expected collectives, steps [MUTANT], fabric, silence MS, late MS or give-up");
  comm->free(comm);
  return rc == RC_OK ? 0 : LOST;
}
