/* The table of this level's kernels. */
#include "common/model/cpu/isa/elementary.h"

#define ISA_TEXT2(x) #x
#define ISA_TEXT(x)  ISA_TEXT2(x)

cpu_kernel ISA_NAME(to_operand), ISA_NAME(from_operand), ISA_NAME(rmsnorm), ISA_NAME(gemm), ISA_NAME(head_norm_rope),
    ISA_NAME(attention), ISA_NAME(swiglu), ISA_NAME(logprob), ISA_NAME(sample), ISA_NAME(embed_backward),
    ISA_NAME(rmsnorm_backward_x), ISA_NAME(rmsnorm_backward_w), ISA_NAME(gemm_weight_backward),
    ISA_NAME(head_norm_rope_backward_x), ISA_NAME(head_norm_rope_backward_w), ISA_NAME(attention_backward),
    ISA_NAME(swiglu_backward), ISA_NAME(logprob_backward), ISA_NAME(accumulate), ISA_NAME(grad_from_accumulator),
    ISA_NAME(sum_of_squares), ISA_NAME(adamw);

#if defined(__AVX512BF16__)
bool ISA_NAME(links_hold)(void);
#endif

static void exp_row(float *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] = exp_one(x[i]);
}

static float log_scalar(float x) { return log_one(x); }

const struct cpu_kernels ISA_NAME(cpu_kernels) = {
    .level = ISA_TEXT(CPU_ISA),
    .to_operand = ISA_NAME(to_operand),
    .from_operand = ISA_NAME(from_operand),
    .rmsnorm = ISA_NAME(rmsnorm),
    .gemm = ISA_NAME(gemm),
    .head_norm_rope = ISA_NAME(head_norm_rope),
    .attention = ISA_NAME(attention),
    .swiglu = ISA_NAME(swiglu),
    .logprob = ISA_NAME(logprob),
    .sample = ISA_NAME(sample),
    .embed_backward = ISA_NAME(embed_backward),
    .rmsnorm_backward_x = ISA_NAME(rmsnorm_backward_x),
    .rmsnorm_backward_w = ISA_NAME(rmsnorm_backward_w),
    .gemm_weight_backward = ISA_NAME(gemm_weight_backward),
    .head_norm_rope_backward_x = ISA_NAME(head_norm_rope_backward_x),
    .head_norm_rope_backward_w = ISA_NAME(head_norm_rope_backward_w),
    .attention_backward = ISA_NAME(attention_backward),
    .swiglu_backward = ISA_NAME(swiglu_backward),
    .logprob_backward = ISA_NAME(logprob_backward),
    .accumulate = ISA_NAME(accumulate),
    .grad_from_accumulator = ISA_NAME(grad_from_accumulator),
    .sum_of_squares = ISA_NAME(sum_of_squares),
    .adamw = ISA_NAME(adamw),
#if defined(__AVX512BF16__)
    .links = true,
    .holds = ISA_NAME(links_hold),
#endif
    .exp_row = exp_row,
    .log = log_scalar,
};
