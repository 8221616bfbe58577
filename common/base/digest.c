/* Computes SHA-256 digests, reads and writes hexadecimal.
 *
 * libcrypto's plain SHA256_* functions are used although OpenSSL 3 prefers EVP: they keep their state in the caller's
 * memory and cannot fail, whereas EVP allocates.  Both reach the same SHA-NI code.  Messages that are there as a whole are
 * digested without libcrypto where the CPU has instructions for it. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "common/base/digest.h"

#include <cpuid.h>
#include <immintrin.h>
#include <openssl/crypto.h>
#include <stdatomic.h>
#include <string.h>

void digest_begin(struct digest_state *s) { SHA256_Init(&s->sha); }

void digest_update(struct digest_state *s, const void *bytes, size_t len) {
  if (len) SHA256_Update(&s->sha, bytes, len);
}

void digest_update_u32(struct digest_state *s, uint32_t value) {
  uint8_t le[4];
  for (int i = 0; i < 4; i++) le[i] = (uint8_t)(value >> 8 * i);
  digest_update(s, le, sizeof le);
}

void digest_update_u64(struct digest_state *s, uint64_t value) {
  uint8_t le[8];
  for (int i = 0; i < 8; i++) le[i] = (uint8_t)(value >> 8 * i);
  digest_update(s, le, sizeof le);
}

/* The prefix is the length in bytes as u64. */
void digest_update_text(struct digest_state *s, const char *text) {
  const size_t len = strlen(text);
  digest_update_u64(s, len);
  digest_update(s, text, len);
}

void digest_end(struct digest *out, struct digest_state *s) { SHA256_Final(out->bytes, &s->sha); }

/* ---- whole messages ----
 *
 * With the CPU's own instructions (SHA-NI), one message or two side by side.  An instruction of one message waits for the
 * one before; those of another run meanwhile, so two messages take little longer than one.  And a short message costs its
 * blocks alone, without a state that is begun, filled and cleaned.  Names are those of FIPS 180-4: W is the message
 * schedule, K the constants, A to H the working variables. */

#define WITH_SHA __attribute__((target("sha,sse4.1"))) static inline __attribute__((always_inline))

enum { BLOCK = 64, LENGTH_BYTES = 8, QUADS = 16, CPUID_SHA = 1 << 29, LANES_MAX = 2 };

static const uint32_t K[BLOCK] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
static const uint32_t FIRST[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* In the order in which the instructions want the variables, lowest last. */
struct lane {
  __m128i abef, cdgh;
};

/* Has this CPU the instructions? */
static bool lanes_can(void) {
  static atomic_int known; /* 0: not yet, 1: no, 2: yes */
  int is = atomic_load_explicit(&known, memory_order_relaxed);
  if (is == 0) {
    unsigned a, b = 0, c, d;
    is = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & CPUID_SHA) ? 2 : 1;
    atomic_store_explicit(&known, is, memory_order_relaxed);
  }
  return is == 2;
}

WITH_SHA void compress(struct lane *state, const uint8_t *const *blocks, int lanes) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i w[LANES_MAX][4];
  struct lane s[LANES_MAX];
  for (int l = 0; l < lanes; l++) s[l] = state[l];
#pragma GCC unroll 16
  for (int q = 0; q < QUADS; q++) {
    const __m128i k = _mm_loadu_si128((const __m128i *)(const void *)&K[4 * q]);
#pragma GCC unroll 2
    for (int l = 0; l < lanes; l++) {
      __m128i *const now = &w[l][q % 4];
      if (q < 4) {
        *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(blocks[l] + 16 * q)), big_endian);
      } else {
        const __m128i before = w[l][(q + 3) % 4], further = _mm_alignr_epi8(before, w[l][(q + 2) % 4], 4);
        *now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[l][(q + 1) % 4]), further), before);
      }
      const __m128i wk = _mm_add_epi32(*now, k);
      s[l].cdgh = _mm_sha256rnds2_epu32(s[l].cdgh, s[l].abef, wk);
      s[l].abef = _mm_sha256rnds2_epu32(s[l].abef, s[l].cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
  }
  for (int l = 0; l < lanes; l++) {
    state[l].abef = _mm_add_epi32(state[l].abef, s[l].abef);
    state[l].cdgh = _mm_add_epi32(state[l].cdgh, s[l].cdgh);
  }
}

WITH_SHA struct lane lane_begin(void) {
  const __m128i dcba = _mm_loadu_si128((const __m128i *)(const void *)FIRST);
  const __m128i hgfe = _mm_loadu_si128((const __m128i *)(const void *)(FIRST + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  return (struct lane){_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

WITH_SHA void lane_end(uint8_t out[DIGEST_BYTES], const struct lane *s) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i feba = _mm_shuffle_epi32(s->abef, 0x1b), dchg = _mm_shuffle_epi32(s->cdgh, 0xb1);
  const __m128i dcba = _mm_blend_epi16(feba, dchg, 0xf0), hgfe = _mm_alignr_epi8(dchg, feba, 8);
  _mm_storeu_si128((__m128i *)(void *)out, _mm_shuffle_epi8(dcba, big_endian));
  _mm_storeu_si128((__m128i *)(void *)(out + 16), _mm_shuffle_epi8(hgfe, big_endian));
}

/* What is left behind the last whole block, the bit behind it, and the length in bits: one block or two. */
static size_t tail(uint8_t out[2 * BLOCK], const uint8_t *rest, size_t len) {
  const size_t left = len % BLOCK, bytes = left + 1 + LENGTH_BYTES <= BLOCK ? BLOCK : 2 * BLOCK;
  const uint64_t bits = __builtin_bswap64((uint64_t)len * 8);
  memset(out, 0, bytes);
  if (left) memcpy(out, rest, left);
  out[left] = 0x80;
  memcpy(out + bytes - LENGTH_BYTES, &bits, LENGTH_BYTES);
  return bytes;
}

WITH_SHA void digest_lanes(uint8_t out[][DIGEST_BYTES], const void *const *messages, size_t len, int lanes) {
  struct lane state[LANES_MAX];
  const uint8_t *at[LANES_MAX];
  uint8_t tails[LANES_MAX][2 * BLOCK];
  size_t bytes = 0;
  for (int l = 0; l < lanes; l++) {
    state[l] = lane_begin();
    at[l] = messages[l];
  }
  for (size_t done = 0; done + BLOCK <= len; done += BLOCK) {
    compress(state, at, lanes);
    for (int l = 0; l < lanes; l++) at[l] += BLOCK;
  }
  for (int l = 0; l < lanes; l++) {
    bytes = tail(tails[l], at[l], len);
    at[l] = tails[l];
  }
  for (size_t done = 0; done < bytes; done += BLOCK) {
    compress(state, at, lanes);
    for (int l = 0; l < lanes; l++) at[l] += BLOCK;
  }
  for (int l = 0; l < lanes; l++) lane_end(out[l], &state[l]);
}

__attribute__((target("sha,sse4.1"))) static void lanes_one(uint8_t out[DIGEST_BYTES], const void *message, size_t len) {
  digest_lanes((uint8_t(*)[DIGEST_BYTES])out, &message, len, 1);
}

__attribute__((target("sha,sse4.1"))) static void lanes_two(uint8_t out[2][DIGEST_BYTES], const void *a, const void *b, size_t len) {
  const void *const messages[] = {a, b};
  digest_lanes(out, messages, len, 2);
}

void digest_of(struct digest *out, const void *bytes, size_t len) {
  struct digest_state s;
  if (lanes_can()) {
    lanes_one(out->bytes, bytes, len);
    return;
  }
  digest_begin(&s);
  digest_update(&s, bytes, len);
  digest_end(out, &s);
}

void digest_of_two(struct digest out[2], const void *a, const void *b, size_t len) {
  uint8_t both[2][DIGEST_BYTES];
  if (lanes_can()) {
    lanes_two(both, a, b, len);
    for (int i = 0; i < 2; i++) memcpy(out[i].bytes, both[i], DIGEST_BYTES);
    return;
  }
  digest_of(&out[0], a, len);
  digest_of(&out[1], b, len);
}

/* ---- hexadecimal ---- */

void hex_write(char *out, const void *bytes, size_t count) {
  static const char digits[] = "0123456789abcdef";
  const unsigned char *from = bytes;
  for (size_t i = 0; i < count; i++) {
    out[2 * i] = digits[from[i] >> 4];
    out[2 * i + 1] = digits[from[i] & 15];
  }
  out[2 * count] = '\0';
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool hex_read(void *bytes, size_t count, const char *text) {
  unsigned char *to = bytes;
  for (size_t i = 0; i < count; i++) {
    const int high = hex_value(text[2 * i]);
    if (high < 0) return false; /* also at the NUL, before the next byte is read */
    const int low = hex_value(text[2 * i + 1]);
    if (low < 0) return false;
    to[i] = (unsigned char)(high << 4 | low);
  }
  return text[2 * count] == '\0';
}

void digest_hex(char out[DIGEST_HEX_MAX], const struct digest *d) { hex_write(out, d->bytes, DIGEST_BYTES); }

bool digest_from_hex(struct digest *out, const char *text) {
  struct digest d;
  if (!hex_read(d.bytes, DIGEST_BYTES, text)) return false;
  *out = d;
  return true;
}

bool digest_equal(const struct digest *a, const struct digest *b) {
  return memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}

bool digest_same_secret(const struct digest *a, const struct digest *b) {
  return CRYPTO_memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}
