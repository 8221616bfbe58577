/* Writes and parses readable ids such as "r7.12.3". */
#include "services/coordinator/store/ids.h"

#include <inttypes.h>
#include <stdio.h>

struct id_text id_run(int64_t run) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64, run);
  return id;
}

struct id_text id_round(int64_t run, int64_t round) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64, run, round);
  return id;
}

struct id_text id_group(int64_t run, int64_t round, int64_t group) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64 ".%" PRId64, run, round, group);
  return id;
}

struct id_text id_sample(int64_t run, int64_t round, int64_t group, int64_t sample) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64 ".%" PRId64 ".%" PRId64, run, round, group, sample);
  return id;
}

struct id_text id_lease(int64_t run, int64_t round, int64_t group, int64_t first, int64_t count) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64 ".%" PRId64 ".%" PRId64 "-%" PRId64, run, round, group,
           first, first + count - 1);
  return id;
}

struct id_text id_batch(int64_t run, int64_t round, int64_t number) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64 ".b%" PRId64, run, round, number);
  return id;
}

struct id_text id_inner_step(int64_t run, int64_t round, int64_t step) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "r%" PRId64 ".%" PRId64 ".s%" PRId64, run, round, step);
  return id;
}

struct id_text id_worker(int64_t worker) {
  struct id_text id;
  snprintf(id.text, sizeof id.text, "w%" PRId64, worker);
  return id;
}

/* Digits without sign, spaces or leading zeros, at most 18 of them; NULL when there are none. */
static const char *number(int64_t *out, const char *text) {
  int digits = 0;
  *out = 0;
  if (text[0] == '0' && text[1] >= '0' && text[1] <= '9') return NULL;
  for (; text[digits] >= '0' && text[digits] <= '9'; digits++) {
    if (digits == 18) return NULL;
    *out = *out * 10 + (text[digits] - '0');
  }
  return digits ? text + digits : NULL;
}

enum rc id_parse_run(int64_t *run, const char *text, struct err *err) {
  const char *end = text[0] == 'r' ? number(run, text + 1) : NULL;
  if (!end || *end) return err_set(err, RC_NOT_FOUND, "id", "there is no run '%.100s'; runs are named like r7", text);
  return RC_OK;
}

enum rc id_parse_worker(int64_t *worker, const char *text, struct err *err) {
  const char *end = text[0] == 'w' ? number(worker, text + 1) : NULL;
  if (!end || *end) return err_set(err, RC_NOT_FOUND, "id", "there is no worker '%.100s'; register first", text);
  return RC_OK;
}

enum rc id_parse_group(int64_t *run, int64_t *round, int64_t *group, const char *what, const char *text,
                       struct err *err) {
  const char *at = text[0] == 'r' ? number(run, text + 1) : NULL;
  at = at && *at == '.' ? number(round, at + 1) : NULL;
  const char *end = at && *at == '.' ? number(group, at + 1) : NULL;
  if (!end || *end)
    return err_set(err, RC_NOT_FOUND, "id", "there is no %s '%.100s'; expected a name like r7.12.3", what, text);
  return RC_OK;
}

enum rc id_parse_round(int64_t *run, int64_t *round, const char *text, struct err *err) {
  const char *at = text[0] == 'r' ? number(run, text + 1) : NULL;
  const char *end = at && *at == '.' ? number(round, at + 1) : NULL;
  if (!end || *end)
    return err_set(err, RC_NOT_FOUND, "step_id", "there is no round '%.100s'; rounds are named like r7.12", text);
  return RC_OK;
}
