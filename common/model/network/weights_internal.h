/* Access to tensors that weights.c, weights_io.c and the optimizer share; not for use outside common/model. */
#ifndef LEASEHOLD_MODEL_NETWORK_WEIGHTS_INTERNAL_H
#define LEASEHOLD_MODEL_NETWORK_WEIGHTS_INTERNAL_H

#include "common/model/network/model.h"

enum { WEIGHTS_CONVERTED_AT_ONCE = 4096 }; /* elements, between a file's format and another operand format */

/* Norm weights and biases: kept as plain operand arrays, and not decayed. */
bool param_is_vector(const struct param *p);
/* The parameter's entry in digests (name borrowed from the table) in the operand format; and that of the files' tensor
 * which it is, or is a part of. */
void weights_entry(struct st_entry *out, const struct model *m, int index);
void weights_file_entry(struct st_entry *out, const struct model *m, int index);
/* Row-major operands in the table's memory -> the kernels' layout, transposed copy included. */
void weights_fill(struct weights *w, int index, const void *operands);
/* The kernels' layout -> row-major operands in the table's memory, borrowed until the next use of staging. */
const void *weights_stage(const struct weights *w, int index);
/* The same where the host can read them, in staging from its element `at` on, where the tensor has room. */
const void *weights_read_at(const struct weights *w, int index, size_t at);
/* Elements of the largest tensor, for which staging has room. */
size_t weights_largest_count(const struct model *m);
/* weights_digest, and where file is not NULL the row-major operands that it is of, tensor behind tensor in table order;
 * and where base is not NULL and has operands, what weights_to_safetensors says of changes. */
enum rc weights_digest_and_read(struct digest *out, const struct weights *w, char *file,
                                const struct weights_base *base, struct buf *changes, struct err *err);
/* Rows that are read out at once: about what a thread's cache holds, whole tiles. */
int weights_rows_at_once(const struct model *m, const struct param *p);
/* The largest rows_at_once, in bytes. */
size_t weights_chunk_bytes(const struct model *m);
/* Indices of the parameters, the largest first; those of one size stay in their order. */
void weights_sort_by_size(int *order, const struct model *m);

#endif
