/* See core.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/coordinator/store/database_lock.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/group_timeout.h"
#include "services/coordinator/store/migrations.h"
#include "services/coordinator/pool/trainer_place.h"
#include "services/coordinator/writer/core_state.h"

enum {
  QUEUE_COMMANDS = 4096,
  GROUP_COMMANDS = 64,
  GROUP_US = 2000,
  CALL_MS = 60000,
  KEEP_ALIVE_MS = 15000,
  CLOCK_SET_MS = 1000,
  INCIDENTS_KEPT = 10000,
  WORKERS_MAX_DEFAULT = 1024
};

/* In the request's arena, which is kept while a cancellation callback runs. */
struct ticket {
  struct core *core;
  struct command *command;
};

const struct core_options *core_options(const struct core *c) { return &c->options; }
struct readers *core_readers(struct core *c) {
  return c->readers;
}
struct hub *core_hub(struct core *c) {
  return c->hub;
}
uint64_t core_epoch(const struct core *c) { return c->epoch; }
bool core_broken(const struct core *c) { return atomic_load(&c->broken); }
static int64_t monotonic_us(const struct core *c) { return c->options.clock.monotonic_us(c->options.clock.context); }
int64_t core_monotonic_ms(const struct core *c) { return monotonic_us(c) / 1000; }
int64_t core_wall_us(const struct core *c) {
  return c->options.clock.wall_us(c->options.clock.context) + c->wall_ahead_us;
}
size_t core_queued(struct core *c) { return queue_length(c->queue); }

void core_set_kick(struct core *c, void (*kick)(void *context, int sealed), void *context) {
  c->kick = kick;
  c->kick_context = context;
}
void core_await_groups(struct core *c, bool awaited) { atomic_store(&c->groups_awaited, awaited); }

struct command *command_new(command_execute execute, size_t message_bytes) {
  struct command *cmd = calloc(1, sizeof *cmd);
  if (!cmd) return NULL;
  cmd->execute = execute;
  cmd->message = arena_alloc(&cmd->arena, 1, message_bytes ? message_bytes : 1);
  if (!cmd->message) {
    free(cmd);
    return NULL;
  }
  return cmd;
}

struct command *command_for(struct http_request *r, command_execute execute, size_t message_bytes) {
  struct command *cmd = command_new(execute, message_bytes);
  if (cmd) cmd->id = arena_strdup(&cmd->arena, http_param(r, "id"));
  if (!cmd || cmd->id) return cmd;
  command_free(cmd);
  return NULL;
}

void command_free(struct command *cmd) {
  if (!cmd) return;
  buf_free(&cmd->body);
  arena_free(&cmd->arena);
  free(cmd);
}

/* ---- requests come and go ---- */

/* Takes the request away from its command; NULL when the other side was first. */
static struct http_request *request_take(struct core *c, struct command *cmd) {
  pthread_mutex_lock(&c->lock);
  struct http_request *r = cmd->request;
  if (r) {
    cmd->ticket->command = NULL;
    cmd->request = NULL;
  }
  pthread_mutex_unlock(&c->lock);
  return r;
}

static void request_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct ticket *ticket = context;
  struct core *c = ticket->core;
  struct err err;
  pthread_mutex_lock(&c->lock);
  struct command *cmd = ticket->command;
  if (cmd) {
    cmd->request = NULL;
    ticket->command = NULL;
  }
  pthread_mutex_unlock(&c->lock);
  if (!cmd) return;
  if (why == HTTP_CANCEL_DEADLINE)
    err_set(&err, RC_TIMEOUT, NULL,
            "the coordinator did not come to this request in time; it may still be carried out");
  else
    err_set(&err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
  http_fail(r, &err);
}

bool command_orphaned(struct core *c, struct command *cmd) {
  pthread_mutex_lock(&c->lock);
  bool orphaned = !cmd->request;
  pthread_mutex_unlock(&c->lock);
  return orphaned;
}

void core_submit(struct core *c, struct http_request *r, struct command *cmd, int64_t deadline_ms) {
  struct err err;
  struct ticket *ticket = cmd ? arena_alloc(http_arena(r), 1, sizeof *ticket) : NULL;
  if (!ticket) {
    command_free(cmd);
    err_set(&err, RC_NO_MEMORY, NULL, "a command was refused memory");
    http_fail(r, &err);
    return;
  }
  *ticket = (struct ticket){.core = c, .command = cmd};
  pthread_mutex_lock(&c->lock); /* a hang-up's callback waits until the command is whole */
  http_suspend(r, deadline_ms, request_cancelled, ticket);
  cmd->request = r;
  cmd->ticket = ticket;
  pthread_mutex_unlock(&c->lock);
  enum rc rc = queue_push(c->queue, cmd);
  if (rc == RC_OK) return;
  r = request_take(c, cmd);
  command_free(cmd);
  if (rc == RC_FULL)
    err_set(&err, rc, NULL, "%d commands are queued already; try again", QUEUE_COMMANDS);
  else
    err_set(&err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
  if (r) http_fail(r, &err);
}

enum rc core_call(struct core *c, struct command *cmd, struct err *err) {
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  cmd->waited = true;
  enum rc rc = queue_push(c->queue, cmd);
  if (rc != RC_OK) {
    command_free(cmd);
    return err_set(err, rc, NULL,
                   rc == RC_FULL ? "the coordinator's queue of commands is full" : "the coordinator is stopping");
  }
  struct timespec deadline = clock_deadline_in(CALL_MS);
  pthread_mutex_lock(&c->lock);
  while (!cmd->done && pthread_cond_timedwait(&c->called, &c->lock, &deadline) == 0) continue;
  bool done = cmd->done;
  cmd->waited = done; /* an unanswered command is freed by the writer */
  pthread_mutex_unlock(&c->lock);
  if (!done) return err_set(err, RC_TIMEOUT, NULL, "the writer did not come to a command within %d ms", CALL_MS);
  rc = cmd->rc == RC_OK && cmd->refused ? cmd->err.rc : cmd->rc;
  if (rc != RC_OK && err) *err = cmd->err;
  command_free(cmd);
  return rc;
}

/* ---- for execute functions ---- */

enum rc core_event(struct core *c, int64_t run, const char *type, struct buf *text, bool last, struct err *err) {
  enum rc rc = buf_check(text, err);
  if (rc != RC_OK) {
    buf_free(text);
    return rc;
  }
  size_t len;
  return event_add(c->store, &c->events_tail, run, type, buf_take(text, &len), last, c->wall_ms, err);
}

enum rc core_incident(struct core *c, int64_t run, const char *kind, const char *subject, const char *detail,
                      struct err *err) {
  log_warn("incident: %s %s: %s", kind, subject, detail);
  metric_add(c->m_incidents, 1);
  enum rc rc =
      store_exec(c->store, err, "INSERT INTO incidents (at_ms, run, kind, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
                 BINDS(b_int(c->wall_ms), run ? b_int(run) : b_null(), b_text(kind), b_text(subject), b_text(detail)));
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err, "DELETE FROM incidents WHERE id <= ?1",
                    BINDS(b_int(store_last_id(c->store) - INCIDENTS_KEPT)));
}

enum rc core_check_epoch(const struct core *c, uint64_t epoch, struct err *err) {
  if (epoch == c->epoch) return RC_OK;
  return err_set(err, RC_CONFLICT, "epoch",
                 "the coordinator's epoch is %" PRIu64 ", the message carries %" PRIu64 ": register again", c->epoch,
                 epoch);
}

/* ---- the writer ---- */

static enum rc in_savepoint(struct core *c, command_execute execute, struct command *cmd, struct err *err) {
  struct event **mark = c->events_tail;
  enum rc rc = store_exec(c->store, err, "SAVEPOINT command", NO_BINDS);
  if (rc == RC_OK) rc = execute(c, cmd, err);
  if (rc == RC_OK) return store_exec(c->store, err, "RELEASE command", NO_BINDS);
  events_free(*mark);
  *mark = NULL;
  c->events_tail = mark;
  if (store_in_transaction(c->store)) {
    store_exec(c->store, NULL, "ROLLBACK TO command", NO_BINDS);
    store_exec(c->store, NULL, "RELEASE command", NO_BINDS);
  }
  return rc;
}

static void command_run(struct core *c, struct command *cmd) {
  cmd->rc = in_savepoint(c, cmd->execute, cmd, &cmd->err);
  metric_add(c->m_commands, 1);
  if (cmd->rc != RC_OK) {
    cmd->parked = false;
    buf_clear(&cmd->body);
    /* the disk is full or broken: what this command did to the state in memory cannot be undone like its rows */
    if (cmd->rc == RC_IO) c->store_failed = true;
    if (cmd->rc == RC_CONFLICT || cmd->rc == RC_GONE) metric_add(c->m_stale, 1);
  }
}

static void command_finish(struct core *c, struct command *cmd) {
  fault_die(FAULT_DIE_AFTER_ACCEPT, cmd->fault_round);
  struct http_request *r = request_take(c, cmd);
  if (r) {
    if (cmd->rc != RC_OK || cmd->refused)
      http_fail(r, &cmd->err);
    else
      http_reply_json(r, cmd->status ? cmd->status : 200, &cmd->body);
  }
  pthread_mutex_lock(&c->lock);
  cmd->done = true;
  bool waited = cmd->waited;
  if (waited) pthread_cond_broadcast(&c->called);
  pthread_mutex_unlock(&c->lock);
  if (!waited) command_free(cmd);
}

static void clocks_read(struct core *c) {
  c->now_ms = core_monotonic_ms(c);
  c->wall_ms = core_wall_us(c) / 1000;
}

/* The end of time for what waits: workers, leases, groups, polls. */
static enum rc expire_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  enum rc rc = workers_expire(c, err);
  if (rc == RC_OK) rc = place_fill(c, err);
  if (rc == RC_OK) rc = leases_expire(c, err);
  return rc == RC_OK ? groups_expire(c, err) : rc;
}

/* It may run behind other commands of a transaction that began before the clock was moved. */
static enum rc wake_execute(struct core *c, struct command *cmd, struct err *err) {
  clocks_read(c);
  c->kick_due = true;
  return expire_execute(c, cmd, err);
}

enum rc core_wake(struct core *c, struct err *err) { return core_call(c, command_new(wake_execute, 0), err); }

/* Answers the parked polls that can be, moving them from the list to *done. */
static void parked_serve(struct core *c, struct command **done) {
  bool look = c->dispatch_due;
  int kept = 0;
  c->dispatch_due = false;
  for (struct command **link = &c->parked; *link;) {
    struct command *cmd = *link;
    bool due = expiry_passed(cmd->due_ms, c->now_ms), orphaned = command_orphaned(c, cmd);
    if ((look || due) && !orphaned) {
      cmd->parked = false;
      command_run(c, cmd);
    }
    if (cmd->parked && !orphaned) {
      link = &cmd->next;
      kept++;
      continue;
    }
    *link = cmd->next;
    cmd->next = *done;
    *done = cmd;
  }
  metric_set(c->m_parked, kept);
}

static void commit_failed(struct core *c, struct command *done, const struct err *err) {
  log_error("the transaction could not be committed, the coordinator ends: %s", err->message);
  if (store_in_transaction(c->store)) store_script(c->store, "ROLLBACK", NULL);
  atomic_store(&c->broken, true);
  for (struct command *cmd = done; cmd; cmd = cmd->next) {
    cmd->rc = RC_UNAVAILABLE;
    err_set(&cmd->err, RC_UNAVAILABLE, NULL, "the coordinator could not store this: %s", err->message);
  }
  events_free(c->events);
  c->events = NULL;
}

/* While the writer was away nobody could report or renew. */
static enum rc put_off(struct core *c, int64_t ms, struct err *err) {
  if (ms == 0) return RC_OK;
  log_warn("the writer was away for %" PRId64 " ms; deadlines are put off by it", ms);
  for (int i = 0; i < c->worker_count; i++) c->workers[i].seen_ms += ms;
  return store_exec(c->store, err, "UPDATE leases SET deadline_ms = deadline_ms + ?1 WHERE state = 0",
                    BINDS(b_int(ms)));
}

/* How long the transaction in hand may still wait for another command; patient: all of its commands are. */
static int64_t company_ms(const struct core *c, bool patient, int64_t begun_us) {
  if (!patient || c->kick_due || (c->sealed && atomic_load(&c->groups_awaited))) return 0;
  return (begun_us + GROUP_US - monotonic_us(c)) / 1000;
}

/* One transaction: the command in hand, those that wait behind it, what time brings, the polls that can be answered. */
static void transact(struct core *c, struct command *first) {
  struct command *done = NULL, *cmd = first;
  struct err err = {0};
  int64_t begun_us = monotonic_us(c);
  bool patient = true;
  void *item;
  int64_t last_ms = c->now_ms;
  clocks_read(c);
  c->events = NULL;
  c->events_tail = &c->events;
  enum rc rc = store_exec(c->store, &err, "BEGIN IMMEDIATE", NO_BINDS);
  if (rc == RC_OK) rc = put_off(c, expiry_stall(last_ms, c->now_ms, CORE_LOOK_MS), &err);
  if (rc == RC_OK && expiry_passed(c->next_expiry_ms, c->now_ms)) {
    c->next_expiry_ms = c->now_ms + CORE_LOOK_MS;
    rc = in_savepoint(c, expire_execute, NULL, &err);
  }
  for (int n = 0; cmd; n++) {
    if (rc == RC_OK && !c->store_failed) command_run(c, cmd);
    struct command **list = rc == RC_OK && cmd->parked ? &c->parked : &done;
    cmd->next = *list;
    *list = cmd;
    patient &= cmd->patient;
    bool more = n + 1 < GROUP_COMMANDS && monotonic_us(c) - begun_us < GROUP_US &&
                queue_pop(c->queue, &item, company_ms(c, patient, begun_us)) == RC_OK;
    cmd = more ? item : NULL;
  }
  if (rc == RC_OK && !c->store_failed) parked_serve(c, &done);
  if (rc == RC_OK && c->store_failed)
    rc = err_set(&err, RC_IO, NULL, "the database could not be written (is the disk full?)");
  if (rc == RC_OK && !store_in_transaction(c->store))
    rc = err_set(&err, RC_IO, NULL, "SQLite gave up the transaction (is the disk full?)");
  if (rc == RC_OK) rc = store_exec(c->store, &err, "COMMIT", NO_BINDS);
  if (rc != RC_OK) commit_failed(c, done, &err);
  metric_add(c->m_commits, 1);
  while (done) {
    struct command *next = done->next;
    command_finish(c, done);
    done = next;
  }
  hub_publish(c->hub, c->events);
  events_free(c->events);
  c->events = NULL;
  if ((c->kick_due || c->sealed) && c->kick) c->kick(c->kick_context, c->kick_due ? 0 : c->sealed);
  c->kick_due = false;
  c->sealed = 0;
}

static int64_t next_wait(const struct core *c) {
  int64_t earliest = c->next_expiry_ms;
  for (const struct command *cmd = c->parked; cmd; cmd = cmd->next) {
    if (cmd->due_ms < earliest) earliest = cmd->due_ms;
  }
  return expiry_sleep(earliest, core_monotonic_ms(c), CORE_LOOK_MS);
}

/* People compare the times that they are shown with their logs'. */
static void clock_compare(struct core *c) {
  const int64_t off_ms = clock_real_ms() - core_wall_us(c) / 1000;
  if (llabs(off_ms - c->clock_off_ms) < CLOCK_SET_MS) return;
  c->clock_off_ms = off_ms;
  log_warn("this machine's clock is %" PRId64
           " ms %s the times that are stored; these go on evenly, and follow it when "
           "the coordinator is started again and no stored time lies ahead of it",
           (int64_t)llabs(off_ms), off_ms > 0 ? "ahead of" : "behind");
}

static void *writer_main(void *context) {
  struct core *c = context;
  c->now_ms = core_monotonic_ms(c);
  clock_compare(c);
  while (!atomic_load(&c->broken)) {
    void *item = NULL;
    enum rc rc = queue_pop(c->queue, &item, next_wait(c));
    if (rc == RC_UNAVAILABLE) break; /* closed and empty */
    transact(c, rc == RC_OK ? item : NULL);
    if (expiry_passed(c->next_keep_alive_ms, c->now_ms)) {
      c->next_keep_alive_ms = c->now_ms + KEEP_ALIVE_MS;
      hub_keep_alive(c->hub);
      clock_compare(c);
    }
  }
  struct command *rest = c->parked;
  void *item;
  c->parked = NULL;
  queue_close(c->queue);
  while (queue_pop(c->queue, &item, 0) == RC_OK) {
    struct command *cmd = item;
    cmd->next = rest;
    rest = cmd;
  }
  while (rest) {
    struct command *next = rest->next;
    rest->rc = err_set(&rest->err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
    command_finish(c, rest);
    rest = next;
  }
  return NULL;
}

/* ---- start ---- */

/* Stored times go on from the newest, so that none that is to be subtracted lies ahead of the clock. */
static enum rc clock_go_on(struct core *c, struct err *err) {
  int64_t newest_ms = 0;
  enum rc rc = store_int(
      c->store, &newest_ms, err,
      "SELECT max(coalesce((SELECT max(seen_ms) FROM workers), 0), coalesce((SELECT max(max(created_ms, "
      "coalesce(started_ms, 0), coalesce(ended_ms, 0))) FROM runs), 0), coalesce((SELECT at_ms FROM events ORDER BY id "
      "DESC LIMIT 1), 0), coalesce((SELECT at_ms FROM incidents ORDER BY id DESC LIMIT 1), 0), coalesce((SELECT "
      "max(opened_ms, coalesce(generated_ms, 0), coalesce(trained_ms, 0), coalesce(published_ms, 0)) FROM rounds ORDER "
      "BY opened_ms DESC LIMIT 1), 0), coalesce((SELECT max(max(coalesce(leased_ms, 0), coalesce(waiting_ms, 0), "
      "coalesce(overtaken_ms, 0))) FROM groups INDEXED BY groups_open WHERE state = 0), 0))",
      NO_BINDS);
  const int64_t behind_us = newest_ms * 1000 - core_wall_us(c);
  if (behind_us > 0) c->wall_ahead_us = behind_us;
  clocks_read(c);
  return rc;
}

/* A new epoch: nobody that registered before is believed any more, what was leased waits again. */
static enum rc epoch_begin(struct core *c, struct err *err) {
  int64_t epoch = 0;
  enum rc rc = store_script(c->store, "BEGIN IMMEDIATE", err);
  if (rc == RC_OK) rc = store_exec(c->store, err, "UPDATE meta SET value = value + 1 WHERE key = 'epoch'", NO_BINDS);
  if (rc == RC_OK) rc = store_int(c->store, &epoch, err, "SELECT value FROM meta WHERE key = 'epoch'", NO_BINDS);
  if (rc == RC_OK) rc = place_begin(c, err);
  if (rc == RC_OK) rc = workers_forget_all(c, err);
  if (rc == RC_OK) rc = store_script(c->store, "COMMIT", err);
  c->epoch = (uint64_t)epoch;
  return rc;
}

static void metrics_make(struct core *c) {
  c->m_commands =
      metrics_register(METRIC_COUNTER, "leasehold_commands_total", "", "Commands carried out by the writer");
  c->m_commits = metrics_register(METRIC_COUNTER, "leasehold_commits_total", "", "Transactions of the writer");
  c->m_stale = metrics_register(METRIC_COUNTER, "leasehold_stale_messages_total", "",
                                "Messages refused as stale, expired or conflicting");
  c->m_granted = metrics_register(METRIC_COUNTER, "leasehold_leases_granted_total", "", "Leases granted");
  c->m_lost =
      metrics_register(METRIC_COUNTER, "leasehold_leases_lost_total", "", "Leases expired, lost or handed back");
  c->m_refused =
      metrics_register(METRIC_COUNTER, "leasehold_results_refused_total", "", "Results of leases that were refused");
  c->m_samples = metrics_register(METRIC_COUNTER, "leasehold_samples_accepted_total", "", "Samples accepted");
  c->m_tokens = metrics_register(METRIC_COUNTER, "leasehold_tokens_sampled_total", "", "Tokens of accepted samples");
  c->m_rounds = metrics_register(METRIC_COUNTER, "leasehold_rounds_total", "", "Rounds done");
  c->m_incidents =
      metrics_register(METRIC_COUNTER, "leasehold_incidents_total", "", "Nondeterminism and other incidents");
  c->m_unequal = metrics_register(METRIC_COUNTER, "leasehold_logprob_unequal_tokens_total", "",
                                  "Trained tokens whose log-probability differs between sampler and trainer");
  c->m_parked = metrics_register(METRIC_GAUGE, "leasehold_waiting_polls", "", "Lease polls that wait");
  c->m_workers = metrics_register(METRIC_GAUGE, "leasehold_workers", "", "Live workers");
}

enum rc core_create(struct core **out, const struct core_options *options, struct err *err) {
  struct core *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the coordinator's state of %zu bytes was refused", sizeof *c);
  c->options = *options;
  if (c->options.workers_max == 0) c->options.workers_max = WORKERS_MAX_DEFAULT;
  if (!c->options.clock.monotonic_us) c->options.clock = clock_machine;
  c->events_tail = &c->events;
  pthread_mutex_init(&c->lock, NULL);
  cond_init(&c->called);
  metrics_make(c);
  c->lock_file = -1;
  c->workers = calloc((size_t)c->options.workers_max, sizeof *c->workers);
  enum rc rc = c->workers ? database_lock_take(&c->lock_file, options->db_path, err)
                          : err_set(err, RC_NO_MEMORY, NULL, "memory for %lld workers was refused",
                                    (long long)c->options.workers_max);
  if (rc == RC_OK) rc = store_open(&c->store, options->db_path, false, err);
  if (rc == RC_OK) rc = migrations_apply(c->store, err);
  if (rc == RC_OK) rc = clock_go_on(c, err);
  if (rc == RC_OK) rc = epoch_begin(c, err);
  if (rc == RC_OK) rc = readers_create(&c->readers, options->db_path, err);
  if (rc == RC_OK) database_lock_sign(c->lock_file);
  if (rc == RC_OK) rc = hub_create(&c->hub, c->readers, err);
  if (rc == RC_OK) rc = queue_create(&c->queue, QUEUE_COMMANDS, err);
  if (rc != RC_OK) {
    core_destroy(c);
    return rc;
  }
  *out = c;
  return RC_OK;
}

enum rc core_start(struct core *c, struct err *err) {
  if (pthread_create(&c->thread, NULL, writer_main, c) != 0)
    return err_set(err, RC_NO_MEMORY, NULL, "the writer's thread could not be started");
  c->started = true;
  return RC_OK;
}

void core_stop(struct core *c) {
  if (!c->started) return;
  queue_close(c->queue);
  pthread_join(c->thread, NULL);
  c->started = false;
}

void core_destroy(struct core *c) {
  if (!c) return;
  core_stop(c);
  run_context_release(c->context);
  queue_destroy(c->queue);
  hub_destroy(c->hub);
  readers_destroy(c->readers);
  store_close(c->store);
  database_lock_release(c->lock_file);
  pthread_cond_destroy(&c->called);
  pthread_mutex_destroy(&c->lock);
  free(c->workers);
  free(c);
}
