/* Measurements that admission plans with: see pace.h. */
#include "services/coordinator/pool/pace.h"

#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/writer/core_options.h"

static_assert((int)WIRE_STEP_SLOTS == (int)STEP_COST_SLOTS, "the wire's table is the one that is decided by");

/* The writer's thread plays about ten samples a microsecond, and may plan for a hundredth of the round. */
#define PLAYED_PER_US 0.1

void pace_note_steps(struct pace *p, struct steps_seen *seen, const struct step_sum *items, size_t count,
                     int64_t now_ms) {
  for (size_t i = 0; i < count; i++) {
    const struct step_sum *s = &items[i];
    step_costs_note(&p->costs, s->slot, s->steps - seen->steps[s->slot], s->rows - seen->rows[s->slot],
                    s->us - seen->us[s->slot], now_ms);
    seen->steps[s->slot] = s->steps;
    seen->rows[s->slot] = s->rows;
    seen->us[s->slot] = s->us;
  }
}

void pace_note_group(struct pace *p, int64_t run, const int32_t *lengths, int count) {
  if (count < 1 || count > ADMISSION_SAMPLES_MAX) return;
  if (run != p->run || count != p->samples) p->groups = p->next = 0;
  p->run = run;
  p->samples = count;
  const int32_t most =
      ADMISSION_SAMPLES_MAX / count < ADMISSION_GROUPS_MAX ? ADMISSION_SAMPLES_MAX / count : ADMISSION_GROUPS_MAX;
  for (int i = 0; i < count; i++) p->lengths[p->next * count + i] = (float)lengths[i];
  p->next = (p->next + 1) % most;
  if (p->groups < most) p->groups++;
}

int32_t pace_place(const struct pace *p, int32_t ordinal) {
  return ordinal < ADMISSION_GROUPS_MAX ? p->place[ordinal] : 0;
}

bool pace_planned(const struct pace *p, int64_t run, int64_t round) {
  return p->plan_run == run && p->plan_round == round;
}

static float mean_of(const float *values, int32_t n) {
  float sum = 0;
  for (int32_t i = 0; i < n; i++) sum += values[i];
  return sum / (float)n;
}

/* Each group is dealt the spread of one of the last groups around what is expected of its own prompt; where that is not
 * known, around what groups have in the mean. */
static void expect_each(struct pace *p, const struct pace_round *r, struct admission_facts *f) {
  const float general = mean_of(p->lengths, p->groups * p->samples);
  for (int32_t k = 0; k < p->groups; k++) {
    const float *const lengths = &p->lengths[k * p->samples], mean = mean_of(lengths, p->samples);
    for (int32_t s = 0; s < p->samples; s++) p->played[k * p->samples + s] = mean > 0 ? lengths[s] / mean : 1;
  }
  for (int32_t g = 0; g < r->groups; g++) p->scale[g] = r->expected[g] > 0 ? r->expected[g] : general;
  f->tokens = p->played;
  f->scale = p->scale;
}

/* The lengths that a plan goes by; false: not known. */
static bool lengths_known(struct pace *p, const struct pace_round *r, struct admission_facts *f) {
  if (!r->exact) {
    f->tokens = p->lengths;
    f->known = p->groups;
    if (p->run != r->run || p->samples != r->samples || p->groups < r->groups) return false;
    if (r->expected) expect_each(p, r, f);
    return true;
  }
  if (r->groups > ADMISSION_GROUPS_MAX || (int64_t)r->groups * r->samples > ADMISSION_SAMPLES_MAX) return false;
  for (int32_t i = 0; i < r->groups * r->samples; i++) p->played[i] = r->most[i / r->samples];
  f->tokens = p->played;
  f->known = r->groups;
  f->exact = true;
  return true;
}

static void plan_round(struct pace *p, const struct pace_round *r) {
  const double tokens = r->tokens * r->samples;
  if (!r->wanted || r->begun || !(r->groups_per_s > 0) || !(tokens > 0) || r->servers < 1) return;
  struct admission_facts f = {.costs = &p->costs,
                              .servers = r->servers,
                              .slots = r->slots / r->servers,
                              .train_us_per_token = 1e6 / (r->groups_per_s * tokens),
                              .spacing_least_us = CORE_POLLS_SPACING_US,
                              .groups = r->groups,
                              .samples = r->samples,
                              .most = r->most,
                              .groups_per_step = r->groups_per_step,
                              .played_per_us = PLAYED_PER_US};
  if (!lengths_known(p, r, &f) || !admission_plan(&f, &p->room, &p->plan)) return;
  for (int32_t i = 0; p->plan.ordered && i < r->groups; i++) p->place[p->plan.order[i]] = i + 1;
}

const struct admission_plan *pace_plan(struct pace *p, const struct pace_round *r, int64_t now_ms) {
  if (pace_planned(p, r->run, r->round)) return &p->plan;
  p->plan_run = r->run;
  p->plan_round = r->round;
  p->opened_ms = now_ms;
  p->plan = (struct admission_plan){0};
  memset(p->place, 0, sizeof p->place);
  plan_round(p, r);
  p->admitted = admission_groups(&p->plan, 0); /* so that what is admitted before the next tick counts as more */
  if (p->plan.bounded)
    log_info("round %lld begins with %d groups and another every %lld ms", (long long)r->round, p->plan.first,
             (long long)(p->plan.spacing_us / 1000));
  return &p->plan;
}

int32_t pace_groups(const struct pace *p, int64_t now_ms, int32_t begun, int32_t under_way) {
  return admission_groups_now(&p->plan, 1000 * (now_ms - p->opened_ms), begun, under_way);
}

bool pace_moved(struct pace *p, int64_t now_ms) {
  const int32_t before = p->admitted;
  p->admitted = admission_groups(&p->plan, 1000 * (now_ms - p->opened_ms));
  return p->admitted > before;
}
