/* A config that asks for arithmetic that the forward pass does not support must not load; one that transformers writes
 * must. */
#include "tests/unit/model/support.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/network/config.h"

#define BASE                                                                                                       \
  "\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"hidden_size\":40,\"num_attention_heads\":6,\"num_key_value_" \
  "heads\":2,"                                                                                                     \
  "\"intermediate_size\":56,\"vocab_size\":257,\"max_position_embeddings\":128"

static enum rc parse(struct model_config *c, const char *json, struct err *err) {
  return model_config_parse(c, json, strlen(json), err);
}

static void test_reads_what_transformers_writes(void **state) {
  (void)state;
  struct model_config c;
  struct err err = {0};
  assert_int_equal(model_config_load(&c, GOLDEN "/qwen3_tied", &err), RC_OK);
  assert_int_equal(c.layers, 3);
  assert_int_equal(c.hidden, 40);
  assert_int_equal(c.heads, 6);
  assert_int_equal(c.kv_heads, 2);
  assert_int_equal(c.head_dim, 12);
  assert_int_equal(c.ffn, 56);
  assert_int_equal(c.vocabulary, 257);
  assert_int_equal(c.positions_max, 128);
  assert_true(c.rms_eps == 1e-6f && c.rope_theta == 10000 && c.initializer_range == 0.02f);
  assert_true(c.tied);
  assert_int_equal(c.eos_count, 2);
  assert_int_equal(c.eos[0], 256);
  assert_int_equal(c.eos[1], 3);
}

static void test_defaults_are_transformers(void **state) {
  (void)state;
  struct model_config c;
  assert_int_equal(parse(&c, "{" BASE "}", NULL), RC_OK);
  assert_int_equal(c.head_dim, 128);
  assert_true(c.rms_eps == 1e-6f && c.rope_theta == 10000 && !c.tied);
  assert_int_equal(c.eos_count, 0);
  assert_int_equal(
      parse(&c, "{" BASE ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0}}", NULL), RC_OK);
  assert_true(c.rope_theta == 1e6);
}

static void test_refuses(void **state) {
  (void)state;
  static const struct {
    const char *json, *field;
    enum rc rc;
  } cases[] = {
      {"", "", RC_INVALID},
      {"{" BASE, "", RC_INVALID},
      {"[1]", "", RC_INVALID},
      {"{\"model_type\":\"qwen3\"}", "num_hidden_layers", RC_INVALID},
      {"{" BASE ",\"model_type\":\"qwen3\"}", "", RC_INVALID},
      {"{" BASE ",\"head_dim\":13}", "head_dim", RC_INVALID},
      {"{" BASE ",\"head_dim\":100000}", "head_dim", RC_INVALID},
      {"{" BASE ",\"head_dim\":\"12\"}", "head_dim", RC_INVALID},
      {"{" BASE ",\"hidden_act\":\"gelu\"}", "hidden_act", RC_UNSUPPORTED},
      {"{" BASE ",\"final_logit_softcapping\":30.0}", "final_logit_softcapping", RC_UNSUPPORTED},
      {"{" BASE ",\"attn_logit_softcapping\":50.0}", "attn_logit_softcapping", RC_UNSUPPORTED},
      {"{" BASE ",\"use_bidirectional_attention\":true}", "use_bidirectional_attention", RC_UNSUPPORTED},
      {"{" BASE ",\"partial_rotary_factor\":0.75}", "partial_rotary_factor", RC_UNSUPPORTED},
      {"{" BASE ",\"quantization_config\":{\"bits\":4}}", "quantization_config", RC_UNSUPPORTED},
      {"{" BASE ",\"use_sliding_window\":true,\"sliding_window\":0}", "sliding_window", RC_INVALID},
      {"{" BASE ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]}", "layer_types", RC_INVALID},
      {"{" BASE ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
       "layer_types", RC_UNSUPPORTED},
      {"{" BASE ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":4.0}}", "rope_scaling.rope_type",
       RC_UNSUPPORTED},
      {"{" BASE ",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling.factor", RC_INVALID},
      {"{" BASE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
       "\"high_freq_factor\":1}}",
       "rope_parameters.high_freq_factor", RC_INVALID},
      {"{" BASE ",\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":{}}}", "rope_parameters",
       RC_UNSUPPORTED},
      {"{" BASE ",\"rope_scaling\":3}", "rope_scaling", RC_INVALID},
      {"{" BASE ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"rope_theta\":1}}", "rope_theta",
       RC_INVALID},
      {"{" BASE ",\"eos_token_id\":257}", "eos_token_id", RC_INVALID},
      {"{" BASE ",\"eos_token_id\":[1,-1]}", "eos_token_id", RC_INVALID},
      {"{" BASE ",\"eos_token_id\":\"</s>\"}", "eos_token_id", RC_INVALID},
      {"{" BASE ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "eos_token_id", RC_INVALID},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct model_config c;
    struct err err = {0};
    const enum rc rc = parse(&c, cases[i].json, &err);
    if (rc != cases[i].rc || !strstr(err.field, cases[i].field))
      print_message("case %zu: rc %d field %s: %s\n", i, (int)rc, err.field, err.message);
    assert_int_equal(rc, cases[i].rc);
    assert_non_null(strstr(err.field, cases[i].field));
  }
}

static void test_refuses_other_models_and_heads_that_do_not_divide(void **state) {
  (void)state;
  struct model_config c;
  struct err err = {0};
  char json[1024] = "{" BASE "}";
  memcpy(strstr(json, "qwen3"), "gpt_x", 5);
  assert_int_equal(parse(&c, json, &err), RC_UNSUPPORTED);
  assert_string_equal(err.field, "model_type");
  assert_non_null(strstr(err.message, family_list()));
  strcpy(json, "{" BASE "}");
  *strstr(json, "6,\"num_key") = '5';
  assert_int_equal(parse(&c, json, &err), RC_INVALID);
  assert_string_equal(err.field, "num_key_value_heads");
}

/* A config of another family in BASE's sizes: `rest` follows the model_type. */
static struct model_config family_of(const char *model_type, const char *rest) {
  char json[1024];
  struct model_config c;
  struct err err = {0};
  const char *sizes = strchr(BASE, ',');
  snprintf(json, sizeof json, "{\"model_type\":\"%s\"%s%s}", model_type, sizes, rest);
  if (parse(&c, json, &err) != RC_OK) fail_msg("%s: %s", json, err.message);
  return c;
}

/* What the model_type decides, and what the keys beside it do. */
static void test_families(void **state) {
  (void)state;
  struct model_config c = family_of("qwen2", "");
  assert_true(!c.head_norms && c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.fused && c.head_dim == 6 && c.window == 0);
  c = family_of("qwen2", ",\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":1");
  assert_true(model_config_window(&c, 0) == 0 && model_config_window(&c, 1) == 7);
  c = family_of("qwen3", ",\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\",\"full_attention\"]");
  assert_true(model_config_window(&c, 0) == 4096 && model_config_window(&c, 1) == 0 && c.head_norms && !c.qkv_bias);
  c = family_of("llama", ",\"attention_bias\":true");
  assert_true(!c.head_norms && c.qkv_bias && c.o_bias && !c.mlp_bias && c.window == 0);
  c = family_of("llama", ",\"mlp_bias\":true,\"use_sliding_window\":true,\"sliding_window\":7");
  assert_true(!c.qkv_bias && !c.o_bias && c.mlp_bias && c.window == 0);
  c = family_of("mistral", "");
  assert_true(model_config_window(&c, 0) == 4096 && model_config_window(&c, 1) == 4096 && !c.qkv_bias);
  c = family_of("mistral", ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\"]");
  assert_true(model_config_window(&c, 0) == 0 && model_config_window(&c, 1) == 7); /* as Ministral has it */
  c = family_of("mistral", ",\"sliding_window\":7,\"layer_types\":null");
  assert_true(model_config_window(&c, 0) == 7 && model_config_window(&c, 1) == 7);
  c = family_of("phi3", ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"full_attention\"]");
  assert_true(model_config_window(&c, 0) == 7 && model_config_window(&c, 1) == 7);
  c = family_of("mistral", ",\"max_window_layers\":1");
  assert_true(model_config_window(&c, 0) == 4096);
  c = family_of("mistral", ",\"sliding_window\":null");
  assert_true(model_config_window(&c, 0) == 0 && model_config_window(&c, 1) == 0);
  c = family_of("gemma3_text", "");
  assert_true(c.plus_one && c.out_norms && c.gelu && c.root_embedding && c.tied && c.query_scalar == 256);
  assert_true(c.rope_theta == 1e6 && c.rope_local_theta == 1e4 && c.head_dim == 256 && c.window == 4096);
  assert_true(model_config_window(&c, 0) == 4096 && model_config_window(&c, 1) == 4096);
  c = family_of("gemma3_text", ",\"sliding_window_pattern\":2,\"sliding_window\":5,\"rope_local_base_freq\":99");
  assert_true(model_config_window(&c, 0) == 5 && model_config_window(&c, 1) == 0 && c.rope_local_theta == 99);
  c = family_of("gemma3_text",
                ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":5e5},"
                "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":7000}}");
  assert_true(c.rope.kind == ROPE_LINEAR && c.rope_theta == 5e5 && c.rope_local_theta == 7000);
  c = family_of("gemma2", "");
  assert_true(c.plus_one && c.out_norms && c.gelu && c.root_embedding && c.tied && !c.head_norms);
  assert_true(c.query_scalar == 256 && c.scores_cap == 50 && c.logits_cap == 30 && c.rope_local_theta == 0);
  assert_true(model_config_window(&c, 0) == 4096 && model_config_window(&c, 1) == 0 && c.rope_theta == 1e4);
  c = family_of("gemma2", ",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":7,\"head_dim\":6");
  assert_true(c.scores_cap == 0 && c.logits_cap == 7);
  c = family_of("qwen3_moe", "");
  assert_true(c.experts == 128 && c.chosen == 8 && c.expert_ffn == 768 && !c.normalizes_chosen && c.sparse[0] == 3);
  assert_true(c.head_norms && !c.qkv_bias && c.window == 0 && c.head_dim == 6);
  c = family_of("qwen3_moe", ",\"num_experts\":6,\"num_experts_per_tok\":6,\"moe_intermediate_size\":9,"
                             "\"norm_topk_prob\":true,\"decoder_sparse_step\":2,\"use_sliding_window\":true");
  assert_true(c.experts == 6 && c.chosen == 6 && c.expert_ffn == 9 && c.normalizes_chosen && c.sparse[0] == 2);
  assert_true(model_config_window(&c, 0) == 4096 && model_config_window(&c, 1) == 4096);
  c = family_of("qwen3_moe", ",\"num_local_experts\":16,\"mlp_only_layers\":[0,7]");
  assert_true(c.experts == 16 && !model_config_sparse(&c, 0) && model_config_sparse(&c, 1));
  c = family_of("qwen3_moe", ",\"mlp_only_layers\":[0,1]");
  assert_true(c.experts == 0 && c.chosen == 0 && c.sparse[0] == 0);
  c = family_of("qwen3_moe", ",\"num_experts\":0,\"mlp_only_layers\":null");
  assert_true(c.experts == 0 && c.sparse[0] == 0);
  c = family_of("phi3", "");
  assert_true(c.fused && c.rms_eps == 1e-5f && c.window == 0);
}

/* As transformers reads it: as many as there are heads, where a missing one has the family's default. */
static void test_no_number_of_heads_of_keys_is_that_of_heads(void **state) {
  (void)state;
  static const char *const families[] = {"qwen3", "qwen2", "mistral", "llama", "phi3"};
  const char *sizes = strchr(BASE, ','), *heads = strstr(BASE, ",\"num_key_value_heads\":2");
  assert_non_null(heads);
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    char json[1024];
    struct model_config c;
    struct err err = {0};
    snprintf(json, sizeof json, "{\"model_type\":\"%s\"%.*s,\"num_key_value_heads\":null%s}", families[i],
             (int)(heads - sizes), sizes, heads + strlen(",\"num_key_value_heads\":2"));
    if (parse(&c, json, &err) != RC_OK) fail_msg("%s: %s", json, err.message);
    assert_int_equal(c.kv_heads, 6);
  }
}

/* Phi-3's file of 128k tokens said "yarn", with two lists of factors: transformers takes it for longrope. */
static void test_phi3_is_rotated_plainly_or_not_at_all(void **state) {
  (void)state;
  static const char *const types[] = {"yarn", "su", "longrope", "linear"};
  assert_int_equal(family_of("phi3", ",\"rope_scaling\":{\"rope_type\":\"default\"}").rope.kind, ROPE_PLAIN);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    char json[1024];
    struct model_config c;
    struct err err = {0};
    snprintf(json, sizeof json,
             "{\"model_type\":\"phi3\"%s,\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"%s\","
             "\"factor\":2,\"short_factor\":[1,1,1],\"long_factor\":[1,2,3]}}",
             strchr(BASE, ','), types[i]);
    assert_int_equal(parse(&c, json, &err), RC_UNSUPPORTED);
    assert_string_equal(err.field, "rope_scaling.rope_type");
    assert_non_null(strstr(err.message, "longrope"));
  }
}

static void test_rotations(void **state) {
  (void)state;
  struct model_config c = family_of("llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}");
  assert_true(c.rope.kind == ROPE_LINEAR && c.rope.factor == 2.5);
  c = family_of("llama", ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.5}");
  assert_true(c.rope.kind == ROPE_PLAIN);
  c = family_of("llama",
                ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}");
  assert_true(c.rope.kind == ROPE_LLAMA3 && c.rope_theta == 5e5 && c.rope.original_positions == 64 &&
              c.rope.high_freq_factor == 4);
  c = family_of("qwen2", ",\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":32}");
  assert_true(c.rope.kind == ROPE_YARN && c.rope.factor == 4 && c.rope.beta_fast == 32 && c.rope.truncate);
  assert_true(c.rope.attention_factor > 1.138629 && c.rope.attention_factor < 1.13863); /* 0.1 ln 4 + 1 */
  c = family_of("qwen2",
                ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1,\"mscale_all_dim\":1}");
  assert_true(c.rope.attention_factor == 1 && c.rope.original_positions == 128);
  c = family_of("qwen2", ",\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
                         "\"original_max_position_embeddings\":32}");
  assert_true(c.rope.original_positions == 64); /* what stands outside wins, as in transformers */
}

static void write_text(const char *dir, const char *name, const char *text) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), RC_OK);
}

static void test_generation_config_adds_stop_tokens(void **state) {
  (void)state;
  char dir[] = "/tmp/leasehold-config-XXXXXX";
  struct model_config c;
  struct err err = {0};
  assert_non_null(mkdtemp(dir));
  assert_int_equal(model_config_load(&c, dir, &err), RC_NOT_FOUND);
  assert_non_null(strstr(err.message, "expected a Hugging Face folder"));
  write_text(dir, "config.json", "{" BASE ",\"eos_token_id\":7}");
  assert_int_equal(model_config_load(&c, dir, &err), RC_OK);
  assert_int_equal(c.eos_count, 1);
  write_text(dir, "generation_config.json", "{\"eos_token_id\":[7,9],\"top_k\":20}");
  assert_int_equal(model_config_load(&c, dir, &err), RC_OK);
  assert_int_equal(c.eos_count, 2);
  assert_int_equal(c.eos[0], 7);
  assert_int_equal(c.eos[1], 9);
  write_text(dir, "generation_config.json", "[]");
  assert_int_equal(model_config_load(&c, dir, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "generation_config.json: expected an object"));
  write_text(dir, "generation_config.json", "");
  assert_int_equal(model_config_load(&c, dir, &err), RC_INVALID);
  write_text(dir, "config.json", "{" BASE ",\"eos_token_id\":-7}");
  assert_int_equal(model_config_load(&c, dir, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "/config.json: eos_token_id: expected"));
  assert_int_equal(file_remove_tree(dir, NULL), RC_OK);
}

/* The bytes may be a peer's: an id that is none is refused, whatever stands in its place. */
static void test_generation_configs_that_lie(void **state) {
  (void)state;
  static const char *const lies[] = {"",
                                     "{",
                                     "7",
                                     "[7]",
                                     "{\"eos_token_id\":{\"a\":1}}",
                                     "{\"eos_token_id\":{}}",
                                     "{\"eos_token_id\":[[7]]}",
                                     "{\"eos_token_id\":[null]}",
                                     "{\"eos_token_id\":\"7\"}",
                                     "{\"eos_token_id\":7.0}",
                                     "{\"eos_token_id\":257}",
                                     "{\"eos_token_id\":-1}",
                                     "{\"eos_token_id\":7,\"eos_token_id\":8}",
                                     "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}"};
  struct model_config c;
  struct err err = {0};
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    assert_int_equal(parse(&c, "{" BASE "}", NULL), RC_OK);
    if (model_config_add_generation(&c, lies[i], strlen(lies[i]), &err) != RC_INVALID) fail_msg("took %s", lies[i]);
  }
  assert_int_equal(model_config_add_generation(&c, "{\"eos_token_id\":null}", 21, &err), RC_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reads_what_transformers_writes),
      cmocka_unit_test(test_defaults_are_transformers),
      cmocka_unit_test(test_refuses),
      cmocka_unit_test(test_refuses_other_models_and_heads_that_do_not_divide),
      cmocka_unit_test(test_families),
      cmocka_unit_test(test_no_number_of_heads_of_keys_is_that_of_heads),
      cmocka_unit_test(test_phi3_is_rotated_plainly_or_not_at_all),
      cmocka_unit_test(test_rotations),
      cmocka_unit_test(test_generation_config_adds_stop_tokens),
      cmocka_unit_test(test_generation_configs_that_lie),
  };
  return cmocka_run_group_tests_name("model/config", tests, NULL, NULL);
}
