/* Says how much room a sample has, and refuses prompts that leave none.
 *
 * Previous hop of a plain request: generate_call.c and chat_prompt.c.  Next: the client. */
#include "services/generation-server/requests/room.h"

int64_t room_of(const struct loaded_model *loaded) {
  const struct kv_cache *kv = engine_kv(loaded->engine);
  const int64_t pool = (int64_t)kv_pages_total(kv) * kv_page_tokens(kv), context = loaded->model->context_max;
  return pool < context ? pool : context;
}

enum rc room_refuse(const struct loaded_model *loaded, const char *field, const char *why, struct err *err) {
  return err_set(err, RC_TOO_LARGE, field,
                 "This model's maximum context length is %lld tokens. However, the prompt is too long: %.800s. Please "
                 "reduce the length of the prompt.",
                 (long long)room_of(loaded), why);
}
