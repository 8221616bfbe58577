/* Arrays in a device's memory over a comm of the host's: every byte arrives, whatever the sizes of array and buffer;
 * only copies touch the device; and a copy that fails, or takes too long, leaves no rank waiting.
 *
 * Ranks are threads here, and their host comm hands over pointers.  Only the copies can access device memory; they
 * count their bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "common/comm/comm.h"

enum { RANKS_MAX = 4, DEVICE_BYTES = 1 << 16, GUARD = 0xa5, WAIT_MS = 10000, SLOW_MS = 40 };

/* --- a comm over threads --- */

struct meeting {
  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t changed;
  int size, arrived, generation;
  bool lost;
  void *data[RANKS_MAX];
};

struct host_comm {
  struct comm comm; /* first */
  struct meeting *meeting;
};

static enum rc lost(struct err *err) { return err_set(err, RC_UNAVAILABLE, NULL, "a rank gave up"); }

/* Waits until all ranks are here and have given their data's address; NULL: they are done with the others' data. */
static enum rc meet(struct comm *comm, void *data, struct err *err) {
  struct meeting *m = ((struct host_comm *)comm)->meeting;
  pthread_mutex_lock(&m->lock);
  const int generation = m->generation;
  if (data) m->data[comm->rank] = data;
  if (++m->arrived == m->size) {
    m->arrived = 0;
    m->generation++;
    pthread_cond_broadcast(&m->changed);
  }
  const struct timespec until = clock_deadline_in(WAIT_MS);
  while (m->generation == generation && !m->lost)
    if (pthread_cond_timedwait(&m->changed, &m->lock, &until) != 0) m->lost = true;
  const bool gone = m->lost;
  pthread_mutex_unlock(&m->lock);
  return gone ? lost(err) : RC_OK;
}

static enum rc host_broadcast(struct comm *c, void *bytes, size_t count, int root, int64_t wait_ms, struct err *err) {
  (void)wait_ms;
  enum rc rc = meet(c, bytes, err);
  if (rc == RC_OK && root != c->rank) memcpy(bytes, ((struct host_comm *)c)->meeting->data[root], count);
  return rc == RC_OK ? meet(c, NULL, err) : rc;
}

static enum rc host_reduce_scatter(struct comm *c, int64_t *sums, const size_t *begin, int64_t wait_ms,
                                   struct err *err) {
  struct meeting *m = ((struct host_comm *)c)->meeting;
  (void)wait_ms;
  enum rc rc = meet(c, sums, err);
  for (size_t i = begin[c->rank]; rc == RC_OK && i < begin[c->rank + 1]; i++) {
    int64_t sum = 0;
    for (int r = 0; r < c->size; r++) sum += ((int64_t *)m->data[r])[i];
    sums[i] = sum;
  }
  return rc == RC_OK ? meet(c, NULL, err) : rc;
}

static enum rc host_all_reduce(struct comm *c, int64_t *values, size_t count, enum comm_reduction how, int64_t wait_ms,
                               struct err *err) {
  (void)c, (void)how, (void)wait_ms, (void)err;
  for (size_t i = 0; i < count; i++) values[i] = 4711;
  return RC_OK;
}

static enum rc host_barrier(struct comm *c, int64_t wait_ms, struct err *err) {
  (void)wait_ms;
  return meet(c, NULL, err);
}

static enum rc host_check(struct comm *c, struct err *err) {
  struct meeting *m = ((struct host_comm *)c)->meeting;
  pthread_mutex_lock(&m->lock);
  const bool gone = m->lost;
  pthread_mutex_unlock(&m->lock);
  return gone ? lost(err) : RC_OK;
}

static void host_give_up(struct comm *c) {
  struct meeting *m = ((struct host_comm *)c)->meeting;
  pthread_mutex_lock(&m->lock);
  m->lost = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
}

/* --- a device --- */

struct device {
  unsigned char *memory;    /* [DEVICE_BYTES], closed but inside a copy */
  size_t out, in, largest;  /* bytes that were copied, and those of the largest copy */
  int copies_left, slow_ms; /* the copy after so many fails; -1: none.  How long each takes */
};

static void device_open(struct device *d) {
  assert_int_equal(mprotect(d->memory, DEVICE_BYTES, PROT_READ | PROT_WRITE), 0);
}
static void device_close(struct device *d) { assert_int_equal(mprotect(d->memory, DEVICE_BYTES, PROT_NONE), 0); }

static enum rc copy(struct device *d, void *to, const void *from, size_t bytes, size_t *count, struct err *err) {
  if (d->copies_left == 0) return err_set(err, RC_INTERNAL, NULL, "the device has failed");
  if (d->copies_left > 0) d->copies_left--;
  if (d->slow_ms > 0) clock_sleep_ms(d->slow_ms);
  *count += bytes;
  if (bytes > d->largest) d->largest = bytes;
  mprotect(d->memory, DEVICE_BYTES, PROT_READ | PROT_WRITE);
  memcpy(to, from, bytes);
  mprotect(d->memory, DEVICE_BYTES, PROT_NONE);
  return RC_OK;
}

static enum rc to_host(void *context, void *host, const void *device, size_t bytes, struct err *err) {
  struct device *d = context;
  return copy(d, host, device, bytes, &d->out, err);
}

static enum rc to_device(void *context, void *device, const void *host, size_t bytes, struct err *err) {
  struct device *d = context;
  return copy(d, device, host, bytes, &d->in, err);
}

/* --- ranks --- */

enum call { BROADCAST, ALL_GATHER, REDUCE_SCATTER, CALLS };

struct rank {
  struct host_comm host;
  struct comm *comm;
  struct device device;
  enum call call;
  size_t begin[RANKS_MAX + 1]; /* of the parts, in elements; of a broadcast the last is the count */
  int root;
  int64_t wait_ms;
  enum rc rc;
  struct err err;
};

struct rig {
  struct meeting meeting;
  struct rank ranks[RANKS_MAX];
};

static struct rig *rig_make(int size, size_t bounce_bytes) {
  struct rig *g = calloc(1, sizeof *g);
  assert_non_null(g);
  g->meeting.size = size;
  pthread_mutex_init(&g->meeting.lock, NULL);
  cond_init(&g->meeting.changed);
  for (int r = 0; r < size; r++) {
    struct rank *k = &g->ranks[r];
    k->host.comm = (struct comm){.name = "threads",
                                 .rank = r,
                                 .size = size,
                                 .broadcast = host_broadcast,
                                 .reduce_scatter = host_reduce_scatter,
                                 .all_reduce = host_all_reduce,
                                 .barrier = host_barrier,
                                 .check = host_check,
                                 .give_up = host_give_up};
    k->host.meeting = &g->meeting;
    k->wait_ms = WAIT_MS;
    k->device.copies_left = -1;
    k->device.memory = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(k->device.memory != MAP_FAILED);
    const struct comm_copies copies = {.context = &k->device, .to_host = to_host, .to_device = to_device};
    struct err err;
    assert_int_equal(comm_staged_create(&k->comm, &k->host.comm, &copies, bounce_bytes, &err), RC_OK);
    assert_int_equal(k->comm->rank, r);
    assert_int_equal(k->comm->size, size);
    assert_string_equal(k->comm->name, "staged");
  }
  return g;
}

static void rig_free(struct rig *g) {
  for (int r = 0; r < g->meeting.size; r++) {
    g->ranks[r].comm->free(g->ranks[r].comm);
    munmap(g->ranks[r].device.memory, DEVICE_BYTES);
  }
  pthread_cond_destroy(&g->meeting.changed);
  pthread_mutex_destroy(&g->meeting.lock);
  free(g);
}

/* Differs in every place and on every rank. */
static int64_t value_at(int rank, size_t i) { return (int64_t)((i + 1) * 2654435761u) * (rank + 3) - 77; }

static size_t width_of(enum call call) { return call == REDUCE_SCATTER ? sizeof(int64_t) : 1; }

static void *rank_main(void *context) {
  struct rank *k = context;
  struct comm *c = k->comm;
  void *array = k->device.memory;
  switch (k->call) {
    case BROADCAST: k->rc = c->broadcast(c, array, k->begin[c->size], k->root, k->wait_ms, &k->err); break;
    case ALL_GATHER: k->rc = c->all_gather(c, array, k->begin, k->wait_ms, &k->err); break;
    default: k->rc = c->reduce_scatter(c, array, k->begin, k->wait_ms, &k->err); break;
  }
  return NULL;
}

/* Fills every rank's array of begin[size] elements, and lets all of them make the call. */
static void play(struct rig *g, enum call call, const size_t *begin, int root) {
  pthread_t threads[RANKS_MAX];
  for (int r = 0; r < g->meeting.size; r++) {
    struct rank *k = &g->ranks[r];
    const size_t bytes = begin[g->meeting.size] * width_of(call);
    assert_true(bytes < DEVICE_BYTES);
    k->call = call;
    k->root = root;
    memcpy(k->begin, begin, sizeof k->begin);
    k->device.out = k->device.in = k->device.largest = 0;
    device_open(&k->device);
    memset(k->device.memory, GUARD, DEVICE_BYTES);
    for (size_t i = 0; i < begin[g->meeting.size]; i++) {
      const int64_t value = value_at(r, i);
      memcpy(k->device.memory + i * width_of(call), &value, width_of(call));
    }
    device_close(&k->device);
  }
  for (int r = 0; r < g->meeting.size; r++)
    assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &g->ranks[r]), 0);
  for (int r = 0; r < g->meeting.size; r++) pthread_join(threads[r], NULL);
}

/* begin[size + 1] of `total` elements: the first part is empty, the others grow. */
static void parts_make(size_t *begin, int size, size_t total) {
  const size_t shares = (size_t)size * (size_t)(size - 1) / 2;
  memset(begin, 0, (RANKS_MAX + 1) * sizeof *begin);
  for (int r = 0; r < size; r++) begin[r + 1] = begin[r] + (shares ? total * (size_t)r / shares : total);
  begin[size] = total;
}

static int owner_of(const size_t *begin, size_t i) {
  int r = 0;
  while (i >= begin[r + 1]) r++;
  return r;
}

/* The expected element i of a rank's array; false when it is undefined. */
static bool expected(const struct rank *k, size_t i, int64_t *value) {
  const int size = k->comm->size, rank = k->comm->rank;
  if (k->call != REDUCE_SCATTER) {
    *value = value_at(k->call == BROADCAST ? k->root : owner_of(k->begin, i), i);
    return true;
  }
  *value = 0;
  for (int r = 0; r < size; r++) *value += value_at(r, i);
  return owner_of(k->begin, i) == rank;
}

static void assert_right(struct rig *g, size_t bounce_bytes) {
  for (int r = 0; r < g->meeting.size; r++) {
    struct rank *k = &g->ranks[r];
    const size_t count = k->begin[g->meeting.size], width = width_of(k->call);
    if (k->rc != RC_OK) fail_msg("rank %d of %d: %s", r, g->meeting.size, k->err.message);
    assert_true(k->device.largest <= bounce_bytes);
    device_open(&k->device);
    for (size_t i = 0; i < count; i++) {
      int64_t value;
      if (!expected(k, i, &value) || memcmp(k->device.memory + i * width, &value, width) == 0) continue;
      fail_msg("call %d over %zu bytes: rank %d of %d has something else at %zu of %zu", k->call, bounce_bytes, r,
               g->meeting.size, i, count);
    }
    for (size_t i = count * width; i < DEVICE_BYTES; i++) assert_int_equal(k->device.memory[i], GUARD);
    device_close(&k->device);
  }
}

static const size_t bounces[] = {8, 20, 64, 4096};
static const size_t counts[] = {0, 1, 7, 8, 9, 63, 64, 65, 1001, 4099};
enum { BOUNCES = sizeof bounces / sizeof bounces[0], COUNTS = sizeof counts / sizeof counts[0] };

/* Of every size and every buffer: smaller, equal, larger, no multiple of it. */
static void test_every_call_gives_what_it_must(void **state) {
  (void)state;
  for (int size = 1; size <= RANKS_MAX; size++) {
    for (size_t b = 0; b < BOUNCES; b++) {
      struct rig *g = rig_make(size, bounces[b]);
      for (size_t c = 0; c < COUNTS; c++) {
        size_t begin[RANKS_MAX + 1];
        parts_make(begin, size, counts[c]);
        for (int call = 0; call < CALLS; call++) {
          play(g, call, begin, size - 1);
          assert_right(g, bounces[b]);
        }
      }
      rig_free(g);
    }
  }
}

/* A rank does not copy back the data that it sent, and copies only its own sums. */
static void test_nothing_is_copied_in_vain(void **state) {
  (void)state;
  enum { SIZE = 3, TOTAL = 900 };
  struct rig *g = rig_make(SIZE, 64);
  size_t begin[RANKS_MAX + 1];
  parts_make(begin, SIZE, TOTAL);
  for (int r = 0; r < SIZE; r++) {
    const struct device *d = &g->ranks[r].device;
    const size_t own = begin[r + 1] - begin[r];
    play(g, BROADCAST, begin, 1);
    assert_int_equal(d->out, r == 1 ? TOTAL : 0);
    assert_int_equal(d->in, r == 1 ? 0 : TOTAL);
    play(g, ALL_GATHER, begin, 0);
    assert_int_equal(d->out, own);
    assert_int_equal(d->in, TOTAL - own);
    play(g, REDUCE_SCATTER, begin, 0);
    assert_int_equal(d->out, TOTAL * sizeof(int64_t));
    assert_int_equal(d->in, own * sizeof(int64_t));
  }
  rig_free(g);
}

/* Its rank reports the failure, no rank waits, and the comm is lost for good, also for an array without a byte. */
static void test_a_copy_that_fails_ends_it_for_all(void **state) {
  (void)state;
  enum { SIZE = 3, BROKEN = 1 };
  for (int call = 0; call < CALLS; call++) {
    struct rig *g = rig_make(SIZE, 64);
    size_t begin[RANKS_MAX + 1];
    parts_make(begin, SIZE, 1000);
    g->ranks[BROKEN].device.copies_left = 4;
    play(g, call, begin, 0);
    for (int r = 0; r < SIZE; r++) {
      assert_int_equal(g->ranks[r].rc, r == BROKEN ? RC_INTERNAL : RC_UNAVAILABLE);
      assert_string_equal(g->ranks[r].err.message, r == BROKEN ? "the device has failed" : "a rank gave up");
      assert_int_equal(g->ranks[r].comm->check(g->ranks[r].comm, NULL), RC_UNAVAILABLE);
    }
    parts_make(begin, SIZE, 0);
    play(g, call, begin, 0);
    for (int r = 0; r < SIZE; r++) assert_int_equal(g->ranks[r].rc, RC_UNAVAILABLE);
    rig_free(g);
  }
}

/* The bound is the call's, not a piece's. */
static void test_all_pieces_together_have_the_calls_time(void **state) {
  (void)state;
  enum { SIZE = 2, PIECES = 100 };
  struct rig *g = rig_make(SIZE, 64);
  size_t begin[RANKS_MAX + 1];
  parts_make(begin, SIZE, PIECES * 64);
  for (int r = 0; r < SIZE; r++) {
    g->ranks[r].device.slow_ms = SLOW_MS;
    g->ranks[r].wait_ms = 5 * SLOW_MS;
  }
  play(g, BROADCAST, begin, 0);
  for (int r = 0; r < SIZE; r++) {
    assert_int_equal(g->ranks[r].rc, RC_UNAVAILABLE);
    assert_true(g->ranks[r].device.in + g->ranks[r].device.out <= 10 * 64);
  }
  rig_free(g);
}

static void test_the_rest_is_the_hosts(void **state) {
  (void)state;
  struct rig *g = rig_make(1, 64);
  struct comm *c = g->ranks[0].comm;
  int64_t value = 1;
  assert_int_equal(c->all_reduce(c, &value, 1, COMM_SUM, WAIT_MS, NULL), RC_OK);
  assert_int_equal(value, 4711);
  assert_int_equal(c->barrier(c, WAIT_MS, NULL), RC_OK);
  assert_int_equal(c->check(c, NULL), RC_OK);
  c->give_up(c);
  assert_true(g->meeting.lost);
  assert_int_equal(c->barrier(c, WAIT_MS, NULL), RC_UNAVAILABLE);
  rig_free(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_call_gives_what_it_must),
      cmocka_unit_test(test_nothing_is_copied_in_vain),
      cmocka_unit_test(test_a_copy_that_fails_ends_it_for_all),
      cmocka_unit_test(test_all_pieces_together_have_the_calls_time),
      cmocka_unit_test(test_the_rest_is_the_hosts),
  };
  return cmocka_run_group_tests_name("comm/staged", tests, NULL, NULL);
}
