/* Reads the steps of tokenizer.json that turn text into words and back: normalizer, pre-tokenizer and decoder.
 *
 * Unsupported steps that would change ids are refused by name, so that a tokenizer never loads and silently encodes
 * something else.  The post-processor (which adds a first token when asked to), truncation and padding are the caller's
 * business and are not read. */
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer_state.h"

/* As the tokenizers library writes it, ByteLevel's own pattern. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static bool is_null(const struct json *v) { return !v || json_type_of(v) == JSON_NULL; }

/* The "type" of a section's object. */
static enum rc read_type(const char **out, const struct json *v, const char *field, struct err *err) {
  const struct json *type = json_get(v, "type");
  *out = json_word(type);
  if (!*out)
    return err_set(err, RC_INVALID, field, "expected an object with a type, got %s%s", json_type_name(json_type_of(v)),
                   type ? " with another type" : "");
  return RC_OK;
}

static enum rc read_flag(bool *out, const struct json *v, const char *key, bool absent, const char *field,
                         struct err *err) {
  const struct json *flag = json_get(v, key);
  if (!is_null(flag) && json_type_of(flag) != JSON_BOOL)
    return err_set(err, RC_INVALID, field, "expected %s to be true or false, got %s", key,
                   json_type_name(json_type_of(flag)));
  *out = is_null(flag) ? absent : json_bool(flag);
  return RC_OK;
}

static enum rc read_normalizer(struct tokenizer *t, const struct json *v, bool nested, struct err *err) {
  static const char field[] = "normalizer";
  if (is_null(v)) return RC_OK;
  const char *type;
  enum rc rc = read_type(&type, v, field, err);
  if (rc != RC_OK) return rc;
  if (strcmp(type, "NFC") == 0) {
    t->nfc = true;
    return RC_OK;
  }
  const struct json *items = json_get(v, "normalizers");
  if (strcmp(type, "Sequence") != 0 || nested || !items || json_type_of(items) != JSON_ARRAY)
    return err_set(err, RC_INVALID, field, "expected null, NFC or a Sequence of NFC, got \"%.64s\"", type);
  for (size_t i = 0; i < json_length(items) && rc == RC_OK; i++) rc = read_normalizer(t, json_at(items, i), true, err);
  return rc;
}

static enum rc add_step(struct tokenizer *t, const char *pattern, bool literal, bool prefix_space, struct err *err) {
  if (t->split_count == TOKENIZER_SPLITS_MAX)
    return err_set(err, RC_INVALID, "pre_tokenizer", "expected at most %d steps, got more", TOKENIZER_SPLITS_MAX);
  struct split_step step = {.prefix_space = prefix_space};
  if (pattern) {
    const enum rc rc = text_compile(&step.regex, pattern, literal, err);
    if (rc != RC_OK) return rc;
  }
  t->splits[t->split_count++] = step;
  return RC_OK;
}

static enum rc read_split(struct tokenizer *t, const struct json *v, struct err *err) {
  static const char field[] = "pre_tokenizer";
  const struct json *pattern = json_get(v, "pattern"), *behavior = json_get(v, "behavior");
  const struct json *regex = json_get(pattern, "Regex"), *string = json_get(pattern, "String");
  bool invert;
  const enum rc rc = read_flag(&invert, v, "invert", false, field, err);
  if (rc != RC_OK) return rc;
  const char *text = json_word(regex ? regex : string), *how = json_word(behavior);
  if (!text)
    return err_set(err, RC_INVALID, field,
                   "expected a Split with a pattern {\"Regex\": text} or {\"String\": text}, got another pattern");
  if (!how || strcmp(how, "Isolated") != 0 || invert)
    return err_set(err, RC_INVALID, field,
                   "expected a Split with behavior Isolated that is not inverted, got behavior \"%.32s\"%s",
                   how ? how : "(none)", invert ? ", inverted" : "");
  return add_step(t, text, !regex, false, err);
}

/* bytes: set by ByteLevel, after which no step may follow, because later steps would see the byte alphabet and not
 * the text. */
static enum rc read_pre_tokenizer(struct tokenizer *t, const struct json *v, bool nested, bool *bytes,
                                  struct err *err) {
  static const char field[] = "pre_tokenizer";
  const char *type;
  bool flag, prefix;
  enum rc rc = read_type(&type, v, field, err);
  if (rc != RC_OK) return rc;
  if (*bytes)
    return err_set(err, RC_INVALID, field, "expected ByteLevel to be the last step, \"%.64s\" follows it", type);
  if (strcmp(type, "ByteLevel") == 0) {
    rc = read_flag(&flag, v, "use_regex", true, field, err);
    if (rc == RC_OK) rc = read_flag(&prefix, v, "add_prefix_space", true, field, err);
    *bytes = true;
    return rc == RC_OK ? add_step(t, flag ? gpt2_pattern : NULL, false, prefix, err) : rc;
  }
  if (strcmp(type, "Split") == 0) return read_split(t, v, err);
  if (strcmp(type, "Digits") == 0) {
    rc = read_flag(&flag, v, "individual_digits", false, field, err);
    return rc == RC_OK ? add_step(t, flag ? "\\p{N}" : "\\p{N}+", false, false, err) : rc;
  }
  const struct json *items = json_get(v, "pretokenizers");
  if (strcmp(type, "Sequence") != 0 || nested || !items || json_type_of(items) != JSON_ARRAY)
    return err_set(err, RC_INVALID, field, "expected Split, Digits, ByteLevel or a Sequence of them, got \"%.64s\"",
                   type);
  for (size_t i = 0; i < json_length(items) && rc == RC_OK; i++)
    rc = read_pre_tokenizer(t, json_at(items, i), true, bytes, err);
  return rc;
}

enum rc tokenizer_read_steps(struct tokenizer *t, const struct json *root, struct err *err) {
  enum rc rc = read_normalizer(t, json_get(root, "normalizer"), false, err);
  if (rc != RC_OK) return rc;
  const struct json *pre = json_get(root, "pre_tokenizer"), *decoder = json_get(root, "decoder");
  bool bytes = false;
  if (!is_null(pre)) rc = read_pre_tokenizer(t, pre, false, &bytes, err);
  if (rc != RC_OK) return rc;
  if (!bytes)
    return err_set(err, RC_INVALID, "pre_tokenizer",
                   "expected a byte-level tokenizer, whose pre-tokenizer ends in ByteLevel, got none");
  const char *type = "none";
  if (!is_null(decoder)) rc = read_type(&type, decoder, "decoder", err);
  if (rc == RC_OK && strcmp(type, "ByteLevel") != 0)
    rc = err_set(err, RC_INVALID, "decoder", "expected ByteLevel, got \"%.64s\"", type);
  return rc;
}
