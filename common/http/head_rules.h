/* Checks that a request's head is sound before anything else is asked about it (head_rules.c). */
#ifndef LEASEHOLD_HTTP_HEAD_RULES_H
#define LEASEHOLD_HTTP_HEAD_RULES_H

#include "common/http/server_state.h"

/* 0, or the status of a refusal, with why in *err.  *ends: the connection must not be used again. */
int head_rules_check(const struct http_request *r, const char *method, bool *ends, struct err *err);

#endif
