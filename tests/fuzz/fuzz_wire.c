/* Every message's decoder; the first byte chooses it.  A message that was accepted is encoded, and what it was encoded
 * as is accepted too and encoded the same way again: what one service says, the other hears. */
#include <string.h>

#include "common/wire/lease.h"
#include "common/wire/passes.h"
#include "common/wire/training.h"
#include "common/wire/worker.h"
#include "tests/fuzz/fuzz.h"

static void same(const struct buf *a, const struct buf *b) {
  FUZZ_CHECK(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

/* Encoded by the first function, decoded by the second, both over bytes. */
struct message {
  enum rc (*decode)(const char *bytes, size_t len, struct arena *arena, struct buf *encoded, struct err *err);
};

#define JSON_MESSAGE(name)                                                                                            \
  static enum rc again_##name(const char *bytes, size_t len, struct arena *arena, struct buf *out, struct err *err) { \
    struct json *body = NULL;                                                                                         \
    struct name m;                                                                                                    \
    memset(&m, 0, sizeof m);                                                                                          \
    enum rc rc = json_parse(&body, bytes, len, 0, err);                                                               \
    if (rc == RC_OK) rc = name##_decode(&m, body, arena, err);                                                        \
    if (rc == RC_OK) name##_encode(&m, out);                                                                          \
    json_free(body);                                                                                                  \
    return rc;                                                                                                        \
  }
#define TENSOR_MESSAGE(name, decoder, encoder)                                                             \
  static enum rc again_tensors_##name(const char *bytes, size_t len, struct arena *arena, struct buf *out, \
                                      struct err *err) {                                                   \
    struct name m;                                                                                         \
    memset(&m, 0, sizeof m);                                                                               \
    const enum rc rc = decoder(&m, bytes, len, arena, err);                                                \
    if (rc == RC_OK) FUZZ_CHECK(encoder(&m, out, err) == RC_OK);                                           \
    return rc;                                                                                             \
  }

JSON_MESSAGE(worker_register)
JSON_MESSAGE(worker_registered)
JSON_MESSAGE(worker_heartbeat)
JSON_MESSAGE(worker_heartbeat_answer)
JSON_MESSAGE(lease_request)
JSON_MESSAGE(lease_answer)
JSON_MESSAGE(lease_result)
JSON_MESSAGE(lease_result_answer)
JSON_MESSAGE(pass_request)
JSON_MESSAGE(pass_answer)
JSON_MESSAGE(open_run)
JSON_MESSAGE(open_run_answer)
JSON_MESSAGE(check_run)
JSON_MESSAGE(check_run_answer)
JSON_MESSAGE(submit_batch)
JSON_MESSAGE(batch_status)
JSON_MESSAGE(submit_step)
JSON_MESSAGE(step_status)
JSON_MESSAGE(version_announce)
JSON_MESSAGE(push_answer)
TENSOR_MESSAGE(lease_result, lease_result_decode_tensors, lease_result_encode_tensors)
TENSOR_MESSAGE(pass_result, pass_result_decode, pass_result_encode)
TENSOR_MESSAGE(submit_batch, submit_batch_decode_tensors, submit_batch_encode_tensors)
TENSOR_MESSAGE(batch_status, batch_status_decode_tensors, batch_status_encode_tensors)

/* make_corpus.py counts in this order. */
static const struct message messages[] = {
    {again_worker_register},      {again_worker_registered},    {again_worker_heartbeat},
    {again_worker_heartbeat_answer}, {again_lease_request},     {again_lease_answer},
    {again_lease_result},         {again_lease_result_answer},  {again_pass_request},
    {again_pass_answer},          {again_open_run},             {again_open_run_answer},
    {again_check_run},            {again_check_run_answer},     {again_submit_batch},
    {again_batch_status},         {again_submit_step},          {again_step_status},
    {again_version_announce},     {again_push_answer},          {again_tensors_lease_result},
    {again_tensors_pass_result},  {again_tensors_submit_batch}, {again_tensors_batch_status},
};
enum { MESSAGES = sizeof messages / sizeof messages[0] };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct arena arena = ARENA_INIT;
  struct buf first = BUF_INIT, second = BUF_INIT;
  struct err err = {0};
  if (size == 0) return 0;
  const struct message *m = &messages[data[0] % MESSAGES];
  if (m->decode((const char *)data + 1, size - 1, &arena, &first, &err) == RC_OK) {
    FUZZ_CHECK(buf_check(&first, &err) == RC_OK);
    FUZZ_CHECK(m->decode(first.data, first.len, &arena, &second, &err) == RC_OK);
    same(&first, &second);
  } else {
    FUZZ_CHECK(err.message[0]);
  }
  buf_free(&first);
  buf_free(&second);
  arena_free(&arena);
  return 0;
}
