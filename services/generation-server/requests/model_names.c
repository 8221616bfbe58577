/* Names the model that requests run on, and refuses a request that names another. */
#include "services/generation-server/requests/model_names.h"

#include <stdio.h>
#include <string.h>

#define ALWAYS "leasehold"

const char *model_name_of_run(const char *run) { return run[0] ? run : ALWAYS; }

size_t model_names(const char *names[MODEL_NAMES_MAX], const char *run, const char *folder) {
  size_t count = 0;
  if (run[0]) names[count++] = run;
  if (strcmp(run, ALWAYS) != 0) names[count++] = ALWAYS;
  if (folder && folder[0] && strcmp(folder, ALWAYS) != 0 && strcmp(folder, run) != 0) names[count++] = folder;
  return count;
}

enum rc model_name_check(const char *wanted, const char *run, const char *folder, struct err *err) {
  const char *names[MODEL_NAMES_MAX];
  const size_t count = model_names(names, run, folder);
  char listed[ERR_MESSAGE_MAX] = "";
  if (!wanted || !wanted[0]) return RC_OK;
  for (size_t i = 0, used = 0; i < count && used < sizeof listed; i++) {
    if (strcmp(names[i], wanted) == 0) return RC_OK;
    used += (size_t)snprintf(listed + used, sizeof listed - used, "%s%s", i > 0 ? " or " : "", names[i]);
  }
  return err_set(err, RC_NOT_FOUND, "model", "The model `%.100s` does not exist: expected %s", wanted, listed);
}
