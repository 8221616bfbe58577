/* How much KV cache a server takes, and what it gives up where memory is short. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/model/network/kv_cache.h"
#include "services/generation-server/engine/fit.h"

enum { MIB = 1 << 20, WEIGHTS = 100, PAGE_TOKENS = 32 };

static const struct ops ops = {.host_memory = true, .operand_bytes = 2};
/* A page takes 32 tokens x 16 layers x 2 x 8 heads x 64 x 2 bytes: 1 MiB. */
static const struct model model = {
    .config = {.layers = 16, .kv_heads = 8, .head_dim = 64}, .ops = &ops, .context_max = 2048};

/* WEIGHTS MiB, a tenth for every row of a prefill, and the pages. */
static void made_up_plan(struct memory_plan *out, const struct model *m, const struct loaded_model_options *o,
                         int pages) {
  *out = (struct memory_plan){0};
  memory_plan_add(out, "weights", (size_t)WEIGHTS * MIB);
  memory_plan_add(out, "scratch", (size_t)o->prefill_chunk * MIB / 16);
  memory_plan_add(out, "KV cache", (size_t)pages * kv_page_bytes(m, o->page_tokens));
}

static const struct loaded_model_options asked = {.slots = 8, .page_tokens = PAGE_TOKENS, .prefill_chunk = 256};

static int pages_in(size_t room_mib, struct loaded_model_options o) {
  const struct memory_room room = {.machine = room_mib * MIB};
  return fit_pages(&o, &model, &room, made_up_plan);
}

static void a_page_is_a_mebibyte(void **state) {
  (void)state;
  assert_int_equal(kv_page_bytes(&model, PAGE_TOKENS), MIB);
}

/* 64 pages a sequence, 8 slots; weights and scratch take 116 MiB. */
static void pages_are_what_is_useful_fair_and_there(void **state) {
  (void)state;
  struct loaded_model_options o = asked;
  assert_int_equal(pages_in(100000, o), 512); /* every slot at full context */
  assert_int_equal(pages_in(1000, o), 250);   /* a quarter of the memory */
  assert_int_equal(pages_in(310, o), 77);     /* the same */
  assert_int_equal(pages_in(150, o), 64);     /* 34 are left, and one sequence takes more */
  o.slots = 1;
  assert_int_equal(pages_in(100000, o), 64);
  o.pages = 7;
  assert_int_equal(pages_in(100000, o), 7);
}

/* Weights that take most of the room leave less than a quarter of it. */
static void pages_take_what_the_weights_leave(void **state) {
  (void)state;
  struct loaded_model_options o = asked;
  o.prefill_chunk = 10000; /* 725 MiB with the weights */
  assert_int_equal(pages_in(800, o), 75);
}

static void the_cheapest_that_fits_is_chosen(void **state) {
  (void)state;
  static const struct {
    size_t room; /* MiB */
    int pages_asked;
    bool fits;
    int pages, prefill_chunk, context_max;
  } cases[] = {
      {1000, 0, true, 0, 256, 2048},  {180, 0, true, 0, 256, 2048},   {179, 0, true, 0, 32, 2048},
      {166, 0, true, 0, 32, 2048},    {165, 0, true, 0, 256, 1024},   {147, 0, true, 0, 32, 1024},
      {134, 0, true, 0, 32, 1024},    {133, 0, true, 0, 256, 512},    {118, 0, true, 0, 32, 512},
      {117, 0, true, 0, 32, 256},     {110, 0, true, 0, 32, 256},     {109, 0, false, 0, 32, 256},
      {1000, 884, true, 884, 256, 2048}, {999, 884, true, 0, 256, 2048}, {179, 884, true, 0, 32, 2048},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct memory_room room = {.machine = cases[i].room * MIB};
    struct loaded_model_options o = asked, got;
    struct memory_advice advice;
    o.pages = cases[i].pages_asked;
    fit_choose(&got, &advice, &model, &o, &room, made_up_plan);
    if (advice.fits != cases[i].fits || got.pages != cases[i].pages || got.prefill_chunk != cases[i].prefill_chunk ||
        got.context_max != cases[i].context_max)
      fail_msg("room for %zu MiB, %d pages asked: fits %d, pages %d, prefill %d, context %d", cases[i].room,
               cases[i].pages_asked, advice.fits, got.pages, got.prefill_chunk, got.context_max);
  }
}

static void the_advice_names_flags_savings_and_prices(void **state) {
  (void)state;
  struct loaded_model_options o = asked, got;
  struct memory_advice advice;
  struct err err = {0};
  const struct memory_room room = {.machine = (size_t)120 * MIB};
  o.pages = 900;
  fit_choose(&got, &advice, &model, &o, &room, made_up_plan);
  memory_advice_give(&advice, &err);
  assert_string_equal(
      err.message,
      "; it would fit with --kv-pages 0 (836.0 MiB less: as many as there is room for), --prefill-chunk 32 "
      "(14.0 MiB less: prompts take more steps), --context-max 512 (46.0 MiB less: no sequence may be "
      "longer), 120.0 MiB in all: --fit chooses so");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_page_is_a_mebibyte),
      cmocka_unit_test(pages_are_what_is_useful_fair_and_there),
      cmocka_unit_test(pages_take_what_the_weights_leave),
      cmocka_unit_test(the_cheapest_that_fits_is_chosen),
      cmocka_unit_test(the_advice_names_flags_savings_and_prices),
  };
  return cmocka_run_group_tests_name("generation-server/fit", tests, NULL, NULL);
}
