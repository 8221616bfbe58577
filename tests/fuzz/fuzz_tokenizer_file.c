/* tokenizer.json: any file is refused with a sentence, or encodes and decodes. */
#include <string.h>

#include "common/model/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "Hello, w\xc3\xb6rld <|im_end|> 12345 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82\n\t<s>";
  struct tokenizer *t = NULL;
  struct token_ids ids = {0};
  struct buf out = BUF_INIT;
  struct err err = {0};
  if (tokenizer_parse(&t, (const char *)data, size, &err) != RC_OK) {
    FUZZ_CHECK(err.message[0]);
    return 0;
  }
  const int32_t vocabulary = tokenizer_vocabulary(t);
  if (tokenizer_encode_prompt(t, text, strlen(text), 1000, &ids, &err) == RC_OK) {
    for (size_t i = 0; i < ids.count; i++) FUZZ_CHECK(ids.items[i] >= 0 && ids.items[i] < vocabulary);
    FUZZ_CHECK(tokenizer_decode(t, ids.items, ids.count, false, &out, &err) == RC_OK);
  }
  token_ids_free(&ids);
  buf_free(&out);
  tokenizer_free(t);
  return 0;
}
