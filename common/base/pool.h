/* A small thread pool with static partition: pool_run(f, ctx, parts) calls f(ctx, 0..parts-1) once each and returns
 * when all are done; part p always runs on thread p mod threads.  The caller's thread is thread 0.  Results never
 * depend on the number of threads because kernels partition outputs only.  One caller at a time per pool (the
 * engine's thread).
 *
 * Every computing thread, the caller's included (pool_create and pool_enter set it), runs with FTZ and DAZ set and
 * round-to-nearest: NUMERICS.md. */
#ifndef LEASEHOLD_BASE_POOL_H
#define LEASEHOLD_BASE_POOL_H

#include "common/base/rc.h"

struct pool;

/* threads >= 1; 1 makes no threads at all. */
enum rc pool_create(struct pool **out, int threads, struct err *err);
void pool_destroy(struct pool *p); /* NULL is fine */
int pool_threads(const struct pool *p);
void pool_run(struct pool *p, void (*f)(void *ctx, int part), void *ctx, int parts);
/* Sets FTZ, DAZ and nearest rounding in the calling thread. */
void pool_enter(void);

#endif
