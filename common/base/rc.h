/* Result codes and the error record that every fallible function in Leasehold uses.
 *
 * Convention: a fallible function returns `enum rc` (RC_OK is 0), delivers results through out-parameters and takes
 * `struct err *` last.  The record is filled once, where the fault is found, with a sentence that says what was
 * expected and what came; callers pass it upwards untouched.  `err` may be NULL when only the code matters.  The HTTP
 * layer maps codes to statuses (common/http/status.h), so the code must tell the peer's faults from ours.
 */
#ifndef LEASEHOLD_BASE_RC_H
#define LEASEHOLD_BASE_RC_H

enum rc {
  RC_OK = 0,
  RC_INVALID,     /* the peer's or user's input is malformed or out of bounds                  HTTP 422 */
  RC_NOT_FOUND,   /* the named thing does not exist                                            HTTP 404 */
  RC_FORBIDDEN,   /* the thing exists, but belongs to somebody else; or no valid token         HTTP 403 */
  RC_CONFLICT,    /* superseded version, stale fence or epoch, different content under one id  HTTP 409 */
  RC_GONE,        /* expired                                                                   HTTP 410 */
  RC_TOO_LARGE,   /* a body or a value exceeds its stated limit                                HTTP 413 */
  RC_FULL,        /* a bounded queue or pool is full; try again later                          HTTP 429 */
  RC_UNAVAILABLE, /* not ready, draining, or a peer cannot be reached                          HTTP 503 */
  RC_TIMEOUT,     /* a deadline passed                                                         HTTP 504 */
  RC_UNSUPPORTED, /* understood, and deliberately not offered                                  HTTP 501 */
  RC_NO_MEMORY,   /* an allocation was refused; the message says how much was needed           HTTP 503 */
  RC_IO,          /* a file or socket operation failed                                         HTTP 500 */
  RC_CORRUPT,     /* our own stored data is not what we wrote                                  HTTP 500 */
  RC_INTERNAL     /* a fault of ours that is none of the above                                 HTTP 500 */
};

/* Upper bounds of the record's texts, terminating NUL included. */
enum { ERR_FIELD_MAX = 96, ERR_MESSAGE_MAX = 1024 };

struct err {
  enum rc rc;
  char field[ERR_FIELD_MAX];     /* the offending field's path ("sampling.temperature"), or "" */
  char message[ERR_MESSAGE_MAX]; /* one sentence: what was expected and what came */
};

/* Fills *err (when not NULL) and returns rc, so that a fault site reads `return err_set(err, RC_INVALID, "seed",
 * ...)`. field may be NULL for "".  Long texts are cut, never overrun. */
enum rc err_set(struct err *err, enum rc rc, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Like err_set with ": <strerror(errno)>" appended; for failed system calls. */
enum rc err_set_errno(struct err *err, enum rc rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix." before err->field; used when a nested object reports its own field.  No-op on NULL. */
void err_in_field(struct err *err, const char *prefix);
/* Puts "name: " before err->message, and the field too if the sentence lacks it.  Used where the name of the file or of
 * the peer's answer with the fault is known.  No-op on NULL. */
void err_in_file(struct err *err, const char *name);

/* The index of `name` among `names` into *out; RC_INVALID lists them: "expected one of a, b, got 'x'". */
enum rc name_index(int *out, const char *name, const char *const *names, int count, const char *field, struct err *err);

/* A stable snake_case name of the code ("conflict"); the `code` of an error body. */
const char *rc_name(enum rc rc);

#endif
