/* Intervals: an item that is not a stretch of time with a known cause is refused with its number, because bubble
 * accounting must not add up nonsense. */
#include "tests/unit/wire/wire_test.h"

struct timeline {
  struct interval *items;
  size_t count;
};

static enum rc timeline_decode(struct timeline *m, const struct json *body, struct arena *arena, struct err *err) {
  return intervals_read(&m->items, &m->count, json_get(body, "intervals"), arena, err);
}

static void timeline_encode(const struct timeline *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_key(&w, "intervals");
  intervals_write(&w, m->items, m->count);
  json_object_end(&w);
}

MESSAGE_AGAIN(timeline)

static const struct message every_cause = {
    .name = "intervals",
    .json =
        "{\"intervals\":[[\"fill\",0,1],[\"starved\",1,1],[\"verifying\",1,4],[\"logprob\",4,5],[\"compute\",5,9],"
        "[\"step\",9,10],[\"checkpoint\",10,11],[\"push\",10,12],[\"load\",12,13],"
        "[\"idle\",1700000000000000,9007199254740991]]}",
    .again = again_timeline};
static const struct message nothing = {.name = "no intervals", .json = "{\"intervals\":[]}", .again = again_timeline};

static void intervals_read_back_as_they_were_written(void **state) {
  (void)state;
  message_check_round_trip(&every_cause);
  message_check_round_trip(&nothing);
}

/* The names are the contract: they stand in databases, dashboards and openapi. */
static void every_cause_has_its_name(void **state) {
  (void)state;
  static const char *const names[CAUSE_COUNT] = {"fill", "starved",    "verifying", "logprob", "compute",
                                                 "step", "checkpoint", "push",      "load",    "idle"};
  for (int c = 0; c < CAUSE_COUNT; c++) {
    assert_string_equal(interval_cause_name((enum interval_cause)c), names[c]);
    assert_int_equal(interval_cause_parse(names[c]), c);
  }
  assert_string_equal(interval_cause_name((enum interval_cause)CAUSE_COUNT), "unknown");
  assert_string_equal(interval_cause_name((enum interval_cause) - 1), "unknown");
  assert_int_equal(interval_cause_parse("unknown"), -1);
  assert_int_equal(interval_cause_parse(""), -1);
  assert_int_equal(interval_cause_parse("Fill"), -1);
}

static void what_is_no_interval_is_refused(void **state) {
  (void)state;
  const struct message *m = &every_cause;
  message_check_refused(m, "[\"starved\",1,1]", "[\"starving\",1,1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",1,1,1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",1,0]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",-1,1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",1,1.5]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[\"starved\",\"1\",1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[1,1,1]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "[]", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "null", "intervals[1]");
  message_check_refused(m, "[\"starved\",1,1]", "{\"cause\":\"starved\",\"begin_us\":1,\"end_us\":1}", "intervals[1]");
  message_check_refused(m, "9007199254740991", "9007199254740992", "intervals[9]");
  message_check_refused(&nothing, "[]", "{}", "intervals");
  message_check_refused(&nothing, "[]", "\"fill\"", "intervals");
  message_check_refused(&nothing, "[]", "null", "intervals");
}

/* As many as the limit says; one more is refused before memory is taken for it. */
static void the_number_of_intervals_is_bounded(void **state) {
  (void)state;
  for (int surplus = 0; surplus < 2; surplus++) {
    struct interval items[LIMIT_INTERVALS + 1];
    struct timeline m = {items, (size_t)(LIMIT_INTERVALS + surplus)}, again;
    struct arena arena = ARENA_INIT;
    struct buf text = BUF_INIT;
    struct json *root;
    struct err err = {0};
    for (int i = 0; i <= LIMIT_INTERVALS; i++) items[i] = (struct interval){CAUSE_COMPUTE, i, i + 1};
    timeline_encode(&m, &text);
    assert_int_equal(json_parse(&root, text.data, text.len, 0, &err), RC_OK);
    assert_int_equal(timeline_decode(&again, root, &arena, &err), surplus ? RC_INVALID : RC_OK);
    if (surplus) assert_string_equal(err.field, "intervals");
    for (int i = 0; !surplus && i < LIMIT_INTERVALS; i++) {
      assert_true(again.items[i].cause == CAUSE_COMPUTE && again.items[i].begin_us == i &&
                  again.items[i].end_us == i + 1);
    }
    json_free(root);
    buf_free(&text);
    arena_free(&arena);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(intervals_read_back_as_they_were_written),
      cmocka_unit_test(every_cause_has_its_name),
      cmocka_unit_test(what_is_no_interval_is_refused),
      cmocka_unit_test(the_number_of_intervals_is_bounded),
  };
  return cmocka_run_group_tests_name("wire: intervals", tests, NULL, NULL);
}
