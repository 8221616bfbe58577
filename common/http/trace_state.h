/* W3C Trace Context's second header: what tracing systems have noted of a trace, and pass along.
 *
 *   tracestate: <key>=<value>,<key>=<value>, ...     in one header field or several, which are one list
 *
 * Only its form is checked here, by level 2 of the standard: if one member is malformed, a key comes twice or there are
 * more than 32 members, the whole list counts as not sent; traceparent stays.  Nothing is added.  512 characters are
 * kept, the least that the standard asks for: of a longer list members of more than 128 characters go first, then those
 * at its end, where the oldest stand.  Pure; called by request_log.c. */
#ifndef LEASEHOLD_HTTP_TRACE_STATE_H
#define LEASEHOLD_HTTP_TRACE_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/log.h"

enum { TRACESTATE_CHARS = LOG_TRACE_STATE_MAX - 1, TRACESTATE_MEMBERS = 32 };

/* Zero-initialized: nothing came. */
struct trace_state {
  struct trace_member {
    const char *text; /* borrowed from the header field */
    size_t len, key_len;
  } members[TRACESTATE_MEMBERS];
  int count;
  bool malformed; /* nothing of it may be used */
};

/* One more header field, in the order in which they came; it must live until the list is written. */
void trace_state_add(struct trace_state *s, const char *field);
/* The list as it is sent on; "": there is none. */
void trace_state_write(char out[TRACESTATE_CHARS + 1], const struct trace_state *s);

#endif
