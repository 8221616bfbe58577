/* What the tests of the codecs share: messages as literal JSON, and every way to spoil one.
 *
 * A message is decoded and encoded again; the bytes must be the same, so nothing is lost and the literal is the
 * contract.  Then each of its members and elements in turn is dropped, nulled, given a wrong type or doubled, each
 * object gets a surplus key, and the text is cut at every byte. */
#ifndef LEASEHOLD_TESTS_UNIT_WIRE_WIRE_TEST_H
#define LEASEHOLD_TESTS_UNIT_WIRE_WIRE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/wire/training.h"

#define ZEROS    "0000000000000000000000000000000000000000000000000000000000000000"
#define DIGEST_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define DIGEST_B "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"

struct message {
  const char *name, *json;
  /* Decodes and encodes again. */
  enum rc (*again)(const struct json *body, struct buf *out, struct arena *arena, struct err *err);
  const char *optional[10]; /* members that may be dropped, or null */
  const char *nullable[10]; /* members that may be null, but not dropped; "logprobs[]" for elements */
};

#define MESSAGE_AGAIN(type)                                                                                     \
  static enum rc again_##type(const struct json *body, struct buf *out, struct arena *arena, struct err *err) { \
    struct type m;                                                                                              \
    const enum rc rc = type##_decode(&m, body, arena, err);                                                     \
    if (rc == RC_OK) type##_encode(&m, out);                                                                    \
    return rc;                                                                                                  \
  }

/* Parses and decodes; the encoding goes to *out when given. */
enum rc message_try(const struct message *m, const char *text, size_t len, struct buf *out, struct err *err);
void message_check_round_trip(const struct message *m);
void message_check_spoilt(const struct message *m);

/* The text with the first `from`, which must be there, replaced; to be freed. */
char *message_replaced(const char *text, const char *from, const char *to);
/* m->json with the first `from` replaced by `to` must be refused with this field (NULL: any) and RC_INVALID. */
void message_check_refused(const struct message *m, const char *from, const char *to, const char *field);
/* The same replacement must be accepted. */
void message_check_accepted(const struct message *m, const char *from, const char *to);

#endif
