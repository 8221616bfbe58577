/* The streamer: one thread that follows calls while they are decoded, writes their server-sent events and finds their
 * stop texts.
 *
 *   engine --token, sample->shown--> wake --> streamer: scan | take pieces | http_stream_write --> libmicrohttpd
 *     ^                                          |
 *     +------- text_over, abandoned -------------+
 *
 * The engine never waits for it: it counts tokens up and sets a flag; tokens that the streamer has not told yet lie in
 * the job, which has room for all of them.  The streamer never waits for a reader: one that leaves more than
 * STREAM_UNSENT_MAX bytes unread gets nothing new until it has caught up, then more at once; one that takes nothing for
 * too long is cut off. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_STREAMER_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_STREAMER_H

#include "services/generation-server/requests/replier.h"

struct streamer;

/* replier: gets the calls that are answered whole.  stall_ms: a reader that takes nothing for this long is cut off. */
enum rc streamer_start(struct streamer **out, struct replier *replier, int stall_ms, struct err *err);
/* Writes the remaining events and ends the thread; every call that it follows must be over.  NULL is fine. */
void streamer_stop(struct streamer *t);

/* For job->follower. */
const struct follower *streamer_follower(const struct streamer *t);
/* Hands the call to the streamer, which keeps it until it has been answered.  Comes before its jobs are submitted. */
void streamer_follow(struct streamer *t, struct generate_call *call);
/* From any thread, once, when the last job has ended: the caller must not touch the call any more. */
void streamer_over(struct streamer *t, struct generate_call *call);

#endif
