/* Stop texts: strings at which an answer ends, wherever tokens happen to cut them.
 *
 * Matching is by byte and incremental (Knuth, Morris, Pratt; one automaton for each text), so the result does not
 * depend on how many bytes come at once.  The text that is complete first wins; of several that end at one byte, the
 * longest.
 * Bytes that may still become a stop text are held back (stop_texts_held), which a streaming answer needs.
 *
 * Immutable once all texts were added, so any thread may match; the state is the caller's.  Allocates in the arena
 * only. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_STOP_TEXT_H
#define LEASEHOLD_MODEL_TOKENIZER_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/limits.h"
#include "common/base/rc.h"
#include "common/model/tokenizer/tokenizer.h"

struct stop_texts {
  int count;
  struct {
    const char *text;
    size_t len;
    const uint16_t *fallback; /* [len] longest border of text[0, i] */
  } items[LIMIT_STOP_TEXTS];
};

struct stop_state {
  uint16_t matched[LIMIT_STOP_TEXTS]; /* bytes of each text that the end of the input is */
};

/* Copies text.  RC_INVALID (field "stop") when it is empty, too long or one too many. */
enum rc stop_texts_add(struct stop_texts *s, const char *text, size_t len, struct arena *arena, struct err *err);
/* Reads bytes until one completes a stop text: returns that text's length, and how many bytes were read in *used; 0
 * when all were read and none was complete.  A state that has matched must not be fed again before the match was
 * passed. */
size_t stop_texts_feed(const struct stop_texts *s, struct stop_state *state, const char *bytes, size_t len,
                       size_t *used);
/* Goes on behind a match that does not count. */
void stop_texts_pass(const struct stop_texts *s, struct stop_state *state);
/* Bytes at the end of the input with which a stop text may begin. */
size_t stop_texts_held(const struct stop_texts *s, const struct stop_state *state);
/* Reads a token of a completion, without special tokens' texts: does it complete a stop text?  How leases' samples end:
 * sampler and coordinator agree on it. */
bool stop_texts_end(const struct stop_texts *s, struct stop_state *state, const struct tokenizer *t, int32_t token);

#endif
