/* The question that the services' --plan is asked, and its answer, as JSON on standard input and output: what each
 * would need and how fast it would compute, before it runs.  `leasehold doctor --model` asks, with
 * services/cli/commands/before.c.
 *
 *   request   {"groups", "samples", "prompt_tokens", "new_tokens", "measure_ms", "run"}    all may be left out
 *   answer    an object; "memory" is memory_report_write's
 *
 * A request's strings and values live in its tree. */
#ifndef LEASEHOLD_CLIENT_FORESIGHT_H
#define LEASEHOLD_CLIENT_FORESIGHT_H

#include "common/base/memory_plan.h"
#include "common/json/json.h"

enum { FORESIGHT_MS_MAX = 600000 };

struct foresight_request {
  int32_t groups, samples;           /* of a round, of a group */
  int32_t prompt_tokens, new_tokens; /* of a sample, in the mean */
  int32_t measure_ms;                /* compute for about so long to tell how fast; 0: do not */
  const struct json *run;            /* for a trainer: the message of check-run; NULL: none */
};

void foresight_request_write(const struct foresight_request *q, struct json_writer *w);
/* From a file, "-": standard input; an empty one asks for nothing more than the plan.  *root: freed by the caller. */
enum rc foresight_request_read(struct foresight_request *out, struct json **root, const char *file, struct err *err);
/* Any file of JSON so; *root NULL: it is empty. */
enum rc foresight_file_read(struct json **root, const char *file, struct err *err);
/* A member that tells what stands in the way; rc RC_OK: null. */
void foresight_reason_write(const struct err *reason, const char *key, struct json_writer *w);
/* The whole answer, a line on standard output; frees it. */
enum rc foresight_print(struct buf *answer, struct err *err);
/* An object: {"needed_bytes", "room_bytes", "device_needed_bytes", "device_room_bytes", "parts": [{"name", "bytes",
 * "on_device"}], "refused"}.  refused: why the service would not start with it; rc RC_OK: it would. */
void memory_report_write(const struct memory_plan *plan, const struct memory_room *room, const struct err *refused,
                         struct json_writer *w);

#endif
