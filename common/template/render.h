/* The state of one rendering, which the evaluator of expressions and the runner of statements share; and scopes.
 * Private to common/template. */
#ifndef LEASEHOLD_TEMPLATE_RENDER_H
#define LEASEHOLD_TEMPLATE_RENDER_H

#include "common/template/builtins/builtin.h"
#include "common/template/syntax/tree.h"
#include "common/template/values/value.h"

struct template {
  struct arena arena;
  const char *source;
  const char **names;
  int names_count;
  int loop_name, rest_name, named_name; /* of "loop", "varargs", "kwargs"; -1: the template has no such name */
  struct node_list body;
};

/* What `set` and loops bind.  Looked up from the inside out, at the time of use: a macro sees the variables around its
 * definition as they are when it is called. */
struct binding {
  int name;
  struct value value;
};
struct scope {
  struct scope *outside;
  struct binding *items;
  size_t count, cap;
};

struct macro {
  const struct macro_node *node;
  struct scope *scope; /* around the definition */
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

/* Expressions and bodies contain each other: what calls outwards goes through these, set by template.c. */
struct render {
  enum rc (*evaluate)(struct render *r, const struct node *node, struct value *out);
  /* Runs a body into a text of its own, in a scope. */
  enum rc (*body_as_text)(struct render *r, struct scope *scope, const struct node_list *body, struct value *out);
  /* A recursive loop's call: the for once more, over other items. */
  enum rc (*loop_again)(struct render *r, const struct loop *loop, struct value items, struct value *out);
  struct workspace *w;
  const struct template *template;
  const struct value *given; /* [names_count]: variables and global functions */
  struct scope *scope;
  struct text_builder *out;
  enum flow flow;
  struct value block; /* the text that a block's filters start from */
};

/* --- scope.c --- */
struct scope *scope_new(struct render *r, struct scope *outside); /* NULL: r->w->rc */
enum rc scope_set(struct render *r, struct scope *scope, int name, struct value v);
enum rc scope_find(struct render *r, int name, struct value *out);
/* Assigns to a name, to each of a tuple of names, or to a namespace's attribute. */
enum rc assign(struct render *r, const struct node *target, struct value v);

/* --- evaluate.c --- */
enum rc evaluate(struct render *r, const struct node *node, struct value *out);
/* A call, with the macro that `caller` names inside of the called one, or NULL. */
enum rc evaluate_call(struct render *r, const struct node *node, const struct macro *caller, struct value *out);

/* --- call.c --- */
enum rc call_arguments(struct render *r, const struct argument_list *list, struct call_values *out);
enum rc call_value(struct render *r, struct value function, const struct call_values *values,
                   const struct macro *caller, struct value *out);

/* --- statements.c --- */
enum rc run_body(struct render *r, const struct node_list *body);
/* Runs a body into a text of its own, in a scope. */
enum rc run_body_as_text(struct render *r, struct scope *scope, const struct node_list *body, struct value *out);
/* A recursive loop's call: the for once more, over other items. */
enum rc run_loop_again(struct render *r, const struct loop *loop, struct value items, struct value *out);

#endif
