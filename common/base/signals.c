/* Installs the handlers of SIGTERM and SIGINT, which end the process or set the flag that main polls. */
#include "common/base/signals.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested, in_order;

static void on_stop(int signal_number) {
  static const char said[] = "asked to stop while it was starting\n";
  (void)signal_number;
  stop_requested = 1;
  if (in_order) return;
  (void)!write(STDERR_FILENO, said, sizeof said - 1);
  _exit(0); /* exit() is not allowed in a signal handler */
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

void signals_stop_in_order(void) { in_order = 1; }
