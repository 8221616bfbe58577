/* Sums of steps by rows that fade, and lines between their means: see step_cost.h. */
#include "services/coordinator/decide/step_cost.h"

#include <math.h>

#define HALF_LIFE_MS 300000.0
#define STEPS_LEAST  2.0 /* what has faded to less is forgotten: it may be another model's */

struct mean {
  double rows, us;
};

static double slot_rows_max(int slot) { return ldexp(1, slot); }
static double slot_rows_above(int slot) { return slot ? ldexp(1, slot - 1) : 0; }

void step_costs_note(struct step_costs *c, int slot, int64_t steps, int64_t rows, int64_t us, int64_t now_ms) {
  if (slot < 0 || slot >= STEP_COST_SLOTS || steps <= 0 || us <= 0) return;
  const double mean = (double)rows / (double)steps;
  if (mean <= slot_rows_above(slot) || (slot < STEP_COST_SLOTS - 1 && mean > slot_rows_max(slot))) return;
  const double faded = now_ms > c->at_ms ? exp2(-(double)(now_ms - c->at_ms) / HALF_LIFE_MS) : 1;
  for (int i = 0; i < STEP_COST_SLOTS; i++) {
    c->slots[i].steps *= faded;
    c->slots[i].rows *= faded;
    c->slots[i].us *= faded;
  }
  if (now_ms > c->at_ms) c->at_ms = now_ms;
  c->slots[slot].steps += (double)steps;
  c->slots[slot].rows += (double)rows;
  c->slots[slot].us += (double)us;
}

/* The means by growing rows; a step never takes less for more rows. */
static int means(const struct step_costs *c, struct mean out[STEP_COST_SLOTS]) {
  int n = 0;
  for (int i = 0; i < STEP_COST_SLOTS; i++) {
    const struct step_cost *s = &c->slots[i];
    if (s->steps < STEPS_LEAST) continue;
    const double us = s->us / s->steps;
    out[n] = (struct mean){s->rows / s->steps, n && us < out[n - 1].us ? out[n - 1].us : us};
    n++;
  }
  return n;
}

bool step_costs_known(const struct step_costs *c) {
  struct mean all[STEP_COST_SLOTS];
  return means(c, all) >= 2;
}

double step_costs_us(const struct step_costs *c, double rows) {
  struct mean all[STEP_COST_SLOTS];
  const int n = means(c, all);
  int i = 1;
  if (rows <= all[0].rows) return all[0].us;
  while (i < n - 1 && rows > all[i].rows) i++;
  const double slope = (all[i].us - all[i - 1].us) / (all[i].rows - all[i - 1].rows);
  return all[i - 1].us + slope * (rows - all[i - 1].rows);
}
