/* The life of a lease over real HTTP. What would break: a result is accepted twice, late, from somebody else, of other
 * weights or of another epoch (I2, I3, I9); samples are lost with their holder; tokens that were handed back are not
 * continued; a lease is granted again and again to a server that cannot run it; a waiting poll is not woken, or never
 * ends. */
#include "common/http/status.h"
#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/fault.h"

#define ONE_RUN GRPO(2, "}")

enum { TTL_MS = 10000, POLL_MS = 10000 };

static struct lease begin(struct fixture *f, struct fake_server *s, int slots) {
  struct lease_answer a;
  post_run(f, ONE_RUN);
  register_server(f, s, "gen-1");
  poll_leases(f, s, slots, &a);
  return a.leases[0];
}

static void a_lease_says_all_that_sampling_needs(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct digest expected;
  struct lease l = begin(f, &s, 3);
  assert_string_equal(l.id, "r1.0.0.0-2");
  assert_string_equal(l.run, "r1");
  assert_string_equal(l.group, "r1.0.0");
  assert_int_equal(l.purpose, LEASE_TRAINING);
  assert_int_equal(l.fence, 1);
  assert_int_equal(l.sample_count, 3);
  assert_int_equal(l.version_min, 0);
  assert_int_equal(l.version_max, 0);
  assert_int_equal(l.seed, 3);
  assert_int_equal(l.max_new_tokens, 8);
  assert_int_equal(l.stop_token_ids.count, 1);
  assert_int_equal(l.stop_token_ids.items[0], EOS);
  assert_int_equal(l.prompt_ids.count, 4); /* "0+0=" */
  assert_int_equal(l.prompt_ids.items[0], '0');
  assert_true(l.temperature == 1.0f);
  fake_digest(&expected, "r1", 0);
  assert_true(digest_equal(&expected, &l.weights_digest));
}

static void a_server_with_other_weights_is_told_at_once_and_gets_nothing(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  post_run(f, ONE_RUN);
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  const struct lease_request patient = {.epoch = s.is.epoch,
                                        .slots_free = 8,
                                        .wait_ms = POLL_MS,
                                        .has_loaded = true}; /* weights that no version has: all zeros */
  f->clock_stands = true;                                    /* so that the poll cannot end by its own wait */
  assert_int_equal(coordinator_leases(&f->client, s.is.worker_id, &patient, &a, &f->arena, DEADLINE_MS, &err), RC_OK);
  assert_int_equal(a.lease_count, 0);
  assert_true(a.current.has);
  assert_int_equal(a.current.version, 0);
  assert_string_equal(a.current.trainer_url, f->trainer.url);
}

static void a_repeated_result_is_fine_and_another_one_is_nondeterminism(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  bool repeated = true;
  struct lease l = begin(f, &s, 4);
  struct lease_result r = make_result(f, &s, &l);
  assert_int_equal(put_result(f, &l, &r, &repeated, &err), RC_OK);
  assert_false(repeated);
  assert_int_equal(put_result(f, &l, &r, &repeated, &err), RC_OK);
  assert_true(repeated);
  r.samples[1].logprobs.items[0] *= 2;
  assert_int_equal(put_result(f, &l, &r, &repeated, &err), RC_CONFLICT);
  assert_int_equal(
      read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'nondeterminism' AND subject = 'r1.0.0.0-3'"), 1);
  struct json *run = get_run(f, "r1");
  assert_int_equal(get_int(run, "totals", "results_refused"), 1);
  json_free(run);
}

/* As people send it: JSON without headers, so that the writer judges it. */
static enum rc put_by_hand(struct fixture *f, const struct lease *l, const struct lease_result *r, struct err *err) {
  char path[LIMIT_NAME_MAX + 32];
  struct buf body = BUF_INIT;
  struct json *answer = NULL;
  snprintf(path, sizeof path, "/v1/leases/%s/result", l->id);
  lease_result_encode(r, &body);
  const enum rc rc = http_rc_of_status(call(f, "PUT", path, body.data, &answer));
  const struct json *error = json_get(answer, "error");
  if (error)
    err_set(err, rc, json_string(json_get(error, "field"), NULL), "%s", json_string(json_get(error, "message"), NULL));
  json_free(answer);
  buf_free(&body);
  return rc;
}

static void expect_refused(struct fixture *f, const struct lease *l, const struct lease_result *r, enum rc expected,
                           const char *field) {
  struct err err = {0}, by_hand = {0};
  if (put_by_hand(f, l, r, &by_hand) != expected)
    fail_msg("without headers: expected %s, got %s", rc_name(expected), by_hand.message);
  if (field && !strstr(by_hand.field, field)) fail_msg("without headers: expected %s, got %s", field, by_hand.field);
  enum rc rc = put_result(f, l, r, NULL, &err);
  if (rc != expected) fail_msg("expected %s, got %s: %s", rc_name(expected), rc_name(rc), err.message);
  if (field && !strstr(err.field, field)) fail_msg("expected field %s, got %s: %s", field, err.field, err.message);
}

static void a_result_that_does_not_fit_its_lease_is_refused(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other;
  struct lease l = begin(f, &s, 4), unknown = l;
  register_server(f, &other, "gen-2");
  struct lease_result r = make_result(f, &s, &l);
  unknown.id = "r1.0.0.0-9";
  expect_refused(f, &unknown, &r, RC_NOT_FOUND, NULL);
  r.worker_id = other.is.worker_id;
  expect_refused(f, &l, &r, RC_FORBIDDEN, "worker_id");
  r = make_result(f, &s, &l);
  r.fence = 2;
  expect_refused(f, &l, &r, RC_CONFLICT, "fence");
  r = make_result(f, &s, &l);
  r.epoch++;
  expect_refused(f, &l, &r, RC_CONFLICT, "epoch");
  r = make_result(f, &s, &l);
  r.loaded_digest.bytes[0] ^= 1;
  expect_refused(f, &l, &r, RC_CONFLICT, "loaded_digest");
  r = make_result(f, &s, &l);
  r.samples[2].spans[0].version = 1;
  expect_refused(f, &l, &r, RC_CONFLICT, "spans");
  r = make_result(f, &s, &l);
  r.samples[0].token_ids.items[0] = 272; /* the vocabulary's size */
  expect_refused(f, &l, &r, RC_INVALID, "token_ids");
  r = make_result(f, &s, &l);
  r.samples[0].token_ids.items[0] = EOS; /* goes on after the end */
  expect_refused(f, &l, &r, RC_INVALID, "token_ids");
  r = make_result(f, &s, &l);
  r.samples[0].finish = FINISH_LENGTH; /* after 3 of 8 */
  expect_refused(f, &l, &r, RC_INVALID, "finish");
  r = make_result(f, &s, &l);
  r.samples[0].finish = FINISH_ABORT; /* not handed back */
  expect_refused(f, &l, &r, RC_INVALID, "finish");
  r = make_result(f, &s, &l);
  r.sample_count = 3;
  expect_refused(f, &l, &r, RC_INVALID, "samples");
  r = make_result(f, &s, &l);
  r.samples[3].sample = 0; /* twice */
  expect_refused(f, &l, &r, RC_INVALID, "sample");
  r = make_result(f, &s, &l);
  r.samples[3].sample = 4; /* one that the lease does not hold */
  expect_refused(f, &l, &r, RC_INVALID, "samples.sample");
  r = make_result(f, &s, &l);
  assert_int_equal(put_result(f, &l, &r, NULL, NULL), RC_OK); /* the refused results have changed nothing */
}

static void shorten(struct sample_result *s, size_t tokens) {
  s->token_ids.count = s->logprobs.count = tokens;
  s->segments[0].count = s->spans[0].count = (int32_t)tokens;
}

/* With stop texts a sample ends with the token that completes one: neither before nor after, and handed back as
 * well. */
static void a_sample_ends_with_the_token_that_completes_a_stop_text(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err = {0};
  post_run(f,
           "{\"rounds\":2,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,"
           "\"groups_per_round\":3,"
           "\"samples_per_group\":4,\"sampling\":{\"max_new_tokens\":8,\"top_p\":0.75,\"stop\":[\"34\",\"absent\"]},"
           "\"training\":{\"objective\":\"grpo\"}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 4, &a);
  struct lease l = a.leases[0];
  assert_int_equal(l.stop.count, 2);
  assert_string_equal(l.stop.items[0], "34");
  assert_true(l.cut.top_p == 0.75 && l.cut.top_k == 0 && l.cut.min_p == 0);
  struct lease_result r = make_result_of_length(f, &s, &l, 5, FINISH_STOP); /* "01234" "12345" "23456" "34567" */
  expect_refused(f, &l, &r, RC_INVALID, "token_ids");                       /* the second goes on */
  for (int i = 0; i < 4; i++) shorten(&r.samples[i], (size_t)(5 - i));
  shorten(&r.samples[3], 1);
  expect_refused(f, &l, &r, RC_INVALID, "finish"); /* the last has not stopped */
  shorten(&r.samples[3], 2);
  r.handed_back = true;
  for (int i = 0; i < 4; i++) r.samples[i].finish = FINISH_ABORT;
  shorten(&r.samples[0], 4);
  if (put_result(f, &l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE group_ordinal = 0 AND state = 2 AND finish = 0"), 3);
  poll_leases(f, &s, 1, &a); /* "0123" waits to be continued */
  assert_int_equal(a.leases[0].sample_first, 0);
  assert_int_equal(a.leases[0].partials[0].token_ids.count, 4);
  r = make_result_of_length(f, &s, &a.leases[0], 5, FINISH_STOP);
  if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
}

static void samples_of_a_lost_worker_are_issued_again_with_a_higher_fence(void **state) {
  struct fixture *f = *state;
  struct fake_server s, again;
  struct lease_answer a;
  struct lease l = begin(f, &s, 4);
  struct lease_result late = make_result(f, &s, &l);
  register_server(f, &again, "gen-1"); /* a new incarnation */
  expect_refused(f, &l, &late, RC_CONFLICT, "fence");
  poll_leases(f, &again, 4, &a);
  assert_string_equal(a.leases[0].id, l.id);
  assert_int_equal(a.leases[0].fence, 2);
  late.fence = 2; /* a forged fence does not help: it is not the old worker's lease */
  expect_refused(f, &l, &late, RC_FORBIDDEN, NULL);
  struct err err;
  struct lease_answer gone;
  assert_int_equal(poll_once(f, &s, 4, &gone, &err), RC_NOT_FOUND); /* the old incarnation must register */
}

/* A poll of one who has found so many leases in answers; -1: who does not say. */
static size_t polled(struct fixture *f, const struct fake_server *s, int slots, int64_t taken,
                     struct lease_answer *out) {
  struct err err = {0};
  const struct lease_request m = {.epoch = s->is.epoch,
                                  .slots_free = slots,
                                  .has_loaded = true,
                                  .loaded_digest = s->loaded,
                                  .has_taken = taken >= 0,
                                  .leases_taken = taken};
  if (coordinator_leases(&f->client, s->is.worker_id, &m, out, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
  return out->lease_count;
}

static void leases_of_a_lost_answer_are_granted_at_once_and_no_others(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct lease first = begin(f, &s, 3), second;
  char lost[LIMIT_NAME_MAX];
  struct err err;
  time_passes(f, 5);
  assert_int_equal(polled(f, &s, 1, 1, &a), 1);
  second = a.leases[0];
  assert_int_equal(second.fence, 1);
  snprintf(lost, sizeof lost, "%s", second.id);
  time_passes(f, 5);
  assert_int_equal(polled(f, &s, 1, 1, &a), 1);
  assert_string_equal(a.leases[0].id, lost);
  assert_int_equal(a.leases[0].fence, 2);
  struct lease_result r = make_result(f, &s, &second);
  assert_int_equal(put_result(f, &second, &r, NULL, &err), RC_CONFLICT);
  /* It has them now, and another says nothing: all are held. */
  time_passes(f, 5);
  polled(f, &s, 1, 2, &a);
  polled(f, &s, 1, -1, &a);
  r = make_result(f, &s, &first);
  assert_int_equal(put_result(f, &first, &r, NULL, &err), RC_OK);
  assert_int_equal(read_int(f, "SELECT count(*) FROM leases WHERE state = 3"), 1);
}

static void an_expired_lease_is_gone(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  f->options.lease_ttl_ms = TTL_MS;
  f->clock_stands = true;
  coordinator_restart(f);
  struct lease l = begin(f, &s, 4);
  struct lease_result late = make_result(f, &s, &l);
  time_passes(f, TTL_MS);
  expect_refused(f, &l, &late, RC_GONE, NULL);
  poll_leases(f, &s, 4, &a);
  assert_int_equal(a.leases[0].fence, 2);
}

static void heartbeats_renew_leases_and_name_the_lost(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err;
  f->options.lease_ttl_ms = TTL_MS;
  f->clock_stands = true;
  coordinator_restart(f);
  struct lease l = begin(f, &s, 4);
  struct lease_ref held[] = {{l.id, l.fence}, {"r1.0.2.0-3", 1}};
  struct worker_heartbeat m = {.epoch = s.is.epoch,
                               .ready = true,
                               .has_loaded = true,
                               .loaded_digest = s.loaded,
                               .leases = held,
                               .lease_count = 2};
  struct worker_heartbeat_answer answer;
  for (int i = 0; i < 5; i++) {
    time_passes(f, TTL_MS - 1);
    assert_int_equal(coordinator_heartbeat(&f->client, s.is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err),
                     RC_OK);
    assert_int_equal(answer.lost_count, 1);
    assert_string_equal(answer.lost[0], "r1.0.2.0-3");
    assert_true(answer.current.has);
  }
  struct lease_result r = make_result(f, &s, &l);
  assert_int_equal(put_result(f, &l, &r, NULL, &err), RC_OK); /* five times its time to live later */
  m.epoch++;
  assert_int_equal(coordinator_heartbeat(&f->client, s.is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err),
                   RC_CONFLICT);
}

/* To another server, with a higher fence. */
static void expect_issued_again(struct fixture *f, const struct lease *l) {
  struct fake_server other;
  struct lease_answer a;
  register_server(f, &other, "gen-2");
  poll_leases(f, &other, 4, &a);
  assert_string_equal(a.leases[0].id, l->id);
  assert_int_equal(a.leases[0].fence, 2);
}

static void a_silent_worker_is_gone(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  f->options.worker_ttl_ms = TTL_MS;
  f->clock_stands = true;
  coordinator_restart(f);
  struct lease l = begin(f, &s, 4);
  struct lease_result late = make_result(f, &s, &l);
  time_passes(f, TTL_MS);
  assert_int_equal(read_int(f, "SELECT count(*) FROM workers WHERE live = 1"), 2);
  time_passes(f, 1);
  expect_refused(f, &l, &late, RC_CONFLICT, "fence");
  assert_int_equal(poll_once(f, &s, 4, &a, &err), RC_NOT_FOUND);
  register_trainer(f); /* it went silent, too */
  expect_issued_again(f, &l);
}

/* A server that stops may have been granted leases by a poll whose answer it did not wait for. */
static void a_worker_that_leaves_holds_nothing_any_more(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err;
  struct lease l = begin(f, &s, 4);
  struct lease_result late = make_result(f, &s, &l);
  if (coordinator_leave(&f->client, s.is.worker_id, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(read_int(f, "SELECT count(*) FROM leases WHERE state = 0"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM workers WHERE live = 1 AND kind = 0"), 0);
  expect_refused(f, &l, &late, RC_CONFLICT, "fence");
  assert_int_equal(poll_once(f, &s, 4, &a, &err), RC_NOT_FOUND);
  assert_int_equal(coordinator_leave(&f->client, s.is.worker_id, DEADLINE_MS, &err), RC_NOT_FOUND);
  expect_issued_again(f, &l);
}

static void tokens_handed_back_are_continued(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other;
  struct lease_answer a;
  struct err err;
  struct lease l = begin(f, &s, 4);
  struct lease_result r = make_result(f, &s, &l);
  r.handed_back = true;
  for (int i = 1; i < 4; i++) { /* one is complete, three are not */
    r.samples[i].token_ids.count = r.samples[i].logprobs.count = 2;
    r.samples[i].segments[0].count = r.samples[i].spans[0].count = 2;
    r.samples[i].finish = FINISH_ABORT;
  }
  assert_int_equal(put_result(f, &l, &r, NULL, &err), RC_OK);
  register_server(f, &other, "gen-2");
  poll_leases(f, &other, 4, &a);
  assert_string_equal(a.leases[0].id, "r1.0.0.1-3");
  assert_int_equal(a.leases[0].fence, 2);
  assert_int_equal(a.leases[0].partial_count, 3);
  assert_int_equal(a.leases[0].partials[0].sample, 1);
  assert_int_equal(a.leases[0].partials[0].token_ids.count, 2);
  assert_int_equal(a.leases[0].partials[0].token_ids.items[0], '#');
  assert_true(a.leases[0].partials[0].logprobs.items[0] == fake_logprob('#'));
  struct lease_result rest = make_result(f, &other, &a.leases[0]);
  assert_int_equal(put_result(f, &a.leases[0], &rest, NULL, &err), RC_OK);
}

/* Hands the lease back untouched: this server can never run it. */
static struct lease_result refusal(struct fixture *f, const struct fake_server *s, const struct lease *l) {
  struct lease_result r = make_result(f, s, l);
  r.handed_back = true;
  r.refused = "4 prompt tokens and 8 new tokens exceed this server's context of 8 tokens";
  for (int i = 0; i < l->sample_count; i++) {
    r.samples[i].token_ids.count = r.samples[i].logprobs.count = 0;
    r.samples[i].segment_count = r.samples[i].span_count = 0;
    r.samples[i].finish = FINISH_ABORT;
  }
  return r;
}

static void a_lease_that_a_server_can_never_run_goes_to_another_and_never_to_it_again(void **state) {
  struct fixture *f = *state;
  struct fake_server s, again;
  struct lease_answer a;
  struct err err = {0};
  struct lease l = begin(f, &s, 4);
  struct lease_result r = refusal(f, &s, &l);
  r.handed_back = false;
  expect_refused(f, &l, &r, RC_INVALID, NULL);
  r.handed_back = true;
  if (put_result(f, &l, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  for (int i = 0; i < 3; i++) { /* nor any other lease of this length */
    assert_int_equal(poll_once(f, &s, 64, &a, &err), RC_OK);
    assert_int_equal(a.lease_count, 0);
  }
  assert_int_equal(read_int(f,
                            "SELECT count(*) FROM incidents WHERE kind = 'lease_refused' AND subject = 'r1.0.0.0-3' "
                            "AND detail LIKE '%12 positions or more: 4 prompt%'"),
                   1);
  expect_issued_again(f, &l);
  register_server(f, &again, "gen-1"); /* another incarnation may have a larger pool */
  poll_leases(f, &again, 64, &a);
  assert_true(a.lease_count > 0);
}

static void rows_of_an_earlier_holder_do_not_outlive_a_plain_result(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other;
  struct lease_answer a;
  struct err err = {0};
  struct sample_segment parts[2] = {{0, 1, false}, {1, 1, true}};
  struct lease l = begin(f, &s, 4);
  struct lease_result r = make_result(f, &s, &l);
  r.handed_back = true;
  for (int i = 0; i < 4; i++) {
    r.samples[i].token_ids.count = r.samples[i].logprobs.count = 2;
    r.samples[i].segments = parts;
    r.samples[i].segment_count = 2;
    r.samples[i].spans[0].count = 2;
    r.samples[i].finish = FINISH_ABORT;
  }
  if (put_result(f, &l, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(read_int(f, "SELECT count(*) FROM segments"), 8);
  register_server(f, &other, "gen-2");
  poll_leases(f, &other, 4, &a);
  r = make_result(f, &other, &a.leases[0]);
  if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(read_int(f, "SELECT count(*) FROM segments"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM rollouts WHERE partial = 0 AND length(token_ids) = 6"), 4);
}

#ifdef LEASEHOLD_FAULTS
static const bool MUTANT = true;
static void set_fault(const char *name) { assert_int_equal(fault_set(coordinator_faults, name, NULL), RC_OK); }
#else
static const bool MUTANT = false;
static void set_fault(const char *name) { (void)name; }
#endif

/* The fault that the exactness tests must notice exists in builds with faults only. */
static void a_result_under_an_old_fence_is_accepted_by_the_mutant_only(void **state) {
  struct fixture *f = *state;
  struct fake_server s, other;
  struct lease_answer a;
  struct err err = {0};
  struct lease l = begin(f, &s, 4);
  struct lease_result late = make_result(f, &s, &l);
  register_server(f, &other, "gen-1"); /* what it held is lost */
  poll_leases(f, &other, 4, &a);
  assert_string_equal(a.leases[0].id, l.id);
  late.samples[2].token_ids.items[0] = '!';
  late.samples[2].logprobs.items[0] = fake_logprob('!');
  set_fault("no-fence-check");
  const enum rc rc = put_result(f, &l, &late, NULL, &err);
  set_fault("");
  assert_int_equal(rc, MUTANT ? RC_OK : RC_CONFLICT);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state <> 0"), MUTANT);
  assert_int_equal(read_int(f, "SELECT count(*) FROM rollouts WHERE hex(token_ids) LIKE '2100%'"), MUTANT);
  if (MUTANT) return;
  struct lease_result r = make_result(f, &other, &a.leases[0]);
  if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
}

static void other_weights_are_sampled_from_under_the_mutant_only(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err = {0};
  post_run(f, ONE_RUN);
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  s.has_loaded = true; /* weights that no version has: all zeros */
  set_fault("no-version-check");
  const enum rc polled = poll_once(f, &s, 4, &a, &err);
  assert_int_equal(polled, RC_OK);
  assert_int_equal(a.lease_count, MUTANT);
  if (MUTANT) {
    struct lease_result r = make_result(f, &s, &a.leases[0]);
    r.loaded_digest = (struct digest){0};
    for (int i = 0; i < 4; i++) r.samples[i].spans[0].version = 7;
    if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
    assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE version_first = 7 AND version_last = 7"), 4);
    assert_int_equal(read_int(f, "SELECT count(*) FROM spans WHERE version = 7"), 4);
  }
  set_fault("");
}

/* Grants all leases, stops the clock, and returns when the poll of another thread waits. */
static void begin_to_wait(struct waiting_poll *w, struct fixture *f, struct fake_server *s,
                          struct lease_answer *granted) {
  post_run(f, ONE_RUN);
  register_server(f, s, "gen-1");
  poll_leases(f, s, 64, granted);
  f->clock_stands = true;
  wait_for_leases(w, f, s, 4, POLL_MS);
}

static void a_waiting_poll_is_woken_by_a_new_version(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  static struct waiting_poll w; /* the thread may outlive a test that fails */
  begin_to_wait(&w, f, &s, &a);
  assert_int_equal(a.lease_count, 3);
  for (int i = 0; i < 3; i++) answer_lease(f, &s, &a.leases[i]); /* the round ends, version 1 comes */
  pthread_join(w.thread, NULL);
  assert_int_equal(w.rc, RC_OK);
  assert_true(w.answer.current.has);
  assert_int_equal(w.answer.current.version, 1);
  arena_free(&w.arena);
}

static void a_poll_is_answered_with_nothing_when_its_wait_is_over(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  static struct waiting_poll w; /* the thread may outlive a test that fails */
  begin_to_wait(&w, f, &s, &a);
  time_passes(f, POLL_MS - 1);
  assert_true(read_metric(f, "leasehold_waiting_polls") == 1);
  time_passes(f, 1);
  assert_true(read_metric(f, "leasehold_waiting_polls") == 0);
  pthread_join(w.thread, NULL);
  assert_int_equal(w.rc, RC_OK);
  assert_int_equal(w.answer.lease_count, 0);
  arena_free(&w.arena);
}

static void odd_requests_are_answered_with_a_sentence(void **state) {
  struct fixture *f = *state;
  struct json *answer;
  struct fake_server s;
  char path[64];
  register_server(f, &s, "gen-1");
  snprintf(path, sizeof path, "/v1/workers/%s/leases", s.is.worker_id);
  const char *const bodies[] = {"",
                                "{",
                                "[]",
                                "{}",
                                "{\"epoch\":1,\"slots_free\":0,\"wait_ms\":0}",
                                "{\"epoch\":1,\"slots_free\":1,\"wait_ms\":99999999}",
                                "{\"epoch\":1,\"slots_free\":1,\"wait_ms\":0,\"extra\":1}",
                                "{\"epoch\":1,\"epoch\":1,\"slots_free\":1,\"wait_ms\":0}"};
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
    assert_int_equal(call(f, "POST", path, bodies[i], &answer), 422);
    assert_non_null(json_get(json_get(answer, "error"), "message"));
    json_free(answer);
  }
  assert_int_equal(call(f, "POST", "/v1/workers/w99/leases", "{\"epoch\":1,\"slots_free\":1,\"wait_ms\":0}", &answer),
                   404);
  json_free(answer);
  assert_int_equal(call(f, "POST", "/v1/workers",
                        "{\"name\":\"a b\",\"kind\":\"generation\",\"url\":\"http://x:1\",\"slots\":1}", &answer),
                   422);
  json_free(answer);
  assert_int_equal(call(f, "POST", "/v1/workers",
                        "{\"name\":\"a\",\"kind\":\"generation\",\"url\":\"ftp://x\",\"slots\":1}", &answer),
                   422);
  json_free(answer);
  assert_int_equal(call(f, "POST", "/v1/workers",
                        "{\"name\":\"a\",\"kind\":\"generation\",\"url\":\"http://x:1\",\"slots\":0}", &answer),
                   422);
  json_free(answer);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_lease_says_all_that_sampling_needs),
      CASE(a_server_with_other_weights_is_told_at_once_and_gets_nothing),
      CASE(a_repeated_result_is_fine_and_another_one_is_nondeterminism),
      CASE(a_result_that_does_not_fit_its_lease_is_refused),
      CASE(a_sample_ends_with_the_token_that_completes_a_stop_text),
      CASE(samples_of_a_lost_worker_are_issued_again_with_a_higher_fence),
      CASE(leases_of_a_lost_answer_are_granted_at_once_and_no_others),
      CASE(an_expired_lease_is_gone),
      CASE(heartbeats_renew_leases_and_name_the_lost),
      CASE(a_silent_worker_is_gone),
      CASE(a_worker_that_leaves_holds_nothing_any_more),
      CASE(tokens_handed_back_are_continued),
      CASE(a_lease_that_a_server_can_never_run_goes_to_another_and_never_to_it_again),
      CASE(rows_of_an_earlier_holder_do_not_outlive_a_plain_result),
      CASE(a_result_under_an_old_fence_is_accepted_by_the_mutant_only),
      CASE(other_weights_are_sampled_from_under_the_mutant_only),
      CASE(a_waiting_poll_is_woken_by_a_new_version),
      CASE(a_poll_is_answered_with_nothing_when_its_wait_is_over),
      CASE(odd_requests_are_answered_with_a_sentence),
  };
  return cmocka_run_group_tests_name("coordinator/lease_life", tests, NULL, NULL);
}
