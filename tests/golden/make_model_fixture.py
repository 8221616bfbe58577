#!/usr/bin/env python3
"""Reference numbers of a tiny Qwen3 model, for tests/unit/model/test_fixture.c.

Needs torch==2.7.1 and transformers==4.56.2; run once, the results are committed:

    python tests/golden/make_model_fixture.py tests/golden

Sizes are awkward on purpose: nothing is a multiple of 16, head_dim x heads is not hidden, three query heads share a KV head, and the
sequences have 33 and 17 tokens.  Weights are exactly representable in bfloat16, so both number formats load the same values.
Each folder is a Hugging Face model folder plus reference.safetensors:

    tokens [50], lengths [2]          the two sequences, one after the other
    logits [50, 257]
    loss_ce, grad_ce/<parameter>      mean cross-entropy of the 48 predicted tokens
    scored [50], old, reference       a clipped, KL-penalized policy loss at temperature 0.8 over the scored tokens,
    advantage [2], logprob            mean over them: loss_grpo, grad_grpo/<parameter>
    losses [10]                       cross-entropy before each of ten AdamW steps
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

assert torch.__version__.startswith("2.7.1"), torch.__version__
assert transformers.__version__ == "4.56.2", transformers.__version__

LENGTHS = [33, 17]
PROMPTS = [9, 5]
VOCABULARY = 257
TEMPERATURE, CLIP, KL = 0.8, 0.2, 0.1
ADVANTAGES = [0.75, -1.25]


def make_model(tied):
    config = Qwen3Config(
        hidden_size=40, num_attention_heads=6, num_key_value_heads=2, head_dim=12, intermediate_size=56,
        num_hidden_layers=3, vocab_size=VOCABULARY, max_position_embeddings=128, rope_theta=10000.0,
        rms_norm_eps=1e-6, tie_word_embeddings=tied, eos_token_id=[256, 3], bos_token_id=None,
        attn_implementation="eager", torch_dtype="float32")
    model = Qwen3ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(20260 + tied)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_((noise if parameter.dim() == 2 else 1 + noise).bfloat16().float())
    return config, model


def all_logits(model, sequences):
    return [model(input_ids=s[None], use_cache=False).logits[0] for s in sequences]


def cross_entropy(model, sequences):
    losses = [torch.nn.functional.cross_entropy(l[:-1], s[1:], reduction="sum")
              for l, s in zip(all_logits(model, sequences), sequences)]
    return sum(losses) / sum(len(s) - 1 for s in sequences)


def scored_logprobs(model, sequences):
    result = []
    for logits, s, prompt in zip(all_logits(model, sequences), sequences, PROMPTS):
        logprob = torch.log_softmax(logits[:-1] / TEMPERATURE, -1).gather(-1, s[1:, None])[:, 0]
        result.append(logprob[prompt - 1:])
    return result


def grpo(model, sequences, old, reference):
    total, tokens = 0.0, 0
    for new, o, r, advantage in zip(scored_logprobs(model, sequences), old, reference, ADVANTAGES):
        ratio = torch.exp(new - o)
        k3 = torch.exp(r - new) - (r - new) - 1
        total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).sum() + KL * k3.sum()
        tokens += len(new)
    return total / tokens


def behaviour(new, seed):
    """Old log-probabilities near the new ones, no ratio within 0.01 of the clip range's ends."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for sequence in new:
        gap = torch.randn(sequence.shape, generator=generator) * 0.2
        ratio = torch.exp(gap)
        near = ((ratio - 1 - CLIP).abs() < 0.01) | ((ratio - 1 + CLIP).abs() < 0.01)
        result.append((sequence - torch.where(near, torch.zeros_like(gap), gap)).detach())
    return result


def gradients(model, loss, prefix):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {f"{prefix}/{name}": p.grad.clone() for name, p in model.named_parameters()}


def adamw_losses(model, sequences):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model, sequences)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float32)


def make(folder, tied):
    folder.mkdir(parents=True, exist_ok=True)
    config, model = make_model(tied)
    generator = torch.Generator().manual_seed(7)
    sequences = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in LENGTHS]
    weights = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    out = {"tokens": torch.cat(sequences).int(), "lengths": torch.tensor(LENGTHS).int(),
           "scored": torch.cat([(torch.arange(n) >= p) for n, p in zip(LENGTHS, PROMPTS)]).to(torch.uint8),
           "advantage": torch.tensor(ADVANTAGES)}
    with torch.no_grad():
        out["logits"] = torch.cat(all_logits(model, sequences)).contiguous()
        new = scored_logprobs(model, sequences)
    old, reference = behaviour(new, 11), behaviour(new, 12)
    out.update(logprob=torch.cat(new), old=torch.cat(old), reference=torch.cat(reference))
    loss = cross_entropy(model, sequences)
    out["loss_ce"] = loss.detach().reshape(1)
    out.update(gradients(model, loss, "grad_ce"))
    loss = grpo(model, sequences, old, reference)
    out["loss_grpo"] = loss.detach().reshape(1)
    out.update(gradients(model, loss, "grad_grpo"))
    out["losses"] = adamw_losses(model, sequences)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(out, folder / "reference.safetensors")
    values = config.to_dict()
    values["architectures"] = ["Qwen3ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    target = pathlib.Path(sys.argv[1])
    make(target / "qwen3_tied", True)
    make(target / "qwen3_untied", False)
