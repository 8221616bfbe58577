/* Makes the table of operations on a CUDA device: checks the device, fills in each file's functions, reports its
 * status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/cuda/cuda_table.h"

extern "C" {
#include "common/model/cuda/ops_cuda.h"
}

enum { CAPABILITY_MIN = 8 }; /* sm_80: bf16 products, asynchronous copies to shared memory */

void cuda_fail(struct cuda_ops *c, enum rc rc, const char *what, const char *why) {
  if (c->failure.rc == RC_OK) err_set(&c->failure, rc, NULL, "%s: %s while %s", c->device_name, why, what);
}

bool cuda_check(struct cuda_ops *c, cudaError_t error, const char *what) {
  if (error == cudaSuccess) return true;
  char why[160];
  snprintf(why, sizeof why, "%s (%s)", cudaGetErrorName(error), cudaGetErrorString(error));
  cuda_fail(c, error == cudaErrorMemoryAllocation ? RC_NO_MEMORY : RC_INTERNAL, what, why);
  return false;
}

bool cuda_enter(struct cuda_ops *c) {
  return c->failure.rc == RC_OK && cuda_check(c, cudaSetDevice(c->device), "choosing the device");
}

static enum rc cuda_status(const struct ops *o, struct err *err) {
  struct cuda_ops *c = cuda_of(o);
  if (cuda_enter(c)) cuda_check(c, cudaStreamSynchronize(c->stream), "waiting for what was asked for");
  if (c->failure.rc != RC_OK && err) *err = c->failure;
  return c->failure.rc;
}

static void cuda_destroy(struct ops *o) {
  struct cuda_ops *c = cuda_of(o);
  (void)cudaSetDevice(c->device);
  graph_cache_close(c);
  vendor_close(c->vendor);
  cuda_memory_close(c);
  if (c->stream) (void)cudaStreamDestroy(c->stream);
  free(c);
}

static void fill_table(struct ops *o) {
  o->status = cuda_status;
  o->repeat_begin = cuda_repeat_begin;
  o->repeat_end = cuda_repeat_end;
  o->destroy = cuda_destroy;
  o->alloc = cuda_alloc;
  o->release = cuda_release;
  o->room = cuda_room;
  o->upload = cuda_upload;
  o->download = cuda_download;
  o->copy = cuda_copy;
  o->clear = cuda_clear;
  o->move_rows = cuda_move_rows;
  o->matrix_bytes = cuda_matrix_bytes;
  o->matrix_pack = cuda_matrix_pack;
  o->matrix_pack_transposed = cuda_matrix_pack_transposed;
  o->matrix_unpack_rows = cuda_matrix_unpack_rows;
  o->to_operand = cuda_to_operand;
  o->from_operand = cuda_from_operand;
  o->largest = cuda_largest;
  o->embed = cuda_embed;
  o->rmsnorm = cuda_rmsnorm;
  o->gemm = cuda_gemm;
  o->add_bias = cuda_add_bias;
  o->head_norm_rope = cuda_head_norm_rope;
  o->kv_write = cuda_kv_write;
  o->attention = cuda_attention;
  o->swiglu = cuda_swiglu;
  o->geglu = cuda_geglu;
  o->scale = cuda_scale;
  o->add_operand = cuda_add_operand;
  o->logprob = cuda_logprob;
  o->cut = cuda_cut;
  o->sample = cuda_sample;
  o->embed_backward = cuda_embed_backward;
  o->rmsnorm_backward = cuda_rmsnorm_backward;
  o->gemm_weight_backward = cuda_gemm_weight_backward;
  o->add_bias_backward = cuda_add_bias_backward;
  o->head_norm_rope_backward = cuda_head_norm_rope_backward;
  o->attention_backward = cuda_attention_backward;
  o->swiglu_backward = cuda_swiglu_backward;
  o->geglu_backward = cuda_geglu_backward;
  o->logprob_backward = cuda_logprob_backward;
  o->accumulate = cuda_accumulate;
  o->accumulate_and_clear = cuda_accumulate_and_clear;
  o->grad_from_accumulator = cuda_grad_from_accumulator;
  o->sum_of_squares = cuda_sum_of_squares;
  o->adamw = cuda_adamw;
}

static enum rc no_device(cudaError_t error, struct err *err) {
  return err_set(err, RC_UNSUPPORTED, "device", "CUDA finds no device here: %s", cudaGetErrorString(error));
}

enum rc ops_cuda_count(int *count, struct err *err) {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  return error == cudaSuccess && *count > 0 ? RC_OK : no_device(error == cudaSuccess ? cudaErrorNoDevice : error, err);
}

enum rc ops_cuda_identity(unsigned char out[DEVICE_IDENTITY_BYTES], int device, struct err *err) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return no_device(error, err);
  static_assert(sizeof properties.uuid == DEVICE_IDENTITY_BYTES, "a UUID has 16 bytes");
  memcpy(out, &properties.uuid, sizeof properties.uuid);
  return RC_OK;
}

enum rc ops_cuda_check(int device, struct err *err) {
  int count;
  cudaDeviceProp properties;
  const enum rc rc = ops_cuda_count(&count, err);
  if (rc != RC_OK) return rc;
  if (device >= count)
    return err_set(err, RC_UNSUPPORTED, "device",
                   "expected a device below %d, the machine's number of them, got cuda:%d", count, device);
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return no_device(error, err);
  if (properties.major < CAPABILITY_MIN)
    return err_set(err, RC_UNSUPPORTED, "device", "cuda:%d, %s, has compute capability %d.%d; expected %d.0 or above",
                   device, properties.name, properties.major, properties.minor, CAPABILITY_MIN);
  return RC_OK;
}

enum rc ops_cuda_create(struct ops **out, enum number_format format, int device, enum exactness exactness,
                        struct pool *pool, struct err *err) {
  *out = NULL;
  if (format != FORMAT_BF16)
    return err_set(err, RC_UNSUPPORTED, NULL, "the CUDA kernels compute with bf16 operands only");
  enum rc rc = ops_cuda_check(device, err);
  if (rc != RC_OK) return rc;
  struct cuda_ops *c = (struct cuda_ops *)calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the operation table needs %zu bytes, which were refused", sizeof *c);
  c->device = device;
  c->exactness = exactness;
  snprintf(c->device_name, sizeof c->device_name, "cuda:%d", device);
  fill_table(&c->ops);
  c->ops.name = exactness == EXACTNESS_FASTEST ? "cuda-fastest" : "cuda-invariant";
  c->ops.device = c->device_name;
  c->ops.format = format;
  c->ops.operand_bytes = sizeof(uint16_t);
  c->ops.pool = pool;
  c->ops.head_dim_max = CUDA_HEAD_DIM_MAX;
  c->ops.scratch_bytes = CUDA_SCRATCH_BYTES;
  rc = cuda_memory_open(c, err);
  if (rc == RC_OK) rc = graph_cache_open(c, err);
  if (rc == RC_OK && exactness == EXACTNESS_FASTEST) rc = vendor_open(c, err);
  if (rc != RC_OK) {
    cuda_destroy(&c->ops);
    return rc;
  }
  *out = &c->ops;
  return RC_OK;
}
