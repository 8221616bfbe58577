/* How much memory this process may still take: the smaller of what the machine has available and what the control
 * group leaves. */
#ifndef LEASEHOLD_BASE_MEMORY_H
#define LEASEHOLD_BASE_MEMORY_H

#include <stddef.h>

/* 0 when it cannot be told. */
size_t memory_available_bytes(void);

#endif
