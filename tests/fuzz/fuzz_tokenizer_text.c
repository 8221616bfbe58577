/* Texts under tokenizers of four kinds (the first byte chooses): what is encoded decodes, and ids of a text are in the
 * vocabulary, special ones only where they may be. */
#include <string.h>

#include "common/model/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static const char *const files[] = {"tests/golden/tokenizer/qwen2.json", "tests/golden/tokenizer/gpt2.json",
                                    "tests/golden/tokenizer/families/llama2.json",
                                    "tests/golden/tokenizer/families/unigram_bytes.json",
                                    "tests/golden/tokenizer/families/deepseek3.json"};
enum { FILES = sizeof files / sizeof files[0] };
static struct tokenizer *tokenizers[FILES];

static const struct tokenizer *tokenizer_of(unsigned which) {
  struct err err = {0};
  if (!tokenizers[which] && tokenizer_load(&tokenizers[which], files[which], &err) != RC_OK) {
    fprintf(stderr, "%s: %s\n", files[which], err.message);
    exit(1);
  }
  return tokenizers[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct token_ids ids = {0};
  struct buf out = BUF_INIT;
  struct err err = {0};
  if (size < 1) return 0;
  const struct tokenizer *t = tokenizer_of(data[0] % FILES);
  const bool special = data[0] >= 128;
  const char *text = (const char *)data + 1;
  const size_t before = ids.count;
  if (tokenizer_encode(t, text, size - 1, special, 10000, &ids, &err) == RC_OK) {
    for (size_t i = 0; i < ids.count; i++) {
      FUZZ_CHECK(ids.items[i] >= 0 && ids.items[i] < tokenizer_vocabulary(t));
      FUZZ_CHECK(special || !tokenizer_is_special(t, ids.items[i]));
    }
    FUZZ_CHECK(tokenizer_decode(t, ids.items, ids.count, false, &out, &err) == RC_OK);
  } else {
    FUZZ_CHECK(err.message[0] && ids.count == before);
  }
  token_ids_free(&ids);
  buf_free(&out);
  return 0;
}
