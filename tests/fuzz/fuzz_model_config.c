/* config.json of models, and behind a NUL generation_config.json: refused with a sentence, or consistent. */
#include <string.h>

#include "common/model/network/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct model_config config;
  struct err err = {0};
  const char *text = (const char *)data, *end = memchr(data, 0, size);
  const size_t len = end ? (size_t)(end - text) : size;
  memset(&config, 0, sizeof config);
  if (model_config_parse(&config, text, len, &err) != RC_OK) {
    FUZZ_CHECK(err.message[0]);
    return 0;
  }
  for (int layer = 0; layer < config.layers; layer++) {
    FUZZ_CHECK(model_config_window(&config, layer) >= 0);
    model_config_sparse(&config, layer);
  }
  FUZZ_CHECK(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0);
  FUZZ_CHECK(config.vocabulary > 0 && config.hidden > 0);
  if (end && model_config_add_generation(&config, end + 1, size - len - 1, &err) != RC_OK) FUZZ_CHECK(err.message[0]);
  return 0;
}
