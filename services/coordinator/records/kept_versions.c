/* Finds the versions with the best figures, and stores which checkpoints there are. */
#include "services/coordinator/records/kept_versions.h"

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
  enum rc rc = store_query(s, &q, err,
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

enum rc kept_versions_store(struct store *s, const struct run_config *config, int64_t run, const struct json_i32s *versions,
                            struct err *err) {
  if (versions->count == 0) return RC_OK; /* an older trainer, or none that could tell */
  enum rc rc = store_exec(s, err, "DELETE FROM checkpoints WHERE run = ?1", BINDS(b_int(run)));
  for (size_t i = 0; i < versions->count && rc == RC_OK; i++)
    rc = store_exec(s, err, "INSERT INTO checkpoints (run, version, best) VALUES (?1, ?2, 0)",
                    BINDS(b_int(run), b_int(versions->items[i])));
  return rc == RC_OK ? kept_versions_mark(s, config, run, err) : rc;
}
