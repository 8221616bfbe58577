"""What the pipeline's benchmark runs on: a small network of usual proportions, and a dataset in which every prompt has its length.

A length is drawn for each prompt (all samples of a group are equally long: `max_new_tokens` with `ignore_eos`): one from each of as many quantiles of
the distribution as a round has prompts, in an order of chance.  So every round has the same spread and nearly the same tokens whatever the seed, and
no figure depends on which round drew the longest sample.  The same seed draws the same lengths on every machine.
"""
import json
import math
import random
import shutil
import statistics

KINDS = ("short", "medium", "heavy", "bimodal")
MEAN = 128  # tokens of a sample; of short ones a quarter
LENGTH_MAX = 8 * MEAN
LONG_SHARE, LONG_FACTOR = 0.2, 8  # bimodal
PREAMBLE = "Work this out one step after the other, and end with the result behind a hash. "
PREAMBLE_MAX = 512
CONTEXT = LENGTH_MAX + PREAMBLE_MAX + 64
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.05,
}


def quantile(kind, u):
    """The length at the quantile u, as a multiple of MEAN."""
    normal = statistics.NormalDist().inv_cdf
    if kind == "short":
        return 0.25 * (0.8 + 0.4 * u)
    if kind == "medium":
        return math.exp(0.25 * normal(u) - 0.25**2 / 2)
    if kind == "heavy":
        return math.exp(normal(u) - 0.5)
    mean = 1 - LONG_SHARE + LONG_SHARE * LONG_FACTOR
    long = u >= 1 - LONG_SHARE
    within = (u - 1 + LONG_SHARE) / LONG_SHARE if long else u / (1 - LONG_SHARE)
    return (LONG_FACTOR if long else 1) / mean * (0.8 + 0.4 * within)


def draw_lengths(kind, groups, rounds, seed):
    """[rounds][groups], tokens."""
    source = random.Random(f"{kind} {groups} {seed}")
    made = []
    for _ in range(rounds):
        lengths = [quantile(kind, (i + source.uniform(0.001, 0.999)) / groups) for i in range(groups)]
        source.shuffle(lengths)
        made.append([min(LENGTH_MAX, max(1, round(MEAN * length))) for length in lengths])
    return made


def write_dataset(folder, problems, lengths, preamble, seed):
    """FOLDER/train.jsonl: a line for each group of each round, in the order of sampling.  problems: a file of lines with prompt and answer; before each
    prompt so many letters are put."""
    lines = [json.loads(line) for line in problems.read_text().splitlines()]
    random.Random(seed).shuffle(lines)
    text = (PREAMBLE * (preamble // len(PREAMBLE) + 1))[:preamble]
    flat = [length for round_ in lengths for length in round_]
    assert len(flat) <= len(lines)
    folder.mkdir(parents=True, exist_ok=True)
    made = ({"prompt": text + line["prompt"], "answer": line["answer"], "max_new_tokens": length} for line, length in zip(lines, flat))
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))


def write_model(folder, demo):
    """A Hugging Face folder without weights: the demo's tokenizer (a letter is a token), a larger network."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(demo / name, folder)
    config = json.loads((demo / "config.json").read_text())
    config.update(SHAPE, layer_types=["full_attention"] * SHAPE["num_hidden_layers"], max_window_layers=SHAPE["num_hidden_layers"])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder
