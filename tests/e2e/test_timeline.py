"""Bubble accounting of a real run: the intervals that workers report add up to the time that passed, to the figures measured elsewhere, and to the ratios shown.

One run a mode, looked at from all sides.  Tolerances are for borders (milliseconds of a clock read twice), never for time that is missing.
"""
import re

import pytest

from harness import Cluster, call, grpo_config

pytestmark = pytest.mark.alone

ROUNDS, HEARTBEAT_MS = 5, 200
WAIT, WORK = ("fill", "starved"), ("logprob", "compute")


class Look:
    def __init__(self, cluster, run):
        self.status = cluster.status(run)
        self.timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline")
        self.rounds = self.timeline["rounds"]
        self.history = self.status["history"]
        self.totals = self.status["totals"]
        self.worker = {w["name"]: w for w in self.timeline["workers"]}
        self.registered = {w["name"]: w for w in call("GET", f"{cluster.coordinator.url}/v1/workers")["workers"]}
        self.begin_us = self.rounds[0]["opened_ms"] * 1000
        self.end_us = self.rounds[-1]["published_ms"] * 1000
        self.gauges = metrics(cluster.coordinator)
        self.servers = {s.name: metrics(s) for s in cluster.services if s.program == "generation-server"}

    def intervals(self, name, *causes):
        return [i for i in self.worker[name]["intervals"] if not causes or i[0] in causes]


def metrics(service):
    text = call("GET", service.url + "/metrics", raw=True).decode()
    return {key: float(value) for key, value in re.findall(r"^([a-z][^ ]*) (\S+)$", text, re.M)}


def took(intervals):
    return sum(end - begin for _, begin, end in intervals)


def within(intervals, begin_us, end_us):
    return sum(max(0, min(end, end_us) - max(begin, begin_us)) for _, begin, end in intervals)


def covered(intervals):
    """Of the union."""
    total, until = 0, 0
    for _, begin, end in sorted(intervals, key=lambda i: i[1]):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def close(a, b, share=0.01, absolute=0.0):
    return abs(a - b) <= max(absolute, share * max(abs(a), abs(b)))


def wait_heard_twice(cluster):
    """What a worker says in its second heartbeat from now it has said after this was called."""
    heard = {}

    def twice():
        for worker in call("GET", cluster.coordinator.url + "/v1/workers")["workers"]:
            heard.setdefault(worker["name"], set()).add(worker["seen_ms"])
        return all(len(times) > 2 for times in heard.values())

    cluster.wait_until("all workers were heard twice", twice)


@pytest.fixture(scope="module", params=["sync", "pipelined"])
def look(request, tmp_path_factory, larger_model):
    folder = tmp_path_factory.mktemp(f"timeline-{request.param}")
    with Cluster(folder, model=larger_model, trainer=["--threads", 1], coordinator=["--heartbeat-ms", HEARTBEAT_MS, "--batch-tokens", 700]) as cluster:
        cluster.add_server("single", "--slots", 1, "--isa", "v2")
        cluster.add_server("wide", "--slots", 6, "--isa", "v2")
        cluster.wait_until("both servers are registered", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers")["workers"]) == 3)
        config = grpo_config(ROUNDS, groups=10, samples=6)
        config["mode"] = request.param
        run = cluster.create_run(config)
        cluster.wait(run)
        wait_heard_twice(cluster)  # the servers' last figures come with the heartbeat after the end
        yield Look(cluster, run)


def test_the_trainer_does_one_thing_at_a_time_and_is_always_accounted_for(look):
    lane = sorted(look.intervals("trainer"), key=lambda i: i[1])  # its pushes too: in these modes it has nothing to compute beside them
    for before, after in zip(lane, lane[1:]):
        assert after[1] >= before[2] - 1000, f"{before} and {after} overlap"
    assert covered(look.intervals("trainer")) >= 0.95 * (look.end_us - look.begin_us)


@pytest.mark.parametrize("name", ["single", "wide"])
def test_a_server_does_one_thing_at_a_time_and_is_always_accounted_for(look, name):
    lane = look.intervals(name)
    assert {cause for cause, _, _ in lane} <= {"compute", "load", "starved", "idle"}
    for before, after in zip(lane, lane[1:]):
        assert after[1] >= before[2], f"{before} and {after} overlap"
    assert took(lane) >= 0.95 * (look.end_us - look.begin_us)
    assert within([i for i in lane if i[0] == "idle"], look.rounds[1]["opened_ms"] * 1000, look.end_us) == 0  # it knows of the run since its first heartbeat
    assert any(cause == "load" for cause, _, _ in lane)


def test_the_trainers_sums_are_its_measurements(look):
    for row in look.rounds:
        sums, batches = row["trainer"], row["batches"]
        assert batches and all(b["logprob_us"] > 0 for b in batches)
        assert sums["logprob_us"] == sum(b["logprob_us"] for b in batches) == row["logprob_us"]
        assert sums["logprob_us"] + sums["compute_us"] == sum(b["compute_us"] for b in batches) == row["compute_us"]
        assert close(sums["step_us"], row["step_us"], 0.05, 2000)
        assert close(sums["checkpoint_us"], row["checkpoint_us"], 0.05, 2000)
        assert sums["push_us"] >= row["push_us"] - 1000  # and the announcement


def test_the_sums_are_those_of_the_picture(look):
    for cause in ("logprob", "compute", "step", "checkpoint", "starved"):
        assert close(took(look.intervals("trainer", cause)), sum(r["trainer"][cause + "_us"] for r in look.rounds), 0.01, 1000), cause
    for cause in ("compute", "starved", "load", "idle"):
        pool = sum(took(look.intervals(name, cause)) for name in look.servers)
        assert close(pool, sum(r["generation"][cause + "_us"] for r in look.rounds), 0.001, 100), cause
    for row in look.rounds:
        begin, end = row["opened_ms"] * 1000, row["published_ms"] * 1000
        for cause in ("compute", "starved"):  # a heartbeat in the millisecond in which a round ends gives the round what lies behind its end too
            pool = sum(within(look.intervals(name, cause), begin, end) for name in look.servers)
            assert close(pool, row["generation"][cause + "_us"], 0.001, 1000), (row["round"], cause)


def test_busy_time_is_computing_time(look):
    compute_us = took(look.intervals("single", "compute"))
    assert compute_us > 0 and close(compute_us, look.registered["single"]["busy_slot_us"], 0.10)
    for name, gauges in look.servers.items():
        assert close(took(look.intervals(name, "compute")), 1e6 * gauges['leasehold_generation_seconds_total{cause="compute"}'], 0.10), name
        busy_us = look.registered[name]["busy_slot_us"]
        assert busy_us <= 1.1 * look.registered[name]["slots"] * took(look.intervals(name, "compute")), name
    assert close(sum(r["generation"]["slot_busy_us"] for r in look.rounds), sum(look.registered[n]["busy_slot_us"] for n in look.servers), 0.02)


def test_decode_steps_are_counted_by_their_rows(look):
    for name, gauges in look.servers.items():
        table = {}
        for key, value in gauges.items():
            if m := re.match(r'leasehold_generation_decode_(\w+)_total\{rows_max="(\d+)"\}', key):
                table.setdefault(int(m[2]), {})[m[1]] = value
        assert table and max(table) <= 8, name
        for most, sums in table.items():
            assert (most // 2 if most > 1 else 0) < sums["rows"] / sums["steps"] <= most, (name, most)
        decoded = sum(sums["rows"] for sums in table.values())
        assert 0.5 * gauges["leasehold_generation_rows_total"] < decoded < gauges["leasehold_generation_rows_total"], name
        assert 0 < sum(s["seconds"] for s in table.values()) <= 1.01 * gauges['leasehold_generation_seconds_total{cause="compute"}'], name


def test_the_ratios_of_a_round_are_what_one_computes_by_hand(look):
    for row, shown in zip(look.rounds, look.history, strict=True):
        window = row["published_ms"] - row["opened_ms"]
        wait, work = (sum(row["trainer"][cause + "_us"] for cause in causes) for causes in (WAIT, WORK))
        slots = row["generation"]
        assert shown["window_ms"] == shown["round_ms"] == window
        assert max(b["done_ms"] for b in row["batches"]) <= row["trained_ms"]  # later only when a last group was filtered
        assert shown["window_without_publish_ms"] == row["trained_ms"] - row["opened_ms"] <= window
        assert shown["trainer_waiting_ratio"] == pytest.approx(wait / (wait + work))
        assert shown["trainer_first_dispatch_ratio"] == pytest.approx((min(b["submitted_ms"] for b in row["batches"]) - row["opened_ms"]) / window)
        assert shown["generation_idle_ratio"] == pytest.approx(1 - slots["slot_busy_us"] / slots["slot_window_us"])
        assert close(slots["slot_window_us"], 7 * 1000 * window, 0.05, 7 * 20000)
        for ratio in ("trainer_waiting_ratio", "trainer_first_dispatch_ratio", "generation_idle_ratio"):
            assert 0 <= shown[ratio] <= 1


def test_the_totals_are_what_one_computes_by_hand(look):
    wait, work = (sum(r["trainer"][cause + "_us"] for r in look.rounds for cause in causes) for causes in (WAIT, WORK))
    window = sum(row["window_ms"] for row in look.history)
    dispatch = sum(row["trainer_first_dispatch_ratio"] * row["window_ms"] for row in look.history)
    totals = look.totals
    assert totals["trainer_wait_ms"] == pytest.approx(wait / 1000)
    assert totals["trainer_compute_ms"] == pytest.approx(work / 1000)
    assert totals["trainer_waiting_ratio"] == pytest.approx(wait / (wait + work))
    assert totals["window_ms"] == window == totals["rl_wall_ms"]  # a round opens when the one before is published
    assert totals["window_without_publish_ms"] == sum(row["window_without_publish_ms"] for row in look.history)
    assert totals["trainer_first_dispatch_ratio"] == pytest.approx(dispatch / window)
    by_round = 1 - sum(r["generation"]["slot_busy_us"] for r in look.rounds) / sum(r["generation"]["slot_window_us"] for r in look.rounds)
    assert totals["generation_idle_ratio"] == pytest.approx(by_round, abs=0.03)
    by_picture = took(look.intervals("trainer", *WAIT)) / took(look.intervals("trainer", *WAIT, *WORK))
    assert totals["trainer_waiting_ratio"] == pytest.approx(by_picture, abs=0.03)  # its first wait began before the round


def test_the_gauges_are_the_totals(look):
    for name in ("trainer_waiting_ratio", "trainer_first_dispatch_ratio", "generation_idle_ratio"):
        assert look.gauges["leasehold_run_" + name] == pytest.approx(look.totals[name])
    assert look.gauges["leasehold_round_window_seconds"] == look.history[-1]["window_ms"] / 1000
    assert look.gauges["leasehold_round_window_without_publish_seconds"] == look.history[-1]["window_without_publish_ms"] / 1000


def test_verifying_lies_in_its_round(look):
    spans = look.intervals("coordinator")
    assert len(spans) == ROUNDS
    for row, (cause, begin, end) in zip(look.rounds, spans, strict=True):
        assert cause == "verifying" and 0 < row["verify_us"] <= end - begin
        assert row["opened_ms"] * 1000 <= begin and end <= row["published_ms"] * 1000


def test_overlap_shows(look):
    """A sync trainer waits until every group is in; a pipelined one has begun long before."""
    for row in look.rounds:
        first = min(b["submitted_ms"] for b in row["batches"])
        if look.status["mode"] == "sync":
            assert first >= row["generated_ms"]
            assert row["trainer"]["fill_us"] > row["trainer"]["starved_us"]
        else:
            assert first < row["generated_ms"]
