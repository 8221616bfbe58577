/* Reads the steps of tokenizer.json that turn text into words: normalizer and pre-tokenizer.
 *
 * Unsupported steps that would change ids are refused by name, so that a tokenizer never loads and silently encodes
 * something else.  Truncation and padding are the caller's business and are not read.  Called once per tokenizer. */
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer_state.h"

/* As the tokenizers library writes it, ByteLevel's own pattern. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char normalizer[] = "normalizer", pre_tokenizer[] = "pre_tokenizer";

/* --- what the readers share --- */

bool section_is_null(const struct json *v) { return !v || json_type_of(v) == JSON_NULL; }

enum rc section_type(const char **out, const struct json *v, const char *field, struct err *err) {
  const struct json *type = json_get(v, "type");
  *out = json_word(type);
  if (!*out)
    return err_set(err, RC_INVALID, field, "expected an object with a type, got %s%s", json_type_name(json_type_of(v)),
                   type ? " with another type" : "");
  return RC_OK;
}

enum rc section_flag(bool *out, const struct json *v, const char *key, bool absent, const char *field,
                     struct err *err) {
  const struct json *flag = json_get(v, key);
  if (!section_is_null(flag) && json_type_of(flag) != JSON_BOOL)
    return err_set(err, RC_INVALID, field, "expected %s to be true or false, got %s", key,
                   json_type_name(json_type_of(flag)));
  *out = section_is_null(flag) ? absent : json_bool(flag);
  return RC_OK;
}

enum rc section_pattern(pcre2_code **out, const struct json *v, const char *field, struct err *err) {
  const struct json *pattern = json_get(v, "pattern");
  const struct json *regex = json_get(pattern, "Regex"), *string = json_get(pattern, "String");
  const struct json *text = regex ? regex : string;
  if (!text || json_type_of(text) != JSON_STRING)
    return err_set(err, RC_INVALID, field, "expected a pattern {\"Regex\": text} or {\"String\": text}, got another");
  size_t len;
  const char *bytes = json_string(text, &len);
  return pattern_compile(out, bytes, len, !regex, field, err);
}

enum rc section_literal(struct literal *out, struct tokenizer *t, const struct json *v, const char *key,
                        const char *field, struct err *err) {
  const struct json *text = json_get(v, key);
  if (!text || json_type_of(text) != JSON_STRING)
    return err_set(err, RC_INVALID, field, "expected a text %s, got %s", key,
                   text ? json_type_name(json_type_of(text)) : "none");
  const char *bytes = json_string(text, &out->len);
  if (out->len > TOKENIZER_LITERAL_BYTES)
    return err_set(err, RC_INVALID, field, "expected %s of at most %d bytes, got %zu", key, TOKENIZER_LITERAL_BYTES,
                   out->len);
  out->text = arena_strndup(&t->arena, bytes, out->len);
  return out->text ? RC_OK : err_set(err, RC_NO_MEMORY, field, "a text of %zu bytes was refused memory", out->len);
}

/* The items of a Sequence, which may not hold another. */
static enum rc sequence_items(const struct json **out, const struct json *v, const char *key, bool nested,
                              const char *field, struct err *err) {
  *out = json_get(v, key);
  if (nested) return err_set(err, RC_INVALID, field, "expected a Sequence without a Sequence inside");
  if (!*out || json_type_of(*out) != JSON_ARRAY)
    return err_set(err, RC_INVALID, field, "expected a Sequence of %s", key);
  return RC_OK;
}

/* --- normalizer --- */

static enum rc read_normalizer(struct tokenizer *t, const struct json *v, bool nested, struct err *err) {
  static const struct {
    const char *name;
    enum normal_kind kind;
  } known[] = {{"NFC", NORMAL_NFC},         {"NFD", NORMAL_NFD},
               {"NFKC", NORMAL_NFKC},       {"NFKD", NORMAL_NFKD},
               {"Lowercase", NORMAL_LOWERCASE}, {"Prepend", NORMAL_PREPEND},
               {"Replace", NORMAL_REPLACE}, {"Strip", NORMAL_STRIP},
               {"StripAccents", NORMAL_STRIP_ACCENTS}, {"Nmt", NORMAL_NMT}};
  const char *type;
  enum rc rc = section_type(&type, v, normalizer, err);
  if (rc != RC_OK) return rc;
  if (strcmp(type, "Sequence") == 0) {
    const struct json *items;
    rc = sequence_items(&items, v, "normalizers", nested, normalizer, err);
    for (size_t i = 0; rc == RC_OK && i < json_length(items); i++)
      rc = read_normalizer(t, json_at(items, i), true, err);
    return rc;
  }
  size_t i = 0;
  while (i < sizeof known / sizeof known[0] && strcmp(type, known[i].name) != 0) i++;
  if (i == sizeof known / sizeof known[0])
    return err_set(err, RC_INVALID, normalizer,
                   "expected NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, Nmt or a Sequence "
                   "of them, got \"%.64s\"",
                   type);
  if (t->normal_count == TOKENIZER_STEPS_MAX)
    return err_set(err, RC_INVALID, normalizer, "expected at most %d steps, got more", TOKENIZER_STEPS_MAX);
  struct normal_step *s = &t->normal[t->normal_count++];
  *s = (struct normal_step){.kind = known[i].kind};
  if (s->kind == NORMAL_PREPEND) return section_literal(&s->content, t, v, "prepend", normalizer, err);
  if (s->kind == NORMAL_STRIP) {
    rc = section_flag(&s->left, v, "strip_left", false, normalizer, err);
    return rc == RC_OK ? section_flag(&s->right, v, "strip_right", false, normalizer, err) : rc;
  }
  if (s->kind != NORMAL_REPLACE) return RC_OK;
  rc = section_literal(&s->content, t, v, "content", normalizer, err);
  return rc == RC_OK ? section_pattern(&s->regex, v, normalizer, err) : rc;
}

/* --- pre-tokenizer --- */

static enum rc read_behavior(enum split_behavior *out, const struct json *v, enum split_behavior absent,
                             struct err *err) {
  static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
  const struct json *behavior = json_get(v, "behavior");
  const char *name = json_word(behavior);
  *out = absent;
  if (section_is_null(behavior)) return RC_OK;
  for (int i = 0; name && i < 5; i++) {
    *out = (enum split_behavior)i;
    if (strcmp(name, names[i]) == 0) return RC_OK;
  }
  return err_set(err, RC_INVALID, pre_tokenizer,
                 "expected a behavior Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext, got "
                 "\"%.32s\"",
                 name ? name : json_type_name(json_type_of(behavior)));
}

static enum rc read_split(struct split_step *s, const struct json *v, struct err *err) {
  if (section_is_null(json_get(v, "behavior")))
    return err_set(err, RC_INVALID, pre_tokenizer, "expected a Split with a behavior, got none");
  enum rc rc = section_flag(&s->invert, v, "invert", false, pre_tokenizer, err);
  if (rc == RC_OK) rc = read_behavior(&s->behavior, v, SPLIT_ISOLATED, err);
  return rc == RC_OK ? section_pattern(&s->regex, v, pre_tokenizer, err) : rc;
}

static enum rc read_byte_level(struct tokenizer *t, struct split_step *s, const struct json *v, struct err *err) {
  bool regex, prefix;
  enum rc rc = section_flag(&regex, v, "use_regex", true, pre_tokenizer, err);
  if (rc == RC_OK) rc = section_flag(&prefix, v, "add_prefix_space", true, pre_tokenizer, err);
  if (rc != RC_OK) return rc;
  t->byte_level = true;
  s->prefix_when = prefix ? PREFIX_ALWAYS : PREFIX_NEVER;
  s->prefix = (struct literal){.text = " ", .len = 1};
  return regex ? pattern_compile(&s->regex, gpt2_pattern, sizeof gpt2_pattern - 1, false, pre_tokenizer, err) : RC_OK;
}

static enum rc read_metaspace(struct tokenizer *t, struct split_step *s, const struct json *v, struct err *err) {
  bool prefix, cut;
  const struct json *scheme = json_get(v, "prepend_scheme");
  const char *when = section_is_null(scheme) ? "always" : json_word(scheme);
  enum rc rc = section_literal(&s->space, t, v, "replacement", pre_tokenizer, err);
  if (rc == RC_OK) rc = section_flag(&prefix, v, "add_prefix_space", true, pre_tokenizer, err);
  if (rc == RC_OK) rc = section_flag(&cut, v, "split", true, pre_tokenizer, err);
  if (rc != RC_OK) return rc;
  if (s->space.len == 0) return err_set(err, RC_INVALID, pre_tokenizer, "expected a replacement, got none");
  if (!when || (strcmp(when, "always") != 0 && strcmp(when, "first") != 0 && strcmp(when, "never") != 0))
    return err_set(err, RC_INVALID, pre_tokenizer, "expected a prepend_scheme always, first or never, got \"%.32s\"",
                   when ? when : "(another type)");
  if (!prefix) when = "never";
  s->prefix_when = when[0] == 'a' ? PREFIX_ALWAYS : when[0] == 'f' ? PREFIX_FIRST : PREFIX_NEVER;
  s->prefix = s->space;
  s->behavior = SPLIT_MERGED_WITH_NEXT;
  return cut ? pattern_compile(&s->regex, s->space.text, s->space.len, true, pre_tokenizer, err) : RC_OK;
}

static enum rc read_digits(struct split_step *s, const struct json *v, struct err *err) {
  bool individual;
  const enum rc rc = section_flag(&individual, v, "individual_digits", false, pre_tokenizer, err);
  s->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
  return rc == RC_OK ? pattern_of(&s->regex, PATTERN_NUMBER, err) : rc;
}

static enum rc read_step(struct tokenizer *t, struct split_step *s, const char *type, const struct json *v,
                         struct err *err) {
  if (strcmp(type, "Split") == 0) return read_split(s, v, err);
  if (strcmp(type, "ByteLevel") == 0) return read_byte_level(t, s, v, err);
  if (strcmp(type, "Metaspace") == 0) return read_metaspace(t, s, v, err);
  if (strcmp(type, "Digits") == 0) return read_digits(s, v, err);
  if (strcmp(type, "Punctuation") == 0) {
    const enum rc rc = read_behavior(&s->behavior, v, SPLIT_ISOLATED, err);
    return rc == RC_OK ? pattern_of(&s->regex, PATTERN_PUNCTUATION, err) : rc;
  }
  s->behavior = SPLIT_REMOVED;
  if (strcmp(type, "WhitespaceSplit") == 0) return pattern_of(&s->regex, PATTERN_SPACE, err);
  s->invert = true;
  if (strcmp(type, "Whitespace") == 0) return pattern_of(&s->regex, PATTERN_WORDS, err);
  return err_set(err, RC_INVALID, pre_tokenizer,
                 "expected Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace, ByteLevel or a Sequence "
                 "of them, got \"%.64s\"",
                 type);
}

/* After ByteLevel no step may follow, because it would see the byte alphabet and not the text. */
static enum rc read_pre_tokenizer(struct tokenizer *t, const struct json *v, bool nested, struct err *err) {
  const char *type;
  enum rc rc = section_type(&type, v, pre_tokenizer, err);
  if (rc != RC_OK) return rc;
  if (t->byte_level)
    return err_set(err, RC_INVALID, pre_tokenizer, "expected ByteLevel to be the last step, \"%.64s\" follows it",
                   type);
  if (strcmp(type, "Sequence") == 0) {
    const struct json *items;
    rc = sequence_items(&items, v, "pretokenizers", nested, pre_tokenizer, err);
    for (size_t i = 0; rc == RC_OK && i < json_length(items); i++)
      rc = read_pre_tokenizer(t, json_at(items, i), true, err);
    return rc;
  }
  if (t->split_count == TOKENIZER_STEPS_MAX)
    return err_set(err, RC_INVALID, pre_tokenizer, "expected at most %d steps, got more", TOKENIZER_STEPS_MAX);
  return read_step(t, &t->splits[t->split_count++], type, v, err);
}

enum rc tokenizer_read_steps(struct tokenizer *t, const struct json *root, struct err *err) {
  const struct json *normal = json_get(root, normalizer), *pre = json_get(root, pre_tokenizer);
  enum rc rc = section_is_null(normal) ? RC_OK : read_normalizer(t, normal, false, err);
  if (rc == RC_OK && !section_is_null(pre)) rc = read_pre_tokenizer(t, pre, false, err);
  return rc;
}
