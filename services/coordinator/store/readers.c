/* Lends read-only database connections, each in one snapshot. */
#include "services/coordinator/store/readers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { READERS_MAX = 32 };

struct readers {
  char *path;         /* NULL: */
  struct store *only; /* of a database in memory */
  pthread_mutex_t lock; /* guards idle, idle_count, taken */
  struct store *idle[READERS_MAX];
  int idle_count, taken;
};

enum rc readers_create(struct readers **out, const char *db_path, struct err *err) {
  struct readers *r = calloc(1, sizeof *r);
  if (r) r->path = strdup(db_path);
  if (!r || !r->path) {
    free(r);
    return err_set(err, RC_NO_MEMORY, NULL, "the pool of readers was refused memory");
  }
  pthread_mutex_init(&r->lock, NULL);
  *out = r;
  return RC_OK;
}

enum rc readers_create_of_one(struct readers **out, struct store *only, struct err *err) {
  struct readers *r = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the pool of readers was refused memory");
  pthread_mutex_init(&r->lock, NULL);
  r->only = only;
  *out = r;
  return RC_OK;
}

void readers_destroy(struct readers *r) {
  if (!r) return;
  for (int i = 0; i < r->idle_count; i++) store_close(r->idle[i]);
  pthread_mutex_destroy(&r->lock);
  free(r->path);
  free(r);
}

static void give(struct readers *r, struct store *s) {
  pthread_mutex_lock(&r->lock);
  if (s && s != r->only) r->idle[r->idle_count++] = s;
  r->taken--;
  pthread_mutex_unlock(&r->lock);
}

enum rc readers_take_newest(struct readers *r, struct store **out, struct err *err) {
  struct store *s = NULL;
  enum rc rc = RC_OK;
  *out = NULL;
  pthread_mutex_lock(&r->lock);
  if (r->taken == READERS_MAX)
    rc = err_set(err, RC_FULL, NULL, "%d requests are reading the database already; try again", READERS_MAX);
  else
    r->taken++;
  if (rc == RC_OK && r->idle_count) s = r->idle[--r->idle_count];
  pthread_mutex_unlock(&r->lock);
  if (rc != RC_OK) return rc;
  if (!s) s = r->only;
  if (!s) rc = store_open(&s, r->path, true, err);
  if (rc != RC_OK) give(r, NULL);
  *out = s;
  return rc;
}

enum rc readers_take(struct readers *r, struct store **out, struct err *err) {
  enum rc rc = readers_take_newest(r, out, err);
  if (rc != RC_OK) return rc;
  rc = store_exec(*out, err, "BEGIN", NO_BINDS);
  if (rc == RC_OK) return RC_OK;
  if (*out != r->only) store_close(*out);
  *out = NULL;
  give(r, NULL);
  return rc;
}

void readers_give(struct readers *r, struct store *s) {
  if (!s) return;
  if (store_in_transaction(s)) store_exec(s, NULL, "COMMIT", NO_BINDS);
  give(r, s);
}

bool readers_find(struct readers *r, const char *sql, const struct bind *binds, size_t count) {
  struct store *s;
  int64_t found;
  if (readers_take_newest(r, &s, NULL) != RC_OK) return true;
  const enum rc rc = store_int(s, &found, NULL, sql, binds, count);
  readers_give(r, s);
  return rc != RC_NOT_FOUND;
}
