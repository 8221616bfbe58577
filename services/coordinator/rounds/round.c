/* Opens rounds with their groups and samples, refills them, and moves them on once all groups are in. */
#include "services/coordinator/rounds/round.h"

#include <inttypes.h>
#include <string.h>

#include "services/coordinator/records/curriculum.h"
#include "services/coordinator/records/exactness.h"
#include "services/coordinator/records/evaluation_results.h"
#include "services/coordinator/records/round_sums.h"
#include "services/coordinator/rounds/round_advantages.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/evaluation_view.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/pool/pool.h"

bool round_evaluates(const struct run_config *config, int64_t round) {
  return run_trains_on_rollouts(config) && evaluation_due(&config->evaluation, config->rounds, round);
}

enum rc round_move(struct core *c, int64_t run, int64_t round, int to, struct err *err) {
  int64_t from = 0;
  enum rc rc = store_int(c->store, &from, err, "SELECT state FROM rounds WHERE run = ?1 AND round = ?2",
                         BINDS(b_int(run), b_int(round)));
  if (rc == RC_NOT_FOUND) return err_set(err, rc, "step_id", "there is no round %s", id_round(run, round).text);
  if (rc == RC_OK) rc = state_check(MACHINE_ROUND, (int)from, to, id_round(run, round).text, err);
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE rounds SET state = ?3 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round), b_int(to)));
  return rc;
}

struct new_group {
  int64_t round, ordinal;
  int index, samples;
  int64_t epoch; /* of a run with a curriculum */
  int set; /* of evaluation */
  enum lease_purpose purpose;
  enum group_state state;
};

static enum rc group_insert(struct core *c, const struct dataset *d, const struct new_group *g, struct err *err) {
  const struct dataset_item *item = dataset_at(d, g->index);
  int64_t run = c->context->run;
  enum rc rc = store_exec(
      c->store, err,
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, prompt_ids, "
      "prompt, answer, extra, samples_waiting, waiting_ms, max_new_tokens, evaluation_set, dataset_epoch)"
      " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?8, ?13, ?14, ?15, ?16)",
      BINDS(b_int(run), b_int(g->round), b_int(g->ordinal), b_int((int64_t)g->state), b_int((int64_t)g->purpose),
            b_int(g->index), b_int(g->samples), b_int(g->state == GROUP_OPEN ? g->samples : 0),
            b_blob(item->prompt_ids, (size_t)item->prompt_length * sizeof(int32_t)),
            b_chars(item->prompt, item->prompt_bytes), b_text(item->answer), b_text(item->extra), b_int(c->wall_ms),
            b_int(item->max_new_tokens ? item->max_new_tokens : c->context->config.sampling.max_new_tokens),
            g->purpose == LEASE_EVALUATION ? b_int(g->set) : b_null(),
            c->context->config.curriculum.given && g->purpose == LEASE_TRAINING ? b_int(g->epoch) : b_null()));
  waiting_forget(&c->pool->waiting);
  return rc;
}

enum rc round_samples_wait(struct store *s, int64_t run, bool *out, struct err *err) {
  int64_t waits = 0;
  const enum rc rc = store_int(s, &waits, err,
                               "SELECT EXISTS (SELECT 1 FROM groups INDEXED BY groups_waiting WHERE run = ?1 AND "
                               "samples_waiting > 0 AND state = " SQL_GROUP_OPEN ")",
                               BINDS(b_int(run)));
  *out = waits != 0;
  return rc;
}

/* Behind the last prompt, refills included, of the round before. */
static enum rc dataset_first(struct core *c, int64_t round, int64_t *out, struct err *err) {
  const bool stream = c->context->config.mode == MODE_INFLIGHT; /* its groups all count as refills: none is there at
                                                                 * first */
  const int64_t groups = stream ? 0 : c->context->config.groups_per_round;
  *out = round * groups;
  if (round == 0) return RC_OK;
  return store_int(c->store, out, err,
                   "SELECT coalesce(dataset_first, round * ?3) + ?3 + groups_refilled FROM rounds WHERE run = ?1 AND "
                   "round = ?2 - 1",
                   BINDS(b_int(c->context->run), b_int(round), b_int(groups)));
}

/* How many problems of a set are asked: at most its lines. */
static int problems_of(const struct run_context *x, int set) {
  const int lines = dataset_count(x->evaluation[set]), asked = x->config.evaluation.sets[set].problems;
  return asked < lines ? asked : lines;
}

static int evaluation_groups(const struct run_context *x, int64_t round) {
  int groups = 0;
  for (int set = 0; round_evaluates(&x->config, round) && set < x->config.evaluation.count; set++)
    groups += problems_of(x, set);
  return groups;
}

/* The sets' problems one behind the other, so that a first set's randomness does not depend on those behind it. */
static enum rc evaluation_open(struct core *c, int64_t round, struct err *err) {
  const struct run_context *x = c->context;
  int64_t ordinal = ORDINAL_EVALUATION_FIRST;
  enum rc rc = RC_OK;
  for (int set = 0; round_evaluates(&x->config, round) && set < x->config.evaluation.count; set++) {
    for (int i = 0; i < problems_of(x, set) && rc == RC_OK; i++) {
      const struct new_group group = {.round = round,
                                      .ordinal = ordinal++,
                                      .index = i,
                                      .set = set,
                                      .samples = x->config.evaluation.sets[set].samples,
                                      .purpose = LEASE_EVALUATION,
                                      .state = GROUP_OPEN};
      rc = group_insert(c, x->evaluation[set], &group, err);
    }
  }
  return rc;
}

/* Supervised ones are sealed, because nothing is sampled.  An evaluate run's files are its sets.  walk: of a
 * curriculum, or NULL. */
static enum rc groups_open(struct core *c, int64_t round, int groups, int64_t first, struct curriculum_walk *walk,
                           struct err *err) {
  struct run_context *x = c->context;
  const struct run_config *config = &x->config;
  const bool supervised = run_is_supervised(config), evaluates = run_evaluates(config);
  enum rc rc = RC_OK;
  for (int g = 0; g < groups && rc == RC_OK; g++) {
    struct new_group group = {.round = round,
                              .ordinal = g,
                              .samples = config->samples_per_group,
                              .purpose = evaluates ? LEASE_EVALUATION : LEASE_TRAINING,
                              .state = supervised ? GROUP_SEALED : GROUP_OPEN};
    int64_t ordinal = first + g;
    if (supervised) ordinal *= config->samples_per_group;
    struct dataset_place place = {.index = g};
    if (walk)
      rc = curriculum_take(c, walk, &place, err);
    else if (!evaluates || config->dataset_shuffle)
      place = dataset_place(x->dataset, &x->writer_order, ordinal);
    group.index = place.index;
    group.epoch = place.epoch;
    group.set = dataset_part(x->dataset, group.index);
    if (rc == RC_OK) rc = group_insert(c, x->dataset, &group, err);
  }
  if (rc == RC_OK && walk) rc = curriculum_keep(c, round, walk, err);
  return rc;
}

enum rc round_open(struct core *c, int64_t round, int64_t version, struct err *err) {
  const struct run_context *x = c->context;
  const struct run_config *config = &x->config;
  const bool supervised = run_is_supervised(config), evaluates = run_evaluates(config),
             closing = round >= config->rounds;
  const int count = dataset_count(x->dataset), evaluation = evaluation_groups(x, round);
  int groups = config->mode == MODE_INFLIGHT || closing ? 0 : config->groups_per_round;
  if (evaluates && (groups == 0 || groups > count)) groups = count;
  if (groups > LIMIT_GROUPS_PER_ROUND)
    return err_set(err, RC_TOO_LARGE, "groups_per_round",
                   "a round has at most %d groups, the dataset has %d: set groups_per_round", LIMIT_GROUPS_PER_ROUND,
                   groups);
  const bool walks = config->curriculum.given && !closing;
  struct curriculum_walk walk = {0};
  int64_t first = 0;
  enum rc rc = walks ? curriculum_open(c, round, &walk, err) : dataset_first(c, round, &first, err);
  if (walks) first = walk.next;
  if (rc == RC_OK) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open, generated_ms, "
        "groups_trained, groups_sealed, dataset_first, closing) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, "
        "?9, ?10)",
        BINDS(b_int(x->run), b_int(round), b_int(supervised ? ROUND_TRAINING : ROUND_OPEN), b_int(version),
              b_int(c->wall_ms), b_int(supervised ? 0 : groups + evaluation), supervised ? b_int(c->wall_ms) : b_null(),
              b_int(supervised ? groups : 0), b_int(first), b_int(closing)));
  }
  if (rc == RC_OK) rc = groups_open(c, round, groups, first, walks ? &walk : NULL, err);
  if (rc == RC_OK) rc = evaluation_open(c, round, err);
  c->dispatch_due = c->kick_due = true;
  return rc;
}

static enum rc issue(struct core *c, int64_t round, int64_t ordinal, struct dataset_place place, struct err *err) {
  const struct new_group group = {.round = round,
                                  .ordinal = ordinal,
                                  .index = place.index,
                                  .epoch = place.epoch,
                                  .samples = c->context->config.samples_per_group,
                                  .purpose = LEASE_TRAINING,
                                  .state = GROUP_OPEN};
  return group_insert(c, c->context->dataset, &group, err);
}

enum rc round_issue(struct core *c, int64_t round, int64_t ordinal, int64_t place, struct err *err) {
  struct run_context *x = c->context;
  return issue(c, round, ordinal, dataset_place(x->dataset, &x->writer_order, place), err);
}

/* *place: where in dataset order the refill was found. */
static enum rc issue_by_curriculum(struct core *c, int64_t round, int64_t ordinal, int64_t *place, struct err *err) {
  struct curriculum_walk walk;
  struct dataset_place found;
  enum rc rc = curriculum_resume(c, round, &walk, err);
  if (rc == RC_OK) rc = curriculum_take(c, &walk, &found, err);
  if (rc == RC_OK) rc = issue(c, round, ordinal, found, err);
  *place = walk.next - 1;
  return rc == RC_OK ? curriculum_keep(c, round, &walk, err) : rc;
}

enum rc round_refill(struct core *c, int64_t run, int64_t round, int64_t filtered, struct err *err) {
  const struct run_config *config = &c->context->config;
  struct rows q;
  bool row = false;
  int64_t first = 0, refilled = 0, filtered_count = 0;
  enum rc rc = store_query(c->store, &q, err,
                           "SELECT dataset_first, groups_refilled, groups_filtered FROM rounds WHERE run = ?1 AND "
                           "round = ?2",
                           BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    first = rows_int(&q, 0);
    refilled = rows_int(&q, 1);
    filtered_count = rows_int(&q, 2);
  }
  rows_end(&q);
  if (rc != RC_OK || refilled >= config->refill_max) return rc;
  if (fault_is(COORDINATOR_FAULT_DROP_REFILL) && filtered_count == 1) return RC_OK;
  const int64_t ordinal = config->groups_per_round + refilled;
  int64_t place = first + ordinal;
  rc = config->curriculum.given ? issue_by_curriculum(c, round, ordinal, &place, err)
                                : round_issue(c, round, ordinal, place, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "INSERT INTO refills (run, round, ordinal, replaces, dataset_ordinal) VALUES (?1, ?2, ?3, ?4, ?5)",
                    BINDS(b_int(run), b_int(round), b_int(ordinal), b_int(filtered), b_int(place)));
  }
  if (rc == RC_OK)
    rc =
        store_exec(c->store, err,
                   "UPDATE rounds SET groups_open = groups_open + 1, groups_refilled = groups_refilled + 1 WHERE run = "
                   "?1 AND round = ?2",
                   BINDS(b_int(run), b_int(round)));
  c->samples_due = true;
  return rc;
}

enum rc round_evaluated(struct core *c, int64_t run, int64_t round, struct err *err) {
  struct buf text = BUF_INIT;
  bool found = false;
  enum rc rc = round_sums_evaluation(c, run, round, err);
  if (rc == RC_OK) rc = evaluation_close(c, run, round, err);
  if (rc == RC_OK) rc = evaluation_text(c->store, run, round, &text, &found, err);
  if (rc == RC_OK && found) return journal_event(c, run, "eval", &text, false, err);
  buf_free(&text);
  return rc;
}

/* Nothing is trained in it: it is done. */
static enum rc round_end_untrained(struct core *c, int64_t run, int64_t round, struct err *err) {
  enum rc rc = exactness_note(c, run, round, err);
  if (rc == RC_OK) rc = round_move(c, run, round, ROUND_DONE, err);
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err, "UPDATE rounds SET published_ms = ?3, finished = 1 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round), b_int(c->wall_ms)));
}

enum rc round_run_complete(struct core *c, int64_t run, struct err *err) {
  enum run_state state = RUN_RUNNING;
  int64_t left = 0;
  enum rc rc = store_int(c->store, &left, err,
                         "SELECT count(*) FROM rounds WHERE run = ?1 AND (finished = 0 OR state <> " SQL_ROUND_DONE
                         ") AND round >= (SELECT rounds FROM runs WHERE id = ?1) - 1",
                         BINDS(b_int(run)));
  if (rc != RC_OK || left) return rc;
  rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state == RUN_PAUSED)
    rc = run_move(c, run, RUN_RUNNING, NULL, err); /* a paused run cannot complete, and nothing is left to pause */
  return rc == RC_OK ? run_end(c, run, RUN_COMPLETED, NULL, err) : rc;
}

enum rc round_generated(struct core *c, int64_t run, int64_t round, struct err *err) {
  const struct run_config *config = &c->context->config;
  enum rc rc = round_advantages(c, run, round, err);
  if (rc == RC_OK) rc = round_sums_means(c, run, round, run_evaluates(config), err);
  if (rc == RC_OK) rc = round_evaluated(c, run, round, err);
  if (rc != RC_OK) return rc;
  c->kick_due = true;
  if (!run_evaluates(config) && round < config->rounds) return round_move(c, run, round, ROUND_TRAINING, err);
  rc = round_end_untrained(c, run, round, err);
  return rc == RC_OK ? round_run_complete(c, run, err) : rc;
}

/* The batches' sums of how far the policy has moved from the one that sampled and from its reference, in the order
 * of their numbers, null when one of them is not finite; and how old the tokens were, null where no batch told. */
static enum rc ratios_note(struct core *c, int64_t run, int64_t round, struct err *err) {
#define FINITE_SUM(column) "iif(count(" column ") = count(*), sum(" column "), NULL)"
  return store_exec(c->store, err,
                    "UPDATE rounds SET (ratio_sum, ratio_squares, clipped, kl_new_old, difference_new_old, lag_min, "
                    "lag_max, lag_sum, compared_tokens, kl_reference) = "
                    "(SELECT " FINITE_SUM("ratio_sum") ", " FINITE_SUM("ratio_squares") ", sum(clipped), "
                    FINITE_SUM("kl_new_old") ", " FINITE_SUM("difference_new_old")
                    ", min(lag_min), max(lag_max), sum(lag_sum), sum(compared_tokens), " FINITE_SUM("kl_reference")
                    " FROM (SELECT * FROM batches WHERE run = ?1 AND round = ?2 ORDER BY number)) WHERE run = ?1 AND "
                    "round = ?2",
                    BINDS(b_int(run), b_int(round)));
#undef FINITE_SUM
}

/* The samples of the round's steps, except steps in which no token is trained on: they have the denominator 0 and are
 * skipped. */
static enum rc counted_samples(struct core *c, int64_t run, int64_t round, int64_t *out, struct err *err) {
  return store_int(c->store, out, err,
                   "SELECT i.counted + iif((SELECT coalesce(sum(trained_tokens), 0) FROM batches WHERE run = ?1 AND "
                   "round = ?2 AND step = i.steps) > 0, r.submitted_samples - i.groups * ?3, 0) FROM rounds r, (SELECT "
                   "count(*) AS steps, coalesce(sum(groups), 0) AS groups, cast(coalesce(sum(denominator), 0) AS "
                   "INTEGER) AS counted FROM inner_steps WHERE run = ?1 AND round = ?2) i WHERE r.run = ?1 AND r.round "
                   "= ?2",
                   BINDS(b_int(run), b_int(round), b_int(c->context->config.samples_per_group)));
}

enum rc round_step_when_trained(struct core *c, int64_t run, int64_t round, bool by_tokens, struct err *err) {
  int64_t state = -1, left = 0, samples = 0;
  enum rc rc = store_int(c->store, &state, err, "SELECT state FROM rounds WHERE run = ?1 AND round = ?2",
                         BINDS(b_int(run), b_int(round)));
  if (rc != RC_OK || (state != ROUND_TRAINING && state != ROUND_STEPPING)) return rc;
  rc = round_sums_undone(c->store, run, round, &left, err);
  if (rc != RC_OK || left) return rc;
  rc = exactness_note(c, run, round, err);
  if (rc == RC_OK) rc = ratios_note(c, run, round, err);
  if (rc == RC_OK && state == ROUND_STEPPING) return rc; /* another trainer has computed the batches again */
  if (rc == RC_OK) rc = round_move(c, run, round, ROUND_STEPPING, err);
  if (rc != RC_OK) return rc;
  c->kick_due = true;
  rc = by_tokens ? RC_OK : counted_samples(c, run, round, &samples, err);
  if (rc != RC_OK) return rc;
  return store_exec(c->store, err,
                    "UPDATE rounds SET trained_ms = ?3, step_begun_ms = ?3, submitted_ms = coalesce(submitted_ms, ?3), "
                    "denominator = iif(?4, trained_tokens, ?5) WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round), b_int(c->wall_ms), b_int(by_tokens), b_int(samples)));
}
