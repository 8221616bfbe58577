/* Computes one step: admits samples, gathers rows (decode and prefill together), runs one forward pass, draws tokens.
 *
 * Rows are gathered oldest sample first.  A sample that lacks pages takes those of the youngest holder; a preempted
 * sample keeps its tokens and computes prompt and tokens again later, under the weights that are active then: to the
 * same bits when they are the same.  Since victims are younger than the needy, none of them has rows in this step yet.
 *
 * Letters: P positions of a prompt, V vocabulary.
 * Previous hop: engine.c.  Next: job->done, which is worker/leases.c's or requests.c's. */
#include "services/generation-server/engine/engine_step.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/generation-server/engine/activation.h"
#include "services/generation-server/engine/branches.h"
#include "services/generation-server/engine/engine_state.h"
#include "services/generation-server/engine/sample_life.h"

/* --- what the scheduler sees --- */

static struct sched_item picture(const struct engine *e, const struct sample *s) {
  const int32_t length = sample_length(s);
  return (struct sched_item){
      .running = s->state == DECODE_RUNNING,
      .blocked = s->job->late ||
                 (s->kv.length == 0 && s->job->leader && s->job->leader != s && !s->job->prompt_ready),
      .pending = length - s->kv.length,
      .pages_held = s->kv.page_count,
      .pages_needed = kv_pages_needed(e->kv, &s->kv, length)};
}

static void picture_all(struct engine *e) {
  for (int i = 0; i < e->live_count; i++) e->items[i] = picture(e, e->live[i]);
}

/* Whether the active weights have computed all of its keys and values.  Positions are computed in order, so the first
 * one is the oldest. */
static bool kv_is_fresh(const struct engine *e, const struct sample *s) { return s->kv_swap == e->swap; }

static void fork_kv(struct engine *e, struct sample *child, const struct sample *parent, int32_t length) {
  kv_fork(e->kv, &child->kv, &parent->kv, length);
  child->kv_swap = parent->kv_swap;
}

/* The prompt's pages from a sample of the same group that still has them, as the active weights computed them. */
static void share_prompt(struct engine *e, struct sample *s) {
  const struct decode_job *job = s->job;
  if (!job->prompt_ready || s->kv.length > 0) return;
  const int32_t shared = s->count > 0
                             ? job->prompt_count
                             : job->prompt_count - 1; /* without a token, the last position's logits are needed */
  for (int32_t i = 0; i < job->sample_count && shared > 0; i++) {
    const struct sample *other = &job->samples[i];
    if (other == s || other->kv.length < shared || !kv_is_fresh(e, other)) continue;
    fork_kv(e, s, other, shared);
    return;
  }
}

/* A group that lost its prompt at a swap of weights has samples in slots: the oldest computes it again for all. */
static void choose_leaders(struct engine *e) {
  for (int i = 0; i < e->live_count; i++) {
    struct sample *s = e->live[i];
    struct decode_job *job = s->job;
    if (s->state == DECODE_RUNNING && s->kv.length == 0 && !job->prompt_ready && !job->leader) job->leader = s;
  }
}

static void admit(struct engine *e) {
  choose_leaders(e);
  picture_all(e);
  for (;;) {
    const int chosen = scheduler_admit(e->items, e->live_count, e->options.slots - e->slots_busy, kv_pages_free(e->kv));
    if (chosen < 0) return;
    struct sample *s = e->live[chosen];
    sample_enter_slot(e, s);
    share_prompt(e, s);
    if (s->kv.length == 0 && !s->job->prompt_ready) {
      assert(!s->job->leader);
      s->job->leader = s;
      for (int i = chosen + 1; i < e->live_count && e->live[i]->job == s->job; i++)
        e->items[i] = picture(e, e->live[i]); /* now blocked */
    }
    e->items[chosen] = picture(e, s);
  }
}

/* --- rows --- */

/* Makes live[at]'s next positions writable; false when it had to give up its own pages. */
static bool reserve(struct engine *e, int at, int32_t length) {
  struct sample *s = e->live[at];
  while (kv_reserve(e->kv, &s->kv, length) != RC_OK) {
    const int victim = scheduler_victim(e->items, e->live_count, at);
    struct sample *v = e->live[victim];
    sample_evict(e, v);
    atomic_fetch_add(&e->preemptions, 1);
    e->items[victim] = picture(e, v);
    e->take[victim] = 0;
    if (victim == at) return false;
  }
  return true;
}

/* Whether the keys and values of a sample with the same tokens, which has had its row of this step, are these, bit for
 * bit: the active weights have computed all of them, or the two had their last row in common. */
static bool same_kv(const struct engine *e, const struct sample *s, const struct sample *maker) {
  if (kv_is_fresh(e, s) && kv_is_fresh(e, maker)) return true;
  return s->row.step > 0 && s->row.step == maker->row_before.step && s->row.row == maker->row_before.row;
}

/* A sample that has the very row in this step; NULL: none.  A device replays a step by the shape of its rows, and
 * computes each of them. */
static const struct sample *find_maker(const struct engine *e, const struct sample *s) {
  const struct sample *maker = s->head->maker;
  if (!e->model->ops->host_memory || !maker || maker->row.step != e->step) return NULL;
  return maker->head == s->head && maker->count == s->count && same_kv(e, s, maker) ? maker : NULL;
}

/* Returns the computed row of the first of them.  Of a row that another sample has had computed only the key and the
 * value are written once more. */
static int32_t add_rows(struct engine *e, struct sample *s, int32_t first, int32_t count) {
  const bool newest = count == 1 && first + 1 == sample_length(s);
  const struct sample *maker = newest ? find_maker(e, s) : NULL;
  const int32_t begin = maker ? maker->row.row : e->computed_count;
  memcpy(e->pages + (size_t)s->slot * (size_t)e->pages_per_sequence, s->kv.pages,
         (size_t)s->kv.page_count * sizeof *s->kv.pages);
  for (int32_t i = 0; i < count; i++) {
    const int row = e->row_count++;
    assert(row < e->rows_max);
    e->sequence[row] = s->slot;
    e->position[row] = first + i;
    e->computed[row] = begin + i;
    if (maker) continue;
    e->tokens[begin + i] = sample_token_at(s, first + i);
    e->computed_sequence[begin + i] = s->slot;
    e->computed_position[begin + i] = first + i;
    e->computed_count++;
  }
  s->row_before = s->row;
  s->row = (struct row_name){e->step, begin + count - 1};
  if (!maker && (newest || s->head->maker == s)) s->head->maker = newest ? s : NULL;
  return begin;
}

static bool group_needs_first(const struct decode_job *job) {
  for (int32_t i = 0; i < job->sample_count; i++)
    if (job->samples[i].state != DECODE_DONE && job->samples[i].count == 0) return true;
  return false;
}

/* Rows whose logits judge the next token of the prompt, until the prompt has been computed once.  row: as computed. */
static void add_judged(struct engine *e, struct sample *s, int32_t row, int32_t first, int32_t count) {
  const struct decode_job *job = s->job;
  if (!job->prompt_logprobs || job->leader != s || job->prompt_judged) return;
  for (int32_t i = 0; i < count && first + i + 1 < job->prompt_count; i++) {
    e->picks[e->pick_count++] = (struct pick){.row = row + i, .sample = s, .judges = first + i + 1};
    e->judged_count++;
  }
}

/* Rows [first, first + count) of s start at `row` of the computed ones: notes those from whose logits a token is
 * drawn. */
static void add_picks(struct engine *e, struct sample *s, int32_t row, int32_t first, int32_t count) {
  const struct decode_job *job = s->job;
  const int32_t P = job->prompt_count, end = first + count;
  const bool leads = job->leader == s && !job->prompt_ready && end >= P;
  if (leads && group_needs_first(job))
    e->picks[e->pick_count++] = (struct pick){.row = row + P - 1 - first, .sample = s, .for_group = true};
  const bool drawn_with_group = leads && s->count == 0;
  if (end == sample_length(s) && !drawn_with_group)
    e->picks[e->pick_count++] = (struct pick){.row = row + count - 1, .sample = s};
}

static void gather(struct engine *e) {
  e->step++;
  e->row_count = e->computed_count = e->pick_count = e->judged_count = 0;
  scheduler_rows(e->items, e->live_count, e->options.prefill_chunk, e->take);
  for (int i = 0; i < e->live_count; i++) {
    struct sample *s = e->live[i];
    if (e->take[i] == 0) continue;
    const int32_t first = s->kv.length, count = e->take[i];
    if (!reserve(e, i, first + count)) continue;
    if (first == 0) s->kv_swap = e->swap;
    s->kv_judged = false;
    e->items[i] = picture(e, s);
    const int32_t row = add_rows(e, s, first, count);
    add_judged(e, s, row, first, count);
    add_picks(e, s, row, first, count);
  }
}

/* --- tokens --- */

/* For clients that ask: the raw log-probabilities, before temperature, of the token and of the likeliest ones. */
static void keep_raw(struct engine *e, struct sample *s, const float *logits) {
  const size_t k = (size_t)s->job->top_count, at = (size_t)s->count * k;
  s->logprobs[s->count] = sampler_logprob(e->sampler, logits, s->tokens[s->count]);
  if (k > 0) sampler_top(e->sampler, logits, (int)k, s->top_tokens + at, s->top_logprobs + at);
}

/* No more of a lease's samples are wanted: the coordinator takes no such log-probability. */
static void distrust(struct engine *e, struct sample *s) {
  struct decode_job *job = s->job;
  kv_distrust(e->kv, &s->kv);
  if (job->kind != DECODE_JOB_OF_LEASE || job->nonfinite) return;
  job->nonfinite = e->nonfinite = true;
  job->nonfinite_version = e->policy.version;
}

static void take_token(struct engine *e, struct sample *s, const struct draw *d) {
  struct decode_job *job = s->job;
  s->tokens[s->count] = d->token;
  s->logprobs[s->count] = d->logprob;
  if (!isfinite(d->logprob)) distrust(e, s);
  s->kv_judged = true;
  s->versions[s->count] = e->policy.version;
  s->fresh[s->count] = kv_is_fresh(e, s);
  s->kv_used = true;
  s->recomputing = false;
  if (job->raw_logprobs) keep_raw(e, s, e->logits + (size_t)d->row * (size_t)e->model->config.vocabulary);
  s->count++;
  branch_grow(s);
  sample_show(e, s);
  atomic_fetch_add(&e->tokens_sampled, 1);
  if (sample_stops(s))
    sample_finish(e, s, FINISH_STOP);
  else if (s->count == job->max_new)
    sample_finish(e, s, FINISH_LENGTH);
}

/* Has the device done its work?  If not, the engine has failed. */
static bool device_holds(struct engine *e) {
  struct err err;
  if (e->failed) return false;
  const enum rc rc = e->model->ops->status(e->model->ops, &err);
  if (rc == RC_OK) return true;
  e->failed = true;
  pthread_mutex_lock(&e->mutex);
  e->failure = err;
  pthread_mutex_unlock(&e->mutex);
  log_error("the engine stops: %s", err.message);
  return false;
}

/* The log-probability of the prompt's token at this position, and the likeliest tokens there. */
static void judge_prompt(struct engine *e, struct decode_job *job, int32_t at, const float *logits) {
  const size_t k = (size_t)job->top_count;
  job->prompt_logprobs[at] = sampler_logprob(e->sampler, logits, job->prompt[at]);
  job->prompt_ranks[at] = sampler_rank(e->sampler, logits, job->prompt[at]);
  if (k > 0)
    sampler_top(e->sampler, logits, (int)k, job->prompt_top_tokens + (size_t)at * k,
                job->prompt_top_logprobs + (size_t)at * k);
}

/* The i-th draw, of a sample whose client changes the logits. */
static void draw_changed(struct engine *e, int i) {
  const struct sample *s = e->drawn[i];
  const struct decode_job *job = s->job;
  const struct token_history history = {
      .prompt = job->prompt, .prompt_count = job->prompt_count, .tokens = s->tokens, .count = s->count};
  sampler_draw_changed(e->sampler, e->logits + (size_t)e->draws[i].row * (size_t)e->model->config.vocabulary,
                       &job->sampling, &job->changes, &history, &e->draws[i]);
}

/* All draws; neighbours without changes in one call. */
static void draw_tokens(struct engine *e) {
  for (int i = 0; i < e->draw_count;) {
    int plain = 0;
    while (i + plain < e->draw_count && !e->drawn[i + plain]->job->changed) plain++;
    if (plain > 0) sampler_draw(e->sampler, e->logits, e->params + i, e->draws + i, plain);
    i += plain;
    if (i < e->draw_count) draw_changed(e, i++);
  }
}

static void draw_gathered(struct engine *e) {
  draw_tokens(e);
  const int drawn = device_holds(e) ? e->draw_count : 0; /* a device that failed has drawn nothing */
  for (int i = 0; i < drawn; i++) take_token(e, e->drawn[i], &e->draws[i]);
  e->draw_count = 0;
}

/* A sample draws once in a step. */
static void add_draw(struct engine *e, struct sample *s, int row) {
  struct rng_key key = s->job->key;
  uint32_t words[4];
  key.sample = (uint32_t)s->index;
  rng_words(words, &key, (uint32_t)sample_length(s));
  if (e->draw_count == ENGINE_DRAWS) draw_gathered(e);
  e->drawn[e->draw_count] = s;
  e->params[e->draw_count] = &s->job->sampling;
  e->draws[e->draw_count++] = (struct draw){.row = row, .u = rng_uniform(words[0])};
}

/* All samples of the leader's group without a token draw their first one. */
static void add_group(struct engine *e, struct decode_job *job, int row) {
  for (int32_t i = 0; i < job->sample_count; i++)
    if (job->samples[i].state != DECODE_DONE && job->samples[i].count == 0) add_draw(e, &job->samples[i], row);
}

static bool same_cut(const struct sampling_params *a, const struct sampling_params *b) {
  return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p;
}

/* Cuts the n rows of logits at hand, each of them once, before the first draw from it. */
static void cut_rows(struct engine *e, int n) {
  const struct ops *ops = e->model->ops;
  const int V = e->model->config.vocabulary;
  for (int i = 0; i < n;) {
    const struct sampling_params *cut = &e->pick_jobs[i]->cut;
    int count = 1;
    while (i + count < n && same_cut(cut, &e->pick_jobs[i + count]->cut)) count++;
    if (sampling_cuts(cut)) ops->cut(ops, e->logits + (size_t)i * (size_t)V, cut, count, V);
    i += count;
  }
}

/* The rows whose logits the picks from `begin` on need, each of them once, as many as there is room for; returns how
 * many picks that serves. */
static int ask_rows(struct engine *e, int begin, int *rows) {
  int end = begin;
  *rows = 0;
  for (; end < e->pick_count; end++) {
    struct pick *pick = &e->picks[end];
    int32_t *at = &e->logits_row[pick->row];
    if (*at < 0) {
      if (*rows == ENGINE_LOGITS_ROWS) break;
      e->pick_rows[*rows] = pick->row;
      e->pick_jobs[*rows] = pick->sample->job;
      *at = (*rows)++;
    }
    pick->logits = *at;
  }
  for (int i = 0; i < *rows; i++) e->logits_row[e->pick_rows[i]] = -1;
  return end - begin;
}

static void draw_all(struct engine *e, const void *hidden) {
  for (int begin = 0, n, rows; begin < e->pick_count; begin += n) {
    n = ask_rows(e, begin, &rows);
    forward_logits(e->active, hidden, e->pick_rows, rows, e->ws, e->logits);
    cut_rows(e, rows);
    for (int i = begin; i < begin + n; i++) {
      const struct pick *pick = &e->picks[i];
      if (pick->judges > 0)
        judge_prompt(e, pick->sample->job, pick->judges,
                     e->logits + (size_t)pick->logits * (size_t)e->model->config.vocabulary);
      else if (pick->for_group)
        add_group(e, pick->sample->job, pick->logits);
      else
        add_draw(e, pick->sample, pick->logits);
    }
    draw_gathered(e);
  }
}

/* Leaders whose chunk reached the prompt's end share its pages with the others.  This comes before any draw, since a
 * leader that finishes gives up its pages. */
static void share_prompts(struct engine *e) {
  for (int i = 0; i < e->live_count; i++) {
    struct sample *leader = e->live[i];
    struct decode_job *job = leader->job;
    if (job->leader != leader || job->prompt_ready || leader->kv.length < job->prompt_count) continue;
    job->prompt_ready = job->prompt_judged = true;
    for (int32_t k = 0; k < job->sample_count; k++) {
      struct sample *s = &job->samples[k];
      if (s->state != DECODE_DONE && s->kv.length == 0) fork_kv(e, s, leader, job->prompt_count);
    }
  }
}

/* What a step costs by its rows.  A step with a prompt in it says nothing about decoding. */
static void note_cost(struct engine *e, int rows, bool decodes, int64_t us) {
  int slot = 0;
  if (!decodes) return;
  while (slot < WIRE_STEP_SLOTS - 1 && (1 << slot) < rows) slot++;
  atomic_fetch_add(&e->by_rows[slot].steps, 1);
  atomic_fetch_add(&e->by_rows[slot].rows, rows);
  atomic_fetch_add(&e->by_rows[slot].us, us);
}

/* All rows of the step: those of equal beginnings are computed once. */
static const void *forward_rows(struct engine *e) {
  const struct rows rows = {.T = e->row_count,
                            .sequence = e->sequence,
                            .position = e->position,
                            .pages = e->pages,
                            .pages_per_sequence = e->pages_per_sequence,
                            .sequences = e->options.slots};
  const void *hidden;
  if (e->computed_count == e->row_count) {
    forward_run(e->active, &rows, e->tokens, e->kv, e->ws, NULL, &hidden);
    return hidden;
  }
  struct forward_call call = {.rows = rows, .row = e->computed, .computed = rows, .tokens = e->tokens};
  call.computed.T = e->computed_count;
  call.computed.sequence = e->computed_sequence;
  call.computed.position = e->computed_position;
  forward_run_shared(e->active, &call, e->kv, e->ws, NULL, &hidden);
  return hidden;
}

bool step_run(struct engine *e) {
  const int64_t begin_us = clock_monotonic_us();
  admit(e);
  gather(e);
  const int leased = e->row_count > 0 ? e->leased_busy : 0;
  activity_set(e->options.activity, ACTIVITY_COMPUTING, leased > 0);
  if (e->row_count == 0) {
    activation_rests(e);
    return false;
  }
  samples_show(e); /* who is told a token sees its sample in a slot */
  activation_step_begins(e, begin_us);
  e->step_begin_us = begin_us;
  const void *hidden = forward_rows(e);
  if (e->pick_count == 0 && !device_holds(e)) return true;
  const bool decodes = e->judged_count == 0 && e->pick_count == e->row_count; /* a token is drawn from every row */
  share_prompts(e);
  draw_all(e, hidden);
  const int64_t took_us = clock_monotonic_us() - begin_us;
  e->step_decoded = decodes;
  atomic_fetch_add(&e->steps, 1);
  atomic_fetch_add(&e->rows, e->row_count);
  atomic_fetch_add(&e->rows_shared, e->row_count - e->computed_count);
  atomic_fetch_add(&e->busy_slot_us, leased * took_us);
  note_cost(e, e->row_count, decodes, took_us);
  return true;
}
