"""Links between services that hold back what goes through them, or break.  What would break: a server that cannot be pushed to costs every round the time that a push
may take; a run stands still without saying that its trainer does not answer; a link that is whole again leaves the run behind; other weights."""
import contextlib
import os
import random
import re
import time

import pytest

from harness import DATA, Standalone, call, digests, grpo_config
from links import Link

ENDLESS = 100000  # rounds; the tests stop their runs


@contextlib.contextmanager
def linked(folder, servers=2):
    """A cluster, and its links by their names: to-trainer, trainer-to-coordinator, to-gen-0, gen-0-to-coordinator and so on."""
    links = {}

    def link(name, target=None):
        links[name] = Link(target)
        return links[name].url

    folder.mkdir(exist_ok=True)
    try:
        with Standalone(folder) as cluster:
            cluster.database = folder / "coordinator.db"
            cluster.coordinator = cluster.start("coordinator", "coordinator", ["--db", cluster.database, "--data-dir", DATA, "--heartbeat-ms", 500])
            url = cluster.coordinator.url
            flags = ["--coordinator", link("trainer-to-coordinator", url), "--advertise-url", link("to-trainer"), "--threads", 1]
            cluster.trainer = cluster.start("trainer", "trainer-server", [*flags, "--model", DATA / "model", "--random-init", 1, "--state-dir", folder / "state", "--name", "trainer"])
            links["to-trainer"].aim(cluster.trainer.url)
            for name in (f"gen-{i}" for i in range(servers)):
                flags = ["--coordinator", link(f"{name}-to-coordinator", url), "--advertise-url", link(f"to-{name}"), "--threads", 1]
                links[f"to-{name}"].aim(cluster.start(name, "generation-server", [*flags, "--name", name, "--slots", 16]).url)
            cluster.wait_registered()
            yield cluster, links
    finally:
        for one in links.values():
            one.close()


def begin(cluster, **more):
    config = grpo_config(ENDLESS, groups=4, samples=4)
    config["training"].update(lr=0.0004, checkpoint_every=50)
    return cluster.create_run({**config, **more})


def round_of(cluster, run):
    return cluster.status(run)["round"] or 0


def wait_rounds(cluster, run, more, seconds=60):
    """Seconds until so many rounds more were published."""
    begun, wanted = time.monotonic(), round_of(cluster, run) + more
    cluster.wait_until(f"{more} rounds more", lambda: round_of(cluster, run) >= wanted, seconds)
    return time.monotonic() - begun


def end(cluster, run):
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
    return cluster.wait(run, state="stopped")


def test_a_server_that_cannot_be_pushed_to_costs_a_push_now_and_then(tmp_path):
    """As behind a firewall that drops what comes in: it pulls every version and works, and each round took stage_timeout_ms."""
    with linked(tmp_path) as (cluster, links):
        run = begin(cluster, stage_timeout_ms=200)
        wait_rounds(cluster, run, 3)
        links["to-gen-0"].hold()
        begun, before = time.monotonic(), round_of(cluster, run)
        wait_rounds(cluster, run, 40)
        rounds, seconds = round_of(cluster, run) - before, time.monotonic() - begun
        tried = cluster.trainer.log_text().count(f"failed: POST {links['to-gen-0'].url}")
        # Pauses of 0.8 s, 1.6 s, 3.2 s and so on behind each: the n-th failure comes 0.8 * (2 ** (n - 1) - 1) s after the first at the soonest.
        assert 0 < tried and 0.8 * (2 ** (tried - 1) - 1) <= seconds, (tried, rounds, seconds)
        assert tried < rounds / 4, (tried, rounds, seconds)
        links["to-gen-0"].heal()
        version, log = round_of(cluster, run), next(service for service in cluster.services if service.name == "gen-0").log_text
        cluster.wait_until("it is pushed to again", lambda: max((int(v) for v in re.findall(r"version (\d+) of run r1 is staged", log())), default=0) > version, 120)
        sampled = {w["name"] for w in end(cluster, run)["totals"]["workers"] if w["samples"]}
        assert sampled == {"gen-0", "gen-1"}


def test_a_run_says_that_its_trainer_does_not_answer(tmp_path):
    """Its heartbeats arrive, and what it is sent does not: the run stood still for four minutes before it said so."""
    with linked(tmp_path, servers=1) as (cluster, links):
        run = begin(cluster)
        wait_rounds(cluster, run, 3)
        links["to-trainer"].hold()
        waits = cluster.wait_until("the run says what it waits for", lambda: cluster.status(run)["waiting_for"], 60)
        assert links["to-trainer"].url in waits and "expected" in waits
        links["to-trainer"].heal()
        wait_rounds(cluster, run, 3)
        cluster.wait_until("it waits for nothing any more", lambda: not cluster.status(run)["waiting_for"])
        end(cluster, run)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pipelined", "inflight"])
def test_drawn_links_hold_and_break(mode, tmp_path):
    """SEED=... COUNT=...: every run goes on within seconds of its links' being whole again, and its weights are those of a run that was left alone."""
    seed, count = int(os.environ.get("SEED", 1)), int(os.environ.get("COUNT", 3))
    with linked(tmp_path / "alone") as (cluster, _):
        run = begin(cluster)
        wait_rounds(cluster, run, 150, 240)
        reference = digests(end(cluster, run))
    for at in range(seed, seed + count):
        draw = random.Random(at)
        with linked(tmp_path / str(at)) as (cluster, links):
            run = begin(cluster, mode=mode, **({"max_lag": 4} if mode == "inflight" else {}))
            wait_rounds(cluster, run, 3)
            for _ in range(6):
                time.sleep(draw.uniform(0.2, 1.5))
                names = draw.sample(sorted(links), draw.choice([1, 1, 1, 2, len(links)]))
                how, seconds = draw.choice(["hold", "hold", "hold and break", "break"]), draw.choice([0.5, 2, 5, 20])
                for name in names if "hold" in how else []:
                    links[name].hold()
                time.sleep(seconds if "hold" in how else 0)
                for name in names:
                    links[name].heal()
                    if "break" in how:
                        links[name].break_off()
                took = wait_rounds(cluster, run, 3, 25)
                print(f"seed {at}, {mode}: {how} {', '.join(names)} for {seconds} s: three rounds more after {took:.1f} s")
            status = end(cluster, run)
            shared = min(len(reference), len(status["history"]))
            assert mode == "inflight" or digests(status)[:shared] == reference[:shared]
