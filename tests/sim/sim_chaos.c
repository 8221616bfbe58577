/* Thousands of small rounds full of accidents, each seed's under every policy, sync, and without accidents: every promise of
 * world.h is kept, and the same seed trains the same groups into the same weights.
 *
 * sim_chaos [seeds [first]].  Ends with status 1 when a promise is broken, or when the accidents did not happen. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world.h"

enum { SEEDS = 160 };

int main(int argc, char **argv) {
  static struct world_result sum;
  const int seeds = argc > 1 ? atoi(argv[1]) : SEEDS;
  const uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  struct world *w = world_create();
  if (!w) return 1;
  for (uint64_t seed = first; seed < first + (uint64_t)seeds && !sum.fault[0]; seed++) world_chaos(w, seed, &sum);
  world_destroy(w);
  printf(
      "%d seeds under 5 policies: %d rounds, %d groups trained in %lld batches and %lld inner steps, %lld messages "
      "lost,\n"
      "%lld doubled; %lld samples granted, %lld of them again, %lld handed back half done, %lld continued; %lld "
      "results\n"
      "refused, %lld repeated; %lld groups overtaken, %lld served for their age; %lld lives of trainers\n",
      seeds, sum.round_count, sum.trained_groups, (long long)sum.batches, (long long)sum.inner_steps,
      (long long)sum.lost, (long long)sum.doubled, (long long)sum.granted, (long long)sum.regranted,
      (long long)sum.partial, (long long)sum.resumed, (long long)sum.refused, (long long)sum.repeated,
      (long long)sum.overtaken, (long long)sum.aged, (long long)sum.trainers);
  if (sum.fault[0]) printf("BROKEN %s\n", sum.fault);
  const bool met = seeds < SEEDS || (sum.regranted > 1000 && sum.partial > 100 && sum.refused > 100 &&
                                     sum.repeated > 1000 && sum.overtaken > 100 && sum.aged > 50);
  if (!met) printf("BROKEN: the accidents did not put it to the test\n");
  return sum.fault[0] || !met;
}
