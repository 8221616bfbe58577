/* Versions reach the generation-servers of a run in flight: they are pushed after they were announced, each server
 * stages one in its own time, and it is active from its next decode step on.  A push that comes late is superseded, one
 * that is lost is made up for by the next poll, whose answer tells what is current; so servers skip versions, or are
 * behind.
 *
 * When a version is activated, leases that it is valid for go on, and what they draw from then on is another span; the
 * others go back first, as drawn by what was active before.  Under `kv: recompute` the keys and values of running
 * samples are computed again, which takes as long as their prompts do. */
#include <math.h>
#include <stdlib.h>

#include "services/coordinator/store/ids.h"
#include "tests/sim/world_state.h"

void drawn_by(struct world *w, struct drawn *d, int64_t from, int64_t version, bool fresh) {
  while (d->count && d->spans[d->count - 1].start >= from) d->count--; /* nothing was drawn by these */
  if (d->count && version < d->spans[d->count - 1].version)
    world_fault(w, "version %lld draws behind version %d", (long long)version, d->spans[d->count - 1].version);
  if (d->count && d->spans[d->count - 1].version == version && d->spans[d->count - 1].fresh == fresh) return;
  if (d->count == WORLD_SPANS) {
    world_fault(w, "a sample has more than %d spans", WORLD_SPANS);
    return;
  }
  d->spans[d->count].start = (int32_t)from;
  d->spans[d->count].version = (int32_t)version;
  d->spans[d->count++].fresh = fresh || from == 0;
}

static void running_swap(struct world *w, int server, int64_t version) {
  struct server *s = &w->servers[server];
  for (int i = 0; i < s->running_count; i++) {
    const struct item *item = &s->running[i];
    struct held *l = item->lease;
    struct drawn *d = &l->samples[item->sample].drawn;
    const double tokens = server_tokens(w, s, l, item->sample);
    drawn_by(w, d, world_handed_back(&w->c, l->round, l->ordinal, l->first + item->sample, tokens), version,
             w->c.recompute);
    if (w->c.recompute) s->stall_us += w->c.prompt_us * s->slow;
    w->r->swapped++;
  }
}

void server_activates(struct world *w, int server, int64_t version, const struct digest *digest) {
  struct server *s = &w->servers[server];
  if (s->has_loaded && version <= s->version) return;
  server_pass(w, server);
  if (s->has_loaded) w->r->skipped += version - s->version - 1;
  for (struct held *l = s->held; l; l = l->next) {
    if (!l->posting && l->version_max < version) server_hands_back(w, server, l);
  }
  running_swap(w, server, version);
  s->has_loaded = true;
  s->loaded = *digest;
  s->version = version;
  server_fills(w, server);
  server_asks_now(w, server);
}

/* In flight: it loads what is newer, and asks meanwhile, now and then. */
void server_is_told(struct world *w, int server, const struct current_version *v, bool nothing) {
  struct server *s = &w->servers[server];
  const bool newer = v->has && (!s->has_loaded || v->version > s->version);
  if (newer && !(s->loading && s->coming >= v->version)) {
    s->loading = true;
    s->coming = v->version;
    s->staged = v->digest;
    world_at(w, w->now_us + (int64_t)w->c.load_us, SERVER_LOADED, server, s->life, NULL);
  }
  if (!newer || !nothing || s->poll != POLL_NONE) return;
  s->poll = POLL_SENT; /* after a pause: worker/leases.c */
  world_at(w, w->now_us + AGAIN_US, POLL_BROKEN, server, ++s->poll_number, NULL);
}

void versions_push(struct world *w, const struct job *j) {
  for (size_t i = 0; i < j->push_count; i++) {
    int64_t id = 0;
    struct err err;
    const uint32_t push = (uint32_t)(j->version * 1024 + (int64_t)i);
    if (id_parse_worker(&id, j->push_ids[i], &err) != RC_OK || id >= w->server_of_room || w->server_of[id] < 0)
      continue;
    const int server = w->server_of[id];
    if (world_uniform(w->c.seed, STREAM_PUSH, push, 0) < 0.2) continue; /* lost */
    struct pushed *p = malloc(sizeof *p);
    if (!p) abort();
    *p = (struct pushed){j->version + 1, j->digest};
    const double late = world_uniform(w->c.seed, STREAM_PUSH, push, 1);
    world_at(w, w->now_us + w->c.message_us + (int64_t)(late * w->c.push_us), PUSH_ARRIVES, server,
             w->servers[server].life, p);
  }
}
