/* run watch.  *status: the exit status, where rc is RC_OK; words: the run. */
#ifndef LEASEHOLD_CLI_COMMANDS_WATCH_H
#define LEASEHOLD_CLI_COMMANDS_WATCH_H

#include "services/cli/commands/session.h"

enum rc run_watch(struct session *s, int *status, struct err *err);

#endif
