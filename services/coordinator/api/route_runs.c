/* Answers POST /v1/runs, which queues a run, and the routes that show runs and their rounds. */
#include "services/coordinator/api/route_runs.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "services/coordinator/records/curriculum.h"
#include "services/coordinator/records/kept_versions.h"
#include "services/coordinator/rewards/reward_hosts.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/trainer/run_check.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/views/run_view.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"

/* ---- POST /v1/runs ---- */

struct post_run {
  struct run_config config;
  char *text;
  struct digest hash;
  bool checking; /* its datasets could not be checked in time */
};

static enum run_state first_state(const struct post_run *m) { return m->checking ? RUN_CHECKING : RUN_QUEUED; }

static void created_write(struct command *cmd, int64_t run, const struct post_run *m) {
  struct json_writer w;
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, &m->hash);
  json_writer_init(&w, &cmd->body);
  json_object_begin(&w);
  json_kv_string(&w, "id", id_run(run).text);
  json_kv_string(&w, "state", state_name(MACHINE_RUN, (int)first_state(m)));
  json_key(&w, "config");
  run_config_write(&m->config, &w);
  json_kv_string(&w, "config_hash", hex);
  json_object_end(&w);
  cmd->status = 201;
}

/* Again, because the run whose pass rates it counts may have dropped some since run_check.  From now on it drops none:
 * see retention.h. */
static enum rc curriculum_still(struct store *s, const struct curriculum_config *rule, struct err *err) {
  int64_t run = 0;
  if (!rule->given || !rule->from[0]) return RC_OK;
  const enum rc rc = id_parse_run(&run, rule->from, err);
  return rc == RC_OK ? curriculum_countable(s, run, rule->from, err) : rc;
}

static enum rc post_run_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct post_run *m = cmd->message;
  char seed[24];
  enum rc rc = run_queue_check(c->store, err); /* again, because other runs may have been queued since run_check */
  if (rc == RC_OK) rc = curriculum_still(c->store, &m->config.curriculum, err);
  snprintf(seed, sizeof seed, "%" PRIu64, m->config.seed);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "INSERT INTO runs (name, state, mode, objective, config, config_hash, rounds, seed, created_ms) "
                    "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                    BINDS(b_text(m->config.name), b_int((int64_t)first_state(m)), b_int((int64_t)m->config.mode),
                          b_text(m->config.training.objective), b_text(m->text), b_digest(&m->hash),
                          b_int(m->config.rounds), b_text(seed), b_int(c->wall_ms)));
  }
  if (rc != RC_OK) return rc;
  int64_t run = store_last_id(c->store);
  created_write(cmd, run, m);
  c->kick_due = true;
  const char *state = state_name(MACHINE_RUN, (int)first_state(m));
  log_context_id(id_run(run).text);
  log_info("run %s is %s: %s, %d rounds", id_run(run).text, state, m->config.training.objective, m->config.rounds);
  struct buf event = BUF_INIT;
  buf_printf(&event, "{\"state\":\"%s\",\"error\":null}", state);
  return journal_event(c, run, "state", &event, false, err);
}

enum rc run_start_find(struct core *c, struct run_config *config, struct err *err) {
  struct store *s;
  if (config->start_named == START_NUMBERED) return RC_OK;
  enum rc rc = readers_take(core_readers(c), &s, err);
  if (rc != RC_OK) return rc;
  rc = kept_versions_find(s, config, err);
  readers_give(core_readers(c), s);
  return rc == RC_OK && config->start_named == START_LATEST ? run_start_latest(c, config, err) : rc;
}

static enum rc post_run_decode(struct core *c, struct post_run *m, const struct json *body, struct arena *arena,
                               struct err *err) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  enum rc rc = run_config_parse(&m->config, body, arena, err);
  if (rc == RC_OK) rc = run_start_find(c, &m->config, err);
  if (rc != RC_OK) return rc;
  json_writer_init(&w, &text);
  run_config_write(&m->config, &w);
  rc = buf_check(&text, err);
  if (rc == RC_OK && !(m->text = arena_strndup(arena, text.data, text.len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  buf_free(&text);
  run_config_hash(&m->config, &m->hash);
  return rc;
}

/* Until when a posted run's datasets are checked. */
struct check_deadline {
  const struct core *core;
  int64_t until_ms;
  bool passed;
};

static bool before_deadline(void *context, const char *name, int lines) {
  struct check_deadline *d = context;
  (void)name;
  (void)lines;
  d->passed = core_monotonic_ms(d->core) >= d->until_ms;
  return !d->passed;
}

/* A run that cannot be checked in time is accepted all the same, and its check goes on (driver/late_check.h). */
static enum rc post_run_check(struct core *c, struct post_run *m, struct err *err) {
  struct check_deadline d = {.core = c, .until_ms = core_monotonic_ms(c) + core_options(c)->check_ms};
  const struct dataset_watch watch = {before_deadline, &d};
  enum rc rc = run_room_check(c, err);
  if (rc != RC_OK) return rc;
  rc = run_check(c, &m->config, &(struct run_check_bounds){.watch = &watch}, err);
  m->checking = rc == RC_TIMEOUT && d.passed;
  return m->checking ? RC_OK : rc;
}

void handle_post_run(struct http_request *r, void *context) {
  struct core *c = context;
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_new(post_run_execute, sizeof(struct post_run));
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && cmd) rc = post_run_decode(c, cmd->message, body, &cmd->arena, &err);
  if (rc == RC_OK && cmd)
    rc = reward_hosts_check(core_options(c)->reward_hosts, &((const struct post_run *)cmd->message)->config.verifier,
                            &err);
  if (rc == RC_OK && cmd) rc = post_run_check(c, cmd->message, &err);
  if (rc == RC_OK) {
    core_submit(c, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}

/* ---- reading ---- */

void handle_get_runs(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  const char *before = http_query(r, "before");
  int64_t limit, newer = INT64_MAX;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_key(&w, "runs");
  json_array_begin(&w);
  enum rc rc = http_query_i64(r, "limit", 100, 1, 1000, &limit, &err);
  if (rc == RC_OK && before && id_parse_run(&newer, before, NULL) != RC_OK)
    rc = err_set(&err, RC_INVALID, "before", "before: expected a run's id, such as r7, got \"%.64s\"", before);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_summaries_write(s, &w, newer, limit, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* Which part of the run is asked for. */
static enum rc part_read(struct http_request *r, struct run_part *out, struct err *err) {
  const char *before = http_query(r, "workers_before");
  *out = (struct run_part){.workers_before = INT64_MAX};
  enum rc rc = http_query_i64(r, "history", RUN_HISTORY_ROUNDS, 0, RUN_HISTORY_ROUNDS, &out->history, err);
  if (rc == RC_OK)
    rc = http_query_i64(r, "evaluations_before", INT64_MAX, 0, LIMIT_ROUNDS + 1, &out->evaluations_before, err);
  if (rc == RC_OK && before && id_parse_worker(&out->workers_before, before, NULL) != RC_OK)
    rc = err_set(err, RC_INVALID, "workers_before",
                 "workers_before: expected a worker's id, such as w7, got \"%.64s\"", before);
  return rc;
}

void handle_get_run(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  struct run_part part;
  int64_t run;
  json_writer_init(&w, &body);
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = part_read(r, &part, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_write(s, &w, run, &part, core_wall_us(context) / 1000, &err);
  readers_give(readers, s);
  http_reply_json_or_fail(r, rc, &body, &err);
}

void handle_get_rounds(struct http_request *r, void *context) {
  struct readers *readers = core_readers(context);
  struct store *s = NULL;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  enum run_state state;
  int64_t run, from, limit;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_key(&w, "rounds");
  json_array_begin(&w);
  enum rc rc = id_parse_run(&run, http_param(r, "id"), &err);
  if (rc == RC_OK) rc = http_query_i64(r, "from", 0, 0, LIMIT_ROUNDS, &from, &err);
  if (rc == RC_OK) rc = http_query_i64(r, "limit", RUN_HISTORY_ROUNDS, 1, 10000, &limit, &err);
  if (rc == RC_OK) rc = readers_take(readers, &s, &err);
  if (rc == RC_OK) rc = run_state_of(s, run, &state, &err);
  if (rc == RC_OK) rc = rounds_write(s, &w, run, from, limit, false, &err);
  readers_give(readers, s);
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}
