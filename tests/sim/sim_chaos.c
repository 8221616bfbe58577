/* Thousands of small rounds full of accidents, each seed's under every policy, sync, and without accidents: every
 * promise of world.h is kept, and the same seed trains the same groups into the same weights.  As many runs in flight
 * keep theirs.
 *
 * sim_chaos [seeds [first]].  Ends with status 1 when a promise is broken, or when the accidents did not happen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

enum { SEEDS = 160 };

static void tell(const char *what, int seeds, const struct world_result *sum) {
  printf(
      "%d seeds under %s: %d rounds, %d groups trained in %lld batches, %lld messages lost, %lld doubled;\n"
      "  %lld samples granted, %lld of them again, %lld handed back half done, %lld continued; %lld results refused, "
      "%lld\n"
      "  repeated; %lld lives of trainers\n",
      seeds, what, sum->round_count, sum->trained_groups, (long long)sum->batches, (long long)sum->lost,
      (long long)sum->doubled, (long long)sum->granted, (long long)sum->regranted, (long long)sum->partial,
      (long long)sum->resumed, (long long)sum->refused, (long long)sum->repeated, (long long)sum->trainers);
}

int main(int argc, char **argv) {
  static struct world_result sum, flying;
  const int seeds = argc > 1 ? atoi(argv[1]) : SEEDS;
  const uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  struct world *w = world_create();
  if (!w) return 1;
  for (uint64_t seed = first; seed < first + (uint64_t)seeds && !sum.fault[0]; seed++) {
    world_chaos(w, seed, &sum);
    if (!sum.fault[0]) world_chaos_inflight(w, seed, &flying);
    if (flying.fault[0]) memcpy(sum.fault, flying.fault, sizeof sum.fault);
  }
  world_destroy(w);
  tell("5 policies", seeds, &sum);
  printf("  %lld groups overtaken, %lld served for their age, %lld inner steps\n", (long long)sum.overtaken,
         (long long)sum.aged, (long long)sum.inner_steps);
  tell("3 kinds of `inflight`", seeds, &flying);
  printf(
      "  %lld times a sample ran on under another version, %lld samples of several versions trained; %lld finished "
      "samples "
      "too old and drawn again, %lld groups left out; %lld versions skipped\n",
      (long long)flying.swapped, (long long)flying.mixed, (long long)flying.again, (long long)flying.lagged,
      (long long)flying.skipped);
  if (sum.fault[0]) printf("BROKEN %s\n", sum.fault);
  const bool met =
      seeds < SEEDS ||
      (sum.regranted > 1000 && sum.partial > 100 && sum.refused > 100 && sum.repeated > 1000 && sum.overtaken > 100 &&
       sum.aged > 50 && flying.regranted > 1000 && flying.resumed > 100 && flying.refused > 100 &&
       flying.mixed > 1000 && flying.again > 100 && flying.lagged > 100 && flying.skipped > 40);
  if (!met) printf("BROKEN: the accidents did not put it to the test\n");
  return sum.fault[0] || !met;
}
