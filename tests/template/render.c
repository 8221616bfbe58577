/* Renders templates for comparison with jinja2: reads lines {"template": text, "variables": object, "now_ms": n} from
 * its standard input and answers each with a line {"text": ..., "generated": [[from, to], ...]} (bytes of generation
 * blocks, as characters) or {"error": ...}.  tests/e2e/test_templates.py and tests/template/compare.py start it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/template/template.h"
#include "common/template/values/from_json.h"

/* Ranges of characters whose mark has the bit. */
static void write_ranges(struct json_writer *out, const struct text *text, uint8_t bit) {
  size_t character = 0;
  bool inside = false;
  json_array_begin(out);
  for (size_t at = 0; at <= text->len; at += at < text->len ? text_step(text, at) : 1, character++) {
    const bool marked = at < text->len && ((text->marks ? text->marks[at] : text->mark) & bit);
    if (marked && !inside) json_array_begin(out);
    if (marked != inside) json_write_int(out, (int64_t)character);
    if (!marked && inside) json_array_end(out);
    inside = marked;
  }
  json_array_end(out);
}

static enum rc render(const struct json *request, struct json_writer *out, struct err *err) {
  const struct json *source = json_get(request, "template"), *now = json_get(request, "now_ms");
  struct workspace w = template_workspace(err);
  struct template *t = NULL;
  struct value variables;
  const struct text *text;
  size_t len;
  const char *bytes = json_string(source, &len);
  if (now) w.now_ms = json_int(now);
  enum rc rc = template_parse(&t, bytes, len, err);
  if (rc == RC_OK) rc = value_from_json(&w, json_get(request, "variables"), MARK_DATA, &variables);
  if (rc == RC_OK) rc = template_render(t, &w, variables.dict, &text);
  if (rc == RC_OK) {
    json_key(out, "text");
    json_write_string_len(out, text->bytes, text->len);
    json_key(out, "generated");
    write_ranges(out, text, MARK_GENERATED);
    json_key(out, "data");
    write_ranges(out, text, MARK_DATA);
  }
  template_free(t);
  template_workspace_free(&w);
  return rc;
}

int main(void) {
  char *line = NULL;
  size_t cap = 0;
  for (ssize_t len; (len = getline(&line, &cap, stdin)) > 0;) {
    struct json *request = NULL;
    struct err err = {0};
    struct buf answer = BUF_INIT;
    struct json_writer out;
    json_writer_init(&out, &answer);
    json_object_begin(&out);
    enum rc rc = json_parse(&request, line, (size_t)len, 0, &err);
    if (rc == RC_OK) rc = render(request, &out, &err);
    if (rc != RC_OK) json_kv_string(&out, "error", err.message);
    json_object_end(&out);
    printf("%.*s\n", (int)answer.len, answer.data);
    fflush(stdout);
    json_free(request);
    buf_free(&answer);
  }
  free(line);
  return 0;
}
