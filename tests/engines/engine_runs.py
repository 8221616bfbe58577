"""What a foreign engine must do under a rollout-agent: for make vllm and make sglang.

Each run must complete with every sample the engine's and every version proven by the checksum of its weights or by a probe, and whose tokens'
log-probabilities the trainer finds again within what bfloat16 allows.
"""
import os
import pathlib
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Cluster, Standalone, call, digests, grpo_config, make_base_model, wider_model  # noqa: E402

BASE_ROUNDS, ROUNDS = 40, 6
START_SECONDS, RUN_SECONDS = 600, 600
MEAN_DIFFERENCE_MOST = 0.15  # nats of a token's log-probability: the engine's bfloat16 activations beside our fp32 ones
# Short, so that the context of 128 holds a chat.
CHAT_TEMPLATE = """\
{%- if tools %}T{% for tool in tools %}{{ tool.function.name }};{% endfor %}{% endif -%}
{%- if brief %}B:{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role[0] }}
{{ message.content }}{% if message.tool_calls %}{% for c in message.tool_calls %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>a
{% endif -%}
"""


class Engine:
    """A server of others; kept on its port when it is started again."""

    def __init__(self, wire, command, settings, up, log):
        """wire: the agent's --engine; command(port): its argument list, without the flags of start; up: a route that answers once it serves."""
        self.wire, self.command, self.settings, self.up, self.log = wire, command, settings, up, log
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self, *flags):
        """The answer of the route that tells that it serves."""
        return self.launch([*self.command(self.port), *flags], {**os.environ, **self.settings})

    def launch(self, command, environment):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], env=environment, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return call("GET", self.url + self.up)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{self.wire} does not start:\n{self.log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.5)

    def kill(self):
        if self.process:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


class Pool(Cluster):
    """A coordinator, a trainer, and an agent before the engine."""

    def __init__(self, folder, base, engine, *flags):
        super().__init__(folder, base)
        self.agent = self.start("agent", "rollout-agent", ["--coordinator", self.coordinator.url, "--name", "agent", "--engine", engine.wire, "--engine-url", engine.url,
                                                           "--engine-model", "leasehold", "--weights-dir", self.folder / "versions", "--slots", 8, *flags])  # the last of a flag holds


def make_base(folder):
    """A small base by the demo's route, with a chat template."""
    base = make_base_model(folder, rounds=BASE_ROUNDS, model=wider_model(folder, 4))  # vLLM's attention wants heads of 32 and more
    (base / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return base


def config(**more):
    made = {**grpo_config(rounds=ROUNDS, groups=4, samples=4), **more}
    made["sampling"] = {**made["sampling"], "temperature": 1}
    made["training"]["lr"] = 0.001  # at the tests' 0.004 the policy breaks, and every rounding shows
    return made


def check_run(name, pool, status, shown_by):
    totals = status["totals"]
    samplers = {worker["name"]: worker["samples"] for worker in totals["workers"]}
    assert list(samplers) == ["agent"] and samplers["agent"] >= ROUNDS * 16, samplers  # in flight some may be beyond the last step
    reasons = [row["inexact_reason"] for row in status["history"]]
    assert len(reasons) == ROUNDS
    assert status["mode"] == "inflight" or all(reason.startswith("the engine of agent is not ours") for reason in reasons), reasons
    loads = [line for line in pool.agent.log_text().splitlines() if "the engine holds version" in line]
    sampled = len(set(digests(status)[:-1]))  # versions behind the first: a step without advantages leaves the weights as they were
    assert len({line.split("version ")[1].split()[0] for line in loads}) >= sampled >= ROUNDS / 2 and all(shown_by in line for line in loads), (sampled, loads)
    assert 0 < totals["logprob_mean_abs_diff"] < MEAN_DIFFERENCE_MOST, totals["logprob_mean_abs_diff"]
    print(f"{name}: {ROUNDS} rounds, {totals['sampled_tokens']} tokens, {len(loads)} loads; log-probabilities differ by "
          f"{totals['logprob_mean_abs_diff']:.4f} nats in the mean, {totals['logprob_max_abs_diff']:.2f} at most")


def whole_runs(folder, base, engine):
    with Pool(folder / "checksum", base, engine) as pool:
        check_run("checksums", pool, pool.run(config(), seconds=RUN_SECONDS), "shown by its checksum")
        status = pool.run(config(mode="inflight", max_lag=1), seconds=RUN_SECONDS)
        check_run("in flight", pool, status, "shown by its checksum")
    with Pool(folder / "probe", base, engine, "--check", "probe") as pool:
        check_run("a probe", pool, pool.run(config(), seconds=RUN_SECONDS), "shown by a probe")


def a_kill(folder, base, engine, *flags):
    """It comes back with the folder's weights, not with those that it had been given."""
    with Pool(folder, base, engine) as pool:
        run = pool.create_run(config())
        pool.wait_until("some rounds are over", lambda: (pool.status(run)["round"] or 0) >= 2, seconds=RUN_SECONDS)
        engine.kill()
        pool.agent.wait_log("the engine's weights are in doubt")
        engine.start(*flags)
        check_run("killed and started again", pool, pool.wait(run, seconds=RUN_SECONDS), "shown by its checksum")


def compare(script, folder, base, engine, seeds):
    """The same drawn requests to it and to a generation-server."""
    folder.mkdir()
    with Standalone(folder) as alone:
        ours = alone.start("ours", "generation-server", ["--model", base, "--slots", 8])
        for seed in seeds:
            subprocess.run([sys.executable, script, ours.url, engine.url, str(seed)], check=True)
