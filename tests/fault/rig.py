"""A coordinator, a trainer, a generation-server and, where a run has one, a preprocessor, with a supervisor that starts again what ends, as docker does."""
import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

import harness  # noqa: E402
import proxy  # noqa: E402
from harness import BIN, DATA, call  # noqa: E402

harness.CALL_SECONDS = 20  # a service that was struck may never answer; a run that is posted waits for a trainer that does not

SHIM = pathlib.Path(os.environ.get("LEASEHOLD_FAULT_SHIM", ROOT / "build/tests/fault/shim.so"))
PROGRAMS = {"coordinator": "coordinator", "trainer": "trainer-server", "one": "generation-server", "pre": "trainer-server"}
ROLES = ("coordinator", "trainer", "one")  # of a run that needs no other
EDGES = {"one to coordinator": "coordinator", "trainer to coordinator": "coordinator", "pre to coordinator": "coordinator", "to trainer": "trainer", "to one": "one"}
STOP_SECONDS = 20
LISTEN_SECONDS = 2
RESTART_SECONDS = 0.05
RESTARTS_MAX = 12


class Stuck(Exception):
    """A service, or the run, does not come to its end."""


@dataclasses.dataclass
class Ended:
    role: str
    status: int
    sentence: str  # the last line that it logged


def free_ports(count):
    """Of this machine's loopback; held together, so that no two are one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


ports_lock = threading.Lock()
given = set()  # to the rigs of this process


def own_ports(count):
    with ports_lock:
        while True:
            ports = free_ports(count)
            if not given & set(ports):
                given.update(ports)
                return ports


class Role:
    """One service, started again when it ends."""

    def __init__(self, rig, name, port, args, environment):
        self.rig, self.name, self.port, self.environment = rig, name, port, environment
        self.url = f"http://127.0.0.1:{port}"
        self.log = rig.folder / f"{name}.log"
        self.command = [str(BIN / PROGRAMS[name]), "--port", str(port), *map(str, args)]
        self.spawn()

    def spawn(self):
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        environment = {**os.environ, "LD_PRELOAD": str(SHIM), **self.environment} if self.environment else None
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, cwd=self.rig.folder, env=environment)

    def wait_port(self):
        """Until it listens, or has ended; what a fault strikes may never listen."""
        until = time.monotonic() + LISTEN_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.005)

    def sentence(self):
        """What this incarnation said last, of errors if it said any."""
        lines = self.log.read_bytes()[self.log_from :].decode(errors="replace").splitlines()
        return ([line for line in lines if " error " in line] or lines or [""])[-1]


class Rig:
    """As much of harness.Cluster as test_overlap's audit asks for, and the supervisor."""

    def __init__(self, folder, roles, environment, through=None):
        """environment: {role: the shim's}, as far as a role has one.  through: the proxies' Strike or PASS, where proxies lie between the services."""
        self.folder = pathlib.Path(folder).resolve()
        shutil.rmtree(self.folder, ignore_errors=True)
        for part in ("db", "state"):
            (self.folder / part).mkdir(parents=True)
        self.database = self.folder / "db/coordinator.db"
        self.ended = []
        self.before_restart = lambda role: None
        ports = own_ports(len(PROGRAMS) + len(EDGES))
        own, front = dict(zip(PROGRAMS, ports)), dict(zip(EDGES, ports[len(PROGRAMS) :]))
        self.network = through and proxy.Network({edge: (front[edge], own[role]) for edge, role in EDGES.items()}, through)
        at = {edge: f"http://127.0.0.1:{front[edge] if through else own[role]}" for edge, role in EDGES.items()}
        flags = {
            "coordinator": ["--db", self.database, "--data-dir", DATA, "--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--lease-ttl-ms", 2000, "--batch-tokens", 200],
            "trainer": ["--coordinator", at["trainer to coordinator"], "--advertise-url", at["to trainer"], "--name", "trainer", "--model", DATA / "model", "--random-init", 1,
                        "--state-dir", self.folder / "state", "--threads", 1],
            "one": ["--coordinator", at["one to coordinator"], "--advertise-url", at["to one"], "--name", "one", "--slots", 4, "--threads", 1],
            "pre": ["--role", "preprocess", "--coordinator", at["pre to coordinator"], "--name", "pre", "--model", DATA / "model", "--random-init", 1, "--threads", 1],
        }
        self.services = []
        for name in roles:
            self.services.append(Role(self, name, own[name], flags[name], environment.get(name, {})))
            self.services[0].wait_port()  # so that nobody waits to try again
        self.coordinator = self.services[0]

    def role(self, name):
        return next(role for role in self.services if role.name == name)

    def supervise(self):
        """Starts what has ended again."""
        for role in self.services:
            if role.process.poll() is None:
                continue
            self.ended.append(Ended(role.name, role.process.returncode, role.sentence()))
            if len(self.ended) > RESTARTS_MAX:
                raise Stuck(f"{role.name} has ended for the {RESTARTS_MAX}th time: {self.ended[-1].sentence}")
            time.sleep(RESTART_SECONDS)
            self.before_restart(role)
            role.spawn()

    def status(self, run):
        return call("GET", f"{self.coordinator.url}/v1/runs/{run}")

    def query(self, sql, *values):
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(sql, values).fetchall()

    def stop(self, names=None):
        """By SIGTERM, one after the other, all if none are named; what then ends otherwise than with 0 goes to `ended`."""
        for role in map(self.role, names) if names else reversed(self.services):
            role.wait_port()  # one that has just been started again would not hear it yet
            if role.process.poll() is None:
                role.process.send_signal(signal.SIGTERM)
            try:
                status = role.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise Stuck(f"{role.name} did not end within {STOP_SECONDS} s of SIGTERM") from None
            if status != 0:
                self.ended.append(Ended(role.name, status, role.sentence()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for role in self.services:
            role.process.kill()
            role.process.wait()
        if self.network:
            self.network.close()
