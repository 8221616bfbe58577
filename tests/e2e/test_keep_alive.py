"""A thousand keep-alive connections and ten clients for each thread that answers them, on every service: each answer is the right one, or 429 or 503 with
Retry-After; no connection is reset or closed in silence; health is answered all the while; memory is flat once everything has been asked; and when the load is
over a plain request is answered within a second, the thousand connections still open.

A few seconds of it in `make test`, a minute in `make long`."""
import itertools
import json
import resource
import socket
import statistics
import time

import pytest

from harness import DATA, Cluster, Standalone, call, exchange, grpo_config
from keep_alive import Load, Question, Script
from test_load import answer_to, head, need_files

KEPT = 1000
HANDLER_THREADS = HTTP_THREADS = 2  # --handler-threads, and libmicrohttpd's
ACTIVE = 10 * (HANDLER_THREADS + HTTP_THREADS)
RECOVERY_SECONDS = 1.0
HEALTH_SECONDS = 1.0
PROBE_EVERY = 0.1
MIB = 1 << 20
# (seconds until memory counts as warm, seconds of load after that, how much may be gained meanwhile)
SHORT = (3, 4, 8 * MIB)
LONG = (15, 60, 4 * MIB)


def resident(service):
    with open(f"/proc/{service.process.pid}/statm") as figures:
        return int(figures.read().split()[1]) * resource.getpagesize()


def ask_anew(service, request, seconds):
    """One exchange on a connection of its own: (status, body, seconds that it took)."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", service.port), timeout=seconds) as sock:
        status, body = answer_to(sock, request)
    return status, body, time.monotonic() - begun


def recovered(service, request):
    """Seconds until this request is answered with 200; meanwhile it may be told to come again."""
    begun = time.monotonic()
    while True:
        status, body, _ = ask_anew(service, request, 10)
        if status == 200:
            return time.monotonic() - begun
        assert status in (429, 503) and time.monotonic() - begun < 10, (request, status, body)


class Figures:
    """What a load has shown."""

    def __init__(self):
        self.memory, self.health, self.recovery, self.tally = [], [], {}, None

    def gained(self, warm, seconds):
        """Median of the last quarter of the load against that of the first quarter after the warm-up."""
        quarter = seconds / 4
        first = [bytes_ for at, bytes_ in self.memory if warm <= at < warm + quarter]
        last = [bytes_ for at, bytes_ in self.memory if at >= warm + seconds - quarter]
        return statistics.median(last) - statistics.median(first)


def press(service, questions, plain, warm, seconds):
    """questions(): what the crowd asks, called in its process.  plain: requests that are asked when the load is over."""
    need_files(KEPT + 500)
    figures = Figures()
    with Load(service.port, questions, KEPT, ACTIVE) as load:
        load.wait_open()
        begun = time.monotonic()
        while (at := time.monotonic() - begun) < warm + seconds:
            status, _, took = ask_anew(service, head("GET", "/healthz"), 2 * HEALTH_SECONDS)
            assert status == 200
            figures.health.append(took)
            figures.memory.append((at, resident(service)))
            time.sleep(PROBE_EVERY)
        load.stop.set()
        for request in plain:
            figures.recovery[request.split(b"\r\n")[0].decode()] = recovered(service, request)
        figures.tally = load.end()
    return figures


def judge(service, figures, length):
    warm, seconds, growth = length
    tally, gained = figures.tally, figures.gained(warm, seconds)
    answers = sum(tally.answers.values())
    health = sorted(figures.health)
    print(
        f"{service.name}: {answers} answers in {warm + seconds} s, refused {dict(tally.refused)}, slowest {tally.slowest_ms:.0f} ms; /healthz p99 "
        f"{1000 * health[int(0.99 * len(health))]:.0f} ms, at most {1000 * health[-1]:.0f}; {figures.memory[-1][1] / MIB:.1f} MiB, gained {gained / MIB:+.2f}; then "
        + ", ".join(f"{name} {1000 * took:.0f} ms" for name, took in figures.recovery.items())
        + f"; {dict(tally.answers)}"
    )
    assert tally.fault_count == 0, (tally.fault_count, tally.faults)
    assert answers > 100 and len({name for name, _ in tally.answers}) > 2
    assert health[-1] <= HEALTH_SECONDS
    assert max(figures.recovery.values()) <= RECOVERY_SECONDS, figures.recovery
    assert gained <= growth, f"{gained / MIB:.1f} MiB were gained in {seconds} s, at most {growth / MIB:.0f} were expected: {figures.memory[:: len(figures.memory) // 20]}"
    assert service.process.poll() is None


def known(service, name, method, path, body=None, weight=1):
    """A question whose answer is what it is now, byte for byte."""
    data = None if body is None else json.dumps(body).encode()
    status, _, content = exchange(method, service.url + path, data)  # judged by the contract
    assert status == 200, (method, path, content)
    return Question(name, method, path, data, content, weight)


def metrics(answer):
    assert answer.status == 200 and answer.body.startswith(b"# HELP") and b"\nleasehold_http_responses_total" in answer.body


def health():
    return [Question(name, "GET", f"/{name}", weight=4) for name in ("healthz", "readyz")] + [Question("metrics", "GET", "/metrics", judge=metrics)]


# --- coordinator and generation-server: a history that is worth reading, and a policy to sample from ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("kept"), trainer=["--random-init", 1, "--threads", 1]) as cluster:
        cluster.server = cluster.add_server("gen-1", "--slots", 16, "--threads", 1)
        cluster.run(grpo_config(4, groups=16, samples=8))
        yield cluster


def coordinator_questions(cluster):
    service, run = cluster.coordinator, "r1"
    workers = call("GET", service.url + "/v1/workers")
    trainer = next(worker for worker in workers["workers"] if worker["kind"] == "trainer")
    newest = cluster.status(run)["history"][-1]
    announced = {"run": run, "step_id": f"{run}.3", "worker_id": trainer["id"], **cluster.authority(), "version": 4, "digest": newest["digest"], "grad_norm": 1.5, "lr": 0.1, "skipped": False, "pushes": []}
    mine = call("POST", service.url + "/v1/workers", {"name": "asks", "kind": "generation", "url": "http://127.0.0.1:9", "slots": 4, "exactness": "invariant"})
    here = f"/v1/workers/{mine['worker_id']}"

    def poll(wait_ms):
        return json.dumps({"epoch": mine["epoch"], "slots_free": 1, "wait_ms": wait_ms, "loaded_digest": newest["digest"]}).encode()

    def nothing_to_do(answer):
        assert answer.status == 200 and json.loads(answer.body)["leases"] == []

    def lives(answer):
        assert answer.status == 200 and json.loads(answer.body)["lost"] == []

    beat = json.dumps({"epoch": mine["epoch"], "ready": False, "draining": False, "slots_busy": 0, "busy_slot_us": 0, "tokens_sampled": 0, "leases": []}).encode()
    verify = {"verifier": {"kind": "math"}, "samples": [{"completion": f"\\boxed{{\\frac{{{n}}}{{4}}}}", "answer": "0.25"} for n in range(64)]}
    return [
        *health(),
        known(service, "runs", "GET", "/v1/runs", weight=4),
        known(service, "status", "GET", f"/v1/runs/{run}", weight=4),
        known(service, "rounds", "GET", f"/v1/runs/{run}/rounds?limit=10000", weight=2),
        known(service, "rollouts", "GET", f"/v1/runs/{run}/rollouts?round=3&limit=1000", weight=3),
        known(service, "samples", "GET", f"/v1/runs/{run}/samples?limit=200&text=1"),
        known(service, "spread", "GET", f"/v1/runs/{run}/spread"),
        known(service, "group", "GET", f"/v1/groups/{run}.3.0", weight=2),
        known(service, "timeline", "GET", f"/v1/runs/{run}/timeline?round=2"),
        known(service, "verify", "POST", "/v1/verify", verify),
        known(service, "versions", "POST", "/v1/versions", announced, weight=2),
        Question("heartbeat", "POST", here + "/heartbeat", beat, lives, weight=6),
        Question("poll", "POST", here + "/leases", poll(0), nothing_to_do, weight=4),
        Question("long poll", "POST", here + "/leases", poll(300), nothing_to_do, weight=2),
    ]


def server_questions(service):
    def generate(name, text, weight=1, **sampling):
        """The same draws whatever goes on beside them, by the seed."""
        body = {"text": text, "sampling_params": {"temperature": 1, **sampling}, "return_logprob": True}

        def draws(content):
            choices = json.loads(content)
            return [(c["text"], c["output_ids"], c["meta_info"].get("output_token_logprobs")) for c in (choices if isinstance(choices, list) else [choices])]

        drawn = draws(call("POST", service.url + "/v1/generate", body, raw=True))

        def same(answer):
            return answer.status == 200 and draws(answer.body) == drawn

        return Question(name, "POST", "/v1/generate", json.dumps(body).encode(), same, weight)

    def completion(answer):
        assert answer.status == 200 and len(json.loads(answer.body)["choices"]) == 2

    loaded, name = call("GET", service.url + "/v1/model")["loaded"], call("GET", service.url + "/v1/models")["data"][0]["id"]

    def holds_the_version(answer):
        assert answer.status == 200 and json.loads(answer.body)["loaded"] == loaded

    def names_the_model(answer):
        assert answer.status == 200 and json.loads(answer.body)["data"][0]["id"] == name

    unseeded = json.dumps({"prompt": "7+1=", "max_tokens": 32, "n": 2, "temperature": 1, "ignore_eos": True}).encode()
    return [
        *health(),
        generate("one token", "1+2=", 4, max_new_tokens=1, seed=1),
        generate("a sample", "3+4=", 4, max_new_tokens=16, seed=2),
        generate("eight long samples", "5+6=", 2, max_new_tokens=64, n=8, seed=3, ignore_eos=True),
        generate("a long prompt", "1+2=" * 25, 1, max_new_tokens=4, seed=4),
        Question("completions", "POST", "/v1/completions", unseeded, completion, weight=2),
        known(service, "tokenize", "POST", "/tokenize", {"prompt": "12+34=" * 50}, weight=2),
        Question("models", "GET", "/v1/models", judge=names_the_model, weight=3),
        Question("model", "GET", "/v1/model", judge=holds_the_version, weight=3),
    ]


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.alone
@pytest.mark.parametrize("length", [SHORT, long(LONG)], ids=["seconds", "minute"])
class TestUnderLoad:
    def test_the_coordinator(self, cluster, length):
        service = cluster.coordinator
        questions = coordinator_questions(cluster)
        plain = [head("GET", path) for path in ("/v1/runs", "/v1/runs/r1", "/v1/runs/r1/rollouts?limit=1000", "/v1/workers")]
        judge(service, press(service, lambda: questions, plain, *length[:2]), length)

    def test_the_generation_server(self, cluster, length):
        service = cluster.server
        questions = server_questions(service)
        body = json.dumps({"text": "1+2=", "sampling_params": {"max_new_tokens": 4}}).encode()
        plain = [head("GET", "/v1/model"), head("POST", "/v1/generate", body) + body]
        judge(service, press(service, lambda: questions, plain, *length[:2]), length)

    def test_the_trainer(self, tmp_path, length):
        with Standalone(tmp_path) as alone:
            service = alone.start("trainer", "trainer-server", ["--model", DATA / "model", "--random-init", 1, "--state-dir", tmp_path / "state", "--threads", 1])
            call("POST", service.url + "/v1/runs", {"run": "r1", **EPOCH, "seed": 1, "current_version": 0, "training": TRAINING})
            files = [known(service, name, "GET", f"/v1/model/files/{name}", weight=2) for name in ("config.json", "tokenizer.json")]
            plain = [head("GET", "/v1/model"), head("GET", "/v1/model/files/tokenizer.json")]
            figures = press(service, lambda: [*health(), *files, *Learner().scripts()], plain, *length[:2])
            judge(service, figures, length)
            steps = figures.tally.answers["step", 202]
            assert steps > 0 and call("GET", service.url + "/v1/model")["version"] >= steps

    def test_the_rollout_agent(self, cluster, tmp_path, length):
        """It has no engine, so it is not ready, and says so."""
        arguments = ["--coordinator", cluster.coordinator.url, "--engine-url", "http://127.0.0.1:1", "--weights-dir", tmp_path]
        with Standalone(tmp_path) as alone:
            service = alone.start("agent", "rollout-agent", arguments)
            judge(service, press(service, health, [head("GET", "/healthz"), head("GET", "/metrics")], *length[:2]), length)


# --- a trainer whose rounds go on ---

EPOCH = {"epoch": 1, "fence": 1}
TRAINING = {"objective": "grpo", "lr": 1e-3, "temperature": 1.0, "chunk_tokens": 512, "checkpoint_every": 1000}
ROUND_SECONDS = 1.5
CONTENTS, CHECKS = 6, 480  # different groups that are checked, and checks of a version: more of them come again under the same ids


class Learner:
    """What the clients of a trainer know together.  One of them plays a round now and then: a batch and a step; all have groups checked under the version of the
    moment, again and again to the same answer, and fetch it.  A request under a version that is just being superseded may be refused for that."""

    def __init__(self):
        self.version, self.playing, self.stepping, self.next_round = 0, False, False, 0.0
        self.number, self.found = itertools.count(), {}

    def scripts(self):
        return [
            Script("check", self.check, weight=6),
            Script("round", self.round, weight=3),
            Script("weights", self.weights, weight=3),
            Question("model", "GET", "/v1/model", weight=4),
        ]

    def moved(self, version):
        return self.stepping or self.version != version

    def group(self, version, content):
        name = f"r1.{version}.{content}"
        samples = [
            {
                "id": f"{name}.{i}",
                "tokens": [48 + (7 * t + 3 * i + content) % 10 for t in range(40)],
                "prompt_length": 8,
                "segments": [{"start": 0, "count": 32, "loss_mask": True}],
                "advantage": 1.0 if i % 2 else -1.0,
            }
            for i in range(4)
        ]
        return {"id": name, "ordinal": content, "samples": samples}

    def may_be_superseded(self, version, status):
        def judge(answer):
            return answer.status == status or (answer.status in (404, 409) and self.moved(version))

        return judge

    async def post(self, crowd, client, name, path, version, body):
        question = Question(name, "POST", path, json.dumps({"run": "r1", **EPOCH, "version": version, **body}).encode(), self.may_be_superseded(version, 202))
        return await crowd.exchange(client, question)

    async def outcome(self, crowd, client, name, path, version):
        """Of a job, once it has ended; None where it was dropped with its version, or nobody answers any more."""
        question = Question(name, "GET", f"{path}?wait_ms=2000", judge=self.may_be_superseded(version, 200))
        while not crowd.until():
            answer = await crowd.exchange(client, question)
            if answer is None or answer.status in (404, 409):
                return None
            if answer.status == 200 and (found := json.loads(answer.body))["state"] in ("done", "failed"):
                if found["state"] == "failed" and not self.moved(version):
                    crowd.tally.fault(f"{path} failed: {found}")
                return found
        return None

    async def check(self, crowd, client):
        version, number = self.version, next(self.number) % CHECKS
        content, name = number % CONTENTS, f"r1.{version}.c{number}"
        body = {"batch_id": name, "check": {"seed": 1, "round": version}, "groups": [self.group(version, content)]}
        answer = await self.post(crowd, client, "check", "/v1/submit-batch", version, body)
        if answer is None or answer.status != 202:
            return
        found = await self.outcome(crowd, client, "check's answer", f"/v1/batches/{name}", version)
        if found and found["state"] == "done":
            told = (found["logprobs_sha256"], found.get("differences"))
            if self.found.setdefault((version, content), told) != told:
                crowd.tally.fault(f"{name} is {told}, and was {self.found[version, content]}")

    async def weights(self, crowd, client):
        version = self.version

        def judge(answer):
            if answer.status != 200:
                return answer.status in (404, 409) and self.moved(version)
            digest = answer.headers["x-leasehold-digest"]
            return len(answer.body) > 100_000 and self.found.setdefault(("weights", version), digest) == digest

        await crowd.exchange(client, Question("weights", "GET", f"/v1/weights/{version}?run=r1", judge=judge))

    async def until_taken(self, crowd, client, *what):
        while not crowd.until():
            answer = await self.post(crowd, client, *what)
            if answer is not None and answer.status == 202:
                return

    async def round(self, crowd, client):
        if self.playing or time.monotonic() < self.next_round:
            return await self.check(crowd, client)
        self.playing, version = True, self.version
        try:
            group = self.group(version, CONTENTS)
            group.pop("ordinal")
            batch, step = f"r1.{version}.b0", f"r1.{version}"
            await self.until_taken(crowd, client, "batch", "/v1/submit-batch", version, {"batch_id": batch, "groups": [group]})
            await self.outcome(crowd, client, "batch's answer", f"/v1/batches/{batch}", version)
            self.stepping = True
            body = {"step_id": step, "groups": [group["id"]], "denominator": 128.0, "last": False, "stage_timeout_ms": 100, "push_to": []}
            await self.until_taken(crowd, client, "step", "/v1/submit-step", version, body)
            found = await self.outcome(crowd, client, "step's answer", f"/v1/steps/{step}", version)
            if found and found["state"] == "done":
                self.version = version + 1
            elif not crowd.until():
                crowd.tally.fault(f"{step}: {found}")
        finally:
            self.playing = self.stepping = False
            self.next_round = time.monotonic() + ROUND_SECONDS
        return None


# --- refused, not kept waiting ---


@pytest.mark.alone
def test_a_full_queue_refuses_with_retry_after(tmp_path):
    """With room for two requests only, most of forty clients are refused, in order; the others' answers are right, and one alone is answered."""
    with Standalone(tmp_path) as alone:
        service = alone.start("tight", "coordinator", ["--db", tmp_path / "db", "--handler-threads", 1, "--handler-queue-max", 2])
        verify = {"verifier": {"kind": "math"}, "samples": [{"completion": f"\\boxed{{\\frac{{{n}}}{{4}}}}", "answer": "0.25"} for n in range(256)]}
        questions = [*health(), known(service, "verify", "POST", "/v1/verify", verify, weight=40)]
        with Load(service.port, lambda: questions, 20, ACTIVE) as load:
            load.wait_open()
            time.sleep(1.5)
            load.stop.set()
            took = recovered(service, head("GET", "/v1/runs"))
            tally = load.end()
        print(dict(tally.answers), dict(tally.refused))
        assert tally.fault_count == 0, tally.faults
        assert tally.refused[503] > 10 and tally.answers["verify", 200] > 10
        assert not [key for key in tally.answers if key[0] in ("healthz", "readyz") and key[1] != 200]
        assert took <= RECOVERY_SECONDS
