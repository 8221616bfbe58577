/* The coordinator of a world: a core that is never started, over a database in memory, by the world's clock. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/rounds/tick.h"
#include "tests/sim/world_state.h"

enum { LINES = 256, WORKERS_MAX = LIMIT_WORKERS, NEW_TOKENS = 100000 };
static const int64_t BEGAN_US = INT64_C(1700000000000000);

static int64_t since_start_us(void *context) { return ((const struct world *)context)->now_us; }
static int64_t since_1970_us(void *context) { return BEGAN_US + ((const struct world *)context)->now_us; }
int64_t world_wall_ms(const struct world *w) { return (BEGAN_US + w->now_us) / 1000; }

int world_places(const struct world *w) { return w->c.groups + w->c.refill_max + w->c.evaluation_groups; }

int world_place(const struct world *w, int64_t ordinal) {
  const int training = w->c.groups + w->c.refill_max;
  if (w->c.inflight) /* as many as are issued */
    return (int)(ordinal < ORDINAL_EVALUATION_FIRST ? w->c.evaluation_groups + ordinal
                                                    : ordinal - ORDINAL_EVALUATION_FIRST);
  if (ordinal < ORDINAL_EVALUATION_FIRST) return ordinal < training ? (int)ordinal : -1;
  ordinal -= ORDINAL_EVALUATION_FIRST;
  return ordinal < w->c.evaluation_groups ? training + (int)ordinal : -1;
}

/* ---- calls ---- */

struct call {
  command_execute execute;
  void *message;
  const char *id;
  struct buf *answer;
};

static enum rc call_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct call k = *(const struct call *)cmd->message;
  cmd->message = k.message;
  cmd->id = k.id;
  const enum rc rc = k.execute ? k.execute(c, cmd, err) : RC_OK;
  if (rc == RC_OK && k.answer) buf_append(k.answer, cmd->body.data, cmd->body.len);
  return rc;
}

enum rc world_call(struct world *w, command_execute execute, void *message, const char *id, struct buf *answer,
                   struct err *err) {
  struct command *cmd = command_new(call_execute, sizeof(struct call));
  if (cmd) *(struct call *)cmd->message = (struct call){execute, message, id, answer};
  const enum rc rc = core_call(w->core, cmd, err);
  if (core_broken(w->core)) world_fault(w, "the coordinator could not commit: %.200s", err->message);
  return rc;
}

int64_t world_number(struct world *w, const char *sql, const struct bind *binds, size_t count) {
  struct err err = {0};
  int64_t n = -1;
  const enum rc rc = store_int(w->core->store, &n, &err, sql, binds, count);
  if (rc != RC_OK && rc != RC_NOT_FOUND) world_fault(w, "%.100s: %.150s", sql, err.message);
  return n;
}

static void kick(void *context, int sealed) {
  struct world *w = context;
  w->driver.sealed += sealed;
  if (sealed == 0 || w->driver.sealed >= w->driver.wanted) w->driver.due = true;
}

/* ---- a run ---- */

static const char *const frontier_names[] = {
    [FRONTIER_PRIORITY] = "priority", [FRONTIER_GATE] = "gate", [FRONTIER_OFF] = "off"};

static void config_write(const struct world_config *c, struct buf *out) {
  const int rounds = c->rounds ? c->rounds : 1;
  buf_printf(out, "{\"mode\":\"%s\",\"frontier\":\"%s\",\"frontier_groups\":%d,\"aging_ms\":%" PRId64,
             c->inflight ? "inflight"
             : c->sync   ? "sync"
                         : "pipelined", frontier_names[c->kind], c->frontier_groups, c->aging_ms);
  buf_printf(out,
             ",\"group_timeout_ms\":86400000,\"rounds\":%d,\"seed\":%" PRIu64
             ",\"verify_samples\":false,\"groups_per_round\":%d",
             rounds, c->seed, c->groups);
  if (c->inflight) {
    buf_printf(out, ",\"max_lag\":%d,\"kv\":\"%s\",\"order\":\"%s\"", c->max_lag, c->recompute ? "recompute" : "keep",
               c->by_submission ? "submission" : "completion");
    if (c->samples_ahead) buf_printf(out, ",\"samples_ahead\":%d", c->samples_ahead);
  }
  if (c->groups_per_step) buf_printf(out, ",\"update\":\"minibatch\",\"groups_per_step\":%d", c->groups_per_step);
  buf_printf(out, ",\"samples_per_group\":%d,\"lease_samples_max\":%d", c->samples, c->lease_samples_max);
  buf_puts(out, ",\"dataset\":{\"path\":\"lines.jsonl\",\"shuffle\":false}");
  buf_printf(out, ",\"training\":{\"objective\":\"grpo\",\"chunk_tokens\":%d}", LIMIT_PROMPT_TOKENS);
  buf_printf(out, ",\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":%d}", NEW_TOKENS);
  const char *const filter = !(c->filtered > 0) ? "keep" : c->refill_max && !c->inflight ? "refill" : "shrink";
  buf_printf(out, ",\"filter\":{\"zero_advantage\":\"%s\",\"refill_max\":%d}", filter,
             c->inflight ? 0 : c->refill_max);
  if (c->evaluation_groups)
    buf_printf(out,
               ",\"evaluation\":{\"path\":\"lines.jsonl\",\"every_rounds\":%d,\"samples\":%d,\"temperature\":1.0,"
               "\"problems\":%d}",
               rounds, c->samples, c->evaluation_groups);
  buf_puts(out, "}");
}

static enum rc run_insert(struct world *w, struct err *err) {
  struct buf text = BUF_INIT;
  const struct digest hash = {0};
  config_write(&w->c, &text);
  buf_append(&text, "", 1);
  enum rc rc = buf_check(&text, err);
  if (rc == RC_OK) rc = run_context_create(&w->context, 1, text.data, &w->files, w->dir, err);
  if (rc == RC_OK)
    rc =
        store_exec(w->core->store, err,
                   "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) "
                   "VALUES (1, '', ?1, ?2, 'grpo', ?3, ?4, ?5, '1', 1)",
                   BINDS(b_int(RUN_STARTING), b_int(w->context->config.mode), b_text(text.data), b_digest(&hash),
                         b_int(w->context->config.rounds)));
  buf_free(&text);
  return rc;
}

bool world_core_open(struct world *w) {
  struct err err = {0};
  char path[100];
  snprintf(path, sizeof path, "%s/ledger-%llu", w->dir, (unsigned long long)w->ledgers++);
  const struct core_options options = {
      .db_path = w->c.in_file ? path : ":memory:",
      .data_dir = w->dir,
      .lease_ttl_ms = w->c.lease_ttl_ms,
      .heartbeat_ms = w->c.heartbeat_ms,
      .worker_ttl_ms = w->c.worker_ttl_ms,
      .batch_tokens = (int64_t)((double)w->c.batch_tokens / world_grain(&w->c)),
      .workers_max = w->c.servers + w->c.joins + 64 < WORKERS_MAX ? w->c.servers + w->c.joins + 64 : WORKERS_MAX,
      .clock = {.monotonic_us = since_start_us, .wall_us = since_1970_us, .context = w},
      .callbacks = &tick_callbacks};
  enum rc rc = core_create(&w->core, &options, &err);
  if (rc == RC_OK) core_set_kick(w->core, kick, w);
  if (rc == RC_OK) rc = run_insert(w, &err);
  if (rc != RC_OK) world_fault(w, "the coordinator cannot begin: %.200s", err.message);
  return rc == RC_OK;
}

void world_core_close(struct world *w) {
  core_destroy(w->core);
  run_context_release(w->context);
  w->core = NULL;
  w->context = NULL;
}

/* ---- a world ---- */

/* The demo's model is for short samples. */
static enum rc positions_raise(struct buf *config, struct err *err) {
  static const char name[] = "\"max_position_embeddings\": 128";
  struct buf out = BUF_INIT;
  buf_append(config, "", 1);
  const char *const at = strstr(config->data, name);
  if (!at) return err_set(err, RC_CORRUPT, NULL, "the demo's model has other positions than are replaced here");
  buf_append(&out, config->data, (size_t)(at - config->data));
  buf_printf(&out, "\"max_position_embeddings\": %d", LIMIT_PROMPT_TOKENS);
  buf_puts(&out, at + sizeof name - 1);
  buf_free(config);
  *config = out;
  return buf_check(config, err);
}

static enum rc files_read(struct world *w, struct err *err) {
  struct buf text = BUF_INIT;
  char path[100];
  const char *const root = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(w->dir, sizeof w->dir, "%s/leasehold-sim-XXXXXX", root);
  if (!mkdtemp(w->dir)) return err_set(err, RC_IO, NULL, "%s cannot be made", w->dir);
  for (int i = 0; i < LINES; i++) buf_puts(&text, "{\"prompt\":\"0+0=\",\"answer\":\"0\"}\n");
  snprintf(path, sizeof path, "%s/lines.jsonl", w->dir);
  enum rc rc = file_write_atomic(path, text.data, text.len, err);
  buf_free(&text);
  if (rc == RC_OK) rc = file_read(&w->files.config, "deploy/demo/model/config.json", 1 << 20, err);
  if (rc == RC_OK) rc = positions_raise(&w->files.config, err);
  if (rc == RC_OK) rc = file_read(&w->files.tokenizer, "deploy/demo/model/tokenizer.json", 1 << 24, err);
  if (rc == RC_OK)
    rc = file_read(&w->files.generation_config, "deploy/demo/model/generation_config.json", 1 << 20, err);
  return rc;
}

struct world *world_create(void) {
  struct err err = {0};
  struct world *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  log_init("sim", LOG_ERROR);
  if (files_read(w, &err) == RC_OK) return w;
  fprintf(stderr, "the simulation cannot begin: %s\n", err.message);
  world_destroy(w);
  return NULL;
}

void world_destroy(struct world *w) {
  if (!w) return;
  servers_drop_all(w);
  model_files_free(&w->files);
  if (w->dir[0]) file_remove_tree(w->dir, NULL);
  for (int i = 0; i < w->server_room; i++) {
    free(w->servers[i].running);
    free(w->servers[i].queued);
  }
  free(w->servers);
  free(w->server_of);
  free(w->events);
  free(w->parked);
  checks_forget(w);
  free(w->trainer.held);
  free(w);
}
