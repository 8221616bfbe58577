/* Parts that the two forms of a lease's result share: lease_result.c writes and reads it as JSON,
 * lease_result_tensors.c as safetensors.  Private to common/wire. */
#ifndef LEASEHOLD_WIRE_LEASE_RESULT_INTERNAL_H
#define LEASEHOLD_WIRE_LEASE_RESULT_INTERNAL_H

#include "common/wire/fields.h"
#include "common/wire/lease.h"

/* The members beside `samples`, as entries of a field table. */
#define LEASE_RESULT_HEAD(m)                                                                                       \
  WIRE_NAME("worker_id", (m)->worker_id), WIRE_U64("epoch", (m)->epoch), WIRE_U64("fence", (m)->fence),            \
      WIRE_DIGEST("loaded_digest", (m)->loaded_digest), WIRE_BOOL("handed_back", (m)->handed_back),                \
      {.name = "refused", .kind = FIELD_STRING, .target = &(m)->refused, .min = 1, .max = WIRE_REFUSED_BYTES}, {   \
    .name = "nonfinite_version", .kind = FIELD_I64, .target = &(m)->nonfinite_version, .present = &(m)->nonfinite, \
    .max = WIRE_EXACT_MAX                                                                                          \
  }
void lease_result_head_write(const struct lease_result *m, struct json_writer *w);

/* Checks that the bounds of single numbers cannot express, in addition to wire_segments_check and
 * wire_version_spans_check; RC_INVALID with the field. */
enum rc sample_tokens_check(const struct sample_result *s, struct err *err);
enum rc lease_result_check(const struct lease_result *m, struct err *err);

#endif
