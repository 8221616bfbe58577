/* Chat templates: a source and, behind a NUL, the variables as JSON.  A rendering ends within its bounds, with a text
 * or with a sentence, and is the same each time. */
#include <string.h>

#include "common/json/json.h"
#include "common/template/template.h"
#include "common/template/values/from_json.h"
#include "tests/fuzz/fuzz.h"

static enum rc render(const struct template *t, const struct json *variables, struct buf *out, struct err *err) {
  struct workspace w = template_workspace(err);
  struct value value;
  const struct text *text;
  w.now_ms = INT64_C(1700000000000);
  enum rc rc = value_from_json(&w, variables, MARK_DATA, &value);
  if (rc == RC_OK) rc = template_render(t, &w, value.dict, &text);
  if (rc == RC_OK) buf_append(out, text->bytes, text->len);
  template_workspace_free(&w);
  return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct template *t = NULL;
  struct json *variables = NULL;
  struct buf first = BUF_INIT, second = BUF_INIT;
  struct err err = {0}, again = {0};
  const char *source = (const char *)data, *end = memchr(data, 0, size);
  const size_t len = end ? (size_t)(end - source) : size;
  const char *text = end ? end + 1 : "{}";
  enum rc rc = template_parse(&t, source, len, &err);
  FUZZ_CHECK(rc == RC_OK || err.message[0]);
  if (rc == RC_OK) rc = json_parse(&variables, text, end ? size - len - 1 : 2, 0, &err);
  if (rc == RC_OK && json_type_of(variables) == JSON_OBJECT) {
    rc = render(t, variables, &first, &err);
    FUZZ_CHECK(rc == RC_OK || err.message[0]);
    FUZZ_CHECK(first.len <= TEMPLATE_TEXT_BYTES);
    FUZZ_CHECK(render(t, variables, &second, &again) == rc);
    FUZZ_CHECK(first.len == second.len && (first.len == 0 || memcmp(first.data, second.data, first.len) == 0));
  }
  json_free(variables);
  template_free(t);
  buf_free(&first);
  buf_free(&second);
  return 0;
}
