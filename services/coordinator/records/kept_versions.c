/* Finds the versions with the best figures and those that queued runs start from, and stores which checkpoints there
 * are. */
#include "services/coordinator/records/kept_versions.h"

#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/ids.h"

enum rc kept_versions_best(struct store *s, const struct run_config *config, int64_t run, struct json_i32s *out,
                           struct arena *arena, struct err *err) {
  const struct keep_best *k = &config->keep_best;
  char figure[FIGURE_TEXT_MAX];
  struct rows q;
  bool row;
  *out = (struct json_i32s){0};
  if (k->count == 0) return RC_OK;
  out->items = arena_alloc(arena, (size_t)k->count, sizeof *out->items);
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "a list of versions was refused memory");
  figure_text(figure, k->figure, k->k);
  enum rc rc =
      store_query(s, &q, err,
                  "SELECT e.version FROM evaluations e JOIN evaluation_sets s ON s.run = e.run AND s.round = "
                  "e.round JOIN evaluation_figures f ON f.run = s.run AND f.round = s.round AND f.number = "
                  "s.number WHERE e.run = ?1 AND s.name = ?2 AND f.figure = ?3 ORDER BY f.value DESC, e.version "
                  "LIMIT ?4",
                  BINDS(b_int(run), b_text(k->set), b_text(figure), b_int(k->count)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && out->count < (size_t)k->count)
    out->items[out->count++] = (int32_t)rows_int(&q, 0);
  rows_end(&q);
  return rc;
}

enum rc kept_versions_stay(struct store *s, const struct run_config *config, int64_t run, struct json_i32s *out,
                           struct arena *arena, struct err *err) {
  static const char awaited[] =
      "SELECT DISTINCT json_extract(config, '$.start.version') FROM runs WHERE state IN (?1, ?2) AND "
      "json_extract(config, '$.start.run') = ?3 LIMIT ?4";
  struct json_i32s best;
  struct rows q;
  bool row;
  enum rc rc = kept_versions_best(s, config, run, &best, arena, err);
  if (rc != RC_OK) return rc;
  *out = (struct json_i32s){arena_alloc(arena, best.count + LIMIT_QUEUED_RUNS, sizeof *out->items), 0};
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "a list of versions was refused memory");
  for (size_t i = 0; i < best.count; i++) out->items[out->count++] = best.items[i];
  rc = store_query(s, &q, err, awaited,
                   BINDS(b_int(RUN_QUEUED), b_int(RUN_CHECKING), b_text(id_run(run).text), b_int(LIMIT_QUEUED_RUNS)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row)
    out->items[out->count++] = (int32_t)rows_int(&q, 0);
  rows_end(&q);
  return rc;
}

static enum rc config_of(struct store *s, int64_t run, struct run_config *out, bool *row, struct arena *arena,
                         struct err *err) {
  struct rows q;
  *row = false;
  enum rc rc = store_query(s, &q, err, "SELECT config FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, row, err);
  if (rc == RC_OK && *row) {
    size_t len;
    const char *text = rows_text(&q, 0, &len);
    rc = run_config_parse_stored(out, text, len, arena, err);
  }
  rows_end(&q);
  return rc;
}

/* The best by its configuration's keep_best that has a checkpoint; -1: there is none. */
static enum rc find_best(struct store *s, int64_t run, int64_t *version, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct run_config theirs = {0};
  struct json_i32s best = {0};
  bool row = false;
  *version = -1;
  enum rc rc = config_of(s, run, &theirs, &row, &arena, err);
  if (rc == RC_OK && row) rc = kept_versions_best(s, &theirs, run, &best, &arena, err);
  for (size_t i = 0; rc == RC_OK && *version < 0 && i < best.count; i++) {
    int64_t kept = 0;
    rc = store_int(s, &kept, err, "SELECT count(*) FROM checkpoints WHERE run = ?1 AND version = ?2",
                   BINDS(b_int(run), b_int(best.items[i])));
    if (kept) *version = best.items[i];
  }
  arena_free(&arena);
  return rc;
}

enum rc kept_versions_find(struct store *s, struct run_config *config, struct err *err) {
  const char *const name = config->start.run;
  int64_t run = 0, there = 0, version = -1;
  if (config->start_named == START_NUMBERED) return RC_OK;
  enum rc rc = id_parse_run(&run, name, NULL);
  if (rc == RC_OK) rc = store_int(s, &there, err, "SELECT count(*) FROM runs WHERE id = ?1", BINDS(b_int(run)));
  if (rc == RC_NOT_FOUND || (rc == RC_OK && !there))
    return err_set(err, RC_INVALID, "start.run", "there is no run '%.100s'", name);
  if (rc != RC_OK) return rc;
  if (config->start_named == START_BEST)
    rc = find_best(s, run, &version, err);
  else
    rc = store_int(s, &version, err, "SELECT ifnull(max(version), -1) FROM checkpoints WHERE run = ?1",
                   BINDS(b_int(run)));
  if (rc != RC_OK) return rc;
  if (version < 0)
    return err_set(
        err, RC_INVALID, "start.version",
        config->start_named == START_BEST
            ? "there is no best checkpoint of run %s: it keeps one by `keep_best`, once it has been evaluated"
            : "no checkpoint of run %s is known",
        name);
  config->start.version = version;
  return RC_OK;
}

enum rc kept_versions_newer(struct store *s, const struct run_config *config, int64_t *out, size_t most, size_t *count,
                            struct err *err) {
  struct arena arena = ARENA_INIT;
  struct run_config theirs = {0};
  int64_t run = 0, newest = -1;
  bool row = false;
  *count = 0;
  enum rc rc = id_parse_run(&run, config->start.run, err);
  if (rc == RC_OK) rc = config_of(s, run, &theirs, &row, &arena, err);
  if (rc == RC_OK)
    rc = store_int(s, &newest, err, "SELECT ifnull(max(version), -1) FROM versions WHERE run = ?1", BINDS(b_int(run)));
  for (int64_t v = newest; rc == RC_OK && row && v > config->start.version && *count < most; v--)
    if (v % theirs.training.checkpoint_every == 0 || v == theirs.rounds || kept_versions_wanted(&theirs, v))
      out[(*count)++] = v;
  arena_free(&arena);
  return rc;
}

bool kept_versions_wanted(const struct run_config *config, int64_t version) {
  return config->keep_best.count > 0 && evaluation_due(&config->evaluation, config->rounds, version);
}

enum rc kept_versions_mark(struct store *s, const struct run_config *config, int64_t run, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct json_i32s best;
  enum rc rc = kept_versions_best(s, config, run, &best, &arena, err);
  if (rc == RC_OK && config->keep_best.count)
    rc = store_exec(s, err, "UPDATE checkpoints SET best = 0 WHERE run = ?1 AND best = 1", BINDS(b_int(run)));
  for (size_t i = 0; i < best.count && rc == RC_OK; i++)
    rc = store_exec(s, err, "UPDATE checkpoints SET best = 1 WHERE run = ?1 AND version = ?2",
                    BINDS(b_int(run), b_int(best.items[i])));
  arena_free(&arena);
  return rc;
}

enum rc kept_versions_store(struct store *s, const struct run_config *config, int64_t run,
                            const struct json_i32s *versions, struct err *err) {
  if (versions->count == 0) return RC_OK; /* an older trainer, or none that could tell */
  enum rc rc = store_exec(s, err, "DELETE FROM checkpoints WHERE run = ?1", BINDS(b_int(run)));
  for (size_t i = 0; i < versions->count && rc == RC_OK; i++)
    rc = store_exec(s, err, "INSERT INTO checkpoints (run, version, best) VALUES (?1, ?2, 0)",
                    BINDS(b_int(run), b_int(versions->items[i])));
  return rc == RC_OK ? kept_versions_mark(s, config, run, err) : rc;
}
