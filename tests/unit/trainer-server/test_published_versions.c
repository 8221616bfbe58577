/* How many versions are in memory: a superseded one is sent to its end while the next one is current, no longer;
 * however many servers pull slowly while versions go on, there are no more than the plan says; and a version that is
 * still being pushed is waited for. */
#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "services/trainer-server/engine/memory.h"
#include "tests/unit/base/await.h"
#include "tests/unit/trainer-server/peers.h"

enum { READERS = 8, SLACK = 4 << 20, SMALL = 4096 };

/* About 8 MiB of weights: more than the kernel takes from the server for a peer that does not read. */
static const char large_config[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"hidden_act\":"
    "\"silu\",\"head_dim\":64,\"hidden_size\":512,\"intermediate_size\":1024,\"num_attention_heads\":4,"
    "\"num_hidden_layers\":1,\"num_key_value_heads\":2,\"vocab_size\":4096,\"max_position_embeddings\":32,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"initializer_range\":0.2,"
    "\"eos_token_id\":1,\"bos_token_id\":0}";

/* --- the blob by itself --- */

static struct weights_blob *blob_make(void) {
  struct weights_blob *b = NULL;
  struct err err = {0};
  assert_rc(RC_OK, weights_blob_create(&b, "r1", 3, &err), err);
  buf_puts(&b->bytes, "weights");
  b->len = b->bytes.len;
  return b;
}

static void a_reader_reads_on_until_its_version_is_shut(void **state) {
  (void)state;
  struct weights_blob *b = blob_make();
  char piece[4];
  weights_blob_read_begin(b);
  weights_blob_read_begin(b);
  weights_blob_keep(b); /* superseded */
  assert_int_equal(weights_blob_read(b, 0, piece, sizeof piece), 4);
  assert_memory_equal(piece, "weig", 4);
  assert_int_equal(weights_blob_read(b, 4, piece, sizeof piece), 3);
  assert_memory_equal(piece, "hts", 3);
  assert_int_equal(weights_blob_read(b, 7, piece, sizeof piece), 0);
  weights_blob_read_end(b);
  assert_non_null(b->bytes.data);
  assert_true(weights_blob_shut(b));
  assert_null(b->bytes.data); /* although a reader is left */
  assert_int_equal(weights_blob_read(b, 0, piece, sizeof piece), 0);
  weights_blob_forget(b);
  weights_blob_read_end(b);
}

/* A version in a scratch file: its pages leave memory and come back, it never outgrows the file, and a full disk or no
 * folder refuses it. */
static void a_mapped_version_leaves_memory_and_comes_back(void **state) {
  (void)state;
  enum { MOST = 1 << 16 };
  struct weights_blob *b = NULL;
  struct err err = {0};
  unsigned char there = 1;
  char piece[SMALL], part[64];
  assert_rc(RC_OK, weights_blob_create(&b, "r1", 3, &err), err);
  assert_int_equal(weights_blob_map(b, "/nowhere", MOST, &err), RC_IO);
  assert_rc(RC_OK, weights_blob_map(b, "/tmp", MOST, &err), err);
  for (int i = 0; i < MOST / (int)sizeof part - 1; i++) {
    memset(part, 'a' + i % 26, sizeof part);
    buf_append(&b->bytes, part, sizeof part);
  }
  b->len = b->bytes.len;
  const char *bytes = b->bytes.data;
  weights_blob_all_done(b);
  weights_blob_read_begin(b);
  for (size_t at = 0; at < b->len; at += sizeof piece) {
    const size_t n = weights_blob_read(b, at, piece, sizeof piece);
    for (size_t i = 0; i < n; i++) assert_int_equal(piece[i], 'a' + (int)((at + i) / sizeof part % 26));
  }
  weights_blob_read_end(b);
  buf_append(&b->bytes, part, sizeof part); /* it and a NUL have no room */
  assert_true(b->bytes.failed && b->bytes.data == bytes && b->bytes.len == b->len);
  weights_blob_release(b);
  assert_int_equal(mincore((void *)(uintptr_t)bytes, SMALL, &there), -1); /* not even mapped */
}

static void the_last_reader_frees_a_superseded_version(void **state) {
  (void)state;
  struct weights_blob *b = blob_make();
  weights_blob_read_begin(b);
  weights_blob_keep(b);
  assert_non_null(b->bytes.data);
  weights_blob_read_end(b);
  assert_null(b->bytes.data);
  weights_blob_forget(b);
}

static void a_holder_keeps_the_bytes_of_a_version_that_was_shut(void **state) {
  (void)state;
  struct weights_blob *b = blob_make();
  char piece[4];
  weights_blob_hold(b); /* the publisher */
  weights_blob_read_begin(b);
  weights_blob_keep(b);
  assert_false(weights_blob_shut(b));
  assert_int_equal(weights_blob_read(b, 0, piece, sizeof piece), 0);
  assert_memory_equal(b->bytes.data, "weights", 7);
  weights_blob_release(b);
  assert_null(b->bytes.data);
  assert_true(weights_blob_shut(b));
  weights_blob_forget(b);
  weights_blob_read_end(b);
}

/* A push in the background keeps the bytes, and no other version waits for it. */
static void a_pusher_keeps_the_bytes_and_is_not_waited_for(void **state) {
  (void)state;
  struct weights_blob *b = blob_make();
  weights_blob_push_begin(b);
  weights_blob_read_begin(b);
  weights_blob_keep(b);
  assert_true(weights_blob_shut(b));
  assert_memory_equal(b->bytes.data, "weights", 7);
  weights_blob_read_end(b);
  weights_blob_forget(b);
  assert_memory_equal(b->bytes.data, "weights", 7);
  weights_blob_push_end(b);
}

/* --- over HTTP --- */

/* Asks for a version and reads the answer's head; then it takes what it is told to take. */
struct reader {
  int fd;
  size_t expected, got; /* of the body */
};

static struct reader reader_begin(const struct rig *g, int version) {
  struct reader r = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
  const int small = SMALL;
  const struct timeval patience = {.tv_sec = WAIT_MS / 1000};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_server_port(g->server))};
  char text[1024];
  size_t len = 0;
  assert_true(r.fd >= 0);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_int_equal(setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  assert_int_equal(setsockopt(r.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  assert_int_equal(connect(r.fd, (struct sockaddr *)&to, sizeof to), 0);
  const int asked = snprintf(text, sizeof text, "GET /v1/weights/%d HTTP/1.1\r\nHost: x\r\n\r\n", version);
  assert_int_equal(write(r.fd, text, (size_t)asked), asked);
  do {
    assert_true(len + 1 < sizeof text);
    assert_int_equal(read(r.fd, text + len, 1), 1);
    text[++len] = 0;
  } while (len < 4 || memcmp(text + len - 4, "\r\n\r\n", 4) != 0);
  const char *length = strcasestr(text, "content-length:");
  if (strncmp(text, "HTTP/1.1 200", 12) != 0 || !length) fail_msg("version %d was answered %s", version, text);
  r.expected = strtoull(length + strlen("content-length:"), NULL, 10);
  return r;
}

/* Up to the end of the body, or of the connection; `bytes` may be NULL. */
static void reader_end(struct reader *r, struct buf *bytes) {
  char piece[SMALL];
  ssize_t count = 0;
  while (r->got < r->expected && (count = read(r->fd, piece, sizeof piece)) > 0) {
    if (bytes) buf_append(bytes, piece, (size_t)count);
    r->got += (size_t)count;
  }
  if (count < 0 && errno != ECONNRESET) fail_msg("reading weights: %s", strerror(errno));
  close(r->fd);
}

struct slow {
  struct rig g;
  size_t file_bytes, planned; /* of one version; of all that may be published */
  int64_t version;
};

static void slow_begin(struct slow *s) {
  struct parts parts;
  struct memory_plan plan;
  struct open_run_answer opened;
  struct open_run run = run_request("r1");
  *s = (struct slow){0};
  rig_make(&s->g, "");
  write_text(s->g.model_dir, "config.json", large_config);
  run.training.checkpoint_every = 1000;
  parts_make(&parts, s->g.model_dir);
  trainer_memory_plan(&plan, parts.model, &s->g.options);
  s->file_bytes = model_file_bytes(parts.model);
  for (int i = 0; i < plan.count; i++)
    if (strcmp(plan.parts[i].name, "published versions") == 0) s->planned = plan.parts[i].bytes;
  parts_free(&parts);
  assert_true(s->planned >= 2 * s->file_bytes);
  rig_start(&s->g);
  rig_open(&s->g, &run, &opened);
}

/* A step without groups: the same weights under the next version. */
static void slow_publish(struct slow *s) {
  struct arena arena = ARENA_INIT;
  struct step_status step;
  char id[32];
  snprintf(id, sizeof id, "r1.%d", (int)s->version);
  const struct submit_step m = step_request("r1", id, s->version, NULL, 0, &arena);
  rig_step(&s->g, &m, &step, &arena);
  if (step.state != JOB_DONE) fail_msg("step %s: %s", id, step.error.message);
  s->version = step.version;
  arena_free(&arena);
}

static void a_superseded_version_is_sent_to_its_end_and_an_older_one_is_not(void **state) {
  (void)state;
  struct slow s;
  struct buf slowly = BUF_INIT;
  slow_begin(&s);
  slow_publish(&s);
  struct http_answer at_once = call_raw(&s.g, "GET", "/v1/weights/1", NULL, 0);
  struct reader superseded = reader_begin(&s.g, 1), older = reader_begin(&s.g, 1);
  slow_publish(&s);
  reader_end(&superseded, &slowly);
  assert_int_equal(superseded.got, at_once.body.len);
  assert_memory_equal(slowly.data, at_once.body.data, at_once.body.len);
  slow_publish(&s);
  reader_end(&older, NULL);
  assert_int_equal(older.expected, at_once.body.len);
  assert_true(older.got < older.expected);
  http_answer_free(&at_once);
  buf_free(&slowly);
  rig_end(&s.g);
}

static size_t resident_bytes(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  size_t total = 0, resident = 0;
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%zu %zu", &total, &resident), 2);
  fclose(file);
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Eight servers begin to pull every version, and none of them reads on. */
static void slow_readers_cost_no_more_than_is_planned(void **state) {
  (void)state;
  enum { VERSIONS = 4 };
  struct slow s;
  struct reader readers[VERSIONS][READERS];
  slow_begin(&s);
  for (int v = 0; v < VERSIONS; v++) slow_publish(&s); /* what is touched for the first time is touched now */
  const size_t before = resident_bytes();              /* with one version */
  size_t most = before;
  for (int v = 0; v < VERSIONS; v++) {
    for (int i = 0; i < READERS; i++) readers[v][i] = reader_begin(&s.g, (int)s.version);
    slow_publish(&s);
    const size_t now = resident_bytes();
    if (now > most) most = now;
  }
  print_message("versions of %.1f MiB: %.1f MiB more with %d slow readers\n", (double)s.file_bytes / (1 << 20),
                (double)(most - before) / (1 << 20), VERSIONS * READERS);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what was freed */
  assert_true(most - before <= s.planned - s.file_bytes + SLACK);
#endif
  for (int v = 0; v < VERSIONS; v++)
    for (int i = 0; i < READERS; i++) close(readers[v][i].fd);
  rig_end(&s.g);
}

static enum job_state step_state(struct rig *g, const char *id, int wait_ms, struct step_status *out,
                                 struct arena *arena) {
  struct err err = {0};
  assert_rc(RC_OK, trainer_step_status(&g->client, id, wait_ms, out, arena, WAIT_MS, &err), err);
  return out->state;
}

static void step_submit(struct rig *g, const struct submit_step *m) {
  struct err err = {0};
  assert_rc(RC_OK, trainer_submit_step(&g->client, m, WAIT_MS, &err), err);
}

static void step_taken(struct rig *g, int64_t version) {
  struct board_view v = {0};
  AWAIT(v.version >= version, "version %lld does not come", (long long)version)
  board_view(trainer_board(g->trainer), &v);
  assert_int_equal(v.version, version);
}

/* Against the protocol: steps are taken while the version before last is still being pushed. */
static void a_step_waits_for_the_push_of_the_version_before_last(void **state) {
  (void)state;
  enum { STEPS = 3 };
  struct rig g;
  struct fake_generation server;
  struct open_run_answer opened;
  struct step_status status = {0};
  struct arena arena = ARENA_INIT;
  struct submit_step steps[STEPS];
  static const char *const ids[STEPS] = {"r1.0", "r1.1", "r1.2"};
  const struct open_run run = run_request("r1");
  rig_make(&g, "");
  rig_start(&g);
  fake_generation_start(&server, g.model_dir, false);
  rig_open(&g, &run, &opened);
  struct push_target target = {.worker_id = "w7", .url = server.url};
  for (int i = 0; i < STEPS; i++) {
    steps[i] = step_request("r1", ids[i], i, NULL, 0, &arena);
    steps[i].push_to = &target;
    steps[i].push_count = 1;
    steps[i].stage_timeout_ms = WAIT_MS;
  }
  pthread_mutex_lock(&server.lock); /* it does not come to an end of staging */
  step_submit(&g, &steps[0]);
  step_taken(&g, 1);
  step_submit(&g, &steps[1]);
  step_taken(&g, 2);
  step_submit(&g, &steps[2]);
  assert_int_equal(step_state(&g, ids[2], WAIT_MS / 2, &status, &arena), JOB_FAILED);
  assert_int_equal(status.error.rc, RC_UNAVAILABLE);
  assert_non_null(strstr(status.error.message, "version 1 of run r1 is still being pushed"));
  assert_int_equal(step_state(&g, ids[0], 0, &status, &arena), JOB_RUNNING);
  pthread_mutex_unlock(&server.lock);
  for (int i = 0; i < STEPS; i++) {
    if (i == STEPS - 1) step_submit(&g, &steps[i]);
    assert_int_equal(step_state(&g, ids[i], WAIT_MS / 2, &status, &arena), JOB_DONE);
    assert_int_equal(status.version, i + 1);
    assert_true(status.push_count == 1 && status.pushes[0].staged);
  }
  arena_free(&arena);
  rig_end(&g);
  fake_generation_stop(&server);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_reader_reads_on_until_its_version_is_shut),
      cmocka_unit_test(a_mapped_version_leaves_memory_and_comes_back),
      cmocka_unit_test(the_last_reader_frees_a_superseded_version),
      cmocka_unit_test(a_holder_keeps_the_bytes_of_a_version_that_was_shut),
      cmocka_unit_test(a_pusher_keeps_the_bytes_and_is_not_waited_for),
      cmocka_unit_test(a_superseded_version_is_sent_to_its_end_and_an_older_one_is_not),
      cmocka_unit_test(slow_readers_cost_no_more_than_is_planned),
      cmocka_unit_test(a_step_waits_for_the_push_of_the_version_before_last),
  };
  log_init("test", LOG_ERROR);
  mallopt(M_MMAP_THRESHOLD, 1 << 20); /* fixed: what is freed is given back */
  return cmocka_run_group_tests_name("trainer-server/published_versions", tests, NULL, NULL);
}
