/* Matches patterns within bounds. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "services/coordinator/verifiers/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"

/* How many bytes are one step where an item runs over them without a choice (".*" to the line's end), or where "\1"
 * compares them. */
enum { BYTES_PER_STEP = 16, COMPARED_PER_STEP = 4 };
enum { MATCH_DEPTH = 2000, MATCH_KIB = 4096, STEPS_PER_BYTE = 8 };

struct steps {
  size_t done, most, at; /* at: where the text was at the last step */
  uint32_t referred;     /* the last group that a "\1" names; 0: there is no such */
};

/* PCRE2 calls it before each item of the pattern.  Its own limit is of one start of the match alone, and there are as
 * many starts as characters. */
static int step(pcre2_callout_block *now, void *data) {
  struct steps *s = data;
  const size_t at = now->current_position, moved = at > s->at ? at - s->at : s->at - at;
  s->done += 1 + moved / BYTES_PER_STEP;
  s->at = at;
  for (uint32_t i = 1; i < now->capture_top && i <= s->referred; i++) {
    const size_t from = now->offset_vector[2 * i], to = now->offset_vector[2 * i + 1];
    s->done += 1 + (to != PCRE2_UNSET && to > from ? to - from : 0) / COMPARED_PER_STEP;
  }
  return s->done > s->most ? PCRE2_ERROR_MATCHLIMIT : 0;
}

static pcre2_code *compile(const char *pattern, int *fault, size_t *where) {
  const size_t len = strlen(pattern);
  *where = 0;
  *fault = PCRE2_ERROR_NOMEMORY;
  if (len == 0 || len > REGEX_PATTERN_MAX) return NULL;
  return pcre2_compile((PCRE2_SPTR)pattern, len,
                       PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT,
                       fault, where, NULL);
}

enum rc regex_check(const char *pattern, const char *field, struct err *err) {
  char message[160];
  int fault;
  size_t where;
  pcre2_code *code = compile(pattern, &fault, &where);
  if (code) {
    pcre2_code_free(code);
    return RC_OK;
  }
  if (strlen(pattern) - 1 >= REGEX_PATTERN_MAX)
    return err_set(err, RC_INVALID, field, "expected a pattern of 1 to %d bytes, got %zu", REGEX_PATTERN_MAX,
                   strlen(pattern));
  pcre2_get_error_message(fault, (PCRE2_UCHAR *)message, sizeof message);
  return err_set(err, RC_INVALID, field, "expected a pattern of PCRE2: %s, at byte %zu", message, where);
}

void regex_verify(const char *text, size_t len, const char *pattern, struct verdict *out) {
  int fault, rc = PCRE2_ERROR_NOMEMORY;
  size_t where;
  memset(out, 0, sizeof *out);
  pcre2_code *code = compile(pattern, &fault, &where);
  pcre2_match_data *found = code ? pcre2_match_data_create(1, NULL) : NULL;
  pcre2_match_context *bounds = code ? pcre2_match_context_create(NULL) : NULL;
  struct steps steps = {.most = LIMIT_VERIFIER_STEPS + STEPS_PER_BYTE * len};
  if (found && bounds) {
    pcre2_pattern_info(code, PCRE2_INFO_BACKREFMAX, &steps.referred);
    pcre2_set_callout(bounds, step, &steps);
    pcre2_set_match_limit(bounds, steps.most < UINT32_MAX ? (uint32_t)steps.most : UINT32_MAX);
    pcre2_set_depth_limit(bounds, MATCH_DEPTH);
    pcre2_set_heap_limit(bounds, MATCH_KIB);
    rc = pcre2_match(code, (PCRE2_SPTR)text, len, 0, 0, found, bounds);
  }
  pcre2_match_context_free(bounds);
  pcre2_match_data_free(found);
  pcre2_code_free(code);
  out->well_formed = rc >= 0 || rc == PCRE2_ERROR_NOMATCH;
  out->reward = rc >= 0 ? 1 : 0;
  snprintf(out->detail, sizeof out->detail,
           !code                       ? "the pattern cannot be read"
           : rc >= 0                   ? "matches"
           : rc == PCRE2_ERROR_NOMATCH ? "no match"
                                       : "the match took too many steps");
}
