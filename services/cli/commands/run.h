/* run start, list, show, pause, resume, stop, compare.  *status: the exit status, where rc is RC_OK. */
#ifndef LEASEHOLD_CLI_COMMANDS_RUN_H
#define LEASEHOLD_CLI_COMMANDS_RUN_H

#include "services/cli/commands/session.h"

enum rc run_start(struct session *s, int *status, struct err *err);
enum rc run_list(struct session *s, int *status, struct err *err);
enum rc run_show(struct session *s, int *status, struct err *err);
enum rc run_pause(struct session *s, int *status, struct err *err);
enum rc run_resume(struct session *s, int *status, struct err *err);
enum rc run_stop(struct session *s, int *status, struct err *err);
enum rc run_compare(struct session *s, int *status, struct err *err);

#endif
