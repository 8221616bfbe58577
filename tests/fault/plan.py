"""Which faults there are at the sites that were recorded, and which of them a bounded run takes."""
import errno
import random
import re

import proxy
from play import ROOTS, Fault

KINDS = ("kill", "power", "fail", "memory", "disk", "clock", "net")
MEMORY_MAX = 240  # of some thousand sites, unless all are asked for
CALL_KILLS = {
    "change": ("kill-before", "kill-after-commit"),
    "commit": ("kill-before", "kill-after"),
    "sync": ("kill-before", "kill-after"),
    "rename": ("kill-before", "kill-after"),
    "open": ("kill-after",),
    "write": ("kill-after",),
    "remove": ("kill-after",),
    "mkdir": ("kill-after",),
    "truncate": ("kill-after",),
    "send": ("kill-before", "kill-after"),
    "accept": ("kill-after",),
    "connect": ("kill-after",),
    "thread": ("kill-after",),
    "handover": ("kill-after",),
    "log": ("kill-after",),
}
CALL_POWER = {call: acts for call, acts in CALL_KILLS.items() if call in ("commit", "sync", "rename", "open", "write", "remove", "mkdir", "truncate", "send", "log")}
CALL_POWER["change"] = ("kill-after-commit",)
SQLITE = {"FULL": 13, "IOERR": 10, "BUSY": 5}
FILES = ("open", "write", "sync", "rename", "remove", "mkdir", "truncate")
CALL_FAILS = {
    **{call: {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC} for call in FILES},
    **{call: SQLITE for call in ("change", "commit", "query")},
    "thread": {"EAGAIN": errno.EAGAIN},
    "socket": {"EMFILE": errno.EMFILE},
    "connect": {"ECONNREFUSED": errno.ECONNREFUSED},
    "accept": {"EMFILE": errno.EMFILE},
    "send": {"ECONNRESET": errno.ECONNRESET},
    "receive": {"ECONNRESET": errno.ECONNRESET},
}
HOUR_MS = 3600 * 1000
JUMPS = {"an hour on": HOUR_MS, "an hour back": -HOUR_MS, "twenty days on": 20 * 24 * HOUR_MS, "twenty days back": -20 * 24 * HOUR_MS}
SLOW_MS = (30, 150)


class Planner:
    def __init__(self, sites, exchanges, programs, seed, pattern=None):
        """pattern: a regular expression of the sites that are taken.  exchanges: {(edge, exchange): how often}, as an undisturbed run had them.  programs: {role: its binary}."""
        self.sites, self.exchanges, self.programs = sites, exchanges, programs
        self.dice = random.Random(seed)
        self.pattern = re.compile(pattern or "")

    def at(self, kind, site, act, what, error=None, seed=None):
        """One fault at a site: the first time, or some later one that a run surely comes to."""
        hit = self.dice.choice((1, self.dice.randint(1, max(1, site.count // 2))))
        shim = {"SHIM_SITE": site.hash, "SHIM_CALL": site.call, "SHIM_HIT": str(hit), "SHIM_ACT": act}
        if error is not None:
            shim["SHIM_ERROR"] = str(error)
        return Fault(kind, site.role, site.named(self.programs[site.role]), f"{what} {site.call}", tuple(shim.items()), site.phase, seed=seed)

    def kill(self):
        return [self.at("kill", site, act, act) for site in self.sites for act in CALL_KILLS.get(site.call, ())]

    def power(self):
        """Both ways to lose: all that was not synced, and a part of it that the dice choose."""
        return [
            self.at("power", site, act, f"power, {act}{', part kept' if seed else ''},", seed=seed)
            for site in self.sites if site.role in ROOTS
            for act in CALL_POWER.get(site.call, ())
            for seed in (None, self.dice.randint(1, 1 << 30))
        ]

    def fail(self):
        return [self.at("fail", site, "fail", f"{name} of", error) for site in self.sites for name, error in CALL_FAILS.get(site.call, {}).items()]

    def memory(self):
        return [self.at("memory", site, "fail", "no", errno.ENOMEM) for site in self.sites if site.call == "memory"]

    def disk(self):
        """Full from some call on until space is freed; and slow throughout."""
        full = [self.at("disk", site, "full", "full from") for site in self.sites if site.role in ROOTS and site.call in ("open", "write", "mkdir", "truncate") and site.phase == "run"]
        slow = [Fault("disk", role, "every fsync", f"takes {ms} ms", (("SHIM_SYNC_MS", str(ms)),)) for role in ROOTS for ms in SLOW_MS]
        return full + slow

    def clock(self):
        return [self.at("clock", site, "jump", f"{name} at", ms) for site in self.sites if site.call == "clock" and site.phase == "run" for name, ms in JUMPS.items()]

    def net(self):
        made = []
        for (edge, exchange), count in sorted(self.exchanges.items()):
            for mode in proxy.MODES:
                hit = self.dice.choice((1, self.dice.randint(1, max(1, count // 2))))
                made.append(Fault("net", edge, exchange, mode, strike=proxy.Strike(edge, exchange, hit, mode)))
        return made

    def all(self, kinds):
        return {kind: [fault for fault in getattr(self, kind)() if self.pattern.search(fault.site)] for kind in kinds}

    def bounded(self, kinds, most):
        """most: {kind: how many at most}.  What is left out is drawn so that every role and call keeps its share."""
        taken = []
        for kind, faults in self.all(kinds).items():
            self.dice.shuffle(faults)
            taken += spread(faults, most[kind]) if most.get(kind) is not None else faults
        self.dice.shuffle(taken)
        return taken


def spread(faults, most):
    """At most so many, in turns from each role and kind of call."""
    heaps = {}
    for fault in faults:
        heaps.setdefault((fault.role, fault.what), []).append(fault)
    taken = []
    while len(taken) < most and heaps:
        for key in list(heaps):
            taken.append(heaps[key].pop())
            if not heaps[key]:
                del heaps[key]
    return taken[:most]
