/* The peer of `gemm`: oneDNN's matmul, bf16 by bf16 into float32, weights packed beforehand in the layout that it asks
 * for.  Speaks the instrument's language (instrument.c), and only the question `gemm M N K`:
 *
 *   OMP_NUM_THREADS=THREADS peer_onednn
 *   -> oneDNN {version}
 *
 * Written for the C interface of version 2 (Debian 12's); all zeros are multiplied, which costs the same. */
#include <dnnl.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { LINE_MAX_BYTES = 256 };

/* What one product needs, in the order of making. */
struct product {
  dnnl_primitive_desc_t description;
  dnnl_primitive_t matmul;
  dnnl_memory_t x, w, y;
};

static void product_free(struct product *p) {
  dnnl_memory_destroy(p->x);
  dnnl_memory_destroy(p->w);
  dnnl_memory_destroy(p->y);
  dnnl_primitive_destroy(p->matmul);
  dnnl_primitive_desc_destroy(p->description);
}

static dnnl_status_t make_memory(dnnl_memory_t *out, const struct product *p, dnnl_query_t which,
                                 dnnl_engine_t engine) {
  void *bytes = NULL;
  const dnnl_memory_desc_t *layout = dnnl_primitive_desc_query_md(p->description, which, 0);
  dnnl_status_t status = dnnl_memory_create(out, layout, engine, DNNL_MEMORY_ALLOCATE);
  if (status == dnnl_success) status = dnnl_memory_get_data_handle(*out, &bytes);
  if (status == dnnl_success) memset(bytes, 0, dnnl_memory_desc_get_size(layout));
  return status;
}

/* y[M,N] = x[M,K] w[K,N], where w lies as oneDNN likes it. */
static dnnl_status_t product_make(struct product *p, dnnl_engine_t engine, const dnnl_dim_t sizes[3]) {
  const dnnl_dim_t M = sizes[0], N = sizes[1], K = sizes[2];
  const dnnl_dims_t xs = {M, K}, ws = {K, N}, ys = {M, N};
  dnnl_memory_desc_t x, w, y;
  dnnl_matmul_desc_t matmul;
  dnnl_status_t status = dnnl_memory_desc_init_by_tag(&x, 2, xs, dnnl_bf16, dnnl_ab);
  if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&w, 2, ws, dnnl_bf16, dnnl_format_tag_any);
  if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&y, 2, ys, dnnl_f32, dnnl_ab);
  if (status == dnnl_success) status = dnnl_matmul_desc_init(&matmul, &x, &w, NULL, &y);
  if (status == dnnl_success) status = dnnl_primitive_desc_create(&p->description, &matmul, NULL, engine, NULL);
  if (status == dnnl_success) status = dnnl_primitive_create(&p->matmul, p->description);
  if (status == dnnl_success) status = make_memory(&p->x, p, dnnl_query_src_md, engine);
  if (status == dnnl_success) status = make_memory(&p->w, p, dnnl_query_weights_md, engine);
  if (status == dnnl_success) status = make_memory(&p->y, p, dnnl_query_dst_md, engine);
  return status;
}

struct turn {
  const struct product *product;
  dnnl_stream_t stream;
  dnnl_status_t status;
};

static void turn_call(void *context) {
  struct turn *t = context;
  const struct product *p = t->product;
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->y}};
  if (t->status == dnnl_success) t->status = dnnl_primitive_execute(p->matmul, t->stream, 3, arguments);
  if (t->status == dnnl_success) t->status = dnnl_stream_wait(t->stream);
}

int main(void) {
  const dnnl_version_t *version = dnnl_version();
  dnnl_engine_t engine = NULL;
  dnnl_stream_t stream = NULL;
  char line[LINE_MAX_BYTES];
  if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
      dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success) {
    fprintf(stderr, "peer_onednn: no CPU engine\n");
    return 1;
  }
  printf("oneDNN %d.%d.%d\n", version->major, version->minor, version->patch);
  while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
    struct product p = {0};
    long long M, N, K;
    if (sscanf(line, "gemm %lld %lld %lld", &M, &N, &K) != 3) {
      printf("error a question that is not known\n");
      continue;
    }
    struct turn turn = {
        .product = &p, .stream = stream, .status = product_make(&p, engine, (const dnnl_dim_t[]){M, N, K})};
    const double seconds = turn.status == dnnl_success ? bench_repeat(turn_call, &turn) : 0;
    if (turn.status == dnnl_success)
      printf("%.9g\n", seconds);
    else
      printf("error oneDNN's status %d\n", (int)turn.status);
    product_free(&p);
  }
  dnnl_stream_destroy(stream);
  dnnl_engine_destroy(engine);
  return 0;
}
