"""The peer of `make losses`: TRL's loss functions, as its trainers have them, on rollouts and weights of ours.  Nothing of the project is imported.

  peer_trl.py <- [{"name", "model", "reference": folders, "gradient": optimizer.safetensors, "samples": [...], "training": a run's, ...}]
  -> {"trl", "transformers", "torch"}, then for each case {"ours", "loss", "floor", "cosine", "norm": TRL's over ours, "tokens", "outside": share of tokens whose
     ratio is outside the clip range, ...}

fp32 throughout; log-probabilities and gradients are TRL's own, only what it takes as given (tokens, advantages, the sampler's log-probabilities) is ours.
"floor": the mean magnitude of a token's term, for losses whose terms cancel.
"""
import json
import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors import safe_open  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

COMMON = {"use_cpu": True, "bf16": False, "fp16": False, "gradient_checkpointing": False, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_steps": 1}


def tell(**values):
    print(json.dumps(values), file=ANSWERS, flush=True)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def padded(rows, left, fill, dtype):
    width = max(map(len, rows))
    return torch.tensor([([fill] * (width - len(row)) + row) if left else (row + [fill] * (width - len(row))) for row in rows], dtype=dtype)


def mask_of(rows, left):
    return padded([[1] * len(row) for row in rows], left, 0, torch.long)


def policy_inputs(case, pad):
    samples = case["samples"]
    prompts, completions = [s["prompt"] for s in samples], [s["completion"] for s in samples]
    mask = mask_of(completions, False) * torch.tensor([[int(s["counted"])] for s in samples])
    return {
        "prompt_ids": padded(prompts, True, pad, torch.long), "prompt_mask": mask_of(prompts, True), "completion_ids": padded(completions, False, pad, torch.long),
        "completion_mask": mask, "advantages": torch.tensor([s["advantage"] for s in samples]), "old_per_token_logps": padded([s["old"] for s in samples], False, 0.0, torch.float32),
        "num_items_in_batch": mask.sum()}


def logps_of(trainer, inputs, folder=None):
    """By TRL's own forward pass, under other weights where a folder names them."""
    kept = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    if folder:
        trainer.model.load_state_dict(load(folder).state_dict())
    with torch.no_grad():
        ids, mask = (torch.cat([inputs["prompt_" + what], inputs["completion_" + what]], 1) for what in ("ids", "mask"))
        logps = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, inputs["completion_ids"].size(1))[0]
    trainer.model.load_state_dict(kept)
    return logps


def policy_trainer(case, tokenizer, folder):
    training, objective = case["training"], case["training"]["objective"]
    shared = {**COMMON, "output_dir": folder, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": case["max_new_tokens"],
              "temperature": case["temperature"], "top_p": 1.0, "top_k": 0, "beta": 0.0}
    prompts = Dataset.from_list([{"prompt": "1"}])
    kind, config = trl.GRPOTrainer, None
    if objective == "reinforce" and not case["distills"]:
        # The bounds that TRL's own loss has at a ratio of 1 do not matter.
        kind, config = trl.RLOOTrainer, trl.RLOOConfig(**shared)
    elif objective == "reinforce":
        config = trl.GRPOConfig(**shared, loss_type="bnpo")
    else:
        high = 1 + training["clip_high"] if objective == "cispo" else training["clip_high"]
        level = "sequence" if objective == "gspo" else "token"
        shared["beta"] = training["kl_coefficient"]
        config = trl.GRPOConfig(**shared, loss_type=case["loss_type"], epsilon=training["clip_low"], epsilon_high=high, importance_sampling_level=level,
                                entropy_coef=training.get("entropy_coefficient", 0.0), use_bias_correction_kl=False)
    trainer = kind(model=load(case["model"]), args=config, processing_class=tokenizer, reward_funcs=lambda completions, **_: [0.0] * len(completions), train_dataset=prompts)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def given_values(trainer, current):
    """From here on log-probabilities have these values, and the gradient that they have."""
    own = trainer._get_per_token_logps_and_entropies

    def with_values(*args, **more):
        logps, *rest = own(*args, **more)
        return (logps + (current - logps).detach(), *rest)

    trainer._get_per_token_logps_and_entropies = with_values


def kl_less(case, inputs, reference):
    """RLOO's advantages with its KL term: TRL takes beta times the sum of log p - log p(reference) off a reward before it takes the others' mean off."""
    kl = ((inputs["old_per_token_logps"] - reference) * inputs["completion_mask"]).sum(1)
    groups = torch.tensor([s["group"] for s in case["samples"]])
    for group in groups.unique():
        mine = groups == group
        n = mine.sum()
        inputs["advantages"][mine] -= case["training"]["kl_coefficient"] * (kl[mine] - kl[mine].mean()) * n / (n - 1)


def policy_loss(case, tokenizer, folder):
    """(loss, model, what the terms' mean magnitude is, tokens, share outside the clip range)"""
    trainer = policy_trainer(case, tokenizer, folder)
    inputs, training = policy_inputs(case, tokenizer.pad_token_id), case["training"]
    mask = inputs["completion_mask"]
    if training["kl_coefficient"] and not case["distills"]:
        reference = logps_of(trainer, inputs, case["reference"])
        if training.get("kl_in") == "reward":
            kl_less(case, inputs, reference)
        else:
            inputs["ref_per_token_logps"] = reference
    inputs["old_logps"] = (inputs["old_per_token_logps"] * mask).sum(1)
    if case["distills"]:
        inputs["advantages"] = padded([s["teacher"] for s in case["samples"]], False, 0.0, torch.float32) - inputs["old_per_token_logps"]
    if not case["ratios"]:
        # TRL skips the old log-probabilities where they are the current ones, and then has a ratio of exactly 1 too.
        current = logps_of(trainer, inputs)
        inputs["old_per_token_logps"], inputs["old_logps"] = current, (current * mask).sum(1)
    if case["ratios"]:
        given_values(trainer, padded([s["current"] for s in case["samples"]], False, 0.0, torch.float32))
    now = logps_of(trainer, inputs)
    ratio = ((now - inputs["old_per_token_logps"]) * mask)
    if training["objective"] == "gspo":
        ratio = (ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True)).expand_as(mask)
    ratio = ratio.exp()
    outside = ((ratio < 1 - training["clip_low"]) | (ratio > 1 + training["clip_high"])) & (mask > 0)
    floor = (inputs["advantages"].abs() * mask.sum(1)).sum() / mask.sum() if inputs["advantages"].dim() == 1 else torch.tensor(0.0)
    return trainer._compute_loss(trainer.model, inputs), trainer.model, floor.item(), int(mask.sum()), (outside.sum() / mask.sum()).item()


def sft_loss(case, tokenizer, folder):
    rows = [(tokenizer.encode(s["prompt"]), tokenizer.encode(s["completion"]) + [tokenizer.eos_token_id]) for s in case["samples"]]
    dataset = Dataset.from_list([{"prompt": s["prompt"], "completion": s["completion"]} for s in case["samples"]])
    config = trl.SFTConfig(**COMMON, output_dir=folder, per_device_train_batch_size=len(rows), completion_only_loss=True, loss_type="nll")
    trainer = trl.SFTTrainer(model=load(case["model"]), args=config, processing_class=tokenizer, train_dataset=dataset)
    trainer.model.train()
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
    tokens = int((batch["labels"] != -100).sum())
    if tokens != sum(len(completion) for _, completion in rows):
        sys.exit(f"TRL counts {tokens} tokens of completions, there are {sum(len(completion) for _, completion in rows)}")
    return trainer.compute_loss(trainer.model, batch, num_items_in_batch=torch.tensor(tokens)), trainer.model, 0, tokens, 0.0


def compared(model, path):
    """The cosine of the model's gradient and ours, and the ratio of their norms."""
    dot = theirs = ours = 0.0
    with safe_open(path, "pt") as file:
        names = {name.removeprefix("moment1.") for name in file.keys() if name.startswith("moment1.")}
        for name, parameter in model.named_parameters():
            names.remove(name)
            mine, other = file.get_tensor("moment1." + name).double().flatten(), parameter.grad.double().flatten()
            dot, theirs, ours = dot + (mine @ other).item(), theirs + (other @ other).item(), ours + (mine @ mine).item()
    if names:
        sys.exit(f"TRL's model has no {', '.join(sorted(names))}")
    return dot / (theirs * ours) ** 0.5, (theirs / ours) ** 0.5


def denominator(case, tokens):
    by = case["training"]["normalization"]
    return tokens if by == "tokens" else len(case["samples"])


def main():
    cases = json.load(sys.stdin)
    tell(trl=trl.__version__, transformers=transformers.__version__, torch=torch.__version__)
    for case in cases:
        tokenizer = AutoTokenizer.from_pretrained(case["model"], padding_side="left")
        tokenizer.eos_token = tokenizer.pad_token = "<|endoftext|>"
        with tempfile.TemporaryDirectory() as folder:
            loss, model, floor, tokens, outside = (sft_loss if case["training"]["objective"] == "cross_entropy" else policy_loss)(case, tokenizer, folder)
            loss.backward()
            cosine, norm = compared(model, case["gradient"])
        tell(name=case["name"], ours=case["loss"] / denominator(case, tokens), loss=loss.item(), floor=floor, cosine=cosine, norm=norm, tokens=tokens, outside=outside,
             values=case["values"], ratios=case["ratios"])


ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
main()
