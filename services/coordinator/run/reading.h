/* The rules by which a dataset's lines are read: where prompt and answer are, what is put around a prompt, and which
 * part of an answer counts.
 *
 *   preset -> keys, extract, chat  ->  the configuration's own keys over them  ->  written out whole, and hashed
 *
 * Called by run_config.c for `dataset`, each of its `sources`, and `evaluation`; dataset_line.c applies it.  A reading
 * that the configuration does not mention stays out of its written form, so that older configurations keep their hash;
 * it reads `prompt` or `messages`, `answer` and `completion`.  Strings live in the caller's arena.  Pure. */
#ifndef LEASEHOLD_COORDINATOR_RUN_READING_H
#define LEASEHOLD_COORDINATOR_RUN_READING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/json/json.h"
#include "services/coordinator/run/answer_extract.h"

/* Bounds of a mixture stand here for the configuration's reader. */
enum { DATASET_PARTS_MAX = 16, DATASET_WEIGHT_MAX = 1000 };
enum { READING_PATHS_MAX = 4, READING_EXTRA_MAX = 16, TEMPLATE_CHARS_MAX = 65536 };
/* Stands in `template` where the prompt goes. */
#define TEMPLATE_PROMPT "{prompt}"

struct key_paths {
  const char *items[READING_PATHS_MAX];
  int count;
};

struct reading {
  bool named;         /* the configuration says something about it */
  const char *preset; /* "": none */
  struct key_paths prompt; /* a line has exactly one of them: a text, or messages */
  struct key_paths answer, completion; /* the first that a line has */
  /* What verifiers find beside the answer under `name`; a line's other members they find under their own names. */
  struct {
    const char *name, *path;
  } extra[READING_EXTRA_MAX];
  int extra_count;
  enum answer_extract extract;
  bool chat;              /* a prompt that is a text becomes the user's message */
  const char *system;     /* "": none; the system message of messages that have none */
  const char *template;   /* "": none; around the prompt, in messages around the user's last one */
  int32_t prompt_tokens_max; /* 0: what the run's sequences have room for */
  bool skips_long;           /* longer prompts are left out, not refused */
};

void reading_defaults(struct reading *r);

/* The members of `dataset`, a source and `evaluation` that say how it is read, as they were given. */
struct reading_given {
  const char *preset, *extract, *system, *template, *long_prompts;
  const struct json *keys;
  bool chat, has_chat;
  int32_t prompt_tokens_max;
};
/* For the field table of the object that they are members of. */
#define READING_FIELDS(g)                                                                                          \
  {.name = "preset", .kind = FIELD_STRING, .target = &(g)->preset, .min = 1, .max = 32},                           \
      {.name = "keys", .kind = FIELD_VALUE, .target = &(g)->keys},                                                 \
      {.name = "extract", .kind = FIELD_STRING, .target = &(g)->extract, .min = 1, .max = 32},                     \
      {.name = "chat", .kind = FIELD_BOOL, .target = &(g)->chat, .present = &(g)->has_chat},                       \
      {.name = "system", .kind = FIELD_STRING, .target = &(g)->system, .min = 0, .max = TEMPLATE_CHARS_MAX},       \
      {.name = "template", .kind = FIELD_STRING, .target = &(g)->template, .min = 0, .max = TEMPLATE_CHARS_MAX},   \
      {.name = "prompt_tokens_max",                                                                                \
       .kind = FIELD_I32,                                                                                          \
       .target = &(g)->prompt_tokens_max,                                                                          \
       .min = 0,                                                                                                   \
       .max = LIMIT_PROMPT_TOKENS},                                                                                \
      {.name = "long_prompts", .kind = FIELD_STRING, .target = &(g)->long_prompts, .min = 1, .max = 32}
void reading_given_init(struct reading_given *g);
/* Where nothing was given *r stays as it is; else it becomes the preset's or, without one, the default reading, with
 * what was given over it.  RC_INVALID names the field. */
enum rc reading_resolve(struct reading *r, const struct reading_given *g, struct arena *arena, struct err *err);
/* Its members, within an object that is being written; none where it is not named. */
void reading_write(const struct reading *r, struct json_writer *w);

/* The preset that a line looks as if it were for, as a hint in a fault; NULL: none. */
const char *reading_suggest(const struct json *line);

#endif
