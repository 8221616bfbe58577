/* A rule in JSON: `{"kind": "math"}`, or `{"terms": [{"kind": "math"}, {"kind": "format", "tags": ["think", "answer"],
 * "weight": 0.2}]}`.
 *
 * Called by run_config.c for a run's `verifier` and by route_verify.c.  Strings live in the caller's arena.  An option
 * that a kind has no use for is refused by its name, and so are patterns and schemas that cannot be read: at POST, not
 * at the first completion. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_REWARD_CONFIG_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_REWARD_CONFIG_H

#include "common/json/json.h"
#include "services/coordinator/verifiers/reward.h"

/* The rule of one verifier without options. */
void reward_rule_of(struct reward_rule *out, enum verifier_kind kind);
/* shuffle: the object's `shuffle_rewards`, which is not of the rule; NULL: it must not be there.  Without `kind` and
 *   `terms` the rule stays as it is. */
enum rc reward_rule_read(struct reward_rule *out, const struct json *v, bool *shuffle, struct arena *arena,
                         struct err *err);
/* Writes the rule's members into an object that is open; options only where they are given, so that older
 * configurations keep their hash. */
void reward_rule_write(const struct reward_rule *rule, struct json_writer *w);

#endif
