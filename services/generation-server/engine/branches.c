/* Keeps the tree of a job's samples: which sample follows which, and where it parted. */
#include "services/generation-server/engine/branches.h"

void branches_begin(struct decode_job *job) {
  struct sample *head = NULL;
  for (int32_t i = 0; i < job->sample_count; i++) {
    struct sample *s = &job->samples[i];
    if (!head && s->count == 0) head = s;
    s->head = s->count == 0 ? head : s;
    s->parted_from = NULL;
  }
}

/* Another sample that parted from `head` with the same token at the same place; NULL: s is the first. */
static struct sample *parted_likewise(const struct sample *s, const struct sample *head) {
  const int32_t at = s->count - 1;
  for (int32_t i = 0; i < s->job->sample_count; i++) {
    struct sample *o = &s->job->samples[i];
    if (o->head == o && o->parted_from == head && o->parted_at == at && o->tokens[at] == s->tokens[at]) return o;
  }
  return NULL;
}

/* A head that has not drawn this token yet parts from those that are further: what it will draw is not known. */
void branch_grow(struct sample *s) {
  struct sample *head = s->head;
  const int32_t at = s->count - 1;
  if (head == s || (head->count > at && head->tokens[at] == s->tokens[at])) return;
  struct sample *other = parted_likewise(s, head);
  s->head = other ? other : s;
  s->parted_from = head;
  s->parted_at = at;
}
