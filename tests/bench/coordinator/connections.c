/* Serves many connections with one epoll loop, and reads what a process has used so far. */
#include "tests/bench/coordinator/connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, TICK_MS = 100, PIECE = 65536 };

struct connections {
  struct connections_options options;
  struct connection *items;
  int epoll;
};

void bench_fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
  exit(1);
}

int64_t bench_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void watch(struct connections *all, struct connection *c, int how, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = c};
  if (epoll_ctl(all->epoll, how, c->fd, &e) != 0) bench_fail("epoll refused a connection: %s", strerror(errno));
}

struct connections *connections_open(const struct connections_options *options) {
  struct connections *all = calloc(1, sizeof *all);
  const struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)options->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int on = 1;
  if (all) all->items = calloc((size_t)options->count, sizeof *all->items);
  if (!all || !all->items) bench_fail("%d connections were refused memory", options->count);
  all->options = *options;
  all->epoll = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < options->count; i++) {
    struct connection *c = &all->items[i];
    *c = (struct connection){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .index = i};
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&address, sizeof address) != 0)
      bench_fail("connection %d to port %d: %s", i, options->port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(all, c, EPOLL_CTL_ADD, EPOLLIN);
  }
  return all;
}

void connections_close(struct connections *all) {
  for (int i = 0; i < all->options.count; i++) {
    close(all->items[i].fd);
    buf_free(&all->items[i].in);
    buf_free(&all->items[i].out);
  }
  close(all->epoll);
  free(all->items);
  free(all);
}

struct connection *connections_at(struct connections *all, int index) {
  return &all->items[index];
}

void connection_flush(struct connections *all, struct connection *c) {
  while (c->sent < c->out.len) {
    const ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) bench_fail("connection %d: %s", c->index, strerror(errno));
    if (n < 0) {
      watch(all, c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
      return;
    }
    c->sent += (size_t)n;
  }
  buf_clear(&c->out);
  c->sent = 0;
}

static void take_in(struct connections *all, struct connection *c) {
  static char piece[PIECE];
  const ssize_t n = recv(c->fd, piece, sizeof piece, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) bench_fail("connection %d was closed: %s", c->index, n ? strerror(errno) : "by the service");
  if (c->taken) {
    memmove(c->in.data, c->in.data + c->taken, c->in.len - c->taken);
    c->in.len -= c->taken;
    c->taken = 0;
  }
  buf_append(&c->in, piece, (size_t)n);
  all->options.ready(c, all->options.context);
}

void connections_serve(struct connections *all, const bool *stop) {
  struct epoll_event events[EVENTS];
  int64_t ticked_us = 0;
  while (!*stop) {
    const int n = epoll_wait(all->epoll, events, EVENTS, 1);
    for (int i = 0; i < n && !*stop; i++) {
      struct connection *c = events[i].data.ptr;
      if (events[i].events & EPOLLOUT) {
        watch(all, c, EPOLL_CTL_MOD, EPOLLIN);
        connection_flush(all, c);
      }
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_in(all, c);
    }
    if (all->options.tick && bench_now_us() - ticked_us > 1000) {
      ticked_us = bench_now_us();
      all->options.tick(all->options.context);
    }
  }
}

/* ---- HTTP ---- */

static size_t content_length(const char *head, const char *end) {
  static const char name[] = "\r\ncontent-length:";
  for (const char *at = head; at + sizeof name < end; at++) {
    if (*at == '\r' && strncasecmp(at, name, sizeof name - 1) == 0) return strtoull(at + sizeof name - 1, NULL, 10);
  }
  return 0;
}

bool connection_http_answer(struct connection *c, int *status, const char **body, size_t *len) {
  const char *head = c->in.data + c->taken;
  const size_t have = c->in.len - c->taken;
  const char *end = have ? memmem(head, have, "\r\n\r\n", 4) : NULL;
  if (!end) return false;
  *len = content_length(head, end + 2);
  *body = end + 4;
  if ((size_t)(*body - head) + *len > have) return false;
  *status = atoi(head + sizeof "HTTP/1.1");
  c->taken += (size_t)(*body - head) + *len;
  return true;
}

void connection_http_ask(struct connection *c, const char *method, const char *path, const char *type,
                         const char *const *headers, const void *body, size_t len) {
  buf_printf(&c->out, "%s %s HTTP/1.1\r\nHost: bench\r\n", method, path);
  if (body) buf_printf(&c->out, "Content-Type: %s\r\nContent-Length: %zu\r\n", type, len);
  for (; headers && *headers; headers++) buf_printf(&c->out, "%s\r\n", *headers);
  buf_puts(&c->out, "\r\n");
  if (body) buf_append(&c->out, body, len);
  c->asked_us = bench_now_us();
}

/* ---- figures ---- */

void durations_add(struct durations *d, int64_t us) {
  if (d->count == d->room) {
    d->room = d->room ? 2 * d->room : 1024;
    d->items = realloc(d->items, d->room * sizeof *d->items);
    if (!d->items) bench_fail("%zu durations were refused memory", d->room);
  }
  d->items[d->count++] = us;
}

static int by_size(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int64_t durations_percentile(struct durations *d, double q) {
  if (d->count == 0) return 0;
  qsort(d->items, d->count, sizeof *d->items, by_size);
  const size_t at = (size_t)(q * (double)d->count);
  return d->items[at < d->count ? at : d->count - 1];
}

static bool read_proc(int pid, const char *name, char *out, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  FILE *f = pid ? fopen(path, "r") : NULL;
  if (!f) return false;
  const size_t n = fread(out, 1, room - 1, f);
  fclose(f);
  out[n] = 0;
  return true;
}

int64_t process_cpu_us(int pid) {
  char text[1024];
  long user = 0, system = 0;
  if (!read_proc(pid, "stat", text, sizeof text)) return 0;
  const char *at = strrchr(text, ')');
  if (!at || sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system) != 2) return 0;
  return (user + system) * (1000000 / sysconf(_SC_CLK_TCK));
}

static int64_t proc_number(int pid, const char *file, const char *name) {
  char text[4096];
  const char *at = read_proc(pid, file, text, sizeof text) ? strstr(text, name) : NULL;
  return at ? strtoll(at + strlen(name), NULL, 10) : 0;
}

int64_t process_written(int pid) { return proc_number(pid, "io", "\nwrite_bytes:"); }
int64_t process_resident(int pid) { return proc_number(pid, "status", "VmRSS:") * 1024; }
