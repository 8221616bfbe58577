"""Programs of several ranks under mpirun: how they are started, and which process is which rank."""
import os
import pathlib

from harness import BIN, FAULT_BIN

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
# The launcher as somebody who does nothing about a lost process, so that the ranks must find out for themselves.
MPIRUN_BLIND = [*MPIRUN, "--enable-recovery"]
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in a container


def environment():
    return {**os.environ, **ENVIRONMENT}


class Ranks:
    """Starts the trainer as so many ranks; faults: {rank: the fault that strikes it, in the faulty binary}; settings: {rank: its environment's beside}."""

    def __init__(self, count, faults=None, blind=False, flags=(), bin_dir=BIN, settings=None):
        self.count = count
        self.faults = faults or {}
        self.mpirun = MPIRUN_BLIND if blind else MPIRUN
        self.flags = [*map(str, flags)]
        self.bin_dir = bin_dir
        self.settings = settings or {}

    def command(self, flags):
        """One program for each rank, in order: ranks are counted through."""
        command = [*self.mpirun]
        for rank in range(self.count):
            fault = self.faults.get(rank)
            program = (FAULT_BIN if fault else self.bin_dir) / "trainer-server-mpi"
            settings = [f"{name}={value}" for name, value in self.settings.get(rank, {}).items()]
            command += [":"] if rank else []
            command += ["-n", "1", *(["env", *settings] if settings else []), str(program), *flags, *self.flags, *(["--fault", fault] if fault else [])]
        return command

    environment = staticmethod(environment)


class Pool(Ranks):
    """One mpirun for the trainer and, behind its ranks, generation-servers: {name: its flags}.  `sick`: {name: the fault that strikes it}.

    The launcher does nothing about a lost process, so that the pool may lose some."""

    def __init__(self, servers, count=1, sick=None, fabric="rack"):
        super().__init__(count, blind=True, flags=["--fabric", fabric])
        self.servers = {name: ["--fabric", fabric, *map(str, flags)] for name, flags in servers.items()}
        self.sick = sick or {}

    def command(self, flags):
        coordinator = flags[flags.index("--coordinator") + 1]
        command = super().command(flags)
        for name, own in self.servers.items():
            fault = self.sick.get(name)
            program = (FAULT_BIN if fault else BIN) / "generation-server-mpi"
            command += [":", "-n", "1", str(program), "--coordinator", coordinator, "--name", name, "--port", "0", "--port-file", f"{name}.port"]
            command += [*own, *(["--fault", fault] if fault else [])]
        return command


def descendants(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except (OSError, IndexError):
            pass  # ended meanwhile
    return found + [p for child in found for p in descendants(child)]


def rank_pids(launcher):
    """{rank: pid} of the processes that this mpirun has started."""
    ranks = {}
    for pid in descendants(launcher):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                ranks[int(entry.partition(b"=")[2])] = pid
    return ranks
