/* The page: GET / is its document, GET /page/{file} everything that the document loads. */
#ifndef LEASEHOLD_COORDINATOR_API_ROUTE_PAGE_H
#define LEASEHOLD_COORDINATOR_API_ROUTE_PAGE_H

#include "common/http/handler.h"

void handle_get_page(struct http_request *r, void *context);
void handle_get_page_file(struct http_request *r, void *context);

#endif
