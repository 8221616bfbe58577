/* Makes the one exchange behind every typed call: URL, call, status, decoding.
 *
 * No state: the http_client belongs to the calling thread. */
#include "common/client/call.h"

#include <string.h>

void client_url(struct buf *url, const char *base_url, const char *path, const char *segment, const char *tail) {
  size_t len = strlen(base_url);
  if (len > 0 && base_url[len - 1] == '/') len--;
  buf_append(url, base_url, len);
  buf_puts(url, path);
  if (segment) http_url_escape(url, segment);
  buf_puts(url, tail);
}

/* Services of one version send each other nothing that the other does not know. */
static void tell_versions(struct err *err) {
  if (err && strstr(err->message, "unknown field"))
    err_in_file(err, "the two services are of different versions, and go on once both are of the newer one");
}

/* Sends, and refuses every status but 2xx.  The caller frees *answer when RC_OK. */
static enum rc exchange(struct client_call *call, struct http_answer *answer, struct err *err) {
  enum rc rc = buf_check(&call->url, err);
  if (rc == RC_OK) rc = buf_check(&call->body, err);
  if (rc == RC_OK && call->deadline_ms <= 0)
    rc = err_set(err, RC_TIMEOUT, NULL, "%s: expected time left until the deadline, got %lld ms", call->what,
                 (long long)call->deadline_ms);
  if (rc == RC_OK) {
    const struct http_call sent = {
        .method = call->method,
        .url = call->url.data,
        .content_type = call->raw || call->parts ? "application/octet-stream" : NULL,
        .body = call->raw ? call->raw : call->body.data,
        .body_len = call->raw || call->parts ? call->raw_len : call->body.len,
        .parts = call->parts,
        .part_count = call->part_count,
        .headers = call->headers,
        .deadline_ms = call->deadline_ms,
        .stall_ms = call->stall_ms,
        .response_bytes_max = call->answer_bytes_max,
    };
    rc = http_client_call(call->http, &sent, answer, err);
    if (rc == RC_OK && (answer->status < 200 || answer->status > 299)) {
      rc = http_answer_error(answer, call->what, err);
      tell_versions(err);
      http_answer_free(answer);
    }
  }
  buf_free(&call->url);
  buf_free(&call->body);
  return rc;
}

static enum rc read_json(const struct client_call *call, const struct http_answer *answer, client_decode decode,
                         void *out, struct arena *arena, struct err *err) {
  struct json *root = NULL;
  enum rc rc = json_parse(&root, answer->body.data ? answer->body.data : "", answer->body.len, call->answer_bytes_max,
                          err);
  if (rc == RC_OK) rc = decode(out, root, arena, err);
  json_free(root);
  return rc;
}

enum rc client_call_either(struct client_call *call, client_decode decode, client_decode_bytes decode_bytes, void *out,
                           struct arena *arena, struct err *err) {
  struct http_answer answer;
  enum rc rc = exchange(call, &answer, err);
  if (rc) return rc;
  if (decode) {
    struct err fault = {0};
    rc = decode_bytes && answer.is_bytes
             ? decode_bytes(out, answer.body.data ? answer.body.data : "", answer.body.len, arena, &fault)
             : read_json(call, &answer, decode, out, arena, &fault);
    if (rc != RC_OK && rc != RC_NO_MEMORY) {
      rc = RC_INTERNAL;
      err_in_file(&fault, "the answer could not be understood");
    }
    if (rc != RC_OK) err_set(err, rc, fault.field, "%s: %s", call->what, fault.message);
    if (rc != RC_OK) tell_versions(err);
  }
  http_answer_free(&answer);
  return rc;
}

enum rc client_call_json(struct client_call *call, client_decode decode, void *out, struct arena *arena,
                         struct err *err) {
  return client_call_either(call, decode, NULL, out, arena, err);
}

enum rc client_call_bytes(struct client_call *call, struct buf *out, struct err *err) {
  struct http_answer answer;
  const enum rc rc = exchange(call, &answer, err);
  if (rc) return rc;
  buf_free(out);
  *out = answer.body;
  answer.body = (struct buf)BUF_INIT;
  http_answer_free(&answer);
  return RC_OK;
}
