"""Sites: the distinct call stacks at which a service makes a call that a fault may strike, as the shim recorded them."""
import bisect
import collections
import dataclasses
import functools
import subprocess

FRAMES_SHOWN = 5
DULL = {"main", "start_thread", "thread_main", "store_exec", "rows_next", "store_int"}


@dataclasses.dataclass(frozen=True)
class Site:
    role: str
    call: str
    hash: str
    frames: tuple  # "module+offset", innermost first
    count: int  # how often the recorded process came here
    phase: str  # run: in an undisturbed run; recovery: only after a kill -9; stop: only after SIGTERM

    def named(self, program):
        """The innermost functions of the service on the stack."""
        names = [function_at(program, int(offset, 16)) for module, _, offset in (frame.rpartition("+") for frame in self.frames) if module == "main"]
        names = [name for i, name in enumerate(names) if name not in DULL and (i == 0 or names[i - 1] != name)]
        return " < ".join(names[:FRAMES_SHOWN]) or self.frames[0].rpartition("+")[0]


@functools.cache
def functions_of(program):
    lines = subprocess.run(["nm", "--defined-only", "-n", program], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [(int(address, 16), name) for address, kind, name in map(str.split, lines) if kind in "tT"]
    return [address for address, _ in found], [name for _, name in found]


def function_at(program, offset):
    addresses, names = functions_of(program)
    at = bisect.bisect_right(addresses, offset - 1) - 1  # a return address may lie behind its function's end
    return names[at].split(".")[0] if at >= 0 else "?"


def read(path, role, phase):
    """The sites of one role's recording, and by a line "phase stop" those after it."""
    found, counts = [], collections.Counter()
    for line in path.read_text().splitlines():
        word, *rest = line.split()
        if word == "phase":
            phase = rest[0]
        elif word == "site":
            found.append((rest[0], rest[1], tuple(rest[2:]), phase))
        elif word == "count":
            counts[rest[0]] += int(rest[1])
    seen, sites = set(), []
    for hash_, call, frames, when in found:
        if hash_ not in seen:
            sites.append(Site(role, call, hash_, frames, max(1, counts[hash_]), when))
        seen.add(hash_)
    return sites


def merge(*recordings):
    """Each site once, as the first recording that has it tells it."""
    merged = {}
    for recording in recordings:
        for site in recording:
            merged.setdefault((site.role, site.hash), site)
    return list(merged.values())
