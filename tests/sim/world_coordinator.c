/* The coordinator of a world.  It does with arrays what leases.c, route_results.c, workers.c, group_seal.c and the
 * driver do with the database; the decisions are the real ones. */
#include <math.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/decide/batching.h"
#include "services/coordinator/decide/dispatch.h"
#include "services/coordinator/decide/expiry.h"
#include "tests/sim/world_state.h"

enum { AHEAD = 4, POLL_WAIT_MS = 15000, EVALUATION_FIRST = 2 * LIMIT_GROUPS_PER_ROUND, OTHER_ROUND = 1000 };

/* ---- who is served ---- */

/* The first open training group behind the frontier: SELECT ordinal ... ORDER BY ordinal LIMIT 1 OFFSET size. */
static int32_t frontier_end(const struct world *w, int size) {
  for (int g = 0; g < w->training_count; g++) {
    if (w->groups[g].state == OPEN && size-- == 0) return w->groups[g].facts.ordinal;
  }
  return INT32_MAX;
}

/* off asks for those that wait longest, the others for the lowest. */
static bool asked_before(const struct world *w, const struct waiting_group *a, const struct waiting_group *b) {
  if (a->evaluation != b->evaluation) return b->evaluation;
  if (w->c.kind == FRONTIER_OFF && a->waiting_since_ms != b->waiting_since_ms)
    return a->waiting_since_ms < b->waiting_since_ms;
  return a->ordinal < b->ordinal;
}

static int candidates(const struct world *w, struct waiting_group *out, int *index) {
  const int most = FRONTIER_CANDIDATES_MAX;
  int n = 0;
  for (int g = 0; g < w->group_count; g++) {
    const struct waiting_group *facts = &w->groups[g].facts;
    if (w->groups[g].state != OPEN || facts->waiting == 0) continue;
    if (n == most && !asked_before(w, facts, &out[n - 1])) continue;
    int i = n < most ? n++ : n - 1;
    for (; i > 0 && asked_before(w, facts, &out[i - 1]); i--) {
      out[i] = out[i - 1];
      index[i] = index[i - 1];
    }
    out[i] = *facts;
    index[i] = g;
  }
  return n;
}

static int frontier_now(const struct world *w) {
  if (w->c.frontier_groups) return w->c.frontier_groups;
  return frontier_size(rate_value(&w->drain), rate_value(&w->latency), w->c.groups);
}

/* Training groups that were begun once. */
static int32_t begun_now(const struct world *w) {
  int32_t begun = 0;
  for (int g = 0; g < w->training_count; g++) begun += w->groups[g].facts.begun;
  return begun;
}

static int order_now(const struct world *w, const struct waiting_group *groups, int n, int32_t *order) {
  const struct frontier_policy p = {.kind = w->c.kind,
                                    .end = w->plan.ordered ? INT32_MAX : frontier_end(w, frontier_now(w)),
                                    .planned = w->plan.ordered,
                                    .aging_ms = w->c.aging_ms,
                                    .now_ms = world_now_ms(w),
                                    .tokens_prior = (int64_t)rate_value(&w->tokens)};
  const int count = frontier_order(groups, n, &p, order);
  return admission_admit(groups, order, count, begun_now(w), admission_groups(&w->plan, w->now_us));
}

int world_coordinator_grantable(const struct world *w) {
  int open = 0, training = 0, evaluation = 0;
  bool shut = false;
  int32_t left = admission_groups(&w->plan, w->now_us) - begun_now(w);
  for (int g = 0; g < w->group_count; g++) {
    const struct group *group = &w->groups[g];
    if (group->state != OPEN) continue;
    if (group->facts.evaluation)
      evaluation += group->facts.waiting;
    else if ((w->c.kind != FRONTIER_GATE || open++ < frontier_now(w)) && (group->facts.begun || left-- > 0))
      training += group->facts.waiting;
    else if (group->facts.waiting)
      shut = true; /* something waits behind the gate, or is not admitted */
  }
  return training + (shut ? 0 : evaluation);
}

/* ---- granting ---- */

static void grant(struct world *w, int server, int group, const struct planned_lease *p) {
  struct group *g = &w->groups[group];
  if (w->lease_count == LEASES_MAX) {
    world_fault(w, "more than %d leases", LEASES_MAX);
    return;
  }
  const int lease = w->lease_count++;
  w->leases[lease] = (struct sim_lease){.granted = true,
                                        .group = group,
                                        .first = p->first,
                                        .count = p->count,
                                        .server = server,
                                        .life = w->servers[server].life,
                                        .fence = p->fence,
                                        .deadline_ms = expiry_lease_deadline(world_now_ms(w), w->c.lease_ttl_ms),
                                        .left = -1};
  for (int i = p->first; i < p->first + p->count; i++) {
    struct sample *s = &g->samples[i];
    if (s->state != WAITING) world_fault(w, "sample %d.%d is granted while it does not wait", group, i);
    if (s->lease >= 0 && w->leases[s->lease].granted) world_fault(w, "sample %d.%d is granted twice at once", group, i);
    if (p->fence <= s->fence) world_fault(w, "sample %d.%d is granted without a higher fence", group, i);
    w->r->regranted += s->fence > 0;
    s->state = LEASED;
    s->lease = lease;
    s->fence = p->fence;
  }
  g->facts.waiting -= p->count;
  g->facts.leased += p->count;
  if (g->facts.waiting == 0) g->facts.overtaken_since_ms = 0;
  if (g->leased_us < 0) g->leased_us = w->now_us;
  g->facts.begun = true;
  w->servers[server].held += p->count;
  w->r->granted += p->count;
}

/* Where the order puts a training group. */
static int rank_of(const struct world *w, int g) { return w->place[g] ? w->place[g] - 1 : g; }

/* May group o be served while training group g waits?  With books of its own on who was overtaken when. */
static void check_pair(struct world *w, int g, int o, const bool *in_frontier) {
  const struct group *group = &w->groups[g], *other = &w->groups[o];
  const int64_t slack_us = 1000, aged_us = w->now_us - 1000 * w->c.aging_ms - slack_us;
  const bool full = begun_now(w) >= admission_groups(&w->plan, w->now_us);
  const bool shut_out = (w->c.kind == FRONTIER_GATE && !in_frontier[g]) || (full && !group->facts.begun);
  const bool aged = group->overtaken_us >= 0 && group->overtaken_us < aged_us && !shut_out;
  const bool other_aged = other->overtaken_us >= 0 && other->overtaken_us <= aged_us + 2 * slack_us;
  if (other->facts.evaluation) world_fault(w, "evaluation is served while training group %d waits", g);
  if (aged && (other->overtaken_us < 0 || other->overtaken_us > group->overtaken_us + slack_us))
    world_fault(w, "group %d was overtaken %.1f s ago, and now group %d is served before it", g,
                (double)(w->now_us - group->overtaken_us) / 1e6, o);
  const bool behind = w->plan.ordered ? rank_of(w, g) < rank_of(w, o) : in_frontier[g] && !in_frontier[o];
  if (w->c.kind != FRONTIER_OFF && behind && !other_aged && !shut_out)
    world_fault(w, "group %d waits at the frontier, and group %d behind it is served", g, o);
}

/* Was anybody passed over who should not have been? */
static void check_order(struct world *w, const int32_t *granted_of) {
  const int size = frontier_now(w);
  bool in_frontier[WORLD_GROUPS];
  int highest = -1, open = 0;
  for (int g = 0; g < w->group_count; g++) {
    in_frontier[g] = w->groups[g].state == OPEN && !w->groups[g].facts.evaluation && open++ < size;
    if (granted_of[g] && !w->groups[g].facts.evaluation && rank_of(w, g) > highest) highest = rank_of(w, g);
    if (granted_of[g] && !in_frontier[g] && !w->groups[g].facts.evaluation && w->c.kind == FRONTIER_GATE)
      world_fault(w, "group %d is behind the gate and is served", g);
  }
  for (int g = 0; g < w->training_count; g++) {
    const struct group *group = &w->groups[g];
    w->r->aged += granted_of[g] && group->overtaken_us >= 0 && w->now_us - group->overtaken_us > 1000 * w->c.aging_ms;
    for (int o = 0; o < w->group_count && group->facts.waiting; o++) {
      if (granted_of[o] && o != g) check_pair(w, g, o, in_frontier);
    }
  }
  for (int g = 0; g < w->training_count && w->c.kind != FRONTIER_OFF; g++) {
    struct group *group = &w->groups[g];
    if (group->facts.waiting == 0) group->overtaken_us = -1;
    if (group->facts.waiting == 0 || rank_of(w, g) >= highest || group->overtaken_us >= 0) continue;
    group->overtaken_us = w->now_us;
    w->r->overtaken++;
  }
}

/* leases_grant */
static bool serve(struct world *w, int server) {
  struct server *s = &w->servers[server];
  struct waiting_group groups[FRONTIER_CANDIDATES_MAX];
  int index[FRONTIER_CANDIDATES_MAX], known = 0, waiting_count = 0, total = 0;
  int32_t order[FRONTIER_CANDIDATES_MAX], overtaken[FRONTIER_CANDIDATES_MAX];
  int32_t granted[FRONTIER_CANDIDATES_MAX] = {0}, granted_of[WORLD_GROUPS] = {0};
  struct waiting_sample waiting[ITEMS_MAX];
  struct planned_lease plan[LIMIT_LEASES_PER_REQUEST];
  const int n = candidates(w, groups, index), may = order_now(w, groups, n, order);
  int held = 0;
  for (int i = 0; i < w->server_count; i++) {
    known += w->servers[i].known;
    held += w->servers[i].held;
  }
  for (int i = 0; i < may; i++) total += groups[order[i]].waiting;
  if (total == 0) return false;
  const int take = dispatch_share(total, known, s->wanted, s->held, held);
  for (int i = 0; i < may; i++) {
    const struct group *g = &w->groups[index[order[i]]];
    for (int k = 0; k < g->size && waiting_count < take; k++) {
      if (g->samples[k].state == WAITING)
        waiting[waiting_count++] =
            (struct waiting_sample){.group = order[i], .sample = k, .fence = g->samples[k].fence};
    }
  }
  const int leases =
      dispatch_plan(waiting, waiting_count, take, w->c.lease_samples_max, plan, LIMIT_LEASES_PER_REQUEST);
  for (int i = 0; i < leases; i++) {
    granted[plan[i].group] += plan[i].count;
    granted_of[index[plan[i].group]] += plan[i].count;
    grant(w, server, index[plan[i].group], &plan[i]);
  }
  if (leases == 0) world_fault(w, "server %d is given nothing while %d samples wait", server, total);
  const int marked = w->c.kind == FRONTIER_OFF ? 0 : frontier_overtaken(groups, n, granted, overtaken);
  for (int i = 0; i < marked; i++)
    w->groups[index[overtaken[i]]].facts.overtaken_since_ms = world_now_ms(w) ? world_now_ms(w) : 1;
  check_order(w, granted_of);
  s->poll = POLL_ANSWERED;
  world_at(w, w->now_us + world_message_us(w, server), LEASES_ARRIVE, server, s->life, 0);
  return true;
}

void world_coordinator_admission(struct world *w) {
  w->admission_us = 0;
  w->dispatch_due = true;
}

void world_coordinator_dispatch(struct world *w) {
  w->dispatch_due = false;
  const int64_t next_us = admission_next_us(&w->plan, w->now_us);
  if (next_us != INT64_MAX && w->admission_us == 0 && begun_now(w) < w->training_count) {
    w->admission_us = next_us;
    world_at(w, next_us, ADMISSION, 0, 0, 0);
  }
  for (int i = 0; i < w->server_count; i++) {
    if (w->servers[i].poll == POLL_PARKED && w->servers[i].known) serve(w, i);
  }
}

/* ---- workers ---- */

/* 404: it registers again, and what it held is gone. */
static void registers(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (!s->alive) return;
  server_pass(w, server);
  server_drop(w, server, -1);
  s->known = true;
  s->poll = POLL_NONE;
  s->seen_ms = world_now_ms(w);
  s->life++;
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, HEARTBEAT_LEAVES, server, s->life, 0);
  server_fill(w, server);
}

void world_coordinator_poll(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (!s->known) {
    registers(w, server);
    return;
  }
  s->seen_ms = world_now_ms(w);
  if (serve(w, server)) return;
  s->poll = POLL_PARKED;
  world_at(w, w->now_us + 1000 * POLL_WAIT_MS, POLL_DUE, server, s->life, (int)++s->poll_number);
}

void world_coordinator_poll_due(struct world *w, int server, int number) {
  struct server *s = &w->servers[server];
  if (s->poll != POLL_PARKED || s->poll_number != (uint32_t)number) return;
  s->poll = POLL_ANSWERED;
  world_at(w, w->now_us + world_message_us(w, server), LEASES_ARRIVE, server, s->life, 0);
}

void world_coordinator_heartbeat(struct world *w, int server) {
  struct server *s = &w->servers[server];
  if (!s->known) {
    registers(w, server);
    return;
  }
  s->seen_ms = world_now_ms(w);
  for (int l = 0; l < w->lease_count; l++) {
    struct sim_lease *lease = &w->leases[l];
    if (lease->server == server && lease->life == s->life && lease->granted && lease->left >= 0)
      lease->deadline_ms = expiry_lease_deadline(world_now_ms(w), w->c.lease_ttl_ms);
  }
  world_at(w, w->now_us + world_message_us(w, server), HEARTBEAT_ANSWERED, server, s->life, 0);
}

/* ---- ends of leases ---- */

static void end_lease(struct world *w, struct sim_lease *lease) {
  lease->granted = false;
  w->servers[lease->server].held -= lease->count;
}

/* lease_end: what is not done waits again. */
static void give_up(struct world *w, struct sim_lease *lease) {
  struct group *g = &w->groups[lease->group];
  end_lease(w, lease);
  for (int i = lease->first; i < lease->first + lease->count; i++) {
    struct sample *s = &g->samples[i];
    if (s->state != LEASED || s->fence > lease->fence) continue;
    s->state = WAITING;
    if (g->facts.waiting++ == 0) g->facts.waiting_since_ms = world_now_ms(w);
    g->facts.leased--;
  }
  w->dispatch_due = true;
}

static void accept(struct world *w, int group, int sample) {
  struct group *g = &w->groups[group];
  struct sample *s = &g->samples[sample];
  if (s->state != LEASED) world_fault(w, "sample %d.%d is accepted while it is not leased", group, sample);
  s->state = DONE;
  g->facts.leased--;
  g->facts.done++;
  g->facts.done_tokens += (int64_t)s->tokens;
  g->tokens += s->tokens;
  rate_note(&w->tokens, s->tokens, 1, world_now_ms(w));
  if (g->facts.done == g->size) world_at(w, w->now_us + w->c.verify_us, GROUP_VERIFIED, group, 0, 0);
}

void world_coordinator_result(struct world *w, int at) {
  struct sim_lease *lease = &w->leases[at];
  if (!lease->granted) {
    w->r->refused++;
    return;
  }
  end_lease(w, lease);
  for (int i = lease->first; i < lease->first + lease->count; i++) {
    if (w->groups[lease->group].samples[i].fence != lease->fence)
      world_fault(w, "a live lease of sample %d.%d is not its newest", lease->group, i);
    accept(w, lease->group, i);
  }
}

/* A server that ends in good order hands back: what is done is accepted, the rest is continued elsewhere. */
void world_coordinator_drained(struct world *w, int server) {
  struct server *s = &w->servers[server];
  for (int l = 0; l < w->lease_count; l++) {
    struct sim_lease *lease = &w->leases[l];
    if (lease->server != server || lease->life != s->life || !lease->granted || lease->left == 0) continue;
    for (int i = 0; i < lease->count; i++) {
      if (lease->finished[i]) accept(w, lease->group, lease->first + i);
    }
    give_up(w, lease);
  }
  s->known = false;
}

/* core.c: workers and leases whose time is over. */
void world_coordinator_look(struct world *w) {
  int64_t earliest_ms = INT64_MAX;
  for (int i = 0; i < w->server_count; i++) {
    struct server *s = &w->servers[i];
    if (!s->known || !expiry_worker_lost(s->seen_ms, w->c.worker_ttl_ms, world_now_ms(w))) continue;
    s->known = false;
    for (int l = 0; l < w->lease_count; l++) {
      if (w->leases[l].server == i && w->leases[l].granted) give_up(w, &w->leases[l]);
    }
  }
  for (int l = 0; l < w->lease_count; l++) {
    struct sim_lease *lease = &w->leases[l];
    if (lease->granted && expiry_passed(lease->deadline_ms, world_now_ms(w))) give_up(w, lease);
    if (lease->granted && lease->deadline_ms < earliest_ms) earliest_ms = lease->deadline_ms;
  }
  const int64_t nap_ms = expiry_sleep(earliest_ms, world_now_ms(w), w->c.heartbeat_ms / 2);
  world_at(w, w->now_us + 1000 * (nap_ms > 0 ? nap_ms : 1), LOOK, 0, 0, 0);
}

/* ---- groups and batches ---- */

/* A sample's length: Box and Muller, the prompt's part and the sample's own.  With half of the prompts long, if so. */
static double length_of(const struct world_config *c, uint64_t prompt_seed, uint64_t seed, uint32_t ordinal,
                        int sample) {
  if (c->length) return c->length(c->length_context, 0, (int)ordinal, sample);
  double z[2];
  for (int part = 0; part < 2; part++) {
    const enum stream stream = part ? STREAM_SAMPLE : STREAM_PROMPT;
    const uint32_t at = part ? 2 * (uint32_t)sample : 0;
    const uint64_t of = part ? seed : prompt_seed;
    z[part] = sqrt(-2 * log(world_uniform(of, stream, ordinal, at))) *
              cos(6.283185307179586 * world_uniform(of, stream, ordinal, at + 1));
  }
  const double sp = c->sigma_prompt, ss = c->sigma_sample, longer = c->long_factor > 0 ? c->long_factor : 1;
  const bool is_long = world_uniform(prompt_seed, STREAM_PROMPT, ordinal, 9) < c->long_share;
  const double mean = c->tokens_mean / (1 + c->long_share * (longer - 1)) * (is_long ? longer : 1);
  const double tokens = floor(mean * exp(sp * z[0] + ss * z[1] - (sp * sp + ss * ss) / 2)) + 1;
  return tokens < c->tokens_max ? tokens : c->tokens_max;
}

void world_lengths(const struct world_config *c, enum world_samples whose, float *out) {
  const uint64_t prompts = c->seed + (whose == OTHER_PROMPTS ? OTHER_ROUND : 0);
  const uint64_t samples = c->seed + (whose == THESE_SAMPLES ? 0 : OTHER_ROUND);
  for (int g = 0; g < c->groups; g++) {
    for (int s = 0; s < c->samples; s++)
      out[g * c->samples + s] = (float)length_of(c, prompts, samples, (uint32_t)g, s);
  }
}

static float mean_of(const float *values, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += values[i];
  return sum / (float)n;
}

/* The round before this one has shown what a step costs, for every number of rows. */
void world_step_costs(const struct world_config *c, struct step_costs *costs) {
  *costs = (struct step_costs){0};
  for (int slot = 0; slot < STEP_COST_SLOTS; slot++) {
    const int rows = 1 << slot;
    step_costs_note(costs, slot, 100, 100 * rows, (int64_t)(100 * (c->step_base_us + c->step_row_us * rows)), 0);
  }
}

static void plan_round(struct world *w) {
  static float tokens[WORLD_GROUPS * WORLD_SAMPLES], means[WORLD_GROUPS], most[WORLD_GROUPS];
  const enum world_knowledge knows = w->c.knowledge;
  struct step_costs costs;
  world_step_costs(&w->c, &costs);
  world_lengths(&w->c,
                knows == KNOWS_SAMPLES   ? THESE_SAMPLES
                : knows == KNOWS_PROMPTS ? OTHER_SAMPLES
                                         : OTHER_PROMPTS,
                tokens);
  for (int g = 0; g < w->c.groups; g++) {
    float *group = &tokens[g * w->c.samples];
    most[g] = (float)w->c.tokens_max;
    means[g] = mean_of(group, w->c.samples);
    for (int s = 0; s < w->c.samples && knows == KNOWS_PROMPTS; s++) group[s] /= means[g];
  }
  const struct admission_facts f = {.costs = &costs,
                                    .servers = w->c.servers,
                                    .slots = w->c.slots,
                                    .train_us_per_token = w->c.train_us_per_token,
                                    .groups = w->c.groups,
                                    .samples = w->c.samples,
                                    .tokens = tokens,
                                    .known = w->c.groups,
                                    .exact = knows == KNOWS_SAMPLES,
                                    .scale = knows == KNOWS_PROMPTS ? means : NULL,
                                    .most = most};
  if (w->c.clairvoyant)
    w->plan = *w->c.clairvoyant;
  else if (knows != KNOWS_NOTHING && w->c.kind == FRONTIER_PRIORITY && !w->c.sync)
    admission_plan(&f, &w->room, &w->plan);
  for (int i = 0; i < w->c.groups && w->plan.ordered; i++) w->place[w->plan.order[i]] = i + 1;
}

static void group_opens(struct world *w, int group, bool evaluation) {
  struct group *g = &w->groups[group];
  const uint32_t ordinal = (uint32_t)(evaluation ? EVALUATION_FIRST + group - w->training_count : group);
  *g = (struct group){.state = OPEN, .size = w->c.samples, .leased_us = -1, .overtaken_us = -1};
  g->facts = (struct waiting_group){.ordinal = (int32_t)ordinal,
                                    .place = evaluation ? 0 : w->place[group],
                                    .waiting = g->size,
                                    .waiting_since_ms = world_now_ms(w),
                                    .evaluation = evaluation};
  g->filtered = !evaluation && world_uniform(w->c.seed, STREAM_FILTER, ordinal, 0) < w->c.filtered;
  for (int s = 0; s < g->size; s++)
    g->samples[s] = (struct sample){.lease = -1, .tokens = length_of(&w->c, w->c.seed, w->c.seed, ordinal, s)};
  w->open_groups++;
  w->dispatch_due = true;
}

void world_coordinator_open(struct world *w) {
  plan_round(w);
  for (int g = 0; g < w->c.groups; g++) group_opens(w, g, false);
  for (int g = w->training_count; g < w->group_count; g++) group_opens(w, g, true);
}

void world_coordinator_verified(struct world *w, int group) {
  struct group *g = &w->groups[group];
  if (g->sealings++ || g->state != OPEN) world_fault(w, "group %d is sealed %d times", group, g->sealings);
  g->sealed_us = w->now_us;
  g->state = g->facts.evaluation || g->filtered ? CLOSED : SEALED;
  if (!g->facts.evaluation) rate_note(&w->latency, (double)(w->now_us - g->leased_us) / 1e6, 1, world_now_ms(w));
  if (g->state == SEALED && w->r->first_us == 0) w->r->first_us = w->now_us;
  if (g->filtered && w->refills < w->c.refill_max) group_opens(w, w->c.groups + w->refills++, false);
  if (w->open_groups == 1) { /* servers account for idle slots up to here */
    for (int i = 0; i < w->server_count; i++) server_pass(w, i);
    w->r->generated_us = w->now_us;
  }
  w->open_groups--;
  w->dispatch_due = true; /* the frontier has moved: what was behind a gate may be before it */
}

/* Sealed groups in the order of sealing; returns how many. */
static int fifo(const struct world *w, int *out) {
  int n = 0;
  for (int g = 0; g < w->training_count; g++) {
    if (w->groups[g].state != SEALED) continue;
    int i = n++;
    for (; i > 0 && w->groups[g].sealed_us < w->groups[out[i - 1]].sealed_us; i--) out[i] = out[i - 1];
    out[i] = g;
  }
  return n;
}

void world_coordinator_submit(struct world *w) {
  int ready[WORLD_GROUPS];
  int64_t tokens[WORLD_GROUPS];
  while (w->trainer_up && w->at_trainer < AHEAD && (!w->c.sync || w->open_groups == 0)) {
    const int n = fifo(w, ready);
    if (n == 0) return;
    if (w->batch_count == BATCHES_MAX) {
      world_fault(w, "more than %d batches", BATCHES_MAX);
      return;
    }
    for (int i = 0; i < n; i++) tokens[i] = (int64_t)w->groups[ready[i]].tokens;
    struct batch *b = &w->batches[w->batch_count];
    *b = (struct batch){.count = batching_select(tokens, n, w->c.batch_tokens)};
    for (int i = 0; i < b->count; i++) {
      b->groups[i] = ready[i];
      b->tokens += w->groups[ready[i]].tokens;
      w->groups[ready[i]].state = SUBMITTED;
    }
    w->at_trainer++;
    world_at(w, w->now_us + w->c.message_us, BATCH_ARRIVES, w->batch_count++, (uint32_t)w->lineage, 0);
  }
}

void world_coordinator_batch_known(struct world *w, int batch) {
  const struct batch *b = &w->batches[batch];
  w->at_trainer--;
  for (int i = 0; i < b->count; i++) {
    struct group *g = &w->groups[b->groups[i]];
    if (g->state != SUBMITTED || g->consumed_lineage == w->lineage + 1)
      world_fault(w, "group %d is consumed twice in one lineage", b->groups[i]);
    g->consumed_lineage = w->lineage + 1;
    g->state = CONSUMED;
  }
  rate_note(&w->drain, b->count, b->tokens * w->c.train_us_per_token / 1e6, world_now_ms(w));
  w->dispatch_due = true; /* and its size with it */
}
