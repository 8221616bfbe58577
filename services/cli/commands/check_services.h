/* doctor's checks of the machines: disks and clocks, each service's memory plan, how fast servers sample and the
 * trainer learns.  Each service is asked for the facts that only it knows, at the URL that it has told the
 * coordinator. */
#ifndef LEASEHOLD_CLI_COMMANDS_CHECK_SERVICES_H
#define LEASEHOLD_CLI_COMMANDS_CHECK_SERVICES_H

#include "services/cli/commands/findings.h"
#include "services/cli/commands/session.h"

/* Tokens a second; NaN: not known. */
struct pace_found {
  double sampled, learned;
};

/* The value of a metric, with its labels ("name{a=\"b\"}"), in a page of Prometheus's text; NaN: there is none. */
double metric_of(const char *page, const char *name);
/* Says so where a service's page of metrics is not of this command line's version; returns whether it is. */
bool check_version(struct findings *f, const char *name, const char *page);
/* The coordinator's own disk and clock. */
void check_coordinator_machine(struct session *s, struct findings *f);
/* A disk's speed, of what /v1/check-disk answers; flag: which moves what lies on it. */
void say_disk(struct findings *f, const char *whose, const struct json *answer, const char *flag);
/* workers: the array of GET /v1/workers. */
void check_services(struct session *s, struct findings *f, const struct json *workers, struct pace_found *out);

#endif
