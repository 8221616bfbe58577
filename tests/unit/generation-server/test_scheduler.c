/* The scheduler's decisions one by one, and thousands of simulated loads over a pool of pages: everybody finishes,
 * nobody holds more than there is, the oldest is never the one that loses its pages while a younger one holds some. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "services/generation-server/engine/scheduler.h"

enum { SAMPLES = 12, LOADS = 3000, STEPS_MAX = 20000, PAGE = 16 };

static void oldest_enters_first_and_nobody_overtakes(void **state) {
  (void)state;
  struct sched_item items[3] = {{.pending = 64, .pages_needed = 4},
                                {.pending = 16, .pages_needed = 1},
                                {.running = true, .pending = 1, .pages_needed = 0}};
  assert_int_equal(scheduler_admit(items, 3, 1, 6), 0);  /* 4 + 1, and 1 for the running one */
  assert_int_equal(scheduler_admit(items, 3, 1, 5), -1); /* the second would fit, but would starve the first */
  assert_int_equal(scheduler_admit(items, 3, 0, 100), -1);
  items[0].blocked = true;
  assert_int_equal(scheduler_admit(items, 3, 1, 5), 1);
}

/* A pool that looks full must not stop an idle engine: the first sample then takes the pages of waiting ones. */
static void an_idle_engine_always_admits(void **state) {
  (void)state;
  const struct sched_item items[2] = {{.pending = 64, .pages_needed = 4},
                                      {.pending = 1, .pages_held = 3, .pages_needed = 1}};
  assert_int_equal(scheduler_admit(items, 2, 1, 0), 0);
}

static void decode_rows_come_first_and_prefill_shares_the_chunk(void **state) {
  (void)state;
  const struct sched_item items[5] = {{.running = true, .pending = 100},
                                      {.running = true, .pending = 1},
                                      {.pending = 50},
                                      {.running = true, .pending = 100},
                                      {.running = true, .pending = 1}};
  int rows[5];
  scheduler_rows(items, 5, 128, rows);
  const int expected[5] = {100, 1, 0, 28, 1};
  assert_memory_equal(rows, expected, sizeof rows);
}

/* Its group's prompt is being computed by another: computing it twice would cost a whole prefill. */
static void a_blocked_item_in_a_slot_gets_no_rows(void **state) {
  (void)state;
  const struct sched_item items[3] = {{.running = true, .pending = 100, .blocked = true},
                                      {.running = true, .pending = 100},
                                      {.running = true, .pending = 1, .blocked = true}};
  int rows[3];
  scheduler_rows(items, 3, 64, rows);
  const int expected[3] = {0, 64, 0};
  assert_memory_equal(rows, expected, sizeof rows);
}

static void the_youngest_holder_is_the_victim(void **state) {
  (void)state;
  const struct sched_item items[4] = {
      {.running = true, .pages_held = 2}, {.running = true, .pages_held = 2}, {.pages_held = 1}, {.pages_held = 0}};
  assert_int_equal(scheduler_victim(items, 4, 0), 2);
  assert_int_equal(scheduler_victim(items, 4, 2), 2);
  assert_int_equal(scheduler_victim(items, 4, 1), 2);
}

/* --- simulation: samples of their own (no sharing), pages counted --- */

struct sim {
  int length, total, end;
  bool running, done;
};

static uint32_t next(uint64_t *s) {
  *s = *s * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(*s >> 33);
}
static int pages_of(int length) { return (length + PAGE - 1) / PAGE; }

static int view(const struct sim *sims, struct sched_item *items, int *which) {
  int n = 0;
  for (int i = 0; i < SAMPLES; i++) {
    if (sims[i].done) continue;
    which[n] = i;
    items[n++] = (struct sched_item){.running = sims[i].running,
                                     .pending = sims[i].total - sims[i].length,
                                     .pages_held = pages_of(sims[i].length),
                                     .pages_needed = pages_of(sims[i].total) - pages_of(sims[i].length)};
  }
  return n;
}

static void simulate(uint64_t seed) {
  struct sim sims[SAMPLES];
  struct sched_item items[SAMPLES];
  int which[SAMPLES], rows[SAMPLES];
  const int slots = 1 + (int)(next(&seed) % 6), chunk = 1 + (int)(next(&seed) % 64), pool = 8 + (int)(next(&seed) % 24);
  int pages_free = pool, running = 0, left = SAMPLES;
  for (int i = 0; i < SAMPLES; i++) {
    const int prompt = 1 + (int)(next(&seed) % 60);
    sims[i] = (struct sim){.total = prompt, .end = prompt + 1 + (int)(next(&seed) % 60)};
  }
  for (int step = 0; left > 0; step++) {
    assert_true(step < STEPS_MAX);
    int n = view(sims, items, which), at;
    while ((at = scheduler_admit(items, n, slots - running, pages_free)) >= 0) {
      assert_false(items[at].running);
      sims[which[at]].running = items[at].running = true;
      running++;
    }
    assert_true(running > 0 && running <= slots);
    scheduler_rows(items, n, chunk, rows);
    int prefill = 0;
    for (int i = 0; i < n; i++) {
      struct sim *s = &sims[which[i]];
      if (items[i].pending > 1) prefill += rows[i];
      if (rows[i] == 0) continue;
      assert_true(s->running && rows[i] <= s->total - s->length);
      bool preempted = false;
      while (!preempted && pages_of(s->length + rows[i]) - pages_of(s->length) > pages_free) {
        const int v = scheduler_victim(items, n, i);
        struct sim *loser = &sims[which[v]];
        assert_true(v >= i && (v > i || i > 0)); /* the oldest never loses while it runs first */
        pages_free += pages_of(loser->length);
        running -= loser->running;
        *loser = (struct sim){.total = loser->total, .end = loser->end};
        items[v] = (struct sched_item){.pending = loser->total};
        rows[v] = 0;
        preempted = v == i;
      }
      if (preempted) continue;
      pages_free -= pages_of(s->length + rows[i]) - pages_of(s->length);
      s->length += rows[i];
      items[i].pages_held = pages_of(s->length);
      assert_true(pages_free >= 0);
      if (s->length < s->total || ++s->total < s->end) continue;
      s->done = true;
      pages_free += pages_of(s->length);
      items[i].pages_held = 0;
      running--;
      left--;
    }
    assert_true(prefill <= chunk);
  }
  assert_int_equal(pages_free, pool);
}

static void every_load_finishes(void **state) {
  (void)state;
  for (uint64_t load = 0; load < LOADS; load++) simulate(load * 2654435761u + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(oldest_enters_first_and_nobody_overtakes),
      cmocka_unit_test(an_idle_engine_always_admits),
      cmocka_unit_test(decode_rows_come_first_and_prefill_shares_the_chunk),
      cmocka_unit_test(a_blocked_item_in_a_slot_gets_no_rows),
      cmocka_unit_test(the_youngest_holder_is_the_victim),
      cmocka_unit_test(every_load_finishes),
  };
  return cmocka_run_group_tests_name("generation scheduler", tests, NULL, NULL);
}
