"""Preprocessors (`trainer-server --role preprocess`) and a trainer that uses what they compute, beside a coordinator that is the test's own.

Preprocessors are killed, told to end and started late, and the coordinator goes away and comes back with another epoch: every pass is computed in the end, and the weights are
those of a trainer that computed everything itself.
"""
import http.server
import json
import pathlib
import re
import signal
import struct
import threading
import time

import pytest

from harness import DATA, Cluster, call
from ranks import Ranks
from test_memory import CONFIG, EPOCH, SMALL, Alone, ended, follows, held_to_its_plan, planned, sample, sizes
from test_memory import MIB

TRAINING = {"objective": "grpo", "lr": 1e-3, "kl_coefficient": 0.25, "temperature": 0.8, "chunk_tokens": 256}
PATIENCE = 60


@pytest.fixture
def alone(tmp_path):
    with Alone(tmp_path) as made:
        yield made


def tensors_of(body):
    """A safetensors body's metadata and its tensors, as tuples of numbers."""
    length = struct.unpack("<Q", body[:8])[0]
    header = json.loads(body[8 : 8 + length])
    data, kind = body[8 + length :], {"I32": "i", "F32": "f"}
    tensors = {}
    for name, at in header.items():
        if name != "__metadata__":
            begin, end = at["data_offsets"]
            tensors[name] = struct.unpack(f"<{(end - begin) // 4}{kind[at['dtype']]}", data[begin:end])
    return json.loads(header["__metadata__"]["result"]), tensors


class Coordinator:
    """Registers preprocessors, offers passes, and takes their results; `refuses`: names of those whose results it cannot take now."""

    def __init__(self, logs):
        self.logs = logs  # of the services, for a wait that ends badly
        self.lock = threading.Condition()  # guards all below
        self.epoch, self.fence = 1, 0
        self.names, self.gone = {}, []  # by worker id
        self.offered, self.held, self.results = [], {}, {}
        self.refuses = set()
        self.overtakes = set()  # passes whose groups go on without them
        self.causes = set()
        self.port = 0
        self.begin()

    def begin(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self.handler())
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def restart(self):
        self.close()
        with self.lock:
            self.epoch += 1
            self.names.clear()
            self.offered += self.held.values()
            self.held.clear()
        self.begin()

    def expire(self, name):
        """The named worker's passes are for others."""
        with self.lock:
            for worker in [worker for worker, known in self.names.items() if known == name]:
                self.forget(worker)

    def forget(self, worker):
        self.names.pop(worker, None)
        for key in [key for key in self.held if key[0] == worker]:
            self.offered.append(self.held.pop(key))
        self.lock.notify_all()

    def offer(self, passes):
        with self.lock:
            self.offered += passes
            self.lock.notify_all()

    def wait(self, what, condition):
        with self.lock:
            assert self.lock.wait_for(condition, PATIENCE), f"{what}: offered {[one['pass_id'] for one in self.offered]}, held {list(self.held)}, workers {self.names}\n{self.logs()}"

    # what a worker may ask; the lock is held

    def post_workers(self, body):
        assert body["kind"] == "preprocess" and body["slots"] == 0
        self.fence += 1
        worker = f"w{self.epoch}-{self.fence}"
        self.names[worker] = body["name"]
        return 200, {"worker_id": worker, "epoch": self.epoch, "fence": 0, "heartbeat_ms": 50, "worker_ttl_ms": 2000}

    def post_heartbeat(self, worker, body):
        self.causes |= {cause for cause, *_ in body["intervals"]}
        lost = [lease["id"] for lease in body["leases"] if (worker, lease["id"]) not in self.held]
        return 200, {"epoch": self.epoch, "lost": lost, "run_active": True, "current": None}

    def post_passes(self, worker, body):
        self.lock.wait_for(lambda: self.offered or worker not in self.names, min(body["wait_ms"], 500) / 1000)
        granted = [] if worker not in self.names else self.offered[: body["groups_max"]]
        for one in granted:
            self.offered.remove(one)
            self.fence += 1
            one["fence"] = self.fence
            self.held[worker, one["pass_id"]] = one
        self.lock.notify_all()
        return 200, {"epoch": self.epoch, "passes": granted}

    def put_result(self, name, body):
        head, tensors = tensors_of(body)
        worker = head["worker_id"]
        one = self.held.get((worker, name))
        if head["epoch"] != self.epoch or not one or one["fence"] != head["fence"]:
            return 409, {"error": {"code": "conflict", "message": "it is not this worker's any more", "field": "fence"}}
        if self.names[worker] in self.refuses:
            return 503, {"error": {"code": "unavailable", "message": "not now", "field": ""}}
        del self.held[worker, name]
        if name in self.overtakes:
            return 409, {"error": {"code": "conflict", "message": f"pass {name} is not wanted any more: its group has gone on without it", "field": "id"}}
        assert not head["handed_back"], head
        logprobs, at = [], 0
        for count in tensors["trained"]:
            logprobs.append(list(tensors["logprobs"][at : at + count]))
            at += count
        self.results[name] = {"by": self.names[worker], "weights": head["weights_digest"], "logprobs": dict(zip(head["samples"], logprobs))}
        self.lock.notify_all()
        return 200, {"repeated": False}

    def handler(self):
        mine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = self.path.strip("/").split("/")[1:]
                with mine.lock:
                    if parts[0] == "passes":
                        status, content = mine.put_result(parts[1], body)
                    elif len(parts) == 1:
                        status, content = mine.post_workers(json.loads(body))
                    elif self.command == "DELETE":
                        mine.gone.append(mine.names.get(parts[1]))
                        mine.forget(parts[1])
                        status, content = 200, {}
                    elif parts[1] not in mine.names:
                        status, content = 404, {"error": {"code": "not_found", "message": "no such worker", "field": "id"}}
                    elif json.loads(body)["epoch"] != mine.epoch:
                        status, content = 409, {"error": {"code": "conflict", "message": "another epoch", "field": "epoch"}}
                    else:
                        status, content = getattr(mine, "post_" + parts[2])(parts[1], json.loads(body))
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PUT = do_DELETE = answer

        return Handler


@pytest.fixture
def coordinator(alone):
    made = Coordinator(alone.logs)
    yield made
    made.close()


def preprocessor(alone, coordinator, name, model, *args):
    return alone.start(name, "trainer-server", ["--role", "preprocess", "--coordinator", coordinator.url, "--name", name, "--model", alone.folder / model, "--threads", 1, "--log-level", "info", *args])


def groups_of(v, config, groups=3, samples=4, length=40):
    return [{"id": f"r1.{v}.{g}", "samples": [sample(f"r1.{v}.{g}.{i}", length, config["vocab_size"], salt=7 * v + 3 * g + i) for i in range(samples)]} for g in range(groups)]


def passes_of(groups, trainer, digest, training=TRAINING):
    bare = lambda group: [{key: one[key] for key in ("id", "tokens", "prompt_length", "segments")} for one in group["samples"]]
    same = {"run": "r1", "version": 0, "weights_digest": digest, "weights_from": trainer.url, "chunk_tokens": training["chunk_tokens"], "temperature": training["temperature"]}
    return [{"pass_id": group["id"], "fence": 0, **same, "samples": bare(group)} for group in groups]


def bring(groups, coordinator, digest):
    """The groups with what was computed for them."""
    for group in groups:
        result = coordinator.results[group["id"]]
        assert result["weights"] == digest
        group["reference"] = True
        for one in group["samples"]:
            one["reference"] = result["logprobs"][one["id"]]
    return groups


def open_run(trainer, **training):
    return call("POST", trainer.url + "/v1/runs", {"run": "r1", **EPOCH, "seed": 1, "training": {**TRAINING, **training}})["digest"]


def compute(trainer, v, groups, authority=EPOCH):
    call("POST", trainer.url + "/v1/submit-batch", {"batch_id": f"r1.{v}.b0", "run": "r1", **authority, "version": v, "groups": groups})
    return ended(f"{trainer.url}/v1/batches/r1.{v}.b0")["stats"]


def step(trainer, v, groups, authority=EPOCH):
    tokens = sum(one["segments"][0]["count"] for group in groups for one in group["samples"])
    names = [group["id"] for group in groups]
    call("POST", trainer.url + "/v1/submit-step", {"step_id": f"r1.{v}", "run": "r1", **authority, "version": v, "groups": names, "denominator": float(tokens), "last": False, "stage_timeout_ms": 100, "push_to": []})
    return ended(f"{trainer.url}/v1/steps/r1.{v}")["digest"]


def play(trainer, v, groups):
    """A round: its batch's stats and its version's digest."""
    return compute(trainer, v, groups), step(trainer, v, groups)


def sums(stats):
    return {name: value for name, value in stats.items() if not name.endswith("_us")}


ROUNDS = 5


def test_killed_ended_and_late_preprocessors_and_a_new_epoch_leave_the_weights_as_they_are(alone, coordinator):
    own = alone.trainer("own", SMALL, "--chunk-tokens", 256)
    digest = open_run(own)
    expected = [play(own, v, groups_of(v, SMALL)) for v in range(ROUNDS)]
    own.stop()
    trainer = alone.trainer("trainer", SMALL, "--chunk-tokens", 256)
    assert open_run(trainer) == digest
    servers = {"p1": preprocessor(alone, coordinator, "p1", "trainer")}
    for v in range(ROUNDS):
        groups = groups_of(v, SMALL)
        if v == 1:  # p1 dies with a pass in hand, p2 joins in the middle
            coordinator.refuses = {"p1"}
        if v == 2:  # p2 is told to end with a pass in hand, p3 joins
            coordinator.refuses = {"p2"}
        coordinator.offer(passes_of(groups, trainer, digest))
        if v == 1:
            coordinator.wait("p1 holds a pass", lambda: coordinator.held)
            servers["p1"].kill()
            servers["p2"] = preprocessor(alone, coordinator, "p2", "trainer")
            coordinator.expire("p1")
        if v == 2:
            coordinator.wait("p2 holds a pass", lambda: coordinator.held)
            assert servers["p2"].stop(signal.SIGTERM) == 0
            assert coordinator.gone == ["p2"]
            servers["p3"] = preprocessor(alone, coordinator, "p3", "trainer")
        if v == 3:  # the coordinator is away while p3 holds a pass, maybe
            time.sleep(0.01)
            coordinator.restart()
        coordinator.wait("all passes of the round", lambda: all(group["id"] in coordinator.results for group in groups))
        stats, after = play(trainer, v, bring(groups, coordinator, digest))
        assert (sums(stats), after) == (sums(expected[v][0]), expected[v][1]), v
        assert v == 0 or stats["kl_reference_sum"] > 0
    by = [coordinator.results[f"r1.{v}.0"]["by"] for v in range(ROUNDS)]
    assert by == ["p1", "p2", "p3", "p3", "p3"]
    assert {"logprob", "load", "starved"} <= coordinator.causes
    assert servers["p3"].metric('leasehold_preprocessor_passes_total\\{end="computed"\\}') >= 6  # rounds 2 and 4; an answer may be lost with the coordinator
    assert call("GET", servers["p3"].url + "/readyz") == {"status": "ready"}


def test_a_result_that_comes_too_late_is_no_trouble(alone, coordinator):
    trainer = alone.trainer("trainer", CONFIG)
    digest = open_run(trainer)
    groups = groups_of(0, CONFIG)
    coordinator.overtakes.add(groups[0]["id"])
    made = preprocessor(alone, coordinator, "p1", "trainer")
    coordinator.offer(passes_of(groups, trainer, digest))
    made.wait_log(f"the result of pass {groups[0]['id']} came too late to be used: ")
    coordinator.wait("the others", lambda: all(group["id"] in coordinator.results for group in groups[1:]))
    assert not re.search(rf"^.* warn .*{re.escape(groups[0]['id'])}", made.log_text(), re.M) and groups[0]["id"] not in coordinator.results


def rounds(folder, coordinator=None, launcher=None):
    """Two rounds' sums and digests; with a coordinator what preprocessors compute is brought."""
    with Cluster(folder, trainer=["--random-init", 1], launcher=launcher) as cluster:
        authority, said = cluster.authority(), []
        digest = call("POST", cluster.trainer.url + "/v1/runs", {"run": "r1", **authority, "seed": 1, "training": TRAINING})["digest"]
        for v in range(2):
            groups = groups_of(v, {"vocab_size": 32})
            if coordinator:
                coordinator.offer(passes_of(groups, cluster.trainer, digest))
                coordinator.wait("the round's passes", lambda: all(group["id"] in coordinator.results for group in groups))
                bring(groups[:2], coordinator, digest)  # and not the last
            said.append((sums(compute(cluster.trainer, v, groups, authority)), step(cluster.trainer, v, groups, authority)))
        return said


def test_ranks_share_what_is_brought_and_give_the_bits_of_one(tmp_path, alone, coordinator):
    alone.start("p1", "trainer-server", ["--role", "preprocess", "--coordinator", coordinator.url, "--model", DATA / "model", "--threads", 1])
    assert rounds(tmp_path / "two", coordinator, Ranks(2)) == rounds(tmp_path / "one")


def cpu_ms(service):
    """Of all its threads; unlike time that passes, it does not grow with what else the machine does."""
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{service.process.pid}/task").glob("*/schedstat")) / 1e6


@pytest.mark.long
def test_what_is_brought_saves_the_trainer_its_own_pass(alone, coordinator):
    """Rounds of the same size, with and without, in turns on one trainer."""
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 1024)
    digest = open_run(trainer, chunk_tokens=1024)
    preprocessor(alone, coordinator, "p1", "trainer", "--chunk-tokens", 1024)
    took = {True: [], False: []}
    for v in range(8):
        groups = groups_of(v, CONFIG, groups=1, samples=8, length=120)
        if v % 2:
            coordinator.offer(passes_of(groups, trainer, digest, {**TRAINING, "chunk_tokens": 1024}))
            coordinator.wait("the round's pass", lambda: groups[0]["id"] in coordinator.results)
            bring(groups, coordinator, digest)
        before = cpu_ms(trainer)
        compute(trainer, v, groups)
        took[bool(v % 2)].append(cpu_ms(trainer) - before)
        step(trainer, v, groups)
    brought, own = sorted(took[True])[1], sorted(took[False])[1]
    print(f"CPU time of a batch of 8 x 120 tokens: {own:.0f} ms with the trainer's own pass, {brought:.0f} ms with one that was brought ({brought / own:.2f})")
    assert brought < 0.92 * own, took


def preprocessor_formula(config, T, threads=1):
    D, F, V, E, HE, GE, L, P = sizes(config)
    return {
        "weights": 2 * P + 2 * V * D,
        "scratch": T * (12 * D + 8 * HE + 20 * GE + 10 * F + 110) + 1024 * V + threads * MIB + 4 * E * config["max_position_embeddings"],
        "incoming weights": 2 * P,
    }


def test_a_preprocessor_takes_what_it_plans_and_nothing_for_training(alone, coordinator):
    for name, config, chunk in (("tiny", SMALL, 64), ("large", CONFIG, 1024)):
        trainer = alone.trainer(f"{name}-trainer", config, "--chunk-tokens", chunk)
        digest = open_run(trainer, chunk_tokens=chunk)
        made = preprocessor(alone, coordinator, name, f"{name}-trainer", "--chunk-tokens", chunk)
        groups = groups_of(0, config, groups=2, samples=8, length=min(120, chunk))
        coordinator.offer(passes_of(groups, trainer, digest, {**TRAINING, "chunk_tokens": chunk}))
        coordinator.wait("the passes", lambda: all(group["id"] in coordinator.results for group in groups))
        coordinator.results.clear()
        trainer.stop()
        if name == "tiny":
            tiny = made
            coordinator.expire("tiny")
            tiny.freeze()  # it takes no passes of the other's
    assert set(planned(made)) == {"weights", "scratch", "incoming weights"}
    follows(planned(made), preprocessor_formula(CONFIG, 1024))
    tiny.thaw()
    held_to_its_plan(made, tiny)


def test_a_role_that_does_not_exist_and_a_preprocessor_for_nobody_are_refused(alone):
    (alone.folder / "model").mkdir()
    (alone.folder / "model/config.json").write_text(json.dumps(SMALL))
    for args, words in ((["--role", "preproces"], "expected train, preprocess or teach"), (["--role", "preprocess"], "--coordinator")):
        with pytest.raises(RuntimeError, match=words):
            alone.start("refused", "trainer-server", ["--model", alone.folder / "model", *args])
