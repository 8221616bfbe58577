/* Checks a posted run against the database, the trainer and the datasets before it is queued. */
#include "services/coordinator/trainer/run_check.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/records/curriculum.h"
#include "services/coordinator/records/kept_versions.h"
#include "services/coordinator/trainer/model_files.h"
#include "services/coordinator/trainer/trainer_target.h"
#include "services/coordinator/store/ids.h"

enum { ASK_MS = 5000, NEWER_MAX = 8 };

enum rc run_queue_check(struct store *s, struct err *err) {
  int64_t queued = 0;
  enum rc rc = store_int(s, &queued, err, "SELECT count(*) FROM runs WHERE state IN (?1, ?2, ?3)",
                         BINDS(b_int(RUN_QUEUED), b_int(RUN_STARTING), b_int(RUN_CHECKING)));
  if (rc == RC_OK && queued >= LIMIT_QUEUED_RUNS)
    rc = err_set(err, RC_FULL, NULL, "%d runs are queued already; try again", LIMIT_QUEUED_RUNS);
  return rc;
}

/* Do the run and the version exist from which it is to start? */
static enum rc start_known(struct store *s, const struct run_start *start, struct err *err) {
  int64_t run = 0, evaluates = 0, versions = 0;
  if (start->from != START_CHECKPOINT) return RC_OK;
  enum rc rc = id_parse_run(&run, start->run, NULL);
  if (rc == RC_OK)
    rc = store_int(s, &evaluates, err, "SELECT objective = 'evaluate' FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_NOT_FOUND) return err_set(err, RC_INVALID, "start.run", "there is no run '%.100s'", start->run);
  if (rc == RC_OK && evaluates)
    return err_set(err, RC_INVALID, "start.run", "run %s only evaluates: it has made no weights", start->run);
  if (rc == RC_OK)
    rc = store_int(s, &versions, err, "SELECT count(*) FROM versions WHERE run = ?1 AND version = ?2",
                   BINDS(b_int(run), b_int(start->version)));
  if (rc == RC_OK && versions == 0)
    rc = err_set(err, RC_INVALID, "start.version", "there is no version %" PRId64 " of run %s", start->version,
                 start->run);
  return rc;
}

enum rc run_room_check(struct core *c, struct err *err) {
  struct store *s;
  enum rc rc = readers_take(core_readers(c), &s, err);
  if (rc != RC_OK) return rc;
  rc = run_queue_check(s, err);
  readers_give(core_readers(c), s);
  return rc;
}

/* Is there the run whose pass rates are to be known at the start, and is it over the same dataset? */
static enum rc curriculum_known(struct store *s, const struct run_config *config, struct err *err) {
  const char *const field = "dataset.curriculum.from", *const from = config->curriculum.from;
  struct arena arena = ARENA_INIT;
  struct run_config theirs;
  struct rows q;
  bool row = false;
  int64_t run = 0;
  if (!config->curriculum.given || !from[0]) return RC_OK;
  if (id_parse_run(&run, from, NULL) != RC_OK) run = -1;
  enum rc rc = store_query(s, &q, err, "SELECT config FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && !row) rc = err_set(err, RC_INVALID, field, "there is no run '%.100s'", from);
  if (rc == RC_OK) {
    size_t len;
    const char *text = rows_text(&q, 0, &len);
    rc = run_config_parse_stored(&theirs, text, len, &arena, err);
  }
  rows_end(&q);
  if (rc == RC_OK && !run_config_same_dataset(config, &theirs))
    rc = err_set(err, RC_INVALID, field, "run %s uses another dataset, or reads it in another way", from);
  arena_free(&arena);
  return rc == RC_OK ? curriculum_countable(s, run, from, err) : rc;
}

/* Asks the database whether the run may start there, and which trainer there is. */
static enum rc database_look(struct core *c, const struct run_config *config, struct trainer_target *trainer,
                             struct err *err) {
  struct store *s;
  enum rc rc = readers_take(core_readers(c), &s, err);
  if (rc != RC_OK) return rc;
  rc = start_known(s, &config->start, err);
  if (rc == RC_OK) rc = curriculum_known(s, config, err);
  if (rc == RC_OK) rc = trainer_target_read(s, trainer, err);
  readers_give(core_readers(c), s);
  return rc;
}

/* Asks the trainer, and fetches its model's files.  *answered is false when it does not answer. */
static enum rc trainer_look(const struct trainer_client *t, const struct run_config *config, struct model_files *files,
                            int64_t *context_max, bool *answered, struct err *err) {
  const struct check_run m = {.start = config->start, .training = config->training};
  struct check_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err cause = {0};
  enum rc rc = trainer_ask_run(t, &m, &answer, &arena, ASK_MS, &cause);
  arena_free(&arena);
  if (rc == RC_INVALID || rc == RC_UNSUPPORTED) return err_set(err, RC_INVALID, cause.field, "%s", cause.message);
  if (rc == RC_OK) {
    rc = model_files_fetch(files, t, &cause);
    if (rc == RC_NOT_FOUND) return err_set(err, RC_INVALID, NULL, "%s", cause.message);
  }
  *answered = rc == RC_OK;
  if (rc == RC_OK)
    *context_max = answer.context_max;
  else
    log_warn("a run is taken without asking the trainer: %s", cause.message);
  return RC_OK;
}

/* Does the trainer have that version's checkpoint?  Then it stays for now. */
static bool trainer_has(const struct trainer_client *t, const struct run_config *config, int64_t version,
                        bool *answered) {
  struct check_run m = {.start = config->start, .training = config->training};
  struct check_run_answer answer;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  m.start.version = version;
  const enum rc rc = trainer_ask_run(t, &m, &answer, &arena, ASK_MS, &err);
  arena_free(&arena);
  *answered = rc == RC_OK || rc == RC_INVALID || rc == RC_UNSUPPORTED;
  return rc == RC_OK;
}

enum rc run_start_latest(struct core *c, struct run_config *config, struct err *err) {
  int64_t newer[NEWER_MAX];
  size_t count = 0;
  struct trainer_target trainer = {0};
  struct http_client *http = NULL;
  struct store *s;
  bool answered = true;
  enum rc rc = readers_take(core_readers(c), &s, err);
  if (rc != RC_OK) return rc;
  rc = kept_versions_newer(s, config, newer, NEWER_MAX, &count, err);
  if (rc == RC_OK && count) rc = trainer_target_read(s, &trainer, err);
  readers_give(core_readers(c), s);
  if (rc != RC_OK || !trainer.found) return rc;
  if ((rc = http_client_create_for(&http, core_options(c)->access, NULL, err)) != RC_OK) return rc;
  const struct trainer_client t = {.http = http, .base_url = trainer.url};
  trainer_has(&t, config, config->start.version, &answered); /* while the newer ones are asked for it is not replaced */
  for (size_t i = 0; i < count && answered; i++) {
    if (!trainer_has(&t, config, newer[i], &answered)) continue;
    config->start.version = newer[i];
    break;
  }
  http_client_destroy(http);
  return RC_OK;
}

/* Is a step under way, of the run from which it starts, that was sent before this run was known?  It may remove the
 * checkpoint, unless the trainer has been asked for it: RC_UNAVAILABLE. */
static enum rc start_certain(struct core *c, const struct run_start *start, struct err *err) {
  struct store *s;
  int64_t run = 0, steps = 0;
  if (start->from != START_CHECKPOINT) return RC_OK;
  enum rc rc = id_parse_run(&run, start->run, err);
  if (rc == RC_OK) rc = readers_take(core_readers(c), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(s, &steps, err,
                 "SELECT count(*) FROM rounds JOIN runs ON runs.id = rounds.run WHERE run = ?1 AND runs.state IN (?2, "
                 "?3, ?4) AND (rounds.state = ?5 OR (rounds.state = ?6 AND finished = 0))",
                 BINDS(b_int(run), b_int(RUN_RUNNING), b_int(RUN_PAUSED), b_int(RUN_STOPPING), b_int(ROUND_STEPPING),
                       b_int(ROUND_DONE)));
  readers_give(core_readers(c), s);
  if (rc != RC_OK || steps == 0) return rc;
  return err_set(err, RC_UNAVAILABLE, "start",
                 "a step of run %s is under way, so it is not known whether the checkpoint of version %" PRId64
                 " stays; try again",
                 start->run, start->version);
}

enum rc run_check(struct core *c, const struct run_config *config, const struct run_check_bounds *bounds,
                  struct err *err) {
  struct trainer_target trainer;
  struct http_client *http = NULL;
  struct model_files files = {0};
  int64_t context_max = LIMIT_SEQUENCE_TOKENS;
  bool answered = false;
  enum rc rc = database_look(c, config, &trainer, err);
  if (rc == RC_OK && trainer.found) {
    rc = http_client_create_for(&http, core_options(c)->access, bounds->stopping, err);
    const struct trainer_client t = {.http = http, .base_url = trainer.url};
    if (rc == RC_OK) rc = trainer_look(&t, config, &files, &context_max, &answered, err);
    http_client_destroy(http);
  }
  if (rc == RC_OK && !answered) rc = start_certain(c, &config->start, err);
  const bool replaced = rc == RC_INVALID && config->start_named != START_NUMBERED && strcmp(err->field, "start") == 0;
  struct err uncertain = {0}; /* what was named is gone, and what it names now is not known yet */
  if (replaced && start_certain(c, &config->start, &uncertain) != RC_OK) {
    *err = uncertain;
    rc = err->rc;
  }
  if (rc == RC_OK) {
    rc = run_context_check(config, answered ? &files : NULL, context_max, core_options(c)->data_dir,
                           bounds->watch, err);
    if (rc != RC_OK && rc != RC_NO_MEMORY && err->field[0])
      rc = err->rc = RC_INVALID; /* what the configuration names is at fault, also when it cannot be read */
  }
  model_files_free(&files);
  return rc;
}
