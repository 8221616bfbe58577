/* Decides by age who enters a slot, how many rows each sample gets and who is preempted.  No clock, no pool, no state:
 * everything is in the arguments. */
#include "services/generation-server/engine/scheduler.h"

#include <stdint.h>

int scheduler_admit(const struct sched_item *items, int count, int slots_free, int pages_free) {
  if (slots_free <= 0) return -1;
  int running = 0;
  int64_t promised = 0;
  for (int i = 0; i < count; i++) {
    if (!items[i].running) continue;
    running++;
    promised += items[i].pages_needed + 1;
  }
  for (int i = 0; i < count; i++) {
    if (items[i].running || items[i].blocked) continue;
    const bool fits = promised + items[i].pages_needed + 1 <= pages_free;
    return fits || running == 0 ? i : -1; /* no overtaking: younger, smaller ones would starve this one */
  }
  return -1;
}

void scheduler_rows(const struct sched_item *items, int count, int chunk, int *rows) {
  int left = chunk;
  for (int i = 0; i < count; i++) {
    rows[i] = 0;
    if (!items[i].running || items[i].blocked) continue;
    if (items[i].pending == 1) {
      rows[i] = 1;
    } else {
      rows[i] = items[i].pending < left ? items[i].pending : left;
      left -= rows[i];
    }
  }
}

int scheduler_victim(const struct sched_item *items, int count, int needy) {
  for (int i = count - 1; i > needy; i--)
    if (items[i].pages_held > 0) return i;
  return needy;
}
