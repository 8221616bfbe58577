/* Says what a template does with a member of its variables, by its tree alone: nothing is rendered.
 *
 * Chat templates differ in what they take as a message's content: a text, or also a list of parts.  Those of the first
 * kind rarely fail on a list; they print it as it is, or leave it out.  A template that takes parts loops over them,
 *
 *   {% for part in message.content %}       {% for part in message['content'] | selectattr('type', 'eq', 'text') %}
 *   {% set content = message.content %}{% for part in content %}
 *   {% macro show(content) %}{% for part in content %} ... {{ show(message.content) }}
 *
 * hands them to a filter that does, or reads the text of one by its place.  So names are followed from what is assigned
 * to them, and parameters of macros from what they are called with, wherever both stand: a name holds the member when
 * anything gives it the member.  Called while a chat template is loaded. */
#include <stdlib.h>
#include <string.h>

#include "common/template/render.h"
#include "common/template/template.h"

enum { PASSES_MAX = 8 }; /* how many names the member may go through, where each is given it after its use */

struct search {
  const char *member;
  bool *holds;                      /* [names_count]: the name may hold the member */
  const struct macro_node **macros; /* [names_count]: of this name, or NULL */
  bool changed, found;
};

/* --- the member --- */

static bool is_text_constant(const struct node *node, const char *text) {
  return node->kind == NODE_CONSTANT && node->constant.kind == VALUE_TEXT && text_is(node->constant.text, text);
}

static bool reads(const struct node *node, const char *member) {
  if (node->kind == NODE_ATTRIBUTE) return text_is(node->attribute.name, member);
  return node->kind == NODE_SUBSCRIPT && is_text_constant(node->subscript.index, member);
}

/* The member, some of its items, or one of several values of which it is one. */
static bool is_member(const struct search *s, const struct node *node) {
  if (reads(node, s->member)) return true;
  switch (node->kind) {
    case NODE_NAME: return s->holds[node->name];
    case NODE_SUBSCRIPT: return node->subscript.index->kind == NODE_SLICE && is_member(s, node->subscript.object);
    case NODE_FILTER: return node->apply.input && is_member(s, node->apply.input);
    case NODE_AND:
    case NODE_OR: return is_member(s, node->binary.left) || is_member(s, node->binary.right);
    case NODE_CHOICE:
      return is_member(s, node->choice.then) || (node->choice.otherwise && is_member(s, node->choice.otherwise));
    default: return false;
  }
}

static void note(struct search *s, const struct node *target, const struct node *value) {
  if (target->kind != NODE_NAME || s->holds[target->name] || !is_member(s, value)) return;
  s->holds[target->name] = s->changed = true;
}

static bool takes_items(const struct node *filter) {
  static const char *const names[] = {"map", "select", "selectattr", "reject", "rejectattr"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(filter->apply.name, names[i]) == 0) return true;
  return false;
}

/* --- the walk --- */

static void walk(struct search *s, const struct node *node);

static void walk_list(struct search *s, const struct node_list *list) {
  for (size_t i = 0; i < list->count; i++) walk(s, list->items[i]);
}

static void walk_arguments(struct search *s, const struct argument_list *list) {
  for (size_t i = 0; i < list->count; i++) walk(s, list->items[i].value);
}

static void walk_call(struct search *s, const struct node *node) {
  const struct node *function = node->call.function;
  const struct argument_list *arguments = &node->call.arguments;
  const struct macro_node *macro = function->kind == NODE_NAME ? s->macros[function->name] : NULL;
  walk(s, function);
  walk_arguments(s, arguments);
  for (size_t i = 0; macro && i < arguments->count; i++) {
    const struct argument *a = &arguments->items[i];
    for (size_t k = 0; k < macro->parameters.count; k++) {
      const struct node *parameter = macro->parameters.items[k];
      if (a->kind == ARGUMENT_PLAIN ? k == i : a->kind == ARGUMENT_NAMED && parameter->name == a->name)
        note(s, parameter, a->value);
    }
  }
}

static void walk_macro(struct search *s, const struct macro_node *macro) {
  if (!s->macros[macro->name]) { /* of two by one name the first counts */
    s->macros[macro->name] = macro;
    s->changed = true;
  }
  walk_list(s, &macro->defaults);
  walk_list(s, &macro->body);
}

static void walk_statement(struct search *s, const struct node *node) {
  switch (node->kind) {
    case NODE_PRINT: walk(s, node->operand); break;
    case NODE_IF:
      for (size_t i = 0; i < node->choose.count; i++) {
        if (node->choose.branches[i].test) walk(s, node->choose.branches[i].test);
        walk_list(s, &node->choose.branches[i].body);
      }
      break;
    case NODE_FOR:
      s->found |= is_member(s, node->loop.items);
      walk(s, node->loop.items);
      if (node->loop.test) walk(s, node->loop.test);
      walk_list(s, &node->loop.body);
      walk_list(s, &node->loop.otherwise);
      break;
    case NODE_SET:
      note(s, node->set.target, node->set.value);
      walk(s, node->set.value);
      break;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
      if (node->set.value) walk(s, node->set.value);
      walk_list(s, &node->set.body);
      break;
    case NODE_MACRO: walk_macro(s, &node->macro); break;
    case NODE_CALL_BLOCK:
      walk(s, node->call_block.call);
      walk_list(s, &node->call_block.macro->macro.body);
      break;
    case NODE_WITH:
      for (size_t i = 0; i < node->with.targets.count; i++)
        note(s, node->with.targets.items[i], node->with.values.items[i]);
      walk_list(s, &node->with.values);
      walk_list(s, &node->with.body);
      break;
    case NODE_GENERATION: walk_list(s, &node->body); break;
    default: break;
  }
}

static void walk(struct search *s, const struct node *node) {
  switch (node->kind) {
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_DICT:
    case NODE_CONCAT: walk_list(s, &node->items); break;
    case NODE_NOT:
    case NODE_NEGATE:
    case NODE_POSITIVE: walk(s, node->operand); break;
    case NODE_BINARY:
    case NODE_AND:
    case NODE_OR:
      walk(s, node->binary.left);
      walk(s, node->binary.right);
      break;
    case NODE_COMPARE:
      walk(s, node->compare.left);
      for (size_t i = 0; i < node->compare.count; i++) walk(s, node->compare.items[i].right);
      break;
    case NODE_CHOICE:
      walk(s, node->choice.test);
      walk(s, node->choice.then);
      if (node->choice.otherwise) walk(s, node->choice.otherwise);
      break;
    case NODE_ATTRIBUTE: walk(s, node->attribute.object); break;
    case NODE_SUBSCRIPT:
      walk(s, node->subscript.object);
      walk(s, node->subscript.index);
      break;
    case NODE_SLICE:
      if (node->slice.from) walk(s, node->slice.from);
      if (node->slice.to) walk(s, node->slice.to);
      if (node->slice.step) walk(s, node->slice.step);
      break;
    case NODE_CALL: walk_call(s, node); break;
    case NODE_FILTER:
    case NODE_TEST:
      if (node->kind == NODE_FILTER && takes_items(node) && is_member(s, node)) s->found = true;
      if (node->apply.input) walk(s, node->apply.input);
      walk_arguments(s, &node->apply.arguments);
      break;
    default: walk_statement(s, node); break;
  }
  if (reads(node, "text")) { /* of one item, by its place */
    const struct node *item = node->kind == NODE_ATTRIBUTE ? node->attribute.object : node->subscript.object;
    s->found |= item->kind == NODE_SUBSCRIPT && item->subscript.index->kind == NODE_CONSTANT &&
                item->subscript.index->constant.kind != VALUE_TEXT && is_member(s, item->subscript.object);
  }
}

enum rc template_reads_parts(const struct template *t, const char *member, bool *out, struct err *err) {
  const size_t names = (size_t)t->names_count + 1;
  struct search s = {.member = member, .changed = true};
  s.holds = calloc(names, sizeof *s.holds);
  s.macros = calloc(names, sizeof *s.macros);
  enum rc rc = RC_OK;
  if (!s.holds || !s.macros) rc = err_set(err, RC_NO_MEMORY, NULL, "%zu names were refused memory", names);
  for (int i = 0; rc == RC_OK && s.changed && !s.found && i < PASSES_MAX; i++) {
    s.changed = false;
    walk_list(&s, &t->body);
  }
  *out = s.found;
  free(s.holds);
  free(s.macros);
  return rc;
}
