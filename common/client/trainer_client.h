/* Typed calls to a trainer-server, for the coordinator and for generation-servers that pull. */
#ifndef LEASEHOLD_CLIENT_TRAINER_CLIENT_H
#define LEASEHOLD_CLIENT_TRAINER_CLIENT_H

#include "common/http/client.h"
#include "common/wire/training.h"

struct trainer_client {
  struct http_client *http;
  const char *base_url;
};

enum rc trainer_open_run(const struct trainer_client *c, const struct open_run *m, struct open_run_answer *out,
                         struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc trainer_ask_run(const struct trainer_client *c, const struct check_run *m, struct check_run_answer *out,
                        struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc trainer_submit_batch(const struct trainer_client *c, const struct submit_batch *m, int64_t deadline_ms,
                             struct err *err);
enum rc trainer_batch_status(const struct trainer_client *c, const char *batch_id, int32_t wait_ms, int numbers,
                             struct batch_status *out, struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc trainer_submit_step(const struct trainer_client *c, const struct submit_step *m, int64_t deadline_ms,
                            struct err *err);
enum rc trainer_step_status(const struct trainer_client *c, const char *step_id, int32_t wait_ms,
                            struct step_status *out, struct arena *arena, int64_t deadline_ms, struct err *err);
/* A model file ("config.json", "tokenizer.json", "generation_config.json") into out. RC_NOT_FOUND when the model has
 * none. */
enum rc trainer_model_file(const struct trainer_client *c, const char *name, struct buf *out, int64_t deadline_ms,
                           struct err *err);
/* The safetensors bytes of a version. */
enum rc trainer_weights(const struct trainer_client *c, const char *run, int64_t version, size_t bytes_max,
                        struct buf *out, int64_t deadline_ms, struct err *err);

#endif
