/* Shares a heartbeat's busy slot time out among the runs whose windows it lies in. */
#include "services/coordinator/decide/slot_time.h"

enum { CARRY_US = 100000 };

void slot_windows_begin(struct slot_window windows[SLOT_WINDOWS], int64_t run, int64_t now_ms) {
  if (windows[0].run == run) return;
  slot_windows_end(windows, windows[0].run, now_ms);
  windows[1] = windows[0];
  windows[0] = (struct slot_window){.run = run, .begin_ms = now_ms, .end_ms = INT64_MAX};
}

void slot_windows_end(struct slot_window windows[SLOT_WINDOWS], int64_t run, int64_t now_ms) {
  for (int i = 0; i < SLOT_WINDOWS; i++) {
    if (windows[i].run == run && windows[i].end_ms == INT64_MAX) windows[i].end_ms = now_ms;
  }
}

static int64_t overlap_ms(const struct slot_window *w, int64_t from_ms, int64_t to_ms) {
  int64_t begin = w->begin_ms > from_ms ? w->begin_ms : from_ms, end = w->end_ms < to_ms ? w->end_ms : to_ms;
  return w->run && end > begin ? end - begin : 0;
}

int64_t slot_time_share(const struct slot_window windows[SLOT_WINDOWS], int32_t slots, int64_t from_ms, int64_t to_ms,
                        int64_t busy_us, struct slot_account out[SLOT_WINDOWS]) {
  int64_t overlap[SLOT_WINDOWS], total = 0, left = busy_us > 0 ? busy_us : 0;
  const int64_t given = left;
  for (int i = 0; i < SLOT_WINDOWS; i++) total += overlap[i] = overlap_ms(&windows[i], from_ms, to_ms);
  for (int i = 0; i < SLOT_WINDOWS; i++) {
    out[i] = (struct slot_account){0};
    if (!overlap[i]) continue;
    int64_t window_us = overlap[i] * 1000 * slots;
    double share = (double)given * (double)overlap[i] / (double)total;
    int64_t busy = share < (double)window_us ? (int64_t)share : window_us;
    out[i] = (struct slot_account){.run = windows[i].run, .busy_us = busy, .window_us = window_us};
    left -= busy;
  }
  int64_t most = (int64_t)slots * CARRY_US;
  if (windows[0].run == 0 || windows[0].end_ms != INT64_MAX || left < 0) return 0;
  return left < most ? left : most;
}
