/* W3C Trace Context, level 1: which exchange made which, across the services.
 *
 *   traceparent: 00-<trace id, 32 hex digits>-<parent's span id, 16>-<flags, 2>
 *
 * A request's span is a part of the trace that its header names; without a header, or with one that is malformed, it
 * begins a trace of its own.  The span is in the thread's log context (common/base/log.h) while its handler runs, and
 * goes along with that context to the threads that work for it; http_client_call sends it on as the parent of what it
 * asks for.  `tracestate` (trace_state.h) goes with it: without a traceparent that is taken there is none, and a trace
 * that begins here, as every round's does, has none.  No state but the thread's context. */
#ifndef LEASEHOLD_HTTP_TRACE_H
#define LEASEHOLD_HTTP_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/http/trace_state.h"

enum { TRACE_ID_CHARS = 32, SPAN_ID_CHARS = 16, TRACEPARENT_CHARS = 55 };

struct trace {
  char id[TRACE_ID_CHARS + 1], span[SPAN_ID_CHARS + 1];
  char parent[SPAN_ID_CHARS + 1]; /* "": there is none */
  bool sampled; /* the only flag that level 1 knows */
  char state[TRACESTATE_CHARS + 1]; /* as it is sent on; "": none */
};

/* The span that the header names.  False: it is malformed, and nothing of it may be used.  A header of a later version
 * of the standard is read by the fields that this one has. */
bool trace_parse(struct trace *out, const char *header);
/* A new trace with its first span; a new span below another. */
void trace_begin(struct trace *out);
void trace_below(struct trace *out, const struct trace *above);
/* The trace that is `bytes` (24 at least): the same again wherever they are known. */
void trace_of_bytes(struct trace *out, const uint8_t *bytes);
void traceparent_write(char out[TRACEPARENT_CHARS + 1], const struct trace *t);

/* The calling thread works for it from now on; NULL: for none. */
void trace_set(const struct trace *t);
/* False: the thread works for none. */
bool trace_get(struct trace *out);

#endif
