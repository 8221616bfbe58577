"""The three services on two cores, and what each of them took: for the pipeline's benchmark.

The sampler has one core, the trainer the other, one computing thread each.  The coordinator, which must live somewhere, has its HTTP threads (where
messages are parsed) on COORDINATOR_HTTP_CPUS and its others on COORDINATOR_CPUS, the same in every mode.  Nobody is slowed down artificially.
"""
import json
import os
import pathlib
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
os.environ.setdefault("LEASEHOLD_TEST_BIN", os.environ.get("BIN", str(ROOT / "build/bin")))

SAMPLER_CPUS, TRAINER_CPUS, COORDINATOR_CPUS, COORDINATOR_HTTP_CPUS = (
    os.environ.get(name, default) for name, default in (("SAMPLER_CPUS", "0"), ("TRAINER_CPUS", "1"), ("COORDINATOR_CPUS", "0"), ("COORDINATOR_HTTP_CPUS", "1"))
)
VERIFY = bool(os.environ.get("VERIFY"))  # the trainer checks what was sampled beside sampling, in `sync` too, which is no serial baseline then
RUN_SECONDS = 1800
TICKS = os.sysconf("SC_CLK_TCK")


def cpus(text):
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def pin(service, where, http=None):
    """All threads that there are, libmicrohttpd's to `http` where given; what they start later inherits."""
    tasks = pathlib.Path(f"/proc/{service.process.pid}/task")
    for thread in os.listdir(tasks):
        serves = (tasks / thread / "comm").read_text().startswith("MHD")
        os.sched_setaffinity(int(thread), cpus(http if http and serves else where))


def place(cluster, servers):
    pin(cluster.trainer, TRAINER_CPUS)
    for server in servers:
        pin(server, SAMPLER_CPUS)
    pin(cluster.coordinator, COORDINATOR_CPUS, COORDINATOR_HTTP_CPUS)


def wait_quietly(cluster, run, every_s=1.0):
    """A look now and then at the list of runs: judging whole answers by the contract would take a core away from what is measured."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        time.sleep(every_s)
        with urllib.request.urlopen(f"{cluster.coordinator.url}/v1/runs?limit=1", timeout=30) as answer:
            state = json.load(answer)["runs"][0]["state"]
        if state in ("completed", "failed", "stopped", "paused"):
            assert state == "completed", cluster.status(run)["error"]
            return
    sys.exit(f"bench-pipeline: run {run} took longer than {RUN_SECONDS} s")


class Usage:
    """CPU time since begin() by service, and what others took of the two cores meanwhile."""

    def __init__(self, cluster):
        self.services = {service.name: service.process.pid for service in cluster.services}
        self.cores = sorted(cpus(SAMPLER_CPUS) | cpus(TRAINER_CPUS))
        self.begin = self.look()

    def look(self):
        stat = pathlib.Path("/proc/stat").read_text()
        busy = steal = 0
        for line in stat.splitlines():
            name, *fields = line.split()
            if name in [f"cpu{core}" for core in self.cores]:
                user, nice, system, _, _, irq, softirq, stolen = map(int, fields[:8])
                busy += user + nice + system + irq + softirq
                steal += stolen
        own = {name: cpu_ticks(pid) for name, pid in self.services.items()}
        times = os.times()
        return {"at": time.monotonic(), "busy": busy / TICKS, "steal": steal / TICKS, "own": own, "here": times.user + times.system}

    def end(self):
        """{service: CPU seconds}, and the shares of one core's time that others took and that the hypervisor withheld."""
        before, now = self.begin, self.look()
        passed = now["at"] - before["at"]
        own = {name: now["own"][name] - before["own"][name] for name in self.services}
        others = now["busy"] - before["busy"] - sum(own.values()) - (now["here"] - before["here"])
        return own, max(0.0, others / passed), (now["steal"] - before["steal"]) / passed


def cpu_ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
