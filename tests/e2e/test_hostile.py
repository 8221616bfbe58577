"""Bad input of every kind against real processes: peers that lie, files that lie, disks that are full, requests that are wrong in one place.

For each: a sentence that says what is wrong, the service alive and healthy afterwards, nothing lost, no file descriptor left behind.  What can be shown
of one module alone is shown in tests/unit; here it is the whole service.  Tests that wait for a deadline wait side by side: see `Stage`.
"""
import copy
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import BIN, DATA, Cluster, Deadline, Standalone, call, digests, exchange, grpo_config, warmup_config
from hostile_peer import LIES, FakeCoordinator, Peer, Proxy, altered, lost_answer, says, whole

SERVICES = ["coordinator", "generation-server", "trainer-server"]
SENTENCE_SECONDS = 40  # the longest deadline that a service keeps here is 5 s
SAME = object()


class Alone(Cluster):
    """Services without a coordinator and a trainer of their own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.services = []


def until(true, seconds=SENTENCE_SECONDS, what=""):
    deadline = Deadline(seconds)
    while not (value := true()):
        assert not deadline.passed(), what() if callable(what) else what
        time.sleep(0.05)
    return value


def healthy(service):
    assert service.process.poll() is None, service.log.read_text()[-2000:]
    assert call("GET", service.url + "/healthz")["status"] == "ok"


def sentence(service, pattern):
    line = until(
        lambda: next((line for line in service.log.read_text(errors="replace").splitlines() if re.search(pattern, line)), None),
        what=lambda: f"no /{pattern}/ in: {service.log.read_text()[-2000:]}",
    )
    assert len(line) < 1200 and line.isprintable(), line


def open_files(service):
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))


def refused(status, method, url, body=None, headers=None):
    got, _, content = exchange(method, url, body, headers)
    assert got == status, (got, content[:300])
    error = json.loads(content)["error"]
    assert error["code"] and len(error["message"]) > 10
    return error


# --- a model of our own, so that it can be made wrong in one place ---


def safetensors(tensors):
    """[(name, dtype, shape, bytes)] as a file."""
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data for *_, data in tensors)


def weights_digest(tensors):
    """As common/safetensors/safetensors.h defines it."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    leaves = (text(name) + text(dtype) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + data for name, dtype, shape, data in tensors)
    return hashlib.sha256(b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)).hexdigest()


def model_tensors():
    config = json.loads((DATA / "model/config.json").read_text())
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = (config[k] * head for k in ("num_attention_heads", "num_key_value_heads"))
    layer_shapes = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [q, hidden],
        "self_attn.k_proj": [kv, hidden],
        "self_attn.v_proj": [kv, hidden],
        "self_attn.q_norm": [head],
        "self_attn.k_norm": [head],
        "self_attn.o_proj": [hidden, q],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [ffn, hidden],
        "mlp.up_proj": [ffn, hidden],
        "mlp.down_proj": [hidden, ffn],
    }
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden]}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(config["num_hidden_layers"]) for name, shape in layer_shapes.items()}
    shapes["model.norm.weight"] = [hidden]
    dice, tensors = random.Random(7), []
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        noise = dice.randbytes(count)
        tensors.append((name, "BF16", shape, b"\x80\x3f" * count if len(shape) == 1 else bytes(b for x in noise for b in (x, 0x3D | x & 0x80))))
    return tensors


TENSORS = model_tensors()
HONEST = {name: (DATA / "model" / name).read_bytes() for name in ("config.json", "tokenizer.json", "generation_config.json")}
HONEST["model.safetensors"] = safetensors(TENSORS)
DIGEST = weights_digest(TENSORS)


def config_with(**change):
    return json.dumps({**json.loads(HONEST["config.json"]), **change}).encode()


def tokenizer_with(vocab=None, merges=None, added=None):
    whole_file = json.loads(HONEST["tokenizer.json"])
    whole_file["model"]["vocab"].update(vocab or {})
    whole_file["model"]["merges"] += merges or []
    whole_file["added_tokens"] += added or []
    return json.dumps(whole_file).encode()


def weights_with(change):
    tensors = list(TENSORS)
    tensors[3] = change(*tensors[3])
    return safetensors(tensors)


def lying_header(change):
    data = HONEST["model.safetensors"]
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data[8 + size :]


def swap_offsets(header):
    header[TENSORS[3][0]]["data_offsets"].reverse()


# name -> (file, what stands in it, what the sentence about it holds)
LYING_FILES = {
    "config: of another type": ("config.json", config_with(vocab_size="many"), "config.json: vocab_size: expected an? .*integer"),
    "config: truncated": ("config.json", HONEST["config.json"][:200], "config.json: expected one well-formed JSON value"),
    "config: not of these weights": ("config.json", config_with(intermediate_size=200), r"tensor model.layers.0.mlp.gate_proj.weight: expected shape \[200, 64\], got \[192, 64\]"),
    "config: fewer layers": ("config.json", config_with(num_hidden_layers=1), "tensor model.layers.1.* is not one of this model's"),
    "config: a vocabulary below the tokenizer's": ("config.json", config_with(vocab_size=200), "eos_token_id: expected ids below"),
    "config: more memory than there is": ("config.json", config_with(hidden_size=65536, intermediate_size=262144, num_hidden_layers=1024), "MiB"),
    "generation_config: an object for an id": ("generation_config.json", b'{"eos_token_id":{"a":1}}', "generation_config.json: eos_token_id: expected"),
    "generation_config: an id beyond the vocabulary": ("generation_config.json", b'{"eos_token_id":[256,4000]}', "generation_config.json: eos_token_id: expected ids below"),
    "tokenizer: a merge of a missing token": ("tokenizer.json", tokenizer_with(merges=["q zzz"]), r'tokenizer.json: model.merges\[0\]: expected tokens of the vocabulary, "zzz" is not'),
    "tokenizer: a merge into itself": ("tokenizer.json", tokenizer_with(merges=[["a", ""]]), "such a merge would never end"),
    "tokenizer: an id twice": ("tokenizer.json", tokenizer_with(vocab={"zzz": 7}), "tokenizer.json: model.vocab: expected each id once"),
    "tokenizer: more tokens than the model has": ("tokenizer.json", tokenizer_with(vocab={"zzz": 300}), 'the token "zzz" with id 300, and the model.s vocab_size is 272: they do not belong to one model'),
    "tokenizer: an added token on another's id": ("tokenizer.json", tokenizer_with(added=[{"id": 5, "content": "<x>"}]), r"added_tokens\[3\]: expected each id once"),
    "tokenizer: an added token under two ids": ("tokenizer.json", tokenizer_with(added=[{"id": 259, "content": "<|im_end|>"}]), "expected id 258"),
    "tokenizer: deep": ("tokenizer.json", b"[" * 5000, "tokenizer.json: expected JSON nested at most"),
    "weights: truncated": ("model.safetensors", HONEST["model.safetensors"][:-100], "bytes of data"),
    "weights: a header longer than the file": ("model.safetensors", struct.pack("<Q", 1 << 40) + HONEST["model.safetensors"][8:], "the file claims 1099511627776"),
    "weights: offsets in reverse": ("model.safetensors", lying_header(swap_offsets), "expected data_offsets in order"),
    "weights: another dtype": ("model.safetensors", weights_with(lambda n, d, s, b: (n, "I16", s, b)), "expected BF16, F16 or F32, got I16"),
    "weights: another shape": ("model.safetensors", weights_with(lambda n, d, s, b: (n, d, s[::-1], b)), "expected shape"),
    "weights: a NaN": ("model.safetensors", weights_with(lambda n, d, s, b: (n, d, s, b[:-2] + b"\xc0\x7f")), "expected finite numbers"),
    "weights: other ones than announced": ("model.safetensors", weights_with(lambda n, d, s, b: (n, d, s, b"\0" + b[1:])), "was announced with digest"),
}
# What only shows in one place: the trainer does not read the tokenizer, nobody who reads a folder was told a digest.
NOT_IN_A_FOLDER = {"weights: other ones than announced"}
NOT_AT_THE_COORDINATOR = {"config: not of these weights", "config: fewer layers", "config: more memory than there is"}
TAKEN_FOR_TRUE = {"config: not of these weights", "config: fewer layers"}  # a server whose model is made waits for weights that fit it


@pytest.mark.parametrize("lie", [lie for lie in LYING_FILES if lie not in NOT_IN_A_FOLDER])
def test_a_folder_that_lies_is_refused_in_one_line(lie, tmp_path):
    file, content, said = LYING_FILES[lie]
    for name, data in {**HONEST, file: content}.items():
        (tmp_path / name).write_bytes(data)
    programs = [["generation-server"]]
    if file not in ("tokenizer.json",) and "tokenizer" not in lie:
        programs.append(["trainer-server", "--state-dir", tmp_path / "state"])
    for program, *more in programs:
        ended = subprocess.run([BIN / program, "--port", "0", "--model", tmp_path, "--log-level", "error", *more], capture_output=True, text=True, timeout=30)
        assert ended.returncode == 1 and len(ended.stderr.strip().splitlines()) == 1, ended
        assert re.search(said, ended.stderr), ended.stderr


# --- peers that lie ---


class Stage:
    """Every play has services of its own, and most a lying peer.  All are played at once, so that deadlines run side by side; `outcome` tells of one."""

    def __init__(self, folder, asked_for):
        """asked_for(name of a test, its parameter or None): is it among those that will ask for the outcome?"""
        self.alone = Alone(folder)
        self.pool = ThreadPoolExecutor(128)
        self.plays = {}
        for lie in LIES:
            if asked_for("test_peers_that_lie_are_named_and_outlived", lie):
                self.play_lie(lie, *LIES[lie])
        for lie in LYING_FILES:
            if asked_for("test_files_of_a_lying_trainer_are_named_and_outlived", lie):
                self.play_file(lie, *LYING_FILES[lie])
        for test, scene in SCENES.items():
            if asked_for(test, None):
                self.plays[test] = self.pool.submit(scene, self.alone.folder / test)

    def play_lie(self, lie, how, said):
        self.play(f"a coordinator that {lie}, to a generation-server", self.with_coordinator, "generation-server", how, said)
        self.play(f"a coordinator that {lie}, to a trainer-server", self.with_coordinator, "trainer-server", how, said)
        self.play(f"a trainer whose files' server {lie}, to a generation-server", self.with_trainer, "/v1/model/files/config.json", how, said)
        self.play(f"a trainer whose files' server {lie}, to a coordinator", self.with_run, {"/v1/model/files/config.json": how}, said)
        if "json" not in lie and lie not in ("duplicate_keys", "wrong_types", "longer_than_announced"):
            self.play(f"a trainer whose weights' server {lie}, to a generation-server", self.with_trainer, "/v1/weights/", how, said)

    def play_file(self, lie, file, content, said):
        path = "/v1/weights/" if file == "model.safetensors" else f"/v1/model/files/{file}"
        self.play(f"a trainer with {lie}, to a generation-server", self.with_trainer, path, says(whole(content)), said, lie not in TAKEN_FOR_TRUE)
        if file != "model.safetensors" and lie not in NOT_AT_THE_COORDINATOR:
            self.play(f"a trainer with {lie}, to a coordinator", self.with_run, {path: says(whole(content))}, said)

    def play(self, name, how, *arguments):
        self.plays[name] = self.pool.submit(how, re.sub(r"[^a-z0-9]+", "-", name), *arguments)

    def outcome(self, name):
        self.plays[name].result()

    def close(self):
        self.pool.shutdown()
        self.alone.close()

    def with_coordinator(self, name, program, how, said):
        honest = FakeCoordinator()
        peer = Peer(honest, {"/v1/workers": how})
        arguments = ["--coordinator", peer.url, "--name", "someone"]
        if program == "trainer-server":
            arguments += ["--model", DATA / "model", "--random-init", 1, "--state-dir", self.alone.folder / f"{name}.state"]
        service = self.alone.start(name, program, arguments)
        self.outlived(service, peer, f"(registration|coordinator): .*({said})", honest.registered.is_set)

    def with_trainer(self, name, path, how, said, heals=True):
        honest = FakeCoordinator()

        def answer(method, at, body, headers):
            file = "model.safetensors" if at.startswith("/v1/weights/") else at.rsplit("/", 1)[1]
            return (200, HONEST[file]) if file in HONEST else honest(method, at, body, headers)

        peer = Peer(answer, {path: how})
        honest.current = {"run": "r1", "version": 0, "digest": DIGEST, "trainer_url": peer.url}
        service = self.alone.start(name, "generation-server", ["--coordinator", peer.url, "--name", "someone", "--slots", 2])

        def well():
            ready = exchange("GET", service.url + "/readyz")[0] == 200
            return ready and exchange("POST", service.url + "/v1/generate", {"text": "1+1=", "sampling_params": {"max_new_tokens": 2}})[0] == 200

        self.outlived(service, peer, f"pulling version 0 of run r1 from {peer.url}: .*({said})", well if heals else lambda: True)

    def outlived(self, service, peer, said, well):
        """The sentence comes; the service is as it was; once the peer is honest all goes on."""
        try:
            until(lambda: peer.asked or peer.links)
            before = open_files(service)
            sentence(service, said)
            healthy(service)
            peer.heal()
            until(well, 40, lambda: f"not well again: {service.log.read_text()[-1500:]}")
            healthy(service)
            assert open_files(service) <= before + 16
        finally:
            peer.close()
        assert service.stop(seconds=30) == 0

    def with_run(self, name, lies, said):
        """A coordinator whose run meets the lying trainer: it says so, or is paused with that sentence, and can be stopped."""
        def answer(method, path, *_):
            folder, file = path.rsplit("/", 1)
            if folder == "/v1/model/files":
                return (200, HONEST[file]) if file in HONEST else (404, {"error": {"code": "not_found", "message": "the model came without it", "field": ""}})
            return 503, b""

        peer = Peer(answer, lies)
        try:
            coordinator = self.alone.start(name, "coordinator", ["--db", self.alone.folder / f"{name}.db", "--data-dir", DATA, "--worker-ttl-ms", 60000])
            call("POST", coordinator.url + "/v1/workers", {"name": "liar", "kind": "trainer", "url": peer.url, "slots": 0, "exactness": "invariant"})
            run = call("POST", coordinator.url + "/v1/runs", warmup_config(1))["id"]
            sentence(coordinator, f"run {run}: .*({said})")
            healthy(coordinator)
            state = f"{coordinator.url}/v1/runs/{run}"
            met = call("GET", state)
            if met["state"] == "paused":
                assert re.search(said, met["error"]), met["error"]
            exchange("POST", state + "/stop")
            until(lambda: call("GET", state)["state"] == "stopped", 40, lambda: call("GET", state))
        finally:
            peer.close()
        assert coordinator.stop(seconds=30) == 0


@pytest.fixture(scope="module")
def stage(request, tmp_path_factory):
    collected = {(item.originalname, item.callspec.params.get("lie") if hasattr(item, "callspec") else None) for item in request.session.items}
    made = Stage(tmp_path_factory.mktemp("stage"), lambda test, lie: (test, lie) in collected)
    yield made
    made.close()


@pytest.mark.parametrize("lie", LIES)
def test_peers_that_lie_are_named_and_outlived(stage, lie):
    for name in stage.plays:
        if f" {lie}," in name:
            stage.outcome(name)


@pytest.mark.parametrize("lie", LYING_FILES)
def test_files_of_a_lying_trainer_are_named_and_outlived(stage, lie):
    for name in stage.plays:
        if f"with {lie}," in name:
            stage.outcome(name)


def run_through_lying_proxies(tmp_path):
    """Every exchange of a run goes wrong once: cut, garbled, altered, or done and never answered.  Same digests, nothing trained twice."""
    config = grpo_config(6, groups=3, samples=2)
    config["stage_timeout_ms"] = 1000
    with Cluster(tmp_path / "honest", trainer=["--random-init", 1]) as one:
        one.add_server("gen", "--slots", 4)
        wanted = digests(one.run(config))

    closes, silent = says(b""), LIES["never_answers"][0]
    garbage, oops = says(b"\x00\xff garbage\r\n\r\n"), says(b"HTTP/1.1 503 Oops\r\nContent-Length: 0\r\n\r\n")

    def fewer_logprobs(answer):
        """The same safetensors, one log-probability of the last sample short; of a batch that is not done, which is JSON, nothing."""
        if not isinstance(answer, bytes):
            return {}
        (length,) = struct.unpack("<Q", answer[:8])
        header, data = json.loads(answer[8 : 8 + length]), bytearray(answer[8 + length : -4])
        header["logprobs"]["shape"][0] -= 1
        header["logprobs"]["data_offsets"][1] -= 4
        last = header["trained"]["data_offsets"][1] - 4
        data[last : last + 4] = struct.pack("<i", struct.unpack("<i", data[last : last + 4])[0] - 1)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + bytes(data)

    before_trainer = Proxy(
        [
            ("GET /v1/model/files/config.json", closes, garbage),
            ("GET /v1/model/files/tokenizer.json", oops),
            ("GET /v1/weights/", altered(lambda data: data[:-1] + bytes([data[-1] ^ 1])), closes),
            ("POST /v1/runs", lost_answer),
            ("POST /v1/submit-batch", lost_answer, closes),
            ("GET /v1/batches/r1.2", garbage, oops),
            ("GET /v1/batches/r1.3", altered(lambda answer: {**answer, "logprobs_sha256": "0" * 64}), altered(fewer_logprobs)),
            ("POST /v1/submit-step", closes, lost_answer),
            ("GET /v1/steps/r1.5", closes, garbage),
        ]
    )
    other_digest = altered(lambda answer: {**answer, "digest": "0" * 64})
    before_server = Proxy([("POST /v1/push-weights", other_digest, closes, lost_answer, silent)])  # a slow failure pauses the next push
    before_coordinator = Proxy(
        [
            (r"POST /v1/workers/w\d+/heartbeat", garbage, oops),
            (r"POST /v1/workers/w\d+/leases", closes, lost_answer),
            ("PUT /v1/leases", closes, lost_answer, oops),
            ("POST /v1/workers$", garbage, oops),
            ("POST /v1/versions", lost_answer, closes),
        ]
    )
    proxies = [before_trainer, before_server, before_coordinator]
    try:
        alone = Alone(tmp_path / "lied-to")
        alone.folder.mkdir(parents=True)
        with alone:
            alone.coordinator = alone.start("coordinator", "coordinator", ["--db", alone.folder / "c.db", "--data-dir", DATA, "--lease-ttl-ms", 500, "--heartbeat-ms", 100])
            before_coordinator.target = alone.coordinator.url
            trainer = ["--model", DATA / "model", "--random-init", 1, "--state-dir", alone.folder / "state"]
            alone.trainer = alone.start("trainer", "trainer-server", ["--coordinator", before_coordinator.url, "--advertise-url", before_trainer.url, *trainer])
            before_trainer.target = alone.trainer.url
            server = alone.start("gen", "generation-server", ["--coordinator", before_coordinator.url, "--advertise-url", before_server.url, "--slots", 4])
            before_server.target = server.url
            status = alone.run(config, seconds=60)
            assert digests(status) == wanted
            assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["stale_results_trained_on"] == 0
            for service in alone.services:
                healthy(service)
            assert not [lie for proxy in proxies for lie in proxy.untold()]
    finally:
        for proxy in proxies:
            proxy.close()


# --- a worker that lies ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), trainer=["--random-init", 1]) as made:
        yield made


@pytest.fixture()
def unharmed(cluster):
    """Whatever a test did: the services live, and hold no more open files than before; no run is left to the next one."""
    before = {service.name: open_files(service) for service in cluster.services}
    yield
    for run in call("GET", cluster.coordinator.url + "/v1/runs")["runs"]:
        if run["state"] not in ("completed", "stopped", "failed"):
            call("POST", f"{cluster.coordinator.url}/v1/runs/{run['id']}/stop")
    for service in cluster.services:
        healthy(service)
        # of connections that a generation-server keeps: one for each of its eight posters, as they come to be used
        until(lambda: open_files(service) <= before.get(service.name, 1000) + 10, 20, f"{service.name} holds files open")


def register(cluster, name, kind="generation"):
    slots = 4 if kind == "generation" else 0
    return call("POST", cluster.coordinator.url + "/v1/workers", {"name": name, "kind": kind, "url": "http://127.0.0.1:9", "slots": slots, "exactness": "invariant"})


def poll(cluster, me, slots=4):
    """Leases, as a server that has loaded whatever is current."""
    url = f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}/leases"
    current = until(lambda: call("POST", url, {"epoch": me["epoch"], "slots_free": slots, "wait_ms": 100})["current"])
    ask = {"epoch": me["epoch"], "slots_free": slots, "wait_ms": 2000, "loaded_digest": current["digest"]}
    return until(lambda: call("POST", url, ask)["leases"])


def result_of(me, lease, tokens=(48, 256)):
    n = len(tokens)
    spans = [{"version": lease["version_min"], "start": 0, "count": n}]
    sample = {"token_ids": list(tokens), "logprobs": [-0.5] * n, "finish_reason": "stop", "segments": [{"start": 0, "count": n, "loss_mask": True}], "version_spans": spans}
    samples = [{"sample": lease["sample_first"] + i, **sample} for i in range(lease["sample_count"])]
    return {"worker_id": me["worker_id"], "epoch": me["epoch"], "fence": lease["fence"], "loaded_digest": lease["weights_digest"], "handed_back": False, "samples": copy.deepcopy(samples)}


NUMBER_LIES = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"-1e39", b"0.5", b"null", b'"-0.5"', b"[-0.5]", b"--0.5", b"1e", b"0x1"]
ID_LIES = [272, -1, 2**31, 1.5, "48", None, [48]]


def lying_results(me, lease):
    """(status, what the field says, body)."""
    good = result_of(me, lease)

    def changed(change):
        body = copy.deepcopy(good)
        change(body, body["samples"][0])
        return body

    raw = json.dumps(changed(lambda body, sample: sample["logprobs"].__setitem__(0, 123456))).encode()
    yield from ((422, "", raw.replace(b"123456", lie)) for lie in NUMBER_LIES)
    yield from ((422, "token_ids", changed(lambda body, sample: sample["token_ids"].__setitem__(0, lie))) for lie in ID_LIES)
    for status, field, change in [
        (422, "logprobs", lambda body, sample: sample["logprobs"].pop()),
        (422, "logprobs", lambda body, sample: sample["logprobs"].append(-1)),
        (422, "logprobs", lambda body, sample: sample.pop("logprobs")),
        (422, "logprobs", lambda body, sample: sample["token_ids"].pop()),
        (422, "segments", lambda body, sample: sample["segments"][0].update(count=3)),
        (422, "segments", lambda body, sample: sample["segments"].clear()),
        (422, "spans", lambda body, sample: sample["version_spans"][0].update(start=1)),
        (409, "spans", lambda body, sample: sample["version_spans"][0].update(version=lease["version_max"] + 1)),
        (422, "finish", lambda body, sample: sample.update(finish_reason="bored")),
        (422, "finish", lambda body, sample: sample.update(finish_reason="length")),
        (422, "finish", lambda body, sample: sample.update(finish_reason="abort")),
        (422, "sample", lambda body, sample: sample.update(sample=lease["sample_first"] + lease["sample_count"])),
        (422, "sample", lambda body, sample: sample.update(sample=-1)),
        (422, "sample", lambda body, sample: body["samples"].append(sample)),
        (422, "samples", lambda body, sample: body["samples"].pop()),
        (422, "samples", lambda body, sample: body["samples"].clear()),
        (404, "", lambda body, sample: body.update(fence=lease["fence"] + 1)),
        (409, "epoch", lambda body, sample: body.update(epoch=str(int(me["epoch"]) + 1))),
        (409, "epoch", lambda body, sample: body.update(epoch=0)),
        (409, "loaded_digest", lambda body, sample: body.update(loaded_digest="0" * 64)),
        (403, "worker_id", lambda body, sample: body.update(worker_id="w999")),
    ]:
        yield status, field, changed(change)
    whole_body = json.dumps(good).encode()
    yield 422, "", whole_body[:-20]
    yield 422, "", whole_body.replace(b'"fence"', b'"epoch":1,"fence"')
    yield 422, "", whole_body.replace(b'"samples": [', b'"samples": ' + b"[" * 3000, 1)
    yield 422, "", whole_body.replace(b"-0.5", b"-0.5" * 1000000, 1)


def as_tensors(body):
    """The same result as safetensors, written from its description in the contract."""
    samples = body["samples"]
    columns = {
        "samples": ("I32", "i", [(s["sample"], ["stop", "length", "abort"].index(s["finish_reason"]), len(s["token_ids"])) for s in samples]),
        "token_ids": ("I32", "i", [token for s in samples for token in s["token_ids"]]),
        "logprobs": ("F32", "f", [logprob for s in samples for logprob in s["logprobs"]]),
        "segments": ("I32", "i", [(part["start"], part["count"], int(part["loss_mask"])) for s in samples for part in s["segments"]]),
        "version_spans": ("I64", "q", [(span["version"], span["start"], span["count"]) for s in samples for span in s["version_spans"]]),
    }
    header, data = {"__metadata__": {"result": json.dumps({k: v for k, v in body.items() if k != "samples"})}}, b""
    for name, (dtype, code, rows) in columns.items():
        flat = [number for row in rows for number in row] if rows and isinstance(rows[0], tuple) else rows
        packed = struct.pack(f"<{len(flat)}{code}", *flat)
        shape = [len(rows)] if flat is rows else [len(rows), 3]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_result_is_the_same_as_json_and_as_tensors(cluster, unharmed):
    run = cluster.create_run({**grpo_config(1, groups=1, samples=2), "verify_samples": False})  # what it sends is made up
    me = register(cluster, "bilingual")
    lease = poll(cluster, me)[0]
    url = f"{cluster.coordinator.url}/v1/leases/{lease['id']}/result"
    good = result_of(me, lease)
    tensors, kind = as_tensors(good), {"Content-Type": "application/octet-stream"}
    lies = [b"", tensors[:7], tensors[:-1], tensors + b"x", b"\xff" * 8 + tensors[8:], tensors.replace(b"I64", b"F64"), tensors.replace(b'"logprobs"', b'"rewards_"')]
    lies += [as_tensors({**good, "samples": good["samples"][:1]}), json.dumps(good).encode()]
    lies += [as_tensors({**good, "samples": [{**s, "logprobs": [float("nan")] * 2} for s in good["samples"]]})]
    lies += [as_tensors({**good, "samples": [{**s, "token_ids": [48, 1 << 20]} for s in good["samples"]]})]
    for lie in lies:
        assert len(refused(422, "PUT", url, lie, headers=kind)["message"]) > 10
    refused(422, "PUT", url, tensors)
    assert call("PUT", url, tensors, headers=kind) == {"repeated": False}
    assert call("PUT", url, good) == {"repeated": True}
    cluster.wait(run)
    call("DELETE", f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}")


def test_a_worker_that_lies_is_refused_and_its_lease_still_counts(cluster, unharmed):
    run = cluster.create_run({**grpo_config(2, groups=1, samples=2), "verify_samples": False})  # what it sends is made up
    me = register(cluster, "liar")
    lease = poll(cluster, me)[0]
    url = f"{cluster.coordinator.url}/v1/leases/{lease['id']}/result"
    refusals = 0
    for status, field, body in lying_results(me, lease):
        got, _, content = exchange("PUT", url, body)
        assert got == status or (status == 404 and got == 409), (got, status, content[:300], str(body)[:300])
        error = json.loads(content)["error"]
        assert len(error["message"]) > 10 and field in error["field"], (error, str(body)[:300])
        refusals += 1
    assert refusals > 40
    other = register(cluster, "thief")
    assert refused(403, "PUT", url, {**result_of(me, lease), "worker_id": other["worker_id"], "epoch": other["epoch"]})["field"] == "worker_id"
    refused(404, "PUT", f"{cluster.coordinator.url}/v1/leases/{run}.0.99.0-1/result", result_of(me, lease))
    refused(422, "PUT", f"{cluster.coordinator.url}/v1/leases/%00/result", result_of(me, lease))
    good = result_of(me, lease)
    assert call("PUT", url, good) == {"repeated": False}
    assert call("PUT", url, good) == {"repeated": True}
    refused(409, "PUT", url, result_of(me, lease, (49, 256)))
    until(lambda: cluster.status(run)["version"] == 1, 60, lambda: cluster.status(run))
    after = poll(cluster, me)[0]
    late = result_of(me, after)
    late["samples"][0]["version_spans"] = good["samples"][0]["version_spans"]
    assert "spans" in refused(409, "PUT", f"{cluster.coordinator.url}/v1/leases/{after['id']}/result", late)["field"]
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
    cluster.wait(run, state="stopped")
    assert "superseded" in refused(409, "PUT", f"{cluster.coordinator.url}/v1/leases/{after['id']}/result", result_of(me, after))["message"]
    status = cluster.status(run)
    assert status["totals"]["stale_results_trained_on"] == 0 and len(status["history"]) == 1, status


CLAIMED_BYTES = 100 << 20


def refused_unread(method, url, claim):
    """(status, error, body bytes taken) for a body of 100 MB: nothing of it is sent before the answer comes, and then as much as the service takes."""
    parts = urllib.parse.urlsplit(url)
    lines = [f"{method} {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", "Content-Type: application/octet-stream", f"Content-Length: {CLAIMED_BYTES}"]
    lines += [f"X-Leasehold-{name}: {value}" for name, value in claim.items()]
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as peer:
        peer.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = http.client.HTTPResponse(peer, method=method)
        answer.begin()
        error = json.loads(answer.read())["error"]
        taken = 0
        try:
            while taken < CLAIMED_BYTES:
                taken += peer.send(bytes(1 << 16))
        except OSError:
            pass  # closed by the service
        return answer.status, error, taken


def test_a_zombies_large_body_is_refused_by_its_headers_and_not_read(cluster, unharmed, tmp_path):
    run = cluster.create_run({**grpo_config(1, groups=1, samples=2), "verify_samples": False})  # what it sends is made up
    me, other = register(cluster, "zombie"), register(cluster, "another")
    lease = poll(cluster, me)[0]
    url = f"{cluster.coordinator.url}/v1/leases/{lease['id']}/result"
    mine = {"Epoch": me["epoch"], "Fence": lease["fence"], "Worker": me["worker_id"]}
    trainer = cluster.trainer.url
    alone = Alone(tmp_path)
    try:
        server = alone.start("gen", "generation-server", ["--model", cluster.folder / f"state/{run}/v0"]).url
        for status, field, method, target, claim in [
            (409, "fence", "PUT", url, {**mine, "Fence": lease["fence"] + 1}),
            (409, "epoch", "PUT", url, {**mine, "Epoch": int(me["epoch"]) - 1}),
            (403, "worker_id", "PUT", url, {**mine, "Worker": other["worker_id"]}),
            (404, "id", "PUT", url.replace(f"{run}.", "r404."), mine),
            (422, "fence", "PUT", url, {**mine, "Fence": "-1"}),
            (409, "epoch", "POST", trainer + "/v1/submit-batch", {"Epoch": 0, "Fence": 1}),
            (409, "fence", "POST", trainer + "/v1/submit-batch", {"Epoch": me["epoch"], "Fence": 0}),
            (409, "epoch", "POST", trainer + "/v1/submit-step", {"Epoch": 0, "Fence": 1}),
            (409, "epoch", "POST", trainer + "/v1/runs", {"Epoch": 0, "Fence": 1}),
            (422, "digest", "POST", server + "/v1/push-weights?run=r1&version=1&epoch=0", {}),
        ]:
            got, error, taken = refused_unread(method, target, claim)
            assert (got, error["field"]) == (status, field), (target, claim, error)
            assert taken < CLAIMED_BYTES / 4, f"{target} {claim}: {taken} bytes were taken"  # what the kernel's buffers hold
    finally:
        alone.close()
    before = cluster.status(run)["totals"]["results_refused"]
    good, headers = result_of(me, lease), {f"X-Leasehold-{name}": str(value) for name, value in mine.items()}
    for field, change in [("fence", {"fence": lease["fence"] + 1}), ("epoch", {"epoch": int(me["epoch"]) + 1}), ("worker_id", {"worker_id": other["worker_id"]})]:
        assert refused(422, "PUT", url, {**good, **change}, headers=headers)["field"] == field
    assert before == 3 and cluster.status(run)["totals"]["results_refused"] == 3, "one for each of the first three above"
    assert call("PUT", url, good, headers=headers) == {"repeated": False}
    refused(409, "PUT", url, {**good, "fence": lease["fence"] + 1}, headers={**headers, "X-Leasehold-Fence": str(lease["fence"] + 1)})
    stale = str(int(me["epoch"]) - 1)
    assert call("PUT", url, {**good, "epoch": stale}, headers={**headers, "X-Leasehold-Epoch": stale}) == {"repeated": True}, "its answer may have been lost"
    cluster.wait(run)  # to its end, not only to its version: or `unharmed` may stop it while it ends


def test_what_comes_too_late_or_from_nowhere_is_refused_by_the_trainer(cluster, unharmed):
    run = cluster.create_run(warmup_config(2))
    cluster.wait(run, 30)
    workers = call("GET", cluster.coordinator.url + "/v1/workers")
    mine = next(w for w in workers["workers"] if w["kind"] == "trainer")
    model = call("GET", cluster.trainer.url + "/v1/model")
    assert (model["run"], model["version"]) == (run, 2)
    sample = {"id": f"{run}.2.0.0", "tokens": [48, 49, 256], "prompt_length": 2, "segments": [{"start": 0, "count": 1, "loss_mask": True}], "advantage": 1.0}
    good = {"batch_id": f"{run}.2.x", "run": run, "epoch": workers["epoch"], "fence": mine.get("fence", 1), "version": 2, "groups": [{"id": f"{run}.2.0", "samples": [sample]}]}
    url = cluster.trainer.url + "/v1/submit-batch"
    for status, field, change in [
        (409, "version", {"version": 1}),
        (409, "version", {"version": 3}),
        (409, "run", {"run": "r999"}),
        (409, "epoch", {"epoch": 0}),
        (409, "fence", {"fence": 0}),
        (422, "groups[0].samples[0].tokens", {"groups": [{"id": "g", "samples": [{**sample, "tokens": [48, 272, 256]}]}]}),
        (422, "groups[0].samples[0].tokens", {"groups": [{"id": "g", "samples": [{**sample, "tokens": [48, -1, 256]}]}]}),
        (422, "groups[0].samples[0].segments", {"groups": [{"id": "g", "samples": [{**sample, "segments": [{"start": 0, "count": 2, "loss_mask": True}]}]}]}),
        (422, "groups[0].samples[0].prompt_length", {"groups": [{"id": "g", "samples": [{**sample, "prompt_length": 3}]}]}),
        (422, "groups[0].samples[0].advantage", {"groups": [{"id": "g", "samples": [{**sample, "advantage": 1e300}]}]}),
        (422, "groups[0].samples", {"groups": [{"id": "g", "samples": [sample, sample]}]}),
        (422, "groups", {"groups": []}),
        (413, "groups[0].samples[0].tokens", {"groups": [{"id": "g", "samples": [{**sample, "tokens": [48] * 1000, "segments": [{"start": 0, "count": 998, "loss_mask": True}]}]}]}),
    ]:
        assert refused(status, "POST", url, {**good, **change})["field"].startswith(field), change
    refused(422, "POST", url, json.dumps(good).replace("1.0", "NaN").encode())
    refused(409, "GET", f"{cluster.trainer.url}/v1/weights/0")
    refused(404, "GET", f"{cluster.trainer.url}/v1/weights/99")
    refused(404, "GET", f"{cluster.trainer.url}/v1/weights/2?run=r999")
    refused(422, "GET", f"{cluster.trainer.url}/v1/weights/-1")
    refused(404, "GET", f"{cluster.trainer.url}/v1/batches/{run}.2.x")
    announce = {"run": run, "step_id": f"{run}.2", "worker_id": mine["id"], "epoch": workers["epoch"], "fence": mine.get("fence", 1), "version": 3, "digest": "0" * 64, "grad_norm": 1.5, "lr": 0.1, "skipped": False, "pushes": []}
    for change in ({}, {"epoch": 0}, {"fence": 0}, {"worker_id": "w999"}, {"version": 2}, {"step_id": f"{run}.1", "version": 2}):
        refused(409, "POST", cluster.coordinator.url + "/v1/versions", {**announce, **change})
    assert call("GET", cluster.trainer.url + "/v1/model")["digest"] == model["digest"]
    assert cluster.status(run)["state"] == "completed"


# --- one thing wrong in a request that is right otherwise ---


def leaves(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def with_leaf(value, path, new):
    if not path:
        return new
    out = copy.copy(value)
    out[path[0]] = with_leaf(value[path[0]], path[1:], new)
    return out


def requests(cluster, server):
    config = grpo_config(1, evaluation=True)
    group = {"id": "r1.0.0", "samples": [{"id": "r1.0.0.0", "tokens": [48, 49, 256], "prompt_length": 2, "segments": [{"start": 0, "count": 1, "loss_mask": True}], "advantage": 1.0}]}
    head = {"run": "r1", "epoch": 1, "fence": 1}
    coordinator, trainer = cluster.coordinator.url, cluster.trainer.url
    yield coordinator + "/v1/runs", config
    yield coordinator + "/v1/workers", {"name": "x", "kind": "generation", "url": "http://127.0.0.1:9", "slots": 4, "exactness": "invariant"}
    yield coordinator + "/v1/workers/w1/heartbeat", {"epoch": 1, "ready": True, "draining": False, "loaded_digest": "0" * 64, "slots_busy": 1, "leases": [{"id": "r1.0.0.0-1", "fence": 1}]}
    yield coordinator + "/v1/workers/w1/leases", {"epoch": 1, "slots_free": 1, "wait_ms": 0, "loaded_digest": "0" * 64}
    yield coordinator + "/v1/versions", {**head, "step_id": "r1.0", "worker_id": "w1", "version": 1, "digest": "0" * 64, "grad_norm": 1.5, "lr": 0.1, "skipped": False, "pushes": [{"worker_id": "w2", "staged": True, "digest": "0" * 64}]}
    yield trainer + "/v1/runs", {**head, "seed": 1, "training": {"objective": "grpo", "lr": 0.1, "temperature": 1, "chunk_tokens": 64}}
    yield trainer + "/v1/submit-batch", {**head, "batch_id": "r1.0.b0", "version": 0, "groups": [group]}
    yield trainer + "/v1/submit-step", {**head, "step_id": "r1.0", "version": 0, "groups": ["r1.0.0"], "denominator": 1.0, "last": False, "stage_timeout_ms": 100, "push_to": [{"worker_id": "w2", "url": "http://127.0.0.1:9"}]}
    yield server + "/v1/generate", {"input_ids": [48], "sampling_params": {"max_new_tokens": 1, "temperature": 1, "stop_token_ids": [1]}, "return_logprob": True}
    yield server + "/v1/completions", {"prompt": "1+1=", "max_tokens": 1, "temperature": 1}


def resident_mib(service):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{service.process.pid}/status").read_text())[1]) >> 10


def test_one_wrong_thing_anywhere_in_a_request_is_refused(cluster, unharmed, tmp_path):
    for name, data in HONEST.items():
        (tmp_path / name).write_bytes(data)
    server = cluster.start("plain", "generation-server", ["--model", tmp_path, "--slots", 2])
    memory = {service.name: resident_mib(service) for service in cluster.services}
    deep = json.loads("[" * 30 + "]" * 30)
    count = 0
    for url, good in requests(cluster, server.url):
        malformed = 400 if url.endswith("/v1/completions") else 422  # OpenAI's
        for path in leaves(good):
            value = good
            for key in path:
                value = value[key]
            other = 7 if isinstance(value, (str, list, dict, bool)) else "x"
            wrongs = [other, {"zzz": [1]}, deep, "y" * 100000, 10**30, 1 if isinstance(value, bool) else True]
            for wrong in wrongs if isinstance(value, float) else [*wrongs, -(2**63)]:
                got, _, content = exchange("POST", url, with_leaf(good, path, wrong))
                assert got in (malformed, 413), (url, path, str(wrong)[:100], got, content[:300])
                count += 1
        text = json.dumps(good).encode()
        for wrong in (text[:-1], text + b"}", text[:-1] + b',"zzz":1}', b"\xef\xbb\xbf" + text, text.replace(b'"', b'"\xff', 1), text.replace(b'"', b'"\\u0000', 1), text.replace(b"{", b'{"zzz":1,"zzz":2,', 1)):
            if not (url.endswith("/v1/completions") and wrong.endswith(b',"zzz":1}')):  # other servers of that API have more keys
                refused(malformed, "POST", url, wrong)
                count += 1
    assert count > 900
    for service in cluster.services:
        healthy(service)
        assert resident_mib(service) < memory[service.name] + 48, service.name
    assert not [run for run in call("GET", cluster.coordinator.url + "/v1/runs")["runs"] if run["state"] == "queued"]
    assert server.stop() == 0
    cluster.services.remove(server)


# --- what the machine refuses ---


def sockets_of(service):
    """How many it has open."""
    count = 0
    for entry in pathlib.Path(f"/proc/{service.process.pid}/fd").iterdir():
        try:
            count += os.readlink(entry).startswith("socket:")
        except OSError:  # closed meanwhile
            pass
    return count


def test_a_client_that_closes_in_the_middle_of_its_request_keeps_no_place(tmp_path):
    """The end comes with the last bytes, which nothing reported: such connections stayed until the time-outs of heads and bodies."""
    head = "POST /v1/runs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    with Standalone(tmp_path) as alone:
        coordinator = alone.start("coordinator", "coordinator", ["--db", tmp_path / "c.db", "--head-timeout-ms", 3600000, "--body-timeout-ms", 3600000])
        before = alone.wait_until("it is ready", lambda: exchange("GET", coordinator.url + "/readyz")[0] == 200 and sockets_of(coordinator))
        for said in (head, head + "\r\n", head + '\r\n{"dataset":'):
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", coordinator.port)) as client:
                    client.sendall(said.encode())
        alone.wait_until("they are gone", lambda: sockets_of(coordinator) <= before)
        assert exchange("GET", coordinator.url + "/readyz")[0] == 200


@pytest.mark.parametrize("program", SERVICES)
def test_a_port_in_use_is_said_in_one_line(program, tmp_path):
    for name, data in HONEST.items():
        (tmp_path / name).write_bytes(data)
    more = {"coordinator": ["--db", tmp_path / "x.db", "--data-dir", tmp_path], "generation-server": ["--model", tmp_path], "trainer-server": ["--model", tmp_path, "--state-dir", tmp_path / "state"]}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run([BIN / program, "--port", port, "--log-level", "error", *more[program]], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1 and ended.stderr.strip().count("\n") == 0 and f"port {port} in use" in ended.stderr, ended


def limit_files(service, size):
    """The disk is full for whatever grows beyond `size` bytes; None: there is room again."""
    _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def full_disk_under_the_trainer(tmp_path):
    config = grpo_config(400, groups=2, samples=2)
    with Cluster(tmp_path / "c", trainer=["--random-init", 1]) as one:
        one.add_server("gen", "--slots", 4)
        run = one.create_run(config)
        until(lambda: one.status(run)["version"] or 0 >= 2)
        limit_files(one.trainer, 60000)  # below a checkpoint, above the log
        sentence(one.trainer, r"writing .*: File too large")
        healthy(one.trainer)
        healthy(one.coordinator)
        stuck = until(lambda: (s := one.status(run))["waiting_for"] and s)
        held = call("GET", one.trainer.url + "/v1/model")
        assert held["version"] == stuck["version"] and held["digest"] == digests(stuck)[-1]
        assert stuck["state"] == "running" and "File too large" in stuck["waiting_for"]
        limit_files(one.trainer, None)
        until(lambda: (s := one.status(run))["version"] > stuck["version"] and not s["waiting_for"])
        exchange("POST", f"{one.coordinator.url}/v1/runs/{run}/stop")
        until(lambda: one.status(run)["state"] == "stopped", 60)
        assert digests(one.status(run))[: len(digests(stuck))] == digests(stuck)
        assert len(one.run(grpo_config(1, groups=2, samples=2))["history"]) == 1  # as good as new
        assert one.trainer.stop() == 0
        again = one.start("trainer-again", "trainer-server", ["--model", DATA / "model", "--state-dir", one.folder / "state"])
        healthy(again)


def full_disk_under_the_coordinator(tmp_path):
    """It ends rather than promise what it cannot keep; started again, it has every run that it had acknowledged, and the one in progress ends as if nothing had been."""
    config = grpo_config(30, groups=2, samples=2)
    with Cluster(tmp_path / "wanted", trainer=["--random-init", 1]) as one:
        one.add_server("gen", "--slots", 4)
        wanted = digests(one.run(config))
    with Cluster(tmp_path / "c", trainer=["--random-init", 1]) as one:
        one.add_server("gen", "--slots", 4)
        run = one.create_run(config)
        until(lambda: (one.status(run)["version"] or 0) >= 2)
        port = one.coordinator.url.rsplit(":", 1)[1]
        limit_files(one.coordinator, os.path.getsize(f"{one.folder}/coordinator.db-wal") + 30000)
        acknowledged = [run]
        for _ in range(63):
            try:
                status, _, content = exchange("POST", one.coordinator.url + "/v1/runs", {**config, "name": "n" * 100, "rounds": 1})
            except OSError:
                break
            if status != 201:
                assert status == 503 and json.loads(content)["error"]["message"]
                break
            acknowledged.append(json.loads(content)["id"])
        assert one.coordinator.process.wait(10) == 1
        assert "everything acknowledged is safe" in one.coordinator.log.read_text().splitlines()[-1]
        one.services.remove(one.coordinator)
        one.coordinator = one.start("coordinator-again", "coordinator", ["--db", one.folder / "coordinator.db", "--data-dir", DATA, "--port", port])
        known = {r["id"] for r in call("GET", one.coordinator.url + "/v1/runs?limit=1000")["runs"]}
        assert known >= set(acknowledged)
        for other in acknowledged[1:]:
            call("POST", f"{one.coordinator.url}/v1/runs/{other}/stop")
        assert digests(one.wait(run, seconds=60)) == wanted


SCENES = {
    "test_a_run_through_lying_proxies_ends_with_the_same_weights": run_through_lying_proxies,
    "test_a_full_disk_under_the_trainer_loses_no_version": full_disk_under_the_trainer,
    "test_a_full_disk_under_the_coordinator_loses_nothing_acknowledged": full_disk_under_the_coordinator,
}


def test_a_run_through_lying_proxies_ends_with_the_same_weights(stage, request):
    stage.outcome(request.node.name)


def test_a_full_disk_under_the_trainer_loses_no_version(stage, request):
    stage.outcome(request.node.name)


def test_a_full_disk_under_the_coordinator_loses_nothing_acknowledged(stage, request):
    stage.outcome(request.node.name)
