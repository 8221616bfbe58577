/* The mutants: with -DLEASEHOLD_FAULTS each must change what is sampled, and nothing that the digest covers; without,
 * the option must be inert. */
#include "tests/unit/generation-server/engine_test.h"

#include "services/generation-server/fault.h"

enum { MAX_NEW = 40 };

#ifdef LEASEHOLD_FAULTS
static const bool EFFECT = true;
static void choose(const char *name) { assert_int_equal(fault_set(generation_faults, name, NULL), RC_OK); }
#else
static const bool EFFECT = false;
static void choose(const char *name) { (void)name; }
#endif

static void run_lease(struct outcome *o, const char *fault, bool leased) {
  struct rig rig;
  struct err err = {0};
  int32_t prompt[24];
  rig_backend(&rig, 1);
  const struct engine_options options = {.model = rig.model,
                                         .slots = 4,
                                         .pages = 64,
                                         .page_tokens = 16,
                                         .prefill_chunk = 64,
                                         .samples_max = RIG_SAMPLES_MAX,
                                         .inbox_max = 64};
  choose(fault);
  assert_int_equal(engine_create(&rig.engine, &options, &err), RC_OK);
  rig_weights(&rig, 0, 1, 3);
  rig_weights(&rig, 1, 2, 4);
  assert_int_equal(engine_activate(rig.engine, rig.weights[0], &rig.policy[0]), RC_OK);
  struct decode_job_spec spec = spec_of(prompt, 20, 9, 2, MAX_NEW);
  struct decode_job *job;
  memset(o, 0, sizeof *o);
  spec.kind = leased ? JOB_OF_LEASE : JOB_OF_REQUEST;
  assert_int_equal(decode_job_create(&job, &spec, rig.model, engine_kv(rig.engine), &err), RC_OK);
  job->version_min = job->version_max = 3;
  job->weights_digest = rig.policy[0].digest;
  job->context = o;
  job->done = keep_outcome;
  assert_int_equal(engine_submit(rig.engine, job, &err), RC_OK);
  run_until_idle(&rig);
  assert_int_equal(o->samples, 2);
  for (int i = 0; i < o->samples; i++) assert_int_equal(o->sample[i].count, MAX_NEW);
  assert_true(digest_equal(&o->policy.digest, &rig.policy[0].digest));
  rig_close(&rig);
  choose("");
}

static bool same_logprobs(const struct outcome *a, const struct outcome *b, int from, int to) {
  for (int i = 0; i < a->samples; i++)
    if (memcmp(a->sample[i].logprobs + from, b->sample[i].logprobs + from, (size_t)(to - from) * sizeof(float)) != 0)
      return false;
  return true;
}

static void a_flipped_weight_shows(void **state) {
  (void)state;
  static struct outcome sound, mutant;
  run_lease(&sound, "", true);
  run_lease(&mutant, "flip-weight", true);
  assert_int_equal(same_logprobs(&sound, &mutant, 0, MAX_NEW), !EFFECT);
}

static void a_flipped_kv_entry_shows_from_the_sixth_step(void **state) {
  (void)state;
  static struct outcome sound, mutant, plain, plain_mutant;
  run_lease(&sound, "", true);
  run_lease(&mutant, "flip-kv", true);
  assert_true(same_logprobs(&sound, &mutant, 0, 5));
  assert_int_equal(same_logprobs(&sound, &mutant, 5, MAX_NEW), !EFFECT);
  run_lease(&plain, "", false);
  run_lease(&plain_mutant, "flip-kv", false); /* only leases are hit */
  assert_same_outcome(&plain, &plain_mutant);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_flipped_weight_shows),
                                     cmocka_unit_test(a_flipped_kv_entry_shows_from_the_sixth_step)};
  return cmocka_run_group_tests_name("generation faults", tests, NULL, NULL);
}
