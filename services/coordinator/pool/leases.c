/* Grants leases (whose turn it is, which samples, what the lease says), renews them and ends them in the database. */
#include "services/coordinator/pool/leases.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/decide/dispatch.h"
#include "services/coordinator/decide/expiry.h"
#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/run/round_work.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/writer/journal.h"

/* ---- granting ---- */

struct open_round {
  int64_t run, round, version; /* version: that samples are drawn from */
};

/* Of an `inflight` run: the oldest round with waiting samples, whatever has become of the round itself.  Samples are
 * drawn from what the worker holds. */
static enum rc stream_round_now(struct core *c, const struct current_version *held, struct open_round *out, bool *found,
                                struct err *err) {
  *out = (struct open_round){.run = c->context->run, .version = held->version};
  const enum rc rc = store_int(
      c->store, &out->round, err,
      "SELECT round FROM groups INDEXED BY groups_waiting WHERE run = ?1 AND state = " SQL_GROUP_OPEN
      " AND samples_waiting > 0 AND (SELECT state FROM runs WHERE id = ?1) = ?2 ORDER BY round LIMIT 1",
      BINDS(b_int(c->context->run), b_int(RUN_RUNNING)));
  *found = rc == RC_OK;
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

/* The active run's round whose samples may be leased; *found false while there is none. */
static enum rc open_round_now(struct core *c, const struct current_version *held, struct open_round *out, bool *found,
                              struct err *err) {
  struct rows q;
  *found = false;
  if (!c->context) return RC_OK;
  if (c->context->config.mode == MODE_INFLIGHT) return stream_round_now(c, held, out, found, err);
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT rounds.run, round, version FROM rounds INDEXED BY rounds_open JOIN runs ON runs.id = "
                  "rounds.run WHERE rounds.run = ?1 AND rounds.state = " SQL_ROUND_OPEN
                  " AND runs.state = ?2 ORDER BY round LIMIT 1",
                  BINDS(b_int(c->context->run), b_int(RUN_RUNNING)));
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found)
    *out = (struct open_round){.run = rows_int(&q, 0), .round = rows_int(&q, 1), .version = rows_int(&q, 2)};
  rows_end(&q);
  return rc;
}

/* The groups that one poll looks at: groups of the open round that have waiting samples, beside what is decided about
 * them. */
struct candidates {
  struct waiting_group groups[FRONTIER_CANDIDATES_MAX];
  int32_t order[FRONTIER_CANDIDATES_MAX], granted[FRONTIER_CANDIDATES_MAX];
  int count, ordered; /* of groups, of order */
  int64_t waiting;    /* samples that this worker can run, of all groups: not only of these */
};

/* Those that this worker can run, `most` at most: in order of their ordinals, or of arrival when nothing is
 * preferred. */
static void groups_waiting(const struct waiting *all, const struct live_worker *w, int most, struct candidates *out) {
  out->count = 0;
  out->waiting = w->positions_refused ? 0 : all->samples;
  for (int i = all->first; i < all->first + all->count; i++) {
    const struct waiting_entry *e = &all->items[i];
    if (w->positions_refused && e->positions >= w->positions_refused) continue;
    if (w->positions_refused) out->waiting += e->group.waiting;
    if (out->count < most) {
      out->groups[out->count++] = e->group;
    } else if (!w->positions_refused) {
      break;
    }
  }
}

/* By ordinal: how long samples may be, and which prompts they are of. */
static enum rc prompts_read(struct core *c, const struct open_round *r, int groups, float *most, int32_t *prompts,
                            struct err *err) {
  struct rows q;
  bool row;
  for (int g = 0; g < groups; g++) {
    most[g] = (float)c->context->config.sampling.max_new_tokens;
    prompts[g] = -1;
  }
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT ordinal, max_new_tokens, dataset_index FROM groups WHERE run = ?1 AND round = ?2 AND "
                  "ordinal < ?3",
                  BINDS(b_int(r->run), b_int(r->round), b_int(groups)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t g = rows_int(&q, 0);
    if (!rows_null(&q, 1)) most[g] = (float)rows_int(&q, 1);
    prompts[g] = (int32_t)rows_int(&q, 2);
  }
  rows_end(&q);
  return rc;
}

/* What a round's view shows of the plan; nothing while none could be made. */
static enum rc plan_store(struct core *c, const struct open_round *r, const struct admission_plan *p, struct err *err) {
  if (!(p->filled_end_us > 0)) return RC_OK;
  return store_exec(c->store, err,
                    "UPDATE rounds SET admission_first = ?3, admission_spacing_us = ?4, admission_ordered = ?5, "
                    "admission_end_us = ?6, admission_filled_end_us = ?7 WHERE run = ?1 AND round = ?2",
                    BINDS(b_int(r->run), b_int(r->round), p->bounded ? b_int(p->first) : b_null(),
                          p->bounded ? b_int(p->spacing_us) : b_null(), b_int(p->ordered), b_real(p->end_us),
                          b_real(p->filled_end_us)));
}

/* The round's plan (pace.h), which is made, and stored, when it is first asked for. */
static enum rc plan_of_round(struct core *c, const struct open_round *r, const struct admission_plan **plan,
                             struct err *err) {
  const struct run_config *config = &c->context->config;
  struct pace *pace = &c->pool->pace;
  float most[ADMISSION_GROUPS_MAX], expected[ADMISSION_GROUPS_MAX];
  int32_t prompts[ADMISSION_GROUPS_MAX];
  *plan = &pace->plan;
  if (pace_planned(pace, r->run, r->round)) return RC_OK;
  struct pace_round round = {.run = r->run,
                             .round = r->round,
                             .wanted = run_plans_rounds(config) && r->round < config->rounds &&
                                       config->groups_per_round <= ADMISSION_GROUPS_MAX,
                             .groups = config->groups_per_round,
                             .samples = config->samples_per_group,
                             .groups_per_step = config->groups_per_step,
                             .groups_per_s = rate_value(&c->pool->rates.drain),
                             .tokens = rate_value(&c->pool->rates.tokens),
                             .begun = c->pool->waiting.begun > 0,
                             .most = most,
                             .exact = config->sampling.ignore_eos};
  for (int i = 0; i < c->pool->worker_count; i++) {
    const struct live_worker *w = &c->pool->workers[i];
    if (w->kind != WORKER_GENERATION || !w->ready) continue;
    round.slots += w->slots;
    round.servers++;
  }
  enum rc rc = round.wanted ? prompts_read(c, r, round.groups, most, prompts, err) : RC_OK;
  if (rc != RC_OK) return rc;
  if (round.wanted && prompt_lengths_expect(&c->pool->prompt_lengths, r->run, prompts, round.groups, expected))
    round.expected = expected;
  struct log_context poll;
  log_context_save(&poll);
  round_work(c->context, r->round, -1);
  const struct admission_plan *made = pace_plan(pace, &round, c->now_ms);
  log_context_restore(&poll);
  return plan_store(c, r, made, err);
}

/* The group's waiting samples, at most max more.  One that a newer version has begun waits for a server that has it. */
static enum rc group_samples(struct core *c, const struct open_round *r, const struct waiting_group *g, int max,
                             struct waiting_sample *out, int *count, struct err *err) {
  struct rows q;
  bool row;
  if (!g->begun) {
    for (int i = 0; i < g->waiting && i < max; i++)
      out[(*count)++] = (struct waiting_sample){.group = g->ordinal, .sample = i};
    return RC_OK;
  }
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT sample, fence FROM samples INDEXED BY samples_waiting WHERE run = ?1 AND round = ?2 "
                  "AND group_ordinal = ?3 AND state = " SQL_SAMPLE_WAITING
                  " AND NOT EXISTS (SELECT 1 FROM spans p WHERE p.run = samples.run AND p.round = samples.round "
                  "AND p.group_ordinal = samples.group_ordinal AND p.sample = samples.sample AND p.version > "
                  "?5) ORDER BY sample LIMIT ?4",
                  BINDS(b_int(r->run), b_int(r->round), b_int(g->ordinal), b_int(max), b_int(r->version)));
  for (; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; max--) {
    out[(*count)++] =
        (struct waiting_sample){.group = g->ordinal, .sample = (int32_t)rows_int(&q, 0), .fence = rows_int(&q, 1)};
  }
  rows_end(&q);
  if (rc != RC_OK || max == 0) return rc;
  int64_t never = 0; /* the first that was never leased: rows begin with the first lease, and leases go upwards */
  rc =
      store_int(c->store, &never, err,
                "SELECT coalesce(max(sample) + 1, 0) FROM samples WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3",
                BINDS(b_int(r->run), b_int(r->round), b_int(g->ordinal)));
  for (const int all = g->waiting + g->leased + g->done; rc == RC_OK && never < all && max > 0; max--)
    out[(*count)++] = (struct waiting_sample){.group = g->ordinal, .sample = (int32_t)never++};
  return rc;
}

static void *copy(struct arena *arena, const void *bytes, size_t len) {
  void *out = arena_alloc(arena, len + 1, 1);
  if (out) memcpy(out, bytes, len);
  return out;
}

/* Which versions drew the tokens of a partial sample.  Only those of an `inflight` run have rows: the tokens of others
 * are of the lease's version. */
static enum rc partial_spans(struct core *c, const struct open_round *r, int64_t group, struct lease *l,
                             struct partial_sample *s, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  int64_t count = 0;
  const struct bind binds[] = {b_int(r->run), b_int(r->round), b_int(group), b_int(s->sample)};
#define OF_PARTIAL " FROM spans WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4"
  enum rc rc = store_int(c->store, &count, err, "SELECT count(*)" OF_PARTIAL, binds, 4);
  if (rc != RC_OK || count == 0) return rc;
  s->spans = arena_alloc(arena, (size_t)count, sizeof *s->spans);
  if (!s->spans) return err_set(err, RC_NO_MEMORY, NULL, "a lease was refused memory");
  rc = store_query(c->store, &q, err, "SELECT version, start, count, fresh" OF_PARTIAL " ORDER BY start", binds, 4);
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && (int64_t)s->span_count < count) {
    struct version_span *span = &s->spans[s->span_count++];
    *span = (struct version_span){.version = rows_int(&q, 0),
                                  .start = (int32_t)rows_int(&q, 1),
                                  .count = (int32_t)rows_int(&q, 2),
                                  .fresh = rows_int(&q, 3) != 0};
    if (span->version < l->version_min) l->version_min = span->version;
  }
  rows_end(&q);
  return rc;
#undef OF_PARTIAL
}

/* Tokens that earlier holders handed back. */
static enum rc lease_partials(struct core *c, const struct open_round *r, const struct planned_lease *p,
                              struct lease *l, struct arena *arena, struct err *err) {
  struct rows q;
  bool row;
  size_t ids_len, logprobs_len;
  l->partials = arena_alloc(arena, (size_t)p->count, sizeof *l->partials);
  if (!l->partials) return err_set(err, RC_NO_MEMORY, NULL, "a lease was refused memory");
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT sample, token_ids, logprobs FROM rollouts WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND "
      "sample BETWEEN ?4 AND ?5 AND partial = 1 ORDER BY sample",
      BINDS(b_int(r->run), b_int(r->round), b_int(p->group), b_int(p->first), b_int(p->first + p->count - 1)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const void *ids = rows_blob(&q, 1, &ids_len), *logprobs = rows_blob(&q, 2, &logprobs_len);
    struct partial_sample *s = &l->partials[l->partial_count++];
    *s = (struct partial_sample){.sample = (int32_t)rows_int(&q, 0),
                                 .logprobs = {copy(arena, logprobs, logprobs_len), logprobs_len / sizeof(float)}};
    rc = token_bytes_unpack(&s->token_ids.items, &s->token_ids.count, ids, ids_len, logprobs_len, arena, err);
    if (rc == RC_OK && !s->logprobs.items) rc = err_set(err, RC_NO_MEMORY, NULL, "a lease was refused memory");
  }
  rows_end(&q);
  for (size_t i = 0; i < l->partial_count && rc == RC_OK; i++)
    rc = partial_spans(c, r, p->group, l, &l->partials[i], arena, err);
  return rc;
}

/* The part that all leases of one group share.  *note: its part too, which stays for the next lease of the group. */
static enum rc lease_of_group(struct core *c, const struct open_round *r, int64_t group, const struct lease *before,
                              struct lease *l, struct granted_lease *note, struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false;
  size_t len = 0;
  if (before && before->group_ordinal == group) {
    l->purpose = before->purpose;
    l->group = before->group;
    l->prompt_ids = before->prompt_ids;
    l->max_new_tokens = before->max_new_tokens;
    l->temperature = before->temperature;
    return RC_OK;
  }
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT purpose, prompt_ids, max_new_tokens, evaluation_set, answer, extra FROM groups WHERE run = ?1 "
      "AND round = ?2 AND ordinal = ?3",
      BINDS(b_int(r->run), b_int(r->round), b_int(group)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && !row)
    rc = err_set(err, RC_CORRUPT, NULL, "group %s has samples but no row", id_group(r->run, r->round, group).text);
  if (rc == RC_OK) {
    const void *ids = rows_blob(&q, 1, &len);
    l->purpose = (enum lease_purpose)rows_int(&q, 0);
    l->group = arena_strdup(arena, id_group(r->run, r->round, group).text);
    l->prompt_ids = (struct json_i32s){copy(arena, ids, len), len / sizeof(int32_t)};
    l->max_new_tokens = (int32_t)rows_int(&q, 2);
    note->max_new_tokens = l->max_new_tokens;
    note->set = rows_null(&q, 3) ? -1 : (int)rows_int(&q, 3);
    note->answer = arena_strdup(arena, rows_text(&q, 4, NULL));
    note->extra = arena_strdup(arena, rows_text(&q, 5, NULL));
    l->temperature = (float)run_temperature(&c->context->config, note->set);
  }
  rows_end(&q);
  return rc;
}

static const char *traceparent_of(const struct run_context *x, int64_t round, struct arena *arena) {
  char text[TRACEPARENT_CHARS + 1];
  struct trace trace;
  round_trace(&trace, x, round);
  traceparent_write(text, &trace);
  return arena_strdup(arena, text);
}

static enum rc lease_describe(struct core *c, const struct open_round *r, const struct planned_lease *p,
                              const struct lease *before, struct lease *l, struct granted_lease *note,
                              struct arena *arena, struct err *err) {
  const struct run_config *config = &c->context->config;
  enum rc rc = lease_of_group(c, r, p->group, before, l, note, arena, err);
  if (rc != RC_OK) return rc;
  l->id = arena_strdup(arena, id_lease(r->run, r->round, p->group, p->first, p->count).text);
  l->run = before ? before->run : arena_strdup(arena, id_run(r->run).text);
  l->traceparent = before ? before->traceparent : traceparent_of(c->context, r->round, arena);
  if (!l->id || !l->run || !l->traceparent || !l->group || !l->prompt_ids.items || !note->answer || !note->extra)
    return err_set(err, RC_NO_MEMORY, NULL, "a lease was refused memory");
  l->fence = (uint64_t)p->fence;
  l->round = r->round;
  l->group_ordinal = p->group;
  l->sample_first = p->first;
  l->sample_count = p->count;
  l->version_min = r->version;
  l->kv = config->kv_recompute ? LEASE_KV_RECOMPUTE : LEASE_KV_KEEP;
  if (l->purpose != LEASE_EVALUATION || run_evaluates(config)) l->cut = config->sampling.cut;
  l->stop_token_ids = c->context->stop_token_ids;
  l->stop = config->sampling.stop;
  l->ignore_eos = config->sampling.ignore_eos;
  l->seed = config->seed;
  l->ttl_ms = (int32_t)c->options.lease_ttl_ms;
  if (p->fence != FENCE_FIRST) rc = lease_partials(c, r, p, l, arena, err);
  l->version_max = l->version_min + config->max_lag; /* a lease is as old as its oldest token */
  return rc;
}

static enum rc lease_store(struct core *c, const struct live_worker *w, const struct open_round *r,
                           const struct planned_lease *p, const struct lease *l, struct err *err) {
  enum rc rc =
      store_exec(c->store, err,
                 "INSERT INTO leases (id, fence, run, round, group_ordinal, sample_first, sample_count, worker, state, "
                 "epoch, version_min, version_max, digest, granted_ms, deadline_ms)"
                 " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
                 BINDS(b_text(l->id), b_int(p->fence), b_int(r->run), b_int(r->round), b_int(p->group), b_int(p->first),
                       b_int(p->count), b_int(w->id), b_int(LEASE_GRANTED), b_int((int64_t)c->epoch),
                       b_int(l->version_min), b_int(l->version_max), b_digest(&l->weights_digest), b_int(c->wall_ms),
                       b_int(expiry_lease_deadline(c->now_ms, c->options.lease_ttl_ms))));
  if (rc == RC_OK) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO samples (run, round, group_ordinal, sample, state, fence, worker) WITH RECURSIVE n (i) "
        "AS (VALUES (?4) UNION ALL SELECT i + 1 FROM n WHERE i < ?5) SELECT ?1, ?2, ?3, i, ?6, ?7, ?8 FROM n "
        "WHERE true ON CONFLICT DO UPDATE SET state = excluded.state, fence = excluded.fence, worker = "
        "excluded.worker WHERE state = " SQL_SAMPLE_WAITING,
        BINDS(b_int(r->run), b_int(r->round), b_int(p->group), b_int(p->first), b_int(p->first + p->count - 1),
              b_int(SAMPLE_LEASED), b_int(p->fence), b_int(w->id)));
  }
  if (rc == RC_OK && store_changes(c->store) != p->count)
    rc = err_set(err, RC_CORRUPT, NULL, "lease %s was planned over samples that do not wait", l->id);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET samples_waiting = samples_waiting - ?4, leased_ms = coalesce(leased_ms, ?5), "
                    "waiting_ms = CASE WHEN samples_waiting > ?4 THEN waiting_ms END, overtaken_ms = CASE WHEN "
                    "samples_waiting > ?4 THEN overtaken_ms END WHERE run = ?1 AND round = ?2 AND "
                    "ordinal = ?3",
                    BINDS(b_int(r->run), b_int(r->round), b_int(p->group), b_int(p->count), b_int(c->wall_ms)));
  }
  if (rc == RC_OK) waiting_granted(&c->pool->waiting, p->group, p->count);
  return rc;
}

/* The order of the groups, as far as this poll can reach. */
static enum rc candidates_order(struct core *c, const struct open_round *r, const struct live_worker *w, int slots,
                                int servers, struct candidates *out, struct err *err) {
  const struct run_config *config = &c->context->config;
  const int measured =
      frontier_size(rate_value(&c->pool->rates.drain), rate_value(&c->pool->rates.latency), config->groups_per_round);
  const int wanted = config->frontier_groups ? config->frontier_groups : measured;
  const int size = wanted < FRONTIER_CANDIDATES_MAX ? wanted : FRONTIER_CANDIDATES_MAX;
  /* this many leases are in an answer at most, each of one group; behind a gate only what it admits is counted */
  const int reach = config->frontier != FRONTIER_GATE           ? 0
                    : slots < FRONTIER_CANDIDATES_MAX / servers ? slots * servers
                                                                : FRONTIER_CANDIDATES_MAX;
  int most = reach > size + LIMIT_LEASES_PER_REQUEST ? reach : size + LIMIT_LEASES_PER_REQUEST;
  const struct admission_plan *plan = NULL;
  struct frontier_policy policy = {.kind = config->frontier,
                                   .end = INT32_MAX,
                                   .aging_ms = config->aging_ms,
                                   .now_ms = c->wall_ms,
                                   .tokens_prior = (int64_t)rate_value(&c->pool->rates.tokens)};
  enum rc rc = waiting_read(&c->pool->waiting, c, r->run, r->round, err);
  if (rc == RC_OK) rc = plan_of_round(c, r, &plan, err);
  if (rc != RC_OK) return rc;
  if (plan->ordered) most = FRONTIER_CANDIDATES_MAX; /* its first group may have any ordinal */
  groups_waiting(&c->pool->waiting, w, most < FRONTIER_CANDIDATES_MAX ? most : FRONTIER_CANDIDATES_MAX, out);
  policy.planned = plan->ordered;
  for (int i = 0; plan->ordered && i < out->count; i++)
    out->groups[i].place = pace_place(&c->pool->pace, out->groups[i].ordinal);
  if (out->count && config->frontier != FRONTIER_OFF && !plan->ordered)
    policy.end = waiting_frontier_end(&c->pool->waiting, size);
  out->ordered = frontier_order(out->groups, out->count, &policy, out->order);
  if (plan->bounded) {
    const int32_t begun = c->pool->waiting.begun, under_way = waiting_under_way(&c->pool->waiting);
    out->ordered = admission_admit(out->groups, out->order, out->ordered, begun,
                                   pace_groups(&c->pool->pace, c->now_ms, begun, under_way));
  }
  return RC_OK;
}

/* Groups that a later one went before: their age counts from now on. */
static enum rc note_overtaken(struct core *c, const struct open_round *r, struct candidates *all,
                              const struct planned_lease *plan, int planned, struct err *err) {
  int32_t overtaken[FRONTIER_CANDIDATES_MAX];
  if (c->context->config.frontier == FRONTIER_OFF) return RC_OK;
  for (int g = 0; g < all->count; g++) {
    all->granted[g] = 0;
    for (int i = 0; i < planned; i++) all->granted[g] += plan[i].group == all->groups[g].ordinal ? plan[i].count : 0;
  }
  const int n = frontier_overtaken(all->groups, all->count, all->granted, overtaken);
  enum rc rc = RC_OK;
  for (int i = 0; i < n && rc == RC_OK; i++) {
    waiting_overtaken(&c->pool->waiting, all->groups[overtaken[i]].ordinal, c->wall_ms);
    rc = store_exec(c->store, err, "UPDATE groups SET overtaken_ms = ?4 WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(r->run), b_int(r->round), b_int(all->groups[overtaken[i]].ordinal), b_int(c->wall_ms)));
  }
  return rc;
}

/* Reads what the worker holds now: at its last poll it had less or more. */
static enum rc held_look(struct core *c, struct live_worker *w, struct err *err) {
  int64_t held = 0;
  enum rc rc =
      store_int(c->store, &held, err,
                "SELECT coalesce(sum(sample_count), 0) FROM leases INDEXED BY leases_granted WHERE worker = ?1 "
                "AND state = " SQL_LEASE_GRANTED,
                BINDS(b_int(w->id)));
  pool_note_held(c->pool, w, (int32_t)held);
  return rc;
}

/* How many of the waiting samples the worker may have.  What each worker holds is known from its last poll. */
static enum rc share_of(struct core *c, struct live_worker *w, int slots, int servers, int waiting, int *take,
                        struct err *err) {
  *take = slots;
  if (waiting / servers >= slots) return RC_OK; /* there is enough for everybody */
  const enum rc rc = held_look(c, w, err);
  *take = dispatch_share(waiting, servers, slots, w->held, (int)c->pool->held);
  return rc;
}

/* Chooses what this poll gets; stores only which groups were overtaken. */
static enum rc grant_plan(struct core *c, const struct open_round *r, struct live_worker *w, int slots, int servers,
                          struct planned_lease *plan, int *planned, struct arena *arena, struct err *err) {
  int samples = 0, take = 0;
  int64_t waiting = 0;
  struct candidates *all = arena_alloc_bytes(arena, sizeof *all); /* as far as its counts say */
  *planned = 0;
  if (!all)
    return err_set(err, RC_NO_MEMORY, NULL, "a plan over %d groups was refused memory", FRONTIER_CANDIDATES_MAX);
  enum rc rc = candidates_order(c, r, w, slots, servers, all, err);
  const bool some = c->context->config.frontier == FRONTIER_GATE || c->pool->pace.plan.bounded;
  if (rc == RC_OK && !some) waiting = all->waiting;
  for (int i = 0; some && i < all->ordered; i++) waiting += all->groups[all->order[i]].waiting;
  if (rc != RC_OK || waiting == 0) return rc;
  rc = share_of(c, w, slots, servers, (int)waiting, &take, err);
  if (rc != RC_OK) return rc;
  struct waiting_sample *chosen = arena_alloc(arena, (size_t)take + 1, sizeof *chosen);
  if (!chosen) return err_set(err, RC_NO_MEMORY, NULL, "a plan of %d samples was refused memory", take);
  for (int i = 0; i < all->ordered && samples < take && rc == RC_OK; i++) {
    const int g = all->order[i];
    rc = group_samples(c, r, &all->groups[g], take - samples, chosen, &samples, err);
  }
  if (rc != RC_OK) return rc;
  *planned = dispatch_plan(chosen, samples, take, c->context->config.lease_samples_max, plan, LIMIT_LEASES_PER_REQUEST);
  if (some && *planned && samples < waiting)
    c->samples_due = true; /* of a group begun just now: parked polls had none */
  return note_overtaken(c, r, all, plan, *planned, err);
}

/* A worker that drew what the version would not have drawn, or what is not finite, gets nothing more of the run:
 * checks/README.md.  *servers:
 * less those live ones that get nothing. */
static enum rc look_quarantined(struct core *c, const struct live_worker *w, int64_t run, bool *out, int *servers,
                                struct err *err) {
  struct rows q;
  bool row = false;
  *out = false;
  enum rc rc = store_query(c->store, &q, err, "SELECT name FROM quarantines WHERE run = ?1", BINDS(b_int(run)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const char *name = rows_text(&q, 0, NULL);
    *out |= strcmp(name, w->name) == 0;
    for (int i = 0; i < c->pool->worker_count; i++) {
      const struct live_worker *other = &c->pool->workers[i];
      *servers -= other->kind == WORKER_GENERATION && other->ready && strcmp(other->name, name) == 0;
    }
  }
  rows_end(&q);
  return rc;
}

/* Lease answers that a server did not take: after UNTAKEN_MAX of them it gets none for REST_TTLS times a time to
 * live. */
enum { UNTAKEN_MAX = 4, UNTAKEN_RESTS = INT32_MAX, REST_TTLS = 20 };

static bool rests(const struct core *c, struct live_worker *w) {
  if (w->untaken != UNTAKEN_RESTS) return false;
  if (expiry_passed(w->untaken_ms, c->now_ms)) w->untaken = 0;
  return w->untaken != 0;
}

static void note_given(struct live_worker *w, int leases, int64_t wall_ms) {
  w->leases_given += leases;
  w->last_given = leases;
  w->last_given_ms[1] = w->last_given_ms[0];
  w->last_given_ms[0] = wall_ms;
}

enum rc leases_grant(struct core *c, struct live_worker *w, int slots_free, int servers,
                     const struct current_version *held, struct lease *leases, size_t *count, struct arena *arena,
                     struct err *err) {
  struct open_round r = {0};
  struct planned_lease plan[LIMIT_LEASES_PER_REQUEST];
  bool found, quarantined = false;
  int planned = 0;
  *count = 0;
  enum rc rc = open_round_now(c, held, &r, &found, err);
  if (rc == RC_OK && !found && c->context && c->context->config.mode == MODE_INFLIGHT)
    c->nothing_waits = true; /* for no other parked poll either */
  if (rc != RC_OK || !found || !held->has || held->version != r.version ||
      strcmp(held->run, id_run(r.run).text) != 0)
    return rc; /* I2 */
  rc = look_quarantined(c, w, r.run, &quarantined, &servers, err);
  if (rc != RC_OK || quarantined || rests(c, w)) return rc;
  rc = grant_plan(c, &r, w, slots_free < LIMIT_SLOTS ? slots_free : LIMIT_SLOTS, servers > 0 ? servers : 1, plan,
                  &planned, arena, err);
  struct granted_lease note = {.run = r.run, .worker = w->id};
  for (int i = 0; i < planned && rc == RC_OK; i++) {
    struct lease *l = &leases[i];
    *l = (struct lease){.weights_digest = held->digest};
    rc = lease_describe(c, &r, &plan[i], i ? &leases[i - 1] : NULL, l, &note, arena, err);
    if (rc == RC_OK) rc = lease_store(c, w, &r, &plan[i], l, err);
    if (rc != RC_OK) break;
    note.id = l->id;
    note.fence = plan[i].fence;
    granted_note(c->pool->granted, &note);
  }
  if (rc == RC_OK && planned)
    rc = store_exec(c->store, err, "UPDATE runs SET leases_granted = leases_granted + ?2 WHERE id = ?1",
                    BINDS(b_int(r.run), b_int(planned)));
  if (rc != RC_OK) return rc;
  for (int i = 0; i < planned; i++) pool_note_held(c->pool, w, w->held + plan[i].count);
  if (planned && w->untaken++ == 0) w->untaken_ms = c->now_ms;
  if (planned) note_given(w, planned, c->wall_ms);
  const bool newer = c->context->config.mode == MODE_INFLIGHT; /* what waits may be for servers with a newer version */
  if (!planned && !w->positions_refused && !newer) c->nothing_waits = true;
  metric_add(c->pool->m_granted, planned);
  *count = (size_t)planned;
  return RC_OK;
}

/* ---- looking up, renewing, ending ---- */

static void lease_read(const struct rows *q, struct lease_row *l) {
  *l = (struct lease_row){.fence = rows_int(q, 1),
                          .run = rows_int(q, 2),
                          .round = rows_int(q, 3),
                          .group = rows_int(q, 4),
                          .first = rows_int(q, 5),
                          .count = rows_int(q, 6),
                          .worker = rows_int(q, 7),
                          .state = (enum lease_state)rows_int(q, 8),
                          .epoch = (uint64_t)rows_int(q, 9),
                          .version_min = rows_int(q, 10),
                          .version_max = rows_int(q, 11)};
  snprintf(l->id, sizeof l->id, "%s", rows_text(q, 0, NULL));
  rows_digest(q, 12, &l->digest);
  l->has_content = rows_digest(q, 13, &l->content);
}

#define LEASE_COLUMNS                                                                                                  \
  "id, fence, run, round, group_ordinal, sample_first, sample_count, worker, state, epoch, version_min, version_max, " \
  "digest, content"

/* fence NULL: the one with the highest. */
static enum rc lease_look(struct store *s, const char *id, const uint64_t *fence, struct lease_row *out,
                          struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc =
      fence ? store_query(s, &q, err, "SELECT " LEASE_COLUMNS " FROM leases WHERE id = ?1 AND fence = ?2",
                          BINDS(b_text(id), b_int(*fence <= INT64_MAX ? (int64_t)*fence : -1)))
            : store_query(s, &q, err, "SELECT " LEASE_COLUMNS " FROM leases WHERE id = ?1 ORDER BY fence DESC LIMIT 1",
                          BINDS(b_text(id)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) lease_read(&q, out);
  rows_end(&q);
  if (rc != RC_OK || row) return rc;
  return err_set(err, RC_NOT_FOUND, "id", "there is no lease '%.100s'", id);
}

enum rc lease_claimed(struct store *s, const char *id, const uint64_t *fence, const char *worker, struct lease_row *out,
                      struct err *err) {
  out->run = 0;
  enum rc rc = lease_look(s, id, fence, out, err);
  if (rc == RC_NOT_FOUND && fence && (rc = lease_look(s, id, NULL, out, err)) == RC_OK)
    return err_set(err, RC_CONFLICT, "fence", "lease %s has fence %" PRId64 " now, the result carries %" PRIu64,
                   out->id, out->fence, *fence);
  if (rc == RC_OK && worker && strcmp(id_worker(out->worker).text, worker) != 0)
    return err_set(err, RC_FORBIDDEN, "worker_id", "lease %s belongs to %s, not to %.100s", out->id,
                   id_worker(out->worker).text, worker);
  return rc;
}

enum rc lease_stands(const struct lease_row *l, struct err *err) {
  if (fault_accepts_any(l->state)) return RC_OK;
  switch (l->state) {
    case LEASE_GRANTED: return RC_OK;
    case LEASE_EXPIRED:
      return err_set(err, RC_GONE, "id",
                     "lease %s with fence %" PRId64 " expired: its samples were given to another worker", l->id,
                     l->fence);
    case LEASE_HANDED_BACK:
      return err_set(err, RC_CONFLICT, "id", "lease %s with fence %" PRId64 " was handed back", l->id, l->fence);
    case LEASE_SUPERSEDED:
      return err_set(err, RC_CONFLICT, "id",
                     "lease %s is superseded: its policy version is not current any more, its run ended or its group "
                     "failed",
                     l->id);
    case LEASE_LOST:
      return err_set(err, RC_CONFLICT, "fence",
                     "lease %s with fence %" PRId64
                     " was lost when its worker went silent, registered again or did not get it",
                     l->id, l->fence);
    case LEASE_DONE: break;
  }
  return err_set(err, RC_CONFLICT, "id", "lease %s has its result already", l->id);
}

enum rc lease_renew(struct core *c, const char *id, int64_t fence, int64_t worker, bool *held, struct err *err) {
  enum rc rc = store_exec(
      c->store, err, "UPDATE leases SET deadline_ms = ?5 WHERE id = ?1 AND fence = ?2 AND worker = ?3 AND state = ?4",
      BINDS(b_text(id), b_int(fence), b_int(worker), b_int(LEASE_GRANTED),
            b_int(expiry_lease_deadline(c->now_ms, c->options.lease_ttl_ms))));
  *held = rc == RC_OK && store_changes(c->store) == 1;
  return rc;
}

/* Samples that the lease held and nobody finished wait for the next lease. */
static enum rc samples_return(struct core *c, const struct lease_row *l, struct err *err) {
  enum rc rc =
      store_exec(c->store, err,
                 "UPDATE samples SET state = ?6 WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample "
                 "BETWEEN ?4 AND ?5 AND state = ?7 AND fence <= ?8",
                 BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(l->first), b_int(l->first + l->count - 1),
                       b_int(SAMPLE_WAITING), b_int(SAMPLE_LEASED), b_int(l->fence)));
  const int64_t returned = rc == RC_OK ? store_changes(c->store) : 0;
  if (returned > 0) {
    rc = store_exec(c->store, err,
                    "UPDATE groups SET samples_waiting = samples_waiting + ?4, waiting_ms = coalesce(waiting_ms, ?5) "
                    "WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                    BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(returned), b_int(c->wall_ms)));
  }
  if (rc == RC_OK)
    rc = store_exec(c->store, err, "UPDATE runs SET leases_lost = leases_lost + 1 WHERE id = ?1", BINDS(b_int(l->run)));
  metric_add(c->pool->m_lost, 1);
  waiting_forget(&c->pool->waiting);
  c->samples_due = true;
  return rc;
}

enum rc lease_end(struct core *c, const struct lease_row *l, enum lease_state state, const struct digest *content,
                  struct err *err) {
  enum rc rc = state_check(MACHINE_LEASE, (int)l->state, (int)state, l->id, err);
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE leases SET state = ?3, ended_ms = ?4, content = ?5 WHERE id = ?1 AND fence = ?2",
                    BINDS(b_text(l->id), b_int(l->fence), b_int((int64_t)state), b_int(c->wall_ms), b_digest(content)));
  }
  granted_end(c->pool->granted, l->id, l->fence);
  if (rc != RC_OK || state == LEASE_DONE || state == LEASE_SUPERSEDED) return rc;
  return samples_return(c, l, err);
}

enum { SAMPLES_BY_STATE, SAMPLES_AGAIN }; /* what becomes of a lease's samples: lease_end decides, or they wait again */

/* Ends the granted leases that the query finds, a few at a time: ending one changes what is queried. */
static enum rc end_found(struct core *c, const char *sql, const struct bind *binds, size_t bind_count,
                         enum lease_state state, int samples, struct err *err) {
  enum { AT_ONCE = 64 };
  struct lease_row found[AT_ONCE];
  int n;
  enum rc rc;
  do {
    struct rows q;
    bool row;
    n = 0;
    rc = store_query(c->store, &q, err, sql, binds, bind_count);
    while (rc == RC_OK && n < AT_ONCE && (rc = rows_next(&q, &row, err)) == RC_OK && row) lease_read(&q, &found[n++]);
    rows_end(&q);
    for (int i = 0; i < n && rc == RC_OK; i++) {
      rc = lease_end(c, &found[i], state, NULL, err);
      if (rc == RC_OK && samples == SAMPLES_AGAIN) rc = samples_return(c, &found[i], err);
    }
  } while (rc == RC_OK && n == AT_ONCE);
  return rc;
}

#define GRANTED_LEASES \
  "SELECT " LEASE_COLUMNS " FROM leases INDEXED BY leases_granted WHERE state = " SQL_LEASE_GRANTED " AND "

enum rc leases_lose_all(struct core *c, int64_t worker, struct err *err) {
  return end_found(c, GRANTED_LEASES "worker = ?1", BINDS(b_int(worker)), LEASE_LOST, SAMPLES_BY_STATE, err);
}

/* Goes through all granted leases, so only once one of them may have ended: deadlines are never brought forward, and
 * those of later grants and renewals lie behind a time to live from now. */
enum rc leases_expire(struct core *c, struct err *err) {
  int64_t *const due_ms = &c->pool->leases_due_ms;
  int64_t first_ms = 0;
  if (!expiry_passed(*due_ms, c->now_ms)) return RC_OK;
  enum rc rc =
      end_found(c, GRANTED_LEASES "deadline_ms <= ?1", BINDS(b_int(c->now_ms)), LEASE_EXPIRED, SAMPLES_BY_STATE, err);
  if (rc == RC_OK)
    rc = store_int(c->store, &first_ms, err,
                   "SELECT coalesce(min(deadline_ms), ?1) FROM leases INDEXED BY leases_granted WHERE state "
                   "= " SQL_LEASE_GRANTED,
                   BINDS(b_int(expiry_lease_deadline(c->now_ms, c->options.lease_ttl_ms))));
  if (rc == RC_OK) *due_ms = first_ms;
  return rc;
}

/* A server of another version may be unable to read what it is granted, and can say so only in its own log.  Its
 * heartbeats show it: they go on but name no lease, it asks for more, and lets all of them expire. A lost answer is not
 * its fault, and many may be lost one after another, so it gets another chance later. */
static enum rc note_untaken(struct core *c, struct live_worker *w, bool holds, struct err *err) {
  const int64_t rest_ms = REST_TTLS * (int64_t)c->options.lease_ttl_ms;
  char detail[LIMIT_NAME_MAX + 224];
  if (holds) w->untaken = 0;
  if (w->untaken < UNTAKEN_MAX || w->untaken == UNTAKEN_RESTS ||
      !expiry_passed(w->untaken_ms + c->options.lease_ttl_ms, c->now_ms))
    return RC_OK;
  snprintf(detail, sizeof detail,
           "%s takes none of the leases that it asks for, so it gets no more for %" PRId64
           " ms: its log says why; if it is of another version than this coordinator, replace it",
           w->name, rest_ms);
  w->untaken = UNTAKEN_RESTS;
  w->untaken_ms = c->now_ms + rest_ms;
  return journal_incident(c, c->context ? c->context->run : 0, "leases_untaken", id_worker(w->id).text, detail, err);
}

enum rc leases_note_progress(struct core *c, struct live_worker *w, int64_t tokens_sampled, bool holds,
                             struct err *err) {
  const int64_t still_ms = c->now_ms - w->progressed_ms;
  char detail[LIMIT_NAME_MAX + 128];
  const bool told = w->exactness != WORKER_FOREIGN; /* foreign engines tell of tokens when a sample ends */
  const bool stands = holds && told && tokens_sampled == w->tokens_sampled;
  enum rc rc = note_untaken(c, w, holds, err);
  if (rc != RC_OK) return rc;
  if (stands &&
      !expiry_stands_still(w->progressed_ms, rate_value(&c->pool->rates.latency), c->options.lease_ttl_ms, c->now_ms))
    return RC_OK;
  w->tokens_sampled = tokens_sampled;
  w->progressed_ms = c->now_ms;
  if (!stands) return RC_OK;
  snprintf(detail, sizeof detail,
           "%s holds leases and has sampled nothing for %" PRId64 " ms: they are given to others", w->name, still_ms);
  rc = journal_incident(c, c->context ? c->context->run : 0, "worker_stands_still", id_worker(w->id).text, detail, err);
  if (rc != RC_OK) return rc;
  return end_found(c, GRANTED_LEASES "worker = ?1", BINDS(b_int(w->id)), LEASE_EXPIRED, SAMPLES_BY_STATE, err);
}

/* Leases are known by the time of their answer, so where two answers share a millisecond these lapse by themselves. */
enum rc leases_note_taken(struct core *c, struct live_worker *w, int64_t taken, struct err *err) {
  const bool lost = w->last_given > 0 && taken == w->leases_given - w->last_given;
  const bool known = w->last_given_ms[0] != w->last_given_ms[1];
  w->leases_given = taken;
  if (!lost) return RC_OK;
  w->last_given = 0;
  if (!known) return RC_OK;
  log_info("worker %s (%s) did not get its last leases: their samples wait again", id_worker(w->id).text, w->name);
  return end_found(c, GRANTED_LEASES "worker = ?1 AND granted_ms = ?2", BINDS(b_int(w->id), b_int(w->last_given_ms[0])),
                   LEASE_LOST, SAMPLES_BY_STATE, err);
}

enum rc leases_put_off(struct core *c, int64_t ms, struct err *err) {
  return store_exec(c->store, err, "UPDATE leases SET deadline_ms = deadline_ms + ?1 WHERE state = " SQL_LEASE_GRANTED,
                    BINDS(b_int(ms)));
}

enum rc leases_supersede(struct core *c, int64_t run, struct err *err) {
  return end_found(c, GRANTED_LEASES "run = ?1", BINDS(b_int(run)), LEASE_SUPERSEDED, SAMPLES_BY_STATE, err);
}

enum rc leases_outdate(struct core *c, int64_t run, int64_t version, struct err *err) {
  return end_found(c, GRANTED_LEASES "run = ?1 AND version_max < ?2", BINDS(b_int(run), b_int(version)),
                   LEASE_SUPERSEDED, SAMPLES_AGAIN, err);
}

enum rc leases_supersede_group(struct core *c, int64_t run, int64_t round, int64_t group, struct err *err) {
  return end_found(c, GRANTED_LEASES "run = ?1 AND round = ?2 AND group_ordinal = ?3",
                   BINDS(b_int(run), b_int(round), b_int(group)), LEASE_SUPERSEDED, SAMPLES_BY_STATE, err);
}
