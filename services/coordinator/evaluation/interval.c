/* Means of problems, with Wilson's intervals. */
#include "services/coordinator/evaluation/interval.h"

#include <math.h>

void item_sums_add(struct item_sums *s, double value) {
  s->count++;
  s->sum += value;
  s->squares += value * value;
}

/* How many independent zeros and ones the values are worth. */
static double effective_count(const struct item_sums *s, double p, double draws) {
  const double n = (double)s->count, variance = s->squares / n - p * p;
  if (p <= 0 || p >= 1) return n;
  const double m = variance > 0 ? n * p * (1 - p) / variance : draws;
  return m < draws ? m : draws;
}

struct figure figure_of(const struct item_sums *s, double draws) {
  const double z = 1.959963984540054;
  if (s->count == 0) return (struct figure){NAN, NAN, NAN};
  const double p = s->sum / (double)s->count, m = effective_count(s, p, draws);
  const double centre = p + z * z / (2 * m), half = z * sqrt(p * (1 - p) / m + z * z / (4 * m * m)),
               all = 1 + z * z / m;
  /* rounding may take an end past p, where p is 0 or 1 */
  return (struct figure){
      .value = p, .low = fmin(p, fmax(0, (centre - half) / all)), .high = fmax(p, fmin(1, (centre + half) / all))};
}
