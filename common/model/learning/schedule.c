/* Computes the learning rate as a pure function of the step: linear warm-up from lr / warmup, then constant, or down to
 * lr * lr_min_ratio at total_steps in a line or a half cosine, and that floor from there on. */
#include "common/model/learning/schedule.h"

#include <string.h>

#include "common/model/network/elementary.h"

double schedule_lr(const struct optimizer_config *config, int64_t step) {
  if (step < 1) step = 1;
  if (step <= config->warmup_steps) return config->lr * ((double)step / (double)config->warmup_steps);
  if (config->schedule == SCHEDULE_CONSTANT) return config->lr;
  const double span = (double)config->total_steps - (double)config->warmup_steps;
  const double passed = (double)step - (double)config->warmup_steps;
  const double progress = span > 0 && passed < span ? passed / span : 1;
  const double pi = 0x1.921fb54442d18p+1;
  const double share = config->schedule == SCHEDULE_LINEAR ? 1 - progress : 0.5 * (1 + elementary_cos(pi * progress));
  return config->lr * (config->lr_min_ratio + (1 - config->lr_min_ratio) * share);
}

double schedule_kl_coefficient(double coefficient, double kl, double target, double samples, double horizon) {
  const double error = kl / target - 1, bounded = error > 0.2 ? 0.2 : error < -0.2 ? -0.2 : error;
  return coefficient * (1 + bounded * (samples < horizon ? samples / horizon : 1));
}

enum rc schedule_kind_parse(enum schedule_kind *out, const char *name, struct err *err) {
  static const char *const NAMES[] = {
      [SCHEDULE_CONSTANT] = "constant", [SCHEDULE_LINEAR] = "linear", [SCHEDULE_COSINE] = "cosine"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(name, NAMES[i]) != 0) continue;
    *out = (enum schedule_kind)i;
    return RC_OK;
  }
  return err_set(err, RC_INVALID, "schedule", "expected \"constant\", \"linear\" or \"cosine\", got \"%s\"", name);
}
