"""Real services on free ports for the end-to-end tests: start, call, follow, kill.

Standard library only, beside pytest.  Everything a cluster makes lies in one temporary folder; leaving the `with` block stops what still runs.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from contract import contract

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("LEASEHOLD_TEST_BIN", ROOT / "build/bin"))
FAULT_BIN = pathlib.Path(os.environ.get("LEASEHOLD_TEST_FAULT_BIN", ROOT / "build/faults/bin"))
DATA = ROOT / "deploy/demo"
START_SECONDS = 90  # a loaded machine draws the initial weights of the larger models in 20
CALL_SECONDS = 70
STALL_SECONDS = 2


class Deadline:
    """One that a machine which stands still does not eat up: of the time between two looks at most stall_seconds count."""

    def __init__(self, seconds, stall_seconds=STALL_SECONDS):
        self.left = seconds
        self.stall_seconds = stall_seconds
        self.seen = time.monotonic()

    def passed(self):
        now = time.monotonic()
        self.left -= min(now - self.seen, self.stall_seconds)
        self.seen = now
        return self.left < 0


class HttpError(Exception):
    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {body[:400]!r}")
        self.status = status
        self.body = body

    def json(self):
        return json.loads(self.body)


SERVICE_OF = {}  # "http://host:port" -> the contract that judges its answers
TOKEN_OF = {}  # "http://host:port" -> the token that is shown there, where a test shows none itself
CONTEXT_OF = {}  # "https://host:port" -> the ssl.SSLContext of calls to it


def exchange(method, url, body=None, headers=None):
    """One exchange, judged by the contract: (status, headers, bytes).  body: bytes are sent as they are, anything else as JSON."""
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    parts = urllib.parse.urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    shown = {"Authorization": f"Bearer {TOKEN_OF[origin]}"} if origin in TOKEN_OF else {}
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json", **shown, **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=CONTEXT_OF.get(origin)) as answer:
            status, answer_headers, content = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        status, answer_headers, content = error.code, error.headers, error.read()
    service = SERVICE_OF.get(origin)
    if service:
        contract(service).check(method, parts.path, status, answer_headers.get("Content-Type"), content)
    return status, answer_headers, content


def call(method, url, body=None, headers=None, raw=False):
    """The answer's JSON (or bytes).  Statuses from 400 raise HttpError."""
    status, _, content = exchange(method, url, body, headers)
    if status >= 400:
        raise HttpError(status, content)
    return content if raw else json.loads(content)


SLOWLY = "SLOWLY"
HALT_OFTEN = pathlib.Path(__file__).with_name("halt_often.py")


class Service:
    """One process.  It can be killed, frozen and started again: with the same name, data and port, with other flags or another binary.

    launcher: how the service is started when it is several processes: see ranks.py.  Then `process` is the launcher."""

    def __init__(self, cluster, name, program, args, bin_dir, launcher=None, slow=False):
        self.name = name
        self.program = program
        self.launcher = launcher
        self.tls = getattr(cluster, "tls", None)
        self.args = [*args, *(self.tls.flags if self.tls else [])]
        self.cluster_folder = cluster.folder
        self.log = cluster.folder / f"{name}.log"
        self.halter = None  # halt_often.py, while it is slow
        self.launch(self.args, bin_dir, 0, slow)

    def launch(self, args, bin_dir, port, slow):
        port_file = self.cluster_folder / f"{self.name}.port"
        port_file.unlink(missing_ok=True)
        flags = ["--port", str(port), "--port-file", str(port_file), *map(str, args)]
        command = self.launcher.command(flags) if self.launcher else [str(bin_dir / self.program), *flags]
        environment = self.launcher.environment() if self.launcher else None
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.cluster_folder, env=environment)
        if slow:
            self.slow_down()  # at once: it may find work
        deadline = Deadline(START_SECONDS)
        while not port_file.exists() or not port_file.read_text().strip():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            if deadline.passed():
                self.kill()
                raise RuntimeError(f"{self.name} wrote no port within {START_SECONDS} s: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)
        self.port = int(port_file.read_text())
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        if self.tls:
            CONTEXT_OF[self.url] = self.tls.context
        SERVICE_OF[self.url] = self.program

    def restart(self, args=None, bin_dir=None, port=None):
        """Again with the same data, on the same port; without `--fault NAME`, from the sound binaries, unless `args` and `bin_dir` say otherwise."""
        assert self.process.poll() is not None, f"{self.name} still runs"
        slow = self.halter is not None
        self.hurry()  # its halter is that of the incarnation before
        self.launch(without_fault(self.args) if args is None else args, bin_dir or BIN, self.port if port is None else port, slow)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        if self.halter:
            self.halter.send_signal(signal.SIGSTOP)
            while pathlib.Path(f"/proc/{self.halter.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
                time.sleep(0.001)  # else its next signal could come after ours
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        (self.halter or self.process).send_signal(signal.SIGCONT)  # a slow one goes on by its halter: between two signals of ours it could run as it likes

    def run_for(self, seconds):
        """Of a frozen one.  A process of its own freezes it again, in time however long this one is kept from running."""
        pid, halter = self.process.pid, self.halter and self.halter.pid
        stopped = f"while grep -qs '^State:.*[RSD] ' /proc/{halter}/status; do :; done" if halter else ":"  # as in freeze
        script = f"kill -CONT {halter or pid}; sleep {seconds:.3f}; kill -STOP {halter or pid}; {stopped}; kill -STOP {pid}"
        subprocess.run(["nice", "-n", "-20", "sh", "-c", script], stderr=subprocess.DEVNULL)

    def freeze_when(self, what, condition, seconds=60):
        """Freezes it at a moment at which condition() is true, so that it stays true of all that this process changes; its value."""
        deadline = Deadline(seconds)
        self.freeze()
        while True:
            begun = time.monotonic()
            if value := condition():
                return value
            if deadline.passed():
                self.thaw()
                raise AssertionError(f"not within {seconds} s: {what}: {self.log_text()[-2000:]}")
            self.run_for(min(max(time.monotonic() - begun, 0.005), 0.1))  # as long as it stood still

    def slow_down(self):
        """From now on it is halted often, so that whatever the kernels and the machine, a test can step in."""
        self.halter = subprocess.Popen([sys.executable, HALT_OFTEN, str(self.process.pid)])

    def hurry(self):
        """It is slow no longer."""
        if self.halter:
            self.halter.kill()
            self.halter.wait()
            self.halter = None
        self.thaw()

    @contextlib.contextmanager
    def slowly(self):
        """Within this block; what must still go on for a test is held by it, however late the test looks."""
        self.slow_down()
        try:
            yield
        finally:
            self.hurry()

    def wait_end(self, seconds=45):
        """Its exit status."""
        deadline = Deadline(seconds)
        while self.process.poll() is None:
            if deadline.passed():
                raise AssertionError(f"{self.name} still lives after {seconds} s: {self.log_text()[-2000:]}")
            time.sleep(0.005)
        return self.process.returncode

    def wait_killed(self, seconds=60):
        """Until the process has died by SIGKILL: its own fault's work."""
        assert self.wait_end(seconds) == -signal.SIGKILL, f"{self.name} ended with {self.process.returncode}: {self.log_text()[-2000:]}"

    def log_text(self):
        """What this incarnation has logged."""
        with open(self.log, "rb") as log:
            log.seek(self.log_from)
            return log.read().decode(errors="replace")

    def wait_log(self, pattern, seconds=30):
        """The first match of a regular expression in what this incarnation logs."""
        deadline = Deadline(seconds)
        while not (match := re.search(pattern, self.log_text())):
            if deadline.passed():
                raise AssertionError(f"{self.name} logged nothing like {pattern!r} within {seconds} s: {self.log_text()[-2000:]}")
            time.sleep(0.01)
        return match

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)", call("GET", self.url + "/metrics", raw=True).decode(), re.M)[1])

    def stop(self, how=signal.SIGTERM, seconds=30):
        alive = self.process.poll() is None
        if alive:
            self.process.send_signal(how)  # before it may go on
        self.hurry()
        if alive:
            try:
                self.wait_end(seconds)
            except AssertionError:
                self.kill()
                raise RuntimeError(f"{self.name} did not stop within {seconds} s of signal {how}") from None
        return self.process.returncode


def without_fault(args):
    args = list(args)
    if "--fault" in args:
        at = args.index("--fault")
        del args[at : at + 2]
    return args


def wait_until(what, condition, seconds=60, logs=lambda: ""):
    """Until condition() is true; its value.  A service that is being restarted may refuse connections meanwhile."""
    deadline = Deadline(seconds)
    while True:
        try:
            if value := condition():
                return value
        except (OSError, http.client.HTTPException):
            pass
        if deadline.passed():
            raise AssertionError(f"not within {seconds} s: {what}\n{logs()}")
        time.sleep(0.005)


class Cluster:
    """A coordinator, a trainer-server and any number of generation-servers.  tls: an authority.Tls of all of them."""

    tls = None

    def __init__(self, folder, model=DATA / "model", trainer=(), coordinator=(), trainer_bin=None, coordinator_bin=None, launcher=None, tls=None):
        self.folder = pathlib.Path(folder)
        self.tls = tls
        self.folder.mkdir(parents=True, exist_ok=True)
        self.services = []
        self.database = self.folder / "coordinator.db"
        try:
            self.coordinator = self.start(
                "coordinator", "coordinator", ["--db", self.database, "--data-dir", DATA, *coordinator], coordinator_bin
            )
            self.trainer = self.start(
                "trainer",
                "trainer-server",
                ["--coordinator", self.coordinator.url, "--model", model, "--state-dir", self.folder / "state", "--name", "trainer", *trainer],
                trainer_bin,
                launcher,
            )
        except Exception:
            self.close()
            raise

    def start(self, name, program, args, bin_dir=None, launcher=None, slow=False):
        service = Service(self, name, program, args, bin_dir or BIN, launcher, slow)
        self.services.append(service)
        return service

    def add_server(self, name, *args, bin_dir=None):
        """SLOWLY among the flags: as Service.slow_down says."""
        flags = [flag for flag in args if flag != SLOWLY]
        return self.start(name, "generation-server", ["--coordinator", self.coordinator.url, "--name", name, *flags], bin_dir, slow=SLOWLY in args)

    def wait_registered(self):
        """Until every service has registered, for a test of which each must have its part: else the others may have done everything before it came."""
        for service in self.services[1:]:
            service.wait_log("registered as w")

    def authority(self):
        """Epoch and fence of the trainer's registration, for a test that plays the coordinator towards it."""
        match = self.trainer.wait_log(r"registered as w\d+, epoch (\d+), fence (\d+)")
        return {"epoch": int(match[1]), "fence": int(match[2])}

    def create_run(self, config):
        return call("POST", f"{self.coordinator.url}/v1/runs", config)["id"]

    def status(self, run):
        return call("GET", f"{self.coordinator.url}/v1/runs/{run}")

    def wait(self, run, seconds=240, state="completed"):
        deadline = Deadline(seconds)
        while True:
            status = self.status(run)
            if status["state"] == state:
                return status
            if status["state"] in ("failed", "stopped", "completed"):
                raise AssertionError(f"run {run} ended as {status['state']}: {status.get('error')}\n{self.logs()}")
            if status["state"] == "paused" and status["error"]:
                raise AssertionError(f"trouble has paused run {run}: {status['error']}\n{self.logs()}")
            if deadline.passed():
                raise AssertionError(f"run {run} is still {status['state']} in round {status.get('round')} after {seconds} s, waiting for {status['waiting_for']}\n{self.logs()}")
            time.sleep(0.1)

    def wait_until(self, what, condition, seconds=60):
        return wait_until(what, condition, seconds, self.logs)

    def query(self, sql, *values):
        """Rows of the coordinator's database, read only."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(sql, values).fetchall()

    def run(self, config, seconds=240):
        return self.wait(self.create_run(config), seconds)

    def logs(self):
        return "\n".join(f"--- {s.name}\n{s.log.read_text()[-1500:]}" for s in self.services)

    def close(self):
        for service in reversed(self.services):
            service.stop(seconds=30)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for service in self.services:
                service.process.kill()
        self.close()


class Standalone(Cluster):
    """Services alone."""

    def __init__(self, folder, tls=None):
        self.folder = folder
        self.tls = tls
        self.services = []


def digests(status):
    return [row["digest"] for row in status["history"]]


def warmup_config(rounds, seed=1):
    config = json.loads((DATA / "runs/warmup.json").read_text())
    config.update(rounds=rounds, seed=seed)
    return config


def grpo_config(rounds, seed=1, groups=8, samples=4, evaluation=False):
    config = json.loads((DATA / "runs/grpo.json").read_text())
    config.update(rounds=rounds, seed=seed, groups_per_round=groups, samples_per_group=samples)
    config.pop("start")  # "model", a base that is trained already: not what the run before has left
    config["training"]["lr"] = 0.004  # steps well above the spacing of bf16, so that no difference hides in rounding
    if not evaluation:
        config.pop("evaluation")
    return config


def wider_model(folder, times):
    """The demo's model so many times as wide, times * times its weights, for make_base_model: its steps take as much longer."""
    shutil.copytree(DATA / "model", pathlib.Path(folder) / "model")
    config = pathlib.Path(folder) / "model/config.json"
    was = json.loads(config.read_text())
    config.write_text(json.dumps(was | {name: was[name] * times for name in ("hidden_size", "intermediate_size", "head_dim")}))
    return config.parent


def make_base_model(folder, rounds, model=DATA / "model"):
    """A small base by the same warm-up route as the demo's; returns its Hugging Face folder."""
    target = pathlib.Path(folder) / "base-model"
    with Cluster(pathlib.Path(folder) / "warmup", model=model, trainer=["--random-init", 1, "--threads", 2]) as cluster:
        run = cluster.create_run(warmup_config(rounds))
        cluster.wait(run)
        shutil.copytree(cluster.folder / "state" / run / f"v{rounds}", target)
    return target
