/* The evidence of which weights a foreign engine has, and the conclusions from it.
 *
 *   version   the engine's own word for its weights; this agent names a load after the weights' digest
 *   checksum  over the engine's memory, where it offers one
 *   probe     else: log-probabilities of a fixed greedy request, to the bit, or within the user's tolerance
 *
 * Two questions.  Is the engine still what it was when the version was loaded (evidence_agrees)?  And did a load of
 * other weights change anything (evidence_moved)?  An engine that says that it has loaded, and has not, answers the
 * first with yes and the second with no.  Nothing here can tell which of two engines that agree with themselves
 * computes rightly: the trainer's own log-probabilities do.  Pure. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_ENGINE_EVIDENCE_H
#define LEASEHOLD_ROLLOUT_AGENT_ENGINE_EVIDENCE_H

#include "services/rollout-agent/engine/wire.h"

enum { PROBE_PROMPT = 16, PROBE_TOKENS = 8 };

struct evidence {
  char version[ENGINE_VERSION_MAX]; /* "": the engine does not say */
  bool has_checksum;
  struct digest checksum;
  int32_t probe_count; /* 0: there was no probe */
  int32_t probe_ids[PROBE_TOKENS];
  float probe_logprobs[PROBE_TOKENS];
};

/* RC_CONFLICT says what differs. */
enum rc evidence_agrees(const struct evidence *expected, const struct evidence *seen, double tolerance,
                        struct err *err);
/* RC_CONFLICT when checksum or probe are the same as before other weights were loaded, or cannot be compared. */
enum rc evidence_moved(const struct evidence *before, const struct evidence *after, double tolerance, struct err *err);

#endif
