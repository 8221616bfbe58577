/* The token loop allocates nothing: with the engine's buffers made and jobs submitted, every step from taking the jobs
 * to their last tokens runs without one call of the allocator, on the engine's thread and on the threads of its pool.
 *
 * The allocator is counted here, in front of glibc's; a sanitizer brings its own, and then there is nothing to
 * count. */
#include "tests/unit/generation-server/engine_test.h"

#include <errno.h>
#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

static void begin_counting(void) {}
static int counted(void) { return 0; }

#else

static atomic_bool counting;
static atomic_int count;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static void note(void) {
  if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&count, 1);
}

void *malloc(size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t size) {
  note();
  return __libc_calloc(n, size);
}
void *realloc(void *memory, size_t bytes) {
  note();
  return __libc_realloc(memory, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
  note();
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}

static void begin_counting(void) {
  atomic_store(&count, 0);
  atomic_store(&counting, true);
}
static int counted(void) {
  atomic_store(&counting, false);
  return atomic_load(&count);
}

#endif

enum { THREADS = 2, JOBS = 8, SAMPLES = 4, MAX_NEW = 40 };

static int wakes;
static void count_wake(void *context) {
  (void)context;
  wakes++;
}
static const struct follower follower = {.wake = count_wake};

/* Every way to draw a token, groups that share a prompt, one that is followed, stop ids. */
static void submit_mixture(struct rig *r, struct outcome *outcomes) {
  static const struct sampling_params kinds[JOBS] = {
      {.temperature = 1, .top_p = 1},
      {.temperature = 0.7f, .top_p = 1},
      {.temperature = 0, .top_p = 1},
      {.temperature = 1, .top_p = 0.8f},
      {.temperature = 1, .top_p = 1, .top_k = 7},
      {.temperature = 1, .top_p = 1, .min_p = 0.05f},
      {.temperature = 2, .top_p = 1},
      {.temperature = 1, .top_p = 1},
  };
  static const int32_t stop = 17;
  for (int j = 0; j < JOBS; j++) {
    int32_t prompt[64];
    struct decode_job_spec spec = spec_of(prompt, 5 + 7 * j, j, SAMPLES, MAX_NEW - 3 * j);
    spec.sampling = kinds[j];
    spec.raw_logprobs = j % 2 == 1;
    spec.top_count = j == 3 ? 4 : 0;
    spec.stop = &stop;
    spec.stop_count = j == 7;
    submit(r, &spec, &outcomes[j])->follower = &follower;
  }
}

/* Steps until nothing is left to do. */
static void run_counted(struct rig *r, struct outcome *outcomes) {
  submit_mixture(r, outcomes);
  begin_counting();
  int steps = 0;
  while (engine_step(r->engine) && steps < RIG_STEPS_MAX) steps++;
  const int allocations = counted();
  if (allocations != 0) fail_msg("%d allocations in %d steps", allocations, steps);
  assert_true(steps >= MAX_NEW);
  for (int j = 0; j < JOBS; j++) assert_int_equal(outcomes[j].end, DECODE_JOB_COMPLETE);
}

static void test_the_counter_counts(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip();
#endif
  begin_counting();
  void *volatile memory = malloc(3);
  assert_int_equal(counted(), 1);
  free(memory);
}

static void test_steps_allocate_nothing(void **state) {
  (void)state;
  static struct outcome outcomes[JOBS];
  struct rig rig;
  rig_open_threads(&rig, THREADS, 16, 200, 16, 24);
  for (int again = 0; again < 2; again++) run_counted(&rig, outcomes);
  assert_true(wakes > 0);
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* Nor do swaps of weights, whether samples keep their keys and values or lose them; only the message does. */
static void test_swaps_allocate_nothing(void **state) {
  (void)state;
  static struct outcome outcomes[JOBS];
  struct rig rig;
  struct engine_counters n;
  rig_open_threads(&rig, THREADS, 16, 200, 16, 24);
  submit_mixture(&rig, outcomes);
  struct decode_job *job = NULL;
  struct err err = {0};
  static struct outcome leased;
  int32_t prompt[20] = {1, 2, 3};
  const struct lease lease = {.id = "r1.0.9.0-3",
                              .run = "r1",
                              .purpose = LEASE_TRAINING,
                              .sample_count = SAMPLES,
                              .version_min = 3,
                              .version_max = 9,
                              .kv = LEASE_KV_RECOMPUTE,
                              .temperature = 1,
                              .max_new_tokens = MAX_NEW,
                              .prompt_ids = {prompt, 20}};
  assert_int_equal(decode_job_of_lease(&job, &lease, rig.model, NULL, engine_kv(rig.engine), &err), RC_OK);
  job->context = &leased;
  job->done = keep_outcome;
  assert_int_equal(engine_submit(rig.engine, job, &err), RC_OK);
  for (int swap = 1; swap <= 4; swap++) {
    rig.policy[swap % 2].version = 3 + swap;
    begin_counting();
    for (int i = 0; i < 10; i++) engine_step(rig.engine);
    const int before = counted();
    assert_int_equal(engine_activate(rig.engine, rig.weights[swap % 2], &rig.policy[swap % 2]), RC_OK);
    begin_counting();
    engine_step(rig.engine);
    assert_int_equal(before + counted(), 0);
  }
  run_until_idle(&rig);
  engine_read_counters(rig.engine, &n);
  assert_true(n.recomputed > 0 && n.pauses == 4);
  assert_int_equal(leased.end, DECODE_JOB_COMPLETE);
  assert_pages_home(&rig);
  rig_close(&rig);
}

/* Pages are taken away and given back all the time. */
static void test_preemption_allocates_nothing(void **state) {
  (void)state;
  static struct outcome outcomes[JOBS];
  struct rig rig;
  struct engine_counters n;
  rig_open_threads(&rig, THREADS, 16, 12, 16, 24);
  run_counted(&rig, outcomes);
  engine_read_counters(rig.engine, &n);
  assert_true(n.preemptions > 0);
  rig_close(&rig);
}

/* A job that brings more samples than there is room for ends at once, and those that are here go on. */
static void test_more_samples_than_there_is_room_for(void **state) {
  (void)state;
  static struct outcome kept, refused;
  struct rig rig;
  int32_t prompt[8];
  rig_open(&rig, 4, 64, 16, 64);
  struct decode_job_spec spec = spec_of(prompt, 8, 1, 8, 4);
  submit(&rig, &spec, &kept);
  spec.sample_count = RIG_SAMPLES_MAX - 7;
  submit(&rig, &spec, &refused)->done = note_end;
  run_until_idle(&rig);
  assert_int_equal(kept.end, DECODE_JOB_COMPLETE);
  assert_true(refused.ended);
  assert_int_equal(refused.end, DECODE_JOB_DROPPED);
  assert_pages_home(&rig);
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_counter_counts),
      cmocka_unit_test(test_steps_allocate_nothing),
      cmocka_unit_test(test_swaps_allocate_nothing),
      cmocka_unit_test(test_preemption_allocates_nothing),
      cmocka_unit_test(test_more_samples_than_there_is_room_for),
  };
  return cmocka_run_group_tests_name("generation-server/token_loop", tests, NULL, NULL);
}
