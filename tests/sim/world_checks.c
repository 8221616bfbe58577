/* Promises that are judged as messages pass, with books of the world's own: who holds which sample under which fence,
 * what was accepted, who was overtaken when.  The database is asked now and then (world_invariants.h). */
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/decide/ordinals.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/store/ids.h"
#include "tests/sim/world_invariants.h"
#include "tests/sim/world_state.h"

static void block_free(struct block *b) {
  free(b->mirror);
  free(b->books);
  *b = (struct block){0};
}

void checks_forget(struct world *w) {
  for (int i = 0; i < WORLD_ROUNDS; i++) block_free(&w->blocks[i]);
}

static void block_grow(const struct world *w, struct block *b, int places) {
  const size_t samples = (size_t)w->c.samples;
  const int before = b->room;
  if (places <= before) return;
  b->room = places > 2 * before ? places : 2 * before;
  b->mirror = realloc(b->mirror, (size_t)b->room * samples * sizeof *b->mirror);
  b->books = realloc(b->books, (size_t)b->room * sizeof *b->books);
  if (!b->books || !b->mirror) abort();
  memset(&b->mirror[(size_t)before * samples], 0, (size_t)(b->room - before) * samples * sizeof *b->mirror);
  for (int g = before; g < b->room; g++) b->books[g] = (struct group_books){.overtaken_us = -1};
}

void checks_round(struct world *w) {
  if (!w->c.inflight && w->round > 0) block_free(&w->blocks[w->round - 1]);
  block_grow(w, &w->blocks[w->round], world_places(w));
}

static bool is_small(const struct world *w) { return world_places(w) <= WORLD_GROUPS; }

struct group_books *books_of(struct world *w, int64_t round, int64_t ordinal) {
  const int place = world_place(w, ordinal);
  if (place < 0 || round < 0 || round > w->round || (!w->c.inflight && round != w->round)) return NULL;
  if (w->c.inflight) block_grow(w, &w->blocks[round], place + 1);
  return &w->blocks[round].books[place];
}

struct mirror *mirror_of(struct world *w, int64_t round, int64_t ordinal, int sample) {
  if (sample < 0 || sample >= w->c.samples || !books_of(w, round, ordinal)) return NULL;
  return &w->blocks[round].mirror[world_place(w, ordinal) * w->c.samples + sample];
}

/* ---- whose turn it is ---- */

/* The open round's groups, by their places. */
struct outlook {
  struct waiting_group facts[WORLD_GROUPS]; /* waiting 0: nothing waits */
  bool open[WORLD_GROUPS], frontier[WORLD_GROUPS];
  int32_t begun, under_way, admitted, rank[WORLD_GROUPS];
  const struct admission_plan *plan;
};

static bool look(struct world *w, struct outlook *o) {
  struct waiting *all = &w->core->pool->waiting;
  const struct pace *pace = &w->core->pool->pace;
  struct err err;
  const struct dispatch_rates *rates = &w->core->pool->rates;
  const int training = w->c.groups + w->c.refill_max,
            measured = frontier_size(rate_value(&rates->drain), rate_value(&rates->latency), w->c.groups);
  int left = w->c.frontier_groups ? w->c.frontier_groups : measured;
  static const struct admission_plan none;
  if (!w->core->context || waiting_read(all, w->core, 1, w->round, &err) != RC_OK) return false;
  memset(o, 0, sizeof *o);
  for (int i = all->first; i < all->first + all->count; i++) {
    const int place = world_place(w, all->items[i].group.ordinal);
    if (place >= 0) o->facts[place] = all->items[i].group;
  }
  for (int g = 0; g < training; g++) {
    o->rank[g] = g;
    o->open[g] = all->open[g / 64] >> g % 64 & 1;
    o->frontier[g] = o->open[g] && left-- > 0;
  }
  o->begun = all->begun;
  o->plan = pace->plan_round == w->round && pace->plan_run == 1 ? &pace->plan : &none;
  o->under_way = waiting_under_way(all);
  const int32_t now = pace_groups(pace, world_now_ms(w), o->begun, o->under_way);
  o->admitted = !o->plan->bounded ? INT32_MAX : now;
  for (int i = 0; i < w->c.groups && o->plan->ordered; i++) o->rank[o->plan->order[i]] = i;
  return true;
}

/* May group o be served while training group g waits? */
static void check_pair(struct world *w, const struct outlook *l, int g, int o) {
  const int64_t slack_us = 1000, aged_us = w->now_us - 1000 * w->c.aging_ms - slack_us;
  const struct group_books *books = w->blocks[w->round].books;
  const int64_t ours_us = books[g].overtaken_us, theirs_us = books[o].overtaken_us;
  const bool full = l->begun >= l->admitted;
  const bool shut_out = (w->c.kind == FRONTIER_GATE && !l->frontier[g]) || (full && !l->facts[g].begun);
  const bool aged = ours_us >= 0 && ours_us < aged_us && !shut_out;
  const bool other_aged = theirs_us >= 0 && theirs_us <= aged_us + 2 * slack_us;
  if (o >= w->c.groups + w->c.refill_max) {
    world_fault(w, "evaluation is served while training group %d waits", g);
    return;
  }
  if (aged && (theirs_us < 0 || theirs_us > ours_us + slack_us))
    world_fault(w, "group %d was overtaken %.1f s ago, and now group %d is served before it", g,
                (double)(w->now_us - ours_us) / 1e6, o);
  const bool behind = l->plan->ordered ? l->rank[g] < l->rank[o] : l->frontier[g] && !l->frontier[o];
  if (w->c.kind != FRONTIER_OFF && behind && !other_aged && !shut_out)
    world_fault(w, "group %d waits at the frontier, and group %d behind it is served", g, o);
}

/* Was anybody passed over who should not have been? */
static void check_order(struct world *w, const int32_t *granted_of) {
  static struct outlook l;
  const int training = w->c.groups + w->c.refill_max;
  int highest = -1;
  if (!look(w, &l)) return;
  for (int g = 0; g < training; g++) {
    if (granted_of[g] && l.rank[g] > highest) highest = l.rank[g];
    if (granted_of[g] && l.open[g] && !l.frontier[g] && w->c.kind == FRONTIER_GATE)
      world_fault(w, "group %d is behind the gate and is served", g);
  }
  for (int g = 0; g < training; g++) {
    const int64_t since_us = w->blocks[w->round].books[g].overtaken_us;
    w->r->aged += granted_of[g] && since_us >= 0 && w->now_us - since_us > 1000 * w->c.aging_ms;
    for (int o = 0; o < world_places(w) && l.facts[g].waiting; o++) {
      if (granted_of[o] && o != g) check_pair(w, &l, g, o);
    }
  }
  for (int g = 0; g < training && w->c.kind != FRONTIER_OFF; g++) {
    struct group_books *b = &w->blocks[w->round].books[g];
    if (l.facts[g].waiting == 0) b->overtaken_us = -1;
    if (l.facts[g].waiting == 0 || l.rank[g] >= highest || b->overtaken_us >= 0) continue;
    b->overtaken_us = w->now_us;
    w->r->overtaken++;
  }
}

/* ---- grants ---- */

/* A poll says how many leases were found in answers.  Where those of the last answer are missing, that is taken to be
 * lost, and they may be granted again at once. */
void checks_polled(struct world *w, const struct poll_message *m) {
  struct answer_books *b = &w->servers[m->server].answers;
  if (strcmp(b->worker, m->worker) != 0) {
    *b = (struct answer_books){.given = m->taken};
    memcpy(b->worker, m->worker, sizeof b->worker);
  }
  if (b->last > 0 && m->taken == b->given - b->last) {
    b->lost_ms[b->lost_next++ % LOST_ANSWERS] = b->answered_ms;
    b->last = 0;
  }
  b->given = m->taken;
}

static void note_answer(struct world *w, const struct poll_message *p) {
  struct answer_books *b = &w->servers[p->server].answers;
  if (p->answer.lease_count == 0 || strcmp(b->worker, p->worker) != 0) return;
  b->last = (int64_t)p->answer.lease_count;
  b->given += b->last;
  b->answered_ms = world_now_ms(w);
}

static bool was_in_lost_answer(const struct world *w, const struct mirror *m) {
  int64_t worker = 0;
  struct err err;
  for (int i = 0; i < w->server_count; i++) {
    const struct answer_books *b = &w->servers[i].answers;
    if (!b->worker[0] || id_parse_worker(&worker, b->worker, &err) != RC_OK || worker != m->worker) continue;
    for (int at = 0; at < LOST_ANSWERS; at++)
      if (b->lost_ms[at] == m->granted_ms) return true;
  }
  return false;
}

static void check_sample(struct world *w, const struct lease *l, int sample, int64_t worker) {
  struct mirror *m = mirror_of(w, l->round, l->group_ordinal, sample);
  if (!m) {
    world_fault(w, "sample %s.%d is granted, which there is not", l->group, sample);
    return;
  }
  const bool stands =
      m->granted && worker_live(w->core, m->worker) && world_now_ms(w) < m->renewed_ms + w->c.lease_ttl_ms;
  if (m->done) world_fault(w, "I3: sample %s.%d is granted although it was accepted", l->group, sample);
  if (stands && !was_in_lost_answer(w, m))
    world_fault(w, "I3: sample %s.%d is granted while w%lld holds it", l->group, sample, (long long)m->worker);
  if ((int64_t)l->fence <= m->fence)
    world_fault(w, "I3: sample %s.%d is granted without a higher fence", l->group, sample);
  w->r->regranted += m->fence > 0;
  w->r->granted++;
  m->fence = (int64_t)l->fence;
  m->worker = worker;
  m->renewed_ms = m->granted_ms = world_now_ms(w);
  m->granted = true;
  m->version_max = l->version_max;
  int64_t told = 0;
  for (size_t i = 0; i < l->partial_count; i++)
    if (l->partials[i].sample == sample) told = (int64_t)l->partials[i].token_ids.count;
  if (told < m->kept)
    world_fault(w, "sample %s.%d is granted with %lld tokens, %lld were handed back", l->group, sample, (long long)told,
                (long long)m->kept);
}

static void check_lease(struct world *w, const struct poll_message *p, const struct lease *l) {
  const int64_t current = w->version_count - 1;
  int64_t worker = 0;
  struct err err;
  w->r->leases++;
  if (w->c.inflight)
    stream_lease(w, p, l);
  else if (l->round != w->round)
    world_fault(w, "lease %s is of another round than %lld", l->id, (long long)w->round);
  else if (l->version_min != current || l->version_max != current ||
           !digest_equal(&l->weights_digest, &w->versions[current]))
    world_fault(w, "I2: lease %s is for versions %lld to %lld, version %lld is current", l->id,
                (long long)l->version_min, (long long)l->version_max, (long long)current);
  if (!p->has_loaded || !digest_equal(&p->loaded, &l->weights_digest))
    world_fault(w, "I2: lease %s is given to a server that holds other weights", l->id);
  if (id_parse_worker(&worker, p->worker, &err) != RC_OK || !worker_live(w->core, worker))
    world_fault(w, "I9: lease %s is given to %s, who is gone", l->id, p->worker);
  if (p->epoch != core_epoch(w->core)) world_fault(w, "I9: lease %s is given under another epoch", l->id);
  for (int s = l->sample_first; s < l->sample_first + l->sample_count; s++) check_sample(w, l, s, worker);
}

void checks_granted(struct world *w, const struct poll_message *first) {
  int32_t granted_of[WORLD_GROUPS] = {0};
  bool any = false;
  for (const struct poll_message *p = first; p; p = p->next) {
    if (p->rc == RC_OK) note_answer(w, p);
    for (size_t i = 0; p->rc == RC_OK && i < p->answer.lease_count; i++) {
      const struct lease *l = &p->answer.leases[i];
      const int place = world_place(w, l->group_ordinal);
      check_lease(w, p, l);
      any = true;
      if (is_small(w) && place >= 0 && place < WORLD_GROUPS) granted_of[place] += l->sample_count;
    }
  }
  if (any && is_small(w) && !w->c.inflight) check_order(w, granted_of);
}

void checks_renewed(struct world *w, const struct beat_message *b) {
  for (int i = 0; i < b->count; i++) {
    const struct held_ref *ref = &b->leases[i];
    if (ref->number == 0) continue; /* it is lost */
    for (int s = ref->first; s < ref->first + ref->count; s++) {
      struct mirror *m = mirror_of(w, ref->round, ref->ordinal, s);
      if (m && m->fence == (int64_t)ref->fence) m->renewed_ms = world_now_ms(w);
    }
  }
}

/* ---- results ---- */

bool checks_result_stands(struct world *w, const struct result_message *m) {
  const struct mirror *first = mirror_of(w, m->round, m->ordinal, m->first);
  if (!first || !first->granted || first->fence != (int64_t)m->fence || first->worker != m->worker_id) return false;
  return (w->c.inflight || m->version == w->version_count - 1) && worker_live(w->core, m->worker_id) &&
         WORLD_NUMBER(w, "SELECT state FROM leases WHERE id = ?1 AND fence = ?2", b_text(m->id),
                      b_int((int64_t)m->fence)) == LEASE_GRANTED;
}

static struct group_books *group_of(struct world *w, const struct result_message *m) {
  return books_of(w, m->round, m->ordinal);
}

static void group_is_in(struct world *w, const struct result_message *m) {
  const int64_t state = WORLD_NUMBER(w, "SELECT state FROM groups WHERE run = 1 AND round = ?1 AND ordinal = ?2",
                                     b_int(m->round), b_int(m->ordinal));
  const bool sealed = state == GROUP_SEALED || state == GROUP_SUBMITTED; /* with its batch, in one transaction */
  const int64_t passed_us = w->now_us - w->now->opened_us;
  if (state == GROUP_OPEN) world_fault(w, "I4: group %d has all its samples and is open", m->ordinal);
  if (sealed && w->now->first_us == 0) w->now->first_us = passed_us;
  if (w->c.inflight) {
    group_of(w, m)->sealed = sealed;
    return;
  }
  if (WORLD_NUMBER(w, "SELECT groups_open FROM rounds WHERE run = 1 AND round = ?1", b_int(m->round)) != 0) return;
  w->now->generated_us = passed_us;
  double idle_us = 0, slot_us = 0;
  for (int i = 0; i < w->server_count; i++) {
    server_pass(w, i);
    idle_us += w->servers[i].idle_us;
    slot_us += w->servers[i].slot_us;
  }
  w->now->idle = slot_us > 0 ? idle_us / slot_us : 0;
  w->generating = false;
}

static void sample_is_in(struct world *w, const struct result_message *m, int i) {
  const int sample = m->first + i;
  const struct told_sample *told = &m->samples[i];
  struct mirror *s = mirror_of(w, m->round, m->ordinal, sample);
  struct group_books *b = group_of(w, m);
  const bool whole = told->had >= world_length(&w->c, m->round, m->ordinal, sample);
  if (s->fence != (int64_t)m->fence)
    world_fault(w, "I3: sample %d.%d is accepted under an old fence", m->ordinal, sample);
  if (s->done && whole) world_fault(w, "I3: sample %d.%d is accepted twice", m->ordinal, sample);
  const int64_t came = whole ? 0 : world_handed_back(&w->c, m->round, m->ordinal, sample, told->had);
  if (came > s->kept) s->kept = came;
  if (told->drawn.count && (whole || (came && came >= s->kept))) s->version_first = told->drawn.spans[0].version;
  if (whole && (b->done == 0 || s->version_first < b->version_first)) b->version_first = s->version_first;
  s->granted = false;
  s->done |= whole;
  b->done += whole;
  w->r->partial += !whole && told->had > 0;
}

void checks_result(struct world *w, const struct result_message *m, bool stands, enum rc rc, bool repeated) {
  struct group_books *b = group_of(w, m);
  if (rc != RC_OK) {
    w->r->refused++;
    if (rc != RC_CONFLICT && rc != RC_GONE && rc != RC_NOT_FOUND)
      world_fault(w, "the result of lease %s is refused with code %d", m->id, (int)rc);
    if (stands) world_fault(w, "the result of lease %s is refused with code %d, and it stands", m->id, (int)rc);
    return;
  }
  w->r->repeated += repeated;
  if (repeated) return;
  if (!stands || !b) {
    world_fault(w, "I3: the result of lease %s with fence %lld is accepted, which does not stand", m->id,
                (long long)m->fence);
    return;
  }
  for (int i = 0; i < m->count; i++) sample_is_in(w, m, i);
  if (b->done == w->c.samples && !b->closed) {
    b->closed = true;
    group_is_in(w, m);
  }
}

/* ---- nobody waits for nothing ---- */

/* Samples that a poll must be able to have now. */
static int grantable(struct world *w, struct outlook *l) {
  int training = 0, evaluation = 0;
  bool shut = false;
  if (!look(w, l)) return 0;
  int32_t sure = l->admitted < w->core->pool->pace.admitted ? l->admitted : w->core->pool->pace.admitted;
  if (l->under_way == 0 && sure <= l->begun) sure = l->begun + 1; /* the pool never stands still */
  int32_t left = (l->plan->bounded ? sure : INT32_MAX) - l->begun;
  for (int g = 0; g < world_places(w); g++) {
    const struct waiting_group *f = &l->facts[g];
    if (f->waiting == 0) continue;
    if (f->evaluation)
      evaluation += f->waiting;
    else if ((w->c.kind != FRONTIER_GATE || l->frontier[g]) && (f->begun || left-- > 0))
      training += f->waiting;
    else
      shut = true; /* behind the gate, or not admitted */
  }
  return training + (shut ? 0 : evaluation);
}

void checks_conserving(struct world *w) {
  static struct outlook l;
  int count = -1;
  for (int i = 0; i < w->parked_count; i++) {
    const struct poll_message *p = w->parked[i];
    const struct server *s = &w->servers[p->server];
    if (!server_works(s) || s->live >= s->slots || s->asking != p || w->version_count == 0) continue;
    if (!p->has_loaded || !digest_equal(&p->loaded, &w->versions[w->version_count - 1])) continue;
    if (!worker_live(w->core, s->worker_id)) continue;
    if (w->c.inflight) {
      if (!stream_looks(w)) return;
      const int64_t samples = stream_grantable(w);
      if (samples > 0)
        world_fault(w, "server %d has an idle slot, and %lld samples wait or may be issued", p->server,
                    (long long)samples);
      return;
    }
    if (count < 0 && is_small(w)) count = grantable(w, &l);
    if (count < 0)
      count = w->core->pool->pace.plan.bounded || w->c.kind == FRONTIER_GATE
                  ? 0
                  : (int)w->core->pool->waiting.samples * w->core->pool->waiting.known;
    if (count > 0) world_fault(w, "server %d has an idle slot, and %d samples wait", p->server, count);
    return; /* one stands for all */
  }
}

/* ---- the database ---- */

void checks_database(struct world *w) {
  int64_t rows = 0, done = 0;
  const char *const what = invariant_broken(w->core->store, INT64_MIN, &rows);
  w->since_check = 0;
  if (what) world_fault(w, "%s: %lld", what, (long long)rows);
  if (world_number(w, "SELECT count(*) FROM incidents WHERE kind = 'nondeterminism'", NO_BINDS) != 0)
    world_fault(w, "I3, I5: something came out otherwise when it was done again");
  if (w->round < 0) return;
  const int64_t first = w->c.inflight ? 0 : w->round;
  for (int64_t round = first; round <= w->round; round++) {
    for (int g = 0; g < w->blocks[round].room; g++) done += w->blocks[round].books[g].done;
  }
  rows = WORLD_NUMBER(w, "SELECT count(*) FROM samples WHERE run = 1 AND round >= ?1 AND state = 2", b_int(first));
  if (w->c.inflight) stream_bounds(w);
  if (rows != done) world_fault(w, "I3: %lld samples are done, %lld were accepted", (long long)rows, (long long)done);
}
