/* Changes between two versions: what is encoded decodes to the same bits, whatever share of the values differs and by
 * how much; it is never larger than it may be; and no bytes, however damaged, are taken for another version or written
 * outside. */
#include "tests/unit/model/support.h"

#include <stdatomic.h>

#include "common/model/network/weights_changes.h"

enum { VALUES_MAX = 20000, GUARD = 64 };

static uint64_t state;
static uint32_t draw(void) { /* splitmix64 */
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (uint32_t)((z ^ z >> 31) >> 32);
}
static bool chance(double share) { return draw() < share * 4294967296.0; }

static uint16_t some_finite(void) {
  uint16_t bits;
  do bits = (uint16_t)draw();
  while ((bits & 0x7F80) == 0x7F80);
  return bits;
}

enum step { ONE_UNIT, SOME_UNITS, ANYTHING };

/* A neighbour that is another finite number. */
static uint16_t moved(uint16_t x, enum step step) {
  uint16_t y = x;
  while (y == x || (y & 0x7F80) == 0x7F80) {
    const int by = step == ONE_UNIT ? (draw() & 1 ? 1 : -1) : step == SOME_UNITS ? (int)(draw() % 257) - 128 : 0;
    y = step == ANYTHING ? some_finite() : (uint16_t)(x + by);
    if (step == ONE_UNIT && (y & 0x7F80) == 0x7F80) y = (uint16_t)(x - by);
  }
  return y;
}

struct tensors {
  uint16_t base[VALUES_MAX], now[VALUES_MAX];
  size_t count;
};

static void tensors_draw(struct tensors *t, size_t count, double share, enum step step) {
  t->count = count;
  for (size_t i = 0; i < count; i++) {
    t->base[i] = some_finite();
    t->now[i] = chance(share) ? moved(t->base[i], step) : t->base[i];
  }
}

/* In stretches, as rows become ready. */
static struct change_record encode(const struct tensors *t, size_t stretch, unsigned char *out) {
  struct changes_encoder e;
  changes_encode_begin(&e, t->base, t->now, t->count, out);
  for (size_t ready = stretch; ready < t->count; ready += stretch) changes_encode(&e, ready);
  changes_encode(&e, t->count);
  const struct change_record r = changes_encode_end(&e);
  if (r.form == CHANGE_WHOLE) memcpy(out, t->now, r.bytes);
  return r;
}

static bool decode(uint16_t *x, const struct change_record *r, const void *bytes, size_t count, size_t stretch) {
  struct changes_cursor c;
  changes_begin(&c, r, bytes, count);
  for (size_t at = 0; at < count; at += stretch)
    changes_apply(&c, x + at, at, at + stretch < count ? at + stretch : count);
  return changes_end(&c);
}

static void check(const struct tensors *t) {
  unsigned char *out = malloc(2 * t->count); /* exactly, for the sanitizers */
  uint16_t *x = malloc(2 * t->count);
  assert_true(out && x);
  const struct change_record r = encode(t, 1 + draw() % 700, out);
  assert_true(r.form == CHANGE_WHOLE ? r.bytes == 2 * t->count : r.bytes <= t->count);
  assert_true((r.form == CHANGE_NONE) == (memcmp(t->base, t->now, 2 * t->count) == 0));
  memcpy(x, t->base, 2 * t->count);
  assert_true(decode(x, &r, out, t->count, 1 + draw() % 700));
  assert_memory_equal(x, t->now, 2 * t->count);
  free(out);
  free(x);
}

static void changes_lead_to_the_same_bits(void **unused) {
  static const double shares[] = {0, 0.001, 0.02, 0.1, 0.5, 1};
  static const size_t counts[] = {1, 7, 12, 16, 63, 64, 65, 128, 1000, 4096, VALUES_MAX};
  static struct tensors t;
  (void)unused;
  state = 1;
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
      for (int step = ONE_UNIT; step <= ANYTHING; step++) {
        tensors_draw(&t, counts[c], shares[s], (enum step)step);
        check(&t);
      }
}

/* The first and the last value, gaps of exactly 254 .. 256 and of several times 255. */
static void changes_at_the_edges(void **unused) {
  static struct tensors t;
  (void)unused;
  static const size_t places[][4] = {
      {0, 255, 511, 767}, {254, 510, 1021, 2047}, {0, 1, 2046, 2047}, {255, 256, 1276, 1277}};
  state = 2;
  for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
    tensors_draw(&t, 2048, 0, ONE_UNIT);
    for (int i = 0; i < 4; i++) t.now[places[p][i]] = moved(t.base[places[p][i]], (enum step)(i % 3));
    check(&t);
  }
}

/* What it is worth: bytes for each value that differs by a unit, beside 16 bits for every value. */
static void few_changes_take_few_bytes(void **unused) {
  static struct tensors t;
  static unsigned char out[2 * VALUES_MAX];
  (void)unused;
  state = 3;
  tensors_draw(&t, VALUES_MAX, 0.01, ONE_UNIT);
  struct change_record r = encode(&t, VALUES_MAX, out);
  assert_int_equal(r.form, CHANGE_GAPS);
  assert_true((double)r.bytes < 1.5 * (double)r.changes);
  tensors_draw(&t, VALUES_MAX, 0.5, ONE_UNIT);
  r = encode(&t, VALUES_MAX, out);
  assert_int_equal(r.form, CHANGE_MASK);
  assert_true(r.bytes < VALUES_MAX * 2 / 7);
  tensors_draw(&t, VALUES_MAX, 1, ANYTHING);
  assert_int_equal(encode(&t, VALUES_MAX, out).form, CHANGE_WHOLE);
}

/* Any bytes at all: the decoder ends, writes nothing outside, and leaves finite numbers where it says that it is
 * content. */
static void decoder_takes_any_bytes(void **unused) {
  static struct tensors t;
  static unsigned char out[2 * VALUES_MAX];
  static uint16_t x[VALUES_MAX + 2 * GUARD];
  int content = 0, refused = 0;
  (void)unused;
  state = 4;
  for (int trial = 0; trial < 20000; trial++) {
    const size_t count = 1 + draw() % 2000;
    tensors_draw(&t, count, trial % 3 ? 0.05 : 0.6, (enum step)(trial % 2 ? ONE_UNIT : SOME_UNITS));
    struct change_record r = encode(&t, count, out);
    if (trial % 5 == 0) /* a record that no encoder made, over random bytes: as record_read lets it through */
      r = (struct change_record){.form = CHANGE_GAPS, .changes = 1 + draw() % count};
    if (trial % 5 == 0) {
      r.places = draw() % (count + 1);
      r.bytes = r.places + (r.changes + 3) / 4 + draw() % 8;
      if (r.bytes > sizeof out) continue;
      for (size_t i = 0; i < r.bytes; i++) out[i] = (unsigned char)draw();
    }
    for (uint32_t flips = 1 + draw() % 4; flips > 0 && r.bytes > 0; flips--)
      out[draw() % r.bytes] ^= (unsigned char)(1u << draw() % 8);
    unsigned char *exact = malloc(r.bytes + 1);
    memcpy(exact, out, r.bytes);
    for (int i = 0; i < GUARD; i++) x[i] = x[GUARD + count + (size_t)i] = 0xABCD;
    memcpy(x + GUARD, t.base, 2 * count);
    const bool taken = decode(x + GUARD, &r, exact, count, 1 + draw() % 300);
    for (int i = 0; i < GUARD; i++) assert_true(x[i] == 0xABCD && x[GUARD + count + (size_t)i] == 0xABCD);
    for (size_t i = 0; taken && i < count; i++) assert_true((x[GUARD + i] & 0x7F80) != 0x7F80);
    content += taken;
    refused += !taken;
    free(exact);
  }
  assert_true(content > 500 && refused > 500);
}

/* --- whole versions --- */

struct pair {
  struct bench b;
  struct weights *old, *new, *served;
  struct digest old_digest, new_digest;
  struct buf old_file, new_file, changes;
  struct weights_base base;
  atomic_size_t grown;
};

static size_t data_bytes(const struct model *m) {
  size_t sum = 0;
  for (int i = 0; i < m->params.count; i++) sum += m->params.items[i].count;
  return sum * m->ops->operand_bytes;
}

/* The most of what was told while changes were made. */
static void note_growth(void *context, size_t changes) {
  atomic_size_t *most = context;
  size_t known = atomic_load(most);
  while (known < changes && !atomic_compare_exchange_weak(most, &known, changes)) continue;
}

static void pair_open(struct pair *p, enum number_format format, int threads, double share, float by) {
  struct model_config c = tiny_config(false);
  c.vocabulary = 5003; /* more rows than are read out at once, and no whole number of tiles */
  *p = (struct pair){0};
  assert_true(bench_open(&p->b, &c, format, NULL, threads));
  const struct model *m = p->b.model;
  assert_int_equal(weights_create(&p->old, m, true, NULL), RC_OK);
  assert_int_equal(weights_create(&p->new, m, true, NULL), RC_OK);
  assert_int_equal(weights_create(&p->served, m, false, NULL), RC_OK);
  float *masters = masters_of(m, 9);
  weights_from_masters(p->old, masters);
  for (size_t i = 0; i < m->params.elements; i++)
    if (chance(share)) masters[i] *= 1 + by;
  weights_from_masters(p->new, masters);
  free(masters);
  assert_int_equal(weights_to_safetensors(&p->old_file, &p->old_digest, p->old, NULL, "weights", NULL), RC_OK);
  p->base = (struct weights_base){.operands = p->old_file.data + p->old_file.len - data_bytes(m),
                                  .bytes = data_bytes(m),
                                  .digest = p->old_digest,
                                  .grown = note_growth,
                                  .context = &p->grown};
  assert_int_equal(weights_to_safetensors_from(&p->new_file, &p->new_digest, p->new, NULL, "weights", &p->base,
                                               &p->changes, NULL),
                   RC_OK);
  struct st_file *file;
  assert_int_equal(st_open_memory(&file, p->old_file.data, p->old_file.len, NULL), RC_OK);
  assert_int_equal(weights_from_safetensors(p->served, file, NULL), RC_OK);
  st_close(file);
}

static void pair_close(struct pair *p) {
  weights_free(p->old);
  weights_free(p->new);
  weights_free(p->served);
  buf_free(&p->old_file);
  buf_free(&p->new_file);
  buf_free(&p->changes);
  bench_close(&p->b);
}

static void a_version_comes_out_of_another(void **unused) {
  static const double shares[] = {0, 0.001, 0.1, 0.3};
  (void)unused;
  state = 5;
  for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
    for (int threads = 1; threads <= 3; threads++) {
      struct pair p;
      struct weights *other = NULL;
      struct digest plain, got;
      struct buf again = BUF_INIT;
      pair_open(&p, FORMAT_BF16, threads, shares[s], 0x1p-8f);
      assert_int_equal(weights_digest(&plain, p.new, NULL), RC_OK);
      assert_true(digest_equal(&plain, &p.new_digest));
      assert_true(p.changes.len > 0 && p.changes.len <= p.base.bytes / 2);
      assert_int_equal(p.grown + changes_header_bytes((size_t)p.b.model->params.count), p.changes.len);
      if (shares[s] < 0.01) assert_true(p.changes.len < p.base.bytes / 50);
      assert_int_equal(weights_create(&other, p.b.model, false, NULL), RC_OK);
      for (int in_place = 0; in_place < 2; in_place++) {
        struct weights *to = in_place ? p.served : other;
        assert_int_equal(
            weights_apply_changes(to, p.served, p.changes.data, p.changes.len, &p.old_digest, &got, NULL), RC_OK);
        assert_true(digest_equal(&got, &p.new_digest));
        buf_clear(&again);
        assert_int_equal(weights_to_safetensors(&again, &got, to, NULL, "weights", NULL), RC_OK);
        assert_int_equal(again.len, p.new_file.len);
        assert_memory_equal(again.data, p.new_file.data, again.len);
      }
      weights_free(other);
      buf_free(&again);
      pair_close(&p);
    }
}

/* Other bits everywhere, by much or by a unit, or another format: nothing is made, and the version goes whole. */
static void what_would_not_be_less_is_not_made(void **unused) {
  (void)unused;
  struct pair p;
  pair_open(&p, FORMAT_BF16, 2, 1, -37.5f);
  assert_int_equal(p.changes.len, 0);
  pair_close(&p);
  pair_open(&p, FORMAT_BF16, 2, 1, 0x1p-8f);
  assert_int_equal(p.changes.len, 0);
  pair_close(&p);
  pair_open(&p, FORMAT_F32, 2, 0.001, 0x1p-8f);
  assert_int_equal(p.changes.len, 0);
  pair_close(&p);
}

/* Whatever of it is damaged: refused, or another digest comes out, by which the server refuses it. */
static void damage_is_never_taken_for_the_version(void **unused) {
  (void)unused;
  state = 6;
  struct pair p;
  struct weights *to = NULL;
  int refused = 0, other_digest = 0;
  pair_open(&p, FORMAT_BF16, 2, 0.05, 0x1p-8f);
  assert_int_equal(weights_create(&to, p.b.model, false, NULL), RC_OK);
  for (int trial = 0; trial < 400; trial++) {
    const size_t headed = changes_header_bytes((size_t)p.b.model->params.count), len = p.changes.len;
    size_t kept = trial % 4 == 0 ? draw() % len : len;
    char *damaged = malloc(kept + 1); /* at least a byte, for the longer one */
    memcpy(damaged, p.changes.data, kept);
    if (trial % 4 == 1) damaged[draw() % headed] ^= (char)(1u << draw() % 8);
    if (trial % 4 == 2) damaged[headed + draw() % (len - headed)] ^= (char)(1u << draw() % 8);
    if (trial % 4 == 3) damaged[kept++] = 0;
    struct digest got = {0};
    struct err err;
    const enum rc rc = weights_apply_changes(to, p.served, damaged, kept, &p.old_digest, &got, &err);
    assert_true(rc == RC_OK || rc == RC_INVALID);
    const bool names_another =
        kept >= headed && memcmp(damaged + 8 + DIGEST_BYTES, p.changes.data + 8 + DIGEST_BYTES, DIGEST_BYTES) != 0;
    if (rc == RC_OK && !names_another) assert_false(digest_equal(&got, &p.new_digest));
    refused += rc != RC_OK;
    other_digest += rc == RC_OK;
    free(damaged);
  }
  assert_true(refused > 200 && other_digest > 20);
  struct digest got;
  struct err err;
  assert_int_equal(weights_apply_changes(to, p.served, p.changes.data, p.changes.len, &p.new_digest, &got, &err),
                   RC_INVALID);
  assert_string_equal(err.field, "base");
  assert_int_equal(weights_apply_changes(to, p.new, p.changes.data, p.changes.len, &p.old_digest, &got, &err), RC_OK);
  assert_false(digest_equal(&got, &p.new_digest)); /* over other weights than they are of */
  weights_free(to);
  pair_close(&p);
}

/* The way over several versions, link behind link; and one that does not fit where the one before leads. */
static void links_follow_each_other(void **unused) {
  (void)unused;
  state = 7;
  struct pair p;
  struct buf next_file = BUF_INIT, next = BUF_INIT, both = BUF_INIT;
  struct digest digest, got;
  struct err err;
  pair_open(&p, FORMAT_BF16, 2, 0.05, 0x1p-8f);
  const struct weights_base base = {
      .operands = p.new_file.data + p.new_file.len - p.base.bytes, .bytes = p.base.bytes, .digest = p.new_digest};
  float *masters = calloc(p.b.model->params.elements, sizeof *masters);
  weights_to_masters(p.new, masters);
  for (size_t i = 0; i < p.b.model->params.elements; i++)
    if (chance(0.02)) masters[i] *= 1 - 0x1p-7f;
  weights_from_masters(p.new, masters);
  free(masters);
  assert_int_equal(weights_to_safetensors_from(&next_file, &digest, p.new, NULL, "weights", &base, &next, NULL), RC_OK);
  assert_true(next.len > 0);
  buf_append(&both, p.changes.data, p.changes.len);
  buf_append(&both, next.data, next.len);
  assert_int_equal(weights_apply_changes(p.served, p.served, both.data, both.len, &p.old_digest, &got, NULL), RC_OK);
  assert_true(digest_equal(&got, &digest));
  assert_int_equal(weights_apply_changes(p.served, p.served, both.data, both.len - 1, &p.old_digest, &got, &err),
                   RC_INVALID);
  buf_append(&both, next.data, next.len); /* of the base of the last, not of what it makes */
  assert_int_equal(weights_apply_changes(p.served, p.served, both.data, both.len, &p.old_digest, &got, &err),
                   RC_INVALID);
  assert_string_equal(err.field, "base");
  buf_free(&next_file);
  buf_free(&next);
  buf_free(&both);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(changes_lead_to_the_same_bits),
      cmocka_unit_test(changes_at_the_edges),
      cmocka_unit_test(few_changes_take_few_bytes),
      cmocka_unit_test(decoder_takes_any_bytes),
      cmocka_unit_test(a_version_comes_out_of_another),
      cmocka_unit_test(what_would_not_be_less_is_not_made),
      cmocka_unit_test(damage_is_never_taken_for_the_version),
      cmocka_unit_test(links_follow_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
