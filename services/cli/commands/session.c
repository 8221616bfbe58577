/* Calls the coordinator, and prints calls and answers as asked. */
#include "services/cli/commands/session.h"

#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/http/trust/tls.h"

enum { CALL_MS = 60000, ANSWER_BYTES_MAX = 128 << 20 };

enum rc session_open(struct session *s, struct err *err) {
  const size_t head = strncmp(s->coordinator, "https://", 8) == 0 ? 8 : 7;
  if ((head == 7 && strncmp(s->coordinator, "http://", 7) != 0) || !s->coordinator[head])
    return err_set(err, RC_INVALID, "coordinator",
                   "--coordinator: expected http://host:port or https://host:port, got \"%s\"", s->coordinator);
  s->tls.client_ca = ""; /* a server's */
  const enum rc rc = http_tls_start(&s->tls, err);
  return rc != RC_OK ? rc : http_client_create(&s->http, s->token, NULL, err);
}

void session_close(struct session *s) { http_client_destroy(s->http); }

void session_print_quoted(const char *text) {
  fputc('\'', stderr);
  for (; *text; text++) {
    if (*text == '\'')
      fputs("'\\''", stderr);
    else
      fputc(*text, stderr);
  }
  fputc('\'', stderr);
}

static void print_flag(const char *flag, const char *value) {
  if (!value[0]) return;
  fprintf(stderr, " %s ", flag);
  session_print_quoted(value);
}

/* What is sent: where it was read from, or a text; none of both: nothing. */
struct sent {
  const struct buf *bytes;
  const char *file, *text;
};

static void print_curl(const struct session *s, const char *method, const char *url, const struct sent *sent) {
  if (!s->verbose) return;
  fprintf(stderr, "curl -sS");
  if (strcmp(method, "GET") != 0) fprintf(stderr, " -X %s", method);
  if (strncmp(url, "https:", 6) == 0) {
    print_flag("--cacert", s->tls.ca);
    print_flag("--cert", s->tls.cert);
    print_flag("--key", s->tls.key);
  }
  if (s->token[0]) fprintf(stderr, " -H \"Authorization: Bearer $LEASEHOLD_AUTH_TOKEN\"");
  if (sent->file || sent->text) {
    fprintf(stderr, " -H 'Content-Type: application/json' --data-binary ");
    char data[LIMIT_PATH_MAX + 2];
    snprintf(data, sizeof data, "%s%s", sent->text ? "" : "@", sent->text ? sent->text : sent->file);
    session_print_quoted(data);
  }
  fputc(' ', stderr);
  session_print_quoted(url);
  fputc('\n', stderr);
}

static enum rc exchange_at(struct session *s, const char *method, const char *url, const struct sent *sent,
                           struct http_answer *answer, struct err *err) {
  const char *body = sent->bytes ? sent->bytes->data : sent->text;
  const struct http_call call = {.method = method,
                                 .url = url,
                                 .body = body,
                                 .body_len = sent->bytes ? sent->bytes->len : body ? strlen(body) : 0,
                                 .deadline_ms = CALL_MS,
                                 .response_bytes_max = ANSWER_BYTES_MAX};
  print_curl(s, method, url, sent);
  return http_client_call(s->http, &call, answer, err);
}

static void url_begin(struct buf *url, const char *base, const char *path) {
  const size_t len = strlen(base);
  buf_append(url, base, len && base[len - 1] == '/' ? len - 1 : len);
  buf_puts(url, path);
}

static enum rc exchange(struct session *s, const char *method, const char *path, const char *segment, const char *tail,
                        const struct buf *body, const char *file, struct http_answer *answer, struct err *err) {
  struct buf url = BUF_INIT;
  url_begin(&url, s->coordinator, path);
  if (segment) http_url_escape(&url, segment);
  if (tail) buf_puts(&url, tail);
  enum rc rc = buf_check(&url, err);
  if (rc == RC_OK) {
    rc = exchange_at(s, method, url.data, &(struct sent){.bytes = body, .file = file}, answer, err);
    if (rc != RC_OK) err_in_file(err, s->coordinator);
  }
  buf_free(&url);
  return rc;
}

static enum rc json_of(struct session *s, enum rc rc, const char *whose, struct http_answer *answer, struct json **out,
                       struct err *err) {
  *out = NULL;
  s->later = false;
  if (rc != RC_OK) return rc;
  s->answered = true;
  if (answer->status >= 400) {
    s->later = answer->status == 429 || answer->status == 503;
    rc = http_answer_error(answer, whose, err);
    if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT) rc = RC_CONFLICT; /* it has answered */
  } else {
    rc = json_parse(out, answer->body.data ? answer->body.data : "", answer->body.len, ANSWER_BYTES_MAX, err);
    if (rc == RC_OK && s->json && !s->watch) printf("%s\n", answer->body.data);
  }
  http_answer_free(answer);
  return rc;
}

bool session_again(const struct session *s, enum rc rc) {
  return rc != RC_OK && s->answered && (s->later || rc == RC_UNAVAILABLE || rc == RC_TIMEOUT);
}

enum rc session_get(struct session *s, const char *path, const char *segment, const char *tail, struct json **out,
                    struct err *err) {
  struct http_answer answer = {0};
  const enum rc rc = exchange(s, "GET", path, segment, tail, NULL, NULL, &answer, err);
  return json_of(s, rc, "the coordinator", &answer, out, err);
}

enum rc session_post(struct session *s, const char *path, const char *segment, const char *tail, const struct buf *body,
                     const char *file, struct json **out, struct err *err) {
  struct http_answer answer = {0};
  const enum rc rc = exchange(s, "POST", path, segment, tail, body, file, &answer, err);
  return json_of(s, rc, "the coordinator", &answer, out, err);
}

enum rc session_get_text(struct session *s, const char *path, struct buf *out, int *status, struct err *err) {
  struct http_answer answer = {0};
  const enum rc rc = exchange(s, "GET", path, NULL, NULL, NULL, NULL, &answer, err);
  if (rc != RC_OK) return rc;
  buf_append(out, answer.body.data, answer.body.len);
  *status = answer.status;
  http_answer_free(&answer);
  return buf_check(out, err);
}

/* ---- other services ---- */

enum rc session_post_at(struct session *s, const char *base, const char *path, const char *body, struct json **out,
                        struct err *err) {
  struct http_answer answer = {0};
  struct buf url = BUF_INIT;
  url_begin(&url, base, path);
  enum rc rc = buf_check(&url, err);
  if (rc == RC_OK) rc = exchange_at(s, "POST", url.data, &(struct sent){.text = body}, &answer, err);
  rc = json_of(s, rc, path, &answer, out, err);
  buf_free(&url);
  return rc;
}

enum rc session_get_text_at(struct session *s, const char *base, const char *path, struct buf *out, int *status,
                            struct err *err) {
  struct http_answer answer = {0};
  struct buf url = BUF_INIT;
  url_begin(&url, base, path);
  enum rc rc = buf_check(&url, err);
  if (rc == RC_OK) rc = exchange_at(s, "GET", url.data, &(struct sent){0}, &answer, err);
  if (rc == RC_OK) {
    buf_append(out, answer.body.data, answer.body.len);
    *status = answer.status;
    http_answer_free(&answer);
    rc = buf_check(out, err);
  }
  buf_free(&url);
  return rc;
}

enum rc session_file_read(const char *file, struct buf *out, struct err *err) {
  return file_read(out, strcmp(file, "-") == 0 ? "/dev/stdin" : file, LIMIT_BODY_BYTES, err);
}
