/* Loads and checks datasets, and gives their order.  All text and ids of a dataset live in one arena; a bad line is
 * refused with its number, and then nothing is loaded. */
#include "services/coordinator/run/dataset.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/philox.h"
#include "services/coordinator/run/line_file.h"

#define DATASET_BYTES_MAX ((size_t)8 << 30)

struct part {
  int first, count; /* items */
  int left_out;
  int32_t weight;
};

struct dataset {
  struct arena arena;
  struct dataset_item *items;
  int count, cap, left_out;
  struct part parts[DATASET_PARTS_MAX];
  int part_count;
  int32_t weights; /* their sum; 0: no turns are taken */
  bool used_chatml;
};

struct loader {
  struct dataset *d;
  struct line_context line;
  int number; /* of the line, from 1 */
  bool keeps; /* else only checks */
  const struct dataset_watch *watch; /* NULL: none */
  int faults, faults_max;
};

static enum rc add_item(struct loader *l, const struct dataset_item *item, struct err *err) {
  struct dataset *d = l->d;
  if (!l->keeps) {
    d->count++;
    return RC_OK;
  }
  if (d->count == d->cap) {
    int cap = d->cap ? d->cap * 2 : 1024;
    struct dataset_item *grown = realloc(d->items, (size_t)cap * sizeof *grown);
    if (!grown) return err_set(err, RC_NO_MEMORY, NULL, "a dataset of %d lines was refused memory", cap);
    d->items = grown;
    d->cap = cap;
  }
  d->items[d->count++] = *item;
  return RC_OK;
}

static enum rc load_line(struct loader *l, const char *text, size_t len, struct err *err) {
  struct json *object = NULL;
  struct dataset_item item = {.line = l->number, .answer = "", .extra = "{}"};
  bool left_out = false;
  if (len > LIMIT_DATASET_LINE_BYTES)
    return err_set(err, RC_TOO_LARGE, NULL, "expected at most %u bytes, got %zu", LIMIT_DATASET_LINE_BYTES, len);
  enum rc rc = json_parse(&object, text, len, LIMIT_DATASET_LINE_BYTES, err);
  if (rc == RC_OK) rc = dataset_line_read(&l->line, object, &item, &left_out, err);
  if (rc == RC_OK && left_out) l->d->left_out++;
  if (rc == RC_OK && !left_out) rc = add_item(l, &item, err);
  json_free(object);
  if (!l->keeps) arena_free(&l->d->arena);
  return rc;
}

/* The first fault is the error; what others say is appended as far as there is room. */
static enum rc fault_add(struct loader *l, enum rc rc, const struct err *fault, struct err *err) {
  const struct dataset_options *o = l->line.options;
  char before[ERR_MESSAGE_MAX], told[ERR_FIELD_MAX + ERR_MESSAGE_MAX + 4];
  snprintf(told, sizeof told, "%s%s%s", fault->field, fault->field[0] ? ": " : "", fault->message);
  l->faults++;
  if (l->faults == 1) return err_set(err, rc, o->field, "%s line %d: %s", o->name, l->number, told);
  if (!err) return rc;
  memcpy(before, err->message, sizeof before);
  const char *earlier = strstr(before, told), after = earlier ? earlier[strlen(told)] : 'x';
  if (after == '\0' || after == ';') return err_set(err, err->rc, o->field, "%s; line %d: the same", before, l->number);
  return err_set(err, err->rc, o->field, "%s; line %d: %.100s", before, l->number, told);
}

static bool is_blank(const char *text, size_t len) { return strspn(text, " \t\r") >= len; }

/* Names the file of a fault that is no single line's. */
static enum rc in_file(const struct loader *l, enum rc rc, struct err *err) {
  if (rc != RC_OK && err && !err->field[0]) {
    err_in_file(err, l->line.options->name);
    err_in_field(err, l->line.options->field);
  }
  return rc;
}

static enum rc watch_ends(const struct loader *l, struct err *err) {
  const struct dataset_watch *w = l->watch;
  const char *name = l->line.options->name;
  if (!w || w->go_on(w->context, name, l->number)) return RC_OK;
  return err_set(err, RC_TIMEOUT, NULL, "the check of %s was ended after line %d", name, l->number);
}

static enum rc load_lines(struct loader *l, struct line_file *file, struct err *err) {
  const char *name = l->line.options->name, *field = l->line.options->field, *text;
  const int before = l->d->count;
  enum rc fault = RC_OK;
  size_t len = 0;
  for (;;) {
    enum rc rc = watch_ends(l, l->faults ? NULL : err);
    if (rc != RC_OK) return l->faults ? fault : rc;
    rc = line_file_next(file, &text, &len, l->faults ? NULL : err);
    if (rc != RC_OK) return l->faults ? fault : in_file(l, rc, err);
    if (!text) break;
    l->number++;
    if (len <= LIMIT_DATASET_LINE_BYTES && is_blank(text, len)) continue;
    if (l->d->count >= LIMIT_DATASET_LINES)
      return err_set(err, RC_TOO_LARGE, field, "%s: expected at most %d lines", name, LIMIT_DATASET_LINES);
    struct err inner = {0};
    rc = load_line(l, text, len, &inner);
    if (rc == RC_NO_MEMORY) return err_set(err, rc, field, "%s line %d: %s", name, l->number, inner.message);
    if (rc != RC_OK) fault = fault_add(l, rc, &inner, err);
    if (l->faults >= l->faults_max) return fault;
  }
  if (l->faults) return fault;
  if (l->d->count > before) return RC_OK;
  if (l->d->left_out)
    return err_set(err, RC_INVALID, field, "%s: every one of its %d prompts is longer than may be", name,
                   l->d->left_out);
  return err_set(err, RC_INVALID, field, "%s: expected at least one line, the file is empty", name);
}

static enum rc read_file(struct loader *l, const char *path, struct err *err) {
  struct line_file *file = NULL;
  struct reading plain;
  reading_defaults(&plain);
  l->line.reading = l->line.options->reading ? l->line.options->reading : &plain;
  l->line.arena = &l->d->arena;
  enum rc rc = in_file(l, line_file_open(&file, path, LIMIT_DATASET_LINE_BYTES, DATASET_BYTES_MAX, err), err);
  if (rc == RC_OK) rc = load_lines(l, file, err);
  line_file_close(file);
  token_ids_free(&l->line.scratch);
  l->d->used_chatml |= l->line.used_chatml;
  return rc;
}

enum rc dataset_load(struct dataset **out, const char *path, const struct tokenizer *t,
                     const struct dataset_options *options, struct err *err) {
  struct dataset *d = calloc(1, sizeof *d);
  if (!d) return err_set(err, RC_NO_MEMORY, NULL, "a dataset was refused memory");
  const enum rc rc = dataset_add(d, path, t, options, err);
  if (rc != RC_OK)
    dataset_free(d);
  else
    *out = d;
  return rc;
}

enum rc dataset_add(struct dataset *d, const char *path, const struct tokenizer *t,
                    const struct dataset_options *options, struct err *err) {
  struct loader l = {
      .d = d, .line = {.tokenizer = t, .options = options}, .keeps = true, .faults_max = 1};
  const int first = d->count, left_out = d->left_out;
  assert(d->part_count < DATASET_PARTS_MAX);
  const enum rc rc = read_file(&l, path, err);
  if (rc != RC_OK) return rc;
  d->parts[d->part_count++] =
      (struct part){.first = first, .count = d->count - first, .left_out = d->left_out - left_out};
  if (d->left_out > left_out)
    log_info("%s: %d lines are left out, %d prompts are used", options->name, d->left_out - left_out, d->count - first);
  return RC_OK;
}

void dataset_weigh(struct dataset *d, const int32_t *weights) {
  for (int i = 0; i < d->part_count; i++) {
    assert(weights[i] > 0 && weights[i] <= DATASET_WEIGHT_MAX);
    d->parts[i].weight = weights[i];
    d->weights += weights[i];
  }
}

enum rc dataset_check(const char *path, const struct tokenizer *t, const struct dataset_options *options,
                      const struct dataset_watch *watch, struct err *err) {
  struct dataset d = {0};
  struct loader l = {.d = &d,
                     .line = {.tokenizer = t, .options = options},
                     .watch = watch,
                     .faults_max = DATASET_FAULTS_SHOWN};
  const enum rc rc = read_file(&l, path, err);
  arena_free(&d.arena);
  return rc;
}

void dataset_free(struct dataset *d) {
  if (!d) return;
  arena_free(&d->arena);
  free(d->items);
  free(d);
}

bool dataset_used_chatml(const struct dataset *d) { return d->used_chatml; }

int dataset_count(const struct dataset *d) { return d->count; }

struct dataset_counts dataset_counts(const struct dataset *d) {
  return (struct dataset_counts){.prompts = d->count, .left_out = d->left_out};
}

struct dataset_counts dataset_file_counts(const struct dataset *d, int file) {
  assert(file >= 0 && file < d->part_count);
  return (struct dataset_counts){.prompts = d->parts[file].count, .left_out = d->parts[file].left_out};
}

const struct dataset_item *dataset_at(const struct dataset *d, int index) {
  assert(index >= 0 && index < d->count);
  return &d->items[index];
}

int dataset_part(const struct dataset *d, int index) {
  int part = 0;
  while (part + 1 < d->part_count && index >= d->parts[part + 1].first) part++;
  return part;
}

/* ---- order ---- */

/* Every part, and the turns, are shuffled by their own seed; the first part by the run's, like a dataset without
 * parts. */
static uint64_t seed_of(uint64_t seed, int part) { return seed + (uint64_t)part * 0x9E3779B97F4A7C15u; }

/* Without turns all lines are one part. */
static struct part part_of(const struct dataset *d, int part) {
  return d->weights ? d->parts[part] : (struct part){.count = d->count};
}

static struct dataset_place within_part(const struct dataset *d, struct dataset_order *order, int part,
                                        int64_t ordinal) {
  const struct part p = part_of(d, part);
  struct shuffled *lines = &order->parts[part];
  const int64_t epoch = ordinal / p.count;
  const int within = (int)(ordinal % p.count);
  if (!order->shuffle) return (struct dataset_place){p.first + within, epoch};
  if (lines->epoch != epoch) {
    for (int i = 0; i < p.count; i++) lines->items[i] = (uint32_t)i;
    rng_shuffle(lines->items, (uint32_t)p.count, seed_of(order->seed, part), (uint32_t)epoch);
    lines->epoch = epoch;
  }
  return (struct dataset_place){p.first + (int)lines->items[within], epoch};
}

/* The parts take turns, as evenly as their weights allow: each place goes to the part that is furthest behind. */
static void turns_even(const struct dataset *d, uint32_t *turns) {
  int64_t behind[DATASET_PARTS_MAX] = {0};
  for (int32_t place = 0; place < d->weights; place++) {
    int next = 0;
    for (int i = 0; i < d->part_count; i++) {
      behind[i] += d->parts[i].weight;
      if (behind[i] > behind[next]) next = i;
    }
    behind[next] -= d->weights;
    turns[place] = (uint32_t)next;
  }
}

/* Which part goes at every place of one cycle of sum-of-weights prompts, and how many of the part's went before it in
 * the cycle: part + DATASET_PARTS_MAX * before. */
static void turns_make(const struct dataset *d, struct dataset_order *order, int64_t cycle) {
  uint32_t before[DATASET_PARTS_MAX] = {0}, *turns = order->turns.items;
  turns_even(d, turns);
  if (order->shuffle)
    rng_shuffle(turns, (uint32_t)d->weights, seed_of(order->seed, DATASET_PARTS_MAX), (uint32_t)cycle);
  for (int32_t i = 0; i < d->weights; i++) {
    const uint32_t part = turns[i];
    turns[i] = part + DATASET_PARTS_MAX * before[part]++;
  }
  order->turns.epoch = cycle;
}

struct dataset_place dataset_place(const struct dataset *d, struct dataset_order *order, int64_t ordinal) {
  if (!d->weights) return within_part(d, order, 0, ordinal);
  const int64_t cycle = ordinal / d->weights;
  if (order->turns.epoch != cycle) turns_make(d, order, cycle);
  const uint32_t turn = order->turns.items[ordinal % d->weights];
  const int part = (int)(turn % DATASET_PARTS_MAX);
  return within_part(d, order, part, cycle * d->parts[part].weight + turn / DATASET_PARTS_MAX);
}

int dataset_index(const struct dataset *d, struct dataset_order *order, int64_t ordinal) {
  return dataset_place(d, order, ordinal).index;
}

static bool shuffled_make(struct shuffled *s, int count) {
  *s = (struct shuffled){.items = malloc((size_t)count * sizeof *s->items), .epoch = -1};
  return s->items != NULL;
}

enum rc dataset_order_make(struct dataset_order *out, const struct dataset *d, bool shuffle, uint64_t seed,
                           struct err *err) {
  const int parts = !shuffle ? 0 : d->weights ? d->part_count : 1;
  struct dataset_order order = {.shuffle = shuffle, .seed = seed};
  bool made = !d->weights || shuffled_make(&order.turns, d->weights);
  for (int i = 0; i < parts && made; i++) made = shuffled_make(&order.parts[i], part_of(d, i).count);
  if (!made) {
    dataset_order_free(&order);
    return err_set(err, RC_NO_MEMORY, NULL, "the order of %d prompts was refused its memory", d->count);
  }
  *out = order;
  return RC_OK;
}

void dataset_order_free(struct dataset_order *order) {
  for (int i = 0; i < DATASET_PARTS_MAX; i++) free(order->parts[i].items);
  free(order->turns.items);
  *order = (struct dataset_order){0};
}
