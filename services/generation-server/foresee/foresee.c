/* Loads the model as the server would, and tells how far that went. */
#include "services/generation-server/foresee/foresee.h"

#include "common/http/check_machine.h"
#include "common/client/foresight.h"
#include "common/threads/pool.h"
#include "services/generation-server/engine/loaded_model.h"
#include "services/generation-server/foresee/measure.h"

struct foreseen {
  struct foresight_request request;
  struct model_foresight model;
  struct err start, unmeasured; /* rc RC_OK: nothing stands in the way */
  struct sampling_pace pace;
};

static void pace_write(const struct foreseen *f, struct json_writer *w) {
  const struct sampling_pace *p = &f->pace;
  if (p->step_count == 0) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_key(w, "steps");
  json_array_begin(w);
  for (int i = 0; i < p->step_count; i++) {
    json_object_begin(w);
    json_kv_int(w, "slot", p->steps[i].slot);
    json_kv_int(w, "steps", p->steps[i].steps);
    json_kv_int(w, "rows", p->steps[i].rows);
    json_kv_int(w, "us", p->steps[i].us);
    json_object_end(w);
  }
  json_array_end(w);
  json_kv_f64(w, "prompt_us_per_token", p->prompt_us_per_token);
  json_kv_int(w, "position", p->position);
  json_object_end(w);
}

static void model_write(const struct foreseen *f, const struct loaded_model_options *asked, struct json_writer *w) {
  const struct model_foresight *m = &f->model;
  json_kv_u64(w, "parameters", m->parameters);
  json_kv_int(w, "context_max", m->context_max);
  json_kv_string(w, "kernels", m->kernels);
  json_kv_int(w, "threads", asked->threads);
  json_kv_int(w, "slots", asked->slots);
  json_kv_int(w, "kv_pages", m->pages);
  json_key(w, "memory");
  memory_report_write(&m->plan, &m->room, &f->start, w);
}

static enum rc answer(const struct foreseen *f, const struct loaded_model_options *options,
                      const struct program *program, struct err *err) {
  struct buf out = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &out);
  json_object_begin(&w);
  check_machine_write(&w, program, NULL);
  foresight_reason_write(&f->start, "start_refused", &w);
  if (f->model.parameters > 0) model_write(f, options, &w);
  json_key(&w, "pace");
  pace_write(f, &w);
  foresight_reason_write(&f->unmeasured, "pace_unknown", &w);
  json_object_end(&w);
  return foresight_print(&out, err);
}

enum rc foresee(const struct loaded_model_options *options, const char *model_dir, const struct program *program,
                const char *request, struct err *err) {
  struct foreseen f = {0};
  struct model_files files = {0};
  struct json *root;
  enum rc rc = foresight_request_read(&f.request, &root, request, err);
  if (rc == RC_OK) {
    pool_enter();
    enum rc there = model_config_load(&files.config, model_dir, &f.start);
    if (there == RC_OK) there = loaded_model_foresee(&f.model, options, &files, &f.start);
    if (there == RC_OK && f.request.measure_ms > 0)
      sampling_measure(&f.pace, options, &files, model_dir, &f.request, &f.unmeasured);
    rc = answer(&f, options, program, err);
  }
  json_free(root);
  return rc;
}
