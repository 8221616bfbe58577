/* See signals.h. */
#include "common/base/signals.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t stop_requested;

static void on_stop(int signal_number) {
  (void)signal_number;
  stop_requested = 1;
}

void signals_install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_stop;
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGXFSZ, &action, NULL); /* a file beyond its limit is a failed write, as on a full disk */
}

bool signals_stop_requested(void) { return stop_requested != 0; }
