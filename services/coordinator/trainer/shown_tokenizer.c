/* Keeps the tokenizer of the trainer's model. */
#include "services/coordinator/trainer/shown_tokenizer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/client/trainer_client.h"
#include "services/coordinator/trainer/trainer_target.h"

enum { FETCH_MS = 5000 };

struct shown_tokenizer {
  int users;      /* the keeper among them */
  int64_t worker; /* whose model's: the incarnation */
  char url[LIMIT_URL_MAX];
  struct tokenizer *tokenizer;
};

static struct {
  pthread_mutex_t lock; /* guards the kept one and all counts of users */
  struct shown_tokenizer *kept;
} keeper = {.lock = PTHREAD_MUTEX_INITIALIZER};

const struct tokenizer *shown_tokenizer_get(const struct shown_tokenizer *s) { return s ? s->tokenizer : NULL; }

/* lock held */
static void drop(struct shown_tokenizer *s) {
  if (!s || --s->users > 0) return;
  tokenizer_free(s->tokenizer);
  free(s);
}

void shown_tokenizer_give(struct shown_tokenizer *s) {
  pthread_mutex_lock(&keeper.lock);
  drop(s);
  pthread_mutex_unlock(&keeper.lock);
}

static struct shown_tokenizer *kept_of(const struct trainer_target *trainer) {
  pthread_mutex_lock(&keeper.lock);
  struct shown_tokenizer *s = keeper.kept;
  if (s && (s->worker != trainer->worker || strcmp(s->url, trainer->url) != 0)) s = NULL;
  if (s) s->users++;
  pthread_mutex_unlock(&keeper.lock);
  return s;
}

/* The caller's, and from now on the kept one. */
static struct shown_tokenizer *keep(const struct trainer_target *trainer, struct tokenizer *tokenizer) {
  struct shown_tokenizer *s = calloc(1, sizeof *s);
  if (!s) {
    tokenizer_free(tokenizer);
    return NULL;
  }
  *s = (struct shown_tokenizer){.users = 2, .worker = trainer->worker, .tokenizer = tokenizer};
  memcpy(s->url, trainer->url, sizeof s->url);
  pthread_mutex_lock(&keeper.lock);
  drop(keeper.kept);
  keeper.kept = s;
  pthread_mutex_unlock(&keeper.lock);
  return s;
}

struct shown_tokenizer *shown_tokenizer_take(struct core *c) {
  struct trainer_target trainer = {0};
  struct http_client *http = NULL;
  struct tokenizer *tokenizer = NULL;
  struct buf json = BUF_INIT;
  if (trainer_target_now(core_readers(c), &trainer, NULL) != RC_OK || !trainer.found) return NULL;
  struct shown_tokenizer *s = kept_of(&trainer);
  if (s) return s;
  enum rc rc = http_client_create_for(&http, core_options(c)->access, NULL, NULL);
  if (rc == RC_OK) {
    const struct trainer_client client = {.http = http, .base_url = trainer.url};
    rc = trainer_model_file(&client, "tokenizer.json", &json, FETCH_MS, NULL);
  }
  if (rc == RC_OK) rc = tokenizer_parse(&tokenizer, json.data, json.len, NULL);
  http_client_destroy(http);
  buf_free(&json);
  return rc == RC_OK ? keep(&trainer, tokenizer) : NULL;
}
