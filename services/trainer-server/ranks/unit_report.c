/* Encodes and decodes the reports of gradient units, each its length and a batch_status with tensors. */
#include "services/trainer-server/ranks/unit_report.h"

#include <string.h>

static enum rc report_encode(const struct batch_status *status, struct buf *out, struct err *err) {
  struct buf report = BUF_INIT;
  const enum rc rc = batch_status_encode_tensors(status, &report, err);
  const uint64_t bytes = report.len;
  buf_append(out, &bytes, sizeof bytes);
  buf_append(out, report.data, report.len);
  buf_free(&report);
  return rc == RC_OK ? buf_check(out, err) : rc;
}

enum rc unit_reports_encode(const struct unit_report *reports, const struct batch_group *groups, size_t count,
                            struct buf *out, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t g = 0; g < count && rc == RC_OK; g++) {
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
    rc = report_encode(&status, out, err);
  }
  return rc;
}

static enum rc report_decode(struct batch_status *status, const char *bytes, size_t len, struct arena *arena,
                             struct err *err) {
  const enum rc rc = batch_status_decode_tensors(status, bytes, len, arena, err);
  if (rc != RC_OK || status->state != JOB_DONE) return rc;
  struct digest digest;
  logprobs_digest(&digest, status->samples, status->sample_count);
  if (digest_equal(&digest, &status->logprobs_sha256)) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "the log-probabilities of unit %s are not those that were computed",
                 status->batch_id);
}

enum rc unit_reports_decode(struct unit_report *reports, const struct batch_group *groups, size_t count,
                            const char *bytes, size_t len, struct arena *arena, struct err *err) {
  size_t g = 0;
  while (len > 0) {
    struct batch_status status;
    uint64_t length = 0;
    if (len >= sizeof length) memcpy(&length, bytes, sizeof length);
    if (len < sizeof length || length > len - sizeof length)
      return err_set(err, RC_INVALID, NULL, "a unit's report ends early");
    bytes += sizeof length;
    len -= sizeof length;
    const enum rc rc = report_decode(&status, bytes, length, arena, err);
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
    bytes += length;
    len -= length;
  }
  return RC_OK;
}
