/* The fused multiply-add of x86-64-v2, which has no instruction for it (cpu/isa/vec.h), against the C library's. */
#include "tests/unit/model/ops_support.h"

#include "common/model/cpu/isa/vec.h"

enum { DRAWS = 1 << 21 };

/* Two numbers and a third that their product nearly cancels, leaves halfway between two floats, or does not reach. */
static void draw(float x[3]) {
  static const uint32_t special[] = {0,           0x80000000u, 1,           0x807fffffu, 0x00800000u, 0x7f7fffffu,
                                     0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x3f800000u, 0x34000000u};
  const uint32_t how = random_u32() % 8;
  for (int i = 0; i < 3; i++) x[i] = lit_float(random_u32());
  if (how < 4)
    for (int i = 0; i < 3; i++) x[i] = lit_float((lit_bits(x[i]) & 0x807fffffu) | (115 + random_u32() % 24) << 23);
  if (how == 1) x[2] = -x[0] * x[1];
  if (how == 2) x[2] = x[0] * x[1] * 0x1p24f;
  if (how == 3)
    for (int i = 0; i < 3; i++) x[i] = lit_float(lit_bits(x[i]) & 0xfffff000u);
  if (how == 4) x[random_u32() % 3] = lit_float(special[random_u32() % (sizeof special / sizeof special[0])]);
  if (how == 5)
    for (int i = 0; i < 2; i++) x[i] = lit_float((lit_bits(x[i]) & 0x807fffffu) | (61 + random_u32() % 6) << 23);
  if (how == 5) x[2] = lit_float((lit_bits(x[2]) & 0x807fffffu) | (1 + random_u32() % 8) << 23);
}

static void compare(void) {
  for (int n = 0; n < DRAWS; n++) {
    float x[VL][3];
    vf a, b, c;
    for (int l = 0; l < VL; l++) {
      draw(x[l]);
      a[l] = x[l][0], b[l] = x[l][1], c[l] = x[l][2];
    }
    const vf got = vfma(a, b, c);
    for (int l = 0; l < VL; l++) {
      const float want = fmaf(x[l][0], x[l][1], x[l][2]), one = got[l];
      if (lit_bits(one) != lit_bits(want) && !(isnan(one) && isnan(want)))
        fail_msg("fma(%a, %a, %a): expected %a, got %a", x[l][0], x[l][1], x[l][2], want, one);
    }
  }
}

static void test_as_the_c_library(void **state) {
  (void)state;
  compare();
}

/* As all kernels run. */
static void test_without_subnormals(void **state) {
  (void)state;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("fma")) skip(); /* the C library's own does not flush what it is given */
  pool_enter();
  compare();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_the_c_library),
                                     cmocka_unit_test(test_without_subnormals)};
  random_seed(11);
  return cmocka_run_group_tests_name("fma", tests, NULL, NULL);
}
