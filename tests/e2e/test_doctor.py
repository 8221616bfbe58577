"""`leasehold doctor` before real services: every check's good line, and its line where something is wrong; the exit status follows the worst.

What would break: a set-up that cannot work is called well; one that works is not; a line does not say what to do; -v prints a call that answers something else.
Where the machine under the test cannot be made slow or wrong (a disk, a clock, a full one), a relay before the real coordinator changes the one figure.
"""
import http.server
import itertools
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from harness import DATA, Cluster, call, grpo_config
from test_cli import leasehold
from test_roles import TOKENS, Guarded, bearer

PROBLEMS = [(f"{a}+{b}=", (a + b) % 10) for a in range(4) for b in range(5)]


def doctor(cluster, *args, **more):
    """(exit status, [(how, what)])"""
    status, output, error = leasehold(cluster, "doctor", *args, **more)
    assert output or status == 3, error
    *lines, verdict = output.splitlines()
    found = [re.fullmatch(r"(ok|warn|fail) +(.+)", line).groups() for line in lines]
    worst = {how for how, _ in found}
    assert (status == 1) == ("fail" in worst) and verdict == ("A run would not do what it should." if "fail" in worst else "It works; look at the lines above." if "warn" in worst else "All is well.")
    return status, found


def hows(found, pattern):
    """How the lines were judged that have this in them; there must be one."""
    judged = [how for how, what in found if re.search(pattern, what)]
    assert judged, (pattern, found)
    return judged


def config(folder, dataset="train.jsonl", **changes):
    made = grpo_config(1, groups=4, samples=4)
    made["dataset"] = dataset if isinstance(dataset, dict) else {"path": dataset}
    made.update(changes)
    path = folder / "run.json"
    path.write_text(json.dumps(made))
    return path


class Relay:
    """Before the coordinator at `url`: change(path, answer's bytes) gives other bytes."""

    def __init__(self, url, change):
        class Handler(http.server.BaseHTTPRequestHandler):
            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                request = urllib.request.Request(url + self.path, data=body if self.command == "POST" else None, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        status, content = answer.status, change(self.path, answer.read())
                except urllib.error.HTTPError as error:
                    status, content = error.code, error.read()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = pass_on

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))

    def __enter__(self):
        self.thread.start()
        return self.url

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor") / "data"
    shutil.copytree(DATA, folder, ignore=shutil.ignore_patterns("model"))
    (folder / "sums.jsonl").write_text("".join(json.dumps({"prompt": q, "answer": str(a)}) + "\n" for q, a in PROBLEMS))
    (folder / "bad.jsonl").write_text('{"prompt":"1+1=","answer":"2"}\n{"prompt":"1+1="}\n{"question":"1+1="}\n')
    (folder / "mixed.jsonl").write_text("".join(json.dumps({"prompt": q + "0" * 9 * (q[0] == "3"), "answer": str(a)}) + "\n" for q, a in PROBLEMS))
    (folder / "answerless.jsonl").write_text("".join(json.dumps({"prompt": q, "numbers": [a + 1, 1], "target": a + 2}) + "\n" for q, a in PROBLEMS))
    (folder / "accents.jsonl").write_text("".join(json.dumps({"prompt": "e\u0301" + q, "answer": str(a)}) + "\n" for q, a in PROBLEMS))
    return folder


@pytest.fixture(scope="module")
def cluster(base_model, data, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", model=base_model, trainer=["--threads", 1], coordinator=["--data-dir", data]) as made:
        made.add_server("gen", "--slots", 16, "--threads", 1)
        made.wait_until("both are registered", lambda: len(call("GET", made.coordinator.url + "/v1/workers")["workers"]) == 2)
        made.early = doctor(made)
        made.run(grpo_config(1, groups=4, samples=4))
        yield made


def test_before_the_first_run_paces_are_not_known(cluster):
    status, found = cluster.early
    assert status == 0
    for good in ("is ready", r"disk has .* GB left", r"the database's disk \(.+\) writes \d+ MB/s and syncs a block in [\d.]+ ms", "the coordinator's clock is within a second", "every worker's clock", "1 of them holds", "16 slots", "0 runs are active"):
        assert set(hows(found, good)) <= {"ok", "warn"}, good  # a slow disk is the machine's
    assert hows(found, "gen has no weights yet") == ["warn"] and hows(found, "trainer has taken no step") == ["warn"]


def test_a_set_up_and_a_run_that_are_well(cluster, data, tmp_path):
    status, found = doctor(cluster, config(tmp_path, "sums.jsonl"))
    assert status == 0, found
    for good in (r"gen sampled \d+ tokens a second just now: 32 tokens of each of 16 samples", r"trainer learned from \d+ tokens a second in its 1 steps", r"trainer is sized for [\d.]+ MB of the [\d.]+ MB", r"gen is sized for", r"sums.jsonl: 20 prompts, every line was read", "the tokenizer gives the first 10 prompts back", "the verifier numeric gives full marks to the answers of the first 10 lines", r"2 workers are of this command line's version", r"a round of 16 samples of at most 32 tokens: .*sampling takes up to [^,]+, training up to"):
        assert hows(found, good) == ["ok"], good
    assert len(hows(found, "disk .* writes")) == 2  # the ledger's, the checkpoints'
    assert doctor(cluster, "-", stdin=(tmp_path / "run.json").read_text())[0] == 0


def test_evaluation_sets_are_counted(cluster, tmp_path):
    made = grpo_config(1, groups=4, samples=4, evaluation=True)
    (tmp_path / "run.json").write_text(json.dumps(made))
    lines = len((DATA / "validation.jsonl").read_text().splitlines())
    assert hows(doctor(cluster, tmp_path / "run.json")[1], f"validation.jsonl: {lines} prompts") == ["ok"]


def test_what_v_prints_can_be_called_by_hand(cluster, tmp_path):
    status, _, error = leasehold(cluster, "doctor", config(tmp_path, "sums.jsonl"), "-v")
    calls = error.splitlines()
    assert status == 0 and all(line.startswith("curl ") for line in calls)
    for path in ("/readyz", "/metrics", "/v1/check-disk", "/v1/workers", "/v1/generate", "/v1/check-run"):
        asked = [line for line in calls if line.endswith(path + "'")]
        assert asked, (path, calls)
        done = subprocess.run(["bash", "-c", asked[0].replace("curl -sS", "curl -sS -f", 1)], capture_output=True, text=True)
        assert done.returncode == 0, (asked[0], done.stdout, done.stderr)
    assert json.loads(done.stdout)["dataset"]["prompts"] == len(PROBLEMS)
    assert len([line for line in calls if "/v1/check-disk" in line]) == 2


def test_bad_lines_and_refusals_are_said(cluster, tmp_path):
    status, found = doctor(cluster, config(tmp_path, "bad.jsonl"))
    assert status == 1 and hows(found, "would be refused: .*bad.jsonl line 2.*line 3") == ["fail"]
    assert hows(doctor(cluster, config(tmp_path, "none.jsonl"))[1], "the data directory holds no file 'none.jsonl'") == ["fail"]
    assert hows(doctor(cluster, config(tmp_path, groups_per_round=0))[1], "groups_per_round") == ["fail"]
    found = doctor(cluster, config(tmp_path, {"path": "mixed.jsonl", "prompt_tokens_max": 8, "long_prompts": "skip"}))[1]
    assert hows(found, "mixed.jsonl: 15 prompts, .* 5 more are too long and left out") == ["warn"]
    assert leasehold(cluster, "doctor", tmp_path / "no such file")[0] == 1
    assert not call("GET", cluster.coordinator.url + "/v1/runs")["runs"][1:], "a check has posted a run"


def test_a_verifier_that_does_not_fit_its_data(cluster, tmp_path):
    status, found = doctor(cluster, config(tmp_path, "sums.jsonl", verifier={"kind": "regex", "pattern": "^no answer looks so$"}))
    assert status == 1 and hows(found, "the verifier regex gives full marks to 0 of the first 10 answers of the dataset: line 1 has \"0\"") == ["fail"]
    found = doctor(cluster, config(tmp_path, "sums.jsonl", verifier={"kind": "regex", "pattern": "[0-9]"}))[1]
    assert hows(found, "gives full marks to 10 wrong answers of 10 too") == ["warn"]
    found = doctor(cluster, config(tmp_path, "answerless.jsonl", verifier={"kind": "countdown"}))[1]
    assert hows(found, "the verifier countdown cannot be tried") == ["warn"]


def test_the_form_of_an_answer_is_told(cluster, tmp_path):
    found = doctor(cluster, config(tmp_path, "sums.jsonl", verifier={"kind": "exact"}))[1]
    assert hows(found, "the verifier exact gives full marks to the answers of the first 10 lines, written alone") == ["ok"]


def test_a_tokenizer_that_gives_other_text_back_or_cannot_be_read(data, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DATA / "model", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "NFC"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Cluster(tmp_path / "c", model=model, trainer=["--threads", 1, "--random-init", 1], coordinator=["--data-dir", data]) as cluster:
        cluster.wait_until("the trainer is registered", lambda: call("GET", cluster.coordinator.url + "/v1/workers")["workers"])
        run = config(tmp_path, "accents.jsonl")
        status, found = doctor(cluster, run)
        assert hows(found, "the tokenizer gives 10 of the first 10 prompts back otherwise than they were, line 1 first") == ["warn"]
        assert status == 1 and hows(found, "no generation-server is registered") == ["fail"] and hows(found, "how long a round takes is not known") == ["warn"]
        (model / "tokenizer.json").write_text("{}")
        assert hows(doctor(cluster, run)[1], "would be refused: .*tokenizer.json") == ["fail"]


def test_machines_that_are_not_well(base_model, data, tmp_path):
    with Cluster(tmp_path / "c", model=base_model, trainer=["--threads", 1], coordinator=["--data-dir", data]) as cluster:
        url = cluster.coordinator.url
        needed = cluster.trainer.metric(r'leasehold_memory_needed_bytes\{where="host"\}')
        cluster.trainer.stop()
        cluster.trainer.restart([*cluster.trainer.args, "--memory-max", int(needed * 1.02)])
        far = {"name": "far", "kind": "generation", "url": "http://127.0.0.1:1", "slots": 4, "exactness": "invariant"}
        worker = call("POST", url + "/v1/workers", far)
        beat = {"epoch": worker["epoch"], "ready": False, "draining": False, "slots_busy": 0, "busy_slot_us": 0, "tokens_sampled": 0, "leases": [], "sent_us": int((time.time() + 3600) * 1e6)}
        call("POST", f"{url}/v1/workers/{worker['worker_id']}/heartbeat", beat)
        call("POST", url + "/v1/workers", {**far, "name": "agent", "exactness": "foreign"})
        cluster.wait_until("all are registered", lambda: {w["name"] for w in call("GET", url + "/v1/workers")["workers"]} == {"trainer", "far", "agent"})
        (cluster.folder / "state").rename(cluster.folder / "elsewhere")
        status, found = doctor(cluster)
        assert status == 1 and hows(found, "trainer's disk cannot be written: .*No such file") == ["fail"]
        assert hows(found, "trainer is sized for .*--fit") == ["warn"]
        assert hows(found, "far: its clock is off by (1 h 0 min|59 min)") == ["warn"]
        assert hows(found, "far cannot be asked from here at http://127.0.0.1:1 .*; the trainer, which pushes weights there, must") == ["warn"]
        assert hows(found, "agent cannot be asked from here at http://127.0.0.1:1 .*; those who watch it must") == ["warn"]  # it pulls
        (cluster.folder / "elsewhere").rename(cluster.folder / "state")


def test_what_a_viewer_may_not_measure_is_not_called_bad(tmp_path):
    with Guarded(tmp_path) as cluster:
        cluster.add_server("gen", "--slots", 4, "--threads", 1)
        cluster.wait_until("both are registered", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers", headers=bearer(TOKENS["viewer"]))["workers"]) == 2)
        run = call("POST", cluster.coordinator.url + "/v1/runs", {**grpo_config(1, groups=2), "start": "model"}, headers=bearer(TOKENS["admin"]))["id"]
        cluster.wait_until("it is done", lambda: call("GET", f"{cluster.coordinator.url}/v1/runs/{run}", headers=bearer(TOKENS["viewer"]))["state"] == "completed")
        file = config(tmp_path)
        status, found = doctor(cluster, file, "--auth-token", TOKENS["viewer"])
        assert status == 0
        for pattern in ("the database's disk is not measured: .*a token of .*admin.* was expected", "trainer's disk is not measured: .*a token of .*admin.* was expected", "how fast gen samples is not measured: .*a token of .*admin.* was expected", "run.json is not checked: .*a token of .*admin.* was expected"):
            assert hows(found, pattern) == ["warn"]
        assert hows(found, r"the database's disk has [\d.]+ GB left") in (["ok"], ["warn"])
        for flags, what in (([], "asks for a token"), (["--auth-token", "wrong"], "refuses this token")):
            status, found = doctor(cluster, file, *flags)
            assert status == 1 and hows(found, f"the coordinator {what} ") == ["fail"] and len(found) == 2


def test_another_service_is_no_coordinator(cluster):
    for service in cluster.services[1:]:
        status, found = doctor(service.url)
        assert status == 1 and [how for how, _ in found] == ["fail"] and hows(found, f"{service.url} is not a coordinator") == ["fail"]


def test_figures_that_are_not_well(cluster):
    """One figure at a time is another than the real one."""

    def with_json(path, **changes):
        return lambda asked, content: json.dumps({**json.loads(content), **changes}).encode() if asked == path else content

    def with_workers(asked, content):
        if asked != "/v1/workers":
            return content
        workers = json.loads(content)
        for worker in workers["workers"]:
            if worker["name"] == "gen":
                worker["url"] = cluster.trainer.url  # it answers, and does not sample
        return json.dumps(workers).encode()

    def other_version(asked, content):
        return content.replace(b'leasehold_build_info{version="', b'leasehold_build_info{version="9.') if asked == "/metrics" else content

    def unknown_room(asked, content):
        return re.sub(rb"(?m)^(leasehold_database_disk_free_bytes) .*$", rb"\1 NaN", content) if asked == "/metrics" else content

    def full_disk(asked, content):
        return re.sub(rb"(?m)^(leasehold_database_disk_free_bytes) .*$", rb"\1 1e9", content) if asked == "/metrics" else content

    behind = int(time.time() * 1000) - 90000
    for change, pattern, how in (
        (with_json("/v1/check-disk", sync_ms=35.0), "the database's disk .* syncs a block in 35.0 ms: .*--db", "warn"),
        (with_json("/v1/check-disk", write_bytes_per_second=9e6), "the database's disk .* writes 9 MB/s .*--db", "warn"),
        (with_json("/v1/check-disk", time_ms=behind), r"the coordinator's clock is 1 min \d+ s behind this machine's", "warn"),
        (with_workers, "gen does not sample", "fail"),
        (other_version, "the coordinator is of another version than this command line", "warn"),
        (unknown_room, "how much room the database's disk has left is not known", "warn"),
        (full_disk, "the database's disk has 1.0 GB left: .*--db", "warn"),
    ):
        with Relay(cluster.coordinator.url, change) as url:
            status, found = doctor(url)
        assert hows(found, pattern) == [how] and status == (how == "fail"), (pattern, found)


def test_servers_with_other_weights_and_names_that_are_not_one_process(cluster):
    run = cluster.create_run(grpo_config(100000, groups=2, samples=4))
    cluster.wait_until("it goes on", lambda: len(cluster.status(run)["history"]) > 2)
    asked_workers = itertools.count()

    def with_gen(**members):
        def change(asked, content):
            if asked != "/v1/workers":
                return content
            workers, at = json.loads(content), next(asked_workers)
            for worker in workers["workers"]:
                if worker["name"] == "gen":
                    worker.update({name: value(at) if callable(value) else value for name, value in members.items()})
            return json.dumps(workers).encode()

        return change

    try:
        assert not [what for _, what in doctor(cluster)[1] if "other weights" in what or "registered again" in what]
        for change, pattern in (
            (with_gen(loaded_digest="5" * 64), f"gen has other weights than run {run} needs .555555555555, not [0-9a-f]{{12}}., .*--model"),
            (with_gen(id=lambda at: f"w9{at % 2}"), "gen has registered again meanwhile: .* --name"),
        ):
            with Relay(cluster.coordinator.url, change) as url:
                assert hows(doctor(url)[1], pattern) == ["warn"]
        with Relay(cluster.coordinator.url, with_gen(loaded_digest=lambda at: f"{at:064x}")) as url:
            assert not [what for _, what in doctor(url)[1] if "other weights" in what], "it is taking one version after the other"
    finally:
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")


def test_a_name_of_two_processes_is_told_whenever_it_is_looked_for(tmp_path):
    """It was seen only where one registered between two looks; one that is started again, here or elsewhere, is no second one."""
    with Cluster(tmp_path, trainer=["--random-init", 1]) as cluster:
        def shared():
            return [worker["name"] for worker in call("GET", cluster.coordinator.url + "/v1/workers")["workers"] if "name_shared_ms" in worker]

        def registered(times):
            return lambda: len(re.findall("registered: generation 'gen'", cluster.coordinator.log_text())) == times

        gen = cluster.add_server("gen")
        cluster.wait_until("it is registered", registered(1))
        gen.kill()
        gen.restart()
        cluster.wait_until("it is there again", registered(2))
        gen.kill()
        cluster.start("elsewhere", "generation-server", ["--coordinator", cluster.coordinator.url, "--name", "gen"])
        cluster.wait_until("it is there again, elsewhere", registered(3))
        assert shared() == []
        gen.restart()
        cluster.wait_until("they have met", shared)
        for _ in range(3):
            assert hows(doctor(cluster)[1], "gen is the name of two processes, .* --name") == ["warn"]


def test_the_services_are_asked_in_a_shell_that_they_are_started_from(cluster, monkeypatch):
    """LEASEHOLD_MODEL is the trainer's too: with it set the doctor asked no service, and called a set-up without any well."""
    monkeypatch.setenv("LEASEHOLD_MODEL", str(DATA / "model"))
    _, found = doctor(cluster)
    assert hows(found, "the coordinator .* is ready") == ["ok"]
    assert leasehold("http://127.0.0.1:1", "doctor")[0] == 3


def test_nobody_answers():
    status, output, _ = leasehold("http://127.0.0.1:1", "doctor")
    assert status == 3 and not output
