/* The answer of POST /v1/check-disk, which the services have that keep something: how fast the disk of `dir` is, measured
 * now, and this machine's clock.  One measurement at a time; RC_FULL meanwhile.  Takes up to some seconds: the route is
 * offloaded. */
#ifndef LEASEHOLD_HTTP_CHECK_DISK_H
#define LEASEHOLD_HTTP_CHECK_DISK_H

#include "common/http/handler.h"

void http_check_disk(struct http_request *r, const char *dir);

#endif
