/* Reads tokens, judges those that callers present, and reads them again when their files have changed. */
#include "common/http/trust/tokens.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/http/trust/roles.h"

enum { TOKEN_FILE_BYTES = LIMIT_TOKENS * (TOKEN_BYTES_MAX + LIMIT_NAME_MAX), FILE_ROLES = 4 };

static const struct {
  unsigned role;
  const char *name;
} ROLES[] = {{HTTP_ADMIN, "admin"}, {HTTP_WORKER, "worker"}, {HTTP_TRAINER, "trainer"}, {HTTP_VIEWER, "viewer"},
             {HTTP_PUSH, "push"}};

struct token {
  struct digest digest, holder;
  unsigned roles;
};

/* What is known of the files: replaced as a whole. */
struct table {
  struct token tokens[LIMIT_TOKENS];
  int count;
  char shown[TOKEN_BYTES_MAX + 1]; /* "": none */
};

/* Which state of a file was read; all zero: there was none. */
struct stamp {
  dev_t device;
  ino_t inode;
  off_t size;
  struct timespec modified;
};

struct tokens {
  struct tokens_options options;
  bool wanted;
  pthread_mutex_t mutex; /* guards all below */
  struct table table;
  struct token own; /* roles 0: none */
  struct stamp stamps[FILE_ROLES];
  int64_t looked_ms;
  unsigned generation;
};

const char *token_role_name(unsigned role) {
  for (size_t i = 0; i < sizeof ROLES / sizeof ROLES[0]; i++)
    if (ROLES[i].role == role) return ROLES[i].name;
  return NULL;
}

/* --- reading --- */

static struct stamp stamp_of(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0) return (struct stamp){0};
  return (struct stamp){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
}

static bool same_stamp(const struct stamp *a, const struct stamp *b) {
  return a->device == b->device && a->inode == b->inode && a->size == b->size &&
         a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

static enum rc table_add(struct table *t, const struct token *token, struct err *err) {
  if (t->count == LIMIT_TOKENS)
    return err_set(err, RC_INVALID, "token-dir", "at most %d tokens were expected in all", LIMIT_TOKENS);
  t->tokens[t->count++] = *token;
  return RC_OK;
}

/* `line` is cut into words.  What it says is never shown: it may be a secret. */
static enum rc line_read(struct table *t, char *line, unsigned role, bool shown, const char *path, int number,
                         struct err *err) {
  static const char digest_mark[] = "sha256:";
  const char *blank = " \t\r";
  char *rest = NULL, *token = strtok_r(line, blank, &rest);
  if (token == NULL || token[0] == '#') return RC_OK;
  const char *holder = strtok_r(NULL, blank, &rest), *more = strtok_r(NULL, blank, &rest);
  const size_t len = strlen(token);
  const bool digest = strncmp(token, digest_mark, sizeof digest_mark - 1) == 0;
  struct token read = {.roles = role};
  if (digest ? !digest_from_hex(&read.digest, token + sizeof digest_mark - 1)
             : len < TOKEN_BYTES_MIN || len > TOKEN_BYTES_MAX || !ascii_visible(token))
    return err_set(err, RC_INVALID, "token-dir",
                   "%s, line %d: a token of %d to %d printable characters, or sha256: and 64 hexadecimal digits, was "
                   "expected; `openssl rand -hex 32` makes one",
                   path, number, TOKEN_BYTES_MIN, TOKEN_BYTES_MAX);
  if (more != NULL || (holder != NULL && strlen(holder) >= LIMIT_NAME_MAX))
    return err_set(err, RC_INVALID, "token-dir",
                   "%s, line %d: a token and the name of its holder were expected, not more", path, number);
  if (!digest) digest_of(&read.digest, token, len);
  read.holder = read.digest;
  if (holder != NULL) {
    struct digest_state s;
    digest_begin(&s);
    digest_update_text(&s, "holder");
    digest_update_text(&s, holder);
    digest_end(&read.holder, &s);
  }
  if (shown && !digest && t->shown[0] == '\0') memcpy(t->shown, token, len + 1);
  return table_add(t, &read, err);
}

static enum rc file_of_role(struct table *t, const char *path, unsigned role, bool shown, struct err *err) {
  struct buf text = BUF_INIT;
  enum rc rc = file_read(&text, path, TOKEN_FILE_BYTES, err);
  if (rc == RC_OK) {
    buf_append(&text, "\0", 1);
    rc = buf_check(&text, err);
  }
  if (rc == RC_OK && strlen(text.data) + 1 != text.len)
    rc = err_set(err, RC_INVALID, "token-dir", "%s: text was expected, but it has NUL bytes", path);
  int number = 1;
  for (char *line = text.data; rc == RC_OK && line != NULL; number++) {
    char *end = strchr(line, '\n');
    if (end != NULL) *end = '\0';
    rc = line_read(t, line, role, shown, path, number, err);
    line = end == NULL ? NULL : end + 1;
  }
  if (text.data != NULL) explicit_bzero(text.data, text.len);
  buf_free(&text);
  return rc;
}

static enum rc path_of_role(char path[LIMIT_PATH_MAX], const struct tokens *t, int i, struct err *err) {
  return path_format(path, err, "%s/%s", t->options.dir, ROLES[i].name);
}

static enum rc table_read(struct table *out, struct stamp stamps[FILE_ROLES], const struct tokens *t, struct err *err) {
  const char *all = t->options.all;
  enum rc rc = RC_OK;
  memset(out, 0, sizeof *out);
  const int files = t->options.dir != NULL ? FILE_ROLES : 0;
  char paths[FILE_ROLES][LIMIT_PATH_MAX];
  for (int i = 0; i < files && rc == RC_OK; i++) {
    rc = path_of_role(paths[i], t, i, err);
    if (rc == RC_OK) stamps[i] = stamp_of(paths[i]); /* before the bytes: what is written meanwhile is read next time */
  }
  for (int i = 0; i < files && rc == RC_OK; i++)
    if (stamps[i].inode != 0) rc = file_of_role(out, paths[i], ROLES[i].role, ROLES[i].role == t->options.shows, err);
  if (rc != RC_OK) return rc;
  if (t->options.dir != NULL && out->count == 0)
    return err_set(err, RC_INVALID, "token-dir",
                   "%s: a file admin, worker, trainer or viewer with a token was expected, none was found",
                   t->options.dir);
  if (all != NULL) {
    struct token token = {.roles = HTTP_ROLES_ALL};
    digest_of(&token.digest, all, strlen(all));
    token.holder = token.digest;
    rc = table_add(out, &token, err);
    if (out->shown[0] == '\0') memcpy(out->shown, all, strlen(all) + 1);
  }
  if (rc == RC_OK && t->options.shows != 0 && out->count > 0 && out->shown[0] == '\0')
    rc = err_set(err, RC_INVALID, "token-dir",
                 "%s/%s: a token was expected in this file, which this service shows to the others", t->options.dir,
                 token_role_name(t->options.shows));
  return rc;
}

/* mutex held */
static bool changed(const struct tokens *t) {
  for (int i = 0; i < FILE_ROLES; i++) {
    char path[LIMIT_PATH_MAX];
    if (path_of_role(path, t, i, NULL) != RC_OK) continue;
    const struct stamp now = stamp_of(path);
    if (!same_stamp(&now, &t->stamps[i])) return true;
  }
  return false;
}

static int64_t now_of(const struct tokens *t) {
  const struct clock *clock = t->options.clock ? t->options.clock : &clock_machine;
  return clock->monotonic_us(clock->context) / 1000;
}

/* mutex held */
static void look_again(struct tokens *t) {
  struct err err;
  const int64_t now_ms = now_of(t);
  if (t->options.dir == NULL || now_ms - t->looked_ms < TOKENS_LOOK_MS) return;
  t->looked_ms = now_ms;
  if (!changed(t)) return;
  struct table *read = malloc(sizeof *read);
  if (read == NULL) return; /* the next look finds the change again */
  if (table_read(read, t->stamps, t, &err) == RC_OK) {
    log_info("the tokens in %s have changed: %d are accepted", t->options.dir, read->count);
    t->table = *read;
    t->generation++;
  } else {
    log_error("the tokens in %s have changed, and those from before are kept: %s", t->options.dir, err.message);
  }
  explicit_bzero(read, sizeof *read);
  free(read);
}

enum rc tokens_open(struct tokens **out, const struct tokens_options *options, struct err *err) {
  *out = NULL;
  struct tokens *t = calloc(1, sizeof *t);
  if (t == NULL) return err_set(err, RC_NO_MEMORY, NULL, "the tokens were refused their memory");
  t->options = *options;
  if (options->all != NULL && options->all[0] == '\0') t->options.all = NULL;
  if (options->dir != NULL && options->dir[0] == '\0') t->options.dir = NULL;
  pthread_mutex_init(&t->mutex, NULL);
  enum rc rc = RC_OK;
  if (t->options.all != NULL && (strlen(t->options.all) > TOKEN_BYTES_MAX || !ascii_visible(t->options.all)))
    rc = err_set(err, RC_INVALID, "auth-token",
                 "--auth-token: at most %d printable characters without blanks were expected", TOKEN_BYTES_MAX);
  t->looked_ms = now_of(t);
  if (rc == RC_OK) rc = table_read(&t->table, t->stamps, t, err);
  t->wanted = t->table.count > 0;
  if (rc == RC_OK)
    *out = t;
  else
    tokens_close(t);
  return rc;
}

void tokens_close(struct tokens *t) {
  if (t == NULL) return;
  pthread_mutex_destroy(&t->mutex);
  explicit_bzero(t, sizeof *t);
  free(t);
}

/* --- asking --- */

bool tokens_wanted(const struct tokens *t) { return t->wanted; }

void tokens_add(struct tokens *t, const char *token, unsigned roles) {
  struct token own = {.roles = roles};
  digest_of(&own.digest, token, strlen(token));
  own.holder = own.digest;
  pthread_mutex_lock(&t->mutex);
  t->own = own;
  t->generation++;
  pthread_mutex_unlock(&t->mutex);
}

/* All tokens are looked at, whatever matches: the time tells nothing. */
static struct token_claim claim_of(struct tokens *t, const struct digest *digest) {
  struct token_claim claim = {0};
  pthread_mutex_lock(&t->mutex);
  look_again(t);
  for (int i = 0; i <= t->table.count; i++) {
    const struct token *token = i < t->table.count ? &t->table.tokens[i] : &t->own;
    if (!digest_same_secret(&token->digest, digest) || token->roles == 0) continue;
    if (claim.roles == 0) claim.holder = token->holder;
    claim.roles |= token->roles;
  }
  pthread_mutex_unlock(&t->mutex);
  return claim;
}

bool tokens_know(struct tokens *t, const char *presented, struct token_claim *out) {
  struct digest digest;
  digest_of(&digest, presented, strlen(presented));
  *out = claim_of(t, &digest);
  return out->roles != 0;
}

bool tokens_still(struct tokens *t, const struct digest *token, unsigned roles) {
  return (claim_of(t, token).roles & roles) != 0;
}

bool tokens_hold(struct tokens *t, const struct digest *holder) {
  bool found = false;
  pthread_mutex_lock(&t->mutex);
  look_again(t);
  for (int i = 0; i < t->table.count && !found; i++) found = digest_equal(&t->table.tokens[i].holder, holder);
  pthread_mutex_unlock(&t->mutex);
  return found;
}

bool tokens_shown(struct tokens *t, char *out) {
  pthread_mutex_lock(&t->mutex);
  look_again(t);
  memcpy(out, t->table.shown, strlen(t->table.shown) + 1);
  pthread_mutex_unlock(&t->mutex);
  return out[0] != '\0';
}

unsigned tokens_generation(struct tokens *t) {
  pthread_mutex_lock(&t->mutex);
  look_again(t);
  const unsigned generation = t->generation;
  pthread_mutex_unlock(&t->mutex);
  return generation;
}
