/* Packs the entropies of a batch's groups, and stores them. */
#include "services/coordinator/rounds/entropies.h"

#include <string.h>

#include "services/coordinator/store/entropy_bytes.h"
#include "services/coordinator/store/ids.h"

static bool told(const struct batch_status *answer) {
  for (size_t i = 0; i < answer->sample_count; i++)
    if (answer->samples[i].entropies.count > 0) return true;
  return false;
}

static enum rc group_gather(struct group_entropies *out, const struct batch_group *g,
                            const struct sample_logprobs *samples, struct arena *arena, struct err *err) {
  struct buf steps = BUF_INIT;
  int64_t run;
  enum rc rc = id_parse_group(&run, &out->round, &out->ordinal, "group", g->id, err);
  for (size_t i = 0; rc == RC_OK && i < g->sample_count; i++) {
    if (strcmp(samples[i].id, g->samples[i].id) != 0)
      rc = err_set(err, RC_CORRUPT, "samples.id", "the trainer answered for sample '%.100s' where %s was expected",
                   samples[i].id, g->samples[i].id);
    else
      entropy_bytes_append(&steps, samples[i].entropies.items, samples[i].entropies.count);
  }
  if (rc == RC_OK) rc = buf_check(&steps, err);
  if (rc == RC_OK) {
    char *copy = arena_alloc(arena, steps.len + 1, 1);
    if (copy) memcpy(copy, steps.data, steps.len);
    out->steps = copy;
    out->len = steps.len;
    if (!copy) rc = err_set(err, RC_NO_MEMORY, NULL, "a group's entropies were refused memory");
  }
  buf_free(&steps);
  return rc;
}

enum rc entropies_gather(struct group_entropies **out, size_t *count, const struct submit_batch *batch,
                         const struct batch_status *answer, struct arena *arena, struct err *err) {
  size_t at = 0, samples = 0;
  *count = 0;
  if (!told(answer)) return RC_OK;
  for (size_t g = 0; g < batch->group_count; g++) samples += batch->groups[g].sample_count;
  if (samples != answer->sample_count)
    return err_set(err, RC_CORRUPT, "samples", "the trainer answered for %zu samples, the batch has %zu",
                   answer->sample_count, samples);
  *out = arena_alloc(arena, batch->group_count + 1, sizeof **out);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "a batch's entropies were refused memory");
  for (size_t g = 0; g < batch->group_count; g++) {
    const enum rc rc = group_gather(&(*out)[g], &batch->groups[g], answer->samples + at, arena, err);
    if (rc != RC_OK) return rc;
    at += batch->groups[g].sample_count;
  }
  *count = batch->group_count;
  return RC_OK;
}

enum rc entropies_store(struct core *c, int64_t run, const struct group_entropies *groups, size_t count,
                        struct err *err) {
  enum rc rc = RC_OK;
  for (size_t g = 0; g < count && rc == RC_OK; g++)
    rc = store_exec(c->store, err,
                    "INSERT OR REPLACE INTO entropies (run, round, group_ordinal, steps) VALUES (?1, ?2, ?3, ?4)",
                    BINDS(b_int(run), b_int(groups[g].round), b_int(groups[g].ordinal),
                          b_blob(groups[g].steps, groups[g].len)));
  return rc;
}
