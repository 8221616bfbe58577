/* Results as the coordinator gets them: the content of samples, which is a function of where they stand, and the
 * verdict. */
#include <stdlib.h>

#include "services/coordinator/api/route_results.h"
#include "tests/sim/world_state.h"

enum { EOS = 256 };

/* Of the first `count` tokens. */
static size_t drawn_spans(const struct drawn *d, int64_t count, struct version_span *out) {
  size_t n = 0;
  for (int i = 0; i < d->count && d->spans[i].start < count; i++) {
    const int64_t end = i + 1 < d->count && d->spans[i + 1].start < count ? d->spans[i + 1].start : count;
    out[n++] = (struct version_span){d->spans[i].version, d->spans[i].start, (int32_t)(end - d->spans[i].start),
                                     d->spans[i].fresh};
  }
  return n;
}

/* The content of a sample, or the beginning of it: a function of where it stands. */
static void sample_fill(const struct world *w, const struct result_message *m, int i, struct sample_result *out,
                        struct arena *arena) {
  const int sample = m->first + i;
  const double length = world_length(&w->c, m->round, m->ordinal, sample);
  const int64_t whole = world_recorded(&w->c, length);
  const struct told_sample *told = &m->samples[i];
  const bool ended = told->had >= length;
  const int64_t count = ended ? whole : world_handed_back(&w->c, m->round, m->ordinal, sample, told->had);
  const bool right = !world_filtered(&w->c, m->round, m->ordinal) && sample % 2 == 0;
  int32_t *ids = arena_alloc(arena, (size_t)whole, sizeof *ids);
  float *logprobs = arena_alloc(arena, (size_t)whole, sizeof *logprobs);
  struct sample_segment *segment = arena_alloc(arena, 1, sizeof *segment);
  struct version_span *span = arena_alloc(arena, WORLD_SPANS, sizeof *span);
  if (!ids || !logprobs || !segment || !span) abort();
  for (int64_t t = 0; t < whole; t++) {
    ids[t] = ' ';
    logprobs[t] = -0.5f;
  }
  ids[whole - 3] = '#';
  ids[whole - 2] = right ? '0' : '1';
  ids[whole - 1] = EOS;
  logprobs[0] = -(float)((m->ordinal * 64 + sample) % 4093 + 1) / 4096;
  *segment = (struct sample_segment){0, (int32_t)count, true};
  size_t spans = w->c.inflight ? drawn_spans(&told->drawn, count, span) : 1;
  if (!w->c.inflight) *span = (struct version_span){m->version, 0, (int32_t)count, true};
  for (size_t s = 0; s < spans && w->c.inflight; s++) {
    for (int32_t t = span[s].start; t < span[s].start + span[s].count; t++)
      logprobs[t] = stream_logprob(logprobs[t], span[s].version);
  }
  *out = (struct sample_result){.sample = sample,
                                .token_ids = {ids, (size_t)count},
                                .logprobs = {logprobs, (size_t)count},
                                .finish = ended ? FINISH_STOP : FINISH_ABORT,
                                .segments = segment,
                                .segment_count = count > 0,
                                .spans = span,
                                .span_count = spans};
}

/* The same result with one thing in it that is another's: it must not be accepted. */
static void lie(struct world *w, const struct result_message *m, const struct lease_result *true_one) {
  static const char *const about[] = {"epoch", "fence", "weights", "worker"};
  struct lease_result r = *true_one;
  const int what = (int)(world_draw(w->c.seed, STREAM_LIE, (uint32_t)w->r->events, 1) % 4);
  struct lease_result_answer answer = {0};
  struct buf body = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct json *json = NULL;
  struct err err = {0};
  if (what == 0) r.epoch++;
  if (what == 1) r.fence += 1000;
  if (what == 2) r.loaded_digest.bytes[0] ^= 1;
  if (what == 3) r.worker_id = w->trainer.worker;
  enum rc rc = world_call(w, result_execute, &r, m->id, &body, &err);
  if (rc == RC_OK) rc = json_parse(&json, body.data, body.len, 0, &err);
  if (rc == RC_OK) rc = lease_result_answer_decode(&answer, json, &arena, &err);
  if (rc == RC_OK && !answer.repeated)
    world_fault(w, "I3, I9: the result of lease %s is accepted under another %s", m->id, about[what]);
  json_free(json);
  buf_free(&body);
  arena_free(&arena);
}

void result_arrives(struct world *w, int server, uint32_t life, struct result_message *m) {
  struct arena arena = ARENA_INIT;
  struct lease_result r = {.worker_id = m->worker,
                           .epoch = m->epoch,
                           .fence = m->fence,
                           .loaded_digest = m->weights,
                           .handed_back = m->handed_back,
                           .sample_count = (size_t)m->count};
  struct lease_result_answer answer = {0};
  struct buf body = BUF_INIT;
  struct json *json = NULL;
  struct err err = {0};
  r.samples = arena_alloc(&arena, (size_t)m->count, sizeof *r.samples);
  if (!r.samples) abort();
  for (int i = 0; i < m->count; i++) sample_fill(w, m, i, &r.samples[i], &arena);
  if (world_lies(w)) lie(w, m, &r);
  const bool stands = checks_result_stands(w, m);
  const enum rc rc = world_call(w, result_execute, &r, m->id, &body, &err);
  if (rc == RC_OK && (json_parse(&json, body.data, body.len, 0, &err) != RC_OK ||
                      lease_result_answer_decode(&answer, json, &arena, &err) != RC_OK))
    world_fault(w, "a result's answer cannot be read: %.200s", err.message);
  checks_result(w, m, stands, rc, answer.repeated);
  json_free(json);
  buf_free(&body);
  arena_free(&arena);
  if (m->number == 0) {
    free(m);
    return;
  }
  m->repeat = m->lost_answer;
  world_at(w, w->now_us + world_message_us(w, server) + (m->repeat ? AGAIN_US : 0), RESULT_ANSWERED, server, life, m);
}
