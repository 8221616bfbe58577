/* A whole coordinator under random sequences of valid messages: its writer, driver and HTTP server in this process,
 * over a database on disk, with a fake trainer and generation-servers played here
 * (tests/unit/coordinator/service_fixture.h).
 *
 *   protocol SEED STEPS COUNT [tell]      COUNT sequences of STEPS messages each, of seeds SEED, SEED + 1 ...
 *
 * Servers register, report, poll and leave, and put results: right ones, late ones of leases long gone, repeats, parts
 * of them, ones that lie about one thing, and ones that are of the right form but were made up.  Runs of every mode are
 * posted, paused, resumed and stopped.  Trainers register twice, stand by, leave, forget, refuse, fill their disk and
 * announce versions rightly and wrongly.  Most runs are checked (verify_samples): the trainer finds what was made up,
 * and at times what was not.  Time passes and leaps; the coordinator goes down and comes back on its database.
 *
 * After every step the database is asked for DESIGN's invariants (tests/sim/world_invariants.h), and answers are
 * judged: what lies is never accepted, no sample twice unless a check has refused it in between (I3), and what was
 * acknowledged is still there after a restart (I7).  What was made up closes no group of a checked run, so it is
 * neither trained on nor filtered; a worker in quarantine is granted nothing; and while the trainer has been honest, or
 * mistaken only once about a sample, nobody is in quarantine who has made nothing up.  At the end everybody behaves:
 * every run must then end, and not in failure.
 *
 * A seed decides every message.  Threads of the coordinator take part, so that a sequence need not fail each time it is
 * played; what was sent is printed when a promise is broken. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/readers.h"
#include "tests/sim/world_invariants.h"
#include "tests/unit/coordinator/fake_server.h"

enum {
  SERVERS = 4,
  HELD = 48,
  RUNS_MAX = 6,
  UNTRUE_MAX = 256,
  UNTRUE_LOOKED_AT = 24 /* after a step; all of them at the end */,
  SAMPLES_MAX = 4096,
  ACCEPTED_MAX = 256,
  TTL_MS = 8000,
  LEASE_MS = 600,
  TURN_MS = 4 /* of the coordinator's own threads, between two messages */
};

struct held_lease {
  struct lease lease;
  int server; /* its place among the servers */
  struct fake_server by; /* as it was registered then, with the weights that it had */
};

/* How often a sample was accepted: its id's hash. */
struct sample_count {
  uint64_t key;
  int accepted;
};

struct accepted_lease {
  char id[64];
  int64_t fence;
};

/* A sample that was made up, and accepted. */
struct untrue_sample {
  int64_t run, round, group, sample;
  struct digest digest;
};

static struct play {
  struct fixture *f;
  uint64_t seed, dice;
  int steps, runs;
  bool registered[SERVERS], ended, tells;
  struct fake_server servers[SERVERS];
  struct held_lease held[HELD];
  int held_count;
  struct sample_count samples[SAMPLES_MAX];
  struct accepted_lease accepted[ACCEPTED_MAX];
  int accepted_count;
  struct untrue_sample untrue[UNTRUE_MAX];
  int untrue_count;
  bool makes_up[SERVERS]; /* has made something up */
  bool doubted;           /* the trainer has drawn otherwise than it should, more than once */
  struct worker_registered standby;
  struct buf told; /* what was sent so far */
  int64_t leases, results, refused, restarts, checks_refused, quarantines;
} p;

static uint64_t draw(void) {
  uint64_t x = p.dice += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
static int below(int n) { return (int)(draw() % (uint64_t)n); }

static int64_t number_of(const char *sql, const struct bind *binds, size_t count) {
  struct store *s;
  struct err err = {0};
  int64_t n = 0;
  if (readers_take(core_readers(p.f->core), &s, &err) != RC_OK) fail_msg("%s", err.message);
  const enum rc rc = store_int(s, &n, &err, sql, binds, count);
  readers_give(core_readers(p.f->core), s);
  if (rc != RC_OK && rc != RC_NOT_FOUND) fail_msg("%s: %s", sql, err.message);
  return rc == RC_OK ? n : -1;
}
#define NUMBER(sql, ...) number_of(sql, BINDS(__VA_ARGS__))

/* ---- promises ---- */

static void invariants_hold(void) {
  struct store *s;
  struct err err = {0};
  int64_t rows = 0;
  if (readers_take(core_readers(p.f->core), &s, &err) != RC_OK) fail_msg("%s", err.message);
  const char *broken = invariant_broken(s, INT64_MIN, &rows);
  readers_give(core_readers(p.f->core), s);
  if (broken) fail_msg("%s: %lld rows", broken, (long long)rows);
}

static int64_t run_of(const struct lease *l) {
  int64_t run = 0;
  struct err err = {0};
  assert_int_equal(id_parse_run(&run, l->run, &err), RC_OK);
  return run;
}

static void untrue_is_not_believed(int from) {
  for (int i = from > 0 ? from : 0; i < p.untrue_count; i++) {
    const struct untrue_sample *u = &p.untrue[i % UNTRUE_MAX];
    if (NUMBER("SELECT count(*) FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = "
               "s.group_ordinal WHERE s.run = ?1 AND s.round = ?2 "
               "AND s.group_ordinal = ?3 AND s.sample = ?4 AND s.digest = ?5 AND g.state NOT IN (?6, ?7, ?8)",
               b_int(u->run), b_int(u->round), b_int(u->group), b_int(u->sample), b_digest(&u->digest),
               b_int(GROUP_OPEN), b_int(GROUP_ABANDONED), b_int(GROUP_FAILED)) > 0)
      fail_msg("the group of %s was closed with a sample that was made up",
               id_sample(u->run, u->round, u->group, u->sample).text);
  }
}

static int64_t quarantines_of(const char *name) {
  return NUMBER("SELECT coalesce(sum(1 << run), 0) FROM quarantines WHERE name = ?1", b_text(name));
}

static void the_honest_are_free(void) {
  char name[16];
  for (int i = 0; i < SERVERS && !p.doubted; i++) {
    snprintf(name, sizeof name, "gen-%d", i);
    if (!p.makes_up[i] && quarantines_of(name) != 0) fail_msg("%s is in quarantine, and has made nothing up", name);
  }
}

static bool lease_is_done(const struct accepted_lease *a) {
  return NUMBER("SELECT count(*) FROM leases WHERE id = ?1 AND fence = ?2 AND state = ?3", b_text(a->id),
                b_int(a->fence), b_int(LEASE_DONE)) == 1;
}

/* I3; in flight a sample that has grown too old is drawn again, and in checked runs what was refused. */
static void accepted_note(const struct lease *l) {
  const int64_t run = run_of(l);
  const bool again = NUMBER("SELECT mode = 2 FROM runs WHERE id = ?1", b_int(run)) == 1;
  for (int i = 0; i < l->sample_count && !again; i++) {
    const uint64_t key = ((uint64_t)run << 48 | (uint64_t)l->round << 32 | (uint64_t)l->group_ordinal << 12 |
                          (uint64_t)(l->sample_first + i)) +
                         1;
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 52) % SAMPLES_MAX;
    for (int tries = 0; tries < SAMPLES_MAX && p.samples[at].key && p.samples[at].key != key; tries++)
      at = (at + 1) % SAMPLES_MAX;
    p.samples[at].key = key;
    if (++p.samples[at].accepted == 1) continue;
    const struct id_text id = id_sample(run, l->round, l->group_ordinal, l->sample_first + i);
    const int64_t refused =
        NUMBER("SELECT count(*) FROM incidents WHERE run = ?1 AND kind = 'sample_refused' AND subject = ?2", b_int(run),
               b_text(id.text));
    if (p.samples[at].accepted > 1 + refused)
      fail_msg("I3: sample %s was accepted %d times, and refused by %lld checks", id.text, p.samples[at].accepted,
               (long long)refused);
  }
  struct accepted_lease *a = &p.accepted[p.accepted_count++ % ACCEPTED_MAX];
  snprintf(a->id, sizeof a->id, "%s", l->id);
  a->fence = (int64_t)l->fence;
  if (!lease_is_done(a))
    fail_msg("I3: a result with fence %lld was accepted, but not for lease %s with that fence", (long long)a->fence,
             a->id);
}

/* I7 */
static void acknowledged_is_stored(void) {
  const int count = p.accepted_count < ACCEPTED_MAX ? p.accepted_count : ACCEPTED_MAX;
  for (int i = 0; i < count; i++)
    if (!lease_is_done(&p.accepted[i]))
      fail_msg("I7: lease %s with fence %lld was acknowledged, and is not done after a restart", p.accepted[i].id,
               (long long)p.accepted[i].fence);
}

/* ---- servers ---- */

static void server_registers(void) {
  char name[16];
  const int which = below(SERVERS);
  snprintf(name, sizeof name, "gen-%d", which);
  register_server(p.f, &p.servers[which], name);
  p.registered[which] = true;
  buf_printf(&p.told, "%s is %s", name, p.servers[which].is.worker_id);
}

/* One that knows of its registration; the first if need be. */
static struct fake_server *any_server(void) {
  const int from = below(SERVERS);
  for (int i = 0; i < SERVERS; i++)
    if (p.registered[(from + i) % SERVERS]) return &p.servers[(from + i) % SERVERS];
  server_registers();
  return any_server();
}

static void forget(const struct fake_server *s) { p.registered[s - p.servers] = false; }

static void server_reports(void) {
  struct fake_server *s = any_server();
  struct err err = {0};
  struct lease_ref refs[HELD];
  struct worker_heartbeat_answer answer;
  struct worker_heartbeat m = {.epoch = s->is.epoch,
                               .ready = true,
                               .draining = below(8) == 0,
                               .has_loaded = s->has_loaded,
                               .loaded_digest = s->loaded,
                               .leases = refs};
  for (int i = 0; i < p.held_count; i++)
    if (strcmp(p.held[i].by.is.worker_id, s->is.worker_id) == 0 && below(4) > 0)
      refs[m.lease_count++] = (struct lease_ref){p.held[i].lease.id, p.held[i].lease.fence};
  const enum rc rc = coordinator_heartbeat(&p.f->client, s->is.worker_id, &m, &answer, &p.f->arena, DEADLINE_MS, &err);
  buf_printf(&p.told, "%s reports: %d", s->is.worker_id, rc);
  if (rc != RC_OK) forget(s);
}

static void server_polls(void) {
  struct fake_server *s = any_server();
  struct lease_answer a = {0};
  struct err err = {0};
  char name[16];
  snprintf(name, sizeof name, "gen-%d", (int)(s - p.servers));
  const int64_t before = quarantines_of(name);
  const enum rc rc = poll_once(p.f, s, 1 + below(8), &a, &err);
  const int64_t barred = before ? before & quarantines_of(name) : 0;
  buf_printf(&p.told, "%s polls: %d", s->is.worker_id, rc);
  if (rc != RC_OK) forget(s);
  for (size_t i = 0; rc == RC_OK && i < a.lease_count; i++)
    if (barred >> run_of(&a.leases[i]) & 1) fail_msg("%s is in quarantine, and was granted %s", name, a.leases[i].id);
  if (rc != RC_OK || below(10) == 0) return; /* the answer was lost */
  for (size_t i = 0; i < a.lease_count; i++) {
    const int at = p.held_count < HELD ? p.held_count++ : below(HELD);
    p.held[at] = (struct held_lease){a.leases[i], (int)(s - p.servers), *s};
    buf_printf(&p.told, " %s/%llu", a.leases[i].id, (unsigned long long)a.leases[i].fence);
    p.leases++;
  }
}

/* ---- results ---- */

static const char *const lies[] = {"a higher fence",        "a lower fence",           "another epoch",
                                   "another worker",        "other weights",           "a sample less",
                                   "a sample of others",    "a token outside",         "tokens behind the end",
                                   "a length that is none", "another version's tokens"};
enum { LIES = sizeof lies / sizeof lies[0] };

/* false: this lease cannot carry this lie. */
static bool lie(struct lease_result *r, const struct lease *l, int which) {
  struct sample_result *s = &r->samples[below(l->sample_count)];
  switch (which) {
    case 0: r->fence++; return true;
    case 1: return r->fence-- > 1;
    case 2: r->epoch += below(2) ? 1 : -(uint64_t)1; return true;
    case 3: r->worker_id = "w99999"; return true;
    case 4: r->loaded_digest.bytes[below(DIGEST_BYTES)] ^= 1; return true;
    case 5: return r->sample_count-- > 1;
    case 6: s->sample = l->sample_first + l->sample_count; return true;
    case 7: s->token_ids.items[0] = 100000; return true;
    case 8: s->token_ids.items[1] = EOS; return true;
    case 9: s->finish = FINISH_LENGTH; return true;
    default: s->spans[0].version = l->version_max + 1; return true;
  }
}

/* Whether it was accepted just now. */
static bool result_put(const struct held_lease *h, const struct lease_result *r, const char *what, bool lies_about) {
  struct err err = {0};
  bool repeated = false;
  const enum rc rc = put_result(p.f, &h->lease, r, &repeated, &err);
  buf_printf(&p.told, "%s puts %s/%llu, %s: %d%s", r->worker_id, h->lease.id, (unsigned long long)r->fence, what, rc,
             repeated ? " again" : "");
  p.results += rc == RC_OK;
  p.refused += rc != RC_OK;
  if (rc == RC_OK && !repeated && lies_about) fail_msg("%s was accepted with %s", h->lease.id, what);
  struct lease as_sent = h->lease;
  as_sent.fence = r->fence;
  if (rc == RC_OK && !repeated && !r->handed_back) accepted_note(&as_sent);
  return rc == RC_OK && !repeated;
}

static struct held_lease *any_lease(void) { return p.held_count ? &p.held[below(p.held_count)] : NULL; }

/* Of a lease of any age.  Most are forgotten then; what stays comes again. */
static void result_comes(void) {
  struct held_lease *h = any_lease();
  if (!h) return;
  const struct lease_result r = make_result(p.f, &h->by, &h->lease);
  result_put(h, &r, "right", false);
  if (below(4)) *h = p.held[--p.held_count];
}

/* A fence that was made up is none where the same samples went to the same worker again. */
static void result_lies(void) {
  struct err err = {0};
  const struct held_lease *h = any_lease();
  const int which = below(LIES);
  if (!h) return;
  struct lease_result r = make_result(p.f, &h->by, &h->lease);
  if (!lie(&r, &h->lease, which)) return;
  int64_t worker = 0;
  const bool granted_again = id_parse_worker(&worker, r.worker_id, &err) == RC_OK &&
                             NUMBER("SELECT count(*) FROM leases WHERE id = ?1 AND fence = ?2 AND worker = ?3",
                                    b_text(h->lease.id), b_int((int64_t)r.fence), b_int(worker)) > 0;
  result_put(h, &r, lies[which], which > 1 || !granted_again);
}

static const char *const made_up[] = {[MADE_UP_TOKEN] = "another token made up",
                                      [MADE_UP_LOGPROB] = "a log-probability made up",
                                      [MADE_UP_LENGTH] = "a token more made up"};

static void result_is_made_up(void) {
  const struct held_lease *h = any_lease();
  if (!h) return;
  const struct lease *l = &h->lease;
  const int which = below((int)(sizeof made_up / sizeof made_up[0]));
  struct lease_result r = make_result(p.f, &h->by, l);
  struct sample_result *s = &r.samples[below(l->sample_count)];
  make_up_sample(p.f, s, l, (enum made_up)which);
  p.makes_up[h->server] = true;
  if (!result_put(h, &r, made_up[which], false)) return;
  struct untrue_sample u = {.run = run_of(l), .round = l->round, .group = l->group_ordinal, .sample = s->sample};
  if (NUMBER("SELECT coalesce(json_extract(config, '$.verify_samples'), 0) FROM runs WHERE id = ?1", b_int(u.run)) != 1)
    return;
  sample_result_digest(&u.digest, s);
  p.untrue[p.untrue_count++ % UNTRUE_MAX] = u;
}

static void result_is_handed_back(void) {
  const struct held_lease *h = any_lease();
  if (!h) return;
  struct lease_result r = make_result(p.f, &h->by, &h->lease);
  r.handed_back = true;
  for (int i = 0; i < h->lease.sample_count; i++) {
    struct sample_result *s = &r.samples[i];
    const size_t tokens = (size_t)below(3);
    s->token_ids.count = s->logprobs.count = tokens;
    s->segment_count = s->span_count = tokens ? 1 : 0;
    s->segments[0].count = s->spans[0].count = (int32_t)tokens;
    s->finish = FINISH_ABORT;
  }
  result_put(h, &r, "handed back", false);
}

/* ---- trainers ---- */

static void trainer_registers(void) {
  register_trainer(p.f);
  buf_printf(&p.told, "the trainer is %s", p.f->trainer_is.worker_id);
}

static void trainer_reports(void) {
  const struct worker_registered *is = below(4) || !p.standby.worker_id ? &p.f->trainer_is : &p.standby;
  const struct worker_heartbeat m = {.epoch = is->epoch, .ready = true};
  struct worker_heartbeat_answer answer;
  struct err err = {0};
  const enum rc rc = coordinator_heartbeat(&p.f->client, is->worker_id, &m, &answer, &p.f->arena, DEADLINE_MS, &err);
  buf_printf(&p.told, "trainer %s reports: %d", is->worker_id, rc);
  if (rc != RC_OK && is == &p.f->trainer_is) register_trainer(p.f);
}

/* Another trainer, which reaches the same weights and answers under the same address. */
static void standby_registers(void) {
  struct err err = {0};
  const struct worker_register m = {.name = "other",
                                    .kind = WORKER_TRAINER,
                                    .exactness = WORKER_INVARIANT,
                                    .url = p.f->trainer.url,
                                    .identity = "ffffffffffffffffffffffffffffffff"};
  if (coordinator_register(&p.f->client, &m, &p.standby, &p.f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
  buf_printf(&p.told, "trainer %s stands by: %d", p.standby.worker_id, p.standby.role == ROLE_STANDBY);
}

static void worker_leaves(void) {
  const char *id = below(4) ? any_server()->is.worker_id : p.f->trainer_is.worker_id;
  struct err err = {0};
  const enum rc rc = coordinator_leave(&p.f->client, id, DEADLINE_MS, &err);
  buf_printf(&p.told, "%s leaves: %d", id, rc);
}

static void trainer_is_well(void) {
  struct fake_trainer *t = &p.f->trainer;
  pthread_mutex_lock(&t->lock);
  t->refuse_step = t->disk_full = false;
  t->strange = t->failed_checks = 0;
  t->doubt = DOUBT_NOTHING;
  pthread_mutex_unlock(&t->lock);
  fake_trainer_finish_steps(t);
  fake_trainer_finish_checks(t);
}

/* What it has been asked to check it answers when it is gone; the first time it only becomes slow, so that there is
 * something. */
static void trainer_leaves_checks_behind(void) {
  struct fake_trainer *t = &p.f->trainer;
  struct err err = {0};
  pthread_mutex_lock(&t->lock);
  const bool slow = t->slow_checks;
  t->slow_checks = true;
  pthread_mutex_unlock(&t->lock);
  if (!slow) return;
  const enum rc rc = coordinator_leave(&p.f->client, p.f->trainer_is.worker_id, DEADLINE_MS, &err);
  fake_trainer_finish_checks(t);
  buf_printf(&p.told, "the trainer %s leaves its checks behind: %d", p.f->trainer_is.worker_id, rc);
}

/* The fake trainer's moods; most are over soon. */
static void trainer_changes(void) {
  enum {
    FORGETS,
    IS_SLOW,
    REFUSES,
    IS_STRANGE,
    IS_FULL,
    FAILS_CHECKS,
    IS_SLOW_WITH_CHECKS,
    IS_MISTAKEN,
    DRAWS_OTHERWISE,
    IS_WELL,
    MOODS = 19
  };
  static const char *const moods[] = {"forgets",         "is slow",      "refuses a step",      "is strange",
                                      "has a full disk", "fails checks", "is slow with checks", "is mistaken once",
                                      "draws otherwise", "is well"};
  struct fake_trainer *t = &p.f->trainer;
  const int drawn = below(MOODS), mood = drawn < IS_WELL ? drawn : IS_WELL;
  buf_printf(&p.told, "the trainer %s", moods[mood]);
  if (mood == FORGETS) {
    fake_trainer_forget(t, false);
    register_trainer(p.f);
  } else if (mood == IS_WELL) {
    trainer_is_well();
  } else {
    pthread_mutex_lock(&t->lock);
    if (mood == IS_SLOW) t->slow_steps = true;
    if (mood == REFUSES) t->refuse_step = true;
    if (mood == IS_STRANGE) t->strange = 1 + below(3);
    if (mood == IS_FULL) t->disk_full = true;
    if (mood == FAILS_CHECKS) t->failed_checks = 1 + below(3);
    if (mood == IS_SLOW_WITH_CHECKS) t->slow_checks = true;
    if (mood == IS_MISTAKEN && t->doubt == DOUBT_NOTHING) t->doubt = DOUBT_ONCE;
    if (mood == DRAWS_OTHERWISE) t->doubt = DOUBT_SOME;
    p.doubted |= mood == DRAWS_OTHERWISE;
    pthread_mutex_unlock(&t->lock);
  }
}

/* Of the round that is in step if any, else of the newest version; wrongly in one way, or not at all. */
static void version_is_announced(void) {
  enum { RIGHT, OTHER_EPOCH, OTHER_FENCE, OTHER_WORKER, OTHER_DIGEST, TOO_HIGH, WAYS };
  const int way = below(WAYS);
  const int64_t run = NUMBER("SELECT coalesce(max(run), 0) FROM versions");
  const int64_t at =
      NUMBER("SELECT round FROM rounds WHERE run = ?1 AND state = ?2", b_int(run), b_int(ROUND_STEPPING));
  const int64_t round = at >= 0 ? at : NUMBER("SELECT max(round) - 1 FROM rounds WHERE run = ?1", b_int(run));
  if (run < 1 || round < 0 || (way == OTHER_DIGEST && at >= 0)) return; /* a trainer's word for new weights is all there
                                                                         * is */
  const struct id_text run_id = id_run(run), step_id = id_round(run, round);
  struct version_announce m = {.run = run_id.text,
                               .step_id = step_id.text,
                               .worker_id = p.f->trainer_is.worker_id,
                               .epoch = p.f->trainer_is.epoch,
                               .fence = p.f->trainer_is.fence,
                               .version = round + 1};
  struct err err = {0};
  fake_digest(&m.digest, run_id.text, round + 1);
  if (way == OTHER_EPOCH) m.epoch += below(2) ? 1 : -(uint64_t)1;
  if (way == OTHER_FENCE) m.fence += below(2) ? 1 : -(uint64_t)1;
  if (way == OTHER_WORKER) m.worker_id = any_server()->is.worker_id;
  if (way == OTHER_DIGEST) m.digest.bytes[0] ^= 1;
  if (way == TOO_HIGH) m.version++;
  const enum rc rc = coordinator_announce_version(&p.f->client, &m, DEADLINE_MS, &err);
  buf_printf(&p.told, "%s announces %s of %s, way %d: %d", m.worker_id, step_id.text, run_id.text, way, rc);
  if (rc == RC_OK && way != RIGHT)
    fail_msg("I9: version %lld of %s was taken, announced in way %d", (long long)m.version, run_id.text, way);
}

/* ---- runs ---- */

static const char *const runs[] = {
    GRPO(2, "}"),
    GRPO(3, "},\"lease_samples_max\":1"),
    "{\"mode\":\"sync\",\"rounds\":2,\"seed\":4,\"dataset\":{\"path\":\"train.jsonl\"},\"verify_samples\":false,"
    "\"groups_per_round\":2,\"samples_per_group\":3,\"lease_samples_max\":2,"
    "\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":2},\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":"
    "8},\"training\":{\"objective\":\"grpo\"}}",
    "{\"update\":\"minibatch\",\"groups_per_step\":2,\"rounds\":2,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":"
    "false},\"verify_samples\":false,\"groups_per_round\":5,\"samples_per_group\":2,"
    "\"seed\":3,\"sampling\":{\"max_new_tokens\":8}}",
    "{\"mode\":\"inflight\",\"max_lag\":1,\"rounds\":3,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":"
    "false},\"verify_samples\":false,\"groups_per_round\":2,"
    "\"samples_per_group\":2,\"lease_samples_max\":2,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},"
    "\"training\":{\"objective\":\"grpo\"}}",
};

/* Three in four with checks, where the mode admits them. */
static void run_is_posted(void) {
  static const char off[] = "\"verify_samples\":false,";
  const int which = below((int)(sizeof runs / sizeof runs[0]));
  const bool checked = !strstr(runs[which], "inflight") && below(4) > 0;
  struct buf config = BUF_INIT;
  if (p.runs == RUNS_MAX) return;
  const char *at = strstr(runs[which], off), *rest = at + sizeof off - 1;
  buf_printf(&config, "%.*s%s%s", (int)(at - runs[which]), runs[which], checked ? "" : off, rest);
  post_run(p.f, config.data);
  buf_free(&config);
  p.runs++;
  buf_printf(&p.told, "r%d is posted, config %d%s", p.runs, which, checked ? ", checked" : "");
}

static void run_is_told(const char *what, int run) {
  char path[64];
  snprintf(path, sizeof path, "/v1/runs/r%d/%s", run, what);
  buf_printf(&p.told, "POST %s: %d", path, call(p.f, "POST", path, NULL, NULL));
}

static void run_is_controlled(void) {
  static const char *const words[] = {"pause", "resume", "resume", "resume", "resume", "stop"};
  if (p.runs) run_is_told(words[below(6)], 1 + below(p.runs));
}

/* ---- the coordinator, and time ---- */

static void coordinator_ends_and_begins(void) {
  coordinator_down(p.f);
  if (below(3) == 0) time_leaps(p.f, below(2 * TTL_MS));
  coordinator_up(p.f);
  p.restarts++;
  buf_puts(&p.told, "the coordinator is started again");
  acknowledged_is_stored();
  if (below(3)) register_trainer(p.f);
}

static void time_goes_by(void) {
  const int64_t ms = below(5) ? below(400) : below(2 * TTL_MS);
  buf_printf(&p.told, "%lld ms pass", (long long)ms);
  if (below(4))
    time_passes(p.f, ms);
  else
    time_leaps(p.f, ms);
}

/* ---- a sequence ---- */

static const struct {
  int weight;
  void (*act)(void);
} actions[] = {
    {6, server_registers},
    {12, server_reports},
    {40, server_polls},
    {50, result_comes},
    {10, result_lies},
    {16, result_is_made_up},
    {5, result_is_handed_back},
    {3, trainer_registers},
    {16, trainer_reports},
    {6, trainer_leaves_checks_behind},
    {1, standby_registers},
    {2, worker_leaves},
    {8, trainer_changes},
    {8, version_is_announced},
    {4, run_is_posted},
    {4, run_is_controlled},
    {2, coordinator_ends_and_begins},
    {12, time_goes_by},
};

static void step(int number) {
  int sum = 0, at = 0;
  for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) sum += actions[i].weight;
  const size_t before = p.told.len;
  buf_printf(&p.told, "%4d  ", number);
  const size_t head = p.told.len;
  for (int left = below(sum); left >= actions[at].weight; at++) left -= actions[at].weight;
  actions[at].act();
  if (p.told.len == head)
    p.told.len = before; /* nothing was sent */
  else
    buf_puts(&p.told, "\n");
  clock_sleep_ms(TURN_MS);
  invariants_hold();
  untrue_is_not_believed(p.untrue_count - UNTRUE_LOOKED_AT);
  the_honest_are_free();
}

static bool all_over(void) {
  return NUMBER("SELECT count(*) FROM runs WHERE state NOT IN (?1, ?2, ?3)", b_int(RUN_STOPPED), b_int(RUN_COMPLETED),
                b_int(RUN_FAILED)) == 0;
}

/* Everybody behaves from now on. */
static void serve_honestly(struct fake_server *s) {
  struct lease_answer a = {0};
  struct err err = {0};
  for (int run = 1; run <= p.runs; run++)
    if (NUMBER("SELECT state FROM runs WHERE id = ?1", b_int(run)) == RUN_PAUSED) {
      char path[64];
      snprintf(path, sizeof path, "/v1/runs/r%d/resume", run);
      call(p.f, "POST", path, NULL, NULL);
    }
  const struct worker_heartbeat m = {.epoch = p.f->trainer_is.epoch, .ready = true};
  struct worker_heartbeat_answer answer;
  if (coordinator_heartbeat(&p.f->client, p.f->trainer_is.worker_id, &m, &answer, &p.f->arena, DEADLINE_MS, &err) !=
      RC_OK)
    register_trainer(p.f);
  if (poll_once(p.f, s, 64, &a, &err) != RC_OK) register_server(p.f, s, "gen-last");
  for (size_t i = 0; i < a.lease_count; i++) {
    const struct lease_result r = make_result(p.f, s, &a.leases[i]);
    put_result(p.f, &a.leases[i], &r, NULL, &err);
  }
  if (a.lease_count == 0) a_moment_passes(p.f);
}

static void everything_ends(void) {
  struct fake_server s;
  trainer_is_well();
  pthread_mutex_lock(&p.f->trainer.lock);
  p.f->trainer.doubt = DOUBT_ONCE; /* which decides nothing */
  pthread_mutex_unlock(&p.f->trainer.lock);
  register_trainer(p.f);
  register_server(p.f, &s, "gen-last");
  buf_puts(&p.told, "      from now on everybody behaves\n");
  AWAIT(all_over(), "runs have not ended") serve_honestly(&s);
  invariants_hold();
  untrue_is_not_believed(p.untrue_count - UNTRUE_MAX);
  the_honest_are_free();
  if (quarantines_of("gen-last") != 0) fail_msg("gen-last is in quarantine, and has made nothing up");
  p.checks_refused = NUMBER("SELECT coalesce(sum(refused), 0) FROM checked");
  p.quarantines = NUMBER("SELECT count(*) FROM incidents WHERE kind = 'worker_quarantined'");
  if (NUMBER("SELECT count(*) FROM runs WHERE state = ?1", b_int(RUN_FAILED)) > 0) fail_msg("a run failed");
  if (NUMBER("SELECT count(*) FROM runs r WHERE state = ?1 AND rounds <> (SELECT count(*) FROM rounds WHERE run = r.id "
             "AND state = ?2)",
             b_int(RUN_COMPLETED), b_int(ROUND_DONE)) > 0)
    fail_msg("a run is completed without all its rounds");
}

static void a_sequence_keeps_every_promise(void **state) {
  p.f = *state;
  coordinator_down(p.f);
  p.f->options.worker_ttl_ms = TTL_MS;
  p.f->options.lease_ttl_ms = LEASE_MS;
  p.f->checks_samples = true;
  coordinator_up(p.f);
  register_trainer(p.f);
  run_is_posted();
  for (int i = 0; i < p.steps; i++) step(i);
  everything_ends();
  p.ended = true;
}

/* What the coordinator itself says of the runs. */
static void runs_are_told(void) {
  for (int i = 1; i <= p.runs; i++) {
    char path[32];
    struct json *run = NULL;
    struct json_writer w;
    snprintf(path, sizeof path, "/v1/runs/r%d", i);
    call(p.f, "GET", path, NULL, &run);
    json_writer_init(&w, &p.told);
    json_write_value(&w, run);
    buf_puts(&p.told, "\n");
    json_free(run);
  }
}

static int sequence_teardown(void **state) {
  if (!p.ended && p.f->core) runs_are_told();
  if (!p.ended || p.tells)
    fprintf(stderr, "seed %llu:\n%.*s\n", (unsigned long long)p.seed, (int)p.told.len, p.told.data ? p.told.data : "");
  buf_free(&p.told);
  return fixture_teardown(state);
}

int main(int argc, char **argv) {
  const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  const int steps = argc > 2 ? atoi(argv[2]) : 200, count = argc > 3 ? atoi(argv[3]) : 1;
  int64_t leases = 0, results = 0, refused = 0, restarts = 0, invented = 0, checks_refused = 0, quarantines = 0;
  for (int i = 0; i < count; i++) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sequence_keeps_every_promise, fixture_setup, sequence_teardown)};
    p = (struct play){.seed = seed + (uint64_t)i, .dice = seed + (uint64_t)i, .steps = steps, .tells = argc > 4};
    if (cmocka_run_group_tests_name("protocol", tests, NULL, NULL) != 0) return 1;
    leases += p.leases;
    results += p.results;
    refused += p.refused;
    restarts += p.restarts;
    invented += p.untrue_count;
    checks_refused += p.checks_refused;
    quarantines += p.quarantines;
  }
  printf(
      "protocol: %d sequences of %d steps from seed %llu: %lld leases, %lld results accepted, %lld refused, %lld "
      "samples made up, %lld refused by checks, %lld quarantines, %lld restarts\n",
      count, steps, (unsigned long long)seed, (long long)leases, (long long)results, (long long)refused,
      (long long)invented, (long long)checks_refused, (long long)quarantines, (long long)restarts);
  return 0;
}
