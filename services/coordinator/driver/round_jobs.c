/* Finds the next job of a round in the trainer's order, makes it and submits it. */
#include "services/coordinator/driver/round_jobs.h"

enum rc round_job_next(struct readers *readers, int64_t run, int64_t round, const struct round_job *after, bool undone,
                       struct round_job *out, bool *found, struct err *err) {
  struct store *s;
  struct rows q;
  *found = false;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT step, inner_step, number FROM (SELECT step, 0 AS inner_step, number FROM batches WHERE run = "
      "?1 AND round = ?2 AND done <= ?3 AND groups > 0 UNION ALL SELECT step, 1, 0 FROM inner_steps WHERE run = ?1 AND "
      "round = ?2 AND done <= ?3) WHERE (step, inner_step, number) > (?4, ?5, ?6) ORDER BY 1, 2, 3 LIMIT 1",
      BINDS(b_int(run), b_int(round), b_int(!undone), b_int(after->step), b_int(after->inner), b_int(after->number)));
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found)
    *out = (struct round_job){.step = rows_int(&q, 0), .inner = rows_int(&q, 1) != 0, .number = rows_int(&q, 2)};
  rows_end(&q);
  readers_give(readers, s);
  return rc;
}

enum rc round_planned_ahead(struct readers *readers, int64_t run, int64_t round, bool *planned, struct round_job *out,
                            struct err *err) {
  struct store *s;
  int64_t number = 0;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(
      s, &number, err,
      "SELECT batch FROM groups INDEXED BY groups_batch WHERE run = ?1 AND trained_in = ?2 ORDER BY batch LIMIT 1",
      BINDS(b_int(run), b_int(round)));
  readers_give(readers, s);
  *planned = rc == RC_OK;
  *out = (struct round_job){.number = number};
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

enum rc trainer_job_send(struct trainer_job *out, struct readers *readers, struct run_context *context,
                         const struct trainer_target *trainer, const struct round_place *place,
                         const struct round_job *job, bool ask_first, struct http_client *http, struct err *err) {
  const struct inner_step_place step = {.round = place->round, .step = job->step, .version = place->version};
  const struct batch_place batch = {.round = place->round,
                                    .number = job->number,
                                    .step = job->step,
                                    .version = place->version,
                                    .recorded = place->recorded};
  *out = (struct trainer_job){0};
  enum rc rc = job->inner ? inner_step_make(&out->inner, readers, context, trainer, &step, err)
                          : batch_make(&out->batch, readers, context, trainer, &batch, err);
  if (rc == RC_OK)
    rc = job->inner ? inner_step_submit(out->inner, http, err) : batch_submit(out->batch, http, ask_first, err);
  if (rc != RC_OK) trainer_job_free(out);
  return rc;
}

void trainer_job_free(struct trainer_job *job) {
  batch_free(job->batch);
  inner_step_free(job->inner);
  *job = (struct trainer_job){0};
}
