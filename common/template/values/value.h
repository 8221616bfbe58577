/* Truth, equality and order of values, as Python has them; dicts; and iterating. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_VALUE_H
#define LEASEHOLD_TEMPLATE_VALUES_VALUE_H

#include "common/template/values/text.h"

/* Python's name of the type, for messages. */
const char *value_type(struct value v);
bool value_true(struct value v);
/* bool, int or float; *out as a double. */
bool value_number(struct value v, double *out);
/* bool or int. */
bool value_integer(struct value v, int64_t *out);
/* Python's ==. */
enum rc value_equal(struct workspace *w, struct value a, struct value b, bool *out);
/* Python's <: a negative, zero or positive *out; RC_INVALID for values without an order. */
enum rc value_order(struct workspace *w, struct value a, struct value b, int *out);
/* RC_INVALID when v is undefined: it may be asked about and printed, not computed with. */
enum rc value_check_defined(struct workspace *w, struct value v);

/* --- lists and dicts --- */
/* What iterating over v gives: a list's items, a dict's keys, a text's characters; nothing for undefined.  The items
 * of an iterator are taken out of it. */
enum rc value_items(struct workspace *w, struct value v, struct list **out);
struct dict *dict_new(struct workspace *w, size_t cap);                                                /* NULL: w->rc */
enum rc dict_find(struct workspace *w, const struct dict *dict, struct value key, struct value **out); /* NULL: none */
enum rc dict_set(struct workspace *w, struct dict *dict, struct value key, struct value v);
/* By a C string, for names. */
struct value *dict_find_name(const struct dict *dict, const char *name);
/* The pairs, keys or values of a dict as a list of the given form. */
enum dict_part { DICT_ITEMS, DICT_KEYS, DICT_VALUES };
enum rc dict_part(struct workspace *w, const struct dict *dict, enum dict_part part, enum list_form form,
                  struct list **out);

#endif
