"""One run that a fault strikes, from its first process to its verdict.

`play` drives the run to its end whatever happens meanwhile: it posts the run, starts again what ended, resumes the run where trouble paused it, and frees a
disk that is full.  The judge then compares it with the undisturbed run.
"""
import dataclasses
import http.client
import pathlib
import random
import shutil
import sqlite3
import time
import traceback

import disk
import proxy
from judge import Wrong, judge, judge_ends, judge_record
from rig import Rig, Stuck
from visitor import visiting

from harness import HttpError, call, digests

PLAY_SECONDS = 120  # a machine with much other work takes a while
LOOK_SECONDS = 0.02
FULL_SECONDS = 0.7  # how long a disk stays full
RESUMES_MAX = 8
ROOTS = {"coordinator": "db", "trainer": "state"}  # what a power loss strikes


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str  # of plan.KINDS
    role: str
    site: str  # where, for people: the functions on the stack, or an exchange
    what: str  # "kill-after sync"
    shim: tuple = ()  # pairs: the shim's environment
    phase: str = "run"
    strike: proxy.Strike = None
    seed: int = None  # power: how the loss is drawn; None: all that was not synced

    def environment(self, folder):
        made = dict(self.shim)
        if made:
            made.update(SHIM_STRUCK=str(folder / "struck"), SHIM_FREED=str(folder / "freed"))
        if self.kind == "power":
            made.update(SHIM_ROOT=str((folder / ROOTS[self.role]).resolve()), SHIM_DISK=str(folder / "disk.log"))
        return made


@dataclasses.dataclass(frozen=True)
class Outcome:
    fault: Fault
    struck: bool
    recovered: bool
    how: str
    detail: str
    seconds: float


class Drive:
    """Drives one run on a rig to its end."""

    def __init__(self, rig, kind, fault=None):
        """kind: of runs.RUNS."""
        self.rig, self.kind, self.fault = rig, kind, fault
        self.run = None
        self.recorded = []  # digests that the history had
        self.resumed = 0
        self.sentence = ""
        self.struck_at = None
        self.last = None
        self.recovers = fault is not None and fault.phase == "recovery"
        self.deadline = time.monotonic() + PLAY_SECONDS

    def look(self):
        """The run's status, or None while nobody answers."""
        self.rig.supervise()
        if time.monotonic() > self.deadline:
            raise Stuck(f"the run is not over after {PLAY_SECONDS} s: {self.last}")
        self.free_disk()
        try:
            if self.run is None:
                self.run = self.create()
            status = self.rig.status(self.run)
        except HttpError as error:
            if error.status == 404 and self.run:
                raise Wrong(f"run {self.run} was acknowledged and is gone") from None
            self.last = str(error)
            return None
        except (OSError, http.client.HTTPException, sqlite3.Error) as error:
            self.last = repr(error)
            return None
        if digests(status)[: len(self.recorded)] != self.recorded:
            raise Wrong(f"the history had {self.recorded} and has {digests(status)}")
        self.recorded = digests(status)
        self.last = {key: status[key] for key in ("state", "round", "error", "waiting_for")}
        return status

    def create(self):
        """Nobody knows whether a call that broke off was carried out."""
        known = call("GET", f"{self.rig.coordinator.url}/v1/runs")["runs"]
        return known[-1]["id"] if known else call("POST", f"{self.rig.coordinator.url}/v1/runs", self.kind.config())["id"]

    def free_disk(self):
        struck = self.rig.folder / "struck"
        if self.struck_at is None and struck.exists():
            self.struck_at = time.monotonic()
        if self.struck_at is not None and time.monotonic() > self.struck_at + FULL_SECONDS:
            (self.rig.folder / "freed").touch()

    def resume(self, status):
        self.sentence = status["error"]
        self.resumed += 1
        if self.resumed > RESUMES_MAX:
            raise Stuck(f"the run pauses again and again: {self.sentence}")
        try:
            call("POST", f"{self.rig.coordinator.url}/v1/runs/{self.run}/resume")
        except (OSError, http.client.HTTPException, HttpError):
            pass

    def prelude(self):
        """A fault of the recovery needs a death to recover from."""
        victim = self.rig.role(self.fault.role)
        victim.process.kill()
        victim.process.wait()
        victim.environment = self.fault.environment(self.rig.folder)
        if self.fault.kind == "power":
            shutil.copytree(self.rig.folder / ROOTS[self.fault.role], self.rig.folder / "before")
        if "SHIM_RECORD" in victim.environment:
            tell(victim.environment, "recovery")
        self.recovers = False

    def to_end(self):
        with visiting(self) as visitor:
            self.follow()
        if visitor and visitor.wrong:
            raise Wrong(visitor.wrong)

    def follow(self):
        while True:
            status = self.look()
            if status is None:
                pass
            elif status["state"] == "completed":
                return
            elif status["state"] in ("failed", "stopped"):
                raise Wrong(f"the run is {status['state']}: {status['error']}")
            elif status["state"] == "paused":
                self.resume(status)
            elif self.recovers and (status["round"] or 0) >= 1:
                self.prelude()
            time.sleep(LOOK_SECONDS)

    def judged(self, reference):
        """The verdict, as soon as the coordinator answers."""
        while True:
            try:
                return judge(self.rig, self.run, reference, self.kind)
            except (OSError, http.client.HTTPException, HttpError, sqlite3.Error):
                self.look()
            time.sleep(LOOK_SECONDS)


class PowerLoss:
    """At the first death of the role by the shim's hand, its folder becomes what the disk had."""

    def __init__(self, rig, fault):
        self.rig, self.fault = rig, fault
        self.done = False

    def __call__(self, role):
        folder = self.rig.folder
        if self.done or role.name != self.fault.role or not (folder / "struck").exists():
            return
        self.done = True
        root = (folder / ROOTS[role.name]).resolve()
        before = folder / "before"
        found = disk.Disk(root, before if before.exists() else None).play(folder / "disk.log")
        if found.broken:
            raise Wrong(found.broken[0])
        found.lose(None if self.fault.seed is None else random.Random(self.fault.seed))
        found.write(root)
        for key in ("SHIM_ROOT", "SHIM_DISK"):
            role.environment.pop(key, None)


def stop_and_look(rig, drive, fault, reference):
    """SIGTERM to all; where a fault strikes at the end, the database is looked at once more afterwards."""
    rig.stop()
    if fault and fault.phase == "stop":
        role = rig.role(fault.role)
        rig.before_restart(role)
        rig.coordinator.spawn()
        drive.judged(reference)
        rig.stop(["coordinator"])


def play(kind, fault, folder, reference):
    """The Outcome.  kind: of runs.RUNS."""
    folder = pathlib.Path(folder).resolve()
    began = time.monotonic()
    struck = recovered = False
    how = detail = ""
    armed = {} if fault.phase == "recovery" else {fault.role: fault.environment(folder)}
    with Rig(folder, kind.roles, {role: made for role, made in armed.items() if made}, fault.strike) as rig:
        drive = Drive(rig, kind, fault)
        if fault.kind == "power":
            rig.before_restart = PowerLoss(rig, fault)
        try:
            drive.to_end()
            drive.judged(reference)
            stop_and_look(rig, drive, fault, reference)
            judge_ends(rig.ended)
            if not kind.repeats:
                judge_record(rig, drive.run)
            recovered = True
        except (Wrong, Stuck) as error:
            detail = str(error)
        except Exception:  # of this program: told with the fault, not instead of all others
            detail = traceback.format_exc()
        struck = (folder / "struck").exists() or dict(fault.shim).get("SHIM_SYNC_MS") is not None or bool(rig.network and rig.network.struck)
        ends = [end for end in rig.ended if end.status > 0]
        how = "ended with a sentence, started again" if ends else "started again" if rig.ended else "paused, resumed" if drive.resumed else "went on"
        detail = detail or (ends[0].sentence if ends else drive.sentence)
    return Outcome(fault, struck, recovered, how if recovered else "NOT RECOVERED", detail, time.monotonic() - began)


def tell(environment, phase):
    """What a role's recording says from here on belongs to that phase: see sites.py."""
    with open(environment["SHIM_RECORD"], "a") as record:
        record.write(f"phase {phase}\n")


def observe(kind, folder, environment=None, through=None, kill=None):
    """An undisturbed run, or one in which a role is killed once: its Result, and what the proxies saw.  environment: {role: the shim's}."""
    fault = kill and Fault("kill", kill, "", "kill -9", phase="recovery", shim=tuple((environment or {}).get(kill, {}).items()))
    with Rig(folder, kind.roles, environment or {}, through) as rig:
        drive = Drive(rig, kind, fault)
        drive.to_end()
        result = drive.judged(None)
        for made in (environment or {}).values():
            tell(made, "stop")
        rig.stop()
        return result, dict(rig.network.seen) if rig.network else {}
