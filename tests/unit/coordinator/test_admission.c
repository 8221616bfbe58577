/* How many groups run at once, and which go first (make sim has whole rounds).  What would break: a ramp where one more
 * row costs nothing, a round that fills up where it does and the trainer waits, a round planned with nothing measured,
 * a group that is never admitted, evaluation before training, a play that is not what the pool does. */
#include <stdlib.h>

#include "services/coordinator/decide/admission.h"
#include "tests/unit/base/cm.h"
#include "tests/unit/base/guarded.h"

static void close_to(double got, double want) {
  if (!(got > want - 1e-6 * want && got < want + 1e-6 * want)) fail_msg("%.9f is not %.9f", got, want);
}

/* A step of b rows takes base + row * b. */
static struct step_costs costs_of(int64_t base, int64_t row) {
  struct step_costs c = {0};
  for (int slot = 0, rows = 1; slot < 12; slot++, rows *= 2)
    step_costs_note(&c, slot, 10, 10 * rows, 10 * (base + row * rows), 0);
  return c;
}

static const struct admission_plan filled;

static double play(const struct admission_facts *f, const struct admission_plan *like, const int32_t *order) {
  struct admission_room *room = malloc(sizeof *room);
  struct admission_plan plan;
  assert_non_null(room);
  assert_true(admission_plan(f, room, &plan));
  struct admission_plan p = *like;
  for (int32_t g = 0; g < f->groups; g++) p.order[g] = order ? order[g] : g;
  const double end_us = admission_play(f, room, &p);
  free(room);
  return end_us;
}

static void a_play_goes_as_the_pool_does(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(0, 100);
  const float two[] = {10, 20}, four[] = {10, 20, 30, 40};
  struct admission_facts f = {.costs = &costs,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = 4,
                              .train_us_per_token = 5,
                              .groups = 2,
                              .samples = 1,
                              .tokens = two,
                              .known = 2,
                              .exact = true};
  /* both run at 200 us a token; the first is ready at 2000, the other, alone by then, at 3000 */
  close_to(play(&f, &filled, NULL), 3000 + 20 * 5);
  f.train_us_per_token = 100; /* the first until 3000 */
  close_to(play(&f, &filled, NULL), 3000 + 2000);
  f.train_us_per_token = 200; /* until 4000 */
  close_to(play(&f, &filled, NULL), 4000 + 4000);
  f.slots = 1; /* 1000; 3000 */
  close_to(play(&f, &filled, NULL), 3000 + 4000);
  close_to(play(&f, &filled, (const int32_t[]){1, 0}), 6000 + 2000);
  f.servers = 2; /* half a row each, which costs what one does: nothing smaller was seen */
  close_to(play(&f, &filled, NULL), 1000 + 2000 + 4000);
  /* a group is ready with its last sample; its samples are begun in their order */
  f = (struct admission_facts){.costs = &costs,
                               .spacing_least_us = 1,
                               .servers = 1,
                               .slots = 3,
                               .train_us_per_token = 1,
                               .groups = 2,
                               .samples = 2,
                               .tokens = four,
                               .known = 2,
                               .exact = true};
  /* 10, 20, 30 at 300 until 3000; 20, 30, 40 at 300 until 6000: group 0; 30 has 10 left, 40 has 30: 200 until 8000;
   * then 20 at 100 until 10000 */
  close_to(play(&f, &filled, NULL), 10000 + 70);
}

static void a_ramp_begins_groups_one_after_another(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(0, 100);
  const float two[] = {10, 20};
  const struct admission_facts f = {.costs = &costs,
                                    .spacing_least_us = 1,
                                    .servers = 1,
                                    .slots = 4,
                                    .train_us_per_token = 100,
                                    .groups = 2,
                                    .samples = 1,
                                    .tokens = two,
                                    .known = 2,
                                    .exact = true};
  /* alone until 500: 5 tokens; together until 1500; the other 15 more alone: 3000 */
  struct admission_plan ramp = {.bounded = true, .first = 1, .spacing_us = 500};
  close_to(play(&f, &ramp, NULL), 3000 + 2000);
  ramp.spacing_us = 5000; /* nobody runs from 1000 to 5000 */
  close_to(play(&f, &ramp, NULL), 7000 + 2000);
  ramp.first = 2;
  close_to(play(&f, &ramp, NULL), 5000);
}

/* The play again, slowly: which sample ends next is looked for among all, time is walked from change to change. */
static double slow_play(const struct admission_facts *f, const struct admission_plan *p, int64_t base, int64_t row) {
  enum { MOST = 256 };
  double left[MOST], now = 0, ready[MOST], total[MOST] = {0};
  int group[MOST], running = 0, next = 0, open[MOST];
  const int all = f->groups * f->samples, slots = f->servers * f->slots;
  for (int g = 0; g < f->groups; g++) open[g] = f->samples;
  for (int i = 0; i < all; i++) total[i / f->samples] += (double)f->tokens[i];
  for (int done = 0; done < all;) {
    const int64_t steps = p->bounded ? (int64_t)now / p->spacing_us : 0;
    while (next < all && running < slots && (!p->bounded || next / f->samples < p->first + steps)) {
      const int g = p->order[next / f->samples];
      group[running] = g;
      left[running++] = (double)f->tokens[g * f->samples + next++ % f->samples];
    }
    double rows = (double)running / f->servers;
    if (rows < 1) rows = 1;
    const double step = (double)base + (double)row * rows;
    int first = -1;
    for (int i = 0; i < running; i++) first = first < 0 || left[i] < left[first] ? i : first;
    const double end = first < 0 ? 1e30 : now + left[first] * step;
    const double more = p->bounded && next < all && running < slots ? (double)((steps + 1) * p->spacing_us) : 1e30;
    const double to = end <= more ? end : more;
    for (int i = 0; i < running; i++) left[i] -= (to - now) / step;
    now = to;
    if (end > more) continue;
    const int g = group[first];
    left[first] = left[--running];
    group[first] = group[running];
    done++;
    if (--open[g] == 0) ready[g] = now;
  }
  /* step by step, and within a step in the order in which its groups are ready */
  const int step = f->groups_per_step > 0 ? f->groups_per_step : f->groups;
  double trained = 0;
  for (int begin = 0; begin < f->groups; begin += step) {
    for (int i = begin; i < begin + step && i < f->groups; i++) {
      int g = -1;
      for (int other = begin; other < begin + step && other < f->groups; other++)
        if (ready[other] >= 0 && (g < 0 || ready[other] < ready[g])) g = other;
      trained = (trained > ready[g] ? trained : ready[g]) + total[g] * f->train_us_per_token;
      ready[g] = -1;
    }
  }
  return trained;
}

static int draw(uint64_t *x, int low, int high) {
  *x = *x * 6364136223846793005u + 1442695040888963407u;
  return low + (int)((*x >> 33) % (uint64_t)(high - low + 1));
}

static void a_play_is_what_a_slow_one_is(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  uint64_t x = 11;
  assert_non_null(room);
  for (int i = 0; i < 400; i++) {
    float tokens[256];
    const int64_t base = draw(&x, 0, 3) * 1000, row = 1 + draw(&x, 0, 3) * 300;
    const struct step_costs costs = costs_of(base, row);
    struct admission_facts f = {.costs = &costs,
                                .spacing_least_us = 1,
                                .servers = draw(&x, 1, 3),
                                .slots = draw(&x, 1, 12),
                                .train_us_per_token = draw(&x, 1, 2000),
                                .groups = draw(&x, 1, 24),
                                .samples = draw(&x, 1, 8),
                                .tokens = tokens};
    f.groups_per_step = draw(&x, 0, 1) * draw(&x, 1, f.groups);
    for (int t = 0; t < f.groups * f.samples; t++) tokens[t] = (float)draw(&x, 1, 1 + draw(&x, 0, 200));
    struct admission_plan p;
    f.known = f.groups;
    assert_true(admission_plan(&f, room, &p));
    f.exact = true; /* after the planning, which would take long to improve the order */
    room->deals = 1;
    p.bounded = false;
    for (int g = f.groups - 1; g > 0; g--) {
      const int other = draw(&x, 0, g), held = p.order[g];
      p.order[g] = p.order[other];
      p.order[other] = held;
    }
    close_to(admission_play(&f, room, &p) / slow_play(&f, &p, base, row), 1);
    p.bounded = true;
    p.first = draw(&x, 1, 5);
    p.spacing_us = draw(&x, 1, 100000);
    close_to(admission_play(&f, room, &p) / slow_play(&f, &p, base, row), 1);
  }
  free(room);
}

/* The second group is ready first.  Where each is a step of its own, the trainer waits for the first. */
static void steps_are_trained_in_their_order(void **state) {
  (void)state;
  const struct step_costs costs = costs_of(0, 100);
  const float three[] = {30, 10, 20};
  struct admission_facts f = {.costs = &costs,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = 3,
                              .train_us_per_token = 100,
                              .groups = 3,
                              .samples = 1,
                              .tokens = three,
                              .known = 3,
                              .exact = true};
  /* 10 tokens at 300, 10 more at 200, 10 alone: ready at 6000, 3000, 5000 */
  close_to(play(&f, &filled, NULL), 5000 + 2000 + 3000); /* the first is done at 4000 */
  f.groups_per_step = 3;
  close_to(play(&f, &filled, NULL), 5000 + 2000 + 3000);
  f.groups_per_step = 1;
  close_to(play(&f, &filled, NULL), 6000 + 3000 + 1000 + 2000);
  f.groups_per_step = 2; /* 3000 to 4000, 6000 to 9000 */
  close_to(play(&f, &filled, NULL), 9000 + 2000);
}

/* One slot and a trainer that waits for nothing: a deal ends when its last group's tokens are trained. */
static void lengths_of_other_groups_are_dealt_out(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  const struct step_costs costs = costs_of(0, 100);
  const float three[] = {10, 20, 30}, scale[] = {1, 2, 3, 4}, most[] = {25, 25, 50, 41};
  struct admission_facts f = {.costs = &costs,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = 1,
                              .train_us_per_token = 1e-9,
                              .groups = 4,
                              .samples = 1,
                              .tokens = three,
                              .known = 1};
  struct admission_plan p;
  assert_non_null(room);
  assert_true(admission_plan(&f, room, &p)); /* there is but one: all have its lengths */
  assert_int_equal(room->deals, 8);
  close_to(p.end_us, 100 * (10 + 10 + 10 + 10));
  f.scale = scale;
  assert_true(admission_plan(&f, room, &p));
  close_to(p.end_us, 100 * (10 + 20 + 30 + 40));
  f.most = most;
  assert_true(admission_plan(&f, room, &p));
  close_to(p.end_us, 100 * (10 + 20 + 30 + 40));
  f.tokens = three + 1;
  assert_true(admission_plan(&f, room, &p));
  close_to(p.end_us, 100 * (20 + 25 + 50 + 41));
  f.tokens = three + 2;
  f.scale = NULL;
  assert_true(admission_plan(&f, room, &p));
  close_to(p.end_us, 100 * (25 + 25 + 30 + 30));
  f.tokens = three;
  f.most = NULL;
  f.known = 3;
  f.groups = 200; /* every length is dealt about equally often */
  assert_true(admission_plan(&f, room, &p));
  assert_int_equal(room->deals, 8);
  assert_true(p.end_us > 100 * 200 * 19.5 && p.end_us < 100 * 200 * 20.5);
  f.groups = 1;
  assert_true(admission_plan(&f, room, &p));
  assert_in_range((int)p.end_us, 1001, 2999); /* another one in another deal */
  free(room);
}

/* A small round tells less than a large one, which takes longer to play. */
static void a_round_is_dealt_out_the_more_often_the_smaller_it_is(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  const int deals_of[][2] = {{24, 8}, {1023, 8}, {1024, 8}, {1025, 7}, {1365, 6}, {1366, 5}, {2048, 4}, {8192, 4}};
  static float tokens[ADMISSION_SAMPLES_MAX];
  const struct step_costs costs = costs_of(1000, 1);
  assert_non_null(room);
  for (int i = 0; i < ADMISSION_SAMPLES_MAX; i++) tokens[i] = 10;
  for (size_t i = 0; i < sizeof deals_of / sizeof deals_of[0]; i++) {
    struct admission_facts f = {.costs = &costs,
                                .spacing_least_us = 1,
                                .servers = 1,
                                .slots = 1,
                                .train_us_per_token = 1,
                                .groups = 1,
                                .samples = deals_of[i][0],
                                .tokens = tokens,
                                .known = 1};
    struct admission_plan plan;
    assert_true(admission_plan(&f, room, &plan));
    assert_int_equal(room->deals, deals_of[i][1]);
    f.exact = true;
    assert_true(admission_plan(&f, room, &plan));
    assert_int_equal(room->deals, 1);
  }
  free(room);
}

static void a_gain_must_be_more_than_chance(void **state) {
  (void)state;
  const double one[] = {0.03}, even[] = {0.03, 0.03, 0.03, 0.03};
  assert_true(admission_outweighs(one, 1, 0.02, 2)); /* nothing to compare it with: exact lengths */
  assert_false(admission_outweighs(one, 1, 0.03, 2));
  assert_false(admission_outweighs((const double[]){-0.03}, 1, 0.02, 2));
  assert_true(admission_outweighs(even, 4, 0.029, 2));
  assert_false(admission_outweighs(even, 4, 0.031, 2));
  assert_false(admission_outweighs((const double[]){-1, -1}, 2, 0.02, 2));
  /* 4 and 8 are 6 in the mean, and that is known to 2: three standard errors; 1 and 5 are 3, to 2 */
  assert_true(admission_outweighs((const double[]){4, 8}, 2, 1, 2));
  assert_false(admission_outweighs((const double[]){1, 5}, 2, 1, 2));
  assert_true(admission_outweighs((const double[]){2, 6}, 2, 1, 2)); /* exactly two */
  assert_false(admission_outweighs((const double[]){1.99, 6}, 2, 1, 2));
  assert_true(admission_outweighs((const double[]){0, 3}, 2, 1, 1) &&
              !admission_outweighs((const double[]){-0.1, 3}, 2, 1, 1));
  /* of 3, 7 and 2 the mean is 4, known to sqrt(7 / 3) = 1.53: 2.6 standard errors; of 1, 7 and 2 to 1.86: 1.8 */
  assert_true(admission_outweighs((const double[]){3, 7, 2}, 3, 1, 2));
  assert_false(admission_outweighs((const double[]){1, 7, 2}, 3, 1, 2));
  assert_false(admission_outweighs((const double[]){3, 7, 2}, 3, 4, 2));
}

static void as_many_are_admitted_as_time_has_brought(void **state) {
  (void)state;
  struct admission_plan p = {.bounded = true, .first = 3, .spacing_us = 1000};
  const int64_t at[][3] = {{-5, 3, 1000},   {0, 3, 1000},    {1, 3, 1000},   {999, 3, 1000},
                           {1000, 4, 2000}, {1001, 4, 2000}, {2500, 5, 3000}};
  for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
    assert_int_equal(admission_groups(&p, at[i][0]), at[i][1]);
    assert_int_equal(admission_next_us(&p, at[i][0]), at[i][2]);
  }
  assert_int_equal(admission_groups_now(&p, 1000, 4, 0), 5); /* nothing is under way */
  assert_int_equal(admission_groups_now(&p, 1000, 5, 0), 6);
  assert_int_equal(admission_groups_now(&p, 1000, 4, 1), 4);
  assert_int_equal(admission_groups_now(&p, 1000, 3, 0), 4);
  p.spacing_us = 1;
  assert_int_equal(admission_groups(&p, 1), 4);
  assert_int_equal(admission_groups(&p, INT32_MAX - 4), INT32_MAX - 1);
  assert_int_equal(admission_groups(&p, INT32_MAX - 3), INT32_MAX);
  assert_int_equal(admission_groups(&p, INT64_MAX - 3), INT32_MAX);
  p.bounded = false;
  assert_int_equal(admission_groups(&p, 0), INT32_MAX);
  assert_true(admission_next_us(&p, 0) == INT64_MAX);
}

#define CHECK_ADMIT(groups, n, begun, most, ...)                                                             \
  do {                                                                                                       \
    const int32_t want[] = {__VA_ARGS__};                                                                    \
    struct guarded order = guarded_copy((const int32_t[]){0, 1, 2, 3, 4, 5}, (size_t)(n) * sizeof(int32_t)); \
    const int count = (int)(sizeof want / sizeof want[0]) - 1;                                               \
    assert_int_equal(admission_admit(groups, order.at, n, begun, most), count);                              \
    assert_memory_equal(order.at, want, (size_t)count * sizeof want[0]);                                     \
    guarded_free(&order);                                                                                    \
  } while (0)

static void what_was_begun_goes_on_and_the_rest_waits(void **state) {
  (void)state;
  const struct waiting_group g[] = {{.ordinal = 0, .begun = true},
                                    {.ordinal = 1},
                                    {.ordinal = 2, .begun = true},
                                    {.ordinal = 3},
                                    {.ordinal = 4},
                                    {.ordinal = 9000, .evaluation = true}};
  CHECK_ADMIT(g, 6, 2, INT32_MAX, 0, 1, 2, 3, 4, 5, -1);
  CHECK_ADMIT(g, 6, 2, 2, 0, 2, -1); /* evaluation would be in their way */
  CHECK_ADMIT(g, 6, 5, 2, 0, 2, -1);
  CHECK_ADMIT(g, 6, 2, 3, 0, 1, 2, -1);
  CHECK_ADMIT(g, 6, 2, 4, 0, 1, 2, 3, -1);
  CHECK_ADMIT(g, 6, 2, 5, 0, 1, 2, 3, 4, 5, -1);
  const struct waiting_group old[] = {{.ordinal = 0, .begun = true}, {.ordinal = 9000, .evaluation = true}};
  CHECK_ADMIT(old, 2, 1, 1, 0, 1, -1);
}

/* ---- plans ---- */

enum { GROUPS = 24, SAMPLES = 4 };

/* Lengths between 80 and 120, always the same. */
static void lengths(float *out) {
  uint64_t x = 7;
  for (int i = 0; i < GROUPS * SAMPLES; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    out[i] = (float)(80 + (x >> 33) % 41);
  }
}

static struct admission_plan plan_of(const struct admission_facts *f) {
  struct admission_room *room = malloc(sizeof *room);
  struct admission_plan plan;
  assert_non_null(room);
  assert_true(admission_plan(f, room, &plan));
  bool seen[ADMISSION_GROUPS_MAX] = {false};
  for (int32_t i = 0; i < f->groups; i++) { /* every group, once */
    assert_in_range(plan.order[i], 0, f->groups - 1);
    assert_false(seen[plan.order[i]]);
    seen[plan.order[i]] = true;
    if (!plan.ordered) assert_int_equal(plan.order[i], i);
  }
  close_to(admission_play(f, room, &plan), plan.end_us); /* what it promises is what it plays */
  struct admission_plan all = {0};
  for (int32_t g = 0; g < f->groups; g++) all.order[g] = g;
  close_to(admission_play(f, room, &all), plan.filled_end_us);
  assert_true(plan.end_us <= plan.filled_end_us);
  free(room);
  return plan;
}

static void a_plan_costs_no_more_than_it_may(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES];
  lengths(tokens);
  const struct step_costs steep = costs_of(28000, 2000);
  struct admission_facts f = {.costs = &steep,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = GROUPS * SAMPLES,
                              .groups = GROUPS,
                              .samples = SAMPLES,
                              .tokens = tokens,
                              .known = GROUPS,
                              .train_us_per_token = 4000};
  const double play = GROUPS * SAMPLES, eight_us = plan_of(&f).filled_end_us; /* of eight deals, in the mean */
  f.played_per_us = 100.001 * 8 * play / eight_us;
  assert_true(plan_of(&f).bounded);
  f.played_per_us = 99.999 * 8 * play / eight_us;
  const struct admission_plan none = plan_of(&f);
  assert_true(!none.bounded && !none.ordered && none.filled_end_us > 0);
  f.exact = true; /* one deal: as many plays to improve an order as are wanted, or as are left */
  f.played_per_us = 0;
  const struct admission_plan best = plan_of(&f);
  f.played_per_us = 1e9;
  close_to(plan_of(&f).end_us, best.end_us);
  f.played_per_us = 100.001 * play / best.filled_end_us;
  const struct admission_plan quick = plan_of(&f);
  assert_true(quick.bounded && quick.end_us > best.end_us * 1.0001);
  f.played_per_us = 600.001 * play / best.filled_end_us;
  assert_true(plan_of(&f).end_us < quick.end_us);
  f.played_per_us = 99.999 * play / best.filled_end_us;
  assert_false(plan_of(&f).bounded);
}

static void a_round_begins_with_few_where_rows_cost_and_with_all_where_they_do_not(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES];
  lengths(tokens);
  const struct step_costs steep = costs_of(28000, 2000), flat = costs_of(28000, 1);
  struct admission_facts f = {.costs = &steep,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = GROUPS * SAMPLES,
                              .groups = GROUPS,
                              .samples = SAMPLES,
                              .tokens = tokens,
                              .known = GROUPS,
                              .train_us_per_token = 4000};
  const struct admission_plan ramp = plan_of(&f);
  assert_true(ramp.bounded && !ramp.ordered);
  assert_in_range(ramp.first, 1, GROUPS / 2);
  assert_true(ramp.spacing_us > 0 && ramp.spacing_us <= 9 * 4 * 120 * 4000 / 8);
  assert_true(ramp.end_us < ramp.filled_end_us * 0.9);
  f.costs = &flat;
  assert_false(plan_of(&f).bounded);
  f.costs = &steep;
  f.slots = 4; /* a group at a time, whatever is decided */
  assert_false(plan_of(&f).bounded);
  f.slots = GROUPS * SAMPLES;
  f.train_us_per_token = 1; /* generation is all there is to wait for */
  assert_false(plan_of(&f).bounded);
}

static void groups_that_are_told_apart_are_put_in_order(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES];
  lengths(tokens);
  for (int s = 0; s < SAMPLES; s++) tokens[(GROUPS - 1) * SAMPLES + s] = 1500;
  const struct step_costs costs = costs_of(28000, 100);
  struct admission_facts f = {.costs = &costs,
                              .spacing_least_us = 1,
                              .servers = 2,
                              .slots = 8,
                              .groups = GROUPS,
                              .samples = SAMPLES,
                              .tokens = tokens,
                              .known = GROUPS,
                              .train_us_per_token = 500};
  assert_false(plan_of(&f).ordered);
  f.exact = true;
  const struct admission_plan plan = plan_of(&f);
  int at = 0;
  while (plan.order[at] != GROUPS - 1) at++;
  assert_true(plan.ordered && at < 4); /* the longest is not begun last */
  assert_true(plan.end_us < plan.filled_end_us * 0.8);
  for (int s = 0; s < SAMPLES; s++) tokens[(GROUPS - 1) * SAMPLES + s] = 5;
  f.train_us_per_token = 20000; /* the trainer is all there is to wait for: it gets something early */
  const struct admission_plan early = plan_of(&f);
  for (at = 0; early.order[at] != GROUPS - 1;) at++;
  assert_true(at < 4); /* so many are begun at once */
}

/* What each sample may have at most is enough to tell a long group from short ones. */
static void groups_are_told_apart_by_what_they_may_have(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES], caps[1 + GROUPS], *most = &caps[1];
  lengths(tokens);
  for (int i = 0; i < GROUPS * SAMPLES; i++) tokens[i] *= 15;
  for (int g = -1; g < GROUPS; g++) most[g] = 100;
  const struct step_costs costs = costs_of(28000, 100);
  struct admission_facts f = {.costs = &costs,
                                    .spacing_least_us = 1,
                                    .servers = 2,
                                    .slots = 8,
                                    .groups = GROUPS,
                                    .samples = SAMPLES,
                                    .tokens = tokens,
                                    .known = GROUPS,
                                    .train_us_per_token = 500,
                                    .most = most};
  assert_false(plan_of(&f).ordered);
  most[GROUPS - 1] = 1800;
  struct guarded only = guarded_copy(caps, sizeof caps); /* nothing behind them is looked at */
  f.most = (const float *)(const void *)only.at + 1;
  const struct admission_plan plan = plan_of(&f);
  guarded_free(&only);
  int at = 0;
  while (plan.order[at] != GROUPS - 1) at++;
  assert_true(plan.ordered && at < 4); /* the longest is not begun last */
}

/* One slot, lengths that grow by the ordinal, and time to play no more than the first plans. */
static void the_shortest_or_the_longest_go_first_altogether(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  const struct step_costs costs = costs_of(100, 1);
  float tokens[GROUPS];
  struct admission_plan plan;
  struct admission_facts f = {.costs = &costs,
                              .spacing_least_us = 1,
                              .servers = 1,
                              .slots = 1,
                              .train_us_per_token = 102,
                              .groups = GROUPS,
                              .samples = 1,
                              .tokens = tokens,
                              .known = GROUPS,
                              .exact = true};
  assert_non_null(room);
  for (int g = 0; g < GROUPS; g++) tokens[g] = (float)(100 * (GROUPS - g));
  f.played_per_us = 100.001 * GROUPS / plan_of(&f).filled_end_us;
  assert_true(admission_plan(&f, room, &plan)); /* the shortest: the trainer is the slower one */
  assert_true(plan.ordered && !plan.bounded);
  for (int i = 0; i < GROUPS; i++) assert_int_equal(plan.order[i], GROUPS - 1 - i);
  for (int g = 0; g < GROUPS - 1; g++) tokens[g] = (float)(GROUPS - 1 - g) / 100;
  tokens[GROUPS - 1] = 100; /* the longest: it needs a slot from beginning to end */
  f.train_us_per_token = 0.001;
  f.slots = 2;
  f.played_per_us = 100.001 * GROUPS / plan_of(&f).filled_end_us;
  assert_true(admission_plan(&f, room, &plan));
  assert_true(plan.ordered && !plan.bounded);
  for (int i = 0; i < GROUPS; i++) {
    assert_int_equal(plan.order[i], i == 0 ? GROUPS - 1 : i - 1);
    assert_int_equal(room->by_length[GROUPS - 1 - i], plan.order[i]); /* lengths below one token, too */
  }
  free(room);
}

/* Two groups, one slot each, and a trainer that takes longer than generation: with one row less one is ready sooner. */
static struct admission_plan plan_of_two(int64_t lone, int64_t both) {
  const struct step_costs costs = costs_of(2 * lone - both, both - lone);
  const float tokens[] = {100, 100};
  return plan_of(&(struct admission_facts){.costs = &costs,
                                           .spacing_least_us = 1,
                                           .servers = 1,
                                           .slots = 2,
                                           .train_us_per_token = 1.33 * (double)lone,
                                           .groups = 2,
                                           .samples = 1,
                                           .tokens = tokens,
                                           .known = 2,
                                           .exact = true});
}

static void a_step_that_hardly_grows_is_worth_no_ramp(void **state) {
  (void)state;
  assert_false(plan_of_two(1000, 1049).bounded);
  const struct admission_plan plan = plan_of_two(1000, 1050);
  assert_true(plan.bounded);
  assert_int_equal(plan.first, 1);
}

/* Few samples are very long, and a plan was found that is 6 % better in the deals at hand: in others it is not. */
static void what_suits_some_deals_only_is_not_planned(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES], scale[GROUPS];
  const struct step_costs costs = costs_of(28000, 2000);
  uint64_t x = 11;
  for (int i = 0; i < GROUPS * SAMPLES; i++) tokens[i] = draw(&x, 0, 19) ? 300 : 4000;
  for (int g = 0; g < GROUPS; g++) scale[g] = 1 + (float)draw(&x, 0, 10) / 1000;
  const struct admission_facts f = {.costs = &costs,
                                    .spacing_least_us = 1,
                                    .servers = 2,
                                    .slots = 48,
                                    .train_us_per_token = 500,
                                    .groups = GROUPS,
                                    .samples = SAMPLES,
                                    .tokens = tokens,
                                    .known = GROUPS,
                                    .scale = scale};
  const struct admission_plan plan = plan_of(&f);
  assert_false(plan.ordered || plan.bounded);
}

/* Whatever was measured, a plan lets its last group begin before a round without one would have ended. */
static void every_group_is_admitted_in_the_end(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  uint64_t x = 3;
  int bounded = 0;
  assert_non_null(room);
  for (int i = 0; i < 300; i++) {
    float tokens[256];
    const struct step_costs costs = costs_of(draw(&x, 0, 3) * 10000, 1 + draw(&x, 0, 3) * 3000);
    const struct admission_facts f = {.costs = &costs,
                                      .servers = draw(&x, 1, 3),
                                      .slots = draw(&x, 1, 64),
                                      .train_us_per_token = draw(&x, 0, 9) ? draw(&x, 1, 20000) : 1e12,
                                      .spacing_least_us = 1 + draw(&x, 0, 2) * 100000,
                                      .groups = draw(&x, 1, 24),
                                      .samples = draw(&x, 1, 8),
                                      .tokens = tokens,
                                      .known = 24,
                                      .exact = false};
    const int longest = draw(&x, 0, 9) ? draw(&x, 1, 200) : 0;
    for (int t = 0; t < 24 * f.samples; t++) tokens[t] = (float)draw(&x, 0, longest);
    struct admission_plan p;
    assert_true(admission_plan(&f, room, &p));
    if (!p.bounded) continue;
    bounded++;
    assert_in_range(p.first, 1, f.groups - 1);
    assert_true(p.spacing_us >= 1 && p.spacing_us >= f.spacing_least_us && p.spacing_us <= 1000000000000);
    assert_true(admission_groups(&p, (int64_t)p.filled_end_us) >= f.groups);
    int32_t begun = 0; /* and, while the pool stands still, in no time */
    while (begun < f.groups) {
      const int32_t most = admission_groups_now(&p, 0, begun, 0);
      assert_true(most > begun);
      begun = most;
    }
  }
  assert_true(bounded > 20);
  free(room);
}

/* What is planned is always the same, to the microsecond: found once, and held against better ones by make sim. */
static void a_plan_is_always_the_same(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES];
  lengths(tokens);
  for (int g = 0; g < GROUPS; g += 5)
    for (int s = 0; s < SAMPLES; s++) tokens[g * SAMPLES + s] *= 3;
  const struct {
    int64_t row;
    int servers, slots;
    double train;
    bool exact;
    int bounded, first;
    int64_t spacing_us;
    int end_ms, order;
  } known[] = {
      {2000, 1, 96, 4000, false, 1, 6, 2049487, 66646, 745588},
      {2000, 1, 96, 4000, true, 1, 5, 1672125, 61868, 402030},
      {2000, 2, 48, 1000, false, 0, 0, 0, 30238, 745588},
      {2000, 2, 48, 1000, true, 1, 13, 627047, 28115, 406269},
      {500, 1, 96, 8000, false, 1, 4, 4098974, 116285, 745588},
      {500, 1, 96, 8000, true, 1, 3, 3344250, 110585, 579967},
      {4000, 1, 60, 16000, false, 1, 3, 7026813, 233011, 745588},
      {4000, 1, 60, 16000, true, 1, 3, 6688500, 221780, 766958},
      {100, 2, 8, 500, true, 0, 0, 0, 25079, 394465},
      {100, 2, 8, 4000, true, 0, 0, 0, 56589, 519042},
      {8000, 1, 96, 30000, false, 1, 3, 13175274, 434218, 745588},
      {8000, 3, 33, 30000, true, 1, 2, 12540938, 406314, 496399},
      {1000, 1, 48, 3000, false, 1, 6, 1317528, 48681, 745588},
      {1000, 1, 48, 3000, true, 1, 5, 1463110, 45578, 521238},
      {3000, 1, 32, 6000, false, 1, 4, 2635055, 96607, 745588},
      {2500, 1, 36, 3500, false, 0, 0, 0, 68443, 745588},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    const struct step_costs costs = costs_of(28000, known[i].row);
    const struct admission_facts f = {.costs = &costs,
                                      .spacing_least_us = 1,
                                      .servers = known[i].servers,
                                      .slots = known[i].slots,
                                      .train_us_per_token = known[i].train,
                                      .groups = GROUPS,
                                      .samples = SAMPLES,
                                      .tokens = tokens,
                                      .known = GROUPS,
                                      .exact = known[i].exact};
    const struct admission_plan p = plan_of(&f);
    int order = 0;
    for (int g = 0; g < GROUPS; g++) order = (order * 31 + p.order[g]) % 1000003;
    if (p.bounded != known[i].bounded || p.first != known[i].first || p.spacing_us != known[i].spacing_us ||
        (int)(p.end_us / 1000) != known[i].end_ms || order != known[i].order)
      fail_msg("case %zu: %d, %d, %lld, %d, %d", i, p.bounded, p.first, (long long)p.spacing_us, (int)(p.end_us / 1000),
               order);
  }
}

/* Likewise of hundreds of rounds together: how many plans of each kind, first groups and spacings, and their gain. */
static void plans_of_many_rounds_are_always_the_same(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  uint64_t x = 5;
  int ordered = 0, bounded = 0, first = 0;
  int64_t spacing_us = 0;
  double ends = 0, gained = 0;
  assert_non_null(room);
  for (int i = 0; i < 90; i++) {
    float tokens[24 * 6], most[24], scale[24];
    const struct step_costs costs = costs_of(draw(&x, 1, 3) * 10000, 1 + draw(&x, 0, 4) * draw(&x, 0, 2000));
    struct admission_facts f = {.costs = &costs,
                                .spacing_least_us = 1 + draw(&x, 0, 1) * 100000,
                                .servers = draw(&x, 1, 3),
                                .slots = draw(&x, 1, 80),
                                .groups = draw(&x, 2, 24),
                                .samples = draw(&x, 1, 6),
                                .tokens = tokens};
    const int kind = draw(&x, 0, 3), spread = draw(&x, 1, 10);
    f.known = kind == 0 ? f.groups : 24;
    f.exact = kind == 0;
    f.most = kind == 1 ? most : NULL;
    f.scale = kind == 2 ? scale : NULL;
    f.groups_per_step = draw(&x, 0, 3) ? 0 : draw(&x, 1, f.groups);
    for (int t = 0; t < 24 * f.samples; t++) tokens[t] = (float)(draw(&x, 1, 100) * draw(&x, 1, spread));
    for (int g = 0; g < 24; g++) {
      most[g] = (float)draw(&x, 50, 50 * spread);
      scale[g] = (float)draw(&x, 10, 10 * spread) / 10;
    }
    f.train_us_per_token = (double)draw(&x, 20, 100) * 10000 / (f.servers * f.slots);
    f.played_per_us = 1e-3 * draw(&x, 0, 2);
    struct admission_plan p;
    assert_true(admission_plan(&f, room, &p));
    ordered += p.ordered;
    bounded += p.bounded;
    first += p.first;
    spacing_us += p.spacing_us;
    ends += p.end_us;
    gained += 1 - p.end_us / p.filled_end_us;
  }
  free(room);
  assert_int_equal(ordered, 27);
  assert_int_equal(bounded, 25);
  assert_int_equal(first, 105);
  assert_int_equal(spacing_us, 130043056);
  close_to(ends, 16680558990.762367);
  close_to(gained, 1.5521700314923574);
}

/* Small rounds whose plan is another when the search goes further, or less far, or takes the other of two equals. */
static void plans_that_are_near_each_other_are_told_apart(void **state) {
  (void)state;
  const struct {
    unsigned seed;
    int bounded, ordered, first;
    int64_t spacing_us;
  } known[] = {{25, 1, 0, 1, 85357},   {39, 0, 1, 0, 0},         {43, 1, 1, 1, 1008965},  {211, 1, 1, 3, 557913},
               {249, 1, 1, 2, 227459}, {1179, 1, 1, 2, 105218}, {1809, 1, 1, 3, 1009434}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    float tokens[24 * 4];
    uint64_t x = known[i].seed * 7919 + 1;
    draw(&x, 0, 1);
    const int64_t base = draw(&x, 0, 3) * 10000 + 100, more = draw(&x, 0, 3), row = 1 + more * draw(&x, 1, 3000);
    const struct step_costs costs = costs_of(base, row);
    struct admission_facts f = {.costs = &costs, .spacing_least_us = 1, .servers = 1, .tokens = tokens};
    f.slots = draw(&x, 1, 24);
    f.groups = draw(&x, 2, 12);
    f.samples = draw(&x, 1, 4);
    f.exact = draw(&x, 0, 1);
    f.known = f.exact ? f.groups : 24;
    if (!draw(&x, 0, 3)) f.slots = f.groups * f.samples;
    const int spread = draw(&x, 1, 6);
    for (int t = 0; t < 24 * f.samples; t++) {
      const int times = draw(&x, 1, 20);
      tokens[t] = (float)(times * draw(&x, 1, spread));
    }
    f.train_us_per_token = draw(&x, 1, 40) * (double)(base + row * f.slots) / f.slots / 10;
    if (draw(&x, 0, 1)) f.played_per_us = 100.001 * f.groups * f.samples / plan_of(&f).filled_end_us;
    const struct admission_plan p = plan_of(&f);
    if (p.bounded != known[i].bounded || p.ordered != known[i].ordered || p.first != known[i].first ||
        p.spacing_us != known[i].spacing_us)
      fail_msg("round %u: %d, %d, %d, %lld", known[i].seed, p.bounded, p.ordered, p.first, (long long)p.spacing_us);
  }
}

static void an_order_is_improved_by_what_the_play_says(void **state) {
  (void)state;
  struct admission_room *room = malloc(sizeof *room);
  const struct step_costs costs = costs_of(0, 100);
  const float three[] = {30, 20, 10};
  const struct admission_facts f = {.costs = &costs,
                                    .spacing_least_us = 1,
                                    .servers = 1,
                                    .slots = 1,
                                    .train_us_per_token = 200,
                                    .groups = 3,
                                    .samples = 1,
                                    .tokens = three,
                                    .known = 3,
                                    .exact = true};
  struct admission_plan plan;
  assert_non_null(room);
  assert_true(admission_plan(&f, room, &plan));
  struct admission_plan p = {.order = {0, 1, 2}};
  p.end_us = admission_play(&f, room, &p);
  close_to(p.end_us, 3000 + 60 * 200);
  admission_improve(&f, room, &p, 0);
  assert_int_equal(p.order[0], 0);
  admission_improve(&f, room, &p, 200);
  close_to(p.end_us, 1000 + 60 * 200); /* the shortest first: the trainer never waits again */
  assert_true(p.ordered);
  assert_int_equal(p.order[0], 2);
  close_to(plan.end_us, 1000 + 60 * 200);
  free(room);
}

static void nothing_is_planned_while_something_is_not_known(void **state) {
  (void)state;
  float tokens[GROUPS * SAMPLES];
  lengths(tokens);
  const struct step_costs steep = costs_of(28000, 2000), none = {0};
  const struct admission_facts good = {.costs = &steep,
                                       .spacing_least_us = 1,
                                       .servers = 1,
                                       .slots = GROUPS * SAMPLES,
                                       .groups = GROUPS,
                                       .samples = SAMPLES,
                                       .tokens = tokens,
                                       .known = GROUPS,
                                       .train_us_per_token = 4000};
  struct admission_facts bad[12];
  for (size_t i = 0; i < 12; i++) bad[i] = good;
  bad[0].costs = &none;
  bad[1].servers = 0;
  bad[2].slots = 0;
  bad[3].groups = 0;
  bad[4].samples = 0;
  bad[5].train_us_per_token = 0;
  bad[6].groups = ADMISSION_GROUPS_MAX + 1;
  bad[6].samples = 1;
  bad[7].samples = ADMISSION_SAMPLES_MAX / GROUPS + 1;
  bad[8].samples = INT32_MAX / 4;
  bad[9].train_us_per_token = -1;
  bad[10].known = 0;
  bad[11].spacing_least_us = 0;
  struct admission_room *room = malloc(sizeof *room);
  assert_non_null(room);
  for (size_t i = 0; i < 12; i++) {
    struct admission_plan plan = {.bounded = true, .ordered = true, .first = 1, .spacing_us = 1};
    if (admission_plan(&bad[i], room, &plan)) fail_msg("case %zu is planned", i);
    assert_false(plan.bounded || plan.ordered);
  }
  free(room);
}

static void the_largest_round_that_is_planned_fits(void **state) {
  (void)state;
  static float tokens[ADMISSION_SAMPLES_MAX];
  for (int i = 0; i < ADMISSION_SAMPLES_MAX; i++) tokens[i] = (float)(1 + i % 7);
  const struct step_costs flat = costs_of(1000000, 1);
  struct admission_facts f = {.costs = &flat,
                              .spacing_least_us = 1,
                              .servers = 4,
                              .slots = 4096,
                              .groups = ADMISSION_GROUPS_MAX,
                              .samples = ADMISSION_SAMPLES_MAX / ADMISSION_GROUPS_MAX,
                              .tokens = tokens,
                              .known = ADMISSION_GROUPS_MAX,
                              .train_us_per_token = 1};
  assert_false(plan_of(&f).bounded);
  f.groups = f.samples = f.known = 1;
  f.exact = true;
  assert_false(plan_of(&f).bounded);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_play_goes_as_the_pool_does),
      cmocka_unit_test(a_ramp_begins_groups_one_after_another),
      cmocka_unit_test(a_play_is_what_a_slow_one_is),
      cmocka_unit_test(steps_are_trained_in_their_order),
      cmocka_unit_test(a_plan_costs_no_more_than_it_may),
      cmocka_unit_test(lengths_of_other_groups_are_dealt_out),
      cmocka_unit_test(groups_are_told_apart_by_what_they_may_have),
      cmocka_unit_test(the_shortest_or_the_longest_go_first_altogether),
      cmocka_unit_test(a_step_that_hardly_grows_is_worth_no_ramp),
      cmocka_unit_test(what_suits_some_deals_only_is_not_planned),
      cmocka_unit_test(a_round_is_dealt_out_the_more_often_the_smaller_it_is),
      cmocka_unit_test(a_gain_must_be_more_than_chance),
      cmocka_unit_test(as_many_are_admitted_as_time_has_brought),
      cmocka_unit_test(what_was_begun_goes_on_and_the_rest_waits),
      cmocka_unit_test(a_round_begins_with_few_where_rows_cost_and_with_all_where_they_do_not),
      cmocka_unit_test(groups_that_are_told_apart_are_put_in_order),
      cmocka_unit_test(every_group_is_admitted_in_the_end),
      cmocka_unit_test(a_plan_is_always_the_same),
      cmocka_unit_test(plans_of_many_rounds_are_always_the_same),
      cmocka_unit_test(plans_that_are_near_each_other_are_told_apart),
      cmocka_unit_test(an_order_is_improved_by_what_the_play_says),
      cmocka_unit_test(nothing_is_planned_while_something_is_not_known),
      cmocka_unit_test(the_largest_round_that_is_planned_fits),
  };
  return cmocka_run_group_tests_name("coordinator/admission", tests, NULL, NULL);
}
