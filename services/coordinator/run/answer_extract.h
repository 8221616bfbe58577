/* Takes the final answer out of a dataset's worked answer: what follows GSM8K's "####", or the last \boxed{}.
 *
 * Called by dataset_line.c for every line whose reading says so.  Pure; work is linear in the text; no memory. */
#ifndef LEASEHOLD_COORDINATOR_RUN_ANSWER_EXTRACT_H
#define LEASEHOLD_COORDINATOR_RUN_ANSWER_EXTRACT_H

#include <stdbool.h>
#include <stddef.h>

/* The configuration's words: "none", "####", "boxed". */
enum answer_extract { EXTRACT_NONE, EXTRACT_HASHES, EXTRACT_BOXED };

/* *out points into text, without the spaces around it.  false: there is no such answer, or an empty one. */
bool answer_extract(enum answer_extract how, const char *text, const char **out, size_t *len);

#endif
