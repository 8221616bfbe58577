/* Remembers how long prompts' samples were: see prompt_lengths.h. */
#include "services/coordinator/pool/prompt_lengths.h"

#include <stdlib.h>

#include "services/coordinator/decide/ordinals.h"

enum rc prompt_lengths_begin(struct prompt_lengths *p, int64_t run, int32_t prompts, struct err *err) {
  prompt_lengths_free(p);
  float *const tokens = calloc((size_t)prompts, sizeof *tokens);
  if (!tokens) return err_set(err, RC_NO_MEMORY, NULL, "memory for the lengths of %d prompts was refused", prompts);
  *p = (struct prompt_lengths){.run = run, .prompts = prompts, .tokens = tokens};
  return RC_OK;
}

void prompt_lengths_free(struct prompt_lengths *p) {
  free(p->tokens);
  *p = (struct prompt_lengths){0};
}

static bool is_known(const struct prompt_lengths *p, int64_t run, int64_t prompt) {
  return p->run == run && prompt >= 0 && prompt < p->prompts && p->tokens[prompt] > 0;
}

void prompt_lengths_note(struct prompt_lengths *p, int64_t run, int64_t prompt, double tokens, int64_t now_ms) {
  if (p->run != run || prompt < 0 || prompt >= p->prompts || !(tokens > 0)) return;
  if (is_known(p, run, prompt)) rate_note(&p->drift, tokens, (double)p->tokens[prompt], now_ms);
  p->tokens[prompt] = (float)tokens;
}

bool prompt_lengths_expect(const struct prompt_lengths *p, int64_t run, const int32_t *prompts, int32_t count,
                           float *expected) {
  const double drift = rate_value(&p->drift);
  bool any = false;
  for (int32_t i = 0; i < count; i++) {
    const bool known = is_known(p, run, prompts[i]);
    expected[i] = known ? p->tokens[prompts[i]] * (drift > 0 ? (float)drift : 1) : 0;
    any = any || known;
  }
  return any;
}

/* From the newest group back, so what is known already is newer. */
static enum rc read_ledger(struct prompt_lengths *p, struct store *store, int64_t now_ms, struct err *err) {
  struct rows q;
  bool row;
  const int64_t most = p->prompts < PROMPT_LENGTHS_READ_MAX ? p->prompts : PROMPT_LENGTHS_READ_MAX;
  enum rc rc =
      store_query(store, &q, err,
                  "SELECT dataset_index, done_tokens, done_samples FROM groups WHERE run = ?1 AND ordinal < ?2 AND "
                  "samples_open = 0 AND done_samples = sample_count ORDER BY round DESC, ordinal DESC LIMIT ?3",
                  BINDS(b_int(p->run), b_int(ORDINAL_EVALUATION_FIRST), b_int(most)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t prompt = rows_int(&q, 0);
    if (!is_known(p, p->run, prompt))
      prompt_lengths_note(p, p->run, prompt, (double)rows_int(&q, 1) / (double)rows_int(&q, 2), now_ms);
  }
  rows_end(&q);
  return rc;
}

enum rc prompt_lengths_open(struct prompt_lengths *p, struct store *store, int64_t run, int32_t prompts, int64_t now_ms,
                            struct err *err) {
  if (p->run == run) return RC_OK;
  const enum rc rc = prompt_lengths_begin(p, run, prompts, err);
  return rc == RC_OK ? read_ledger(p, store, now_ms, err) : rc;
}
