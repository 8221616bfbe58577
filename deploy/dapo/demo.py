#!/usr/bin/env python3
"""The DAPO demo: problems of mixed difficulty, a reward of several terms, and a control that must not learn.

    a base that answers badly and at length --DAPO--> held-out problems          asymmetric clip, groups without a signal refilled, loss by tokens,
      the same base, the same run, rewards permuted within each group --> the same problems              overlong answers penalized, two steps a round

Real services as separate processes, everything over REST: a supervised warm-up, an evaluation, the run, an evaluation of what it made; then the control
from the same base, and its evaluation.  Prints the calls' outcomes as they come, a table by difficulty, and writes summary.json.

Variables: SEED (1), OUT (build/dapo), BIN (build/bin), ROUNDS and WARMUP (other numbers of rounds, for smoke tests), MODE (pipelined; sync ends with the
same weights), CONTROL (shuffled; lr0: learning rate 0).  Called by `make demo-dapo`; needs Python and nothing else.
"""
import atexit
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "demo"))

from own_place import set_apart, take_folder

MODEL = HERE.parent / "demo/model"
SEED = int(os.environ.get("SEED", 1))
MODE = os.environ.get("MODE", "pipelined")
CONTROL = os.environ.get("CONTROL", "shuffled")
OUT = pathlib.Path(os.environ.get("OUT", "build/dapo")).resolve()
BIN = pathlib.Path(os.environ.get("BIN", "build/bin")).resolve()
FORMAT = re.compile(r"([0-9][+*][0-9]=[0-9];)+#[0-9]")
START_SECONDS, RUN_SECONDS, LOOK_SECONDS = 20, 1800, 0.25
LEVELS = {"easy": (1, 2), "medium": (3, 4), "hard": (5, 6)}  # operations

services = {}


def fail(text):
    print(f"demo: {text}\ndemo: the logs are in {OUT}/logs", file=sys.stderr)
    sys.exit(1)


def stop_services():
    for process in services.values():
        process.terminate()
    for process in services.values():
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def start(name, program, *args):
    """A service on a free port; its URL."""
    port_file = OUT / "ports" / name
    with open(OUT / "logs" / f"{name}.log", "ab") as log:
        process = subprocess.Popen([BIN / program, "--port", "0", "--port-file", port_file, *map(str, args)], stdout=log, stderr=log)
    services[name] = process
    until = time.monotonic() + START_SECONDS
    while not (port_file.exists() and port_file.read_text().strip()):
        if process.poll() is not None or time.monotonic() > until:
            fail(f"{name} did not start")
        time.sleep(0.02)
    return f"http://127.0.0.1:{port_file.read_text().strip()}"


def call(method, url, body=None):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(), method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        fail(f"{method} {url}: {error.code} {error.read().decode()}")
    except OSError as error:
        fail(f"{method} {url}: {error}")


def draw(share, width=30):
    filled = max(0, min(width, round(share * width)))
    return "#" * filled + "." * (width - filled)


def progress(row):
    if row["reward_mean"] is None:
        return f"loss {row['loss']:.4f}"
    return f"reward {row['reward_mean']:+.3f} {draw(row['reward_mean'] / 1.2)}   tokens a sample {row['completion_tokens_mean']:.1f}   filtered and refilled {row['filtered']}"


def run(coordinator, config, show=0):
    """The run's status once it is completed.  show: every so many rounds a line."""
    created = call("POST", coordinator + "/v1/runs", config)["id"]
    shown, until = 0, time.monotonic() + RUN_SECONDS
    while True:
        for name, process in services.items():
            if process.poll() is not None:
                fail(f"{name} died")
        summary = next(row for row in call("GET", coordinator + "/v1/runs")["runs"] if row["id"] == created)
        while show and (summary["round"] or 0) > shown + show or (summary["state"] == "completed" and show and shown + show <= config["rounds"]):
            shown += show
            row = call("GET", f"{coordinator}/v1/runs/{created}/rounds?from={shown - 1}&limit=1")["rounds"][0]
            print(f"  round {shown:4d}/{config['rounds']}   {progress(row)}", flush=True)
        if summary["state"] == "completed":
            return call("GET", f"{coordinator}/v1/runs/{created}")
        if summary["state"] in ("failed", "stopped", "paused") or time.monotonic() > until:
            fail(f"run {created} is {summary['state']}: {summary['error']}")
        time.sleep(LOOK_SECONDS)


def operations(prompt):
    return len(prompt) // 2 - 1


def evaluate(coordinator, name):
    """Accuracy, format and tokens of the held-out problems under what the trainer holds, by difficulty."""
    config = json.loads((HERE / "runs/evaluate.json").read_text())
    done = run(coordinator, {**config, "name": f"{config['name']}, {name}", "seed": SEED})
    rollouts = call("GET", f"{coordinator}/v1/runs/{done['id']}/rollouts?limit=4096")["rollouts"]

    def figures(chosen):
        return {
            "accuracy": sum(sample["reward"] for sample in chosen) / len(chosen),
            "format": sum(bool(FORMAT.fullmatch(sample["text"])) for sample in chosen) / len(chosen),
            "tokens": sum(len(sample["token_ids"]) for sample in chosen) / len(chosen),
        }

    found = {level: figures([sample for sample in rollouts if operations(sample["prompt"]) in counts]) for level, counts in LEVELS.items()}
    found["all"] = figures(rollouts)
    print(f"  {name}: accuracy {found['all']['accuracy']:.4f}, right format {found['all']['format']:.4f}, {found['all']['tokens']:.1f} tokens a sample", flush=True)
    return found


def dapo_config(base, rounds, control=None):
    config = json.loads((HERE / "runs/dapo.json").read_text())
    config.update(seed=SEED, mode=MODE, start=base, rounds=rounds)
    if control:
        config["name"] += f", control {control}"
    if control == "shuffled":
        config["verifier"]["shuffle_rewards"] = True
    if control == "lr0":
        config["training"]["lr"] = 0
    return config


def train(coordinator, config):
    done = run(coordinator, config, show=max(1, config["rounds"] // 6))
    history = done["history"]
    return {
        "run": done["id"],
        "weights_sha256": done["weights_digest"],
        "distinct_digests": len({row["digest"] for row in history}),
        "groups_filtered": sum(row["filtered"] for row in history),
        "sampled_tokens": done["totals"]["sampled_tokens"],
        "rl_wall_ms": done["totals"]["rl_wall_ms"],
        "logprob_max_abs_diff": done["totals"]["logprob_max_abs_diff"],
        "stale_results_trained_on": done["totals"]["stale_results_trained_on"],
    }


def table(before, after, control):
    print(f"\n  {'':28} {'before':>10} {'DAPO':>10} {'control':>10}")
    for figure, form in (("accuracy", "{:.1%}"), ("format", "{:.1%}"), ("tokens", "{:.1f}")):
        for level in (*LEVELS, "all"):
            cells = [form.format(column[level][figure]) for column in (before, after, control)]
            print(f"  {figure + ', ' + level:28} " + " ".join(f"{cell:>10}" for cell in cells))


def main():
    if CONTROL not in ("shuffled", "lr0") or MODE not in ("pipelined", "sync"):
        print("demo: expected CONTROL shuffled or lr0, and MODE pipelined or sync", file=sys.stderr)
        sys.exit(2)
    set_apart("demo")
    began = time.monotonic()
    take_folder("demo", OUT)
    for folder in ("logs", "ports"):
        (OUT / folder).mkdir(parents=True)
    atexit.register(stop_services)
    subprocess.run([sys.executable, HERE / "make_data.py", OUT / "data"], check=True)
    warmup = {**json.loads((HERE / "runs/warmup.json").read_text()), "seed": SEED}
    warmup["rounds"] = int(os.environ.get("WARMUP", warmup["rounds"]))
    rounds = int(os.environ.get("ROUNDS", json.loads((HERE / "runs/dapo.json").read_text())["rounds"]))

    print(f"Starting the services (seed {SEED}, mode {MODE}, control {CONTROL}); logs in {OUT}/logs", flush=True)
    coordinator = start("coordinator", "coordinator", "--db", OUT / "coordinator.db", "--data-dir", OUT / "data", "--heartbeat-ms", 250)
    start("trainer", "trainer-server", "--coordinator", coordinator, "--model", MODEL, "--random-init", SEED, "--state-dir", OUT / "trainer", "--name", "trainer")
    start("generation-1", "generation-server", "--coordinator", coordinator, "--name", "gen-1", "--slots", 64, "--threads", 1)
    until = time.monotonic() + START_SECONDS
    while len(call("GET", coordinator + "/v1/workers")["workers"]) < 2:
        if time.monotonic() > until:
            fail("the services did not register")
        time.sleep(0.05)

    print(f"\n1. Supervised warm-up: {warmup['rounds']} steps of 64 worked examples with two bad habits", flush=True)
    base = {"run": run(coordinator, warmup, show=max(1, warmup["rounds"] // 4))["id"], "version": warmup["rounds"]}
    before = evaluate(coordinator, "before")
    print(f"\n2. DAPO: {rounds} rounds of 64 groups x 8 samples, two optimizer steps each", flush=True)
    trained = train(coordinator, dapo_config(base, rounds))
    after = evaluate(coordinator, "after")
    print(f"\n3. The control ({CONTROL}), from the same base: nothing may be learned", flush=True)
    controlled = train(coordinator, dapo_config(base, rounds, CONTROL))
    control = evaluate(coordinator, "control")
    table(before, after, control)

    summary = {"seed": SEED, "mode": MODE, "rounds": rounds, "before": before, "after": after, "control": control, "control_kind": CONTROL, "dapo": trained, "control_run": controlled,
               "model": str(OUT / "trainer" / trained["run"] / f"v{rounds}"), "seconds": round(time.monotonic() - began, 1)}
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n  groups without a signal {trained['groups_filtered']}   largest |trainer - sampler| log-probability {trained['logprob_max_abs_diff']}")
    print(f"  weights sha256 {trained['weights_sha256']}\n  {summary['seconds']} s in all; the model lies in {summary['model']}, the summary in {OUT}/summary.json")


if __name__ == "__main__":
    main()
