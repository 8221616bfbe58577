/* What is told of a sample: pieces put together are the whole, whatever the tokens, the stop texts and the moments at
 * which somebody looked.  The text is compared as JSON shows it, since that is where broken UTF-8 is replaced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json/json.h"
#include "services/generation-server/requests/choice_text.h"

enum { TOKENS_MAX = 48, TRIALS = 6000 };

static struct tokenizer *byte_tokens; /* a token a byte, 256 to 258 special */
static struct tokenizer *long_tokens; /* tokens of several bytes and parts of characters */

static int group_setup(void **state) {
  (void)state;
  struct err err;
  if (tokenizer_load(&byte_tokens, "deploy/demo/model/tokenizer.json", &err) != RC_OK) fail_msg("%s", err.message);
  if (tokenizer_load(&long_tokens, "tests/golden/tokenizer/qwen2.json", &err) != RC_OK) fail_msg("%s", err.message);
  return 0;
}

static int group_teardown(void **state) {
  (void)state;
  tokenizer_free(byte_tokens);
  tokenizer_free(long_tokens);
  return 0;
}

static uint32_t state_of_random = 7;
static int below(int n) {
  state_of_random = state_of_random * 1664525u + 1013904223u;
  return (int)((state_of_random >> 8) % (uint32_t)n);
}

/* A sample as the engine leaves it, and the thread that counts it up. */
struct fixture {
  struct sample sample;
  struct stop_texts stops;
  struct arena arena;
  int32_t tokens[TOKENS_MAX];
  const char *prefix;
  const struct tokenizer *tokenizer;
  int32_t stops_from;
};

static void make_fixture(struct fixture *f, const char *text, size_t len, const char *prefix) {
  *f = (struct fixture){.prefix = prefix, .tokenizer = byte_tokens};
  assert_true(len <= TOKENS_MAX);
  for (size_t i = 0; i < len; i++) f->tokens[i] = (unsigned char)text[i];
  f->sample.tokens = f->tokens;
  f->sample.count = (int32_t)len;
  f->sample.finish = FINISH_LENGTH;
}

static void add_stop(struct fixture *f, const char *text) {
  assert_int_equal(stop_texts_add(&f->stops, text, strlen(text), &f->arena, NULL), RC_OK);
}

/* What a client has after all pieces. */
struct told {
  struct buf json; /* the inside of the JSON strings */
  int32_t tokens[TOKENS_MAX];
  int64_t offsets[TOKENS_MAX];
  int count, pieces;
  enum finish_reason finish;
};

static void append_piece(struct told *t, const struct choice *c, const struct choice_piece *piece) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  json_write_string_len(&w, piece->text, piece->len);
  buf_append(&t->json, text.data + 1, text.len - 2);
  buf_free(&text);
  assert_int_equal(piece->first, t->count);
  for (int32_t i = 0; i < piece->count; i++) {
    t->tokens[t->count] = c->sample->tokens[piece->first + i];
    t->offsets[t->count++] = piece->offsets[i];
  }
  assert_int_equal(piece->begins, t->pieces == 0);
  t->pieces++;
}

static void take_all(struct told *t, struct choice *c, size_t bytes_max, int32_t tokens_max, struct choice_scratch *m) {
  struct choice_piece piece;
  do {
    assert_int_equal(choice_take(&piece, c, bytes_max, tokens_max, m, NULL), RC_OK);
    if (piece.any) append_piece(t, c, &piece);
  } while (piece.any && !piece.last);
}

static void begin(struct choice *c, struct fixture *f) {
  choice_init(c, &f->sample, 0, f->tokenizer, &f->stops, f->prefix, strlen(f->prefix));
  c->wants_offsets = true;
  c->stops_from = f->stops_from;
}

static void tell_whole(struct told *t, struct fixture *f) {
  struct choice_scratch m = {0};
  struct choice c;
  begin(&c, f);
  atomic_store(&f->sample.shown, f->sample.count);
  atomic_store(&f->sample.over, true);
  assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
  take_all(t, &c, 0, 0, &m);
  assert_true(c.closed && t->pieces == 1);
  t->finish = choice_finish(&c);
  choice_scratch_free(&m);
}

/* Looks at random moments, also after each token, and takes pieces of random sizes. */
static void tell_in_pieces(struct told *t, struct fixture *f, bool every_token) {
  struct choice_scratch m = {0};
  struct choice c;
  begin(&c, f);
  atomic_store(&f->sample.text_over, false);
  atomic_store(&f->sample.over, false);
  for (int32_t shown = 0; !c.closed;) {
    if (shown < f->sample.count) shown += every_token ? 1 : below(f->sample.count - shown + 1);
    atomic_store(&f->sample.shown, shown);
    if (shown == f->sample.count && below(2)) atomic_store(&f->sample.over, true);
    assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
    assert_int_equal(atomic_load(&f->sample.text_over), c.stopped);
    take_all(t, &c, (size_t)below(9), below(5), &m);
  }
  struct choice_piece after;
  assert_int_equal(choice_take(&after, &c, 0, 0, &m, NULL), RC_OK);
  assert_false(after.any);
  t->finish = choice_finish(&c);
  choice_scratch_free(&m);
}

static void assert_same_told(const struct told *a, const struct told *b) {
  assert_int_equal(a->count, b->count);
  assert_int_equal(a->finish, b->finish);
  assert_int_equal(a->json.len, b->json.len);
  if (a->json.len > 0) assert_memory_equal(a->json.data, b->json.data, a->json.len);
  assert_memory_equal(a->tokens, b->tokens, (size_t)a->count * sizeof a->tokens[0]);
  assert_memory_equal(a->offsets, b->offsets, (size_t)a->count * sizeof a->offsets[0]);
}

/* Characters of all lengths, halves of them, bytes that are none, special tokens. */
static void random_fixture(struct fixture *f) {
  static const char *const parts[] = {"a",    "b",        "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xE2\x82",
                                      "\x80", "\xF0\x9F", "\xFF",     "\xED\xA0\x80", "\xF4\x90\x80\x80", "\n"};
  static const char *const stops[] = {"ab", "b\xC3\xA9", "\xE2\x82\xAC\xE2\x82\xAC", "aab", "\xF0\x9F\x98\x80", "\n\n"};
  static const char *const prefixes[] = {"", "", "to be echoed \xC3\xA9", "cut off \xE2\x82", "\xF0"};
  char text[TOKENS_MAX];
  size_t len = 0;
  for (const size_t wanted = (size_t)below(TOKENS_MAX - 4); len < wanted;) {
    const char *part = parts[below(12)];
    memcpy(text + len, part, strlen(part));
    len += strlen(part);
  }
  make_fixture(f, text, len, prefixes[below(5)]);
  for (size_t i = 0; i < len; i++)
    if (below(12) == 0) f->tokens[i] = 256 + below(3);
  for (int k = below(4); k > 0; k--) add_stop(f, stops[below(6)]);
}

/* Any tokens; stop texts are cut out of what they say. */
static void random_long_fixture(struct fixture *f) {
  struct buf text = BUF_INIT;
  char stop[6];
  make_fixture(f, "", 0, below(2) ? "" : "\xE2\x82");
  f->tokenizer = long_tokens;
  f->sample.count = below(TOKENS_MAX);
  for (int32_t i = 0; i < f->sample.count; i++) f->tokens[i] = below(tokenizer_vocabulary(long_tokens) + 3);
  assert_int_equal(tokenizer_decode(long_tokens, f->tokens, (size_t)f->sample.count, true, &text, NULL), RC_OK);
  for (int k = below(4); k > 0 && text.len > 8; k--) {
    const size_t at = (size_t)below((int)text.len - 6), len = (size_t)below(5) + 1;
    memcpy(stop, text.data + at, len);
    stop[len] = '\0';
    if (strlen(stop) == len) add_stop(f, stop);
  }
  buf_free(&text);
}

static void pieces_put_together_are_the_whole(void **state) {
  (void)state;
  int stopped = 0, cut_short = 0;
  for (int trial = 0; trial < TRIALS; trial++) {
    struct fixture f;
    struct told whole = {0}, pieces = {0};
    if (trial % 3 == 0)
      random_long_fixture(&f);
    else
      random_fixture(&f);
    f.stops_from = below(3) ? 0 : below(TOKENS_MAX);
    tell_whole(&whole, &f);
    tell_in_pieces(&pieces, &f, trial % 2);
    assert_same_told(&whole, &pieces);
    stopped += whole.finish == FINISH_STOP;
    cut_short += whole.count < f.sample.count;
    buf_free(&whole.json);
    buf_free(&pieces.json);
    arena_free(&f.arena);
  }
  assert_true(stopped > TRIALS / 10 && stopped < TRIALS && cut_short > TRIALS / 20);
}

static void the_text_ends_before_the_stop_text_and_the_tokens_with_it(void **state) {
  (void)state;
  struct fixture f;
  struct told told = {0};
  make_fixture(&f, "one STOP two", 12, "");
  add_stop(&f, "two");
  add_stop(&f, " STOP");
  tell_whole(&told, &f);
  assert_string_equal(told.json.data, "one");
  assert_int_equal(told.count, 8);
  assert_int_equal(told.finish, FINISH_STOP);
  assert_int_equal(told.offsets[7], 3); /* beyond the text: its end */
  buf_free(&told.json);
  arena_free(&f.arena);
}

static void a_stop_text_that_is_complete_too_early_does_not_count(void **state) {
  (void)state;
  static const struct {
    const char *text, *stop, *other, *expected;
    int32_t from;
  } cases[] = {
      {"xaaaab", "aa", "zz", "x", 2},   {"xaaaab", "aa", "zz", "xa", 3},   {"xaaaab", "aa", "zz", "xaa", 4},
      {"xaaaab", "aa", "ab", "xaaa", 5}, {"xaaaab", "aa", "zz", "xaaaab", 5}, {"STOP on", "STOP", "on", "", 3},
      {"STOP on", "STOP", "on", "STOP ", 4},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct fixture f;
    struct told told = {0};
    make_fixture(&f, cases[i].text, strlen(cases[i].text), "");
    add_stop(&f, cases[i].stop);
    add_stop(&f, cases[i].other);
    f.stops_from = cases[i].from;
    tell_whole(&told, &f);
    assert_string_equal(told.json.data ? told.json.data : "", cases[i].expected);
    buf_free(&told.json);
    arena_free(&f.arena);
  }
}

/* It ended the sample as a stop text would, but its text was told. */
static void the_token_that_ended_the_sample_is_no_text(void **state) {
  (void)state;
  static const struct {
    bool drops, shows_special;
    const char *text, *expected;
    int32_t last;
  } cases[] = {
      {true, false, "one.", "one", '.'},  {false, false, "one.", "one.", '.'},
      {true, true, "one?", "one", 256},   {false, true, "one?", "one<|endoftext|>", 256},
      {true, false, "one?", "one?", '?'}, /* ended by its length */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct decode_job job = {.stop = {'.', 256}, .stop_count = 2};
    struct choice_scratch m = {0};
    struct told told = {0};
    struct fixture f;
    struct choice c;
    make_fixture(&f, cases[i].text, 4, "");
    f.sample.job = &job;
    f.tokens[3] = cases[i].last;
    begin(&c, &f);
    c.drops_end = cases[i].drops;
    c.shows_special = cases[i].shows_special;
    for (int32_t shown = 1; !c.closed; shown++) { /* a stream of it */
      atomic_store(&f.sample.shown, shown > 4 ? 4 : shown);
      atomic_store(&f.sample.over, shown >= 4);
      assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
      take_all(&told, &c, 0, 0, &m);
    }
    assert_string_equal(told.json.data, cases[i].expected);
    assert_int_equal(told.count, 4);
    assert_int_equal(choice_text_tokens(&c), cases[i].drops && cases[i].last != '?' ? 3 : 4);
    choice_scratch_free(&m);
    buf_free(&told.json);
  }
}

/* A stop text in the prompt is no reason to stop, nor is one that begins there. */
static void what_is_echoed_is_not_searched(void **state) {
  (void)state;
  struct fixture f;
  struct told told = {0};
  make_fixture(&f, "b ab c", 6, "xaba");
  add_stop(&f, "ab");
  tell_whole(&told, &f);
  assert_string_equal(told.json.data, "xabab ");
  assert_int_equal(told.count, 4);
  buf_free(&told.json);
  arena_free(&f.arena);
}

/* Nothing is told that would have to be taken back. */
static void no_piece_shows_half_a_character_or_half_a_stop_text(void **state) {
  (void)state;
  const char *text = "x\xE2\x82\xAC!STO\xF0\x9F\x98\x80STOP";
  struct choice_scratch m = {0};
  struct fixture f;
  struct choice c;
  size_t sent = 0;
  make_fixture(&f, text, strlen(text), "");
  add_stop(&f, "STOP");
  begin(&c, &f);
  for (int32_t shown = 1; shown <= f.sample.count; shown++) {
    struct choice_piece piece;
    atomic_store(&f.sample.shown, shown);
    assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
    assert_int_equal(choice_take(&piece, &c, 0, 0, &m, NULL), RC_OK);
    assert_true(choice_is_text(piece.text, piece.len));
    assert_memory_equal(piece.text, text + sent, piece.len);
    sent += piece.len;
    assert_true(sent <= strlen(text) - 4);
    if (shown == 8) assert_int_equal(sent, 5); /* STO is held back */
  }
  assert_int_equal(sent, strlen(text) - 4);
  assert_true(c.closed && c.stopped && !atomic_load(&f.sample.over));
  choice_scratch_free(&m);
  arena_free(&f.arena);
}

static void without_a_tokenizer_there_are_tokens_and_no_text(void **state) {
  (void)state;
  struct choice_scratch m = {0};
  struct choice_piece piece;
  struct fixture f;
  struct choice c;
  make_fixture(&f, "abc", 3, "");
  choice_init(&c, &f.sample, 0, NULL, &f.stops, "", 0);
  atomic_store(&f.sample.shown, 2);
  assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
  assert_int_equal(choice_take(&piece, &c, 0, 0, &m, NULL), RC_OK);
  assert_true(piece.any && !piece.text && piece.count == 2 && !piece.last);
  atomic_store(&f.sample.shown, 3);
  atomic_store(&f.sample.over, true);
  assert_int_equal(choice_scan(&c, &m, NULL), RC_OK);
  assert_int_equal(choice_take(&piece, &c, 0, 0, &m, NULL), RC_OK);
  assert_true(piece.count == 1 && piece.last);
  choice_scratch_free(&m);
}

static void only_well_formed_bytes_are_text(void **state) {
  (void)state;
  assert_true(choice_is_text("a\xC3\xA9\xF0\x9F\x98\x80", 7));
  assert_true(choice_is_text("", 0));
  assert_false(choice_is_text("a\xC3", 2));
  assert_false(choice_is_text("\xC0\x80", 2));
  assert_false(choice_is_text("\xED\xA0\x80", 3));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_put_together_are_the_whole),
      cmocka_unit_test(the_text_ends_before_the_stop_text_and_the_tokens_with_it),
      cmocka_unit_test(a_stop_text_that_is_complete_too_early_does_not_count),
      cmocka_unit_test(the_token_that_ended_the_sample_is_no_text),
      cmocka_unit_test(what_is_echoed_is_not_searched),
      cmocka_unit_test(no_piece_shows_half_a_character_or_half_a_stop_text),
      cmocka_unit_test(without_a_tokenizer_there_are_tokens_and_no_text),
      cmocka_unit_test(only_well_formed_bytes_are_text),
  };
  return cmocka_run_group_tests_name("choice", tests, group_setup, group_teardown);
}
