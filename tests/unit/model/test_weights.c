/* Weights come back from the kernels' memory as they went in, their digest sees every bit of it, and a wrong file
 * leaves them untouched. */
#include "tests/unit/model/support.h"

#include <math.h>

#include "common/model/network/elementary.h"
#include "common/model/network/weights_internal.h"

static struct weights *make(const struct bench *b, bool for_training) {
  struct weights *w = NULL;
  assert_int_equal(weights_create(&w, b->model, for_training, NULL), RC_OK);
  return w;
}

static struct digest digest_of_weights(const struct weights *w) {
  struct digest d;
  assert_int_equal(weights_digest(&d, w, NULL), RC_OK);
  return d;
}

static void test_masters_survive_packing(void **state) {
  (void)state;
  for (int format = FORMAT_BF16; format <= FORMAT_F32; format++) {
    const struct model_config c = tiny_config(false);
    struct bench b;
    assert_true(bench_open(&b, &c, (enum number_format)format, NULL, 2));
    const size_t n = b.model->params.elements;
    struct weights *w = make(&b, true);
    float *masters = masters_of(b.model, 5), *back = calloc(n, sizeof *back), *again = calloc(n, sizeof *again);
    weights_from_masters(w, masters);
    weights_to_masters(w, back);
    for (size_t i = 0; i < n; i++)
      assert_true(fabsf(back[i] - masters[i]) <= (format == FORMAT_F32 ? 0 : fabsf(masters[i]) * 0x1p-8f));
    weights_from_masters(w, back);
    weights_to_masters(w, again);
    assert_memory_equal(back, again, n * sizeof *back);
    assert_true(weights_bytes(b.model, true) > weights_bytes(b.model, false));
    weights_free(w);
    free(masters);
    free(back);
    free(again);
    bench_close(&b);
  }
}

/* Wherever in a tensor it stands, whatever its sign, and NaNs before all. */
static void test_largest_magnitude(void **state) {
  (void)state;
  for (int format = FORMAT_BF16; format <= FORMAT_F32; format++) {
    const struct model_config c = tiny_config(false);
    struct bench b;
    assert_true(bench_open(&b, &c, (enum number_format)format, NULL, 2));
    struct weights *w = make(&b, true);
    float *masters = masters_of(b.model, 5);
    for (size_t place = 0; place < 70; place++) {
      for (int i = 0; i < b.model->params.count; i++) {
        const struct param *p = &b.model->params.items[i];
        float *at = &masters[p->offset + place % p->count], kept = *at;
        *at = place % 2 ? -7.5f : 7.5f;
        if (place == 69) *at = NAN;
        weights_from_masters(w, masters);
        assert_true(place == 69 ? isinf(w->largest[i]) : w->largest[i] == 7.5f);
        struct err err = {0};
        assert_int_equal(weights_check_finite(w, &err), place == 69 ? RC_CORRUPT : RC_OK);
        if (place == 69) assert_string_equal(err.field, p->name);
        *at = kept;
      }
    }
    weights_free(w);
    free(masters);
    bench_close(&b);
  }
}

static void test_random_masters(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct bench b, other;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  assert_true(bench_open(&other, &c, FORMAT_F32, "v2", 3));
  float *x = masters_of(b.model, 5), *same = masters_of(other.model, 5), *different = masters_of(b.model, 6);
  const size_t n = b.model->params.elements;
  assert_memory_equal(x, same, n * sizeof *x);
  assert_true(memcmp(x, different, n * sizeof *x) != 0);
  for (int i = 0; i < b.model->params.count; i++) {
    const struct param *p = &b.model->params.items[i];
    double sum = 0, squares = 0, fourth = 0;
    for (size_t k = p->offset; k < p->offset + p->count; k++) {
      const double v = (double)x[k] / (double)c.initializer_range;
      if (p->rows == 1) assert_true(x[k] == 1);
      sum += v;
      squares += v * v;
      fourth += v * v * v * v;
    }
    if (p->rows == 1) continue;
    const double count = (double)p->count, slack = 5 / sqrt(count);
    assert_true(fabs(sum / count) < slack && fabs(squares / count - 1) < 1.5 * slack &&
                fabs(fourth / count - 3) < 10 * slack);
  }
  assert_true(memcmp(x + b.model->params.items[3].offset, x + b.model->params.items[4].offset, 100 * sizeof *x) != 0);
  free(x);
  free(same);
  free(different);
  bench_close(&b);
  bench_close(&other);
}

/* By its definition, from tensors read one at a time, whatever is digested together and by how many threads. */
static void test_digest_is_that_of_tensors_one_by_one(void **state) {
  (void)state;
  struct digest by_threads[3];
  for (int threads = 1; threads <= 3; threads++) {
    struct model_config c = tiny_config(false);
    c.vocabulary = 5003; /* more rows than are read out at once */
    struct bench b;
    assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, threads));
    struct weights *w = make(&b, false);
    float *masters = masters_of(b.model, 11);
    weights_from_masters(w, masters);
    struct digest *leaves = calloc((size_t)b.model->params.count, sizeof *leaves), whole;
    for (int i = 0; i < b.model->params.count; i++) {
      struct st_entry entry;
      weights_entry(&entry, b.model, i);
      st_tensor_digest(&leaves[i], &entry, weights_read_at(w, i, 0));
    }
    st_combine_digests(&whole, leaves, (size_t)b.model->params.count);
    by_threads[threads - 1] = digest_of_weights(w);
    assert_true(digest_equal(&whole, &by_threads[threads - 1]));
    assert_true(digest_equal(&by_threads[0], &by_threads[threads - 1]));
    weights_free(w);
    free(masters);
    free(leaves);
    bench_close(&b);
  }
}

static void test_digest_sees_every_tensor(void **state) {
  (void)state;
  const struct model_config c = tiny_config(false);
  struct bench b;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
  struct weights *w = random_weights(b.model, false, 1), *twin = random_weights(b.model, true, 1);
  const struct digest before = digest_of_weights(w), same = digest_of_weights(twin);
  assert_true(digest_equal(&before, &same));
  for (int i = 0; i < b.model->params.count; i++) {
    uint16_t *data = w->matrices[i].data;
    data[0] ^= 1;
    const struct digest changed = digest_of_weights(w);
    assert_false(digest_equal(&before, &changed));
    data[0] ^= 1;
  }
  const struct digest after = digest_of_weights(w);
  assert_true(digest_equal(&before, &after));
  weights_free(w);
  weights_free(twin);
  bench_close(&b);
}

static void test_safetensors_round_trip(void **state) {
  (void)state;
  static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
  const char *const metadata[] = {"version", "12", "run", zeros, NULL};
  for (int tied = 0; tied < 2; tied++) {
    struct model_config c = tiny_config(tied != 0);
    c.vocabulary = 5003;
    struct bench b;
    struct buf bytes = BUF_INIT;
    struct st_file *file = NULL;
    assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
    struct weights *w = random_weights(b.model, true, 1), *loaded = make(&b, true);
    struct digest named;
    char hex[DIGEST_HEX_MAX];
    assert_int_equal(weights_to_safetensors(&bytes, &named, w, metadata, "weights", NULL), RC_OK);
    assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, NULL), RC_OK);
    assert_string_equal(st_metadata(file, "format"), "pt");
    assert_string_equal(st_metadata(file, "version"), "12");
    assert_string_equal(st_metadata(file, "run"), zeros);
    assert_int_equal(st_count(file), b.model->params.count);
    assert_int_equal(weights_from_safetensors(loaded, file, NULL), RC_OK);
    const struct digest x = digest_of_weights(w), y = digest_of_weights(loaded);
    assert_true(digest_equal(&x, &y) && digest_equal(&x, &named));
    digest_hex(hex, &x);
    assert_string_equal(st_metadata(file, "weights"), hex);
    for (int i = 0; i < b.model->params.count; i++) {
      const struct matrix *t = &w->transposed[i];
      if (!t->data) continue;
      assert_memory_equal(t->data, loaded->transposed[i].data, b.ops->matrix_bytes(b.ops, t->N, t->K));
    }
    st_close(file);
    buf_free(&bytes);
    weights_free(w);
    weights_free(loaded);
    bench_close(&b);
  }
}

/* fp32 files load into bf16 weights rounded, bf16 files into fp32 weights widened. */
static void test_formats_convert(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct bench narrow, wide;
  struct buf bytes = BUF_INIT;
  struct st_file *file = NULL;
  assert_true(bench_open(&narrow, &c, FORMAT_BF16, NULL, 1));
  assert_true(bench_open(&wide, &c, FORMAT_F32, NULL, 1));
  const size_t n = wide.model->params.elements;
  struct digest written;
  float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
  struct weights *full = random_weights(wide.model, false, 9), *direct = random_weights(narrow.model, false, 9),
                 *loaded = make(&narrow, false);
  assert_int_equal(weights_to_safetensors(&bytes, &written, full, NULL, "weights", NULL), RC_OK);
  assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, NULL), RC_OK);
  assert_int_equal(weights_from_safetensors(loaded, file, NULL), RC_OK);
  const struct digest d = digest_of_weights(direct), l = digest_of_weights(loaded);
  assert_true(digest_equal(&d, &l));
  st_close(file);
  buf_clear(&bytes);
  assert_int_equal(weights_to_safetensors(&bytes, &written, direct, NULL, "weights", NULL), RC_OK);
  assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, NULL), RC_OK);
  assert_int_equal(weights_from_safetensors(full, file, NULL), RC_OK);
  weights_to_masters(full, x);
  weights_to_masters(direct, y);
  assert_memory_equal(x, y, n * sizeof *x);
  st_close(file);
  buf_free(&bytes);
  weights_free(full);
  weights_free(direct);
  weights_free(loaded);
  free(x);
  free(y);
  bench_close(&narrow);
  bench_close(&wide);
}

/* Half number `half` by the definition of the format. */
static float half_value(unsigned half) {
  const int exponent = half >> 10 & 31;
  const double fraction = half & 0x3FF, size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return (float)(half & 0x8000 ? -size : size);
}

/* To the nearest bf16, ties to even. */
static float bf16_value(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* A file of F16 whose element i of every tensor is one of the finite halves, all of them in turn. */
static void write_halves(struct buf *out, const struct model *m, unsigned (*half_at)(size_t)) {
  struct st_entry *entries = calloc((size_t)m->params.count, sizeof *entries);
  assert_non_null(entries);
  for (int i = 0; i < m->params.count; i++) {
    weights_entry(&entries[i], m, i);
    entries[i].dtype = ST_F16;
  }
  assert_int_equal(st_write_header(out, entries, (size_t)m->params.count, NULL, NULL), RC_OK);
  for (int i = 0; i < m->params.count; i++) {
    for (size_t k = 0; k < m->params.items[i].count; k++) {
      const uint16_t half = (uint16_t)half_at(k);
      buf_append(out, &half, sizeof half);
    }
  }
  free(entries);
}

static unsigned finite_half(size_t i) {
  enum { FINITE = 0x7C00 };
  const unsigned k = (unsigned)(i % (2 * FINITE));
  return k < FINITE ? k : (k - FINITE) | 0x8000;
}

static unsigned infinite_at_the_end(size_t i) { return i == 39 ? 0x7C00 : 0x3C00; }
static unsigned nan_at_the_end(size_t i) { return i == 39 ? 0xFC01 : 0x3C00; }

/* Files of F16 load exactly into fp32 weights, and rounded into bf16 ones; those of every magnitude, subnormals too. */
static void test_halves_load(void **state) {
  (void)state;
  struct model_config c = tiny_config(true);
  c.vocabulary = 8192; /* the embedding is converted in several parts */
  for (int format = FORMAT_BF16; format <= FORMAT_F32; format++) {
    struct bench b;
    struct buf bytes = BUF_INIT;
    struct st_file *file = NULL;
    struct err err = {0};
    assert_true(bench_open(&b, &c, (enum number_format)format, NULL, 2));
    float *back = calloc(b.model->params.elements, sizeof *back);
    struct weights *w = make(&b, true);
    write_halves(&bytes, b.model, finite_half);
    assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, &err), RC_OK);
    if (weights_from_safetensors(w, file, &err) != RC_OK) fail_msg("%s", err.message);
    st_close(file);
    weights_to_masters(w, back);
    for (int i = 0; i < b.model->params.count; i++) {
      const struct param *p = &b.model->params.items[i];
      for (size_t k = 0; k < p->count; k++) {
        const float exact = half_value(finite_half(k)), want = format == FORMAT_F32 ? exact : bf16_value(exact);
        if (memcmp(&back[p->offset + k], &want, sizeof want) != 0)
          fail_msg("%s[%zu], half %04x: %a, expected %a", p->name, k, finite_half(k), (double)back[p->offset + k],
                   (double)want);
      }
    }
    buf_free(&bytes);
    weights_free(w);
    free(back);
    bench_close(&b);
  }
}

static void test_halves_that_are_not_finite(void **state) {
  (void)state;
  unsigned (*const wrong[])(size_t) = {infinite_at_the_end, nan_at_the_end};
  struct model_config c = tiny_config(true);
  struct bench b;
  c.hidden = 40;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct weights *w = random_weights(b.model, false, 1);
  for (int i = 0; i < 2; i++) {
    struct buf bytes = BUF_INIT;
    struct st_file *file = NULL;
    struct err err = {0};
    write_halves(&bytes, b.model, wrong[i]);
    assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, &err), RC_OK);
    assert_int_equal(weights_from_safetensors(w, file, &err), RC_INVALID);
    assert_non_null(strstr(err.message, "expected finite numbers"));
    st_close(file);
    buf_free(&bytes);
  }
  weights_free(w);
  bench_close(&b);
}

enum damage {
  DAMAGE_NONE,
  DAMAGE_MISSING,
  DAMAGE_EXTRA,
  DAMAGE_SHAPE,
  DAMAGE_DTYPE,
  DAMAGE_TIED_HEAD_EQUAL,
  DAMAGE_TIED_HEAD_DIFFERENT
};

/* A file of zeros except for the given damage. */
static void write_file(struct buf *out, const struct model *m, enum damage damage) {
  struct st_entry entries[64];
  size_t count = 0;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    if (damage == DAMAGE_MISSING && i == 5) continue;
    struct st_entry e = {.name = p->name,
                         .dtype = ST_BF16,
                         .dims = p->rows == 1 ? 1 : 2,
                         .shape = {p->rows == 1 ? p->cols : p->rows, p->cols}};
    if (damage == DAMAGE_SHAPE && i == 2) {
      e.shape[0] = p->cols;
      e.shape[1] = p->rows;
    }
    if (damage == DAMAGE_DTYPE && i == 2) e.dtype = ST_I16;
    entries[count++] = e;
  }
  if (damage == DAMAGE_EXTRA)
    entries[count++] =
        (struct st_entry){.name = "model.layers.0.self_attn.q_proj.bias", .dtype = ST_BF16, .dims = 1, .shape = {72}};
  if (damage >= DAMAGE_TIED_HEAD_EQUAL) {
    entries[count] = entries[0];
    entries[count++].name = "lm_head.weight";
  }
  assert_int_equal(st_write_header(out, entries, count, NULL, NULL), RC_OK);
  for (size_t i = 0; i < count; i++) {
    const size_t bytes = (size_t)entries[i].shape[0] * (entries[i].dims == 2 ? (size_t)entries[i].shape[1] : 1) * 2;
    char *zeros = calloc(1, bytes);
    if (damage == DAMAGE_TIED_HEAD_DIFFERENT && i == count - 1) zeros[bytes - 1] = 1;
    buf_append(out, zeros, bytes);
    free(zeros);
  }
}

/* A right file of zeros; its last tensor is the model's last. */
static void write_zeros(struct buf *out, const struct model *m, bool as_f32) {
  struct st_entry *entries = calloc((size_t)m->params.count, sizeof *entries);
  assert_non_null(entries);
  for (int i = 0; i < m->params.count; i++) {
    weights_entry(&entries[i], m, i);
    if (as_f32) entries[i].dtype = ST_F32;
  }
  assert_int_equal(st_write_header(out, entries, (size_t)m->params.count, NULL, NULL), RC_OK);
  for (int i = 0; i < m->params.count; i++)
    for (size_t k = 0; k < m->params.items[i].count; k++) buf_append(out, "\0\0\0\0", as_f32 ? 4 : 2);
  free(entries);
}

static void test_wrong_files_are_refused_whole(void **state) {
  (void)state;
  static const struct {
    enum damage damage;
    enum rc rc;
    const char *field;
  } cases[] = {
      {DAMAGE_MISSING, RC_INVALID, "model.layers.0.self_attn.q_norm.weight"},
      {DAMAGE_EXTRA, RC_INVALID, "model.layers.0.self_attn.q_proj.bias"},
      {DAMAGE_SHAPE, RC_INVALID, "model.layers.0.self_attn.q_proj.weight"},
      {DAMAGE_DTYPE, RC_INVALID, "model.layers.0.self_attn.q_proj.weight"},
      {DAMAGE_TIED_HEAD_DIFFERENT, RC_INVALID, "lm_head.weight"},
      {DAMAGE_NONE, RC_OK, ""},
      {DAMAGE_TIED_HEAD_EQUAL, RC_OK, ""},
  };
  const struct model_config c = tiny_config(true);
  struct bench b;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
  struct weights *w = random_weights(b.model, false, 1);
  const struct digest before = digest_of_weights(w);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct buf bytes = BUF_INIT;
    struct st_file *file = NULL;
    struct err err = {0};
    write_file(&bytes, b.model, cases[i].damage);
    assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, &err), RC_OK);
    assert_int_equal(weights_from_safetensors(w, file, &err), cases[i].rc);
    assert_string_equal(err.field, cases[i].field);
    const struct digest after = digest_of_weights(w);
    assert_int_equal(digest_equal(&before, &after), cases[i].rc != RC_OK);
    st_close(file);
    buf_free(&bytes);
  }
  weights_free(w);
  bench_close(&b);
}

/* Weights that are no numbers pass every check of form, and their digest is right: still nothing can be sampled.
 *  `back`: of how many elements from the file's end on the value is the first. */
static void check_value(struct bench *b, uint32_t f32, bool fine, bool as_f32, size_t back) {
  struct buf bytes = BUF_INIT;
  struct st_file *file = NULL;
  struct err err = {0};
  struct weights *w = random_weights(b->model, false, 1);
  const struct digest before = digest_of_weights(w);
  const struct param *last = &b->model->params.items[b->model->params.count - 1];
  const uint16_t bf16 = (uint16_t)(f32 >> 16);
  const size_t size = as_f32 ? sizeof f32 : sizeof bf16;
  write_zeros(&bytes, b->model, as_f32);
  memcpy(bytes.data + bytes.len - back * size, as_f32 ? (const void *)&f32 : (const void *)&bf16, size);
  assert_int_equal(st_open_memory(&file, bytes.data, bytes.len, &err), RC_OK);
  const enum rc rc = weights_from_safetensors(w, file, &err);
  if ((rc == RC_OK) != fine)
    fail_msg("%08x as_f32 %d, %zu from the end: %s %s", f32, as_f32, back, rc_name(rc), err.message);
  if (!fine) {
    const struct digest after = digest_of_weights(w);
    assert_int_equal(rc, RC_INVALID);
    assert_string_equal(err.field, last->name);
    assert_true(digest_equal(&before, &after));
  }
  st_close(file);
  buf_free(&bytes);
  weights_free(w);
}

static void test_weights_that_are_not_finite(void **state) {
  (void)state;
  static const struct {
    uint32_t f32;
    bool fine;
  } cases[] = {{0x7F800000, false}, {0xFF800000, false}, {0x7FC00000, false}, {0xFF800001, false}, {0x7F7F8000, false},
               {0xFF7FFFFF, false}, {0x7F7F7FFF, true},  {0xFF7F0000, true},  {0x00000001, true}};
  struct model_config c = tiny_config(true);
  for (int hidden = 40; hidden <= 43; hidden++) { /* the last tensor has as many elements */
    struct bench b;
    c.hidden = hidden;
    assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      const bool fine_bf16 = (cases[i].f32 >> 16 & 0x7F80) != 0x7F80;
      for (size_t back = 1; back <= 8; back++) {
        check_value(&b, cases[i].f32, cases[i].fine, true, back);
        check_value(&b, cases[i].f32, fine_bf16, false, back);
      }
    }
    bench_close(&b);
  }
}

static void test_rope_table(void **state) {
  (void)state;
  struct model_config c = tiny_config(true);
  struct bench b;
  struct model *m = NULL;
  c.head_dim = 128;
  c.positions_max = 40960;
  c.rope_theta = 1e6;
  assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 2));
  for (int position = 0; position < 40960; position += 37) {
    for (int i = 0; i < 64; i++) {
      const float inverse = 1.0f / (float)pow(1e6, (double)((float)(2 * i) / 128.0f)),
                  angle = (float)position * inverse;
      const float *pair = b.model->rope + ((size_t)position * 64 + (size_t)i) * 2;
      assert_true(fabsf(pair[0] - (float)cos((double)angle)) <= 0x1p-23f &&
                  fabsf(pair[1] - (float)sin((double)angle)) <= 0x1p-23f);
    }
  }
  assert_int_equal(model_create(&m, &c, b.ops, 100, NULL), RC_OK);
  assert_int_equal(m->context_max, 100);
  assert_memory_equal(m->rope, b.model->rope, 100 * 64 * 2 * sizeof(float));
  model_free(m);
  assert_int_equal(model_create(&m, &c, b.ops, -1, NULL), RC_INVALID);
  bench_close(&b);
}

static void test_elementary_functions(void **state) {
  (void)state;
  uint64_t rng = 3;
  for (int i = 0; i < 200000; i++) {
    const double angle = (double)next_random(&rng) / 0x1p31 * (i % 2 ? 262144 : 10) * (i % 3 ? 1 : -1);
    assert_true(fabs(elementary_sin(angle) - sin(angle)) < 1e-15 && fabs(elementary_cos(angle) - cos(angle)) < 1e-15);
    const double x = ((double)next_random(&rng) / 0x1p31 - 0.5) * 1400;
    assert_true(x < -690 || fabs(elementary_exp(x) / exp(x) - 1) < 1e-15);
    const double y = exp(x / 10);
    assert_true(fabs(elementary_log(y) - log(y)) <= 1e-15 * fmax(1, fabs(log(y))));
  }
  assert_true(elementary_exp(0) == 1 && elementary_exp(-1e9) == 0 && isinf(elementary_exp(1e9)) &&
              isnan(elementary_exp(NAN)) && elementary_log(1) == 0);
  assert_true(elementary_exp(-INFINITY) == 0);
}

/* Random norms and biases begin where they do nothing; and the factor of embeddings is a number that operands can
 * be. */
static void test_random_vectors_do_nothing(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++) {
    const struct model_config c = family_config(family, true);
    struct bench b;
    assert_true(bench_open(&b, &c, FORMAT_BF16, NULL, 1));
    float *masters = masters_of(b.model, 1);
    for (int i = 0; i < b.model->params.count; i++) {
      const struct param *p = &b.model->params.items[i];
      const float nothing = param_kind_is_bias(p->kind) || c.plus_one ? 0 : 1;
      for (size_t k = 0; p->rows == 1 && k < p->count; k++) assert_true(masters[p->offset + k] == nothing);
    }
    assert_true(model_embedding_scale(b.model) == (c.root_embedding ? 6.3125f : 1)); /* 6.3246, the root of 40 */
    free(masters);
    bench_close(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_vectors_do_nothing),
      cmocka_unit_test(test_masters_survive_packing),
      cmocka_unit_test(test_largest_magnitude),
      cmocka_unit_test(test_random_masters),
      cmocka_unit_test(test_digest_is_that_of_tensors_one_by_one),
      cmocka_unit_test(test_digest_sees_every_tensor),
      cmocka_unit_test(test_safetensors_round_trip),
      cmocka_unit_test(test_formats_convert),
      cmocka_unit_test(test_halves_load),
      cmocka_unit_test(test_halves_that_are_not_finite),
      cmocka_unit_test(test_wrong_files_are_refused_whole),
      cmocka_unit_test(test_weights_that_are_not_finite),
      cmocka_unit_test(test_rope_table),
      cmocka_unit_test(test_elementary_functions),
  };
  return cmocka_run_group_tests_name("model/weights", tests, NULL, NULL);
}
