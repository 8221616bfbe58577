/* Runs the threads of a round's pushes, and reports the outcome of each. */
#include "services/trainer-server/publish/push.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/client/generation_client.h"

struct push {
  pthread_t thread;
  struct pusher *pusher;
  const struct push_round *round;
  size_t index;                /* among the round's targets */
  struct push_broadcast seat;  /* token NULL: by HTTP alone */
  int64_t until_ms;
  struct push_report *report;
  struct change_link *links[CHANGES_LINKS_MAX]; /* that lead to the version from what the server holds */
  size_t link_count;
  enum rc broadcast; /* its outcome */
  struct err err;
  bool started, paused;   /* paused: it was not pushed to by HTTP */
  struct log_context log; /* of the thread that has it made */
};

static struct metric *count_by(const char *labels) {
  return metrics_register(METRIC_COUNTER, "leasehold_trainer_pushes_total", labels,
                          "Servers that a version was pushed to, by the way that it went.");
}

static struct metric *count_bytes(const char *labels) {
  return metrics_register(METRIC_COUNTER, "leasehold_trainer_pushed_bytes_total", labels,
                          "Bytes that servers were sent by HTTP: whole versions, and changes of those that they held.");
}

enum rc pusher_init(struct pusher *p, const struct http_access *access, const atomic_bool *stopping,
                    struct change_history *changes, struct fabric *fabric, struct err *err) {
  *p = (struct pusher){.access = access,
                       .stopping = stopping,
                       .changes = changes,
                       .by_fabric = count_by("way=\"fabric\""),
                       .by_http = count_by("way=\"http\""),
                       .whole_bytes = count_bytes("as=\"whole\""),
                       .change_bytes = count_bytes("as=\"changes\"")};
  p->changed_bytes = metrics_register(METRIC_COUNTER, "leasehold_trainer_changed_versions_bytes_total", "",
                                      "Bytes of the versions that servers were sent the changes of.");
  p->changes_refused = metrics_register(METRIC_COUNTER, "leasehold_trainer_changes_refused_total", "",
                                        "Changes that a server refused, so that it was sent the whole version.");
  server_bases_init(&p->bases);
  pthread_mutex_init(&p->pauses_lock, NULL);
  return pool_fabric_create(&p->pool, fabric, err);
}

void pusher_free(struct pusher *p) {
  pool_fabric_destroy(p->pool);
  server_bases_free(&p->bases);
  pthread_mutex_destroy(&p->pauses_lock);
}

/* How the bytes go. */
enum push_form { FORM_WHOLE, FORM_CHANGES, FORM_BROADCAST };

static enum rc send_changes(struct push *p, const struct generation_client *client,
                            const struct pushed_version *version, struct push_answer *answer, struct arena *arena,
                            int64_t left_ms, struct err *err) {
  struct http_part parts[CHANGES_LINKS_MAX];
  size_t sum = 0;
  for (size_t i = 0; i < p->link_count; i++) {
    parts[i] = (struct http_part){p->links[i]->bytes.data, p->links[i]->bytes.len};
    sum += parts[i].len;
  }
  const enum rc rc = generation_push_changes(client, version, &p->links[0]->base, parts, p->link_count, answer, arena,
                                             left_ms, err);
  if (rc == RC_OK) {
    metric_add(p->pusher->change_bytes, (double)sum);
    metric_add(p->pusher->changed_bytes, (double)p->round->blob->len);
  }
  return rc;
}

static enum rc send_whole(struct push *p, const struct generation_client *client, const struct pushed_version *version,
                          struct push_answer *answer, struct arena *arena, int64_t left_ms, struct err *err) {
  const struct weights_blob *b = p->round->blob;
  const enum rc rc = generation_push_weights(client, version, b->bytes.data, b->bytes.len, answer, arena, left_ms, err);
  if (rc == RC_OK) metric_add(p->pusher->whole_bytes, (double)b->bytes.len);
  return rc;
}

/* One exchange; after it the report says whether the server has the version. */
static enum rc push_as(struct push *p, enum push_form form, struct err *err) {
  const struct weights_blob *b = p->round->blob;
  const struct pushed_version version = {.run = b->run,
                                         .version = b->version,
                                         .epoch = p->round->epoch,
                                         .digest = b->digest,
                                         .announced = p->round->announced};
  const bool by_fabric = form == FORM_BROADCAST;
  const int64_t left_ms = p->until_ms - clock_monotonic_ms();
  struct http_client *http = NULL;
  struct arena arena = ARENA_INIT;
  struct push_answer answer;
  if (left_ms <= 0) return err_set(err, RC_TIMEOUT, NULL, "no time is left for staging");
  enum rc rc = http_client_create(&http, p->round->targets[p->index].push_token,
                                  by_fabric ? pool_fabric_over(p->pusher->pool) : p->pusher->stopping, err);
  if (rc == RC_OK) http_client_confine(http, p->pusher->access);
  const struct generation_client client = {.http = http, .base_url = p->round->targets[p->index].url};
  if (rc == RC_OK && by_fabric)
    rc = generation_push_by_broadcast(&client, &version, &p->seat, &answer, &arena, p->seat.wait_ms, err);
  else if (rc == RC_OK && form == FORM_CHANGES)
    rc = send_changes(p, &client, &version, &answer, &arena, left_ms, err);
  else if (rc == RC_OK)
    rc = send_whole(p, &client, &version, &answer, &arena, left_ms, err);
  if (rc == RC_OK) {
    p->report->staged = answer.staged && digest_equal(&answer.digest, &b->digest);
    p->report->digest = answer.digest;
    p->report->way = !p->report->staged ? PUSH_NONE : by_fabric ? PUSH_FABRIC : PUSH_HTTP;
    if (!p->report->staged)
      rc = err_set(err, RC_CORRUPT, NULL, "the server staged other bytes than were sent: the digests differ");
  }
  server_bases_note(&p->pusher->bases, p->report->worker_id, rc == RC_OK ? &b->digest : NULL);
  arena_free(&arena);
  http_client_destroy(http);
  return rc;
}

/* The server has other weights than were thought, or could not make this version of them. */
static bool wants_it_whole(enum rc rc, const struct err *err) {
  return rc == RC_INVALID || rc == RC_CORRUPT || rc == RC_TOO_LARGE ||
         (rc == RC_CONFLICT && strcmp(err->field, "base") == 0);
}

static void push_by_http(struct push *p) {
  struct pusher *pusher = p->pusher;
  struct digest base;
  enum rc rc = RC_NOT_FOUND;
  if (server_bases_find(&pusher->bases, p->report->worker_id, &base))
    p->link_count = change_history_find(pusher->changes, &base, &p->round->blob->digest, p->links);
  if (p->link_count > 0) rc = push_as(p, FORM_CHANGES, &p->err);
  change_links_release(p->links, p->link_count);
  if (p->link_count > 0 && wants_it_whole(rc, &p->err)) {
    metric_add(pusher->changes_refused, 1);
    log_info("version %" PRId64 " goes whole to %s, which refused its changes: %s", p->round->blob->version,
             p->report->worker_id, p->err.message);
    p->link_count = 0;
  }
  if (p->link_count == 0) push_as(p, FORM_WHOLE, &p->err);
}

/* RC_UNAVAILABLE: it is not pushed to now. */
static enum rc check_pause(struct push *p, struct err *err) {
  struct pusher *pusher = p->pusher;
  pthread_mutex_lock(&pusher->pauses_lock);
  const int64_t left_ms = push_pause_left(&pusher->pauses, p->report->worker_id, clock_monotonic_ms());
  pthread_mutex_unlock(&pusher->pauses_lock);
  if (left_ms == 0) return RC_OK;
  return err_set(err, RC_UNAVAILABLE, NULL,
                 "it pulls this version: the last push to %s took long and failed, and the next is tried in %" PRId64
                 " ms",
                 p->round->targets[p->index].url, left_ms);
}

static void note_pause(struct push *p, int64_t begun_ms) {
  struct pusher *pusher = p->pusher;
  const int64_t now_ms = clock_monotonic_ms();
  pthread_mutex_lock(&pusher->pauses_lock);
  push_pause_note(&pusher->pauses, p->report->worker_id, p->report->staged, now_ms - begun_ms, now_ms);
  pthread_mutex_unlock(&pusher->pauses_lock);
}

static void push_by_any(struct push *p) {
  if (p->seat.token) {
    p->broadcast = push_as(p, FORM_BROADCAST, &p->err);
    if (p->broadcast == RC_OK) return;
    pool_fabric_refused(p->pusher->pool);
    log_info("version %" PRId64 " did not reach %s by the fabric: %s", p->round->blob->version,
             p->round->targets[p->index].worker_id, p->err.message);
  }
  const int64_t begun_ms = clock_monotonic_ms();
  p->paused = check_pause(p, &p->err) != RC_OK;
  if (p->paused) return;
  push_by_http(p);
  note_pause(p, begun_ms);
}

static void *push_main(void *context) {
  struct push *p = context;
  log_context_restore(&p->log);
  push_by_any(p);
  if (p->round->ended) p->round->ended(p->round->context, p->index);
  return NULL;
}

/* Reports the outcome of every push, and tells the fabric which of its members were reached. */
static void pushes_judge(struct pusher *p, const struct push_round *round, const struct push *pushes, bool broadcast,
                         struct arena *arena) {
  const int64_t version = round->blob->version;
  struct pool_outcome *outcomes = arena_alloc(arena, round->count + 1, sizeof *outcomes);
  size_t ways[PUSH_FABRIC + 1] = {0};
  for (size_t i = 0; i < round->count; i++) {
    struct push_report *r = pushes[i].report;
    ways[r->way]++;
    if (outcomes)
      outcomes[i] = (struct pool_outcome){.worker_id = r->worker_id,
                                          .member = pushes[i].seat.token != NULL,
                                          .broadcast = pushes[i].broadcast,
                                          .staged = r->staged};
    if (r->staged) continue;
    r->error = arena_strdup(arena, pushes[i].err.message);
    if (pushes[i].paused)
      log_debug("version %" PRId64 " is not pushed to %s: %s", version, r->worker_id, pushes[i].err.message);
    else
      log_warn("push of version %" PRId64 " to %s failed: %s", version, r->worker_id, pushes[i].err.message);
  }
  if (broadcast) pool_fabric_end(p->pool, outcomes, outcomes ? round->count : 0);
  metric_add(p->by_fabric, (double)ways[PUSH_FABRIC]);
  metric_add(p->by_http, (double)ways[PUSH_HTTP]);
  if (broadcast)
    log_info("version %" PRId64 " reached %zu servers by the fabric and %zu by HTTP, and did not reach %zu", version,
             ways[PUSH_FABRIC], ways[PUSH_HTTP], ways[PUSH_NONE]);
}

/* seats: of those that share the fabric, unless another round uses it. */
static bool fabric_take(struct pusher *p, const struct push_round *round, struct push_broadcast *seats) {
  if (atomic_exchange(&p->fabric_taken, true)) return false;
  if (pool_fabric_begin(p->pool, round->targets, round->count, round->blob->bytes.len, round->stage_timeout_ms, seats))
    return true;
  atomic_store(&p->fabric_taken, false);
  return false;
}

/* Each push has a deadline, so the joins end. */
enum rc push_to_all(struct pusher *p, const struct push_round *round, struct push_report **reports,
                    struct arena *arena, struct err *err) {
  const struct weights_blob *blob = round->blob;
  const size_t n = round->count;
  const int64_t until_ms = clock_monotonic_ms() + round->stage_timeout_ms;
  struct push *pushes = arena_alloc(arena, n + 1, sizeof *pushes);
  struct push_broadcast *seats = arena_alloc(arena, n + 1, sizeof *seats);
  *reports = arena_alloc(arena, n + 1, sizeof **reports);
  if (!pushes || !seats || !*reports)
    return err_set(err, RC_NO_MEMORY, NULL, "pushing to %zu servers was refused memory", n);
  const bool broadcast = fabric_take(p, round, seats);
  for (size_t i = 0; i < n; i++) {
    (*reports)[i] = (struct push_report){.worker_id = round->targets[i].worker_id};
    pushes[i] = (struct push){.pusher = p,
                              .round = round,
                              .index = i,
                              .seat = seats[i],
                              .until_ms = until_ms,
                              .report = &(*reports)[i],
                              .broadcast = RC_UNAVAILABLE};
    log_context_save(&pushes[i].log);
    pushes[i].started = pthread_create(&pushes[i].thread, NULL, push_main, &pushes[i]) == 0;
    if (!pushes[i].started) err_set(&pushes[i].err, RC_NO_MEMORY, NULL, "no thread could be started for the push");
  }
  struct err lost;
  if (broadcast && pool_fabric_carry(p->pool, blob->bytes.data, blob->bytes.len, &lost) != RC_OK)
    log_warn("version %" PRId64 " was not broadcast: %s", blob->version, lost.message);
  for (size_t i = 0; i < n; i++) {
    if (pushes[i].started) pthread_join(pushes[i].thread, NULL);
  }
  weights_blob_all_done(round->blob);
  pushes_judge(p, round, pushes, broadcast, arena);
  if (broadcast) atomic_store(&p->fabric_taken, false);
  return RC_OK;
}
