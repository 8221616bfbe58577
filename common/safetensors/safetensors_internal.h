/* Shared by the reader of a file and the reader of a folder; not for use outside common/safetensors. */
#ifndef LEASEHOLD_SAFETENSORS_SAFETENSORS_INTERNAL_H
#define LEASEHOLD_SAFETENSORS_SAFETENSORS_INTERNAL_H

#include "common/safetensors/safetensors.h"

/* One file; or the shards of a folder, and then map, data and header are each shard's own. */
struct st_file {
  void *map; /* what st_close unmaps, or NULL when the bytes are borrowed */
  size_t map_bytes;
  const unsigned char *data; /* the data section */
  size_t data_bytes;
  struct json *header; /* kept for the metadata's texts */
  struct st_tensor *tensors;
  size_t count;
  const struct st_tensor **by_name; /* [count] */
  struct st_file **shards;          /* [shard_count] in the order in which the index first names them */
  size_t shard_count;
};

/* Sorts by_name, which st_find searches. */
void st_sort_by_name(struct st_file *f);

#endif
