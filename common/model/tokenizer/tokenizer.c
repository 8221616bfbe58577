/* Loads tokenizers, encodes and decodes: the public functions.  tokenizer_state.h shows how the files work together.
 *
 * A tokenizer is constant after loading, so encode and decode run on any number of threads; all working memory is the
 * call's.  The generation-server encodes prompts and decodes answers, the coordinator encodes its dataset and decodes
 * for verifiers.  The previous hop of a rollout's text is the HTTP request or the dataset line, the next is the
 * prompt's ids in a lease. */
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer.h"
#include "common/model/tokenizer/tokenizer_state.h"

/* Readies the added tokens for matching, once the normalizer is known: those that are looked for in normalized text
 * are normalized too. */
static enum rc finish_added(struct tokenizer *t, struct err *err) {
  struct buf normal = BUF_INIT;
  enum rc rc = RC_OK;
  for (size_t i = 0; t->nfc && i < t->normalized.count && rc == RC_OK; i++) {
    struct added_token *token = &t->normalized.items[i];
    buf_clear(&normal);
    rc = text_normalize(&normal, token->content, token->len, err);
    if (rc != RC_OK) break;
    token->content = arena_strndup(&t->arena, normal.data, normal.len);
    token->len = normal.len;
    if (!token->content)
      rc = err_set(err, RC_NO_MEMORY, NULL, "an added token of %zu bytes was refused memory", token->len);
  }
  buf_free(&normal);
  if (rc == RC_OK) rc = added_set_make(&t->raw, err);
  if (rc == RC_OK) rc = added_set_make(&t->normalized, err);
  return rc;
}

enum rc tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *err) {
  *out = NULL;
  struct json *root = NULL;
  struct tokenizer *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "a tokenizer was refused %zu bytes", sizeof *t);
  enum rc rc = json_parse(&root, json, len, TOKENIZER_FILE_BYTES, err);
  if (rc == RC_OK && json_type_of(root) != JSON_OBJECT)
    rc = err_set(err, RC_INVALID, NULL, "expected tokenizer.json to be an object, got %s",
                 json_type_name(json_type_of(root)));
  if (rc == RC_OK) rc = tokenizer_read_model(t, root, err);
  if (rc == RC_OK) rc = tokenizer_read_steps(t, root, err);
  if (rc == RC_OK) rc = finish_added(t, err);
  json_free(root);
  if (rc != RC_OK) {
    tokenizer_free(t);
    return rc;
  }
  *out = t;
  return RC_OK;
}

enum rc tokenizer_load(struct tokenizer **out, const char *path, struct err *err) {
  *out = NULL;
  struct buf bytes = BUF_INIT;
  enum rc rc = file_read(&bytes, path, TOKENIZER_FILE_BYTES, err);
  if (rc == RC_OK) rc = tokenizer_parse(out, bytes.data, bytes.len, err);
  if (rc != RC_OK) err_in_file(err, path);
  buf_free(&bytes);
  return rc;
}

void tokenizer_free(struct tokenizer *t) {
  if (!t) return;
  for (int i = 0; i < t->split_count; i++) pcre2_code_free(t->splits[i].regex);
  free(t->raw.items);
  free(t->normalized.items);
  free(t->merges.slots);
  free(t->map.slots);
  free(t->tokens);
  arena_free(&t->arena);
  free(t);
}

int32_t tokenizer_vocabulary(const struct tokenizer *t) { return t->count; }

enum rc tokenizer_check_fits(const struct tokenizer *t, int32_t vocab_size, struct err *err) {
  if (t->count <= vocab_size) return RC_OK;
  return err_set(
      err, RC_INVALID, "vocab_size",
      "tokenizer.json has ids up to %d (\"%.64s\"), and the model's vocab_size is %d: they are not of one model",
      t->count - 1, t->tokens[t->count - 1].content, vocab_size);
}

int32_t tokenizer_id_of(const struct tokenizer *t, const char *content) {
  return token_map_find(&t->map, t->tokens, content, strlen(content));
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
  return id >= 0 && id < t->count && t->tokens[id].special;
}

enum rc tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool parse_special, size_t tokens_max,
                         struct token_ids *out, struct err *err) {
  if (len > TOKENIZER_TEXT_BYTES)
    return err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %d bytes, got %zu", TOKENIZER_TEXT_BYTES, len);
  enum rc rc = text_check(text, len, err);
  if (rc != RC_OK) return rc;
  struct encoder e = {
      .t = t, .out = out, .count_before = out->count, .tokens_max = tokens_max, .parse_special = parse_special};
  rc = text_match_begin(&e, err);
  if (rc == RC_OK) rc = text_encode(&e, text, len, err);
  if (rc != RC_OK) out->count = e.count_before;
  text_match_end(&e);
  buf_free(&e.normal);
  buf_free(&e.prefixed);
  buf_free(&e.spelled);
  free(e.symbols);
  free(e.heap);
  return rc;
}

enum rc tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                         struct buf *out, struct err *err) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= LIMIT_VOCABULARY)
      return err_set(err, RC_INVALID, NULL, "expected token ids from 0 to %d, got %d at place %zu",
                     LIMIT_VOCABULARY - 1, ids[i], i);
    if (ids[i] < t->count) bytes += t->tokens[ids[i]].bytes_len;
  }
  buf_reserve(out, bytes);
  if (bytes == 0 || out->failed) return buf_check(out, err);
  char *to = out->data + out->len;
  for (size_t i = 0; i < count; i++) {
    if (ids[i] >= t->count) continue; /* a row that only pads the model's embedding has no text */
    const struct token *token = &t->tokens[ids[i]];
    if (skip_special && token->special) continue;
    for (size_t at = 0; at < (size_t)token->bytes_len; at++) *to++ = token->bytes[at]; /* a few: no call for each */
  }
  *to = '\0';
  out->len = (size_t)(to - out->data);
  return RC_OK;
}
