/* Reads, resolves and writes how a dataset's lines are read; the presets are a table here. */
#include "services/coordinator/run/reading.h"

#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/run/key_path.h"

static const char *const extract_names[] = {
    [EXTRACT_NONE] = "none", [EXTRACT_HASHES] = "####", [EXTRACT_BOXED] = "boxed"};
static const char *const long_names[] = {"refuse", "skip"};

#define PATHS(...) \
  { {__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *) }

static const struct reading plain = {.preset = "",
                                     .prompt = PATHS("prompt", "messages"),
                                     .answer = PATHS("answer"),
                                     .completion = PATHS("completion"),
                                     .system = "",
                                     .template = ""};

/* The files that people have.  gsm8k: openai/gsm8k, as it is.  verl: what its preprocessing scripts write.  dapo:
 * DAPO-Math-17k, which is of verl's form, and the processed one, whose answer is in `solution`.  trl: the columns of
 * its GRPO and SFT examples; a text stays a text there.  slime: `--input-key prompt --label-key label
 * --apply-chat-template`. */
static const struct reading presets[] = {
    {.preset = "gsm8k",
     .prompt = PATHS("question"),
     .answer = PATHS("answer"),
     .completion = PATHS("answer"),
     .extract = EXTRACT_HASHES},
    {.preset = "dapo",
     .prompt = PATHS("prompt"),
     .answer = PATHS("reward_model.ground_truth", "solution", "label"),
     .completion = PATHS("completion"),
     .chat = true},
    {.preset = "verl",
     .prompt = PATHS("prompt"),
     .answer = PATHS("reward_model.ground_truth"),
     .completion = PATHS("response"),
     .chat = true},
    {.preset = "trl",
     .prompt = PATHS("prompt", "messages"),
     .answer = PATHS("solution", "ground_truth", "answer"),
     .completion = PATHS("completion")},
    {.preset = "slime",
     .prompt = PATHS("prompt", "input", "text"),
     .answer = PATHS("label"),
     .completion = PATHS("response"),
     .chat = true},
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

void reading_defaults(struct reading *r) { *r = plain; }

void reading_given_init(struct reading_given *g) { *g = (struct reading_given){.prompt_tokens_max = -1}; }

static enum rc preset_find(struct reading *r, const char *name, struct err *err) {
  const char *known[PRESETS];
  int index = 0;
  for (int i = 0; i < PRESETS; i++) known[i] = presets[i].preset;
  const enum rc rc = name_index(&index, name, known, PRESETS, "preset", err);
  if (rc != RC_OK) return rc;
  *r = presets[index];
  r->system = r->template = "";
  return RC_OK;
}

static enum rc one_path(const char **out, const struct json *v, struct arena *arena, struct err *err) {
  const char *text = json_word(v);
  if (!text) return err_set(err, RC_INVALID, NULL, "expected a path, got %s", json_type_name(json_type_of(v)));
  const enum rc rc = key_path_check(text, err);
  if (rc != RC_OK) return rc;
  *out = arena_strdup(arena, text);
  return *out ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "a path was refused memory");
}

/* A path, or an array of them. */
static enum rc read_paths(struct key_paths *out, const struct json *v, const char *name, struct arena *arena,
                          struct err *err) {
  if (!v || json_type_of(v) == JSON_NULL) return RC_OK;
  const bool list = json_type_of(v) == JSON_ARRAY;
  const size_t n = list ? json_length(v) : 1;
  enum rc rc = RC_OK;
  if (n < 1 || n > READING_PATHS_MAX)
    rc = err_set(err, RC_INVALID, NULL, "expected a path or 1 to %d of them, got %zu", READING_PATHS_MAX, n);
  for (size_t i = 0; i < n && rc == RC_OK; i++)
    rc = one_path(&out->items[i], list ? json_at(v, i) : v, arena, err);
  out->count = (int)n;
  if (rc != RC_OK) err_in_field(err, name);
  return rc;
}

static enum rc read_extra_paths(struct reading *r, const struct json *v, struct arena *arena, struct err *err) {
  const char *name;
  const struct json *path;
  enum rc rc = RC_OK;
  if (!v || json_type_of(v) == JSON_NULL) return RC_OK;
  r->extra_count = 0;
  if (json_type_of(v) != JSON_OBJECT || json_length(v) > READING_EXTRA_MAX)
    rc = err_set(err, RC_INVALID, NULL, "expected an object of at most %d names and paths", READING_EXTRA_MAX);
  for (void *cursor = NULL; rc == RC_OK && json_next(v, &cursor, &name, &path);) {
    const char *copy = arena_strdup(arena, name);
    rc = copy ? one_path(&r->extra[r->extra_count].path, path, arena, err)
              : err_set(err, RC_NO_MEMORY, NULL, "a name was refused memory");
    r->extra[r->extra_count++].name = copy;
  }
  if (rc != RC_OK) err_in_field(err, "extra");
  return rc;
}

static enum rc read_keys(struct reading *r, const struct json *v, struct arena *arena, struct err *err) {
  const struct json *prompt = NULL, *answer = NULL, *completion = NULL, *extra = NULL;
  const struct json_field fields[] = {{.name = "prompt", .kind = FIELD_VALUE, .target = &prompt},
                                      {.name = "answer", .kind = FIELD_VALUE, .target = &answer},
                                      {.name = "completion", .kind = FIELD_VALUE, .target = &completion},
                                      {.name = "extra", .kind = FIELD_VALUE, .target = &extra}};
  enum rc rc = json_fields(v, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = read_paths(&r->prompt, prompt, "prompt", arena, err);
  if (rc == RC_OK) rc = read_paths(&r->answer, answer, "answer", arena, err);
  if (rc == RC_OK) rc = read_paths(&r->completion, completion, "completion", arena, err);
  if (rc == RC_OK) rc = read_extra_paths(r, extra, arena, err);
  if (rc != RC_OK) err_in_field(err, "keys");
  return rc;
}

static enum rc template_check(const char *template, struct err *err) {
  const char *first = strstr(template, TEMPLATE_PROMPT);
  if (!template[0] || (first && !strstr(first + 1, TEMPLATE_PROMPT))) return RC_OK;
  return err_set(err, RC_INVALID, "template", "expected a text with %s exactly once, where the prompt goes",
                 TEMPLATE_PROMPT);
}

static bool given_anything(const struct reading_given *g) {
  return g->preset || g->extract || g->system || g->template || g->long_prompts || g->keys || g->has_chat ||
         g->prompt_tokens_max >= 0;
}

enum rc reading_resolve(struct reading *r, const struct reading_given *g, struct arena *arena, struct err *err) {
  if (!given_anything(g)) return RC_OK;
  int extract = 0, skips = 0;
  enum rc rc = RC_OK;
  reading_defaults(r);
  if (g->preset) rc = preset_find(r, g->preset, err);
  if (rc == RC_OK && g->keys) rc = read_keys(r, g->keys, arena, err);
  if (rc == RC_OK && g->extract) rc = name_index(&extract, g->extract, extract_names, 3, "extract", err);
  if (rc == RC_OK && g->long_prompts) rc = name_index(&skips, g->long_prompts, long_names, 2, "long_prompts", err);
  if (rc == RC_OK && g->template) rc = template_check(g->template, err);
  if (rc != RC_OK) return rc;
  r->named = true;
  r->skips_long = skips == 1;
  if (g->extract) r->extract = (enum answer_extract)extract;
  if (g->system) r->system = g->system;
  if (g->template) r->template = g->template;
  if (g->prompt_tokens_max >= 0) r->prompt_tokens_max = g->prompt_tokens_max;
  if (r->system[0]) r->chat = true;
  if (g->has_chat) r->chat = g->chat;
  if (r->system[0] && !r->chat)
    return err_set(err, RC_INVALID, "chat", "a system prompt needs messages: leave `chat` out, or `system`");
  return RC_OK;
}

static void write_paths(struct json_writer *w, const char *key, const struct key_paths *paths) {
  json_key(w, key);
  if (paths->count == 1) {
    json_write_string(w, paths->items[0]);
    return;
  }
  json_array_begin(w);
  for (int i = 0; i < paths->count; i++) json_write_string(w, paths->items[i]);
  json_array_end(w);
}

void reading_write(const struct reading *r, struct json_writer *w) {
  if (!r->named) return;
  if (r->preset[0]) json_kv_string(w, "preset", r->preset);
  json_key(w, "keys");
  json_object_begin(w);
  write_paths(w, "prompt", &r->prompt);
  write_paths(w, "answer", &r->answer);
  write_paths(w, "completion", &r->completion);
  if (r->extra_count) {
    json_key(w, "extra");
    json_object_begin(w);
    for (int i = 0; i < r->extra_count; i++) json_kv_string(w, r->extra[i].name, r->extra[i].path);
    json_object_end(w);
  }
  json_object_end(w);
  json_kv_string(w, "extract", extract_names[r->extract]);
  json_kv_bool(w, "chat", r->chat);
  json_kv_string(w, "system", r->system);
  json_kv_string(w, "template", r->template);
  json_kv_int(w, "prompt_tokens_max", r->prompt_tokens_max);
  json_kv_string(w, "long_prompts", long_names[r->skips_long]);
}

static bool has_one(const struct json *line, const struct key_paths *paths) {
  for (int i = 0; i < paths->count; i++)
    if (key_path_find(line, paths->items[i])) return true;
  return false;
}

const char *reading_suggest(const struct json *line) {
  for (int i = 0; i < PRESETS; i++)
    if (has_one(line, &presets[i].prompt) && has_one(line, &presets[i].answer)) return presets[i].preset;
  return NULL;
}
