/* The instructions of common/model/cuda/ptx.h, from the PTX ISA's description of their fragments. */
#ifndef LEASEHOLD_TESTS_CUDA_EMULATED_PTX_H
#define LEASEHOLD_TESTS_CUDA_EMULATED_PTX_H

#define DEVICE        static inline __attribute__((unused))
#define DEVICE_MEMBER inline

DEVICE unsigned char *shared_memory(void) { return emulated_shared(); }

DEVICE float emulated_widen(uint32_t pair, int half) {
  const uint32_t bits = half ? pair & 0xffff0000u : pair << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Every lane leaves its fragments and then computes its own four results: products exact, summed in double, rounded
 * once. */
DEVICE void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  const int lane = emulated_lane(), g = lane / 4, i = lane % 4;
  uint32_t *mine = (uint32_t *)(void *)emulated_slot(lane);
  for (int w = 0; w < 4; w++) mine[w] = a[w];
  mine[4] = b[0], mine[5] = b[1];
  emulated_warp_barrier();
  double sum[4] = {d[0], d[1], d[2], d[3]};
  for (int k = 0; k < 16; k++) {
    const int quad = k % 8 / 2, half = k % 2, word = k / 8;
    const uint32_t *row = (const uint32_t *)(void *)emulated_slot(g * 4 + quad);
    const uint32_t *left = (const uint32_t *)(void *)emulated_slot(2 * i * 4 + quad);
    const uint32_t *right = (const uint32_t *)(void *)emulated_slot((2 * i + 1) * 4 + quad);
    const double low = emulated_widen(row[word * 2], half), high = emulated_widen(row[word * 2 + 1], half);
    const double even = emulated_widen(left[4 + word], half), odd = emulated_widen(right[4 + word], half);
    sum[0] += low * even, sum[1] += low * odd, sum[2] += high * even, sum[3] += high * odd;
  }
  for (int e = 0; e < 4; e++) d[e] = (float)sum[e];
  emulated_slots_read();
}

DEVICE void ldmatrix_x4_trans(uint32_t d[4], const void *row) {
  const int lane = emulated_lane(), g = lane / 4, i = lane % 4;
  memcpy(emulated_slot(lane), row, 16);
  emulated_warp_barrier();
  for (int m = 0; m < 4; m++) {
    uint16_t low, high;
    memcpy(&low, emulated_slot(m * 8 + 2 * i) + 2 * g, sizeof low);
    memcpy(&high, emulated_slot(m * 8 + 2 * i + 1) + 2 * g, sizeof high);
    d[m] = low | (uint32_t)high << 16;
  }
  emulated_slots_read();
}

/* Queued until it is waited for. */
void emulated_copy_later(void *shared, const void *global, bool there);
void emulated_copy_commit(void);
void emulated_copy_wait(int left);
DEVICE void cp_async_16(void *shared, const void *global, bool there) { emulated_copy_later(shared, global, there); }
DEVICE void cp_async_commit(void) { emulated_copy_commit(); }
template <int N>
DEVICE void cp_async_wait(void) {
  emulated_copy_wait(N);
}

DEVICE uint32_t emulated_round(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
DEVICE uint32_t bf16_pair(float low, float high) { return emulated_round(low) | emulated_round(high) << 16; }

#endif
