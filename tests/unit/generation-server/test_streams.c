/* /v1/completions over real HTTP: streams against whole answers, stop texts, readers that are slow, stuck or gone, and
 * what is refused.  The server's model has a tokenizer of 256 bytes and one special token. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/metrics.h"
#include "tests/unit/generation-server/server_test.h"

enum { CHOICES = 128, READ_MAX = 64 << 20, BODY_MAX = 512, PATIENCE_MS = 60000, SMALL_WINDOW = 64 << 10 };

static struct server *server;
static char model_dir[] = "/tmp/leasehold-streams-XXXXXX";

/* --- a model with a tokenizer --- */

static void copy_file(const char *from_dir, const char *name, struct buf *bytes) {
  struct err err;
  char path[LIMIT_PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", from_dir, name);
  if (file_read(bytes, path, 64 << 20, &err) != RC_OK) fail_msg("%s", err.message);
}

static void put_file(const char *name, const void *bytes, size_t len) {
  struct err err;
  char path[LIMIT_PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", model_dir, name);
  if (file_write_atomic(path, bytes, len, &err) != RC_OK) fail_msg("%s", err.message);
}

/* Slots enough for the large requests to be decoded soon, under the thread sanitizer too. */
static struct server_options options_with_slots(void) {
  struct server_options options = server_options_of(model_dir, "");
  options.model.slots = 16;
  return options;
}

static int group_setup(void **state) {
  (void)state;
  static const char *const names[] = {"config.json", "model.safetensors"};
  assert_non_null(mkdtemp(model_dir));
  for (int i = 0; i < 2; i++) {
    struct buf bytes = BUF_INIT;
    copy_file(MODEL_DIR, names[i], &bytes);
    put_file(names[i], bytes.data, bytes.len);
    buf_free(&bytes);
  }
  struct buf tokenizer = BUF_INIT; /* the demo's, without the added tokens that this model has no rows for */
  copy_file("deploy/demo/model", "tokenizer.json", &tokenizer);
  char *second = strstr(tokenizer.data, ",\n    {\n      \"id\": 257,"),
       *end = strstr(tokenizer.data, "\n  ],\n  \"normalizer\"");
  assert_true(second && end && second < end);
  memmove(second, end, strlen(end) + 1);
  put_file("tokenizer.json", tokenizer.data, strlen(tokenizer.data));
  buf_free(&tokenizer);
  struct server_options options = options_with_slots();
  options.stream_stall_ms = 400;
  server = start_server(&options);
  return 0;
}

/* Beside the group's server, whose threads log. */
static struct server *start_another(const struct server_options *options) {
  struct err err = {0};
  struct server *s = NULL;
  if (server_start(&s, options, &err) != RC_OK) fail_msg("%s", err.message);
  return s;
}

static int group_teardown(void **state) {
  (void)state;
  server_stop(server);
  file_remove_tree(model_dir, NULL);
  return 0;
}

/* --- a streaming client --- */

static int open_stream(struct server *s, const char *body, int receive_bytes) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)server_port(s)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char request[BODY_MAX + 256];
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  if (receive_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  const int n =
      snprintf(request, sizeof request,
               "POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
               strlen(body), body);
  assert_true(n > 0 && (size_t)n < sizeof request);
  assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
  return fd;
}

static bool read_more(int fd, struct buf *out) {
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  if (poll(&wait, 1, PATIENCE_MS) <= 0) fail_msg("nothing came within %d ms after %zu bytes", PATIENCE_MS, out->len);
  buf_reserve(out, 1 << 16);
  assert_false(out->failed);
  const ssize_t n = recv(fd, out->data + out->len, 1 << 16, 0);
  if (n <= 0) return false;
  out->len += (size_t)n;
  out->data[out->len] = '\0';
  assert_true(out->len < READ_MAX);
  return true;
}

static void read_until(int fd, struct buf *out, const char *part) {
  while (!out->data || !strstr(out->data, part)) assert_true(read_more(fd, out));
}

/* The body of a chunked answer, whole or cut off. */
static void dechunk(struct buf *out, const struct buf *answer) {
  const char *at = strstr(answer->data, "\r\n\r\n");
  assert_non_null(at);
  for (at += 4;;) {
    char *end;
    const size_t size = strtoul(at, &end, 16);
    const size_t left = answer->len - (size_t)(end - answer->data);
    if (end == at || size == 0 || left < size + 4) break;
    buf_append(out, end + 2, size);
    at = end + 2 + size + 2;
  }
}

/* --- what came --- */

struct choice_told {
  struct buf text;
  int tokens, events;
  char finish[16];
};

struct told {
  struct choice_told choices[CHOICES];
  int64_t completion_tokens; /* -1: no usage */
  int events, empty;
  bool done;
};

static void take_choice(struct told *t, const struct json *v) {
  const int64_t index = json_int(json_get(v, "index"));
  assert_true(index >= 0 && index < CHOICES);
  struct choice_told *c = &t->choices[index];
  assert_int_equal(c->finish[0], 0); /* nothing after the last piece */
  size_t len;
  const char *text = json_string(json_get(v, "text"), &len);
  buf_append(&c->text, text, len);
  const struct json *ids = json_get(v, "token_ids"), *finish = json_get(v, "finish_reason");
  if (ids) c->tokens += (int)json_length(ids);
  assert_int_equal(json_get(v, "prompt_token_ids") != NULL, ids && c->events == 0);
  if (json_type_of(finish) == JSON_STRING) snprintf(c->finish, sizeof c->finish, "%s", json_string(finish, NULL));
  t->empty += len == 0 && !c->finish[0] && !ids;
  c->events++;
}

/* Our reader refuses U+0000, which such a model writes too: another character stands in for it. */
static void take_document(struct told *t, const char *answer, size_t len) {
  struct json *root;
  struct err err;
  char *text = strndup(answer, len);
  for (char *at = text; (at = strstr(at, "\\u0000")) != NULL;) memcpy(at, "\\u001a", 6);
  if (json_parse(&root, text, len, READ_MAX, &err) != RC_OK) fail_msg("%s in: %.*s", err.message, (int)len, text);
  assert_string_equal(json_string(json_get(root, "object"), NULL), "text_completion");
  const struct json *choices = json_get(root, "choices"), *usage = json_get(root, "usage");
  for (size_t i = 0; i < json_length(choices); i++) take_choice(t, json_at(choices, i));
  if (usage && json_type_of(usage) == JSON_OBJECT)
    t->completion_tokens = json_int(json_get(usage, "completion_tokens"));
  json_free(root);
  free(text);
}

static void told_free(struct told *t) {
  for (int i = 0; i < CHOICES; i++) buf_free(&t->choices[i].text);
}

static void take_events(struct told *t, const struct buf *answer) {
  struct buf body = BUF_INIT;
  *t = (struct told){.completion_tokens = -1};
  assert_non_null(strstr(answer->data, "HTTP/1.1 200"));
  assert_non_null(strstr(answer->data, "text/event-stream"));
  dechunk(&body, answer);
  for (const char *at = body.data, *end; at && (end = strstr(at, "\n\n")) != NULL; at = end + 2) {
    if (at[0] == ':') continue;
    assert_false(t->done);
    assert_memory_equal(at, "data: ", 6);
    t->done = strncmp(at, "data: [DONE]", 12) == 0;
    if (!t->done) take_document(t, at + 6, (size_t)(end - at - 6));
    t->events += !t->done;
  }
  buf_free(&body);
}

static void read_stream(int fd, struct told *t) {
  struct buf answer = BUF_INIT;
  while (read_more(fd, &answer)) continue;
  close(fd);
  take_events(t, &answer);
  buf_free(&answer);
}

static void complete_whole(const char *body, struct told *t) {
  int status;
  char *text = call_json(server, "POST", "/v1/completions", body, &status);
  if (status != 200) fail_msg("%s: %d %s", body, status, text);
  *t = (struct told){.completion_tokens = -1};
  take_document(t, text, strlen(text));
  free(text);
}

static void assert_same_told(const struct told *a, const struct told *b, int choices) {
  for (int i = 0; i < choices; i++) {
    const struct choice_told *x = &a->choices[i], *y = &b->choices[i];
    assert_int_equal(x->text.len, y->text.len);
    if (x->text.len > 0) assert_memory_equal(x->text.data, y->text.data, x->text.len);
    assert_string_equal(x->finish, y->finish);
    assert_true(x->finish[0] != 0);
    assert_int_equal(x->tokens, y->tokens);
  }
  assert_int_equal(a->completion_tokens, b->completion_tokens);
}

/* Samples, pages and budget have come home. */
static bool is_at_rest(struct server *s) {
  struct engine_counters n;
  engine_read_counters(engine_of(s), &n);
  return n.slots_busy == 0 && n.samples_waiting == 0 && n.pages_free == n.pages_total &&
         atomic_load(&s->admission.requests_open) == 0 && atomic_load(&s->admission.samples_open) == 0 &&
         atomic_load(&s->admission.positions_open) == 0;
}

static void wait_for_rest(struct server *s) {
  AWAIT(is_at_rest(s), "%d requests and %d samples are still open", atomic_load(&s->admission.requests_open),
        atomic_load(&s->admission.samples_open))
  continue;
}

/* The value of the golden model's greedy or seeded text is anything; `what` comes between prompt and stream. */
static void body_of(char out[BODY_MAX], const char *what, bool stream) {
  const int n = snprintf(out, BODY_MAX, "{\"prompt\":%s%s}", what,
                         stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
  assert_true(n > 0 && n < BODY_MAX);
}

/* --- tests --- */

static void a_stream_tells_what_the_whole_answer_says(void **state) {
  (void)state;
  static const struct {
    const char *what;
    int choices;
  } cases[] = {
      {"\"7+5=\",\"max_tokens\":40,\"seed\":1,\"ignore_eos\":true", 1},
      {"[1,2,3],\"max_tokens\":100,\"seed\":2,\"temperature\":3,\"return_token_ids\":true", 1},
      {"[\"a\",\"bc\"],\"max_tokens\":60,\"seed\":3,\"n\":3,\"temperature\":0.7,\"top_k\":40,\"min_p\":0.01,\"echo\":"
       "true",
       6},
      {"[[1],[2,3]],\"max_tokens\":90,\"seed\":4,\"n\":2,\"stop\":[\"a\",\"b\",\"zz\"],\"return_token_ids\":true", 4},
      {"\"x\",\"max_tokens\":50,\"seed\":5,\"logprobs\":2,\"stop_token_ids\":[65,66],\"return_token_ids\":true", 1},
      {"\"x\",\"max_tokens\":1,\"temperature\":0", 1},
      {"\"x\",\"max_tokens\":100,\"temperature\":100,\"seed\":6,\"ignore_eos\":true,\"n\":32",
       32}, /* some show nothing */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    static struct told whole, stream;
    char body[BODY_MAX];
    body_of(body, cases[i].what, false);
    complete_whole(body, &whole);
    body_of(body, cases[i].what, true);
    read_stream(open_stream(server, body, 0), &stream);
    assert_true(stream.done && stream.empty == 0);
    assert_same_told(&whole, &stream, cases[i].choices);
    told_free(&whole);
    told_free(&stream);
  }
  wait_for_rest(server);
}

/* Tokens are single bytes here, so every stop text of two crosses their boundaries. */
static void a_stop_text_ends_the_answer_before_it(void **state) {
  (void)state;
  static struct told full, cut, stream;
  char body[BODY_MAX], text[8] = "";
  body_of(body, "\"x\",\"max_tokens\":100,\"seed\":9,\"ignore_eos\":true,\"return_token_ids\":true", false);
  complete_whole(body, &full);
  const char *whole = full.choices[0].text.data;
  size_t at = 10;
  while (at < 90 && !(whole[at] >= 'A' && whole[at + 1] >= 'A' && whole[at] != '\\' && whole[at + 1] != '\\')) at++;
  assert_true(at < 90);
  memcpy(text, whole + at, 2);
  at = (size_t)(strstr(whole, text) - whole);
  snprintf(
      body, sizeof body,
      "{\"prompt\":\"x\",\"max_tokens\":100,\"seed\":9,\"ignore_eos\":true,\"return_token_ids\":true,\"stop\":\"%s\"}",
      text);
  complete_whole(body, &cut);
  assert_int_equal(cut.choices[0].text.len, at);
  assert_memory_equal(cut.choices[0].text.data, whole, at);
  assert_string_equal(cut.choices[0].finish, "stop");
  assert_true(cut.choices[0].tokens < 100);
  assert_int_equal(cut.completion_tokens, cut.choices[0].tokens);
  snprintf(body, sizeof body,
           "{\"prompt\":\"x\",\"max_tokens\":100,\"seed\":9,\"ignore_eos\":true,\"return_token_ids\":true,\"stream\":"
           "true,\"stop\":[\"%s\"]}",
           text);
  read_stream(open_stream(server, body, 0), &stream);
  stream.completion_tokens = cut.completion_tokens; /* was not asked for */
  assert_same_told(&cut, &stream, 1);
  told_free(&full), told_free(&cut), told_free(&stream);
  wait_for_rest(server);
}

/* The text does not show special tokens, so their names as stop texts mean the tokens. */
static void a_special_token_as_stop_text_means_the_token(void **state) {
  (void)state;
  static struct told by_name, by_id;
  char body[BODY_MAX];
  body_of(
      body,
      "\"x\",\"max_tokens\":120,\"seed\":21,\"temperature\":100,\"n\":8,\"ignore_eos\":true,\"stop\":\"<|endoftext|>\"",
      false);
  complete_whole(body, &by_name);
  body_of(
      body,
      "\"x\",\"max_tokens\":120,\"seed\":21,\"temperature\":100,\"n\":8,\"ignore_eos\":true,\"stop_token_ids\":[256]",
      false);
  complete_whole(body, &by_id);
  assert_same_told(&by_name, &by_id, 8);
  assert_true(by_id.completion_tokens < 8 * 120);
  told_free(&by_name), told_free(&by_id);
}

static void many_streams_at_once_are_told_in_full(void **state) {
  (void)state;
  enum { STREAMS = 64 };
  static struct told whole[4], stream;
  char body[BODY_MAX], what[128];
  int fds[STREAMS];
  for (int i = 0; i < 4; i++) {
    snprintf(what, sizeof what, "[%d],\"max_tokens\":50,\"seed\":%d,\"ignore_eos\":true", i + 1, i);
    body_of(body, what, false);
    complete_whole(body, &whole[i]);
  }
  for (int i = 0; i < STREAMS; i++) {
    snprintf(what, sizeof what, "[%d],\"max_tokens\":50,\"seed\":%d,\"ignore_eos\":true", i % 4 + 1, i % 4);
    body_of(body, what, true);
    fds[i] = open_stream(server, body, 0);
  }
  for (int i = 0; i < STREAMS; i++) {
    read_stream(fds[i], &stream);
    assert_true(stream.done);
    assert_same_told(&whole[i % 4], &stream, 1);
    told_free(&stream);
  }
  for (int i = 0; i < 4; i++) told_free(&whole[i]);
  wait_for_rest(server);
}

/* More bytes, however its tokens are put into events, than the kernel takes for a reader that takes none. */
#define LARGE "[1],\"max_tokens\":120,\"n\":96,\"seed\":3,\"ignore_eos\":true,\"logprobs\":20,\"return_token_ids\":true"

static void a_reader_that_hangs_up_frees_what_it_held(void **state) {
  (void)state;
  char body[BODY_MAX];
  body_of(body, LARGE, true);
  for (int i = 0; i < 6; i++) {
    struct buf answer = BUF_INIT;
    const int fd = open_stream(server, body, i % 3 == 2 ? SMALL_WINDOW : 0);
    if (i % 3 > 0) read_until(fd, &answer, "\"finish_reason\":null");
    close(fd);
    buf_free(&answer);
  }
  struct engine_counters before, after;
  engine_read_counters(engine_of(server), &before);
  wait_for_rest(server);
  engine_read_counters(engine_of(server), &after);
  assert_true(after.tokens_sampled - before.tokens_sampled < 6 * 96 * 120 / 4);
}

/* It gets everything in the end; meanwhile the engine goes on and others are served. */
static void a_slow_reader_gets_all_and_holds_up_nobody(void **state) {
  (void)state;
  static struct told fast, stream, other;
  char body[BODY_MAX], small[BODY_MAX];
  struct server_options options = options_with_slots();
  struct server *patient = start_another(&options);
  body_of(body, LARGE, true);
  const int fd = open_stream(patient, body, SMALL_WINDOW);
  struct engine_counters n = {0};
  AWAIT(n.tokens_sampled >= 96 * 120, "the engine does not go on to the end while nobody reads")
  engine_read_counters(engine_of(patient), &n);
  body_of(small, "[1],\"max_tokens\":5", true);
  read_stream(open_stream(patient, small, 0), &other);
  assert_true(other.done);
  AWAIT(atomic_load(&patient->admission.requests_open) == 1, "not only the slow one is behind") continue;
  read_stream(fd, &stream);
  assert_true(stream.done);
  read_stream(open_stream(patient, body, 0), &fast);
  assert_same_told(&fast, &stream, 96);
  wait_for_rest(patient);
  server_stop(patient);
  told_free(&fast), told_free(&stream), told_free(&other);
}

static void a_reader_that_is_stuck_is_cut_off(void **state) {
  (void)state;
  struct buf answer = BUF_INIT;
  static struct told stream;
  char body[BODY_MAX];
  body_of(body, LARGE, true);
  const int fd = open_stream(server, body, SMALL_WINDOW);
  read_until(fd, &answer, "data: ");
  wait_for_rest(server); /* in time, although the reader is still there */
  while (read_more(fd, &answer)) continue;
  close(fd);
  take_events(&stream, &answer);
  assert_false(stream.done);
  int status;
  char *metrics = call_json(server, "GET", "/metrics", NULL, &status);
  assert_says(metrics, "leasehold_generation_streams_cut_total 1");
  free(metrics);
  told_free(&stream);
  buf_free(&answer);
}

static void stopping_the_server_ends_streams_in_their_middle(void **state) {
  (void)state;
  static struct told stream;
  char body[BODY_MAX];
  struct buf answers[6] = {0};
  int fds[6];
  struct server_options options = options_with_slots();
  options.drain_ms = 10;
  struct server *victim = start_another(&options);
  body_of(body, LARGE, true);
  for (int i = 0; i < 6; i++) {
    fds[i] = open_stream(victim, body, i % 2 ? SMALL_WINDOW : 0);
    if (i < 2) read_until(fds[i], &answers[i], "data: ");
  }
  AWAIT(atomic_load(&victim->admission.requests_open) >= 3, "fewer than those whose readers are behind are open")
  continue;
  server_stop(victim);
  for (int i = 0; i < 6; i++) {
    while (read_more(fds[i], &answers[i])) continue;
    if (i < 2) {
      take_events(&stream, &answers[i]);
      assert_true(stream.events > 0);
      told_free(&stream);
    }
    close(fds[i]);
    buf_free(&answers[i]);
  }
}

static void what_is_not_offered_or_malformed_is_refused_with_its_field(void **state) {
  (void)state;
  static const struct {
    const char *body;
    int status;
    const char *field;
  } cases[] = {
      {"{}", 400, "prompt"},
      {"{\"prompt\":null}", 400, "prompt"},
      {"{\"prompt\":\"\"}", 400, "prompt"},
      {"{\"prompt\":[]}", 400, "prompt"},
      {"{\"prompt\":{}}", 400, "prompt"},
      {"{\"prompt\":[1,\"x\"]}", 400, "prompt"},
      {"{\"prompt\":[\"x\",1]}", 400, "prompt[1]"},
      {"{\"prompt\":[\"x\",[1]]}", 400, "prompt[1]"},
      {"{\"prompt\":[[1],[]]}", 400, "prompt[1]"},
      {"{\"prompt\":[[1],[[2]]]}", 400, "prompt[1]"},
      {"{\"prompt\":[1.5]}", 400, "prompt"},
      {"{\"prompt\":[300]}", 400, "prompt"},
      {"{\"prompt\":\"x\",\"max_tokens\":0}", 400, "max_tokens"},
      {"{\"prompt\":\"x\",\"max_tokens\":129}", 400, "max_tokens"},
      {"{\"prompt\":\"x\",\"max_tokens\":\"1\"}", 400, "max_tokens"},
      {"{\"prompt\":\"x\",\"n\":129}", 400, "n"},
      {"{\"prompt\":\"x\",\"stop\":1}", 400, "stop"},
      {"{\"prompt\":\"x\",\"stop\":\"\"}", 400, "stop"},
      {"{\"prompt\":\"x\",\"stop\":[\"a\",2]}", 400, "stop"},
      {"{\"prompt\":\"x\",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", 400, "stop"},
      {"{\"prompt\":\"x\",\"logprobs\":21}", 400, "logprobs"},
      {"{\"prompt\":\"x\",\"logprobs\":true}", 400, "logprobs"},
      {"{\"prompt\":\"x\",\"stream\":1}", 400, "stream"},
      {"{\"prompt\":\"x\",\"stream_options\":{\"include_usage\":true}}", 400, "stream_options"},
      {"{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400,
       "stream_options.include_usage"},
      {"{\"prompt\":\"x\",\"stream\":true,\"stream_options\":[]}", 400, "stream_options"},
      {"{\"prompt\":\"x\",\"best_of\":2}", 400, "best_of"},
      {"{\"prompt\":\"x\",\"suffix\":\"y\"}", 400, "suffix"},
      {"{\"prompt\":\"x\",\"frequency_penalty\":2.5}", 400, "frequency_penalty"},
      {"{\"prompt\":\"x\",\"repetition_penalty\":0}", 400, "repetition_penalty"},
      {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format"},
      {"{\"prompt\":\"x\",\"bad_words\":[\"y\"]}", 400, "bad_words"},
      {"{\"prompt\":\"x\",\"use_beam_search\":true}", 400, "use_beam_search"},
      {"{\"prompt\":\"x\",\"length_penalty\":0.5}", 400, "length_penalty"},
      {"{\"prompt\":\"x\",\"allowed_token_ids\":[]}", 400, "allowed_token_ids"},
      {"{\"prompt\":\"x\",\"request_id\":\"a b\"}", 400, "request_id"},
      {"{\"prompt\":\"x\",\"bananas\":1}", 400, "bananas"},
      {"{\"prompt\":\"x\",\"presence_penalty\":\"a\"}", 400, "presence_penalty"},
      {"{\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", 400, "logit_bias"},
      {"{\"prompt\":\"x\",\"logit_bias\":{\"05\":1}}", 400, "logit_bias"},
      {"{\"prompt\":\"x\",\"logit_bias\":{\"300000\":1}}", 400, "logit_bias"},
      {"{\"prompt\":\"x\",\"logit_bias\":[5]}", 400, "logit_bias"},
      {"{\"prompt\":\"x\",\"model\":5}", 400, "model"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int status;
    char field[64];
    snprintf(field, sizeof field, "\"param\":\"%s\"", cases[i].field);
    char *text = call_json(server, "POST", "/v1/completions", cases[i].body, &status);
    if (status != cases[i].status || !strstr(text, field))
      fail_msg("%s: expected %d with %s, got %d: %s", cases[i].body, cases[i].status, field, status, text);
    free(text);
  }
  assert_int_equal(
      status_of(server, "POST", "/v1/completions",
                "{\"prompt\":\"x\",\"store\":true,\"logit_bias\":{},\"best_of\":1,\"suffix\":null,\"stop\":"
                "null,\"presence_penalty\":0,\"stream_options\":null,\"user\":\"me\"}"),
      200);
  assert_int_equal( /* the defaults that vLLM's clients write out */
      status_of(server, "POST", "/v1/completions",
                "{\"prompt\":\"x\",\"use_beam_search\":false,\"length_penalty\":1.0,\"bad_words\":[],"
                "\"logits_processors\":[],\"cache_salt\":\"s\"}"),
      200);
  wait_for_rest(server);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_stream_tells_what_the_whole_answer_says),
      cmocka_unit_test(a_stop_text_ends_the_answer_before_it),
      cmocka_unit_test(a_special_token_as_stop_text_means_the_token),
      cmocka_unit_test(many_streams_at_once_are_told_in_full),
      cmocka_unit_test(a_reader_that_hangs_up_frees_what_it_held),
      cmocka_unit_test(a_slow_reader_gets_all_and_holds_up_nobody),
      cmocka_unit_test(a_reader_that_is_stuck_is_cut_off),
      cmocka_unit_test(stopping_the_server_ends_streams_in_their_middle),
      cmocka_unit_test(what_is_not_offered_or_malformed_is_refused_with_its_field),
  };
  return cmocka_run_group_tests_name("streams", tests, group_setup, group_teardown);
}
