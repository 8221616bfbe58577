/* Decides whether a prompt rests in an epoch; reads and writes `dataset.curriculum`. */
#include "services/coordinator/run/curriculum.h"

#include <string.h>

#include "common/base/limits.h"

#define REWARD_MAX 1e6

bool curriculum_rests(const struct curriculum_rule *rule, const struct curriculum_record *record, int64_t epoch) {
  if (record->samples == 0 || epoch > record->epoch + rule->rest_epochs) return false;
  const double rate = (double)record->passed / (double)record->samples;
  return rate < rule->rate_min || rate > rule->rate_max;
}

enum rc curriculum_config_read(struct curriculum_config *out, const struct json *v, struct arena *arena,
                               struct err *err) {
  *out = (struct curriculum_config){
      .rule = {.rate_min = 0, .rate_max = 1, .rest_epochs = 1}, .pass_reward = 1, .from = ""};
  if (!v || json_type_of(v) == JSON_NULL) return RC_OK;
  const struct json_field fields[] = {
      {.name = "rate_min", .kind = FIELD_F64, .target = &out->rule.rate_min, .min = 0, .max = 1},
      {.name = "rate_max", .kind = FIELD_F64, .target = &out->rule.rate_max, .min = 0, .max = 1},
      {.name = "pass_reward", .kind = FIELD_F64, .target = &out->pass_reward, .min = -REWARD_MAX, .max = REWARD_MAX},
      {.name = "rest_epochs", .kind = FIELD_I32, .target = &out->rule.rest_epochs, .min = 1, .max = 1000000},
      {.name = "from", .kind = FIELD_STRING, .target = &out->from, .min = 1, .max = LIMIT_NAME_MAX - 1}};
  enum rc rc = json_fields(v, fields, sizeof fields / sizeof *fields, UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK && out->rule.rate_min > out->rule.rate_max)
    rc = err_set(err, RC_INVALID, "rate_max", "expected at least rate_min (%g), got %g", out->rule.rate_min,
                 out->rule.rate_max);
  if (rc == RC_OK && out->rule.rate_min == 0 && out->rule.rate_max == 1)
    rc = err_set(err, RC_INVALID, "rate_max",
                 "expected rate_min above 0 or rate_max below 1: between 0 and 1 no prompt is passed over");
  out->given = rc == RC_OK;
  if (rc != RC_OK) err_in_field(err, "curriculum");
  return rc;
}

void curriculum_config_write(const struct curriculum_config *c, struct json_writer *w) {
  if (!c->given) return;
  json_key(w, "curriculum");
  json_object_begin(w);
  json_kv_f64(w, "rate_min", c->rule.rate_min);
  json_kv_f64(w, "rate_max", c->rule.rate_max);
  json_kv_f64(w, "pass_reward", c->pass_reward);
  json_kv_int(w, "rest_epochs", c->rule.rest_epochs);
  if (c->from[0]) json_kv_string(w, "from", c->from);
  json_object_end(w);
}
