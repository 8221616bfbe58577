/* Cuts waiting samples into leases, and bounds how many of them one poll may take. */
#include "services/coordinator/decide/dispatch.h"

int dispatch_share(int waiting, int servers_ready, int slots_free, int held_here, int held) {
  if (servers_ready < 1) servers_ready = 1;
  int64_t share = ((int64_t)waiting + held + servers_ready - 1) / servers_ready - held_here;
  if (share < 1) share = 1;
  if (share > waiting) share = waiting;
  return slots_free < share ? slots_free : (int)share;
}

int dispatch_plan(const struct waiting_sample *waiting, int n, int samples_max, int lease_samples_max,
                  struct planned_lease *out, int leases_max) {
  int leases = 0;
  for (int i = 0; i < n && i < samples_max; i++) {
    const struct waiting_sample *w = &waiting[i];
    struct planned_lease *last = leases ? &out[leases - 1] : 0;
    if (last && last->group == w->group && last->first + last->count == w->sample &&
        (lease_samples_max == 0 || last->count < lease_samples_max)) {
      last->count++;
      if (w->fence + 1 > last->fence) last->fence = w->fence + 1;
      continue;
    }
    if (leases == leases_max) break;
    out[leases++] = (struct planned_lease){.group = w->group, .first = w->sample, .count = 1, .fence = w->fence + 1};
  }
  return leases;
}
