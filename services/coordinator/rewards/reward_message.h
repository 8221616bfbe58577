/* The messages to a reward server, and its answers, in the shapes that OpenRLHF's and slime's servers speak.
 *
 *   openrlhf   {"query": [prompt + completion], "prompts": [...], "labels": [...]}  ->  {"rewards": [number, ...]}
 *   slime      {"prompt": ..., "response": ..., "label": ...}                       ->  number, or {"score": number}
 *
 * Pure, any thread; called by rewards.c.  An answer is hostile: it is bounded before it is parsed, and anything but one
 * finite number for each sample is refused with a sentence. */
#ifndef LEASEHOLD_COORDINATOR_REWARDS_REWARD_MESSAGE_H
#define LEASEHOLD_COORDINATOR_REWARDS_REWARD_MESSAGE_H

#include "common/base/digest.h"
#include "services/coordinator/verifiers/http_term.h"

#define REWARD_VALUE_MAX 1e9

/* A sample that is asked about; its texts need not be UTF-8. */
struct reward_item {
  int32_t sample;
  struct digest digest; /* of what was sampled */
  const char *prompt, *text, *label;
  size_t prompt_len, text_len;
};

void reward_request_write(struct buf *out, const struct http_term *t, const struct reward_item *items, int n);
/* The most bytes that an answer about n samples may have. */
size_t reward_answer_bytes_max(int n);
/* values[n].  RC_INVALID says what was expected and what came. */
enum rc reward_answer_read(double *values, const struct http_term *t, int n, const char *bytes, size_t len,
                           struct err *err);
/* Names the request: the same samples with the same content have the same key, however often they are asked about. */
void reward_key(char out[DIGEST_HEX_MAX], const char *group, int term, const struct reward_item *items, int n);

#endif
