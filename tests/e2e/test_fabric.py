"""Weights by broadcast: a trainer and generation-servers that one mpirun has started, and that share a fabric.

The way that a version takes changes no digest and does not lengthen a round: a server that the broadcast does not reach is pushed to by HTTP within the same
time-out.
The first part plays whole runs; the second is the coordinator itself, so that a server can be frozen, killed or sick at the very push that is looked at.
"""
import contextlib
import os
import signal
import socket
import time
import urllib.parse

import pytest

from harness import SERVICE_OF, Cluster, HttpError, Service, call, digests, grpo_config, wait_until
from ranks import Pool, rank_pids

ROUNDS = 4
ABC = ("a", "b", "c")
STAGE_TIMEOUT_MS = 3000
LATE_S = 2.5  # beyond the time-out: on a busy machine, but before a second one
PATIENT_MS = 60000  # of a push that waits for nobody: half of it is never waited for, whatever else the machine does


class Server:
    """One that mpirun has started."""

    metric = Service.metric

    def __init__(self, cluster, name, pid):
        port_file = cluster.folder / f"{name}.port"
        self.name, self.pid = name, pid
        self.port = int(cluster.wait_until(f"{name} listens", lambda: port_file.exists() and port_file.read_text().strip()))
        self.url = f"http://127.0.0.1:{self.port}"
        SERVICE_OF[self.url] = "generation-server"

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Started:
    """The cluster's processes, and their registrations once all servers are ready."""

    def __init__(self, cluster):
        self.cluster = cluster
        pool = cluster.trainer.launcher
        pids = rank_pids(cluster.trainer.process.pid)
        self.servers = {name: Server(cluster, name, pids[pool.count + i]) for i, name in enumerate(pool.servers)}
        cluster.wait_until("all servers are ready", lambda: sum(w["ready"] for w in self.workers().values()) > len(self.servers))

    def workers(self):
        return {w["name"]: w for w in call("GET", self.cluster.coordinator.url + "/v1/workers")["workers"]}

    def __getitem__(self, name):
        return self.servers[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers.values():
            server.signal(signal.SIGCONT)


def pool_of(names, model, **more):
    return Pool({name: ["--slots", 16, "--model", model] for name in names}, **more)


def counted(service, name, way):
    return service.metric(rf'{name}\{{way="{way}"\}}')


# ---- whole runs ----


def play(cluster):
    run = cluster.create_run(grpo_config(ROUNDS))
    return digests(cluster.wait(run))


def ways(cluster):
    """{(version, worker's name): way}: 0 is none, 1 HTTP, 2 the fabric"""
    return {(version, name): way for version, name, way in cluster.query("SELECT version, name, way FROM pushes JOIN workers ON worker = 'w' || workers.id")}


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("http"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        played = play(cluster)
    assert len(set(played)) == ROUNDS
    return played


@pytest.mark.parametrize("names", ["a", "abc"])
def test_every_version_goes_by_broadcast(base_model, reference, tmp_path, names):
    with Cluster(tmp_path, model=base_model, launcher=pool_of(names, base_model)) as cluster, Started(cluster) as pool:
        shown = pool.workers()
        assert [shown[name]["fabric"] for name in ("trainer", *names)] == [{"name": "rack", "kind": "mpi", "place": i} for i in range(len(names) + 1)]
        assert play(cluster) == reference
        went = ways(cluster)
        assert set(went.values()) == {2} and len(went) % len(names) == 0 and len(went) >= (ROUNDS - 1) * len(names)
        assert counted(cluster.trainer, "leasehold_trainer_pushes_total", "fabric") == len(went)
        assert cluster.trainer.metric("leasehold_trainer_communicators_total") == 1
        for server in pool.servers.values():
            assert counted(server, "leasehold_generation_versions_staged_total", "fabric") == len(went) / len(names)
            assert counted(server, "leasehold_generation_versions_staged_total", "pull") == 0


def test_a_trainer_of_two_ranks_broadcasts_from_the_first(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, launcher=pool_of("ab", base_model, count=2)) as cluster, Started(cluster):
        assert play(cluster) == reference
        assert set(ways(cluster).values()) == {2}


def test_servers_without_the_fabric_are_pushed_to_beside(base_model, reference, tmp_path):
    """One knows of no fabric, one has another; both are reached as ever."""
    launcher = pool_of("ab", base_model)
    launcher.servers["other"] = [*launcher.servers["b"][2:], "--fabric", "another-rack"]
    with Cluster(tmp_path, model=base_model, launcher=launcher) as cluster, Started(cluster):
        cluster.add_server("plain", "--slots", 16, "--model", base_model)
        cluster.wait_until("it is there", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers")["workers"]) == 5)
        assert play(cluster) == reference
        went = ways(cluster)
        assert {way for (_, name), way in went.items() if name in "ab"} == {2}
        assert {way for (_, name), way in went.items() if name in ("other", "plain")} == {1}


def test_a_trainer_alone_in_its_fabric_pushes_by_http(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, launcher=Pool({})) as cluster:
        cluster.add_server("plain", "--slots", 16)
        assert play(cluster) == reference
        assert set(ways(cluster).values()) == {1} and cluster.trainer.metric("leasehold_trainer_communicators_total") == 0


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM], ids=["frozen", "killed", "leaving"])
def test_a_server_lost_in_the_middle_of_a_run(base_model, reference, tmp_path, how):
    coordinator = ["--worker-ttl-ms", 2000, "--heartbeat-ms", 200]
    with Cluster(tmp_path, model=base_model, coordinator=coordinator, launcher=pool_of(ABC, base_model)) as cluster, Started(cluster) as pool:
        config = grpo_config(ROUNDS)
        config["stage_timeout_ms"] = STAGE_TIMEOUT_MS
        # rounds are quick: the coordinator is slow from their beginning and stands still while it happens, so that there are some left
        cluster.coordinator.slow_down()
        run = cluster.create_run(config)
        cluster.coordinator.freeze_when("a version", lambda: ways(cluster))
        assert max(ways(cluster))[0] < ROUNDS - 1, ways(cluster)
        pool["c"].signal(how)
        cluster.coordinator.hurry()
        assert digests(cluster.wait(run)) == reference
        went = ways(cluster)
        assert went[max(went)[0], "a"] == 2, went
        assert cluster.trainer.metric("leasehold_trainer_communicators_total") == 2


# ---- push by push ----


class Hand:
    """Plays the coordinator towards the trainer: rounds without groups, which make versions of equal weights."""

    def __init__(self, cluster, pool):
        self.url = cluster.trainer.url + "/v1"
        self.pool = pool
        self.trainer = cluster.trainer
        self.authority = {"run": "r1", **cluster.authority()}
        self.workers = pool.workers()
        self.version = 0
        call("POST", self.url + "/runs", {**self.authority, "seed": 1, "training": {"lr": 0.01, "kl_coefficient": 0}})

    def target(self, name):
        worker = self.workers[name]
        return {"worker_id": worker["id"], "url": worker["url"], "fabric_place": worker["fabric"]["place"]}

    def push(self, names, timeout_ms=STAGE_TIMEOUT_MS):
        """{name: by which way it was staged, or None}, and the seconds that the push took."""
        step = f"r1.{self.version}"
        body = {"step_id": step, "version": self.version, "groups": [], "denominator": 0, "last": False, "stage_timeout_ms": timeout_ms}
        call("POST", self.url + "/submit-step", {**self.authority, **body, "push_to": [self.target(name) for name in names]})
        done = call("GET", f"{self.url}/steps/{step}?wait_ms=60000")
        assert done["state"] == "done"
        self.version += 1
        assert all(p["staged"] == (p["way"] is not None) and (not p["staged"] or p["digest"] == done["digest"]) for p in done["pushes"])
        return {name: p["way"] for name, p in zip(names, done["pushes"])}, done["push_us"] / 1e6

    def push_at_once(self, names):
        """Where nobody is waited for: by which way each was staged."""
        went, took = self.push(names, PATIENT_MS)
        assert took < PATIENT_MS / 2000, "somebody was waited for"
        return went

    def communicators(self):
        return self.trainer.metric("leasehold_trainer_communicators_total")


@contextlib.contextmanager
def by_hand(folder, model, **more):
    with Cluster(folder, model=model, launcher=pool_of(ABC, model, **more)) as cluster, Started(cluster) as pool:
        yield Hand(cluster, pool)


def everywhere(way):
    return dict.fromkeys(ABC, way)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("joined", "victim"),
    [pytest.param(False, "c", id="before-joining", marks=pytest.mark.long), pytest.param(True, "c", id="leaf", marks=pytest.mark.long), pytest.param(True, "a", id="with-a-child")],
)
def test_a_frozen_server_costs_the_others_half_a_time_out_once(base_model, tmp_path, joined, victim):
    """In a communicator of three, `a` hands on to `c`.  A server that the broadcast does not reach is pushed to by HTTP in the remaining time; the next
    round's communicator is without the victim; once thawed, it is a member again."""
    others = [name for name in ABC if name != victim]
    with by_hand(tmp_path, base_model) as hand:
        made = 0
        if joined:
            made = 1
            assert hand.push(ABC)[0] == everywhere("fabric")
        hand.pool[victim].signal(signal.SIGSTOP)
        went, took = hand.push(ABC)
        assert went[victim] is None and all(went[name] for name in others)
        assert "http" in went.values() or victim == "c" and joined, went
        assert STAGE_TIMEOUT_MS / 1000 - 0.1 <= took < STAGE_TIMEOUT_MS / 1000 + LATE_S
        assert hand.communicators() == made
        assert hand.push_at_once(others) == dict.fromkeys(others, "fabric")
        assert hand.communicators() == made + 1
        hand.pool[victim].signal(signal.SIGCONT)
        assert hand.push_at_once(ABC) == everywhere("fabric")
        assert hand.communicators() == made + 2


def test_flipped_bytes_are_refused_and_the_server_left_out(base_model, tmp_path):
    with by_hand(tmp_path, base_model, sick={"b": "flip-incoming"}) as hand:
        for made in (1, 2, 2):
            assert hand.push_at_once(ABC) == {"a": "fabric", "b": "http", "c": "fabric"}
            assert hand.communicators() == made
        log = hand.trainer.log_text()
        assert "fault: flipped bit" in log and "was announced with digest" in log
        assert log.count("is pushed to by HTTP alone until it registers anew") == 1


@pytest.mark.alone
def test_a_fabric_that_does_not_work_rests(base_model, tmp_path):
    """`b` is named at a place where there is another: it never comes, though it lives, and nobody knows whose fault that is.  The next round is by
    HTTP at once, the one after it tries again, then two are by HTTP."""
    with by_hand(tmp_path, base_model) as hand:
        hand.workers["b"]["fabric"]["place"] = hand.workers["c"]["fabric"]["place"]
        tried = []
        for _ in range(5):
            before = hand.trainer.log_text().count(" was not broadcast: ")
            went, took = hand.push(("a", "b"))
            assert went == {"a": "http", "b": "http"}
            tried.append(hand.trainer.log_text().count(" was not broadcast: ") > before)
            assert not tried[-1] or took > STAGE_TIMEOUT_MS / 2000 - 0.1
            assert took < STAGE_TIMEOUT_MS / 1000 + LATE_S
        assert tried == [True, False, True, False, False]
        assert hand.push(("a", "c"))[0] == {"a": "fabric", "c": "fabric"}, "other members are tried at once"


@pytest.mark.alone
def test_a_killed_server_takes_nobody_along(base_model, tmp_path):
    with by_hand(tmp_path, base_model) as hand:
        assert hand.push(ABC)[0] == everywhere("fabric")
        hand.pool["a"].signal(signal.SIGKILL)
        went, took = hand.push(ABC)
        assert went["a"] is None and went["b"] and went["c"] == "http"
        assert took < STAGE_TIMEOUT_MS / 1000 + LATE_S
        assert hand.push_at_once(("b", "c")) == {"b": "fabric", "c": "fabric"}


# ---- bad offers ----

DIGEST = {"X-Leasehold-Digest": "00" * 32}
OFFER = {"run": "r1", "version": 1, "epoch": 9, "token": "7.0", "rank": 1, "size": 2, "bytes": 1000, "wait_ms": 300}


def offer(**changed):
    wanted = {key: value for key, value in {**OFFER, **changed}.items() if value is not None}
    return "/v1/push-weights?" + urllib.parse.urlencode(wanted)


BAD = [
    {"token": ""},
    {"token": "x"},
    {"token": "7"},
    {"token": "7.0.0"},
    {"token": "-7.0"},
    {"token": "07.0"},
    {"token": "7.99"},
    {"token": "7.99999999999999999999"},
    {"token": "99999999999999999999999.0"},
    {"token": "7.1"},
    {"token": "a" * 300},
    {"token": "7.0\0é\n\"'%s%n"},
    {"rank": 0},
    {"rank": 2},
    {"rank": -1},
    {"rank": None},
    {"rank": 10**30},
    {"size": 1},
    {"size": 10**9},
    {"size": None},
    {"bytes": 0},
    {"bytes": None},
    {"bytes": 10**12},
    {"bytes": 2**63 - 1},
    {"bytes": 2**64 + 5},
    {"wait_ms": 0},
    {"wait_ms": None},
    {"wait_ms": 10**9},
]


def refused(url, changed, body=b""):
    begun = time.monotonic()
    with pytest.raises(HttpError) as error:
        call("POST", url + offer(**changed), body, DIGEST)
    assert time.monotonic() - begun < 20, "it was waited for"
    return error.value.status


def test_offers_that_no_server_could_take_up(base_model, tmp_path):
    """... are 422 at once; one that nobody keeps is given up after its own time, or when its sender hangs up; and real pushes go on."""
    with by_hand(tmp_path, base_model) as hand:
        url = hand.pool["a"].url
        for changed in BAD:
            assert refused(url, changed) == 422, changed
        assert refused(url, {}, b"a body") == 422
        assert refused(url, {}) == 503
        request = f"POST {offer(token='9.0', wait_ms=60000)} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX-Leasehold-Digest: {'00' * 32}\r\n\r\n"

        def given_up():
            with socket.create_connection(("127.0.0.1", hand.pool["a"].port)) as connection:
                connection.sendall(request.encode())
                time.sleep(0.2)  # a server that has not read it by then is asked again
            return "joining was given up by member 1 of 2" in hand.trainer.log_text()

        wait_until("the offer of one that hangs up is given up", given_up, 20)
        assert hand.push_at_once(ABC) == everywhere("fabric")


def test_malformed_offers_to_a_server_without_a_fabric(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.add_server("plain", "--slots", 4, "--model", base_model)
        for changed in ({}, *BAD):
            assert refused(server.url, changed) == 422, changed


def test_a_build_without_a_fabric_refuses_the_flag(base_model, tmp_path):
    with pytest.raises(RuntimeError, match="built with neither MPI .* nor NCCL"):
        Cluster(tmp_path, model=base_model, trainer=["--fabric", "rack"])
