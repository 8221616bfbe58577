/* Lease, seal and batch transitions in random order: no thread, no HTTP, a database in memory, a clock that the test
 * moves.  Three generation-servers poll, renew, finish, hand back, fall silent and come back under old leases; batches
 * are planned, answered and lost; versions are published.  After every step the invariants of DESIGN must hold:
 *
 *   I1  one current version per run
 *   I2  a lease stands only for the current version and its weights
 *   I3  a result is accepted at most once, under a live lease with the right fence, epoch and weights
 *   I4  a group is sealed only when all its samples are accepted, and its digest is a function of what was sampled
 *   I5  a sealed group is in exactly one batch and consumed once, or filtered with a reason
 *   I6  a version is current exactly when the round that made it is done
 *
 * What rows can tell is asked by tests/sim/world_invariants.h. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/api/route_leases.h"
#include "services/coordinator/api/route_results.h"
#include "services/coordinator/api/route_workers.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/publish.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/run_attach.h"
#include "services/coordinator/rounds/tick.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core.h"
#include "tests/sim/world_invariants.h"

enum {
  SEEDS = 12,
  STEPS_MAX = 6000, /* of one seed: each round takes a few hundred */
  SERVERS = 3,
  SLOTS = 6,
  HELD_MAX = 64, /* leases that a server remembers, ended ones too */
  ROUNDS = 3,
  GROUPS = 4,
  GROUPS_MAX = 16, /* refills included */
  SAMPLES = 4,
  LEASE_TTL_MS = 1500,
  WORKER_TTL_MS = 2500,
  BATCH_TOKENS = 60,
  EOS = 256,
  MS = 1000
};

static const char config_text[] =
    "{\"mode\":\"pipelined\",\"rounds\":3,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},"
    "\"verify_samples\":false,\"groups_per_round\":4,\"samples_per_group\":4,\"lease_samples_max\":3,"
    "\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":2},"
    "\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}";

struct held_lease {
  char id[64];
  uint64_t fence;
  int32_t digit, ordinal, round, first, count;
  int64_t version;
};

struct server {
  struct worker_registered is;
  char id[32];
  bool silent;
  bool has_loaded;
  struct digest loaded;
  struct held_lease held[HELD_MAX]; /* newest first; what has ended is kept, as by a zombie */
  int held_count;
};

static struct world {
  uint32_t dice;
  bool honest; /* nobody sends other content than what was sampled: then digests can be compared */
  int64_t now_us;
  struct core *core;
  struct run_context *context;
  struct arena arena; /* of one step */
  struct server servers[SERVERS];
  int accepted[ROUNDS][GROUPS_MAX][SAMPLES]; /* how often each sample was */
  int64_t batches;                           /* of the round in hand */
  int64_t round;
} w;

static char dir[64];
static struct model_files files;
/* Across seeds: the digest of a group depends on nothing but what was sampled. */
static struct digest group_digests[ROUNDS][GROUPS_MAX];
static bool group_known[ROUNDS][GROUPS_MAX];

static int below(int n) {
  w.dice = w.dice * 1664525u + 1013904223u;
  return (int)((w.dice >> 8) % (uint32_t)n);
}

static int64_t since_start_us(void *context) { return *(int64_t *)context; }
static int64_t since_1970_us(void *context) { return INT64_C(1700000000000000) + *(int64_t *)context; }

/* ---- calls ---- */

struct call {
  command_execute execute;
  void *message;
  const char *id;
  struct buf *answer; /* NULL: not wanted */
};

static enum rc call_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct call k = *(const struct call *)cmd->message;
  cmd->message = k.message;
  cmd->id = k.id;
  const enum rc rc = k.execute(c, cmd, err);
  if (rc == RC_OK && k.answer) buf_append(k.answer, cmd->body.data, cmd->body.len);
  return rc;
}

static enum rc call(command_execute execute, void *message, const char *id, struct buf *answer, struct err *err) {
  struct command *cmd = command_new(call_execute, sizeof(struct call));
  *(struct call *)cmd->message = (struct call){execute, message, id, answer};
  return core_call(w.core, cmd, err);
}

static void must(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail_msg("%s", err->message);
}

static struct json *parsed(const struct buf *text) {
  struct json *json = NULL;
  struct err err = {0};
  must(json_parse(&json, text->data, text->len, 0, &err), &err);
  return json;
}

static int64_t number_of(const char *sql, const struct bind *binds, size_t count) {
  struct err err = {0};
  int64_t n = -1;
  const enum rc rc = store_int(w.core->store, &n, &err, sql, binds, count);
  if (rc != RC_OK && rc != RC_NOT_FOUND) fail_msg("%s: %s", sql, err.message);
  return n;
}
#define NUMBER(sql, ...) number_of(sql, BINDS(__VA_ARGS__))

static void time_passes(int64_t ms) {
  struct err err = {0};
  for (; ms > 0; ms -= CORE_LOOK_MS) {
    w.now_us += (ms < CORE_LOOK_MS ? ms : CORE_LOOK_MS) * MS;
    must(core_wake(w.core, &err), &err);
  }
}

static int64_t current_version(void) {
  return NUMBER("SELECT version FROM versions WHERE run = 1 AND state = ?1", b_int(VERSION_CURRENT));
}

static void version_digest(struct digest *out, int64_t version) {
  char text[40];
  snprintf(text, sizeof text, "weights of %lld", (long long)version);
  digest_of(out, text, strlen(text));
}

/* ---- servers ---- */

static void server_register(struct server *s, int index) {
  char name[16];
  struct buf answer = BUF_INIT;
  struct err err = {0};
  snprintf(name, sizeof name, "gen-%d", index);
  struct worker_register m = {.name = name, .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = SLOTS};
  must(call(register_execute, &m, NULL, &answer, &err), &err);
  struct json *json = parsed(&answer);
  must(worker_registered_decode(&s->is, json, &w.arena, &err), &err);
  snprintf(s->id, sizeof s->id, "%s", s->is.worker_id);
  s->silent = s->has_loaded = false;
  json_free(json);
  buf_free(&answer);
}

/* A server whose registration is forgotten registers again. */
static bool server_lives(struct server *s, int index) {
  int64_t id = 0;
  must(id_parse_worker(&id, s->id, NULL), &(struct err){.message = "an id"});
  if (worker_live(w.core, id)) return true;
  server_register(s, index);
  return false;
}

static void server_beats(struct server *s) {
  struct err err = {0};
  struct lease_ref refs[HELD_MAX];
  for (int i = 0; i < s->held_count; i++) refs[i] = (struct lease_ref){.id = s->held[i].id, .fence = s->held[i].fence};
  struct worker_heartbeat m = {.epoch = s->is.epoch,
                               .ready = true,
                               .has_loaded = s->has_loaded,
                               .loaded_digest = s->loaded,
                               .leases = refs,
                               .lease_count = (size_t)(s->held_count < SLOTS ? s->held_count : SLOTS)};
  must(call(heartbeat_execute, &m, s->id, NULL, &err), &err);
}

static void server_polls(struct server *s) {
  struct buf answer = BUF_INIT;
  struct lease_answer a;
  struct err err = {0};
  struct lease_request m = {
      .epoch = s->is.epoch, .slots_free = 1 + below(SLOTS), .has_loaded = s->has_loaded, .loaded_digest = s->loaded};
  must(call(poll_execute, &m, s->id, &answer, &err), &err);
  struct json *json = parsed(&answer);
  must(lease_answer_decode(&a, json, &w.arena, &err), &err);
  for (size_t i = 0; i < a.lease_count; i++) {
    const struct lease *l = &a.leases[i];
    assert_true(s->has_loaded && digest_equal(&s->loaded, &l->weights_digest)); /* I2 */
    assert_int_equal(l->version_min, current_version());
    memmove(&s->held[1], &s->held[0], (HELD_MAX - 1) * sizeof s->held[0]);
    s->held_count += s->held_count < HELD_MAX;
    s->held[0] = (struct held_lease){.fence = l->fence,
                                     .digit = l->prompt_ids.items[0],
                                     .ordinal = l->group_ordinal,
                                     .round = (int32_t)l->round,
                                     .first = l->sample_first,
                                     .count = l->sample_count,
                                     .version = l->version_min};
    snprintf(s->held[0].id, sizeof s->held[0].id, "%s", l->id);
  }
  if (a.current.has && below(8)) { /* else it is slow to load */
    s->has_loaded = true;
    s->loaded = a.current.digest;
  }
  json_free(json);
  buf_free(&answer);
}

/* What is sampled is a function of the prompt and the sample.  Every third prompt is never answered, so that its group
 * has nothing to learn from. */
static void sample_make(struct sample_result *out, const struct held_lease *l, int index, bool whole) {
  const int sample = l->first + index, digit = l->digit - '0';
  const bool right = digit % 3 != 0 && sample % 2 == 0;
  const size_t count = whole ? 3 : 1;
  int32_t *ids = arena_alloc(&w.arena, 3, sizeof *ids);
  float *logprobs = arena_alloc(&w.arena, 3, sizeof *logprobs);
  struct sample_segment *segment = arena_alloc(&w.arena, 1, sizeof *segment);
  struct version_span *span = arena_alloc(&w.arena, 1, sizeof *span);
  ids[0] = '#';
  ids[1] = right ? l->digit : '0' + (digit + 1) % 10;
  ids[2] = EOS;
  for (int i = 0; i < 3; i++) logprobs[i] = -(float)(ids[i] + 1) / 1024;
  *segment = (struct sample_segment){0, (int32_t)count, true};
  *span = (struct version_span){l->version, 0, (int32_t)count, true};
  *out = (struct sample_result){.sample = sample,
                                .token_ids = {ids, count},
                                .logprobs = {logprobs, count},
                                .finish = whole ? FINISH_STOP : FINISH_ABORT,
                                .segments = segment,
                                .segment_count = 1,
                                .spans = span,
                                .span_count = 1};
}

enum lie { NO_LIE, OLD_FENCE, OTHER_EPOCH, OTHER_WEIGHTS, OTHER_CONTENT, LIES };

/* A result of any lease that the server remembers, perhaps an ended one, perhaps with a lie.  I3 is judged by what the
 * database says before and after. */
static void server_finishes(struct server *s) {
  if (s->held_count == 0) return;
  const struct held_lease *l = &s->held[below(below(2) ? s->held_count : s->held_count < 4 ? s->held_count : 4)];
  const enum lie lie = below(4) ? NO_LIE : (enum lie)below(LIES);
  const bool altered = lie == OTHER_CONTENT && !w.honest, whole = below(4) != 0;
  struct err err = {0};
  struct lease_result_answer a = {0};
  struct buf answer = BUF_INIT;
  struct lease_result m = {.worker_id = s->id,
                           .epoch = s->is.epoch + (lie == OTHER_EPOCH),
                           .fence = l->fence - (lie == OLD_FENCE),
                           .handed_back = !whole,
                           .sample_count = (size_t)l->count};
  version_digest(&m.loaded_digest, l->version + (lie == OTHER_WEIGHTS));
  m.samples = arena_alloc(&w.arena, (size_t)l->count, sizeof *m.samples);
  for (int i = 0; i < l->count; i++)
    sample_make(&m.samples[i], l, i, whole || (i == 0 && below(2))); /* some of what is handed back has ended */
  if (altered) m.samples[0].logprobs.items[0] -= 0.25f;
  const int64_t state =
      NUMBER("SELECT state FROM leases WHERE id = ?1 AND fence = ?2", b_text(l->id), b_int((int64_t)m.fence));
  const int64_t its = NUMBER("SELECT 1 FROM leases WHERE id = ?1 AND fence = ?2 AND 'w' || worker = ?3", b_text(l->id),
                             b_int((int64_t)m.fence), b_text(s->id));
  const enum rc rc = call(result_execute, &m, l->id, &answer, &err);
  if (rc == RC_OK) {
    struct json *json = parsed(&answer);
    must(lease_result_answer_decode(&a, json, &w.arena, &err), &err);
    json_free(json);
  }
  buf_free(&answer);
  const bool live = state == LEASE_GRANTED && its == 1;
  const bool true_to_lease = lie == NO_LIE || lie == OTHER_CONTENT;
  if (live && true_to_lease && (rc != RC_OK || a.repeated))
    fail_msg("the result of live lease %s is refused: %s", l->id, err.message);
  if (state == LEASE_EXPIRED && its == 1 && true_to_lease) assert_int_equal(rc, RC_GONE);
  if (rc != RC_OK || a.repeated) return;
  if (!live || !true_to_lease)
    fail_msg("lease %s in state %lld is accepted with lie %d", l->id, (long long)state, (int)lie);
  for (int i = 0; i < l->count; i++)
    w.accepted[l->round][l->ordinal][l->first + i] += m.samples[i].finish == FINISH_STOP;
}

static void server_acts(int index) {
  struct server *s = &w.servers[index];
  if (s->silent) {
    if (below(40) == 0) s->silent = false;
    if (below(12) == 0) server_finishes(s); /* a zombie's */
    return;
  }
  if (!server_lives(s, index)) return;
  switch (below(8)) {
    case 0:
    case 1:
    case 2: server_polls(s); break;
    case 3:
    case 4:
    case 5: server_finishes(s); break;
    case 6: server_beats(s); break;
    default:
      s->silent = below(12) == 0;
      if (below(12) == 0) server_register(s, index); /* a new incarnation: the old one's leases are lost */
      break;
  }
}

/* ---- the trainer ---- */

static enum rc attach_execute(struct core *c, struct command *cmd, struct err *err) {
  struct digest digest;
  version_digest(&digest, 0);
  return run_attach(c, w.context, &digest, *(const int64_t *)cmd->message, err);
}

static enum rc plan_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_plan(c, cmd->message, err);
}

static enum rc answer_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_answered(c, cmd->message, err);
}

static enum rc step_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd;
  return round_step_when_trained(c, 1, w.round, false, err);
}

static enum rc publish_execute(struct core *c, struct command *cmd, struct err *err) {
  bool refused;
  return publish_version(c, cmd->message, &refused, err);
}

static void batch_is_planned(void) {
  struct err err = {0};
  struct batch_plan plan = {.run = 1, .round = w.round, .number = w.batches};
  const struct batch_moment now = {.wall_ms = core_wall_us(w.core) / 1000, .trainer_idle = true};
  must(batches_select(&plan, w.core->store, w.context, &now, BATCH_TOKENS, &w.arena, &err), &err);
  if (plan.groups == 0) return;
  must(call(plan_execute, &plan, NULL, NULL, &err), &err);
  plan.number = ++w.batches;
  assert_true(call(plan_execute, &plan, NULL, NULL, &err) != RC_OK); /* its groups are not sealed any more */
}

static void batch_is_answered(void) {
  struct err err = {0};
  const int64_t number =
      NUMBER("SELECT number FROM batches WHERE run = 1 AND round = ?1 AND done = 0 ORDER BY number", b_int(w.round));
  if (number < 0) return;
  struct batch_answer m = {.run = 1,
                           .round = w.round,
                           .number = number,
                           .trainer_worker = 1,
                           .stats = {.samples = SAMPLES, .tokens = 3, .loss = 1, .compute_us = 1000}};
  must(call(answer_execute, &m, NULL, NULL, &err), &err);
  must(call(answer_execute, &m, NULL, NULL, &err), &err); /* a repeat changes nothing */
}

static void trainer_is_lost(void) {
  struct err err = {0};
  int64_t again = w.round;
  must(call(attach_execute, &again, NULL, NULL, &err), &err);
}

/* The round in step makes the next version; any other is refused. */
static void version_is_announced(void) {
  struct err err = {0};
  struct announced_version p = {.run = 1, .round = w.round, .version = w.round + 1};
  version_digest(&p.digest, w.round + 1);
  const int64_t state = NUMBER("SELECT state FROM rounds WHERE run = 1 AND round = ?1", b_int(w.round));
  const enum rc rc = call(publish_execute, &p, NULL, NULL, &err);
  if ((rc == RC_OK) != (state == ROUND_STEPPING))
    fail_msg("a version in round state %lld: %s", (long long)state, rc == RC_OK ? "accepted" : err.message);
  if (rc != RC_OK) return;
  w.round++;
  w.batches = 0;
}

static void trainer_acts(void) {
  struct err err = {0};
  switch (below(10)) {
    case 0:
    case 1:
    case 2: batch_is_planned(); break;
    case 3:
    case 4:
    case 5: batch_is_answered(); break;
    case 6:
      if (below(8) == 0) trainer_is_lost();
      break;
    case 7: must(call(step_execute, NULL, NULL, NULL, &err), &err); break;
    default: version_is_announced(); break;
  }
}

/* ---- invariants ---- */

static int memory_compared;

static void invariants_hold(void) {
  int64_t rows = 0;
  const char *const what = invariant_broken(w.core->store, w.now_us / MS, &rows);
  if (what) fail_msg("%s: %lld", what, (long long)rows);
}

static void none(const char *what, const char *sql) {
  const int64_t n = number_of(sql, NO_BINDS);
  if (n != 0) fail_msg("%s: %lld", what, (long long)n);
}

/* What a round's row keeps of its groups, samples, batches and inner steps is what a scan of them gives. */
static void sums_are_what_the_rows_give(void) {
  none("jobs without an answer",
       "SELECT count(*) FROM rounds r WHERE jobs_undone <> (SELECT count(*) FROM batches b WHERE b.run = r.run AND "
       "b.round = r.round AND b.done = 0) + (SELECT count(*) FROM inner_steps i WHERE i.run = r.run AND i.round = "
       "r.round AND i.done = 0)");
  none("groups that wait for a batch, samples in batches, the first that was sealed",
       "SELECT count(*) FROM rounds r WHERE (groups_sealed, submitted_samples, coalesce(first_sealed_ms, 0)) <> "
       "(SELECT count(*) FILTER (WHERE state = 1), coalesce(sum(sample_count) FILTER (WHERE batch IS NOT NULL), 0), "
       "coalesce(min(sealed_ms), 0) FROM groups g WHERE g.run = r.run AND g.round = r.round)");
#define OF_CLOSED                                                                                               \
  " FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal WHERE " \
  "g.run = r.run AND g.round = r.round AND g.state IN (1, 2, 3, 4, 6) AND g.purpose = "
  none("sums of training samples",
       "SELECT count(*) FROM rounds r WHERE (training_samples, training_well_formed, training_tokens, "
       "training_rewards) <> (SELECT count(*), coalesce(sum(s.well_formed), 0), coalesce(sum(s.tokens), 0), "
       "coalesce(sum(s.reward), 0)" OF_CLOSED "0)");
  none("sums of evaluation samples",
       "SELECT count(*) FROM rounds r WHERE (evaluation_groups, evaluation_samples, evaluation_well_formed, "
       "evaluation_tokens, evaluation_rewards) <> (SELECT count(DISTINCT g.ordinal), count(*), "
       "coalesce(sum(s.well_formed), 0), coalesce(sum(s.tokens), 0), coalesce(sum(s.reward), 0)" OF_CLOSED "1)");
  none("groups with tokens of another version",
       "SELECT count(*) FROM rounds r WHERE groups_stale <> (SELECT count(DISTINCT g.ordinal)" OF_CLOSED
       "0 AND g.state <> 4 AND (s.version_first <> r.version OR s.version_last <> r.version))");
#undef OF_CLOSED
  none("means of rounds whose groups are all in",
       "SELECT count(*) FROM rounds r WHERE state > 0 AND (reward_mean, well_formed_mean, completion_tokens_mean) IS "
       "NOT (SELECT avg(s.reward), avg(s.well_formed), avg(s.tokens) FROM groups g JOIN samples s ON s.run = g.run AND "
       "s.round = g.round AND s.group_ordinal = g.ordinal WHERE g.run = r.run AND g.round = r.round AND g.purpose = 0 "
       "AND g.state <> 5)");
  none("evaluations",
       "SELECT count(*) FROM evaluations e WHERE (problems, samples, accuracy, well_formed) IS NOT (SELECT "
       "count(DISTINCT g.ordinal), count(*), avg(s.reward), avg(s.well_formed) FROM groups g JOIN samples s ON s.run = "
       "g.run AND s.round = g.round AND s.group_ordinal = g.ordinal WHERE g.run = e.run AND g.round = e.round AND "
       "g.purpose = 1 AND g.state = 6)");
}

/* What dispatch keeps in memory is what the rows say.  Reading it anew hides later differences, so only now and
 * then. */
static void memory_agrees_with_the_rows(void) {
  struct err err = {0};
  struct waiting *now = &w.core->pool->waiting;
  struct waiting_entry before[GROUPS_MAX];
  uint64_t open[sizeof now->open / sizeof now->open[0]];
  const int count = now->count;
  const int64_t samples = now->samples;
  if (!w.core->context || !now->known || now->undone != w.core->undone || below(16)) return;
  assert_true(count <= GROUPS_MAX);
  memcpy(before, now->items + now->first, (size_t)count * sizeof before[0]);
  memcpy(open, now->open, sizeof open);
  waiting_forget(now);
  must(waiting_read(now, w.core, now->run, now->round, &err), &err);
  memory_compared++;
  assert_int_equal(now->count, count);
  assert_int_equal(now->samples, samples);
  assert_memory_equal(now->open, open, sizeof open);
  for (int i = 0; i < count; i++) {
    const struct waiting_group *a = &before[i].group, *b = &now->items[now->first + i].group;
    assert_int_equal(a->ordinal, b->ordinal);
    assert_int_equal(a->waiting, b->waiting);
    assert_int_equal(a->leased, b->leased);
    assert_int_equal(a->done, b->done);
    assert_int_equal(a->done_tokens, b->done_tokens);
    assert_int_equal(a->waiting_since_ms, b->waiting_since_ms);
    assert_int_equal(a->overtaken_since_ms, b->overtaken_since_ms);
    assert_int_equal(before[i].group.begun, now->items[now->first + i].group.begun);
    assert_int_equal(before[i].positions, now->items[now->first + i].positions);
  }
}

/* I3 and I4 again, by what the servers were told. */
static void samples_were_accepted_once(void) {
  struct rows q;
  struct err err = {0};
  bool row;
  enum rc rc =
      store_query(w.core->store, &q, &err,
                  "SELECT s.round, s.group_ordinal, s.sample, s.state FROM samples s WHERE s.run = 1", NO_BINDS);
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    const int n = w.accepted[rows_int(&q, 0)][rows_int(&q, 1)][rows_int(&q, 2)];
    if (n != (rows_int(&q, 3) == SAMPLE_DONE))
      fail_msg("sample %s was accepted %d times", id_sample(1, rows_int(&q, 0), rows_int(&q, 1), rows_int(&q, 2)).text,
               n);
  }
  rows_end(&q);
  must(rc, &err);
  rc = store_query(w.core->store, &q, &err, "SELECT round, ordinal, digest FROM groups WHERE digest IS NOT NULL",
                   NO_BINDS);
  while (w.honest && rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    const int64_t round = rows_int(&q, 0), ordinal = rows_int(&q, 1);
    struct digest digest;
    assert_true(rows_digest(&q, 2, &digest));
    if (!group_known[round][ordinal]) group_digests[round][ordinal] = digest;
    group_known[round][ordinal] = true;
    assert_memory_equal(&digest, &group_digests[round][ordinal], sizeof digest);
  }
  rows_end(&q);
  must(rc, &err);
}

/* ---- a run ---- */

static void world_begin(uint32_t seed) {
  struct err err = {0};
  const struct digest hash = {0};
  w = (struct world){.dice = seed, .honest = seed % 2, .now_us = 5000 * MS};
  const struct core_options options = {
      .db_path = ":memory:",
      .data_dir = dir,
      .lease_ttl_ms = LEASE_TTL_MS,
      .heartbeat_ms = 500,
      .worker_ttl_ms = WORKER_TTL_MS,
      .batch_tokens = BATCH_TOKENS,
      .clock = {.monotonic_us = since_start_us, .wall_us = since_1970_us, .context = &w.now_us},
      .callbacks = &tick_callbacks};
  must(core_create(&w.core, &options, &err), &err);
  must(run_context_create(&w.context, 1, config_text, &files, dir, &err), &err);
  must(store_exec(
           w.core->store, &err,
           "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) "
           "VALUES (1, '', ?1, ?2, 'grpo', ?3, ?4, ?5, '3', 1)",
           BINDS(b_int(RUN_STARTING), b_int(MODE_PIPELINED), b_text(config_text), b_digest(&hash), b_int(ROUNDS))),
       &err);
  struct worker_register trainer = {.name = "trainer", .kind = WORKER_TRAINER, .url = "http://127.0.0.1:8"};
  must(call(register_execute, &trainer, NULL, NULL, &err), &err);
  int64_t again = -1;
  must(call(attach_execute, &again, NULL, NULL, &err), &err);
  for (int i = 0; i < SERVERS; i++) server_register(&w.servers[i], i);
}

static void world_end(void) {
  core_destroy(w.core);
  run_context_release(w.context);
  arena_free(&w.arena);
}

static void trainer_beats(void) {
  struct err err = {0};
  struct worker_heartbeat m = {.epoch = w.core->epoch, .ready = true};
  must(call(heartbeat_execute, &m, "w1", NULL, &err), &err);
}

static void transitions_in_any_order_keep_the_invariants(void **state) {
  int longest = 0;
  int64_t lost = 0, refused = 0, refilled = 0;
  (void)state;
  for (uint32_t seed = 1; seed <= SEEDS; seed++) {
    int steps = 0;
    world_begin(seed);
    for (; steps < STEPS_MAX && w.round < ROUNDS; steps++) {
      if (below(3) == 0) time_passes(CORE_LOOK_MS);
      trainer_beats();
      if (below(4))
        server_acts(below(SERVERS));
      else
        trainer_acts();
      invariants_hold();
      sums_are_what_the_rows_give();
      memory_agrees_with_the_rows();
      arena_free(&w.arena);
      w.arena = (struct arena)ARENA_INIT;
    }
    if (w.round < ROUNDS) fail_msg("seed %u: round %lld does not end", seed, (long long)w.round);
    samples_were_accepted_once();
    lost += number_of("SELECT leases_lost FROM runs", NO_BINDS);
    refused += number_of("SELECT results_refused FROM runs", NO_BINDS);
    refilled += number_of("SELECT sum(groups_refilled) FROM rounds", NO_BINDS);
    longest = steps > longest ? steps : longest;
    world_end();
  }
  /* the dice do reach what this test is for */
  assert_true(lost > 10 * SEEDS);
  assert_true(refused > 10 * SEEDS);
  assert_true(refilled >= SEEDS);
  assert_true(memory_compared > 10 * SEEDS);
  print_message("longest: %d steps; %lld leases lost, %lld results refused, %lld refills\n", longest, (long long)lost,
                (long long)refused, (long long)refilled);
}

static int setup(void **state) {
  struct err err = {0};
  struct buf text = BUF_INIT;
  char path[100];
  (void)state;
  log_init("test", LOG_ERROR);
  snprintf(dir, sizeof dir, "/tmp/coordinator-transitions-XXXXXX");
  if (!mkdtemp(dir)) return 1;
  for (int i = 0; i < 10; i++) buf_printf(&text, "{\"prompt\":\"%d+0=\",\"answer\":\"%d\"}\n", i, i);
  snprintf(path, sizeof path, "%s/train.jsonl", dir);
  enum rc rc = file_write_atomic(path, text.data, text.len, &err);
  buf_free(&text);
  if (rc == RC_OK) rc = file_read(&files.config, "deploy/demo/model/config.json", 1 << 20, &err);
  if (rc == RC_OK) rc = file_read(&files.tokenizer, "deploy/demo/model/tokenizer.json", 1 << 24, &err);
  if (rc == RC_OK) rc = file_read(&files.generation_config, "deploy/demo/model/generation_config.json", 1 << 20, &err);
  if (rc != RC_OK) print_error("%s\n", err.message);
  return rc == RC_OK ? 0 : 1;
}

static int teardown(void **state) {
  (void)state;
  buf_free(&files.config);
  buf_free(&files.tokenizer);
  buf_free(&files.generation_config);
  return file_remove_tree(dir, NULL) == RC_OK ? 0 : 1;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(transitions_in_any_order_keep_the_invariants)};
  return cmocka_run_group_tests_name("coordinator/transitions", tests, setup, teardown);
}
