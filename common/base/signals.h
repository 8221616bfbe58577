/* SIGTERM and SIGINT set a flag that main polls; SIGPIPE and SIGXFSZ are ignored: both are failed writes.
 *
 *   signals_install -- SIGTERM ends the process -- signals_stop_in_order -- SIGTERM sets the flag -->
 *
 * While a service starts (reads gigabytes of a model, opens a database) main does not poll, and there is nothing to end
 * in order: no work has been accepted yet, and the files on disk survive a crash at any time.  So the signal ends the
 * process at once, with status 0. */
#ifndef LEASEHOLD_BASE_SIGNALS_H
#define LEASEHOLD_BASE_SIGNALS_H

#include <stdbool.h>

void signals_install(void);
void signals_stop_in_order(void);
bool signals_stop_requested(void);

#endif
