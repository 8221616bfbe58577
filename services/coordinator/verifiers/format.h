/* Verifier `format`: the completion is made of the tags' sections, each once, in their order, and nothing but blanks
 * beside them: "<think>...</think> <answer>...</answer>".  Pure, any thread, one pass for each tag. */
#ifndef LEASEHOLD_COORDINATOR_VERIFIERS_FORMAT_H
#define LEASEHOLD_COORDINATOR_VERIFIERS_FORMAT_H

#include "services/coordinator/decide/verify.h"

enum { FORMAT_TAG_MAX = 31 };

void format_verify(const char *text, size_t len, const char *const *tags, int count, struct verdict *out);

#endif
