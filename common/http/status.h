/* Result codes to HTTP statuses and back, and the error body {"error":{"code","message","field"}}. */
#ifndef LEASEHOLD_HTTP_STATUS_H
#define LEASEHOLD_HTTP_STATUS_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

int http_status_of(enum rc rc);
/* The code of a peer's answer: 2xx is RC_OK; unknown statuses are RC_INTERNAL. */
enum rc http_rc_of_status(int status);
/* Is it application/octet-stream, with or without parameters?  NULL is not. */
bool http_media_is_bytes(const char *content_type);
/* Appends the error body. */
void http_error_body(struct buf *out, const struct err *err);

#endif
