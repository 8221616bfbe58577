/* Lists in a workspace: they grow in its arena. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_LIST_H
#define LEASEHOLD_TEMPLATE_VALUES_LIST_H

#include "common/template/values/kinds.h"

struct list *list_new(struct workspace *w, enum list_form form, size_t cap); /* NULL: w->rc */
enum rc list_append(struct workspace *w, struct list *list, struct value v);

#endif
