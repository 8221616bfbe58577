/* POST /v1/check-disk: how fast the disk of the checkpoints is. */
#include "common/http/check_machine.h"
#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/trainer.h"

void handle_check_disk(struct http_request *r, void *context) { http_check_disk(r, trainer_state_dir(context)); }
