/* Answers the polls of preprocessors, and takes what they have computed.
 *
 *   poll --> sealed groups without a reference: passes at once
 *        --> else parked by the writer until a group is sealed, or answered empty when wait_ms is over
 *   result --> the pass exists (404), its fence and worker are the sender's (409, 403); a repeat is 200; the epoch (409);
 *              it still stands (410, 409); computed by version 0's weights (409); a number for every trained token
 *          (422)
 *          --> stored in one fsynced transaction
 *
 * Previous hop of a rollout: pool/passes.c.  Next: rounds/batch_passes.c, once the result is in. */
#include "services/coordinator/api/route_passes.h"

#include <inttypes.h>
#include <string.h>

#include "common/wire/claim.h"
#include "services/coordinator/pool/passes.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/pool/trainer_place.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/group_message.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/journal.h"

/* ---- POST /v1/workers/{id}/passes ---- */

/* What it computes must have the bits that the trainer's own pass would have; the bits of the run's teacher, which are
 * stored, are nobody else's. */
static enum rc check_worker(const struct core *c, const struct live_worker *w, const char *id, struct err *err) {
  if (w->kind != WORKER_PREPROCESS)
    return err_set(err, RC_FORBIDDEN, "id", "worker %s is not a preprocessor, and passes are only for "
                                            "preprocessors", id);
  struct digest teacher;
  if (c->context && run_teacher(&c->context->config, &teacher) && digest_equal(&w->reference, &teacher)) return RC_OK;
  if (w->exactness == WORKER_FASTEST)
    return err_set(
        err, RC_FORBIDDEN, "id",
        "worker %s's kernels are not batch-invariant: what it computes may have other bits than the trainer's", id);
  const struct live_worker *trainer = place_holder(c);
  if (!trainer || trainer->device == w->device) return RC_OK;
  return err_set(err, RC_FORBIDDEN, "id",
                 "worker %s computes by %s and the trainer by %s, so its bits are not the trainer's: expected a "
                 "preprocessor with --device %s",
                 id, worker_device_name(w->device), worker_device_name(trainer->device),
                 worker_device_name(trainer->device));
}

static enum rc pass_describe(struct pass *out, struct core *c, const struct pass_reference *reference,
                             const struct granted_pass *g, struct arena *arena, struct err *err) {
  const struct training_config *config = &c->context->config.training;
  const struct group_key key = {reference->run, g->round, g->group};
  struct group_record record;
  *out = (struct pass){.run = arena_strdup(arena, id_run(reference->run).text),
                       .fence = (uint64_t)g->fence,
                       .version = 0,
                       .weights_digest = reference->digest,
                       .weights_from = reference->weights_from,
                       .chunk_tokens = config->chunk_tokens,
                       .temperature = (float)config->temperature};
  if (!out->run) return err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
  return group_message(&out->group, &record, c->store, &key, NULL, g->samples, arena, err);
}

enum rc pass_poll_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct pass_request *m = cmd->message;
  struct live_worker *w;
  struct pass_reference reference = {0};
  struct granted_pass granted[LIMIT_PASSES_PER_REQUEST];
  struct pass passes[LIMIT_PASSES_PER_REQUEST];
  struct arena arena = ARENA_INIT;
  int count = 0;
  const bool first = cmd->due_ms == 0;
  if (first) cmd->due_ms = c->now_ms + m->wait_ms;
  enum rc rc = worker_of(c, cmd, cmd->id, m->epoch, first, &w, err); /* being parked is no sign of life */
  if (rc == RC_OK) rc = check_worker(c, w, cmd->id, err);
  if (rc != RC_OK) return rc;
  worker_ready(c, w, true);
  rc = pass_reference_now(c, &reference, &arena, err);
  if (rc == RC_OK && reference.has && !core_orphaned(c, cmd))
    rc = passes_grant(c, w, &reference, m->groups_max, granted, &count, err);
  if (count > 0) w->used = true;
  for (int i = 0; i < count && rc == RC_OK; i++)
    rc = pass_describe(&passes[i], c, &reference, &granted[i], &arena, err);
  if (rc == RC_OK && (count || c->now_ms >= cmd->due_ms)) {
    const struct pass_answer answer = {.epoch = c->epoch, .passes = passes, .pass_count = (size_t)count};
    pass_answer_encode(&answer, &cmd->body);
  } else if (rc == RC_OK) {
    cmd->parked = cmd->of_passes = true;
  }
  arena_free(&arena);
  return rc;
}

void handle_pass_poll(struct http_request *r, void *context) {
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_for(r, pass_poll_execute, sizeof(struct pass_request));
  struct pass_request *m = cmd ? cmd->message : NULL;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && m) rc = pass_request_decode(m, body, &cmd->arena, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, (m ? m->wait_ms : 0) + 8000);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}

/* ---- PUT /v1/passes/{id}/result ---- */

static enum rc check_weights(struct core *c, const struct pass_row *p, const struct pass_result *m, struct err *err) {
  struct rows q;
  struct digest expected = {0};
  char ours[DIGEST_HEX_MAX], theirs[DIGEST_HEX_MAX];
  bool row = false;
  enum rc rc = store_query(c->store, &q, err, "SELECT digest FROM versions WHERE run = ?1 AND version = 0",
                           BINDS(b_int(p->run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) rows_digest(&q, 0, &expected);
  rows_end(&q);
  if (c->context && c->context->run == p->run) run_teacher(&c->context->config, &expected);
  if (rc != RC_OK || digest_equal(&expected, &m->weights_digest)) return rc;
  digest_hex(ours, &expected);
  digest_hex(theirs, &m->weights_digest);
  return err_set(err, RC_CONFLICT, "weights_digest",
                 "the reference of run %s has digest %.12s, this result was computed with weights of digest "
                 "%.12s", id_run(p->run).text, ours,
                 theirs);
}

/* Every sample of the group, in order, with a number for every trained token; *out: all of them, one after the
 * other. */
static enum rc check_samples(struct json_f32s *out, struct core *c, const struct pass_row *p,
                             const struct pass_result *m, struct arena *arena, struct err *err) {
  const struct group_key key = {p->run, p->round, p->group};
  struct batch_group g;
  struct group_record record;
  int64_t samples = 0;
  size_t all = 0;
  enum rc rc = store_int(c->store, &samples, err,
                         "SELECT sample_count FROM groups WHERE run = ?1 AND round = ?2 AND ordinal = ?3",
                         BINDS(b_int(p->run), b_int(p->round), b_int(p->group)));
  if (rc == RC_OK) rc = group_message(&g, &record, c->store, &key, NULL, samples, arena, err);
  if (rc != RC_OK) return rc;
  if (m->sample_count != g.sample_count)
    return err_set(err, RC_INVALID, "samples", "expected the group's %zu samples, got %zu", g.sample_count,
                   m->sample_count);
  for (size_t i = 0; i < g.sample_count; i++) {
    const struct batch_sample *s = &g.samples[i];
    const size_t trained = wire_segments_trained(s->segments, s->segment_count);
    if (strcmp(m->samples[i].id, s->id) != 0)
      return err_set(err, RC_INVALID, "samples.id", "expected sample %s, got '%.100s'", s->id, m->samples[i].id);
    if (m->samples[i].logprobs.count != trained)
      return err_set(err, RC_INVALID, "samples.logprobs", "sample %s has %zu trained tokens, got %zu log-probabilities",
                     s->id, trained, m->samples[i].logprobs.count);
    all += trained;
  }
  *out = (struct json_f32s){.items = arena_alloc(arena, all + 1, sizeof *out->items)};
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "a result was refused memory");
  for (size_t i = 0; i < m->sample_count; i++) {
    const struct json_f32s *from = &m->samples[i].logprobs;
    if (from->count) memcpy(out->items + out->count, from->items, from->count * sizeof *from->items);
    out->count += from->count;
  }
  return RC_OK;
}

static enum rc accept(struct core *c, const struct pass_row *p, const struct pass_result *m,
                      const struct digest *content, struct arena *arena, struct err *err) {
  struct json_f32s logprobs;
  enum rc rc = journal_check_epoch(c, m->epoch, err);
  if (rc == RC_OK) rc = pass_stands(p, err);
  if (rc == RC_OK && m->refused)
    rc = journal_incident(c, p->run, "pass_refused", id_group(p->run, p->round, p->group).text, m->refused, err);
  const bool taught = c->context && c->context->config.training.teacher[0]; /* then the trainer cannot compute it */
  const enum pass_state back = m->refused && !taught ? PASS_REFUSED : PASS_WAITING;
  if (rc == RC_OK && m->handed_back) return pass_give_back(c, p, back, taught && !m->refused, err);
  if (rc == RC_OK) rc = check_weights(c, p, m, err);
  if (rc == RC_OK) rc = check_samples(&logprobs, c, p, m, arena, err);
  return rc == RC_OK ? pass_accept(c, p, &m->weights_digest, content, logprobs.items, logprobs.count, err) : rc;
}

enum rc pass_result_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct pass_result *m = cmd->message;
  struct pass_row p;
  struct digest content;
  enum rc rc = pass_claimed(c->store, cmd->id, m->fence, m->worker_id, &p, err);
  if (rc == RC_OK) rc = worker_owner_check(c, cmd, p.worker, err);
  if (rc != RC_OK) return rc;
  pass_result_digest(&content, m);
  const struct lease_result_answer answer = {.repeated = p.has_content && digest_equal(&content, &p.content)};
  if (p.has_content && !answer.repeated) {
    rc = journal_incident(c, p.run, "nondeterminism", cmd->id,
                          "a second result with other content than the accepted one", err);
    if (rc != RC_OK) return rc;
    cmd->refused = true; /* and the incident is kept */
    err_set(&cmd->err, RC_CONFLICT, "samples", "pass %.100s has an accepted result with other content", cmd->id);
    return RC_OK;
  }
  if (!answer.repeated) rc = accept(c, &p, m, &content, &cmd->arena, err);
  if (rc == RC_OK) lease_result_answer_encode(&answer, &cmd->body);
  return rc;
}

static enum rc read_claim(struct claim *out, const struct http_request *r, struct err *err) {
  return claim_read(out, http_header(r, CLAIM_EPOCH_HEADER), http_header(r, CLAIM_FENCE_HEADER),
                    http_header(r, CLAIM_WORKER_HEADER), err);
}

enum rc admit_pass_result(struct http_request *r, void *context, struct err *err) {
  struct core *c = context;
  struct claim claim;
  struct pass_row p;
  struct store *s;
  enum rc rc = read_claim(&claim, r, err);
  if (rc != RC_OK || !claim.has_fence || !claim.worker || readers_take_newest(core_readers(c), &s, NULL) != RC_OK)
    return rc; /* the writer finds out */
  rc = pass_claimed(s, http_param(r, "id"), claim.fence, claim.worker, &p, err);
  readers_give(core_readers(c), s);
  if (rc != RC_OK || p.has_content) return rc; /* with content: a repeat? */
  if (claim.has_epoch) rc = journal_check_epoch(c, claim.epoch, err);
  return rc == RC_OK ? pass_stands(&p, err) : rc;
}

void handle_put_pass_result(struct http_request *r, void *context) {
  struct err err = {0};
  struct claim claim;
  size_t len;
  const char *bytes = http_body(r, &len);
  struct command *cmd = command_for(r, pass_result_execute, sizeof(struct pass_result));
  struct pass_result *m = cmd ? cmd->message : NULL;
  if (cmd) cmd->patient = true; /* the next pass is held already */
  enum rc rc = read_claim(&claim, r, &err);
  if (rc == RC_OK && m) rc = pass_result_decode(m, bytes, len, &cmd->arena, &err);
  if (rc == RC_OK && m) rc = claim_agrees(&claim, m->epoch, m->fence, m->worker_id, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}
