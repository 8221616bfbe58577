/* Writes the events of streaming calls while they are decoded, and looks through the texts of all followed calls.
 *
 * The engine raises `pending` after a step; the first to raise it wakes the thread.  So a step costs the engine one
 * atomic exchange, and a signal only when the streamer had time to sleep since.  The thread lowers it before it looks,
 * so that it misses nothing.  The mutex is held for moments only, never while events are written.
 *
 * Previous hop: requests.c (followed calls), engine.c (wake).  Next: common/http/stream.c, or the replier. */
#include "services/generation-server/requests/streamer.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"

enum {
  STREAM_NAP_MS = 1000,
  STREAM_LAG_NAP_MS = 20,        /* while a reader is behind */
  STREAM_KEEP_ALIVE_MS = 15000,  /* without an event for this long, a comment is sent */
  STREAM_UNSENT_MAX = 128 << 10, /* bytes of a stream that wait for its reader */
  STREAM_PIECE_BYTES_MAX = 8 << 10,
  STREAM_PIECE_TOKENS_MAX = 64
};

struct streamer {
  struct replier *replier;
  int stall_ms;
  struct follower follower;
  struct metric *cut;
  atomic_bool pending;
  pthread_t thread;

  pthread_mutex_t mutex; /* guards arrived and stopping */
  pthread_cond_t changed;
  struct generate_call *arrived;
  bool stopping;

  /* The thread's own. */
  struct generate_call *calls;
  struct choice_scratch scratch;
  struct buf out, one; /* what one call is sent; one event of it */
  int64_t now_ms;
  bool lagging; /* a reader is behind */
  bool closing;
};

/* --- from other threads --- */

static void wake(void *context) {
  struct streamer *t = context;
  if (atomic_exchange(&t->pending, true)) return;
  pthread_mutex_lock(&t->mutex);
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->mutex);
}

const struct follower *streamer_follower(const struct streamer *t) { return &t->follower; }

void streamer_follow(struct streamer *t, struct generate_call *call) {
  call->wrote_ms = call->moved_ms = clock_monotonic_ms();
  pthread_mutex_lock(&t->mutex);
  call->next = t->arrived;
  t->arrived = call;
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->mutex);
}

void streamer_over(struct streamer *t, struct generate_call *call) {
  atomic_store(&call->over, true);
  wake(t);
}

/* --- one call --- */

/* Writes nothing more to the stream; the engine frees the slots when it sees the mark. */
static void break_off(struct generate_call *call) {
  call->broken = true;
  atomic_store(&call->abandoned, true);
}

static void send_out(struct streamer *t, struct generate_call *call) {
  if (t->out.failed) {
    log_error("%s is broken off: no memory for its events", call->id);
    break_off(call);
  }
  if (call->broken || t->out.len == 0) return;
  if (!call->begun) http_stream_begin(call->request, 200, "text/event-stream");
  call->begun = true;
  call->wrote_ms = t->now_ms;
  if (http_stream_write(call->request, t->out.data, t->out.len) != RC_OK) break_off(call); /* it hung up */
}

/* False: the reader is behind. */
static bool has_room(struct streamer *t, struct generate_call *call) {
  const size_t unsent = call->begun ? http_stream_unsent(call->request) : 0, before = call->unsent;
  call->unsent = unsent;
  if (unsent <= STREAM_UNSENT_MAX || unsent < before) call->moved_ms = t->now_ms;
  if (unsent <= STREAM_UNSENT_MAX) return true;
  if (atomic_load(&call->abandoned)) { /* hung up: the bytes that wait for it will never go out */
    break_off(call);
  } else if (t->now_ms - call->moved_ms > t->stall_ms) {
    log_warn("%s is cut off: its reader took nothing for %d ms, %zu bytes wait for it", call->id, t->stall_ms, unsent);
    metric_add(t->cut, 1);
    break_off(call);
  }
  return false;
}

/* Scans the tokens that came since the last look; true when there is something new. */
static bool look_through(struct streamer *t, struct generate_call *call, bool *ended) {
  bool news = false;
  *ended = true;
  for (int i = 0; i < call->choice_count; i++) {
    struct choice *c = &call->choices[i];
    const int32_t scanned = c->scanned;
    if (c->ended) continue;
    if (choice_scan(c, &t->scratch, NULL) != RC_OK) {
      log_error("%s is broken off: no memory for its text", call->id);
      break_off(call);
    }
    news |= c->scanned != scanned || c->ended;
    *ended &= c->ended;
  }
  return news;
}

/* Writes events for all pieces that are ready, as far as the buffer reaches; false when there are more. */
static bool write_events(struct streamer *t, struct generate_call *call) {
  for (int i = 0; i < call->choice_count; i++) {
    for (;;) {
      struct choice_piece piece;
      struct json_writer w;
      if (t->out.len > STREAM_UNSENT_MAX) return false;
      if (choice_take(&piece, &call->choices[i], STREAM_PIECE_BYTES_MAX, STREAM_PIECE_TOKENS_MAX, &t->scratch, NULL) !=
          RC_OK) {
        t->out.failed = true;
        return false;
      }
      if (!piece.any) break;
      if (piece.len == 0 && !piece.last && !call->tells_tokens) continue; /* a token without text */
      buf_clear(&t->one);
      json_writer_init(&w, &t->one);
      call->shape->event(call, &call->choices[i], &piece, &w);
      t->out.failed |= t->one.failed;
      if (t->one.len == 0) continue;
      buf_puts(&t->out, "data: ");
      buf_append(&t->out, t->one.data, t->one.len);
      buf_puts(&t->out, "\n\n");
    }
  }
  return true;
}

static bool all_closed(const struct generate_call *call) {
  for (int i = 0; i < call->choice_count; i++)
    if (!call->choices[i].closed) return false;
  return true;
}

/* True when the whole stream has been told. */
static bool tell(struct streamer *t, struct generate_call *call, bool news) {
  buf_clear(&t->out);
  if (news || call->behind)
    call->behind = !has_room(t, call) || !write_events(t, call);
  else if (t->now_ms - call->wrote_ms > STREAM_KEEP_ALIVE_MS)
    buf_puts(&t->out, ": waiting\n\n");
  t->lagging |= call->behind;
  send_out(t, call);
  return all_closed(call);
}

/* Writes what comes after the last piece, and ends the reply. */
static void end_stream(struct streamer *t, struct generate_call *call) {
  struct admission *admission = call->admission;
  struct http_request *request = call->request;
  struct err err = call->refusal;
  struct json_writer w;
  buf_clear(&t->out);
  buf_puts(&t->out, "data: ");
  json_writer_init(&w, &t->out);
  const size_t empty = t->out.len;
  if (err.rc != RC_OK)
    http_write_error(request, &t->out, &err);
  else
    call->shape->tail(call, &w);
  buf_puts(&t->out, t->out.len == empty ? "[DONE]\n\n" : "\n\ndata: [DONE]\n\n");
  if (call->begun) send_out(t, call);
  const bool begun = call->begun;
  if (err.rc == RC_OK) err_set(&err, RC_NO_MEMORY, NULL, "%s was refused memory for its events", call->id);
  generate_call_release(call);
  if (begun)
    http_stream_end(request);
  else
    http_fail(request, &err);
  admission_leave(admission);
}

/* False: the call is not the streamer's any more. */
static bool attend(struct streamer *t, struct generate_call *call) {
  const bool over = atomic_load(&call->over); /* read before looking: then no token comes after those seen */
  bool done = over && call->refusal.rc != RC_OK;
  if (!done) {
    bool ended;
    const bool news = look_through(t, call, &ended);
    done = call->stream ? !call->broken && tell(t, call, news) : ended;
    if (!done && t->closing) break_off(call);
  }
  if (!over || !(done || call->broken)) return true;
  if (call->stream)
    end_stream(t, call);
  else
    replier_take(t->replier, call);
  return false;
}

/* --- the thread --- */

/* Waits until there is something to do; the calls that arrived become the thread's. */
static void wait_for_news(struct streamer *t) {
  const struct timespec until = clock_deadline_in(t->lagging ? STREAM_LAG_NAP_MS : STREAM_NAP_MS);
  pthread_mutex_lock(&t->mutex);
  while (!atomic_load(&t->pending) && !t->arrived && !t->stopping)
    if (pthread_cond_timedwait(&t->changed, &t->mutex, &until) != 0) break;
  while (t->arrived) {
    struct generate_call *call = t->arrived;
    t->arrived = call->next;
    call->next = t->calls;
    t->calls = call;
  }
  t->closing = t->stopping;
  pthread_mutex_unlock(&t->mutex);
}

static void *streamer_main(void *argument) {
  struct streamer *t = argument;
  do {
    wait_for_news(t);
    atomic_store(&t->pending, false);
    t->lagging = false;
    t->now_ms = clock_monotonic_ms();
    for (struct generate_call **at = &t->calls; *at;) {
      struct generate_call *call = *at, *next = call->next;
      if (attend(t, call))
        at = &call->next;
      else
        *at = next;
    }
  } while (!t->closing || t->calls);
  return NULL;
}

/* --- life --- */

enum rc streamer_start(struct streamer **out, struct replier *replier, int stall_ms, struct err *err) {
  *out = NULL;
  struct streamer *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the streamer was refused its memory");
  t->replier = replier;
  t->stall_ms = stall_ms;
  t->follower = (struct follower){wake, t};
  t->cut = metrics_register(METRIC_COUNTER, "leasehold_generation_streams_cut_total", "",
                            "Streams cut off because their readers took nothing.");
  pthread_mutex_init(&t->mutex, NULL);
  cond_init(&t->changed);
  if (pthread_create(&t->thread, NULL, streamer_main, t) != 0) {
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    free(t);
    return err_set(err, RC_NO_MEMORY, NULL, "the streamer's thread could not be made");
  }
  *out = t;
  return RC_OK;
}

void streamer_stop(struct streamer *t) {
  if (!t) return;
  pthread_mutex_lock(&t->mutex);
  t->stopping = true;
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->mutex);
  pthread_join(t->thread, NULL);
  choice_scratch_free(&t->scratch);
  buf_free(&t->out);
  buf_free(&t->one);
  pthread_cond_destroy(&t->changed);
  pthread_mutex_destroy(&t->mutex);
  free(t);
}
