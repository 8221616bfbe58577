"""One run of the pipeline's benchmark: real services, one mode, one workload; and what its rounds tell.

The first WARM rounds of a run are left out: the pool loads its first weights in them, and admission plans by costs and lengths that it has measured.
A window is a round's opening to the end of its training (`window_without_publish_ms`, "rollout to train end"); the trainer's waiting ratio is
wait / (wait + compute), over all measured rounds.

`inflight` has no window: its rounds are steps that overlap, so what stands for it is the mean time between two publications.  Its run is longer, because the
stream must have filled up, and the steps that are taken from what is left at its end are not counted.  What all modes have in common is samples_per_s: trained
samples of the measured rounds, over the time between the publication before the first of them and that of the last.
"""
import dataclasses
import json
import re
import shutil
import time

from services import VERIFY, Usage, place, wait_quietly
from workload import CONTEXT, LENGTH_MAX, draw_lengths, write_dataset, write_model

from harness import DATA, Cluster, call, digests

SAMPLES = 8  # the paper's K
GROUPS_PER_STEP = 2  # the paper's U
WARM = 1
STEPS_AHEAD = 2  # in flight: what may be drawn ahead of the trainer, the coordinator's default
STREAM_WARM, STREAM_MEASURED = 1 + STEPS_AHEAD, 2  # STREAM_MEASURED: times the rounds that the other modes are measured over
BATCH_TOKENS = 65536
HEARTBEAT_S = 1.3
MODES = {
    "sync": {"mode": "sync"},
    "cgp": {"mode": "pipelined", "frontier": "off"},
    "gate": {"mode": "pipelined", "frontier": "gate"},
    "pipelined": {"mode": "pipelined", "frontier": "priority"},
    "minibatch": {"mode": "pipelined", "frontier": "priority", "update": "minibatch", "groups_per_step": GROUPS_PER_STEP},
    "inflight": {"mode": "inflight"},
}
STRICT = ("sync", "cgp", "gate", "pipelined")  # these end with the same weights
REPEATABLE = (*STRICT, "minibatch")  # these with the same ones in every run


@dataclasses.dataclass(frozen=True)
class Cell:
    lengths: str
    groups: int
    slots: int
    isa: str  # of the sampler's kernels; "": the best this CPU has, as the trainer's are
    preamble: int  # letters before each prompt: they are trained on, and cost generation little
    rounds: int  # WARM included
    seed: int

    def of_stream(self):
        """The same workload, long enough for a stream: the rounds of the other modes come first in it."""
        return dataclasses.replace(self, rounds=STREAM_WARM + STREAM_MEASURED * (self.rounds - WARM) + STEPS_AHEAD)

    def drawn(self):
        return draw_lengths(self.lengths, self.groups, self.rounds, self.seed)


def config(cell, mode):
    made = json.loads((DATA / "runs/grpo.json").read_text())
    del made["evaluation"], made["start"]
    made.update(name=f"{cell.lengths}, {mode}", rounds=cell.rounds, seed=cell.seed, groups_per_round=cell.groups, samples_per_group=SAMPLES, verify_samples=VERIFY, **MODES[mode])
    if mode == "inflight":
        made["samples_ahead"] = STEPS_AHEAD * cell.groups * SAMPLES
    made["dataset"] = {"path": "train.jsonl", "shuffle": False}
    made["sampling"] = {"temperature": 1, "max_new_tokens": LENGTH_MAX, "ignore_eos": True}
    made["training"].update(kl_coefficient=0, checkpoint_every=1000000)
    return made


def run(folder, cell, mode, batch_tokens=BATCH_TOKENS):
    """What was measured, as a dict; see figures()."""
    cell = cell.of_stream() if mode == "inflight" else cell
    data = folder / "data"
    write_dataset(data, DATA / "train.jsonl", cell.drawn(), cell.preamble, cell.seed)
    trainer = ["--threads", 1, "--random-init", 1, "--chunk-tokens", SAMPLES * CONTEXT]
    try:
        with Cluster(folder / "cluster", model=write_model(folder / "model", DATA / "model"), trainer=trainer, coordinator=["--data-dir", data, "--batch-tokens", batch_tokens]) as cluster:
            server = cluster.add_server("gen", "--slots", cell.slots, "--threads", 1, "--isa", cell.isa)
            place(cluster, [server])
            usage = Usage(cluster)
            made = cluster.create_run(config(cell, mode))
            wait_quietly(cluster, made)
            own, others, stolen = usage.end()
            time.sleep(HEARTBEAT_S)  # the slots' time is told of by heartbeats
            status = cluster.status(made)
            timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/{made}/timeline?limit=1000")
            metrics = call("GET", server.url + "/metrics", raw=True).decode()
            kernels = call("GET", server.url + "/v1/model")["kernels"].removeprefix("cpu-")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    totals = status["totals"]
    assert totals["logprob_unequal"] == 0 and totals["stale_results_trained_on"] == 0
    assert all(row["groups"] == cell.groups and row["exact"] for row in status["history"]), "a group was not trained on"
    rounds = digests(status)
    assert mode not in REPEATABLE or len(set(rounds)) == len(rounds), "a round has changed no weight, so equal digests would prove nothing"
    judged = stream_figures if mode == "inflight" else figures
    return {"mode": mode, **judged(status["history"], timeline["rounds"]), "digests": rounds, "cpu_s": own, "others": others, "stolen": stolen,
            "slots": cell.slots, "kernels": kernels, "rounds": timeline["rounds"], "history": status["history"], "workers": timeline["workers"],
            "steps": decode_steps(metrics), "metric": {key: float(value) for key, value in re.findall(r"^([a-z][^ ]*) (\S+)$", metrics, re.M)}}


def stream_figures(history, rounds):
    """Of an `inflight` run: as figures(), without what is of a round there and of no step here."""
    measured = slice(STREAM_WARM, len(rounds) - STEPS_AHEAD)
    found = sums(history, rounds, measured)
    lags = [h["lag"] for h in history[measured]]
    return {**found, "window_s": found["between_publications_s"], "rollout_s": None, "first_dispatch_s": None,
            "lag_min": min(lag["min"] for lag in lags), "lag_mean": sum(lag["mean"] for lag in lags) / len(lags), "lag_max": max(lag["max"] for lag in lags)}


def figures(history, rounds, warm=WARM):
    """Seconds and ratios of the measured rounds, in the mean."""
    measured = slice(warm, len(rounds))
    found = sums(history, rounds, measured)
    n, history, rounds = len(rounds) - warm, history[measured], rounds[measured]
    return {
        **found,
        "window_s": sum(h["window_without_publish_ms"] for h in history) / n / 1e3,
        "rollout_s": sum(r["generated_ms"] - r["opened_ms"] for r in rounds) / n / 1e3,
        "first_dispatch_s": sum(r["batches"][0]["submitted_ms"] - r["opened_ms"] for r in rounds) / n / 1e3,
    }


def sums(history, rounds, measured):
    """What has the same meaning in every mode."""
    before = rounds[measured.start - 1]["published_ms"]
    groups = sum(h["groups"] for h in history[measured])
    rounds = rounds[measured]
    n, passed = len(rounds), (rounds[-1]["published_ms"] - before) / 1e3
    wait, work = (sum(r["trainer"][cause + "_us"] for r in rounds for cause in causes) for causes in (("fill", "starved"), ("logprob", "compute")))
    return {
        "samples_per_s": groups * SAMPLES / passed,
        "between_publications_s": passed / n,
        "train_s": work / n / 1e6,
        "step_s": sum(s["step_us"] or 0 for r in rounds for s in r["inner_steps"]) / n / 1e6,
        "publish_s": sum(r["published_ms"] - r["trained_ms"] for r in rounds) / n / 1e3,
        "batches": sum(len(r["batches"]) for r in rounds) / n,
        "trainer_waiting_ratio": wait / (wait + work),
        "generation_idle_ratio": 1 - sum(r["generation"]["slot_busy_us"] for r in rounds) / sum(r["generation"]["slot_window_us"] for r in rounds),
    }


def decode_steps(metrics):
    """[(mean rows, mean microseconds, steps)] of the pool's decode steps, by rows."""
    found = {}
    for name, rows_max, value in re.findall(r'^leasehold_generation_decode_(\w+)_total\{rows_max="(\d+)"\} (\S+)$', metrics, re.M):
        found.setdefault(int(rows_max), {})[name] = float(value)
    return [(s["rows"] / s["steps"], 1e6 * s["seconds"] / s["steps"], s["steps"]) for _, s in sorted(found.items())]
