/* Looks for samples, from the newest to the oldest, and writes those that fit. */
#include "services/coordinator/views/sample_view.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "common/base/utf8.h"
#include "common/wire/lease.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/views/round_view.h"

enum { S_ROUND, S_GROUP, S_SAMPLE, S_TOKENS, S_FINISH, S_REWARD, S_ADVANTAGE, S_FORMED, S_VERSION, S_WORKER };
enum { T_PURPOSE, T_STATE, T_PROMPT, T_TEXT };

/* What the sample's own row tells. */
static bool row_fits(const struct rows *q, const struct sample_query *query) {
  const double reward = rows_null(q, S_REWARD) ? NAN : rows_real(q, S_REWARD);
  if (!isnan(query->reward_min) && !(reward >= query->reward_min)) return false;
  if (!isnan(query->reward_max) && !(reward <= query->reward_max)) return false;
  if (rows_int(q, S_TOKENS) < query->tokens_min) return false;
  return !query->finish || strcmp(query->finish, finish_reason_name((enum finish_reason)rows_int(q, S_FINISH))) == 0;
}

static bool text_has(const char *text, size_t len, const char *part) {
  const size_t n = strlen(part);
  for (size_t i = 0; i + n <= len; i++)
    if (strncasecmp(text + i, part, n) == 0) return true;
  return false;
}

static void text_write(struct json_writer *w, const char *key, const char *text, size_t len) {
  json_key(w, key);
  json_write_string_len(w, text, len > SAMPLE_TEXT_SHOWN ? utf8_cut(text, SAMPLE_TEXT_SHOWN) : len);
}

/* What its group and its rollout tell; written when that fits too. */
static enum rc sample_consider(struct store *s, struct json_writer *w, const struct rows *q,
                               const struct sample_query *query, bool *written, struct err *err) {
  struct rows t;
  bool row = false;
  const int64_t run = query->run, round = rows_int(q, S_ROUND), group = rows_int(q, S_GROUP),
                sample = rows_int(q, S_SAMPLE);
  *written = false;
  enum rc rc = store_query(s, &t, err,
                           "SELECT g.purpose, g.state, g.prompt, o.text FROM groups g JOIN rollouts o ON o.run = g.run "
                           "AND o.round = g.round AND o.group_ordinal = g.ordinal AND o.sample = ?4 WHERE g.run = ?1 "
                           "AND g.round = ?2 AND g.ordinal = ?3",
                           BINDS(b_int(run), b_int(round), b_int(group), b_int(sample)));
  if (rc == RC_OK) rc = rows_next(&t, &row, err);
  if (rc == RC_OK && row) {
    size_t prompt_len, text_len;
    const char *prompt = rows_text(&t, T_PROMPT, &prompt_len), *text = rows_text(&t, T_TEXT, &text_len);
    const char *purpose = lease_purpose_name((enum lease_purpose)rows_int(&t, T_PURPOSE));
    const char *state = state_name(MACHINE_GROUP, (int)rows_int(&t, T_STATE));
    *written = (!query->purpose || strcmp(query->purpose, purpose) == 0) &&
               (!query->group_state || strcmp(query->group_state, state) == 0) &&
               (!query->text || text_has(prompt, prompt_len, query->text) || text_has(text, text_len, query->text));
    if (*written) {
      json_object_begin(w);
      json_kv_string(w, "id", id_sample(run, round, group, sample).text);
      json_kv_string(w, "group", id_group(run, round, group).text);
      json_kv_int(w, "round", round);
      json_kv_int(w, "sample", sample);
      json_kv_string(w, "purpose", purpose);
      json_kv_string(w, "group_state", state);
      text_write(w, "prompt", prompt, prompt_len);
      text_write(w, "text", text, text_len);
      json_kv_int(w, "tokens", rows_int(q, S_TOKENS));
      json_kv_string(w, "finish", finish_reason_name((enum finish_reason)rows_int(q, S_FINISH)));
      json_kv_column_real(w, "reward", q, S_REWARD);
      json_kv_column_real(w, "advantage", q, S_ADVANTAGE);
      json_kv_bool(w, "well_formed", rows_int(q, S_FORMED) != 0);
      json_kv_column_int(w, "version", q, S_VERSION);
      json_kv_string(w, "worker", id_worker(rows_int(q, S_WORKER)).text);
      json_object_end(w);
    }
  }
  rows_end(&t);
  return rc;
}

enum rc samples_write(struct store *s, struct json_writer *w, const struct sample_query *query, int64_t limit,
                      struct sample_progress *progress, struct err *err) {
  struct rows q;
  bool row = false, written;
  int64_t rows = 0, texts = 0;
  *progress = (struct sample_progress){.until = query->before};
  enum rc rc = store_query(
      s, &q, err,
      "SELECT round, group_ordinal, sample, tokens, finish, " SQL_REWARD_OF("samples") ", advantage, well_formed, "
      "version_first, worker FROM samples WHERE run = ?1 AND (round, group_ordinal, sample) < (?2, ?3, ?4) AND round "
      ">= ?5 AND state = " SQL_SAMPLE_DONE " ORDER BY round DESC, group_ordinal DESC, sample DESC",
      BINDS(b_int(query->run), b_int(query->before.round), b_int(query->before.group), b_int(query->before.sample),
            b_int(query->round_min)));
  while (rc == RC_OK && rows < limit && progress->looked_at < SAMPLES_LOOKED_AT && texts < SAMPLE_TEXTS_LOOKED_AT &&
         (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    progress->looked_at++;
    progress->until = (struct sample_place){rows_int(&q, S_ROUND), rows_int(&q, S_GROUP), rows_int(&q, S_SAMPLE)};
    if (!row_fits(&q, query)) continue;
    rc = sample_consider(s, w, &q, query, &written, err);
    texts++;
    rows += rc == RC_OK && written;
  }
  if (rc == RC_OK && row) rc = rows_next(&q, &progress->more, err);
  rows_end(&q);
  return rc;
}
