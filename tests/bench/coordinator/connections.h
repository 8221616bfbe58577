/* Many connections to one service, driven by one thread: what the emulated workers and the peers' clients share.
 *
 * Each connection has one exchange in hand at most.  `ready` is called when it is connected, with nothing in `in`, and
 * again whenever bytes have come; it takes from `in` and sends what follows.  Any failure ends the program with a
 * sentence: a benchmark that lost an answer has measured something else. */
#ifndef LEASEHOLD_BENCH_CONNECTIONS_H
#define LEASEHOLD_BENCH_CONNECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

struct connections;
struct connection {
  int fd, index;
  struct buf in, out;
  size_t taken, sent; /* of in, of out */
  int64_t asked_us;   /* when the request in hand was sent: for its owner */
};

/* Durations in microseconds, for percentiles. */
struct durations {
  int64_t *items;
  size_t count, room;
};

struct connections_options {
  int port, count;
  void (*ready)(struct connection *c, void *context);
  void (*tick)(void *context); /* at least every 100 ms; NULL: never */
  void *context;
};

_Noreturn void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int64_t bench_now_us(void);

struct connections *connections_open(const struct connections_options *options);
/* Serves all until *stop. */
void connections_serve(struct connections *all, const bool *stop);
void connections_close(struct connections *all);
struct connection *connections_at(struct connections *all, int index);

/* What has been appended to c->out goes out, now and as the socket takes it. */
void connection_flush(struct connections *all, struct connection *c);
/* A whole HTTP answer at the front of `in`, which is taken; false: not yet.  The body lies in `in` until the next call
 * that sends or takes. */
bool connection_http_answer(struct connection *c, int *status, const char **body, size_t *len);
void connection_http_ask(struct connection *c, const char *method, const char *path, const char *type,
                         const char *const *headers, const void *body, size_t len);

void durations_add(struct durations *d, int64_t us);
int64_t durations_percentile(struct durations *d, double q); /* sorts */

/* CPU time that a process has used, and bytes that it has written to disk, so far; pid 0: 0. */
int64_t process_cpu_us(int pid);
int64_t process_written(int pid);
int64_t process_resident(int pid);

#endif
