/* doctor.  *status: the exit status, where rc is RC_OK. */
#ifndef LEASEHOLD_CLI_COMMANDS_DOCTOR_H
#define LEASEHOLD_CLI_COMMANDS_DOCTOR_H

#include "services/cli/commands/session.h"

enum rc doctor_run(struct session *s, int *status, struct err *err);

#endif
