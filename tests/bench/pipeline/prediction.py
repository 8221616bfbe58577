"""What tests/sim/predict.c makes of the costs that `sync` runs have shown: the windows of the other modes, the best order that was found, and the bound.

Nothing of a pipelined run goes in.  Costs: a decode step by its rows (the server's own table), a prompt, a token and a batch of training, the forward pass
that `update: minibatch` adds, an optimizer step, verifying.  What a batch costs is told by sync runs with small batches beside those with large ones.  What
`sync` cannot show (how two busy cores slow each other down) is not in it.
"""
import subprocess

from cell import BATCH_TOKENS, GROUPS_PER_STEP, SAMPLES, WARM
from services import ROOT

PREDICT = ROOT / "build/tests/sim/predict"
MESSAGE_US = 1000


def line_at(steps, rows):
    """Microseconds of a step of so many rows, by straight lines between those measured."""
    known = sorted((r, us) for r, us, _ in steps)
    if len(known) == 1 or rows <= known[0][0]:
        return known[0][1]
    for (r0, us0), (r1, us1) in zip(known, known[1:]):
        if rows <= r1 or (r1, us1) == known[-1]:
            return us0 + (us1 - us0) * (rows - r0) / (r1 - r0)
    raise AssertionError


def a_round(runs, of):
    """of(round) in the mean of the measured rounds."""
    rounds = [r for found in runs for r in found["rounds"][WARM:]]
    return sum(map(of, rounds)) / len(rounds)


def batch_us(large, small):
    """What a batch adds, whatever is in it: the same rounds in few batches and in many."""
    few, many = (a_round(runs, lambda r: len(r["batches"])) for runs in (large, small))
    fast, slow = (a_round(runs, lambda r: r["compute_us"]) for runs in (large, small))
    return max(0.0, (slow - fast) / (many - few))


def costs(runs, small):
    """runs: of mode sync and of one cell; small: the same with small batches."""
    steps = {}
    for found in runs:
        for rows, us, n in found["steps"]:
            sums = steps.setdefault(int(rows - 0.5).bit_length(), [0.0, 0.0, 0.0])  # the server's table goes by powers of two
            for k, value in enumerate((rows * n, us * n, n)):
                sums[k] += value
    steps = [(rows / n, us / n, n) for _, (rows, us, n) in sorted(steps.items())]
    a_batch = batch_us(runs, small)
    rounds = [r for found in runs for r in found["rounds"][WARM:]]
    tokens = sum(h["tokens"] for found in runs for h in found["history"][WARM:])
    groups = sum(h["groups"] for found in runs for h in found["history"][WARM:])

    def total(name):
        return sum(r[name] for r in rounds)

    return {
        "steps": [(rows, us) for rows, us, _ in steps],
        "prompt_us": sum(prompt_us(found, steps) for found in runs) / len(runs),
        "batch_us": a_batch,
        "train_us_per_token": (total("compute_us") - a_batch * sum(len(r["batches"]) for r in rounds)) / tokens,
        "behaviour_us_per_token": total("logprob_us") / tokens,
        "optimizer_us": total("step_us") / len(rounds),
        "publish_us": 1000 * sum(r["published_ms"] - r["step_begun_ms"] for r in rounds) / len(rounds),
        "verify_us": total("verify_us") / groups,
        "message_us": MESSAGE_US,
    }


def prompt_us(found, steps):
    """A sample's share of the steps that had a prompt in them, less what their decoding rows cost."""
    metric = found["metric"]
    decode_steps = sum(n for _, _, n in found["steps"])
    decode_us = sum(us * n for _, us, n in found["steps"])
    mixed = metric["leasehold_generation_steps_total"] - decode_steps
    mixed_us = 1e6 * metric['leasehold_generation_seconds_total{cause="compute"}'] - decode_us
    rows = max(1.0, found["slots"] - SAMPLES / 2)
    samples = SAMPLES * sum(h["groups"] for h in found["history"])
    return max(0.0, mixed_us - mixed * line_at(steps, rows)) / samples


def predict(costs_, cell, ratio=0.0):
    """{mode, "clairvoyant" or "bound": {"window_s": ..., ...}}, means of the measured rounds; ratio 0: of what was measured.  inflight is not simulated here."""
    words = {k: v for k, v in costs_.items() if k != "steps"}
    words.update(groups=cell.groups, samples=SAMPLES, slots=cell.slots, prefetch=cell.slots // 2, batch_tokens=BATCH_TOKENS, groups_per_step=GROUPS_PER_STEP, ratio=ratio)
    lines = [f"{name} {value}" for name, value in words.items()]
    lines += [f"step {rows} {us}" for rows, us in costs_["steps"]]
    lines += ["lengths " + " ".join(map(str, lengths)) for lengths in cell.drawn()[WARM:]]
    made = subprocess.run([PREDICT], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"bench-pipeline: {made.stderr}")
    found = {}
    for line in made.stdout.splitlines():
        name, _, *values = line.split()
        found.setdefault(name, []).append([float(v) for v in values])
    said = {name: named([sum(column) / len(column) for column in zip(*rows)]) for name, rows in found.items()}
    said["inflight"] = {"window_s": max(said["sync"]["rollout_s"], said["sync"]["train_s"])}  # what is attainable: the slower of the two never waits
    return said


def named(values):
    if len(values) == 1:
        return {"window_s": values[0] / 1e6}
    window, rollout, train, first, idle = values
    return {"window_s": window / 1e6, "rollout_s": rollout / 1e6, "train_s": train / 1e6, "first_dispatch_s": first / 1e6,
            "trainer_waiting_ratio": 1 - train / window, "generation_idle_ratio": 1 - (1 - idle) * rollout / window}
