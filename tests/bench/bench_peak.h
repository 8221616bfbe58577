/* The machine's limits, measured in the same run as the kernels that are judged by them: multiply-add loops with the
 * instruction that the kernels in use live on, operands in registers, and a read of more memory than any cache
 * holds. */
#ifndef LEASEHOLD_BENCH_PEAK_H
#define LEASEHOLD_BENCH_PEAK_H

#include "common/model/ops.h"

/* Operations per second (a multiply-add is two) of all the pool's threads together: AMX tiles, VDPBF16PS, or float32
 * multiply-adds of the level's width, as ops->name says. */
double peak_operations(const struct ops *ops);

struct peak_memory; /* opaque: what is read; owned by the caller */
enum rc peak_memory_create(struct peak_memory **out, const struct ops *ops, struct err *err);
void peak_memory_free(struct peak_memory *memory);
/* Bytes per second that the pool's threads read together. */
double peak_bandwidth(struct peak_memory *memory);

#endif
