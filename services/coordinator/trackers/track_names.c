/* The table of names, and how a name is made of it. */
#include "services/coordinator/trackers/track_names.h"

#include <inttypes.h>
#include <string.h>

const struct track_name track_names[] = {
    {"reward_mean", "reward", "critic/score/mean", 1},
    {"samples.reward_min", NULL, "critic/score/min", 1},
    {"samples.reward_max", NULL, "critic/score/max", 1},
    {"samples.reward_std", "reward_std", NULL, 1},
    {"samples.zero_std_share", "frac_reward_zero_std", NULL, 1},
    {"samples.advantage_min", NULL, "critic/advantages/min", 1},
    {"samples.advantage_max", NULL, "critic/advantages/max", 1},
    {"samples.length_mean", "completions/mean_length", "response_length/mean", 1},
    {"samples.length_min", "completions/min_length", "response_length/min", 1},
    {"samples.length_max", "completions/max_length", "response_length/max", 1},
    {"samples.cut_share", "completions/clipped_ratio", "response_length/clip_ratio", 1},
    {"samples.ended_length_mean", "completions/mean_terminated_length", NULL, 1},
    {"samples.prompt_length_mean", NULL, "prompt_length/mean", 1},
    {"samples.prompt_length_max", NULL, "prompt_length/max", 1},
    {"samples.all_tokens", NULL, "perf/total_num_tokens", 1},
    {"well_formed_mean", NULL, NULL, 1},
    {"loss", "loss", "actor/loss", 1},
    {"entropy", "entropy", "actor/entropy", 1},
    {"reference.kl", "kl", "actor/kl_loss", 1},
    {"grad_norm", "grad_norm", "actor/grad_norm", 1},
    {"lr", "learning_rate", "actor/lr", 1},
    {"clip_fraction", "clip_ratio/region_mean", "actor/pg_clipfrac", 1},
    {"kl_new_old", NULL, "actor/ppo_kl", 1},
    {"ess", NULL, NULL, 1},
    {"logprob_mean_abs_diff", "sampling/sampling_logp_difference/mean", NULL, 1},
    {"logprob_max_abs_diff", "sampling/sampling_logp_difference/max", NULL, 1},
    {"logprob_kl_k1", NULL, "rollout_corr/kl", 1},
    {"logprob_kl_k3", NULL, "rollout_corr/k3_kl", 1},
    {"exact", NULL, NULL, 1},
    {"lag.min", NULL, NULL, 1},
    {"lag.mean", NULL, NULL, 1},
    {"lag.max", NULL, NULL, 1},
    {"groups", NULL, NULL, 1},
    {"filtered", NULL, NULL, 1},
    {"tokens", NULL, NULL, 1},
    {"window_ms", "step_time", "timing_s/step", 0.001},
    {"generate_ms", NULL, "timing_s/gen", 0.001},
    {"train_ms", NULL, "timing_s/update_actor", 0.001},
    {"trainer_waiting_ratio", NULL, NULL, 1},
};
const int track_name_count = sizeof track_names / sizeof track_names[0];

enum rc track_naming_parse(enum track_naming *out, const char *name, struct err *err) {
  static const char *const names[] = {[TRACK_TRL] = "trl", [TRACK_VERL] = "verl"};
  int i = 0;
  const enum rc rc = name_index(&i, name, names, 2, "track-names", err);
  if (rc == RC_OK) *out = (enum track_naming)i;
  return rc;
}

void track_name_write(struct buf *out, const struct track_name *n, enum track_naming naming) {
  const char *theirs = naming == TRACK_VERL ? n->verl : n->trl;
  if (theirs) {
    buf_puts(out, theirs);
    return;
  }
  const char *own = strncmp(n->figure, "samples.", 8) == 0 ? n->figure + 8 : n->figure;
  const size_t len = strlen(own), unit = len > 3 && strcmp(own + len - 3, "_ms") == 0 ? 3 : 0;
  buf_puts(out, "leasehold/");
  for (size_t i = 0; i < len - unit; i++) buf_append(out, own[i] == '.' ? "/" : own + i, 1);
  if (unit) buf_puts(out, "_seconds"); /* as its scale makes it */
}

void track_term_name(struct buf *out, const char *term, bool std, enum track_naming naming) {
  buf_printf(out, "%srewards/%s/%s", naming == TRACK_VERL ? "leasehold/" : "", term, std ? "std" : "mean");
}

static const char EVAL_TRL[] = "eval_", EVAL_VERL[] = "val-";

void track_evaluation_name(struct buf *out, const struct track_evaluation *e, enum track_evaluation_figure figure,
                           int64_t k, enum track_naming naming) {
  if (naming == TRACK_VERL) {
    const bool core = figure <= TRACK_EVAL_MAJORITY;
    buf_printf(out, "%s%s/%s/", EVAL_VERL, core ? "core" : "aux", e->set_always);
    if (figure == TRACK_EVAL_REWARD) buf_printf(out, "reward/mean@%" PRId64, e->samples_per_problem);
    if (figure == TRACK_EVAL_PASS) buf_printf(out, "acc/best@%" PRId64 "/mean", k);
    if (figure == TRACK_EVAL_MAJORITY) buf_printf(out, "acc/maj@%" PRId64 "/mean", e->samples_per_problem);
    if (figure == TRACK_EVAL_LENGTH) buf_printf(out, "response_length/mean@%" PRId64, e->samples_per_problem);
    if (figure == TRACK_EVAL_FORMED) buf_printf(out, "well_formed/mean@%" PRId64, e->samples_per_problem);
    return;
  }
  buf_puts(out, EVAL_TRL);
  if (e->set) buf_printf(out, "%s_", e->set);
  if (figure == TRACK_EVAL_REWARD) buf_puts(out, "reward");
  if (figure == TRACK_EVAL_PASS) buf_printf(out, "pass@%" PRId64, k);
  if (figure == TRACK_EVAL_MAJORITY) buf_puts(out, "majority");
  if (figure == TRACK_EVAL_LENGTH) buf_puts(out, "completions/mean_length");
  if (figure == TRACK_EVAL_FORMED) buf_puts(out, "well_formed");
}

static bool begins(const char *name, size_t len, const char *with) {
  return len >= strlen(with) && memcmp(name, with, strlen(with)) == 0;
}

bool track_name_evaluates(const char *name, size_t len) {
  return begins(name, len, EVAL_TRL) || begins(name, len, EVAL_VERL);
}
