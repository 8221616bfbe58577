/* Slices of lists and texts. */
#include "common/template/values/slice.h"

/* Python's slice.indices: where a slice of `count` items begins and ends. */
static enum rc slice_bounds(struct workspace *w, struct value from, struct value to, int64_t step, int64_t count,
                            int64_t *begin, int64_t *end) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
  const struct value given[2] = {from, to};
  int64_t bounds[2] = {step < 0 ? high : low, step < 0 ? low : high};
  for (int i = 0; i < 2; i++) {
    int64_t place;
    if (given[i].kind == VALUE_NONE) continue;
    if (!value_integer(given[i], &place))
      return work_fail(w, RC_INVALID, "expected integers in a slice, got %s", value_type(given[i]));
    if (place < 0) place = place < -count ? low : place + count;
    bounds[i] = place < low ? low : place > high ? high : place;
  }
  *begin = bounds[0];
  *end = bounds[1];
  return RC_OK;
}

static enum rc slice_list(struct workspace *w, const struct list *list, int64_t begin, int64_t end, int64_t step,
                          struct value *out) {
  struct list *slice = list_new(w, list->form, 0);
  enum rc rc = slice ? RC_OK : w->rc;
  for (int64_t i = begin; rc == RC_OK && (step > 0 ? i < end : i > end); i += step) {
    rc = work_charge(w, 0);
    if (rc == RC_OK) rc = list_append(w, slice, list->items[i]);
  }
  *out = value_list(slice);
  return rc;
}

static enum rc slice_text(struct workspace *w, const struct text *text, int64_t begin, int64_t end, int64_t step,
                          struct value *out) {
  enum rc rc = work_charge(w, 2 * text->len);
  if (rc == RC_OK && step == 1) {
    const size_t from = text_offset(text, (size_t)begin), to = text_offset(text, (size_t)end);
    return text_cut(w, text, from, to > from ? to : from, out);
  }
  struct list *characters;
  struct text_builder b = builder_begin(w);
  if (rc == RC_OK) rc = value_items(w, value_text(text), &characters);
  for (int64_t i = begin; rc == RC_OK && (step > 0 ? i < end : i > end); i += step)
    rc = builder_text(&b, characters->items[i].text);
  if (rc == RC_OK) return builder_finish(&b, out);
  builder_free(&b);
  return rc;
}

enum rc get_slice(struct workspace *w, struct value object, struct value from, struct value to, struct value step,
                  struct value *out) {
  int64_t begin = 0, end = 0, stride = 1;
  enum rc rc = value_check_defined(w, object);
  if (rc != RC_OK) return rc;
  if (object.kind != VALUE_TEXT && (object.kind != VALUE_LIST || object.list->form > FORM_RANGE))
    return work_fail(w, RC_INVALID, "expected a list or a text to slice, got %s", value_type(object));
  if (step.kind != VALUE_NONE && (!value_integer(step, &stride) || stride == 0))
    return work_fail(w, RC_INVALID, "expected a slice's step to be an integer, and not 0");
  const int64_t count = object.kind == VALUE_LIST ? (int64_t)object.list->count : (int64_t)text_characters(object.text);
  if (stride > count + 1) stride = count + 1;
  if (stride < -count - 1) stride = -count - 1;
  rc = slice_bounds(w, from, to, stride, count, &begin, &end);
  if (rc != RC_OK) return rc;
  return object.kind == VALUE_LIST ? slice_list(w, object.list, begin, end, stride, out)
                                   : slice_text(w, object.text, begin, end, stride, out);
}
