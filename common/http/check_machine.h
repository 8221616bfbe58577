/* Measures a service's machine for `leasehold doctor`: how fast a disk is, what the clock shows; and before the service
 * runs, with --plan, whether its port is free and which libraries it is linked with. */
#ifndef LEASEHOLD_HTTP_CHECK_MACHINE_H
#define LEASEHOLD_HTTP_CHECK_MACHINE_H

#include "common/base/program.h"
#include "common/http/handler.h"

/* The answer of POST /v1/check-disk, which the services have that keep something: how fast the disk of `dir` is,
 * measured now, and this machine's clock.  One measurement at a time; RC_FULL meanwhile.  Takes up to some seconds: the
 * route is offloaded. */
void http_check_disk(struct http_request *r, const char *dir);
/* Members of an object: "program", "version", "libraries", "cores", "clock_kept", "listen" and "disk", which is null
 * without `dir`.  One that is still to be made counts as its nearest folder above.  What stands in the way is told in
 * "refused" of each. */
void check_machine_write(struct json_writer *w, const struct program *p, const char *dir);

#endif
