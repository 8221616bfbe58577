/* Runs a world: randomness, the event queue, the trainer, accidents, the loop. */
#include "tests/sim/world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "tests/sim/world_state.h"

enum { EVENTS_HANDLED_MAX = 5000000, SOCKET_US = 10000 };

struct world *world_create(void) { return malloc(sizeof(struct world)); }
void world_destroy(struct world *w) { free(w); }

void world_fault(struct world *w, const char *format, ...) {
  va_list args;
  if (w->r->fault[0]) return;
  const int n =
      snprintf(w->r->fault, sizeof w->r->fault, "seed %" PRIu64 " at %.3f s: ", w->c.seed, (double)w->now_us / 1e6);
  va_start(args, format);
  vsnprintf(w->r->fault + n, sizeof w->r->fault - (size_t)n, format, args);
  va_end(args);
}

static uint32_t draw(uint64_t seed, enum stream stream, uint32_t a, uint32_t b) {
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4] = {a, b, (uint32_t)stream, 0x51e};
  uint32_t out[4];
  philox4x32_10(out, counter, key);
  return out[0];
}

double world_uniform(uint64_t seed, enum stream stream, uint32_t a, uint32_t b) {
  return ((double)draw(seed, stream, a, b) + 0.5) / 4294967296.0;
}

/* ---- events: a heap ---- */

static bool before(const struct event *a, const struct event *b) {
  return a->at_us != b->at_us ? a->at_us < b->at_us : a->number < b->number;
}

void world_at(struct world *w, int64_t at_us, enum event_kind kind, int who, uint32_t life, int lease) {
  if (w->event_count == EVENTS_MAX) {
    world_fault(w, "more than %d events are under way", EVENTS_MAX);
    return;
  }
  const struct event e = {at_us > w->now_us ? at_us : w->now_us, w->numbers++, kind, who, life, lease};
  int i = w->event_count++;
  for (; i > 0 && before(&e, &w->events[(i - 1) / 2]); i = (i - 1) / 2) w->events[i] = w->events[(i - 1) / 2];
  w->events[i] = e;
}

static struct event next_event(struct world *w) {
  const struct event first = w->events[0], e = w->events[--w->event_count];
  int i = 0;
  for (;;) {
    int child = 2 * i + 1;
    if (child >= w->event_count) break;
    if (child + 1 < w->event_count && before(&w->events[child + 1], &w->events[child])) child++;
    if (!before(&w->events[child], &e)) break;
    w->events[i] = w->events[child];
    i = child;
  }
  w->events[i] = e;
  return first;
}

int64_t world_message_us(struct world *w, int server) {
  const double u = world_uniform(w->c.seed, STREAM_MESSAGE, (uint32_t)server, w->servers[server].messages++);
  return (int64_t)((double)w->c.message_us * (0.5 + u));
}

/* ---- the trainer ---- */

static void trainer_next(struct world *w) {
  if (w->trainer_busy || !w->trainer_up || w->queue_head == w->queue_tail) return;
  const int batch = w->queue[w->queue_head++ % BATCHES_MAX];
  w->trainer_busy = true;
  if (w->r->first_train_us == 0) w->r->first_train_us = w->now_us;
  world_at(w, w->now_us + (int64_t)(w->batches[batch].tokens * w->c.train_us_per_token), BATCH_ENDS, batch,
           (uint32_t)w->lineage, 0);
}

static void batch_ends(struct world *w, int batch) {
  w->trainer_busy = false;
  w->r->train_us += (int64_t)(w->batches[batch].tokens * w->c.train_us_per_token);
  w->r->end_us = w->now_us;
  world_at(w, w->now_us + w->c.message_us, BATCH_KNOWN, batch, (uint32_t)w->lineage, 0);
  trainer_next(w);
}

/* It comes back with nothing of this round, and is fed what was accepted again. */
static void trainer_dies(struct world *w, int64_t length_us) {
  w->lineage++;
  w->trainer_up = w->trainer_busy = false;
  w->queue_head = w->queue_tail = w->at_trainer = 0;
  w->r->train_us = 0;
  for (int g = 0; g < w->training_count; g++) {
    if (w->groups[g].state == SUBMITTED || w->groups[g].state == CONSUMED) w->groups[g].state = SEALED;
  }
  world_at(w, w->now_us + length_us, TRAINER_BACK, 0, 0, 0);
}

/* ---- accidents ---- */

static void accidents_plan(struct world *w) {
  const int counts[] = {[KILL] = w->c.kills,
                        [FREEZE] = w->c.freezes,
                        [DRAIN] = w->c.drains,
                        [JOIN] = w->c.joins,
                        [TRAINER_KILL] = w->c.trainer_kills};
  uint32_t n = 0;
  for (int kind = KILL; kind <= TRAINER_KILL; kind++) {
    for (int i = 0; i < counts[kind] && n < WORLD_ACCIDENTS; i++, n++) {
      const double when = world_uniform(w->c.seed, STREAM_ACCIDENT, n, 0);
      const double length = world_uniform(w->c.seed, STREAM_ACCIDENT, n, 1);
      w->accidents[n] = (struct accident){.kind = (enum accident_kind)kind,
                                          .at_us = (int64_t)(when * (double)w->c.accidents_us),
                                          .length_us = (int64_t)(length * (double)w->c.freeze_us_max) + 1000,
                                          .draw = draw(w->c.seed, STREAM_ACCIDENT, n, 2)};
      world_at(w, w->accidents[n].at_us, ACCIDENT, (int)n, 0, 0);
    }
  }
}

static void accident(struct world *w, const struct accident *a) {
  const int server = (int)(a->draw % (uint32_t)w->server_count);
  struct server *s = &w->servers[server];
  if (a->kind == JOIN) server_joins(w);
  if (a->kind == TRAINER_KILL && w->trainer_up) trainer_dies(w, a->length_us);
  if (a->kind == JOIN || a->kind == TRAINER_KILL || !server_works(s)) return;
  server_pass(w, server);
  if (a->kind == FREEZE) {
    server_freezes(w, server, a->length_us);
    return;
  }
  if (a->kind == DRAIN) {
    server_hands_back(w, server);
    world_coordinator_drained(w, server);
  }
  server_drop(w, server, -1);
  s->alive = false;
  if (s->poll == POLL_PARKED) s->poll = POLL_NONE;              /* it hung up, which is noticed */
  world_at(w, w->now_us + a->length_us, SERVER_JOINS, 0, 0, 0); /* somebody starts another */
}

/* ---- the loop ---- */

static void handle_trainer(struct world *w, const struct event *e) {
  if (e->life != (uint32_t)w->lineage) return;
  if (e->kind == BATCH_ARRIVES) {
    w->queue[w->queue_tail++ % BATCHES_MAX] = e->who;
    trainer_next(w);
  }
  if (e->kind == BATCH_ENDS) batch_ends(w, e->who);
  if (e->kind == BATCH_KNOWN) world_coordinator_batch_known(w, e->who);
}

static void heartbeat_leaves(struct world *w, int server) {
  const struct server *s = &w->servers[server];
  if (!s->alive) return;
  if (!s->frozen) world_at(w, w->now_us + world_message_us(w, server), HEARTBEAT_ARRIVES, server, s->life, 0);
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, HEARTBEAT_LEAVES, server, s->life, 0);
}

static void handle_server(struct world *w, const struct event *e) {
  const struct server *s = &w->servers[e->who];
  const uint32_t life = e->kind == SAMPLE_ENDS ? s->ends_number : s->life;
  const bool to_server = e->kind == LEASES_ARRIVE || e->kind == HEARTBEAT_ANSWERED || e->kind == SAMPLE_ENDS;
  if (e->life != life || (to_server && !s->alive)) return;
  if (to_server && s->frozen) { /* lies in its socket until it thaws */
    world_at(w, w->now_us + SOCKET_US, e->kind, e->who, e->life, e->lease);
    return;
  }
  if (e->kind == POLL_ARRIVES) world_coordinator_poll(w, e->who);
  if (e->kind == POLL_DUE) world_coordinator_poll_due(w, e->who, e->lease);
  if (e->kind == LEASES_ARRIVE) server_leases_arrive(w, e->who);
  if (e->kind == SAMPLE_ENDS) server_sample_ends(w, e->who);
  if (e->kind == HEARTBEAT_LEAVES) heartbeat_leaves(w, e->who);
  if (e->kind == HEARTBEAT_ARRIVES) world_coordinator_heartbeat(w, e->who);
  if (e->kind == HEARTBEAT_ANSWERED) server_heartbeat_answered(w, e->who);
}

static void handle(struct world *w, const struct event *e) {
  switch (e->kind) {
    case POLL_ARRIVES:
    case POLL_DUE:
    case LEASES_ARRIVE:
    case SAMPLE_ENDS:
    case HEARTBEAT_LEAVES:
    case HEARTBEAT_ARRIVES:
    case HEARTBEAT_ANSWERED: handle_server(w, e); break;
    case RESULT_ARRIVES: world_coordinator_result(w, e->lease); break;
    case GROUP_VERIFIED: world_coordinator_verified(w, e->who); break;
    case BATCH_ARRIVES:
    case BATCH_ENDS:
    case BATCH_KNOWN: handle_trainer(w, e); break;
    case LOOK: world_coordinator_look(w); break;
    case ADMISSION: world_coordinator_admission(w); break;
    case ACCIDENT: accident(w, &w->accidents[e->who]); break;
    case SERVER_JOINS: server_joins(w); break;
    case SERVER_THAWS: server_thaws(w, e->who); break;
    case TRAINER_BACK: w->trainer_up = true; break;
  }
  if (w->dispatch_due) world_coordinator_dispatch(w);
  world_coordinator_submit(w);
}

static void check_conserving(struct world *w) {
  int grantable = -1;
  for (int i = 0; i < w->server_count; i++) {
    const struct server *s = &w->servers[i];
    if (!server_works(s) || s->live >= s->slots) continue;
    if (s->poll == POLL_NONE)
      world_fault(w, "server %d has %d of %d slots in use and does not ask", i, s->live, s->slots);
    if (s->poll != POLL_PARKED || !s->known) continue;
    if (grantable < 0) grantable = world_coordinator_grantable(w);
    if (grantable > 0) world_fault(w, "server %d has an idle slot, and %d samples wait", i, grantable);
  }
}

/* Slots that are idle although there is work: at the coordinator, or behind another server's slots. */
static void account(struct world *w, int64_t us) {
  int waiting = 0, idle = 0, queued = 0;
  for (int g = 0; g < w->group_count; g++) waiting += w->groups[g].facts.waiting;
  for (int i = 0; i < w->server_count; i++) {
    const struct server *s = &w->servers[i];
    if (!server_works(s)) continue;
    idle += s->slots - s->running_count;
    queued += s->queued_count;
  }
  const int starved = idle < waiting ? idle : waiting;
  w->starved_us += (double)us * starved;
  w->hoarded_us += (double)us * (idle - starved < queued ? idle - starved : queued);
}

static bool finished(const struct world *w) {
  if (w->open_groups > 0) return false;
  for (int g = 0; g < w->group_count; g++) {
    if (w->groups[g].state == SEALED || w->groups[g].state == SUBMITTED) return false;
  }
  return true;
}

static void result_fill(struct world *w) {
  struct world_result *r = w->r;
  double idle = 0, slots = 0;
  for (int i = 0; i < w->server_count; i++) {
    idle += w->servers[i].idle_us;
    slots += w->servers[i].slot_us;
  }
  if (slots > 0) r->idle = idle / slots;
  r->trained = 14695981039346656037u; /* FNV-1a, a word at a time */
  for (int g = 0; g < w->group_count; g++) {
    const struct group *group = &w->groups[g];
    if (group->state == ABSENT) continue;
    if (group->sealings != 1) world_fault(w, "group %d was sealed %d times", g, group->sealings);
    if (group->state != CONSUMED) continue;
    r->trained_groups++;
    r->trained = (r->trained ^ (uint64_t)g) * 1099511628211u;
    r->trained = (r->trained ^ (uint64_t)group->tokens) * 1099511628211u;
  }
}

void world_run(struct world *w, const struct world_config *config, struct world_result *result) {
  memset(w, 0, sizeof *w);
  memset(result, 0, sizeof *result);
  w->c = *config;
  w->r = result;
  w->trainer_up = true;
  w->training_count = config->groups + config->refill_max;
  w->group_count = w->training_count + config->evaluation_groups;
  if (w->group_count > WORLD_GROUPS || config->samples > WORLD_SAMPLES ||
      config->slots + config->prefetch > ITEMS_MAX) {
    world_fault(w, "the configuration is too large for a world");
    return;
  }
  world_coordinator_open(w);
  for (int i = 0; i < config->servers; i++) server_joins(w);
  accidents_plan(w);
  world_at(w, 0, LOOK, 0, 0, 0);
  for (int events = 0; !finished(w) && !result->fault[0]; events++) {
    if (w->event_count == 0 || events == EVENTS_HANDLED_MAX) {
      world_fault(w, "the round does not end: %d groups are open after %d events", w->open_groups, events);
      break;
    }
    const struct event e = next_event(w);
    if (w->open_groups > 0) account(w, e.at_us - w->now_us);
    w->now_us = e.at_us;
    handle(w, &e);
    check_conserving(w);
  }
  if (!result->fault[0]) result_fill(w);
}

/* ---- chaos ---- */

/* The seed's number `which`, between low and high. */
static int between(uint64_t seed, uint32_t which, int low, int high) {
  return low + (int)(draw(seed, STREAM_CHAOS, which, 0) % (uint32_t)(high - low + 1));
}

static struct world_config chaos_config(uint64_t seed) {
  return (struct world_config){
      .seed = seed,
      .frontier_groups = between(seed, 0, 0, 6), /* 0: measured */
      .knowledge = (enum world_knowledge)between(seed, 31, KNOWS_NOTHING, KNOWS_SAMPLES),
      .groups = between(seed, 1, 1, 40),
      .samples = between(seed, 2, 1, 8),
      .evaluation_groups = between(seed, 3, 0, 1) * between(seed, 4, 1, 6),
      .filtered = between(seed, 5, 0, 2) * 0.2,
      .refill_max = between(seed, 6, 0, 12),
      .lease_samples_max = between(seed, 7, 0, 3),
      .servers = between(seed, 8, 1, 6),
      .slots = between(seed, 9, 1, 12),
      .prefetch = between(seed, 10, 0, 8),
      .step_base_us = 500 * between(seed, 11, 1, 8),
      .step_row_us = (between(seed, 32, 0, 2) ? 20 : 400) * between(seed, 12, 0, 5),
      .tokens_mean = 20 * between(seed, 13, 1, 20),
      .sigma_prompt = 0.2 * between(seed, 14, 0, 5),
      .sigma_sample = 0.2 * between(seed, 15, 0, 5),
      .tokens_max = 2000,
      .message_us = 200 * between(seed, 16, 1, 50),
      .verify_us = 1000 * between(seed, 17, 0, 20),
      .train_us_per_token = 2.5 * between(seed, 18, 1, 40),
      .batch_tokens = 1000 * between(seed, 19, 1, 8),
      .heartbeat_ms = 100,
      .worker_ttl_ms = 300 * between(seed, 20, 1, 8),
      .lease_ttl_ms = 300 * between(seed, 21, 1, 8),
      .aging_ms = 20 * between(seed, 22, 1, 40),
      .kills = between(seed, 23, 0, 3),
      .freezes = between(seed, 24, 0, 4),
      .drains = between(seed, 25, 0, 3),
      .joins = between(seed, 26, 0, 2),
      .trainer_kills = between(seed, 27, 0, 2),
      .accidents_us = 500000 * between(seed, 28, 1, 12),
      .freeze_us_max = 100000 * between(seed, 29, 1, 40),
  };
}

void world_chaos(struct world *w, uint64_t seed, struct world_result *sum) {
  enum { PRIORITY, GATE, OFF, SYNC, CALM, VARIANTS };
  static const char *const names[VARIANTS] = {"priority", "gate", "off", "sync", "calm"};
  struct world_result first = {0}, r;
  for (int v = 0; v < VARIANTS && !sum->fault[0]; v++) {
    struct world_config c = chaos_config(seed);
    c.kind = v == GATE ? FRONTIER_GATE : v == OFF ? FRONTIER_OFF : FRONTIER_PRIORITY;
    c.sync = v == SYNC;
    if (v == GATE || v == OFF) c.knowledge = KNOWS_NOTHING;
    if (v == CALM) c.kills = c.freezes = c.drains = c.joins = c.trainer_kills = 0;
    world_run(w, &c, &r);
    if (v == PRIORITY) first = r;
    if (r.fault[0])
      snprintf(sum->fault, sizeof sum->fault, "%s: %.240s", names[v], r.fault);
    else if (r.trained != first.trained || r.trained_groups != first.trained_groups)
      snprintf(sum->fault, sizeof sum->fault, "seed %" PRIu64 ": %s trains %d groups, priority %d, or others", seed,
               names[v], r.trained_groups, first.trained_groups);
    sum->trained_groups += r.trained_groups;
    sum->granted += r.granted;
    sum->regranted += r.regranted;
    sum->refused += r.refused;
    sum->overtaken += r.overtaken;
    sum->aged += r.aged;
  }
}
