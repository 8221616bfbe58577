/* The trainer's handlers, one file for every endpoint; context is struct trainer *. */
#ifndef LEASEHOLD_TRAINER_SERVER_API_HANDLERS_H
#define LEASEHOLD_TRAINER_SERVER_API_HANDLERS_H

#include "common/http/server.h"

void handle_open_run(struct http_request *r, void *context);       /* POST /v1/runs */
void handle_check_run(struct http_request *r, void *context);      /* POST /v1/check-run */
void handle_check_disk(struct http_request *r, void *context);     /* POST /v1/check-disk */
void handle_submit_batch(struct http_request *r, void *context);   /* POST /v1/submit-batch */
void handle_get_batch(struct http_request *r, void *context);      /* GET /v1/batches/{id} */
void handle_submit_step(struct http_request *r, void *context);    /* POST /v1/submit-step */
void handle_get_step(struct http_request *r, void *context);       /* GET /v1/steps/{id} */
void handle_get_weights(struct http_request *r, void *context);    /* GET /v1/weights/{version} */
void handle_get_model(struct http_request *r, void *context);      /* GET /v1/model */
void handle_get_model_file(struct http_request *r, void *context); /* GET /v1/model/files/{name} */
void handle_readyz(struct http_request *r, void *context);         /* GET /readyz */
void handle_metrics(struct http_request *r, void *context);        /* GET /metrics */

#endif
