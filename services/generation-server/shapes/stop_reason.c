/* Tells what ended a choice. */
#include "services/generation-server/shapes/stop_reason.h"

void stop_text_write(const struct choice *c, struct json_writer *w) {
  int longest = -1;
  for (int i = 0; i < c->stops->count; i++)
    if (c->matching.matched[i] == c->stops->items[i].len &&
        (longest < 0 || c->stops->items[i].len > c->stops->items[longest].len))
      longest = i;
  if (longest >= 0)
    json_write_string_len(w, c->stops->items[longest].text, c->stops->items[longest].len);
  else
    json_write_null(w);
}

static bool is_models_end(const struct generate_call *call, const struct choice *c, int32_t token) {
  const struct model_config *config = &call->loaded->files.config;
  for (int i = 0; i < config->eos_count && !c->ignores_eos; i++)
    if (config->eos[i] == token) return true;
  return false;
}

/* Texts do not show special tokens, so a stop text that names one was looked for by its id. */
static const char *named_by(const struct generate_call *call, const struct choice *c, int32_t token) {
  const struct tokenizer *t = call->loaded->files.tokenizer;
  for (int i = 0; i < c->stops->count && t && tokenizer_is_special(t, token); i++)
    if (tokenizer_id_of(t, c->stops->items[i].text) == token) return c->stops->items[i].text;
  return NULL;
}

void stop_reason_write(const struct generate_call *call, const struct choice *c, bool last, struct json_writer *w) {
  json_key(w, "stop_reason");
  if (!last || choice_finish(c) != FINISH_STOP) {
    json_write_null(w);
    return;
  }
  const int32_t token = c->sample->tokens[c->scanned - 1];
  if (!sample_stops_at(c->sample->job, token)) {
    stop_text_write(c, w);
    return;
  }
  const char *text = named_by(call, c, token);
  if (is_models_end(call, c, token))
    json_write_null(w);
  else if (text)
    json_write_string(w, text);
  else
    json_write_int(w, token);
}
