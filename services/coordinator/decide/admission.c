/* Plays a round for some tens of plans and takes the best: see admission.h. */
#include "services/coordinator/decide/admission.h"

#include <math.h>
#include <string.h>

#define GAIN_LEAST       0.01  /* of the round: what a play can be trusted for in which groups are told apart */
#define DEALT_GAIN_LEAST 0.02  /* likewise, of lengths in general that were dealt out */
#define ORDER_GAIN_LEAST 0.001 /* likewise, for another order than the ordinals' */
/* A plan must be better by this many standard errors of the mean over deals: where each prompt's mean is known deals
 * differ only by the spread of its samples, and where it is not, also by which groups are the long ones. */
#define EXPECTED_ERRORS_LEAST 1.0
#define DEALT_ERRORS_LEAST    2.0
#define SPACING_MOST_US  1e12  /* eleven days: no such plan is of use */
#define STEEP            1.05  /* full engines' step against the shortest; below, a ramp is not worth the play */

enum {
  DEALS_LEAST = 4,
  DEALS_MOST = 8,
  DEALT_SAMPLES = 8192,       /* of all deals together, within these: a small round tells less */
  IMPROVING_SAMPLES = 150000, /* played, to improve an order */
  PLAYS_LEAST = 100           /* that a plan takes without improving orders; where they are too dear none is made */
};

/* ---- the heap of running samples, first to end on top ---- */

static void push(struct admission_running *heap, int n, struct admission_running item) {
  int i = n;
  for (; i > 0 && item.ends < heap[(i - 1) / 2].ends; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
  heap[i] = item;
}

/* The top one is removed, and n remain.  The last one still lies behind them, where it ends the way down. */
static void pop(struct admission_running *heap, int n) {
  const struct admission_running last = heap[n];
  int i = 0;
  for (int child = 1; child < n; child = 2 * i + 1) {
    if (heap[child + 1].ends < heap[child].ends) child++;
    if (last.ends <= heap[child].ends) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = last;
}

/* ---- what may be begun when ---- */

/* That have passed since the round opened: none before. */
static int64_t spacings(const struct admission_plan *plan, int64_t passed_us) {
  return passed_us > 0 ? passed_us / plan->spacing_us : 0;
}

int32_t admission_groups(const struct admission_plan *plan, int64_t passed_us) {
  if (!plan->bounded) return INT32_MAX;
  const int64_t more = spacings(plan, passed_us);
  return more < INT32_MAX - plan->first ? plan->first + (int32_t)more : INT32_MAX;
}

int32_t admission_groups_now(const struct admission_plan *plan, int64_t passed_us, int32_t begun, int32_t under_way) {
  const int32_t groups = admission_groups(plan, passed_us);
  return under_way == 0 && groups <= begun ? begun + 1 : groups;
}

int64_t admission_next_us(const struct admission_plan *plan, int64_t passed_us) {
  if (!plan->bounded) return INT64_MAX;
  return (spacings(plan, passed_us) + 1) * plan->spacing_us;
}

int admission_admit(const struct waiting_group *groups, int32_t *order, int count, int32_t begun, int32_t most) {
  bool shut = false;
  int kept = 0;
  for (int i = 0; i < count; i++) {
    const struct waiting_group *g = &groups[order[i]];
    const bool fresh = !g->evaluation && !g->begun;
    if (fresh && begun >= most) shut = true;
    if (fresh ? begun >= most : shut && g->evaluation) continue;
    begun += fresh;
    order[kept++] = order[i];
  }
  return kept;
}

/* ---- the play ---- */

struct play {
  const struct admission_facts *f;
  int32_t deal;
  struct admission_room *room;
  const struct admission_plan *plan;
  int32_t next, sample, running; /* the next to be begun, by place in the order; how many run */
  const float *lengths;          /* of the next group's samples */
  double us, clock;              /* time, and the tokens of a sample that ran since the beginning */
  double trained_us;             /* until when the trainer is busy */
  int32_t step_first, in_step;   /* the first group of the step in hand; how many of it are trained */
};

/* Whose lengths a group has in a deal: drawn with replacement, always in the same way. */
static int32_t likeness(const struct admission_facts *f, int32_t deal, int32_t g) {
  if (f->exact) return g;
  uint32_t x = (uint32_t)(deal * f->groups + g) + 1; /* hash32 of C. Wellons, for numbers below 2^16 */
  x *= 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return (int32_t)((x ^ x >> 16) % (uint32_t)f->known);
}

/* [samples] */
static const float *lengths_of(const struct admission_facts *f, int32_t deal, int32_t g) {
  return &f->tokens[likeness(f, deal, g) * f->samples];
}

static double tokens_of(const struct admission_facts *f, int32_t g, float length) {
  const float tokens = f->scale ? length * f->scale[g] : length;
  return (double)(f->most ? fminf(tokens, f->most[g]) : tokens);
}

static bool waits(const struct play *p) { return p->next < p->f->groups; }

static int32_t rows_max(const struct admission_facts *f) {
  const int64_t slots = (int64_t)f->servers * f->slots, samples = (int64_t)f->groups * f->samples;
  return (int32_t)(slots < samples ? slots : samples);
}

static void begin_samples(struct play *p) {
  const int32_t most = admission_groups(p->plan, (int64_t)p->us), rows = rows_max(p->f);
  while (waits(p) && p->next < most && p->running < rows) {
    const int32_t g = p->plan->order[p->next];
    if (p->sample == 0) p->lengths = lengths_of(p->f, p->deal, g);
    const double tokens = tokens_of(p->f, g, p->lengths[p->sample]);
    push(p->room->running, p->running++, (struct admission_running){p->clock + tokens, g});
    p->room->total[g] += tokens;
    if (++p->sample < p->f->samples) continue;
    p->sample = 0;
    p->next++;
  }
}

static void train(struct play *p, int32_t g) {
  if (p->trained_us < p->us) p->trained_us = p->us;
  p->trained_us += p->room->total[g] * p->f->train_us_per_token;
  p->in_step++;
}

/* A group of a later step waits until all groups of the earlier ones are trained.  With a step's last group come those
 * of the next ones that have waited for it. */
static void train_by_steps(struct play *p, int32_t g) {
  const int32_t size = p->f->groups_per_step;
  if (g >= p->step_first + size) return;
  train(p, g);
  while (p->in_step == size) {
    p->step_first += size;
    p->in_step = 0;
    for (int32_t next = p->step_first; next < p->step_first + size && next < p->f->groups; next++)
      if (p->room->left[next] == 0) train(p, next);
  }
}

static void end_sample(struct play *p) {
  const int32_t g = p->room->running[0].group;
  p->clock = p->room->running[0].ends;
  pop(p->room->running, --p->running);
  if (--p->room->left[g] > 0) return;
  if (p->f->groups_per_step > 0)
    train_by_steps(p, g);
  else
    train(p, g);
}

static double play_deal(const struct admission_facts *f, struct admission_room *room, const struct admission_plan *plan,
                        int32_t deal) {
  struct play p = {.f = f, .deal = deal, .room = room, .plan = plan};
  for (int32_t g = 0; g < f->groups; g++) {
    room->left[g] = f->samples;
    room->total[g] = 0;
  }
  begin_samples(&p);
  while (p.running > 0 || waits(&p)) {
    const double step_us = room->step_us[p.running];
    const double end_us = p.running ? p.us + (room->running[0].ends - p.clock) * step_us : INFINITY;
    const bool shut = waits(&p) && p.running < rows_max(f);
    const double admit_us = shut ? (double)admission_next_us(plan, (int64_t)p.us) : INFINITY;
    if (end_us <= admit_us) {
      p.us = end_us;
      end_sample(&p);
    } else {
      p.clock += (admit_us - p.us) / step_us;
      p.us = admit_us;
    }
    begin_samples(&p);
  }
  return p.trained_us;
}

double admission_play(const struct admission_facts *f, struct admission_room *room, const struct admission_plan *plan) {
  double sum = 0;
  for (int32_t deal = 0; deal < room->deals; deal++) sum += play_deal(f, room, plan, deal);
  return sum / room->deals;
}

/* The square of the standard error is (squares - sum * sum / n) / (n - 1) / n. */
bool admission_outweighs(const double *gains, int32_t n, double gain_least, double errors_least) {
  double sum = 0, squares = 0;
  for (int32_t i = 0; i < n; i++) {
    sum += gains[i];
    squares += gains[i] * gains[i];
  }
  return sum > gain_least * n && sum * sum * (n - 1) >= errors_least * errors_least * (n * squares - sum * sum);
}

/* Is it better over other deals than those that it was chosen by? */
static bool is_better(const struct admission_facts *f, struct admission_room *room, const struct admission_plan *plan,
                      const struct admission_plan *than, double gain_least) {
  double gains[DEALS_MOST];
  for (int32_t i = 0; i < room->deals; i++) {
    const int32_t deal = room->deals + i;
    gains[i] = 1 - play_deal(f, room, plan, deal) / play_deal(f, room, than, deal);
  }
  return admission_outweighs(gains, room->deals, gain_least, f->scale ? EXPECTED_ERRORS_LEAST : DEALT_ERRORS_LEAST);
}

/* ---- plans ---- */

static void take_if_better(const struct admission_facts *f, struct admission_room *room, struct admission_plan *best) {
  room->candidate.end_us = admission_play(f, room, &room->candidate);
  if (room->candidate.end_us < best->end_us) *best = room->candidate;
}

/* The `shortest` shortest groups first, then the longest. */
static void order_by_length(const struct admission_facts *f, const struct admission_room *room, int32_t shortest,
                            struct admission_plan *plan) {
  plan->ordered = true;
  for (int32_t i = 0; i < f->groups; i++)
    plan->order[i] = room->by_length[i < shortest ? i : f->groups - 1 - (i - shortest)];
}

static void try_orders(const struct admission_facts *f, struct admission_room *room, struct admission_plan *best) {
  room->candidate = *best;
  for (int eighths = 0; eighths <= 8; eighths++) {
    order_by_length(f, room, f->groups * eighths / 8, &room->candidate);
    take_if_better(f, room, best);
  }
}

static void try_ramp(const struct admission_facts *f, struct admission_room *room, int32_t first, double spacing_us,
                     struct admission_plan *best) {
  room->candidate.bounded = true;
  room->candidate.first = first;
  room->candidate.spacing_us = (int64_t)fmin(fmax(ceil(spacing_us), (double)f->spacing_least_us), SPACING_MOST_US);
  take_if_better(f, room, best);
}

/* From one number of first groups that is tried to the next. */
static int32_t stride(int32_t first) { return 1 + first / 4; }

/* One more group whenever the trainer has eaten one, or somewhat sooner: how many first, of those that there are slots
 * for; then how much sooner; then around that.  As many first as there are groups, or none, is never better than other
 * plans. */
static void try_ramps(const struct admission_facts *f, struct admission_room *room, double group_us,
                      struct admission_plan *best) {
  const int32_t most = rows_max(f) / f->samples;
  room->candidate = *best;
  for (int32_t first = 1; first <= most; first += stride(first)) try_ramp(f, room, first, group_us * 3 / 4, best);
  if (!best->bounded) return;
  for (int32_t first = best->first, eighths = 3; eighths <= 9; eighths++)
    try_ramp(f, room, first, group_us * eighths / 8, best);
  const int32_t middle = best->first, width = stride(middle);
  const double spacing_us = (double)best->spacing_us;
  for (int32_t first = middle - width; first <= middle + width && first <= most; first++)
    try_ramp(f, room, first, spacing_us, best);
}

void admission_improve(const struct admission_facts *f, struct admission_room *room, struct admission_plan *plan,
                       int plays) {
  uint64_t x = 1; /* a sequence that is always the same */
  for (int i = 0; i < plays; i++) {
    room->candidate = *plan;
    x = x * 6364136223846793005u + 1442695040888963407u;
    const int32_t from = (int32_t)((x >> 40) % (uint64_t)f->groups);
    x = x * 6364136223846793005u + 1442695040888963407u;
    const int32_t to = (int32_t)((x >> 40) % (uint64_t)f->groups), g = plan->order[from];
    int32_t *order = room->candidate.order;
    if (from < to)
      memmove(&order[from], &order[from + 1], (size_t)(to - from) * sizeof order[0]);
    else
      memmove(&order[to + 1], &order[to], (size_t)(from - to) * sizeof order[0]);
    order[to] = g;
    room->candidate.ordered = true;
    room->candidate.end_us = admission_play(f, room, &room->candidate);
    if (room->candidate.end_us <= plan->end_us) *plan = room->candidate; /* also along a plateau */
  }
}

static bool known(const struct admission_facts *f) {
  return f->servers > 0 && f->slots > 0 && f->groups > 0 && f->samples > 0 && f->groups <= ADMISSION_GROUPS_MAX &&
         (int64_t)f->groups * f->samples <= ADMISSION_SAMPLES_MAX && f->known > 0 && f->train_us_per_token > 0 &&
         f->spacing_least_us > 0 && step_costs_known(f->costs);
}

/* Returns the mean time between two groups of the trainer's. */
static double measure_groups(const struct admission_facts *f, struct admission_room *room) {
  double tokens = 0;
  for (int32_t g = 0; g < f->groups; g++) {
    room->longest[g] = 0;
    for (int32_t deal = 0; deal < room->deals; deal++) {
      const float *lengths = lengths_of(f, deal, g);
      double longest = 0;
      for (int32_t s = 0; s < f->samples; s++) {
        const double t = tokens_of(f, g, lengths[s]);
        tokens += t;
        longest = fmax(longest, t);
      }
      room->longest[g] += longest;
    }
    int32_t i = g; /* by insertion: there are few */
    for (; i > 0 && room->longest[room->by_length[i - 1]] > room->longest[g]; i--)
      room->by_length[i] = room->by_length[i - 1];
    room->by_length[i] = g;
  }
  return tokens * f->train_us_per_token / f->groups / room->deals;
}

/* Something is known about each group, not only about groups in general. */
static bool told_apart(const struct admission_facts *f) {
  const size_t pairs = (size_t)f->groups - 1; /* of neighbours, which are alike if all groups are */
  return f->exact || f->scale || (f->most && memcmp(f->most, f->most + 1, pairs * sizeof f->most[0]));
}

static int32_t deals_of(const struct admission_facts *f) {
  const int32_t deals = DEALT_SAMPLES / (f->groups * f->samples);
  if (f->exact) return 1;
  return deals < DEALS_LEAST ? DEALS_LEAST : deals > DEALS_MOST ? DEALS_MOST : deals;
}

/* To improve an order, in a round that takes so long; below 0: there is not even time for a plan. */
static int64_t plays_of(const struct admission_facts *f, int32_t deals, double round_us) {
  const int64_t samples = (int64_t)f->groups * f->samples * deals, wanted = IMPROVING_SAMPLES / samples;
  if (f->played_per_us == 0) return wanted;
  const double more = floor(round_us * f->played_per_us / (double)samples) - PLAYS_LEAST;
  return (int64_t)fmin(more, (double)wanted);
}

bool admission_plan(const struct admission_facts *f, struct admission_room *room, struct admission_plan *plan) {
  *plan = (struct admission_plan){0};
  if (!known(f)) return false;
  const bool apart = told_apart(f);
  room->deals = deals_of(f);
  for (int32_t rows = 0; rows <= rows_max(f); rows++)
    room->step_us[rows] = step_costs_us(f->costs, (double)rows / f->servers);
  const double group_us = measure_groups(f, room);
  for (int32_t g = 0; g < f->groups; g++) plan->order[g] = g;
  plan->end_us = plan->filled_end_us = admission_play(f, room, plan);
  const int plays = (int)plays_of(f, room->deals, plan->filled_end_us);
  if (plays < 0) return true;
  room->ramp = *plan;
  if (apart) {
    try_orders(f, room, &room->ramp);
    admission_improve(f, room, &room->ramp, plays);
  }
  if (room->ramp.ordered && is_better(f, room, &room->ramp, plan, ORDER_GAIN_LEAST)) *plan = room->ramp;
  if (room->step_us[rows_max(f)] < room->step_us[0] * STEEP) return true;
  try_ramps(f, room, group_us, &room->ramp);
  if (apart) {
    room->other = *plan;
    order_by_length(f, room, f->groups, &room->other);
    room->other.end_us = admission_play(f, room, &room->other);
    try_ramps(f, room, group_us, &room->other);
    if (room->other.end_us < room->ramp.end_us) room->ramp = room->other;
    if (room->ramp.bounded) admission_improve(f, room, &room->ramp, plays);
  }
  if (room->ramp.bounded && is_better(f, room, &room->ramp, plan, f->exact || f->scale ? GAIN_LEAST : DEALT_GAIN_LEAST))
    *plan = room->ramp;
  return true;
}
