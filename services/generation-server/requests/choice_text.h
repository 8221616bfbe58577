/* A choice: the part of one sample that a client is told, at once or piece by piece while it is decoded.
 *
 *   sample->tokens --choice_scan--> scanned for stop texts --choice_take--> whole characters and their tokens
 *
 * The text is the prefix (the prompt, when it is echoed) and the bytes of the tokens.  It ends before the first stop
 * text; the tokens end with the one that completed it, even if more were sampled.  The pieces depend on the tokens
 * alone, never on when it is scanned: put together they are the whole.
 *
 * A piece never ends inside a UTF-8 sequence that may still become whole, nor with bytes that may still become a stop
 * text.  Bytes that are not UTF-8 go out as they are; the JSON writer turns each into U+FFFD, in a piece as in the
 * whole.
 *
 * One thread at a time: the streamer, or the replier once the job has ended.  A choice keeps places only: the bytes are
 * made again from the tokens when they are told. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_CHOICE_TEXT_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_CHOICE_TEXT_H

#include "common/model/tokenizer/tokenizer.h"
#include "services/generation-server/engine/decode_job.h"
#include "common/model/tokenizer/stop_text.h"

struct choice {
  struct sample *sample;
  const struct tokenizer *tokenizer; /* NULL: there is no text */
  const struct stop_texts *stops;    /* may be empty */
  const char *prefix;
  size_t prefix_len;
  int32_t index;      /* in the answer */
  int32_t stops_from; /* a stop text that is complete before this token does not count */
  bool wants_offsets; /* choice_piece.offsets are made */
  bool keeps_stop;    /* the text ends behind the stop text */
  bool drops_end;     /* the text ends before the token that ended the sample, as before a stop text */
  bool shows_special; /* the text has special tokens */
  bool ignores_eos;   /* the model's end-of-text ids end it only where they were asked for */
  bool only_prompt;   /* the prefix alone is told, and no token */
  bool awaits_token;  /* nothing is told, the prefix neither, before the first token */

  /* How far it has been scanned. */
  int32_t scanned;    /* tokens; those of the answer once it has ended */
  size_t scanned_end; /* bytes of text so far */
  struct stop_state matching;
  bool stopped; /* by a stop text */
  size_t cut;   /* where that begins */
  bool ended;   /* no token comes after `scanned` */

  /* How far it has been told. */
  int32_t told;              /* tokens */
  size_t told_end, sent;     /* bytes: of those tokens, and of the text */
  int64_t chars, told_chars; /* characters that begin before sent, before told_end */
  bool closed;               /* the last piece has been taken */
};

struct choice_piece {
  const char *text; /* in the scratch buffers; NULL without a tokenizer */
  size_t len;
  int32_t first, count;   /* tokens */
  const int64_t *offsets; /* [count] characters of the text that begin before each token */
  bool any;               /* there is something to tell */
  bool begins;            /* nothing came before it */
  bool last;              /* nothing comes after it */
};

/* Memory of the pieces, used again and again by one thread. */
struct choice_scratch {
  struct buf text, ends, offsets;
};
void choice_scratch_free(struct choice_scratch *m);

void choice_init(struct choice *c, struct sample *s, int32_t index, const struct tokenizer *tokenizer,
                 const struct stop_texts *stops, const char *prefix, size_t prefix_len);
/* Scans the tokens that came since the last scan; marks the sample when its text has met a stop text.
 * RC_NO_MEMORY. */
enum rc choice_scan(struct choice *c, struct choice_scratch *m, struct err *err);
/* The next piece, of about bytes_max bytes and tokens_max tokens at most (0: all there is).  RC_NO_MEMORY. */
enum rc choice_take(struct choice_piece *piece, struct choice *c, size_t bytes_max, int32_t tokens_max,
                    struct choice_scratch *m, struct err *err);
/* How many of the scanned tokens the text is made of. */
int32_t choice_text_tokens(const struct choice *c);
/* Are the bytes well-formed UTF-8? */
bool choice_is_text(const char *bytes, size_t len);
/* Why a choice ended; call it only for one that has. */
enum finish_reason choice_finish(const struct choice *c);

#endif
