/* Writing: commas, escapes, UTF-8 repair, and numbers that read back to the same bits. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "common/json/json.h"

static struct buf out;
static struct json_writer w;

static int set_up(void **state) {
  (void)state;
  buf_clear(&out);
  json_writer_init(&w, &out);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  buf_free(&out);
  return 0;
}

static const char *written(void) {
  assert_int_equal(buf_check(&out, NULL), RC_OK);
  return out.data;
}

static void test_structure(void **state) {
  (void)state;
  static const int32_t ints[] = {1, -2};
  static const float floats[] = {0.5f, -1.0f};
  json_object_begin(&w);
  json_kv_string(&w, "s", "a");
  json_kv_string(&w, "n", NULL);
  json_key(&w, "o");
  json_object_begin(&w);
  json_object_end(&w);
  json_key(&w, "a");
  json_array_begin(&w);
  json_array_begin(&w);
  json_array_end(&w);
  json_write_bool(&w, true);
  json_write_null(&w);
  json_array_end(&w);
  json_kv_bool(&w, "b", false);
  json_kv_i32s(&w, "is", ints, 2);
  json_kv_f32s(&w, "fs", floats, 2);
  json_kv_i32s(&w, "e", NULL, 0);
  json_kv_f64(&w, "d", 0.1);
  json_kv_f32(&w, "f", 0.1f);
  json_object_end(&w);
  assert_string_equal(written(),
                      "{\"s\":\"a\",\"n\":null,\"o\":{},\"a\":[[],true,null],\"b\":false,\"is\":[1,-2],"
                      "\"fs\":[0.5,-1],\"e\":[],\"d\":0.1,\"f\":0.100000001}");
}

static void test_integers(void **state) {
  (void)state;
  json_array_begin(&w);
  json_write_int(&w, INT64_MIN);
  json_write_int(&w, INT64_MAX);
  json_write_int(&w, 0);
  json_write_u64(&w, JSON_EXACT_MAX);
  json_write_u64(&w, JSON_EXACT_MAX + (uint64_t)1);
  json_write_u64(&w, UINT64_MAX);
  json_array_end(&w);
  assert_string_equal(
      written(),
      "[-9223372036854775808,9223372036854775807,0,9007199254740991,\"9007199254740992\",\"18446744073709551615\"]");
}

static void test_strings(void **state) {
  (void)state;
  json_array_begin(&w);
  json_write_string(&w, "q\"b\\n\nt\tc\x01\x7F\xC3\xA9\xF0\x9F\x98\x80");
  json_write_string_len(&w, "a\0b", 3);
  json_write_string(&w, "\xFF|\xC0\x80|\xED\xA0\x80|\xE2\x82|\xF4\x90\x80\x80|\xC3");
  json_array_end(&w);
#define BAD "\xEF\xBF\xBD"
  assert_string_equal(written(), "[\"q\\\"b\\\\n\\nt\\tc\\u0001\x7F\xC3\xA9\xF0\x9F\x98\x80\",\"a\\u0000b\",\"" BAD
                                 "|" BAD BAD "|" BAD BAD BAD "|" BAD BAD "|" BAD BAD BAD BAD "|" BAD "\"]");
}

/* A JSON parser reads the result for any input bytes. */
static void test_random_bytes_become_valid_json(void **state) {
  (void)state;
  const struct rng_key key = {.seed = 5, .purpose = RNG_SHUFFLE};
  for (uint32_t i = 0; i < 2000; i++) {
    uint32_t words[8];
    rng_words(words, &key, 2 * i);
    rng_words(words + 4, &key, 2 * i + 1);
    char bytes[sizeof words];
    memcpy(bytes, words, sizeof bytes);
    for (size_t j = 0; j < sizeof bytes; j++)
      if (!bytes[j]) bytes[j] = 'x'; /* NUL is written as an escape that our reader refuses */
    set_up(NULL);
    json_write_string_len(&w, bytes, sizeof bytes);
    struct json *v;
    struct err err;
    if (json_parse(&v, out.data, out.len, 0, &err)) fail_msg("%s: %s", out.data, err.message);
    json_free(v);
  }
}

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

static float of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* A million random bit patterns, denormals and both zeroes included, through writer, jansson and FIELD_F32_ARRAY. */
static void test_float32_round_trip(void **state) {
  (void)state;
  enum { BATCHES = 16, PER_BATCH = 65536 };
  float *values = malloc(PER_BATCH * sizeof *values);
  const struct rng_key key = {.seed = 11, .purpose = RNG_SAMPLE};
  for (uint32_t batch = 0; batch < BATCHES; batch++) {
    for (uint32_t i = 0; i < PER_BATCH; i += 4) {
      uint32_t words[4];
      rng_words(words, &key, batch * PER_BATCH + i);
      for (uint32_t j = 0; j < 4; j++) {
        if (batch == 0) words[j] &= 0x807FFFFF;                              /* denormals */
        if (batch == 1) words[j] = (words[j] & 0x83FFFFFF) | 0x3C000000;     /* around log-probabilities */
        if (batch == 2) words[j] = (words[j] & 0xFF800000) | (words[j] & 3); /* around powers of two */
        if ((words[j] & 0x7F800000) == 0x7F800000) words[j] &= 0x807FFFFF;
        values[i + j] = of_bits(words[j]);
      }
    }
    values[0] = 0.0f;
    values[1] = -0.0f;
    values[2] = of_bits(1);
    values[3] = of_bits(0x7F7FFFFF);
    set_up(NULL);
    json_object_begin(&w);
    json_kv_f32s(&w, "x", values, PER_BATCH);
    json_object_end(&w);
    struct json *root;
    struct arena arena = ARENA_INIT;
    struct json_f32s back;
    const struct json_field field = {.name = "x", .kind = FIELD_F32_ARRAY, .target = &back, .required = true};
    assert_int_equal(json_parse(&root, out.data, out.len, 0, NULL), RC_OK);
    assert_int_equal(json_fields(root, &field, 1, UNKNOWN_REFUSED, &arena, NULL), RC_OK);
    assert_int_equal(back.count, PER_BATCH);
    for (size_t i = 0; i < PER_BATCH; i++)
      if (bits_of(back.items[i]) != bits_of(values[i]))
        fail_msg("%08x came back as %08x", bits_of(values[i]), bits_of(back.items[i]));
    arena_free(&arena);
    json_free(root);
  }
  free(values);
}

/* Our digits are printf's, ties included. */
static void test_float32_equals_printf(void **state) {
  (void)state;
  const struct rng_key key = {.seed = 12, .purpose = RNG_SAMPLE};
  for (uint32_t i = 0; i < 100000; i++) {
    uint32_t words[4];
    rng_words(words, &key, i);
    if (i < 600) words[0] = (i < 300 ? 0x00400000u : 0u) ^ (i % 255) << 23; /* powers of two, and 1.5 times them */
    const float value = of_bits(words[0]);
    if (!isfinite(value) || value == 0) continue;
    char expected[40];
    snprintf(expected, sizeof expected, "%.9g", (double)value);
    set_up(NULL);
    json_write_f32(&w, value);
    assert_string_equal(written(), expected);
  }
  set_up(NULL);
  json_array_begin(&w);
  json_write_f32(&w, (float)NAN);
  json_write_f32(&w, -(float)INFINITY);
  json_write_f32(&w, 0.0f);
  json_write_f32(&w, -0.0f);
  json_array_end(&w);
  assert_string_equal(written(), "[null,null,0,-0.0]");
}

static void test_float64(void **state) {
  (void)state;
  json_array_begin(&w);
  json_write_f64(&w, 0.3);
  json_write_f64(&w, 0.1 + 0.2);
  json_write_f64(&w, 1e300);
  json_write_f64(&w, -3);
  json_write_f64(&w, (double)NAN);
  json_write_f64(&w, (double)INFINITY);
  json_write_f64(&w, -0.0);
  json_array_end(&w);
  assert_string_equal(written(), "[0.3,0.30000000000000004,1e+300,-3,null,null,-0.0]");
  const struct rng_key key = {.seed = 13, .purpose = RNG_SAMPLE};
  for (uint32_t i = 0; i < 20000; i++) {
    uint32_t words[4];
    rng_words(words, &key, i);
    double value;
    memcpy(&value, words, sizeof value);
    if (!isfinite(value)) continue;
    set_up(NULL);
    json_write_f64(&w, value);
    assert_true(strtod(written(), NULL) == value);
  }
}

static void test_copied_values_keep_type_and_order(void **state) {
  (void)state;
  static const char text[] = "{\"z\":[1,1.0,-0.0,1e+300,\"\\u00e9\",null,true,false],\"a\":{\"b\":{}}}";
  struct json *root;
  assert_int_equal(json_parse(&root, text, sizeof text - 1, 0, NULL), RC_OK);
  json_write_value(&w, root);
  assert_string_equal(written(), "{\"z\":[1,1.0,-0.0,1e+300,\"\xC3\xA9\",null,true,false],\"a\":{\"b\":{}}}");
  json_free(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_structure, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_integers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_strings, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_random_bytes_become_valid_json, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_float32_round_trip, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_float32_equals_printf, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_float64, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_copied_values_keep_type_and_order, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("json/write", tests, NULL, NULL);
}
