#!/usr/bin/env python3
"""make fault: strikes the services at every site that a run comes to, one fault a run, and holds every run against the undisturbed one.

  tests/fault/run.py [--seed N] [--kinds kill,power,...] [--jobs N] [--most N] [--sample N] [--at REGEX] [--full] [--run NAME]

The last line is "N faults injected, N recovered"; any other one fails.  build/fault/sites.tsv lists every fault; what was not recovered stays in
build/fault/failed.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import time

import proxy
import sites
from plan import KINDS, MEMORY_MAX, Planner
from play import observe, play
from rig import PROGRAMS, ROOT
from runs import RUNS

from harness import BIN

OUT = pathlib.Path(os.environ.get("LEASEHOLD_FAULT_OUT", ROOT / "build/fault"))
MEMORY = pathlib.Path("/dev/shm")  # what an fsync promises is the shim's to judge, so that its cost can be saved
FAILED_KEPT = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=3, help="runs at once")
    parser.add_argument("--most", type=int, help="at most so many of a kind")
    parser.add_argument("--sample", type=int, help="so many in all, and only from an undisturbed recording: for make test")
    parser.add_argument("--at", help="only sites whose functions, or exchange, match this regular expression")
    parser.add_argument("--full", action="store_true", help="every site of an allocation too")
    parser.add_argument("--run", choices=RUNS, default="refill", help="the run that is struck, of runs.py")
    made = parser.parse_args()
    made.kinds = made.kinds.split(",")
    if unknown := set(made.kinds) - set(KINDS):
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return made


@contextlib.contextmanager
def rigs():
    """A folder for the runs' files, in memory where there is such a place."""
    with tempfile.TemporaryDirectory(prefix="leasehold-fault-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield pathlib.Path(folder)


def recording(kind, runs, name, killed=None):
    """Every role's sites of a run, undisturbed or with one role killed; and the run's result."""
    folder = runs / f"record-{name}"
    folder.mkdir()
    roles = [killed] if killed else kind.roles
    environment = {role: {"SHIM_RECORD": str(folder / f"{role}.sites")} for role in roles}
    result, _ = observe(kind, folder / "rig", environment, kill=killed)
    return [site for role in roles for site in sites.read(folder / f"{role}.sites", role, "run")], result


def prepare(options, pool, runs):
    """The reference, the sites and the exchanges."""
    begin = pool.submit(observe, RUNS[options.run], runs / "reference")
    undisturbed = pool.submit(recording, RUNS[options.run], runs, "undisturbed")
    proxied = pool.submit(observe, RUNS[options.run], runs / "proxied", None, proxy.PASS) if "net" in options.kinds else None
    deaths = [] if options.sample else [pool.submit(recording, RUNS[options.run], runs, f"kill-{role}", role) for role in RUNS[options.run].roles]
    reference, _ = begin.result()
    recordings = [future.result() for future in [undisturbed, *deaths]]
    exchanges = {}
    if proxied:
        result, exchanges = proxied.result()
        recordings.append(([], result))
    assert not RUNS[options.run].repeats or all(result == reference for _, result in recordings), "a run that was only watched went another way"
    assert len(set(reference.digests)) == len(reference.digests), "every round must change the weights, or equal digests would prove nothing"
    return reference, sites.merge(*(found for found, _ in recordings)), exchanges


def chosen(options, found, exchanges):
    planner = Planner(found, exchanges, {role: str(BIN / program) for role, program in PROGRAMS.items()}, options.seed, options.at)
    most = {kind: options.most for kind in options.kinds}
    if "memory" in most and options.most is None and not options.full:
        most["memory"] = MEMORY_MAX
    if not options.sample:
        return planner.bounded(options.kinds, most)
    each = -(-options.sample // len(options.kinds))
    return planner.bounded(options.kinds, {kind: each for kind in options.kinds})[: options.sample]


def one(kind, folder, number, fault, reference):
    outcome = play(kind, fault, folder, reference)
    if not outcome.recovered and number_kept() < FAILED_KEPT:
        shutil.move(str(folder), OUT / "failed" / f"{number}-{fault.kind}-{fault.role.replace(' ', '-')}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def number_kept():
    return len(list((OUT / "failed").iterdir()))


def tell(outcome):
    fault = outcome.fault
    strike = dict(fault.shim) or fault.strike
    print(f"NOT RECOVERED: {fault.kind}, {fault.role}: {fault.what} at {fault.site}\n  {outcome.detail[:600]}\n  {strike}, {fault.phase}", flush=True)


def write_table(outcomes):
    with open(OUT / "sites.tsv", "w") as table:
        print("kind", "role", "fault", "site", "when", "hit", "outcome", "seconds", "sentence", sep="\t", file=table)
        for o in sorted(outcomes, key=lambda o: (o.fault.kind, o.fault.role, o.fault.what, o.fault.site)):
            f = o.fault
            hit = f.strike.hit if f.strike else dict(f.shim).get("SHIM_HIT", "")
            print(f.kind, f.role, f.what, f.site, f.phase, hit, o.how if o.struck else "not reached", f"{o.seconds:.1f}", o.detail.replace("\t", " ").replace("\n", " ")[:300], sep="\t", file=table)


def summary(outcomes):
    """By kind and role: how many, and how the run came through."""
    rows = collections.defaultdict(collections.Counter)
    for o in outcomes:
        rows[o.fault.kind, o.fault.role][o.how if o.struck else "not reached"] += 1
    print(f"\n{'kind':8} {'role':24} {'faults':>6}  how the run came through")
    for (kind, role), counts in sorted(rows.items()):
        injected = sum(count for how, count in counts.items() if how != "not reached")
        print(f"{kind:8} {role:24} {injected:6}  {', '.join(f'{count} {how}' for how, count in sorted(counts.items()))}")


def main():
    options = arguments()
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "failed").mkdir(parents=True)
    began = time.monotonic()
    outcomes = []
    with rigs() as runs, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        reference, found, exchanges = prepare(options, pool, runs)
        faults = chosen(options, found, exchanges)
        print(f"seed {options.seed}: {len(found)} sites, {len(exchanges)} kinds of exchanges, {len(faults)} faults to inject, {options.jobs} runs at once", flush=True)
        for future in concurrent.futures.as_completed(pool.submit(one, RUNS[options.run], runs / f"run-{number}", number, fault, reference) for number, fault in enumerate(faults)):
            outcomes.append(future.result())
            if not outcomes[-1].recovered:
                tell(outcomes[-1])
            if len(outcomes) % 50 == 0:
                write_table(outcomes)
                print(f"{len(outcomes)} of {len(faults)} after {time.monotonic() - began:.0f} s", flush=True)
    write_table(outcomes)
    summary(outcomes)
    injected = [o for o in outcomes if o.struck or not o.recovered]
    distinct = {(o.fault.role, dict(o.fault.shim).get("SHIM_SITE", o.fault.site), o.fault.what) for o in injected}
    recovered = sum(o.recovered for o in injected)
    print(f"{len(outcomes) - len(injected)} were not reached; {len(distinct)} distinct pairs of site and transition; {time.monotonic() - began:.0f} s")
    print(f"{len(injected)} faults injected, {recovered} recovered")
    return 0 if injected and recovered == len(injected) else 1


if __name__ == "__main__":
    sys.exit(main())
