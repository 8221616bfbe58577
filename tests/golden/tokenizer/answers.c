/* Answers questions about one tokenizer.json: the side of tests/golden/tokenizer/compare that is ours.
 *
 *   answers tokenizer.json < questions > answers
 *
 * A question is a kind, a count (32 bits, this machine's order) and that many bytes or ids; an answer is a count and
 * that many ids or bytes, or -1, a length and a message.  Kinds: e text, special tokens parsed; p plain text; b prompt;
 * d ids to text; s the same without special tokens; m the same, continued. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/tokenizer/tokenizer.h"

enum { TOKENS_MAX = 1 << 26 };

static bool read_all(void *to, size_t size) { return fread(to, 1, size, stdin) == size; }

static void put(const void *bytes, size_t size) {
  if (size > 0 && fwrite(bytes, 1, size, stdout) != size) exit(1);
}

static void put_error(const struct err *err) {
  const int32_t count = -1, len = (int32_t)strlen(err->message);
  put(&count, sizeof count);
  put(&len, sizeof len);
  put(err->message, (size_t)len);
}

static void answer_ids(const struct tokenizer *t, char kind, const char *text, size_t len) {
  struct token_ids ids = {0};
  struct err err = {0};
  const enum rc rc = kind == 'b' ? tokenizer_encode_prompt(t, text, len, TOKENS_MAX, &ids, &err)
                                 : tokenizer_encode(t, text, len, kind == 'e', TOKENS_MAX, &ids, &err);
  const int32_t count = (int32_t)ids.count;
  if (rc != RC_OK) {
    put_error(&err);
  } else {
    put(&count, sizeof count);
    put(ids.items, ids.count * sizeof *ids.items);
  }
  token_ids_free(&ids);
}

static void answer_text(const struct tokenizer *t, char kind, const int32_t *ids, size_t count) {
  struct buf text = BUF_INIT;
  struct err err = {0};
  const enum rc rc = kind == 'm' ? tokenizer_decode_more(t, ids, count, true, &text, &err)
                                 : tokenizer_decode(t, ids, count, kind == 's', &text, &err);
  const int32_t len = (int32_t)text.len;
  if (rc != RC_OK) {
    put_error(&err);
  } else {
    put(&len, sizeof len);
    put(text.data, text.len);
  }
  buf_free(&text);
}

int main(int argc, char **argv) {
  struct tokenizer *t;
  struct err err = {0};
  if (argc != 2 || tokenizer_load(&t, argv[1], &err) != RC_OK) {
    fprintf(stderr, "answers: %s: %s\n", err.field, err.message);
    return 1;
  }
  char kind;
  uint32_t count;
  while (read_all(&kind, 1) && read_all(&count, sizeof count)) {
    const bool is_text = strchr("epb", kind) != NULL;
    const size_t size = is_text ? count : count * sizeof(int32_t);
    void *question = malloc(size + 1);
    if (!question || !read_all(question, size)) return 1;
    if (is_text)
      answer_ids(t, kind, question, count);
    else
      answer_text(t, kind, question, count);
    free(question);
  }
  tokenizer_free(t);
  return 0;
}
