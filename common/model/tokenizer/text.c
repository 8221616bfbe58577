/* Splits text into words: added tokens are taken out, the rest is normalized and split by the pre-tokenizer's steps;
 * each word goes to the model.
 *
 * A step's pieces are handed to the next step one by one, depth first, so a text of any length needs no list of its
 * pieces.  Called by tokenizer_encode with a call's encoder; every step that changes text has a buffer of its own
 * there, because the steps behind it still read the piece. */
#include <string.h>

#include "common/model/tokenizer/tokenizer_state.h"

static enum rc split(struct encoder *e, int step, struct piece p, struct err *err);

/* One step's way through one piece. */
struct cutter {
  struct encoder *e;
  int step;
  struct piece whole;
  size_t start, stop;  /* of the piece that waits for what comes next */
  bool waits, matched; /* there is one; the segment before was a match */
};

static enum rc pass_on(const struct cutter *c, size_t start, size_t stop, struct err *err) {
  if (start == stop) return RC_OK;
  return split(
      c->e, c->step + 1,
      (struct piece){.text = c->whole.text + start, .len = stop - start, .first = c->whole.first && start == 0}, err);
}

/* What waited goes on, and the segment waits. */
static enum rc replace_waiting(struct cutter *c, size_t start, size_t stop, struct err *err) {
  const enum rc rc = c->waits ? pass_on(c, c->start, c->stop, err) : RC_OK;
  c->waits = true;
  c->start = start;
  c->stop = stop;
  return rc;
}

/* The next segment, a match or what lies between two. */
static enum rc take_segment(struct cutter *c, size_t start, size_t stop, bool is_match, struct err *err) {
  const bool joins_match = c->waits && is_match == c->matched, was_match = c->matched;
  c->matched = is_match;
  switch (c->e->t->splits[c->step].behavior) {
    case SPLIT_ISOLATED: return pass_on(c, start, stop, err);
    case SPLIT_REMOVED: return is_match ? RC_OK : pass_on(c, start, stop, err);
    case SPLIT_CONTIGUOUS:
      if (!joins_match) return replace_waiting(c, start, stop, err);
      c->stop = stop;
      return RC_OK;
    case SPLIT_MERGED_WITH_PREVIOUS:
      if (!c->waits || !is_match || was_match) return replace_waiting(c, start, stop, err);
      c->stop = stop;
      return RC_OK;
    default: /* SPLIT_MERGED_WITH_NEXT: only matches wait */
      if (is_match) return replace_waiting(c, start, stop, err);
      if (c->waits) start = c->start;
      c->waits = false;
      return pass_on(c, start, stop, err);
  }
}

static enum rc split_by_regex(struct encoder *e, int step, struct piece p, struct err *err) {
  const struct split_step *s = &e->t->splits[step];
  struct match_walk w = {.regex = s->regex, .text = p.text, .len = p.len};
  struct cutter c = {.e = e, .step = step, .whole = p};
  size_t done = 0;
  for (;;) {
    bool found;
    size_t start, stop;
    enum rc rc = match_next(&w, &e->matcher, &found, &start, &stop, err); /* the deeper steps use the matcher, too */
    if (rc == RC_OK && found && start > done) rc = take_segment(&c, done, start, s->invert, err);
    if (rc == RC_OK && found) rc = take_segment(&c, start, stop, !s->invert, err);
    if (rc != RC_OK) return rc;
    if (!found) break;
    done = stop;
  }
  enum rc rc = done < p.len ? take_segment(&c, done, p.len, s->invert, err) : RC_OK;
  if (rc == RC_OK && c.waits) rc = pass_on(&c, c.start, c.stop, err);
  return rc;
}

/* Replaces spaces and puts the prefix in front, as the step says. */
static enum rc change_piece(struct encoder *e, int step, struct piece *p, struct err *err) {
  const struct split_step *s = &e->t->splits[step];
  const bool wanted = s->prefix_when == PREFIX_ALWAYS || (s->prefix_when == PREFIX_FIRST && p->first);
  const bool prefixed = wanted && !literal_starts(p->text, p->len, &s->prefix) && !(s->space.text && p->text[0] == ' ');
  if (!prefixed && (!s->space.text || !memchr(p->text, ' ', p->len))) return RC_OK;
  struct buf *out = &e->changed[step];
  buf_clear(out);
  if (prefixed) buf_append(out, s->prefix.text, s->prefix.len);
  const char *end = p->text + p->len;
  for (const char *at = p->text; at < end;) {
    const char *space = s->space.text ? memchr(at, ' ', (size_t)(end - at)) : NULL;
    const char *stop = space ? space : end;
    buf_append(out, at, (size_t)(stop - at));
    if (space) buf_append(out, s->space.text, s->space.len);
    at = space ? space + 1 : end;
  }
  if (out->len > TOKENIZER_NORMAL_BYTES)
    return err_set(err, RC_TOO_LARGE, NULL, "expected a text of at most %d bytes before it is split, got %zu",
                   TOKENIZER_NORMAL_BYTES, out->len);
  p->text = out->data;
  p->len = out->len;
  return buf_check(out, err);
}

/* Splits a piece by the steps from `step` on and encodes the words. */
static enum rc split(struct encoder *e, int step, struct piece p, struct err *err) {
  if (step == e->t->split_count)
    return e->t->kind == MODEL_BPE ? bpe_encode_word(e, p.text, p.len, err)
                                   : unigram_encode_word(e, p.text, p.len, err);
  const enum rc rc = change_piece(e, step, &p, err);
  if (rc != RC_OK) return rc;
  return e->t->splits[step].regex ? split_by_regex(e, step, p, err) : split(e, step + 1, p, err);
}

/* Text without tokens of the raw set. */
static enum rc encode_plain(struct encoder *e, struct piece p, struct err *err) {
  const struct tokenizer *t = e->t;
  enum rc rc = normalize_piece(&p, t, e->normal, &e->matcher, err);
  struct added_match m;
  size_t at = 0, done = 0;
  while (rc == RC_OK && added_next(&m, &t->normalized, p.text, p.len, &at, done, e->parse_special)) {
    if (m.start > done)
      rc =
          split(e, 0, (struct piece){.text = p.text + done, .len = m.start - done, .first = p.first && done == 0}, err);
    if (rc == RC_OK) rc = encoder_push(e, m.id, err);
    done = m.stop;
  }
  if (rc != RC_OK || done >= p.len) return rc;
  return split(e, 0, (struct piece){.text = p.text + done, .len = p.len - done, .first = p.first && done == 0}, err);
}

enum rc text_encode(struct encoder *e, const char *text, size_t len, struct err *err) {
  struct added_match m;
  size_t at = 0, done = 0;
  enum rc rc = RC_OK;
  while (rc == RC_OK && added_next(&m, &e->t->raw, text, len, &at, done, e->parse_special)) {
    if (m.start > done)
      rc = encode_plain(e, (struct piece){.text = text + done, .len = m.start - done, .first = done == 0}, err);
    if (rc == RC_OK) rc = encoder_push(e, m.id, err);
    done = m.stop;
  }
  if (rc != RC_OK || done >= len) return rc;
  return encode_plain(e, (struct piece){.text = text + done, .len = len - done, .first = done == 0}, err);
}
