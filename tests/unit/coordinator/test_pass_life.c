/* Passes through the coordinator's API, with preprocessors that the test plays.  What would break: a group goes to the
 * trainer beside a pass that is under way, or waits for one that nobody computes; numbers computed by other weights, of
 * another group or by a preprocessor that lost the pass are trained on; a step takes other groups because of a
 * preprocessor; a lost pass is given to nobody, or twice at a time. */
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "tests/unit/coordinator/fake_server.h"

enum { GROUPS = 3, SAMPLES = 4, TIMEOUT_MS = 10000 };

/* A round of 3 groups of 4 samples; nothing is trained on before all of them are in. */
#define KL_RUN(more)                                                                                                 \
  "{\"mode\":\"sync\",\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},"             \
  "\"verify_samples\":false,\"groups_per_round\":3,\"samples_per_group\":4,\"sampling\":{\"temperature\":1.0,\"max_" \
  "new_tokens\":8},"                                                                                                 \
  "\"training\":{\"objective\":\"grpo\",\"kl_coefficient\":0.1}" more "}"

struct preprocessor {
  struct worker_registered is;
};

static void join_as(struct fixture *f, struct preprocessor *p, const char *name, enum worker_exactness exactness,
                    enum worker_device device) {
  struct err err = {0};
  const struct worker_register m = {
      .name = name, .kind = WORKER_PREPROCESS, .url = "http://127.0.0.1:9", .exactness = exactness, .device = device};
  if (coordinator_register(&f->client, &m, &p->is, &f->arena, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
}

/* It reports that it holds version 0 of the run, and these passes; the answer. */
static struct worker_heartbeat_answer beat(struct fixture *f, const struct preprocessor *p, const struct pass *passes,
                                           size_t count) {
  struct err err = {0};
  struct lease_ref refs[LIMIT_PASSES_PER_REQUEST];
  struct worker_heartbeat_answer answer;
  struct worker_heartbeat m = {
      .epoch = p->is.epoch, .ready = true, .has_loaded = true, .leases = refs, .lease_count = count};
  for (size_t i = 0; i < count; i++) refs[i] = (struct lease_ref){.id = passes[i].group.id, .fence = passes[i].fence};
  fake_digest(&m.loaded_digest, "r1", 0);
  if (coordinator_heartbeat(&f->client, p->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
  return answer;
}

static void join(struct fixture *f, struct preprocessor *p, const char *name) {
  join_as(f, p, name, WORKER_INVARIANT, WORKER_CPU);
  beat(f, p, NULL, 0);
}

static enum rc ask(struct fixture *f, const char *worker_id, uint64_t epoch, int most, struct pass_answer *out,
                   struct err *err) {
  const struct pass_request m = {.epoch = epoch, .groups_max = most};
  return coordinator_passes(&f->client, worker_id, &m, out, &f->arena, DEADLINE_MS, err);
}

static struct pass_answer asked(struct fixture *f, const struct preprocessor *p, int most) {
  struct err err = {0};
  struct pass_answer a = {0};
  if (ask(f, p->is.worker_id, p->is.epoch, most, &a, &err) != RC_OK) fail_msg("%s", err.message);
  return a;
}

static struct pass_result computed(struct fixture *f, const struct preprocessor *p, const struct pass *pass) {
  struct pass_result r = {.worker_id = p->is.worker_id,
                          .epoch = p->is.epoch,
                          .fence = pass->fence,
                          .weights_digest = pass->weights_digest,
                          .sample_count = pass->group.sample_count};
  r.samples = arena_alloc(&f->arena, r.sample_count, sizeof *r.samples);
  for (size_t i = 0; i < r.sample_count; i++) {
    const struct batch_sample *s = &pass->group.samples[i];
    const size_t count = s->tokens.count - (size_t)s->prompt_length;
    float *items = arena_alloc(&f->arena, count, sizeof *items);
    for (size_t k = 0; k < count; k++) items[k] = fake_reference(s->tokens.items[(size_t)s->prompt_length + k]);
    r.samples[i] = (struct sample_logprobs){.id = s->id, .logprobs = {items, count}};
  }
  return r;
}

static enum rc put(struct fixture *f, const struct pass *pass, const struct pass_result *r, bool *repeated,
                   struct err *err) {
  struct lease_result_answer answer = {0};
  const enum rc rc =
      coordinator_put_pass(&f->client, pass->group.id, r, &answer, &f->arena, DEADLINE_MS, err);
  if (repeated) *repeated = answer.repeated;
  return rc;
}

static void put_well(struct fixture *f, const struct preprocessor *p, const struct pass *pass) {
  struct err err = {0};
  const struct pass_result r = computed(f, p, pass);
  if (put(f, pass, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
}

static void hand_back(struct fixture *f, const struct preprocessor *p, const struct pass *pass, const char *refused) {
  struct err err = {0};
  const struct pass_result r = {.worker_id = p->is.worker_id,
                                .epoch = p->is.epoch,
                                .fence = pass->fence,
                                .handed_back = true,
                                .refused = refused};
  if (put(f, pass, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
}

static struct fake_server begin(struct fixture *f, const char *run, struct lease leases[GROUPS]) {
  struct fake_server s;
  post_run(f, run);
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, GROUPS);
  return s;
}

static int trained_on(struct fixture *f) { return fake_trainer_batches(&f->trainer); }

/* The run is over, and so many groups brought the right numbers. */
static void completes_with(struct fixture *f, int references) {
  struct json *body = NULL;
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(f->trainer.references, references);
  assert_int_equal(f->trainer.wrong_references, 0);
  assert_int_equal(call(f, "GET", "/v1/runs/r1/rounds", NULL, &body), 200);
  const struct json *round = json_at(json_get(body, "rounds"), 0);
  assert_int_equal(get_int(round, "reference", "by_preprocessors"), references);
  assert_int_equal(get_int(round, "reference", "by_trainer"), GROUPS - references);
  json_free(body);
}

static void what_a_preprocessor_computes_comes_with_the_batch(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p;
  struct digest reference;
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join(f, &p, "pre-1");
  for (int g = 0; g < 2; g++) answer_lease(f, &s, &leases[g]);
  const struct pass_answer a = asked(f, &p, 16);
  assert_int_equal(a.pass_count, 2);
  core_await_groups(f->core, 1, true); /* as a round before would have left it */
  fake_digest(&reference, "r1", 0);
  for (int g = 0; g < 2; g++) {
    const struct pass *pass = &a.passes[g];
    assert_int_equal(pass->fence, 1);
    assert_int_equal(pass->version, 0);
    assert_true(digest_equal(&pass->weights_digest, &reference));
    assert_string_equal(pass->weights_from, f->trainer.url);
    assert_int_equal(pass->group.sample_count, SAMPLES);
    put_well(f, &p, pass);
  }
  assert_int_equal(asked(f, &p, 16).pass_count, 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM batches"), 0); /* the round's advantages may still change */
  answer_lease(f, &s, &leases[2]); /* nobody asks for it, so an idle trainer takes it */
  completes_with(f, 2);
}

static void a_pass_under_way_is_waited_for_and_a_late_one_is_not(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p;
  struct err err = {0};
  struct fake_server s = begin(f, KL_RUN(",\"pass_timeout_ms\":10000"), leases);
  join(f, &p, "pre-1");
  f->clock_stands = true;
  for (int g = 0; g < 2; g++) answer_lease(f, &s, &leases[g]);
  const struct pass_answer a = asked(f, &p, 16);
  assert_int_equal(a.pass_count, 2);
  answer_lease(f, &s, &leases[2]);
  put_well(f, &p, &a.passes[0]);
  AWAIT(read_int(f, "SELECT count(*) FROM groups WHERE state IN (2, 3)") == 2, "two groups are not taken")
  a_moment_passes(f);
  driver_has_looked(f);
  time_passes(f, TIMEOUT_MS - 100);
  driver_has_looked(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state = 1"), 1);
  time_passes(f, 100);
  completes_with(f, 1);
  const struct pass_result late = computed(f, &p, &a.passes[1]);
  assert_int_equal(put(f, &a.passes[1], &late, NULL, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "not wanted any more"));
  assert_int_equal(beat(f, &p, &a.passes[1], 1).lost_count, 1);
}

static void a_lost_pass_goes_to_another_under_a_higher_fence(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, q;
  struct err err = {0};
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join(f, &p, "pre-1");
  answer_lease(f, &s, &leases[0]);
  const struct pass_answer a = asked(f, &p, 1);
  join(f, &q, "pre-2");
  assert_int_equal(a.pass_count, 1);
  assert_int_equal(asked(f, &q, 1).pass_count, 0); /* it is p's */
  assert_int_equal(coordinator_leave(&f->client, p.is.worker_id, DEADLINE_MS, &err), RC_OK);
  const struct pass_answer b = asked(f, &q, 1);
  assert_int_equal(b.pass_count, 1);
  assert_string_equal(b.passes[0].group.id, a.passes[0].group.id);
  assert_int_equal(b.passes[0].fence, 2);
  const struct pass_result r = computed(f, &p, &a.passes[0]);
  assert_int_equal(put(f, &a.passes[0], &r, NULL, &err), RC_CONFLICT);
  assert_string_equal(err.field, "fence");
  put_well(f, &q, &b.passes[0]);
  for (int g = 1; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  completes_with(f, 1);
}

static void a_result_that_is_not_of_this_pass_is_refused(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, q;
  struct err err = {0};
  bool repeated = false;
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join(f, &p, "pre-1");
  join(f, &q, "pre-2");
  answer_lease(f, &s, &leases[0]);
  const struct pass_answer a = asked(f, &p, 1);
  const struct pass *pass = &a.passes[0];
  struct pass_result r = computed(f, &p, pass);
  r.weights_digest.bytes[31] ^= 1;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_CONFLICT);
  assert_string_equal(err.field, "weights_digest");
  r = computed(f, &p, pass);
  r.samples[1].logprobs.count--;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_INVALID);
  r = computed(f, &p, pass);
  r.sample_count--;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_INVALID);
  r = computed(f, &p, pass);
  const struct sample_logprobs first = r.samples[0];
  r.samples[0] = r.samples[1];
  r.samples[1] = first;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_INVALID);
  r = computed(f, &q, pass);
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_FORBIDDEN);
  r = computed(f, &p, pass);
  r.epoch--;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_CONFLICT);
  r = computed(f, &p, pass);
  r.fence++;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_CONFLICT);
  assert_int_equal(read_int(f, "SELECT count(*) FROM passes WHERE logprobs NOT NULL"), 0);
  r = computed(f, &p, pass);
  assert_int_equal(put(f, pass, &r, &repeated, &err), RC_OK);
  assert_false(repeated);
  assert_int_equal(put(f, pass, &r, &repeated, &err), RC_OK);
  assert_true(repeated);
  r.samples[0].logprobs.items[0] *= 2;
  assert_int_equal(put(f, pass, &r, NULL, &err), RC_CONFLICT);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'nondeterminism'"), 1);
  for (int g = 1; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  completes_with(f, 1);
}

static void nobody_waits_for_one_that_does_not_hold_the_reference(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p;
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join_as(f, &p, "pre-1", WORKER_INVARIANT, WORKER_CPU);
  f->clock_stands = true;
  for (int g = 0; g < 2; g++) answer_lease(f, &s, &leases[g]);
  assert_int_equal(asked(f, &p, 16).pass_count, 1); /* which says what to load */
  assert_int_equal(asked(f, &p, 16).pass_count, 0);
  answer_lease(f, &s, &leases[2]);
  completes_with(f, 0);
  assert_int_equal(trained_on(f), 2); /* as many at once as fit a batch */
}

static void a_pass_that_is_handed_back_goes_to_others_and_a_refused_one_to_the_trainer(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, q;
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join(f, &p, "pre-1");
  answer_lease(f, &s, &leases[0]);
  struct pass_answer a = asked(f, &p, 1);
  hand_back(f, &p, &a.passes[0], NULL);
  assert_int_equal(asked(f, &p, 1).pass_count, 0);
  join(f, &q, "pre-2");
  a = asked(f, &q, 1);
  assert_int_equal(a.pass_count, 1);
  assert_int_equal(a.passes[0].fence, 2);
  hand_back(f, &q, &a.passes[0], "sequences of so many tokens need 1 GiB");
  assert_int_equal(asked(f, &p, 1).pass_count + asked(f, &q, 1).pass_count, 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'pass_refused'"), 1);
  f->clock_stands = true;
  for (int g = 1; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  completes_with(f, 0);
}

static void passes_are_renewed_by_heartbeats_or_given_to_others(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, q;
  f->options.lease_ttl_ms = 2000;
  coordinator_restart(f);
  struct fake_server s = begin(f, KL_RUN(",\"pass_timeout_ms\":3600000"), leases);
  join(f, &p, "pre-1");
  join(f, &q, "pre-2");
  f->clock_stands = true;
  answer_lease(f, &s, &leases[0]);
  const struct pass_answer a = asked(f, &p, 1);
  for (int i = 0; i < 3; i++) {
    time_passes(f, 1500);
    assert_int_equal(beat(f, &p, a.passes, 1).lost_count, 0);
    assert_int_equal(asked(f, &q, 1).pass_count, 0);
  }
  time_passes(f, 2500);
  const struct pass_answer b = asked(f, &q, 1);
  assert_int_equal(b.pass_count, 1);
  assert_int_equal(b.passes[0].fence, 2);
  assert_int_equal(beat(f, &p, a.passes, 1).lost_count, 1);
}

static void after_a_restart_passes_wait_again(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, q;
  struct err err = {0};
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join(f, &p, "pre-1");
  for (int g = 0; g < 2; g++) answer_lease(f, &s, &leases[g]);
  const struct pass_answer a = asked(f, &p, 2);
  put_well(f, &p, &a.passes[0]);
  coordinator_restart(f);
  json_free(wait_state(f, "r1", "running"));
  const struct pass_result old = computed(f, &p, &a.passes[1]);
  assert_int_equal(put(f, &a.passes[1], &old, NULL, &err), RC_CONFLICT);
  join(f, &q, "pre-1");
  struct pass_answer b = {0};
  AWAIT((b = asked(f, &q, 2)).pass_count, "there is no pass") a_moment_passes(f);
  assert_int_equal(b.pass_count, 1); /* the other is done */
  assert_string_equal(b.passes[0].group.id, a.passes[1].group.id);
  assert_int_equal(b.passes[0].fence, 2);
  put_well(f, &q, &b.passes[0]);
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, 1);
  answer_lease(f, &s, &leases[0]);
  completes_with(f, 2);
}

static void passes_are_for_preprocessors_of_runs_with_a_kl_term(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p, fastest, other;
  struct pass_answer a;
  struct err err = {0};
  struct fake_server s = begin(f, GRPO(1, "}"), leases);
  join(f, &p, "pre-1");
  join_as(f, &fastest, "pre-2", WORKER_FASTEST, WORKER_CPU);
  join_as(f, &other, "pre-3", WORKER_INVARIANT, WORKER_CUDA);
  answer_lease(f, &s, &leases[0]);
  assert_int_equal(asked(f, &p, 16).pass_count, 0);
  assert_int_equal(ask(f, fastest.is.worker_id, fastest.is.epoch, 1, &a, &err), RC_FORBIDDEN);
  assert_int_equal(ask(f, other.is.worker_id, other.is.epoch, 1, &a, &err), RC_FORBIDDEN);
  assert_non_null(strstr(err.message, "expected a preprocessor with --device cpu"));
  assert_int_equal(ask(f, s.is.worker_id, s.is.epoch, 1, &a, &err), RC_FORBIDDEN);
  assert_int_equal(ask(f, f->trainer_is.worker_id, f->trainer_is.epoch, 1, &a, &err), RC_FORBIDDEN);
  for (int g = 1; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM rounds WHERE groups_preprocessed NOT NULL"), 0);
}

/* Steps of one group: group 1's pass is done first, and its step is the second all the same. */
static void a_step_has_its_groups_whatever_passes_are_done(void **state) {
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p;
  char order[FAKE_ORDER];
  struct fake_server s = begin(f, KL_RUN(",\"update\":\"minibatch\",\"groups_per_step\":1"), leases);
  join(f, &p, "pre-1");
  f->clock_stands = true;
  answer_lease(f, &s, &leases[1]);
  time_passes(f, 10);
  answer_lease(f, &s, &leases[0]);
  const struct pass_answer a = asked(f, &p, 2);
  assert_int_equal(a.pass_count, 2);
  assert_non_null(strstr(a.passes[0].group.id, "r1.0.0")); /* the first step's comes first */
  put_well(f, &p, &a.passes[1]);
  answer_lease(f, &s, &leases[2]);
  driver_has_looked(f);
  driver_has_looked(f);
  assert_int_equal(trained_on(f), 0);
  put_well(f, &p, &a.passes[0]);
  completes_with(f, 2);
  fake_trainer_order(&f->trainer, order);
  assert_non_null(strstr(order, "b0[0] s0[0]"));
  assert_non_null(strstr(order, "b1[1] s1[1]"));
}

/* ---- a poll that waits ---- */

struct waiting_ask {
  struct fixture *f;
  const struct preprocessor *p;
  pthread_t thread;
  struct arena arena;
  struct pass_answer answer;
  enum rc rc;
};

static void *ask_and_wait(void *context) {
  struct waiting_ask *w = context;
  struct http_client *http = NULL;
  struct err err;
  if ((w->rc = http_client_create(&http, NULL, NULL, &err)) != RC_OK) return NULL;
  const struct coordinator_client client = {.http = http, .base_url = w->f->url};
  const struct pass_request m = {.epoch = w->p->is.epoch, .groups_max = 1, .wait_ms = 60000};
  w->rc = coordinator_passes(&client, w->p->is.worker_id, &m, &w->answer, &w->arena, DEADLINE_MS, &err);
  http_client_destroy(http);
  return NULL;
}

/* In front of it a server waits that has nothing to do.  The preprocessor has not reported yet. */
static void a_waiting_poll_has_the_pass_with_the_groups_last_sample(void **state) {
  static struct waiting_poll server;
  static struct waiting_ask waits;
  struct fixture *f = *state;
  struct lease leases[GROUPS];
  struct preprocessor p;
  struct fake_server s = begin(f, KL_RUN(""), leases);
  join_as(f, &p, "pre-1", WORKER_INVARIANT, WORKER_CPU);
  f->clock_stands = true;
  wait_for_leases(&server, f, &s, 1, 30000);
  waits = (struct waiting_ask){.f = f, .p = &p, .arena = ARENA_INIT};
  assert_int_equal(pthread_create(&waits.thread, NULL, ask_and_wait, &waits), 0);
  wait_metric(f, "leasehold_waiting_polls", 2);
  answer_lease(f, &s, &leases[2]);
  pthread_join(waits.thread, NULL);
  assert_int_equal(waits.rc, RC_OK);
  assert_int_equal(waits.answer.pass_count, 1);
  assert_string_equal(waits.answer.passes[0].group.id, "r1.0.2");
  put_well(f, &p, &waits.answer.passes[0]);
  arena_free(&waits.arena);
  for (int g = 0; g < 2; g++) answer_lease(f, &s, &leases[g]);
  completes_with(f, 1);
  time_passes(f, 31000);
  pthread_join(server.thread, NULL);
  arena_free(&server.arena);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
  const struct CMUnitTest tests[] = {
      T(what_a_preprocessor_computes_comes_with_the_batch),
      T(a_pass_under_way_is_waited_for_and_a_late_one_is_not),
      T(a_lost_pass_goes_to_another_under_a_higher_fence),
      T(a_result_that_is_not_of_this_pass_is_refused),
      T(nobody_waits_for_one_that_does_not_hold_the_reference),
      T(a_pass_that_is_handed_back_goes_to_others_and_a_refused_one_to_the_trainer),
      T(passes_are_renewed_by_heartbeats_or_given_to_others),
      T(after_a_restart_passes_wait_again),
      T(passes_are_for_preprocessors_of_runs_with_a_kl_term),
      T(a_step_has_its_groups_whatever_passes_are_done),
      T(a_waiting_poll_has_the_pass_with_the_groups_last_sample),
  };
  return cmocka_run_group_tests_name("coordinator/pass_life", tests, NULL, NULL);
}
