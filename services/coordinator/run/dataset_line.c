/* Reads one line of a dataset: finds its members by the reading's paths, checks them, and encodes prompt and
 * completion. */
#include "services/coordinator/run/dataset_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/run/key_path.h"
#include "services/coordinator/run/prompt.h"

enum { LISTED_MAX = 120 };

/* The first of the paths that leads to something; NULL: none does. */
static const struct json *find_first(const struct json *object, const struct key_paths *paths, const char **name) {
  for (int i = 0; i < paths->count; i++) {
    const struct json *v = key_path_find(object, paths->items[i]);
    if (v) {
      *name = paths->items[i];
      return v;
    }
  }
  *name = paths->items[0];
  return NULL;
}

/* "`a`, `b`" of the paths, or of the line's own keys. */
static void list_add(char *list, const char *name) {
  const size_t at = strlen(list);
  snprintf(list + at, LISTED_MAX - at, "%s`%.40s`", at ? ", " : "", name);
}

/* What the line would have had to hold, what it holds, and whether that is one of the known forms. */
static enum rc fault_missing(const struct json *object, const struct key_paths *paths, const char *wanted,
                             const struct reading *r, struct err *err) {
  char has[LISTED_MAX] = "";
  const char *key, *suggested = reading_suggest(object);
  const struct json *value;
  for (void *cursor = NULL; json_next(object, &cursor, &key, &value);) list_add(has, key);
  const bool asked = paths == &r->prompt || paths == &r->answer; /* what a preset is known by */
  const bool other = asked && suggested && strcmp(suggested, r->preset) != 0;
  return err_set(err, RC_INVALID, paths->items[0], "expected %s, the key is missing; the line has %s%s%s%s%s", wanted,
                 has[0] ? has : "no keys", has[0] ? ": say in `keys` which of them it is" : "",
                 other ? ", or preset '" : "", other ? suggested : "", other ? "' reads such lines" : "");
}

static enum rc keep_ids(struct line_context *l, const int32_t **out, int *count, struct err *err) {
  int32_t *kept = arena_alloc(l->arena, l->scratch.count + 1, sizeof *kept);
  if (!kept) return err_set(err, RC_NO_MEMORY, NULL, "%zu ids were refused memory", l->scratch.count);
  memcpy(kept, l->scratch.items, l->scratch.count * sizeof *kept);
  *out = kept;
  *count = (int)l->scratch.count;
  return RC_OK;
}

/* ---- the prompt ---- */

/* Exactly one of the paths: a line with several would be read in one way by some people and in another by others. */
static enum rc find_prompt(const struct line_context *l, const struct json *object, const struct json **out,
                           const char **name, struct err *err) {
  const struct key_paths *paths = &l->reading->prompt;
  char wanted[LISTED_MAX] = "", text[LISTED_MAX + 32];
  int found = 0;
  for (int i = 0; i < paths->count; i++) {
    const struct json *v = key_path_find(object, paths->items[i]);
    if (v) *out = v, *name = paths->items[i], found++;
    list_add(wanted, paths->items[i]);
  }
  if (found == 1) return RC_OK;
  snprintf(text, sizeof text, "%s%s", paths->count > 1 ? "exactly one of " : "", wanted);
  if (found == 0) return fault_missing(object, paths, text, l->reading, err);
  return err_set(err, RC_INVALID, paths->items[0], "expected %s, got %d of them", text, found);
}

static enum rc encode_by_template(struct line_context *l, const struct json *messages, size_t tokens_max,
                                  struct buf *text, struct err *err) {
  const struct chat_request request = {.messages = messages, .generation_prompt = true};
  return chat_encode(l->options->chat, &request, tokens_max, &l->scratch, text, NULL, err);
}

/* The one place where messages become tokens. */
static enum rc encode_messages(struct line_context *l, const struct json *messages, size_t tokens_max, struct buf *text,
                               struct err *err) {
  struct chat_message turns[PROMPT_MESSAGES_MAX];
  const size_t n = json_length(messages);
  if (l->options->no_chat)
    return err_set(err, RC_INVALID, NULL, "the model's chat template cannot be used: %.400s", l->options->no_chat);
  if (l->options->chat && chat_has_template(l->options->chat))
    return encode_by_template(l, messages, tokens_max, text, err);
  l->used_chatml = true;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < n && rc == RC_OK; i++) {
    struct buf content = BUF_INIT;
    turns[i].role = json_word(json_get(json_at(messages, i), "role"));
    rc = content_text(json_get(json_at(messages, i), "content"), &content, err);
    if (rc == RC_OK) rc = buf_check(&content, err);
    turns[i].content_len = content.len;
    if (rc == RC_OK && !(turns[i].content = arena_strndup(l->arena, content.data ? content.data : "", content.len)))
      rc = err_set(err, RC_NO_MEMORY, NULL, "a message of %zu bytes was refused memory", content.len);
    buf_free(&content);
  }
  if (rc == RC_OK) rc = tokenizer_chat_text(l->tokenizer, turns, n, text, err);
  if (rc == RC_OK) rc = buf_check(text, err);
  return rc == RC_OK ? tokenizer_encode(l->tokenizer, text->data, text->len, true, tokens_max, &l->scratch, err) : rc;
}

/* A text gets the tokenizer's first token; messages have what the chat template writes. */
static enum rc encode_prompt(struct line_context *l, const struct prompt *p, struct dataset_item *item, bool *left_out,
                             struct err *err) {
  const int limit = l->reading->prompt_tokens_max, room = l->options->prompt_tokens_max;
  const size_t most = (size_t)(limit && limit < room ? limit : room);
  struct buf text = BUF_INIT;
  enum rc rc;
  item->prompt = p->text;
  item->prompt_bytes = p->text_len;
  if (!l->tokenizer) return RC_OK;
  l->scratch.count = 0;
  if (p->text)
    rc = tokenizer_encode_prompt(l->tokenizer, p->text, p->text_len, most, &l->scratch, err);
  else
    rc = encode_messages(l, p->messages, most, &text, err);
  if (rc == RC_OK && !p->text) {
    item->prompt_bytes = text.len;
    if (!(item->prompt = arena_strndup(l->arena, text.data, text.len)))
      rc = err_set(err, RC_NO_MEMORY, NULL, "a prompt of %zu bytes was refused memory", text.len);
  }
  *left_out = rc == RC_TOO_LARGE && l->reading->skips_long;
  buf_free(&text);
  if (rc == RC_OK && l->scratch.count == 0)
    rc = err_set(err, RC_INVALID, "prompt", "expected at least one token, the prompt is empty");
  if (rc == RC_OK) rc = keep_ids(l, &item->prompt_ids, &item->prompt_length, err);
  if (rc != RC_OK && err && !err->field[0]) err_in_field(err, "prompt");
  return *left_out ? RC_OK : rc;
}

/* ---- the answer, and what else verifiers read ---- */

static enum rc extract(const struct line_context *l, const char *name, const char **text, size_t *len,
                       struct err *err) {
  const char *whole = *text;
  if (l->reading->extract == EXTRACT_NONE || answer_extract(l->reading->extract, whole, text, len)) return RC_OK;
  return err_set(err, RC_INVALID, name, "expected an answer %s, got '%.60s'",
                 l->reading->extract == EXTRACT_HASHES ? "after ####" : "in \\boxed{}", whole);
}

/* The shortest decimal that reads back as the number: 0.1, which 17 digits would make another answer of. */
static enum rc number_text(struct buf *out, const struct json *number, struct err *err) {
  struct json_writer w;
  json_writer_init(&w, out);
  if (json_type_of(number) == JSON_INT)
    json_write_int(&w, json_int(number));
  else
    json_write_f64(&w, json_number(number));
  buf_append(out, "", 1);
  return buf_check(out, err);
}

static enum rc read_answer(struct line_context *l, const struct json *object, struct dataset_item *item,
                           struct err *err) {
  const char *name;
  const struct json *answer = find_first(object, &l->reading->answer, &name);
  struct buf number = BUF_INIT;
  const char *text = "";
  enum rc rc = RC_OK;
  if (!answer) {
    if (l->options->need_answer)
      return fault_missing(object, &l->reading->answer, "a string or a number", l->reading, err);
  } else if (json_type_of(answer) == JSON_STRING) {
    text = json_word(answer);
    if (!text) /* verifiers compare C strings */
      return err_set(err, RC_INVALID, name, "expected a string without NUL characters, got one that has some");
  } else if (json_type_of(answer) == JSON_INT || json_type_of(answer) == JSON_REAL) {
    rc = number_text(&number, answer, err);
    text = rc == RC_OK ? number.data : "";
  } else {
    return err_set(err, RC_INVALID, name, "expected a string or a number, got %s",
                   json_type_name(json_type_of(answer)));
  }
  size_t len = strlen(text);
  if (answer && json_type_of(answer) == JSON_STRING && !l->options->need_completion)
    rc = extract(l, name, &text, &len, err);
  if (rc == RC_OK && !(item->answer = arena_strndup(l->arena, text, len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
  buf_free(&number);
  return rc;
}

static enum rc read_new_tokens(const struct line_context *l, const struct json *object, struct dataset_item *item,
                               struct err *err) {
  const int most = l->options->new_tokens_max;
  const struct json *given = most ? json_get(object, "max_new_tokens") : NULL;
  int64_t tokens = 0;
  if (!given) return RC_OK;
  if (!json_as_int(given, &tokens))
    return err_set(err, RC_INVALID, "max_new_tokens", "expected an integer from 1 to %d, got %s", most,
                   json_type_name(json_type_of(given)));
  if (tokens < 1 || tokens > most)
    return err_set(err, RC_INVALID, "max_new_tokens",
                   "expected 1 to the run's sampling.max_new_tokens (%d), got %" PRId64, most, tokens);
  item->max_new_tokens = (int)tokens;
  return RC_OK;
}

static bool names_key(const struct key_paths *paths, const char *key) {
  for (int i = 0; i < paths->count; i++)
    if (strcmp(paths->items[i], key) == 0) return true;
  return false;
}

/* A member of its own in the item, so not among the others. */
static bool is_taken(const struct line_context *l, const struct dataset_item *item, const char *key) {
  const struct reading *r = l->reading;
  if (item->max_new_tokens && strcmp(key, "max_new_tokens") == 0) return true;
  for (int i = 0; i < r->extra_count; i++)
    if (strcmp(r->extra[i].name, key) == 0) return true;
  return names_key(&r->prompt, key) || names_key(&r->answer, key) || names_key(&r->completion, key);
}

static enum rc read_extra(struct line_context *l, const struct json *object, struct dataset_item *item,
                          struct err *err) {
  const struct reading *r = l->reading;
  struct buf text = BUF_INIT;
  struct json_writer w;
  const char *key;
  const struct json *value;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  for (int i = 0; i < r->extra_count; i++) {
    if (!(value = key_path_find(object, r->extra[i].path))) continue;
    json_key(&w, r->extra[i].name);
    json_write_value(&w, value);
  }
  for (void *cursor = NULL; json_next(object, &cursor, &key, &value);) {
    if (is_taken(l, item, key)) continue;
    json_key(&w, key);
    json_write_value(&w, value);
  }
  json_object_end(&w);
  enum rc rc = buf_check(&text, err);
  if (rc == RC_OK && !(item->extra = arena_strndup(l->arena, text.data, text.len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a line's other keys were refused memory");
  buf_free(&text);
  return rc;
}

/* ---- the completion ---- */

/* A string, or one message of the assistant's, as TRL writes it. */
static const struct json *completion_content(const struct json *completion) {
  const struct json *only =
      json_type_of(completion) == JSON_ARRAY && json_length(completion) == 1 ? json_at(completion, 0) : NULL;
  const struct json *content = only ? json_get(only, "content") : NULL;
  return content ? content : completion;
}

/* split: the assistant's last message where the prompt's messages end with one. */
static enum rc encode_completion(struct line_context *l, const struct json *object, const struct json *split,
                                 struct dataset_item *item, struct err *err) {
  const char *name;
  const struct json *completion = find_first(object, &l->reading->completion, &name);
  struct buf text = BUF_INIT;
  struct err inner = {0};
  if (!completion) completion = split;
  if (!completion)
    return l->options->need_completion
               ? fault_missing(object, &l->reading->completion, "a string", l->reading, err)
               : RC_OK;
  if (!l->options->need_completion && json_type_of(completion) != JSON_STRING && !l->reading->named)
    return err_set(err, RC_INVALID, name, "expected a string, got %s", json_type_name(json_type_of(completion)));
  if (!l->options->need_completion) return RC_OK;
  enum rc rc = content_text(completion_content(completion), &text, &inner);
  if (rc != RC_OK)
    rc = err_set(err, rc, name, "expected a string or one message, got %s: %s",
                 json_type_name(json_type_of(completion)), inner.message);
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK && l->tokenizer) {
    l->scratch.count = 0;
    rc = tokenizer_encode(l->tokenizer, text.data ? text.data : "", text.len, false,
                          (size_t)l->options->completion_tokens_max, &l->scratch, err);
    if (rc == RC_OK) rc = keep_ids(l, &item->completion_ids, &item->completion_length, err); /* one place to spare */
    if (rc == RC_OK && l->options->eos >= 0)
      ((int32_t *)item->completion_ids)[item->completion_length++] = l->options->eos;
  }
  buf_free(&text);
  if (rc != RC_OK && err && !err->field[0]) err_in_field(err, name);
  return rc;
}

static enum rc check_length(const struct line_context *l, const struct dataset_item *item, struct err *err) {
  const int most = l->options->sequence_tokens_max, length = item->prompt_length + item->completion_length;
  if (!most || !l->options->need_completion || length <= most) return RC_OK;
  return err_set(err, RC_TOO_LARGE, "completion", "expected at most %d tokens with the prompt, got %d", most, length);
}

enum rc dataset_line_read(struct line_context *l, const struct json *object, struct dataset_item *item, bool *left_out,
                          struct err *err) {
  struct prompt prompt = {0};
  const struct json *value = NULL;
  const char *name = NULL;
  *left_out = false;
  if (json_type_of(object) != JSON_OBJECT)
    return err_set(err, RC_INVALID, NULL, "expected an object, got %s", json_type_name(json_type_of(object)));
  enum rc rc = find_prompt(l, object, &value, &name, err);
  if (rc == RC_OK) rc = prompt_make(&prompt, value, name, l->reading, l->options->need_completion, l->arena, err);
  if (rc == RC_OK) rc = read_answer(l, object, item, err);
  if (rc == RC_OK) rc = read_new_tokens(l, object, item, err);
  if (rc == RC_OK) rc = read_extra(l, object, item, err);
  if (rc == RC_OK && l->options->verifier) rc = reward_line_check(l->options->verifier, item->answer, item->extra, err);
  if (rc == RC_OK) rc = encode_prompt(l, &prompt, item, left_out, err);
  if (rc == RC_OK && !*left_out) rc = encode_completion(l, object, prompt.completion, item, err);
  if (rc == RC_OK && !*left_out) rc = check_length(l, item, err);
  prompt_free(&prompt);
  return rc;
}
