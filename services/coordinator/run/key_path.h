/* Paths into a dataset's line: "answer", "reward_model.ground_truth", "choices[0].text".
 *
 * A path is keys between dots, each followed by any number of [index]; an index below 0 counts from the end.  A key
 * that holds a dot or a bracket cannot be named.  Called by reading.c, which checks the paths of a configuration once,
 * and by dataset_line.c for every line.  Pure; no memory. */
#ifndef LEASEHOLD_COORDINATOR_RUN_KEY_PATH_H
#define LEASEHOLD_COORDINATOR_RUN_KEY_PATH_H

#include "common/base/rc.h"
#include "common/json/json.h"

enum { KEY_PATH_CHARS_MAX = 256 };

/* RC_INVALID when it is no path. */
enum rc key_path_check(const char *path, struct err *err);
/* NULL when there is nothing, or null: converters of tables write null where a row has no value. */
const struct json *key_path_find(const struct json *line, const char *path);

#endif
