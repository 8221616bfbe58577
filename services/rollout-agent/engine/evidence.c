/* Compares what was seen of an engine at two times.  Pure; called by weights/loader.c. */
#include "services/rollout-agent/engine/evidence.h"

#include <math.h>
#include <string.h>

/* The largest difference of two probes' log-probabilities; INFINITY where their tokens differ. */
static double probe_distance(const struct evidence *a, const struct evidence *b) {
  double most = 0;
  if (a->probe_count != b->probe_count) return INFINITY;
  for (int32_t i = 0; i < a->probe_count; i++) {
    if (a->probe_ids[i] != b->probe_ids[i]) return INFINITY;
    most = fmax(most, fabs((double)a->probe_logprobs[i] - (double)b->probe_logprobs[i]));
  }
  return most;
}

static bool same_kind(const struct evidence *a, const struct evidence *b) {
  return a->has_checksum == b->has_checksum && (a->probe_count > 0) == (b->probe_count > 0);
}

enum rc evidence_agrees(const struct evidence *expected, const struct evidence *seen, double tolerance,
                        struct err *err) {
  if (strcmp(expected->version, seen->version) != 0)
    return err_set(err, RC_CONFLICT, "version", "the engine was expected to hold version '%s', but says '%s'",
                   expected->version, seen->version);
  if (!same_kind(expected, seen))
    return err_set(err, RC_CONFLICT, "checksum", "the engine offered a checksum at one time and none at another");
  if (expected->has_checksum && !digest_equal(&expected->checksum, &seen->checksum))
    return err_set(err, RC_CONFLICT, "checksum",
                   "the engine says that it holds version '%s', but its checksum is another one", seen->version);
  const double distance = probe_distance(expected, seen);
  if (distance > tolerance)
    return err_set(err, RC_CONFLICT, "probe",
                   "the engine says that it holds version '%s', a fixed request's log-probabilities differ by %.3g, "
                   "--probe-tolerance is %.3g",
                   seen->version, distance, tolerance);
  return RC_OK;
}

enum rc evidence_moved(const struct evidence *before, const struct evidence *after, double tolerance, struct err *err) {
  if (!same_kind(before, after))
    return err_set(err, RC_CONFLICT, "checksum", "the engine offered a checksum at one time and none at another");
  if (after->has_checksum && digest_equal(&before->checksum, &after->checksum))
    return err_set(err, RC_CONFLICT, "checksum",
                   "the engine says that it has loaded version '%s', and its checksum is the one of the version before",
                   after->version);
  if (!after->has_checksum && probe_distance(before, after) <= tolerance)
    return err_set(err, RC_CONFLICT, "probe",
                   "the engine says that it has loaded version '%s', and a fixed request gets the log-probabilities of "
                   "the version before",
                   after->version);
  return RC_OK;
}
