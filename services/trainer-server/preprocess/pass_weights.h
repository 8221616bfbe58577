/* The weights that passes are computed with: version 0 of a run, pulled from its trainer and kept until a pass needs
 * others.  Their digest is computed from the kernels' memory and compared with the one that the pass names, so a result
 * says nothing about its weights that was not seen here.
 *
 * A teacher's are read from its folder instead, and stay: a pass under others is handed back.
 *
 *   pass --other digest--> GET {weights_from}/v1/weights/0 --fill, digest--> equal: kept | else: none are held
 *
 * Called by the preprocessor's thread only.  Memory: one set of weights for the kernels, without what a backward pass
 * needs; while they are pulled their file beside them. */
#ifndef LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_WEIGHTS_H
#define LEASEHOLD_TRAINER_SERVER_PREPROCESS_PASS_WEIGHTS_H

#include "common/http/client.h"
#include "common/model/network/model.h"
#include "common/wire/passes.h"

struct pass_weights {
  struct weights *weights;
  bool held;            /* they are a version's */
  struct digest digest; /* then: its */
};

enum rc pass_weights_create(struct pass_weights *w, const struct model *m, struct err *err);
void pass_weights_free(struct pass_weights *w);
bool pass_weights_are(const struct pass_weights *w, const struct digest *digest);
/* A teacher's: from its folder, once, and never others. */
enum rc pass_weights_load(struct pass_weights *w, const char *dir, struct err *err);
/* Pulls the pass's.  RC_INVALID: they are not this model's and never will be; other codes: not now. */
enum rc pass_weights_pull(struct pass_weights *w, const struct pass *pass, struct http_client *http, struct err *err);

#endif
