/* What goes to a server that holds an earlier version: the changes since then, over several versions too; and the whole
 * version where nothing is known of it, where it refuses them, or where they are gone.  Whatever went, the server has
 * the step's digest. */
#include "services/trainer-server/publish/server_bases.h"
#include "tests/unit/trainer-server/peers.h"

enum { SERVERS = 2 };

static struct arena arena;

/* --- the history by itself --- */

static struct digest named(int version) { return (struct digest){.bytes = {(uint8_t)version}}; }

static void add(struct change_history *h, int base, int made, size_t bytes, size_t bytes_max) {
  const struct digest from = named(base), to = named(made);
  struct buf b = BUF_INIT;
  for (size_t i = 0; i < bytes; i++) buf_append(&b, "x", 1);
  change_history_add(h, &b, &from, &to, bytes_max);
  assert_null(b.data);
}

/* How many links lead from base to made; they are held meanwhile. */
static size_t way(struct change_history *h, int base, int made) {
  struct change_link *links[CHANGES_LINKS_MAX];
  const struct digest from = named(base), to = named(made);
  const size_t count = change_history_find(h, &from, &to, links);
  for (size_t i = 0; i < count; i++) {
    assert_true(digest_equal(i ? &links[i - 1]->made : &from, &links[i]->base));
    assert_int_equal(links[i]->bytes.data[0], 'x');
  }
  if (count) assert_true(digest_equal(&links[count - 1]->made, &to));
  change_links_release(links, count);
  return count;
}

static void links_lead_from_one_version_to_another(void **state) {
  (void)state;
  struct change_history h;
  change_history_init(&h);
  assert_int_equal(way(&h, 1, 2), 0);
  for (int v = 1; v <= 4; v++) add(&h, v, v + 1, 10, 1000);
  assert_int_equal(way(&h, 1, 5), 4);
  assert_int_equal(way(&h, 4, 5), 1);
  assert_int_equal(way(&h, 1, 3), 2); /* an older version that is still pushed */
  assert_int_equal(way(&h, 5, 1), 0);
  assert_int_equal(way(&h, 9, 5), 0);
  add(&h, 5, 5, 10, 1000); /* a step that changed nothing */
  assert_int_equal(way(&h, 5, 5), 1);
  add(&h, 5, 6, 10, 1000);
  assert_int_equal(way(&h, 4, 6), 2);
  add(&h, 7, 8, 10, 1000); /* nothing leads to 7 */
  assert_int_equal(way(&h, 6, 8), 0);
  change_history_free(&h);
}

static void the_oldest_links_are_dropped(void **state) {
  (void)state;
  struct change_history h;
  struct change_link *held[CHANGES_LINKS_MAX];
  const struct digest first = named(1), second = named(2);
  change_history_init(&h);
  for (int v = 1; v <= 3; v++) add(&h, v, v + 1, 30, 100);
  assert_int_equal(way(&h, 1, 4), 3);
  assert_int_equal(change_history_find(&h, &first, &second, held), 1);
  add(&h, 4, 5, 30, 100);
  assert_int_equal(way(&h, 1, 5), 0);
  assert_int_equal(way(&h, 2, 5), 3);
  assert_int_equal(held[0]->bytes.len, 30); /* while it is being sent */
  change_links_release(held, 1);
  add(&h, 5, 6, 101, 100);
  assert_int_equal(h.count, 0);
  for (int v = 1; v <= CHANGES_LINKS_MAX + 3; v++) add(&h, v, v + 1, 1, 100);
  assert_int_equal(h.count, CHANGES_LINKS_MAX);
  assert_int_equal(way(&h, 3, CHANGES_LINKS_MAX + 4), 0);
  assert_int_equal(way(&h, 4, CHANGES_LINKS_MAX + 4), CHANGES_LINKS_MAX);
  change_history_trim(&h, 3); /* what is being made takes the rest */
  assert_int_equal(h.count, 3);
  assert_int_equal(way(&h, CHANGES_LINKS_MAX + 1, CHANGES_LINKS_MAX + 4), 3);
  change_history_free(&h);
}

static void bases_are_noted_by_worker(void **state) {
  (void)state;
  struct server_bases b;
  struct digest got;
  char name[16];
  server_bases_init(&b);
  assert_false(server_bases_find(&b, "w1", &got));
  server_bases_note(&b, "w1", NULL);
  for (int i = 1; i <= 200; i++) {
    const struct digest d = named(i);
    snprintf(name, sizeof name, "w%d", i);
    server_bases_note(&b, name, &d);
  }
  for (int i = 1; i <= 200; i += 2) {
    snprintf(name, sizeof name, "w%d", i);
    server_bases_note(&b, name, NULL);
  }
  for (int i = 1; i <= 200; i++) {
    snprintf(name, sizeof name, "w%d", i);
    const struct digest d = named(i);
    assert_true(server_bases_find(&b, name, &got) == (i % 2 == 0));
    if (i % 2 == 0) assert_true(digest_equal(&got, &d));
  }
  const struct digest later = named(99);
  server_bases_note(&b, "w2", &later);
  assert_true(server_bases_find(&b, "w2", &got) && digest_equal(&got, &later));
  server_bases_free(&b);
}

/* --- pushes --- */

struct push_pool {
  struct rig g;
  struct fake_coordinator coordinator;
  struct fake_generation servers[SERVERS];
  struct push_target targets[SERVERS];
  int64_t version;
  struct digest digest;
};

static void begin(struct push_pool *p, double lr) {
  static const char *const names[SERVERS] = {"w1", "w2"};
  struct open_run_answer opened;
  struct open_run run = run_request("r1");
  run.training.lr = lr;
  memset(p, 0, sizeof *p);
  fake_coordinator_start(&p->coordinator);
  rig_make(&p->g, p->coordinator.url);
  rig_start(&p->g);
  publisher_set_worker(p->g.publisher, "w9");
  rig_open(&p->g, &run, &opened);
  for (int i = 0; i < SERVERS; i++) {
    fake_generation_start(&p->servers[i], p->g.model_dir, false);
    p->targets[i] = (struct push_target){.worker_id = names[i], .url = p->servers[i].url};
  }
}

static void end(struct push_pool *p) {
  rig_end(&p->g);
  for (int i = 0; i < SERVERS; i++) fake_generation_stop(&p->servers[i]);
  fake_coordinator_stop(&p->coordinator);
}

/* A step whose version goes to the first `count` servers, which all have it then. */
static void round_to(struct push_pool *p, size_t count) {
  struct batch_status batch;
  struct step_status step;
  char batch_id[32], id[32];
  struct batch_group group = group_make(&arena, "g", 3, (uint32_t)p->version + 70);
  snprintf(batch_id, sizeof batch_id, "r1.%d.b0", (int)p->version);
  snprintf(id, sizeof id, "r1.%d", (int)p->version);
  rig_batch(&p->g, "r1", batch_id, p->version, &group, 1, &batch, &arena);
  if (batch.state != JOB_DONE) fail_msg("%s: %s", batch_id, batch.error.message);
  struct submit_step m = step_request("r1", id, p->version, &group, 1, &arena);
  m.push_to = p->targets;
  m.push_count = count;
  m.stage_timeout_ms = WAIT_MS;
  rig_step(&p->g, &m, &step, &arena);
  if (step.state != JOB_DONE) fail_msg("%s: %s", id, step.error.message);
  assert_int_equal(step.version, ++p->version);
  assert_int_equal(step.push_count, count);
  for (size_t i = 0; i < count; i++) {
    assert_true(step.pushes[i].staged && step.pushes[i].way == PUSH_HTTP);
    assert_true(digest_equal(&p->servers[i].digest, &step.digest));
  }
  p->digest = step.digest;
}

static void a_server_that_holds_a_version_gets_what_changed(void **state) {
  (void)state;
  struct push_pool p;
  begin(&p, 1e-6);
  round_to(&p, 2);
  const size_t whole = p.servers[0].bytes;
  assert_int_equal(p.servers[0].changes, 0);
  struct digest before = p.digest;
  for (int v = 1; v <= 3; v++) {
    round_to(&p, 2);
    assert_false(digest_equal(&p.digest, &before));
    before = p.digest;
    for (int i = 0; i < SERVERS; i++) {
      assert_int_equal(p.servers[i].changes, v);
      assert_true(p.servers[i].bytes < whole / 4);
    }
  }
  assert_true(p.servers[0].refused == 0 && p.servers[1].refused == 0);
  expect(&p.g, "GET", "/metrics", NULL, 200, "leasehold_trainer_pushed_bytes_total{as=\"changes\"}");
  expect(&p.g, "GET", "/metrics", NULL, 200, "leasehold_trainer_changes_refused_total 0\n");
  end(&p);
}

/* Two versions went to the other one only: it is sent the links of three. */
static void a_server_that_skipped_versions_gets_all_links(void **state) {
  (void)state;
  struct push_pool p;
  begin(&p, 1e-6);
  round_to(&p, 2);
  round_to(&p, 1);
  round_to(&p, 1);
  assert_int_equal(p.servers[1].pushes, 1);
  round_to(&p, 2);
  assert_true(p.servers[1].pushes == 2 && p.servers[1].changes == 1 && p.servers[1].refused == 0);
  assert_true(p.servers[1].bytes > p.servers[0].bytes);
  end(&p);
}

static void a_server_that_was_started_again_gets_it_whole(void **state) {
  (void)state;
  struct push_pool p;
  begin(&p, 1e-6);
  round_to(&p, 1);
  round_to(&p, 1);
  assert_true(p.servers[0].changes == 1);
  p.targets[0].worker_id = "w3"; /* as the coordinator names it then */
  round_to(&p, 1);
  assert_true(p.servers[0].changes == 1 && p.servers[0].refused == 0);
  round_to(&p, 1);
  assert_true(p.servers[0].changes == 2);
  end(&p);
}

/* It has pulled another version meanwhile; or a bit of what it holds is not what it was. */
static void a_server_that_refuses_changes_gets_it_whole(void **state) {
  (void)state;
  struct push_pool p;
  begin(&p, 1e-6);
  round_to(&p, 2);
  p.servers[0].digest.bytes[3] ^= 1;
  ((uint16_t *)p.servers[1].served->matrices[2].data)[0] ^= 1;
  round_to(&p, 2);
  for (int i = 0; i < SERVERS; i++)
    assert_true(p.servers[i].refused == 1 && p.servers[i].changes == 0 && p.servers[i].pushes == 2);
  expect(&p.g, "GET", "/metrics", NULL, 200, "leasehold_trainer_changes_refused_total 2\n");
  round_to(&p, 2);
  for (int i = 0; i < SERVERS; i++) assert_true(p.servers[i].refused == 1 && p.servers[i].changes == 1);
  end(&p);
}

/* Where a step moves nearly all values by much, there is nothing to be saved. */
static void a_version_that_changed_much_goes_whole(void **state) {
  (void)state;
  struct push_pool p;
  begin(&p, 0.5);
  for (int v = 0; v < 3; v++) round_to(&p, 2);
  assert_true(p.servers[0].changes == 0 && p.servers[0].refused == 0 && p.servers[0].pushes == 3);
  end(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(links_lead_from_one_version_to_another),
      cmocka_unit_test(the_oldest_links_are_dropped),
      cmocka_unit_test(bases_are_noted_by_worker),
      cmocka_unit_test(a_server_that_holds_a_version_gets_what_changed),
      cmocka_unit_test(a_server_that_skipped_versions_gets_all_links),
      cmocka_unit_test(a_server_that_was_started_again_gets_it_whole),
      cmocka_unit_test(a_server_that_refuses_changes_gets_it_whole),
      cmocka_unit_test(a_version_that_changed_much_goes_whole),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  arena_free(&arena);
  return failed;
}
