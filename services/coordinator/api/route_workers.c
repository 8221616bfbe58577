/* Answers the routes by which workers register, report and leave, and the one that lists them. */
#include "services/coordinator/api/route_workers.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/log.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/owners.h"
#include "services/coordinator/pool/passes.h"
#include "services/coordinator/pool/registrations.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/intervals.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/pool/trainer_place.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/decide/clock_skew.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/decide/stored.h"

/* ---- POST /v1/workers ---- */

/* What the message alone does not tell: its name and URL were read as such. */
static enum rc check_registration(const struct worker_register *m, struct err *err) {
  if (m->slots < 0 || m->slots > LIMIT_SLOTS || (m->kind == WORKER_GENERATION && m->slots == 0)) {
    return err_set(err, RC_INVALID, "slots", "expected 1 to %d for a generation-server and 0 for any other, got %d",
                   LIMIT_SLOTS, m->slots);
  }
  if (m->exactness == WORKER_FOREIGN && m->kind != WORKER_GENERATION)
    return err_set(err, RC_INVALID, "exactness", "expected 'invariant' or 'fastest' from a %s, got 'foreign'",
                   worker_kind_name(m->kind));
  return RC_OK;
}

enum rc register_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct worker_register *m = cmd->message;
  const bool trains = m->kind == WORKER_TRAINER;
  const bool owned = cmd->caller.roles != 0;
  const uint64_t origin = cmd->prepared ? *(const uint64_t *)cmd->prepared : 0;
  int64_t fence = 0, id = 0;
  struct live_worker *old = trains ? place_same_trainer(c, m) : worker_named(c, m->kind, m->name);
  const struct live_worker before = old ? *old : (struct live_worker){0};
  bool holds = old && old->holder;
  enum rc rc = owner_may_take(c, cmd, m->kind, m->name, err);
  if (rc == RC_OK && old) rc = owner_check(c, cmd, old, err);
  if (rc == RC_OK && !(old && old->origin == origin) && workers_share_full(c, origin))
    rc = err_set(err, RC_FULL, NULL,
                 "%d workers are registered already, most of them from this address with this token: the "
                 "other places of --workers-max are kept for others",
                 c->pool->worker_count);
  if (rc == RC_OK && old)
    rc = worker_end(c, old, trains ? "it registered again" : "its name was registered again", err);
  if (rc == RC_OK) rc = owners_prune(c, m->kind, m->name, err);
  if (rc == RC_OK && workers_full(c))
    rc = err_set(err, RC_FULL, NULL, "%d workers are registered already, as many as --workers-max allows",
                 c->pool->worker_count);
  if (rc == RC_OK && trains && !holds) rc = place_fill(c, err); /* a trainer that stands by goes first */
  if (rc == RC_OK && trains && !holds) holds = place_is_free(c, m->identity);
  if (rc == RC_OK && !trains)
    rc = store_int(c->store, &fence, err, "SELECT value FROM meta WHERE key = 'trainer_fence'", NO_BINDS);
  if (rc == RC_OK) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO workers (name, kind, url, slots, epoch, fence, live, registered_ms, seen_ms, exactness, fabric, "
        "fabric_kind, fabric_place, identity, owner, push_token, device) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?7, "
        "?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        BINDS(b_text(m->name), b_int((int64_t)m->kind), b_text(m->url), b_int(m->slots), b_int((int64_t)c->epoch),
              b_int(fence), b_int(c->wall_ms), b_int((int64_t)m->exactness), b_text(m->fabric.name),
              b_text(m->fabric.kind), b_int(m->fabric.place), b_text(m->identity),
              owned ? b_digest(&cmd->caller.holder) : b_null(), b_text(m->push_token), b_int((int64_t)m->device)));
  }
  if (rc == RC_OK) id = store_last_id(c->store);
  if (rc == RC_OK && holds) rc = place_take(c, id, &fence, err);
  if (rc != RC_OK) return rc;
  struct live_worker *w = worker_add(c, &(struct live_worker){.id = id,
                                                              .kind = m->kind,
                                                              .slots = m->slots,
                                                              .exactness = m->exactness,
                                                              .device = m->device,
                                                              .holder = holds,
                                                              .owned = owned,
                                                              .owner = cmd->caller.holder,
                                                              .origin = origin,
                                                              .fence = fence,
                                                              .seen_ms = c->now_ms,
                                                              .progressed_ms = c->now_ms,
                                                              .skew_us = CLOCK_SKEW_UNKNOWN,
                                                              .accounted_ms = c->now_ms});
  snprintf(w->name, sizeof w->name, "%s", m->name);
  snprintf(w->identity, sizeof w->identity, "%s", trains && m->identity ? m->identity : "");
  registration_compare(c, w, m->url, &before);
  c->kick_due = true;
  const struct id_text text = id_worker(id);
  const struct worker_registered answer = {.worker_id = text.text,
                                           .epoch = c->epoch,
                                           .fence = (uint64_t)fence,
                                           .heartbeat_ms = (int32_t)c->options.heartbeat_ms,
                                           .worker_ttl_ms = (int32_t)c->options.worker_ttl_ms,
                                           .role = place_role(w)};
  worker_registered_encode(&answer, &cmd->body);
  cmd->status = 201;
  log_info("worker %s registered: %s '%s' at %s%s%s", text.text, worker_kind_name(m->kind), m->name, m->url,
           m->exactness == WORKER_FASTEST   ? ", its kernels are not batch-invariant"
           : m->exactness == WORKER_FOREIGN ? ", its engine is not ours"
                                            : "",
           answer.role == ROLE_STANDBY ? ", stands by: another trainer holds the place" : "");
  return RC_OK;
}

void handle_post_worker(struct http_request *r, void *context) {
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_new(register_execute, sizeof(struct worker_register));
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && cmd) rc = worker_register_decode(cmd->message, body, &cmd->arena, &err);
  if (rc == RC_OK && cmd) rc = check_registration(cmd->message, &err);
  if (rc == RC_OK && cmd) rc = registration_admit(context, r, cmd, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}

/* ---- POST /v1/workers/{id}/... ---- */

/* Who was found once is not looked for again: that its row may be gone by now is for the writer to say. */
enum rc admit_worker(struct http_request *r, void *context, struct err *err) {
  struct core *c = context;
  const char *id = http_param(r, "id");
  int64_t number;
  const enum rc rc = id_parse_worker(&number, id, err);
  if (rc != RC_OK) return rc;
  _Atomic int64_t *known = &c->pool->known[(uint64_t)number % WORKERS_KNOWN];
  if (number > 0 && atomic_load_explicit(known, memory_order_relaxed) == number) return RC_OK;
  if (!readers_find(core_readers(c), "SELECT 1 FROM workers WHERE id = ?1", BINDS(b_int(number))))
    return err_set(err, RC_NOT_FOUND, "id", "worker %s is not registered: register first", id);
  atomic_store_explicit(known, number, memory_order_relaxed);
  return RC_OK;
}

/* ---- POST /v1/workers/{id}/heartbeat ---- */

/* Generation idle time: see slot_time.h. */
static enum rc account_slots(struct core *c, struct live_worker *w, int64_t busy_slot_us,
                             struct slot_account accounts[SLOT_WINDOWS], struct err *err) {
  int64_t carry = slot_time_share(c->rounds->windows, w->slots, w->accounted_ms, c->now_ms,
                                  busy_slot_us - w->busy_slot_us, accounts);
  enum rc rc = RC_OK;
  w->busy_slot_us = busy_slot_us - carry;
  w->accounted_ms = c->now_ms;
  for (int i = 0; i < SLOT_WINDOWS && rc == RC_OK; i++) {
    if (!accounts[i].run) continue;
    rc = store_exec(
        c->store, err,
        "UPDATE runs SET busy_slot_us = busy_slot_us + ?2, slot_window_us = slot_window_us + ?3 WHERE id = ?1",
        BINDS(b_int(accounts[i].run), b_int(accounts[i].busy_us), b_int(accounts[i].window_us)));
  }
  return rc;
}

enum rc heartbeat_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct worker_heartbeat *m = cmd->message;
  struct live_worker *w;
  struct slot_account accounts[SLOT_WINDOWS];
  struct worker_heartbeat_answer answer = {.epoch = c->epoch, .run_active = c->context != NULL};
  enum rc rc = worker_of(c, cmd, cmd->id, m->epoch, true, &w, err);
  if (rc != RC_OK) return rc;
  if (w->ready != (m->ready && !m->draining)) c->kick_due = true;
  worker_ready(c, w, m->ready && !m->draining);
  w->skew_us = clock_skew_learn(w->skew_us, m->sent_us, c->wall_ms * 1000);
  const int64_t skew_us = clock_skew_us(w->skew_us);
  rc = store_exec(
      c->store, err,
      "UPDATE workers SET ready = ?2, draining = ?3, loaded_digest = ?4, slots_busy = ?5, busy_slot_us = ?6, "
      "tokens_sampled = ?7, seen_ms = ?8, clock_skew_ms = ?9 WHERE id = ?1",
      BINDS(b_int(w->id), b_int(m->ready), b_int(m->draining), m->has_loaded ? b_digest(&m->loaded_digest) : b_null(),
            b_int(m->slots_busy), b_int(m->busy_slot_us), b_int(m->tokens_sampled), b_int(c->wall_ms),
            skew_us ? b_int(skew_us / 1000) : b_null()));
  if (rc == RC_OK && w->kind == WORKER_GENERATION) {
    pace_note_steps(&c->pool->pace, &w->steps, m->steps, m->step_count, c->now_ms);
    rc = account_slots(c, w, m->busy_slot_us, accounts, err);
    if (rc == RC_OK) rc = intervals_beat(c, w->id, ACTOR_POOL, m->intervals, m->interval_count, accounts, err);
    if (rc == RC_OK) rc = leases_note_progress(c, w, m->tokens_sampled, m->lease_count > 0, err);
  }
  if (rc == RC_OK && w->kind == WORKER_PREPROCESS) {
    if (m->has_loaded && !digest_equal(&w->reference, &m->loaded_digest))
      c->passes_due = true; /* it may have more now */
    w->reference = m->has_loaded ? m->loaded_digest : (struct digest){0};
    rc = intervals_beat(c, w->id, ACTOR_PREPROCESS, m->intervals, m->interval_count, NULL, err);
  }
  answer.lost = arena_alloc(&cmd->arena, m->lease_count + 1, sizeof *answer.lost);
  if (rc == RC_OK && !answer.lost) rc = err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
  for (size_t i = 0; i < m->lease_count && rc == RC_OK; i++) {
    bool held;
    rc = w->kind == WORKER_PREPROCESS
             ? pass_renew(c, m->leases[i].id, (int64_t)m->leases[i].fence, w->id, &held, err)
             : lease_renew(c, m->leases[i].id, (int64_t)m->leases[i].fence, w->id, &held, err);
    if (rc == RC_OK && !held) answer.lost[answer.lost_count++] = m->leases[i].id;
  }
  if (rc == RC_OK) rc = current_version_now(c, &answer.current, &cmd->arena, err);
  answer.role = place_role(w);
  answer.fence = (uint64_t)w->fence;
  if (rc == RC_OK) worker_heartbeat_answer_encode(&answer, &cmd->body);
  return rc;
}

void handle_heartbeat(struct http_request *r, void *context) {
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_for(r, heartbeat_execute, sizeof(struct worker_heartbeat));
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && cmd) rc = worker_heartbeat_decode(cmd->message, body, &cmd->arena, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}

/* ---- DELETE /v1/workers/{id} ---- */

/* The id names one incarnation under one epoch, so no other worker can be meant. */
enum rc leave_execute(struct core *c, struct command *cmd, struct err *err) {
  struct live_worker *w;
  struct json_writer out;
  enum rc rc = worker_of(c, cmd, cmd->id, c->epoch, false, &w, err);
  if (rc == RC_OK) rc = worker_end(c, w, "it left", err);
  if (rc == RC_OK) rc = place_fill(c, err);
  if (rc != RC_OK) return rc;
  json_writer_init(&out, &cmd->body);
  json_object_begin(&out);
  json_kv_u64(&out, "epoch", c->epoch);
  json_object_end(&out);
  return RC_OK;
}

void handle_delete_worker(struct http_request *r, void *context) {
  core_submit(context, r, command_for(r, leave_execute, 0), CORE_ANSWER_MS);
}

/* ---- GET /v1/workers ---- */

static void worker_write(struct core *c, struct json_writer *w, const struct rows *q) {
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  bool loaded = rows_digest(q, 7, &digest);
  digest_hex(hex, &digest);
  json_object_begin(w);
  json_kv_string(w, "id", id_worker(rows_int(q, 0)).text);
  json_kv_string(w, "name", rows_text(q, 1, NULL));
  json_kv_string(w, "kind", worker_kind_name((enum worker_kind)rows_int(q, 2)));
  json_kv_string(w, "url", rows_text(q, 3, NULL));
  json_kv_int(w, "slots", rows_int(q, 4));
  json_kv_bool(w, "ready", rows_int(q, 5) != 0);
  json_kv_bool(w, "draining", rows_int(q, 6) != 0);
  json_kv_string(w, "loaded_digest", loaded ? hex : NULL);
  json_kv_int(w, "slots_busy", rows_int(q, 8));
  json_kv_int(w, "busy_slot_us", rows_int(q, 9));
  json_kv_int(w, "tokens_sampled", rows_int(q, 10));
  json_kv_int(w, "registered_ms", rows_int(q, 11));
  json_kv_int(w, "seen_ms", rows_int(q, 12));
  json_kv_bool(w, "live", rows_int(q, 13) != 0);
  json_kv_int(w, "leases", rows_int(q, 14));
  json_kv_column_int(w, "clock_skew_ms", q, 15);
  json_kv_string(w, "exactness", worker_exactness_name((enum worker_exactness)rows_int(q, 16)));
  const char *name = rows_text(q, 17, NULL);
  const struct worker_fabric fabric = {
      .name = *name ? name : NULL, .kind = rows_text(q, 18, NULL), .place = rows_int(q, 19)};
  json_key(w, "fabric");
  worker_fabric_write(&fabric, w);
  const bool trains = rows_int(q, 2) == WORKER_TRAINER && rows_int(q, 13) != 0;
  json_kv_string(w, "role", worker_role_name(!trains ? ROLE_NONE : rows_int(q, 20) ? ROLE_HOLDER : ROLE_STANDBY));
  if (!rows_null(q, 21)) json_kv_string(w, "quarantine", rows_text(q, 21, NULL));
  const int64_t shared_ms = registration_shared_ms(c, (enum worker_kind)rows_int(q, 2), rows_text(q, 1, NULL),
                                                   core_wall_us(c) / 1000);
  if (shared_ms && rows_int(q, 13)) json_kv_int(w, "name_shared_ms", shared_ms);
  json_object_end(w);
}

/* Live workers; ?all=1: the last 1000 incarnations. */
void handle_get_workers(struct http_request *r, void *context) {
  struct core *c = context;
  struct store *s = NULL;
  struct rows q = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  int64_t all;
  bool row;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_key(&w, "workers");
  json_array_begin(&w);
  enum rc rc = http_query_i64(r, "all", 0, 0, 1, &all, &err);
  if (rc == RC_OK) rc = readers_take(core_readers(c), &s, &err);
  if (rc == RC_OK) {
    rc = store_query(
        s, &q, &err,
        "SELECT id, name, kind, url, slots, ready, draining, loaded_digest, slots_busy, busy_slot_us, "
        "tokens_sampled, registered_ms, seen_ms, live,"
        " (SELECT count(*) FROM leases WHERE worker = workers.id AND state = " SQL_LEASE_GRANTED
        ") + (SELECT count(*) FROM passes p JOIN groups g ON g.run = p.run AND g.round = p.round AND g.ordinal = "
        "p.group_ordinal WHERE p.worker = workers.id AND p.state = " SQL_PASS_GRANTED " AND g.state = " SQL_GROUP_SEALED
        "), clock_skew_ms, exactness, fabric, "
        "fabric_kind, fabric_place, holder, (SELECT reason FROM quarantines t JOIN runs ON runs.id = t.run WHERE "
        "t.name = workers.name AND workers.kind = ?2 AND runs.ended_ms IS NULL) FROM workers WHERE live = 1 OR ?1 = 1 "
        "ORDER BY id DESC LIMIT 1000",
        BINDS(b_int(all), b_int(WORKER_GENERATION)));
  }
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) worker_write(c, &w, &q);
  rows_end(&q);
  readers_give(core_readers(c), s);
  json_array_end(&w);
  json_kv_u64(&w, "epoch", core_epoch(c));
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}
