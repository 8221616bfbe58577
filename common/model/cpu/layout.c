/* Moving operands between row-major arrays and the kernels' layouts: weight tiles and the KV pool (ops.h gives both).
 * Copies only, no arithmetic but widening, so one compilation serves every CPU.
 */
#include <assert.h>
#include <string.h>

#include "common/model/cpu/kernels.h"

/* Index of element (n, k) in the tiles. */
static inline size_t tile_index(int n, int k, int K32) {
  return (((size_t)n / 16 * (size_t)(K32 / 2) + (size_t)k / 2) * 16 + (size_t)n % 16) * 2 + (size_t)k % 2;
}

static inline void copy_operand(void *out, size_t to, const void *in, size_t from, size_t operand_bytes) {
  if (operand_bytes == 2)
    ((uint16_t *)out)[to] = ((const uint16_t *)in)[from];
  else
    ((uint32_t *)out)[to] = ((const uint32_t *)in)[from];
}

static void pack_row(const struct pack_args *c, int n, int K32) {
  int K = c->W->K;
  size_t at = tile_index(n, 0, K32), from = c->transposed ? (size_t)n : (size_t)n * (size_t)K,
         step = c->transposed ? (size_t)c->W->N : 1;
  for (int k = 0; k < K; k++, from += step)
    copy_operand(c->W->data, at + (size_t)(k / 2) * 32 + (size_t)(k % 2), c->w, from, c->operand_bytes);
}

void cpu_matrix_pack(const void *args, size_t begin, size_t end, void *scratch) {
  const struct pack_args *c = args;
  int K32 = round_up(c->W->K, 32);
  size_t tile_bytes = (size_t)K32 * 16 * c->operand_bytes;
  (void)scratch;
  for (size_t tile = begin; tile < end; tile++) {
    memset((char *)c->W->data + tile * tile_bytes, 0, tile_bytes);
    for (int n = (int)tile * 16; n < (int)tile * 16 + 16 && n < c->W->N; n++) pack_row(c, n, K32);
  }
}

void cpu_matrix_unpack_rows(const void *args, size_t begin, size_t end, void *scratch) {
  const struct unpack_args *c = args;
  int K = c->W->K, K32 = round_up(K, 32);
  (void)scratch;
  for (size_t row = begin; row < end; row++) {
    size_t at = tile_index(c->first + (int)row, 0, K32);
    for (int k = 0; k < K; k++)
      copy_operand(c->w, row * (size_t)K + (size_t)k, c->W->data, at + (size_t)(k / 2) * 32 + (size_t)(k % 2),
                   c->operand_bytes);
  }
}

void cpu_embed(const void *args, size_t begin, size_t end, void *scratch) {
  const struct embed_args *c = args;
  int K = c->table->K, K32 = round_up(K, 32);
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    assert(c->token[t] >= 0 && c->token[t] < c->table->N);
    size_t at = tile_index(c->token[t], 0, K32);
    float *x = c->x + t * (size_t)K;
    for (int k = 0; k < K; k++) {
      size_t from = at + (size_t)(k / 2) * 32 + (size_t)(k % 2);
      if (c->format == FORMAT_F32) {
        x[k] = ((const float *)c->table->data)[from];
      } else {
        uint32_t u = (uint32_t)((const uint16_t *)c->table->data)[from] << 16;
        memcpy(x + k, &u, sizeof u);
      }
    }
  }
}

static void write_row(const struct kv_write_args *c, size_t t) {
  const struct kv_layer *kv = c->kv;
  int position = c->rows->position[t], pt = kv->page_tokens, offset = position % pt, E = kv->E;
  const int32_t *pages = c->rows->pages + (size_t)c->rows->sequence[t] * (size_t)c->rows->pages_per_sequence;
  assert(position >= 0 && position / pt < c->rows->pages_per_sequence);
  for (int g = 0; g < kv->G; g++) {
    size_t head = (size_t)pages[position / pt] * (size_t)kv->G + (size_t)g,
           from = (t * (size_t)kv->G + (size_t)g) * (size_t)E;
    size_t key =
        (head * (size_t)(pt / 16) + (size_t)(offset / 16)) * (size_t)round_up(E, 32) * 16 + (size_t)(offset % 16) * 2;
    size_t value = (head * (size_t)pt + (size_t)(offset / 2 * 2)) * (size_t)round_up(E, 16) + (size_t)(offset % 2);
    for (int e = 0; e < E; e++) {
      copy_operand(kv->keys, key + (size_t)(e / 2) * 32 + (size_t)(e % 2), c->k, from + (size_t)e, c->operand_bytes);
      copy_operand(kv->values, value + (size_t)e * 2, c->v, from + (size_t)e, c->operand_bytes);
    }
  }
}

void cpu_kv_write(const void *args, size_t begin, size_t end, void *scratch) {
  (void)scratch;
  for (size_t t = begin; t < end; t++) write_row(args, t);
}
