/* The cost of a decode step as a function of its number of rows, as the pool measures it.
 *
 *   slot:   0  1  2    3    4     5      6 ...       rows up to 1, 2, 4, 8 ... : slot = ceil(log2 rows)
 *   holds:  sums of steps, of their rows and of their microseconds, in which the past fades
 *
 * Generation-servers add up their steps in such a table and report it by heartbeat; the coordinator notes what was
 * added since the last one.  The cost of any number of rows is read between the slots' means, by straight lines.
 *
 * Written by route_workers.c, read by admission.c, both on the writer's thread.  Pure: time is an argument. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_STEP_COST_H
#define LEASEHOLD_COORDINATOR_DECIDE_STEP_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_COST_SLOTS = 16 }; /* the last one takes whatever is more */

/* Zero-initialized: nothing is known. */
struct step_costs {
  struct step_cost {
    double steps, rows, us;
  } slots[STEP_COST_SLOTS];
  int64_t at_ms;
};

/* Adds steps of one slot: `rows` and `us` are sums over them.  Sums that cannot be (no steps, no time, rows that belong
 * to another slot) are left out. */
void step_costs_note(struct step_costs *c, int slot, int64_t steps, int64_t rows, int64_t us, int64_t now_ms);

/* Steps of two sizes at least were measured. */
bool step_costs_known(const struct step_costs *c);

/* Microseconds of a step of `rows` rows; never fewer for more rows.  Beyond the measured ones the line goes on.  Only
 * when costs are known. */
double step_costs_us(const struct step_costs *c, double rows);

#endif
