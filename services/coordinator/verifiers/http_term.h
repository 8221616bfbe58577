/* The term `http` of a rule: your own reward server, how it is asked, and what its deadline means.
 *
 *   {"kind": "http", "server": {"url": "http://127.0.0.1:9000/get_reward", "shape": "openrlhf", "deadline_ms": 600000}}
 *
 * Only its configuration: reward_judge knows nothing of it, because no verdict waits for a server.  rewards/rewards.c
 * asks, rounds/remote_rewards.c adds what was answered.  Pure; what is read lies in the caller's arena. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_HTTP_TERM_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_HTTP_TERM_H

#include "common/json/json.h"
#include "services/coordinator/decide/reward_calls.h"

/* openrlhf: {query[], prompts[], labels[]} -> {rewards[]};  slime: {prompt, response, label} -> a number, or an object
 * with one */
enum reward_shape { REWARD_OPENRLHF, REWARD_SLIME };
enum reward_label { LABEL_ANSWER, LABEL_LINE };

enum { REWARD_BATCH_MAX = 1024 };

struct http_term {
  const char *url;
  enum reward_shape shape;
  const char *key; /* the member of the answer that holds the rewards */
  enum reward_label label; /* what is sent as label: the line's answer, or its other members as the text of a JSON
                            * object */
  int32_t batch;           /* samples of one group that are asked about at once */
  enum deadline_rule on_deadline;
  struct reward_policy policy;
};

/* *out in the arena.  v: the object `server`. */
enum rc http_term_read(const struct http_term **out, const struct json *v, struct arena *arena, struct err *err);
/* The members of `server`, into an object that is open, defaults resolved. */
void http_term_write(const struct http_term *t, struct json_writer *w);

/* Is it an https:// URL? */
bool http_term_secure(const char *url);
/* Host and port of an http:// or https:// URL: pointers into it; where it names no port *port is 80 or 443.  RC_INVALID
 * for anything else. */
enum rc http_term_host(const char *url, const char **host, size_t *len, int *port, struct err *err);

#endif
