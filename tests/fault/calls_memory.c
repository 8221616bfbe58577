/* Memory, threads, what threads hand each other, and the wall clock. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/shim.h"

/* glibc's own names: dlsym would allocate. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static bool refused(void) {
  int error = 0;
  return shim_enter(CALL_MEMORY, &error) == ACT_FAIL;
}

void *malloc(size_t size) {
  if (refused()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  if (refused()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  if (refused()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  if (refused()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (refused()) return ENOMEM;
  void *p = __libc_memalign(alignment, size);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*begin)(void *), void *context) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_create");
  int error = 0;
  const enum shim_act act = shim_enter(CALL_THREAD, &error);
  if (act == ACT_FAIL) return error;
  const int rc = real(thread, attributes, begin, context);
  shim_leave(act);
  return rc;
}

/* Without the version dlsym finds the one from before NPTL. */
static int signal_by(pthread_cond_t *condition, int (**real)(pthread_cond_t *condition), const char *name) {
  if (!*real) *real = (__typeof__(*real))dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
  int error = 0;
  const enum shim_act act = shim_enter(CALL_HANDOVER, &error);
  const int rc = (*real)(condition);
  shim_leave(act);
  return rc;
}

int pthread_cond_signal(pthread_cond_t *condition) {
  static int (*real)(pthread_cond_t *condition);
  return signal_by(condition, &real, "pthread_cond_signal");
}

int pthread_cond_broadcast(pthread_cond_t *condition) {
  static int (*real)(pthread_cond_t *condition);
  return signal_by(condition, &real, "pthread_cond_broadcast");
}

/* ---- the wall clock: CLOCK_MONOTONIC never jumps ---- */

static void wall_clock(struct timespec *t) {
  int error = 0;
  shim_leave(shim_enter(CALL_CLOCK, &error));
  syscall(SYS_clock_gettime, CLOCK_REALTIME, t);
  t->tv_sec += (time_t)(shim_clock_offset_ms() / 1000);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (clock != CLOCK_REALTIME) {
    static int (*real)(clockid_t clock, struct timespec *t);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, t);
  }
  wall_clock(t);
  return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec t;
  (void)zone;
  wall_clock(&t);
  *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *out) {
  struct timespec t;
  wall_clock(&t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}
