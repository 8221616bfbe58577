/* What the parts of the instrument (instrument.c) share: the models that are measured, what one reading is, and how
 * much arithmetic a forward pass must do.
 *
 * The parts call libmodel as the services do, through ops, forward, sampler, learner and optimizer.  Weights and tokens
 * are random; nothing here depends on what they are.  One thread, the instrument's, calls everything. */
#ifndef LEASEHOLD_BENCH_BENCH_H
#define LEASEHOLD_BENCH_BENCH_H

#include "common/model/network/model.h"
#include "common/model/network/sampler.h"

/* One turn of one figure, by its fastest call. */
struct reading {
  double seconds;    /* of one call */
  double operations; /* that one call cannot do without, a multiply-add being two; 0: of no account */
  double bytes;      /* of memory that one call cannot but read (for `pack`: read and write); 0: of no account */
};

/* "42M" or "0.6B". */
enum rc bench_config(struct model_config *out, const char *name, struct err *err);
/* Seconds of one call: the mean over the fastest batch of a turn, after one call that warms up.  Neighbours take the
 * CPU away for longer than a batch. */
double bench_repeat(void (*call)(void *context), void *context);
/* Random masters for the table, as spread as a fresh model's. */
void bench_masters(const struct model *m, float *masters);
/* A number below bound; the same from run to run. */
uint32_t bench_random(uint64_t *state, uint32_t bound);
/* Of a forward pass over `rows` that attend to `keys` positions together, `head_rows` of which get logits. */
double bench_forward_operations(const struct model_config *c, double rows, double keys, double head_rows);
/* Of the matrices that a row is multiplied by, the head included. */
double bench_matrix_bytes(const struct model *m);

/* --- the figures; what a first call makes is kept for the next of the same --- */

/* bench_kernels.c: y[M,N] = x[M,K] W^T, W packed, warm in whatever cache holds it. */
enum rc bench_gemm(const struct ops *ops, int M, int N, int K, struct reading *out, struct err *err);
/* dW[N,K] += dy[T,N]^T x[T,K]. */
enum rc bench_gradient(const struct ops *ops, int T, int N, int K, struct reading *out, struct err *err);
/* Random operands between -1 and 1; NULL when refused. */
void *bench_operands(const struct ops *ops, size_t count);
/* As an engine's step does it: a token and its log-probability from each row; tokens NULL: not kept.  count <= 64. */
void bench_draw(struct sampler *s, const float *logits, int count, uint64_t *random, int32_t *tokens);
enum { BENCH_SAMPLE_ROWS = 8 };
enum rc bench_sample(const struct ops *ops, int vocabulary, struct reading *out, struct err *err);

/* bench_attention.c: one layer's, with the model's heads. */
enum bench_attention_part { BENCH_ATTENTION_WHOLE, BENCH_ATTENTION_BACKWARD, BENCH_ATTENTION_STEP };
enum rc bench_attention(const struct ops *ops, const char *model, enum bench_attention_part part, int sequences,
                        int length, struct reading *out, struct err *err);

struct served; /* bench_model.c: a model as the generation-server holds it */
enum rc served_create(struct served **out, const struct ops *ops, const struct model_config *config, struct err *err);
void served_free(struct served *s); /* NULL is fine */
/* A prompt of `rows` tokens in one call, and its first token. */
enum rc served_prefill(struct served *s, int rows, struct reading *out, struct err *err);
/* One step of `sequences` sequences: forward pass, logits, a token and its log-probability for each. */
enum rc served_decode(struct served *s, int sequences, struct reading *out, struct err *err);
/* A pushed version's safetensors bytes into the kernels' memory. */
enum rc served_pack(struct served *s, struct reading *out, struct err *err);

struct trained; /* bench_train.c: a model as the trainer-server holds it */
enum rc trained_create(struct trained **out, const struct ops *ops, const struct model_config *config, int samples,
                       int length, struct err *err);
void trained_free(struct trained *t); /* NULL is fine */
/* One gradient unit, one optimizer step, the new weights in the kernels' memory. */
enum rc trained_step(struct trained *t, struct reading *out, struct err *err);

#endif
