/* Asks a peer again and again on every connection, and measures rate, latency and the peer's CPU time. */
#include "tests/bench/coordinator/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/coordinator/connections.h"

enum { WARM_UP_US = 500000, WINDOW_FIRST = 65535, WINDOW_MORE = 1 << 30 };

enum { H2_DATA, H2_HEADERS, H2_RESET = 3, H2_SETTINGS, H2_PING = 6, H2_GO_AWAY, H2_WINDOW };
enum { H2_ACK = 1, H2_END_STREAM = 1, H2_END_HEADERS = 4, H2_FRAME = 9 };

/* What HTTP/2 keeps of a connection. */
struct h2 {
  uint32_t stream;  /* of the request in hand */
  int64_t window;   /* bytes that may still be sent */
  bool data, waits; /* an answer's data has come; the request waits for the window */
};

struct peer {
  const struct peer_load *load;
  struct connections *all;
  struct h2 *h2; /* [connections] */
  int *puts;     /* [connections]: results that are still to come before the next poll */
  struct buf record;
  struct durations latencies;
  int64_t begin_us, end_us, records, cpu_us, written;
  uint64_t keys;
  bool stop;
};

/* ---- HTTP/2, as much as one put at a time needs ---- */

static void put_u32(struct buf *out, uint32_t v) {
  const unsigned char bytes[] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16), (unsigned char)(v >> 8),
                                 (unsigned char)v};
  buf_append(out, bytes, sizeof bytes);
}

static void put_frame(struct buf *out, size_t len, int type, int flags, uint32_t stream) {
  const unsigned char head[] = {(unsigned char)(len >> 16), (unsigned char)(len >> 8), (unsigned char)len,
                                (unsigned char)type, (unsigned char)flags};
  buf_append(out, head, sizeof head);
  put_u32(out, stream);
}

static void put_varint(struct buf *out, uint64_t v) {
  do {
    const unsigned char byte = (unsigned char)((v & 127) | (v > 127 ? 128 : 0));
    buf_append(out, &byte, 1);
    v >>= 7;
  } while (v);
}

static void etcd_hello(struct connection *c) {
  buf_puts(&c->out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  put_frame(&c->out, 0, H2_SETTINGS, 0, 0);
  put_frame(&c->out, 4, H2_WINDOW, 0, 0);
  put_u32(&c->out, WINDOW_MORE);
}

static void etcd_ask(struct peer *p, struct connection *c) {
  /* :method POST, :scheme http, :path, :authority, content-type, te: literals, never indexed */
  static const char head[] =
      "\x83\x86\x04\x14/etcdserverpb.KV/Put\x01\x05"
      "bench\x0f\x10\x10"
      "application/grpc\x00\x02te\x08trailers";
  struct h2 *h = &p->h2[c->index];
  struct buf message = BUF_INIT;
  char key[32];
  const int key_len = snprintf(key, sizeof key, "rollout/%016" PRIx64, p->keys++);
  buf_append(&message, "\x0a", 1);
  put_varint(&message, (uint64_t)key_len);
  buf_append(&message, key, (size_t)key_len);
  buf_append(&message, "\x12", 1);
  put_varint(&message, p->record.len);
  buf_append(&message, p->record.data, p->record.len);
  h->waits = h->window < (int64_t)message.len + 5;
  if (!h->waits) {
    h->stream += h->stream ? 2 : 1;
    h->data = false;
    h->window -= (int64_t)message.len + 5;
    put_frame(&c->out, sizeof head - 1, H2_HEADERS, H2_END_HEADERS, h->stream);
    buf_append(&c->out, head, sizeof head - 1);
    put_frame(&c->out, message.len + 5, H2_DATA, H2_END_STREAM, h->stream);
    buf_append(&c->out, "\0", 1);
    put_u32(&c->out, (uint32_t)message.len);
    buf_append(&c->out, message.data, message.len);
  }
  buf_free(&message);
}

static uint32_t get_u32(const unsigned char *b) {
  return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Whether an answer has come whole; other frames are answered. */
static bool etcd_answered(struct peer *p, struct connection *c) {
  struct h2 *h = &p->h2[c->index];
  bool done = false;
  while (c->in.len - c->taken >= H2_FRAME) {
    const unsigned char *f = (const unsigned char *)c->in.data + c->taken;
    const size_t len = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
    const int type = f[3], flags = f[4];
    if (c->in.len - c->taken < H2_FRAME + len) break;
    if (type == H2_RESET || type == H2_GO_AWAY) bench_fail("etcd ended a stream");
    if (type == H2_SETTINGS && !(flags & H2_ACK)) put_frame(&c->out, 0, H2_SETTINGS, H2_ACK, 0);
    if (type == H2_PING && !(flags & H2_ACK)) {
      put_frame(&c->out, len, H2_PING, H2_ACK, 0);
      buf_append(&c->out, f + H2_FRAME, len);
    }
    if (type == H2_WINDOW && get_u32(f + 5) == 0) h->window += get_u32(f + H2_FRAME);
    if (type == H2_DATA) h->data = true;
    if (type == H2_HEADERS && (flags & H2_END_STREAM)) {
      if (!h->data) bench_fail("etcd refused a put");
      done = true;
    }
    c->taken += H2_FRAME + len;
  }
  if (h->waits) etcd_ask(p, c);
  return done;
}

/* ---- the others ---- */

static void redis_ask(struct peer *p, struct connection *c) {
  buf_printf(&c->out, "*5\r\n$4\r\nXADD\r\n$8\r\nrollouts\r\n$1\r\n*\r\n$1\r\nr\r\n$%zu\r\n", p->record.len);
  buf_append(&c->out, p->record.data, p->record.len);
  buf_puts(&c->out, "\r\n");
}

static bool redis_answered(struct connection *c) {
  const char *at = c->in.data + c->taken;
  const size_t have = c->in.len - c->taken;
  const char *end = have ? memmem(at, have, "\r\n", 2) : NULL;
  if (have && *at != '$') bench_fail("Redis answered %.*s", (int)(have < 200 ? have : 200), at);
  if (!end) return false;
  const size_t whole = (size_t)(end - at) + 2 + strtoull(at + 1, NULL, 10) + 2;
  if (have < whole) return false;
  c->taken += whole;
  return true;
}

static bool health_answered(struct connection *c) {
  const char *body;
  size_t len;
  int status;
  if (!connection_http_answer(c, &status, &body, &len)) return false;
  if (status != 200) bench_fail("/healthz answered %d", status);
  return true;
}

static void floor_ask(struct peer *p, struct connection *c) {
  if (p->puts[c->index]-- == 0) {
    p->puts[c->index] = p->load->puts;
    connection_http_ask(c, "POST", "/v1/workers/w100/leases", "application/json", NULL, p->record.data, p->load->asked);
  } else {
    connection_http_ask(c, "PUT", "/v1/leases/r1.0.100.1/result", "application/octet-stream", NULL, p->record.data,
                        p->record.len);
  }
}

static bool answered(struct peer *p, struct connection *c) {
  if (p->h2) return etcd_answered(p, c);
  return *p->load->kind == 'r' ? redis_answered(c) : health_answered(c);
}

static void ask(struct peer *p, struct connection *c) {
  if (p->h2)
    etcd_ask(p, c);
  else if (*p->load->kind == 'r')
    redis_ask(p, c);
  else if (p->puts)
    floor_ask(p, c);
  else
    connection_http_ask(c, "GET", "/healthz", NULL, NULL, NULL, 0);
  c->asked_us = bench_now_us();
}

static void ready(struct connection *c, void *context) {
  struct peer *p = context;
  if (answered(p, c)) {
    const int64_t now_us = bench_now_us();
    if (!p->cpu_us && now_us >= p->begin_us) {
      p->begin_us = now_us;
      p->end_us = now_us + (int64_t)(p->load->seconds * 1e6);
      p->cpu_us = process_cpu_us(p->load->pid) + 1;
      p->written = process_written(p->load->pid);
    } else if (p->cpu_us) {
      p->records++;
      durations_add(&p->latencies, now_us - c->asked_us);
    }
    if (p->cpu_us && now_us >= p->end_us) {
      p->end_us = now_us;
      p->stop = true;
      return;
    }
    ask(p, c);
  }
  connection_flush(p->all, c);
}

void peer_measure(const struct peer_load *load) {
  struct peer p = {.load = load, .begin_us = bench_now_us() + WARM_UP_US};
  const struct connections_options options = {
      .port = load->port, .count = load->connections, .ready = ready, .context = &p};
  uint64_t random = 88172645463325252u;
  for (size_t i = 0; i < load->bytes; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const char byte = (char)random;
    buf_append(&p.record, &byte, 1);
  }
  if (strcmp(load->kind, "etcd") == 0) p.h2 = calloc((size_t)load->connections, sizeof *p.h2);
  if (strcmp(load->kind, "floor") == 0) p.puts = calloc((size_t)load->connections, sizeof *p.puts);
  p.all = connections_open(&options);
  for (int i = 0; i < load->connections; i++) {
    struct connection *c = connections_at(p.all, i);
    if (p.h2) {
      p.h2[i].window = WINDOW_FIRST;
      etcd_hello(c);
    }
    ask(&p, c);
    connection_flush(p.all, c);
  }
  connections_serve(p.all, &p.stop);
  const double seconds = (double)(p.end_us - p.begin_us) / 1e6;
  printf("{\"connections\": %d, \"records\": %" PRId64 ", \"seconds\": %.3f, \"p50_us\": %" PRId64
         ", \"p99_us\": %" PRId64 ", \"cpu_us\": %" PRId64 ", \"written\": %" PRId64 "}\n",
         load->connections, p.records, seconds, durations_percentile(&p.latencies, 0.5),
         durations_percentile(&p.latencies, 0.99), process_cpu_us(load->pid) + 1 - p.cpu_us,
         process_written(load->pid) - p.written);
  connections_close(p.all);
  buf_free(&p.record);
  free(p.latencies.items);
  free(p.h2);
  free(p.puts);
}
