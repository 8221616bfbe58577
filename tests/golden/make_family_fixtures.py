#!/usr/bin/env python3
"""Reference numbers of tiny random models of each family, for tests/unit/model/test_families.c.

Needs torch and transformers 5 (made with torch 2.15 and transformers 5.23).  Without --shapes it writes the committed fixtures:

    python tests/golden/make_family_fixtures.py tests/golden/families

With --shapes N it draws N shapes of every family with --seed, so that each draw tests sizes that nobody tuned anything to; `make families` runs
that and then the test over what was written.  Weights are exactly representable in bfloat16, so both number formats load the same values.  Each folder is
a Hugging Face model folder plus reference.safetensors:

    tokens, lengths [2]               the two sequences, one after the other
    logits [tokens, vocabulary]
    loss, grad/<tensor>               mean cross-entropy of the predicted tokens, and its gradient
    losses [10], losses_f64 [10]      the same before each of ten AdamW steps, in float32 and in float64: AdamW turns the roundings of a gradient that is
                                      nearly zero into whole steps, so that float32 alone is no yardstick
    greedy [20]                       the likeliest continuation of the first sequence's first nine tokens
"""
import argparse
import copy
import pathlib
import random

import torch
from safetensors.torch import save_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MinistralConfig, MinistralForCausalLM, MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

CLASSES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM),
           "mistral": (MistralConfig, MistralForCausalLM), "ministral": (MinistralConfig, MinistralForCausalLM), "phi3": (Phi3Config, Phi3ForCausalLM),
           "gemma2": (Gemma2Config, Gemma2ForCausalLM), "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM), "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}
PROMPT, GREEDY, POSITIONS = 9, 20, 128
MARGIN = 1e-3  # between the two largest logits of a greedy step
ROUTER_MARGIN = 1e-3  # between the last expert that a row takes and the first that it does not: a row that goes elsewhere is another function

ROPES = {
    "default": {},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 48},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 1.0},
}
COMMITTED = {
    "qwen2": ("qwen2", dict(tie_word_embeddings=True)),
    "qwen3_bias": ("qwen3", dict(head_dim=10, attention_bias=True, use_sliding_window=True, sliding_window=13, max_window_layers=1)),
    "llama": ("llama", dict(attention_bias=True, mlp_bias=True, rope="llama3")),
    "llama_yarn": ("llama", dict(head_dim=14, num_key_value_heads=1, tie_word_embeddings=True, rope="yarn")),
    "mistral": ("mistral", dict(head_dim=12, sliding_window=11, rope="linear")),
    "phi3": ("phi3", dict(sliding_window=9)),
    "gemma3": ("gemma3_text", dict(head_dim=12, num_hidden_layers=3, tie_word_embeddings=True, sliding_window=11, query_pre_attn_scalar=10, rope="linear",
                                   layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "qwen3_moe": ("qwen3_moe", dict(head_dim=10, num_hidden_layers=3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True,
                                    mlp_only_layers=[1])),
    "gemma2": ("gemma2", dict(head_dim=12, num_hidden_layers=3, tie_word_embeddings=True, sliding_window=11, query_pre_attn_scalar=10,
                              attn_logit_softcapping=1.5, final_logit_softcapping=4.0)),
}


def make_config(family, options):
    options = dict(options)
    rope = options.pop("rope", "default")
    values = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=44, num_hidden_layers=2, vocab_size=101,
                  max_position_embeddings=POSITIONS, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=None, eos_token_id=[100, 3],
                  pad_token_id=None, attn_implementation="eager")
    if family == "qwen3_moe":
        values["experts_implementation"] = "eager"  # the others do not compute in float64
    values.update(options)
    values["rope_parameters"] = {"rope_type": rope, "rope_theta": values.pop("rope_theta", 10000.0), **ROPES[rope]}
    if family == "gemma3_text":
        values["rope_parameters"] = {"full_attention": values["rope_parameters"],
                                     "sliding_attention": {"rope_type": "default", "rope_theta": values.pop("rope_local", 700.0)}}
    return CLASSES[family][0](**values)


def draw_options(family, rng):
    heads = rng.choice([1, 2, 3, 4, 6])
    dim = rng.choice([4, 6, 8, 10, 12, 16, 18, 24])
    options = dict(num_attention_heads=heads, num_key_value_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
                   num_hidden_layers=rng.randint(1, 3), intermediate_size=rng.randint(5, 90), vocab_size=rng.randint(60, 300),
                   tie_word_embeddings=rng.random() < 0.5, rms_norm_eps=rng.choice([1e-6, 1e-5]), rope_theta=rng.choice([1e4, 1e6, 5e5]),
                   rope=rng.choice(sorted(ROPES)))
    options["eos_token_id"] = [options["vocab_size"] - 1, 3]
    if family in ("qwen2", "phi3") or rng.random() < 0.5:
        options["hidden_size"] = heads * dim
        if family in ("qwen3", "mistral", "ministral", "llama", "gemma2", "gemma3_text", "qwen3_moe"):
            options["head_dim"] = dim
    else:
        options.update(hidden_size=heads * rng.randint(2, 20), head_dim=dim)
    if family in ("qwen2", "qwen3") and rng.random() < 0.5:
        options.update(use_sliding_window=True, sliding_window=rng.randint(1, 40), max_window_layers=rng.randint(0, 2))
    if family in ("mistral", "phi3"):
        options["sliding_window"] = rng.choice([None, rng.randint(1, 40)])
    if family == "ministral":
        options["layer_types"] = ["sliding_attention" if rng.random() < 0.6 else "full_attention" for _ in range(options["num_hidden_layers"])]
        options["sliding_window"] = rng.randint(1, 40)
    if family == "gemma2":
        options["hidden_size"] += -options["hidden_size"] % heads
        options.update(sliding_window=rng.randint(1, 40), query_pre_attn_scalar=rng.randint(4, 40), attention_bias=rng.random() < 0.3,
                       attn_logit_softcapping=rng.choice([None, 0.7, 2.0, 50.0]), final_logit_softcapping=rng.choice([None, 2.0, 5.0, 30.0]))
    if family == "qwen3_moe":
        experts = rng.randint(2, 9)
        options.update(num_experts=experts, num_experts_per_tok=rng.randint(1, experts), moe_intermediate_size=rng.randint(3, 40),
                       norm_topk_prob=rng.random() < 0.6, decoder_sparse_step=rng.choice([1, 1, 2]),
                       mlp_only_layers=[layer for layer in range(3) if rng.random() < 0.2])
        if options["num_experts_per_tok"] == 1:  # the router's gradient would be zero, and transformers' its roundings, of which AdamW makes whole steps
            options["norm_topk_prob"] = False
        if rng.random() < 0.5:
            options.update(use_sliding_window=True, sliding_window=rng.randint(1, 40))
    if family in ("llama", "qwen3", "qwen3_moe"):
        options["attention_bias"] = rng.random() < 0.5
    if family == "gemma3_text":
        layers = ["sliding_attention" if rng.random() < 0.6 else "full_attention" for _ in range(options["num_hidden_layers"])]
        options.update(layer_types=layers, sliding_window=rng.randint(1, 40), query_pre_attn_scalar=rng.randint(4, 40), rope_local=rng.choice([1e3, 1e4]),
                       rope=rng.choice(["default", "linear"]), attention_bias=rng.random() < 0.3)
    if family == "llama":
        options["mlp_bias"] = rng.random() < 0.5
    if family == "phi3":
        options["rope"] = "default"
    return options


def make_model(family, config, seed):
    model = CLASSES[family][1](config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            norm = parameter.dim() == 1 and "norm" in name and "gemma" not in family  # whose norms multiply by 1 + w
            parameter.copy_((1 + noise if norm else noise).bfloat16().float())
    return model


def watch_routers(model):
    """The least margin by which any router has chosen, in a list."""
    least = [float("inf")]

    def note(router, _inputs, outputs):
        if router.top_k < router.num_experts:
            best = torch.topk(outputs[0], router.top_k + 1).values
            least[0] = min(least[0], (best[..., -2] - best[..., -1]).min().item())

    for module in model.modules():
        if isinstance(module, Qwen3MoeTopKRouter):
            module.register_forward_hook(note)
    return least


def as_in_files(tensors):
    """The names and shapes of files: the model holds all experts of a layer in one tensor, files one tensor for each."""
    out = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        for expert, part in enumerate(tensor if tensor.dim() == 3 else []):
            if name.endswith("gate_up_proj"):
                out[f"{layer}{expert}.gate_proj.weight"], out[f"{layer}{expert}.up_proj.weight"] = (half.contiguous() for half in part.chunk(2))
            else:
                out[f"{layer}{expert}.down_proj.weight"] = part.contiguous()
        if tensor.dim() < 3:
            out[name] = tensor
    return out


def all_logits(model, sequences):
    return [model(input_ids=s[None], use_cache=False).logits[0] for s in sequences]


def cross_entropy(model, sequences):
    losses = [torch.nn.functional.cross_entropy(l[:-1], s[1:], reduction="sum") for l, s in zip(all_logits(model, sequences), sequences)]
    return sum(losses) / sum(len(s) - 1 for s in sequences)


def greedy(model, prompt):
    """None when two logits of a step are nearly equal."""
    tokens = prompt.clone()
    for _ in range(GREEDY):
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        if best.values[0] - best.values[1] < MARGIN:
            return None
        tokens = torch.cat([tokens, best.indices[:1]])
    return tokens[len(prompt):]


def adamw_losses(model, sequences):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95),
                                  eps=1e-8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model, sequences)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def make(folder, family, options, lengths, seed):
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(family, options)
    generator = torch.Generator().manual_seed(seed + 7)
    sequences = [torch.randint(0, config.vocab_size, (n,), generator=generator) for n in lengths]
    likeliest = None
    while likeliest is None:
        model = make_model(family, config, seed)
        margin = watch_routers(model)
        with torch.no_grad():
            likeliest = greedy(model, sequences[0][:PROMPT])
        if likeliest is not None:
            losses = adamw_losses(copy.deepcopy(model), sequences).float()
            losses_f64 = adamw_losses(copy.deepcopy(model).double(), sequences)
        if margin[0] < ROUTER_MARGIN:
            likeliest = None
        seed += 1000003
    config.save_pretrained(folder)
    if family == "ministral":  # which published files call mistral, with layer_types
        file = folder / "config.json"
        file.write_text(file.read_text().replace('"model_type": "ministral"', '"model_type": "mistral"'))
    save_file(as_in_files({name: p.detach().bfloat16() for name, p in model.named_parameters()}), folder / "model.safetensors", metadata={"format": "pt"})
    out = {"tokens": torch.cat(sequences).int(), "lengths": torch.tensor(lengths).int(), "greedy": likeliest.int()}
    with torch.no_grad():
        out["logits"] = torch.cat(all_logits(model, sequences)).contiguous()
    loss = cross_entropy(model, sequences)
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    gradients = as_in_files({name: p.grad.clone() for name, p in model.named_parameters()})
    out.update({f"grad/{name}": gradient for name, gradient in gradients.items()})
    out["losses"], out["losses_f64"] = losses, losses_f64
    save_file(out, folder / "reference.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--shapes", type=int, default=0, help="draw so many of every family instead of writing the committed ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(CLASSES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.shapes == 0:
        for i, (name, (family, options)) in enumerate(COMMITTED.items()):
            make(arguments.target / name, family, options, [33, 17], 100 + i)
        return
    for family in arguments.families.split(","):
        rng = random.Random(f"{arguments.seed} {family}")
        for i in range(arguments.shapes):
            options = draw_options(family, rng)
            make(arguments.target / f"{family}_{i:02d}", family, options, [rng.randint(PROMPT, 70), rng.randint(2, 40)], rng.randrange(1 << 30))


if __name__ == "__main__":
    main()
