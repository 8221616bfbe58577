/* doctor --model: what the services' programs foresee of a set-up before any of them runs.  *status: the exit status,
 * where rc is RC_OK. */
#ifndef LEASEHOLD_CLI_COMMANDS_BEFORE_H
#define LEASEHOLD_CLI_COMMANDS_BEFORE_H

#include "services/cli/commands/findings.h"
#include "services/cli/commands/session.h"

enum rc before_services(struct session *s, struct findings *f, struct err *err);

#endif
