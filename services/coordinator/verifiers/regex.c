/* Matches patterns within bounds. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "services/coordinator/verifiers/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

enum { MATCH_STEPS = 200000, MATCH_DEPTH = 2000, MATCH_KIB = 4096 };

static pcre2_code *compile(const char *pattern, int *fault, size_t *where) {
  const size_t len = strlen(pattern);
  *where = 0;
  *fault = PCRE2_ERROR_NOMEMORY;
  if (len == 0 || len > REGEX_PATTERN_MAX) return NULL;
  return pcre2_compile((PCRE2_SPTR)pattern, len,
                       PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, fault, where, NULL);
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
  if (found && bounds) {
    pcre2_set_match_limit(bounds, MATCH_STEPS);
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
