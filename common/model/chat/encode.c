/* Renders a request and encodes the text.
 *
 * Special tokens that touch a byte of the conversation are text.  As transformers does it, the text is cut around each
 * of them; the pieces are encoded one by one, those between as any text, and these without special tokens.  Text that
 * has none is encoded whole.  Pieces behind the first are encoded behind a line end, whose ids are dropped, so that no
 * tokenizer takes them for a text's beginning. */
#include <string.h>

#include "common/base/limits.h"
#include "common/model/chat/state.h"
#include "common/model/tokenizer/chat.h"

struct chat_encoder {
  const struct chat *c;
  const struct text *text;
  size_t tokens_max;
  struct token_ids *out;
  struct buf *assistant;
  struct buf scratch;
};

static uint8_t mark_at(const struct text *text, size_t at) { return text->marks ? text->marks[at] : text->mark; }

static bool touches_data(const struct text *text, size_t at, size_t len) {
  for (size_t i = at; i < at + len; i++)
    if (mark_at(text, i) & MARK_DATA) return true;
  return false;
}

/* --- which tokens an assistant generated --- */

static bool uniform(const struct text *text, size_t from, size_t to) {
  for (size_t i = from + 1; i < to; i++)
    if ((mark_at(text, i) ^ mark_at(text, from)) & MARK_GENERATED) return false;
  return true;
}

/* How many bytes of text from `at` on a token of these bytes stands for, white space that the tokenizer dropped or
 * put in front included; SIZE_MAX: they do not match. */
static size_t covered(const struct text *text, size_t at, size_t to, const struct buf *token) {
  const char *bytes = text->bytes + at;
  const size_t left = to - at, space = space_at_start(bytes, left);
  if (token->len <= left && (token->len == 0 || memcmp(bytes, token->data, token->len) == 0)) return token->len;
  if (token->len > 1 && token->data[0] == ' ' && token->len - 1 <= left &&
      memcmp(bytes, token->data + 1, token->len - 1) == 0)
    return token->len - 1;
  if (space && token->len <= left - space && memcmp(bytes + space, token->data, token->len) == 0)
    return space + token->len;
  return SIZE_MAX;
}

/* A byte for each id of the piece [from, to): 1 when any of its bytes was generated. */
static enum rc mask_piece(struct chat_encoder *e, size_t from, size_t to, size_t first_id, struct err *err) {
  const struct text *text = e->text;
  size_t at = from;
  for (size_t i = first_id; i < e->out->count; i++) {
    size_t n = to - at;
    char generated = 0;
    if (!uniform(text, at, to)) {
      buf_clear(&e->scratch);
      const enum rc rc = tokenizer_decode(e->c->tokenizer, &e->out->items[i], 1, false, &e->scratch, err);
      if (rc != RC_OK) return rc;
      n = covered(text, at, to, &e->scratch);
      if (n == SIZE_MAX)
        return err_set(err, RC_UNSUPPORTED, "messages",
                       "the tokens of a {%% generation %%} block cannot be told from those around it: the tokenizer "
                       "changed the text before its end");
    } else {
      n = at < to ? 1 : 0; /* one answer for all that follows */
    }
    for (size_t k = at; k < at + n; k++) generated |= (mark_at(text, k) & MARK_GENERATED) != 0;
    if (n == 0 && at < to) generated = (mark_at(text, at) & MARK_GENERATED) != 0;
    buf_append(e->assistant, &generated, 1);
    if (!uniform(text, at, to)) at += n;
  }
  return RC_OK;
}

/* --- encoding --- */

static enum rc encode_piece(struct chat_encoder *e, size_t from, size_t to, bool parse_special, size_t most,
                            struct err *err) {
  const struct tokenizer *t = e->c->tokenizer;
  const char *bytes = e->text->bytes + from;
  if (from == 0) return tokenizer_encode(t, bytes, to, parse_special, most, e->out, err);
  struct token_ids line = {0}, ids = {0};
  enum rc rc = tokenizer_encode(t, "\n", 1, false, LIMIT_PROMPT_TOKENS, &line, err);
  buf_clear(&e->scratch);
  buf_append(&e->scratch, "\n", 1);
  buf_append(&e->scratch, bytes, to - from);
  if (rc == RC_OK) rc = buf_check(&e->scratch, err);
  if (rc == RC_OK)
    rc = tokenizer_encode(t, e->scratch.data, e->scratch.len, parse_special, most + line.count, &ids, err);
  const size_t behind = e->out->count;
  bool begins = rc == RC_OK && ids.count >= line.count;
  for (size_t i = 0; begins && i < line.count; i++) begins = ids.items[i] == line.items[i];
  if (rc == RC_OK) rc = tokenizer_encode(t, bytes, to - from, parse_special, most, e->out, err);
  if (begins && rc == RC_OK) { /* the list has room: both encodings are of the same text, but for the joint */
    const size_t count = ids.count - line.count;
    int32_t *items = realloc(e->out->items, (behind + count + 1) * sizeof *items);
    if (items) {
      memcpy(items + behind, ids.items + line.count, count * sizeof *items);
      *e->out = (struct token_ids){items, behind + count, behind + count + 1};
    } else {
      rc = err_set(err, RC_NO_MEMORY, "messages", "%zu ids were refused memory", behind + count);
    }
  }
  token_ids_free(&line);
  token_ids_free(&ids);
  return rc;
}

static enum rc add_piece(struct chat_encoder *e, size_t from, size_t to, bool parse_special, size_t before,
                         struct err *err) {
  const size_t used = e->out->count - before, first_id = e->out->count;
  if (from == to) return RC_OK;
  enum rc rc = encode_piece(e, from, to, parse_special, e->tokens_max > used ? e->tokens_max - used : 0, err);
  if (rc == RC_TOO_LARGE && used > 0) /* the limit, in place of what the pieces before left of it */
    return err_set(err, rc, NULL, "expected a text of at most %zu tokens, got more", e->tokens_max);
  if (rc == RC_OK && e->assistant) rc = mask_piece(e, from, to, first_id, err);
  return rc;
}

static enum rc encode_text(struct chat_encoder *e, struct err *err) {
  const size_t before = e->out->count;
  size_t done = 0;
  enum rc rc = RC_OK;
  for (size_t at = 0; at < e->text->len && rc == RC_OK;) {
    const struct added_token *special = added_longest(&e->c->specials, e->text->bytes + at, e->text->len - at);
    const size_t len = special ? special->len : 0;
    if (len && touches_data(e->text, at, len)) {
      rc = add_piece(e, done, at, true, before, err);
      if (rc == RC_OK) rc = add_piece(e, at, at + len, false, before, err);
      done = at + len;
    }
    at += len ? len : 1;
  }
  return rc == RC_OK ? add_piece(e, done, e->text->len, true, before, err) : rc;
}

/* --- rendering --- */

/* Cuts the text where the last message's ends: at the tag, without white space before it where the template dropped
 * the tag's own. */
static enum rc cut_at_tag(struct workspace *w, struct text *text) {
  static const struct text tag = {.bytes = CHAT_CONTINUE_TAG, .len = sizeof CHAT_CONTINUE_TAG - 2};
  const size_t at = text_find_last(text, &tag, text->len);
  if (at == SIZE_MAX)
    return work_fail(w, RC_INVALID, "the template leaves the last message out, so it cannot be continued");
  const bool kept = at + tag.len < text->len && text->bytes[at + tag.len] == ' ';
  text->len = kept ? at : at - space_before_end(text->bytes, at);
  return RC_OK;
}

static enum rc check_request(const struct chat *c, const struct chat_request *r, struct err *err) {
  if (r->continue_final && r->generation_prompt)
    return err_set(err, RC_INVALID, "messages", "expected either a new turn or the last one continued, got both");
  if (!c->has_template && !c->has_markers)
    return err_set(err, RC_UNSUPPORTED, "messages",
                   "expected a model with a chat template, or a tokenizer with the added tokens <|im_start|> and "
                   "<|im_end|>; send a prompt instead");
  return RC_OK;
}

static enum rc render(struct workspace *w, const struct chat *c, const struct chat_request *r,
                      const struct chat_form *form, struct chat_documents *documents, struct text *out) {
  const struct template *t = r->tools && c->tool_use ? c->tool_use : c->template;
  const struct text *text;
  struct dict *variables;
  enum rc rc = chat_variables(w, c, r, form, documents, &variables);
  if (rc == RC_OK) rc = template_render(t, w, variables, &text);
  if (rc == RC_OK) *out = *text;
  return rc == RC_OK && r->continue_final ? cut_at_tag(w, out) : rc;
}

static enum rc encode_rendered(const struct chat *c, const struct text *text, size_t tokens_max, struct token_ids *out,
                               struct buf *rendered, struct buf *assistant, struct err *err) {
  struct chat_encoder e = {.c = c, .text = text, .tokens_max = tokens_max, .out = out, .assistant = assistant};
  const size_t count = out->count, rendered_len = rendered ? rendered->len : 0,
               mask_len = assistant ? assistant->len : 0;
  enum rc rc = encode_text(&e, err);
  if (rc == RC_OK && rendered) buf_append(rendered, text->bytes, text->len);
  if (rc == RC_OK && rendered) rc = buf_check(rendered, err);
  if (rc == RC_OK && assistant) rc = buf_check(assistant, err);
  if (rc != RC_OK) {
    out->count = count;
    if (rendered) rendered->len = rendered_len;
    if (assistant) assistant->len = mask_len;
  }
  buf_free(&e.scratch);
  return rc;
}

/* One attempt.  *failed_rendering: another form may fare better. */
static enum rc encode_form(const struct chat *c, const struct chat_request *r, const struct chat_form *form,
                           size_t tokens_max, struct token_ids *out, struct buf *rendered, struct buf *assistant,
                           bool *failed_rendering, struct err *err) {
  struct workspace w = template_workspace(err);
  struct chat_documents documents = {0};
  struct text text;
  enum rc rc = render(&w, c, r, form, &documents, &text);
  *failed_rendering = rc == RC_INVALID;
  if (rc != RC_OK)
    err_in_file(err, c->has_template ? "the chat template" : "ChatML");
  else
    rc = encode_rendered(c, &text, tokens_max, out, rendered, assistant, err);
  chat_documents_free(&documents);
  template_workspace_free(&w);
  return rc;
}

/* A template that reads no parts gets one text.  What a template cannot take besides, parts after all or arguments that
 * are objects, it fails on: then it gets texts, of the arguments last.  Of several faults the first is told. */
enum rc chat_encode(const struct chat *c, const struct chat_request *r, size_t tokens_max, struct token_ids *out,
                    struct buf *text, struct buf *assistant, struct err *err) {
  const bool takes_parts = r->tools && c->tool_use ? c->tool_use_takes_parts : c->takes_parts,
             wire = r->arguments_are_text;
  const struct chat_form forms[] = {
      {.wire = wire, .parsed_arguments = wire, .flat_content = !takes_parts, .texts_only = !takes_parts},
      {.wire = wire, .parsed_arguments = wire, .flat_content = true},
      {.wire = wire, .flat_content = true},
  };
  struct err other;
  bool failed = false;
  enum rc rc = check_request(c, r, err);
  if (rc == RC_OK) rc = encode_form(c, r, &forms[0], tokens_max, out, text, assistant, &failed, err);
  for (size_t i = 1; failed && i < sizeof forms / sizeof forms[0]; i++) {
    const struct chat_form *form = &forms[i], *before = &forms[i - 1];
    if (form->parsed_arguments == before->parsed_arguments && form->flat_content == before->flat_content) continue;
    if (encode_form(c, r, form, tokens_max, out, text, assistant, &failed, &other) == RC_OK) rc = RC_OK;
  }
  if (rc != RC_OK && err && !err->field[0]) strcpy(err->field, "messages");
  return rc;
}
