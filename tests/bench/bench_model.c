/* Prefill, decode and packing of one model, with the calls of the generation-server's engine step (and its staging).
 *
 * Decoding starts at position DECODE_FROM of each sequence, over pages of its own that hold zeros: what lies there
 * costs the same as a prompt that was computed.  After every turn the sequences go back to where they were. */
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/model/network/forward.h"
#include "tests/bench/bench.h"

enum {
  SEQUENCES_MAX = 64,
  DECODE_FROM = 128,
  STEPS_MAX = 32, /* of a turn */
  TURN_US = 150000,
  ROWS_MAX = 512,
  PAGE_TOKENS = 32,
  PAGES_EACH = (DECODE_FROM + STEPS_MAX) / PAGE_TOKENS,
  PAGES_PER_SEQUENCE = ROWS_MAX / PAGE_TOKENS
};

struct served {
  struct model *model;
  struct weights *weights;
  struct kv_cache *kv;
  struct workspace *ws;
  struct sampler *sampler;
  float *logits; /* [SEQUENCES_MAX, V] */
  struct kv_sequence sequences[SEQUENCES_MAX];
  int32_t pages[SEQUENCES_MAX * PAGES_PER_SEQUENCE];
  int32_t tokens[ROWS_MAX], sequence[ROWS_MAX], position[ROWS_MAX];
  uint64_t random;
  struct buf file; /* the weights as safetensors; made when packing is asked for */
};

/* --- life --- */

static enum rc fill_weights(struct served *s, struct err *err) {
  const struct model *m = s->model;
  float *masters = malloc(m->params.elements * sizeof *masters);
  if (!masters) return err_set(err, RC_NO_MEMORY, NULL, "masters of %zu elements were refused", m->params.elements);
  bench_masters(m, masters);
  weights_from_masters(s->weights, masters);
  free(masters);
  return RC_OK;
}

enum rc served_create(struct served **out, const struct ops *ops, const struct model_config *config, struct err *err) {
  struct served *s = *out = calloc(1, sizeof *s);
  if (!s) return err_set(err, RC_NO_MEMORY, NULL, "a model's record was refused memory");
  enum rc rc = model_create(&s->model, config, ops, 0, err);
  if (rc == RC_OK) rc = weights_create(&s->weights, s->model, false, err);
  if (rc == RC_OK) rc = fill_weights(s, err);
  if (rc == RC_OK) rc = kv_cache_create(&s->kv, s->model, SEQUENCES_MAX * PAGES_EACH, PAGE_TOKENS, err);
  if (rc == RC_OK) rc = workspace_create(&s->ws, s->model, ROWS_MAX, 0, err);
  for (int i = 0; i < SEQUENCES_MAX && rc == RC_OK; i++) rc = kv_sequence_init(&s->sequences[i], s->kv, ROWS_MAX, err);
  if (rc != RC_OK) return rc;
  s->sampler = sampler_create(ops, config->vocabulary);
  s->logits = ops->alloc(ops, SEQUENCES_MAX * (size_t)config->vocabulary * sizeof *s->logits);
  if (!s->sampler || !s->logits) return err_set(err, RC_NO_MEMORY, NULL, "sampling was refused memory");
  return RC_OK;
}

void served_free(struct served *s) {
  if (!s) return;
  for (int i = 0; i < SEQUENCES_MAX; i++)
    if (s->sequences[i].pages) kv_sequence_release(s->kv, &s->sequences[i]);
  if (s->logits) s->model->ops->release(s->model->ops, s->logits);
  sampler_free(s->sampler);
  workspace_free(s->ws);
  kv_cache_free(s->kv);
  weights_free(s->weights);
  model_free(s->model);
  buf_free(&s->file);
  free(s);
}

/* --- one call of the engine --- */

/* Adds rows [from, to) of sequence i behind `row`; pages are reserved. */
static int add_rows(struct served *s, int row, int i, int from, int to) {
  const struct kv_sequence *sequence = &s->sequences[i];
  for (int p = 0; p < sequence->page_count; p++) s->pages[i * PAGES_PER_SEQUENCE + p] = sequence->pages[p];
  for (int position = from; position < to; position++, row++) {
    s->sequence[row] = i;
    s->position[row] = position;
  }
  return row;
}

static const void *run(struct served *s, int rows) {
  const struct rows call = {.T = rows,
                            .sequence = s->sequence,
                            .position = s->position,
                            .pages = s->pages,
                            .pages_per_sequence = PAGES_PER_SEQUENCE,
                            .sequences = SEQUENCES_MAX};
  const void *hidden;
  forward_run(s->weights, &call, s->tokens, s->kv, s->ws, NULL, &hidden);
  return hidden;
}

/* Logits of rows pick[count] (NULL: the first ones), and a token of each into tokens. */
static void draw(struct served *s, const void *hidden, const int32_t *pick, int count) {
  forward_logits(s->weights, hidden, pick, count, s->ws, s->logits);
  bench_draw(s->sampler, s->logits, count, &s->random, s->tokens);
}

static enum rc reserve(struct served *s, int i, int length, struct err *err) {
  if (kv_reserve(s->kv, &s->sequences[i], length) == RC_OK) return RC_OK;
  return err_set(err, RC_FULL, NULL, "no pages for %d positions of sequence %d", length, i);
}

static void random_tokens(struct served *s, int count) {
  for (int i = 0; i < count; i++)
    s->tokens[i] = (int32_t)bench_random(&s->random, (uint32_t)s->model->config.vocabulary);
}

/* --- the figures --- */

enum rc served_prefill(struct served *s, int rows, struct reading *out, struct err *err) {
  if (rows < 1 || rows > ROWS_MAX) return err_set(err, RC_INVALID, "rows", "expected 1 to %d, got %d", ROWS_MAX, rows);
  const enum rc rc = reserve(s, 0, rows, err);
  if (rc != RC_OK) return rc;
  const int32_t last = rows - 1;
  const int64_t begun_us = clock_monotonic_us();
  random_tokens(s, rows);
  add_rows(s, 0, 0, 0, rows);
  draw(s, run(s, rows), &last, 1);
  const double keys = rows * (rows + 1.0) / 2;
  *out = (struct reading){.seconds = (double)(clock_monotonic_us() - begun_us) * 1e-6,
                          .operations = bench_forward_operations(&s->model->config, rows, keys, 1),
                          .bytes = bench_matrix_bytes(s->model)};
  kv_truncate(s->kv, &s->sequences[0], 0);
  return RC_OK;
}

static enum rc decode_step(struct served *s, int sequences, int position, struct err *err) {
  for (int i = 0; i < sequences; i++) {
    const enum rc rc = reserve(s, i, position + 1, err);
    if (rc != RC_OK) return rc;
    add_rows(s, i, i, position, position + 1);
  }
  draw(s, run(s, sequences), NULL, sequences);
  return RC_OK;
}

enum rc served_decode(struct served *s, int sequences, struct reading *out, struct err *err) {
  const struct model_config *c = &s->model->config;
  if (sequences < 1 || sequences > SEQUENCES_MAX)
    return err_set(err, RC_INVALID, "sequences", "expected 1 to %d, got %d", SEQUENCES_MAX, sequences);
  const double key_bytes = 2.0 * c->layers * c->kv_heads * c->head_dim * (double)s->model->ops->operand_bytes;
  const int64_t begun_us = clock_monotonic_us();
  int64_t now_us = begun_us;
  enum rc rc = RC_OK;
  random_tokens(s, sequences);
  for (int step = 0; step < STEPS_MAX && now_us - begun_us < TURN_US && rc == RC_OK; step++) {
    const int64_t step_us = now_us;
    const double keys = (double)sequences * (DECODE_FROM + step + 1);
    rc = decode_step(s, sequences, DECODE_FROM + step, err);
    now_us = clock_monotonic_us();
    const double seconds = (double)(now_us - step_us) * 1e-6;
    if (step > 0 && seconds > out->seconds) continue;
    *out = (struct reading){.seconds = seconds,
                            .operations = bench_forward_operations(c, sequences, keys, sequences),
                            .bytes = bench_matrix_bytes(s->model) + keys * key_bytes};
  }
  for (int i = 0; i < sequences; i++) kv_truncate(s->kv, &s->sequences[i], 0);
  return rc;
}

enum rc served_pack(struct served *s, struct reading *out, struct err *err) {
  struct st_file *file = NULL;
  struct digest written;
  enum rc rc = RC_OK;
  if (!s->file.data) rc = weights_to_safetensors(&s->file, &written, s->weights, NULL, "weights", err);
  if (rc == RC_OK) rc = buf_check(&s->file, err);
  if (rc == RC_OK) rc = st_open_memory(&file, s->file.data, s->file.len, err);
  const int64_t begun_us = clock_monotonic_us();
  if (rc == RC_OK) rc = weights_from_safetensors(s->weights, file, err);
  const double weights = (double)s->model->params.parameters * (double)s->model->ops->operand_bytes;
  *out = (struct reading){.seconds = (double)(clock_monotonic_us() - begun_us) * 1e-6, .bytes = 2 * weights};
  st_close(file);
  return rc;
}
