/* What `make bench` measures ours with: answers one question a line, so that the driver (tests/bench/bench) can take
 * turns between this program and its peers.
 *
 *   instrument THREADS [LEVEL]
 *   -> {kernels' name}
 *   <- gemm M N K | gradient T N K | sample V | prefill MODEL ROWS | decode MODEL SEQUENCES | pack MODEL | train MODEL
 *      SAMPLES LENGTH | peak | bandwidth | attention MODEL SEQUENCES LENGTH | attention_backward MODEL SEQUENCES LENGTH
 *      | attention_step MODEL SEQUENCES LENGTH
 *   -> {seconds} {operations} {bytes}          struct reading; peak and bandwidth: of one second
 *   -> error {sentence}
 *
 * One model is held at a time: what the last question needed stays for the next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/bench_peak.h"

enum { LINE_MAX_BYTES = 256, WORDS_MAX = 4, MODEL_NAME_MAX = 16 };

struct instrument {
  struct pool *pool;
  struct ops *ops;
  struct peak_memory *memory;
  char name[MODEL_NAME_MAX]; /* of the model that is held; "" for none */
  struct served *served;
  struct trained *trained;
};

struct question {
  const char *words[WORDS_MAX];
  int numbers[WORDS_MAX]; /* of words that are numbers */
};

static void forget(struct instrument *in) {
  served_free(in->served);
  trained_free(in->trained);
  in->served = NULL;
  in->trained = NULL;
  in->name[0] = 0;
}

static enum rc hold_served(struct instrument *in, const char *name, struct err *err) {
  struct model_config config;
  if (in->served && strcmp(in->name, name) == 0) return RC_OK;
  forget(in);
  enum rc rc = bench_config(&config, name, err);
  if (rc == RC_OK) rc = served_create(&in->served, in->ops, &config, err);
  if (rc == RC_OK) snprintf(in->name, sizeof in->name, "%s", name);
  return rc;
}

static enum rc hold_trained(struct instrument *in, const struct question *q, struct err *err) {
  struct model_config config;
  if (in->trained && strcmp(in->name, q->words[1]) == 0) return RC_OK;
  forget(in);
  enum rc rc = bench_config(&config, q->words[1], err);
  if (rc == RC_OK) rc = trained_create(&in->trained, in->ops, &config, q->numbers[2], q->numbers[3], err);
  if (rc == RC_OK) snprintf(in->name, sizeof in->name, "%s", q->words[1]);
  return rc;
}

/* --- questions --- */

static enum rc ask_gemm(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  return bench_gemm(in->ops, q->numbers[1], q->numbers[2], q->numbers[3], out, err);
}

static enum rc ask_gradient(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  return bench_gradient(in->ops, q->numbers[1], q->numbers[2], q->numbers[3], out, err);
}

static enum rc ask_attention(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  const enum bench_attention_part part = strcmp(q->words[0], "attention_backward") == 0 ? BENCH_ATTENTION_BACKWARD
                                         : strcmp(q->words[0], "attention_step") == 0   ? BENCH_ATTENTION_STEP
                                                                                        : BENCH_ATTENTION_WHOLE;
  return bench_attention(in->ops, q->words[1], part, q->numbers[2], q->numbers[3], out, err);
}

static enum rc ask_sample(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  return bench_sample(in->ops, q->numbers[1], out, err);
}

static enum rc ask_prefill(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  const enum rc rc = hold_served(in, q->words[1], err);
  return rc == RC_OK ? served_prefill(in->served, q->numbers[2], out, err) : rc;
}

static enum rc ask_decode(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  const enum rc rc = hold_served(in, q->words[1], err);
  return rc == RC_OK ? served_decode(in->served, q->numbers[2], out, err) : rc;
}

static enum rc ask_pack(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  const enum rc rc = hold_served(in, q->words[1], err);
  return rc == RC_OK ? served_pack(in->served, out, err) : rc;
}

static enum rc ask_train(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  const enum rc rc = hold_trained(in, q, err);
  return rc == RC_OK ? trained_step(in->trained, out, err) : rc;
}

static enum rc ask_peak(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  (void)q;
  (void)err;
  *out = (struct reading){.seconds = 1, .operations = peak_operations(in->ops)};
  return RC_OK;
}

static enum rc ask_bandwidth(struct instrument *in, const struct question *q, struct reading *out, struct err *err) {
  (void)q;
  if (!in->memory) {
    const enum rc rc = peak_memory_create(&in->memory, in->ops, err);
    if (rc != RC_OK) return rc;
  }
  *out = (struct reading){.seconds = 1, .bytes = peak_bandwidth(in->memory)};
  return RC_OK;
}

static enum rc answer(struct instrument *in, char *line, struct reading *out, struct err *err) {
  static const struct {
    const char *verb;
    int words;
    enum rc (*ask)(struct instrument *in, const struct question *q, struct reading *out, struct err *err);
  } known[] = {{"gemm", 4, ask_gemm},
               {"gradient", 4, ask_gradient},
               {"attention", 4, ask_attention},
               {"attention_backward", 4, ask_attention},
               {"attention_step", 4, ask_attention},
               {"sample", 2, ask_sample},
               {"prefill", 3, ask_prefill},
               {"decode", 3, ask_decode},
               {"pack", 2, ask_pack},
               {"train", 4, ask_train},
               {"peak", 1, ask_peak},
               {"bandwidth", 1, ask_bandwidth}};
  struct question q = {0};
  char *rest = NULL;
  int words = 0;
  for (char *word = strtok_r(line, " \n", &rest); word && words < WORDS_MAX; word = strtok_r(NULL, " \n", &rest)) {
    q.words[words] = word;
    q.numbers[words++] = (int)strtol(word, NULL, 10);
  }
  for (size_t i = 0; words > 0 && i < sizeof known / sizeof known[0]; i++)
    if (strcmp(q.words[0], known[i].verb) == 0 && words == known[i].words) return known[i].ask(in, &q, out, err);
  return err_set(err, RC_INVALID, NULL, "a question of %d words that is not known: %s", words, words ? q.words[0] : "");
}

int main(int argc, char **argv) {
  static struct instrument in;
  struct err err = {0};
  char line[LINE_MAX_BYTES];
  const int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
  enum rc rc = pool_create(&in.pool, threads, &err);
  if (rc == RC_OK) rc = ops_cpu_create(&in.ops, FORMAT_BF16, argc > 2 ? argv[2] : NULL, in.pool, &err);
  if (rc == RC_OK) printf("%s\n", in.ops->name);
  while (rc == RC_OK && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
    struct reading r = {0};
    if (answer(&in, line, &r, &err) == RC_OK)
      printf("%.9g %.9g %.9g\n", r.seconds, r.operations, r.bytes);
    else
      printf("error %s\n", err.message);
  }
  if (rc != RC_OK) fprintf(stderr, "instrument: %s\n", err.message);
  forget(&in);
  peak_memory_free(in.memory);
  ops_free(in.ops);
  pool_destroy(in.pool);
  return rc == RC_OK ? 0 : 1;
}
