/* Gives a fuzz target the files of a folder, once each, in the order of their names: what libFuzzer does with
 * -runs=0, without clang.
 *
 *   corpus_NAME FOLDER */
#include <dirent.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 1 << 20 };

int main(int argc, char **argv) {
  struct dirent **entries = NULL;
  int ran = 0;
  const int count = argc == 2 ? scandir(argv[1], &entries, NULL, alphasort) : -1;
  for (int i = 0; i < count; i++) {
    char path[1024];
    struct buf bytes = BUF_INIT;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", argv[1], entries[i]->d_name);
    if (entries[i]->d_name[0] != '.') {
      if (file_read(&bytes, path, INPUT_MAX, &err) != RC_OK) {
        fprintf(stderr, "%s: %s\n", path, err.message);
        return 1;
      }
      char *exact = malloc(bytes.len ? bytes.len : 1); /* a sanitizer sees what is read behind the end */
      if (!exact) return 1;
      if (bytes.len) memcpy(exact, bytes.data, bytes.len);
      LLVMFuzzerTestOneInput((const uint8_t *)exact, bytes.len);
      free(exact);
      ran++;
    }
    buf_free(&bytes);
    free(entries[i]);
  }
  free(entries);
  if (ran > 0) return 0;
  fprintf(stderr, "%s: no input in %s\n", argv[0], argc == 2 ? argv[1] : "(no folder)");
  return 1;
}
