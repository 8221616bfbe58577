"""How services start: a database has one coordinator, whatever path leads to it; a slow start answers health checks and can be stopped.

A model folder whose config.json is a pipe loads for as long as nobody writes into it.
"""
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time

import pytest

from contract import contract
from harness import BIN, DATA, SERVICE_OF, Cluster, Deadline, Service, call, exchange, grpo_config
from ranks import MPIRUN, environment

STOP_SECONDS = 2


class Folder:
    """What a Service needs of a cluster, for services that are started one by one; leaving the `with` block stops them."""

    def __init__(self, folder):
        self.folder = folder
        self.services = []

    def start(self, name, program, *args, **more):
        service = Service(self, name, program, args, more.pop("bin_dir", BIN), **more)
        self.services.append(service)
        return service

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for service in self.services:
            service.stop()


def coordinator(folder, name, database, *more):
    return folder.start(name, "coordinator", "--db", database, "--data-dir", DATA, *more)


def refusal(database, cwd="/"):
    """What a second coordinator says before it ends."""
    ended = subprocess.run([BIN / "coordinator", "--port", "0", "--db", database], cwd=cwd, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1, ended
    said = [line for line in ended.stderr.splitlines() if line.startswith("coordinator: ")]
    assert len(said) == 1, ended.stderr
    return said[0]


def test_a_coordinator_without_its_data_is_refused_at_once(tmp_path):
    program = [BIN / "coordinator", "--db", tmp_path / "c.db", "--port", "0", "--data-dir", tmp_path / "nowhere"]
    done = subprocess.run(list(map(str, program)), capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and f"expected a folder that datasets are read from, there is none at {tmp_path / 'nowhere'}" in done.stderr, done


@pytest.mark.parametrize(("run", "said"), [("r9", "there is no run r9"), ("r1", "run r1 has not begun: there is nothing to replay")])
def test_a_replay_of_what_is_not_recorded_ends_without_a_trainer(tmp_path, run, said):
    """It waited for one."""
    database = tmp_path / "c.db"
    with Folder(tmp_path) as folder:
        call("POST", coordinator(folder, "one", database).url + "/v1/runs", grpo_config(1))
    program = [BIN / "coordinator", "--db", database, "--port", "0", "--data-dir", DATA, "--replay", run]
    done = subprocess.run(list(map(str, program)), capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and said in done.stderr, done


def symbolic(real, alias):
    alias.symlink_to(real.name)


def hard(real, alias):
    os.link(real, alias)


@pytest.mark.parametrize("program", ["trainer-server", "generation-server", "rollout-agent"])
@pytest.mark.parametrize(("flag", "value", "said"), [("--name", "../../x", "letters, digits"), ("--advertise-url", "gen:8100", "a URL like")])
def test_a_worker_that_no_coordinator_would_take_does_not_start(tmp_path, program, flag, value, said):
    """It made folders by that name, and asked for ever."""
    more = ["--engine-url", "http://127.0.0.1:1", "--weights-dir", "w"] if program == "rollout-agent" else ["--model", DATA / "model"] if program == "trainer-server" else []
    command = [BIN / program, "--coordinator", "http://127.0.0.1:1", "--port", 0, flag, value, *more]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and said in done.stderr and flag[2:] in done.stderr, done
    assert not list(tmp_path.iterdir()) and not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize(("flag", "value", "said"), [
    ("--coordinator", "", "expected the coordinator's URL, got none"), ("--engine-url", "", "expected the engine's URL"), ("--engine-url", "x:1", "expected http://host:port"),
    ("--weights-dir", "", "expected a folder that the engine can read, got none"), ("--engine", "other", "expected vllm or sglang, got 'other'"),
    ("--check", "other", "expected checksum or probe, got 'other'"), ("--engine-logprobs", "other", "expected processed or raw, got 'other'")])
def test_a_rollout_agent_names_the_flag_that_does_not_fit(tmp_path, flag, value, said):
    """It said what was expected, and not of which of its thirty flags."""
    flags = {"--coordinator": "http://127.0.0.1:1", "--engine": "vllm", "--engine-url": "http://127.0.0.1:1", "--weights-dir": "w", flag: value}
    command = [str(BIN / "rollout-agent"), "--port", "0", *(word for pair in flags.items() for word in pair)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and f"{flag}: {said}" in done.stderr, done


@pytest.mark.parametrize("link", [symbolic, hard])
@pytest.mark.parametrize("first_by_its_own_name", [True, False])
def test_no_link_lets_a_second_coordinator_into_a_database(tmp_path, link, first_by_its_own_name):
    real, alias = tmp_path / "coordinator.db", tmp_path / "elsewhere" / ".." / "alias.db"
    (tmp_path / "elsewhere").mkdir()
    with Folder(tmp_path) as folder:
        coordinator(folder, "before", real).stop()  # a database that was closed in good order, so that a hard link is the whole of it
        link(real, alias)
        first, second = (real, alias) if first_by_its_own_name else (alias, real)
        holder = coordinator(folder, "holder", first)
        said = refusal(second)
        assert re.search(rf"another coordinator \(process {holder.process.pid}\) has the database {re.escape(str(second))} open", said), said
        assert call("GET", holder.url + "/readyz")["epoch"] == 2
        run = {"dataset": {"path": "warmup.jsonl"}, "rounds": 1, "training": {"objective": "cross_entropy"}}
        assert call("POST", holder.url + "/v1/runs", run)["id"] == "r1"  # the refused one left the holder's locks alone


def test_a_database_that_does_not_exist_yet_has_one_coordinator_by_either_spelling(tmp_path):
    with Folder(tmp_path) as folder:
        coordinator(folder, "holder", "coordinator.db")  # relative to the folder that it is started in
        assert "another coordinator" in refusal(tmp_path / "coordinator.db")
        assert "another coordinator" in refusal("coordinator.db", cwd=tmp_path)
    with Folder(tmp_path) as folder:
        coordinator(folder, "next", tmp_path / "coordinator.db")  # it is free once the holder has ended
        folder.services[0].kill()
        coordinator(folder, "after a kill", tmp_path / "coordinator.db")


def test_a_dangling_link_makes_the_database_that_it_names(tmp_path):
    (tmp_path / "alias.db").symlink_to(tmp_path / "real.db")
    with Folder(tmp_path) as folder:
        coordinator(folder, "holder", tmp_path / "alias.db")
        assert "another coordinator" in refusal(tmp_path / "real.db")


# ---- what takes long ----


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Starting:
    """A service that is not ready yet.  launcher: mpirun and its flags."""

    def __init__(self, folder, program, *args, launcher=(), judge=None):
        self.port_file = folder / f"{program}.port"
        self.port_file.unlink(missing_ok=True)
        self.log = folder / f"{program}.log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        SERVICE_OF[self.url] = self.service = judge or program
        command = [*launcher, BIN / program, "--port", str(port), "--port-file", self.port_file, *map(str, args)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment())

    def until(self, what, condition, seconds=30):
        deadline = Deadline(seconds)
        while not deadline.passed():
            with contextlib.suppress(OSError):
                if condition():
                    return
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(f"not within {seconds} s: {what}\n{self.log.read_text()}")

    def ends_within(self, seconds):
        deadline = Deadline(seconds, stall_seconds=0.1)
        while self.process.poll() is None:
            assert not deadline.passed(), f"it still lives after {seconds} s: {self.log.read_text()}"
            time.sleep(0.01)

    def get(self, path):
        return exchange("GET", self.url + path)

    def is_heard(self):
        """It lives, is not ready, and says why, on every route."""
        self.until("it answers for its health", lambda: self.get("/healthz")[0] == 200)
        for method, path, _, _ in contract(self.service).operations:
            status, headers, content = exchange(method, self.url + re.sub(r"{[^}]+}", "x1", path), b"{}" if method in ("POST", "PUT") else None)
            if path in ("/healthz", "/liveness") or (path == "/metrics" and self.service == "trainer-server"):
                assert status == 200, (path, content)
                continue
            assert status == 503 and headers["Retry-After"] == "1", (path, status, content)
            assert re.search("being (loaded|opened)", json.loads(content)["error"]["message"]), content
        assert not self.port_file.exists()

    def becomes_ready(self):
        self.until("it is ready", self.port_file.exists)
        assert self.get("/readyz")[0] == 200  # the port file is the word: no other wait is needed

    def stops(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.ends_within(STOP_SECONDS)
        assert self.process.returncode == 0, self.log.read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def slow_model(folder, **sizes):
    """sizes: of a model that takes long by itself; without, its configuration is a pipe."""
    model = folder / "model"
    model.mkdir()
    for name in ("tokenizer.json", "generation_config.json", "config.json"):
        (model / name).write_bytes((DATA / "model" / name).read_bytes())
    if sizes:
        (model / "config.json").write_text(json.dumps({**json.loads((model / "config.json").read_text()), **sizes}))
    else:
        (model / "config.json").unlink()
        os.mkfifo(model / "config.json")
    return model


def loading(folder, program):
    args = {"trainer-server": ["--random-init", 1, "--state-dir", folder / "state"], "generation-server": []}[program]
    return Starting(folder, program, "--model", slow_model(folder), *args)


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", ["trainer-server", "generation-server"])
def test_a_service_that_loads_is_heard_and_stops_when_it_is_asked_to(tmp_path, program, how):
    with loading(tmp_path, program) as service:
        service.is_heard()
        service.stops(how)
    assert not service.port_file.exists()


@pytest.mark.alone
def test_a_trainer_that_loads_becomes_ready_and_its_port_file_says_when(tmp_path):
    with loading(tmp_path, "trainer-server") as trainer:
        trainer.is_heard()
        (tmp_path / "model/config.json").write_bytes((DATA / "model/config.json").read_bytes())
        trainer.becomes_ready()
        assert trainer.get("/v1/model")[0] == 200
        trainer.stops()


@pytest.mark.alone
def test_a_folder_of_checkpoints_has_one_trainer_and_the_next_waits_a_little_for_it(tmp_path):
    """As a supervisor starts it whose old process still ends; over a link, as another container comes by another path."""
    (tmp_path / "alias").symlink_to("state")
    flags = ["--model", DATA / "model", "--random-init", 1, "--threads", 1, "--state-dir"]
    with Folder(tmp_path) as folder:
        holder = folder.start("holder", "trainer-server", *flags, tmp_path / "state")
        with Starting(tmp_path, "trainer-server", *flags, tmp_path / "alias") as refused:
            refused.is_heard()
            assert refused.process.wait(60) == 1
            another = f"another trainer (process {holder.process.pid}) keeps its checkpoints in {tmp_path}/alias: stop it, or give --state-dir another folder"
            assert another in refused.log.read_text()
        with Starting(tmp_path, "trainer-server", *flags, tmp_path / "alias") as successor:
            successor.until("it waits", lambda: f"waiting for the trainer (process {holder.process.pid})" in successor.log.read_text())
            holder.kill()
            successor.becomes_ready()
            successor.stops()


def test_workers_that_start_before_their_coordinator_wait_without_a_warning(tmp_path):
    port = free_port()
    with Folder(tmp_path) as folder:
        url = ["--coordinator", f"http://127.0.0.1:{port}"]
        trainer = folder.start("trainer", "trainer-server", "--model", DATA / "model", "--random-init", 1, "--state-dir", tmp_path / "state", "--threads", 1, *url)
        server = folder.start("server", "generation-server", "--threads", 1, *url)
        for worker in (trainer, server):
            worker.wait_log(f"waiting for the coordinator at {url[1]}")
        coordinator(folder, "coordinator", tmp_path / "coordinator.db", "--port", port)
        for worker in (trainer, server):
            worker.wait_log("registered as w")
            assert not re.search(r" (warn|error) ", worker.log_text()), worker.log_text()
            assert worker.log_text().count("waiting for") == 1


@pytest.mark.alone
def test_a_coordinator_that_waits_for_its_database_is_heard_and_stops_when_it_is_asked_to(tmp_path):
    """Somebody writes to the database meanwhile."""
    database = tmp_path / "coordinator.db"
    with Folder(tmp_path) as folder:
        coordinator(folder, "before", database).stop()
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        for last in (False, True):
            other.execute("BEGIN IMMEDIATE")
            with Starting(tmp_path, "coordinator", "--db", database, "--data-dir", DATA) as service:
                service.is_heard()
                if last:
                    other.execute("ROLLBACK")
                    service.becomes_ready()
                service.stops()
            if not last:
                other.execute("ROLLBACK")


BIG = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64}
DRAWING = ["--random-init", 1, "--state-dir", "state", "--chunk-tokens", 64]


@pytest.mark.alone
def test_a_trainer_that_draws_its_first_weights_stops_when_it_is_asked_to(tmp_path):
    """Seconds of computing, in which no file is waited for."""
    model = slow_model(tmp_path, **BIG)
    with Starting(tmp_path, "trainer-server", "--model", model, *DRAWING) as trainer:
        trainer.until("memory is planned", lambda: "memory planned" in trainer.log.read_text())
        trainer.is_heard()
        trainer.stops()
    with Starting(tmp_path, "trainer-server", "--model", DATA / "model", *DRAWING) as trainer:
        trainer.becomes_ready()  # nothing that is half written is in its way
        trainer.stops()


@pytest.mark.alone
def test_ranks_that_draw_their_first_weights_stop_when_mpirun_is_asked_to(tmp_path):
    model = slow_model(tmp_path, **BIG)
    with Starting(
        tmp_path, "trainer-server-mpi", "--model", model, *DRAWING, launcher=[*MPIRUN, "-n", "2"], judge="trainer-server"
    ) as ranks:
        ranks.until("memory is planned", lambda: ranks.log.read_text().count("memory planned") == 2)
        ranks.is_heard()
        ranks.process.terminate()
        ranks.ends_within(2 * STOP_SECONDS)  # mpirun's own pace, and its own status
        assert "silent" not in ranks.log.read_text()


MANY_RUNS = 1000


def copy_run(database, last):
    """Runs 2 to `last` are made of run 1: every row of every table that has one."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall():
            columns = [(name, kind, key) for _, name, kind, _, _, key in db.execute(f"PRAGMA table_info({table})")]
            of_run = "id" if table == "runs" else "run"
            if of_run not in [name for name, _, _ in columns]:
                continue
            copied = [name for name, kind, key in columns if not (name == "id" and key and kind == "INTEGER" and table != "runs")]
            made = ["n" if name == of_run else "replace(id, 'r1.', 'r' || n || '.')" if name == "id" else name for name in copied]
            db.execute(
                f"INSERT INTO {table} ({', '.join(copied)}) SELECT {', '.join(made)} FROM {table}, (WITH RECURSIVE numbers(n) AS "
                f"(VALUES (2) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) SELECT n FROM numbers) WHERE {of_run} = 1"
            )
        db.commit()
        return db.execute("SELECT count(*) FROM samples").fetchone()[0]


def seconds_to_ready(folder, name, database):
    begun = time.monotonic()
    service = coordinator(folder, name, database)
    ready = call("GET", service.url + "/readyz", raw=True) is not None
    took = time.monotonic() - begun
    assert ready and len(call("GET", service.url + "/v1/runs")["runs"]) > 0
    service.stop()
    return took


@pytest.mark.alone
def test_a_coordinator_with_a_thousand_finished_runs_is_ready_within_a_second(tmp_path):
    """The best of three starts, of a database of real rows."""
    with Cluster(tmp_path / "one", trainer=["--random-init", 1, "--threads", 1]) as cluster:
        cluster.add_server("gen", "--slots", 16)
        cluster.run(grpo_config(3, groups=8, samples=4))
        database = cluster.database
    samples = copy_run(database, MANY_RUNS)
    assert samples >= MANY_RUNS * 3 * 8 * 4
    with Folder(tmp_path) as folder:
        took = [seconds_to_ready(folder, f"many-{i}", database) for i in range(3)]
    print(f"{MANY_RUNS} runs, {samples} samples, {database.stat().st_size >> 20} MiB: ready in {min(took):.3f} s")
    assert min(took) < 1, took
