/* Loads and checks JSONL datasets, and gives their order.  All text and ids of a dataset live in one arena; a bad line is
 * refused with its number, and then nothing is loaded. */
#include "services/coordinator/run/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/philox.h"
#include "common/json/json.h"

enum { MESSAGES_MAX = 256 };
#define DATASET_BYTES_MAX ((size_t)8 << 30)

struct dataset {
  struct arena arena;
  struct dataset_item *items;
  int count, cap;
};

struct loader {
  struct dataset *d;
  const struct tokenizer *tokenizer;
  const struct dataset_options *options;
  bool keeps; /* else only checks */
  struct token_ids scratch;
  int line;
};

static enum rc keep_ids(struct loader *l, const int32_t **out, int *count, struct err *err) {
  int32_t *kept = arena_alloc(&l->d->arena, l->scratch.count + 1, sizeof *kept);
  if (!kept) return err_set(err, RC_NO_MEMORY, NULL, "the ids of line %d were refused memory", l->line);
  memcpy(kept, l->scratch.items, l->scratch.count * sizeof *kept);
  *out = kept;
  *count = (int)l->scratch.count;
  return RC_OK;
}

/* `messages` -> the chat template's text; `prompt` -> itself. */
static enum rc read_prompt(struct loader *l, const struct json *object, struct dataset_item *item, struct err *err) {
  const struct json *prompt = json_get(object, "prompt"), *messages = json_get(object, "messages");
  if (!prompt == !messages)
    return err_set(err, RC_INVALID, "prompt", "expected exactly one of `prompt` and `messages`");
  if (prompt) {
    size_t len;
    if (json_type_of(prompt) != JSON_STRING)
      return err_set(err, RC_INVALID, "prompt", "expected a string, got %s", json_type_name(json_type_of(prompt)));
    const char *text = json_string(prompt, &len);
    item->prompt = arena_strndup(&l->d->arena, text, len);
    item->prompt_bytes = len;
    return item->prompt ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a prompt of %zu bytes was refused memory", len);
  }
  struct chat_message turns[MESSAGES_MAX];
  size_t n = json_length(messages);
  if (json_type_of(messages) != JSON_ARRAY || n == 0 || n > MESSAGES_MAX)
    return err_set(err, RC_INVALID, "messages", "expected an array of 1 to %d messages", MESSAGES_MAX);
  for (size_t i = 0; i < n; i++) {
    const struct json *role = json_get(json_at(messages, i), "role"),
                      *content = json_get(json_at(messages, i), "content");
    if (!json_word(role) || !content || json_type_of(content) != JSON_STRING) {
      return err_set(err, RC_INVALID, "messages", "message %zu: expected strings `role` and `content`", i);
    }
    turns[i].role = json_word(role);
    turns[i].content = json_string(content, &turns[i].content_len);
  }
  if (!l->tokenizer) return RC_OK;
  struct buf text = BUF_INIT;
  enum rc rc = tokenizer_chat_text(l->tokenizer, turns, n, &text, err);
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK && !(item->prompt = arena_strndup(&l->d->arena, text.data, text.len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a prompt of %zu bytes was refused memory", text.len);
  item->prompt_bytes = text.len;
  buf_free(&text);
  return rc;
}

static enum rc read_answer(struct loader *l, const struct json *object, struct dataset_item *item, struct err *err) {
  const struct json *answer = json_get(object, "answer");
  char number[64];
  const char *text = "";
  if (!answer) {
    if (l->options->need_answer)
      return err_set(err, RC_INVALID, "answer", "expected a string or a number, the key is missing");
  } else if (json_type_of(answer) == JSON_STRING) {
    text = json_word(answer);
    if (!text) /* verifiers compare C strings */
      return err_set(err, RC_INVALID, "answer", "expected a string without NUL characters, got one that has some");
  } else if (json_type_of(answer) == JSON_INT) {
    snprintf(number, sizeof number, "%lld", (long long)json_int(answer));
    text = number;
  } else if (json_type_of(answer) == JSON_REAL) {
    snprintf(number, sizeof number, "%.17g", json_number(answer));
    text = number;
  } else {
    return err_set(err, RC_INVALID, "answer", "expected a string or a number, got %s",
                   json_type_name(json_type_of(answer)));
  }
  item->answer = arena_strdup(&l->d->arena, text);
  return item->answer ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "an answer was refused memory");
}

static enum rc read_new_tokens(const struct loader *l, const struct json *object, struct dataset_item *item,
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

static enum rc read_extra(struct loader *l, const struct json *object, struct dataset_item *item, struct err *err) {
  static const char *const known[] = {"prompt", "messages", "answer", "completion"};
  struct buf text = BUF_INIT;
  struct json_writer w;
  const char *key;
  const struct json *value;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  for (void *cursor = NULL; json_next(object, &cursor, &key, &value);) {
    bool ours = item->max_new_tokens && strcmp(key, "max_new_tokens") == 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) ours = ours || strcmp(key, known[i]) == 0;
    if (ours) continue;
    json_key(&w, key);
    json_write_value(&w, value);
  }
  json_object_end(&w);
  enum rc rc = buf_check(&text, err);
  if (rc == RC_OK && !(item->extra = arena_strndup(&l->d->arena, text.data, text.len)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "the keys of line %d were refused memory", l->line);
  buf_free(&text);
  return rc;
}

/* A `prompt` gets the tokenizer's first token; `messages` have what the chat template writes. */
static enum rc encode_prompt(struct loader *l, const struct json *object, struct dataset_item *item, struct err *err) {
  if (!l->tokenizer) return RC_OK;
  const size_t most = (size_t)l->options->prompt_tokens_max;
  l->scratch.count = 0;
  enum rc rc = json_get(object, "messages")
                   ? tokenizer_encode(l->tokenizer, item->prompt, item->prompt_bytes, true, most, &l->scratch, err)
                   : tokenizer_encode_prompt(l->tokenizer, item->prompt, item->prompt_bytes, most, &l->scratch, err);
  if (rc == RC_OK && l->scratch.count == 0)
    rc = err_set(err, RC_INVALID, "prompt", "expected at least one token, the prompt is empty");
  if (rc == RC_OK) rc = keep_ids(l, &item->prompt_ids, &item->prompt_length, err);
  if (rc != RC_OK && err && !err->field[0]) err_in_field(err, "prompt");
  return rc;
}

static enum rc encode_completion(struct loader *l, const struct json *object, struct dataset_item *item,
                                 struct err *err) {
  const struct json *completion = json_get(object, "completion");
  if (!completion)
    return l->options->need_completion ? err_set(err, RC_INVALID, "completion", "expected a string, the key is missing")
                                       : RC_OK;
  if (json_type_of(completion) != JSON_STRING)
    return err_set(err, RC_INVALID, "completion", "expected a string, got %s",
                   json_type_name(json_type_of(completion)));
  if (!l->options->need_completion || !l->tokenizer) return RC_OK;
  size_t len;
  const char *text = json_string(completion, &len);
  l->scratch.count = 0;
  enum rc rc =
      tokenizer_encode(l->tokenizer, text, len, false, (size_t)l->options->completion_tokens_max, &l->scratch, err);
  if (rc == RC_OK) rc = keep_ids(l, &item->completion_ids, &item->completion_length, err); /* one place to spare */
  if (rc == RC_OK && l->options->eos >= 0)
    ((int32_t *)item->completion_ids)[item->completion_length++] = l->options->eos;
  if (rc != RC_OK && err && !err->field[0]) err_in_field(err, "completion");
  return rc;
}

static enum rc check_length(const struct loader *l, const struct dataset_item *item, struct err *err) {
  const int most = l->options->sequence_tokens_max, length = item->prompt_length + item->completion_length;
  if (!most || !l->options->need_completion || length <= most) return RC_OK;
  return err_set(err, RC_TOO_LARGE, "completion", "expected at most %d tokens with the prompt, got %d", most, length);
}

static enum rc add_item(struct loader *l, const struct dataset_item *item, struct err *err) {
  struct dataset *d = l->d;
  if (!l->keeps) {
    arena_free(&d->arena);
    d->count++;
    return RC_OK;
  }
  if (d->count == d->cap) {
    int cap = d->cap ? d->cap * 2 : 1024;
    struct dataset_item *grown = realloc(d->items, (size_t)cap * sizeof *grown);
    if (!grown) return err_set(err, RC_NO_MEMORY, NULL, "a dataset of %d lines was refused memory", cap);
    d->items = grown;
    d->cap = cap;
  }
  d->items[d->count++] = *item;
  return RC_OK;
}

static enum rc load_line(struct loader *l, const char *text, size_t len, struct err *err) {
  struct json *object = NULL;
  struct dataset_item item = {.line = l->line, .answer = "", .extra = "{}"};
  if (len > LIMIT_DATASET_LINE_BYTES)
    return err_set(err, RC_TOO_LARGE, NULL, "expected at most %u bytes, got %zu", LIMIT_DATASET_LINE_BYTES, len);
  enum rc rc = json_parse(&object, text, len, LIMIT_DATASET_LINE_BYTES, err);
  if (rc == RC_OK && json_type_of(object) != JSON_OBJECT)
    rc = err_set(err, RC_INVALID, NULL, "expected an object, got %s", json_type_name(json_type_of(object)));
  if (rc == RC_OK) rc = read_prompt(l, object, &item, err);
  if (rc == RC_OK) rc = read_answer(l, object, &item, err);
  if (rc == RC_OK) rc = read_new_tokens(l, object, &item, err);
  if (rc == RC_OK) rc = read_extra(l, object, &item, err);
  if (rc == RC_OK && l->options->verifier) rc = reward_line_check(l->options->verifier, item.answer, item.extra, err);
  if (rc == RC_OK) rc = encode_prompt(l, object, &item, err);
  if (rc == RC_OK) rc = encode_completion(l, object, &item, err);
  if (rc == RC_OK) rc = check_length(l, &item, err);
  if (rc == RC_OK) rc = add_item(l, &item, err);
  json_free(object);
  return rc;
}

static bool is_blank(const char *text, size_t len) { return strspn(text, " \t\r") >= len; }

static enum rc load_lines(struct loader *l, const struct buf *file, struct err *err) {
  const char *name = l->options->name, *field = l->options->field;
  for (size_t at = 0; at < file->len;) {
    const char *begin = file->data + at, *newline = memchr(begin, '\n', file->len - at);
    size_t len = newline ? (size_t)(newline - begin) : file->len - at;
    at += len + 1;
    l->line++;
    if (is_blank(begin, len)) continue;
    if (l->d->count >= LIMIT_DATASET_LINES)
      return err_set(err, RC_TOO_LARGE, field, "%s: expected at most %d lines", name, LIMIT_DATASET_LINES);
    struct err inner = {0};
    enum rc rc = load_line(l, begin, len, &inner);
    if (rc != RC_OK) {
      return err_set(err, rc, field, "%s line %d: %s%s%s", name, l->line, inner.field, inner.field[0] ? ": " : "",
                     inner.message);
    }
  }
  if (l->d->count == 0)
    return err_set(err, RC_INVALID, field, "%s: expected at least one line, the file is empty", name);
  return RC_OK;
}

static enum rc read_file(struct loader *l, const char *path, struct err *err) {
  struct buf file = BUF_INIT;
  enum rc rc = file_read(&file, path, DATASET_BYTES_MAX, err);
  if (rc != RC_OK && err && !err->field[0]) err_in_field(err, l->options->field);
  if (rc == RC_OK) rc = load_lines(l, &file, err);
  buf_free(&file);
  token_ids_free(&l->scratch);
  return rc;
}

enum rc dataset_load(struct dataset **out, const char *path, const struct tokenizer *t,
                     const struct dataset_options *options, struct err *err) {
  struct dataset *d = calloc(1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "a dataset was refused memory");
  struct loader l = {.d = d, .tokenizer = t, .options = options, .keeps = true};
  const enum rc rc = read_file(&l, path, err);
  if (rc != RC_OK)
    dataset_free(d);
  else
    *out = d;
  return rc;
}

enum rc dataset_check(const char *path, const struct tokenizer *t, const struct dataset_options *options,
                      struct err *err) {
  struct dataset d = {0};
  struct loader l = {.d = &d, .tokenizer = t, .options = options};
  const enum rc rc = read_file(&l, path, err);
  arena_free(&d.arena);
  return rc;
}

void dataset_free(struct dataset *d) {
  if (!d) return;
  arena_free(&d->arena);
  free(d->items);
  free(d);
}

int dataset_count(const struct dataset *d) { return d->count; }

const struct dataset_item *dataset_at(const struct dataset *d, int index) {
  assert(index >= 0 && index < d->count);
  return &d->items[index];
}

int dataset_index(const struct dataset *d, struct dataset_order *cache, bool shuffle, uint64_t seed, int64_t ordinal) {
  int64_t epoch = ordinal / d->count;
  int within = (int)(ordinal % d->count);
  if (!shuffle) return within;
  if (!cache->items) {
    cache->items = calloc((size_t)d->count, sizeof *cache->items);
    cache->epoch = -1;
    assert(cache->items); /* four bytes a line of a dataset that is in memory already */
  }
  if (cache->epoch != (int)epoch) {
    for (int i = 0; i < d->count; i++) cache->items[i] = (uint32_t)i;
    rng_shuffle(cache->items, (uint32_t)d->count, seed, (uint32_t)epoch);
    cache->epoch = (int)epoch;
  }
  return (int)cache->items[within];
}

void dataset_order_free(struct dataset_order *cache) {
  free(cache->items);
  *cache = (struct dataset_order){0};
}
