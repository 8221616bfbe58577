/* Types for how exactly a device computes, and for a device's identity, which device.h and the tables share. */
#ifndef LEASEHOLD_MODEL_EXACTNESS_H
#define LEASEHOLD_MODEL_EXACTNESS_H

/* Of a device's products of matrices; the CPU's are always EXACTNESS_INVARIANT. */
enum exactness {
  EXACTNESS_INVARIANT, /* a row's bits do not depend on the other rows: log-probabilities equal the trainer's */
  EXACTNESS_FASTEST    /* the vendor's kernels, chosen by the number of rows: sampler and trainer differ by roundings */
};

enum { DEVICE_IDENTITY_BYTES = 16 };

#endif
