/* Bounds the number of connections and the time that each may take to send its request and to read its answer.
 *
 * libmicrohttpd's own time-out counts inactivity, so a peer that sends one byte now and then would keep its place
 * forever.  Here each state of a connection has its own time-out, checked by the watcher's sweep a few times per
 * time-out:
 *
 *     accepted -> HEAD --head complete--> BODY --body complete--> BUSY --answer queued--> SENDING --sent--> IDLE
 *                  ^                                               (handler, pool, long poll, stream)         |
 *                  +---------------------------- bytes of the next request have come -------------------------+
 *
 *   HEAD     head_timeout_ms in all, however many bytes trickle in
 *   BODY     a budget of body_timeout_ms, which time uses up and every byte refills by 1/pace_bytes s, up to its first
 *   SENDING  value: slow but steady peers may go on, stalled and trickling ones end.  SENDING counts the bytes of the
 *            answer that the peer has acknowledged
 *   BUSY     as long as the handler's own deadlines allow: a long poll is a complete request
 *   IDLE     idle_timeout_ms; libmicrohttpd does not report new bytes, so the kernel's count of them is read
 *
 * A peer that closes in the middle of its request is mostly seen by libmicrohttpd.  Not where the end comes together
 * with the last bytes: it waits for edges, and there is no other.  So the sweep looks for it, and ends such connections
 * once nothing of them has been unread for GONE_MS.
 *
 * HEAD and BODY are `incomplete`.  An address may have incomplete_per_address_max such connections, and the server has
 * connections_max connections in all.  A newcomer beyond either limit takes the place of the incomplete connection that
 * is nearest to its deadline, or else of the one that has been idle longest.  If newcomers were refused instead, the
 * peers that came first could keep everybody out.  Honest heads are complete within one round trip, so they are never
 * the oldest.  Bodies that keep their pace do not give way.
 *
 * A newcomer for which nothing gives way goes into the reserve: LIMIT_HTTP_RESERVE more connections, which answer one
 * request each.  Once its head is complete it moves to an ordinary place if one is free by then; otherwise only routes
 * marked `health` are answered and others get 503.  A place in the reserve lasts RESERVE_MS, and the oldest gives way
 * once half of the reserve is taken, so that there is always room for a request to /healthz.
 *
 * A sweep that comes late, since the process was stopped or had no core, puts every deadline off by so much: what peers
 * sent and took meanwhile could not be seen, and they must not pay for it.
 *
 * A connection that must go is shut down, not closed: libmicrohttpd owns the socket, sees the end and closes it.
 * Entries live from libmicrohttpd's "started" to its "closed" notification, which comes before the close, so the
 * descriptor cannot belong to another file meanwhile.  The server's lock guards everything here. */
#include "common/http/connections.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/limits.h"
#include "common/base/metrics.h"

enum {
  RESERVE_MS = 1000,      /* a place in the reserve */
  GONE_MS = 1000,         /* after which what libmicrohttpd has read of a request is all that comes of it */
  BEHIND_MS = 1000,       /* a body so far behind its pace may be made to give way */
  SWEEPS_PER_TIMEOUT = 8, /* at most an eighth late */
  SWEEP_MS_MIN = 5,
  SWEEP_MS_MAX = 1000,
  SLICE = 256, /* sockets asked in one go under the lock */
  ANY_ADDRESS = -1
};

enum drop_why { DROP_LATE, DROP_IDLE, DROP_ROOM, DROP_GONE };

/* --- addresses --- */

static int bucket_of(const struct connections *t, const struct http_address *a) {
  const uint64_t hash = fnv1a(t->address_seed, a->bytes, sizeof a->bytes);
  return (int)((hash ^ hash >> 32) % (uint64_t)t->count);
}

/* An IPv6 peer has the whole of its /64, so that is what counts as one address.  Where "::" is listened on, all IPv4
 * peers share one /64, that of ::ffff:a.b.c.d: there a.b.c.d counts. */
static struct http_address address_of(const struct sockaddr *name) {
  struct http_address a = {.next = -1};
  if (name != NULL && name->sa_family == AF_INET) {
    a.bytes[0] = 4;
    memcpy(a.bytes + 1, &((const struct sockaddr_in *)(const void *)name)->sin_addr, 4);
  } else if (name != NULL && name->sa_family == AF_INET6) {
    const struct in6_addr *address = &((const struct sockaddr_in6 *)(const void *)name)->sin6_addr;
    const bool v4 = IN6_IS_ADDR_V4MAPPED(address);
    a.bytes[0] = v4 ? 4 : 6;
    memcpy(a.bytes + 1, address->s6_addr + (v4 ? 12 : 0), v4 ? 4 : 8);
  }
  return a;
}

static int address_take(struct connections *t, const struct sockaddr *name) {
  struct http_address a = address_of(name);
  int *first = &t->address_buckets[bucket_of(t, &a)], i = *first;
  while (i >= 0 && memcmp(t->addresses[i].bytes, a.bytes, sizeof a.bytes) != 0) i = t->addresses[i].next;
  if (i < 0) {
    i = t->address_free;
    t->address_free = t->addresses[i].next;
    a.next = *first;
    t->addresses[i] = a;
    *first = i;
  }
  t->addresses[i].connections++;
  return i;
}

static void address_give(struct connections *t, int i) {
  struct http_address *a = &t->addresses[i];
  if (--a->connections > 0) return;
  int *link = &t->address_buckets[bucket_of(t, a)];
  while (*link != i) link = &t->addresses[*link].next;
  *link = a->next;
  a->next = t->address_free;
  t->address_free = i;
}

/* --- counting --- */

static bool incomplete(const struct http_connection *c) {
  return c->state == CONNECTION_HEAD || c->state == CONNECTION_BODY;
}

/* Called before (-1) and after (+1) each change of an entry's state, reserve or doomed. */
static void count(struct connections *t, const struct http_connection *c, int by) {
  if (c->doomed) return;
  if (c->reserve) {
    t->reserve_used += by;
    return;
  }
  t->used += by;
  if (incomplete(c)) t->addresses[c->address].incomplete += by;
}

static void enter(struct connections *t, struct http_connection *c, enum connection_state state, int64_t deadline_ms) {
  count(t, c, -1);
  c->state = state;
  c->gone_ms = 0;
  count(t, c, +1);
  if (!c->reserve) c->deadline_ms = deadline_ms; /* a place in the reserve keeps its one deadline */
}

/* --- ending --- */

static bool tcp_info(const struct http_connection *c, struct tcp_info *info) {
  socklen_t len = sizeof *info;
  memset(info, 0, sizeof *info);
  return getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0;
}

#define LAST_WORDS(status, retry, code, message)                                         \
  "HTTP/1.1 " status "\r\nContent-Type: application/json\r\nConnection: close\r\n" retry \
  "\r\n{\"error\":{\"code\":\"" code "\",\"message\":\"" message "\",\"field\":\"\"}}"

/* libmicrohttpd accepts no answer before a request is complete and sends none itself, so this text is all that goes
 * out, and over TLS nothing: it would be no record of it.  A peer that has sent nothing gets none: it would take the
 * text for the answer to its next request. */
static void say_why(const struct http_connection *c, enum drop_why why) {
  static const char late[] =
      LAST_WORDS("408 Request Timeout", "", "timeout", "the rest of the request was expected sooner");
  static const char room[] = LAST_WORDS("503 Service Unavailable", "Retry-After: 1\r\n", "unavailable",
                                        "all connections are taken, and this request was the slowest to come");
  struct tcp_info info;
  if (c->secure || !incomplete(c) || why == DROP_IDLE || why == DROP_GONE || !tcp_info(c, &info) ||
      info.tcpi_bytes_received == 0)
    return;
  const char *words = why == DROP_LATE ? late : room;
  (void)!send(c->fd, words, strlen(words), MSG_DONTWAIT | MSG_NOSIGNAL); /* it may not listen: the end comes anyway */
}

static void drop(struct connections *t, struct http_connection *c, enum drop_why why) {
  say_why(c, why);
  count(t, c, -1);
  c->doomed = true;
  shutdown(c->fd, SHUT_RDWR);
  metric_add(t->dropped[why], 1);
}

/* --- giving way --- */

static bool gives_way(const struct connections *t, const struct http_connection *c, int64_t now_ms) {
  if (c->state == CONNECTION_HEAD) return true;
  return c->state == CONNECTION_BODY && c->deadline_ms < now_ms + t->limits->body_timeout_ms - BEHIND_MS;
}

static void nearest(struct http_connection **best, struct http_connection *c) {
  if (*best == NULL || c->deadline_ms < (*best)->deadline_ms) *best = c;
}

/* Ends one connection of this address, or of any address; false when every connection keeps its terms. */
static bool make_room(struct connections *t, int address) {
  const int64_t now_ms = clock_monotonic_ms();
  struct http_connection *slowest = NULL, *idlest = NULL;
  for (int i = 0; i < t->top; i++) {
    struct http_connection *c = &t->entries[i];
    if (c->fd < 0 || c->doomed || c->reserve || (address != ANY_ADDRESS && c->address != address)) continue;
    if (gives_way(t, c, now_ms)) nearest(&slowest, c);
    if (c->state == CONNECTION_IDLE) nearest(&idlest, c);
  }
  if (slowest == NULL && address != ANY_ADDRESS) return false; /* idle ones do not count against an address */
  if (slowest == NULL) slowest = idlest;
  if (slowest != NULL) drop(t, slowest, DROP_ROOM);
  return slowest != NULL;
}

static void make_room_in_reserve(struct connections *t) {
  struct http_connection *oldest = NULL;
  for (int i = 0; i < t->top; i++) {
    struct http_connection *c = &t->entries[i];
    if (c->fd >= 0 && !c->doomed && c->reserve && c->state != CONNECTION_BUSY) nearest(&oldest, c);
  }
  if (oldest != NULL) drop(t, oldest, DROP_ROOM);
}

static bool address_has_room(struct connections *t, int address) {
  return t->addresses[address].incomplete < t->limits->incomplete_per_address_max || make_room(t, address);
}

/* --- the life of an entry --- */

struct http_connection *connection_open(struct connections *t, int fd, const struct sockaddr *name) {
  int index = t->first_free;
  struct http_connection *c = &t->entries[index];
  const int64_t now_ms = clock_monotonic_ms();
  if (t->top == 0) t->next_sweep_ms = now_ms + t->sweep_ms; /* none was due */
  t->first_free = c->next_free;
  c->address = address_take(t, name);
  c->reserve =
      !address_has_room(t, c->address) || (t->used >= t->limits->connections_max && !make_room(t, ANY_ADDRESS));
  c->deadline_ms = now_ms + t->limits->head_timeout_ms;
  if (c->reserve && now_ms + RESERVE_MS < c->deadline_ms) c->deadline_ms = now_ms + RESERVE_MS;
  if (c->reserve && t->reserve_used >= LIMIT_HTTP_RESERVE / 2) make_room_in_reserve(t);
  c->state = CONNECTION_HEAD;
  c->doomed = false;
  c->gone_ms = 0;
  c->fd = fd; /* not before room was made: it does not give way to itself */
  if (index >= t->top) t->top = index + 1;
  count(t, c, +1);
  return c;
}

void connection_close(struct connections *t, struct http_connection *c) {
  count(t, c, -1);
  address_give(t, c->address);
  c->fd = -1;
  c->next_free = t->first_free;
  t->first_free = (int)(c - t->entries);
  while (t->top > 0 && t->entries[t->top - 1].fd < 0) t->top--;
}

enum rc connection_admit(struct connections *t, struct http_connection *c, bool body, struct err *err) {
  const int64_t end_ms = clock_monotonic_ms() + t->limits->body_timeout_ms;
  const bool counts = !c->reserve && c->state == CONNECTION_HEAD; /* already one of its address's incomplete */
  if (body && !counts && !address_has_room(t, c->address))
    return err_set(err, RC_FULL, NULL, "%d requests from this address are still incomplete, no more are accepted",
                   t->addresses[c->address].incomplete);
  if (c->reserve && t->used >= t->limits->connections_max)
    return err_set(err, RC_UNAVAILABLE, NULL, "all %lld connections are taken", (long long)t->limits->connections_max);
  count(t, c, -1);
  c->reserve = false;
  count(t, c, +1);
  c->unpaid = 0;
  enter(t, c, body ? CONNECTION_BODY : CONNECTION_BUSY, end_ms);
  return RC_OK;
}

/* Puts the deadline off for the bytes that a peer has moved: by one second for every pace_bytes. */
static void pay(const struct connections *t, struct http_connection *c, uint64_t bytes, int64_t now_ms) {
  c->unpaid += bytes;
  const uint64_t pace = (uint64_t)t->limits->pace_bytes, paid_ms = c->unpaid * 1000 / pace;
  const int64_t most_ms = now_ms + t->limits->body_timeout_ms;
  c->unpaid -= paid_ms * pace / 1000;
  c->deadline_ms += (int64_t)paid_ms;
  if (c->deadline_ms < most_ms) return;
  c->deadline_ms = most_ms;
  c->unpaid = 0;
}

void connection_received(struct connections *t, struct http_connection *c, size_t bytes) {
  if (c->state == CONNECTION_BODY && !c->reserve) pay(t, c, bytes, clock_monotonic_ms());
}

void connection_busy(struct connections *t, struct http_connection *c) { enter(t, c, CONNECTION_BUSY, INT64_MAX); }

void connection_sending(struct connections *t, struct http_connection *c) {
  c->bytes = UINT64_MAX; /* the first sweep that meets it notes where it began */
  c->unpaid = 0;
  enter(t, c, CONNECTION_SENDING, clock_monotonic_ms() + t->limits->body_timeout_ms);
}

void connection_idle(struct connections *t, struct http_connection *c) {
  struct tcp_info info;
  c->bytes = tcp_info(c, &info) ? info.tcpi_bytes_received : UINT64_MAX;
  enter(t, c, CONNECTION_IDLE, clock_monotonic_ms() + t->limits->idle_timeout_ms);
}

/* --- the sweep --- */

static int64_t allowed_ms(const struct connections *t, const struct http_connection *c) {
  const struct service_limits *l = t->limits;
  if (c->reserve) return l->head_timeout_ms < RESERVE_MS ? l->head_timeout_ms : RESERVE_MS;
  if (c->state == CONNECTION_HEAD) return l->head_timeout_ms;
  return c->state == CONNECTION_IDLE ? l->idle_timeout_ms : l->body_timeout_ms;
}

/* For time in which nobody swept; it may not come to more than the state began with. */
static void put_off(const struct connections *t, struct http_connection *c, int64_t late_ms, int64_t now_ms) {
  if (c->state == CONNECTION_BUSY) return;
  c->gone_ms = 0;
  const int64_t most_ms = now_ms + allowed_ms(t, c);
  if (c->deadline_ms + late_ms < most_ms)
    c->deadline_ms += late_ms;
  else if (c->deadline_ms < most_ms)
    c->deadline_ms = most_ms;
}

static bool sends_no_more(const struct http_connection *c) {
  struct pollfd end = {.fd = c->fd, .events = POLLRDHUP};
  int unread;
  return poll(&end, 1, 0) > 0 && ioctl(c->fd, FIONREAD, &unread) == 0 && unread == 0;
}

/* The rest of its request will not come. */
static bool is_gone(struct http_connection *c, int64_t now_ms) {
  if (!incomplete(c)) return false;
  if (!sends_no_more(c))
    c->gone_ms = 0;
  else if (c->gone_ms == 0)
    c->gone_ms = now_ms;
  return c->gone_ms != 0 && now_ms - c->gone_ms >= GONE_MS;
}

static void look_at(struct connections *t, struct http_connection *c, int64_t now_ms) {
  struct tcp_info info;
  if (c->state == CONNECTION_SENDING && !c->reserve && tcp_info(c, &info)) {
    if (c->bytes != UINT64_MAX) pay(t, c, info.tcpi_bytes_acked - c->bytes, now_ms);
    c->bytes = info.tcpi_bytes_acked;
  }
  if (c->state == CONNECTION_IDLE && tcp_info(c, &info) && info.tcpi_bytes_received > c->bytes) {
    if (address_has_room(t, c->address))
      enter(t, c, CONNECTION_HEAD, now_ms + t->limits->head_timeout_ms);
    else
      drop(t, c, DROP_ROOM);
    return;
  }
  if (is_gone(c, now_ms))
    drop(t, c, DROP_GONE);
  else if (c->state != CONNECTION_BUSY && c->deadline_ms <= now_ms)
    drop(t, c, c->state == CONNECTION_IDLE ? DROP_IDLE : DROP_LATE);
}

void connections_sweep(struct connections *t, pthread_mutex_t *lock, int64_t now_ms) {
  const int64_t late_ms = now_ms - t->next_sweep_ms;
  if (late_ms < 0) return;
  for (int i = 0; i < t->top; i++) {
    struct http_connection *c = &t->entries[i];
    if (c->fd >= 0 && !c->doomed && late_ms > t->sweep_ms) put_off(t, c, late_ms, now_ms);
    if (c->fd >= 0 && !c->doomed) look_at(t, c, now_ms);
    if (i % SLICE != SLICE - 1) continue;
    pthread_mutex_unlock(lock); /* entries may come and go meanwhile; each is looked at as it is then */
    pthread_mutex_lock(lock);
  }
  t->next_sweep_ms = now_ms + t->sweep_ms;
}

void connections_end(struct connections *t) {
  for (int i = 0; i < t->top; i++)
    if (t->entries[i].fd >= 0) shutdown(t->entries[i].fd, SHUT_RDWR);
}

bool connections_none(const struct connections *t) { return t->top == 0; }

/* --- start and end --- */

static int64_t sweep_interval_ms(const struct service_limits *limits) {
  int64_t shortest_ms = RESERVE_MS;
  if (limits->head_timeout_ms < shortest_ms) shortest_ms = limits->head_timeout_ms;
  if (limits->body_timeout_ms < shortest_ms) shortest_ms = limits->body_timeout_ms;
  if (limits->idle_timeout_ms < shortest_ms) shortest_ms = limits->idle_timeout_ms;
  const int64_t ms = shortest_ms / SWEEPS_PER_TIMEOUT;
  return ms < SWEEP_MS_MIN ? SWEEP_MS_MIN : ms > SWEEP_MS_MAX ? SWEEP_MS_MAX : ms;
}

enum rc connections_create(struct connections *t, const struct service_limits *limits, struct err *err) {
  static const char *const reasons[] = {
      [DROP_LATE] = "late", [DROP_IDLE] = "idle", [DROP_ROOM] = "room", [DROP_GONE] = "gone"};
  const int n = (int)limits->connections_max + LIMIT_HTTP_RESERVE;
  t->limits = limits;
  t->count = n;
  t->sweep_ms = sweep_interval_ms(limits);
  t->entries = calloc((size_t)n, sizeof *t->entries);
  t->addresses = calloc((size_t)n, sizeof *t->addresses);
  t->address_buckets = calloc((size_t)n, sizeof *t->address_buckets);
  if (t->entries == NULL || t->addresses == NULL || t->address_buckets == NULL)
    return err_set(err, RC_NO_MEMORY, NULL, "no memory for a table of %d connections", n);
  for (int i = 0; i < n; i++) {
    t->entries[i].fd = -1;
    t->entries[i].next_free = i + 1;
    t->addresses[i].next = i + 1;
    t->address_buckets[i] = -1;
  }
  if (getrandom(&t->address_seed, sizeof t->address_seed, GRND_NONBLOCK) < 0) /* so that no peer can choose a bucket */
    t->address_seed = (uint64_t)clock_monotonic_us();
  for (int why = DROP_LATE; why <= DROP_GONE; why++) {
    char labels[32];
    snprintf(labels, sizeof labels, "why=\"%s\"", reasons[why]);
    t->dropped[why] = metrics_register(METRIC_COUNTER, "leasehold_http_connections_dropped_total", labels,
                                       "Connections ended from here: late (a head, a body or the taking of an answer), "
                                       "idle, to make room, or gone (the peer, in the middle of its request).");
  }
  return RC_OK;
}

void connections_free(struct connections *t) {
  free(t->entries);
  free(t->addresses);
  free(t->address_buckets);
}
