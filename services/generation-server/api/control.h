/* Carries out orders of other engines' clients: rest, go on, take other weights.  route_vllm.c,
 * route_weights.c and route_sglang.c spell it.
 *
 * Under a coordinator all of them are refused: it alone says which weights decode, and a pause would let its leases
 * expire.  On HTTP threads of the pool; each wait has a deadline. */
#ifndef LEASEHOLD_GENERATION_SERVER_API_CONTROL_H
#define LEASEHOLD_GENERATION_SERVER_API_CONTROL_H

#include "services/generation-server/api/server_state.h"

/* The loaded model of a server that takes such orders; NULL and RC_CONFLICT or RC_UNAVAILABLE. */
struct loaded_model *control_model(struct server *s, struct err *err);
/* The engine has come to rest when this returns.  RC_TIMEOUT. */
enum rc control_pause(struct server *s, enum engine_pause mode, struct err *err);
/* The same once open requests have ended: the request is suspended, and `answer` replies then. */
enum rc control_pause_at_end(struct http_request *r, struct server *s,
                             void (*answer)(struct http_request *, enum rc, const struct policy *, const struct err *),
                             struct err *err);
enum rc control_resume(struct server *s, struct err *err);
/* The weights that decode are this version from now on.  RC_TIMEOUT. */
enum rc control_relabel(struct server *s, int64_t version, struct err *err);
/* Weights of a folder become what decodes, or their digest is computed; the request is suspended, and `answer` replies
 * once it is done. */
enum rc control_load(struct http_request *r, struct server *s, const struct staging_order *order, struct err *err);

/* A version's number in a client's spelling: an integer, or its decimal digits; v NULL: as it is. */
enum rc control_read_version(int64_t *out, const struct json *v, const char *field, struct err *err);
/* The active version as a decimal string, in `out`. */
enum { CONTROL_VERSION_MAX = 24 };
void control_version(char out[CONTROL_VERSION_MAX], struct loaded_model *loaded);

#endif
