/* Who this trainer is, whatever its name, address and incarnation: 128 random bits as hex digits, made once and kept in
 * the state directory.  A trainer that is started again proves by it that the place in the coordinator's runs is its own.
 * Those who may talk to the services may know it.  At start; files only. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_IDENTITY_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_IDENTITY_H

#include "common/base/rc.h"

enum { IDENTITY_BYTES = 16, IDENTITY_MAX = 2 * IDENTITY_BYTES + 1 };

/* Reads state_dir/trainer-id, or makes it.  One that is damaged is made anew; one that cannot be stored, because the disk
 * is full, is this process's alone: both are logged.  RC_IO when the system gives no random bits. */
enum rc identity_read(char out[IDENTITY_MAX], const char *state_dir, struct err *err);

#endif
