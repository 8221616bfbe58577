/* The request and the common parts of the answers of --plan: see foresight.h. */
#include "common/client/foresight.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"

void foresight_request_write(const struct foresight_request *q, struct json_writer *w) {
  json_object_begin(w);
  json_kv_int(w, "groups", q->groups);
  json_kv_int(w, "samples", q->samples);
  json_kv_int(w, "prompt_tokens", q->prompt_tokens);
  json_kv_int(w, "new_tokens", q->new_tokens);
  json_kv_int(w, "measure_ms", q->measure_ms);
  if (q->run) {
    json_key(w, "run");
    json_write_value(w, q->run);
  }
  json_object_end(w);
}

static enum rc request_decode(struct foresight_request *out, const struct json *root, struct err *err) {
  struct arena arena = ARENA_INIT; /* no field needs it */
  const struct json_field fields[] = {
      {.name = "groups", .kind = FIELD_I32, .target = &out->groups, .min = 1, .max = LIMIT_GROUPS_PER_ROUND},
      {.name = "samples", .kind = FIELD_I32, .target = &out->samples, .min = 1, .max = LIMIT_SAMPLES_PER_GROUP},
      {.name = "prompt_tokens", .kind = FIELD_I32, .target = &out->prompt_tokens, .min = 1, .max = LIMIT_PROMPT_TOKENS},
      {.name = "new_tokens", .kind = FIELD_I32, .target = &out->new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "measure_ms", .kind = FIELD_I32, .target = &out->measure_ms, .min = 0, .max = FORESIGHT_MS_MAX},
      {.name = "run", .kind = FIELD_VALUE, .target = &out->run},
  };
  const enum rc rc = json_fields(root, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, &arena, err);
  arena_free(&arena);
  return rc;
}

enum rc foresight_file_read(struct json **root, const char *file, struct err *err) {
  struct buf text = BUF_INIT;
  *root = NULL;
  enum rc rc = file_read(&text, strcmp(file, "-") == 0 ? "/dev/stdin" : file, LIMIT_BODY_BYTES, err);
  if (rc == RC_OK && text.len > 0) rc = json_parse(root, text.data, text.len, 0, err);
  if (rc != RC_OK) err_in_file(err, file);
  buf_free(&text);
  return rc;
}

enum rc foresight_request_read(struct foresight_request *out, struct json **root, const char *file, struct err *err) {
  *out = (struct foresight_request){.groups = 8, .samples = 8, .prompt_tokens = 64, .new_tokens = 64};
  enum rc rc = foresight_file_read(root, file, err);
  if (rc != RC_OK || !*root) return rc;
  rc = request_decode(out, *root, err);
  if (rc != RC_OK) err_in_file(err, file);
  return rc;
}

void foresight_reason_write(const struct err *reason, const char *key, struct json_writer *w) {
  json_kv_string(w, key, reason->rc == RC_OK ? NULL : reason->message);
}

enum rc foresight_print(struct buf *answer, struct err *err) {
  const enum rc rc = buf_check(answer, err);
  if (rc == RC_OK) printf("%s\n", answer->data);
  buf_free(answer);
  return rc;
}

/* SIZE_MAX: nobody knows. */
static void bytes_write(struct json_writer *w, const char *key, size_t bytes) {
  json_key(w, key);
  if (bytes == SIZE_MAX)
    json_write_null(w);
  else
    json_write_u64(w, bytes);
}

void memory_report_write(const struct memory_plan *plan, const struct memory_room *room, const struct err *refused,
                         struct json_writer *w) {
  const size_t device = memory_plan_device(plan);
  json_object_begin(w);
  bytes_write(w, "needed_bytes", memory_plan_total(plan) - device);
  bytes_write(w, "room_bytes", memory_room_left(room));
  bytes_write(w, "device_needed_bytes", device);
  bytes_write(w, "device_room_bytes", device ? room->device : 0);
  json_key(w, "parts");
  json_array_begin(w);
  for (int i = 0; i < plan->count; i++) {
    json_object_begin(w);
    json_kv_string(w, "name", plan->parts[i].name);
    json_kv_u64(w, "bytes", plan->parts[i].bytes);
    json_kv_bool(w, "on_device", plan->parts[i].on_device);
    json_object_end(w);
  }
  json_array_end(w);
  foresight_reason_write(refused, "refused", w);
  json_object_end(w);
}
