/* The names that SQL statements use for values stored as numbers.
 *
 *   "... WHERE state = " SQL_GROUP_OPEN " AND ..."
 *
 * Most states are bound as parameters.  These stand in the text of statements: a partial index is only used where
 * its condition is a constant there, and some statements have no parameters.  The numbers are in databases, so they
 * must not change; the assertions tie them to the enumerations. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_STORED_H
#define LEASEHOLD_COORDINATOR_DECIDE_STORED_H

#include "common/wire/lease.h"
#include "services/coordinator/decide/passes.h"
#include "services/coordinator/decide/states.h"

/* Whether a round's rollouts are still stored: rounds.rollouts_state. */
enum rollouts_state { ROLLOUTS_KEPT, ROLLOUTS_DROPPING, ROLLOUTS_DROPPED };

/* Whose time it is: cause_times.actor. */
enum time_actor { ACTOR_TRAINER, ACTOR_POOL, ACTOR_PREPROCESS };

#define STORED_TEXT(number)  STORED_QUOTED(number)
#define STORED_QUOTED(digit) #digit

#define STORED_ROUND_OPEN 0
#define STORED_ROUND_DONE 4
#define SQL_ROUND_OPEN    STORED_TEXT(STORED_ROUND_OPEN)
#define SQL_ROUND_DONE    STORED_TEXT(STORED_ROUND_DONE)
_Static_assert(STORED_ROUND_OPEN == ROUND_OPEN && STORED_ROUND_DONE == ROUND_DONE, "rounds.state");

#define STORED_ROLLOUTS_KEPT     0
#define STORED_ROLLOUTS_DROPPING 1
#define SQL_ROLLOUTS_KEPT        STORED_TEXT(STORED_ROLLOUTS_KEPT)
#define SQL_ROLLOUTS_DROPPING    STORED_TEXT(STORED_ROLLOUTS_DROPPING)
_Static_assert(STORED_ROLLOUTS_KEPT == ROLLOUTS_KEPT && STORED_ROLLOUTS_DROPPING == ROLLOUTS_DROPPING,
               "rounds.rollouts_state");

#define STORED_GROUP_OPEN   0
#define STORED_GROUP_SEALED 1
#define SQL_GROUP_OPEN      STORED_TEXT(STORED_GROUP_OPEN)
#define SQL_GROUP_SEALED    STORED_TEXT(STORED_GROUP_SEALED)
_Static_assert(STORED_GROUP_OPEN == GROUP_OPEN && STORED_GROUP_SEALED == GROUP_SEALED, "groups.state");

#define STORED_SAMPLE_WAITING 0
#define STORED_SAMPLE_DONE    2
#define SQL_SAMPLE_WAITING    STORED_TEXT(STORED_SAMPLE_WAITING)
#define SQL_SAMPLE_DONE       STORED_TEXT(STORED_SAMPLE_DONE)
_Static_assert(STORED_SAMPLE_WAITING == SAMPLE_WAITING && STORED_SAMPLE_DONE == SAMPLE_DONE, "samples.state");

#define STORED_LEASE_GRANTED 0
#define SQL_LEASE_GRANTED    STORED_TEXT(STORED_LEASE_GRANTED)
_Static_assert(STORED_LEASE_GRANTED == LEASE_GRANTED, "leases.state");

#define STORED_PASS_WAITING 0
#define STORED_PASS_GRANTED 1
#define STORED_PASS_DONE    2
#define SQL_PASS_WAITING    STORED_TEXT(STORED_PASS_WAITING)
#define SQL_PASS_GRANTED    STORED_TEXT(STORED_PASS_GRANTED)
#define SQL_PASS_DONE       STORED_TEXT(STORED_PASS_DONE)
_Static_assert(STORED_PASS_WAITING == PASS_WAITING && STORED_PASS_GRANTED == PASS_GRANTED &&
                   STORED_PASS_DONE == PASS_DONE,
               "passes.state");

/* remote_rewards.state */
enum reward_row_state { REWARD_ROW_WAITING, REWARD_ROW_ANSWERED, REWARD_ROW_MISSED };
#define STORED_REWARD_WAITING 0
#define SQL_REWARD_WAITING    STORED_TEXT(STORED_REWARD_WAITING)
/* The reward in the table or alias `s` of samples: null while a judge's part of it is awaited. */
#define SQL_REWARD_OF(s)                                                                                          \
  "iif(EXISTS (SELECT 1 FROM remote_rewards w WHERE w.run = " s ".run AND w.round = " s ".round AND "             \
  "w.group_ordinal = " s ".group_ordinal AND w.sample = " s ".sample AND w.state = " SQL_REWARD_WAITING "), NULL, " \
  s ".reward)"
_Static_assert(STORED_REWARD_WAITING == REWARD_ROW_WAITING, "remote_rewards.state");

#define STORED_VERSION_CURRENT    1
#define STORED_VERSION_SUPERSEDED 2
#define SQL_VERSION_CURRENT       STORED_TEXT(STORED_VERSION_CURRENT)
#define SQL_VERSION_SUPERSEDED    STORED_TEXT(STORED_VERSION_SUPERSEDED)
_Static_assert(STORED_VERSION_CURRENT == VERSION_CURRENT && STORED_VERSION_SUPERSEDED == VERSION_SUPERSEDED,
               "versions.state");

#define STORED_PURPOSE_TRAINING   0
#define STORED_PURPOSE_EVALUATION 1
#define SQL_PURPOSE_TRAINING      STORED_TEXT(STORED_PURPOSE_TRAINING)
#define SQL_PURPOSE_EVALUATION    STORED_TEXT(STORED_PURPOSE_EVALUATION)
_Static_assert(STORED_PURPOSE_TRAINING == LEASE_TRAINING && STORED_PURPOSE_EVALUATION == LEASE_EVALUATION,
               "groups.purpose");

#define STORED_ACTOR_TRAINER 0
#define STORED_ACTOR_POOL    1
#define SQL_ACTOR_TRAINER    STORED_TEXT(STORED_ACTOR_TRAINER)
#define SQL_ACTOR_POOL       STORED_TEXT(STORED_ACTOR_POOL)
_Static_assert(STORED_ACTOR_TRAINER == ACTOR_TRAINER && STORED_ACTOR_POOL == ACTOR_POOL, "cause_times.actor");

#endif
