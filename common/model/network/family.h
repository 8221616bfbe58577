/* The families of models that the one forward pass computes: one row of a table for each model_type of transformers,
 * with everything that the model_type alone decides.  What a config.json says beside it (sizes, windows, the rotation's
 * scaling) is resolved by config.c into struct model_config, and nothing else asks for a family.
 *
 * Kinds of parameters stand in the order in which a layer's tensors follow each other in the parameter table; a family
 * has some of them.  Constant data: any thread, no memory. */
#ifndef LEASEHOLD_MODEL_NETWORK_FAMILY_H
#define LEASEHOLD_MODEL_NETWORK_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

/* A bias follows the weight of the projection that may have one. */
enum param_kind {
  PARAM_EMBED,
  PARAM_INPUT_NORM,
  PARAM_Q,
  PARAM_Q_BIAS,
  PARAM_K,
  PARAM_K_BIAS,
  PARAM_V,
  PARAM_V_BIAS,
  PARAM_Q_NORM,
  PARAM_K_NORM,
  PARAM_O,
  PARAM_O_BIAS,
  PARAM_ATTENTION_OUT_NORM,
  PARAM_POST_NORM,
  PARAM_ROUTER, /* of a layer of experts, which has these three for each expert and none of the MLP's below */
  PARAM_EXPERT_GATE,
  PARAM_EXPERT_UP,
  PARAM_EXPERT_DOWN,
  PARAM_GATE,
  PARAM_GATE_BIAS,
  PARAM_UP,
  PARAM_UP_BIAS,
  PARAM_DOWN,
  PARAM_DOWN_BIAS,
  PARAM_MLP_OUT_NORM,
  PARAM_FINAL_NORM,
  PARAM_HEAD,
  PARAM_KINDS
};

enum family_biases {
  BIASES_NONE,
  BIASES_QKV,       /* of q, k and v, always */
  BIASES_CONFIGURED /* of q, k, v and o, where attention_bias says so */
};

enum family_window {
  WINDOW_NEVER,
  WINDOW_WHEN_USED,  /* use_sliding_window: in the layers from max_window_layers on, or those that layer_types names */
  WINDOW_ALL_WHEN_USED, /* use_sliding_window: in every layer */
  WINDOW_EVERYWHERE, /* sliding_window, unless it is null: in every layer */
  WINDOW_LISTED,     /* the same, or in the layers that layer_types names: with these, mistral is Ministral */
  WINDOW_PATTERN     /* in the layers that layer_types names, or all but every sliding_window_pattern-th */
};

/* Parameters whose rows stand one below the other in one tensor of the files. */
struct fused_tensor {
  const char *name;
  enum param_kind first, last;
};
enum { FUSED_MAX = 2 };

struct family {
  const char *model_type;
  bool head_norms;     /* an RMS norm of each head of q and k, before the rotation */
  bool plus_one;       /* norms multiply by 1 + w */
  bool out_norms;      /* what attention and MLP add to the residual goes through a norm */
  bool gelu;           /* GeGLU instead of SwiGLU; the key is hidden_activation, and not hidden_act */
  bool root_embedding; /* embeddings are multiplied by the root of hidden_size */
  bool local_rope;     /* sliding layers rotate by a theta of their own: rope_local_base_freq */
  bool plain_rope;     /* rotations are plain, or longrope, which files of before called yarn and su */
  bool soft_caps;      /* attn_logit_softcapping, final_logit_softcapping */
  bool query_scalar;   /* scores are divided by the root of query_pre_attn_scalar instead of head_dim */
  bool experts;        /* some layers have experts and a router instead of the MLP */
  enum family_biases biases;
  bool mlp_biases; /* of gate, up and down, where mlp_bias says so */
  enum family_window window;
  struct fused_tensor fused[FUSED_MAX]; /* name NULL: no more */
  /* Defaults of transformers' configuration class, where families differ. */
  int head_dim;       /* 0: hidden_size / num_attention_heads */
  int kv_heads;       /* 0: num_attention_heads */
  int sliding_window; /* 0: none */
  int window_from;    /* max_window_layers */
  int window_pattern; /* WINDOW_PATTERN without layer_types: one in this many layers does not slide */
  float scores_cap, logits_cap;
  float rms_eps;
  double rope_theta; /* 0: 10,000 */
  bool tied;
};

/* NULL when there is none. */
const struct family *family_find(const char *model_type);
/* "qwen3, qwen2, .." for messages. */
const char *family_list(void);

/* The name of a kind's tensor behind "model.layers.N.", of an expert's behind "model.layers.N.mlp.experts.M.", or the
 * whole name outside layers; with out_norms the norm before the MLP has another name. */
const char *param_kind_name(enum param_kind kind, bool out_norms);
/* The kind of the bias that a projection may have: of q, k, v and o, of the MLP's gate, up and down. */
static inline enum param_kind param_kind_bias(enum param_kind projection) { return (enum param_kind)(projection + 1); }
bool param_kind_is_norm(enum param_kind kind);
bool param_kind_is_bias(enum param_kind kind);
bool param_kind_is_of_expert(enum param_kind kind);

#endif
