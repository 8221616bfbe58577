/* The generation-servers of a world.  Processor sharing: a server's `clock` counts the tokens of a sample that ran
 * since the beginning, so a sample of n tokens that starts at clock t ends at clock t + n, whatever the batch does
 * meanwhile.  What they ask for and when is generation-server/worker/leases.c's; what they say of decode steps is
 * step_table.c's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/api/route_leases.h"
#include "services/coordinator/api/route_workers.h"
#include "services/coordinator/store/ids.h"
#include "tests/sim/world_state.h"

enum { BROKEN_US = 500000 };

/* ---- time passes ---- */

static double step_us(const struct world *w, const struct server *s) {
  return s->slow * world_step_us(&w->c, s->running_count);
}

static void note_steps(const struct world *w, struct server *s, double us) {
  const double steps = us / step_us(w, s) / world_grain(&w->c);
  int slot = 0;
  while (slot + 1 < WIRE_STEP_SLOTS && (1 << slot) < s->running_count) slot++;
  s->step_count[slot] += steps;
  s->step_rows[slot] += steps * s->running_count;
  s->step_us[slot] += us;
}

void server_pass(struct world *w, int server) {
  struct server *s = &w->servers[server];
  const double us = (double)(w->now_us - s->at_us);
  s->at_us = w->now_us;
  if (!server_works(s)) return;
  const double stalled = us < s->stall_us ? us : s->stall_us;
  s->stall_us -= stalled;
  s->busy_us += us * s->running_count;
  if (s->running_count && us > stalled) {
    s->clock += (us - stalled) / step_us(w, s);
    note_steps(w, s, us - stalled);
  }
  if (!w->generating) return;
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
  world_at(w, w->now_us + (int64_t)ceil(left * step_us(w, s) + s->stall_us), SAMPLE_ENDS, server, s->ends_number, NULL);
}

/* ---- asking ---- */

static struct poll_message *poll_made(const struct server *s, int server, int wanted) {
  struct poll_message *m = calloc(1, sizeof *m);
  if (!m) abort();
  *m = (struct poll_message){.server = server,
                             .life = s->life,
                             .epoch = s->epoch,
                             .wanted = wanted,
                             .taken = s->taken,
                             .has_loaded = s->has_loaded,
                             .loaded = s->loaded,
                             .parked_at = -1};
  memcpy(m->worker, s->worker, sizeof m->worker);
  return m;
}

static void poll_free(struct poll_message *m) {
  buf_free(&m->body);
  arena_free(&m->arena);
  free(m);
}

/* samples_wanted: idle slots at once, the prefetched part by halves. */
static void ask(struct world *w, int server) {
  struct server *s = &w->servers[server];
  const int room = s->slots + s->prefetch - s->live, least = s->prefetch / 2 > 1 ? s->prefetch / 2 : 1;
  const int wanted = room >= least || (s->live < s->slots && room > 0) ? room : 0;
  const bool idle = s->loading && (!w->c.inflight || !s->has_loaded); /* in flight it goes on with what it has */
  if (!server_works(s) || !s->worker[0] || idle || s->poll != POLL_NONE || wanted == 0) return;
  const int64_t arrives_us = w->now_us + world_message_us(w, server);
  s->poll = POLL_SENT;
  s->poll_number++;
  const bool lost = world_loses(w, server), answer_lost = world_loses(w, server), twice = world_doubles(w, server);
  if (lost || answer_lost) world_at(w, arrives_us + BROKEN_US, POLL_BROKEN, server, s->poll_number, NULL);
  if (lost) return;
  struct poll_message *m = poll_made(s, server, wanted);
  m->dropped = answer_lost;
  if (!answer_lost) s->asking = m;
  world_at(w, arrives_us, POLL_ARRIVES, server, s->life, m);
  if (!twice) return;
  m = poll_made(s, server, wanted);
  m->dropped = true;
  world_at(w, arrives_us + world_message_us(w, server), POLL_ARRIVES, server, s->life, m);
}

static void unpark(struct world *w, struct poll_message *m) {
  if (m->parked_at < 0) return;
  struct poll_message *last = w->parked[--w->parked_count];
  w->parked[m->parked_at] = last;
  last->parked_at = m->parked_at;
  m->parked_at = -1;
}

/* Nobody waits for the answer any more, and the coordinator notices. */
static void hang_up(struct world *w, struct server *s) {
  struct poll_message *m = s->asking;
  s->asking = NULL;
  s->poll = POLL_NONE;
  if (!m) return;
  m->dropped = true;
  if (m->parked_at < 0) return; /* it is still on its way */
  unpark(w, m);
  core_hung_up(w->core, m->command);
  poll_free(m);
}

static void poll_answered(struct command *cmd, void *context) {
  struct poll_message *m = ((struct poll_message **)context)[0];
  struct world *w = ((struct world **)context)[1];
  m->rc = cmd->rc;
  buf_append(&m->body, cmd->body.data, cmd->body.len);
  m->command = NULL;
  m->next = NULL;
  *w->answered_last = m;
  w->answered_last = &m->next;
}

static void poll_arrives(struct world *w, struct poll_message *m) {
  struct command *cmd = command_new(poll_execute, sizeof(struct lease_request));
  void **context = cmd ? arena_alloc(&cmd->arena, 2, sizeof *context) : NULL;
  if (!context) abort();
  context[0] = m;
  context[1] = w;
  *(struct lease_request *)cmd->message = (struct lease_request){.epoch = m->epoch,
                                                                 .slots_free = m->wanted,
                                                                 .wait_ms = POLL_WAIT_MS,
                                                                 .has_loaded = m->has_loaded,
                                                                 .loaded_digest = m->loaded,
                                                                 .has_taken = true,
                                                                 .leases_taken = m->taken};
  cmd->id = arena_strdup(&cmd->arena, m->worker);
  if (world_lies(w)) {
    struct lease_request lie = *(struct lease_request *)cmd->message;
    struct err err;
    lie.epoch++;
    if (world_call(w, poll_execute, &lie, m->worker, NULL, &err) == RC_OK)
      world_fault(w, "I9: a poll is answered under another epoch");
  }
  m->command = cmd;
  checks_polled(w, m);
  core_post(w->core, cmd, poll_answered, context);
  if (m->command) {
    w->parked = world_room(w->parked, &w->parked_room, w->parked_count + 1, sizeof(struct poll_message *));
    m->parked_at = w->parked_count;
    w->parked[w->parked_count++] = m;
    if (m->dropped) { /* its sender is gone */
      unpark(w, m);
      core_hung_up(w->core, cmd);
      poll_free(m);
    }
  }
}

static void poll_decode(struct world *w, struct poll_message *m) {
  struct json *json = NULL;
  struct err err = {0};
  enum rc rc = json_parse(&json, m->body.data, m->body.len, 0, &err);
  if (rc == RC_OK) rc = lease_answer_decode(&m->answer, json, &m->arena, &err);
  if (rc != RC_OK) world_fault(w, "a poll's answer cannot be read: %.200s", err.message);
  json_free(json);
}

void polls_settle(struct world *w) {
  struct poll_message *m = w->answered;
  w->answered = NULL;
  w->answered_last = &w->answered;
  if (!m) return;
  for (struct poll_message *at = m; at; at = at->next) {
    unpark(w, at);
    if (at->rc == RC_OK) poll_decode(w, at);
  }
  checks_granted(w, m);
  while (m) {
    struct poll_message *next = m->next;
    if (m->dropped)
      poll_free(m);
    else
      world_at(w, w->now_us + world_message_us(w, m->server), LEASES_ARRIVE, m->server, m->life, m);
    m = next;
  }
}

/* ---- decoding ---- */

static struct item *items_room(struct item *items, int room) {
  items = realloc(items, (size_t)room * sizeof *items);
  if (!items) abort();
  return items;
}

static void fill(struct world *w, int server) {
  struct server *s = &w->servers[server];
  int taken = 0;
  for (; taken < s->queued_count && s->running_count < s->slots; taken++) {
    struct item item = s->queued[taken];
    struct held *l = item.lease;
    l->taken = true;
    if (w->c.inflight)
      drawn_by(w, &l->samples[item.sample].drawn, (int64_t)floor(l->samples[item.sample].had / world_grain(&w->c)),
               s->version, true);
    item.ends =
        s->clock + world_length(&w->c, l->round, l->ordinal, l->first + item.sample) - l->samples[item.sample].had;
    s->stall_us += w->c.prompt_us * s->slow;
    s->running[s->running_count++] = item;
  }
  s->queued_count -= taken;
  memmove(s->queued, s->queued + taken, (size_t)s->queued_count * sizeof s->queued[0]);
  expect_end(w, server);
  ask(w, server);
}

void server_fills(struct world *w, int server) { fill(w, server); }

void server_asks_now(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (s->poll == POLL_SENT && !s->asking) {
    s->poll = POLL_NONE;
    s->poll_number++;
  }
  ask(w, server);
}

static int drop_from(struct item *items, int count, const struct held *lease) {
  int kept = 0;
  for (int i = 0; i < count; i++) {
    if (items[i].lease != lease) items[kept++] = items[i];
  }
  return kept;
}

/* It is not decoded any more. */
static void stop(struct server *s, const struct held *lease) {
  s->running_count = drop_from(s->running, s->running_count, lease);
  s->queued_count = drop_from(s->queued, s->queued_count, lease);
  s->live = s->running_count + s->queued_count;
}

static void forget(struct server *s, struct held *lease) {
  stop(s, lease);
  for (struct held **at = &s->held; *at; at = &(*at)->next) {
    if (*at != lease) continue;
    *at = lease->next;
    s->held_count--;
    free(lease);
    return;
  }
}

static void forget_all(struct server *s) {
  while (s->held) forget(s, s->held);
}

static struct held *held_of(const struct server *s, uint32_t number) {
  for (struct held *l = s->held; l; l = l->next) {
    if (l->number == number) return l;
  }
  return NULL;
}

static void take_lease(struct world *w, struct server *s, const struct lease *l) {
  struct held *h = calloc(1, sizeof *h + (size_t)l->sample_count * sizeof h->samples[0]);
  if (!h) abort();
  *h = (struct held){.next = s->held,
                     .fence = l->fence,
                     .version = l->version_min,
                     .version_max = l->version_max,
                     .weights = l->weights_digest,
                     .round = (int32_t)l->round,
                     .ordinal = l->group_ordinal,
                     .first = l->sample_first,
                     .count = l->sample_count,
                     .left = l->sample_count,
                     .number = ++s->lease_number};
  snprintf(h->id, sizeof h->id, "%s", l->id);
  for (size_t i = 0; i < l->partial_count; i++) {
    const struct partial_sample *p = &l->partials[i];
    struct held_sample *sample = &h->samples[p->sample - h->first];
    sample->had = (double)p->token_ids.count * world_grain(&w->c);
    for (size_t k = 0; k < p->span_count; k++)
      drawn_by(w, &sample->drawn, p->spans[k].start, p->spans[k].version, p->spans[k].fresh);
    w->r->resumed += p->token_ids.count > 0;
  }
  s->held = h;
  s->held_count++;
  s->live += h->count;
  if (s->live > s->room) {
    s->room = 2 * s->live;
    s->running = items_room(s->running, s->room);
    s->queued = items_room(s->queued, s->room);
  }
  for (int i = 0; i < h->count; i++) s->queued[s->queued_count++] = (struct item){.lease = h, .sample = i};
}

/* ---- results ---- */

double server_tokens(const struct world *w, const struct server *s, const struct held *l, int i) {
  const double length = world_length(&w->c, l->round, l->ordinal, l->first + i);
  if (l->samples[i].finished) return length;
  for (int k = 0; k < s->running_count; k++) {
    const struct item *item = &s->running[k];
    if (item->lease == l && item->sample == i) return item->ends > s->clock ? length - (item->ends - s->clock) : length;
  }
  return l->samples[i].had;
}

static struct result_message *result_made(const struct world *w, const struct server *s, const struct held *l,
                                          bool handed_back) {
  struct result_message *m = calloc(1, sizeof *m + (size_t)l->count * sizeof m->samples[0]);
  if (!m) abort();
  *m = (struct result_message){.worker_id = s->worker_id,
                               .epoch = s->epoch,
                               .fence = l->fence,
                               .weights = w->c.inflight && l->taken ? s->loaded : l->weights,
                               .version = l->version,
                               .round = l->round,
                               .ordinal = l->ordinal,
                               .first = l->first,
                               .count = l->count,
                               .number = l->number,
                               .handed_back = handed_back};
  memcpy(m->worker, s->worker, sizeof m->worker);
  memcpy(m->id, l->id, sizeof m->id);
  for (int i = 0; i < l->count; i++)
    m->samples[i] = (struct told_sample){
        handed_back ? server_tokens(w, s, l, i) : world_length(&w->c, l->round, l->ordinal, l->first + i),
        l->samples[i].drawn};
  return m;
}

static struct result_message *result_copy(const struct result_message *m) {
  const size_t bytes = sizeof *m + (size_t)m->count * sizeof m->samples[0];
  struct result_message *copy = malloc(bytes);
  if (!copy) abort();
  memcpy(copy, m, bytes);
  return copy;
}

static void send(struct world *w, int server, struct result_message *m, bool surely) {
  struct server *s = &w->servers[server];
  const int64_t arrives_us = w->now_us + world_message_us(w, server) + w->c.verify_us;
  m->repeat = m->lost_answer = false;
  if (!surely && world_loses(w, server)) { /* its sender notices */
    m->repeat = true;
    world_at(w, arrives_us + AGAIN_US, RESULT_ANSWERED, server, s->life, m);
    return;
  }
  m->lost_answer = !surely && world_loses(w, server);
  world_at(w, arrives_us, RESULT_ARRIVES, server, s->life, m);
  if (surely || !world_doubles(w, server)) return;
  struct result_message *copy = result_copy(m);
  copy->number = 0; /* nobody waits for its answer */
  world_at(w, arrives_us + world_message_us(w, server), RESULT_ARRIVES, server, s->life, copy);
}

static void post(struct world *w, int server, struct held *l, bool handed_back, bool surely) {
  struct server *s = &w->servers[server];
  struct result_message *m = result_made(w, s, l, handed_back);
  l->posting = true;
  stop(s, l);
  send(w, server, m, surely);
}

void server_hands_back(struct world *w, int server, struct held *l) { post(w, server, l, true, false); }

static void result_answered(struct world *w, int server, struct result_message *m) {
  struct server *s = &w->servers[server];
  struct held *l = m->worker_id == s->worker_id ? held_of(s, m->number) : NULL;
  if (l && m->repeat) {
    send(w, server, m, false);
    return;
  }
  server_pass(w, server);
  if (l) forget(s, l);
  free(m);
  fill(w, server);
}

static void sample_ends(struct world *w, int server) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  for (int i = 0; i < s->running_count; i++) {
    if (s->running[i].ends > s->clock + 1e-6) continue;
    struct held *l = s->running[i].lease;
    l->samples[s->running[i].sample].finished = true;
    s->running[i--] = s->running[--s->running_count];
    s->live--;
    if (--l->left == 0) post(w, server, l, false, false);
  }
  fill(w, server);
}

/* ---- registration and heartbeats ---- */

static void registers(struct world *w, int server) {
  struct server *s = &w->servers[server];
  struct register_message *m = calloc(1, sizeof *m);
  if (!m) abort();
  server_pass(w, server);
  hang_up(w, s);
  forget_all(s);
  expect_end(w, server);
  s->worker[0] = 0;
  s->worker_id = 0;
  s->registering = true;
  const int64_t arrives_us = w->now_us + world_message_us(w, server);
  if (world_loses(w, server)) {
    m->dropped = true;
    world_at(w, arrives_us + AGAIN_US, REGISTERED, server, s->life, m);
    return;
  }
  world_at(w, arrives_us, REGISTER_ARRIVES, server, s->life, m);
  if (!world_doubles(w, server)) return;
  m = calloc(1, sizeof *m);
  if (!m) abort();
  m->dropped = true;
  world_at(w, arrives_us + world_message_us(w, server), REGISTER_ARRIVES, server, s->life, m);
}

static void note_worker(struct world *w, int64_t worker, int server) {
  const int before = w->server_of_room;
  w->server_of = world_room(w->server_of, &w->server_of_room, (int)worker + 1, sizeof(int));
  for (int i = before; i < w->server_of_room; i++) w->server_of[i] = -1;
  w->server_of[worker] = server;
}

static void register_arrives(struct world *w, int server, uint32_t life, struct register_message *m) {
  char name[24];
  struct buf answer = BUF_INIT;
  struct err err = {0};
  struct arena arena = ARENA_INIT;
  struct json *json = NULL;
  struct worker_registered is;
  snprintf(name, sizeof name, "g%d", server);
  struct worker_register r = {
      .name = name, .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = w->servers[server].slots};
  enum rc rc = world_call(w, register_execute, &r, NULL, &answer, &err);
  if (rc == RC_OK) rc = json_parse(&json, answer.data, answer.len, 0, &err);
  if (rc == RC_OK) rc = worker_registered_decode(&is, json, &arena, &err);
  if (rc == RC_OK) rc = id_parse_worker(&m->worker_id, is.worker_id, &err);
  if (rc != RC_OK) world_fault(w, "server %d cannot register: %.200s", server, err.message);
  if (rc == RC_OK) {
    snprintf(m->worker, sizeof m->worker, "%s", is.worker_id);
    m->epoch = is.epoch;
    note_worker(w, m->worker_id, server);
  }
  json_free(json);
  buf_free(&answer);
  arena_free(&arena);
  if (m->dropped || rc != RC_OK) {
    free(m);
    return;
  }
  m->dropped = world_loses(w, server);
  world_at(w, w->now_us + world_message_us(w, server) + (m->dropped ? AGAIN_US : 0), REGISTERED, server, life, m);
}

static void registered(struct world *w, int server, struct register_message *m) {
  struct server *s = &w->servers[server];
  if (m->dropped) {
    registers(w, server);
  } else {
    s->registering = false;
    memcpy(s->worker, m->worker, sizeof s->worker);
    s->worker_id = m->worker_id;
    s->epoch = m->epoch;
    s->taken = 0;
    s->busy_us = 0;
    for (int i = 0; i < WIRE_STEP_SLOTS; i++) s->step_count[i] = s->step_rows[i] = s->step_us[i] = 0;
    server_pass(w, server);
    fill(w, server);
  }
  free(m);
}

static void steps_fill(const struct server *s, struct beat_message *m) {
  for (int i = 0; i < WIRE_STEP_SLOTS; i++) {
    if (s->step_count[i] < 1) continue;
    m->steps[m->step_count++] =
        (struct step_sum){.slot = i,
                          .steps = (int64_t)s->step_count[i],
                          .rows = (int64_t)(floor(s->step_count[i]) * s->step_rows[i] / s->step_count[i]),
                          .us = (int64_t)(floor(s->step_count[i]) * s->step_us[i] / s->step_count[i])};
  }
}

static void heartbeat_leaves(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (!s->frozen && s->worker[0]) {
    struct beat_message *m = calloc(1, sizeof *m + (size_t)s->held_count * sizeof m->leases[0]);
    if (!m) abort();
    server_pass(w, server);
    m->epoch = s->epoch;
    m->has_loaded = s->has_loaded;
    m->loaded = s->loaded;
    m->slots_busy = s->running_count;
    m->busy_slot_us = (int64_t)s->busy_us;
    memcpy(m->worker, s->worker, sizeof m->worker);
    steps_fill(s, m);
    for (const struct held *l = s->held; l; l = l->next) {
      struct held_ref *ref = &m->leases[m->count++];
      memcpy(ref->id, l->id, sizeof ref->id);
      ref->fence = l->fence;
      ref->number = l->number;
      ref->ordinal = l->ordinal;
      ref->first = l->first;
      ref->count = l->count;
      ref->round = l->round;
    }
    if (world_loses(w, server))
      free(m);
    else
      world_at(w, w->now_us + world_message_us(w, server), HEARTBEAT_ARRIVES, server, s->life, m);
  }
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, HEARTBEAT_LEAVES, server, s->life, NULL);
}

/* The numbers of the leases that the answer calls lost; what is not is renewed. */
static void lost_note(struct beat_message *m, const struct worker_heartbeat_answer *a) {
  if (a->lost_count == 0) return;
  m->lost = calloc(a->lost_count, sizeof *m->lost);
  if (!m->lost) abort();
  for (size_t k = 0; k < a->lost_count; k++) {
    struct held_ref *oldest = NULL; /* two that it holds may differ in the fence only: then the older one is lost */
    for (int i = 0; i < m->count; i++) {
      struct held_ref *ref = &m->leases[i];
      if (ref->number && strcmp(a->lost[k], ref->id) == 0 && (!oldest || ref->fence < oldest->fence)) oldest = ref;
    }
    if (!oldest) continue;
    m->lost[m->lost_count++] = oldest->number;
    oldest->number = 0;
  }
}

static void heartbeat_arrives(struct world *w, int server, uint32_t life, struct beat_message *m) {
  struct arena arena = ARENA_INIT;
  struct buf body = BUF_INIT;
  struct json *json = NULL;
  struct err err = {0};
  struct worker_heartbeat_answer a;
  struct worker_heartbeat h = {.epoch = m->epoch,
                               .ready = true,
                               .has_loaded = m->has_loaded,
                               .loaded_digest = m->loaded,
                               .slots_busy = m->slots_busy,
                               .busy_slot_us = m->busy_slot_us,
                               .tokens_sampled = m->busy_slot_us, /* tokens come while slots are busy */
                               .lease_count = (size_t)m->count,
                               .steps = m->steps,
                               .step_count = m->step_count};
  h.leases = arena_alloc(&arena, h.lease_count + 1, sizeof *h.leases);
  if (!h.leases) abort();
  for (int i = 0; i < m->count; i++)
    h.leases[i] = (struct lease_ref){.id = m->leases[i].id, .fence = m->leases[i].fence};
  if (world_lies(w)) {
    h.epoch = m->epoch - 1;
    if (world_call(w, heartbeat_execute, &h, m->worker, NULL, &err) == RC_OK)
      world_fault(w, "I9: a heartbeat is answered under another epoch");
    h.epoch = m->epoch;
  }
  enum rc rc = world_call(w, heartbeat_execute, &h, m->worker, &body, &err);
  m->refused = rc == RC_NOT_FOUND;
  if (rc == RC_OK) rc = json_parse(&json, body.data, body.len, 0, &err);
  if (rc == RC_OK) rc = worker_heartbeat_answer_decode(&a, json, &arena, &err);
  if (rc == RC_OK) lost_note(m, &a);
  if (rc == RC_OK) checks_renewed(w, m);
  if (rc != RC_OK && !m->refused) world_fault(w, "a heartbeat of server %d: %.200s", server, err.message);
  json_free(json);
  buf_free(&body);
  arena_free(&arena);
  world_at(w, w->now_us + world_message_us(w, server), HEARTBEAT_ANSWERED, server, life, m);
}

static void beat_free(struct beat_message *m) {
  free(m->lost);
  free(m);
}

static void heartbeat_answered(struct world *w, int server, struct beat_message *m) {
  struct server *s = &w->servers[server];
  if (strcmp(m->worker, s->worker) == 0 && !world_loses(w, server)) {
    server_pass(w, server);
    for (int i = 0; i < m->lost_count; i++) {
      struct held *l = held_of(s, m->lost[i]);
      if (l) forget(s, l);
    }
    if (m->refused)
      registers(w, server);
    else
      fill(w, server);
  }
  beat_free(m);
}

/* ---- leases and versions ---- */

static void leases_arrive(struct world *w, int server, struct poll_message *m) {
  struct server *s = &w->servers[server];
  const bool mine = s->asking == m;
  server_pass(w, server);
  if (mine) {
    s->asking = NULL;
    s->poll = POLL_NONE;
  }
  if (mine && m->rc == RC_NOT_FOUND) {
    registers(w, server);
  } else if (mine && m->rc == RC_OK) {
    const struct current_version *v = &m->answer.current;
    s->taken += (int64_t)m->answer.lease_count;
    for (size_t i = 0; i < m->answer.lease_count; i++) {
      take_lease(w, s, &m->answer.leases[i]);
      if (w->c.inflight && s->held->version_max < s->version) server_hands_back(w, server, s->held);
    }
    if (w->c.inflight)
      server_is_told(w, server, v, m->answer.lease_count == 0);
    else if (v->has && !(s->has_loaded && digest_equal(&s->loaded, &v->digest))) {
      const bool staged = s->has_staged && digest_equal(&s->staged, &v->digest);
      s->loading = true;
      s->staged = v->digest;
      s->has_staged = true;
      world_at(w, w->now_us + (staged ? 0 : (int64_t)w->c.load_us), SERVER_LOADED, server, s->life, NULL);
    }
    fill(w, server);
  } else if (mine) {
    world_fault(w, "a poll of server %d is answered with code %d", server, (int)m->rc);
  }
  poll_free(m);
}

static void loaded(struct world *w, int server) {
  struct server *s = &w->servers[server];
  s->loading = false;
  if (w->c.inflight) {
    server_activates(w, server, s->coming, &s->staged);
    return;
  }
  s->has_loaded = true;
  s->loaded = s->staged;
  server_pass(w, server);
  fill(w, server);
}

/* ---- accidents ---- */

void server_joins(struct world *w) {
  w->servers = world_room(w->servers, &w->server_room, w->server_count + 1, sizeof(struct server));
  const int server = w->server_count++;
  struct server *s = &w->servers[server];
  const struct server before = *s;
  *s = (struct server){.alive = true,
                       .slots = w->c.slots,
                       .prefetch = w->c.prefetch,
                       .room = before.room,
                       .running = before.running,
                       .queued = before.queued,
                       .slow = 1,
                       .at_us = w->now_us};
  if (s->room < s->slots + s->prefetch) {
    s->room = s->slots + s->prefetch;
    s->running = items_room(s->running, s->room);
    s->queued = items_room(s->queued, s->room);
  }
  if (world_uniform(w->c.seed, STREAM_SERVER, (uint32_t)server, 0) < w->c.slow_share) s->slow = w->c.slow_factor;
  const double phase = world_uniform(w->c.seed, STREAM_SERVER, (uint32_t)server, 1);
  registers(w, server);
  world_at(w, w->now_us + (int64_t)(1000 * (double)w->c.heartbeat_ms * (0.5 + phase / 2)), HEARTBEAT_LEAVES, server, 0,
           NULL);
}

void servers_drop_all(struct world *w) {
  for (int i = 0; i < w->server_count; i++) {
    struct server *s = &w->servers[i];
    if (s->asking && s->asking->parked_at >= 0) hang_up(w, s);
    forget_all(s);
  }
  w->server_count = 0;
}

void server_freezes(struct world *w, int server, int64_t length_us) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  s->frozen = true;
  s->ends_number++;
  s->thaws_us = w->now_us + length_us;
  world_at(w, s->thaws_us, SERVER_THAWS, server, s->life, NULL);
}

/* A zombie posts before it learns that it is one: the fences are for this. */
static void thaws(struct world *w, int server) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  s->frozen = false;
  for (struct held *l = s->held;
       l && WORLD_NUMBER(w, "SELECT live FROM workers WHERE id = ?1", b_int(s->worker_id)) == 0; l = l->next) {
    if (!l->posting) post(w, server, l, false, false);
  }
  fill(w, server);
}

static struct held *any_lease(const struct server *s, uint32_t draw) {
  int n = 0;
  for (const struct held *l = s->held; l; l = l->next) n += !l->posting;
  if (n == 0) return NULL;
  n = (int)(draw % (uint32_t)n);
  for (struct held *l = s->held; l; l = l->next) {
    if (!l->posting && n-- == 0) return l;
  }
  return NULL;
}

/* Its memory is short: it hands a lease back as far as it has come. */
void server_preempts(struct world *w, int server, uint32_t draw) {
  struct server *s = &w->servers[server];
  struct held *l = any_lease(s, draw);
  if (!l) return;
  server_pass(w, server);
  post(w, server, l, true, false);
  fill(w, server);
}

void server_ends(struct world *w, int server, bool in_good_order) {
  struct server *s = &w->servers[server];
  server_pass(w, server);
  for (struct held *l = s->held; l && in_good_order; l = l->next) {
    if (!l->posting) post(w, server, l, true, true);
  }
  if (in_good_order && s->worker[0]) {
    char *worker = malloc(sizeof s->worker);
    if (!worker) abort();
    memcpy(worker, s->worker, sizeof s->worker);
    world_at(w, w->now_us + 2 * w->c.message_us + w->c.verify_us, LEAVE_ARRIVES, server, s->life, worker);
  }
  hang_up(w, s);
  forget_all(s);
  s->alive = false;
  s->life++;
}

static void leave_arrives(struct world *w, char *worker) {
  struct err err = {0};
  const enum rc rc = world_call(w, leave_execute, NULL, worker, NULL, &err);
  if (rc != RC_OK && rc != RC_NOT_FOUND) world_fault(w, "%s cannot leave: %.200s", worker, err.message);
  free(worker);
}

/* ---- events ---- */

void server_message_free(const struct world_event *e) {
  switch (e->kind) {
    case POLL_ARRIVES:
    case LEASES_ARRIVE: poll_free(e->what); break;
    case HEARTBEAT_ARRIVES:
    case HEARTBEAT_ANSWERED: beat_free(e->what); break;
    case REGISTER_ARRIVES:
    case REGISTERED:
    case RESULT_ARRIVES:
    case RESULT_ANSWERED:
    case PUSH_ARRIVES:
    case LEAVE_ARRIVES: free(e->what); break;
    default: break;
  }
}

/* To the coordinator, whatever has become of the sender. */
static bool arrives(struct world *w, const struct world_event *e) {
  switch (e->kind) {
    case REGISTER_ARRIVES: register_arrives(w, e->who, e->life, e->what); return true;
    case POLL_ARRIVES: poll_arrives(w, e->what); return true;
    case RESULT_ARRIVES: result_arrives(w, e->who, e->life, e->what); return true;
    case HEARTBEAT_ARRIVES: heartbeat_arrives(w, e->who, e->life, e->what); return true;
    case LEAVE_ARRIVES: leave_arrives(w, e->what); return true;
    default: return false;
  }
}

void server_event(struct world *w, const struct world_event *e) {
  if (arrives(w, e)) return;
  struct server *s = &w->servers[e->who];
  const uint32_t life = e->kind == SAMPLE_ENDS ? s->ends_number : e->kind == POLL_BROKEN ? s->poll_number : s->life;
  if (!s->alive || e->life != life) {
    server_message_free(e);
    return;
  }
  if (s->frozen && e->kind != HEARTBEAT_LEAVES && e->kind != SERVER_THAWS) { /* lies in its socket until it thaws */
    world_at(w, s->thaws_us + 1, e->kind, e->who, e->life, e->what);
    return;
  }
  switch (e->kind) {
    case REGISTERED: registered(w, e->who, e->what); break;
    case POLL_BROKEN:
      s->poll = POLL_NONE;
      ask(w, e->who);
      break;
    case LEASES_ARRIVE: leases_arrive(w, e->who, e->what); break;
    case SERVER_LOADED: loaded(w, e->who); break;
    case PUSH_ARRIVES:
      server_activates(w, e->who, ((const struct pushed *)e->what)->version, &((const struct pushed *)e->what)->digest);
      free(e->what);
      break;
    case SAMPLE_ENDS: sample_ends(w, e->who); break;
    case RESULT_ANSWERED: result_answered(w, e->who, e->what); break;
    case HEARTBEAT_LEAVES: heartbeat_leaves(w, e->who); break;
    case HEARTBEAT_ANSWERED: heartbeat_answered(w, e->who, e->what); break;
    case SERVER_THAWS: thaws(w, e->who); break;
    default: break;
  }
}
