/* Messages between the coordinator and the trainer survive the wire; numbers that are not finite arrive as NaN and
 * never as something else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/wire/wire_test.h"

MESSAGE_AGAIN(open_run)
MESSAGE_AGAIN(open_run_answer)
MESSAGE_AGAIN(check_run)
MESSAGE_AGAIN(check_run_answer)
MESSAGE_AGAIN(submit_batch)
MESSAGE_AGAIN(batch_status)
MESSAGE_AGAIN(submit_step)
MESSAGE_AGAIN(step_status)
MESSAGE_AGAIN(version_announce)
MESSAGE_AGAIN(push_answer)

static const struct message open_run_message = {
    .name = "open_run",
    .json =
        "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":\"12345678901234567890\",\"current_version\":12,"
        "\"start\":{\"run\":\"r3\",\"version\":600},\"training\":{\"objective\":"
        "\"gspo\",\"clip_low\":0.1,\"clip_high\":0.28,"
        "\"kl_coefficient\":0.001,\"normalization\":\"sequences\",\"lr\":1e-06,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-"
        "08,\"weight_decay\":0.01,\"clip_norm\":0.3,"
        "\"lr_min_ratio\":0.1,\"schedule\":\"cosine\",\"warmup_steps\":50,\"total_steps\":200,\"temperature\":1.5,"
        "\"chunk_tokens\":8192,\"checkpoint_every\":10}}",
    .again = again_open_run,
    .optional = {"current_version", "start"}};
static const struct message check_run_message = {
    .name = "check_run",
    .json =
        "{\"start\":{\"run\":\"r3\",\"version\":600},\"training\":{\"objective\":\"grpo\",\"clip_low\":0.1,\"clip_"
        "high\":0."
        "28,\"kl_coefficient\":0.001,\"normalization\":\"tokens\",\"lr\":1e-06,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-"
        "08,"
        "\"weight_decay\":0.01,\"clip_norm\":0.3,\"lr_min_ratio\":0.1,\"schedule\":\"cosine\",\"warmup_steps\":50,"
        "\"total_steps\":200,\"temperature\":1.5,\"chunk_tokens\":8192,\"checkpoint_every\":10}}",
    .again = again_check_run,
    .optional = {"start"}};
static const struct message check_run_answer_message = {
    .name = "check_run_answer", .json = "{\"context_max\":512}", .again = again_check_run_answer};
static const struct message open_run_answer_message = {
    .name = "open_run_answer",
    .json = "{\"run\":\"r7\",\"version\":0,\"digest\":\"" DIGEST_A "\",\"state\":\"replaying\"}",
    .again = again_open_run_answer};
static const struct message batch_message = {
    .name = "submit_batch",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[{\"id\":\"r7.12."
        "3\",\"samples\":["
        "{\"id\":\"r7.12.3.0\",\"tokens\":[1,2,3,4],\"prompt_length\":2,\"segments\":[{\"start\":0,\"count\":2,\"loss_"
        "mask\":true}],\"advantage\":-0.707106769},"
        "{\"id\":\"r7.12.3.1\",\"tokens\":[1,2,5],\"prompt_length\":1,\"segments\":[{\"start\":0,\"count\":1,\"loss_"
        "mask\":false},"
        "{\"start\":1,\"count\":1,\"loss_mask\":true}],\"advantage\":0.707106769}]},"
        "{\"id\":\"r7.12.4\",\"samples\":[{\"id\":\"r7.12.4.0\",\"tokens\":[1,2],\"prompt_length\":1,"
        "\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true}],\"advantage\":0}]}]}",
    .again = again_submit_batch};
static const struct message batch_done_message = {
    .name = "batch_status done",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"state\":\"done\",\"error\":null,\"samples\":[{\"id\":\"r7.12.3.0\",\"logprobs\":["
        "-0.5,null,-1.25]},{\"id\":\"r7.12.3.1\",\"logprobs\":[]}],\"logprobs_sha256\":\"" DIGEST_A
        "\","
        "\"stats\":{\"loss\":-0.25,\"entropy_sum\":null,\"kl_reference_sum\":0,\"ratio_sum\":4,\"ratio_squares\":4,"
        "\"tokens\":4,\"clipped\":1,\"samples\":2,\"logprob_us\":10,"
        "\"compute_us\":20,\"poisoned\":true},\"intervals\":[[\"fill\",5,7],[\"logprob\",7,17],[\"compute\",17,37]]}",
    .again = again_batch_status,
    .nullable = {"error", "logprobs[]", "loss", "entropy_sum", "kl_reference_sum", "ratio_sum", "ratio_squares"}};
static const struct message batch_failed_message = {
    .name = "batch_status failed",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"state\":\"failed\",\"error\":{\"code\":\"too_large\",\"message\":\"expected at "
        "most 4096 rows\",\"field\":\"groups[0]\"},"
        "\"samples\":[],\"logprobs_sha256\":null,\"stats\":null,\"intervals\":[]}",
    .again = again_batch_status,
    .optional = {"logprobs_sha256"},
    .nullable = {"stats"}};
static const struct message batch_running_message = {.name = "batch_status running",
                                                     .json =
                                                         "{\"batch_id\":\"r7.12.b0\",\"state\":\"running\",\"error\":"
                                                         "null,\"samples\":[],\"logprobs_sha256\":null,\"stats\":null,"
                                                         "\"intervals\":[]}",
                                                     .again = again_batch_status,
                                                     .optional = {"logprobs_sha256"},
                                                     .nullable = {"error", "stats"}};
static const struct message step_message = {
    .name = "submit_step",
    .json =
        "{\"step_id\":\"r7.12\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[\"r7.12.3\",\"r7.12."
        "4\"],\"denominator\":37,\"last\":true,"
        "\"push_to\":[{\"worker_id\":\"w3\",\"url\":\"http://gen-1:8081\"},{\"worker_id\":\"w4\",\"url\":\"http://"
        "gen-2:8081\","
        "\"fabric_place\":2}],\"stage_timeout_ms\":60000}",
    .again = again_submit_step,
    .optional = {"fabric_place"}};
static const struct message step_done_message = {
    .name = "step_status done",
    .json =
        "{\"step_id\":\"r7.12\",\"state\":\"done\",\"error\":null,\"version\":13,\"digest\":\"" DIGEST_B
        "\",\"grad_norm\":null,\"lr\":1e-06,\"skipped\":true,\"step_us\":1,"
        "\"checkpoint_us\":2,\"push_us\":3,\"oldest_checkpoint\":11,\"checkpoints\":[0,11,13],\"pushes\":[{\"worker_"
        "id\":\"w3\",\"staged\":true,\"way\":\"fabric\",\"digest\":\"" DIGEST_B
        "\",\"error\":null},"
        "{\"worker_id\":\"w4\",\"staged\":false,\"way\":null,\"digest\":null,\"error\":\"no answer within 60000 ms\"}],"
        "\"intervals\":[[\"step\",1,2],[\"push\",2,5]]}",
    .again = again_step_status,
    .optional = {"oldest_checkpoint", "checkpoints"},
    .nullable = {"error", "grad_norm"}};
static const struct message step_queued_message = {
    .name = "step_status queued",
    .json =
        "{\"step_id\":\"r7.12\",\"state\":\"queued\",\"error\":null,\"version\":null,\"digest\":null,\"grad_norm\":0,"
        "\"lr\":0,\"skipped\":false,\"step_us\":0,"
        "\"checkpoint_us\":0,\"push_us\":0,\"oldest_checkpoint\":0,\"pushes\":[],\"intervals\":[]}",
    .again = again_step_status,
    .optional = {"version", "digest", "oldest_checkpoint"},
    .nullable = {"error", "grad_norm"}};
/* What a run with update "minibatch" adds. */
static const struct message minibatch_run_message = {
    .name = "check_run of minibatch",
    .json =
        "{\"training\":{\"objective\":\"grpo\",\"clip_low\":0.1,\"clip_high\":0.28,\"kl_coefficient\":0,"
        "\"normalization\":\"tokens\",\"lr\":1e-06,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-08,\"weight_decay\":0.01,"
        "\"clip_norm\":0.3,\"lr_min_ratio\":0.1,\"schedule\":\"cosine\",\"warmup_steps\":50,\"total_steps\":200,"
        "\"temperature\":1.5,\"chunk_tokens\":8192,\"checkpoint_every\":10,\"optimizer_moments\":\"8bit\","
        "\"update\":\"minibatch\"}}",
    .again = again_check_run};
static const struct message later_batch_message = {
    .name = "submit_batch after inner steps",
    .json =
        "{\"batch_id\":\"r7.12.b3\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"after_steps\":2,\"groups\":"
        "[{"
        "\"id\":\"r7.12.4\",\"samples\":[{\"id\":\"r7.12.4.0\",\"tokens\":[1,2],\"prompt_length\":1,"
        "\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true}],\"advantage\":0}]}]}",
    .again = again_submit_batch,
    .optional = {"after_steps"}};
static const struct message later_batch_done_message = {
    .name = "batch_status after inner steps",
    .json =
        "{\"batch_id\":\"r7.12.b3\",\"state\":\"done\",\"error\":null,\"samples\":[],\"logprobs_sha256\":\"" DIGEST_A
        "\",\"stats\":{\"loss\":-0.25,\"entropy_sum\":1,\"kl_reference_sum\":0,\"ratio_sum\":4.5,\"ratio_squares\":5,"
        "\"kl_new_old\":0.125,\"difference_new_old\":null,\"tokens\":4,\"clipped\":1,\"samples\":2,\"logprob_us\":10,"
        "\"compute_us\":20,\"poisoned\":false},\"intervals\":[]}",
    .again = again_batch_status,
    .optional = {"kl_new_old", "difference_new_old"},
    .nullable = {"error", "loss", "entropy_sum", "kl_reference_sum", "ratio_sum", "ratio_squares"}};
static const struct message inner_step_message = {
    .name = "submit_step inner",
    .json =
        "{\"step_id\":\"r7.12.s2\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[\"r7.12.4\"],"
        "\"denominator\":37,\"last\":false,\"inner\":true,\"after_steps\":2,\"push_to\":[],\"stage_timeout_ms\":1}",
    .again = again_submit_step,
    .optional = {"inner", "after_steps"}};
/* What a run with update "inflight" adds. */
static const struct message behaviour_message = {
    .name = "submit_batch with behaviour",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[{\"id\":\"r7.9."
        "3\",\"samples\":[{\"id\":\"r7.9.3.0\",\"tokens\":[1,2,3,4],\"prompt_length\":1,\"segments\":[{\"start\":0,"
        "\"count\":1,\"loss_mask\":true},{\"start\":1,\"count\":1,\"loss_mask\":false},{\"start\":2,\"count\":1,\"loss_"
        "mask\":true}],\"advantage\":0.5,\"behaviour\":[-0.25,-1.5]}]}]}",
    .again = again_submit_batch,
    .optional = {"behaviour"}};
/* What a group brings whose reference was computed elsewhere. */
static const struct message reference_message = {
    .name = "submit_batch with a reference",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[{\"id\":\"r7."
        "12.3\",\"reference\":true,\"samples\":[{\"id\":\"r7.12.3.0\",\"tokens\":[1,2,3,4],\"prompt_length\":1,"
        "\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true},{\"start\":1,\"count\":1,\"loss_mask\":false},{"
        "\"start\":2,\"count\":1,\"loss_mask\":true}],\"advantage\":0.5,\"reference\":[-0.25,-1.5]}]},{\"id\":\"r7.12.4"
        "\",\"samples\":[{\"id\":\"r7.12.4.0\",\"tokens\":[1,2],\"prompt_length\":1,\"segments\":[{\"start\":0,"
        "\"count\":1,\"loss_mask\":true}],\"advantage\":0.5}]}]}",
    .again = again_submit_batch};
/* A check asks for draws, and is told of the first that differ. */
static const struct message check_message = {
    .name = "submit_batch with a check",
    .json =
        "{\"batch_id\":\"r7.12.c3.0\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"check\":{\"seed\":17,"
        "\"round\":12},\"groups\":[{\"id\":\"r7.12.4\",\"ordinal\":4,\"samples\":[{\"id\":\"r7.12.4.0\",\"tokens\":[1,"
        "2],\"prompt_length\":1,\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true}],\"advantage\":0}]}]}",
    .again = again_submit_batch,
    .optional = {"check", "ordinal"}};
/* A batch that is verified, and what it is refused for. */
static const struct message verified_message = {
    .name = "submit_batch that is verified",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"verify\":{\"seed\":17,"
        "\"mismatch_most\":2,\"draws_near\":0.25,\"draws_most\":0.5,\"inexact_too\":true},\"groups\":[{\"id\":\"r7.11."
        "3\",\"round\":11,"
        "\"ordinal\":3,\"samples\":[{\"id\":\"r7.11.3.0\",\"tokens\":[5,6,7],\"prompt_length\":1,\"segments\":[{"
        "\"start\":0,"
        "\"count\":2,\"loss_mask\":true}],\"advantage\":0.5,\"behaviour\":[-0.25,-0.5],\"exact_from\":1}]}]}",
    .again = again_submit_batch,
    .optional = {"verify", "inexact_too", "round", "ordinal", "behaviour", "exact_from"}};
static const struct message refused_message = {
    .name = "batch_status of a batch with refusals",
    .json =
        "{\"batch_id\":\"r7.12.b0\",\"state\":\"done\",\"error\":null,\"samples\":[],\"logprobs_sha256\":\"" DIGEST_A
        "\",\"refusals\":[{\"id\":\"r7.11.3.0\",\"reason\":\"logprob\",\"position\":3,\"token\":17,\"token_logprob\":-"
        "0.25,"
        "\"logprob\":null,\"unequal\":2,\"far\":1,\"mismatch\":0.125}],\"stats\":{\"loss\":0,"
        "\"entropy_sum\":0,\"kl_reference_sum\":0,\"ratio_sum\":0,\"ratio_squares\":0,\"tokens\":0,\"clipped\":0,"
        "\"samples\":0,\"logprob_us\":10,\"compute_us\":20,\"poisoned\":false},\"intervals\":[]}",
    .again = again_batch_status,
    .optional = {"refusals"},
    .nullable = {"error", "loss", "entropy_sum", "kl_reference_sum", "ratio_sum", "ratio_squares", "token_logprob",
                 "logprob", "mismatch"}};
static const struct message check_done_message = {
    .name = "batch_status of a check",
    .json =
        "{\"batch_id\":\"r7.12.c3.0\",\"state\":\"done\",\"error\":null,\"samples\":[],\"logprobs_sha256\":\"" DIGEST_A
        "\",\"differences\":[{\"id\":\"r7.12.4.0\",\"position\":3,\"token\":17,\"logprob\":-0.25}],\"stats\":{\"loss\":"
        "0,"
        "\"entropy_sum\":0,\"kl_reference_sum\":0,\"ratio_sum\":0,\"ratio_squares\":0,\"tokens\":0,\"clipped\":0,"
        "\"samples\":2,\"logprob_us\":10,\"compute_us\":20,\"poisoned\":false},\"intervals\":[]}",
    .again = again_batch_status,
    .optional = {"differences"},
    .nullable = {"error", "loss", "entropy_sum", "kl_reference_sum", "ratio_sum", "ratio_squares", "logprob"}};
static const struct message announced_step_message = {
    .name = "submit_step announced first",
    .json =
        "{\"step_id\":\"r7.12\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[\"r7.12.4\"],"
        "\"denominator\":37,\"last\":false,\"announce_first\":true,\"push_to\":[{\"worker_id\":\"w3\",\"url\":\"http://"
        "gen-1:8081\"}],\"stage_timeout_ms\":1}",
    .again = again_submit_step,
    .optional = {"announce_first"}};
static const struct message keeping_step_message = {
    .name = "submit_step that says what is kept",
    .json =
        "{\"step_id\":\"r7.12\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[\"r7.12.4\"],"
        "\"denominator\":37,\"last\":false,\"checkpoint\":true,\"keep_last\":2,\"keep_versions\":[3,11],\"push_to\":[],"
        "\"stage_timeout_ms\":1}",
    .again = again_submit_step,
    .optional = {"checkpoint", "keep_last", "keep_versions"}};
static const struct message announce_message = {
    .name = "version_announce",
    .json =
        "{\"run\":\"r7\",\"step_id\":\"r7.12\",\"worker_id\":\"w1\","
        "\"epoch\":3,\"fence\":2,\"version\":13,\"digest\":\"" DIGEST_B
        "\",\"grad_norm\":2.5,\"lr\":1e-06,\"skipped\":true,\"pushes\":["
        "{\"worker_id\":\"w4\",\"staged\":false,\"way\":\"http\",\"digest\":\"" DIGEST_A
        "\",\"error\":\"digests differ\"}]}",
    .again = again_version_announce,
    .optional = {"error", "way", "grad_norm"}};
static const struct message push_message = {
    .name = "push_answer", .json = "{\"staged\":true,\"digest\":\"" DIGEST_A "\"}", .again = again_push_answer};

static const struct message *const all[] = {
    &open_run_message,  &open_run_answer_message, &check_run_message,    &check_run_answer_message,
    &batch_message,     &batch_done_message,      &batch_failed_message, &batch_running_message,
    &step_message,      &step_done_message,       &step_queued_message,  &announce_message,
    &push_message,      &minibatch_run_message,   &later_batch_message,  &later_batch_done_message,
    &inner_step_message, &behaviour_message,       &announced_step_message, &keeping_step_message, &reference_message,
    &check_message,     &check_done_message,      &verified_message,     &refused_message};

static void every_message_reads_back_as_it_was_written(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) message_check_round_trip(all[i]);
}

static void every_spoilt_member_is_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    struct message m = *all[i];
    if (all[i] == &open_run_message) { /* every member of "training" has a default */
      m.json =
          "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"lr\":0.5,\"chunk_tokens\":64,"
          "\"objective\":\"ppo\"}}"; /* no current_version: 0 */
      m.optional[0] = "lr", m.optional[1] = "chunk_tokens", m.optional[2] = "objective";
    }
    if (all[i] == &check_run_message) {
      m.json = "{\"start\":{\"run\":\"r3\",\"version\":600},\"training\":{\"lr\":0.5}}";
      m.optional[1] = "lr";
    }
    if (all[i] == &minibatch_run_message) {
      m.json = "{\"training\":{\"update\":\"minibatch\"}}";
      m.optional[0] = "update";
    }
    if (all[i] == &step_done_message) { /* one report, staged */
      m.json = "{\"step_id\":\"r7.12\",\"state\":\"done\",\"error\":null,\"version\":13,\"digest\":\"" DIGEST_B
               "\",\"grad_norm\":2.5,\"lr\":1e-06,\"skipped\":false,\"step_us\":1,"
               "\"checkpoint_us\":2,\"push_us\":3,\"oldest_checkpoint\":11,\"pushes\":[{\"worker_id\":\"w3\","
               "\"staged\":true,\"digest\":\"" DIGEST_B "\"}],\"intervals\":[[\"step\",1,2]]}";
    }
    if (all[i] == &announce_message) {
      m.json =
          "{\"run\":\"r7\",\"step_id\":\"r7.12\",\"worker_id\":\"w1\",\"epoch\":3,\"fence\":2,\"version\":13,"
          "\"digest\":\"" DIGEST_B
          "\",\"grad_norm\":2.5,\"lr\":0.1,\"skipped\":false,\"pushes\":["
          "{\"worker_id\":\"w4\",\"staged\":true,\"digest\":\"" DIGEST_A "\",\"error\":\"digests differ\"}]}";
    }
    message_check_spoilt(&m);
  }
}

static void a_training_configuration_is_read_over_defaults(void **state) {
  (void)state;
  struct training_config c, defaults;
  struct arena arena = ARENA_INIT;
  struct json *root;
  training_config_defaults(&c);
  defaults = c;
  assert_int_equal(json_parse(&root, "{\"lr\":0.5,\"objective\":null}", 27, 0, NULL), RC_OK);
  assert_int_equal(training_config_read(&c, root, &arena, NULL), RC_OK);
  assert_true(c.lr == 0.5);
  assert_string_equal(c.objective, defaults.objective);
  assert_true(c.clip_low == 0.2 && c.beta1 == 0.9 && c.temperature == 1 && c.checkpoint_every == 1 &&
              c.chunk_tokens == defaults.chunk_tokens);
  json_free(root);
  arena_free(&arena);
}

static void a_training_configuration_is_bounded(void **state) {
  (void)state;
  const struct message *m = &open_run_message;
  message_check_refused(m, "\"gspo\"", "\"GRPO\"", "training.objective");
  message_check_refused(m, "\"sequences\"", "\"token\"", "training.normalization");
  message_check_refused(m, "\"cosine\"", "\"step\"", "training.schedule");
  message_check_refused(m, "\"beta1\":0.9", "\"beta1\":1", "training.beta1");
  message_check_refused(m, "\"beta2\":0.95", "\"beta2\":1.0", "training.beta2");
  message_check_refused(m, "\"eps\":1e-08", "\"eps\":0", "training.eps");
  message_check_refused(m, "\"eps\":1e-08", "\"eps\":5e-324", "training.eps"); /* 0 where subnormals are flushed */
  message_check_refused(m, "\"lr\":1e-06", "\"lr\":-1e-06", "training.lr");
  message_check_refused(m, "\"lr\":1e-06", "\"lr\":\"1e-06\"", "training.lr");
  message_check_refused(m, "\"temperature\":1.5", "\"temperature\":0", "training.temperature");
  message_check_refused(m, "\"temperature\":1.5", "\"temperature\":1e-45", "training.temperature");
  message_check_refused(m, "\"temperature\":1.5", "\"temperature\":1.2e-38", "training.temperature"); /* it overflows */
  message_check_refused(m, "\"checkpoint_every\":10", "\"checkpoint_every\":0",
                        "training.checkpoint_every"); /* the trainer divides by it */
  message_check_refused(&minibatch_run_message, "\"8bit\"", "\"8\"", "training.optimizer_moments");
  message_check_refused(m, "\"chunk_tokens\":8192", "\"chunk_tokens\":262145", "training.chunk_tokens");
  message_check_refused(m, "\"chunk_tokens\":8192", "\"chunk_tokens\":1", "training.chunk_tokens");
  message_check_refused(m, "\"warmup_steps\":50", "\"warmup_steps\":50.5", "training.warmup_steps");
  message_check_refused(m, "\"warmup_steps\":50", "\"warmup\":50", "training.warmup");
  message_check_accepted(m, "\"seed\":\"12345678901234567890\"", "\"seed\":0");
  message_check_refused(m, "\"seed\":\"12345678901234567890\"", "\"seed\":\"0x1\"", "seed");
}

/* The trainer leaves out what the sampler did with every update rule, but knows no entropy of what is left. */
static void a_cut_goes_with_every_update_rule(void **state) {
  (void)state;
  struct message m = open_run_message;
  struct buf out = BUF_INIT;
  struct err err = {0};
  m.json = "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"top_k\":40,\"top_p\":0.95,\"min_p\":0.5,"
           "\"update\":\"strict\",\"kl_coefficient\":0}}";
  assert_int_equal(message_try(&m, m.json, strlen(m.json), &out, &err), RC_OK);
  assert_non_null(strstr(out.data, "\"temperature\":1,\"top_k\":40,\"top_p\":0.95,\"min_p\":0.5,\"chunk_tokens\":"));
  message_check_accepted(&m, "\"strict\"", "\"minibatch\"");
  message_check_accepted(&m, "\"strict\"", "\"inflight\"");
  message_check_refused(&m, "\"kl_coefficient\":0", "\"entropy_coefficient\":0.01", "training.top_k");
  message_check_accepted(&m, "\"kl_coefficient\":0", "\"kl_coefficient\":0.001");
  m.json = "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"top_k\":0,\"top_p\":1,\"min_p\":0,"
           "\"update\":\"minibatch\",\"kl_coefficient\":0.5}}";
  buf_clear(&out);
  assert_int_equal(message_try(&m, m.json, strlen(m.json), &out, &err), RC_OK); /* nothing is left out */
  assert_null(strstr(out.data, "top_"));
  buf_free(&out);
}

/* Configurations from before there was a cap are written as they came: their hashes stay. */
static void a_cap_goes_with_tis_alone(void **state) {
  (void)state;
  struct message m = open_run_message;
  struct buf out = BUF_INIT;
  struct err err = {0};
  m.json =
      "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"objective\":\"tis\",\"importance_cap\":2.5}}";
  assert_int_equal(message_try(&m, m.json, strlen(m.json), &out, &err), RC_OK);
  assert_non_null(strstr(out.data, "\"clip_high\":0.2,\"importance_cap\":2.5,\"kl_coefficient\":0,"));
  message_check_accepted(&m, "2.5", "1");
  message_check_refused(&m, "2.5", "0.999", "training.importance_cap");
  message_check_refused(&m, "2.5", "0", "training.importance_cap");
  message_check_refused(&m, "2.5", "null", "training.importance_cap");
  message_check_refused(&m, "2.5", "1e7", "training.importance_cap");
  message_check_refused(&m, ",\"importance_cap\":2.5", "", "training.importance_cap");
  message_check_refused(&m, "\"tis\"", "\"decoupled_ppo\"", "training.importance_cap");
  message_check_refused(&m, "\"tis\"", "\"evaluate\"", "training.importance_cap");
  static const char *const others[] = {"grpo",  "ppo",           "reinforce",     "gspo",
                                       "cispo", "decoupled_ppo", "cross_entropy", "evaluate"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char text[160];
    snprintf(
        text, sizeof text,
        "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"objective\":\"%s\",\"importance_cap\":0}}",
        others[i]);
    buf_clear(&out);
    if (message_try(&m, text, strlen(text), &out, &err) != RC_OK) fail_msg("%s: %s", others[i], err.message);
    assert_null(strstr(out.data, "importance_cap"));
  }
  buf_free(&out);
}

/* What says "strict", or nothing, is written without a word of it: to a trainer from before there was a choice it is
 * the run that it knows, and its digest is the same run's. */
static void a_strict_run_is_written_as_ever(void **state) {
  (void)state;
  static const struct {
    const struct message *message;
    const char *from, *to, *absent;
  } cases[] = {
      {&minibatch_run_message, "\"minibatch\"", "\"strict\"", "update"},
      {&minibatch_run_message, "\"minibatch\"", "null", "update"},
      {&minibatch_run_message, "\"8bit\"", "\"32bit\"", "optimizer_moments"},
      {&minibatch_run_message, "\"8bit\"", "null", "optimizer_moments"},
      {&later_batch_message, "\"after_steps\":2", "\"after_steps\":0", "after_steps"},
      {&later_batch_message, "\"after_steps\":2", "\"after_steps\":null", "after_steps"},
      {&inner_step_message, "\"inner\":true", "\"inner\":false", "inner"},
      {&announced_step_message, "\"announce_first\":true", "\"announce_first\":false", "announce_first"},
      {&keeping_step_message, "\"checkpoint\":true", "\"checkpoint\":false", "checkpoint"},
      {&keeping_step_message, "\"keep_last\":2", "\"keep_last\":0", "keep_last"},
      {&keeping_step_message, "\"keep_versions\":[3,11]", "\"keep_versions\":[]", "keep_versions"},
      {&behaviour_message, "\"behaviour\":[-0.25,-1.5]", "\"behaviour\":[]", "behaviour"},
      {&behaviour_message, "\"behaviour\":[-0.25,-1.5]", "\"behaviour\":null", "behaviour"},
      {&inner_step_message, "\"after_steps\":2", "\"after_steps\":0", "after_steps"},
      {&later_batch_done_message, "0.125", "0", "kl_new_old"},
      {&later_batch_done_message, "\"difference_new_old\":null", "\"difference_new_old\":0", "difference_new_old"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = message_replaced(cases[i].message->json, cases[i].from, cases[i].to);
    struct buf out = BUF_INIT;
    struct err err = {0};
    if (message_try(cases[i].message, text, strlen(text), &out, &err) != RC_OK) fail_msg("%s: %s", text, err.message);
    if (strstr(out.data, cases[i].absent)) fail_msg("expected no %s in %s", cases[i].absent, out.data);
    buf_free(&out);
    free(text);
  }
}

/* Two objectives have no behaviour policy that a later step could differ from. */
static void minibatches_need_a_behaviour_policy(void **state) {
  (void)state;
  const struct message *m = &minibatch_run_message;
  static const char *const good[] = {"reinforce", "ppo", "gspo", "cispo", "decoupled_ppo"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) message_check_accepted(m, "grpo", good[i]);
  message_check_refused(m, "grpo", "cross_entropy", "training.update");
  message_check_refused(m, "grpo", "evaluate", "training.update");
  message_check_refused(m, "\"minibatch\"", "\"minibatches\"", "training.update");
  message_check_refused(m, "\"minibatch\"", "true", "training.update");
}

/* So do samples of several versions. */
static void inflight_runs_need_a_behaviour_policy(void **state) {
  (void)state;
  char *text = message_replaced(minibatch_run_message.json, "minibatch", "inflight");
  struct message m = minibatch_run_message;
  m.json = text;
  message_check_round_trip(&m);
  message_check_refused(&m, "grpo", "cross_entropy", "training.update");
  message_check_refused(&m, "grpo", "evaluate", "training.update");
  free(text);
}

static void behaviour_is_one_log_probability_for_each_trained_token(void **state) {
  (void)state;
  const struct message *m = &behaviour_message;
  const char *field = "groups[0].samples[0].behaviour";
  message_check_refused(m, "[-0.25,-1.5]", "[-0.25]", field);
  message_check_refused(m, "[-0.25,-1.5]", "[-0.25,-1.5,-2]", field);
  message_check_refused(m, "-1.5", "1e-45", "groups[0].samples[0].behaviour[1]");
  message_check_refused(m, "-1.5", "-1e39", "groups[0].samples[0].behaviour[1]"); /* infinite as a float32 */
  message_check_refused(m, "-1.5", "null", "groups[0].samples[0].behaviour[1]");
  message_check_accepted(m, "-1.5", "0");
  message_check_accepted(m, "-1.5", "-3.4028234e38");
}

static void a_group_brings_its_whole_reference_or_none(void **state) {
  (void)state;
  const struct message *m = &reference_message;
  const char *first = "groups[0].samples[0].reference";
  message_check_refused(m, "[-0.25,-1.5]", "[-0.25]", first);
  message_check_refused(m, "[-0.25,-1.5]", "[]", first);
  message_check_refused(m, ",\"reference\":[-0.25,-1.5]", "", first);
  message_check_refused(m, "\"reference\":true", "\"reference\":false", first);
  message_check_refused(m, "\"reference\":true", "\"reference\":[]", "groups[0].reference");
  message_check_refused(m, "-1.5", "1e-45", "groups[0].samples[0].reference[1]");
  message_check_refused(m, "\"id\":\"r7.12.4\"", "\"id\":\"r7.12.4\",\"reference\":true",
                        "groups[1].samples[0].reference");
}

static void an_inner_step_is_not_announced(void **state) {
  (void)state;
  message_check_refused(&inner_step_message, "\"inner\":true", "\"inner\":true,\"announce_first\":true",
                        "announce_first");
  message_check_refused(&inner_step_message, "\"inner\":true", "\"inner\":true,\"checkpoint\":true", "checkpoint");
}

static void an_inner_step_has_groups_and_makes_no_version(void **state) {
  (void)state;
  const struct message *m = &inner_step_message;
  message_check_refused(m, "[\"r7.12.4\"]", "[]", "groups");
  message_check_refused(m, "\"last\":false", "\"last\":true", "last");
  message_check_refused(m, "\"push_to\":[]", "\"push_to\":[{\"worker_id\":\"w3\",\"url\":\"http://gen-1:8081\"}]",
                        "push_to");
  message_check_refused(m, "\"after_steps\":2", "\"after_steps\":-1", "after_steps");
  message_check_refused(m, "\"after_steps\":2", "\"after_steps\":4097", "after_steps");
  message_check_refused(&later_batch_message, "\"after_steps\":2", "\"after_steps\":-1", "after_steps");
  message_check_accepted(m, "\"after_steps\":2", "\"after_steps\":4096");
}

static void sums_that_are_not_finite_differ_from_none(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct json *root;
  struct batch_status m;
  const char *text = later_batch_done_message.json;
  assert_int_equal(json_parse(&root, text, strlen(text), 0, NULL), RC_OK);
  assert_int_equal(batch_status_decode(&m, root, &arena, NULL), RC_OK);
  assert_true(m.stats.kl_new_old == 0.125 && isnan(m.stats.difference_new_old));
  json_free(root);
  arena_free(&arena);
}

/* A coordinator that records no version yet, or knows nothing of replay, opens at 0; a trainer's state is one of
 * two. */
static void the_recorded_version_is_optional(void **state) {
  (void)state;
  struct message m = open_run_message;
  struct buf out = BUF_INIT;
  struct err err = {0};
  m.json = "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{}}";
  assert_int_equal(message_try(&m, m.json, strlen(m.json), &out, &err), RC_OK);
  assert_non_null(strstr(out.data, "\"current_version\":0,"));
  buf_free(&out);
  message_check_refused(&open_run_message, "\"current_version\":12", "\"current_version\":-1", "current_version");
  message_check_refused(&open_run_message, "\"current_version\":12", "\"current_version\":1.5", "current_version");
  message_check_accepted(&open_run_answer_message, "replaying", "ready");
  message_check_refused(&open_run_answer_message, "replaying", "restoring", "state");
}

/* An opening from before there was `start` is written as it came: its digest is what makes it the same run. */
static void a_start_is_a_word_or_a_checkpoint_or_left_out(void **state) {
  (void)state;
  const struct message *m = &open_run_message;
  const char *given = "{\"run\":\"r3\",\"version\":600}";
  message_check_accepted(m, given, "\"model\"");
  message_check_accepted(m, given, "\"current\"");
  message_check_refused(m, given, "\"r3\"", "start");
  message_check_refused(m, given, "[]", "start");
  message_check_refused(m, given, "{\"run\":\"r3\"}", "start.version");
  message_check_refused(m, given, "{\"run\":\"..\",\"version\":1}", "start.run");
  message_check_refused(m, given, "{\"run\":\"a/b\",\"version\":1}", "start.run");
  message_check_refused(m, given, "{\"run\":\"r3\",\"version\":1,\"digest\":\"\"}", "start.digest");
  struct message bare = open_run_message;
  struct buf out = BUF_INIT;
  struct err err = {0};
  bare.json = "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{}}";
  assert_int_equal(message_try(&bare, bare.json, strlen(bare.json), &out, &err), RC_OK);
  assert_null(strstr(out.data, "start"));
  buf_free(&out);
}

static void an_evaluating_run_may_be_greedy(void **state) {
  (void)state;
  struct message m = open_run_message;
  m.json =
      "{\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"seed\":1,\"training\":{\"objective\":\"evaluate\",\"temperature\":0.5}"
      "}";
  message_check_accepted(&m, "0.5", "0");
  message_check_refused(&m, "\"temperature\":0.5", "\"entropy_coefficient\":0.01",
                        "training.entropy_coefficient"); /* of a loss that there is not */
}

static void a_batch_must_add_up(void **state) {
  (void)state;
  const struct message *m = &batch_message;
  message_check_refused(m, "\"prompt_length\":2", "\"prompt_length\":0", "groups[0].samples[0].prompt_length");
  message_check_refused(m, "\"prompt_length\":2", "\"prompt_length\":4",
                        "groups[0].samples[0].prompt_length"); /* no completion */
  message_check_refused(m, "\"prompt_length\":2", "\"prompt_length\":3",
                        "groups[0].samples[0].segments"); /* they cover the completion, no more */
  message_check_refused(m, "[1,2,3,4]", "[1,2,3,-4]", "groups[0].samples[0].tokens[3]");
  message_check_refused(m, "[1,2,3,4]", "[1]", "groups[0].samples[0].tokens");
  message_check_refused(m, "-0.707106769", "1e39", "groups[0].samples[0].advantage"); /* infinite as a float32 */
  message_check_refused(m, "\"id\":\"r7.12.3.1\"", "\"id\":\"r7.12.3.0\"", "groups[0].samples");
  message_check_refused(m, "\"id\":\"r7.12.4\"", "\"id\":\"r7.12.3\"", "groups");
  message_check_refused(m, "\"version\":12", "\"version\":12.5", "version");
}

static void states_errors_and_results_belong_together(void **state) {
  (void)state;
  message_check_refused(&batch_running_message, "running", "done", "stats");
  message_check_refused(&batch_done_message, "\"" DIGEST_A "\"", "null", "logprobs_sha256");
  message_check_refused(&batch_running_message, "running", "failed", "error");
  message_check_refused(&batch_running_message, "running", "lost", "state");
  message_check_refused(&batch_failed_message, "failed", "queued", "error");
  message_check_refused(&batch_failed_message, "too_large", "ok", "error.code");
  message_check_refused(&step_queued_message, "queued", "done", "version");
  message_check_refused(&step_done_message, "done", "failed", "error");
  message_check_refused(&step_done_message, "\"fabric\",\"digest\":\"" DIGEST_B "\"", "\"fabric\",\"digest\":null",
                        "pushes[0].digest");
  message_check_refused(&step_done_message, "\"way\":\"fabric\"", "\"way\":\"pigeon\"", "pushes[0].way");
  message_check_refused(&step_done_message, "\"way\":\"fabric\"", "\"way\":\"\"", "pushes[0].way");
  message_check_refused(&step_done_message, "[\"push\",2,5]", "[\"push\",2]", "intervals[1]");
  message_check_refused(&batch_done_message, "[\"fill\",5,7]", "[\"fill\",5,4]", "intervals[0]");
  message_check_refused(&push_message, "\"" DIGEST_A "\"", "null", "digest");
}

static void what_is_not_finite_arrives_as_nan(void **state) {
  (void)state;
  float logprobs[] = {-1, NAN, -INFINITY};
  float entropies[] = {0.5F, NAN, 0};
  struct sample_logprobs sample = {"r1.1.1.0", {logprobs, 3}, {entropies, 3}};
  struct batch_status in = {.batch_id = "b",
                            .state = JOB_DONE,
                            .samples = &sample,
                            .sample_count = 1,
                            .numbers = STATUS_LOGPROBS | STATUS_ENTROPIES,
                            .logprobs_sha256 = {{1}},
                            .stats = {.loss = (double)NAN, .ratio_sum = (double)INFINITY, .poisoned = true}},
                      m;
  struct buf out = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct json *root;
  batch_status_encode(&in, &out);
  assert_int_equal(json_parse(&root, out.data, out.len, 0, NULL), RC_OK);
  assert_int_equal(batch_status_decode(&m, root, &arena, NULL), RC_OK);
  assert_true(m.samples[0].logprobs.items[0] == -1 && isnan(m.samples[0].logprobs.items[1]) &&
              isnan(m.samples[0].logprobs.items[2]));
  assert_true(isnan(m.stats.loss) && isnan(m.stats.ratio_sum) && m.stats.entropy_sum == 0 && m.stats.poisoned);
  assert_true(m.samples[0].entropies.count == 3 && m.samples[0].entropies.items[0] == 0.5F &&
              isnan(m.samples[0].entropies.items[1]) && m.samples[0].entropies.items[2] == 0);
  json_free(root);
  in.numbers = 0; /* nobody asked for entropies */
  buf_clear(&out);
  batch_status_encode(&in, &out);
  assert_null(strstr(out.data, "entropies"));
  sample.entropies.count = 2; /* of three tokens */
  in.numbers = STATUS_LOGPROBS | STATUS_ENTROPIES;
  buf_clear(&out);
  batch_status_encode(&in, &out);
  assert_int_equal(json_parse(&root, out.data, out.len, 0, NULL), RC_OK);
  assert_int_equal(batch_status_decode(&m, root, &arena, NULL), RC_INVALID);
  json_free(root);
  buf_free(&out);
  arena_free(&arena);
}

static void an_error_keeps_code_sentence_and_field(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct json *root;
  struct batch_status m;
  assert_int_equal(json_parse(&root, batch_failed_message.json, strlen(batch_failed_message.json), 0, NULL), RC_OK);
  assert_int_equal(batch_status_decode(&m, root, &arena, NULL), RC_OK);
  assert_int_equal(m.error.rc, RC_TOO_LARGE);
  assert_string_equal(m.error.message, "expected at most 4096 rows");
  assert_string_equal(m.error.field, "groups[0]");
  json_free(root);
  arena_free(&arena);
}

static void a_step_names_its_groups_once_and_divides_by_what_is_trained_on(void **state) {
  (void)state;
  const struct message *m = &step_message;
  message_check_refused(m, "\"r7.12.4\"", "\"r7.12.3\"", "groups");
  message_check_refused(m, "\"r7.12.4\"", "\"r7/12\"", "groups[1]");
  message_check_refused(m, "\"denominator\":37", "\"denominator\":1e-310", "denominator");
  message_check_refused(m, "\"denominator\":37", "\"denominator\":-1", "denominator");
  message_check_refused(m, "\"stage_timeout_ms\":60000", "\"stage_timeout_ms\":0", "stage_timeout_ms");
  message_check_refused(m, "\"fabric_place\":2", "\"fabric_place\":-2", "push_to[1].fabric_place");
  message_check_refused(m, "http://gen-1:8081", "gen-1", "push_to[0].url");
  struct message empty = *m;
  empty.json =
      "{\"step_id\":\"r7.12\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[],\"denominator\":0,"
      "\"last\":false,\"push_to\":[],\"stage_timeout_ms\":1}";
  message_check_round_trip(&empty); /* a round whose every group was filtered */
  struct message masked = *m;
  masked.json =
      "{\"step_id\":\"r7.12\",\"run\":\"r7\",\"epoch\":3,\"fence\":2,\"version\":12,\"groups\":[\"r7.12.3\"],"
      "\"denominator\":0,\"last\":false,\"push_to\":[],\"stage_timeout_ms\":1}";
  message_check_round_trip(&masked); /* or trained on in none of its tokens */
}

static void a_batch_of_a_million_tokens_passes_quickly(void **state) {
  (void)state;
  enum { GROUPS = 16, SAMPLES = 8, TOKENS = 8192 };
  int32_t *tokens = calloc(TOKENS, sizeof *tokens);
  for (int i = 0; i < TOKENS; i++) tokens[i] = i * 37 % 151936;
  struct sample_segment segment = {0, TOKENS - 64, true};
  struct batch_sample samples[SAMPLES];
  char ids[SAMPLES][16], group_ids[GROUPS][16];
  struct batch_group groups[GROUPS];
  for (int i = 0; i < SAMPLES; i++) {
    snprintf(ids[i], sizeof ids[i], "s%d", i);
    samples[i] = (struct batch_sample){.id = ids[i],
                                       .tokens = {tokens, TOKENS},
                                       .prompt_length = 64,
                                       .segments = &segment,
                                       .segment_count = 1,
                                       .advantage = 1};
  }
  for (int i = 0; i < GROUPS; i++) {
    snprintf(group_ids[i], sizeof group_ids[i], "g%d", i);
    groups[i] = (struct batch_group){.id = group_ids[i], .samples = samples, .sample_count = SAMPLES};
  }
  struct submit_batch in = {.batch_id = "b", .run = "r", .groups = groups, .group_count = GROUPS}, m;
  struct buf out = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct json *root;
  struct err err = {0};
  const clock_t begun = clock();
  submit_batch_encode(&in, &out);
  assert_int_equal(json_parse(&root, out.data, out.len, LIMIT_BATCH_BODY_BYTES, &err), RC_OK);
  assert_int_equal(submit_batch_decode(&m, root, &arena, &err), RC_OK);
  const double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
  print_message("%d tokens, %zu bytes: %.3f s\n", GROUPS * SAMPLES * TOKENS, out.len, seconds);
  assert_true(seconds < 5); /* processor time; some 0.2 s where it was written */
  assert_memory_equal(m.groups[GROUPS - 1].samples[SAMPLES - 1].tokens.items, tokens, TOKENS * sizeof *tokens);
  json_free(root);
  buf_free(&out);
  arena_free(&arena);
  free(tokens);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_message_reads_back_as_it_was_written),
      cmocka_unit_test(every_spoilt_member_is_refused),
      cmocka_unit_test(a_training_configuration_is_read_over_defaults),
      cmocka_unit_test(a_training_configuration_is_bounded),
      cmocka_unit_test(a_cut_goes_with_every_update_rule),
      cmocka_unit_test(a_cap_goes_with_tis_alone),
      cmocka_unit_test(a_strict_run_is_written_as_ever),
      cmocka_unit_test(minibatches_need_a_behaviour_policy),
      cmocka_unit_test(inflight_runs_need_a_behaviour_policy),
      cmocka_unit_test(behaviour_is_one_log_probability_for_each_trained_token),
      cmocka_unit_test(a_group_brings_its_whole_reference_or_none),
      cmocka_unit_test(an_inner_step_is_not_announced),
      cmocka_unit_test(an_inner_step_has_groups_and_makes_no_version),
      cmocka_unit_test(sums_that_are_not_finite_differ_from_none),
      cmocka_unit_test(the_recorded_version_is_optional),
      cmocka_unit_test(a_start_is_a_word_or_a_checkpoint_or_left_out),
      cmocka_unit_test(an_evaluating_run_may_be_greedy),
      cmocka_unit_test(a_batch_must_add_up),
      cmocka_unit_test(states_errors_and_results_belong_together),
      cmocka_unit_test(what_is_not_finite_arrives_as_nan),
      cmocka_unit_test(an_error_keeps_code_sentence_and_field),
      cmocka_unit_test(a_step_names_its_groups_once_and_divides_by_what_is_trained_on),
      cmocka_unit_test(a_batch_of_a_million_tokens_passes_quickly),
  };
  return cmocka_run_group_tests_name("wire: training", tests, NULL, NULL);
}
