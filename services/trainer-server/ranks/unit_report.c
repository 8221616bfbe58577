/* Encodes and decodes the reports of gradient units, one line of JSON each. */
#include "services/trainer-server/ranks/unit_report.h"

#include <string.h>

#include "common/json/json.h"

void unit_reports_encode(const struct unit_report *reports, const struct batch_group *groups, size_t count,
                         struct buf *out) {
  for (size_t g = 0; g < count; g++) {
    const struct unit_report *r = &reports[g];
    if (r->state == UNIT_ABSENT) continue;
    struct batch_status status = {.batch_id = groups[g].id,
                                  .state = r->state == UNIT_DONE ? JOB_DONE : JOB_FAILED,
                                  .error = r->error,
                                  .samples = r->samples,
                                  .sample_count = r->sample_count,
                                  .numbers = STATUS_LOGPROBS | STATUS_ENTROPIES,
                                  .differences = r->differences,
                                  .difference_count = r->difference_count,
                                  .refusals = r->refusals,
                                  .refusal_count = r->refusal_count,
                                  .stats = r->stats};
    logprobs_digest(&status.logprobs_sha256, r->samples, r->sample_count);
    batch_status_encode(&status, out);
    buf_puts(out, "\n");
  }
}

static enum rc line_decode(struct batch_status *status, const char *line, size_t len, struct arena *arena,
                           struct err *err) {
  struct json *root = NULL;
  enum rc rc = json_parse(&root, line, len, LIMIT_BATCH_BODY_BYTES, err);
  if (rc == RC_OK) rc = batch_status_decode(status, root, arena, err);
  json_free(root);
  if (rc != RC_OK || status->state != JOB_DONE) return rc;
  struct digest digest;
  logprobs_digest(&digest, status->samples, status->sample_count);
  if (digest_equal(&digest, &status->logprobs_sha256)) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "the log-probabilities of unit %s are not those that were computed",
                 status->batch_id);
}

enum rc unit_reports_decode(struct unit_report *reports, const struct batch_group *groups, size_t count,
                            const char *text, size_t len, struct arena *arena, struct err *err) {
  size_t g = 0;
  for (const char *end = text + len; text < end;) {
    struct batch_status status;
    const char *stop = memchr(text, '\n', (size_t)(end - text));
    if (!stop) return err_set(err, RC_INVALID, NULL, "a unit's report ends without an end of line");
    const enum rc rc = line_decode(&status, text, (size_t)(stop - text), arena, err);
    if (rc != RC_OK) return rc;
    while (g < count && strcmp(groups[g].id, status.batch_id) != 0) g++;
    if (g == count || (status.state == JOB_DONE && status.sample_count != groups[g].sample_count))
      return err_set(err, RC_INVALID, NULL,
                     "a report of unit %s came, but this batch has no such unit, or one of another size",
                     status.batch_id);
    reports[g] = (struct unit_report){.state = status.state == JOB_DONE ? UNIT_DONE : UNIT_FAILED,
                                      .stats = status.stats,
                                      .samples = status.samples,
                                      .sample_count = status.sample_count,
                                      .differences = status.differences,
                                      .difference_count = status.difference_count,
                                      .refusals = status.refusals,
                                      .refusal_count = status.refusal_count,
                                      .error = status.error};
    text = stop + 1;
  }
  return RC_OK;
}
