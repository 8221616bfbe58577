/* Texts: UTF-8 bytes, each with a mark that says where it comes from.  Cutting shares the bytes, joining copies bytes
 * and marks, so that a message's text stays known as such wherever a template puts it.
 *
 * Offsets are in bytes unless a name says characters. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_TEXT_H
#define LEASEHOLD_TEMPLATE_VALUES_TEXT_H

#include "common/base/buf.h"
#include "common/template/values/list.h"

/* A text of the template's own, from a C string that outlives it. */
enum rc text_of(struct workspace *w, const char *bytes, struct value *out);
/* The same for len bytes with a mark.  The bytes are shared. */
enum rc text_share(struct workspace *w, const char *bytes, size_t len, uint8_t mark, struct value *out);
bool text_is(const struct text *text, const char *word);
int text_order(const struct text *a, const struct text *b);
/* The length of the character at `at`, in bytes. */
size_t text_step(const struct text *text, size_t at);
/* The code point at `at`. */
uint32_t text_code_at(const struct text *text, size_t at);
size_t text_characters(const struct text *text);
/* Where character number `character` begins; text->len beyond the last. */
size_t text_offset(const struct text *text, size_t character);
/* Bytes [from, to). */
enum rc text_cut(struct workspace *w, const struct text *text, size_t from, size_t to, struct value *out);
/* Where `what` stands first at or after `from`, or last; SIZE_MAX when it is not there. */
size_t text_find(const struct text *text, const struct text *what, size_t from);
size_t text_find_last(const struct text *text, const struct text *what, size_t end);
bool text_begins(const struct text *text, const struct text *with);
bool text_ends(const struct text *text, const struct text *with);
/* Python's white space. */
bool code_is_space(uint32_t code);
/* The length of white space that s ends with. */
size_t space_before_end(const char *s, size_t len);
/* The length of white space that s begins with. */
size_t space_at_start(const char *s, size_t len);
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
/* Without the characters of `of` at its ends; NULL: white space. */
enum rc text_strip(struct workspace *w, const struct text *text, const struct text *of, int sides, struct value *out);
enum rc text_replace(struct workspace *w, const struct text *text, const struct text *old, const struct text *with,
                     int64_t most, struct value *out);
/* Python's split, from the left or the right; sep NULL: by white space.  most < 0: everywhere. */
enum rc text_split(struct workspace *w, const struct text *text, const struct text *sep, int64_t most, bool from_right,
                   struct list **out);
enum rc text_lines(struct workspace *w, const struct text *text, bool keep_ends, struct list **out);

/* Makes a text piece by piece.  A builder that was begun is ended by exactly one of finish and free. */
struct text_builder {
  struct workspace *w;
  struct buf bytes, marks;
};
static inline struct text_builder builder_begin(struct workspace *w) { return (struct text_builder){.w = w}; }
enum rc builder_text(struct text_builder *b, const struct text *text);
enum rc builder_bytes(struct text_builder *b, const char *bytes, size_t len, uint8_t mark);
enum rc builder_word(struct text_builder *b, const char *word);
enum rc builder_code(struct text_builder *b, uint32_t code, uint8_t mark);
/* Copies the text into the arena. */
enum rc builder_finish(struct text_builder *b, struct value *out);
void builder_free(struct text_builder *b);

#endif
