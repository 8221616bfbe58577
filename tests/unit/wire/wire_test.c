/* Checks a codec with a message as literal JSON: the round trip, every way to spoil it, and single replacements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/wire/wire_test.h"

enum spoil { SPOIL_DROP, SPOIL_NULL, SPOIL_TYPE, SPOIL_TWICE, SPOIL_SURPLUS };

struct spoiler {
  enum spoil how;
  int target, seen; /* of members and elements in document order; of objects for SPOIL_SURPLUS */
  char key[64];     /* the member that was hit; of an element its array's, with [] */
  bool hit, in_array;
};

enum rc message_try(const struct message *m, const char *text, size_t len, struct buf *out, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct buf again = BUF_INIT;
  struct json *root = NULL;
  enum rc rc = json_parse(&root, text, len, 1u << 30, err);
  if (rc == RC_OK) rc = m->again(root, out ? out : &again, &arena, err);
  json_free(root);
  arena_free(&arena);
  buf_free(&again);
  return rc;
}

void message_check_round_trip(const struct message *m) {
  struct buf out = BUF_INIT;
  struct err err = {0};
  if (message_try(m, m->json, strlen(m->json), &out, &err) != RC_OK)
    fail_msg("%s: %s: %s", m->name, err.field, err.message);
  assert_string_equal(out.data, m->json);
  buf_free(&out);
}

static void rewrite(struct json_writer *w, const char *key, const struct json *v, struct spoiler *s);

/* Writes one member or element, spoilt when it is the target's turn. */
static void rewrite_item(struct json_writer *w, const char *array, const char *key, const struct json *v,
                         struct spoiler *s) {
  const bool mine = s->how != SPOIL_SURPLUS && s->seen++ == s->target;
  if (mine) {
    s->hit = true;
    s->in_array = !key;
    snprintf(s->key, sizeof s->key, "%s%s", key ? key : array, key ? "" : "[]");
  }
  if (mine && s->how == SPOIL_DROP && key) return;
  if (key) json_key(w, key);
  if (mine && s->how == SPOIL_NULL) {
    json_write_null(w);
  } else if (mine && s->how == SPOIL_TYPE) {
    if (json_type_of(v) == JSON_BOOL)
      json_write_int(w, 1);
    else
      json_write_bool(w, true);
  } else {
    rewrite(w, key, v, s);
    if (mine && s->how == SPOIL_TWICE && key) {
      json_key(w, key);
      json_write_value(w, v);
    }
  }
}

static void rewrite(struct json_writer *w, const char *key, const struct json *v, struct spoiler *s) {
  if (json_type_of(v) == JSON_ARRAY) {
    json_array_begin(w);
    for (size_t i = 0; i < json_length(v); i++) rewrite_item(w, key, NULL, json_at(v, i), s);
    json_array_end(w);
  } else if (json_type_of(v) == JSON_OBJECT) {
    void *cursor = NULL;
    const char *member;
    const struct json *value;
    json_object_begin(w);
    if (s->how == SPOIL_SURPLUS && s->seen++ == s->target) {
      s->hit = true;
      json_kv_int(w, "surplus", 1);
    }
    while (json_next(v, &cursor, &member, &value)) rewrite_item(w, NULL, member, value, s);
    json_object_end(w);
  } else {
    json_write_value(w, v);
  }
}

static bool listed(const char *const *names, const char *name) {
  for (int i = 0; i < 10 && names[i]; i++)
    if (strcmp(names[i], name) == 0) return true;
  return false;
}

/* Whether the message must still be accepted after this. */
static bool harmless(const struct message *m, const struct spoiler *s) {
  if (s->in_array && s->how != SPOIL_TYPE && s->how != SPOIL_NULL) return true; /* nothing was changed */
  if (s->how == SPOIL_DROP) return listed(m->optional, s->key);
  if (s->how == SPOIL_NULL) return listed(m->optional, s->key) || listed(m->nullable, s->key);
  return false;
}

static void check_spoilt_by(const struct message *m, const struct json *root, enum spoil how) {
  int changes = 0;
  for (int target = 0;; target++) {
    struct spoiler s = {.how = how, .target = target};
    struct buf text = BUF_INIT;
    struct json_writer w;
    struct err err = {0};
    json_writer_init(&w, &text);
    rewrite(&w, "", root, &s);
    if (s.hit) {
      const enum rc rc = message_try(m, text.data, text.len, NULL, &err);
      if (harmless(m, &s)) {
        if (rc != RC_OK)
          fail_msg("%s: expected to be accepted: %s (%s: %s)", m->name, text.data, err.field, err.message);
      } else {
        if (rc != RC_INVALID) fail_msg("%s: expected to be refused, got %s: %s", m->name, rc_name(rc), text.data);
        if (strlen(err.message) < 10) fail_msg("%s: no sentence for %s", m->name, text.data);
      }
      changes++;
    }
    buf_free(&text);
    if (!s.hit) break;
  }
  assert_true(changes > 0);
}

void message_check_spoilt(const struct message *m) {
  struct json *root = NULL;
  struct err err = {0};
  assert_int_equal(json_parse(&root, m->json, strlen(m->json), 0, &err), RC_OK);
  for (int how = SPOIL_DROP; how <= SPOIL_SURPLUS; how++) check_spoilt_by(m, root, (enum spoil)how);
  json_free(root);
  for (size_t cut = 0; cut < strlen(m->json); cut++)
    if (message_try(m, m->json, cut, NULL, &err) != RC_INVALID)
      fail_msg("%s: expected the first %zu bytes to be refused", m->name, cut);
  static const char *const others[] = {"null", "true", "[]", "7", "\"text\"", "{}"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    assert_int_equal(message_try(m, others[i], strlen(others[i]), NULL, &err), RC_INVALID);
}

char *message_replaced(const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  if (!at) fail_msg("the literal holds no %s", from);
  char *out = NULL;
  if (asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) < 0) fail_msg("no memory");
  return out;
}

void message_check_refused(const struct message *m, const char *from, const char *to, const char *field) {
  struct err err = {0};
  char *text = message_replaced(m->json, from, to);
  const enum rc rc = message_try(m, text, strlen(text), NULL, &err);
  if (rc != RC_INVALID) fail_msg("%s: expected %s to be refused, got %s %s", m->name, to, rc_name(rc), err.message);
  if (field && strcmp(field, err.field) != 0)
    fail_msg("%s: expected field %s for %s, got \"%s\": %s", m->name, field, to, err.field, err.message);
  free(text);
}

void message_check_accepted(const struct message *m, const char *from, const char *to) {
  struct err err = {0};
  char *text = message_replaced(m->json, from, to);
  if (message_try(m, text, strlen(text), NULL, &err) != RC_OK)
    fail_msg("%s: expected %s to be accepted: %s: %s", m->name, to, err.field, err.message);
  free(text);
}
