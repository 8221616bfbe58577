"""kill -9 of every role at random moments of `inflight` runs, drawn with a seed; then what was recorded must still stand.

`Killer` kills, waits a random while, starts again, and looks each time that no digest which was recorded before has changed or is gone.  Two processes may be
dead at once.  `replayed` has deploy/replay.sh compute the run again from the ledger: the digest that it reaches must be the run's last one.

As a program, for `make test-all`: test_inflight_kills.py [kills of each role [seed]].
"""
import collections
import pathlib
import random
import sys
import tempfile
import time

from harness import make_base_model
from test_inflight import ROUNDS, audit_stream, config, replay
from test_overlap import FAST, SLOW, number, start

ROLES = ["coordinator", "trainer", "one", "two"]
PAUSE_SECONDS_MAX = 0.7  # between two kills
DEAD_SECONDS_MAX = 0.4


class Killer:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.killed = collections.Counter()
        self.recorded = {}

    def look(self, cluster):
        """What is in the ledger now; all of it must be there ever after."""
        found = dict(cluster.query("SELECT run || '/' || version, hex(digest) FROM versions"))
        gone = {version: digest for version, digest in self.recorded.items() if found.get(version) != digest}
        assert not gone, f"versions that were recorded are gone or differ: {gone}"
        self.recorded = found

    def kill(self, cluster, roles):
        """One role, or a second one while the first is dead."""
        victims = self.dice.sample(roles, 2 if len(roles) > 1 and self.dice.random() < 0.25 else 1)
        for role in victims:
            time.sleep(self.dice.uniform(0, PAUSE_SECONDS_MAX if role is victims[0] else DEAD_SECONDS_MAX))
            self.look(cluster)
            service_of(cluster, role).kill()
            self.killed[role] += 1
        time.sleep(self.dice.uniform(0, DEAD_SECONDS_MAX))
        for role in victims if self.dice.random() < 0.5 else reversed(victims):
            service_of(cluster, role).restart()
        self.look(cluster)


def service_of(cluster, role):
    return next(service for service in cluster.services if service.name == role)


def play(folder, model, killer, made, wanted, seconds=240):
    """Kills until each role of `wanted` was killed so often, or the run is over; then the run must end, be sound, and be computed again."""
    with start(folder, model) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", *SLOW)
        run = cluster.create_run(made)
        cluster.wait_until("round 1", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = 1", number(run)))
        while (roles := [role for role in ROLES if killer.killed[role] < wanted]) and cluster.query("SELECT ended_ms FROM runs WHERE id = ?", number(run)) == [(None,)]:
            killer.kill(cluster, roles)
        status = cluster.wait(run, seconds=seconds)
        killer.look(cluster)
        audit_stream(cluster, run)
    assert len(status["history"]) == made["rounds"] and status["history"][-1]["digest"] == status["weights_digest"]
    said = replayed(cluster, folder, run, model)
    assert f"{run}:" in said and status["weights_digest"] in said, said
    return status


def replayed(cluster, folder, run, model, *trainer):
    code, said, why = replay(cluster, pathlib.Path(folder), run, model, *trainer, seconds=180)
    assert code == 0, f"the record is not reached: {why}"
    return said


def test_every_role_is_killed(base_model, tmp_path):
    killer = Killer(seed=7)
    play(tmp_path, base_model, killer, config(rounds=3 * ROUNDS), wanted=1)
    assert killer.killed == {role: 1 for role in ROLES}, killer.killed


def main(kills=30, seed=1):
    killer = Killer(seed)
    runs = 0
    with tempfile.TemporaryDirectory() as folder:
        model = make_base_model(folder, rounds=120)
        while any(killer.killed[role] < kills for role in ROLES):
            made = config(rounds=5 * ROUNDS, kv="recompute" if runs % 2 else "keep", order="submission" if runs % 3 == 2 else "completion", seed=seed + runs)
            made["training"]["checkpoint_every"] = 1 + 3 * (runs % 2)
            killer.recorded = {}
            before = dict(killer.killed)
            status = play(pathlib.Path(folder) / f"run-{runs}", model, killer, made, kills)
            runs += 1
            print(f"run {runs}: {len(status['history'])} steps, killed {dict(killer.killed - collections.Counter(before))}, {status['totals']['leases_lost']} leases lost, "
                  f"{sum(row['lag']['groups_dropped'] for row in status['history'])} groups too old, replayed to {status['weights_digest'][:16]}", flush=True)
    print(f"kill -9 in {runs} runs: {dict(killer.killed)}; all that was published stands, and every run was computed again from its ledger")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
