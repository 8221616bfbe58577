"""The demo's own parts: how cores are shared out, how a run is followed, what the comparison at its end says and draws; and the whole demo, small, in several layouts."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from harness import BIN, ROOT

DEMO = ROOT / "deploy/demo"


def layout(command, **environment):
    result = subprocess.run(["bash", "-euc", f". {DEMO}/layout.sh; {command}"], capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return [int(word) for word in result.stdout.split()]


def jq(program, *args, text=None):
    return subprocess.run(["jq", "-L", DEMO, *args, program], input=text, capture_output=True, text=True, check=True).stdout


# --- cores ---


@pytest.mark.parametrize(
    ("cores", "sampling", "training", "shares"),
    [(1, 70, 70, [1, 1]), (2, 70, 70, [1, 1]), (2, 1, 900, [1, 1]), (3, 70, 60, [2, 1]), (3, 60, 70, [1, 2]), (4, 70, 66, [2, 2]), (4, 20, 66, [1, 3]), (4, 66, 20, [3, 1]), (8, 70, 66, [4, 4]), (8, 30, 90, [2, 6])],
)
def test_cores_are_shared_out_by_what_was_measured(cores, sampling, training, shares):
    assert layout(f"share_cores {cores} {sampling} {training}") == shares


@pytest.mark.parametrize("cores", [5, 7, 16, 64, 256])
@pytest.mark.parametrize(("sampling", "training"), [(57000, 67000), (9000, 230000), (230000, 9000)])
def test_no_other_share_has_a_faster_slower_pool(cores, sampling, training):
    servers, threads = layout(f"share_cores {cores} {sampling} {training}")
    assert servers >= 1 and threads >= 1 and servers + threads <= cores and servers <= 8 and threads <= 64
    best = min(max(sampling / s, training / min(cores - s, 64)) for s in range(1, min(cores, 9)))
    assert max(sampling / servers, training / threads) == pytest.approx(best)


def test_the_servers_of_a_pool_have_room_for_half_a_round():
    assert [layout(f"slots_for {servers}")[0] for servers in (1, 2, 4, 5, 8)] == [64, 64, 64, 51, 32]


def test_the_processors_are_those_of_the_process(tmp_path):
    (tmp_path / "taskset").write_text("#!/bin/sh\necho \"pid $2's current affinity list: 0-2,5,8-9\"\n")
    (tmp_path / "taskset").chmod(0o755)
    assert layout("cpu_list", PATH=f"{tmp_path}:{os.environ['PATH']}") == [0, 1, 2, 5, 8, 9]
    assert layout("cpu_list") == sorted(os.sched_getaffinity(0))


# --- following a run ---


def follow(events, kind, rounds, every):
    text = "retry: 1000\n\n" + "".join(f"id: {n}\nevent: {event}\ndata: {json.dumps(data)}\n\n" for n, (event, data) in enumerate(events))
    return jq((DEMO / "follow.jq").read_text(), "-nrR", "--arg", "kind", kind, "--argjson", "rounds", str(rounds), "--argjson", "every", str(every), text=text).splitlines()


def a_round(number, **figures):
    return ("round", {"round": number, "sampled_tokens": 1000, "reward_mean": 0.5, "loss": 0.25, **figures})


def test_a_run_is_followed_by_its_events():
    events = [("state", {"state": "running", "error": None}), ("eval", {"round": 0, "accuracy": 0.5859375}), *(a_round(n) for n in range(3)),
              a_round(3, reward_mean=None), ("eval", {"round": 4, "accuracy": 1}), a_round(4, reward_mean=1), a_round(5, reward_mean=0.04), ("state", {"state": "paused", "error": "no trainer"})]
    lines = follow(events, "grpo", 120, 2)
    assert lines[0] == "state running " and lines[-1] == "state paused no trainer"
    assert [re.sub(r"\d+ tokens/s.*", "", line) for line in lines[1:-1]] == [
        "  round   2/120   reward 0.500 " + "#" * 15 + "." * 15 + "   validation 0.586   ",
        "  round   4/120   reward 0.500 " + "#" * 15 + "." * 15 + "   validation 0.586   ",
        "  round   6/120   reward 0.040 #" + "." * 29 + "   validation 1.000   ",
    ]


def test_a_warm_up_is_followed_by_its_loss():
    lines = follow([("state", {"state": "running", "error": None}), *(a_round(n, reward_mean=None, loss=0.0286) for n in range(100)), ("state", {"state": "completed", "error": None})], "warmup", 100, 50)
    assert [line.rpartition("  ")[0] for line in lines[1:-1]] == ["  step   50/100   loss 0.0286 ", "  step  100/100   loss 0.0286 "] and lines[-1] == "state completed "


# --- the comparison ---


def timeline(windows, fill, generated, lanes=()):
    """Rounds that lie one behind the other, all alike but for their windows (ms)."""
    rounds, at = [], 1000
    for number, window in enumerate(windows, 1):
        rounds.append({
            "round": number, "opened_ms": at, "generated_ms": at + generated, "published_ms": at + window,
            "trainer": {"fill_us": fill * 1000, "starved_us": 2000, "logprob_us": 10000, "compute_us": 20000, "step_us": 0, "checkpoint_us": 0, "push_us": 0, "load_us": 0},
            "generation": {"slot_busy_us": 300, "slot_window_us": 1000},
        })
        at += window
    return {"rounds": rounds, "workers": [{"name": name, "kind": kind, "intervals": [[cause, since * 1000, until * 1000] for cause, since, until in spans]} for name, kind, spans in lanes]}


def overlap(sync, pipelined, apart="true"):
    return json.loads(jq(f'include "overlap"; overlap(.[0]; .[1]; {apart})', text=json.dumps([sync, pipelined])))


def test_the_comparison_is_what_one_computes_by_hand():
    found = overlap(timeline([100, 110, 500, 120], 60, 25), timeline([80, 70, 75], 10, 50))
    assert found["sync"]["window"] == 115 and found["pipelined"]["window"] == 75 and found["ratio"] == pytest.approx(75 / 115)
    assert (found["sync"]["sampling"], found["sync"]["training"], found["pipelined"]["fill"]) == (25, 30, 10)
    assert found["attainable"] == pytest.approx((10 + 30) / (25 + 30))
    assert found["sync"]["trainer_waiting_ratio"] == pytest.approx(62 / 92) and found["pipelined"]["trainer_waiting_ratio"] == pytest.approx(12 / 42)
    assert found["sync"]["generation_idle_ratio"] == pytest.approx(0.7)


def test_runs_of_one_mode_count_together():
    """Each mode is played twice, so that a machine that becomes slower meanwhile favours neither."""
    lanes = [[("gen-1", "generation", [("compute", since, since + 10)]), ("trainer", "trainer", [("compute", since + 10, since + 30)])] for since in (1000, 9000)]
    first, second = timeline([100, 110], 60, 25, lanes[0]), timeline([300, 310], 60, 45, lanes[1])
    both = json.loads(jq('include "overlap"; together', text=json.dumps([first, second])))
    assert both["rounds"] == first["rounds"] + second["rounds"]
    assert [(worker["name"], worker["intervals"]) for worker in both["workers"]] == [(a["name"], a["intervals"] + b["intervals"]) for a, b in zip(first["workers"], second["workers"])]
    assert overlap(both, both)["sync"]["window"] == 205


def test_sampling_bounds_a_round_where_training_is_shorter():
    assert overlap(timeline([100], 90, 90), timeline([95], 5, 90))["attainable"] == pytest.approx(90 / 120)


def test_sampling_ends_with_the_last_sample_and_not_when_its_group_is_checked():
    lanes = [("gen-1", "generation", [("compute", 1000, 1030), ("compute", 1098, 1140)]), ("gen-2", "generation", [("compute", 1005, 1040)]), ("trainer", "trainer", [("compute", 1040, 1095)])]
    found = overlap(timeline([100, 100], 60, 95, lanes), timeline([80], 10, 75))
    assert (found["sync"]["sampling"], found["pipelined"]["sampling"]) == (40, 75)


def test_nothing_is_attainable_on_shared_cores():
    assert overlap(timeline([100], 60, 60), timeline([95], 5, 60), apart="false")["attainable"] is None


LANES = (
    ("gen-2", "generation", [("starved", 990, 1004), ("compute", 1004, 1012), ("starved", 1012, 1030)]),
    ("gen-1", "generation", [("compute", 1000, 1010), ("starved", 1010, 1020), ("load", 1020, 1022)]),
    ("gone", "generation", [("idle", 990, 1022)]),
    ("coordinator", "coordinator", [("verifying", 1005, 1012)]),
    ("trainer", "trainer", [("push", 995, 1001), ("fill", 1001, 1006), ("logprob", 1006, 1008), ("compute", 1008, 1014), ("starved", 1014, 1015), ("step", 1015, 1015.2), ("checkpoint", 1015.2, 1019), ("push", 1019, 1022)]),
)


def test_the_picture_shows_who_did_what_when():
    drawn = jq('include "overlap"; lanes(.rounds[0]; 1000)', "-r", text=json.dumps(timeline([20], 5, 12, LANES))).splitlines()
    assert drawn == [
        "gen-1      ##########----------|",
        "gen-2      ----########--------|",
        "verifying       vvvvvvv        |",
        "trainer    p.....ll======-scccp|",
    ]


def test_what_alternates_within_a_letter_is_shown_in_proportion():
    spans = [(cause, 1000 + 2 * n + begin, 1000 + 2 * n + until) for n in range(30) for cause, begin, until in (("logprob", 0, 0.5), ("compute", 0.5, 2))]
    drawn = jq('include "overlap"; lanes(.rounds[0]; 2000)', "-r", text=json.dumps(timeline([60], 5, 12, [("trainer", "trainer", spans)])))
    assert 7 <= drawn.count("l") <= 8 and 22 <= drawn.count("=") <= 23, drawn


def test_a_picture_waits_until_every_worker_has_told_its_part():
    told = [(name, kind, spans if kind == "coordinator" else [*spans, ("starved", 1022, 1030)]) for name, kind, spans in LANES]
    for lanes, answer in ((told, "true"), (LANES, "false")):
        assert jq('include "overlap"; told', text=json.dumps(timeline([30], 5, 12, lanes))).strip() == answer


# --- all of it ---


def demo(folder, **variables):
    return subprocess.run(["bash", DEMO / "demo.sh"], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "BIN": str(BIN), "OUT": str(folder), "SEED": "3", "WARMUP": "4", "ROUNDS": "2", **variables})


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = demo(folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, json.loads((folder / "summary.json").read_text())


def test_the_demo_compares_the_modes_on_the_cores_that_it_has(usual):
    text, summary = usual
    cores = len(os.sched_getaffinity(0))
    shares = summary["layout"]
    assert shares["cores"] == cores and (not shares["each_pool_has_its_own"] or shares["generation_servers"] + shares["trainer_threads"] <= cores)
    assert "both end with the same weights, bit for bit" in text and "as the run above did after its round 2" in text
    assert summary["overlap"]["ratio"] == pytest.approx(summary["overlap"]["pipelined"]["window"] / summary["overlap"]["sync"]["window"])
    drawn = [line for line in text.splitlines() if line.endswith("|")]
    assert [line.split()[0] for line in drawn if line.split()[0] in ("gen-1", "verifying", "trainer")] == ["gen-1", "verifying", "trainer"] * 2
    for lane in drawn:
        assert {"gen-1": "#", "verifying": "v", "trainer": "="}.get(lane.split()[0], "") in lane


@pytest.mark.parametrize(("cpus", "cores"), [("{0}", 1), ("{0},{0},{0}", 3)])
def test_other_cores_give_the_same_weights(tmp_path, usual, cpus, cores):
    """Three that are one stand for a larger machine: rounds are measured first, which must leave no trace."""
    first = min(os.sched_getaffinity(0))
    done = demo(tmp_path / "demo", CPUS=cpus.format(first))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    summary = json.loads((tmp_path / "demo/summary.json").read_text())
    assert summary["weights_sha256"] == usual[1]["weights_sha256"]
    assert summary["layout"]["cores"] == cores and summary["layout"]["each_pool_has_its_own"] == (cores > 1)
    assert ("on one core" in done.stdout) == (cores > 2) and (summary["overlap"]["attainable"] is None) == (cores == 1)


def test_what_the_callers_own_services_are_told_does_not_reach_the_demos(tmp_path, usual):
    """Its services asked curl for certificates and tokens that it does not have, and curl asked the proxy for 127.0.0.1."""
    own = {"LEASEHOLD_TLS_CERT": "/nowhere", "LEASEHOLD_AUTH_TOKEN": "secret", "LEASEHOLD_TOKEN_DIR": "/nowhere", "LEASEHOLD_BIND": "0.0.0.0",
           "LEASEHOLD_ADVERTISE_URL": "http://10.0.0.1:1", "LEASEHOLD_TRACK_DIR": str(tmp_path / "curves"), "http_proxy": "http://127.0.0.1:9"}
    done = demo(tmp_path / "demo", **own)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads((tmp_path / "demo/summary.json").read_text())["weights_sha256"] == usual[1]["weights_sha256"]
    assert not (tmp_path / "curves").exists(), "its r1 would be written over the caller's own"


def affinity_of(folder, name):
    """Of all threads of the service that wrote this port."""
    for status in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{folder}/ports/{name}".encode() in status.read_bytes().split(b"\0"):
                return {frozenset(os.sched_getaffinity(int(task.name))) for task in (status.parent / "task").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"no process of {name}")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="two cores are one each")
def test_each_pool_has_a_core_of_its_own(tmp_path):
    first, second = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "BIN": str(BIN), "OUT": str(tmp_path / "demo"), "SEED": "3", "WARMUP": "4", "ROUNDS": "2", "KEEP": "1"}
    with open(tmp_path / "log", "w") as log, subprocess.Popen(["bash", DEMO / "demo.sh"], cwd=ROOT, stdout=log, stderr=log, env=environment, start_new_session=True) as process:
        try:
            until = time.monotonic() + 200
            while "the services keep running" not in (tmp_path / "log").read_text():
                assert process.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.2)
            assert affinity_of(tmp_path / "demo", "generation-1") == affinity_of(tmp_path / "demo", "coordinator") == {frozenset([first])}
            assert affinity_of(tmp_path / "demo", "trainer") == {frozenset([second])}
            other = demo(tmp_path / "demo")
            assert other.returncode == 2 and "the services of another demo work in" in other.stderr, "their database would be removed, and they would go on"
            assert (tmp_path / "demo/coordinator.db").exists()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    for name in ("coordinator", "trainer", "generation-1"):
        with pytest.raises(AssertionError):
            affinity_of(tmp_path / "demo", name)


def test_processors_that_are_none_are_refused(tmp_path):
    for cpus in ("a", "0,,1", ",0", "0,", "0-1"):
        done = demo(tmp_path / "demo", CPUS=cpus)
        assert done.returncode == 2 and "CPUS must be" in done.stderr


def test_a_folder_of_other_files_is_not_emptied(tmp_path):
    (tmp_path / "thesis").write_text("of years")
    for command in (["bash", DEMO / "demo.sh"], [sys.executable, ROOT / "deploy/dapo/demo.py"], [sys.executable, ROOT / "deploy/rewards/demo.py"]):
        environment = {**os.environ, "BIN": str(BIN), "OUT": str(tmp_path)}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert done.returncode != 0 and "would be emptied" in done.stderr, done
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]
