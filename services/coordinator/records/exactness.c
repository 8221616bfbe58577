/* Judges whether a round was exact from the rows of its batches and workers, and stores the verdict with its reason. */
#include "services/coordinator/records/exactness.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "common/wire/worker.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/decide/mismatch.h"

enum { NAMES_SHOWN = 8 }; /* in a reason; of more it says how many */

/* The workers that had a part in the round. */
#define OF_ROUND                                                                               \
  " FROM workers WHERE id IN (SELECT worker FROM contributions WHERE run = ?1 AND round = ?2 " \
  "UNION SELECT worker FROM batches WHERE run = ?1 AND round = ?2 AND done = 1)"

enum rc exactness_promised(struct store *s, int64_t run, int64_t round, bool *out, struct err *err) {
  int64_t others = 0;
  const enum rc rc = store_int(s, &others, err, "SELECT count(*)" OF_ROUND " AND exactness <> ?3",
                               BINDS(b_int(run), b_int(round), b_int(WORKER_INVARIANT)));
  *out = others == 0;
  return rc;
}

/* Around the names of the workers of one exactness. */
struct wording {
  enum worker_exactness exactness;
  const char *one, *many, *of_one, *of_many;
};
static const struct wording KERNELS = {WORKER_FASTEST, "the kernels of ", "the kernels of ",
                                       " are not batch-invariant", " are not batch-invariant"};
static const struct wording ENGINES = {WORKER_FOREIGN, "the engine of ", "the engines of ", " is not ours",
                                       " are not ours"};

/* "the kernels of gen-1, gen-2 and trainer are not batch-invariant", or nothing. */
static enum rc workers_reason(struct core *c, int64_t run, int64_t round, const struct wording *say, struct buf *out,
                              struct err *err) {
  struct rows q;
  bool row;
  int64_t names = 0;
  enum rc rc = store_int(c->store, &names, err, "SELECT count(DISTINCT name)" OF_ROUND " AND exactness = ?3",
                         BINDS(b_int(run), b_int(round), b_int(say->exactness)));
  if (rc != RC_OK || names == 0) return rc;
  rc = store_query(c->store, &q, err,
                   "SELECT DISTINCT name" OF_ROUND " AND exactness = ?3 ORDER BY kind, name LIMIT ?4",
                   BINDS(b_int(run), b_int(round), b_int(say->exactness), b_int(NAMES_SHOWN)));
  if (out->len) buf_puts(out, "; ");
  buf_puts(out, names > 1 ? say->many : say->one);
  for (int64_t n = 0; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; n++)
    buf_printf(out, "%s%s", n == 0 ? "" : n == names - 1 ? " and " : ", ", rows_text(&q, 0, NULL));
  rows_end(&q);
  if (names > NAMES_SHOWN) buf_printf(out, " and %" PRId64 " others", names - NAMES_SHOWN);
  buf_puts(out, names > 1 ? say->of_many : say->of_one);
  return rc;
}

/* In the order of the batches' numbers. */
static enum rc batches_sum(struct core *c, int64_t run, int64_t round, struct mismatch *out, struct err *err) {
  struct rows q;
  bool row;
  *out = (struct mismatch){0};
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT logprob_unequal, logprob_abs_sum, logprob_k1_sum, logprob_k3_sum FROM batches WHERE "
                           "run = ?1 AND round = ?2 AND done = 1 ORDER BY number",
                           BINDS(b_int(run), b_int(round)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    out->unequal += rows_int(&q, 0);
    out->abs_sum += rows_real(&q, 1);
    out->k1_sum += rows_real(&q, 2);
    out->k3_sum += rows_real(&q, 3);
  }
  rows_end(&q);
  return rc;
}

static void reason_add(struct buf *reason, int64_t count, const char *one, const char *many) {
  if (count > 0) buf_printf(reason, "%s%" PRId64 " %s", reason->len ? "; " : "", count, count > 1 ? many : one);
}

/* Empty: the round is exact. */
static enum rc reason_find(struct core *c, int64_t run, int64_t round, int64_t unequal, struct buf *out,
                           struct err *err) {
  int64_t failed = 0, missed = 0;
  enum rc rc = workers_reason(c, run, round, &KERNELS, out, err);
  if (rc == RC_OK) rc = workers_reason(c, run, round, &ENGINES, out, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &failed, err, "SELECT groups_failed FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK)
    rc = store_int(c->store, &missed, err, "SELECT rewards_missed FROM rounds WHERE run = ?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  reason_add(out, unequal, "log-probability of the trainer's differs from the sampler's",
             "log-probabilities of the trainer's differ from the samplers'");
  reason_add(out, missed, "reward was not answered in time and counts as 0",
             "rewards were not answered in time and count as 0");
  reason_add(out, failed, "group was not complete in time", "groups were not complete in time");
  return rc == RC_OK ? buf_check(out, err) : rc;
}

enum rc exactness_note(struct core *c, int64_t run, int64_t round, struct err *err) {
  struct mismatch sums;
  struct buf reason = BUF_INIT;
  enum rc rc = batches_sum(c, run, round, &sums, err);
  if (rc == RC_OK) rc = reason_find(c, run, round, sums.unequal, &reason, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET exact = ?3 IS NULL, inexact_reason = ?3, logprob_abs_sum = ?4, logprob_k1_sum = "
                    "?5, logprob_k3_sum = ?6 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round), b_text(reason.len ? reason.data : NULL), b_real(sums.abs_sum),
                          b_real(sums.k1_sum), b_real(sums.k3_sum)));
  if (rc == RC_OK && reason.len) {
    log_context_id(id_round(run, round).text);
    log_warn("round %s is not exact: %s", id_round(run, round).text, reason.data);
  }
  buf_free(&reason);
  return rc;
}
