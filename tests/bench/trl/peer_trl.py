"""The peer of `make bench-trl` and `make whole-size`: TRL's GRPOTrainer on the same base, prompts, rewards and CPU.  Nothing of the project is imported.

  peer_trl.py THREADS  <- {"model": folder, "data": JSON lines, "steps": .., "groups": .., "samples": .., "seed": .., "training": a run's,
                          "max_new_tokens": .., "temperature": .., "checks": [[completion, answer, reward]],
                          and, for a model that is not small, "bf16": true, "at_once": samples of one forward pass, "recompute": true}
  -> {"versions": {...}}  {"checked": rewards that were asked for, "equal": of these like ours}  then for each step {"step", "seconds" since training began, "reward"}

Without the last three: fp32, scaled dot-product attention and one forward pass for all of a step's samples, TRL's fastest settings on a CPU for a model as small as the demo's.
No evaluation, no checkpoints, no logging but these lines.
"""
import json
import os
import re
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402


def tell(**values):
    print(json.dumps(values), file=ANSWERS, flush=True)


def reward_of(text, answer):
    """The last number of the text, which is what the demo's verifier reads from such completions."""
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == int(answer))


class Teller(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        self.begun = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        self.ended = time.monotonic()

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            tell(step=state.global_step, seconds=self.ended - self.begun, reward=logs["reward"])


def main():
    torch.set_num_threads(int(sys.argv[1]))
    asked = json.load(sys.stdin)
    training, a_step = asked["training"], asked["groups"] * asked["samples"]
    bf16, recompute, at_once = asked.get("bf16", False), asked.get("recompute", False), asked.get("at_once", a_step)
    tell(versions={"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
    checks = asked["checks"]
    tell(checked=len(checks), equal=sum(reward_of(text, answer) == reward for text, answer, reward in checks))
    with open(asked["data"]) as file:
        lines = [json.loads(line) for line in file]
    tokenizer = AutoTokenizer.from_pretrained(asked["model"], padding_side="left")
    tokenizer.eos_token = tokenizer.pad_token = "<|endoftext|>"
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder, seed=asked["seed"], max_steps=asked["steps"], use_cpu=True, bf16=bf16, fp16=False, gradient_checkpointing=recompute, model_init_kwargs=None,
            per_device_train_batch_size=at_once, gradient_accumulation_steps=a_step // at_once, num_generations=asked["samples"], num_iterations=1, shuffle_dataset=False,
            max_completion_length=asked["max_new_tokens"], temperature=asked["temperature"], top_p=1.0, top_k=0, use_vllm=False,
            beta=training["kl_coefficient"], epsilon=training["clip_low"], epsilon_high=training["clip_high"], loss_type="bnpo", scale_rewards="group",
            learning_rate=training["lr"], adam_beta1=training["beta1"], adam_beta2=training["beta2"], adam_epsilon=training["eps"], weight_decay=training["weight_decay"],
            max_grad_norm=training["clip_norm"], lr_scheduler_type="constant", warmup_steps=0, optim="adamw_torch_fused",
            logging_steps=1, save_strategy="no", eval_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=0)
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32, attn_implementation="sdpa"), args=config, processing_class=tokenizer,
            reward_funcs=lambda prompts, completions, answer, **_: [reward_of(text, wanted) for text, wanted in zip(completions, answer)],
            train_dataset=Dataset.from_list([{"prompt": line["prompt"], "answer": line["answer"]} for line in lines]), callbacks=[Teller()])
        trainer.train()


ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
main()
