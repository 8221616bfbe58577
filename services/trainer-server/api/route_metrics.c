/* Answers GET /metrics: looks at the disk of the checkpoints, once the trainer is there, then writes all metrics. */
#include "common/base/machine.h"
#include "common/base/metrics.h"
#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/trainer.h"

void handle_metrics(struct http_request *r, void *context) {
  if (context)
    metric_set(
        metrics_register(METRIC_GAUGE, "leasehold_trainer_disk_free_bytes", "", "Room on the disk of the checkpoints"),
        machine_disk_free(trainer_state_dir(context)));
  http_handle_metrics(r, context);
}
