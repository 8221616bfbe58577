/* Makes, reads out and frees decode jobs, and checks them before the engine sees them.  Nothing here knows the engine.
 *
 * Input from outside is checked here: ids against the vocabulary, lengths against the context and the KV pool, an
 * earlier holder's partial samples against their lease.  A job's memory is one arena, sized by its worst case (every
 * sample up to max_new tokens), so that the token loop allocates nothing.  No threads, no clock; called by HTTP
 * threads, the puller, the posters, the streamer and the replier, each with its own job.
 *
 * Previous hop of a rollout: worker/leases.c; of a plain request: generate_call.c.  Next: engine.c. */
#include "services/generation-server/engine/decode_job.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* --- checks --- */

static enum rc check_ids(const char *field, const int32_t *ids, int32_t count, int vocabulary, struct err *err) {
  for (int32_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      return err_set(err, RC_INVALID, field, "expected ids from 0 to %d, got %d at index %d", vocabulary - 1, ids[i],
                     i);
  return RC_OK;
}

static enum rc check_fits(const struct decode_job_spec *spec, const struct model *m, const struct kv_cache *kv,
                          struct err *err) {
  if (spec->prompt_count < 1 || spec->prompt_count > LIMIT_PROMPT_TOKENS)
    return err_set(err, RC_INVALID, "input_ids", "expected a prompt of 1 to %d tokens, got %d", LIMIT_PROMPT_TOKENS,
                   spec->prompt_count);
  if (spec->max_new < 1 || spec->max_new > LIMIT_NEW_TOKENS)
    return err_set(err, RC_INVALID, "max_new_tokens", "expected 1 to %d new tokens, got %d", LIMIT_NEW_TOKENS,
                   spec->max_new);
  const int64_t length = (int64_t)spec->prompt_count + spec->max_new;
  if (length > m->context_max)
    return err_set(err, RC_INVALID, "max_new_tokens",
                   "%d prompt tokens and %d new tokens exceed this server's context of %d tokens", spec->prompt_count,
                   spec->max_new, m->context_max);
  const int page = kv_page_tokens(kv);
  const int64_t pages = (length + page - 1) / page;
  if (pages > kv_pages_total(kv))
    return err_set(err, RC_INVALID, "max_new_tokens",
                   "%d prompt tokens and %d new tokens need %lld KV pages of %d tokens, and the whole pool has %d",
                   spec->prompt_count, spec->max_new, (long long)pages, page, kv_pages_total(kv));
  return RC_OK;
}

/* --- creation --- */

static enum rc make_samples(struct decode_job *job, int32_t first, const struct kv_cache *kv, struct err *err) {
  for (int32_t i = 0; i < job->sample_count; i++) {
    struct sample *s = &job->samples[i];
    *s = (struct sample){.job = job, .index = first + i, .slot = -1};
    s->tokens = arena_alloc(&job->arena, (size_t)job->max_new, sizeof *s->tokens);
    s->logprobs = arena_alloc(&job->arena, (size_t)job->max_new, sizeof *s->logprobs);
    s->versions = arena_alloc(&job->arena, (size_t)job->max_new, sizeof *s->versions);
    s->fresh = arena_alloc(&job->arena, (size_t)job->max_new, sizeof *s->fresh);
    if (job->top_count > 0) {
      const size_t top = (size_t)job->max_new * (size_t)job->top_count;
      s->top_tokens = arena_alloc(&job->arena, top, sizeof *s->top_tokens);
      s->top_logprobs = arena_alloc(&job->arena, top, sizeof *s->top_logprobs);
    }
    if (!s->tokens || !s->logprobs || !s->versions || !s->fresh ||
        (job->top_count > 0 && (!s->top_tokens || !s->top_logprobs)))
      return err_set(err, RC_NO_MEMORY, NULL, "%d samples of up to %d tokens were refused their memory",
                     job->sample_count, job->max_new);
    const enum rc rc = kv_sequence_init(&s->kv, kv, job->prompt_count + job->max_new, err);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

static void *copy_of(struct arena *arena, const void *items, size_t count, size_t size) {
  void *copy = arena_alloc(arena, count + 1, size);
  if (copy && count > 0) memcpy(copy, items, count * size);
  return copy;
}

/* What a client asked for beyond tokens: changes of the logits, log-probabilities of the prompt. */
static enum rc take_wishes(struct decode_job *job, const struct decode_job_spec *spec, struct err *err) {
  const size_t P = (size_t)job->prompt_count, top = P * (size_t)job->top_count;
  job->changes = (struct logit_changes)LOGIT_CHANGES_NONE;
  if (spec->changes) job->changes = *spec->changes;
  job->changed = logit_changes_any(&job->changes);
  job->changes.biases = copy_of(&job->arena, job->changes.biases, job->changes.bias_count, sizeof *job->changes.biases);
  job->changes.barred =
      copy_of(&job->arena, job->changes.barred, (size_t)job->changes.barred_count, sizeof *job->changes.barred);
  bool refused = !job->changes.biases || !job->changes.barred;
  if (spec->prompt_logprobs) {
    job->prompt_logprobs = arena_alloc(&job->arena, P, sizeof *job->prompt_logprobs);
    job->prompt_ranks = arena_alloc(&job->arena, P, sizeof *job->prompt_ranks);
    job->prompt_top_tokens = arena_alloc(&job->arena, top + 1, sizeof *job->prompt_top_tokens);
    job->prompt_top_logprobs = arena_alloc(&job->arena, top + 1, sizeof *job->prompt_top_logprobs);
    refused |= !job->prompt_logprobs || !job->prompt_ranks || !job->prompt_top_tokens || !job->prompt_top_logprobs;
    for (size_t i = 0; i < P && !refused; i++) job->prompt_logprobs[i] = NAN;
    for (size_t i = 0; i < top && !refused; i++) job->prompt_top_logprobs[i] = NAN;
  }
  return refused ? err_set(err, RC_NO_MEMORY, NULL, "a prompt of %d tokens was refused its memory", job->prompt_count)
                 : RC_OK;
}

enum rc decode_job_create(struct decode_job **out, const struct decode_job_spec *spec, const struct model *m,
                          const struct kv_cache *kv, struct err *err) {
  *out = NULL;
  enum rc rc = check_fits(spec, m, kv, err);
  if (rc == RC_OK) rc = check_ids("input_ids", spec->prompt, spec->prompt_count, m->config.vocabulary, err);
  if (rc == RC_OK) rc = check_ids("stop_token_ids", spec->stop, spec->stop_count, m->config.vocabulary, err);
  if (rc != RC_OK) return rc;
  if (spec->stop_count > 2 * LIMIT_STOP_TOKENS)
    return err_set(err, RC_INVALID, "stop_token_ids", "expected at most %d stop ids, got %d", 2 * LIMIT_STOP_TOKENS,
                   spec->stop_count);
  if (spec->sample_count < 1 || spec->sample_count > LIMIT_SAMPLES_PER_GROUP || spec->sample_first < 0 ||
      spec->sample_first >= 1 << 24)
    return err_set(err, RC_INVALID, "n", "expected 1 to %d samples, got %d from %d", LIMIT_SAMPLES_PER_GROUP,
                   spec->sample_count, spec->sample_first);
  struct decode_job *job = calloc(1, sizeof *job);
  if (!job) return err_set(err, RC_NO_MEMORY, NULL, "a job was refused its memory");
  job->kind = spec->kind;
  snprintf(job->id, sizeof job->id, "%s", spec->id);
  job->fence = spec->fence;
  job->prompt_count = spec->prompt_count;
  job->max_new = spec->max_new;
  job->sampling = spec->sampling;
  job->stop_count = spec->stop_count;
  if (spec->stop_count > 0) memcpy(job->stop, spec->stop, (size_t)spec->stop_count * sizeof *job->stop);
  job->key = spec->key;
  job->raw_logprobs = spec->raw_logprobs;
  job->top_count = spec->top_count < m->config.vocabulary ? spec->top_count : m->config.vocabulary;
  job->sample_count = spec->sample_count;
  job->prompt = arena_alloc(&job->arena, (size_t)spec->prompt_count, sizeof *job->prompt);
  job->samples = arena_alloc(&job->arena, (size_t)spec->sample_count, sizeof *job->samples);
  if (!job->prompt || !job->samples) {
    rc = err_set(err, RC_NO_MEMORY, NULL, "a prompt of %d tokens was refused its memory", spec->prompt_count);
    job->sample_count = 0;
  } else {
    memcpy(job->prompt, spec->prompt, (size_t)spec->prompt_count * sizeof *job->prompt);
    rc = make_samples(job, spec->sample_first, kv, err);
    if (rc == RC_OK) rc = take_wishes(job, spec, err);
  }
  if (rc != RC_OK) {
    decode_job_free(job);
    return rc;
  }
  *out = job;
  return RC_OK;
}

void decode_job_free(struct decode_job *job) {
  if (!job) return;
  for (int32_t i = 0; i < job->sample_count; i++)
    free(job->samples[i].kv.pages); /* the pages themselves went back to the pool with kv_truncate */
  arena_free(&job->arena);
  free(job);
}

/* --- leases --- */

/* A sample that had finished before its lease was handed back comes as a partial like any other: its last token shows
 * that it had. */
static void finish_if_ended(struct decode_job *job, struct sample *s, bool stops) {
  if (s->count == 0) return;
  if (stops)
    s->finish = FINISH_STOP;
  else if (s->count == job->max_new)
    s->finish = FINISH_LENGTH;
  else
    return;
  s->state = DECODE_DONE;
  job->done_count++;
}

/* Without spans all tokens are version_min's: they come from a lease for one version. */
static enum rc take_spans(struct decode_job *job, struct sample *s, const struct partial_sample *p, struct err *err) {
  const struct version_span whole = {
      .version = job->version_min, .count = (int32_t)p->token_ids.count, .fresh = true};
  const size_t count = p->span_count > 0 ? p->span_count : p->token_ids.count > 0;
  const struct version_span *spans = p->span_count > 0 ? p->spans : &whole;
  const enum rc rc = wire_version_spans_check(spans, count, p->token_ids.count, err);
  if (rc != RC_OK || count == 0) return rc;
  const int64_t oldest = spans[0].version, newest = spans[count - 1].version;
  if (oldest < job->version_min || newest > job->version_max)
    return err_set(err, RC_INVALID, "partials",
                   "lease %s is valid for versions %lld to %lld, and brings tokens of %lld to %lld", job->id,
                   (long long)job->version_min, (long long)job->version_max, (long long)oldest, (long long)newest);
  for (size_t i = 0; i < count; i++) {
    for (int32_t at = spans[i].start; at < spans[i].start + spans[i].count; at++) {
      s->versions[at] = spans[i].version;
      s->fresh[at] = spans[i].fresh;
    }
  }
  if (newest > job->version_reached) job->version_reached = newest;
  return RC_OK;
}

static enum rc take_partial(struct decode_job *job, const struct lease *lease, const struct partial_sample *p,
                            const struct model *m, struct err *err) {
  const int64_t at = (int64_t)p->sample - lease->sample_first;
  if (at < 0 || at >= lease->sample_count || p->token_ids.count != p->logprobs.count ||
      p->token_ids.count > (size_t)lease->max_new_tokens)
    return err_set(
        err, RC_INVALID, "partials",
        "lease %s: sample %d with %zu tokens and %zu log-probabilities is not one of samples %d-%d of up to %d tokens",
        lease->id, p->sample, p->token_ids.count, p->logprobs.count, lease->sample_first,
        lease->sample_first + lease->sample_count - 1, lease->max_new_tokens);
  struct sample *s = &job->samples[at];
  if (s->count > 0) return err_set(err, RC_INVALID, "partials", "lease %s: sample %d came twice", lease->id, p->sample);
  enum rc rc =
      check_ids("partials.token_ids", p->token_ids.items, (int32_t)p->token_ids.count, m->config.vocabulary, err);
  if (rc == RC_OK) rc = take_spans(job, s, p, err);
  if (rc != RC_OK) return rc;
  bool stops = false;
  for (size_t i = 0; i < p->token_ids.count; i++) {
    if (stops)
      return err_set(err, RC_INVALID, "partials", "lease %s: sample %d goes on after it stopped with token %zu",
                     lease->id, p->sample, i - 1);
    s->tokens[i] = p->token_ids.items[i];
    s->logprobs[i] = p->logprobs.items[i];
    s->count++;
    stops = sample_stops(s);
  }
  finish_if_ended(job, s, stops);
  return RC_OK;
}

/* Stop texts match across tokens, so the sampler needs the tokens' texts. */
static enum rc take_stops(struct decode_job *job, const struct lease *lease, const struct tokenizer *tokenizer,
                          struct err *err) {
  enum rc rc = RC_OK;
  if (lease->stop.count > 0 && !tokenizer)
    return err_set(err, RC_INVALID, "stop", "lease %s has stop texts, and this server has no tokenizer", lease->id);
  job->tokenizer = tokenizer;
  for (size_t i = 0; i < lease->stop.count && rc == RC_OK; i++)
    rc = stop_texts_add(&job->stops, lease->stop.items[i], strlen(lease->stop.items[i]), &job->arena, err);
  return rc;
}

enum rc decode_job_of_lease(struct decode_job **out, const struct lease *lease, const struct model *m,
                            const struct tokenizer *tokenizer, const struct kv_cache *kv, struct err *err) {
  *out = NULL;
  const struct decode_job_spec spec = {
      .kind = DECODE_JOB_OF_LEASE,
      .id = lease->id,
      .fence = lease->fence,
      .prompt = lease->prompt_ids.items,
      .prompt_count = (int32_t)lease->prompt_ids.count,
      .max_new = lease->max_new_tokens,
      .sampling = {.temperature = lease->temperature, .top_p = 1},
      .stop = lease->stop_token_ids.items,
      .stop_count = (int)lease->stop_token_ids.count,
      .key = {.seed = lease->seed,
              .purpose = lease->purpose == LEASE_TRAINING ? RNG_SAMPLE : RNG_EVALUATION,
              .round = (uint32_t)lease->round,
              .group = (uint32_t)lease->group_ordinal},
      .sample_first = lease->sample_first,
      .sample_count = lease->sample_count,
  };
  struct decode_job *job;
  enum rc rc = lease_known(lease, err);
  if (rc == RC_OK) rc = decode_job_create(&job, &spec, m, kv, err);
  if (rc != RC_OK) return rc;
  snprintf(job->run, sizeof job->run, "%s", lease->run);
  job->version_min = lease->version_min;
  job->version_max = lease->version_max;
  job->recompute_kv = lease->kv == LEASE_KV_RECOMPUTE;
  job->weights_digest = lease->weights_digest;
  job->cut = (struct sampling_params){.temperature = lease->temperature,
                                      .top_k = lease->cut.top_k,
                                      .top_p = (float)lease->cut.top_p,
                                      .min_p = (float)lease->cut.min_p};
  rc = take_stops(job, lease, tokenizer, err);
  for (size_t i = 0; i < lease->partial_count && rc == RC_OK; i++)
    rc = take_partial(job, lease, &lease->partials[i], m, err);
  if (rc != RC_OK) {
    decode_job_free(job);
    return rc;
  }
  *out = job;
  return RC_OK;
}

/* --- reading --- */

bool sample_stops_at(const struct decode_job *job, int32_t token) {
  for (int i = 0; i < job->stop_count; i++)
    if (job->stop[i] == token) return true;
  return false;
}

bool sample_stops(struct sample *s) {
  const struct decode_job *job = s->job;
  const int32_t token = s->tokens[s->count - 1];
  if (sample_stops_at(job, token)) return true;
  return job->stops.count > 0 && stop_texts_end(&job->stops, &s->matching, job->tokenizer, token);
}

int32_t sample_length(const struct sample *s) { return s->job->prompt_count + s->count; }

int32_t sample_token_at(const struct sample *s, int32_t position) {
  const int32_t P = s->job->prompt_count;
  return position < P ? s->job->prompt[position] : s->tokens[position - P];
}

static bool begins_span(const struct sample *s, int32_t i) {
  return i == 0 || s->versions[i] != s->versions[i - 1] || s->fresh[i] != s->fresh[i - 1];
}

struct version_span *sample_spans(const struct sample *s, size_t *count, struct arena *arena) {
  size_t n = 0;
  for (int32_t i = 0; i < s->count; i++) n += begins_span(s, i);
  struct version_span *spans = arena_alloc(arena, n + 1, sizeof *spans);
  if (!spans) return NULL;
  *count = n;
  n = 0;
  for (int32_t i = 0; i < s->count; i++) {
    if (begins_span(s, i))
      spans[n++] = (struct version_span){.version = s->versions[i], .start = i, .fresh = s->fresh[i]};
    spans[n - 1].count++;
  }
  return spans;
}

enum rc decode_job_result(struct lease_result *out, const struct decode_job *job, struct arena *arena,
                          struct err *err) {
  *out = (struct lease_result){
      .fence = job->fence, .loaded_digest = job->policy.digest, .handed_back = job->end == DECODE_JOB_HANDED_BACK};
  if (out->handed_back && !job->taken) out->loaded_digest = job->weights_digest; /* as it came */
  out->samples = arena_alloc(arena, (size_t)job->sample_count, sizeof *out->samples);
  if (!out->samples) goto refused;
  out->sample_count = (size_t)job->sample_count;
  for (int32_t i = 0; i < job->sample_count; i++) {
    const struct sample *s = &job->samples[i];
    struct sample_result *r = &out->samples[i];
    r->sample = s->index;
    r->token_ids = (struct json_i32s){s->tokens, (size_t)s->count};
    r->logprobs = (struct json_f32s){s->logprobs, (size_t)s->count};
    r->finish =
        out->handed_back ? FINISH_ABORT : s->finish; /* the next holder sees from the tokens that a sample had ended */
    r->segments = arena_alloc(arena, 1, sizeof *r->segments);
    r->spans = sample_spans(s, &r->span_count, arena);
    if (!r->segments || !r->spans) goto refused;
    r->segment_count = s->count > 0 ? 1 : 0;
    r->segments[0] = (struct sample_segment){.start = 0, .count = s->count, .loss_mask = true};
  }
  return RC_OK;
refused:
  return err_set(err, RC_NO_MEMORY, NULL, "the result of lease %s with %d samples was refused its memory", job->id,
                 job->sample_count);
}
