/* Reads the tables of tokenizer.json: the vocabulary, the merges and the added tokens.
 *
 * The file may come from a hub or from a peer, so every reference is checked: ids are distinct (some may have no
 * token: such a row of the embedding has no text), each merge joins two tokens of the vocabulary and makes the token
 * that is spelled like both together.  As tokens are never empty, a merge's result is longer than its parts; so merges
 * cannot form a cycle, and the merge loop ends.  Unigram's vocabulary is a list of tokens with scores, whose places are
 * the ids.  Called once per tokenizer, after the steps were read (they tell whether the vocabulary is byte-level);
 * nothing here runs while encoding. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer_state.h"

enum { MERGES_MAX = 4 * LIMIT_VOCABULARY, TOKEN_BYTES_MAX = 1 << 16 };
#define UNKNOWN_PENALTY 10.0 /* Unigram: below the lowest score */

static const struct json *member(const struct json *v, const char *key, enum json_type type) {
  const struct json *found = json_get(v, key);
  return found && json_type_of(found) == type ? found : NULL;
}

/* Options of BPE that would change the merges: absent, null, false, "" and 0 mean off. */
static enum rc check_options(const struct json *model, struct err *err) {
  static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
  for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
    const struct json *v = json_get(model, off[i]);
    if (!v) continue;
    const enum json_type type = json_type_of(v);
    const char *word = json_word(v);
    const bool is_off = type == JSON_NULL || (type == JSON_BOOL && !json_bool(v)) || (word && !word[0]) ||
                        ((type == JSON_INT || type == JSON_REAL) && json_number(v) == 0);
    if (!is_off)
      return err_set(err, RC_INVALID, "model", "expected BPE without %s, the model asks for it", off[i]);
  }
  return RC_OK;
}

/* Old files lack the type; then the tables tell: only BPE has both a vocabulary object and merges. */
static enum rc read_kind(struct tokenizer *t, const struct json *model, struct err *err) {
  const struct json *type = json_get(model, "type");
  const char *name = json_word(type);
  if (type && !name)
    return err_set(err, RC_INVALID, "model.type", "expected \"BPE\" or \"Unigram\", got %s",
                   json_type_name(json_type_of(type)));
  if (name && strcmp(name, "BPE") != 0 && strcmp(name, "Unigram") != 0)
    return err_set(err, RC_INVALID, "model.type", "expected \"BPE\" or \"Unigram\", got \"%.64s\"", name);
  t->kind = name && strcmp(name, "Unigram") == 0 ? MODEL_UNIGRAM : MODEL_BPE;
  if (t->kind == MODEL_UNIGRAM && !member(model, "vocab", JSON_ARRAY))
    return err_set(err, RC_INVALID, "model.vocab", "expected an array of [token, score]");
  if (t->kind == MODEL_UNIGRAM && t->byte_level)
    return err_set(err, RC_INVALID, "model.type", "expected a byte-level tokenizer to be BPE, got Unigram");
  if (t->kind == MODEL_UNIGRAM) return RC_OK;
  if (!member(model, "vocab", JSON_OBJECT))
    return err_set(err, RC_INVALID, "model.vocab", "expected an object of token: id");
  if (!member(model, "merges", JSON_ARRAY))
    return err_set(err, RC_INVALID, "model.merges", "expected an array of merges");
  return RC_OK;
}

static enum rc read_id(int32_t *out, const struct json *v, const char *field, const char *content, struct err *err) {
  if (!v || json_type_of(v) != JSON_INT || json_int(v) < 0 || json_int(v) >= LIMIT_VOCABULARY)
    return err_set(err, RC_INVALID, field, "expected an id from 0 to %d for token \"%.64s\", got %s %" PRId64,
                   LIMIT_VOCABULARY - 1, content, v ? json_type_name(json_type_of(v)) : "none",
                   v && json_type_of(v) == JSON_INT ? json_int(v) : 0);
  *out = (int32_t)json_int(v);
  return RC_OK;
}

/* Puts content at id, which must be free. */
static enum rc add_token(struct tokenizer *t, int32_t id, const char *content, size_t len, const char *field,
                         struct err *err) {
  if (len == 0 || len > TOKEN_BYTES_MAX)
    return err_set(err, RC_INVALID, field, "expected tokens of 1 to %d bytes, id %d has %zu", TOKEN_BYTES_MAX, id, len);
  if (t->tokens[id].content)
    return err_set(err, RC_INVALID, field, "expected each id once, %d is \"%.64s\" and \"%.64s\"", id,
                   t->tokens[id].content, content);
  char *copy = arena_strndup(&t->arena, content, len);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "a token of %zu bytes was refused memory", len);
  t->tokens[id].content = copy;
  t->tokens[id].content_len = (uint32_t)len;
  token_map_insert(&t->map, t->tokens, id);
  return RC_OK;
}

/* The largest id + 1 of the vocabulary and the added tokens, and room for that many. */
static enum rc make_tables(struct tokenizer *t, const struct json *vocab, const struct json *added, struct err *err) {
  void *cursor = NULL;
  const char *content;
  const struct json *v;
  if (json_length(vocab) > LIMIT_VOCABULARY)
    return err_set(err, RC_INVALID, "model.vocab", "expected at most %d tokens, got %zu", LIMIT_VOCABULARY,
                   json_length(vocab));
  int32_t id, largest = t->kind == MODEL_UNIGRAM ? (int32_t)json_length(vocab) - 1 : -1;
  while (t->kind == MODEL_BPE && json_next(vocab, &cursor, &content, &v)) {
    const enum rc rc = read_id(&id, v, "model.vocab", content, err);
    if (rc != RC_OK) return rc;
    if (id > largest) largest = id;
  }
  if (largest < 0) return err_set(err, RC_INVALID, "model.vocab", "expected at least one token, got none");
  for (size_t i = 0; i < json_length(added); i++) {
    const enum rc rc = read_id(&id, json_get(json_at(added, i), "id"), "added_tokens", "(added)", err);
    if (rc != RC_OK) return rc;
    if (id > largest) largest = id;
  }
  t->count = largest + 1;
  t->tokens = calloc((size_t)t->count, sizeof *t->tokens);
  if (!t->tokens)
    return err_set(err, RC_NO_MEMORY, NULL, "a table of %d tokens was refused %zu bytes", t->count,
                   (size_t)t->count * sizeof *t->tokens);
  return token_map_make(&t->map, (size_t)t->count, err);
}

static enum rc add_model_token(struct tokenizer *t, int32_t id, const char *content, size_t len, struct err *err) {
  if (t->kind == MODEL_UNIGRAM && len > 0 && token_map_find(&t->map, t->tokens, content, len) >= 0)
    return err_set(err, RC_INVALID, "model.vocab", "expected each token once, \"%.64s\" comes twice", content);
  const enum rc rc = add_token(t, id, content, len, "model.vocab", err);
  if (rc == RC_OK) t->tokens[id].in_model = true;
  return rc;
}

static enum rc read_vocabulary(struct tokenizer *t, const struct json *vocab, struct err *err) {
  void *cursor = NULL;
  const char *content;
  const struct json *v;
  enum rc rc = RC_OK;
  while (rc == RC_OK && json_next(vocab, &cursor, &content, &v))
    rc = add_model_token(t, (int32_t)json_int(v), content, strlen(content), err);
  return rc;
}

static enum rc read_scores(struct tokenizer *t, const struct json *vocab, struct err *err) {
  t->scores = calloc((size_t)t->count, sizeof *t->scores);
  if (!t->scores) return err_set(err, RC_NO_MEMORY, "model.vocab", "%d scores were refused memory", t->count);
  double lowest = INFINITY;
  for (size_t i = 0; i < json_length(vocab); i++) {
    const struct json *pair = json_at(vocab, i), *text = json_at(pair, 0), *score = json_at(pair, 1);
    if (json_type_of(pair) != JSON_ARRAY || json_length(pair) != 2 || json_type_of(text) != JSON_STRING ||
        (json_type_of(score) != JSON_INT && json_type_of(score) != JSON_REAL))
      return err_set(err, RC_INVALID, "model.vocab", "expected [token, score] at place %zu", i);
    size_t len;
    const char *content = json_string(text, &len);
    const enum rc rc = add_model_token(t, (int32_t)i, content, len, err);
    if (rc != RC_OK) return rc;
    t->scores[i] = json_number(score);
    if (t->scores[i] < lowest) lowest = t->scores[i];
  }
  t->unknown_score = lowest - UNKNOWN_PENALTY;
  return trie_make(&t->trie, t->tokens, t->count, err);
}

/* The tokens of single bytes and characters, and the longest token. */
static enum rc read_units(struct tokenizer *t, struct err *err) {
  struct buf spelled = BUF_INIT;
  for (int byte = 0; byte < 256; byte++) {
    const char c = (char)byte;
    char name[8];
    buf_clear(&spelled);
    if (t->byte_level)
      alphabet_spell(&spelled, &c, 1);
    else
      buf_append(&spelled, &c, 1);
    const bool is_unit = !spelled.failed && (t->byte_level || byte < 0x80);
    t->byte_id[byte] = is_unit ? token_map_find(&t->map, t->tokens, spelled.data, spelled.len) : -1;
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    t->fallback[byte] = token_map_find(&t->map, t->tokens, name, strlen(name));
  }
  for (int32_t id = 0; id < t->count && !spelled.failed; id++) {
    if (!t->tokens[id].in_model) continue;
    buf_clear(&spelled);
    if (t->byte_level) alphabet_read(&spelled, t->tokens[id].content, t->tokens[id].content_len);
    const size_t len = t->byte_level ? spelled.len : t->tokens[id].content_len;
    if (len > t->longest) t->longest = len;
  }
  const enum rc rc = buf_check(&spelled, err);
  buf_free(&spelled);
  return rc;
}

/* How text without a token is treated. */
static enum rc read_unknown(struct tokenizer *t, const struct json *model, struct err *err) {
  enum rc rc = section_flag(&t->byte_fallback, model, "byte_fallback", false, "model.byte_fallback", err);
  if (rc == RC_OK) rc = section_flag(&t->fuse_unknown, model, "fuse_unk", false, "model.fuse_unk", err);
  if (rc != RC_OK) return rc;
  t->unknown = -1;
  if (t->kind == MODEL_UNIGRAM) {
    const struct json *id = json_get(model, "unk_id");
    if (section_is_null(id)) return RC_OK;
    if (json_type_of(id) != JSON_INT || json_int(id) < 0 || json_int(id) >= t->count ||
        !t->tokens[json_int(id)].in_model)
      return err_set(err, RC_INVALID, "model.unk_id", "expected an id of the vocabulary or null");
    t->unknown = (int32_t)json_int(id);
    return RC_OK;
  }
  const struct json *unknown = json_get(model, "unk_token");
  size_t len = 0;
  const char *content =
      !section_is_null(unknown) && json_type_of(unknown) == JSON_STRING ? json_string(unknown, &len) : NULL;
  if (!section_is_null(unknown) && !content)
    return err_set(err, RC_INVALID, "model.unk_token", "expected a token or null, got %s",
                   json_type_name(json_type_of(unknown)));
  if (len > 0) t->unknown = token_map_find(&t->map, t->tokens, content, len); /* not there: no text may need it */
  for (int byte = 0; byte < 256 && t->byte_level && t->byte_fallback; byte++) {
    if (t->byte_id[byte] < 0)
      return err_set(err, RC_INVALID, "model.byte_fallback",
                     "expected a byte-level vocabulary that falls back to bytes to have all bytes, 0x%02x has no token",
                     (unsigned)byte);
  }
  return RC_OK;
}

/* The two parts of a merge, written "a b" or ["a", "b"]. */
static bool merge_parts(const struct json *v, const char *part[2], size_t len[2]) {
  if (json_type_of(v) == JSON_STRING) {
    size_t all;
    part[0] = json_string(v, &all);
    const char *space = strchr(part[0], ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    part[1] = space + 1;
    len[0] = (size_t)(space - part[0]);
    len[1] = all - len[0] - 1;
    return true;
  }
  if (json_type_of(v) != JSON_ARRAY || json_length(v) != 2) return false;
  for (size_t i = 0; i < 2; i++) {
    if (json_type_of(json_at(v, i)) != JSON_STRING) return false;
    part[i] = json_string(json_at(v, i), &len[i]);
  }
  return true;
}

static enum rc read_merge(struct tokenizer *t, const struct json *v, uint32_t rank, struct buf *joined,
                          struct err *err) {
  char field[ERR_FIELD_MAX];
  const char *part[2];
  size_t len[2];
  int32_t id[3];
  snprintf(field, sizeof field, "model.merges[%" PRIu32 "]", rank);
  if (!merge_parts(v, part, len))
    return err_set(err, RC_INVALID, field, "expected \"a b\" or [\"a\", \"b\"], got %s of another form",
                   json_type_name(json_type_of(v)));
  buf_clear(joined);
  for (int i = 0; i < 2; i++) {
    if (len[i] == 0)
      return err_set(err, RC_INVALID, field,
                     "expected two tokens to merge, one is empty: such a merge would never end");
    id[i] = token_map_find(&t->map, t->tokens, part[i], len[i]);
    if (id[i] < 0)
      return err_set(err, RC_INVALID, field, "expected tokens of the vocabulary, \"%.*s\" is not",
                     (int)(len[i] < 64 ? len[i] : 64), part[i]);
    buf_append(joined, part[i], len[i]);
  }
  const enum rc rc = buf_check(joined, err);
  if (rc != RC_OK) return rc;
  id[2] = token_map_find(&t->map, t->tokens, joined->data, joined->len);
  if (id[2] < 0)
    return err_set(err, RC_INVALID, field, "expected the merge's result in the vocabulary, \"%.64s\" is not",
                   joined->data);
  if (!merge_map_insert(&t->merges, (struct merge){.left = id[0], .right = id[1], .id = id[2], .rank = rank}))
    return err_set(err, RC_INVALID, field,
                   "expected each merge once, \"%.64s\" is merged from the same two tokens before", joined->data);
  return RC_OK;
}

static enum rc read_merges(struct tokenizer *t, const struct json *merges, struct err *err) {
  const size_t count = json_length(merges);
  if (count > MERGES_MAX)
    return err_set(err, RC_INVALID, "model.merges", "expected at most %d merges, got %zu", MERGES_MAX, count);
  enum rc rc = merge_map_make(&t->merges, count, err);
  struct buf joined = BUF_INIT;
  for (size_t i = 0; i < count && rc == RC_OK; i++) rc = read_merge(t, json_at(merges, i), (uint32_t)i, &joined, err);
  buf_free(&joined);
  return rc;
}

/* Enters an added token into the table: a new one, or one that the vocabulary has under the same id. */
static enum rc enter_added(struct tokenizer *t, int32_t id, const char *content, bool special, const char *field,
                           struct err *err) {
  const size_t len = strlen(content);
  const int32_t known = len ? token_map_find(&t->map, t->tokens, content, len) : -1;
  if (known >= 0 && known != id)
    return err_set(err, RC_INVALID, field, "expected id %d for \"%.64s\" as above in the file, got %d", known, content,
                   id);
  if (known >= 0 && t->tokens[id].added)
    return err_set(err, RC_INVALID, field, "expected each added token once, \"%.64s\" comes twice", content);
  if (known < 0) {
    const enum rc rc = add_token(t, id, content, len, field, err);
    if (rc != RC_OK) return rc;
  }
  struct token *token = &t->tokens[id];
  token->added = true;
  token->special = special;
  return RC_OK;
}

static enum rc read_added(struct tokenizer *t, const struct json *v, const char *field, struct arena *arena,
                          struct err *err) {
  const char *content = NULL;
  int32_t id = -1;
  struct added_token token = {0};
  bool normalized = false;
  const struct json_field fields[] = {
      {.name = "id", .kind = FIELD_I32, .target = &id, .required = true},
      {.name = "content", .kind = FIELD_STRING, .target = &content, .required = true},
      {.name = "single_word", .kind = FIELD_BOOL, .target = &token.single_word},
      {.name = "lstrip", .kind = FIELD_BOOL, .target = &token.lstrip},
      {.name = "rstrip", .kind = FIELD_BOOL, .target = &token.rstrip},
      {.name = "normalized", .kind = FIELD_BOOL, .target = &normalized},
      {.name = "special", .kind = FIELD_BOOL, .target = &token.special},
  };
  enum rc rc = json_fields(v, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) {
    err_in_field(err, field);
    return rc;
  }
  rc = enter_added(t, id, content, token.special, field, err);
  if (rc != RC_OK) return rc;
  token.content = t->tokens[id].content;
  token.len = t->tokens[id].content_len;
  token.id = id;
  struct added_set *set = normalized ? &t->normalized : &t->raw;
  set->items[set->count++] = token;
  return RC_OK;
}

static enum rc read_added_tokens(struct tokenizer *t, const struct json *added, struct err *err) {
  const size_t count = json_length(added);
  t->raw.items = calloc(count + 1, sizeof *t->raw.items);
  t->normalized.items = calloc(count + 1, sizeof *t->normalized.items);
  if (!t->raw.items || !t->normalized.items)
    return err_set(err, RC_NO_MEMORY, "added_tokens", "%zu added tokens were refused memory", count);
  struct arena arena = ARENA_INIT;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < count && rc == RC_OK; i++) {
    char field[ERR_FIELD_MAX];
    snprintf(field, sizeof field, "added_tokens[%zu]", i);
    rc = read_added(t, json_at(added, i), field, &arena, err);
  }
  arena_free(&arena);
  return rc;
}

enum rc tokenizer_read_model(struct tokenizer *t, const struct json *root, struct err *err) {
  const struct json *model = member(root, "model", JSON_OBJECT), *added = json_get(root, "added_tokens");
  if (!model)
    return err_set(err, RC_INVALID, "model", "expected an object, got %s",
                   json_get(root, "model") ? "something else" : "none");
  if (added && json_type_of(added) == JSON_NULL) added = NULL;
  if (added && json_type_of(added) != JSON_ARRAY)
    return err_set(err, RC_INVALID, "added_tokens", "expected an array, got %s", json_type_name(json_type_of(added)));
  const struct json *vocab = json_get(model, "vocab");
  enum rc rc = section_flag(&t->ignore_merges, model, "ignore_merges", false, "model.ignore_merges", err);
  if (rc == RC_OK) rc = read_kind(t, model, err);
  if (rc == RC_OK) rc = check_options(model, err);
  if (rc == RC_OK) rc = make_tables(t, vocab, added, err);
  if (rc == RC_OK) rc = t->kind == MODEL_UNIGRAM ? read_scores(t, vocab, err) : read_vocabulary(t, vocab, err);
  if (rc == RC_OK) rc = read_units(t, err); /* before the added tokens: these are the model's own */
  if (rc == RC_OK) rc = read_unknown(t, model, err);
  if (rc == RC_OK && t->kind == MODEL_BPE) rc = read_merges(t, json_get(model, "merges"), err);
  if (rc == RC_OK) rc = read_added_tokens(t, added, err);
  for (size_t i = 0; rc == RC_OK && t->kind == MODEL_BPE && i <= t->merges.mask; i++) {
    const int32_t id = t->merges.slots[i].id;
    t->merges_special = t->merges_special || (id >= 0 && t->tokens[id].special);
  }
  return rc;
}
