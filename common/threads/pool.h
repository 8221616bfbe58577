/* A small thread pool: pool_run(f, ctx, parts) calls f(ctx, 0..parts-1) once each and returns when all are done.  Every
 * thread has a range of the parts for its own; a thread that is through with it takes parts from the others' ranges, so
 * a thread that has lost its core costs the part that it holds, never its whole share.  Which thread computes a part is
 * therefore by chance, and results never depend on it because kernels partition outputs only.  The caller's thread is
 * thread 0.  One caller at a time per pool (the engine's thread).
 *
 * A part may call pool_run of its own pool: then all of it runs on the part's thread.  So code over this pool can be
 * run in parts itself, one copy on each thread.
 *
 * Every computing thread, the caller's included (pool_create and pool_enter set it), runs with FTZ and DAZ set and
 * round-to-nearest: NUMERICS.md. */
#ifndef LEASEHOLD_THREADS_POOL_H
#define LEASEHOLD_THREADS_POOL_H

#include <stdbool.h>

#include "common/base/rc.h"

struct pool;

/* threads >= 1; 1 makes no threads at all. */
enum rc pool_create(struct pool **out, int threads, struct err *err);
void pool_destroy(struct pool *p); /* NULL is fine */
int pool_threads(const struct pool *p);
/* The calling thread's number, below pool_threads: in a part of this pool that of its thread, otherwise 0. */
int pool_thread(const struct pool *p);
/* Whether the calling thread is in a part of this pool, so that pool_run would use no other thread. */
bool pool_in_part(const struct pool *p);
void pool_run(struct pool *p, void (*f)(void *ctx, int part), void *ctx, int parts);
/* Sets FTZ, DAZ and nearest rounding in the calling thread. */
void pool_enter(void);

#endif
