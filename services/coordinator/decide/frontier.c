/* Orders the groups that have waiting samples: the frontier first, then what lies behind it. */
#include "services/coordinator/decide/frontier.h"

#include <math.h>
#include <string.h>

#define RATE_HALF_LIFE_MS 120000.0

enum place { PLACE_AGED, PLACE_FRONTIER, PLACE_LATER, PLACE_EVALUATION };

/* Groups that were not planned (refills) have ordinals behind every place. */
static int32_t rank_of(const struct waiting_group *g) { return g->place ? g->place - 1 : g->ordinal; }

static enum place place_of(const struct waiting_group *g, const struct frontier_policy *p) {
  if (g->evaluation) return PLACE_EVALUATION;
  if (p->kind == FRONTIER_OFF) return PLACE_LATER;
  const bool later = rank_of(g) >= p->end;
  if (later && p->kind == FRONTIER_GATE) return PLACE_LATER; /* whatever its age: the frontier may have shrunk */
  if (g->overtaken_since_ms && p->now_ms - g->overtaken_since_ms >= p->aging_ms) return PLACE_AGED;
  return later ? PLACE_LATER : PLACE_FRONTIER;
}

/* In tokens; in samples while no length is known. */
static double remaining_work(const struct waiting_group *g, const struct frontier_policy *p) {
  if (p->tokens_prior <= 0) return g->waiting;
  return g->waiting * (g->done ? (double)g->done_tokens / g->done : (double)p->tokens_prior);
}

static bool goes_before(const struct waiting_group *a, const struct waiting_group *b, const struct frontier_policy *p) {
  const enum place place = place_of(a, p), other = place_of(b, p);
  if (place != other) return place < other;
  if (place == PLACE_AGED && a->overtaken_since_ms != b->overtaken_since_ms)
    return a->overtaken_since_ms < b->overtaken_since_ms;
  if (p->kind == FRONTIER_OFF && a->waiting_since_ms != b->waiting_since_ms)
    return a->waiting_since_ms < b->waiting_since_ms;
  if (place == PLACE_FRONTIER && !p->planned && remaining_work(a, p) != remaining_work(b, p))
    return remaining_work(a, p) < remaining_work(b, p);
  return rank_of(a) < rank_of(b);
}

/* Behind a gate that is not open even evaluation would be in the way of the training samples to come. */
static bool may_be_granted(enum place place, bool training_waits, enum frontier_kind kind) {
  return kind != FRONTIER_GATE || place < PLACE_LATER || (place == PLACE_EVALUATION && !training_waits);
}

/* By binary insertion: a total order, since ordinals differ. */
int frontier_order(const struct waiting_group *groups, int n, const struct frontier_policy *p, int32_t *order) {
  bool training_waits = false;
  int count = 0;
  for (int i = 0; i < n; i++) training_waits = training_waits || !groups[i].evaluation;
  for (int i = 0; i < n; i++) {
    if (!may_be_granted(place_of(&groups[i], p), training_waits, p->kind)) continue;
    int low = 0, high = count;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (goes_before(&groups[i], &groups[order[middle]], p))
        high = middle;
      else
        low = middle + 1;
    }
    memmove(&order[low + 1], &order[low], (size_t)(count - low) * sizeof order[0]);
    order[low] = i;
    count++;
  }
  return count;
}

int frontier_overtaken(const struct waiting_group *groups, int n, const int32_t *granted, int32_t *overtaken) {
  int32_t highest = INT32_MIN;
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (granted[i] && !groups[i].evaluation && rank_of(&groups[i]) > highest) highest = rank_of(&groups[i]);
  }
  for (int i = 0; i < n; i++) {
    const struct waiting_group *g = &groups[i];
    if (!g->evaluation && g->overtaken_since_ms == 0 && g->waiting > granted[i] && rank_of(g) < highest)
      overtaken[count++] = i;
  }
  return count;
}

int frontier_size(double drain_groups_per_s, double group_latency_s, int groups) {
  const int most = groups < FRONTIER_CANDIDATES_MAX ? groups : FRONTIER_CANDIDATES_MAX;
  double size = FRONTIER_SIZE_DEFAULT;
  if (drain_groups_per_s > 0 && group_latency_s > 0) size = ceil(drain_groups_per_s * group_latency_s) + 1;
  if (size > most) size = most;
  return size > 1 ? (int)size : 1;
}

void rate_note(struct rate *r, double amount, double per, int64_t now_ms) {
  const double passed_ms = now_ms > r->at_ms ? (double)(now_ms - r->at_ms) : 0;
  const double faded = exp2(-passed_ms / RATE_HALF_LIFE_MS);
  r->amount = r->amount * faded + amount;
  r->per = r->per * faded + per;
  r->at_ms = now_ms;
}

double rate_value(const struct rate *r) { return r->per > 0 ? r->amount / r->per : 0; }
