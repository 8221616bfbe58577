"""LENGTHS=demo: the demo's RL phase in `pipelined` against `sync`, in interleaved pairs, at the ratio of generation to training that the demo has.

  warm-up once (as the demo does) -> PAIRS x (one mode, then the other; who goes first alternates) -> medians of per-pair ratios

Every run must end with the same digest after every round.  Writes build/bench/pipeline-demo.csv and prints the table.  Variables beside those of
services.py: PAIRS (5), ROUNDS (the demo's 120), SEED (1), SERVERS (1), SLOTS (64), FRONTIER (priority).
"""
import csv
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

from services import ROOT, place, wait_quietly

from harness import DATA, Cluster, call, digests

PAIRS, SEED, SERVERS, SLOTS = (int(os.environ.get(name, default)) for name, default in (("PAIRS", 5), ("SEED", 1), ("SERVERS", 1), ("SLOTS", 64)))
FIGURES = ("rl_wall_ms", "trainer_waiting_ratio", "trainer_first_dispatch_ratio", "generation_idle_ratio", "window_ms", "window_without_publish_ms", "tokens_per_second")


def config(name):
    c = json.loads((DATA / f"runs/{name}.json").read_text())
    c["seed"] = SEED
    return c


def make_base(folder):
    """The demo's warm-up; the weights do not depend on threads or cores."""
    with Cluster(folder / "warmup", trainer=["--random-init", SEED, "--threads", 2]) as cluster:
        run = cluster.create_run(config("warmup"))
        status = cluster.wait(run, 900)
        shutil.copytree(cluster.folder / "state" / run / f"v{status['rounds']}", folder / "base")
    return folder / "base"


def measure(folder, base, mode):
    c = config("grpo")
    c["mode"] = mode
    c["frontier"] = os.environ.get("FRONTIER", "priority")
    c["rounds"] = int(os.environ.get("ROUNDS", c["rounds"]))
    with Cluster(folder, model=base, trainer=["--threads", 1]) as cluster:
        place(cluster, [cluster.add_server(f"gen-{i + 1}", "--slots", SLOTS, "--threads", 1) for i in range(SERVERS)])
        wait_quietly(cluster, cluster.create_run(config("evaluate")), 2)  # as in the demo: the pool has its weights when the RL phase begins
        run = cluster.create_run(c)
        wait_quietly(cluster, run, 2)
        status = cluster.status(run)
        timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline?limit=10000")
    totals = status["totals"]
    assert totals["logprob_unequal"] == 0 and totals["stale_results_trained_on"] == 0
    overlapped = sum(r["batches"][0]["submitted_ms"] < r["generated_ms"] for r in timeline["rounds"] if r["batches"])
    return {**{k: totals.get(k) for k in FIGURES}, "overlapped_rounds": overlapped, "rounds": c["rounds"], "digests": digests(status)}


def demo():
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    rows, ratios, halved = [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as name:
        folder = pathlib.Path(name)
        base, reference = make_base(folder), None
        for pair in range(PAIRS):
            order = ("sync", "pipelined") if pair % 2 == 0 else ("pipelined", "sync")
            found = {}
            for mode in order:
                found[mode] = measure(folder / f"{pair}-{mode}", base, mode)
                reference = reference or found[mode]["digests"]
                if found[mode]["digests"] != reference:
                    sys.exit(f"bench-pipeline: pair {pair}, {mode}: other digests than before: the modes are not equal")
                shutil.rmtree(folder / f"{pair}-{mode}", ignore_errors=True)
                rows.append({"pair": pair, "mode": mode, **{k: v for k, v in found[mode].items() if k != "digests"}})
                print("  " + "   ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items() if v is not None), flush=True)
            ratios.append(found["pipelined"]["rl_wall_ms"] / found["sync"]["rl_wall_ms"])
            halved.append(found["pipelined"]["trainer_waiting_ratio"] / found["sync"]["trainer_waiting_ratio"])
            if found["pipelined"]["overlapped_rounds"] < 0.9 * found["pipelined"]["rounds"]:
                sys.exit("bench-pipeline: training did not begin before the last group in nine rounds of ten: nothing was overlapped")
    with open(out / "pipeline-demo.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print(f"RL phase, pipelined / sync: {', '.join(f'{r:.3f}' for r in ratios)}; median {statistics.median(ratios):.3f} (bar: at most 0.75)")
    print(f"trainer waiting ratio, pipelined / sync: median {statistics.median(halved):.3f} (bar: at most 0.5)")
    print(f"same digest after each of {len(reference)} rounds in all {2 * PAIRS} runs, the last {reference[-1]}")
