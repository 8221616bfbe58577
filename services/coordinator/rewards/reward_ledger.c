/* Reads what waits for reward servers. */
#include "services/coordinator/rewards/reward_ledger.h"

#include "services/coordinator/decide/stored.h"

int reward_part_order(const struct reward_part *a, const struct reward_part *b) {
  if (a->round != b->round) return a->round < b->round ? -1 : 1;
  if (a->group != b->group) return a->group < b->group ? -1 : 1;
  return (a->part > b->part) - (a->part < b->part);
}

enum rc reward_parts_read(struct readers *readers, int64_t run, int term, const struct http_term *t,
                          struct reward_part *out, int max, int *count, bool *running, struct err *err) {
  struct store *s = NULL;
  struct rows q;
  bool row;
  int64_t state = -1;
  *count = 0;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(s, &state, err, "SELECT state FROM runs WHERE id = ?1", BINDS(b_int(run)));
  *running = state == RUN_RUNNING;
  if (rc == RC_OK) {
    rc = store_query(
        s, &q, err,
        "SELECT r.round, r.group_ordinal, r.sample / ?3 AS part, (SELECT rewards_counted_ms FROM runs WHERE id "
        "= ?1) - g.rewards_since_ms FROM remote_rewards r INDEXED BY remote_rewards_waiting JOIN groups g ON "
        "g.run = r.run AND g.round = r.round AND g.ordinal = r.group_ordinal WHERE r.run = ?1 AND r.term = ?2 AND "
        "r.state = " SQL_REWARD_WAITING " AND g.samples_open = 0 AND g.state = " SQL_GROUP_OPEN
        " GROUP BY r.round, r.group_ordinal, part ORDER BY r.round, r.group_ordinal, part LIMIT ?4",
        BINDS(b_int(run), b_int(term), b_int(t->batch), b_int(max)));
    while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row)
      out[(*count)++] =
          (struct reward_part){rows_int(&q, 0), rows_int(&q, 1), (int32_t)rows_int(&q, 2), rows_int(&q, 3)};
    rows_end(&q);
  }
  readers_give(readers, s);
  return rc;
}

/* The line's members as its verifiers find them, `answer` among them. */
static const char *line_of(const char *answer, const char *extra, struct arena *arena) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  struct json *v = NULL;
  void *cursor = NULL;
  const char *key;
  const struct json *value;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_string(&w, "answer", answer);
  if (json_parse(&v, extra, strlen(extra), LIMIT_DATASET_LINE_BYTES, NULL) == RC_OK) {
    while (json_next(v, &cursor, &key, &value)) {
      if (strcmp(key, "answer") == 0) continue;
      json_key(&w, key);
      json_write_value(&w, value);
    }
  }
  json_free(v);
  json_object_end(&w);
  const char *out = text.failed ? NULL : arena_strndup(arena, text.data, text.len);
  buf_free(&text);
  return out;
}

static bool item_of_row(struct reward_item *item, const struct rows *q, enum reward_label label, struct arena *arena) {
  *item = (struct reward_item){.sample = (int32_t)rows_int(q, 0)};
  rows_digest(q, 1, &item->digest);
  const char *text = rows_blob(q, 2, &item->text_len);
  item->text = arena_strndup(arena, text ? text : "", item->text_len);
  text = rows_text(q, 3, &item->prompt_len);
  item->prompt = arena_strndup(arena, text, item->prompt_len);
  const char *answer = rows_text(q, 4, NULL);
  item->label = label == LABEL_LINE ? line_of(answer, rows_text(q, 5, NULL), arena) : arena_strdup(arena, answer);
  return item->text && item->prompt && item->label;
}

enum rc reward_items_read(struct readers *readers, int64_t run, int term, const struct http_term *t,
                          const struct reward_part *part, struct reward_item **out, int *count, struct arena *arena,
                          struct err *err) {
  struct store *s = NULL;
  struct rows q;
  bool row;
  *count = 0;
  *out = arena_alloc(arena, (size_t)t->batch, sizeof **out);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "a request to a reward server was refused memory");
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT r.sample, s.digest, o.text, g.prompt, g.answer, g.extra FROM remote_rewards r JOIN samples s ON "
      "s.run = r.run AND s.round = r.round AND s.group_ordinal = r.group_ordinal AND s.sample = r.sample JOIN "
      "rollouts o ON o.run = r.run AND o.round = r.round AND o.group_ordinal = r.group_ordinal AND o.sample = "
      "r.sample JOIN groups g ON g.run = r.run AND g.round = r.round AND g.ordinal = r.group_ordinal WHERE "
      "r.run = ?1 AND r.round = ?2 AND r.group_ordinal = ?3 AND r.sample >= ?4 AND r.sample < ?5 AND r.term = "
      "?6 AND r.state = " SQL_REWARD_WAITING " AND g.samples_open = 0 AND g.state = " SQL_GROUP_OPEN
      " ORDER BY r.sample",
      BINDS(b_int(run), b_int(part->round), b_int(part->group), b_int((int64_t)part->part * t->batch),
            b_int(((int64_t)part->part + 1) * t->batch), b_int(term)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row)
    if (!item_of_row(&(*out)[(*count)++], &q, t->label, arena))
      rc = err_set(err, RC_NO_MEMORY, NULL, "a request to a reward server was refused memory");
  rows_end(&q);
  readers_give(readers, s);
  return rc;
}
