/* What the fuzz targets share.  Each tests/fuzz/fuzz_NAME.c is one target: LLVMFuzzerTestOneInput over any bytes, which
 * must not crash, leak, take long, or break a promise that FUZZ_CHECK states.  `make fuzz` links them with libFuzzer;
 * `make fuzz-corpus` links them with corpus_main.c, which reads files, so that no clang is needed to run them once. */
#ifndef LEASEHOLD_TESTS_FUZZ_H
#define LEASEHOLD_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(promise)                                                   \
  do {                                                                        \
    if (!(promise)) {                                                         \
      fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #promise);   \
      abort();                                                                \
    }                                                                         \
  } while (0)

#endif
