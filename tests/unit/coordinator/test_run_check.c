/* Why a posted run is refused, with a real coordinator and a fake trainer. What would break: a run that can never work
 * is answered 201 and ends later; a refusal names no line; a run starts from weights that nobody named. */
#include "tests/unit/coordinator/fake_server.h"

#define DATASET(name) "{\"rounds\":1,\"dataset\":{\"path\":\"" name "\"},\"sampling\":{\"max_new_tokens\":8}}"
#define LINES         "{\"prompt\":\"1+1=\",\"answer\":\"2\"}\n\n{\"prompt\":\"1+2=\",\"answer\":3}\n"

/* The answer is 422 with this field and this part of the message, and there is no run. */
static void refused(struct fixture *f, const char *config, const char *field, const char *part) {
  struct json *answer = NULL, *runs = NULL;
  const int status = call(f, "POST", "/v1/runs", config, &answer);
  const struct json *error = json_get(answer, "error");
  if (status != 422) fail_msg("%s: answered %d", config, status);
  const struct json *at = json_get(error, "field");
  const char *message = json_string(json_get(error, "message"), NULL);
  if (json_type_of(at) != JSON_STRING || strcmp(json_string(at, NULL), field) != 0 || !strstr(message, part))
    fail_msg("%s: expected %s: %s, got %s: %s", config, field, part,
             json_type_of(at) == JSON_STRING ? json_string(at, NULL) : "null", message);
  assert_int_equal(call(f, "GET", "/v1/runs", NULL, &runs), 200);
  assert_int_equal(json_length(json_get(runs, "runs")), 0);
  json_free(runs);
  json_free(answer);
}

static void a_trainer_goes(struct fixture *f) {
  char path[96];
  snprintf(path, sizeof path, "/v1/workers/%s", f->trainer_is.worker_id);
  assert_int_equal(call(f, "DELETE", path, NULL, NULL), 200);
}

static const struct {
  const char *line, *part;
} bad_lines[] = {
    {"{\"prompt\":\"a\"", "line 4"},
    {"[1]", "an object"},
    {"{\"answer\":1}", "prompt"},
    {"{\"prompt\":7,\"answer\":1}", "prompt"},
    {"{\"prompt\":\"a\"}", "answer"},
    {"{\"prompt\":\"a\",\"answer\":[1]}", "answer"},
    {"{\"prompt\":\"a\",\"answer\":\"\"}", "one number"},
    {"{\"prompt\":\"a\",\"answer\":\"(3,4)\"}", "one number"},
    {"{\"prompt\":\"a\",\"answer\":\"\\\\frac{3}{4}\"}", "one number"},
    {"{\"prompt\":\"a\",\"messages\":[],\"answer\":1}", "exactly one"},
    {"{\"messages\":[{\"role\":\"user\"}],\"answer\":1}", "content"},
    {"{\"prompt\":\"a\",\"answer\":1,\"max_new_tokens\":9}", "max_new_tokens: expected 1 to the run's"},
    {"{\"prompt\":\"a\",\"answer\":1,\"max_new_tokens\":0}", "max_new_tokens: expected 1 to the run's"},
    {"{\"prompt\":\"a\",\"answer\":1,\"max_new_tokens\":\"8\"}", "max_new_tokens: expected an integer"},
};

static void bad_lines_are_refused(struct fixture *f) {
  char text[512];
  for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; i++) {
    snprintf(text, sizeof text, LINES "%s\n", bad_lines[i].line);
    write_data(f, "bad.jsonl", text);
    refused(f, DATASET("bad.jsonl"), "dataset.path", "bad.jsonl line 4: ");
    refused(f, DATASET("bad.jsonl"), "dataset.path", bad_lines[i].part);
  }
  write_data(f, "bad.jsonl", " \n");
  refused(f, DATASET("bad.jsonl"), "dataset.path", "empty");
  write_data(f, "bad.jsonl", LINES "{\"prompt\":\"a\"}\n");
  refused(
      f,
      "{\"rounds\":1,\"dataset\":{\"path\":\"train.jsonl\"},\"evaluation\":{\"path\":\"bad.jsonl\",\"every_rounds\":"
      "1},\"sampling\":{\"max_new_tokens\":8}}",
      "evaluation.path", "bad.jsonl line 4: answer");
  refused(f, "{\"dataset\":{\"path\":\"train.jsonl\"},\"training\":{\"objective\":\"cross_entropy\"}}", "dataset.path",
          "train.jsonl line 1: completion");
  refused(f,
          "{\"dataset\":{\"path\":\"bad.jsonl\"},\"sampling\":{\"max_new_tokens\":8},\"training\":{\"objective\":"
          "\"evaluate\"}}",
          "dataset.path", "bad.jsonl line 4: answer");
  refused(f,
          "{\"dataset\":{\"path\":\"train.jsonl\"},\"sampling\":{\"max_new_tokens\":8},\"verifier\":{\"kind\":"
          "\"countdown\"}}",
          "dataset.path", "train.jsonl line 1: expected `numbers`");
}

static void a_bad_line_of_a_dataset_is_refused_where_the_run_is_posted(void **state) { bad_lines_are_refused(*state); }

static void a_bad_line_is_refused_without_a_trainer_too(void **state) {
  a_trainer_goes(*state);
  bad_lines_are_refused(*state);
}

/* The fake trainer serves the demo's model: a byte is a token. */
static void a_run_that_the_model_or_the_trainer_cannot_take_is_refused(void **state) {
  struct fixture *f = *state;
  char text[1400] = LINES "{\"answer\":1,\"prompt\":\"";
  memset(text + strlen(text), 'a', 600);
  strcat(text, "\"}\n");
  write_data(f, "long.jsonl", text);
  refused(f, DATASET("long.jsonl"), "dataset.path", "long.jsonl line 4: prompt: expected a text of at most");
  write_data(f, "empty.jsonl", LINES "{\"prompt\":\"\",\"answer\":1}\n");
  refused(f, DATASET("empty.jsonl"), "dataset.path", "empty.jsonl line 4: prompt");
  refused(f, "{\"dataset\":{\"path\":\"train.jsonl\"},\"sampling\":{\"max_new_tokens\":100000}}",
          "sampling.max_new_tokens", "no room");
  refused(
      f,
      "{\"dataset\":{\"path\":\"train.jsonl\"},\"sampling\":{\"max_new_tokens\":8},\"training\":{\"chunk_tokens\":10}}",
      "dataset.path", "train.jsonl line 1: prompt: expected a text of at most 2 tokens");
  f->trainer.context_max = 10;
  refused(f, DATASET("train.jsonl"), "dataset.path", "train.jsonl line 1: prompt: expected a text of at most 2 tokens");
  write_data(f, "pair.jsonl", "{\"prompt\":\"12345\",\"completion\":\"12345\"}\n");
  refused(f, "{\"dataset\":{\"path\":\"pair.jsonl\"},\"training\":{\"objective\":\"cross_entropy\"}}", "dataset.path",
          "pair.jsonl line 1: completion: expected at most 10 tokens with the prompt, got 11");
  f->trainer.refuse_run = true;
  refused(f, DATASET("train.jsonl"), "training.chunk_tokens", "more than the trainer takes");
}

/* A fault that only the model shows, or that comes after the post, is found at the opening. */
static void a_dataset_that_changed_after_the_post_is_an_error_at_the_opening(void **state) {
  struct fixture *f = *state;
  a_trainer_goes(f);
  write_data(f, "later.jsonl", LINES);
  post_run(f, DATASET("later.jsonl"));
  write_data(f, "later.jsonl", LINES "{\"prompt\":\"a\",\"answer\":\"x\"}\n");
  register_trainer(f);
  wait_error(f, "r1", "later.jsonl line 4: answer");
}

static void a_start_that_does_not_exist_is_refused(void **state) {
  struct fixture *f = *state;
  refused(f, GRPO(1, "},\"start\":\"middle\""), "start", "expected \"model\"");
  refused(f, GRPO(1, "},\"start\":7"), "start", "\"model\"");
  refused(f, GRPO(1, "},\"start\":{\"run\":\"r1\"}"), "start.version", "");
  refused(f, GRPO(1, "},\"start\":{\"run\":\"r1\",\"version\":0,\"x\":1}"), "start.x", "");
  refused(f, GRPO(1, "},\"start\":{\"run\":\"r1\",\"version\":0}"), "start.run", "there is no run 'r1'");
  refused(f, GRPO(1, "},\"start\":{\"run\":\"base\",\"version\":0}"), "start.run", "there is no run 'base'");
  refused(
      f,
      "{\"dataset\":{\"path\":\"train.jsonl\"},\"start\":{\"run\":\"r1\",\"version\":0},\"training\":{\"objective\":"
      "\"evaluate\"}}",
      "start.run", "there is no run 'r1'");
}

static void the_trainer_is_told_where_a_run_starts(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct json *answer = NULL;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_string_equal(json_string(json_get(json_get(run, "config"), "start"), NULL), "model");
  assert_int_equal(f->trainer.start.from, START_MODEL);
  json_free(run);
  assert_int_equal(call(f, "POST", "/v1/runs", GRPO(1, "},\"start\":{\"run\":\"r1\",\"version\":2}"), &answer), 422);
  assert_non_null(strstr(json_string(json_get(json_get(answer, "error"), "message"), NULL), "no version 2 of run r1"));
  json_free(answer);
  post_run(f, GRPO(1, "},\"start\":\"current\""));
  json_free(serve_run(f, &s, "r2", "completed"));
  assert_int_equal(f->trainer.start.from, START_CURRENT);
  post_run(f,
           "{\"dataset\":{\"path\":\"train.jsonl\"},\"verify_samples\":false,\"groups_per_round\":1,\"samples_per_"
           "group\":1,\"sampling\":{\"max_new_tokens\":8},\"training\":{\"objective\":\"evaluate\"}}");
  run = serve_run(f, &s, "r3", "completed");
  assert_string_equal(json_string(json_get(json_get(run, "config"), "start"), NULL), "current");
  json_free(run);
  assert_int_equal(call(f, "POST", "/v1/runs", GRPO(1, "},\"start\":{\"run\":\"r3\",\"version\":0}"), &answer), 422);
  assert_non_null(strstr(json_string(json_get(json_get(answer, "error"), "message"), NULL), "evaluates"));
  json_free(answer);
}

/* The fake trainer's version 0 of r2 has another digest than version 1 of r1, as with a state directory of another
 * lineage. */
static void a_run_does_not_start_from_a_checkpoint_of_another_lineage(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(1, "}"));
  json_free(serve_run(f, &s, "r1", "completed"));
  post_run(f, GRPO(1, "},\"start\":{\"run\":\"r1\",\"version\":1}"));
  wait_error(f, "r2", "checkpoint of run r1, version 1 has digest");
  struct json *run = get_run(f, "r2");
  assert_int_equal(json_type_of(json_get(run, "version")), JSON_NULL);
  json_free(run);
  assert_int_equal(f->trainer.start.from, START_CHECKPOINT);
  assert_int_equal(f->trainer.start.version, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_bad_line_of_a_dataset_is_refused_where_the_run_is_posted),
      CASE(a_bad_line_is_refused_without_a_trainer_too),
      CASE(a_run_that_the_model_or_the_trainer_cannot_take_is_refused),
      CASE(a_dataset_that_changed_after_the_post_is_an_error_at_the_opening),
      CASE(a_start_that_does_not_exist_is_refused),
      CASE(the_trainer_is_told_where_a_run_starts),
      CASE(a_run_does_not_start_from_a_checkpoint_of_another_lineage),
  };
  return cmocka_run_group_tests_name("coordinator/run_check", tests, NULL, NULL);
}
