/* A mean over a set's problems, and its 95 % interval.
 *
 *   n problems with values x in [0, 1]  -->  mean, and Wilson's score interval with the effective number of problems
 *
 * Problems are what is drawn, so samples of one problem count together.  For values of 0 and 1 the variance over
 * problems is p (1 - p), and this is Wilson's interval (1927).  Where values vary less, because a problem's value is a
 * mean over samples itself, as many independent zeros and ones as would give the mean the same variance stand for them:
 *
 *   m = p (1 - p) / (variance / n), which is n or more, at most `draws`     (Kish's design effect; m = n where p is 0 or 1)
 *   (p + z^2/2m -+ z sqrt(p (1-p) / m + z^2/4m^2)) / (1 + z^2/m),  z = 1.959964
 *
 * It never leaves [0, 1], and one of ten right answers out of ten does not claim certainty.  Pure, any thread. */
#ifndef LEASEHOLD_COORDINATOR_EVALUATION_INTERVAL_H
#define LEASEHOLD_COORDINATOR_EVALUATION_INTERVAL_H

#include <stdint.h>

struct item_sums {
  int64_t count;
  double sum, squares;
};
struct figure {
  double value, low, high;
};

void item_sums_add(struct item_sums *s, double value);
/* draws: independent results behind all values, at least count.  count 0: all NaN. */
struct figure figure_of(const struct item_sums *s, double draws);

#endif
