/* SIGTERM and SIGINT set a flag that main polls; SIGPIPE and SIGXFSZ are ignored: both are failed writes. */
#ifndef LEASEHOLD_BASE_SIGNALS_H
#define LEASEHOLD_BASE_SIGNALS_H

#include <stdbool.h>

void signals_install(void);
bool signals_stop_requested(void);

#endif
