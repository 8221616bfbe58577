/* The generation-servers of a world.  Processor sharing: a server's `clock` counts the tokens of a sample
 * that ran since the beginning, so a sample of n tokens that starts at clock t ends at clock t + n, whatever the batch
 * does meanwhile. */
#include <math.h>
#include <string.h>

#include "tests/sim/world_state.h"

static double step_us(const struct world *w, const struct server *s) {
  return w->c.step_base_us + w->c.step_row_us * s->running_count;
}

void server_pass(struct world *w, int server) {
  struct server *s = &w->servers[server];
  const double us = (double)(w->now_us - s->at_us);
  s->at_us = w->now_us;
  if (!server_works(s)) return;
  if (s->running_count) s->clock += us / step_us(w, s);
  if (w->open_groups == 0) return;
  s->slot_us += us * s->slots;
  s->idle_us += us * (s->slots - s->running_count);
}

static void expect_end(struct world *w, int server) {
  struct server *s = &w->servers[server];
  s->ends_number++;
  if (!server_works(s) || s->running_count == 0) return;
  double first = s->running[0].ends;
  for (int i = 1; i < s->running_count; i++) first = s->running[i].ends < first ? s->running[i].ends : first;
  const double left = first > s->clock ? first - s->clock : 0;
  world_at(w, w->now_us + (int64_t)ceil(left * step_us(w, s)), SAMPLE_ENDS, server, s->ends_number, 0);
}

/* generation-server/leases.c, samples_wanted: idle slots at once, the prefetched part by halves. */
static void ask(struct world *w, int server) {
  struct server *s = &w->servers[server];
  const int room = s->slots + s->prefetch - s->live, least = s->prefetch / 2 > 1 ? s->prefetch / 2 : 1;
  const int wanted = room >= least || (s->live < s->slots && room > 0) ? room : 0;
  if (!server_works(s) || s->poll != POLL_NONE || wanted == 0) return;
  s->poll = POLL_SENT;
  s->wanted = wanted;
  world_at(w, w->now_us + world_message_us(w, server), POLL_ARRIVES, server, s->life, 0);
}

void server_fill(struct world *w, int server) {
  struct server *s = &w->servers[server];
  int taken = 0;
  for (; taken < s->queued_count && s->running_count < s->slots; taken++) {
    struct item item = s->queued[taken];
    const struct sample *sample = &w->groups[w->leases[item.lease].group].samples[item.sample];
    item.ends = s->clock + sample->tokens - sample->had;
    s->running[s->running_count++] = item;
  }
  s->queued_count -= taken;
  memmove(s->queued, s->queued + taken, (size_t)s->queued_count * sizeof s->queued[0]);
  expect_end(w, server);
  ask(w, server);
}

void server_leases_arrive(struct world *w, int server) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  s->poll = POLL_NONE;
  for (int l = 0; l < w->lease_count; l++) {
    struct sim_lease *lease = &w->leases[l];
    if (lease->server != server || lease->life != s->life || lease->left != -1) continue;
    lease->left = lease->count;
    for (int i = 0; i < lease->count; i++) {
      if (s->queued_count == ITEMS_MAX) world_fault(w, "server %d holds more than %d samples", server, ITEMS_MAX);
      if (s->queued_count < ITEMS_MAX)
        s->queued[s->queued_count++] = (struct item){.lease = l, .sample = lease->first + i};
    }
    s->live += lease->count;
  }
  server_fill(w, server);
}

void server_sample_ends(struct world *w, int server) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  for (int i = 0; i < s->running_count; i++) {
    if (s->running[i].ends > s->clock + 1e-6) continue;
    struct sim_lease *lease = &w->leases[s->running[i].lease];
    lease->finished[s->running[i].sample - lease->first] = true;
    if (--lease->left == 0)
      world_at(w, w->now_us + world_message_us(w, server), RESULT_ARRIVES, server, s->life, s->running[i].lease);
    s->running[i--] = s->running[--s->running_count];
    s->live--;
  }
  server_fill(w, server);
}

static int drop_from(struct item *items, int count, int lease) {
  int kept = 0;
  for (int i = 0; i < count; i++) {
    if (lease >= 0 && items[i].lease != lease) items[kept++] = items[i];
  }
  return kept;
}

void server_drop(struct world *w, int server, int lease) {
  struct server *s = &w->servers[server];
  s->running_count = drop_from(s->running, s->running_count, lease);
  s->queued_count = drop_from(s->queued, s->queued_count, lease);
  s->live = s->running_count + s->queued_count;
}

void server_heartbeat_answered(struct world *w, int server) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  for (int l = 0; l < w->lease_count; l++) {
    const struct sim_lease *lease = &w->leases[l];
    if (lease->server == server && lease->life == s->life && !lease->granted && lease->left > 0)
      server_drop(w, server, l);
  }
  server_fill(w, server);
}

void server_joins(struct world *w) {
  if (w->server_count == WORLD_SERVERS) {
    world_fault(w, "more than %d servers", WORLD_SERVERS);
    return;
  }
  const int server = w->server_count++;
  w->servers[server] = (struct server){.alive = true,
                                       .known = true,
                                       .slots = w->c.slots,
                                       .prefetch = w->c.prefetch,
                                       .at_us = w->now_us,
                                       .seen_ms = world_now_ms(w)};
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, HEARTBEAT_LEAVES, server, 0, 0);
  ask(w, server);
}

void server_freezes(struct world *w, int server, int64_t length_us) {
  struct server *s = &w->servers[server];
  s->frozen = true;
  s->ends_number++;
  world_at(w, w->now_us + length_us, SERVER_THAWS, server, s->life, 0);
}

/* A zombie posts before it learns that it is one: the fences are for this. */
void server_thaws(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (!s->alive) return;
  server_pass(w, server);
  s->frozen = false;
  if (!s->known) {
    for (int i = 0; i < s->running_count; i++)
      world_at(w, w->now_us + world_message_us(w, server), RESULT_ARRIVES, server, s->life, s->running[i].lease);
    if (s->poll == POLL_PARKED) s->poll = POLL_NONE;
  }
  server_fill(w, server);
}

void server_hands_back(struct world *w, int server) {
  const struct server *s = &w->servers[server];
  for (int i = 0; i < s->running_count; i++) {
    const struct sim_lease *lease = &w->leases[s->running[i].lease];
    struct sample *sample = &w->groups[lease->group].samples[s->running[i].sample];
    if (lease->granted && s->running[i].ends > s->clock)
      sample->had = floor(sample->tokens - (s->running[i].ends - s->clock));
  }
}
