/* Plain requests from the handler to the reply: made into calls, submitted to the engine, answered by two threads.
 *
 *   route_*.c: parse --requests_submit: jobs, budget, suspend--> engine --last job done--> replier: the whole answer
 *    (HTTP thread)                                                  |  |                       ^
 *                                                    a token was drawn |                       | no stream
 *                                                                   v  v                       |
 *                                                             streamer: pieces, stop texts, the stream's end
 *
 * The streamer follows the calls that stream, and those with stop texts, so that nothing is decoded beyond one; the
 * replier gets the latter once they are over.  A call has one owner at a time, who replies and frees it: the HTTP
 * thread, then the streamer or the replier.
 *
 * When a client hangs up its call is marked as abandoned, and the engine drops the jobs between two steps; the reply is
 * then made without an answer, and the HTTP layer discards it.  At a deadline the answer is whatever has been
 * decoded. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_REQUESTS_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_REQUESTS_H

#include "services/generation-server/requests/generate_call.h"

struct requests;

/* Starts replier and streamer.  The admission is borrowed.  stream_stall_ms: a reader that takes nothing for this
 * long is cut off. */
enum rc requests_start(struct requests **out, struct admission *admission, int stream_stall_ms, struct err *err);
/* RC_OK: the request will be answered.  Else the caller answers it with err. */
enum rc requests_submit(struct requests *q, struct http_request *r, const struct generate_params *p, struct err *err);
/* Ends the open requests of this id, or of any with NULL: their answers are what they have.  How many.  Any thread. */
int requests_abort(struct requests *q, const char *id);
/* Answers what is open and ends the threads.  The engine must have been stopped.  NULL is fine. */
void requests_stop(struct requests *q);

#endif
