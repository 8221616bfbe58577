/* The context of a thread that works for a lease: its log context, and a span of its own below the lease's. */
#ifndef LEASEHOLD_CLIENT_LEASE_WORK_H
#define LEASEHOLD_CLIENT_LEASE_WORK_H

#include "common/wire/lease.h"

/* The calling thread works for the lease, and for nothing else. */
void lease_work(const struct lease *lease);

#endif
