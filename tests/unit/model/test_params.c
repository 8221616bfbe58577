/* The parameter table is the order of digests, checkpoints, gradients and the optimizer: a change of order or padding
 * changes every recorded digest. */
#include "tests/unit/model/support.h"

#include "common/model/network/params.h"

static void check_table(bool tied, int family) {
  static const int layers_params[FAMILY_CONFIGS] = {2 * 11, 2 * 16, 2 * 9, 2 * 13, 11 + 2 * (9 + 5 * 3), 2 * 11};
  const struct model_config c = family_config(family, tied);
  struct param_table t;
  assert_int_equal(param_table_make(&t, &c, NULL), RC_OK);
  assert_int_equal(t.count, 2 + layers_params[family] + (tied ? 0 : 1));
  size_t end = 0, parameters = 0;
  for (int i = 0; i < t.count; i++) {
    const struct param *p = &t.items[i];
    assert_int_equal(p->offset % 16, 0);
    assert_true(p->offset >= end && p->offset < end + 16);
    assert_int_equal(p->count, (size_t)p->rows * (size_t)p->cols);
    assert_int_equal(param_table_find(&t, p->file_name), i - (p->file_row ? p->kind == PARAM_V ? 2 : 1 : 0));
    assert_int_equal(p->expert >= 0 ? param_table_expert(&t, p->kind, p->layer, p->expert)
                                    : param_table_index(&t, p->kind, p->layer),
                     i);
    end = p->offset + p->count;
    parameters += p->count;
  }
  assert_true(t.elements >= end && t.elements < end + 16 && t.elements % 16 == 0);
  assert_int_equal(t.parameters, parameters);
  param_table_free(&t);
}

static void test_tables_are_consistent(void **state) {
  (void)state;
  for (int family = 0; family < FAMILY_CONFIGS; family++) {
    check_table(true, family);
    check_table(false, family);
  }
}

/* The parts of a tensor of the files follow each other, and fill it. */
static void test_parts_of_fused_tensors(void **state) {
  (void)state;
  const struct model_config c = family_config(2, true);
  struct param_table t;
  assert_int_equal(param_table_make(&t, &c, NULL), RC_OK);
  const int first = param_table_find(&t, "model.layers.1.qkv.weight");
  assert_int_equal(first, param_table_index(&t, PARAM_Q, 1));
  assert_int_equal(t.items[first].file_row, 0);
  assert_int_equal(t.items[first + 1].file_row, 72);
  assert_int_equal(t.items[first + 2].file_row, 96);
  for (int i = 0; i < 3; i++) assert_int_equal(t.items[first + i].file_rows, 120);
  assert_string_equal(t.items[first + 2].name, "model.layers.1.self_attn.v_proj.weight");
  const int up = param_table_index(&t, PARAM_UP, 0);
  assert_string_equal(t.items[up].file_name, "model.layers.0.gate_up.weight");
  assert_int_equal(t.items[up].file_row, 56);
  assert_int_equal(param_table_find(&t, "model.layers.0.mlp.up_proj.weight"), -1);
  assert_int_equal(param_table_index(&t, PARAM_Q_BIAS, 0), -1);
  param_table_free(&t);
}

/* A layer of experts has transformers' names, and not the MLP's. */
static void test_experts(void **state) {
  (void)state;
  const struct model_config c = family_config(4, true);
  struct param_table t;
  assert_int_equal(param_table_make(&t, &c, NULL), RC_OK);
  const int router = param_table_index(&t, PARAM_ROUTER, 2), down = param_table_expert(&t, PARAM_EXPERT_DOWN, 2, 4);
  assert_string_equal(t.items[router].name, "model.layers.2.mlp.gate.weight");
  assert_true(t.items[router].rows == 5 && t.items[router].cols == 40);
  assert_int_equal(down, router + 15);
  assert_string_equal(t.items[down].file_name, "model.layers.2.mlp.experts.4.down_proj.weight");
  assert_true(t.items[down].rows == 40 && t.items[down].cols == 36);
  assert_string_equal(t.items[down - 3].name, "model.layers.2.mlp.experts.3.down_proj.weight");
  assert_string_equal(t.items[down - 2].name, "model.layers.2.mlp.experts.4.gate_proj.weight");
  assert_string_equal(t.items[down + 1].name, "model.norm.weight");
  assert_true(param_table_index(&t, PARAM_GATE, 2) == -1 && param_table_index(&t, PARAM_ROUTER, 1) == -1);
  assert_string_equal(t.items[param_table_index(&t, PARAM_GATE, 1)].name, "model.layers.1.mlp.gate_proj.weight");
  param_table_free(&t);
}

static void test_names_and_shapes_in_order(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int rows, cols;
  } expected[] = {
      {"model.embed_tokens.weight", 257, 40},
      {"model.layers.0.input_layernorm.weight", 1, 40},
      {"model.layers.0.self_attn.q_proj.weight", 72, 40},
      {"model.layers.0.self_attn.k_proj.weight", 24, 40},
      {"model.layers.0.self_attn.v_proj.weight", 24, 40},
      {"model.layers.0.self_attn.q_norm.weight", 1, 12},
      {"model.layers.0.self_attn.k_norm.weight", 1, 12},
      {"model.layers.0.self_attn.o_proj.weight", 40, 72},
      {"model.layers.0.post_attention_layernorm.weight", 1, 40},
      {"model.layers.0.mlp.gate_proj.weight", 56, 40},
      {"model.layers.0.mlp.up_proj.weight", 56, 40},
      {"model.layers.0.mlp.down_proj.weight", 40, 56},
      {"model.norm.weight", 1, 40},
      {"lm_head.weight", 257, 40},
  };
  struct model_config c = tiny_config(false);
  c.layers = 1;
  struct param_table t;
  assert_int_equal(param_table_make(&t, &c, NULL), RC_OK);
  assert_int_equal(t.count, 14);
  for (int i = 0; i < t.count; i++) {
    assert_string_equal(t.items[i].name, expected[i].name);
    assert_int_equal(t.items[i].rows, expected[i].rows);
    assert_int_equal(t.items[i].cols, expected[i].cols);
  }
  param_table_free(&t);
}

static void test_absent_entries_are_minus_one(void **state) {
  (void)state;
  const struct model_config c = tiny_config(true);
  struct param_table t;
  assert_int_equal(param_table_make(&t, &c, NULL), RC_OK);
  assert_int_equal(param_table_find(&t, "lm_head.weight"), -1);
  assert_int_equal(param_table_index(&t, PARAM_HEAD, -1), -1);
  assert_int_equal(param_table_index(&t, PARAM_Q, 2), -1);
  assert_int_equal(param_table_index(&t, PARAM_Q, -1), -1);
  assert_int_equal(param_table_index(&t, PARAM_Q, 1 << 30), -1);
  param_table_free(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tables_are_consistent),
      cmocka_unit_test(test_parts_of_fused_tensors),
      cmocka_unit_test(test_experts),
      cmocka_unit_test(test_names_and_shapes_in_order),
      cmocka_unit_test(test_absent_entries_are_minus_one),
  };
  return cmocka_run_group_tests_name("model/params", tests, NULL, NULL);
}
