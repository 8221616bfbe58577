/* The one exchange that every typed call is made of: URL, call, status, decoding (call.c).  Private to common/client.
 *
 *   encode -> client_url -> http_client_call -> status (http_answer_error) -> json_parse -> decode into the caller's
 *   arena
 *
 * A refusal by the peer keeps the peer's code and sentence.  An answer that does not decode is the peer's fault, not
 * our user's: RC_INTERNAL. */
#ifndef LEASEHOLD_CLIENT_CALL_H
#define LEASEHOLD_CLIENT_CALL_H

#include "common/http/client.h"
#include "common/json/json.h"
#include "common/wire/training.h"

/* Decodes into *out, whose type the decoder knows. */
typedef enum rc (*client_decode)(void *out, const struct json *body, struct arena *arena, struct err *err);

struct client_call {
  struct http_client *http;
  const char *what; /* for error sentences: "submitting a batch" */
  const char *method;
  struct buf url;  /* built by client_url; freed by client_call */
  struct buf body; /* JSON to send; freed by client_call.  Unused when raw is given */
  const void *raw; /* bytes that are not JSON, borrowed */
  size_t raw_len;
  const struct http_part *parts; /* the same in parts, raw_len bytes in all */
  size_t part_count;
  const char *const *headers; /* as in http_call */
  size_t answer_bytes_max;
  int64_t deadline_ms, stall_ms; /* as in http_call */
};

/* Appends base_url (without a slash at its end), path, segment (percent-encoded, may be NULL) and tail. */
void client_url(struct buf *url, const char *base_url, const char *path, const char *segment, const char *tail);

/* decode NULL: the answer's content does not matter, and arena may be NULL. */
enum rc client_call_json(struct client_call *call, client_decode decode, void *out, struct arena *arena,
                         struct err *err);
/* Where the answer says that it is bytes, decode_bytes reads it, else decode. */
typedef enum rc (*client_decode_bytes)(void *out, const void *bytes, size_t len, struct arena *arena, struct err *err);
enum rc client_call_either(struct client_call *call, client_decode decode, client_decode_bytes decode_bytes, void *out,
                           struct arena *arena, struct err *err);
/* Replaces the content of *out by the answer's bytes, undecoded. */
enum rc client_call_bytes(struct client_call *call, struct buf *out, struct err *err);

#endif
