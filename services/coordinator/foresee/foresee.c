/* Reads the request, checks the run as a posted one is checked, and tells what was found. */
#include "services/coordinator/foresee/foresee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/client/foresight.h"
#include "common/http/check_machine.h"
#include "common/wire/worker.h"
#include "services/coordinator/foresee/round_times.h"
#include "services/coordinator/rewards/reward_hosts.h"
#include "services/coordinator/trainer/model_files.h"
#include "services/coordinator/trainer/run_report.h"

struct request {
  const struct json *config, *pace; /* NULL: none */
  const char *model;
  struct arena arena;
};

struct foreseen {
  struct run_config config;
  struct run_context *run; /* NULL: there is none, or it is refused */
  struct err refused;      /* rc RC_OK: it is not */
};

/* ---- the request ---- */

static enum rc request_read(struct request *out, struct json **root, const char *file, struct err *err) {
  const struct json_field fields[] = {
      {.name = "config", .kind = FIELD_VALUE, .target = &out->config},
      {.name = "pace", .kind = FIELD_VALUE, .target = &out->pace},
      {.name = "model", .kind = FIELD_STRING, .target = &out->model, .min = 1, .max = LIMIT_PATH_MAX - 1}};
  enum rc rc = foresight_file_read(root, file, err);
  if (rc != RC_OK) return rc;
  if (*root)
    rc = json_fields(*root, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, &out->arena, err);
  if (rc == RC_OK && out->config && !out->model)
    rc = err_set(err, RC_INVALID, "model", "expected the model's folder beside the run's configuration");
  if (rc != RC_OK) err_in_file(err, file);
  return rc;
}

/* ---- the run ---- */

static bool before_deadline(void *context, const char *name, int lines) {
  (void)name;
  (void)lines;
  return clock_monotonic_ms() < *(const int64_t *)context;
}

/* With as much of the checks of run_check.h as needs no database. */
static enum rc run_open(struct foreseen *f, const struct request *q, const struct core_options *options,
                        struct model_files *files, struct err *err) {
  int64_t until_ms = clock_monotonic_ms() + options->check_ms;
  const struct dataset_watch watch = {before_deadline, &until_ms};
  struct buf text = BUF_INIT;
  struct json_writer w;
  enum rc rc = reward_hosts_check(options->reward_hosts, &f->config.verifier, err);
  if (rc == RC_OK) rc = model_files_read(files, q->model, err);
  if (rc == RC_OK) rc = run_context_check(&f->config, files, LIMIT_SEQUENCE_TOKENS, options->data_dir, &watch, err);
  json_writer_init(&w, &text);
  run_config_write(&f->config, &w);
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK) rc = run_context_create(&f->run, 0, text.data, files, options->data_dir, err);
  buf_free(&text);
  return rc;
}

static void run_foresee(struct foreseen *f, struct request *q, const struct core_options *options) {
  struct model_files files = {0};
  if (!q->config || run_config_parse(&f->config, q->config, &q->arena, &f->refused) != RC_OK) return;
  run_open(f, q, options, &files, &f->refused);
  model_files_free(&files);
}

/* ---- its rounds ---- */

static void costs_read(struct step_costs *out, const struct json *pace) {
  const struct json *steps = json_find(pace, "steps");
  for (size_t i = 0; i < json_length(steps); i++) {
    const struct json *s = json_at(steps, i);
    const double slot = json_find_number(s, "slot");
    if (!(slot >= 0 && slot < WIRE_STEP_SLOTS)) continue;
    step_costs_note(out, (int)slot, (int64_t)json_find_number(s, "steps"), (int64_t)json_find_number(s, "rows"),
                    (int64_t)json_find_number(s, "us"), 0);
  }
}

/* Not below 0; what is missing is 0. */
static double number_of(const struct json *pace, const char *name) {
  const double value = json_find_number(pace, name);
  return value > 0 && value < 1e15 ? value : 0;
}

static int32_t count_of(const struct json *pace, const char *name) {
  return (int32_t)fmin(number_of(pace, name), LIMIT_GROUPS_PER_ROUND);
}

static void times_write(const struct round_times *t, enum run_mode mode, struct json_writer *w) {
  static const char *const modes[] = {"sync", "pipelined", "inflight"};
  json_object_begin(w);
  json_kv_string(w, "mode", modes[mode]);
  json_kv_f64(w, "sampled_us", t->sampled);
  json_kv_f64(w, "learned_us", t->learned);
  json_kv_f64(w, "sync_us", t->sync);
  json_kv_f64(w, "pipelined_us", t->pipelined);
  json_kv_f64(w, "inflight_us", t->inflight);
  json_object_end(w);
}

static void round_write(const struct foreseen *f, const struct json *pace, struct json_writer *w) {
  struct step_costs costs = {0};
  struct round_times times;
  struct admission_room *room = malloc(sizeof *room);
  costs_read(&costs, pace);
  const struct run_config *c = &f->config;
  const int32_t all = f->run ? dataset_count(f->run->dataset) : 0;
  const struct round_paces paces = {.costs = &costs,
                                    .servers = count_of(pace, "servers"),
                                    .slots = count_of(pace, "slots"),
                                    .groups = c->groups_per_round > 0 ? c->groups_per_round : all,
                                    .samples = c->samples_per_group,
                                    .groups_per_step = c->mode == MODE_INFLIGHT ? 0 : c->groups_per_step,
                                    .spacing_least_us = CORE_POLLS_SPACING_US,
                                    .new_tokens = number_of(pace, "new_tokens"),
                                    .prompt_us = number_of(pace, "prompt_us"),
                                    .group_us = number_of(pace, "group_us"),
                                    .round_us = number_of(pace, "round_us")};
  if (room && f->run && round_times(&times, &paces, room))
    times_write(&times, c->mode, w);
  else
    json_write_null(w);
  free(room);
}

/* ---- the answer ---- */

/* What the trainer is asked about it. */
static void check_run_write(const struct run_config *c, struct json_writer *w) {
  struct buf text = BUF_INIT;
  check_run_encode(&(struct check_run){.start = c->start, .training = c->training}, &text);
  json_write_parsed(w, text.data ? text.data : "", text.len, 0, NULL);
  buf_free(&text);
}

static void refused_write(const struct err *e, struct json_writer *w) {
  if (e->rc == RC_OK) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_string(w, "field", e->field);
  json_kv_string(w, "message", e->message);
  json_object_end(w);
}

static void run_write(const struct foreseen *f, const struct request *q, struct json_writer *w) {
  json_key(w, "refused");
  refused_write(&f->refused, w);
  json_key(w, "report");
  if (f->run)
    run_report_of(f->run, w);
  else
    json_write_null(w);
  json_key(w, "run");
  if (f->run)
    check_run_write(&f->config, w);
  else
    json_write_null(w);
  json_key(w, "round");
  if (q->pace)
    round_write(f, q->pace, w);
  else
    json_write_null(w);
}

/* The ledger's. */
static const char *folder_of(char dir[LIMIT_PATH_MAX], const char *path) {
  const char *end = strrchr(path, '/');
  snprintf(dir, LIMIT_PATH_MAX, "%.*s", !end ? 1 : end > path ? (int)(end - path) : 1, end ? path : ".");
  return dir;
}

static enum rc answer(const struct foreseen *f, const struct request *q, const struct core_options *options,
                      const struct program *program, struct err *err) {
  char dir[LIMIT_PATH_MAX];
  struct buf out = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &out);
  json_object_begin(&w);
  if (!q->pace) check_machine_write(&w, program, folder_of(dir, options->db_path));
  if (q->config) run_write(f, q, &w);
  json_object_end(&w);
  return foresight_print(&out, err);
}

enum rc foresee(const struct core_options *options, const struct program *program, const char *request,
                struct err *err) {
  struct request q = {0};
  struct foreseen f = {0};
  struct json *root;
  enum rc rc = request_read(&q, &root, request, err);
  if (rc == RC_OK) {
    run_foresee(&f, &q, options);
    rc = answer(&f, &q, options, program, err);
  }
  run_context_release(f.run);
  arena_free(&q.arena);
  json_free(root);
  return rc;
}
