/* The table of connections: who is still sending a request, since when, from where, and who gives way to whom.
 *
 * libmicrohttpd's own time-out counts inactivity, so a peer that sends one byte now and then would keep its place for
 * ever.  Here every place is held on terms, judged by the watcher's sweep a few times per time-out:
 *
 *     accepted -> HEAD --head complete--> BODY --body complete--> BUSY --answer queued--> SENDING --sent--> IDLE
 *                  ^                                               (handler, pool, long poll, stream)         |
 *                  +---------------------------- bytes of the next request have come -------------------------+
 *
 *   HEAD     head_timeout_ms in all, however many bytes trickle in
 *   BODY     a budget of body_timeout_ms that time uses up and every byte refills at 1/pace_bytes s, never beyond what
 *   SENDING  it was at first: steady slow peers go on for ever, stalled ones and trickles end; answers as they are taken
 *   BUSY     as long as the handler's own deadlines allow: a long poll is a complete request
 *   IDLE     idle_timeout_ms; libmicrohttpd does not tell that bytes have come, the kernel's count of them does
 *
 * HEAD and BODY are `incomplete`.  An address has incomplete_per_address_max of them, the server has connections_max
 * connections; a newcomer beyond either takes the place of the incomplete connection nearest to its deadline (nothing
 * keeps up its pace less), then, for lack of one, of the longest idle.  Refusing the newcomer instead would let whoever
 * came first keep everybody out, and honest heads, which are complete within one round trip, are never the oldest.
 * Bodies that keep pace do not give way.
 *
 * A newcomer that nothing gives way to lands in the reserve: LIMIT_HTTP_RESERVE connections more, which answer one
 * request each.  With its head complete it moves to an ordinary place if there is one by now, else only routes marked
 * `health` are answered, others get 503.  A place in the reserve lasts RESERVE_MS, and its oldest gives way once half
 * of it is taken, so that there is always room for one who asks for /healthz.
 *
 * Whoever must go is shut down, never closed: the socket is libmicrohttpd's, which sees the end and closes it.  Entries
 * live from libmicrohttpd's "started" to its "closed", which comes before the close: no other file can have taken the
 * descriptor meanwhile.  Everything here is guarded by server->lock. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/metrics.h"
#include "common/http/server_internal.h"

enum {
  RESERVE_MS = 1000,      /* a place in the reserve */
  BEHIND_MS = 1000,       /* a body so far behind its pace may be made to give way */
  SWEEPS_PER_TIMEOUT = 8, /* at most an eighth late */
  SWEEP_MS_MIN = 5,
  SWEEP_MS_MAX = 1000,
  SLICE = 256, /* sockets asked in one go under the lock */
  ANY_ADDRESS = -1
};

enum drop_why { DROP_LATE, DROP_IDLE, DROP_ROOM };

/* --- addresses --- */

static int bucket_of(const struct http_server *s, const struct http_address *a) {
  uint64_t hash = s->address_seed;
  for (size_t i = 0; i < sizeof a->bytes; i++) hash = (hash ^ a->bytes[i]) * 0x100000001b3u;
  return (int)((hash ^ hash >> 32) % (uint64_t)s->connection_count);
}

/* An IPv6 peer has the whole of its /64, so that is what counts as one address. */
static struct http_address address_of(const struct sockaddr *name) {
  struct http_address a = {.next = -1};
  if (name != NULL && name->sa_family == AF_INET) {
    a.bytes[0] = 4;
    memcpy(a.bytes + 1, &((const struct sockaddr_in *)(const void *)name)->sin_addr, 4);
  } else if (name != NULL && name->sa_family == AF_INET6) {
    a.bytes[0] = 6;
    memcpy(a.bytes + 1, &((const struct sockaddr_in6 *)(const void *)name)->sin6_addr, 8);
  }
  return a;
}

static int address_take(struct http_server *s, const struct sockaddr *name) {
  struct http_address a = address_of(name);
  int *first = &s->address_buckets[bucket_of(s, &a)], i = *first;
  while (i >= 0 && memcmp(s->addresses[i].bytes, a.bytes, sizeof a.bytes) != 0) i = s->addresses[i].next;
  if (i < 0) {
    i = s->address_free;
    s->address_free = s->addresses[i].next;
    a.next = *first;
    s->addresses[i] = a;
    *first = i;
  }
  s->addresses[i].connections++;
  return i;
}

static void address_give(struct http_server *s, int i) {
  struct http_address *a = &s->addresses[i];
  if (--a->connections > 0) return;
  int *link = &s->address_buckets[bucket_of(s, a)];
  while (*link != i) link = &s->addresses[*link].next;
  *link = a->next;
  a->next = s->address_free;
  s->address_free = i;
}

/* --- counting --- */

static bool incomplete(const struct http_connection *c) {
  return c->state == CONNECTION_HEAD || c->state == CONNECTION_BODY;
}

/* Before (-1) and after (+1) whatever changes an entry's state, reserve or doomed. */
static void count(struct http_server *s, const struct http_connection *c, int by) {
  if (c->doomed) return;
  if (c->reserve) {
    s->reserve_used += by;
    return;
  }
  s->connections_used += by;
  if (incomplete(c)) s->addresses[c->address].incomplete += by;
}

static void enter(struct http_server *s, struct http_connection *c, enum connection_state state, int64_t deadline_ms) {
  count(s, c, -1);
  c->state = state;
  count(s, c, +1);
  if (!c->reserve) c->deadline_ms = deadline_ms; /* one deadline for all that a place in the reserve is for */
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

/* libmicrohttpd takes no answer before a request is complete, and sends none itself, so these words are the only ones
 * on the wire.  To a peer that has sent nothing they would answer its next request. */
static void say_why(const struct http_connection *c, enum drop_why why) {
  static const char late[] =
      LAST_WORDS("408 Request Timeout", "", "timeout", "the rest of the request was expected sooner");
  static const char room[] = LAST_WORDS("503 Service Unavailable", "Retry-After: 1\r\n", "unavailable",
                                        "all connections are taken, and this request was the slowest to come");
  struct tcp_info info;
  if (!incomplete(c) || why == DROP_IDLE || !tcp_info(c, &info) || info.tcpi_bytes_received == 0) return;
  const char *words = why == DROP_LATE ? late : room;
  (void)!send(c->fd, words, strlen(words), MSG_DONTWAIT | MSG_NOSIGNAL); /* it may not listen: the end comes anyway */
}

static void drop(struct http_server *s, struct http_connection *c, enum drop_why why) {
  say_why(c, why);
  count(s, c, -1);
  c->doomed = true;
  shutdown(c->fd, SHUT_RDWR);
  metric_add(s->dropped[why], 1);
}

/* --- giving way --- */

static bool gives_way(const struct http_server *s, const struct http_connection *c, int64_t now_ms) {
  if (c->state == CONNECTION_HEAD) return true;
  return c->state == CONNECTION_BODY && c->deadline_ms < now_ms + s->limits.body_timeout_ms - BEHIND_MS;
}

static void nearest(struct http_connection **best, struct http_connection *c) {
  if (*best == NULL || c->deadline_ms < (*best)->deadline_ms) *best = c;
}

/* Ends one connection of the address, or of any; false when all do what they should. */
static bool make_room(struct http_server *s, int address) {
  const int64_t now_ms = clock_monotonic_ms();
  struct http_connection *slowest = NULL, *idlest = NULL;
  for (int i = 0; i < s->connections_top; i++) {
    struct http_connection *c = &s->connections[i];
    if (c->fd < 0 || c->doomed || c->reserve || (address != ANY_ADDRESS && c->address != address)) continue;
    if (gives_way(s, c, now_ms)) nearest(&slowest, c);
    if (c->state == CONNECTION_IDLE) nearest(&idlest, c);
  }
  if (slowest == NULL && address != ANY_ADDRESS) return false; /* idle ones do not count against an address */
  if (slowest == NULL) slowest = idlest;
  if (slowest != NULL) drop(s, slowest, DROP_ROOM);
  return slowest != NULL;
}

static void make_room_in_reserve(struct http_server *s) {
  struct http_connection *oldest = NULL;
  for (int i = 0; i < s->connections_top; i++) {
    struct http_connection *c = &s->connections[i];
    if (c->fd >= 0 && !c->doomed && c->reserve && c->state != CONNECTION_BUSY) nearest(&oldest, c);
  }
  if (oldest != NULL) drop(s, oldest, DROP_ROOM);
}

static bool address_has_room(struct http_server *s, int address) {
  return s->addresses[address].incomplete < s->limits.incomplete_per_address_max || make_room(s, address);
}

/* --- the life of an entry --- */

struct http_connection *connection_open(struct http_server *s, int fd, const struct sockaddr *name) {
  int index = s->connection_free;
  struct http_connection *c = &s->connections[index];
  const int64_t now_ms = clock_monotonic_ms();
  s->connection_free = c->next_free;
  c->address = address_take(s, name);
  c->reserve = !address_has_room(s, c->address) ||
               (s->connections_used >= s->limits.connections_max && !make_room(s, ANY_ADDRESS));
  c->deadline_ms = now_ms + s->limits.head_timeout_ms;
  if (c->reserve && now_ms + RESERVE_MS < c->deadline_ms) c->deadline_ms = now_ms + RESERVE_MS;
  if (c->reserve && s->reserve_used >= LIMIT_HTTP_RESERVE / 2) make_room_in_reserve(s);
  c->state = CONNECTION_HEAD;
  c->doomed = false;
  c->fd = fd; /* not before room was made: it does not give way to itself */
  if (index >= s->connections_top) s->connections_top = index + 1;
  count(s, c, +1);
  watcher_wake_by(s, now_ms + s->sweep_ms);
  return c;
}

void connection_close(struct http_server *s, struct http_connection *c) {
  count(s, c, -1);
  address_give(s, c->address);
  c->fd = -1;
  c->next_free = s->connection_free;
  s->connection_free = (int)(c - s->connections);
  while (s->connections_top > 0 && s->connections[s->connections_top - 1].fd < 0) s->connections_top--;
}

enum rc connection_admit(struct http_server *s, struct http_connection *c, bool body, struct err *err) {
  const int64_t end_ms = clock_monotonic_ms() + s->limits.body_timeout_ms;
  const bool counts = !c->reserve && c->state == CONNECTION_HEAD; /* already one of its address's incomplete */
  if (body && !counts && !address_has_room(s, c->address))
    return err_set(err, RC_FULL, NULL, "%d requests of this address are still coming, no more are taken",
                   s->addresses[c->address].incomplete);
  if (c->reserve && s->connections_used >= s->limits.connections_max)
    return err_set(err, RC_UNAVAILABLE, NULL, "all %lld connections are taken", (long long)s->limits.connections_max);
  count(s, c, -1);
  c->reserve = false;
  count(s, c, +1);
  c->unpaid = 0;
  enter(s, c, body ? CONNECTION_BODY : CONNECTION_BUSY, end_ms);
  return RC_OK;
}

/* What a peer has moved pays for time: one second for every pace_bytes. */
static void pay(const struct http_server *s, struct http_connection *c, uint64_t bytes, int64_t now_ms) {
  c->unpaid += bytes;
  const uint64_t pace = (uint64_t)s->limits.pace_bytes, paid_ms = c->unpaid * 1000 / pace;
  const int64_t most_ms = now_ms + s->limits.body_timeout_ms;
  c->unpaid -= paid_ms * pace / 1000;
  c->deadline_ms += (int64_t)paid_ms;
  if (c->deadline_ms < most_ms) return;
  c->deadline_ms = most_ms;
  c->unpaid = 0;
}

void connection_received(struct http_server *s, struct http_connection *c, size_t bytes) {
  if (c->state == CONNECTION_BODY && !c->reserve) pay(s, c, bytes, clock_monotonic_ms());
}

void connection_busy(struct http_server *s, struct http_connection *c) { enter(s, c, CONNECTION_BUSY, INT64_MAX); }

void connection_sending(struct http_server *s, struct http_connection *c) {
  c->bytes = UINT64_MAX; /* the first sweep that meets it notes where it began */
  c->unpaid = 0;
  enter(s, c, CONNECTION_SENDING, clock_monotonic_ms() + s->limits.body_timeout_ms);
}

void connection_idle(struct http_server *s, struct http_connection *c) {
  struct tcp_info info;
  c->bytes = tcp_info(c, &info) ? info.tcpi_bytes_received : UINT64_MAX;
  enter(s, c, CONNECTION_IDLE, clock_monotonic_ms() + s->limits.idle_timeout_ms);
}

/* --- the sweep --- */

static void look_at(struct http_server *s, struct http_connection *c, int64_t now_ms) {
  struct tcp_info info;
  if (c->state == CONNECTION_SENDING && !c->reserve && tcp_info(c, &info)) {
    if (c->bytes != UINT64_MAX) pay(s, c, info.tcpi_bytes_acked - c->bytes, now_ms);
    c->bytes = info.tcpi_bytes_acked;
  }
  if (c->state == CONNECTION_IDLE && tcp_info(c, &info) && info.tcpi_bytes_received > c->bytes) {
    if (address_has_room(s, c->address))
      enter(s, c, CONNECTION_HEAD, now_ms + s->limits.head_timeout_ms);
    else
      drop(s, c, DROP_ROOM);
    return;
  }
  if (c->state != CONNECTION_BUSY && c->deadline_ms <= now_ms)
    drop(s, c, c->state == CONNECTION_IDLE ? DROP_IDLE : DROP_LATE);
}

void connections_sweep(struct http_server *s, int64_t now_ms) {
  if (now_ms < s->next_sweep_ms) return;
  for (int i = 0; i < s->connections_top; i++) {
    struct http_connection *c = &s->connections[i];
    if (c->fd >= 0 && !c->doomed) look_at(s, c, now_ms);
    if (i % SLICE != SLICE - 1) continue;
    pthread_mutex_unlock(&s->lock); /* entries may come and go meanwhile; each is looked at as it is then */
    pthread_mutex_lock(&s->lock);
  }
  s->next_sweep_ms = now_ms + s->sweep_ms;
}

/* --- start and end --- */

static int64_t sweep_ms(const struct service_limits *limits) {
  int64_t shortest_ms = RESERVE_MS;
  if (limits->head_timeout_ms < shortest_ms) shortest_ms = limits->head_timeout_ms;
  if (limits->body_timeout_ms < shortest_ms) shortest_ms = limits->body_timeout_ms;
  if (limits->idle_timeout_ms < shortest_ms) shortest_ms = limits->idle_timeout_ms;
  const int64_t ms = shortest_ms / SWEEPS_PER_TIMEOUT;
  return ms < SWEEP_MS_MIN ? SWEEP_MS_MIN : ms > SWEEP_MS_MAX ? SWEEP_MS_MAX : ms;
}

enum rc connections_create(struct http_server *s, struct err *err) {
  static const char *const reasons[] = {[DROP_LATE] = "late", [DROP_IDLE] = "idle", [DROP_ROOM] = "room"};
  const int n = (int)s->limits.connections_max + LIMIT_HTTP_RESERVE;
  s->connection_count = n;
  s->sweep_ms = sweep_ms(&s->limits);
  s->connections = calloc((size_t)n, sizeof *s->connections);
  s->addresses = calloc((size_t)n, sizeof *s->addresses);
  s->address_buckets = calloc((size_t)n, sizeof *s->address_buckets);
  if (s->connections == NULL || s->addresses == NULL || s->address_buckets == NULL)
    return err_set(err, RC_NO_MEMORY, NULL, "no memory for a table of %d connections", n);
  for (int i = 0; i < n; i++) {
    s->connections[i].fd = -1;
    s->connections[i].next_free = i + 1;
    s->addresses[i].next = i + 1;
    s->address_buckets[i] = -1;
  }
  if (getrandom(&s->address_seed, sizeof s->address_seed, GRND_NONBLOCK) < 0) /* so that nobody can choose a bucket */
    s->address_seed = (uint64_t)clock_monotonic_us();
  for (int why = DROP_LATE; why <= DROP_ROOM; why++) {
    char labels[32];
    snprintf(labels, sizeof labels, "why=\"%s\"", reasons[why]);
    s->dropped[why] = metrics_register(
        METRIC_COUNTER, "leasehold_http_connections_dropped_total", labels,
        "Connections ended from here: late (a head, a body or the taking of an answer), idle, or to make room.");
  }
  return RC_OK;
}

void connections_free(struct http_server *s) {
  free(s->connections);
  free(s->addresses);
  free(s->address_buckets);
}
