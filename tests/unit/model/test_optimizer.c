/* Units commute, a poisoned step changes nothing, restored state steps on identically, AdamW and schedules match
 * plain double references. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/learning/optimizer.h"

static struct bench b;
static size_t n;

static const struct optimizer_config CONFIG = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip_norm = 0.5, .grad_scale_log2 = 32};

static int setup(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  if (!bench_open(&b, &c, FORMAT_BF16, NULL, 2)) return -1;
  n = b.model->params.elements;
  return 0;
}
static int teardown(void **state) {
  (void)state;
  bench_close(&b);
  return 0;
}

static struct optimizer *make(const struct optimizer_config *c) {
  struct optimizer *o = NULL;
  assert_int_equal(optimizer_create(&o, b.model, c, NULL), RC_OK);
  masters_random(b.model, optimizer_masters(o), 1, NULL);
  return o;
}

static void add(struct optimizer *o, uint64_t index) {
  float *g = gradient_unit(b.model, index);
  assert_true(optimizer_add_unit(o, g));
  free(g);
}

static void assert_same(struct optimizer *x, struct optimizer *y) {
  assert_memory_equal(optimizer_masters(x), optimizer_masters(y), n * sizeof(float));
  assert_memory_equal(optimizer_moment1(x), optimizer_moment1(y), n * sizeof(float));
  assert_memory_equal(optimizer_moment2(x), optimizer_moment2(y), n * sizeof(float));
  assert_int_equal(optimizer_step_count(x), optimizer_step_count(y));
}

static void test_units_commute(void **state) {
  (void)state;
  static const uint64_t orders[3][5] = {{1, 2, 3, 4, 5}, {5, 3, 1, 2, 4}, {2, 5, 4, 3, 1}};
  struct optimizer *o[3];
  struct step_result r[3];
  for (int k = 0; k < 3; k++) {
    o[k] = make(&CONFIG);
    for (int step = 0; step < 3; step++) {
      for (int i = 0; i < 5; i++) add(o[k], orders[k][i] + (uint64_t)step * 10);
      optimizer_step(o[k], 5, &r[k]);
    }
    assert_same(o[0], o[k]);
    assert_true(r[k].grad_norm == r[0].grad_norm && r[k].grad_norm > CONFIG.clip_norm);
  }
  for (int k = 0; k < 3; k++) optimizer_free(o[k]);
}

static void test_matches_plain_adamw(void **state) {
  (void)state;
  struct optimizer *o = make(&CONFIG);
  double *w = calloc(n, sizeof *w), *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v);
  for (size_t i = 0; i < n; i++) w[i] = (double)optimizer_masters(o)[i];
  for (int step = 1; step <= 3; step++) {
    float *g = gradient_unit(b.model, (uint64_t)step);
    struct step_result r;
    double norm = 0;
    for (size_t i = 0; i < n; i++) norm += pow((double)g[i] / 2, 2);
    norm = sqrt(norm);
    assert_true(optimizer_add_unit(o, g));
    optimizer_step(o, 2, &r);
    assert_true(fabs(r.grad_norm / norm - 1) < 1e-5 && r.lr == CONFIG.lr && r.step == step && !r.skipped);
    for (int p = 0; p < b.model->params.count; p++) {
      const struct param *t = &b.model->params.items[p];
      const double decay = t->rows == 1 ? 0 : CONFIG.weight_decay;
      for (size_t i = t->offset; i < t->offset + t->count; i++) {
        const double x = (double)g[i] / 2 * fmin(1, CONFIG.clip_norm / (norm + 1e-6));
        w[i] -= CONFIG.lr * decay * w[i];
        m[i] = 0.9 * m[i] + 0.1 * x;
        v[i] = 0.95 * v[i] + 0.05 * x * x;
        w[i] -= CONFIG.lr / (1 - pow(0.9, step)) * m[i] / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-8);
      }
    }
    free(g);
  }
  for (size_t i = 0; i < n; i++) assert_true(fabs((double)optimizer_masters(o)[i] - w[i]) < 2e-5);
  free(w);
  free(m);
  free(v);
  optimizer_free(o);
}

static void test_poison_skips_the_step_and_nothing_else(void **state) {
  (void)state;
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 1e9f};
  for (size_t k = 0; k < sizeof poisons / sizeof poisons[0]; k++) {
    struct optimizer *o = make(&CONFIG), *clean = make(&CONFIG);
    struct step_result r;
    float *g = gradient_unit(b.model, 2);
    add(o, 1);
    g[n / 2] = poisons[k];
    assert_false(optimizer_add_unit(o, g));
    add(o, 3); /* a good unit does not heal it */
    optimizer_step(o, 3, &r);
    assert_true(r.skipped && r.step == 0);
    assert_same(o, clean);
    add(o, 4);
    add(clean, 4);
    optimizer_step(o, 1, &r);
    assert_true(!r.skipped && r.step == 1);
    optimizer_step(clean, 1, &r);
    assert_same(o, clean);
    free(g);
    optimizer_free(o);
    optimizer_free(clean);
  }
}

static void test_discard_forgets(void **state) {
  (void)state;
  struct optimizer *o = make(&CONFIG), *clean = make(&CONFIG);
  struct step_result r;
  add(o, 1);
  optimizer_discard(o);
  add(o, 2);
  add(clean, 2);
  optimizer_step(o, 1, &r);
  optimizer_step(clean, 1, &r);
  assert_same(o, clean);
  optimizer_reset(o, &CONFIG);
  assert_int_equal(optimizer_step_count(o), 0);
  for (size_t i = 0; i < n; i++) assert_true(optimizer_moment1(o)[i] == 0 && optimizer_moment2(o)[i] == 0);
  assert_memory_equal(optimizer_masters(o), optimizer_masters(clean), n * sizeof(float));
  optimizer_free(o);
  optimizer_free(clean);
}

/* A checkpoint is masters, moments and the step count. */
static void test_restored_state_steps_on_identically(void **state) {
  (void)state;
  struct optimizer_config c = CONFIG;
  c.schedule = SCHEDULE_COSINE;
  c.warmup_steps = 3;
  c.total_steps = 20;
  struct optimizer *o = make(&c), *restored = make(&c);
  struct step_result r, s;
  for (uint64_t step = 0; step < 7; step++) {
    add(o, step);
    optimizer_step(o, 1, &r);
  }
  memcpy(optimizer_masters(restored), optimizer_masters(o), n * sizeof(float));
  memcpy(optimizer_moment1(restored), optimizer_moment1(o), n * sizeof(float));
  memcpy(optimizer_moment2(restored), optimizer_moment2(o), n * sizeof(float));
  optimizer_set_step_count(restored, 7);
  add(o, 50);
  add(restored, 50);
  optimizer_step(o, 1, &r);
  optimizer_step(restored, 1, &s);
  assert_same(o, restored);
  assert_true(r.lr == s.lr && r.step == 8 && s.step == 8);
  optimizer_free(o);
  optimizer_free(restored);
}

static void test_schedules(void **state) {
  (void)state;
  struct optimizer_config c = {.lr = 2, .warmup_steps = 4, .total_steps = 24, .lr_min_ratio = 0.1};
  assert_true(schedule_lr(&c, 1) == 0.5 && schedule_lr(&c, 2) == 1 && schedule_lr(&c, 4) == 2 &&
              schedule_lr(&c, 1000) == 2);
  c.schedule = SCHEDULE_LINEAR;
  assert_true(fabs(schedule_lr(&c, 14) - 1.1) < 1e-15 && fabs(schedule_lr(&c, 24) - 0.2) < 1e-15 &&
              fabs(schedule_lr(&c, 99) - 0.2) < 1e-15);
  c.schedule = SCHEDULE_COSINE;
  for (int step = 5; step <= 30; step++) {
    const double progress = fmin(1, (step - 4) / 20.0),
                 expected = 2 * (0.1 + 0.9 * 0.5 * (1 + cos(3.14159265358979323846 * progress)));
    assert_true(fabs(schedule_lr(&c, step) - expected) < 1e-14);
  }
  c.total_steps = 0;
  assert_true(fabs(schedule_lr(&c, 5) - 0.2) < 1e-15);
  c.warmup_steps = 0;
  c.schedule = SCHEDULE_CONSTANT;
  assert_true(schedule_lr(&c, 1) == 2);
}

static void test_refuses_bad_configs(void **state) {
  (void)state;
  struct optimizer_config cases[7];
  static const char *const fields[7] = {"lr", "beta1", "beta2", "eps", "weight_decay", "clip_norm", "grad_scale_log2"};
  for (int i = 0; i < 7; i++) cases[i] = CONFIG;
  cases[0].lr = NAN;
  cases[1].beta1 = 1;
  cases[2].beta2 = -0.1;
  cases[3].eps = 0;
  cases[4].weight_decay = -1;
  cases[5].clip_norm = NAN;
  cases[6].grad_scale_log2 = 60;
  for (int i = 0; i < 7; i++) {
    struct optimizer *o = NULL;
    struct err err = {0};
    assert_int_equal(optimizer_create(&o, b.model, &cases[i], &err), RC_INVALID);
    assert_string_equal(err.field, fields[i]);
    assert_null(o);
  }
  enum schedule_kind kind;
  assert_int_equal(schedule_kind_parse(&kind, "linear", NULL), RC_OK);
  assert_int_equal(kind, SCHEDULE_LINEAR);
  assert_int_equal(schedule_kind_parse(&kind, "step", NULL), RC_INVALID);
}

/* Without arrays for gradients: units come in pieces of any size, a poisoned one in the last of them, and the step
 * works in several windows, the last not full. */
static void test_a_step_in_parts_has_the_same_bits(void **state) {
  (void)state;
  struct model_config c = tiny_config(true);
  struct bench large;
  struct optimizer *whole = NULL, *parts = NULL;
  struct step_result r, s;
  c.vocabulary = 60000;
  assert_true(bench_open(&large, &c, FORMAT_BF16, NULL, 2));
  const struct model *m = large.model;
  const size_t elements = m->params.elements, bytes = elements * sizeof(float);
  const struct optimizer_place place = {.shard = shard_of(elements, 0, 1), .scratch_dir = "/tmp", .in_parts = true};
  float *masters = calloc(elements, sizeof *masters);
  masters_random(m, masters, 1, NULL);
  assert_int_equal(optimizer_create(&whole, m, &CONFIG, NULL), RC_OK);
  assert_int_equal(optimizer_create_at(&parts, m, &place, &CONFIG, NULL), RC_OK);
  assert_true(optimizer_bytes(m, &place) <= elements * sizeof(int64_t) + (4 << 20) + 64);
  assert_null(optimizer_gradient(parts));
  optimizer_set_masters(whole, masters);
  optimizer_set_masters(parts, masters);
  for (uint64_t step = 0; step < 4; step++) {
    const bool poisoned = step == 2;
    float *g = gradient_unit(m, step);
    if (poisoned) g[elements - 1] = NAN;
    assert_int_equal(optimizer_add_unit(whole, g), !poisoned);
    bool good = optimizer_add_part(parts, 0, g, elements / 3);
    good &= optimizer_add_part(parts, elements / 3, g + elements / 3, elements - elements / 3);
    assert_int_equal(optimizer_end_parts(parts, good), !poisoned);
    free(g);
    optimizer_step(whole, 5, &r);
    optimizer_step(parts, 5, &s);
    assert_true(r.grad_norm == s.grad_norm && r.skipped == poisoned && s.skipped == poisoned && r.step == s.step);
    assert_memory_equal(optimizer_masters(whole), optimizer_masters(parts), bytes);
    assert_memory_equal(optimizer_moment1(whole), optimizer_moment1(parts), bytes);
    assert_memory_equal(optimizer_moment2(whole), optimizer_moment2(parts), bytes);
    for (size_t i = 0; i < elements; i++) assert_true(optimizer_sums(parts)[i] == 0);
  }
  optimizer_free(whole);
  optimizer_free(parts);
  free(masters);
  bench_close(&large);
}

/* Masters and moments in a scratch file: the same steps, weights and arrays, bit for bit, also of a tensor that is
 * worked on in several windows. */
static void test_mapped_state_has_the_same_bits(void **state) {
  (void)state;
  struct model_config c = tiny_config(true);
  struct bench large;
  struct optimizer *resident = NULL, *mapped = NULL;
  struct weights *expected = NULL, *got = NULL;
  struct step_result r, s;
  struct digest d, e;
  struct err err = {0};
  c.vocabulary = 60000; /* times 40: three windows of the embedding, the last not full */
  assert_true(bench_open(&large, &c, FORMAT_BF16, NULL, 2));
  const struct model *m = large.model;
  const size_t elements = m->params.elements;
  const struct shard all = shard_of(elements, 0, 1);
  float *masters = calloc(elements, sizeof *masters);
  masters_random(m, masters, 1, NULL);
  assert_int_equal(optimizer_create(&resident, m, &CONFIG, NULL), RC_OK);
  const struct optimizer_place at_rest = {.shard = all}, on_disk = {.shard = all, .scratch_dir = "/tmp"};
  if (optimizer_create_at(&mapped, m, &on_disk, &CONFIG, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(optimizer_bytes(m, &at_rest) - optimizer_mapped_bytes(m, &at_rest), optimizer_bytes(m, &on_disk));
  assert_int_equal(optimizer_bytes(m, &on_disk), elements * (sizeof(float) + sizeof(int64_t)));
  assert_int_equal(weights_create(&expected, m, true, NULL), RC_OK);
  assert_int_equal(weights_create(&got, m, true, NULL), RC_OK);
  optimizer_set_masters(resident, masters);
  optimizer_set_masters(mapped, masters);
  for (uint64_t step = 0; step < 3; step++) {
    float *g = gradient_unit(m, step);
    assert_true(optimizer_add_unit(resident, g) && optimizer_add_unit(mapped, g));
    free(g);
    optimizer_step(resident, 5, &r);
    optimizer_step(mapped, 5, &s);
    assert_true(r.grad_norm == s.grad_norm);
    weights_from_masters(expected, optimizer_masters(resident));
    optimizer_to_weights(mapped, got);
    assert_int_equal(weights_digest(&d, expected, NULL), RC_OK);
    assert_int_equal(weights_digest(&e, got, NULL), RC_OK);
    assert_true(digest_equal(&d, &e));
    optimizer_to_weights(resident, got);
    assert_int_equal(weights_digest(&e, got, NULL), RC_OK);
    assert_true(digest_equal(&d, &e));
  }
  const size_t bytes = elements * sizeof(float);
  assert_memory_equal(optimizer_masters(resident), optimizer_masters(mapped), bytes);
  assert_memory_equal(optimizer_moment1(resident), optimizer_moment1(mapped), bytes);
  assert_memory_equal(optimizer_moment2(resident), optimizer_moment2(mapped), bytes);
  uint16_t *x = calloc(elements, sizeof *x), *y = calloc(elements, sizeof *y);
  optimizer_shard_operands(resident, x);
  optimizer_shard_operands(mapped, y);
  assert_memory_equal(x, y, elements * sizeof *x);
  optimizer_reset(mapped, &CONFIG);
  for (size_t i = 0; i < elements; i++)
    assert_true(optimizer_moment1(mapped)[i] == 0 && optimizer_moment2(mapped)[i] == 0);
  assert_memory_equal(optimizer_masters(resident), optimizer_masters(mapped), bytes);
  optimizer_free(resident);
  optimizer_free(mapped);
  const struct optimizer_place nowhere = {.shard = all, .scratch_dir = "/nowhere"};
  assert_int_equal(optimizer_create_at(&mapped, m, &nowhere, &CONFIG, &err), RC_IO);
  assert_null(mapped);
  weights_free(expected);
  weights_free(got);
  free(masters);
  free(x);
  free(y);
  bench_close(&large);
}

/* In 8 bits: the same masters, codes and largest values resident, mapped and in parts, in more than one window; 6 bytes
 * less; a reset leaves zero moments; a poisoned step leaves no trace. */
static void test_moments_in_8_bits_do_not_depend_on_where_they_are(void **state) {
  (void)state;
  struct model_config c = tiny_config(false);
  struct bench large;
  struct optimizer *o[4] = {NULL};
  struct step_result r;
  c.vocabulary = 60000;
  assert_true(bench_open(&large, &c, FORMAT_BF16, NULL, 2));
  const struct model *m = large.model;
  const size_t elements = m->params.elements, blocks = moment_blocks(&m->params);
  const struct shard all = shard_of(elements, 0, 1);
  const struct optimizer_place whole = {.shard = all},
                               places[] = {{.shard = all, .moments8 = true},
                                           {.shard = all, .moments8 = true, .scratch_dir = "/tmp"},
                                           {.shard = all, .moments8 = true, .in_parts = true},
                                           {.shard = all, .moments8 = true, .scratch_dir = "/tmp", .in_parts = true}};
  assert_true(m->params.items[m->params.count - 1].offset % MOMENT_BLOCK > 0); /* the head: windows, and a first block
                                                                                * that is not whole */
  float *masters = calloc(elements, sizeof *masters);
  masters_random(m, masters, 1, NULL);
  assert_true(blocks >= elements / MOMENT_BLOCK && blocks <= elements / MOMENT_BLOCK + 2 * (size_t)m->params.count);
  assert_int_equal(optimizer_bytes(m, &whole) - optimizer_bytes(m, &places[0]),
                   8 * elements - (2 * elements + 63) / 64 * 64 - 2 * ((4 * blocks + 63) / 64 * 64));
  for (int k = 0; k < 4; k++) {
    assert_int_equal(optimizer_create_at(&o[k], m, &places[k], &CONFIG, NULL), RC_OK);
    assert_null(optimizer_moment1(o[k]));
    optimizer_set_masters(o[k], masters);
  }
  for (uint64_t step = 0; step < 4; step++) {
    float *g = gradient_unit(m, step);
    if (step == 2) g[elements / 2] = NAN;
    const struct moments8 first = optimizer_moments8(o[0]);
    for (int k = 0; k < 4; k++) {
      if (places[k].in_parts)
        optimizer_end_parts(o[k], optimizer_add_part(o[k], 0, g, elements));
      else
        optimizer_add_unit(o[k], g);
      optimizer_step(o[k], 5, &r);
      assert_true(r.skipped == (step == 2));
      const struct moments8 e = optimizer_moments8(o[k]);
      assert_memory_equal(optimizer_masters(o[0]), optimizer_masters(o[k]), elements * sizeof(float));
      assert_memory_equal(first.m, e.m, elements);
      assert_memory_equal(first.v, e.v, elements);
      assert_memory_equal(first.m_max, e.m_max, blocks * sizeof(float));
      assert_memory_equal(first.v_max, e.v_max, blocks * sizeof(float));
    }
    free(g);
  }
  const struct moments8 last = optimizer_moments8(o[3]);
  size_t used = 0;
  for (size_t i = 0; i < blocks; i++) used += last.m_max[i] > 0 && last.v_max[i] > 0;
  assert_true(used > blocks / 2);
  optimizer_reset(o[3], &CONFIG);
  for (size_t i = 0; i < elements; i++) assert_true(last.m[i] == 0 && last.v[i] == 0);
  for (size_t i = 0; i < blocks; i++) assert_true(last.m_max[i] == 0 && last.v_max[i] == 0);
  for (int k = 0; k < 4; k++) optimizer_free(o[k]);
  free(masters);
  bench_close(&large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_mapped_state_has_the_same_bits),
      cmocka_unit_test(test_a_step_in_parts_has_the_same_bits),
      cmocka_unit_test(test_moments_in_8_bits_do_not_depend_on_where_they_are),
      cmocka_unit_test(test_units_commute),
      cmocka_unit_test(test_matches_plain_adamw),
      cmocka_unit_test(test_poison_skips_the_step_and_nothing_else),
      cmocka_unit_test(test_discard_forgets),
      cmocka_unit_test(test_restored_state_steps_on_identically),
      cmocka_unit_test(test_schedules),
      cmocka_unit_test(test_refuses_bad_configs),
  };
  return cmocka_run_group_tests_name("model/optimizer", tests, setup, teardown);
}
