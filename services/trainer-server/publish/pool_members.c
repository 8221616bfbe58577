/* Chooses the members of a broadcast, and remembers which of them failed. */
#include "services/trainer-server/publish/pool_members.h"

#include <stdio.h>
#include <string.h>

static bool is_target(const char *worker_id, const struct push_target *targets, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(targets[i].worker_id, worker_id) == 0) return true;
  }
  return false;
}

static bool is_doubted(const struct pool_members *m, const char *worker_id) {
  for (size_t i = 0; i < m->doubted_count; i++) {
    if (strcmp(m->doubted[i], worker_id) == 0) return true;
  }
  return false;
}

/* A server that is not named any more need not be remembered. */
static void doubts_prune(struct pool_members *m, const struct push_target *targets, size_t count) {
  for (size_t i = 0; i < m->doubted_count;) {
    if (is_target(m->doubted[i], targets, count))
      i++;
    else
      memcpy(m->doubted[i], m->doubted[--m->doubted_count], sizeof m->doubted[i]);
  }
}

bool members_choose(struct pool_members *m, const struct push_target *targets, size_t count) {
  size_t chosen = 0;
  bool same = true;
  doubts_prune(m, targets, count);
  for (size_t i = 0; i < count && chosen < MEMBERS_MAX; i++) {
    const struct push_target *t = &targets[i];
    if (!t->shares_fabric || is_doubted(m, t->worker_id)) continue;
    struct pool_member *to = &m->members[chosen];
    same = same && to->place == t->fabric_place && strcmp(to->worker_id, t->worker_id) == 0;
    to->place = t->fabric_place;
    snprintf(to->worker_id, sizeof to->worker_id, "%s", t->worker_id);
    chosen++;
  }
  same = same && chosen == m->count;
  m->count = chosen;
  if (!same) m->rest = m->resting = 0;
  return same;
}

bool members_ready(struct pool_members *m) {
  if (m->count == 0) return false;
  if (m->resting == 0) return true;
  m->resting--;
  return false;
}

int members_index(const struct pool_members *m, const char *worker_id) {
  for (size_t i = 0; i < m->count; i++) {
    if (strcmp(m->members[i].worker_id, worker_id) == 0) return (int)i;
  }
  return -1;
}

void members_doubt(struct pool_members *m, const char *worker_id) {
  if (m->doubted_count == MEMBERS_MAX || is_doubted(m, worker_id)) return;
  snprintf(m->doubted[m->doubted_count++], LIMIT_NAME_MAX, "%s", worker_id);
}

void members_lost(struct pool_members *m) {
  m->rest = m->rest == 0 ? 1 : m->rest * 2;
  if (m->rest > MEMBERS_REST_MAX) m->rest = MEMBERS_REST_MAX;
  m->resting = m->rest;
}

void members_reached(struct pool_members *m) { m->rest = 0; }
