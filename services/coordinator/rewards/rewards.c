/* Asks reward servers: see rewards.h. */
#include "services/coordinator/rewards/rewards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/base/utf8.h"
#include "common/http/client.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/rewards/reward_answers.h"
#include "services/coordinator/rewards/reward_hosts.h"
#include "services/coordinator/rewards/reward_ledger.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/run/round_work.h"
#include "services/coordinator/store/ids.h"

/* IDLE_MS: between two looks at a run that has no http terms.  TROUBLE_MS: after a fault of ours. */
enum {
  LOOK_MS = 20,
  IDLE_MS = 200,
  JOBS_MAX = 1024,
  NOTE_MS = 250,
  CLOCK_MS = 250,
  TROUBLE_MS = 500,
  HTTPS_CONNECT_MS = 10000,
  ERROR_SHOWN = 512
};

/* The server of one term of the active run's rule. */
struct server {
  int count;
  struct reward_part parts[JOBS_MAX]; /* in order */
  struct reward_wait waits[JOBS_MAX];
  int64_t done_in[JOBS_MAX]; /* the look in which it was done: a later one that still finds it has found new samples */
  struct breaker breaker;
  enum breaker_state noted;
  int64_t requests, failures; /* since the last note */
  char last_error[ERROR_SHOWN];
};

struct rewards {
  struct core *core;
  struct rewards_options options;
  atomic_bool stopping;
  pthread_mutex_t lock; /* guards context, generation, looks and servers */
  pthread_cond_t wake;
  struct run_context *context; /* of the run that the servers are of; NULL: none */
  int64_t generation;          /* another one for each context */
  int64_t looks;
  struct server servers[REWARD_TERMS_MAX];
  struct server merged;               /* the looking thread's */
  struct reward_part found[JOBS_MAX]; /* its */
  int64_t looked_ms, noted_ms;        /* its */
  int64_t untold_ms;                  /* its: of the run's clock */
  bool counting;                      /* its: the run was running at the last look */
  pthread_t looker;
  pthread_t *callers; /* [options.threads] */
  int started;        /* of them */
  bool looks_on;
  struct metric *m_requests, *m_failures;
};

/* ---- looking ---- */

/* Both lists are in order.  Jobs that nobody waits for any more go, unless they are in flight. */
static void merge(struct server *s, struct server *to, const struct reward_part *found, int n, int64_t look) {
  int a = 0, b = 0;
  to->count = 0;
  while ((a < s->count || b < n) && to->count < JOBS_MAX) {
    const int order = a == s->count ? 1 : b == n ? -1 : reward_part_order(&s->parts[a], &found[b]);
    const int at = to->count;
    if (order > 0) {
      to->parts[at] = found[b++];
      to->waits[at] = (struct reward_wait){.waited_ms = to->parts[at].waited_ms};
      to->done_in[at] = 0;
      to->count++;
      continue;
    }
    const bool again = order == 0 && s->waits[a].done && s->done_in[a] < look;
    to->parts[at] = s->parts[a];
    to->waits[at] = again ? (struct reward_wait){.in_flight = false} : s->waits[a];
    to->done_in[at] = s->done_in[a];
    to->count += order == 0 || s->waits[a].in_flight;
    a++;
    b += order == 0;
  }
  s->count = to->count;
  memcpy(s->parts, to->parts, (size_t)s->count * sizeof s->parts[0]);
  memcpy(s->waits, to->waits, (size_t)s->count * sizeof s->waits[0]);
  memcpy(s->done_in, to->done_in, (size_t)s->count * sizeof s->done_in[0]);
}

static void note(struct rewards *r, const struct run_context *x, int term, bool due) {
  struct server *s = &r->servers[term];
  struct command *cmd = command_new(reward_note_execute, sizeof(struct reward_note));
  if (!cmd) return;
  struct reward_note *m = cmd->message;
  pthread_mutex_lock(&r->lock);
  const bool wanted = s->breaker.state != s->noted || (due && s->requests > 0);
  *m = (struct reward_note){
      .run = x->run, .term = term, .state = s->breaker.state, .requests = s->requests, .failures = s->failures};
  m->url = arena_strdup(&cmd->arena, x->config.verifier.terms[term].http->url);
  m->last_error = s->last_error[0] ? arena_strdup(&cmd->arena, s->last_error) : NULL;
  if (wanted && m->url) {
    s->requests = s->failures = 0;
    s->noted = s->breaker.state;
  }
  pthread_mutex_unlock(&r->lock);
  if (wanted && m->url)
    core_tell(r->core, cmd);
  else
    command_free(cmd);
}

static void notes(struct rewards *r, const struct run_context *x, bool due) {
  for (int i = 0; i < x->config.verifier.count; i++)
    if (x->config.verifier.terms[i].kind == VERIFIER_HTTP) note(r, x, i, due);
}

/* The run's rule, kept for the caller, if it has terms that wait for servers. */
static struct run_context *active(struct rewards *r, int64_t *look) {
  struct run_context *x = rounds_context_keep(r->core);
  if (x != r->context && r->context) notes(r, r->context, true); /* only this thread changes r->context */
  pthread_mutex_lock(&r->lock);
  if (x != r->context) {
    run_context_release(r->context);
    r->context = x ? run_context_keep(x) : NULL;
    r->generation++;
    memset(r->servers, 0, sizeof r->servers);
  }
  *look = ++r->looks;
  pthread_mutex_unlock(&r->lock);
  if (x && reward_remote_terms(&x->config.verifier) > 0) return x;
  run_context_release(x);
  return NULL;
}

/* The ledger's clock of deadlines, CLOCK_MS at a time: a coordinator that is killed counts so much less. */
static void clock_tell(struct rewards *r, int64_t run) {
  struct command *cmd = command_new(reward_clock_execute, sizeof(struct reward_clock));
  if (!cmd) return;
  *(struct reward_clock *)cmd->message = (struct reward_clock){.run = run, .passed_ms = r->untold_ms};
  r->untold_ms = 0;
  core_tell(r->core, cmd);
}

/* *waits is set where something does. */
static void look_at(struct rewards *r, const struct run_context *x, int term, int64_t look, int64_t passed_ms,
                    bool *running, bool *waits) {
  struct server *s = &r->servers[term];
  struct err err = {0};
  int n = 0;
  if (reward_parts_read(core_readers(r->core), x->run, term, x->config.verifier.terms[term].http, r->found, JOBS_MAX,
                        &n, running, &err) != RC_OK) {
    log_warn("the samples that wait for reward servers could not be read: %s", err.message);
    return;
  }
  pthread_mutex_lock(&r->lock);
  merge(s, &r->merged, r->found, n, look);
  for (int i = 0; i < s->count; i++) s->waits[i].waited_ms += passed_ms;
  if (*running && !r->counting && r->looked_ms) { /* it was resumed */
    const int64_t now_ms = core_monotonic_ms(r->core);
    for (int i = 0; i < s->count; i++) reward_begin_anew(&s->waits[i], now_ms);
    breaker_begin_anew(&s->breaker, now_ms);
  }
  if (s->count) pthread_cond_broadcast(&r->wake);
  *waits |= s->count > 0;
  pthread_mutex_unlock(&r->lock);
}

/* Returns how long to rest. */
static int64_t look(struct rewards *r) {
  const int64_t now_ms = core_monotonic_ms(r->core);
  int64_t number = 0;
  struct run_context *x = active(r, &number);
  if (!x) {
    r->looked_ms = 0;
    return IDLE_MS;
  }
  const int64_t since_ms = r->looked_ms ? now_ms - r->looked_ms : 0;
  const int64_t passed_ms = since_ms - expiry_uncounted(since_ms, r->counting, CORE_LOOK_MS);
  const bool due = now_ms - r->noted_ms >= NOTE_MS;
  bool running = false, waits = false;
  for (int i = 0; i < x->config.verifier.count; i++)
    if (x->config.verifier.terms[i].kind == VERIFIER_HTTP) look_at(r, x, i, number, passed_ms, &running, &waits);
  if (waits) r->untold_ms += passed_ms;
  if (r->untold_ms >= CLOCK_MS) clock_tell(r, x->run);
  notes(r, x, due);
  if (due) r->noted_ms = now_ms;
  r->looked_ms = now_ms;
  r->counting = running;
  run_context_release(x);
  return LOOK_MS;
}

static void *looker_main(void *context) {
  struct rewards *r = context;
  while (!atomic_load(&r->stopping)) clock_sleep_ms(look(r));
  return NULL;
}

/* ---- calling ---- */

/* What a caller does now; its memory lasts until it is done. */
struct task {
  struct run_context *context; /* kept */
  int64_t generation;
  const struct http_term *server;
  int term;
  struct reward_part part;
  enum reward_move move;
  struct reward_wait wait;
  struct arena arena;
  struct reward_item *items;
  int count;
};

enum task_end {
  TASK_STORED,  /* nothing of it waits any more */
  TASK_PAUSED,  /* the run is */
  TASK_AGAIN,   /* no reward: the outcome says why */
  TASK_TROUBLE  /* ours */
};

/* Under the lock. */
static bool task_choose(struct rewards *r, struct task *t) {
  const int64_t now_ms = core_monotonic_ms(r->core);
  const struct reward_rule *rule = r->context ? &r->context->config.verifier : NULL;
  for (int i = 0; rule && i < rule->count; i++) {
    struct server *s = &r->servers[i];
    int at = 0;
    if (rule->terms[i].kind != VERIFIER_HTTP) continue;
    const enum reward_move move =
        reward_next(s->waits, s->count, &rule->terms[i].http->policy, &s->breaker, now_ms, &at);
    if (move == REWARD_LEAVE) continue;
    if (move == REWARD_ASK) breaker_asked(&s->breaker);
    s->waits[at].in_flight = true;
    *t = (struct task){.context = run_context_keep(r->context),
                       .generation = r->generation,
                       .server = rule->terms[i].http,
                       .term = i,
                       .part = s->parts[at],
                       .move = move,
                       .wait = s->waits[at],
                       .arena = ARENA_INIT};
    return true;
  }
  return false;
}

/* Under the lock. */
static void task_over(struct rewards *r, const struct task *t, enum task_end end, enum reward_outcome outcome,
                      const struct err *err) {
  const int64_t now_ms = core_monotonic_ms(r->core);
  if (t->generation != r->generation) return;
  struct server *s = &r->servers[t->term];
  int at = 0;
  while (at < s->count && reward_part_order(&s->parts[at], &t->part) != 0) at++;
  if (t->move == REWARD_ASK && (end == TASK_AGAIN || end == TASK_STORED)) {
    if (t->count) breaker_heard(&s->breaker, &t->server->policy, outcome, now_ms);
    s->requests += t->count > 0;
    s->failures += end == TASK_AGAIN;
    snprintf(s->last_error, sizeof s->last_error, "%.*s", ERROR_SHOWN - 1, end == TASK_AGAIN ? err->message : "");
  }
  if (s->breaker.state == BREAKER_HALF_OPEN && t->move == REWARD_ASK && (end == TASK_TROUBLE || !t->count)) {
    s->breaker.state = BREAKER_OPEN; /* the one call was not made */
    s->breaker.until_ms = now_ms;
  }
  if (at == s->count) return;
  struct reward_wait *w = &s->waits[at];
  w->in_flight = false;
  if (end == TASK_STORED) {
    w->done = true;
    s->done_in[at] = r->looks;
  }
  if (end == TASK_AGAIN) reward_again(w, now_ms, (uint32_t)(clock_monotonic_us() * 2654435761u));
  if (end == TASK_PAUSED) {
    reward_begin_anew(w, now_ms);
    w->next_ms = now_ms + BACKOFF_MOST_MS; /* unless the run is resumed before */
  }
  if (end == TASK_TROUBLE) w->next_ms = now_ms + TROUBLE_MS;
}

/* What went wrong in a judge is its own to say: as much of its text as can be shown stands in the error. */
static enum rc refusal(const char *url, const struct http_answer *answer, struct err *err) {
  enum { SAID_MAX = 240 };
  char said[SAID_MAX + 1];
  size_t len = 0;
  for (size_t at = 0; at < answer->body.len;) {
    const char *const c = &answer->body.data[at];
    const int bytes = utf8_length(c, answer->body.len - at);
    const bool shown = bytes > 0 && (unsigned char)*c >= ' ';
    if (len + (shown ? (size_t)bytes : 1) > SAID_MAX) break;
    if (shown)
      memcpy(&said[len], c, (size_t)bytes);
    else
      said[len] = ' ';
    len += shown ? (size_t)bytes : 1;
    at += bytes > 0 ? (size_t)bytes : 1;
  }
  said[len] = 0;
  return err_set(err, RC_UNAVAILABLE, NULL, "%s answered with status %d%s%s", url, answer->status, len > 0 ? ": " : "",
                 said);
}

static enum rc ask(struct rewards *r, struct http_client *http, const struct task *t, double *values,
                   enum reward_outcome *outcome, struct err *err) {
  char key[DIGEST_HEX_MAX], key_line[DIGEST_HEX_MAX + 32], group_line[LIMIT_NAME_MAX + 32];
  struct buf body = BUF_INIT;
  struct http_answer answer;
  const struct id_text group = id_group(t->context->run, t->part.round, t->part.group);
  *outcome = REWARD_FAILED;
  enum rc rc = reward_host_check(r->options.hosts, t->server->url, err);
  if (rc != RC_OK) return rc;
  reward_key(key, group.text, t->term, t->items, t->count);
  snprintf(key_line, sizeof key_line, "Idempotency-Key: %s", key);
  snprintf(group_line, sizeof group_line, "X-Leasehold-Group: %s", group.text);
  reward_request_write(&body, t->server, t->items, t->count);
  const char *const headers[] = {key_line, group_line, NULL};
  const struct http_call call = {.method = "POST",
                                 .url = t->server->url,
                                 .body = body.data,
                                 .body_len = body.len,
                                 .headers = headers,
                                 .deadline_ms = reward_call_ms(&t->wait, &t->server->policy),
                                 .connect_ms = http_term_secure(t->server->url) ? HTTPS_CONNECT_MS : 0,
                                 .response_bytes_max = reward_answer_bytes_max(t->count)};
  rc = buf_check(&body, err);
  if (rc == RC_OK) {
    metric_add(r->m_requests, 1);
    rc = http_client_call(http, &call, &answer, err);
    if (rc == RC_TOO_LARGE) *outcome = REWARD_REFUSED;
    if (rc == RC_OK) {
      const bool fine = answer.status >= 200 && answer.status <= 299;
      if (fine || (answer.status < 500 && answer.status != 429)) *outcome = REWARD_REFUSED;
      rc = fine ? reward_answer_read(values, t->server, t->count, answer.body.data ? answer.body.data : "",
                                     answer.body.len, err)
                : refusal(t->server->url, &answer, err);
      http_answer_free(&answer);
    }
  }
  buf_free(&body);
  if (rc == RC_OK) *outcome = REWARD_ANSWERED;
  return rc;
}

/* values NULL: a loss. */
static enum rc tell(struct rewards *r, const struct task *t, const double *values, const char *why, struct err *err) {
  struct command *cmd =
      command_new(values ? reward_answer_execute : reward_loss_execute, sizeof(struct reward_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a reward was refused memory");
  struct reward_message *m = cmd->message;
  *m = (struct reward_message){
      .run = t->context->run, .round = t->part.round, .group = t->part.group, .term = t->term, .count = t->count};
  m->values = arena_alloc(&cmd->arena, (size_t)t->count + 1, sizeof *m->values);
  m->why = why && why[0] ? arena_strdup(&cmd->arena, why) : NULL;
  if (!m->values) {
    command_free(cmd);
    return err_set(err, RC_NO_MEMORY, NULL, "a reward was refused memory");
  }
  for (int i = 0; i < t->count; i++)
    m->values[i] = (struct reward_value){t->items[i].sample, t->items[i].digest, values ? values[i] : 0};
  return core_call(r->core, cmd, err);
}

static enum task_end give_up(struct rewards *r, const struct task *t, struct err *err) {
  char why[ERROR_SHOWN];
  pthread_mutex_lock(&r->lock);
  memcpy(why, r->servers[t->term].last_error, sizeof why);
  pthread_mutex_unlock(&r->lock);
  if (tell(r, t, NULL, why, err) != RC_OK) return TASK_TROUBLE;
  return t->server->on_deadline == DEADLINE_FAIL ? TASK_PAUSED : TASK_STORED;
}

static enum task_end task_do(struct rewards *r, struct http_client *http, struct task *t, enum reward_outcome *outcome,
                             struct err *err) {
  *outcome = REWARD_ANSWERED;
  enum rc rc = reward_items_read(core_readers(r->core), t->context->run, t->term, t->server, &t->part, &t->items,
                                 &t->count, &t->arena, err);
  if (rc != RC_OK) return TASK_TROUBLE;
  if (t->count == 0) return TASK_STORED;
  if (t->move == REWARD_GIVE_UP) return give_up(r, t, err);
  double *values = arena_alloc(&t->arena, (size_t)t->count, sizeof *values);
  if (!values) return TASK_TROUBLE;
  rc = ask(r, http, t, values, outcome, err);
  if (atomic_load(&r->stopping)) return TASK_TROUBLE;
  if (rc != RC_OK) {
    metric_add(r->m_failures, 1);
    return TASK_AGAIN;
  }
  return tell(r, t, values, NULL, err) == RC_OK ? TASK_STORED : TASK_TROUBLE;
}

static void *caller_main(void *context) {
  struct rewards *r = context;
  struct http_client *http = NULL;
  struct err err = {0};
  if (http_client_create(&http, r->options.token, &r->stopping, &err) != RC_OK) {
    log_error("a thread that asks for rewards ends: %s", err.message);
    return NULL;
  }
  http_client_of_strangers(http, r->options.ca_file);
  pthread_mutex_lock(&r->lock);
  while (!atomic_load(&r->stopping)) {
    struct task t;
    enum reward_outcome outcome;
    if (!task_choose(r, &t)) {
      const struct timespec until = clock_deadline_in(IDLE_MS);
      pthread_cond_timedwait(&r->wake, &r->lock, &until);
      continue;
    }
    pthread_mutex_unlock(&r->lock);
    err = (struct err){0};
    round_work(t.context, t.part.round, t.part.group);
    const enum task_end end = task_do(r, http, &t, &outcome, &err);
    if (end == TASK_TROUBLE && err.message[0])
      log_warn("rewards of group %s: %s", id_group(t.context->run, t.part.round, t.part.group).text, err.message);
    log_context_clear();
    pthread_mutex_lock(&r->lock);
    task_over(r, &t, end, outcome, &err);
    run_context_release(t.context);
    arena_free(&t.arena);
  }
  pthread_mutex_unlock(&r->lock);
  http_client_destroy(http);
  return NULL;
}

/* ---- start and end ---- */

enum rc rewards_start(struct rewards **out, struct core *core, const struct rewards_options *options, struct err *err) {
  *out = NULL;
  if (!options->hosts || !options->hosts[0]) return RC_OK;
  const enum rc rc = http_ca_file_check(options->ca_file, err);
  if (rc != RC_OK) {
    err_in_file(err, "--reward-ca");
    return rc;
  }
  struct rewards *r = calloc(1, sizeof *r);
  if (r) r->callers = calloc((size_t)options->threads, sizeof *r->callers);
  if (!r || !r->callers) {
    free(r);
    return err_set(err, RC_NO_MEMORY, NULL, "the rewards' state of %zu bytes was refused", sizeof *r);
  }
  r->core = core;
  r->options = *options;
  pthread_mutex_init(&r->lock, NULL);
  cond_init(&r->wake);
  r->m_requests = metrics_register(METRIC_COUNTER, "leasehold_reward_requests_total", "", "Requests to reward servers");
  r->m_failures = metrics_register(METRIC_COUNTER, "leasehold_reward_failures_total", "",
                                   "Requests to reward servers that brought no reward");
  r->looks_on = pthread_create(&r->looker, NULL, looker_main, r) == 0;
  bool fine = r->looks_on;
  while (fine && r->started < options->threads) {
    fine = pthread_create(&r->callers[r->started], NULL, caller_main, r) == 0;
    r->started += fine;
  }
  *out = r;
  if (fine) return RC_OK;
  rewards_stop(r);
  *out = NULL;
  return err_set(err, RC_NO_MEMORY, NULL, "the threads that ask for rewards could not be started");
}

void rewards_stop(struct rewards *r) {
  if (!r) return;
  atomic_store(&r->stopping, true);
  pthread_mutex_lock(&r->lock);
  pthread_cond_broadcast(&r->wake);
  pthread_mutex_unlock(&r->lock);
  if (r->looks_on) pthread_join(r->looker, NULL);
  for (int i = 0; i < r->started; i++) pthread_join(r->callers[i], NULL);
  run_context_release(r->context);
  pthread_cond_destroy(&r->wake);
  pthread_mutex_destroy(&r->lock);
  free(r->callers);
  free(r);
}
