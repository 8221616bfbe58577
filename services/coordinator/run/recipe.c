/* Defines each recipe.  The formulas of the losses are in common/model/learning/loss.c, those of the advantages in
 * advantages.c.  A: advantage, w: ratio of the new policy to the behaviour policy, G: samples of a group, n: tokens of
 * a sample, L: sampling.max_new_tokens.
 *
 *   grpo                 DeepSeekMath, 2402.03300    A = (r - mean) / (std + eps); mean over a sample's tokens, then over samples, of
 *                                                    min(w A, clip(w) A) - 0.04 k3
 *   dr_grpo              2503.20783                  A = r - mean; sum over tokens / (samples L); no KL term
 *   dapo                 2503.14476                  grpo's A; mean over all tokens of the step; clip 0.2 and 0.28; no KL term; groups of
 *                                                    equal rewards are sampled anew; the last L/5 tokens cost up to 1
 *   (4096 of 20480)
 *   rloo                 2402.14740, TRL's default   A = R - mean of the others' R, R = r - 0.05 sum of k1 over the tokens; sum over
 *                        coefficient                 tokens / samples of the policy gradient
 *   reinforce++          2501.03262, OpenRLHF        A = r, standardized over the tokens of the round; clip; mean over all tokens
 *   reinforce++_baseline the same                    A = r - mean, then the same; k2 in the loss
 *   gspo                 2507.18071                  grpo's A; one ratio a sample, clip 3e-4 and 4e-4; no KL term
 *   cispo                2506.13585, ScaleRL's       grpo's A; the ratio, at most 5, a constant factor; mean over all tokens; no KL term
 *                        bound, 2510.13786
 *   sft                                              -mean over all tokens of the completions' log-probability
 *   distill              Thinking Machines 2025,     on-policy distillation: each token's advantage is log p(teacher) - log p,
 *                        "On-policy distillation"    which is k2's gradient; mean over all tokens; no rewards
 *
 * The form of reinforce++ with a KL term in its rewards is not here: it needs every sample's KL before the first
 * gradient.  ppo needs a critic. */
#include "services/coordinator/run/recipe.h"

#include <string.h>

static const struct recipe RECIPES[] = {
    {"grpo", "grpo", "sequences", 0.2, 0.2, ADVANTAGE_GROUP, 0.04, "k3", "loss", false, false, 0, 0, false},
    {"dr_grpo", "grpo", "length", 0.2, 0.2, ADVANTAGE_GROUP_CENTERED, 0, "k3", "loss", false, false, 0, 0, false},
    {"dapo", "grpo", "tokens", 0.2, 0.28, ADVANTAGE_GROUP, 0, "k3", "loss", false, true, 5, 0, false},
    {"rloo", "reinforce", "samples", 0.2, 4, ADVANTAGE_LEAVE_ONE_OUT, 0.05, "k1", "reward", false, false, 0, 0, false},
    {"reinforce++", "grpo", "tokens", 0.2, 0.2, ADVANTAGE_BATCH, 0, "k3", "loss", true, false, 0, 0, false},
    {"reinforce++_baseline", "grpo", "tokens", 0.2, 0.2, ADVANTAGE_BATCH_CENTERED, 0.001, "k2", "loss", true, false, 0,
     0, false},
    {"gspo", "gspo", "sequences", 3e-4, 4e-4, ADVANTAGE_GROUP, 0, "k3", "loss", false, false, 0, 0, false},
    {"cispo", "cispo", "tokens", 1, 4, ADVANTAGE_GROUP, 0, "k3", "loss", false, false, 0, 0, false},
    {"sft", "cross_entropy", "tokens", 0.2, 0.2, ADVANTAGE_GROUP, 0, "k3", "loss", false, false, 0, 2e-5, false},
    {"distill", "reinforce", "tokens", 0.2, 4, ADVANTAGE_GROUP_CENTERED, 1, "k2", "loss", false, false, 0, 0, true},
};
enum { RECIPE_COUNT = sizeof RECIPES / sizeof RECIPES[0] };

enum rc recipe_find(const struct recipe **out, const char *name, struct err *err) {
  const char *known[RECIPE_COUNT];
  int index;
  if (strcmp(name, "ppo") == 0)
    return err_set(
        err, RC_INVALID, "recipe",
        "recipe 'ppo' needs a critic, which Leasehold does not train: use recipe 'grpo', which was made to do "
        "without one, or training.objective 'ppo', its clip with the group's advantages");
  for (int i = 0; i < RECIPE_COUNT; i++) known[i] = RECIPES[i].name;
  const enum rc rc = name_index(&index, name, known, RECIPE_COUNT, "recipe", err);
  if (rc == RC_OK) *out = &RECIPES[index];
  return rc;
}
