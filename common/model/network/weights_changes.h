/* Turns one version's bf16 weights into another's: the format of what is sent where two versions differ little.
 *
 * Under the small learning rates of RL most steps move a weight by less than its last bit, so that few bf16 values
 * differ between two versions, and those mostly by one unit.  All numbers are little-endian:
 *
 *   "LHCHANGE"  digest of the base [32]  digest of what comes out [32]  u64 tensors (as in the parameter table)
 *   for each tensor    u64 form  u64 bytes  u64 changes  u64 bytes of places (forms gaps and mask; else both 0)
 *   for each tensor    its bytes: nothing | the whole tensor | places, codes, extras
 *
 *   places   gaps: for every change the number of unchanged values before it, 255 standing for 255 of them without a change
 *            behind; mask: 64 values a word, the lowest bit is the first
 *   codes    two bits for every change, from the lowest: +1, -1, a byte of extras (signed), two bytes of extras
 *   extras   as the codes ask for; what is added to a value's 16 bits, modulo 2^16
 *
 * Changes may follow each other, each of the version that the one before makes.
 *
 * A tensor goes whole where its changes would take more than half of it, or where more than two in five of its first
 * values differ, and there are no changes of a version that would take more than half of its file: decoding costs time,
 * too.
 *
 * The digest that both versions have anyway proves the result.  Changes come from a socket: a decoder believes nothing
 * of them, and never writes outside the tensor, whatever they say.
 *
 * Made by weights_digest.c while a version is packed; applied by weights_apply.c.  No state: any thread, a tensor
 * each. */
#ifndef LEASEHOLD_MODEL_NETWORK_WEIGHTS_CHANGES_H
#define LEASEHOLD_MODEL_NETWORK_WEIGHTS_CHANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/digest.h"

enum change_form { CHANGE_NONE, CHANGE_GAPS, CHANGE_MASK, CHANGE_WHOLE, CHANGE_FORMS };
enum {
  CHANGES_PART = 2,      /* at most one in this many parts of a tensor, and of a file */
  CHANGES_LINKS_MAX = 16 /* changes of changes that are sent one behind the other */
};

/* Of one tensor. */
struct change_record {
  enum change_form form;
  size_t bytes, changes, places;
};

/* --- making them --- */

struct changes_encoder {
  const uint16_t *base, *now; /* [count] any alignment */
  size_t count, done;         /* values; done: compared so far */
  unsigned char *out;         /* [2 * count] bytes */
  size_t changes, extra_bytes;
  uint64_t codes; /* those that are not written yet, the last changes % 32 */
  bool too_many;
};
void changes_encode_begin(struct changes_encoder *e, const void *base, const void *now, size_t count, void *out);
/* The first `ready` values of `now` are there.  All of them: the last call. */
void changes_encode(struct changes_encoder *e, size_t ready);
/* What lies at the beginning of `out` now.  CHANGE_WHOLE: nothing yet, the caller copies the tensor there. */
struct change_record changes_encode_end(struct changes_encoder *e);

size_t changes_header_bytes(size_t tensors);
/* Writes changes_header_bytes(tensors) bytes. */
void changes_header_write(void *out, const struct digest *base, const struct digest *made,
                          const struct change_record *records, size_t tensors);

/* --- applying them --- */

/* counts: values of each tensor.  Checks the header and that all pieces are there; RC_INVALID.  records[tensors]; the
 * first tensor's bytes begin at changes_header_bytes, and *used is where the last one's end. */
enum rc changes_header_read(struct digest *base, struct digest *made, struct change_record *records, size_t *used,
                            const void *bytes, size_t len, const size_t *counts, size_t tensors, struct err *err);

/* Over one tensor's bytes, from its first value to its last. */
struct changes_cursor {
  struct change_record record;
  const unsigned char *whole, *place, *place_end, *codes, *extra, *extra_end;
  size_t count, left, taken; /* values; changes to come, the one at `at` included; changes applied */
  size_t at;                 /* the next change's value; count: there is none */
  size_t word_at;            /* mask: the first value of the word in hand */
  uint64_t word;             /* its bits to come */
  bool wrong;
};
void changes_begin(struct changes_cursor *c, const struct change_record *record, const void *bytes, size_t count);
/* Is there a change before the value `end`?  Where not, changes_apply would do nothing. */
static inline bool changes_before(const struct changes_cursor *c, size_t end) { return c->whole || c->at < end; }
/* x: the base's values [first, end), which become the other version's.  Called for one stretch after another. */
void changes_apply(struct changes_cursor *cursor, uint16_t *x, size_t first, size_t end);
/* After the last stretch.  False: the bytes are no changes of such a tensor, or made an infinity or a NaN. */
bool changes_end(const struct changes_cursor *c);

#endif
