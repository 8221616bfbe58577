/* Memory of the host that lies in a file without a name: data that is seldom used may leave memory for the disk,
 * without swap.
 *
 * The file's bytes are reserved when it is made, so that a full disk refuses the start and never kills the process
 * later.  It vanishes with the process, however that ends; nothing is ever read back from it by another.  The owner
 * says which part it is done with for now: that part leaves this process's memory at once, and the kernel begins to
 * write it.  One owner; parts may be used by any thread. */
#ifndef LEASEHOLD_MODEL_LEARNING_SCRATCH_FILE_H
#define LEASEHOLD_MODEL_LEARNING_SCRATCH_FILE_H

#include <stddef.h>

#include "common/base/rc.h"

struct scratch_file {
  int fd;
  char *memory; /* zeros at first; NULL: there is none */
  size_t bytes;
};

/* RC_IO names the folder: it lacks the room, or takes no such file. */
enum rc scratch_file_make(struct scratch_file *out, const char *dir, size_t bytes, struct err *err);
void scratch_file_free(struct scratch_file *f);
/* Done with these bytes for now; those that are not the file's are left alone. */
void scratch_file_done(const struct scratch_file *f, const void *part, size_t bytes);

#endif
