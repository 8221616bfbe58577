/* rollouts, timeline, workers.  *status: the exit status, where rc is RC_OK. */
#ifndef LEASEHOLD_CLI_COMMANDS_LOOK_H
#define LEASEHOLD_CLI_COMMANDS_LOOK_H

#include "services/cli/commands/session.h"

enum rc rollouts_show(struct session *s, int *status, struct err *err);
enum rc timeline_show(struct session *s, int *status, struct err *err);
enum rc workers_show(struct session *s, int *status, struct err *err);

#endif
