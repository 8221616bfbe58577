/* Decides whose messages the trainer takes: only those of the coordinator with which it is registered.
 *
 *   registration, heartbeat --authority_learn--> epoch, fence, role: the truth
 *   a message --authority_check--> exactly these, or 409;  newer ones are not believed on the message's own word:
 *                                  the registration's thread is asked to look (authority_take_doubt)
 *
 * A trainer without a coordinator learns epoch and fence from messages that it has accepted.
 * A refused message never teaches anything, and neither does a checkpoint.  Any thread; the board's lock guards it. */
#ifndef LEASEHOLD_TRAINER_SERVER_BOARD_AUTHORITY_H
#define LEASEHOLD_TRAINER_SERVER_BOARD_AUTHORITY_H

#include "services/trainer-server/board/board.h"

/* From the coordinator itself: messages must carry this epoch and this fence from now on, whatever was known before.
 * stands_by: no message is taken. */
void authority_learn(struct board *b, uint64_t epoch, uint64_t fence, bool stands_by);
/* RC_CONFLICT for an epoch or fence that is not the trainer's; only looks.  A trainer without a coordinator takes newer
 * ones. */
enum rc authority_check(struct board *b, uint64_t epoch, uint64_t fence, struct err *err);
/* A message was accepted: a trainer without a coordinator learns its epoch and fence. */
void authority_accepted(struct board *b, uint64_t epoch, uint64_t fence);
/* Has a message been refused, since the last call, although it may carry what the coordinator has said meanwhile? */
bool authority_take_doubt(struct board *b);

#endif
