"""A docker engine, and docker-compose.yml's services on it.

Works with `docker compose` and with Debian's docker-compose (1.28 and later).  Everything that a stack makes carries its project's name; leaving the `with`
block removes it.
"""
import functools
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import types

from harness import ROOT, SERVICE_OF, TOKEN_OF, Cluster, HttpError, call

BASE_IMAGE = os.environ.get("BASE_IMAGE", "debian:bookworm-slim")
IMAGE = "leasehold:test"  # it stays, for the next build's sake
DEFAULTS = {"SEED": "1", "TRAINER_THREADS": "2", "GENERATION_THREADS": "1", "LEASEHOLD_AUTH_TOKEN": "", "LEASEHOLD_LOG_LEVEL": "info"}  # whatever this shell has
COMMAND_SECONDS = 900  # a build compiles everything
PULL_SECONDS = 300


def command(*args, environment=None, fails=False):
    """What a command prints.  It must succeed, or, where it is to fail, give what it said."""
    done = subprocess.run([*map(str, args)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert (done.returncode != 0) == fails, f"{' '.join(map(str, args))} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
    return (done.stdout + done.stderr if fails else done.stdout).strip()


def docker(*args, **how):
    return command("docker", *args, **how)


def works(*args, seconds=20):
    try:
        return subprocess.run(args, capture_output=True, timeout=seconds, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@functools.cache
def compose_command():
    return ["docker", "compose"] if works("docker", "compose", "version") else ["docker-compose"]


def why_not():
    """None where the tests can run, else a sentence that says what is missing."""
    if not shutil.which("docker"):
        return "there is no docker command (Debian: docker.io, docker-compose)"
    if not works("docker", "info"):
        return "no docker engine answers `docker info`: a dockerd must run, and admit this user"
    if not works(*compose_command(), "version"):
        return "neither `docker compose` nor docker-compose is installed"
    if not works("docker", "image", "inspect", BASE_IMAGE) and not works("docker", "pull", "-q", BASE_IMAGE, seconds=PULL_SECONDS):
        return f"there is no base image {BASE_IMAGE}, and it could not be pulled: BASE_IMAGE names another Debian 12, deploy/docker/README.md says how to make one"
    return None


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Stack(Cluster):
    """The services in containers.  files: the compose files; settings: variables that docker-compose.yml's head lists.

    A container is named by its id's first twelve digits, which are its host name, and so part of its worker's name."""

    def __init__(self, files=("docker-compose.yml",), profiles=(), **settings):
        self.coordinator = types.SimpleNamespace(url=None)
        self.services = []
        self.files = files
        self.profiles = profiles
        self.project = f"leasehold-test-{secrets.token_hex(4)}"
        self.ports = {"COORDINATOR_PORT": str(free_port()), "PROMETHEUS_PORT": str(free_port())}
        self.coordinator.url = f"http://127.0.0.1:{self.ports['COORDINATOR_PORT']}"
        self.prometheus = f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}"
        self.tokens = pathlib.Path(tempfile.mkdtemp(prefix="leasehold-tokens-"))
        command(ROOT / "deploy/security/make-tokens", self.tokens)
        shown = {"LEASEHOLD_TOKENS": str(self.tokens), "LEASEHOLD_AUTH_TOKEN": (self.tokens / "viewer").read_text().strip()}  # the latter by Prometheus
        self.environment = {**os.environ, **DEFAULTS, **shown, "BASE_IMAGE": BASE_IMAGE, "LEASEHOLD_IMAGE": IMAGE, "COMPOSE_PROJECT_NAME": self.project, **self.ports, **settings}
        SERVICE_OF[self.coordinator.url] = "coordinator"
        TOKEN_OF[self.coordinator.url] = (self.tokens / "admin").read_text().strip()

    def compose(self, *args):
        files = [part for file in self.files for part in ("-f", file)]
        profiles = [part for profile in self.profiles for part in ("--profile", profile)]
        return command(*compose_command(), *files, *profiles, *args, environment=self.environment)

    # ---- containers ----

    def scale(self, servers):
        """Starts what does not run, and so many generation-servers; a smaller number than before drains the surplus.  `pool` waits for them too."""
        self.compose("up", "-d", "--no-build", "--no-recreate", "--scale", f"generation-server={servers}")

    def pool(self, servers):
        """Their containers."""
        self.scale(servers)
        self.wait_registered(servers)
        return self.containers("generation-server")

    def containers(self, service=None):
        """Those that run."""
        ours = [f"label=com.docker.compose.project={self.project}"] + ([f"label=com.docker.compose.service={service}"] if service else [])
        return docker("ps", "-q", *[part for label in ours for part in ("--filter", label)]).split()

    def inspect(self, container, what):
        return docker("inspect", "-f", "{{" + what + "}}", container)

    def exits(self, since):
        """Exit statuses of the containers that have ended since then, a time in seconds."""
        ours = f"label=com.docker.compose.project={self.project}"
        return docker("events", "--since", f"{since:.3f}", "--until", f"{time.time():.3f}", "--filter", ours, "--filter", "event=die", "--format", "{{.Actor.Attributes.exitCode}}").split()

    def left_behind(self):
        ours = f"label=com.docker.compose.project={self.project}"
        return [name for what in (["ps", "-a"], ["volume", "ls"], ["network", "ls"]) for name in docker(*what, "-q", "--filter", ours).split()]

    # ---- workers ----

    def workers(self):
        return call("GET", f"{self.coordinator.url}/v1/workers")["workers"]

    def worker(self, container):
        """What the coordinator knows of a generation-server, or None."""
        return next((worker for worker in self.workers() if worker["name"] == f"gen-{container}-8100"), None)

    def registered(self, servers):
        kinds = [worker["kind"] for worker in self.workers() if worker["live"]]
        return kinds.count("generation") == servers and "trainer" in kinds

    def wait_registered(self, servers, seconds=120):
        self.wait_until(f"the trainer and {servers} generation-servers are registered", lambda: self.registered(servers), seconds)

    def samples(self, run, container):
        """How many of the run's samples are this server's."""
        return sum(worker["samples"] for worker in self.status(run)["totals"]["workers"] if worker["name"] == f"gen-{container}-8100")

    def under_way(self, run, round):
        """That round of the run has begun, and the run has not ended."""
        status = self.status(run)
        assert status["state"] not in ("completed", "failed", "stopped", "paused"), f"the run is {status['state']} before anything could happen to it"
        return status["state"] == "running" and status["round"] >= round

    def at_work(self, container, do):
        """Does something to a server that holds leases.  A paused one takes and finishes none, so what is seen then is true when it is done."""

        def tried():
            docker("pause", container)
            held = self.worker(container)["leases"]
            if not held:
                docker("unpause", container)
                return False
            do(container)
            return True

        self.wait_until(f"{container} holds leases", tried)

    # ---- Cluster's ----

    def wait_until(self, what, condition, seconds=60):
        """A coordinator that is starting again may answer that it is not ready."""

        def tried():
            try:
                return condition()
            except HttpError as error:
                if error.status != 503:
                    raise
                return None

        return super().wait_until(what, tried, seconds)

    def logs(self):
        return self.compose("logs", "--no-color", "--tail=15")

    def close(self):
        self.compose("down", "-v", "--remove-orphans", "--timeout", "20")
        shutil.rmtree(self.tokens, ignore_errors=True)

    def __exit__(self, kind, *_):
        self.close()


def build(service, files=("docker-compose.yml",), profiles=()):
    stack = Stack(files, profiles)
    try:
        stack.compose("build", service)
    finally:
        shutil.rmtree(stack.tokens, ignore_errors=True)


def image_mb(image):
    return int(docker("image", "inspect", "-f", "{{.Size}}", image)) / 1e6


if __name__ == "__main__":  # the image alone, so that the tests find it built
    build("coordinator")
