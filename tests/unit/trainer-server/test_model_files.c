/* The files that go with the weights: which they are, and that a checkpoint has them as the model's folder had them. */
#include "tests/unit/trainer-server/checkpoints.h"

#include "services/trainer-server/engine/model_files.h"

static void names_decide(void **state) {
  (void)state;
  static const char *const carried[] = {"config.json",         "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "tokenizer.model",        "tokenizer.model.v3",
                                        "chat_template.jinja", "chat_template.json",     "special_tokens_map.json",
                                        "added_tokens.json",   "vocab.json",             "merges.txt",
                                        "preprocessor_config.json"};
  static const char *const others[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                       "README.md",         ".gitattributes",               "tokenizer.py",
                                       "tokenizer/../../secret", "../config.json",          "tokenizer.json.tmp",
                                       "Config.json",       "config.json.bak",              "",
                                       "optimizer.pt"};
  char longest[MODEL_FILE_NAME_MAX + 1] = "tokenizer";
  for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++)
    if (!model_file_carried(carried[i])) fail_msg("%s is left behind", carried[i]);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (model_file_carried(others[i])) fail_msg("%s is carried along", others[i]);
  memset(longest + 9, 'x', MODEL_FILE_NAME_MAX - 10);
  assert_true(model_file_carried(longest));
  longest[MODEL_FILE_NAME_MAX - 1] = 'x';
  assert_false(model_file_carried(longest));
}

static void assert_file(const char *name, const char *text) {
  char path[LIMIT_PATH_MAX];
  struct buf bytes = BUF_INIT;
  struct err err = {0};
  path_of(path, name);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  assert_string_equal(bytes.data, text);
  buf_free(&bytes);
}

static void write_template(const char *folder, const char *name, const char *text) {
  char path[LIMIT_PATH_MAX];
  struct err err = {0};
  assert_rc(RC_OK, path_format(path, &err, "%s/%s", model_dir, folder), err);
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  write_text(path, name, text);
}

/* By its name in the folder, and never by a path. */
static void a_template_beside_the_models_own_is_found(void **state) {
  (void)state;
  static const char *const none[] = {"rag.jinja",        "notes.txt",
                                     ".jinja",           "../additional_chat_templates/tool_use.jinja",
                                     "folder.jinja",     "additional_chat_templates/tool_use.jinja",
                                     "./tool_use.jinja", ""};
  struct model_file_names files;
  struct err err = {0};
  char path[LIMIT_PATH_MAX], expected[LIMIT_PATH_MAX];
  write_template("chat_templates", "tool_use.jinja", "older");
  assert_rc(RC_OK, model_file_path(path, model_dir, "tool_use.jinja", &err), err);
  assert_rc(RC_OK, path_format(expected, &err, "%s/chat_templates/tool_use.jinja", model_dir), err);
  assert_string_equal(path, expected);
  write_template("additional_chat_templates", "tool_use.jinja", "tools");
  write_template("additional_chat_templates", "notes.txt", "not the model's");
  write_template("additional_chat_templates/folder.jinja", "x", "");
  assert_rc(RC_OK, model_file_path(path, model_dir, "tool_use.jinja", &err), err);
  assert_rc(RC_OK, path_format(expected, &err, "%s/additional_chat_templates/tool_use.jinja", model_dir), err);
  assert_string_equal(path, expected);
  for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
    assert_rc(RC_NOT_FOUND, model_file_path(path, model_dir, none[i], &err), err);
  assert_rc(RC_OK, model_files_list(&files, model_dir, &err), err);
  assert_int_equal(files.count, 3);
  assert_string_equal(files.names[1], "tokenizer.json");
  assert_string_equal(files.names[2], "tool_use.jinja");
}

static void a_checkpoint_carries_them(void **state) {
  (void)state;
  char path[LIMIT_PATH_MAX];
  struct err err = {0};
  write_text(model_dir, "chat_template.jinja", "{{ messages }}");
  write_text(model_dir, "tokenizer_config.json", "{\"chat_template\":\"x\"}");
  write_text(model_dir, "special_tokens_map.json", "{}");
  write_text(model_dir, "notes.txt", "not the model's");
  assert_rc(RC_OK, path_format(path, &err, "%s/tokenizer-folder", model_dir), err);
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  write_template("additional_chat_templates", "tool_use.jinja", "tools");
  write_template("additional_chat_templates", "notes.txt", "not the model's");
  write_template("chat_templates", "tool_use.jinja", "older");
  write_template("chat_templates", "rag.jinja", "documents");
  write_version(1);
  assert_file("r7/v1/additional_chat_templates/tool_use.jinja", "tools");
  assert_file("r7/v1/chat_templates/rag.jinja", "documents");
  assert_false(exists("r7/v1/additional_chat_templates/notes.txt") || exists("r7/v1/chat_templates/tool_use.jinja"));
  assert_file("r7/v1/chat_template.jinja", "{{ messages }}");
  assert_file("r7/v1/tokenizer_config.json", "{\"chat_template\":\"x\"}");
  assert_file("r7/v1/special_tokens_map.json", "{}");
  assert_file("r7/v1/tokenizer.json", tiny_tokenizer);
  assert_file("r7/v1/config.json", tiny_config);
  assert_false(exists("r7/v1/notes.txt") || exists("r7/v1/tokenizer-folder"));
}

/* A reader that trusts it would else round bf16 weights to fp16, or blow them up to fp32. */
static void a_configuration_names_the_dtype_of_the_checkpoint(void **state) {
  (void)state;
  char path[LIMIT_PATH_MAX];
  struct err err = {0};
  static const struct {
    const char *before, *after;
  } cases[] = {
      {"{\"a\":1e-06,\"torch_dtype\":\"float16\",\"b\":{\"torch_dtype\":\"float16\"},\"mine\":[1,2.5,null]}",
       "{\"a\":1e-06,\"torch_dtype\":\"bfloat16\",\"b\":{\"torch_dtype\":\"float16\"},\"mine\":[1,2.5,null]}"},
      {"{\"dtype\":\"float32\",\"torch_dtype\":\"bfloat16\"}", "{\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"}"},
      {"{ \"dtype\": \"bfloat16\", \"x\": 1.0 }",
       "{ \"dtype\": \"bfloat16\", \"x\": 1.0 }"}, /* as it was, to the byte */
      {"{ \"x\": 1 }\n", "{ \"x\": 1 }\n"},
      {"{\"dtype\":null}", "{\"dtype\":null}"},
  };
  assert_rc(RC_OK, path_format(path, &err, "%s/copy", state_dir), err);
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    write_text(model_dir, "config.json", cases[i].before);
    assert_rc(RC_OK, model_files_copy(model_dir, path, &err), err);
    assert_file("copy/config.json", cases[i].after);
  }
}

static void too_many_files_are_refused(void **state) {
  (void)state;
  struct model_file_names files;
  struct err err = {0};
  char name[MODEL_FILE_NAME_MAX];
  for (int i = 0; i < MODEL_FILES_MAX - 2; i++) { /* beside config.json and tokenizer.json */
    snprintf(name, sizeof name, "tokenizer.%02d", i);
    write_text(model_dir, name, "");
  }
  assert_rc(RC_OK, model_files_list(&files, model_dir, &err), err);
  assert_int_equal(files.count, MODEL_FILES_MAX);
  assert_string_equal(files.names[0], "config.json");
  assert_string_equal(files.names[1], "tokenizer.00");
  assert_string_equal(files.names[MODEL_FILES_MAX - 1], "tokenizer.json");
  write_text(model_dir, "merges.txt", "");
  assert_rc(RC_TOO_LARGE, model_files_list(&files, model_dir, &err), err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_decide),
      cmocka_unit_test_setup_teardown(a_template_beside_the_models_own_is_found, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_checkpoint_carries_them, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_configuration_names_the_dtype_of_the_checkpoint, set_up, tear_down),
      cmocka_unit_test_setup_teardown(too_many_files_are_refused, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("trainer-server/model_files", tests, NULL, NULL);
}
