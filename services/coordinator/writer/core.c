/* The writer: its queue, its transactions, parked polls, the requests that wait for answers, start and end. */
#include "services/coordinator/writer/core.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/checkpoints.h"
#include "services/coordinator/store/database_lock.h"
#include "services/coordinator/store/migrations.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/decide/stored.h"

enum {
  QUEUE_COMMANDS = 4096,
  GROUP_COMMANDS = 256,
  GROUP_US = 2000,      /* a transaction waits so long for another command */
  GROUP_BUSY_US = 4000, /* and takes those that are queued already for so long: longer is cheaper, and polls wait */
  CALL_MS = 60000,
  KEEP_ALIVE_MS = 15000,
  CLOCK_SET_MS = 1000,
  WORKERS_MAX_DEFAULT = 1024
};

/* The writer's private state. */
struct writer {
  struct core core; /* first, so that a core is known by its writer and the other way round */
  struct readers *readers;
  struct checkpoints *checkpoints; /* NULL before the thread starts, and without one */
  struct hub *hub;
  struct queue *queue;
  size_t queue_max;
  pthread_t thread;
  bool started, threaded; /* threaded: it was started once */
  atomic_bool broken, trainer_idle;
  atomic_int groups_awaited, groups_came; /* came: sealed since it was last said how many are awaited */
  void (*_Atomic kick)(void *context, int sealed); /* set behind its context */
  void *kick_context;
  void (*_Atomic check)(void *context);
  void *check_context;
  atomic_bool checks_awaited;
  struct command *parked, *parked_last; /* by due_ms */
  int parked_count;
  int64_t parked_seen_ms; /* when all of them were last gone through */
  int64_t next_tick_ms, next_keep_alive_ms;
  int64_t wall_ahead_us; /* of the clock's wall time: the newest stored time lay ahead of it at the start */
  int64_t clock_off_ms;  /* the machine's clock less the wall time, as last warned of */
  bool store_failed;     /* in the transaction in hand: it must not be committed */
  size_t company_max;    /* commands that the next transaction may expect: see company */
  int lock_file;         /* held exclusively: one coordinator a database; -1: none */

  pthread_mutex_t lock;  /* guards request, ticket, waited and done of every command */
  pthread_cond_t called; /* a waited command is done */

  struct metric *m_commands, *m_commits, *m_parked, *m_stale;
};

static struct writer *writer_of(struct core *c) { return (struct writer *)c; }
static const struct writer *writer_of_const(const struct core *c) { return (const struct writer *)c; }

/* In the request's arena, which is kept while a cancellation callback runs. */
struct ticket {
  struct writer *writer;
  struct command *command;
};

const struct core_options *core_options(const struct core *c) { return &c->options; }
struct readers *core_readers(struct core *c) {
  return writer_of(c)->readers;
}
struct hub *core_hub(struct core *c) {
  return writer_of(c)->hub;
}
uint64_t core_epoch(const struct core *c) { return c->epoch; }
bool core_broken(const struct core *c) { return atomic_load(&writer_of_const(c)->broken); }
size_t core_queued(struct core *c) { return queue_length(writer_of(c)->queue); }

static int64_t monotonic_us(const struct core *c) { return c->options.clock.monotonic_us(c->options.clock.context); }
int64_t core_monotonic_ms(const struct core *c) { return monotonic_us(c) / 1000; }
int64_t core_wall_us(const struct core *c) {
  return c->options.clock.wall_us(c->options.clock.context) + writer_of_const(c)->wall_ahead_us;
}

void core_set_kick(struct core *c, void (*kick)(void *context, int sealed), void *context) {
  struct writer *w = writer_of(c);
  w->kick_context = context;
  atomic_store(&w->kick, kick);
}
void core_set_check(struct core *c, void (*check)(void *context), void *context) {
  struct writer *w = writer_of(c);
  w->check_context = context;
  atomic_store(&w->check, check);
}
void core_await_groups(struct core *c, int groups, bool trainer_idle) {
  struct writer *w = writer_of(c);
  atomic_store(&w->trainer_idle, trainer_idle);
  atomic_store(&w->groups_came, 0);
  atomic_store(&w->groups_awaited, groups);
}
void core_await_checks(struct core *c, bool awaited) { atomic_store(&writer_of(c)->checks_awaited, awaited); }

/* ---- requests come and go ---- */

/* Takes the request away from its command; NULL when the other side was first. */
static struct http_request *request_take(struct writer *w, struct command *cmd) {
  pthread_mutex_lock(&w->lock);
  struct http_request *r = cmd->request;
  if (r) {
    cmd->ticket->command = NULL;
    cmd->request = NULL;
  }
  pthread_mutex_unlock(&w->lock);
  return r;
}

static void request_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct ticket *ticket = context;
  struct writer *w = ticket->writer;
  struct err err;
  pthread_mutex_lock(&w->lock);
  struct command *cmd = ticket->command;
  if (cmd) {
    cmd->request = NULL;
    ticket->command = NULL;
  }
  pthread_mutex_unlock(&w->lock);
  if (!cmd) return;
  if (why == HTTP_CANCEL_DEADLINE)
    err_set(&err, RC_TIMEOUT, NULL,
            "the coordinator did not get to this request in time; it may still be carried out");
  else
    err_set(&err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
  http_fail(r, &err);
}

bool core_orphaned(struct core *c, struct command *cmd) {
  struct writer *w = writer_of(c);
  pthread_mutex_lock(&w->lock);
  const bool orphaned = !cmd->request && !cmd->waited && !cmd->answered;
  pthread_mutex_unlock(&w->lock);
  return orphaned;
}

void core_submit(struct core *c, struct http_request *r, struct command *cmd, int64_t deadline_ms) {
  struct writer *w = writer_of(c);
  struct err err;
  struct ticket *ticket = cmd ? arena_alloc(http_arena(r), 1, sizeof *ticket) : NULL;
  if (!ticket) {
    command_free(cmd);
    err_set(&err, RC_NO_MEMORY, NULL, "a command was refused memory");
    http_fail(r, &err);
    return;
  }
  *ticket = (struct ticket){.writer = w, .command = cmd};
  cmd->caller = http_caller(r);
  pthread_mutex_lock(&w->lock); /* a hang-up's callback waits until the command is whole */
  http_suspend(r, deadline_ms, request_cancelled, ticket);
  cmd->request = r;
  cmd->ticket = ticket;
  pthread_mutex_unlock(&w->lock);
  enum rc rc = cmd->urgent ? queue_push_first(w->queue, cmd) : queue_push(w->queue, cmd);
  if (rc == RC_OK) return;
  r = request_take(w, cmd);
  command_free(cmd);
  if (rc == RC_FULL)
    err_set(&err, rc, NULL, "%zu commands are queued already; try again", w->queue_max);
  else
    err_set(&err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
  if (r) http_fail(r, &err);
}

void core_tell(struct core *c, struct command *cmd) {
  if (cmd && queue_push(writer_of(c)->queue, cmd) != RC_OK) command_free(cmd);
}

/* ---- a transaction ---- */

static enum rc in_savepoint(struct core *c, command_execute execute, struct command *cmd, struct err *err) {
  struct event **mark = c->events_tail;
  enum rc rc = store_exec(c->store, err, "SAVEPOINT command", NO_BINDS);
  if (rc == RC_OK) rc = execute(c, cmd, err);
  run_context_release(c->ended);
  c->ended = NULL;
  if (rc == RC_OK) return store_exec(c->store, err, "RELEASE command", NO_BINDS);
  c->undone++;
  events_free(*mark);
  *mark = NULL;
  c->events_tail = mark;
  if (store_in_transaction(c->store)) {
    store_exec(c->store, NULL, "ROLLBACK TO command", NO_BINDS);
    store_exec(c->store, NULL, "RELEASE command", NO_BINDS);
  }
  return rc;
}

static void command_run(struct writer *w, struct command *cmd) {
  struct log_context before; /* that of the caller, where there is no thread of the writer's */
  log_context_save(&before);
  log_context_restore(&cmd->log);
  cmd->rc = in_savepoint(&w->core, cmd->execute, cmd, &cmd->err);
  log_context_restore(&before);
  metric_add(w->m_commands, 1);
  if (cmd->rc != RC_OK) {
    cmd->parked = false;
    buf_clear(&cmd->body);
    /* the disk is full or broken: what this command did to the state in memory cannot be undone like its rows */
    if (cmd->rc == RC_IO) w->store_failed = true;
    if (cmd->rc == RC_CONFLICT || cmd->rc == RC_GONE) metric_add(w->m_stale, 1);
  }
}

static void command_finish(struct writer *w, struct command *cmd) {
  fault_die(COORDINATOR_FAULT_DIE_AFTER_ACCEPT, cmd->fault_round);
  struct http_request *r = request_take(w, cmd);
  if (r) {
    struct log_context before;
    log_context_save(&before);
    log_context_restore(&cmd->log);
    if (cmd->rc != RC_OK || cmd->refused)
      http_fail(r, &cmd->err);
    else
      http_reply_json(r, cmd->status ? cmd->status : 200, &cmd->body);
    log_context_restore(&before);
  }
  pthread_mutex_lock(&w->lock);
  cmd->done = true;
  bool waited = cmd->waited;
  if (waited) pthread_cond_broadcast(&w->called);
  pthread_mutex_unlock(&w->lock);
  if (waited) return; /* it is the caller's again */
  if (cmd->answered) cmd->answered(cmd, cmd->answered_context);
  command_free(cmd);
}

static void clocks_read(struct core *c) {
  c->now_ms = core_monotonic_ms(c);
  c->wall_ms = core_wall_us(c) / 1000;
}

static enum rc tick_execute(struct core *c, struct command *cmd, struct err *err) {
  struct writer *w = writer_of(c);
  (void)cmd;
  w->next_tick_ms = c->now_ms + CORE_LOOK_MS;
  return c->options.callbacks->tick(c, &w->next_tick_ms, err);
}

/* They are kept in the order in which they fall due.  Servers wait for equally long, so that a new one mostly comes
 * last. */
static void park(struct writer *w, struct command *cmd) {
  struct command **link = &w->parked;
  if (w->parked_last && w->parked_last->due_ms <= cmd->due_ms) link = &w->parked_last->next;
  while (*link && (*link)->due_ms <= cmd->due_ms) link = &(*link)->next;
  cmd->next = *link;
  *link = cmd;
  if (!cmd->next) w->parked_last = cmd;
  metric_set(w->m_parked, ++w->parked_count);
}

/* Answers the parked polls that can be, moving them from the list to *done.  There may be thousands, so only those that
 * are due are looked at, and the others when there is a reason, or now and then for those whose callers have gone. */
static void parked_look(struct writer *w, struct command **done) {
  struct core *c = &w->core;
  const bool all = c->dispatch_due, some = c->samples_due, passes = c->passes_due;
  const bool look = expiry_passed(w->parked_seen_ms + CORE_LOOK_MS, c->now_ms);
  struct command *before = NULL;
  c->dispatch_due = c->samples_due = c->passes_due = c->nothing_waits = false;
  if (look) w->parked_seen_ms = c->now_ms;
  for (struct command **link = &w->parked; *link;) {
    struct command *cmd = *link;
    const bool of_samples = some && !c->nothing_waits;
    const bool served = cmd->of_passes ? passes : of_samples;
    const bool wanted = all || served || expiry_passed(cmd->due_ms, c->now_ms);
    if (!wanted && !look && !passes && !of_samples) break; /* nor is any behind it, which is due later */
    if (!wanted && !look) {
      before = cmd;
      link = &cmd->next;
      continue;
    }
    const bool orphaned = core_orphaned(c, cmd);
    if (wanted && !orphaned) {
      cmd->parked = false;
      command_run(w, cmd);
    }
    if (cmd->parked && !orphaned) {
      before = cmd;
      link = &cmd->next;
      continue;
    }
    *link = cmd->next;
    if (!cmd->next) w->parked_last = before;
    w->parked_count--;
    cmd->next = *done;
    *done = cmd;
  }
  metric_set(w->m_parked, w->parked_count);
}

/* What one of them is given may leave something for those that were looked at before it. */
static void parked_serve(struct writer *w, struct command **done) {
  do parked_look(w, done);
  while (w->core.samples_due);
}

static enum rc sealed_execute(struct core *c, struct command *cmd, struct err *err) {
  struct writer *w = writer_of(c);
  bool planned = false;
  (void)cmd;
  const enum rc rc = c->options.callbacks->sealed(c, atomic_load(&w->trainer_idle), &planned, err);
  if (rc == RC_OK && planned) core_await_groups(c, INT_MAX, false); /* until the driver has sent it */
  return rc;
}

/* With the last of the groups that the trainer has room for, the batch that takes them is stored: one commit in place
 * of two before it may be sent.  Preprocessors that wait for such groups come first, and what a plan moves may be given
 * to polls again.  A round's end (kick_due) may make fewer worth a batch.  What is not planned here, or fails, is left
 * to the driver. */
static bool sealed_serve(struct writer *w) {
  struct core *c = &w->core;
  struct err err;
  const int awaited = atomic_load(&w->groups_awaited);
  if (c->sealed == 0 || awaited == INT_MAX) return false;
  if (atomic_fetch_add(&w->groups_came, c->sealed) + c->sealed < awaited && !c->kick_due) return false;
  const enum rc rc = in_savepoint(c, sealed_execute, NULL, &err);
  if (rc == RC_IO) w->store_failed = true;
  if (rc != RC_OK) log_debug("no batch was planned with the groups that were sealed: %s", err.message);
  return rc == RC_OK;
}

static void commit_failed(struct writer *w, struct command *done, const struct err *err) {
  struct core *c = &w->core;
  log_error("the transaction could not be committed, the coordinator ends: %s", err->message);
  if (store_in_transaction(c->store)) store_script(c->store, "ROLLBACK", NULL);
  atomic_store(&w->broken, true);
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
  return c->options.callbacks->put_off(c, ms, err);
}

/* The next command of the transaction in hand, which has `taken` so far, or NULL; patient: all of its commands are.  It
 * waits for those whose last answer came with the last transaction and those that were queued then: when all of them
 * are here nobody else is likely to come soon. */
static struct command *company(struct writer *w, size_t taken, bool patient, int64_t begun_us) {
  const struct core *c = &w->core;
  const bool awaited = c->kick_due || (c->sealed && atomic_load(&w->trainer_idle)) ||
                       (c->checks_due && atomic_load(&w->checks_awaited));
  const int64_t passed_us = monotonic_us(c) - begun_us;
  void *item;
  if (!w->threaded || passed_us >= (awaited ? GROUP_US : GROUP_BUSY_US)) return NULL;
  const bool waits = patient && !awaited && taken < w->company_max && passed_us < GROUP_US;
  const int64_t wait_ms = waits ? (GROUP_US - passed_us) / 1000 : 0;
  return queue_pop(w->queue, &item, wait_ms) == RC_OK ? item : NULL;
}

/* One transaction: the command in hand, those that wait behind it, what time brings, the polls that can be answered. */
static void transact(struct writer *w, struct command *first) {
  struct core *c = &w->core;
  struct command *done = NULL, *cmd = first;
  struct err err = {0};
  int64_t begun_us = monotonic_us(c);
  bool patient = true;
  int64_t last_ms = c->now_ms;
  clocks_read(c);
  c->events = NULL;
  c->events_tail = &c->events;
  enum rc rc = store_exec(c->store, &err, "BEGIN IMMEDIATE", NO_BINDS);
  if (rc == RC_OK) rc = put_off(c, expiry_stall(last_ms, c->now_ms, CORE_LOOK_MS), &err);
  if (rc == RC_OK && expiry_passed(w->next_tick_ms, c->now_ms)) rc = in_savepoint(c, tick_execute, NULL, &err);
  for (size_t n = 0; cmd; n++) {
    if (rc == RC_OK && !w->store_failed) command_run(w, cmd);
    if (rc == RC_OK && cmd->parked) {
      park(w, cmd);
    } else {
      cmd->next = done;
      done = cmd;
    }
    patient &= cmd->patient;
    cmd = n + 1 < GROUP_COMMANDS ? company(w, n + 1, patient, begun_us) : NULL;
  }
  if (rc == RC_OK && !w->store_failed) parked_serve(w, &done);
  if (rc == RC_OK && !w->store_failed && sealed_serve(w)) parked_serve(w, &done);
  if (rc == RC_OK && w->store_failed)
    rc = err_set(&err, RC_IO, NULL, "the database could not be written (is the disk full?)");
  if (rc == RC_OK && !store_in_transaction(c->store))
    rc = err_set(&err, RC_IO, NULL, "SQLite gave up the transaction (is the disk full, or memory short?)");
  if (rc == RC_OK) rc = store_exec(c->store, &err, "COMMIT", NO_BINDS);
  if (rc != RC_OK) commit_failed(w, done, &err);
  metric_add(w->m_commits, 1);
  for (w->company_max = queue_length(w->queue); done; w->company_max++) {
    struct command *next = done->next;
    command_finish(w, done);
    done = next;
  }
  hub_publish(w->hub, c->events);
  events_free(c->events);
  c->events = NULL;
  void (*const kick)(void *context, int sealed) = atomic_load(&w->kick);
  void (*const check)(void *context) = atomic_load(&w->check);
  if ((c->kick_due || c->sealed) && kick) kick(w->kick_context, c->kick_due ? 0 : c->sealed);
  c->kick_due = false;
  c->sealed = 0;
  if (c->checks_due && check) check(w->check_context);
  c->checks_due = false;
}

/* ---- calls ---- */

/* The command's outcome; frees it. */
static enum rc call_end(struct command *cmd, struct err *err) {
  const enum rc rc = cmd->rc == RC_OK && cmd->refused ? cmd->err.rc : cmd->rc;
  if (rc != RC_OK && err) *err = cmd->err;
  command_free(cmd);
  return rc;
}

enum rc core_call(struct core *c, struct command *cmd, struct err *err) {
  struct writer *w = writer_of(c);
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  cmd->waited = true;
  if (!w->threaded) {
    transact(w, cmd);
    assert(cmd->done); /* nobody would come back to a parked one */
    return call_end(cmd, err);
  }
  enum rc rc = queue_push(w->queue, cmd);
  if (rc != RC_OK) {
    command_free(cmd);
    return err_set(err, rc, NULL,
                   rc == RC_FULL ? "the coordinator's queue of commands is full" : "the coordinator is stopping");
  }
  struct timespec deadline = clock_deadline_in(CALL_MS);
  pthread_mutex_lock(&w->lock);
  while (!cmd->done && pthread_cond_timedwait(&w->called, &w->lock, &deadline) == 0) continue;
  bool done = cmd->done;
  cmd->waited = done; /* an unanswered command is freed by the writer */
  pthread_mutex_unlock(&w->lock);
  if (!done) return err_set(err, RC_TIMEOUT, NULL, "the writer did not get to a command within %d ms", CALL_MS);
  return call_end(cmd, err);
}

void core_post(struct core *c, struct command *cmd, void (*answered)(struct command *cmd, void *context),
               void *context) {
  struct writer *w = writer_of(c);
  assert(!w->threaded);
  cmd->answered = answered;
  cmd->answered_context = context;
  transact(w, cmd);
}

void core_hung_up(struct core *c, struct command *cmd) {
  struct writer *w = writer_of(c);
  pthread_mutex_lock(&w->lock);
  cmd->answered = NULL;
  pthread_mutex_unlock(&w->lock);
}

/* It may run behind other commands of a transaction that began before the clock was moved. */
static enum rc wake_execute(struct core *c, struct command *cmd, struct err *err) {
  clocks_read(c);
  c->kick_due = true;
  return tick_execute(c, cmd, err);
}

enum rc core_wake(struct core *c, struct err *err) { return core_call(c, command_new(wake_execute, 0), err); }

/* ---- the thread ---- */

static int64_t next_wait(const struct writer *w) {
  int64_t earliest = w->next_tick_ms;
  if (w->parked && w->parked->due_ms < earliest) earliest = w->parked->due_ms;
  return expiry_sleep(earliest, core_monotonic_ms(&w->core), CORE_LOOK_MS);
}

/* People compare the times that they are shown with their logs'. */
static void clock_compare(struct writer *w) {
  const int64_t off_ms = clock_real_ms() - core_wall_us(&w->core) / 1000;
  if (llabs(off_ms - w->clock_off_ms) < CLOCK_SET_MS) return;
  w->clock_off_ms = off_ms;
  log_warn("this machine's clock is %" PRId64
           " ms %s the times that are stored; these go on evenly, and follow it when "
           "the coordinator is started again and no stored time lies ahead of it",
           (int64_t)llabs(off_ms), off_ms > 0 ? "ahead of" : "behind");
}

static void *writer_main(void *context) {
  struct writer *w = context;
  struct core *c = &w->core;
  c->now_ms = core_monotonic_ms(c);
  clock_compare(w);
  while (!atomic_load(&w->broken)) {
    void *item = NULL;
    enum rc rc = queue_pop(w->queue, &item, next_wait(w));
    if (rc == RC_UNAVAILABLE) break; /* closed and empty */
    transact(w, rc == RC_OK ? item : NULL);
    checkpoints_go_on(w->checkpoints);
    if (expiry_passed(w->next_keep_alive_ms, c->now_ms)) {
      w->next_keep_alive_ms = c->now_ms + KEEP_ALIVE_MS;
      hub_keep_alive(w->hub);
      clock_compare(w);
    }
  }
  struct command *rest = w->parked;
  void *item;
  w->parked = w->parked_last = NULL;
  queue_close(w->queue);
  while (queue_pop(w->queue, &item, 0) == RC_OK) {
    struct command *cmd = item;
    cmd->next = rest;
    rest = cmd;
  }
  while (rest) {
    struct command *next = rest->next;
    rest->rc = err_set(&rest->err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
    command_finish(w, rest);
    rest = next;
  }
  return NULL;
}

/* ---- start ---- */

/* Stored times go on from the newest one, so that no duration since a stored time is negative. */
static enum rc clock_go_on(struct core *c, struct err *err) {
  int64_t newest_ms = 0;
  enum rc rc = store_int(
      c->store, &newest_ms, err,
      "SELECT max(coalesce((SELECT max(seen_ms) FROM workers), 0), coalesce((SELECT max(max(created_ms, "
      "coalesce(started_ms, 0), coalesce(ended_ms, 0))) FROM runs), 0), coalesce((SELECT at_ms FROM events ORDER BY id "
      "DESC LIMIT 1), 0), coalesce((SELECT at_ms FROM incidents ORDER BY id DESC LIMIT 1), 0), coalesce((SELECT "
      "max(opened_ms, coalesce(generated_ms, 0), coalesce(trained_ms, 0), coalesce(published_ms, 0)) FROM rounds ORDER "
      "BY opened_ms DESC LIMIT 1), 0), coalesce((SELECT max(max(coalesce(leased_ms, 0), coalesce(waiting_ms, 0), "
      "coalesce(overtaken_ms, 0))) FROM groups INDEXED BY groups_open WHERE state = " SQL_GROUP_OPEN "), 0))",
      NO_BINDS);
  const int64_t behind_us = newest_ms * 1000 - core_wall_us(c);
  if (behind_us > 0) writer_of(c)->wall_ahead_us = behind_us;
  clocks_read(c);
  return rc;
}

static enum rc epoch_begin(struct core *c, struct err *err) {
  int64_t epoch = 0;
  enum rc rc = store_script(c->store, "BEGIN IMMEDIATE", err);
  if (rc == RC_OK) rc = store_exec(c->store, err, "UPDATE meta SET value = value + 1 WHERE key = 'epoch'", NO_BINDS);
  if (rc == RC_OK) rc = store_int(c->store, &epoch, err, "SELECT value FROM meta WHERE key = 'epoch'", NO_BINDS);
  if (rc == RC_OK) rc = c->options.callbacks->begin(c, err);
  if (rc == RC_OK) rc = store_script(c->store, "COMMIT", err);
  c->epoch = (uint64_t)epoch;
  return rc;
}

static void metrics_make(struct writer *w) {
  w->m_commands =
      metrics_register(METRIC_COUNTER, "leasehold_commands_total", "", "Commands carried out by the writer");
  w->m_commits = metrics_register(METRIC_COUNTER, "leasehold_commits_total", "", "Transactions of the writer");
  w->m_stale = metrics_register(METRIC_COUNTER, "leasehold_stale_messages_total", "",
                                "Messages refused as stale, expired or conflicting");
  w->m_parked = metrics_register(METRIC_GAUGE, "leasehold_waiting_polls", "", "Lease polls that wait");
  w->core.m_incidents =
      metrics_register(METRIC_COUNTER, "leasehold_incidents_total", "", "Nondeterminism and other incidents");
}

/* Then the database has one connection, and no log beside it. */
static bool is_in_memory(const struct writer *w) { return strcmp(w->core.options.db_path, ":memory:") == 0; }

static enum rc database_open(struct writer *w, struct err *err) {
  struct core *c = &w->core;
  const char *path = c->options.db_path;
  const bool in_memory = is_in_memory(w);
  enum rc rc = in_memory ? RC_OK : database_lock_take(&w->lock_file, path, err);
  if (rc == RC_OK) rc = store_open(&c->store, path, false, err);
  if (rc == RC_OK) rc = migrations_apply(c->store, err);
  if (rc == RC_OK) rc = clock_go_on(c, err);
  if (rc == RC_OK) rc = epoch_begin(c, err);
  if (rc == RC_OK)
    rc = in_memory ? readers_create_of_one(&w->readers, c->store, err) : readers_create(&w->readers, path, err);
  if (rc == RC_OK && !in_memory) database_lock_sign(w->lock_file);
  return rc;
}

enum rc core_create(struct core **out, const struct core_options *options, struct err *err) {
  assert(options->callbacks);
  struct writer *w = calloc(1, sizeof *w);
  if (!w) return err_set(err, RC_NO_MEMORY, NULL, "the coordinator's state of %zu bytes was refused", sizeof *w);
  struct core *c = &w->core;
  c->options = *options;
  if (c->options.workers_max == 0) c->options.workers_max = WORKERS_MAX_DEFAULT;
  if (!c->options.clock.monotonic_us) c->options.clock = clock_machine;
  c->events_tail = &c->events;
  pthread_mutex_init(&w->lock, NULL);
  cond_init(&w->called);
  metrics_make(w);
  w->lock_file = -1;
  core_await_groups(c, INT_MAX, false);
  enum rc rc = c->options.callbacks->create(c, err);
  if (rc == RC_OK) rc = database_open(w, err);
  if (rc == RC_OK) rc = hub_create(&w->hub, w->readers, err);
  w->queue_max = QUEUE_COMMANDS + (size_t)c->options.workers_max; /* each worker may wait for one answer */
  if (rc == RC_OK) rc = queue_create(&w->queue, w->queue_max, err);
  if (rc != RC_OK) {
    core_destroy(c);
    return rc;
  }
  *out = c;
  return RC_OK;
}

enum rc core_start(struct core *c, struct err *err) {
  struct writer *w = writer_of(c);
  w->threaded = true;
  const enum rc rc = is_in_memory(w) ? RC_OK : checkpoints_start(&w->checkpoints, c->store, c->options.db_path, err);
  if (rc != RC_OK) return rc;
  if (pthread_create(&w->thread, NULL, writer_main, w) != 0)
    return err_set(err, RC_NO_MEMORY, NULL, "the writer's thread could not be started");
  w->started = true;
  return RC_OK;
}

void core_stop(struct core *c) {
  struct writer *w = writer_of(c);
  if (!w->started) return;
  queue_close(w->queue);
  pthread_join(w->thread, NULL);
  w->started = false;
}

void core_destroy(struct core *c) {
  if (!c) return;
  struct writer *w = writer_of(c);
  core_stop(c);
  while (w->parked) { /* of a core that was never started */
    struct command *next = w->parked->next;
    command_free(w->parked);
    w->parked = next;
  }
  run_context_release(c->context);
  queue_destroy(w->queue);
  hub_destroy(w->hub);
  readers_destroy(w->readers);
  checkpoints_stop(w->checkpoints);
  store_close(c->store);
  database_lock_release(w->lock_file);
  pthread_cond_destroy(&w->called);
  pthread_mutex_destroy(&w->lock);
  c->options.callbacks->destroy(c);
  free(w);
}
