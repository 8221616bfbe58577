/* Answers PUT /v1/leases/{id}/result: checks a lease's samples, then accepts all of them or refuses them.
 *
 * Order of the checks: the lease exists (404); the worker is the lease's (403); a repeat of accepted content is 200,
 * other content 409 and an incident; the epoch (409); the lease still stands (410 expired, 409 lost or superseded);
 * digest, samples, tokens fit (409, 422).  Everything accepted is one transaction: tokens, the lease's end, and with a
 * group's last sample its sealing.
 *
 * Rows of segments and spans are written only for a sample that is not the plain case: one segment over all its tokens,
 * to be trained on, and one span of the lease's version.  Readers take "no rows" for that; samples.version_first and
 * version_last are set for every sample.
 *
 * Previous hop of a rollout: generation-server/worker/leases.c.  Next: rounds/group_seal.c. */
#include "services/coordinator/api/route_results.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/api/result_head.h"
#include "services/coordinator/checks/nonfinite.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/rounds/intervals.h"

/* ---- checks: nothing is written ---- */

/* Over what was sent, sample by sample.  A repeat has the same digest. */
static void content_digest(struct digest *out, const struct lease_result *m) {
  struct digest_state d;
  digest_begin(&d);
  digest_update_u32(&d, m->handed_back);
  digest_update_u32(&d, (uint32_t)m->sample_count);
  for (size_t i = 0; i < m->sample_count; i++) {
    struct digest sample;
    const struct digest *known = m->samples[i].digest;
    if (!known) sample_result_digest(&sample, &m->samples[i]);
    digest_update_u32(&d, (uint32_t)m->samples[i].sample);
    digest_update(&d, known ? known->bytes : sample.bytes, DIGEST_BYTES);
  }
  digest_end(out, &d);
}

static bool is_stop(const struct run_context *x, int32_t id) {
  for (size_t i = 0; i < x->stop_token_ids.count; i++) {
    if (x->stop_token_ids.items[i] == id) return true;
  }
  return false;
}

/* Tokens up to the one that completes a stop text, which is counted; 0: none does. */
static size_t stop_text_end(const struct run_context *x, const struct sample_result *s) {
  struct stop_state state = {{0}};
  for (size_t i = 0; x->stops.count > 0 && i < s->token_ids.count; i++)
    if (stop_texts_end(&x->stops, &state, x->tokenizer, s->token_ids.items[i])) return i + 1;
  return 0;
}

/* Does the sample end with a stop token, or with a stop text that its last token completes?  text_end:
 * stop_text_end. */
static bool has_stopped(const struct run_context *x, const struct sample_result *s, size_t text_end) {
  const size_t n = s->token_ids.count;
  return n > 0 && (is_stop(x, s->token_ids.items[n - 1]) || text_end == n);
}

/* These loops run over the longest part of a result, so a compiler must be able to turn them into vectors: a fixed
 * number at once, and no early exit. */
enum { IDS_AT_ONCE = 32 };

static bool ids_below(const int32_t *ids, size_t n, uint32_t end) {
  uint32_t most = 0; /* negative ids are the largest */
  size_t i = 0;
  for (; i + IDS_AT_ONCE <= n; i += IDS_AT_ONCE)
    for (size_t k = 0; k < IDS_AT_ONCE; k++) most = (uint32_t)ids[i + k] > most ? (uint32_t)ids[i + k] : most;
  for (; i < n; i++) most = (uint32_t)ids[i] > most ? (uint32_t)ids[i] : most;
  return n == 0 || most < end;
}

static bool ids_have(const int32_t *ids, size_t n, int32_t id) {
  int32_t found = 0;
  size_t i = 0;
  for (; i + IDS_AT_ONCE <= n; i += IDS_AT_ONCE)
    for (size_t k = 0; k < IDS_AT_ONCE; k++) found |= ids[i + k] == id;
  for (; i < n; i++) found |= ids[i] == id;
  return found != 0;
}

/* The vocabulary first, then each stop token.  Where there is something wrong, a second loop says what.  *text_end:
 * stop_text_end, once all tokens are of the vocabulary. */
static enum rc check_tokens(const struct run_context *x, const struct sample_result *s, size_t *text_end,
                            struct err *err) {
  const size_t n = s->token_ids.count;
  const int32_t *ids = s->token_ids.items;
  const bool outside = !ids_below(ids, n, (uint32_t)x->vocabulary);
  for (size_t i = 0; outside && i < n; i++) {
    if (ids[i] < 0 || ids[i] >= x->vocabulary)
      return err_set(err, RC_INVALID, "samples.token_ids", "sample %d: token %zu is %d, outside the vocabulary of %d",
                     s->sample, i, ids[i], x->vocabulary);
  }
  for (size_t k = 0; k < x->stop_token_ids.count; k++) {
    const int32_t stop = x->stop_token_ids.items[k];
    const bool within = n > 0 && ids_have(ids, n - 1, stop);
    for (size_t i = 0; within && i + 1 < n; i++) {
      if (ids[i] == stop)
        return err_set(err, RC_INVALID, "samples.token_ids", "sample %d goes on after stop token %d at position %zu",
                       s->sample, stop, i);
    }
  }
  *text_end = stop_text_end(x, s);
  if (*text_end > 0 && *text_end < n)
    return err_set(err, RC_INVALID, "samples.token_ids", "sample %d goes on after token %zu completed a stop text",
                   s->sample, *text_end - 1);
  return RC_OK;
}

static enum rc check_sample(const struct run_context *x, const struct lease_row *l, const struct group_head *g,
                            const struct sample_result *s, bool handed_back, struct err *err) {
  size_t n = s->token_ids.count, text_end = 0;
  if (s->sample < l->first || s->sample >= l->first + l->count) {
    return err_set(err, RC_INVALID, "samples.sample", "lease %s holds samples %" PRId64 " to %" PRId64 ", got %d",
                   l->id, l->first, l->first + l->count - 1, s->sample);
  }
  if (n > (size_t)g->max_new_tokens) {
    return err_set(err, RC_INVALID, "samples.token_ids", "sample %d has %zu tokens, at most %d were asked for",
                   s->sample, n, g->max_new_tokens);
  }
  enum rc rc = check_tokens(x, s, &text_end, err);
  if (rc != RC_OK) return rc;
  if (s->finish == FINISH_ABORT && !handed_back)
    return err_set(err, RC_INVALID, "samples.finish", "sample %d is aborted, but the lease is not handed back",
                   s->sample);
  if (s->finish == FINISH_STOP && !has_stopped(x, s, text_end)) {
    return err_set(err, RC_INVALID, "samples.finish",
                   "sample %d stopped, so its last token must be a stop token or complete a stop text", s->sample);
  }
  if (s->finish == FINISH_LENGTH && n != (size_t)g->max_new_tokens) {
    return err_set(err, RC_INVALID, "samples.finish",
                   "sample %d ended by length after %zu tokens, but %d were asked for", s->sample, n,
                   g->max_new_tokens);
  }
  return RC_OK;
}

/* newest: the version that the server had loaded in the end. */
static enum rc check_spans(const struct lease_row *l, const struct sample_result *s, int64_t newest, struct err *err) {
  for (size_t i = 0; i < s->span_count && !fault_is(COORDINATOR_FAULT_NO_VERSION_CHECK); i++) {
    const int64_t version = s->spans[i].version;
    if (version < l->version_min || version > l->version_max)
      return err_set(err, RC_CONFLICT, "samples.spans",
                     "sample %d has tokens of version %" PRId64 ", the lease is valid for %" PRId64 " to %" PRId64,
                     s->sample, version, l->version_min, l->version_max);
    if (version > newest)
      return err_set(err, RC_CONFLICT, "samples.spans",
                     "sample %d has tokens of version %" PRId64 ", the weights that are loaded are of version %" PRId64,
                     s->sample, version, newest);
  }
  return RC_OK;
}

/* The weights that the server has loaded are the lease's or, in `inflight`, those of a published version that the lease
 * is valid for.  *newest: the version that no token can be newer than. */
static enum rc check_loaded(struct core *c, const struct lease_row *l, const struct lease_result *m, int64_t *newest,
                            struct err *err) {
  *newest = l->version_max;
  const bool same = digest_equal(&m->loaded_digest, &l->digest) || fault_is(COORDINATOR_FAULT_NO_VERSION_CHECK);
  if (same && c->context->config.mode != MODE_INFLIGHT) return RC_OK;
  const enum rc rc = store_int(c->store, newest, err,
                               "SELECT version FROM versions WHERE run = ?1 AND version BETWEEN ?2 AND ?3 AND digest = "
                               "?4 ORDER BY version DESC LIMIT 1",
                               BINDS(b_int(l->run), b_int(l->version_min), b_int(l->version_max),
                                     b_digest(&m->loaded_digest)));
  if (rc != RC_NOT_FOUND && c->context->config.mode == MODE_INFLIGHT) return rc;
  return err_set(err, RC_CONFLICT, "loaded_digest", "lease %s is for other weights than those that were loaded", l->id);
}

/* *g: the lease's group, read for the checks. */
static enum rc check_result(struct core *c, const struct lease_row *l, const struct lease_result *m,
                            struct group_head *g, struct arena *arena, struct err *err) {
  enum rc rc = journal_check_epoch(c, m->epoch, err);
  if (rc == RC_OK) rc = lease_stands(l, err);
  if (rc != RC_OK) return rc;
  if (!c->context || c->context->run != l->run)
    return err_set(err, RC_UNAVAILABLE, "id", "run %s is not active just now", id_run(l->run).text);
  int64_t newest = 0;
  rc = check_loaded(c, l, m, &newest, err);
  if (rc == RC_OK && c->context->config.mode == MODE_INFLIGHT) rc = version_activated(c, l->run, newest, err);
  if (rc != RC_OK) return rc;
  if (m->nonfinite && (m->nonfinite_version < l->version_min || m->nonfinite_version > newest))
    return err_set(err, RC_INVALID, "nonfinite_version",
                   "lease %s is valid from version %" PRId64
                   " on, and the weights that are loaded are of version %" PRId64 ", got %" PRId64,
                   l->id, l->version_min, newest, m->nonfinite_version);
  if (!m->handed_back && m->sample_count != (size_t)l->count) {
    return err_set(err, RC_INVALID, "samples", "lease %s has %" PRId64 " samples, the result has %zu", l->id, l->count,
                   m->sample_count);
  }
  bool *seen = arena_alloc(arena, (size_t)l->count, sizeof *seen);
  if (!seen) return err_set(err, RC_NO_MEMORY, NULL, "a result was refused memory");
  rc = group_read(c, l->run, l->round, l->group, g, arena, err);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < m->sample_count; i++) {
    rc = check_sample(c->context, l, g, &m->samples[i], m->handed_back, err);
    if (rc == RC_OK) rc = check_spans(l, &m->samples[i], newest, err);
    if (rc != RC_OK) return rc;
    bool *one = &seen[m->samples[i].sample - l->first];
    if (*one) return err_set(err, RC_INVALID, "samples.sample", "sample %d comes twice", m->samples[i].sample);
    *one = true;
  }
  return RC_OK;
}

/* ---- accepting ---- */

/* A lease is handed back whole, samples that had ended before included: their tokens say how they ended, and they are
 * accepted as what they are. */
static void finish_by_last_token(const struct run_context *x, const struct group_head *g, struct lease_result *m) {
  for (size_t i = 0; i < m->sample_count; i++) {
    struct sample_result *s = &m->samples[i];
    size_t n = s->token_ids.count;
    if (s->finish != FINISH_ABORT || n == 0) continue;
    s->digest = NULL; /* of what was sent */
    if (has_stopped(x, s, stop_text_end(x, s)))
      s->finish = FINISH_STOP;
    else if (n == (size_t)g->max_new_tokens)
      s->finish = FINISH_LENGTH;
  }
}

#define OF_SAMPLE " WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4"

/* Who drew the first tokens of a sample that goes on elsewhere: a check must not blame its next holder for them. */
static enum rc note_handed_back(struct core *c, const struct lease_row *l, const struct sample_result *s,
                                struct err *err) {
  if (!run_checks_samples(&c->context->config) || s->token_ids.count == 0) return RC_OK;
  return store_exec(
      c->store, err,
      "INSERT OR IGNORE INTO handed_back (run, round, group_ordinal, sample, tokens, worker) VALUES (?1, ?2, "
      "?3, ?4, ?5, ?6)",
      BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample), b_int((int64_t)s->token_ids.count),
            b_int(l->worker)));
}

/* Tokens that were handed back earlier must be the beginning of those that come now; else one of the two servers
 * computed something else, and all that comes now is the later one's.  *shorter: this holder hands back fewer of them
 * than were kept, because it never came to the sample. */
static enum rc compare_partial(struct core *c, const struct lease_row *l, const struct sample_result *s, bool *shorter,
                               struct arena *arena, struct err *err) {
  struct rows q;
  bool row = false, differs = false;
  size_t len = 0, kept = 0;
  const size_t came = s->token_ids.count;
  int32_t *ids = NULL;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT token_ids, length(logprobs) FROM rollouts WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND "
      "sample = ?4 AND partial = 1",
      BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample)));
  *shorter = false;
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    const void *bytes = rows_blob(&q, 0, &len);
    rc = token_bytes_unpack(&ids, &kept, bytes, len, (size_t)rows_int(&q, 1), arena, err);
  }
  if (rc == RC_OK && row) {
    *shorter = came < kept && s->finish == FINISH_ABORT;
    size_t common = *shorter ? came : kept;
    differs = common > came || (common && memcmp(ids, s->token_ids.items, common * sizeof *ids) != 0);
  }
  rows_end(&q);
  if (rc == RC_OK && differs)
    rc = store_exec(c->store, err, "DELETE FROM handed_back" OF_SAMPLE,
                    BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample)));
  if (rc != RC_OK || !differs) return rc;
  return journal_incident(c, l->run, "nondeterminism", id_sample(l->run, l->round, l->group, s->sample).text,
                          "the tokens do not continue those that an earlier holder handed back", err);
}

static bool has_plain_segments(const struct sample_result *s) {
  return s->segment_count == 0 || (s->segment_count == 1 && s->segments[0].loss_mask);
}

/* Where samples may have several versions only a finished one can be plain: samples.version_first names its version. */
static bool has_plain_spans(const struct core *c, const struct lease_row *l, const struct sample_result *s) {
  if (s->span_count != 1 || !s->spans[0].fresh) return s->span_count == 0;
  return c->context->config.mode == MODE_INFLIGHT ? s->finish != FINISH_ABORT : s->spans[0].version == l->version_min;
}

static enum rc store_segment(struct core *c, const struct lease_row *l, const struct sample_result *s,
                             const struct sample_segment *segment, struct err *err) {
  return store_exec(c->store, err,
                    "INSERT INTO segments (run, round, group_ordinal, sample, start, count, loss_mask) VALUES (?1, ?2, "
                    "?3, ?4, ?5, ?6, ?7)",
                    BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample), b_int(segment->start),
                          b_int(segment->count), b_int(segment->loss_mask)));
}

/* For a sample of which no token is trained on (struct run_config) one segment says so. */
static enum rc store_segments(struct core *c, const struct lease_row *l, const struct sample_result *s,
                              struct err *err) {
  enum rc rc = RC_OK;
  if (c->context->config.mask_truncated && s->finish == FINISH_LENGTH)
    return store_segment(c, l, s, &(struct sample_segment){.count = (int32_t)s->token_ids.count}, err);
  for (size_t i = 0; i < s->segment_count && rc == RC_OK && !has_plain_segments(s); i++)
    rc = store_segment(c, l, s, &s->segments[i], err);
  return rc;
}

/* again: an earlier holder may have left rows. */
static enum rc store_parts(struct core *c, const struct lease_row *l, const struct sample_result *s, bool again,
                           struct err *err) {
  enum rc rc = RC_OK;
  if (again) {
    rc = store_exec(c->store, err,
                    "DELETE FROM segments WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4",
                    BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample)));
    if (rc == RC_OK)
      rc = store_exec(c->store, err,
                      "DELETE FROM spans WHERE run = ?1 AND round = ?2 AND group_ordinal = ?3 AND sample = ?4",
                      BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample)));
  }
  if (rc == RC_OK) rc = store_segments(c, l, s, err);
  for (size_t i = 0; i < s->span_count && rc == RC_OK && !has_plain_spans(c, l, s); i++) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO spans (run, round, group_ordinal, sample, start, count, version, fresh) VALUES (?1, ?2, "
        "?3, ?4, ?5, ?6, ?7, ?8)",
        BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample), b_int(s->spans[i].start),
              b_int(s->spans[i].count), b_int(s->spans[i].version), b_int(s->spans[i].fresh)));
  }
  return rc;
}

/* done NULL: the sample is not finished. */
static enum rc store_rollout(struct core *c, const struct lease_row *l, const struct sample_result *s,
                             const struct done_sample *done, struct arena *arena, struct err *err) {
  const bool again = l->fence > FENCE_FIRST || fault_is(COORDINATOR_FAULT_NO_FENCE_CHECK);
  bool shorter = false;
  enum rc rc = again ? compare_partial(c, l, s, &shorter, arena, err) : RC_OK;
  if (rc != RC_OK || shorter) return rc; /* the longer one is kept */
  const void *ids;
  size_t ids_len;
  rc = token_bytes_pack(&ids, &ids_len, s->token_ids.items, s->token_ids.count, c->context->vocabulary, arena, err);
  if (rc != RC_OK) return rc;
#define ROLLOUT_VALUES                                                                                                 \
  "INTO rollouts (run, round, group_ordinal, sample, partial, token_ids, logprobs, text) VALUES (?1, ?2, ?3, ?4, ?5, " \
  "?6, "                                                                                                               \
  "?7, ?8)"
  /* a row that can replace none is not looked for, and cannot fail halfway */
  rc = store_exec(c->store, err, again ? "INSERT OR REPLACE " ROLLOUT_VALUES : "INSERT " ROLLOUT_VALUES,
                  BINDS(b_int(l->run), b_int(l->round), b_int(l->group), b_int(s->sample), b_int(done == NULL),
                        b_blob(ids, ids_len),
                        b_blob(s->logprobs.items, s->logprobs.count * sizeof(float)),
                        done ? b_blob(done->text, done->text_len) : b_null()));
#undef ROLLOUT_VALUES
  if (rc == RC_OK && !done) rc = note_handed_back(c, l, s, err);
  return rc == RC_OK ? store_parts(c, l, s, again, err) : rc;
}

static enum rc count_contribution(struct core *c, const struct lease_row *l, int64_t round, int64_t samples,
                                  int64_t tokens, struct err *err) {
  metric_add(c->rounds->m_samples, (double)samples);
  metric_add(c->rounds->m_tokens, (double)tokens);
  return store_exec(
      c->store, err,
      "INSERT INTO contributions (run, round, worker, samples, tokens) VALUES (?1, ?2, ?3, ?4, ?5)"
      " ON CONFLICT DO UPDATE SET samples = samples + excluded.samples, tokens = tokens + excluded.tokens",
      BINDS(b_int(l->run), b_int(round), b_int(l->worker), b_int(samples), b_int(tokens)));
}

/* Tokens that are only handed back count for the worker that ends the sample; but a worker whose kernels promise
 * nothing, or whose engine is not ours, has taken part in the round by them. */
static bool contributed(struct core *c, const struct lease_row *l, const struct lease_result *m, int accepted) {
  const struct live_worker *w = worker_live(c, l->worker);
  bool tokens = false;
  for (size_t i = 0; i < m->sample_count; i++) tokens |= m->samples[i].token_ids.count > 0;
  return accepted > 0 || (tokens && w && w->exactness != WORKER_INVARIANT);
}

static enum rc lease_close(struct core *c, const struct lease_row *l, bool whole, const struct digest *content,
                           struct err *err) {
  if (l->state != LEASE_GRANTED && fault_accepts_any(l->state)) return RC_OK;
  return lease_end(c, l, whole ? LEASE_DONE : LEASE_HANDED_BACK, content, err);
}

/* What an HTTP thread has verified already, against the run's context that stood then. */
struct prepared {
  const struct run_context *context; /* only to be compared */
  struct {
    bool verified;
    struct done_sample done; /* its text lies in the command's arena */
  } samples[LIMIT_SAMPLES_PER_GROUP];
};

static enum rc verify_sample(const struct core *c, const struct group_head *g, const struct prepared *p, size_t i,
                             struct arena *arena, struct done_sample *s, struct err *err) {
  if (!p || p->context != c->context || !p->samples[i].verified || !s->result->digest)
    return group_verify(c->context, g, arena, s, err);
  *s = p->samples[i].done;
  return RC_OK;
}

static enum rc store_samples(struct core *c, const struct lease_row *l, const struct lease_result *m,
                             const struct prepared *p, const struct group_head *g, struct done_sample *done, int *count,
                             struct arena *arena, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < m->sample_count && rc == RC_OK; i++) {
    if (m->samples[i].finish == FINISH_ABORT) {
      rc = store_rollout(c, l, &m->samples[i], NULL, arena, err);
      continue;
    }
    struct done_sample *s = &done[(*count)++];
    s->result = &m->samples[i];
    rc = verify_sample(c, g, p, i, arena, s, err);
    if (rc == RC_OK) rc = store_rollout(c, l, s->result, s, arena, err);
    const struct forced_sample forced = {l->run, l->round, l->group, s->result->sample, l->fence};
    bool taken = true;
    if (rc == RC_OK) rc = fault_take_by_force(c->store, &forced, &taken, err);
    if (!taken) --*count;
  }
  return rc;
}

static enum rc accept_result(struct core *c, const struct lease_row *l, const struct lease_result *m,
                             const struct prepared *p, const struct group_head *g, const struct digest *content,
                             struct arena *arena, struct err *err) {
  const int64_t begin_us = core_wall_us(c);
  int64_t tokens = 0, round = l->round; /* round: that it counts for */
  int count = 0;
  struct done_sample *done = arena_alloc(arena, m->sample_count, sizeof *done);
  if (!done) return err_set(err, RC_NO_MEMORY, NULL, "a result of %zu samples was refused memory", m->sample_count);
  enum rc rc = store_samples(c, l, m, p, g, done, &count, arena, err);
  for (int i = 0; i < count; i++) tokens += (int64_t)done[i].result->token_ids.count;
  if (rc == RC_OK) rc = stream_round(c, l->run, l->round, &round, err);
  if (rc == RC_OK && contributed(c, l, m, count)) rc = count_contribution(c, l, round, count, tokens, err);
  if (rc == RC_OK) rc = group_accept(c, g, l->fence, done, count, arena, err);
  /* last, because closing a lease that was handed back makes its unfinished samples wait again */
  if (rc == RC_OK) rc = lease_close(c, l, count == l->count, content, err);
  struct live_worker *w = worker_live(c, l->worker);
  if (rc == RC_OK && w) w->progressed_ms = c->now_ms;
  if (rc == RC_OK && count) verifying_note(c, l->run, round, begin_us, core_wall_us(c));
  return rc;
}

/* The worker said that it can never run so long a lease, so it gets none of that length again while it lives. */
static enum rc note_refused(struct core *c, const struct lease_row *l, const char *why, struct err *err) {
  struct live_worker *w = worker_live(c, l->worker);
  int64_t positions = 0;
  char detail[4 * WIRE_REFUSED_BYTES + 2 * LIMIT_NAME_MAX]; /* characters have up to four bytes */
  enum rc rc = store_int(c->store, &positions, err,
                         "SELECT length(prompt_ids) / 4 + max_new_tokens FROM groups WHERE run = ?1 AND round = ?2 AND "
                         "ordinal = ?3",
                         BINDS(b_int(l->run), b_int(l->round), b_int(l->group)));
  if (rc != RC_OK || !w) return rc;
  snprintf(detail, sizeof detail, "%s (%s) gets no leases of %" PRId64 " positions or more: %s", id_worker(w->id).text,
           w->name, positions, why);
  rc = journal_incident(c, l->run, "lease_refused", l->id, detail, err);
  if (rc == RC_OK && (!w->positions_refused || positions < w->positions_refused)) w->positions_refused = positions;
  return rc;
}

/* The refusal is counted, so the transaction is kept although the result is not. */
static enum rc refuse(struct core *c, struct command *cmd, int64_t run, enum rc why, struct err *err) {
  if (why == RC_NO_MEMORY || why == RC_IO || why == RC_CORRUPT || why == RC_INTERNAL) return why;
  cmd->refused = true;
  cmd->err = *err;
  return rounds_result_refused(c, run, err);
}

enum rc result_execute(struct core *c, struct command *cmd, struct err *err) {
  struct lease_result *m = cmd->message;
  struct lease_row l;
  struct digest content;
  struct lease_result_answer answer = {.repeated = false};
  enum rc rc = lease_claimed(c->store, cmd->id, &m->fence, m->worker_id, &l, err);
  if (rc == RC_OK) rc = worker_owner_check(c, cmd, l.worker, err);
  struct live_worker *const w = rc == RC_OK ? worker_live(c, l.worker) : NULL;
  if (w) w->untaken = 0; /* it can read leases, whatever becomes of this one */
  if (rc != RC_OK) return l.run ? refuse(c, cmd, l.run, rc, err) : rc;
  content_digest(&content, m);
  answer.repeated = l.has_content && digest_equal(&content, &l.content);
  if (l.has_content && !answer.repeated) {
    rc = journal_incident(c, l.run, "nondeterminism", l.id, "a second result with other content than the accepted one",
                          err);
    if (rc != RC_OK) return rc;
    err_set(err, RC_CONFLICT, "samples", "lease %s has an accepted result with other content", l.id);
    return refuse(c, cmd, l.run, RC_CONFLICT, err);
  }
  if (!answer.repeated) {
    struct group_head g;
    rc = check_result(c, &l, m, &g, &cmd->arena, err);
    if (rc != RC_OK) return refuse(c, cmd, l.run, rc, err);
    finish_by_last_token(c->context, &g, m);
    rc = accept_result(c, &l, m, cmd->prepared, &g, &content, &cmd->arena, err);
    cmd->fault_round = l.round;
    if (rc == RC_OK && m->refused) rc = note_refused(c, &l, m->refused, err);
    if (rc == RC_OK && m->nonfinite) rc = nonfinite_settle(c, &l, m->nonfinite_version, err);
  }
  if (rc == RC_OK) lease_result_answer_encode(&answer, &cmd->body);
  return rc;
}

/* Generation-servers send safetensors; JSON is for people, who can read it. */
static enum rc decode(struct http_request *r, struct command *cmd, struct err *err) {
  const struct json *json;
  if (http_body_is_bytes(r)) {
    http_take_body(r, &cmd->taken);
    return lease_result_decode_tensors(cmd->message, cmd->taken.data, cmd->taken.len, &cmd->arena, err);
  }
  const enum rc rc = http_body_json(r, &json, err);
  return rc == RC_OK ? lease_result_decode(cmd->message, json, &cmd->arena, err) : rc;
}

/* The writer is one thread for everybody: what can be known without it is computed before. */
static enum rc digests_prepare(struct lease_result *m, struct arena *arena, struct err *err) {
  struct digest *digests = arena_alloc(arena, m->sample_count + 1, sizeof *digests);
  if (!digests) return err_set(err, RC_NO_MEMORY, NULL, "a result was refused memory");
  for (size_t i = 0; i < m->sample_count; i++) {
    sample_result_digest(&digests[i], &m->samples[i]);
    m->samples[i].digest = &digests[i];
  }
  return RC_OK;
}

/* The group of a granted lease, as far as verifying needs it; *found false: the writer is to say why not. */
static enum rc group_look_up(struct readers *readers, const char *lease, uint64_t fence, int64_t run, bool *found,
                             struct group_head *out, struct arena *arena, struct err *err) {
  struct store *s;
  struct rows q;
  *found = false;
  enum rc rc = readers_take_newest(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT g.answer, g.extra, g.max_new_tokens, g.evaluation_set FROM leases l JOIN groups g ON g.run "
                   "= l.run AND g.round = l.round AND g.ordinal = l.group_ordinal WHERE l.id = ?1 AND l.fence = ?2 AND "
                   "l.run = ?3 AND l.state = " SQL_LEASE_GRANTED,
                   BINDS(b_text(lease), b_int(fence <= INT64_MAX ? (int64_t)fence : -1), b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, found, err);
  if (rc == RC_OK && *found) {
    out->answer = arena_strdup(arena, rows_text(&q, 0, NULL));
    out->extra = arena_strdup(arena, rows_text(&q, 1, NULL));
    out->max_new_tokens = (int)rows_int(&q, 2);
    out->set = rows_null(&q, 3) ? -1 : (int)rows_int(&q, 3);
    *found = out->answer && out->extra;
  }
  rows_end(&q);
  readers_give(readers, s);
  return rc;
}

/* The same, from memory where it is there. */
static enum rc group_peek(struct core *c, const char *lease, uint64_t fence, int64_t run, bool *found,
                          struct group_head *out, struct arena *arena, struct err *err) {
  struct granted_lease l;
  *found = granted_find(c->pool->granted, lease, fence, &l, arena) && l.run == run;
  if (!*found) return group_look_up(core_readers(c), lease, fence, run, found, out, arena, err);
  out->answer = l.answer;
  out->extra = l.extra;
  out->max_new_tokens = l.max_new_tokens;
  out->set = l.set;
  return RC_OK;
}

/* Texts and verdicts of finished samples.  Where this cannot be done now, the writer does it. */
static void verdicts_prepare(struct core *c, struct command *cmd) {
  const struct lease_result *m = cmd->message;
  struct group_head g = {0};
  bool found = false;
  struct run_context *x = rounds_context_keep(c);
  if (!x) return;
  struct prepared *p =
      m->sample_count <= LIMIT_SAMPLES_PER_GROUP
          ? arena_alloc(&cmd->arena, 1, offsetof(struct prepared, samples) + m->sample_count * sizeof p->samples[0])
          : NULL;
  if (p && group_peek(c, cmd->id, m->fence, x->run, &found, &g, &cmd->arena, NULL) == RC_OK && found) {
    p->context = x;
    for (size_t i = 0; i < m->sample_count; i++) {
      struct done_sample *s = &p->samples[i].done;
      s->result = &m->samples[i];
      if (s->result->finish != FINISH_ABORT)
        p->samples[i].verified = group_verify(x, &g, &cmd->arena, s, NULL) == RC_OK;
    }
    cmd->prepared = p;
  }
  run_context_release(x);
}

void handle_put_result(struct http_request *r, void *context) {
  struct err err = {0};
  struct command *cmd = command_for(r, result_execute, sizeof(struct lease_result));
  enum rc rc = cmd ? decode(r, cmd, &err) : RC_OK;
  if (cmd && rc == RC_OK) rc = result_head_agrees(r, cmd->message, &err);
  if (cmd && rc == RC_OK) rc = digests_prepare(cmd->message, &cmd->arena, &err);
  if (cmd && rc == RC_OK) verdicts_prepare(context, cmd);
  if (cmd) cmd->patient = true;
  if (rc == RC_OK) {
    core_submit(context, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}
