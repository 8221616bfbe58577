/* Reads the sections of tokenizer.json that concern what comes out: the decoder, which makes text of ids, and the
 * post-processor, which adds a first token to a prompt ("<s>") or a last one.
 *
 * A decoder is a list of steps.  Those before Fuse see each token alone, so they are run once for each token while
 * loading (decode.c); behind Fuse only the beginning of the whole text may be stripped, so that a text can be told
 * piece by piece.  What would need the whole text at its end is refused by name.  Called once per tokenizer. */
#include <inttypes.h>
#include <string.h>

#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer_state.h"

static const char decoder[] = "decoder", processor[] = "post_processor";

/* --- decoder --- */

static enum rc read_count(size_t *out, const struct json *v, const char *key, struct err *err) {
  const struct json *number = json_get(v, key);
  int64_t value = 0;
  if (!number || !json_as_int(number, &value) || value < 0 || value > TOKENIZER_LITERAL_BYTES)
    return err_set(err, RC_INVALID, decoder, "expected Strip with a number %s from 0 to %d", key,
                   TOKENIZER_LITERAL_BYTES);
  *out = (size_t)value;
  return RC_OK;
}

static enum rc read_strip(struct tokenizer *t, struct decode_step *s, const struct json *v, struct err *err) {
  struct decoder *d = &t->decoder;
  enum rc rc = section_literal(&s->content, t, v, "content", decoder, err);
  if (rc == RC_OK) rc = read_count(&s->start, v, "start", err);
  if (rc == RC_OK) rc = read_count(&s->stop, v, "stop", err);
  if (rc == RC_OK && s->content.len == 0) rc = err_set(err, RC_INVALID, decoder, "expected Strip with a character");
  if (rc != RC_OK || !d->fused) return rc;
  if (s->stop > 0)
    return err_set(err, RC_INVALID, decoder,
                   "expected Strip behind Fuse to leave the text's end alone (stop 0), got stop %zu", s->stop);
  if (d->strip.text) return err_set(err, RC_INVALID, decoder, "expected one Strip behind Fuse, got two");
  d->strip = s->content;
  d->strip_max = s->start;
  d->count--; /* no step of its own */
  return RC_OK;
}

static enum rc read_metaspace(struct tokenizer *t, struct decode_step *s, const struct json *v, struct err *err) {
  bool prefix;
  const struct json *scheme = json_get(v, "prepend_scheme");
  enum rc rc = section_literal(&s->content, t, v, "replacement", decoder, err);
  if (rc == RC_OK) rc = section_flag(&prefix, v, "add_prefix_space", true, decoder, err);
  if (rc != RC_OK) return rc;
  if (s->content.len == 0) return err_set(err, RC_INVALID, decoder, "expected Metaspace with a replacement");
  const char *when = section_is_null(scheme) ? "always" : json_word(scheme);
  if (!when) return err_set(err, RC_INVALID, decoder, "expected a prepend_scheme that is a text");
  if (prefix && strcmp(when, "never") != 0) t->decoder.mark = s->content;
  return RC_OK;
}

static enum rc read_decoder(struct tokenizer *t, const struct json *v, bool nested, struct err *err) {
  struct decoder *d = &t->decoder;
  const char *type;
  enum rc rc = section_type(&type, v, decoder, err);
  if (rc != RC_OK) return rc;
  if (strcmp(type, "Sequence") == 0) {
    const struct json *items = json_get(v, "decoders");
    if (nested || !items || json_type_of(items) != JSON_ARRAY)
      return err_set(err, RC_INVALID, decoder, "expected a Sequence of decoders, without a Sequence inside");
    for (size_t i = 0; rc == RC_OK && i < json_length(items); i++)
      rc = read_decoder(t, json_at(items, i), true, err);
    return rc;
  }
  if (strcmp(type, "Fuse") == 0) {
    d->fused = true;
    return RC_OK;
  }
  if (d->count == TOKENIZER_STEPS_MAX)
    return err_set(err, RC_INVALID, decoder, "expected at most %d steps, got more", TOKENIZER_STEPS_MAX);
  struct decode_step *s = &d->steps[d->count++];
  *s = (struct decode_step){.kind = DECODE_STRIP};
  if (strcmp(type, "Strip") == 0) return read_strip(t, s, v, err);
  if (d->fused)
    return err_set(err, RC_INVALID, decoder, "expected nothing but Strip behind Fuse, got \"%.64s\"", type);
  if (strcmp(type, "ByteLevel") == 0) {
    s->kind = DECODE_BYTE_LEVEL;
    return RC_OK;
  }
  if (strcmp(type, "ByteFallback") == 0) {
    s->kind = DECODE_BYTE_FALLBACK;
    return RC_OK;
  }
  if (strcmp(type, "Metaspace") == 0) {
    s->kind = DECODE_METASPACE;
    return read_metaspace(t, s, v, err);
  }
  if (strcmp(type, "Replace") != 0)
    return err_set(err, RC_INVALID, decoder,
                   "expected ByteLevel, ByteFallback, Replace, Strip, Fuse, Metaspace or a Sequence of them, got "
                   "\"%.64s\"",
                   type);
  s->kind = DECODE_REPLACE;
  rc = section_literal(&s->content, t, v, "content", decoder, err);
  return rc == RC_OK ? section_pattern(&s->regex, v, decoder, err) : rc;
}

/* Byte-level vocabularies and others are decoded in different ways; Metaspace looks at a token as the file has it. */
static enum rc check_decoder(const struct tokenizer *t, struct err *err) {
  const struct decoder *d = &t->decoder;
  bool byte_level = false, metaspace = false, replace = false;
  for (int i = 0; i < d->count; i++) {
    byte_level = byte_level || d->steps[i].kind == DECODE_BYTE_LEVEL;
    metaspace = metaspace || d->steps[i].kind == DECODE_METASPACE;
    replace = replace || d->steps[i].kind == DECODE_REPLACE || d->steps[i].kind == DECODE_STRIP;
  }
  if (byte_level != t->byte_level || (byte_level && d->count > 1))
    return err_set(err, RC_INVALID, decoder, "expected %s, got a decoder that does not fit the pre-tokenizer",
                   t->byte_level ? "ByteLevel" : "a decoder without ByteLevel");
  if (metaspace && (replace || d->strip.text))
    return err_set(err, RC_INVALID, decoder, "expected Metaspace without Replace and Strip beside it");
  return RC_OK;
}

/* --- post-processor --- */

static enum rc add_affix(struct tokenizer *t, int32_t *ids, size_t *count, const struct json *id, struct err *err) {
  if (!id || json_type_of(id) != JSON_INT || json_int(id) < 0 || json_int(id) >= t->count ||
      !t->tokens[json_int(id)].content)
    return err_set(err, RC_INVALID, processor, "expected ids of the vocabulary, from 0 to %d", t->count - 1);
  if (*count == TOKENIZER_AFFIX_MAX)
    return err_set(err, RC_INVALID, processor, "expected at most %d tokens on a side", TOKENIZER_AFFIX_MAX);
  ids[(*count)++] = (int32_t)json_int(id);
  return RC_OK;
}

/* The template of a single text: special tokens around Sequence A. */
static enum rc read_template(struct tokenizer *t, const struct json *v, struct err *err) {
  const struct json *single = json_get(v, "single"), *specials = json_get(v, "special_tokens");
  if (!single || json_type_of(single) != JSON_ARRAY)
    return err_set(err, RC_INVALID, processor, "expected TemplateProcessing with an array `single`");
  int texts = 0;
  for (size_t i = 0; i < json_length(single); i++) {
    const struct json *item = json_at(single, i), *token = json_get(item, "SpecialToken");
    const char *text = json_word(json_get(json_get(item, "Sequence"), "id")), *name = json_word(json_get(token, "id"));
    if (text && strcmp(text, "A") == 0 && texts++ == 0) continue;
    const struct json *ids = name ? json_get(json_get(specials, name), "ids") : NULL;
    if (!ids || json_type_of(ids) != JSON_ARRAY)
      return err_set(err, RC_INVALID, processor,
                     "expected TemplateProcessing of one Sequence A and special tokens that it lists, item %zu is "
                     "neither",
                     i);
    for (size_t k = 0; k < json_length(ids); k++) {
      const enum rc rc = texts ? add_affix(t, t->after, &t->after_count, json_at(ids, k), err)
                               : add_affix(t, t->before, &t->before_count, json_at(ids, k), err);
      if (rc != RC_OK) return rc;
    }
  }
  return texts == 1 ? RC_OK : err_set(err, RC_INVALID, processor, "expected TemplateProcessing of one Sequence A");
}

static enum rc read_processor(struct tokenizer *t, const struct json *v, bool nested, struct err *err) {
  const char *type;
  enum rc rc = section_type(&type, v, processor, err);
  if (rc != RC_OK || strcmp(type, "ByteLevel") == 0) return rc; /* that one trims offsets only */
  if (strcmp(type, "Sequence") == 0) {
    const struct json *items = json_get(v, "processors");
    if (nested || !items || json_type_of(items) != JSON_ARRAY)
      return err_set(err, RC_INVALID, processor, "expected a Sequence of processors, without a Sequence inside");
    for (size_t i = 0; rc == RC_OK && i < json_length(items); i++)
      rc = read_processor(t, json_at(items, i), true, err);
    return rc;
  }
  if (t->before_count + t->after_count > 0)
    return err_set(err, RC_INVALID, processor, "expected one processor that adds tokens, \"%.64s\" is another", type);
  if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, v, err);
  if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
    rc = add_affix(t, t->before, &t->before_count, json_at(json_get(v, "cls"), 1), err);
    return rc == RC_OK ? add_affix(t, t->after, &t->after_count, json_at(json_get(v, "sep"), 1), err) : rc;
  }
  return err_set(err, RC_INVALID, processor,
                 "expected TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing or a Sequence of them, got "
                 "\"%.64s\"",
                 type);
}

enum rc tokenizer_read_output(struct tokenizer *t, const struct json *root, struct err *err) {
  const struct json *out = json_get(root, decoder), *post = json_get(root, processor);
  if (section_is_null(out))
    return err_set(err, RC_INVALID, decoder, "expected a decoder%s, got none", t->byte_level ? " (ByteLevel)" : "");
  enum rc rc = read_decoder(t, out, false, err);
  if (rc == RC_OK) rc = check_decoder(t, err);
  if (rc == RC_OK && !section_is_null(post)) rc = read_processor(t, post, false, err);
  return rc;
}
