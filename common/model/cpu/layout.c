/* Moving operands between row-major arrays and the kernels' layouts: weight tiles and the KV pool (ops.h gives both).
 * Copies only, no arithmetic but widening, so one compilation serves every CPU.
 */
#include <assert.h>
#include <string.h>

#include "common/model/cpu/kernels.h"

/* Where element k of a row lies from its first tile element on. */
static inline size_t along(int k, bool links) {
  return links ? (size_t)(k / 4 * 2 + k % 2) * 32 + (k % 4 < 2) : (size_t)(k / 2) * 32 + (size_t)(k % 2);
}

/* Where row n begins in the tiles. */
static inline size_t tile_row(int n, int K32) { return ((size_t)n / 16 * (size_t)(K32 / 2) * 16 + (size_t)n % 16) * 2; }

static inline void copy_operand(void *out, size_t to, const void *in, size_t from, size_t operand_bytes) {
  if (operand_bytes == 2)
    ((uint16_t *)out)[to] = ((const uint16_t *)in)[from];
  else
    ((uint32_t *)out)[to] = ((const uint32_t *)in)[from];
}

static void pack_row(const struct pack_args *c, int n, int K32) {
  int K = c->W->K;
  size_t at = tile_row(n, K32), from = c->transposed ? (size_t)n : (size_t)n * (size_t)K,
         step = c->transposed ? (size_t)c->W->N : 1;
  for (int k = 0; k < K; k++, from += step)
    copy_operand(c->W->data, at + along(k, c->links), c->w, from, c->operand_bytes);
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
    size_t at = tile_row(c->first + (int)row, K32);
    for (int k = 0; k < K; k++)
      copy_operand(c->w, row * (size_t)K + (size_t)k, c->W->data, at + along(k, c->links), c->operand_bytes);
  }
}

static inline void widen_bf16(float *x, const uint16_t *from) {
  const uint32_t u = (uint32_t)*from << 16;
  memcpy(x, &u, sizeof u);
}

static void embed_row(const struct embed_args *c, float *x, int token) {
  const int K = c->table->K;
  const size_t at = tile_row(token, round_up(K, 32));
  if (c->format == FORMAT_F32) {
    const float *from = (const float *)c->table->data + at;
    for (int k = 0; k < K; k++) x[k] = from[along(k, false)];
    return;
  }
  const uint16_t *from = (const uint16_t *)c->table->data + at;
  if (c->links)
    for (int k = 0; k < K; k++) widen_bf16(x + k, from + along(k, true));
  else
    for (int k = 0; k < K; k++) widen_bf16(x + k, from + along(k, false));
}

void cpu_embed(const void *args, size_t begin, size_t end, void *scratch) {
  const struct embed_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    assert(c->token[t] >= 0 && c->token[t] < c->table->N);
    embed_row(c, c->x + t * (size_t)c->table->K, c->token[t]);
  }
}

/* E operands of a key, by pairs into its column of the tile; of a value, into every other place of its row. */
static void write_bf16(uint16_t *restrict keys, uint16_t *restrict values, const uint16_t *restrict k,
                       const uint16_t *restrict v, int E) {
  for (int e = 0; e + 1 < E; e += 2) memcpy(keys + (size_t)e * 16, k + e, 2 * sizeof *k);
  if (E % 2) keys[(size_t)(E - 1) * 16] = k[E - 1];
  for (int e = 0; e < E; e++) values[2 * e] = v[e];
}

static void write_f32(float *restrict keys, float *restrict values, const float *restrict k, const float *restrict v,
                      int E) {
  for (int e = 0; e < E; e++) keys[(size_t)(e / 2) * 32 + (size_t)(e % 2)] = k[e];
  for (int e = 0; e < E; e++) values[2 * e] = v[e];
}

static void write_row(const struct kv_write_args *c, size_t t) {
  const struct kv_layer *kv = c->kv;
  int position = c->rows->position[t], pt = kv->page_tokens, offset = position % pt, E = kv->E;
  const int32_t *pages = c->rows->pages + (size_t)c->rows->sequence[t] * (size_t)c->rows->pages_per_sequence;
  assert(position >= 0 && position / pt < c->rows->pages_per_sequence);
  for (int g = 0; g < kv->G; g++) {
    size_t head = (size_t)pages[position / pt] * (size_t)kv->G + (size_t)g,
           from = (row_of(c->row, t) * (size_t)kv->G + (size_t)g) * (size_t)E;
    size_t key =
        (head * (size_t)(pt / 16) + (size_t)(offset / 16)) * (size_t)round_up(E, 32) * 16 + (size_t)(offset % 16) * 2;
    size_t value = (head * (size_t)pt + (size_t)(offset / 2 * 2)) * (size_t)round_up(E, 16) + (size_t)(offset % 2);
    if (c->operand_bytes == 2)
      write_bf16((uint16_t *)kv->keys + key, (uint16_t *)kv->values + value, (const uint16_t *)c->k + from,
                 (const uint16_t *)c->v + from, E);
    else
      write_f32((float *)kv->keys + key, (float *)kv->values + value, (const float *)c->k + from,
                (const float *)c->v + from, E);
  }
}

void cpu_kv_write(const void *args, size_t begin, size_t end, void *scratch) {
  (void)scratch;
  for (size_t t = begin; t < end; t++) write_row(args, t);
}
