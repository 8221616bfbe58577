/* One line of a dataset becomes an item: prompt and completion as ids, the answer, and what verifiers may ask for.
 *
 *   JSON object --reading.h: paths--> prompt.h, answer_extract.h --tokenizer--> struct dataset_item
 *
 * Called by dataset.c for every line, on the driver's thread or the one that checks a posted run.  What it makes lies
 * in the caller's arena.  A line that cannot be used is RC_INVALID or RC_TOO_LARGE with the line's member as the
 * field. */
#ifndef LEASEHOLD_COORDINATOR_RUN_DATASET_LINE_H
#define LEASEHOLD_COORDINATOR_RUN_DATASET_LINE_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/tokenizer.h"
#include "services/coordinator/run/reading.h"
#include "services/coordinator/verifiers/reward.h"

struct dataset_item {
  const char *prompt; /* text as encoded (chat template applied); it may hold NULs */
  size_t prompt_bytes;
  const char *answer; /* "" when absent; numbers as their decimal text */
  const char *extra;  /* the other keys as a JSON object ("{}"), for verifiers: countdown's "numbers" and "target" */
  const int32_t *prompt_ids;
  int prompt_length;
  const int32_t *completion_ids;
  int completion_length; /* eos appended; 0 when absent */
  int max_new_tokens;    /* of a sample; 0 when absent: the run's */
  int line;              /* 1-based */
};

struct dataset_options {
  const char *field; /* of the run's configuration, that faults are reported under: "dataset.path" */
  const char *name;  /* of the file, in their message */
  const struct reading *reading; /* NULL: the default */
  const struct chat *chat;       /* of the model; NULL: messages become ChatML, or are refused with no_chat */
  const char *no_chat;           /* why the model's template cannot be used; NULL: there is no reason */
  int prompt_tokens_max, completion_tokens_max;
  int sequence_tokens_max; /* prompt and completion together; 0: not bounded */
  int new_tokens_max;      /* what a line's max_new_tokens may be at most; 0: it is a key like any other */
  bool need_completion, need_answer;
  const struct reward_rule *verifier; /* it must be able to judge every line; NULL: not checked */
  int32_t eos;                 /* appended to completions */
};

struct line_context {
  const struct tokenizer *tokenizer; /* NULL: there is none, so chat templates and the number of tokens are not
                                      * checked */
  const struct dataset_options *options;
  const struct reading *reading;
  struct arena *arena;
  struct token_ids scratch;
  bool used_chatml; /* a line's messages have got this form, since the model has no template */
};

/* *left_out: the prompt is too long, and the reading leaves such lines out; *item is then of no use. */
enum rc dataset_line_read(struct line_context *l, const struct json *object, struct dataset_item *item,
                          bool *left_out, struct err *err);

#endif
