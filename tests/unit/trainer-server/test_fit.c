/* What a trainer gives up where memory is short: the cheapest that fits, never more, and the advice says so in
 * numbers. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "services/trainer-server/engine/fit.h"

enum { MIB = 1 << 20 };

/* 1000 MiB, of which 300 may be mapped, 150 more that a lean trainer does without, 100 for changes, and one for every
 * token of a chunk, or four where activations are kept. */
static void made_up_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *o) {
  (void)m;
  assert_int_equal(o->lanes, 1);
  *out = (struct memory_plan){0};
  memory_plan_add(out, "all", (size_t)(o->optimizer_mapped ? 700 : 1000) * MIB);
  memory_plan_add(out, "copies", (size_t)(o->lean ? 0 : 150) * MIB);
  memory_plan_add(out, "changes", (size_t)(o->push_changes ? 100 : 0) * MIB);
  memory_plan_add(out, "activations", (size_t)(o->recompute_activations ? 1 : 4) * (size_t)o->chunk_tokens * MIB);
}

static const struct trainer_options asked = {.push_changes = true, .chunk_tokens = 1024, .lanes = 2};

static void the_cheapest_that_fits_is_chosen(void **state) {
  (void)state;
  static const struct {
    size_t room; /* MiB */
    bool fits, push_changes, lean, recompute, mapped;
    int64_t chunk_tokens;
  } cases[] = {
      {9999, true, true, false, false, false, 1024}, {5346, true, true, false, false, false, 1024},
      {5345, true, false, false, false, false, 1024}, {5246, true, false, false, false, false, 1024},
      {5245, true, true, true, false, false, 1024}, {5196, true, true, true, false, false, 1024},
      {5195, true, false, true, false, false, 1024}, {5096, true, false, true, false, false, 1024},
      {5095, true, true, false, true, false, 1024}, {2274, true, true, false, true, false, 1024},
      {2273, true, false, false, true, false, 1024}, {2174, true, false, false, true, false, 1024},
      {2173, true, true, true, true, false, 1024}, {2124, true, true, true, true, false, 1024},
      {2123, true, false, true, true, false, 1024}, {2024, true, false, true, true, false, 1024},
      {2023, true, true, false, true, true, 1024}, {1974, true, true, false, true, true, 1024},
      {1973, true, false, false, true, true, 1024}, {1874, true, false, false, true, true, 1024},
      {1873, true, true, true, true, true, 1024}, {1824, true, true, true, true, true, 1024},
      {1823, true, false, true, true, true, 1024}, {1724, true, false, true, true, true, 1024},
      {1723, true, false, false, true, false, 512}, {1662, true, false, false, true, false, 512},
      {1661, true, true, true, true, false, 512}, {1612, true, true, true, true, false, 512},
      {1611, true, false, true, true, false, 512}, {1512, true, false, true, true, false, 512},
      {1511, true, true, false, true, true, 512}, {1462, true, true, false, true, true, 512},
      {1461, true, false, false, true, true, 512}, {1362, true, false, false, true, true, 512},
      {1361, true, true, true, true, true, 512}, {1312, true, true, true, true, true, 512},
      {1311, true, false, true, true, true, 512}, {1212, true, false, true, true, true, 512},
      {1211, true, true, false, true, true, 256}, {1206, true, true, false, true, true, 256},
      {1205, true, false, false, true, true, 256}, {1106, true, false, false, true, true, 256},
      {1105, true, true, true, true, true, 256}, {1056, true, true, true, true, true, 256},
      {1055, true, false, true, true, true, 256}, {956, true, false, true, true, true, 256},
      {955, false, false, true, true, true, 256},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct memory_room room = {.machine = cases[i].room * MIB};
    struct trainer_options got;
    struct memory_advice advice;
    fit_choose(&got, &advice, NULL, &asked, true, &room, made_up_plan);
    if (advice.fits != cases[i].fits || got.push_changes != cases[i].push_changes || got.lean != cases[i].lean ||
        got.recompute_activations != cases[i].recompute || got.optimizer_mapped != cases[i].mapped ||
        got.chunk_tokens != cases[i].chunk_tokens)
      fail_msg("room for %zu MiB: fits %d, push_changes %d, lean %d, recompute %d, mapped %d, chunk_tokens %d",
               cases[i].room, advice.fits, got.push_changes, got.lean, got.recompute_activations, got.optimizer_mapped,
               (int)got.chunk_tokens);
  }
}

static void what_was_given_up_stays_given_up(void **state) {
  (void)state;
  struct trainer_options frugal = asked, got;
  struct memory_advice advice;
  frugal.push_changes = false;
  frugal.lean = frugal.recompute_activations = true;
  frugal.optimizer_mapped = true;
  const struct memory_room plenty = {.machine = (size_t)9999 * MIB}, little = {.machine = (size_t)1723 * MIB};
  fit_choose(&got, &advice, NULL, &frugal, true, &plenty, made_up_plan);
  assert_true(!got.push_changes && got.recompute_activations && got.chunk_tokens == 1024);
  assert_int_equal(advice.count, 0);
  fit_choose(&got, &advice, NULL, &frugal, true, &little, made_up_plan);
  assert_true(!got.push_changes && got.recompute_activations && got.chunk_tokens == 512);
  assert_int_equal(advice.count, 1);
}

static void several_ranks_keep_their_chunks(void **state) {
  (void)state;
  struct trainer_options got;
  struct memory_advice advice;
  const struct memory_room room = {.machine = (size_t)1723 * MIB};
  fit_choose(&got, &advice, NULL, &asked, false, &room, made_up_plan);
  assert_false(advice.fits);
  assert_int_equal(got.chunk_tokens, 1024);
}

static void the_advice_names_flags_savings_and_prices(void **state) {
  (void)state;
  struct trainer_options got;
  struct memory_advice advice;
  struct err err = {0};
  const struct memory_room some = {.machine = (size_t)1212 * MIB}, none = {.machine = MIB};
  fit_choose(&got, &advice, NULL, &asked, true, &some, made_up_plan);
  err_set(&err, RC_NO_MEMORY, NULL, "it is too large");
  memory_advice_give(&advice, &err);
  assert_string_equal(
      err.message,
      "it is too large; it would fit with --push-changes false (100.0 MiB less: servers are sent whole versions), "
      "--lean true (150.0 MiB less: transposes are made again and again, versions lie on disk, the same weights), "
      "--recompute-activations true (3072.0 MiB less: a third more computing, the same weights), --optimizer-state "
      "mapped (300.0 MiB less: every step reads and writes so much on disk), --chunk-tokens 512 (512.0 MiB less: runs "
      "may ask for no larger chunk, and no sample is longer), 1212.0 MiB in all: --fit chooses so");
  fit_choose(&got, &advice, NULL, &asked, true, &none, made_up_plan);
  err_set(&err, RC_NO_MEMORY, NULL, "it is too large");
  memory_advice_give(&advice, &err);
  assert_non_null(strstr(err.message, "it is too large; even with --push-changes false (100.0 MiB less"));
  assert_non_null(strstr(err.message, "--chunk-tokens 256 (768.0 MiB less"));
  assert_non_null(strstr(err.message, " it needs 956.0 MiB"));
  memory_advice_give(&advice, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_cheapest_that_fits_is_chosen),
      cmocka_unit_test(what_was_given_up_stays_given_up),
      cmocka_unit_test(several_ranks_keep_their_chunks),
      cmocka_unit_test(the_advice_names_flags_savings_and_prices),
  };
  return cmocka_run_group_tests_name("trainer-server/fit", tests, NULL, NULL);
}
