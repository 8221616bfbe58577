/* Runs a world: randomness, the heap of events, accidents, the loop. */
#include "tests/sim/world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "services/coordinator/pool/pool.h"
#include "tests/sim/world_state.h"

enum { ROOM_FIRST = 64, EVENTS_OF_RUN = 20000, EVENTS_OF_SAMPLE = 200 };

void world_fault(struct world *w, const char *format, ...) {
  va_list args;
  if (w->r->fault[0]) return;
  const int n =
      snprintf(w->r->fault, sizeof w->r->fault, "seed %" PRIu64 " at %.3f s: ", w->c.seed, (double)w->now_us / 1e6);
  va_start(args, format);
  vsnprintf(w->r->fault + n, sizeof w->r->fault - (size_t)n, format, args);
  va_end(args);
}

uint32_t world_draw(uint64_t seed, enum stream stream, uint32_t a, uint32_t b) {
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, counter[4] = {a, b, (uint32_t)stream, 0x51e};
  uint32_t out[4];
  philox4x32_10(out, counter, key);
  return out[0];
}

double world_uniform(uint64_t seed, enum stream stream, uint32_t a, uint32_t b) {
  return ((double)world_draw(seed, stream, a, b) + 0.5) / 4294967296.0;
}

/* At least `wanted` items; new ones are zero. */
void *world_room(void *items, int *room, int wanted, size_t size) {
  if (wanted <= *room) return items;
  int more = *room ? *room : ROOM_FIRST;
  while (more < wanted) more *= 2;
  char *grown = realloc(items, (size_t)more * size);
  if (!grown) abort();
  memset(grown + (size_t)*room * size, 0, (size_t)(more - *room) * size);
  *room = more;
  return grown;
}

/* ---- events: a heap ---- */

static bool before(const struct world_event *a, const struct world_event *b) {
  return a->at_us != b->at_us ? a->at_us < b->at_us : a->number < b->number;
}

void world_at(struct world *w, int64_t at_us, enum event_kind kind, int who, uint32_t life, void *what) {
  const struct world_event e = {at_us > w->now_us ? at_us : w->now_us, w->numbers++, kind, who, life, what};
  w->events = world_room(w->events, &w->event_room, w->event_count + 1, sizeof e);
  int i = w->event_count++;
  for (; i > 0 && before(&e, &w->events[(i - 1) / 2]); i = (i - 1) / 2) w->events[i] = w->events[(i - 1) / 2];
  w->events[i] = e;
}

static struct world_event next_event(struct world *w) {
  const struct world_event first = w->events[0], e = w->events[--w->event_count];
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

/* ---- messages ---- */

static double message_draw(struct world *w, int server) {
  return world_uniform(w->c.seed, STREAM_MESSAGE, (uint32_t)server, w->servers[server].messages++);
}

int64_t world_message_us(struct world *w, int server) {
  return (int64_t)((double)w->c.message_us * (0.5 + message_draw(w, server)));
}

bool world_loses(struct world *w, int server) {
  const bool lost = w->c.lost > 0 && message_draw(w, server) < w->c.lost;
  w->r->lost += lost;
  return lost;
}

bool world_doubles(struct world *w, int server) {
  const bool doubled = w->c.doubled > 0 && message_draw(w, server) < w->c.doubled;
  w->r->doubled += doubled;
  return doubled;
}

bool world_lies(const struct world *w) {
  return world_places(w) <= WORLD_GROUPS && world_draw(w->c.seed, STREAM_LIE, (uint32_t)w->r->events, 0) % 16 == 0;
}

/* ---- accidents ---- */

static void accidents_plan(struct world *w) {
  const int counts[] = {[KILL] = w->c.kills, [FREEZE] = w->c.freezes,      [DRAIN] = w->c.drains,
                        [JOIN] = w->c.joins, [PREEMPT] = w->c.preemptions, [TRAINER_KILL] = w->c.trainer_kills};
  uint32_t n = 0;
  for (int kind = KILL; kind <= TRAINER_KILL; kind++) {
    for (int i = 0; i < counts[kind] && n < WORLD_ACCIDENTS; i++, n++) {
      const double when = world_uniform(w->c.seed, STREAM_ACCIDENT, n, 0);
      const double length = world_uniform(w->c.seed, STREAM_ACCIDENT, n, 1);
      w->accidents[n] = (struct accident){.kind = (enum accident_kind)kind,
                                          .at_us = (int64_t)(when * (double)w->c.accidents_us),
                                          .length_us = (int64_t)(length * (double)w->c.freeze_us_max) + 1000,
                                          .draw = world_draw(w->c.seed, STREAM_ACCIDENT, n, 2)};
      world_at(w, w->accidents[n].at_us, ACCIDENT, (int)n, 0, NULL);
    }
  }
}

static void accident(struct world *w, const struct accident *a) {
  const int server = (int)(a->draw % (uint32_t)w->server_count);
  if (a->kind == JOIN) server_joins(w);
  if (a->kind == TRAINER_KILL) trainer_dies(w, a->length_us);
  if (a->kind == JOIN || a->kind == TRAINER_KILL || !server_works(&w->servers[server])) return;
  if (a->kind == FREEZE) server_freezes(w, server, a->length_us);
  if (a->kind == PREEMPT) server_preempts(w, server, a->draw / 7);
  if (a->kind == FREEZE || a->kind == PREEMPT) return;
  server_ends(w, server, a->kind == DRAIN);
  world_at(w, w->now_us + a->length_us, SERVER_JOINS, 0, 0, NULL); /* somebody starts another */
}

/* ---- the loop ---- */

static void looks(struct world *w) {
  struct err err;
  world_call(w, NULL, NULL, NULL, NULL, &err);
  world_at(w, w->now_us + 1000 * (w->c.look_ms ? w->c.look_ms : CORE_LOOK_MS), LOOK, 0, 0, NULL);
}

static void handle(struct world *w, const struct world_event *e) {
  switch (e->kind) {
    case REGISTER_ARRIVES:
    case REGISTERED:
    case POLL_ARRIVES:
    case POLL_BROKEN:
    case LEASES_ARRIVE:
    case SERVER_LOADED:
    case PUSH_ARRIVES:
    case SAMPLE_ENDS:
    case RESULT_ARRIVES:
    case RESULT_ANSWERED:
    case HEARTBEAT_LEAVES:
    case HEARTBEAT_ARRIVES:
    case HEARTBEAT_ANSWERED:
    case LEAVE_ARRIVES:
    case SERVER_THAWS: server_event(w, e); break;
    case TRAINER_BEATS:
    case TRAINER_BACK:
    case JOB_ARRIVES:
    case JOB_ENDS:
    case JOB_KNOWN:
    case VERSION_DURABLE:
    case VERSION_ARRIVES:
    case STEP_KNOWN: trainer_event(w, e); break;
    case RUN_BEGINS: trainer_registers(w); break;
    case SERVER_JOINS: server_joins(w); break;
    case LOOK: looks(w); break;
    case ACCIDENT: accident(w, &w->accidents[e->who]); break;
  }
  polls_settle(w); /* once what the event did to the books is in them */
  driver_acts(w);
}

void round_opens(struct world *w, int64_t round) {
  w->round = round;
  w->now = &w->r->rounds[round];
  w->now->opened_us = w->now_us;
  w->r->round_count = (int)round + 1;
  for (int i = 0; i < w->server_count; i++) {
    server_pass(w, i);
    w->servers[i].idle_us = w->servers[i].slot_us = 0;
  }
  w->generating = true;
  checks_round(w);
}

static bool begins(struct world *w) {
  const struct world_config *c = &w->c;
  if (c->rounds > WORLD_ROUNDS || c->samples > WORLD_SAMPLES || c->servers < 1 || c->groups < 1) {
    world_fault(w, "the configuration is none of a world");
    return false;
  }
  w->now_us = 1000000;
  w->round = -1;
  w->driver.step_round = -1;
  w->driver.wanted = 1;
  w->trainer.durable_version = 0;
  digest_of(&w->trainer.durable, &c->seed, sizeof c->seed);
  w->trainer.last = &w->trainer.first;
  w->answered_last = &w->answered;
  if (!world_core_open(w)) return false;
  for (int i = 0; i < c->servers; i++) server_joins(w);
  world_at(w, w->now_us + 8 * c->message_us + 1000, RUN_BEGINS, 0, 0, NULL); /* once all have registered */
  world_at(w, w->now_us, LOOK, 0, 0, NULL);
  accidents_plan(w);
  return true;
}

/* What is kept from run to run. */
static void forget(struct world *w) {
  checks_forget(w);
  const struct world before = *w;
  memset(w, 0, sizeof *w);
  w->files = before.files;
  memcpy(w->dir, before.dir, sizeof w->dir);
  w->ledgers = before.ledgers;
  w->events = before.events;
  w->event_room = before.event_room;
  w->parked = before.parked;
  w->parked_room = before.parked_room;
  w->servers = before.servers;
  w->server_room = before.server_room;
  w->server_of = before.server_of;
  w->server_of_room = before.server_of_room;
  w->trainer.held = before.trainer.held;
  w->trainer.held_room = before.trainer.held_room;
  for (int i = 0; i < w->server_of_room; i++) w->server_of[i] = -1;
}

static void ends(struct world *w) {
  if (w->core) servers_drop_all(w); /* before the messages that they wait for */
  for (int i = 0; i < w->event_count; i++) {
    server_message_free(&w->events[i]);
    trainer_message_free(&w->events[i]);
  }
  w->event_count = 0;
  trainer_forgets(w);
  if (w->core) world_core_close(w);
}

/* Training groups of a round, refills of filtered ones included: membership is a function of the dataset's order. */
static int members(const struct world_config *c, int64_t round) {
  int groups = c->groups, trained = 0;
  for (int g = 0; g < groups; g++) {
    const bool filtered = world_filtered(c, round, g);
    trained += !filtered;
    groups += filtered && groups < c->groups + c->refill_max;
  }
  return trained;
}

static void result_fill(struct world *w) {
  struct world_result *r = w->r;
  const struct world_round *last = &r->rounds[r->round_count - 1];
  r->first_us = last->first_us;
  r->generated_us = last->generated_us;
  r->first_train_us = last->first_train_us;
  r->end_us = last->end_us;
  r->train_us = last->train_us;
  r->idle = last->idle;
  memcpy(&r->trained, w->trainer.durable.bytes, sizeof r->trained);
  r->trained_groups = (int)WORLD_NUMBER(w, "SELECT count(*) FROM groups WHERE run = ?1 AND state = 3", b_int(1));
  int expected = w->c.inflight ? r->round_count * w->c.groups : 0;
  for (int round = 0; round < r->round_count && !w->c.inflight; round++) expected += members(&w->c, round);
  if (r->trained_groups != expected)
    world_fault(w, "I5: %d groups were trained, %d are members", r->trained_groups, expected);
  if (w->c.inflight) stream_end(w);
}

/* Has anything been written since the last check? */
static bool has_changed(struct world *w) {
  const int64_t changes = world_number(w, "SELECT total_changes()", NO_BINDS);
  const bool changed = changes != w->changes;
  w->changes = changes;
  return changed;
}

void world_run(struct world *w, const struct world_config *config, struct world_result *result) {
  forget(w);
  memset(result, 0, sizeof *result);
  w->c = *config;
  w->r = result;
  bool goes = begins(w);
  const int64_t most = EVENTS_OF_RUN + (int64_t)EVENTS_OF_SAMPLE * (config->inflight ? 8 : 1) *
                                           world_places(w) * config->samples * (config->rounds + 1);
  while (goes && !w->over && !result->fault[0]) {
    if (w->event_count == 0 || result->events == most) {
      world_fault(w, "round %lld does not end", (long long)w->round);
      break;
    }
    const struct world_event e = next_event(w);
    w->now_us = e.at_us;
    result->events++;
    handle(w, &e);
    const bool due = ++w->since_check >= config->check_every && has_changed(w);
    if (w->round >= 0 && w->generating && (due || world_places(w) <= WORLD_GROUPS)) checks_conserving(w);
    if (due) checks_database(w);
  }
  if (goes && !result->fault[0]) checks_database(w);
  if (goes && !result->fault[0]) result_fill(w);
  ends(w);
}
