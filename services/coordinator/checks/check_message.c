/* Reads groups that wait for a check into a message, and compares the answer. */
#include "services/coordinator/checks/check_message.h"

#include <inttypes.h>
#include <string.h>

#include "common/wire/worker.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/rounds/group_seal.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/store/token_bytes.h"

static enum rc no_memory(struct err *err) { return err_set(err, RC_NO_MEMORY, NULL, "a check was refused memory"); }

/* ---- reading ---- */

/* A group that waits. */
struct waiting_check {
  int64_t ordinal, samples, tokens;
  int max_new_tokens;
};

/* What its advantages are made of. */
struct check_scores {
  double *rewards, *shaped; /* [samples] */
  int32_t *lengths;
  float *advantages;
  bool promised; /* every sample's worker promises the trainer's bits */
};

static bool is_taken(const struct taken_groups *taken, int64_t run, int64_t round, int64_t ordinal) {
  if (taken->run != run || taken->round != round) return false;
  for (size_t i = 0; i < taken->count; i++)
    if (taken->ordinals[i] == ordinal) return true;
  return false;
}

/* Of the oldest round, as many as the budget takes, one at least. */
static enum rc waiting_read(struct check *out, struct waiting_check *groups, size_t *count, struct store *s,
                            int64_t tokens_max, const struct taken_groups *taken, struct err *err) {
  struct rows q;
  bool row;
  int64_t sum = 0;
  *count = 0;
  enum rc rc = store_query(
      s, &q, err,
      "SELECT g.round, g.ordinal, g.sample_count, g.done_tokens + g.sample_count * length(g.prompt_ids) / 4, "
      "r.version, g.max_new_tokens FROM groups g INDEXED BY groups_unchecked JOIN rounds r ON r.run = g.run AND "
      "r.round = g.round WHERE g.run = ?1 AND "
      "g.unchecked = 1 AND g.state = " SQL_GROUP_OPEN " ORDER BY g.round, g.ordinal LIMIT ?2",
      BINDS(b_int(out->run), b_int(LIMIT_GROUPS_PER_ROUND)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t round = rows_int(&q, 0), tokens = rows_int(&q, 3);
    if (is_taken(taken, out->run, round, rows_int(&q, 1))) continue;
    if (*count > 0 && (round != out->round || sum + tokens > tokens_max)) break;
    out->round = round;
    out->version = rows_int(&q, 4);
    groups[(*count)++] = (struct waiting_check){rows_int(&q, 1), rows_int(&q, 2), tokens, (int)rows_int(&q, 5)};
    sum += tokens;
  }
  rows_end(&q);
  return rc;
}

/* Does the run's gradient of a group need nothing but the group, so that a check may take it ahead of its batch?  Not
 * of inner steps, whose groups are known when they are sealed; of rewards that are still to come; of a teacher's word;
 * of advantages over a whole round; or of tokens that are left out. */
static bool goes_ahead(const struct run_config *c) {
  return c->groups_per_step == 0 && reward_remote_terms(&c->verifier) == 0 && !c->training.teacher[0] &&
         !c->mask_truncated && c->advantage != ADVANTAGE_BATCH && c->advantage != ADVANTAGE_BATCH_CENTERED;
}

static enum rc scores_alloc(struct check_scores *out, int64_t samples, struct arena *arena, struct err *err) {
  const size_t n = (size_t)samples + 1;
  *out = (struct check_scores){.rewards = arena_alloc(arena, n, sizeof *out->rewards),
                               .shaped = arena_alloc(arena, n, sizeof *out->shaped),
                               .lengths = arena_alloc(arena, n, sizeof *out->lengths),
                               .advantages = arena_alloc(arena, n, sizeof *out->advantages),
                               .promised = true};
  return out->rewards && out->shaped && out->lengths && out->advantages ? RC_OK : no_memory(err);
}

/* What was recorded of the group's samples, which are the last that were read. */
static enum rc recorded_digest(struct batch_group *g, const struct check *c, struct arena *arena, struct err *err) {
  struct sample_logprobs *samples = arena_alloc(arena, g->sample_count + 1, sizeof *samples);
  if (!samples) return no_memory(err);
  const struct json_f32s *recorded = &c->recorded[c->count - g->sample_count];
  for (size_t i = 0; i < g->sample_count; i++)
    samples[i] = (struct sample_logprobs){.id = g->samples[i].id, .logprobs = recorded[i]};
  logprobs_digest(&g->recorded_sha256, samples, g->sample_count);
  return RC_OK;
}

/* The advantages that the group will have once it is sealed; false: it will be filtered. */
static bool ahead_take(struct batch_group *g, const struct run_config *config, const struct check *c,
                       const struct waiting_check *w, const struct check_scores *s) {
  const struct scored_group scored = {c->round, w->ordinal, (int)w->samples, w->max_new_tokens, s->lengths};
  group_advantages(config, &scored, s->rewards, s->shaped, s->advantages);
  const bool trainable = !group_filter_reason(config, s->advantages, (int)w->samples);
  g->ahead = trainable && s->promised;
  for (size_t i = 0; g->ahead && i < g->sample_count; i++) g->samples[i].advantage = s->advantages[i];
  return trainable;
}

/* Columns: sample, digest, token_ids, logprobs, prompt_ids. */
static enum rc sample_read(struct batch_sample *out, struct check *c, int64_t ordinal, const struct rows *q,
                           struct arena *arena, struct err *err) {
  struct found_sample *found = &c->found[c->count];
  size_t ids_len, logprobs_len, prompt_len, count = 0;
  int32_t *sampled = NULL;
  const void *ids = rows_blob(q, 2, &ids_len), *logprobs = rows_blob(q, 3, &logprobs_len),
             *prompt = rows_blob(q, 4, &prompt_len);
  *found = (struct found_sample){.group = ordinal, .sample = rows_int(q, 0), .position = -1, .shown = -1};
  rows_digest(q, 1, &found->digest);
  enum rc rc = token_bytes_unpack(&sampled, &count, ids, ids_len, logprobs_len, arena, err);
  if (rc != RC_OK) return rc;
  const size_t P = prompt_len / sizeof(int32_t);
  int32_t *tokens = arena_alloc(arena, P + count + 1, sizeof *tokens);
  float *recorded = arena_alloc(arena, count + 1, sizeof *recorded);
  struct sample_segment *segment = arena_alloc(arena, 1, sizeof *segment);
  char *id = arena_strdup(arena, id_sample(c->run, c->round, ordinal, found->sample).text);
  if (!tokens || !recorded || !segment || !id) return no_memory(err);
  memcpy(tokens, prompt, prompt_len);
  memcpy(tokens + P, sampled, count * sizeof *tokens);
  memcpy(recorded, logprobs, logprobs_len);
  *segment = (struct sample_segment){.count = (int32_t)count, .loss_mask = true};
  found->tokens = (int32_t)count;
  c->recorded[c->count] = (struct json_f32s){recorded, count};
  *out = (struct batch_sample){.id = id,
                               .tokens = {tokens, P + count},
                               .prompt_length = (int32_t)P,
                               .segments = segment,
                               .segment_count = 1};
  return RC_OK;
}

/* What else decides about the groups of a check. */
struct check_moment {
  bool sampling;      /* others of the round still are sampled */
  bool preprocessors; /* live ones, which compute the reference of what is sealed */
};

static enum rc moment_read(struct check_moment *out, struct store *s, const struct check *c, struct err *err) {
  int64_t bits = 0;
  const enum rc rc = store_int(
      s, &bits, err,
      "SELECT EXISTS (SELECT 1 FROM groups INDEXED BY groups_open WHERE run = ?1 AND round = ?2 AND state "
      "= " SQL_GROUP_OPEN " AND samples_open > 0) + 2 * EXISTS (SELECT 1 FROM workers WHERE live = 1 AND kind = ?3)",
      BINDS(b_int(c->run), b_int(c->round), b_int(WORKER_PREPROCESS)));
  *out = (struct check_moment){.sampling = bits & 1, .preprocessors = bits & 2};
  return rc;
}

/* While others are sampled, mode sync trains on nothing: of groups that go ahead it checks those alone
 * that will be filtered, because others may come in their place. */
static enum rc waiting_group_read(struct check *c, struct store *s, const struct run_context *x,
                                  const struct check_moment *now, const struct waiting_check *w, struct arena *arena,
                                  struct err *err) {
  struct batch_group *g = &c->message.groups[c->message.group_count++];
  struct check_scores scores;
  struct rows q;
  bool row;
  *g = (struct batch_group){.id = arena_strdup(arena, id_group(c->run, c->round, w->ordinal).text),
                            .ordinal = w->ordinal,
                            .samples = arena_alloc(arena, (size_t)w->samples + 1, sizeof *g->samples)};
  if (!g->id || !g->samples) return no_memory(err);
  enum rc rc = scores_alloc(&scores, w->samples, arena, err);
  if (rc == RC_OK)
    rc = store_query(
        s, &q, err,
        "SELECT s.sample, s.digest, o.token_ids, o.logprobs, g.prompt_ids, s.reward, s.tokens, w.exactness FROM "
        "samples s JOIN rollouts o USING (run, round, group_ordinal, sample) JOIN groups g ON g.run = s.run AND "
        "g.round = s.round AND g.ordinal = s.group_ordinal JOIN workers w ON w.id = s.worker WHERE s.run = ?1 "
        "AND s.round = ?2 AND s.group_ordinal = ?3 ORDER BY s.sample",
        BINDS(b_int(c->run), b_int(c->round), b_int(w->ordinal)));
  if (rc != RC_OK) return rc;
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && (int64_t)g->sample_count < w->samples) {
    rc = sample_read(&g->samples[g->sample_count], c, w->ordinal, &q, arena, err);
    if (rc == RC_OK && c->found[c->count].sample != (int64_t)g->sample_count) break;
    scores.rewards[g->sample_count] = rows_real(&q, 5);
    scores.lengths[g->sample_count] = (int32_t)rows_int(&q, 6);
    scores.promised &= rows_int(&q, 7) == WORKER_INVARIANT;
    g->sample_count++;
    c->count++;
  }
  rows_end(&q);
  if (rc == RC_OK && (int64_t)g->sample_count != w->samples)
    rc = err_set(err, RC_CORRUPT, NULL, "group %s has %zu of %" PRId64 " rollouts", g->id, g->sample_count, w->samples);
  if (rc != RC_OK || !goes_ahead(&x->config)) return rc;
  const bool trainable = ahead_take(g, &x->config, c, w, &scores);
  if (now->preprocessors && run_has_reference(&x->config)) g->ahead = false;
  if (g->ahead && (rc = recorded_digest(g, c, arena, err)) != RC_OK) return rc;
  if (!trainable || !now->sampling || x->config.mode != MODE_SYNC) return RC_OK;
  c->count -= g->sample_count;
  c->message.group_count--;
  return RC_OK;
}

enum rc check_read(struct check *out, struct store *s, const struct run_context *x, int64_t tokens_max,
                   const struct taken_groups *taken, struct arena *arena, struct err *err) {
  struct waiting_check *groups = arena_alloc(arena, LIMIT_GROUPS_PER_ROUND, sizeof *groups);
  size_t count = 0, samples = 0;
  struct check_moment now = {0};
  *out = (struct check){.run = x->run};
  if (!groups) return no_memory(err);
  enum rc rc = waiting_read(out, groups, &count, s, tokens_max, taken, err);
  if (rc == RC_OK && count > 0) rc = moment_read(&now, s, out, err);
  for (size_t g = 0; g < count; g++) samples += (size_t)groups[g].samples;
  out->message.groups = arena_alloc(arena, count + 1, sizeof *out->message.groups);
  out->found = arena_alloc(arena, samples + 1, sizeof *out->found);
  out->recorded = arena_alloc(arena, samples + 1, sizeof *out->recorded);
  out->message.run = arena_strdup(arena, id_run(x->run).text);
  out->message.version = out->version;
  out->message.check = (struct draw_check){.wanted = true, .seed = x->config.seed, .round = out->round};
  if (!out->message.groups || !out->found || !out->recorded || !out->message.run) return no_memory(err);
  for (size_t g = 0; g < count && rc == RC_OK; g++) rc = waiting_group_read(out, s, x, &now, &groups[g], arena, err);
  return rc;
}

/* ---- comparing ---- */

bool check_agrees(const struct check *c, const struct batch_status *answer, struct arena *arena) {
  struct sample_logprobs *samples = arena_alloc(arena, c->count + 1, sizeof *samples);
  struct digest recorded;
  size_t at = 0;
  if (!samples || answer->difference_count > 0) return false;
  for (size_t g = 0; g < c->message.group_count; g++) {
    for (size_t i = 0; i < c->message.groups[g].sample_count; i++, at++)
      samples[at] = (struct sample_logprobs){.id = c->message.groups[g].samples[i].id, .logprobs = c->recorded[at]};
  }
  logprobs_digest(&recorded, samples, at);
  return digest_equal(&recorded, &answer->logprobs_sha256);
}

static enum rc difference_take(struct found_sample *f, const struct draw_difference *d, struct err *err) {
  if (d->position >= f->tokens)
    return err_set(err, RC_CORRUPT, "differences.position", "sample %s has %d tokens, the trainer tells of token %d",
                   d->id, f->tokens, d->position);
  f->position = d->position;
  f->due = d->token;
  f->due_logprob = d->logprob;
  return RC_OK;
}

/* The evidence: what stands at the first difference. */
static void show(struct found_sample *f, const struct batch_sample *sent, const float *recorded, const float *own) {
  f->shown = f->position;
  for (int32_t t = 0; f->shown < 0 && t < f->tokens; t++)
    if (memcmp(&recorded[t], &own[t], sizeof *own) != 0) f->shown = t;
  if (f->shown < 0) return;
  f->given = sent->tokens.items[sent->prompt_length + f->shown];
  f->given_logprob = recorded[f->shown];
  f->own_logprob = own[f->shown];
}

/* *next: the first of the answer's differences, which come in the samples' order, that is not taken. */
static enum rc sample_compare(struct check *c, size_t at, const struct batch_sample *sent,
                              const struct batch_status *answer, size_t *next, struct err *err) {
  struct found_sample *f = &c->found[at];
  const struct sample_logprobs *own = &answer->samples[at];
  enum rc rc = RC_OK;
  if (strcmp(own->id, sent->id) != 0 || own->logprobs.count != (size_t)f->tokens)
    return err_set(err, RC_CORRUPT, "samples",
                   "the trainer answered %zu log-probabilities of sample '%.100s', %d of %s were expected",
                   own->logprobs.count, own->id, f->tokens, sent->id);
  mismatch_add(&f->mismatch, c->recorded[at].items, own->logprobs.items, own->logprobs.count);
  if (*next < answer->difference_count && strcmp(answer->differences[*next].id, sent->id) == 0)
    rc = difference_take(f, &answer->differences[(*next)++], err);
  if (rc == RC_OK) show(f, sent, c->recorded[at].items, own->logprobs.items);
  return rc;
}

enum rc check_compare(struct check *c, const struct batch_status *answer, struct err *err) {
  size_t at = 0, next = 0;
  enum rc rc = RC_OK;
  if (answer->sample_count != c->count)
    return err_set(err, RC_CORRUPT, "samples", "the trainer answered for %zu samples, the check has %zu",
                   answer->sample_count, c->count);
  for (size_t g = 0; g < c->message.group_count; g++)
    for (size_t i = 0; i < c->message.groups[g].sample_count && rc == RC_OK; i++, at++)
      rc = sample_compare(c, at, &c->message.groups[g].samples[i], answer, &next, err);
  if (rc != RC_OK || next == answer->difference_count) return rc;
  return err_set(err, RC_CORRUPT, "differences", "the trainer tells of sample '%.100s', which is not next in the check",
                 answer->differences[next].id);
}

bool check_same(const struct found_sample *a, const struct found_sample *b) {
  return a->group == b->group && a->sample == b->sample && digest_equal(&a->digest, &b->digest) &&
         a->position == b->position && a->shown == b->shown && (a->position < 0 || a->due == b->due) &&
         a->mismatch.unequal == b->mismatch.unequal;
}
