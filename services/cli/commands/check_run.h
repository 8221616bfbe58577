/* doctor's checks of a run's configuration: its datasets, the tokenizer, the verifier, and how long a round may
 * take. */
#ifndef LEASEHOLD_CLI_COMMANDS_CHECK_RUN_H
#define LEASEHOLD_CLI_COMMANDS_CHECK_RUN_H

#include "services/cli/commands/check_services.h"

/* file: "-" is standard input.  Fails only where no service answers, or the file cannot be read. */
enum rc check_run(struct session *s, struct findings *f, const char *file, const struct pace_found *pace,
                  struct err *err);
/* What a RunReport (openapi) tells of datasets, tokenizer and verifier. */
void check_report(struct findings *f, const struct json *report);

#endif
