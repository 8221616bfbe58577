/* Fills the table of kernels of one instruction set (cpu/kernels.h); compiled once for each.
 *
 * AMX has matrix products of its own and takes the other kernels from the instruction set beside it. */
#include "common/model/cpu/isa/amx_tiles.h"
#include "common/model/cpu/isa/elementary.h"

#if defined(__AMX_BF16__)
#define BESIDE(name) TILES_BESIDE(name)
#else
#define BESIDE(name) ISA_NAME(name)
#endif

#define ISA_TEXT2(x) #x
#define ISA_TEXT(x)  ISA_TEXT2(x)

cpu_kernel BESIDE(to_operand), BESIDE(from_operand), BESIDE(rmsnorm), ISA_NAME(gemm), BESIDE(add_bias),
    BESIDE(head_norm_rope), ISA_NAME(attention), BESIDE(swiglu), BESIDE(geglu), BESIDE(scale), BESIDE(add_operand),
    BESIDE(soft_cap), BESIDE(soft_cap_backward), BESIDE(route), BESIDE(add_rows), BESIDE(share_rows), BESIDE(logprob),
    BESIDE(cut), BESIDE(sample), BESIDE(embed_backward), BESIDE(rmsnorm_backward_x), BESIDE(rmsnorm_backward_w),
    ISA_NAME(gemm_weight_backward), BESIDE(add_bias_backward), BESIDE(head_norm_rope_backward_x),
    BESIDE(head_norm_rope_backward_w), ISA_NAME(attention_backward), BESIDE(swiglu_backward), BESIDE(geglu_backward),
    BESIDE(share_backward), BESIDE(route_backward), BESIDE(logprob_backward), BESIDE(accumulate),
    BESIDE(grad_from_accumulator), BESIDE(sum_of_squares), BESIDE(adamw), BESIDE(adamw8);

extern const struct window_limit ISA_NAME(weight_windows), BESIDE(weight_windows);
#if defined(__AMX_BF16__)
bool ISA_NAME(tiles_hold)(void);
#elif defined(__AVX512BF16__)
bool ISA_NAME(links_hold)(void), ISA_NAME(links_pay)(void);
extern const struct window_limit ISA_NAME(weight_windows_bf16);
#endif

static void exp_row(float *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] = exp_one(x[i]);
}

static float log_scalar(float x) { return log_one(x); }

const struct cpu_kernels ISA_NAME(cpu_kernels) = {
    .level = ISA_TEXT(CPU_ISA),
    .to_operand = BESIDE(to_operand),
    .from_operand = BESIDE(from_operand),
    .rmsnorm = BESIDE(rmsnorm),
    .gemm = ISA_NAME(gemm),
    .add_bias = BESIDE(add_bias),
    .head_norm_rope = BESIDE(head_norm_rope),
    .attention = ISA_NAME(attention),
    .swiglu = BESIDE(swiglu),
    .geglu = BESIDE(geglu),
    .scale = BESIDE(scale),
    .add_operand = BESIDE(add_operand),
    .soft_cap = BESIDE(soft_cap),
    .route = BESIDE(route),
    .add_rows = BESIDE(add_rows),
    .share_rows = BESIDE(share_rows),
    .logprob = BESIDE(logprob),
    .cut = BESIDE(cut),
    .sample = BESIDE(sample),
    .embed_backward = BESIDE(embed_backward),
    .rmsnorm_backward_x = BESIDE(rmsnorm_backward_x),
    .rmsnorm_backward_w = BESIDE(rmsnorm_backward_w),
    .gemm_weight_backward = ISA_NAME(gemm_weight_backward),
    .add_bias_backward = BESIDE(add_bias_backward),
    .head_norm_rope_backward_x = BESIDE(head_norm_rope_backward_x),
    .head_norm_rope_backward_w = BESIDE(head_norm_rope_backward_w),
    .attention_backward = ISA_NAME(attention_backward),
    .swiglu_backward = BESIDE(swiglu_backward),
    .geglu_backward = BESIDE(geglu_backward),
    .soft_cap_backward = BESIDE(soft_cap_backward),
    .share_backward = BESIDE(share_backward),
    .route_backward = BESIDE(route_backward),
    .logprob_backward = BESIDE(logprob_backward),
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
    .weight_windows = {[FORMAT_BF16] = &ISA_NAME(weight_windows_bf16), [FORMAT_F32] = &ISA_NAME(weight_windows)},
#else
    .weight_windows = {[FORMAT_BF16] = &ISA_NAME(weight_windows), [FORMAT_F32] = &BESIDE(weight_windows)},
#endif
    .accumulate = BESIDE(accumulate),
    .grad_from_accumulator = BESIDE(grad_from_accumulator),
    .sum_of_squares = BESIDE(sum_of_squares),
    .adamw = BESIDE(adamw),
    .adamw8 = BESIDE(adamw8),
#if defined(__AMX_BF16__)
    .holds = ISA_NAME(tiles_hold),
#elif defined(__AVX512BF16__)
    .links = true,
    .holds = ISA_NAME(links_hold),
    .pays = ISA_NAME(links_pay),
#endif
    .exp_row = exp_row,
    .log = log_scalar,
};
