/* One use of the command line: its flags, its connection, and the calls that it makes.
 *
 * One thread.  session_get and its like give the parsed answer, freed by the caller; an answer from 400 on is an error
 * with the coordinator's own sentence.  RC_UNAVAILABLE and RC_TIMEOUT: nobody answered. */
#ifndef LEASEHOLD_CLI_COMMANDS_SESSION_H
#define LEASEHOLD_CLI_COMMANDS_SESSION_H

#include "common/base/program.h"
#include "common/http/client.h"
#include "common/json/json.h"

/* Exit statuses. */
enum { EXIT_DONE, EXIT_REFUSED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_WAITS };

struct session {
  const char *coordinator, *token;
  struct tls_settings tls;
  bool verbose, json, watch;
  bool answered, later; /* once at least; the last answer was 429 or 503: ask again later */
  int64_t round, limit, timeout_s;
  const char *set, *b_set; /* evaluation sets; "": not named */
  /* Of doctor before any service runs (before.h); model "": they run. */
  const char *model, *data_dir, *coordinator_flags, *trainer_flags, *server_flags;
  int64_t servers, new_tokens, measure_s;
  const char *const *words; /* behind the command's name */
  int word_count;
  struct http_client *http;
};

enum rc session_open(struct session *s, struct err *err);
void session_close(struct session *s);
/* path: "/v1/runs/", then segment percent-encoded (NULL: none), then tail ("/stop", "?limit=3"). */
enum rc session_get(struct session *s, const char *path, const char *segment, const char *tail, struct json **out,
                    struct err *err);
/* Watching, is this no end yet?  A coordinator that has answered and now does not, or says later, is being started
 * again. */
bool session_again(const struct session *s, enum rc rc);
/* body NULL: none.  file: where it was read from, for -v. */
enum rc session_post(struct session *s, const char *path, const char *segment, const char *tail, const struct buf *body,
                     const char *file, struct json **out, struct err *err);
/* Reads a run's configuration; "-" is standard input. */
enum rc session_file_read(const char *file, struct buf *out, struct err *err);
/* The same of another service, at base ("http://host:port"); body is JSON text, NULL: none. */
enum rc session_post_at(struct session *s, const char *base, const char *path, const char *body, struct json **out,
                        struct err *err);
enum rc session_get_text_at(struct session *s, const char *base, const char *path, struct buf *out, int *status,
                            struct err *err);
/* In single quotes, for a shell, on standard error. */
void session_print_quoted(const char *text);
/* The answer's text, for what is no JSON.  *status may be any. */
enum rc session_get_text(struct session *s, const char *path, struct buf *out, int *status, struct err *err);

#endif
