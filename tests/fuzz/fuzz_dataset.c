/* Lines of a dataset, under every preset and with and without a completion; the first byte chooses.  A line is refused
 * with a sentence, or its ids are the tokenizer's. */
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/run/dataset_line.h"
#include "services/coordinator/verifiers/reward_config.h"
#include "tests/fuzz/fuzz.h"

static const char *const presets[] = {NULL, "gsm8k", "dapo", "verl", "trl", "slime"};
enum { PRESETS = sizeof presets / sizeof presets[0] };
static struct tokenizer *tokenizer;

static void read_line(const struct json *object, unsigned how) {
  struct arena arena = ARENA_INIT;
  struct reading reading;
  struct reading_given given;
  struct reward_rule rule;
  struct dataset_item item = {.line = 1, .answer = "", .extra = "{}"};
  struct err err = {0};
  bool left_out = false;
  reading_defaults(&reading);
  reading_given_init(&given);
  given.preset = presets[how % PRESETS];
  FUZZ_CHECK(!given.preset || reading_resolve(&reading, &given, &arena, &err) == RC_OK);
  reward_rule_of(&rule, (enum verifier_kind)(how / 16 % 4));
  const struct dataset_options options = {.field = "dataset.path",
                                          .name = "lines",
                                          .reading = &reading,
                                          .prompt_tokens_max = 512,
                                          .completion_tokens_max = 512,
                                          .sequence_tokens_max = 600,
                                          .new_tokens_max = 256,
                                          .need_completion = how & 8,
                                          .need_answer = how & 64,
                                          .verifier = how & 128 ? &rule : NULL,
                                          .eos = 1};
  struct line_context line = {.tokenizer = tokenizer, .options = &options, .reading = &reading, .arena = &arena};
  const enum rc rc = dataset_line_read(&line, object, &item, &left_out, &err);
  FUZZ_CHECK(rc == RC_OK || err.message[0]);
  if (rc == RC_OK && !left_out) {
    FUZZ_CHECK(item.prompt_length > 0 && item.prompt_length <= options.prompt_tokens_max);
    for (int i = 0; i < item.prompt_length; i++)
      FUZZ_CHECK(item.prompt_ids[i] >= 0 && item.prompt_ids[i] < tokenizer_vocabulary(tokenizer));
    FUZZ_CHECK(item.answer && item.extra[0] == '{');
  }
  token_ids_free(&line.scratch);
  arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct json *object = NULL;
  struct err err = {0};
  if (size < 1) return 0;
  if (!tokenizer && tokenizer_load(&tokenizer, "deploy/demo/model/tokenizer.json", &err) != RC_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(1);
  }
  if (json_parse(&object, (const char *)data + 1, size - 1, LIMIT_DATASET_LINE_BYTES, &err) == RC_OK)
    read_line(object, data[0]);
  json_free(object);
  return 0;
}
