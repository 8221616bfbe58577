/* Loads tokenizers and encodes: the public functions; decode.c has the other direction.  tokenizer_state.h shows how
 * the files work together.
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

/* Readies the added tokens for matching: those that are looked for in normalized text are normalized, too. */
static enum rc finish_added(struct tokenizer *t, struct err *err) {
  struct buf work[2] = {BUF_INIT, BUF_INIT};
  struct matcher m = {0};
  enum rc rc = matcher_begin(&m, err);
  for (size_t i = 0; t->normal_count > 0 && i < t->normalized.count && rc == RC_OK; i++) {
    struct added_token *token = &t->normalized.items[i];
    struct piece p = {.text = token->content, .len = token->len};
    rc = normalize_piece(&p, t, work, &m, err);
    if (rc != RC_OK) break;
    token->content = arena_strndup(&t->arena, p.text, p.len);
    token->len = p.len;
    if (!token->content)
      rc = err_set(err, RC_NO_MEMORY, NULL, "an added token of %zu bytes was refused memory", token->len);
  }
  buf_free(&work[0]);
  buf_free(&work[1]);
  matcher_end(&m);
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
  if (rc == RC_OK) rc = tokenizer_read_steps(t, root, err);
  if (rc == RC_OK) rc = tokenizer_read_model(t, root, err);
  if (rc == RC_OK) rc = tokenizer_read_output(t, root, err);
  if (rc == RC_OK) rc = decoder_fill_bytes(t, err);
  if (rc == RC_OK) rc = finish_added(t, err);
  json_free(root);
  if (rc != RC_OK) {
    tokenizer_free(t);
    return rc;
  }
  t->rows = t->count;
  *out = t;
  return RC_OK;
}

enum rc tokenizer_load(struct tokenizer **out, const char *path, struct err *err) {
  *out = NULL;
  struct buf bytes = BUF_INIT;
  enum rc rc = file_read(&bytes, path, TOKENIZER_FILE_BYTES, err);
  if (rc == RC_OK) rc = file_refuse_pointer(bytes.data, bytes.len, err);
  if (rc == RC_OK) rc = tokenizer_parse(out, bytes.data, bytes.len, err);
  if (rc != RC_OK) err_in_file(err, path);
  buf_free(&bytes);
  return rc;
}

enum rc tokenizer_load_folder(struct tokenizer **out, const char *dir, struct err *err) {
  static const char *const others[] = {"tokenizer.model", "tekken.json",  "spiece.model", "tiktoken.model",
                                       "qwen.tiktoken",   "vocab.json", "merges.txt",   "vocab.txt"};
  char path[LIMIT_PATH_MAX];
  *out = NULL;
  enum rc rc = path_format(path, err, "%s/tokenizer.json", dir);
  if (rc != RC_OK) return rc;
  if (file_exists(path)) return tokenizer_load(out, path, err);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    rc = path_format(path, err, "%s/%s", dir, others[i]);
    if (rc != RC_OK) return rc;
    if (file_exists(path))
      return err_set(err, RC_UNSUPPORTED, "tokenizer",
                     "expected a tokenizer.json in %s, there is only %s: transformers writes one with "
                     "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
                     dir, others[i]);
  }
  return RC_OK;
}

void tokenizer_free(struct tokenizer *t) {
  if (!t) return;
  for (int i = 0; i < t->normal_count; i++) pcre2_code_free(t->normal[i].regex);
  for (int i = 0; i < t->split_count; i++) pcre2_code_free(t->splits[i].regex);
  for (int i = 0; i < t->decoder.count; i++) pcre2_code_free(t->decoder.steps[i].regex);
  free(t->trie.nodes);
  free(t->scores);
  free(t->raw.items);
  free(t->normalized.items);
  free(t->merges.slots);
  free(t->map.slots);
  free(t->tokens);
  arena_free(&t->arena);
  free(t);
}

int32_t tokenizer_vocabulary(const struct tokenizer *t) { return t->count; }

/* What a prompt begins or ends with. */
static bool is_affix(const struct tokenizer *t, int32_t id) {
  for (size_t i = 0; i < t->before_count; i++)
    if (t->before[i] == id) return true;
  for (size_t i = 0; i < t->after_count; i++)
    if (t->after[i] == id) return true;
  return false;
}

enum rc tokenizer_fit(struct tokenizer *t, int32_t vocab_size, struct err *err) {
  for (int32_t id = t->count - 1; id >= vocab_size; id--) {
    const struct token *token = &t->tokens[id];
    if (!token->content || (token->added && !is_affix(t, id))) continue;
    return err_set(err, RC_INVALID, "vocab_size",
                   "tokenizer.json has the token \"%.64s\" with id %d, and the model's vocab_size is %d: they do not "
                   "belong to one model",
                   token->content, id, vocab_size);
  }
  t->rows = vocab_size < t->count ? vocab_size : t->count;
  return RC_OK;
}

int32_t tokenizer_id_of(const struct tokenizer *t, const char *content) {
  const int32_t id = token_map_find(&t->map, t->tokens, content, strlen(content));
  return id < t->rows ? id : -1;
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
  rc = matcher_begin(&e.matcher, err);
  if (rc == RC_OK) rc = text_encode(&e, text, len, err);
  if (rc != RC_OK) out->count = e.count_before;
  matcher_end(&e.matcher);
  for (int i = 0; i < TOKENIZER_STEPS_MAX; i++) buf_free(&e.changed[i]);
  buf_free(&e.normal[0]);
  buf_free(&e.normal[1]);
  buf_free(&e.spelled);
  free(e.symbols);
  free(e.heap);
  free(e.nodes);
  return rc;
}

static enum rc push_all(struct encoder *e, const int32_t *ids, size_t count, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; i < count && rc == RC_OK; i++) rc = encoder_push(e, ids[i], err);
  return rc;
}

enum rc tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len, size_t tokens_max,
                                struct token_ids *out, struct err *err) {
  struct encoder e = {.t = t, .out = out, .count_before = out->count, .tokens_max = tokens_max};
  enum rc rc = push_all(&e, t->before, t->before_count, err);
  if (rc == RC_OK) rc = tokenizer_encode(t, text, len, true, tokens_max - (out->count - e.count_before), out, err);
  if (rc == RC_OK) rc = push_all(&e, t->after, t->after_count, err);
  if (rc != RC_OK) out->count = e.count_before;
  return rc;
}

void tokenizer_affixes(const struct tokenizer *t, size_t *before, size_t *after) {
  *before = t->before_count;
  *after = t->after_count;
}
