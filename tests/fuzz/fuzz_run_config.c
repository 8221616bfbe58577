/* What POST /v1/runs is sent: refused with a sentence, or resolved to a configuration that resolves to itself; but a
 * start by "best" or "latest" is resolved by the database. */
#include <string.h>

#include "services/coordinator/run/run_config.h"
#include "tests/fuzz/fuzz.h"

static void write(const struct run_config *config, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  run_config_write(config, &w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct run_config config, again;
  struct arena arena = ARENA_INIT;
  struct json *body = NULL;
  struct buf first = BUF_INIT, second = BUF_INIT;
  struct err err = {0};
  enum rc rc = json_parse(&body, (const char *)data, size, 0, &err);
  if (rc == RC_OK) rc = run_config_parse(&config, body, &arena, &err);
  FUZZ_CHECK(rc == RC_OK || err.message[0]);
  if (rc == RC_OK && config.start_named == START_NUMBERED) {
    write(&config, &first);
    FUZZ_CHECK(run_config_parse_stored(&again, first.data, first.len, &arena, &err) == RC_OK);
    write(&again, &second);
    FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
  }
  json_free(body);
  buf_free(&first);
  buf_free(&second);
  arena_free(&arena);
  return 0;
}
