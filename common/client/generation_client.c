/* Typed calls of the trainer's publisher to a generation-server: see generation_client.h. */
#include "common/client/generation_client.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/client/call.h"

static enum rc decode_push_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return push_answer_decode(out, body, arena, err);
}

enum rc generation_push_weights(const struct generation_client *c, const char *run, int64_t version, uint64_t epoch,
                                const struct digest *digest, const void *bytes, size_t len, struct push_answer *out,
                                struct arena *arena, int64_t deadline_ms, struct err *err) {
  char hex[DIGEST_HEX_MAX], line[DIGEST_HEX_MAX + 32];
  digest_hex(hex, digest);
  snprintf(line, sizeof line, "X-Leasehold-Digest: %s", hex);
  const char *const headers[] = {line, NULL};
  struct client_call call = {
      .http = c->http, .what = "pushing weights", .method = "POST", .headers = headers, .deadline_ms = deadline_ms};
  call.raw = bytes;
  call.raw_len = len;
  client_url(&call.url, c->base_url, "/v1/push-weights?run=", run, "");
  buf_printf(&call.url, "&version=%" PRId64 "&epoch=%" PRIu64, version, epoch);
  return client_call_json(&call, decode_push_answer, out, arena, err);
}
