/* doctor's check that generation-servers hold the weights of the run that goes on, and that no two processes share a
 * name. */
#ifndef LEASEHOLD_CLI_COMMANDS_CHECK_WEIGHTS_H
#define LEASEHOLD_CLI_COMMANDS_CHECK_WEIGHTS_H

#include "services/cli/commands/findings.h"
#include "services/cli/commands/session.h"

/* run: of GET /v1/runs, running.  Takes a moment where a server holds other weights. */
enum rc check_weights(struct session *s, struct findings *f, const struct json *run, struct err *err);
/* before: GET /v1/workers as it was answered earlier; asks again. */
enum rc check_names(struct session *s, struct findings *f, const struct json *before, struct err *err);

#endif
