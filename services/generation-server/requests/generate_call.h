/* A plain request on its way through the engine, whatever its shape on the wire: the jobs of its prompts, what is told
 * of their samples, and the reply.
 *
 *   route_*.c: parse --generate_submit: jobs, budget, suspend--> engine --last job done--> replier: the whole answer
 *    (HTTP thread)                                                 |  |                       ^
 *                                                   a token was drawn |                       | no stream
 *                                                                  v  v                       |
 *                                                            streamer (streamer.c): pieces, stop texts, the stream's end
 *
 * The streamer follows the calls that stream, and those with stop texts, so that nothing is decoded beyond one; of the
 * latter the replier gets the call once it is over.  One owner at a time replies and frees: HTTP thread, then streamer
 * or replier.
 *
 * A client that hangs up marks its call as abandoned, the engine drops the jobs between two steps; the reply is then
 * made without an answer, and discarded by the HTTP layer.  At a deadline, what there is is the answer.
 *
 * Memory: the call lives in the request's arena, each job has its own; the body is given up before the wait.  Open
 * requests are bounded by their samples and positions together (429), each alone too (422). */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_GENERATE_CALL_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_GENERATE_CALL_H

#include "services/generation-server/requests/choice_text.h"
#include "services/generation-server/api/server.h"

struct generate_call;

/* How answers are written. */
struct generate_shape {
  const char *id_prefix;
  /* The answer to a call whose jobs have ended; on the replier's thread. */
  enum rc (*whole)(struct generate_call *call, struct choice_scratch *m, struct json_writer *w, struct err *err);
  /* One event of a stream: a piece of a choice; on the streamer's thread, as is tail. NULL: there are no streams. */
  void (*event)(const struct generate_call *call, const struct choice *choice, const struct choice_piece *piece,
                struct json_writer *w);
  /* One more event after the last piece of all choices; nothing when it writes nothing. */
  void (*tail)(const struct generate_call *call, struct json_writer *w);
};

/* What a client may ask for, over both shapes of the API. */
struct generate_prompt {
  const char *text; /* or NULL: ids */
  size_t text_len;
  struct json_i32s ids;
};
struct generate_params {
  const struct generate_prompt *prompts; /* may lie in the request's body */
  size_t prompt_count;
  int32_t max_new_tokens, top_k, n;
  double temperature, top_p, min_p;
  struct json_i32s stop_token_ids;
  struct stop_texts stops;
  uint64_t seed;
  bool has_seed, ignore_eos;
  bool stream, echo, raw_logprobs;
  bool tells_tokens; /* a piece without text is worth an event */
  int32_t top_logprobs;
  const struct generate_shape *shape;
  const void *details; /* the shape's own; in the request's arena */
};

struct generate_call {
  struct server *server;
  struct host *host;
  struct http_request *request;
  const struct generate_shape *shape;
  const void *details;
  char id[LIMIT_NAME_MAX], run[LIMIT_NAME_MAX]; /* run: whose weights were active when it came, or "" */
  int64_t created_ms;
  bool stream, followed, tells_tokens;
  struct stop_texts stops;
  struct job **jobs;
  struct choice *choices; /* [job_count, n] */
  int job_count, choice_count;
  int samples; /* what it takes of the server's budget, given back before the reply */
  int64_t positions;

  atomic_bool abandoned; /* set by the HTTP watcher, read by the engine: no message that a full inbox could refuse */
  atomic_bool hung_up;   /* likewise; nobody will read the answer */
  atomic_int shares;     /* jobs with the engine, and one of the thread that submits them */
  struct err refusal;    /* rc not RC_OK: not all jobs could be submitted; read once the shares are gone */
  atomic_bool over;      /* of a followed call: the shares are gone */

  /* The streamer's. */
  struct generate_call *next;
  bool begun, broken, behind;
  size_t unsent;              /* when last looked at */
  int64_t wrote_ms, moved_ms; /* when something was written, when the reader took something */
};

void generate_params_defaults(struct generate_params *p, const struct generate_shape *shape);
/* RC_OK: the request will be answered.  Else the caller answers it with err. */
enum rc generate_submit(struct server *s, struct http_request *r, const struct generate_params *p, struct err *err);
/* Frees the jobs and gives the budget back; then exactly one reply is due, after which the call is gone, and
 * generate_replied. */
void generate_release(struct generate_call *call);
void generate_replied(struct server *s);
/* The text of ids as a JSON string, or null when there is no tokenizer. */
void generate_write_text(const struct generate_call *call, const int32_t *ids, size_t count, struct json_writer *w);
/* The replier's thread. */
void *replier_main(void *server);

#endif
