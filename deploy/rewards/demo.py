#!/usr/bin/env python3
"""make demo-reward: the demo's task, judged by a reward server of one's own, which is killed in mid-run and started again.

  supervised warm-up -> held-out accuracy -> GRPO, rewards by reward_server.py, SIGKILL, DOWN seconds without it, started again -> held-out accuracy
  -> the same run undisturbed: both must end with the same weights, bit for bit

Held-out accuracy is by the built-in verifier, which knows nothing of the server.  Variables: SEED (1), ROUNDS and WARMUP as in the demo's runs, DOWN (20), OUT
(build/demo-reward), BIN (build/bin), CONTROL ("", or shuffled: rewards permuted within each group; then nothing may be learned, and the run is not repeated).
Exit status 1: it did not learn, or it learned as a control, or the weights differ, or a reward was missed.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "deploy/demo"
sys.path.insert(0, str(DATA))

from own_place import set_apart, take_folder

OUT = pathlib.Path(os.environ.get("OUT", "build/demo-reward"))
BIN = pathlib.Path(os.environ.get("BIN", "build/bin"))
SEED, DOWN, CONTROL = int(os.environ.get("SEED", 1)), float(os.environ.get("DOWN", 20)), os.environ.get("CONTROL", "")
LEARNED, NOT_LEARNED = 0.2, 0.05  # more than this gained; less

SCORES = '''
import re
def score(prompt, response, label):
    """The demo's answer: the number behind the last #."""
    last = re.findall(r"#(-?[0-9]+)$", response.strip())
    return 1.0 if last and last[-1] == label else 0.0
'''


class Services:
    def __init__(self):
        self.running = {}

    def start(self, name, *command, port=0):
        """Its URL, once it listens."""
        file = OUT / f"{name}.port"
        file.unlink(missing_ok=True)
        with open(OUT / "logs" / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen([*map(str, command), "--port", str(port), "--port-file", str(file)], stdout=log, stderr=subprocess.STDOUT)
        for _ in range(1200):
            if file.exists() and file.read_text().strip():
                return f"http://127.0.0.1:{file.read_text().strip()}"
            if self.running[name].poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"demo-reward: {name} did not start; see {OUT}/logs/{name}.log")

    def kill(self, name):
        self.running[name].send_signal(signal.SIGKILL)
        self.running.pop(name).wait()

    def stop(self):
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def call(method, url, body=None):
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"demo-reward: {method} {url}: {error.code}: {error.read()[:600].decode(errors='replace')}")


class Demo:
    def __init__(self, services):
        self.services = services
        self.coordinator = services.start("coordinator", BIN / "coordinator", "--db", OUT / "coordinator.db", "--data-dir", DATA, "--heartbeat-ms", 250,
                                          "--reward-hosts", "127.0.0.1")
        self.judge = self.start_judge(0)
        services.start("trainer", BIN / "trainer-server", "--coordinator", self.coordinator, "--name", "trainer", "--model", DATA / "model", "--random-init", SEED,
                       "--state-dir", OUT / "trainer", "--threads", 1)
        services.start("generation", BIN / "generation-server", "--coordinator", self.coordinator, "--name", "gen-1", "--slots", 128, "--threads", 1)

    def start_judge(self, port):
        return self.services.start("judge", sys.executable, ROOT / "deploy/rewards/reward_server.py", "--module", OUT / "scores.py", port=port)

    def status(self, run):
        return call("GET", f"{self.coordinator}/v1/runs/{run}")

    def create(self, config):
        return call("POST", f"{self.coordinator}/v1/runs", config)["id"]

    def wait(self, run, until=lambda status: False, every=10):
        told = 0
        while True:
            status = self.status(run)
            done = len(status["history"])
            if every and done >= told + every and status["reward_mean"] is not None:
                told = done - done % every
                print(f"  round {done}: mean reward {status['reward_mean']:.3f}", flush=True)
            if status["state"] in ("failed", "stopped", "paused"):
                sys.exit(f"demo-reward: run {run} is {status['state']}: {status['error']}")
            if status["state"] == "completed" or until(status):
                return status
            time.sleep(0.1)

    def accuracy(self, name):
        config = json.loads((DATA / "runs/evaluate.json").read_text())
        config["seed"] = SEED
        accuracy = self.wait(self.create(config), every=0)["result"]["accuracy"]
        print(f"  {name}: {100 * accuracy:.2f} % of 256 held-out problems, sampled at T = 1")
        return accuracy

    def warmup(self):
        config = json.loads((DATA / "runs/warmup.json").read_text())
        config.update(seed=SEED, rounds=int(os.environ.get("WARMUP", config["rounds"])))
        run = self.create(config)
        self.wait(run, every=0)
        return {"run": run, "version": config["rounds"]}

    def grpo(self, start):
        config = json.loads((DATA / "runs/grpo.json").read_text())
        config.update(name="demo: rewards from a server of one's own", seed=SEED, start=start, rounds=int(os.environ.get("ROUNDS", config["rounds"])))
        config.pop("evaluation")
        config["verifier"] = {"kind": "http", "server": {"url": self.judge + "/get_reward", "breaker_failures": 3, "breaker_ms": 500},
                              "shuffle_rewards": CONTROL == "shuffled"}
        return self.create(config), config["rounds"]

    def lose_the_judge(self, run, rounds):
        self.wait(run, lambda status: status["round"] is not None and status["round"] >= rounds // 3)
        self.services.kill("judge")
        print(f"  the reward server is killed in round {self.status(run)['round']} and stays away for {DOWN:g} s", flush=True)
        time.sleep(DOWN)
        status = self.status(run)
        known = status["reward_servers"][0]
        print(f"  round {status['round']}: {known['waiting']} samples wait for rewards; breaker {known['breaker']} after {known['failures']} failures: {known['last_error']}")
        if not known["waiting"]:
            sys.exit("demo-reward: nothing waited for the reward server")
        self.start_judge(int(self.judge.rpartition(":")[2]))
        print("  it is started again", flush=True)


def judged(before, after, status, again, rounds):
    gained, known = after - before, status["reward_servers"][0]
    problems = []
    if CONTROL and gained >= NOT_LEARNED:
        problems.append(f"a control that must not learn gained {gained:.3f}")
    if not CONTROL and gained <= LEARNED:
        problems.append(f"it gained {gained:.3f}, more than {LEARNED} was expected")
    if known["missed"] or known["answered"] != rounds * 64 * 8:
        problems.append(f"{known['answered']} rewards were answered and {known['missed']} missed, {rounds * 64 * 8} were expected")
    if again and again["weights_digest"] != status["weights_digest"]:
        problems.append("the undisturbed run ended with other weights")
    return problems


def demo(services):
    started = time.monotonic()
    made = Demo(services)
    print(f"Rewards by {made.judge}/get_reward, a server of one's own (seed {SEED}{', rewards permuted within each group' if CONTROL else ''})\n1. Supervised warm-up", flush=True)
    start = made.warmup()
    print("2. The base model")
    before = made.accuracy("before")
    run, rounds = made.grpo(start)
    print(f"3. GRPO: {rounds} rounds of 64 groups x 8 samples, every reward asked for over HTTP", flush=True)
    made.lose_the_judge(run, rounds)
    status = made.wait(run)
    print("4. The trained model")
    after = made.accuracy("after")
    again = None
    if not CONTROL:
        print("5. The same run with the server there all the time", flush=True)
        again = made.wait(made.grpo(start)[0], every=0)
        print(f"  weights: {again['weights_digest'][:16]}..., {status['weights_digest'][:16]}... with the server killed")
    known, problems = status["reward_servers"][0], judged(before, after, status, again, rounds)
    summary = {"heldout_accuracy_before": before, "heldout_accuracy_after": after, "control": CONTROL, "seed": SEED, "rounds": rounds, "down_seconds": DOWN,
               "weights_sha256": status["weights_digest"], "undisturbed_weights_sha256": again and again["weights_digest"], "reward_server": known,
               "seconds": round(time.monotonic() - started, 1), "problems": problems}
    (OUT / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"Held-out accuracy {100 * before:.2f} % -> {100 * after:.2f} %; {known['answered']} rewards in {known['requests']} requests, {known['failures']} of which failed; "
          f"{summary['seconds']} s; {OUT}/summary.json")
    return problems


def main():
    if CONTROL not in ("", "shuffled"):
        sys.exit(f"demo-reward: CONTROL must be empty or shuffled, got '{CONTROL}'")
    set_apart("demo-reward")
    take_folder("demo-reward", OUT)
    (OUT / "logs").mkdir(parents=True)
    (OUT / "scores.py").write_text(SCORES)
    services = Services()
    try:
        problems = demo(services)
    finally:
        services.stop()
    for problem in problems:
        print(f"demo-reward: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
