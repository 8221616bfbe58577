/* A worker's tie to the coordinator, which this program plays.  What would break: a worker that a new coordinator does
 * not know any more and that never comes back; one that asks in a hot loop; a change that waits for the next heartbeat;
 * a leave that nobody hears. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/registration.h"
#include "common/http/server.h"
#include "tests/unit/base/await.h"

enum { QUICK_MS = 20, NEVER_MS = 600000 };

/* The coordinator. */
static struct {
  pthread_mutex_t lock; /* guards all below */
  uint64_t epoch, last_epoch;
  int32_t heartbeat_ms;
  int registrations, heartbeats, leaves, tokens_told;
  char last_id[LIMIT_NAME_MAX];
  enum rc refuse_heartbeats; /* RC_OK: the epoch is checked */
} play = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The worker. */
static struct {
  pthread_mutex_t lock; /* guards all below */
  int registered, answered, tokens;
  uint64_t epoch;
  bool doubt;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct http_server *server;
static char url[64];

static void on_register(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  char id[16];
  pthread_mutex_lock(&play.lock);
  snprintf(id, sizeof id, "w%d", ++play.registrations);
  const struct worker_registered m = {
      .worker_id = id, .epoch = play.epoch, .heartbeat_ms = play.heartbeat_ms, .worker_ttl_ms = 1000};
  pthread_mutex_unlock(&play.lock);
  worker_registered_encode(&m, &body);
  http_reply_json(r, 200, &body);
}

static void on_heartbeat(struct http_request *r, void *context) {
  (void)context;
  const struct json *json;
  struct worker_heartbeat m = {0};
  struct err err = {0};
  struct buf body = BUF_INIT;
  enum rc rc = http_body_json(r, &json, &err);
  if (rc == RC_OK) rc = worker_heartbeat_decode(&m, json, http_arena(r), &err);
  pthread_mutex_lock(&play.lock);
  play.heartbeats++;
  play.tokens_told = (int)m.tokens_sampled;
  play.last_epoch = m.epoch;
  snprintf(play.last_id, sizeof play.last_id, "%s", http_param(r, "id"));
  if (rc == RC_OK && play.refuse_heartbeats) rc = err_set(&err, play.refuse_heartbeats, "id", "refused");
  if (rc == RC_OK && m.epoch != play.epoch) rc = err_set(&err, RC_CONFLICT, "epoch", "another epoch");
  const struct worker_heartbeat_answer answer = {.epoch = play.epoch};
  pthread_mutex_unlock(&play.lock);
  worker_heartbeat_answer_encode(&answer, &body);
  http_reply_json_or_fail(r, rc, &body, &err);
}

static void on_leave(struct http_request *r, void *context) {
  (void)context;
  struct buf body = BUF_INIT;
  pthread_mutex_lock(&play.lock);
  play.leaves++;
  snprintf(play.last_id, sizeof play.last_id, "%s", http_param(r, "id"));
  pthread_mutex_unlock(&play.lock);
  buf_puts(&body, "{}");
  http_reply_json(r, 200, &body);
}

static const struct http_route routes[] = {
    {.method = "POST", .path = "/v1/workers", .handler = on_register},
    {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = on_heartbeat},
    {.method = "DELETE", .path = "/v1/workers/{id}", .handler = on_leave},
};

static void registered(void *context, const struct worker_registered *answer) {
  (void)context;
  pthread_mutex_lock(&worker.lock);
  worker.registered++;
  worker.epoch = answer->epoch;
  pthread_mutex_unlock(&worker.lock);
}

static enum rc tell(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err) {
  (void)context, (void)arena, (void)err;
  pthread_mutex_lock(&worker.lock);
  m->tokens_sampled = worker.tokens;
  pthread_mutex_unlock(&worker.lock);
  return RC_OK;
}

static void answered(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *answer) {
  (void)context, (void)m, (void)answer;
  pthread_mutex_lock(&worker.lock);
  worker.answered++;
  pthread_mutex_unlock(&worker.lock);
}

static bool in_doubt(void *context) {
  (void)context;
  pthread_mutex_lock(&worker.lock);
  const bool doubt = worker.doubt;
  worker.doubt = false;
  pthread_mutex_unlock(&worker.lock);
  return doubt;
}

static int setup(void **state) {
  (void)state;
  struct err err = {0};
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = routes, .route_count = sizeof routes / sizeof *routes};
  play.epoch = 4;
  play.heartbeat_ms = QUICK_MS;
  play.registrations = play.heartbeats = play.leaves = play.tokens_told = 0;
  play.refuse_heartbeats = RC_OK;
  worker.registered = worker.answered = worker.tokens = 0;
  worker.doubt = false;
  if (http_server_start(&server, &options, &err) != RC_OK) return -1;
  snprintf(url, sizeof url, "http://127.0.0.1:%d", http_server_port(server));
  return 0;
}

static int teardown(void **state) {
  (void)state;
  http_server_stop(server, 1000);
  return 0;
}

static struct registration *start(bool beat_at_once, bool doubts) {
  struct registration *r;
  struct err err = {0};
  const struct registration_options options = {.coordinator = url,
                                               .worker = {.name = "gen-1", .url = "http://here", .slots = 2},
                                               .beat_at_once = beat_at_once,
                                               .retry_ms_max = 400,
                                               .registered = registered,
                                               .tell = tell,
                                               .answered = answered,
                                               .in_doubt = doubts ? in_doubt : NULL};
  if (registration_start(&r, &options, &err) != RC_OK) fail_msg("%s", err.message);
  return r;
}

static int read_int(pthread_mutex_t *lock, const int *n) {
  pthread_mutex_lock(lock);
  const int value = *n;
  pthread_mutex_unlock(lock);
  return value;
}

static void wait_for(pthread_mutex_t *lock, const int *n, int least) {
  AWAIT(read_int(lock, n) >= least, "fewer than %d came", least) continue;
}

static void set_int(pthread_mutex_t *lock, int *n, int value) {
  pthread_mutex_lock(lock);
  *n = value;
  pthread_mutex_unlock(lock);
}

static void a_worker_registers_and_beats(void **state) {
  (void)state;
  struct registration *r = start(false, false);
  wait_for(&worker.lock, &worker.answered, 3);
  assert_int_equal(registration_epoch(r), 4);
  registration_stop(r);
  assert_int_equal(play.registrations, 1);
  assert_int_equal(play.last_epoch, 4);
  assert_string_equal(play.last_id, "w1");
  assert_int_equal(play.leaves, 0);
}

static void under_a_new_epoch_it_registers_again(void **state) {
  (void)state;
  struct registration *r = start(false, false);
  wait_for(&worker.lock, &worker.answered, 1);
  pthread_mutex_lock(&play.lock);
  play.epoch = 2; /* of another database, too */
  pthread_mutex_unlock(&play.lock);
  wait_for(&worker.lock, &worker.registered, 2);
  const int before = read_int(&worker.lock, &worker.answered);
  wait_for(&worker.lock, &worker.answered, before + 2);
  assert_int_equal(registration_epoch(r), 2);
  registration_stop(r);
  assert_int_equal(play.registrations, 2);
  assert_string_equal(play.last_id, "w2");
  assert_int_equal(worker.epoch, 2);
}

/* Two workers under one name take the place from each other. */
static void one_that_is_forgotten_at_every_heartbeat_asks_no_faster(void **state) {
  (void)state;
  play.refuse_heartbeats = RC_NOT_FOUND;
  const int64_t begin_ms = clock_monotonic_ms();
  struct registration *r = start(true, false);
  wait_for(&play.lock, &play.registrations, 4); /* pauses of 200, 400 and 400 ms */
  assert_true(clock_monotonic_ms() - begin_ms >= 950);
  registration_stop(r);
  assert_true(play.heartbeats <= play.registrations);
}

static void stale_and_poke_do_not_wait_for_the_next_heartbeat(void **state) {
  (void)state;
  play.heartbeat_ms = NEVER_MS;
  struct registration *r = start(true, false);
  wait_for(&worker.lock, &worker.answered, 1); /* at once, behind the registration */
  set_int(&worker.lock, &worker.tokens, 7);
  registration_poke(r);
  wait_for(&play.lock, &play.tokens_told, 7);
  wait_for(&worker.lock, &worker.answered, 2);
  registration_stale(r);
  wait_for(&worker.lock, &worker.registered, 2);
  wait_for(&worker.lock, &worker.answered, 3);
  registration_stop(r);
  assert_int_equal(play.registrations, 2);
  assert_int_equal(play.heartbeats, 3);
}

static void a_doubt_brings_the_heartbeat_forward_a_little(void **state) {
  (void)state;
  play.heartbeat_ms = NEVER_MS;
  worker.doubt = true;
  const int64_t begin_ms = clock_monotonic_ms();
  struct registration *r = start(false, true);
  wait_for(&worker.lock, &worker.answered, 1);
  assert_true(clock_monotonic_ms() - begin_ms >= 200);
  registration_stop(r);
  assert_int_equal(play.heartbeats, 1);
}

static void a_leave_is_the_last_word(void **state) {
  (void)state;
  struct registration *r = start(false, false);
  wait_for(&worker.lock, &worker.answered, 1);
  registration_leave(r);
  const int beats = read_int(&play.lock, &play.heartbeats);
  assert_int_equal(read_int(&play.lock, &play.leaves), 1);
  assert_string_equal(play.last_id, "w1");
  clock_sleep_ms(5 * QUICK_MS);
  assert_int_equal(read_int(&play.lock, &play.heartbeats), beats);
  registration_stop(r);
  assert_int_equal(play.leaves, 1);
}

static void without_a_coordinator_it_keeps_asking_and_stops_at_once(void **state) {
  (void)state;
  snprintf(url, sizeof url, "http://127.0.0.1:1");
  struct registration *r = start(false, false);
  clock_sleep_ms(50);
  const int64_t begin_ms = clock_monotonic_ms();
  assert_int_equal(registration_epoch(r), 0);
  registration_leave(r);
  registration_stop(r);
  assert_true(clock_monotonic_ms() - begin_ms < 2000);
  assert_int_equal(worker.registered, 0);
}

static void waiting_for_a_coordinator_that_starts_is_nothing_to_warn_of(void **state) {
  (void)state;
  static const struct {
    enum rc failure;
    int64_t waited_ms;
    enum registration_word said, word;
  } cases[] = {
      {RC_UNAVAILABLE, 0, SAY_NOTHING, SAY_WAITING},       {RC_UNAVAILABLE, 29999, SAY_NOTHING, SAY_WAITING},
      {RC_UNAVAILABLE, 5000, SAY_WAITING, SAY_NOTHING},    {RC_UNAVAILABLE, 30000, SAY_WAITING, SAY_WARNING},
      {RC_UNAVAILABLE, 60000, SAY_WARNING, SAY_NOTHING},   {RC_FORBIDDEN, 0, SAY_NOTHING, SAY_WARNING},
      {RC_FORBIDDEN, 0, SAY_WAITING, SAY_WARNING},         {RC_UNAVAILABLE, -1, SAY_NOTHING, SAY_WARNING},
      {RC_TIMEOUT, 100, SAY_WARNING, SAY_NOTHING},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (registration_word(cases[i].failure, cases[i].waited_ms, cases[i].said) != cases[i].word)
      fail_msg("case %zu", i);
}

/* A service that the coordinator will never know says so before it starts; a name is a path's part. */
static void names_and_addresses_that_would_be_refused_for_ever(void **state) {
  (void)state;
  static const struct {
    const char *name, *url, *field;
  } cases[] = {{"", "", NULL},
               {"gen-1.a_b", "https://gen.example:8100/pool", NULL},
               {"../../x", "", "name"},
               {"..", "", "name"},
               {"gen 1", "", "name"},
               {"gen", "gen:8100", "advertise-url"},
               {"gen", "http://gen:8100/", "advertise-url"},
               {"gen", "http://gen:8100?a=b", "advertise-url"}};
  char longest[LIMIT_NAME_MAX + 1] = "";
  struct err err;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    err = (struct err){0};
    const enum rc rc = registration_check(cases[i].name, cases[i].url, &err);
    assert_int_equal(rc, cases[i].field ? RC_INVALID : RC_OK);
    if (cases[i].field) assert_string_equal(err.field, cases[i].field);
  }
  memset(longest, 'n', LIMIT_NAME_MAX);
  assert_int_equal(registration_check(longest, "", &err), RC_INVALID);
  longest[LIMIT_NAME_MAX - 1] = '\0';
  assert_int_equal(registration_check(longest, "", &err), RC_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_addresses_that_would_be_refused_for_ever),
      cmocka_unit_test(waiting_for_a_coordinator_that_starts_is_nothing_to_warn_of),
      cmocka_unit_test_setup_teardown(a_worker_registers_and_beats, setup, teardown),
      cmocka_unit_test_setup_teardown(under_a_new_epoch_it_registers_again, setup, teardown),
      cmocka_unit_test_setup_teardown(one_that_is_forgotten_at_every_heartbeat_asks_no_faster, setup, teardown),
      cmocka_unit_test_setup_teardown(stale_and_poke_do_not_wait_for_the_next_heartbeat, setup, teardown),
      cmocka_unit_test_setup_teardown(a_doubt_brings_the_heartbeat_forward_a_little, setup, teardown),
      cmocka_unit_test_setup_teardown(a_leave_is_the_last_word, setup, teardown),
      cmocka_unit_test_setup_teardown(without_a_coordinator_it_keeps_asking_and_stops_at_once, setup, teardown),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("client/registration", tests, NULL, NULL);
}
