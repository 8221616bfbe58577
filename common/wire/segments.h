/* Which of a sample's tokens are trained on: consecutive segments with a mask, in results and in batches. */
#ifndef LEASEHOLD_WIRE_SEGMENTS_H
#define LEASEHOLD_WIRE_SEGMENTS_H

#include "common/base/arena.h"
#include "common/json/json.h"

struct sample_segment {
  int32_t start, count;
  bool loss_mask;
}; /* over the sample's own tokens; loss_mask true: trained on */

/* Segments: [{"start","count","loss_mask"}] that cover exactly `tokens` tokens, ascending, without gaps. */
void wire_kv_segments(struct json_writer *w, const struct sample_segment *segments, size_t count);
enum rc wire_segments_read(struct sample_segment **out, size_t *count, const struct json *value, size_t tokens,
                           struct arena *arena, struct err *err);
/* RC_INVALID unless they cover the tokens. */
enum rc wire_segments_check(const struct sample_segment *segments, size_t count, size_t tokens, struct err *err);
/* How many of the tokens are trained on. */
size_t wire_segments_trained(const struct sample_segment *segments, size_t count);

#endif
