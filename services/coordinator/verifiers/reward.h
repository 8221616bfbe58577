/* Gives a completion its reward: that of one verifier, or a weighted sum of several terms.
 *
 *   reward = sum over terms of weight x value
 *
 *   numeric, countdown   decide/verify.h            1 or 0
 *   math                 math.h                     1 or 0
 *   choice, exact        choice.h, exact.h          1 or 0
 *   regex                regex.h                    1 or 0
 *   json_schema          json_schema.h              1 or 0
 *   format               format.h                   1 or 0
 *   length               within `min` to `max` tokens: 1 or 0
 *   overlong             0 to -1 over the last `buffer` tokens (decide/overlong.h)
 *   none                 0
 *   http                 what a reward server answers (http_term.h): added when the answer is there, not by reward_judge
 *
 * Pure: a function of the rule, the text, the dataset's line and two counts of tokens; bounded by counted steps, never
 * by time; completions are hostile.  Called by group_seal.c, on the HTTP thread that took the result where one could,
 * else on the writer's; by dataset.c on each line; by route_verify.c.  A rule's strings live in the arena of the
 * configuration that it was read from. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_REWARD_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_REWARD_H

#include <stdint.h>

#include "common/base/rc.h"
#include "services/coordinator/decide/verify.h"
#include "services/coordinator/verifiers/http_term.h"

enum { REWARD_TERMS_MAX = 8, REWARD_TAGS_MAX = 8 };

struct reward_term {
  enum verifier_kind kind;
  double weight;
  /* of the kinds that have them; NULL or 0 elsewhere */
  const char *pattern; /* regex; NULL: the line's `answer` */
  const char *schema;  /* json_schema: its text; NULL: the line's key `schema` */
  const char *tags[REWARD_TAGS_MAX]; /* format */
  int tag_count;
  bool ignore_case; /* exact */
  bool whole;       /* exact: of all of the completion, not of its answer */
  int32_t min, max; /* length; max 0: no bound */
  int32_t buffer;   /* overlong */
  const struct http_term *http;
};

struct reward_rule {
  struct reward_term terms[REWARD_TERMS_MAX];
  int count;
  bool is_sum; /* given as `terms`, and shown so */
};

struct reward_input {
  const char *text; /* need not be UTF-8; may hold NULs */
  size_t len;
  const char *answer, *extra;  /* of the dataset's line */
  int64_t tokens, tokens_max; /* of the completion; that it might have had */
};

enum { REWARD_DETAIL_MAX = 384 };

struct reward_verdict {
  double reward;
  bool well_formed; /* the first term could read an answer */
  /* of one verifier its sentence; of a sum each part, then the first term's: "math 1, format 0 x 0.2; answer 7,
   * expected 8" */
  char detail[REWARD_DETAIL_MAX];
  double values[REWARD_TERMS_MAX]; /* of each term, before its weight; NaN: its server has not answered */
  /* What evaluations count, all of the first term: has it earned all that it gives, and struct verdict's vote. */
  bool passed;
  uint64_t vote;
};

void reward_judge(const struct reward_rule *rule, const struct reward_input *input, struct reward_verdict *out);
/* Can completions be judged by this line of a dataset?  RC_INVALID when not. */
enum rc reward_line_check(const struct reward_rule *rule, const char *answer, const char *extra, struct err *err);
/* Must a line have an `answer`? */
bool reward_needs_answer(const struct reward_rule *rule);
/* Can it tell completions apart?  Not where every term is `none` or has weight 0. */
bool reward_earns(const struct reward_rule *rule);
/* How many terms wait for a server. */
int reward_remote_terms(const struct reward_rule *rule);
/* Do its verdicts have votes?  Those of numeric, countdown, math, choice and exact as the first term. */
bool reward_votes(const struct reward_rule *rule);
const char *verifier_name(enum verifier_kind kind);

#endif
