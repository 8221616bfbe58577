/* A call: a plain request on its way through the engine.  It holds what the client asked for, the decode jobs of its
 * prompts and the choices told of their samples, and is the same for every shape of the API.  requests.h says which
 * thread owns it when.
 *
 * Memory: the call lives in the request's arena, each job has its own; the body is given up before the wait.  All open
 * requests together are bounded by their samples and positions (429), and so is each of them (422). */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_GENERATE_CALL_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_GENERATE_CALL_H

#include "common/http/server.h"
#include "services/generation-server/requests/admission.h"
#include "services/generation-server/requests/choice_text.h"
#include "services/generation-server/requests/open_calls.h"

struct generate_call;
struct requests;

/* How answers are written. */
struct generate_shape {
  const char *id_prefix; /* of the answer's id */
  /* The answer to a call whose jobs have ended; on the replier's thread. */
  enum rc (*whole)(struct generate_call *call, struct choice_scratch *m, struct json_writer *w, struct err *err);
  /* One event of a stream: a piece of a choice; on the streamer's thread, as is tail.  When it writes nothing there is
   * none.  NULL: there are no streams. */
  void (*event)(const struct generate_call *call, const struct choice *choice, const struct choice_piece *piece,
                struct json_writer *w);
  /* One more event after the last piece of all choices; when it writes nothing there is none. */
  void (*tail)(const struct generate_call *call, struct json_writer *w);
};

/* The parameters of a request, the same for all shapes of the API. */
struct generate_params;
struct generate_prompt {
  const char *text; /* or NULL: ids */
  size_t text_len;
  struct json_i32s ids;
  const struct generate_params *own; /* what is sampled of this prompt; in the arena.  NULL: as the request says */
  bool alone;                        /* draws by its own seed as if it had come alone */
  const char *id;                    /* by which it alone can be ended; in the arena.  NULL: the request's */
};
struct generate_params {
  const struct generate_prompt *prompts; /* may lie in the request's body */
  size_t prompt_count;
  const char *model;      /* by which the client asks for it; NULL: whichever there is */
  const char *id;         /* the answer's, of the client's making; NULL: made of http_request_id */
  int32_t max_new_tokens; /* 0: as many as there is room for */
  int32_t min_new_tokens, top_k, n;
  double temperature, top_p, min_p;
  struct logit_changes changes; /* barred is filled in with the stop ids */
  struct json_i32s stop_token_ids;
  struct stop_texts stops;
  uint64_t seed;
  bool has_seed, ignore_eos;
  bool stream, echo, raw_logprobs;
  bool prompt_logprobs; /* those of the prompt's tokens too */
  int32_t prompt_logprobs_from; /* the first that is told; at most behind the prompt's last */
  bool keeps_stop;      /* the stop text is part of the text */
  bool puts_off_stops;  /* stop texts count behind min_new_tokens only */
  /* max_new_tokens beyond what the context has left behind the prompt is that many; unless cuts_any no more than the
   * whole context may be asked for. */
  bool cuts_to_room, cuts_any;
  bool only_prompt;     /* the prompt alone is told, whatever max_new_tokens says */
  bool drops_end;       /* the token that ended a sample is none, unless keeps_stop */
  bool shows_special;   /* special tokens are */
  bool tells_tokens; /* pieces without text become events too */
  int32_t top_logprobs;
  const struct generate_shape *shape;
  const void *details; /* the shape's own; in the request's arena */
};

struct generate_call {
  struct requests *requests; /* whose streamer or replier answers it */
  struct admission *admission;
  struct loaded_model *loaded;
  struct http_request *request;
  const struct generate_shape *shape;
  const void *details;
  char id[LIMIT_NAME_MAX], run[LIMIT_NAME_MAX]; /* run: of the weights that were active when it came, or "" */
  int64_t created_ms;
  bool stream, followed, tells_tokens;
  struct stop_texts stops;
  struct open_calls *open; /* where it is listed; NULL: nowhere yet */
  struct open_link link;
  struct call_part {
    struct open_link link;
    atomic_bool abandoned;
  } *parts; /* [job_count]; its link has no name where the prompt has none.  NULL: no prompt has one */
  struct decode_job **jobs;
  struct choice *choices; /* [job_count, n] */
  int job_count, choice_count;
  int samples; /* its share of the budget, given back before the reply */
  int64_t positions;

  atomic_bool abandoned; /* set by the HTTP watcher, read by the engine: a full inbox cannot refuse a mark */
  atomic_bool hung_up;   /* set and read likewise: no client is left to read the answer */
  atomic_int shares;     /* one for each job with the engine, and one for the thread that submits them */
  struct err refusal;    /* why not all jobs could be submitted, or RC_OK; read once the shares are gone */
  atomic_bool over;      /* of a followed call: the shares are gone */

  /* The streamer's. */
  struct generate_call *next;
  bool begun, broken, behind;
  size_t unsent;              /* when last looked at */
  int64_t wrote_ms, moved_ms; /* when something was written, when the reader took something */
};

void generate_params_defaults(struct generate_params *p, const struct generate_shape *shape);
/* Makes jobs and choices and takes a share of the budget; submits nothing.  RC_INVALID, RC_UNSUPPORTED, RC_FULL,
 * RC_NO_MEMORY: then nothing is left to release. */
enum rc generate_call_make(struct generate_call **out, struct admission *a, struct loaded_model *loaded,
                           struct http_request *r, const struct generate_params *p, struct err *err);
/* Frees the jobs and gives the budget back.  Exactly one reply is due then; the call is gone with it, so
 * admission_leave comes last. */
void generate_call_release(struct generate_call *call);
/* The text of ids as a JSON string, or null when there is no tokenizer. */
void generate_call_write_text(const struct generate_call *call, const int32_t *ids, size_t count,
                              struct json_writer *w);

#endif
