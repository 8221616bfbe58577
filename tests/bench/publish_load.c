/* The trainer's side of make bench-publish: what it takes to get a version to a generation-server, beside what the
 * bytes cost alone.  The script is tests/bench/bench-publish.
 *
 *   publish_load write MODEL_DIR                       random weights into MODEL_DIR/model.safetensors
 *   publish_load push MODEL_DIR URL THREADS REPEATS [SHARE]
 *                                                      a line of figures for each repeat, in microseconds
 *
 * A repeat packs and digests the weights as the trainer does (weights_to_safetensors), and pushes the file to a
 * server that nobody coordinates, which answers when it has staged it and computed the digest of its own memory.
 *
 * With SHARE, of values that a version moves by a unit of bf16, up or down: a repeat makes such a version of the one
 * before and pushes it whole, then another one and pushes its changes, so that a busy machine disturbs both alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/client/generation_client.h"
#include "common/http/trust/tls.h"
#include "common/model/device.h"
#include "common/model/network/model.h"
#include "common/safetensors/safetensors.h"
#include "common/threads/pool.h"

enum { DEADLINE_MS = 600000, SEED = 3 };

struct side {
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct weights *weights;
};

static enum rc side_open(struct side *s, const char *dir, int threads, struct err *err) {
  const struct device device = {0};
  enum rc rc = model_config_load(&s->config, dir, err);
  if (rc == RC_OK) rc = pool_create(&s->pool, threads, err);
  if (rc == RC_OK) rc = ops_create(&s->ops, FORMAT_BF16, &device, s->pool, err);
  if (rc == RC_OK) rc = model_create(&s->model, &s->config, s->ops, 64, err);
  if (rc == RC_OK) rc = weights_create(&s->weights, s->model, false, err);
  return rc;
}

static enum rc write_weights(struct side *s, const char *path, struct err *err) {
  float *masters = calloc(s->model->params.elements, sizeof *masters);
  struct buf file = BUF_INIT;
  struct digest digest;
  if (!masters) return err_set(err, RC_NO_MEMORY, NULL, "random weights were refused memory");
  enum rc rc = masters_random(s->model, masters, SEED, err);
  weights_from_masters(s->weights, masters);
  free(masters);
  if (rc == RC_OK) rc = weights_to_safetensors(&file, &digest, s->weights, NULL, "leasehold.digest", err);
  if (rc == RC_OK) rc = file_write_atomic(path, file.data, file.len, err);
  buf_free(&file);
  return rc;
}

static enum rc read_weights(struct side *s, const char *path, struct err *err) {
  struct st_file *file;
  enum rc rc = st_open_file(&file, path, err);
  if (rc != RC_OK) return rc;
  rc = weights_from_safetensors(s->weights, file, err);
  st_close(file);
  return rc;
}

/* One copy into memory that is there, and one SHA-256, each by one thread. */
static enum rc bytes_alone(const struct buf *file, int64_t *copy_us, int64_t *sha_us, struct err *err) {
  struct digest digest;
  char *copy = malloc(file->len);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "a copy of %zu bytes was refused memory", file->len);
  memset(copy, 1, file->len);
  const int64_t begun_us = clock_monotonic_us();
  memcpy(copy, file->data, file->len);
  const int64_t copied_us = clock_monotonic_us();
  digest_of(&digest, copy, file->len);
  *copy_us = copied_us - begun_us;
  *sha_us = clock_monotonic_us() - copied_us;
  free(copy);
  return RC_OK;
}

/* Of all threads, in microseconds. */
static int64_t cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static size_t data_begins(const struct buf *file, const struct side *s) {
  return file->len - model_file_bytes(s->model);
}

/* The next version: every so many values, on average, one moves to its neighbour. */
static enum rc weights_move(struct side *s, const struct buf *from, double share, uint64_t seed, struct err *err) {
  struct buf moved = BUF_INIT;
  struct st_file *file = NULL;
  const size_t count = model_file_bytes(s->model) / sizeof(uint16_t);
  uint64_t state = seed;
  buf_append(&moved, from->data, from->len);
  enum rc rc = buf_check(&moved, err);
  uint16_t *x = rc == RC_OK ? (uint16_t *)(void *)(moved.data + data_begins(from, s)) : NULL;
  for (size_t i = 0; rc == RC_OK && i < count; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((double)(state >> 33) >= share * 0x1p31) continue;
    const uint16_t next = (uint16_t)(x[i] + (state & 0x100000000u ? 1 : -1));
    if ((next & 0x7F80) != 0x7F80) x[i] = next;
  }
  if (rc == RC_OK) rc = st_open_memory(&file, moved.data, moved.len, err);
  if (rc == RC_OK) rc = weights_from_safetensors(s->weights, file, err);
  st_close(file);
  buf_free(&moved);
  return rc;
}

/* before: the version that the server holds; changes are sent where with_changes.  Replaced by this version. */
static enum rc push_once(struct side *s, const struct generation_client *server, int64_t version, struct buf *before,
                         struct digest *before_digest, bool with_changes, struct err *err) {
  char number[32];
  struct buf file = BUF_INIT, changes = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct push_answer answer = {0};
  struct pushed_version v = {.run = "r1", .version = version, .epoch = 1};
  int64_t copy_us = 0, sha_us = 0;
  snprintf(number, sizeof number, "%lld", (long long)version);
  const char *const metadata[] = {"leasehold.run", "r1", "leasehold.version", number, NULL};
  struct weights_base base = {.digest = *before_digest, .bytes = model_file_bytes(s->model)};
  if (with_changes) base.operands = before->data + data_begins(before, s);
  const int64_t begun_us = clock_monotonic_us(), begun_cpu_us = cpu_us();
  enum rc rc = weights_to_safetensors_from(&file, &v.digest, s->weights, metadata, "leasehold.digest",
                                           with_changes ? &base : NULL, &changes, err);
  const int64_t packed_us = clock_monotonic_us(), packed_cpu_us = cpu_us();
  const bool whole = changes.len == 0;
  const struct http_part part = {changes.data, changes.len};
  if (rc == RC_OK && whole)
    rc = generation_push_weights(server, &v, file.data, file.len, &answer, &arena, DEADLINE_MS, err);
  else if (rc == RC_OK)
    rc = generation_push_changes(server, &v, before_digest, &part, 1, &answer, &arena, DEADLINE_MS, err);
  const int64_t staged_us = clock_monotonic_us(), staged_cpu_us = cpu_us();
  if (rc == RC_OK && !digest_equal(&answer.digest, &v.digest))
    rc = err_set(err, RC_CORRUPT, NULL, "the server staged other bytes");
  if (rc == RC_OK) rc = bytes_alone(&file, &copy_us, &sha_us, err);
  if (rc == RC_OK)
    printf(
        "{\"asked\": \"%s\", \"bytes\": %zu, \"sent\": %zu, \"pack_us\": %lld, \"push_us\": %lld, \"pack_cpu_us\": "
        "%lld, \"push_cpu_us\": %lld, \"copy_us\": %lld, \"sha_us\": %lld}\n",
        with_changes ? "changes" : "whole", file.len, whole ? file.len : changes.len, (long long)(packed_us - begun_us),
        (long long)(staged_us - packed_us), (long long)(packed_cpu_us - begun_cpu_us),
        (long long)(staged_cpu_us - packed_cpu_us), (long long)copy_us, (long long)sha_us);
  fflush(stdout);
  arena_free(&arena);
  buf_free(&changes);
  buf_free(before);
  *before = file;
  *before_digest = v.digest;
  return rc;
}

static enum rc push(struct side *s, const char *url, int repeats, double share, struct err *err) {
  struct http_client *http;
  enum rc rc = http_client_create(&http, "", NULL, err);
  if (rc != RC_OK) return rc;
  const struct generation_client server = {.http = http, .base_url = url};
  struct buf before = BUF_INIT;
  struct digest digest = {0};
  int64_t version = clock_wall_us(); /* after those of the calls before */
  rc = push_once(s, &server, version++, &before, &digest, false, err);
  for (int i = 1; rc == RC_OK && i < repeats; i++)
    for (int with_changes = 0; rc == RC_OK && with_changes <= (share >= 0); with_changes++) {
      if (share >= 0) rc = weights_move(s, &before, share, (uint64_t)version, err);
      if (rc == RC_OK) rc = push_once(s, &server, version++, &before, &digest, with_changes, err);
    }
  buf_free(&before);
  http_client_destroy(http);
  return rc;
}

int main(int argc, char **argv) {
  struct side s = {0};
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  const bool pushes = (argc == 6 || argc == 7) && strcmp(argv[1], "push") == 0;
  if (!pushes && !(argc == 3 && strcmp(argv[1], "write") == 0)) {
    fprintf(stderr, "usage: publish_load write MODEL_DIR | push MODEL_DIR URL THREADS REPEATS [SHARE]\n");
    return 2;
  }
  log_init("publish_load", LOG_ERROR);
  const char *ca = getenv("LEASEHOLD_TLS_CA"); /* of an https URL */
  const struct tls_settings tls = {.cert = "", .key = "", .ca = ca ? ca : "", .client_ca = "", .peer_name = ""};
  enum rc rc = http_tls_start(&tls, &err);
  if (rc == RC_OK) rc = side_open(&s, argv[2], pushes ? atoi(argv[4]) : 2, &err);
  if (rc == RC_OK) rc = path_format(path, &err, "%s/model.safetensors", argv[2]);
  if (rc == RC_OK) rc = pushes ? read_weights(&s, path, &err) : write_weights(&s, path, &err);
  if (rc == RC_OK && pushes) rc = push(&s, argv[3], atoi(argv[5]), argc == 7 ? atof(argv[6]) : -1, &err);
  if (rc != RC_OK) fprintf(stderr, "publish_load: %s\n", err.message);
  return rc == RC_OK ? 0 : 1; /* what was opened ends with the process */
}
