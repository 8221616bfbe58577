/* The values that a template computes with: Python's, as far as Jinja templates see them.
 *
 * Texts, lists and dicts lie in the workspace's arena (or in the template's, for constants) and never change once they
 * are visible, but for namespaces, which `set` assigns to, and iterators, which are read once.  A text's bytes are
 * UTF-8; what counts characters counts code points.  Every byte of a text knows where it comes from (enum mark). */
#ifndef LEASEHOLD_TEMPLATE_VALUES_KINDS_H
#define LEASEHOLD_TEMPLATE_VALUES_KINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/template/values/workspace.h"

enum value_kind {
  VALUE_UNDEFINED, /* a name, attribute or item that is not there */
  VALUE_NONE,
  VALUE_BOOL,
  VALUE_INT,
  VALUE_REAL,
  VALUE_TEXT,
  VALUE_LIST,
  VALUE_DICT,
  VALUE_NAMESPACE,
  VALUE_BUILTIN, /* a global function */
  VALUE_METHOD,  /* a method with its object */
  VALUE_MACRO,
  VALUE_LOOP /* `loop` inside of a for */
};

/* Bits of a byte of text. */
enum mark {
  MARK_DATA = 1,     /* from the conversation, not from the template */
  MARK_GENERATED = 2 /* inside of a {% generation %} block */
};

struct text {
  const char *bytes;
  const uint8_t *marks; /* of each byte; NULL: all bytes have `mark` */
  size_t len;
  uint8_t mark;
  bool safe; /* passed through `safe` or `escape`: + escapes the other side */
};

enum list_form {
  FORM_LIST,
  FORM_TUPLE,
  FORM_RANGE,
  FORM_VIEW,    /* of a dict: items(), keys(), values() */
  FORM_ITERATOR /* what filters such as map give: read once, without a length */
};

struct value {
  enum value_kind kind;
  union {
    const char *missing; /* VALUE_UNDEFINED: its name */
    bool truth;
    int64_t integer;
    double real;
    const struct text *text;
    struct list *list;
    struct dict *dict; /* also a namespace's */
    const struct builtin *builtin;
    const struct method *method;
    const struct macro *macro;
    struct loop *loop;
  };
};

struct list {
  struct value *items;
  size_t count, cap;
  enum list_form form;
};

struct dict_entry {
  struct value key, value;
};
struct dict {
  struct dict_entry *entries; /* in the order of insertion */
  size_t count, cap;
};

struct method {
  struct value self;
  const struct builtin *builtin;
};

/* The state of one running `for`; the statements' file runs it. */
struct loop {
  const struct node *node;
  struct scope *outside; /* where the for stands: a recursive loop starts there again */
  const struct list *items;
  size_t at;
  int64_t depth;
  struct value seen; /* by loop.changed */
  bool seen_any;
};

static inline struct value value_none(void) { return (struct value){.kind = VALUE_NONE}; }
static inline struct value value_bool(bool truth) { return (struct value){.kind = VALUE_BOOL, .truth = truth}; }
static inline struct value value_int(int64_t integer) { return (struct value){.kind = VALUE_INT, .integer = integer}; }
static inline struct value value_real(double real) { return (struct value){.kind = VALUE_REAL, .real = real}; }
static inline struct value value_text(const struct text *text) {
  return (struct value){.kind = VALUE_TEXT, .text = text};
}
static inline struct value value_list(struct list *list) { return (struct value){.kind = VALUE_LIST, .list = list}; }
static inline struct value value_dict(struct dict *dict) { return (struct value){.kind = VALUE_DICT, .dict = dict}; }
static inline struct value value_missing(const char *name) {
  return (struct value){.kind = VALUE_UNDEFINED, .missing = name};
}

#endif
