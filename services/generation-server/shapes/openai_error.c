/* Writes errors in OpenAI's form.
 *
 * Previous hop: whatever refuses a request of these routes, the HTTP layer among them.  Next: the client. */
#include "services/generation-server/shapes/openai_error.h"

#include <string.h>

#include "common/json/json.h"

struct openai_kind {
  const char *type, *code;
};

/* `status` becomes the one that OpenAI answers. */
static struct openai_kind kind_of(int *status, const struct err *err) {
  const bool of_field = err->field[0] != 0;
  switch (err->rc) {
    case RC_INVALID:
      if (*status == 422) *status = 400;
      return (struct openai_kind){"invalid_request_error", of_field ? "invalid_value" : "invalid_request"};
    case RC_UNSUPPORTED:
      if (of_field) *status = 400; /* else the route is not offered: it is no fault of the request's */
      return (struct openai_kind){"invalid_request_error", of_field ? "unsupported_parameter" : rc_name(err->rc)};
    case RC_TOO_LARGE:
      if (of_field) *status = 400;
      return (struct openai_kind){"invalid_request_error", of_field ? "context_length_exceeded" : "request_too_large"};
    case RC_NOT_FOUND:
      return (struct openai_kind){"invalid_request_error",
                                  strcmp(err->field, "model") == 0 ? "model_not_found" : rc_name(err->rc)};
    case RC_FORBIDDEN:
      if (*status == 401) return (struct openai_kind){"invalid_request_error", "invalid_api_key"};
      return (struct openai_kind){"request_forbidden", "permission_denied"};
    case RC_FULL: return (struct openai_kind){"requests", "rate_limit_exceeded"};
    default: return (struct openai_kind){*status < 500 ? "invalid_request_error" : "server_error", rc_name(err->rc)};
  }
}

void openai_error_write(struct buf *out, int *status, const struct err *err) {
  const struct openai_kind kind = kind_of(status, err);
  struct json_writer w;
  struct buf message = BUF_INIT;
  if (err->field[0] && err->rc != RC_TOO_LARGE && !strstr(err->message, err->field)) /* many show the message alone */
    buf_printf(&message, "%s: %s", err->field, err->message);
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_key(&w, "error");
  json_object_begin(&w);
  json_kv_string(&w, "message", message.data ? message.data : err->message);
  json_kv_string(&w, "type", kind.type);
  json_kv_string(&w, "param", err->field[0] ? err->field : NULL);
  json_kv_string(&w, "code", kind.code);
  json_object_end(&w);
  json_object_end(&w);
  buf_free(&message);
}
