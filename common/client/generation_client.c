/* Calls a generation-server for the trainer's publisher: one function per way of pushing weights. */
#include "common/client/generation_client.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/client/call.h"

static enum rc decode_push_answer(void *out, const struct json *body, struct arena *arena, struct err *err) {
  return push_answer_decode(out, body, arena, err);
}

static enum rc push(struct client_call *call, const struct generation_client *c, const struct pushed_version *v,
                    const struct digest *base, const struct push_broadcast *broadcast, struct push_answer *out,
                    struct arena *arena, struct err *err) {
  char hex[DIGEST_HEX_MAX], line[DIGEST_HEX_MAX + 32];
  digest_hex(hex, &v->digest);
  snprintf(line, sizeof line, "X-Leasehold-Digest: %s", hex);
  const char *const headers[] = {line, NULL};
  call->http = c->http;
  call->what = "pushing weights";
  call->method = "POST";
  call->headers = headers;
  client_url(&call->url, c->base_url, "/v1/push-weights?run=", v->run, "");
  buf_printf(&call->url, "&version=%" PRId64 "&epoch=%" PRIu64, v->version, v->epoch);
  if (v->announced) buf_puts(&call->url, "&announced=true");
  if (base) {
    digest_hex(hex, base);
    buf_printf(&call->url, "&base=%s", hex);
  }
  if (broadcast)
    buf_printf(&call->url, "&token=%s&rank=%d&size=%d&bytes=%zu&wait_ms=%" PRId64, broadcast->token, broadcast->rank,
               broadcast->size, broadcast->bytes, broadcast->wait_ms);
  return client_call_json(call, decode_push_answer, out, arena, err);
}

enum rc generation_push_weights(const struct generation_client *c, const struct pushed_version *v, const void *bytes,
                                size_t len, struct push_answer *out, struct arena *arena, int64_t deadline_ms,
                                struct err *err) {
  struct client_call call = {.raw = bytes, .raw_len = len, .deadline_ms = deadline_ms};
  return push(&call, c, v, NULL, NULL, out, arena, err);
}

enum rc generation_push_changes(const struct generation_client *c, const struct pushed_version *v,
                                const struct digest *base, const struct http_part *parts, size_t count,
                                struct push_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = {.parts = parts, .part_count = count, .deadline_ms = deadline_ms};
  for (size_t i = 0; i < count; i++) call.raw_len += parts[i].len;
  return push(&call, c, v, base, NULL, out, arena, err);
}

enum rc generation_push_by_broadcast(const struct generation_client *c, const struct pushed_version *v,
                                     const struct push_broadcast *broadcast, struct push_answer *out,
                                     struct arena *arena, int64_t deadline_ms, struct err *err) {
  struct client_call call = {.deadline_ms = deadline_ms};
  return push(&call, c, v, NULL, broadcast, out, arena, err);
}
