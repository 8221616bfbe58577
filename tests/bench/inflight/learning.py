"""Learning runs on the demo's task, for bench-inflight: a warm-up for each seed, runs of every mode from its weights, and what they have learned.

  warm-up (all cores, the best kernels) -> the same trainer with one core and the kernels it is measured with -> run after run, each from the warm-up's version
  when a run has ended: its checkpoints, evaluated one after the other

The learning rule is PipelineRL's `reinforce`: the ratio to the behaviour policy is a constant factor, at most RATIO_MAX.  PPO's clip would bound how far a policy
may move within its lag, so that it learns more slowly the older its samples are.  Where nothing is old, both rules are the same.

Evaluation is no part of a run, so it takes no time from it: a checkpoint is the start of a run of one step with learning rate 0, whose evaluation before that
step is what counts.  All runs of a seed are asked the same problems with the same random numbers.
"""
import os
import shutil

from cell import figures, sums
from services import VERIFY, Usage, place, wait_quietly

from harness import Cluster, call, grpo_config, warmup_config

SAMPLES = 8
RATIO_MAX = 5.0
LOOK_S = 0.25
TRAINER = ("--threads", 1, "--isa", os.environ.get("TRAINER_ISA", "v4"))
BALANCED = ("--slots", int(os.environ.get("SLOTS", 16)), "--isa", os.environ.get("SAMPLER_ISA", "v3"))  # T_r about T_t
SWIFT = ("--slots", 64)  # the stream is full after a few steps
SWIFT_FROM = 4  # of max_lag


def sampler_of(lag):
    """Of 0, sync, too.  With T_r about T_t, sampling gains a step's worth on the trainer in five to ten steps: too slowly for the large lags to be seen."""
    return BALANCED if lag < SWIFT_FROM else SWIFT


class School:
    """The services of one seed, and the weights that every run of it starts from."""

    def __init__(self, folder, seed, groups, warmup):
        self.folder, self.seed, self.groups = folder, seed, groups
        self.cluster = Cluster(folder, trainer=["--random-init", seed, "--keep-checkpoints", 1000])
        self.server, self.server_flags, self.servers = None, None, 0
        self.before = None  # accuracy of the warm-up's weights
        try:
            self.start = self.warm_up(warmup)
        except BaseException:
            self.__exit__(True)
            raise

    def warm_up(self, steps):
        trainer = self.cluster.trainer
        run = self.cluster.create_run(warmup_config(steps, self.seed))
        wait_quietly(self.cluster, run, LOOK_S)
        trainer.stop()
        trainer.restart([*trainer.args, *TRAINER])
        return {"run": run, "version": steps}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.cluster.__exit__(kind)
        shutil.rmtree(self.folder, ignore_errors=True)

    def sample_with(self, flags):
        """One generation-server with these flags, and each service where it belongs."""
        if flags == self.server_flags:
            return
        if self.server:
            self.server.stop()
            self.cluster.services.remove(self.server)
        self.servers += 1
        self.server = self.cluster.add_server(f"gen-{self.servers}", "--threads", 1, *flags)
        self.server_flags = flags
        place(self.cluster, [self.server])

    def config(self, lag, lr, rounds, checkpoint_every):
        made = grpo_config(rounds, self.seed, self.groups, SAMPLES)
        made.update(name=f"{name_of(lag)}, lr {lr:g}", mode="sync", start=self.start, verify_samples=VERIFY)
        if lag:
            made.update(mode="inflight", max_lag=lag, samples_ahead=lag * self.groups * SAMPLES)
        made["training"].update(lr=lr, objective="reinforce", clip_high=RATIO_MAX - 1, checkpoint_every=checkpoint_every)
        return made

    def learn(self, lag, lr, rounds, checkpoint_every, warm):
        """A run's figures: {"steps": a dict for each step, "samples_per_s": ..., and so on}.  lag 0: sync."""
        self.sample_with(sampler_of(lag))
        usage = Usage(self.cluster)
        run = self.cluster.create_run(self.config(lag, lr, rounds, checkpoint_every))
        wait_quietly(self.cluster, run, LOOK_S)
        _, others, stolen = usage.end()
        status = self.cluster.status(run)
        assert status["totals"]["logprob_unequal"] == 0 and all(row["groups"] == self.groups for row in status["history"]), "a group was not trained on, or not exactly"
        times = call("GET", f"{self.cluster.coordinator.url}/v1/runs/{run}/timeline?limit=10000")["rounds"]
        history, measured = status["history"], slice(warm, rounds)
        found = sums(history, times, measured) if lag else figures(history, times, warm)
        return {**found, "run": run, "lag": lag, "lr": lr, "others": others, "stolen": stolen, "steps": self.steps(run, history, times)}

    def steps(self, run, history, times):
        """What each step was trained on and when its version was there.  Of a lag there are figures in flight only: in sync it is 0."""
        rewards = dict(self.cluster.query(
            "SELECT coalesce(g.trained_in, g.round), avg(s.reward) FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal"
            " WHERE g.run = ? AND g.batch IS NOT NULL GROUP BY 1", int(run[1:])))
        begun, made = times[0]["opened_ms"], []
        for step, (row, time) in enumerate(zip(history, times)):
            old = row["lag"] or {"min": 0, "mean": 0.0, "max": 0}
            made.append({"step": step + 1, "seconds": (time["published_ms"] - begun) / 1e3, "samples": (step + 1) * self.groups * SAMPLES, "reward_mean": rewards[step],
                         "ess": row["ess"], "kl": row["kl_new_old"], "lag_min": old["min"], "lag_mean": old["mean"], "lag_max": old["max"]})
        return made

    def evaluate(self, run, version, problems, samples):
        """Held-out accuracy of a checkpoint."""
        self.sample_with(SWIFT)
        made = grpo_config(1, self.seed, 1, 2)
        made.update(name=f"accuracy of {run}, version {version}", mode="sync", start={"run": run, "version": version})
        made["training"]["lr"] = 0
        made["evaluation"] = {"path": "test.jsonl", "every_rounds": 1, "samples": samples, "problems": problems}
        asked = self.cluster.create_run(made)
        wait_quietly(self.cluster, asked, 0.05)
        return self.cluster.status(asked)["evaluations"][0]["accuracy"]

    def examine(self, found, every, problems, samples):
        """Puts the accuracy into every `every`-th step of a run, and what it was before the first."""
        if self.before is None:
            self.before = self.evaluate(self.start["run"], self.start["version"], problems, samples)
        found["before"] = self.before
        for row in found["steps"]:
            if row["step"] % every == 0:
                row["accuracy"] = self.evaluate(found["run"], row["step"], problems, samples)


def name_of(lag):
    return f"inflight, max_lag {lag}" if lag else "sync"
