/* Which policy version drew each of a sample's tokens: consecutive spans, in results, in samples that are handed back
 * and in leases that continue them. */
#ifndef LEASEHOLD_WIRE_SPANS_H
#define LEASEHOLD_WIRE_SPANS_H

#include "common/base/arena.h"
#include "common/json/json.h"

struct version_span {
  int64_t version;
  int32_t start, count; /* tokens of the sample */
  /* Every key and value that these tokens attended to, the prompt's included, was computed by this version too: then
   * the version's own forward pass gives exactly their log-probabilities.  False where keys and values of an older
   * version were kept.  In JSON false is written, true is left out. */
  bool fresh;
};

/* Spans: [{"version","start","count","fresh"}] that cover exactly `tokens` tokens, ascending, without gaps, with
 * versions that never fall.  Two neighbours may have the same version and differ in fresh. */
void wire_kv_version_spans(struct json_writer *w, const struct version_span *spans, size_t count);
enum rc wire_version_spans_read(struct version_span **out, size_t *count, const struct json *value, size_t tokens,
                                struct arena *arena, struct err *err);
/* RC_INVALID unless they cover the tokens and never fall. */
enum rc wire_version_spans_check(const struct version_span *spans, size_t count, size_t tokens, struct err *err);

#endif
