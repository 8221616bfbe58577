/* Names of other trainers, and ours: see the header. */
#include "services/coordinator/run/other_names.h"

#include <string.h>

#define ROUNDS  "`rounds`, each of groups_per_round prompts,"
#define PROMPTS "`groups_per_round`, which counts prompts, and `samples_per_group`"
#define ONCE    "no field, as a group is trained on once (`update: minibatch` takes several steps a round),"
#define CLIPS   "`training.clip_low` and `training.clip_high`"
#define WARMUP  "`training.warmup_steps`, a number of steps,"
#define GROUPED "a group of verl's fields, which have other names"

static const struct {
  const char *theirs, *ours;
  bool above; /* one of `training` or `sampling` has this name, so it is told only where it stands beside them */
} NAMES[] = {
    {"lr", "`training.lr`", true},
    {"kl_coefficient", "`training.kl_coefficient`", true},
    {"temperature", "`sampling.temperature`", true},
    {"top_p", "`sampling.top_p`", true},
    {"top_k", "`sampling.top_k`", true},
    {"max_new_tokens", "`sampling.max_new_tokens`", true},
    {"learning_rate", "`training.lr`", false},
    {"actor_learning_rate", "`training.lr`", false},
    {"lr_scheduler_type", "`training.schedule`", false},
    {"lr_scheduler", "`training.schedule`", false},
    {"warmup_ratio", WARMUP, false},
    {"lr_warmup_ratio", WARMUP, false},
    {"lr_warmup_steps", "`training.warmup_steps`", false},
    {"adam_beta1", "`training.beta1`", false},
    {"adam_beta2", "`training.beta2`", false},
    {"adam_betas", "`training.beta1` and `training.beta2`", false},
    {"adam_epsilon", "`training.eps`", false},
    {"l2", "`training.weight_decay`", false},
    {"max_grad_norm", "`training.clip_norm`", false},
    {"grad_clip", "`training.clip_norm`", false},
    {"max_norm", "`training.clip_norm`", false},
    {"beta", "`training.kl_coefficient`", false},
    {"kl_coef", "`training.kl_coefficient`", false},
    {"kl_loss_coef", "`training.kl_coefficient`", false},
    {"init_kl_coef", "`training.kl_coefficient`", false},
    {"kl_loss_type", "`training.kl_estimator`", false},
    {"use_kl_loss", "`training.kl_in`, loss or reward,", false},
    {"epsilon", CLIPS, false},
    {"clip_ratio", CLIPS, false},
    {"eps_clip", CLIPS, false},
    {"eps_clip_low_high", CLIPS, false},
    {"clip_ratio_low", "`training.clip_low`", false},
    {"clip_ratio_high", "`training.clip_high`", false},
    {"epsilon_high", "`training.clip_high`", false},
    {"entropy_coeff", "`training.entropy_coefficient`", false},
    {"entropy_loss_coef", "`training.entropy_coefficient`", false},
    {"loss_type", "`recipe`, or `training.objective` and `training.normalization`", false},
    {"policy_loss_type", "`recipe`, or `training.objective`", false},
    {"loss_agg_mode", "`training.normalization`", false},
    {"ref_model_sync_steps", "`training.reference_every`", false},
    {"scale_rewards", "`advantage.kind`, group or group_centered,", false},
    {"adv_estimator", "`recipe`, or `advantage.kind`", false},
    {"advantage_estimator", "`recipe`, or `advantage.kind`", false},
    {"mask_truncated_completions", "`mask_truncated`", false},
    {"filter_groups", "`filter.zero_advantage`", false},
    {"dynamic_filtering", "`filter.zero_advantage`", false},
    {"num_generations", "`samples_per_group`", false},
    {"n_samples_per_prompt", "`samples_per_group`", false},
    {"n", "`samples_per_group`", false},
    {"max_completion_length", "`sampling.max_new_tokens`", false},
    {"max_response_length", "`sampling.max_new_tokens`", false},
    {"generate_max_len", "`sampling.max_new_tokens`", false},
    {"max_tokens", "`sampling.max_new_tokens`", false},
    {"max_prompt_length", "`dataset.prompt_tokens_max`", false},
    {"prompt_max_len", "`dataset.prompt_tokens_max`", false},
    {"train_dataset", "`dataset.path`", false},
    {"train_files", "`dataset.path`", false},
    {"prompt_data", "`dataset.path`", false},
    {"shuffle_dataset", "`dataset.shuffle`", false},
    {"input_key", "`dataset.keys.prompt`", false},
    {"label_key", "`dataset.keys.answer`", false},
    {"input_template", "`dataset.template`", false},
    {"apply_chat_template", "`dataset.chat`", false},
    {"reward_funcs", "`verifier`", false},
    {"custom_reward_function", "`verifier`", false},
    {"remote_rm_url", "`verifier.server.url`", false},
    {"reward_weights", "a `weight` in each of `verifier.terms`", false},
    {"per_device_train_batch_size", PROMPTS, false},
    {"gradient_accumulation_steps", PROMPTS, false},
    {"generation_batch_size", PROMPTS, false},
    {"rollout_batch_size", "`groups_per_round`", false},
    {"train_batch_size", "`groups_per_round`, or `groups_per_step` under `update: minibatch`", false},
    {"steps_per_generation", "`groups_per_step` under `update: minibatch`", false},
    {"ppo_mini_batch_size", "`groups_per_step` under `update: minibatch`", false},
    {"num_iterations", ONCE, false},
    {"ppo_epochs", ONCE, false},
    {"max_epochs", ONCE, false},
    {"max_steps", "`rounds`", false},
    {"total_training_steps", "`rounds`", false},
    {"num_train_epochs", ROUNDS, false},
    {"num_episodes", ROUNDS, false},
    {"total_epochs", ROUNDS, false},
    {"eval_dataset", "`evaluation.path`", false},
    {"eval_steps", "`evaluation.every_rounds`", false},
    {"test_freq", "`evaluation.every_rounds`", false},
    {"save_steps", "`training.checkpoint_every`", false},
    {"save_freq", "`training.checkpoint_every`", false},
    {"save_total_limit", "`keep_last`", false},
    {"resume_from_checkpoint", "`start`", false},
    {"run_name", "`name`", false},
    {"model", "the trainer-server's --model", false},
    {"model_name_or_path", "the trainer-server's --model", false},
    {"pretrain", "the trainer-server's --model", false},
    {"actor_rollout_ref", GROUPED, false},
    {"algorithm", GROUPED, false},
    {"data", GROUPED, false},
    {"trainer", GROUPED, false},
};
enum { NAME_COUNT = sizeof NAMES / sizeof *NAMES };

static enum rc refuse_in(const struct json *object, const char *parent, struct err *err) {
  const char *key;
  if (!object || json_type_of(object) != JSON_OBJECT) return RC_OK;
  for (void *cursor = NULL; json_next(object, &cursor, &key, NULL);) {
    for (int i = 0; i < NAME_COUNT; i++) {
      if (strcmp(key, NAMES[i].theirs) != 0 || (parent && NAMES[i].above)) continue;
      err_set(err, RC_INVALID, key,
              "unknown field; what other trainers call `%s` is %s here (deploy/recipes/other-trainers.md)", key,
              NAMES[i].ours);
      if (parent) err_in_field(err, parent);
      return RC_INVALID;
    }
  }
  return RC_OK;
}

enum rc other_names_refuse(const struct json *body, struct err *err) {
  static const char *const parents[] = {"training", "sampling"};
  enum rc rc = refuse_in(body, NULL, err);
  if (rc != RC_OK || json_type_of(body) != JSON_OBJECT) return rc;
  for (size_t i = 0; rc == RC_OK && i < sizeof parents / sizeof *parents; i++)
    rc = refuse_in(json_get(body, parents[i]), parents[i], err);
  return rc;
}
