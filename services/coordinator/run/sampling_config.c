/* Reads, writes and hands on a run's `sampling`. */
#include "services/coordinator/run/sampling_config.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"

/* Known from other engines, and not to be had in training: a log-probability would depend on what is not in it. */
static const char *const refused_names[] = {"presence_penalty",   "frequency_penalty", "repetition_penalty",
                                            "logit_bias",         "min_tokens",        "bad_words",
                                            "no_repeat_ngram_size", "typical_p",       "response_format"};
enum { REFUSED = sizeof refused_names / sizeof refused_names[0], OWN = 9 };

static enum rc refuse(const struct json *const *values, struct err *err) {
  for (int i = 0; i < REFUSED; i++)
    if (values[i])
      return err_set(err, RC_INVALID, refused_names[i],
                     "`%s` changes the logits that tokens are drawn from, and the trainer computes a token's "
                     "log-probability without it; top_k, top_p, min_p and stop are supported",
                     refused_names[i]);
  return RC_OK;
}

enum rc sampling_config_read(struct sampling_config *s, const struct json *value, struct arena *arena,
                             struct err *err) {
  const struct json *stop = NULL, *refused[REFUSED] = {NULL};
  struct json_field fields[OWN + REFUSED] = {
      {.name = "temperature", .kind = FIELD_F64, .target = &s->temperature, .min = 0, .max = 100},
      SAMPLING_CUT_FIELDS(&s->cut),
      {.name = "max_new_tokens", .kind = FIELD_I32, .target = &s->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "stop_token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &s->stop_token_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_STOP_TOKENS},
      {.name = "tokenizer_eos", .kind = FIELD_BOOL, .target = &s->tokenizer_eos},
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &s->ignore_eos},
      {.name = "stop", .kind = FIELD_VALUE, .target = &stop}};
  for (int i = 0; i < REFUSED; i++)
    fields[OWN + i] = (struct json_field){.name = refused_names[i], .kind = FIELD_VALUE, .target = &refused[i]};
  enum rc rc = json_fields(value, fields, OWN + REFUSED, UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = refuse(refused, err);
  if (rc == RC_OK) rc = stop_strings_read(&s->stop, stop, arena, err);
  if (rc == RC_OK && s->ignore_eos && s->stop_token_ids.count)
    rc = err_set(err, RC_INVALID, "ignore_eos", "expected `ignore_eos` or `stop_token_ids`, got both");
  const struct json *said = rc == RC_OK ? json_get(value, "tokenizer_eos") : NULL;
  s->says_tokenizer_eos = said && json_type_of(said) != JSON_NULL;
  if (s->ignore_eos || s->stop_token_ids.count) s->tokenizer_eos = s->says_tokenizer_eos = false;
  return rc;
}

void sampling_config_write(const struct sampling_config *s, struct json_writer *w) {
  json_kv_f64(w, "temperature", s->temperature);
  sampling_cut_write(&s->cut, w);
  json_kv_int(w, "max_new_tokens", s->max_new_tokens);
  json_kv_i32s(w, "stop_token_ids", s->stop_token_ids.items, s->stop_token_ids.count);
  if (s->tokenizer_eos || s->says_tokenizer_eos) json_kv_bool(w, "tokenizer_eos", s->tokenizer_eos);
  if (s->ignore_eos) json_kv_bool(w, "ignore_eos", true);
  stop_strings_write(&s->stop, w);
}

enum rc sampling_config_resolve(const struct sampling_config *s, struct training_config *training, struct err *err) {
  training->temperature = s->temperature > 0 ? s->temperature : 1.0;
  training->cut = (struct sampling_cut){0};
  if (strcmp(training->objective, "evaluate") == 0) return RC_OK;
  training->cut = s->cut;
  const enum rc rc = training_config_check_cut(training, err);
  if (rc != RC_OK) err_in_field(err, "sampling");
  return rc;
}
