/* Moves operands between row-major arrays and the kernels' layouts: weight tiles and the KV pool (ops.h describes
 * both). Copies only, no arithmetic except widening, so one compilation serves every CPU.
 *
 * On the trainer every version's weights pass through here four times (packed, transposed, read back for the digest and
 * for the file), so bf16 moves by eight elements of four rows at once, or by four of a row: two words of a tile.  The
 * rest of a row, and fp32, moves element by element.
 */
#include <assert.h>
#include <emmintrin.h>
#include <string.h>

#include "common/model/cpu/kernels.h"

/* Where element k of those that lie in pairs begins, `next` elements from a pair to the next one. */
static inline size_t in_pairs(int k, size_t next, bool links) {
  return links ? (size_t)(k / 4 * 2 + k % 2) * next + (k % 4 < 2) : (size_t)(k / 2) * next + (size_t)(k % 2);
}

/* Where element k of a row lies from its first tile element on. */
static inline size_t along(int k, bool links) { return in_pairs(k, 32, links); }

/* Where row n begins in the tiles. */
static inline size_t tile_row(int n, int K32) { return ((size_t)n / 16 * (size_t)(K32 / 2) * 16 + (size_t)n % 16) * 2; }

static inline void copy_operand(void *out, size_t to, const void *in, size_t from, size_t operand_bytes) {
  if (operand_bytes == 2)
    ((uint16_t *)out)[to] = ((const uint16_t *)in)[from];
  else
    ((uint32_t *)out)[to] = ((const uint32_t *)in)[from];
}

enum {
  ROWS = 16,
  FOUR = 4,
  EIGHT = 8,
  PAST_CACHES = 1 << 20,
  TILES = 4 /* that are filled together from whole cache lines of a transposed matrix */
};

/* Words 2q and 2q + 1 of a row, from elements 4q .. 4q + 3 as they lie in memory; and back. */
static inline void words_of_four(uint32_t *first, uint32_t *second, uint64_t four, bool links) {
  const uint32_t low = (uint32_t)four, high = (uint32_t)(four >> 32);
  *first = links ? (high & 0xffff) | low << 16 : low;
  *second = links ? high >> 16 | (low & 0xffff0000u) : high;
}
static inline uint64_t four_of_words(uint32_t first, uint32_t second, bool links) {
  const uint32_t low = links ? first >> 16 | (second & 0xffff0000u) : first;
  const uint32_t high = links ? (first & 0xffff) | second << 16 : second;
  return (uint64_t)high << 32 | low;
}

/* The same for eight elements: four words of a row in one register. */
static inline __m128i words_of_eight(__m128i eight, bool links) {
  return links ? _mm_shufflehi_epi16(_mm_shufflelo_epi16(eight, 0x72), 0x72) : eight;
}
static inline __m128i eight_of_words(__m128i words, bool links) {
  return links ? _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0x8d), 0x8d) : words;
}

/* Four words of four rows: rows become columns. */
static inline void transpose_words(__m128i row[4]) {
  const __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpacklo_epi32(row[2], row[3]);
  const __m128i c = _mm_unpackhi_epi32(row[0], row[1]), d = _mm_unpackhi_epi32(row[2], row[3]);
  row[0] = _mm_unpacklo_epi64(a, b);
  row[1] = _mm_unpackhi_epi64(a, b);
  row[2] = _mm_unpacklo_epi64(c, d);
  row[3] = _mm_unpackhi_epi64(c, d);
}

/* past: past the caches, which a large matrix would only sweep: a line is not read before it is written. */
static inline void store_words(uint32_t *to, __m128i words, bool past) {
  if (past)
    _mm_stream_si128((void *)to, words);
  else
    _mm_store_si128((void *)to, words);
}

/* Between a whole tile and its 16 rows, by eight elements of four rows; returns how many elements of a row it did. */
static inline int pack_eights(uint32_t *restrict tile, const uint16_t *restrict w, int K, bool links, bool past) {
  const char *next = (const char *)(w + (size_t)ROWS * (size_t)K); /* the next tile's rows, a line for each one read */
  for (int e = 0; e < K / EIGHT; e++)
    for (int i = 0; i < ROWS; i += 4, next += 64) {
      __m128i row[4];
      _mm_prefetch(next, _MM_HINT_T0);
      for (int r = 0; r < 4; r++) {
        const void *from = w + (size_t)(i + r) * (size_t)K + (size_t)e * EIGHT;
        row[r] = words_of_eight(_mm_loadu_si128(from), links);
      }
      transpose_words(row);
      for (int word = 0; word < 4; word++)
        store_words(tile + (size_t)(e * 4 + word) * ROWS + (size_t)i, row[word], past);
    }
  return K / EIGHT * EIGHT;
}

static inline int unpack_eights(uint16_t *restrict w, const uint32_t *restrict tile, int K, bool links) {
  for (int e = 0; e < K / EIGHT; e++)
    for (int i = 0; i < ROWS; i += 4) {
      __m128i word[4];
      for (int k = 0; k < 4; k++)
        word[k] = _mm_loadu_si128((const void *)(tile + (size_t)(e * 4 + k) * ROWS + (size_t)i));
      transpose_words(word);
      for (int r = 0; r < 4; r++)
        _mm_storeu_si128((void *)(w + (size_t)(i + r) * (size_t)K + (size_t)e * EIGHT), eight_of_words(word[r], links));
    }
  return K / EIGHT * EIGHT;
}

static inline void pack_rows(uint32_t *restrict tile, const uint16_t *restrict w, int K, int rows, bool links,
                             bool past) {
  for (int q = rows == ROWS ? pack_eights(tile, w, K, links, past) / FOUR : 0; q < K / FOUR; q++) {
    uint32_t *first = tile + (size_t)q * 2 * ROWS, *second = first + ROWS;
    for (int i = 0; i < rows; i++) {
      uint64_t four;
      memcpy(&four, w + (size_t)i * (size_t)K + (size_t)q * FOUR, sizeof four);
      words_of_four(first + i, second + i, four, links);
    }
  }
}

static inline void unpack_rows(uint16_t *restrict w, const uint32_t *restrict tile, int K, int rows, bool links) {
  for (int q = rows == ROWS ? unpack_eights(w, tile, K, links) / FOUR : 0; q < K / FOUR; q++) {
    const uint32_t *first = tile + (size_t)q * 2 * ROWS, *second = first + ROWS;
    for (int i = 0; i < rows; i++) {
      const uint64_t four = four_of_words(first[i], second[i], links);
      memcpy(w + (size_t)i * (size_t)K + (size_t)q * FOUR, &four, sizeof four);
    }
  }
}

static inline void interleave(uint32_t *restrict words, const uint16_t *restrict low, const uint16_t *restrict high) {
  for (int i = 0; i < ROWS; i++) words[i] = low[i] | (uint32_t)high[i] << 16;
}

/* Whole tiles whose rows are columns of w [K,N], from column `first` on. */
static inline void pack_columns(uint32_t *restrict tile, size_t tile_words, const uint16_t *restrict w, int K, int N,
                                int first, int tiles, bool links) {
  const size_t row = (size_t)N;
  for (int q = 0; q < K / FOUR; q++)
    for (int t = 0; t < tiles; t++) {
      const uint16_t *from = w + (size_t)q * FOUR * row + (size_t)(first + t * ROWS);
      uint32_t *to = tile + (size_t)t * tile_words + (size_t)q * 2 * ROWS;
      interleave(to, from + (links ? 2 : 0) * row, from + (links ? 0 : 1) * row);
      interleave(to + ROWS, from + (links ? 3 : 2) * row, from + (links ? 1 : 3) * row);
    }
}

/* Elements k0 .. K-1 of a row. */
static void pack_rest(const struct pack_args *c, int n, int K32, int k0) {
  const int K = c->W->K;
  const size_t at = tile_row(n, K32);
  for (int k = k0; k < K; k++) {
    const size_t from = c->transposed ? (size_t)k * (size_t)c->W->N + (size_t)n : (size_t)n * (size_t)K + (size_t)k;
    copy_operand(c->W->data, at + along(k, c->links), c->w, from, c->operand_bytes);
  }
}

/* Of the first K / 4 * 4 elements of the rows of `tiles` tiles. */
static void pack_fours(const struct pack_args *c, uint32_t *to, size_t tile_words, int first, int tiles) {
  const bool past = (size_t)c->W->N * (size_t)c->W->K * c->operand_bytes >= PAST_CACHES;
  const int K = c->W->K, N = c->W->N, rows = N - first < ROWS ? N - first : ROWS;
  const uint16_t *rows_at = (const uint16_t *)c->w + (size_t)first * (size_t)K;
  if (c->transposed && c->links)
    pack_columns(to, tile_words, c->w, K, N, first, tiles, true);
  else if (c->transposed)
    pack_columns(to, tile_words, c->w, K, N, first, tiles, false);
  else if (c->links)
    pack_rows(to, rows_at, K, rows, true, past);
  else
    pack_rows(to, rows_at, K, rows, false, past);
}

/* Tiles from `tile` on that are packed by fours at once; 0: this one is not. */
static size_t tiles_by_fours(const struct pack_args *c, size_t tile, size_t end) {
  if (c->operand_bytes != 2) return 0;
  if (!c->transposed) return 1;
  const size_t whole = (size_t)(c->W->N / ROWS), last = end < whole ? end : whole;
  return tile >= last ? 0 : last - tile < TILES ? last - tile : TILES;
}

void cpu_matrix_pack(const void *args, size_t begin, size_t end, void *scratch) {
  const struct pack_args *c = args;
  const int K = c->W->K, K32 = round_up(K, 32);
  const size_t tile_bytes = (size_t)K32 * ROWS * c->operand_bytes;
  (void)scratch;
  for (size_t tile = begin, next; tile < end; tile = next) {
    const size_t by_fours = tiles_by_fours(c, tile, end), tiles = by_fours > 0 ? by_fours : 1;
    char *to = (char *)c->W->data + tile * tile_bytes;
    next = tile + tiles;
    if (K32 != K || (int)next * ROWS > c->W->N) memset(to, 0, tiles * tile_bytes);
    if (by_fours > 0)
      pack_fours(c, (uint32_t *)(void *)to, tile_bytes / sizeof(uint32_t), (int)tile * ROWS, (int)tiles);
    const int k0 = by_fours > 0 ? K / FOUR * FOUR : 0;
    for (int n = (int)tile * ROWS; k0 < K && n < (int)next * ROWS && n < c->W->N; n++) pack_rest(c, n, K32, k0);
  }
  _mm_sfence();
}

void cpu_matrix_unpack_rows(const void *args, size_t begin, size_t end, void *scratch) {
  const struct unpack_args *c = args;
  const int K = c->W->K, K32 = round_up(K, 32), k0 = c->operand_bytes == 2 ? K / FOUR * FOUR : 0;
  (void)scratch;
  for (size_t row = begin; row < end;) {
    const int n = c->first + (int)row;
    const size_t in_tile = (size_t)(ROWS - n % ROWS), rows = end - row < in_tile ? end - row : in_tile;
    const uint32_t *words = (const uint32_t *)c->W->data + tile_row(n, K32) / 2;
    uint16_t *to = (uint16_t *)c->w + row * (size_t)K;
    if (k0 > 0 && c->links)
      unpack_rows(to, words, K, (int)rows, true);
    else if (k0 > 0)
      unpack_rows(to, words, K, (int)rows, false);
    for (size_t i = 0; i < rows; i++) {
      const size_t at = tile_row(n + (int)i, K32);
      for (int k = k0; k < K; k++)
        copy_operand(c->w, (row + i) * (size_t)K + (size_t)k, c->W->data, at + along(k, c->links), c->operand_bytes);
    }
    row += rows;
  }
}

/* A block of 16 x 16 bf16: 8 words (two of K) of 16 rows -> 8 words of what were its columns.  Word r of a row holds
 * elements 2r and 2r + 1 of the block, in links elements 4q + 2 + j and 4q + j, for r = 2q + j. */
static inline void transpose_block(uint32_t *restrict to, const uint32_t *restrict from, bool links) {
  for (int r = 0; r < 8; r++) {
    const int low_column = links ? r / 2 * 4 + 2 + r % 2 : 2 * r, high_column = links ? low_column - 2 : low_column + 1;
    for (int s = 0; s < 8; s++) {
      const int low_row = links ? s / 2 * 4 + 2 + s % 2 : 2 * s, high_row = links ? low_row - 2 : low_row + 1;
      const uint32_t low = from[r * ROWS + low_row], high = from[r * ROWS + high_row];
      to[s * ROWS + low_column] = (low & 0xffff) | high << 16;
      to[s * ROWS + high_column] = low >> 16 | (high & 0xffff0000u);
    }
  }
}

static inline void transpose_block_f32(uint32_t *restrict to, const uint32_t *restrict from) {
  for (int column = 0; column < ROWS; column++)
    for (int row = 0; row < ROWS; row++)
      to[(row / 2 * ROWS + column) * 2 + row % 2] = from[(column / 2 * ROWS + row) * 2 + column % 2];
}

/* Both layouts keep a block of 16 rows and 16 of K together, so that a transpose is made block by block. */
void cpu_matrix_transpose(const void *args, size_t begin, size_t end, void *scratch) {
  const struct transpose_args *c = args;
  const size_t block = (size_t)ROWS * ROWS * c->operand_bytes; /* bytes */
  const size_t blocks = (size_t)round_up(c->W->N, ROWS) / ROWS, all = (size_t)round_up(c->T->K, 32) / ROWS;
  const size_t row_blocks = (size_t)round_up(c->W->K, 32) / ROWS;
  (void)scratch;
  for (size_t tile = begin; tile < end; tile++) {
    const char *from = (const char *)c->W->data + ((size_t)c->first / ROWS + tile) * block;
    char *to = (char *)c->T->data + tile * all * block;
    for (size_t b = 0; b < blocks; b++, to += block, from += row_blocks * block) {
      if (c->operand_bytes != 2)
        transpose_block_f32((uint32_t *)(void *)to, (const uint32_t *)(const void *)from);
      else if (c->links)
        transpose_block((uint32_t *)(void *)to, (const uint32_t *)(const void *)from, true);
      else
        transpose_block((uint32_t *)(void *)to, (const uint32_t *)(const void *)from, false);
    }
    if (blocks < all) memset(to, 0, block);
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

/* E operands of a key, by words into its column of the tile; of a value, into every other place of its row. */
static inline void write_bf16(uint16_t *restrict keys, uint16_t *restrict values, const uint16_t *restrict k,
                              const uint16_t *restrict v, int E, bool links) {
  int e = 0;
  for (; e + FOUR <= E; e += FOUR) {
    uint64_t four;
    uint32_t words[2];
    memcpy(&four, k + e, sizeof four);
    words_of_four(&words[0], &words[1], four, links);
    memcpy(keys + (size_t)e * ROWS, &words[0], sizeof words[0]);
    memcpy(keys + (size_t)(e + 2) * ROWS, &words[1], sizeof words[1]);
  }
  for (; e < E; e++) keys[along(e, links)] = k[e];
  for (e = 0; e < E; e++) values[2 * e] = v[e];
}

static void write_f32(float *restrict keys, float *restrict values, const float *restrict k, const float *restrict v,
                      int E) {
  for (int e = 0; e < E; e++) keys[(size_t)(e / 2) * 32 + (size_t)(e % 2)] = k[e];
  for (int e = 0; e < E; e++) values[2 * e] = v[e];
}

/* Where the key and the value of row t's head 0 lie in the pool, in operands, and the distance to the next head's. */
struct kv_place {
  size_t key, next_key, value, next_value;
};

static inline struct kv_place kv_place_of(const struct kv_write_args *c, size_t t) {
  const struct kv_layer *kv = c->kv;
  const int position = c->rows->position[t], pt = kv->page_tokens, offset = position % pt;
  const int32_t *pages = c->rows->pages + (size_t)c->rows->sequence[t] * (size_t)c->rows->pages_per_sequence;
  assert(position >= 0 && position / pt < c->rows->pages_per_sequence);
  const size_t tile = (size_t)round_up(kv->E, 32) * 16, row = (size_t)round_up(kv->E, 16);
  const size_t head = (size_t)pages[position / pt] * (size_t)kv->G;
  const size_t next_key = (size_t)(pt / 16) * tile, next_value = (size_t)pt * row;
  return (struct kv_place){.key = head * next_key + (size_t)(offset / 16) * tile + (size_t)(offset % 16) * 2,
                           .next_key = next_key,
                           .value = head * next_value + in_pairs(offset, 2 * row, c->links),
                           .next_value = next_value};
}

static void write_row(const struct kv_write_args *c, size_t t) {
  const struct kv_layer *kv = c->kv;
  const struct kv_place at = kv_place_of(c, t);
  const int E = kv->E;
  for (int g = 0; g < kv->G; g++) {
    const size_t from = (row_of(c->row, t) * (size_t)kv->G + (size_t)g) * (size_t)E;
    const size_t key = at.key + (size_t)g * at.next_key, value = at.value + (size_t)g * at.next_value;
    if (c->links)
      write_bf16((uint16_t *)kv->keys + key, (uint16_t *)kv->values + value, (const uint16_t *)c->k + from,
                 (const uint16_t *)c->v + from, E, true);
    else if (c->operand_bytes == 2)
      write_bf16((uint16_t *)kv->keys + key, (uint16_t *)kv->values + value, (const uint16_t *)c->k + from,
                 (const uint16_t *)c->v + from, E, false);
    else
      write_f32((float *)kv->keys + key, (float *)kv->values + value, (const float *)c->k + from,
                (const float *)c->v + from, E);
  }
}

/* Are rows t to t + 3 bf16 at four positions of a sequence that share words of values and lie side by side in a tile of
 * keys? */
static inline bool four_rows(const struct kv_write_args *c, size_t t, size_t end) {
  if (c->operand_bytes != 2 || c->kv->E % EIGHT != 0 || t + 4 > end || c->rows->position[t] % 4 != 0) return false;
  for (size_t i = 1; i < 4; i++)
    if (c->rows->sequence[t + i] != c->rows->sequence[t] || c->rows->position[t + i] != c->rows->position[t] + (int)i)
      return false;
  return true;
}

/* Eight elements of two values, one in every first place and one in every second. */
static inline void store_pair(uint16_t *to, __m128i first, __m128i second) {
  _mm_storeu_si128((void *)to, _mm_unpacklo_epi16(first, second));
  _mm_storeu_si128((void *)(to + EIGHT), _mm_unpackhi_epi16(first, second));
}

/* Such four rows, by eight elements of each at once. */
static inline void write_four(const struct kv_write_args *c, size_t t, bool links) {
  const struct kv_layer *kv = c->kv;
  const struct kv_place at = kv_place_of(c, t);
  const size_t pair = 2 * (size_t)round_up(kv->E, 16), E = (size_t)kv->E;
  for (size_t g = 0; g < (size_t)kv->G; g++) {
    uint32_t *keys = (uint32_t *)kv->keys + (at.key + g * at.next_key) / 2;
    uint16_t *values = (uint16_t *)kv->values + at.value / 2 * 2 + g * at.next_value; /* a pair's first place */
    const uint16_t *k[4], *v[4];
    for (size_t i = 0; i < 4; i++) {
      const size_t from = (row_of(c->row, t + i) * (size_t)kv->G + g) * E;
      k[i] = (const uint16_t *)c->k + from;
      v[i] = (const uint16_t *)c->v + from;
    }
    for (size_t e = 0; e < E; e += EIGHT, keys += 4 * ROWS, values += 2 * EIGHT) {
      __m128i row[4];
      for (int i = 0; i < 4; i++) row[i] = words_of_eight(_mm_loadu_si128((const void *)(k[i] + e)), links);
      transpose_words(row);
      for (int word = 0; word < 4; word++) _mm_storeu_si128((void *)(keys + word * ROWS), row[word]);
      for (int i = 0; i < 4; i++) row[i] = _mm_loadu_si128((const void *)(v[i] + e));
      store_pair(values, row[links ? 2 : 0], row[links ? 0 : 1]);
      store_pair(values + pair, row[links ? 3 : 2], row[links ? 1 : 3]);
    }
  }
}

void cpu_kv_write(const void *args, size_t begin, size_t end, void *scratch) {
  const struct kv_write_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end;) {
    if (!four_rows(c, t, end)) {
      write_row(c, t++);
      continue;
    }
    if (c->links)
      write_four(c, t, true);
    else
      write_four(c, t, false);
    t += 4;
  }
}
